"""Clouds: particles and data as columns, with their conditions.

With a finite ξ a class shifts the projections, and a direction has one map for all
classes. With ξ = ∞ each class has its own maps along the same directions. Columns are
then sorted by class, so that each class is a slice of the columns, and the maps have
C·h rows: those of the h directions for the first class, then for the second, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.engine.wasserstein import squared_wasserstein

Indices = slice | Tensor | None  # some columns of a cloud; None is all of them


@dataclass(frozen=True)
class ClassSlices:
    """The columns of each class: c has those from starts[c] to starts[c + 1]."""

    starts: tuple[int, ...]

    @classmethod
    def from_codes(cls, codes: Tensor, n_classes: int) -> ClassSlices:
        """The slices of points with these class numbers (n,), once they are sorted."""
        sizes = torch.bincount(codes, minlength=n_classes).tolist()
        return cls(tuple(accumulate(sizes, initial=0)))

    def __len__(self) -> int:
        """C, the number of classes."""
        return len(self.starts) - 1

    @property
    def slices(self) -> list[slice]:
        """The columns of each class."""
        return [slice(first, end) for first, end in pairwise(self.starts)]

    @property
    def empty(self) -> list[int]:
        """The classes without columns."""
        return [c for c, part in enumerate(self.slices) if part.start == part.stop]

    def part(self, columns: slice) -> ClassSlices:
        """The slices of the classes within a slice of the columns."""
        first = columns.start
        end = min(columns.stop, self.starts[-1])
        return ClassSlices(tuple(min(max(s, first), end) - first for s in self.starts))


@dataclass
class Cloud:
    """Points with their conditions: x (d, n) moves, y does not.

    y are class numbers (n,), continuous conditions (n, l), or None. If each class has
    its own maps, the points are sorted by class, and `class_slices` says where they
    are.
    """

    x: Tensor
    y: Tensor | None = None
    class_slices: ClassSlices | None = None

    def part(self, columns: Indices) -> Cloud:
        """Some of the points; a slice gives a view.

        A choice by numbers, unlike a slice, has no `class_slices`.
        """
        if columns is None:
            return self
        y = None if self.y is None else self.y[columns]
        class_slices = None
        if self.class_slices is not None and isinstance(columns, slice):
            class_slices = self.class_slices.part(columns)
        return Cloud(self.x[:, columns], y, class_slices)


@dataclass(frozen=True)
class ClassOrder:
    """Columns sorted by class, and the way back to the order that they had before.

    Within a class, columns keep their order.
    """

    codes: Tensor  # (n,) class numbers, sorted
    order: Tensor  # (n,) sorted column i is column order[i] of before
    inverse: Tensor  # (n,) column i of before is sorted column inverse[i]
    class_slices: ClassSlices

    @classmethod
    def from_codes(cls, codes: Tensor, n_classes: int) -> ClassOrder:
        """The order that sorts columns with these class numbers (n,)."""
        sorted_codes, order = codes.sort(stable=True)
        class_slices = ClassSlices.from_codes(sorted_codes, n_classes)
        return cls(sorted_codes, order, order.argsort(), class_slices)

    def sort(self, x: Tensor) -> Cloud:
        """Columns x (d, n) in the order of their classes, as a cloud."""
        return Cloud(x[:, self.order], self.codes, self.class_slices)

    def unsort(self, x: Tensor) -> Tensor:
        """Sorted columns (d, n) in the order that they had before."""
        return x[:, self.inverse]


def sliced_distance(
    samples: Cloud, data: Cloud, seed: Seed, n_directions: int = 100
) -> float:
    """The sliced Wasserstein distance SW₂ between samples (d, M) and data (d, N).

    It is the root of the mean of W₂² over random unit vectors drawn from `seed`; M and
    N may differ.

    If both clouds have classes, the data of a class are compared with samples of that
    class only, and W₂² of a class counts by its share of the data. If both have
    continuous conditions y (n, l), pairs (x, y) are compared: projections of y along
    random vectors of length about 1 are added to those of x.
    """
    theta = seed.normal(n_directions, len(data.x), dtype=data.x.dtype)
    theta = (theta / theta.norm(dim=1, keepdim=True)).to(data.x.device)
    z_p = theta @ samples.x
    z_q = theta @ data.x
    if data.y is None or samples.y is None:
        return float(squared_wasserstein(z_p, z_q).mean().sqrt())
    y_p = samples.y.to(z_p.device)
    y_q = data.y.to(z_p.device)
    if y_q.dim() == 1:
        total = z_q.new_zeros(n_directions)
        for c in torch.unique(y_q):
            class_q = z_q[:, y_q == c]
            costs = squared_wasserstein(z_p[:, y_p == c], class_q)
            total += class_q.shape[1] / z_q.shape[1] * costs
        return float(total.mean().sqrt())
    width = y_q.shape[1]
    theta_y = seed.child("y").normal(n_directions, width) / math.sqrt(width)
    theta_y = theta_y.to(z_p.device)
    shift_p = (theta_y @ y_p.double().T).to(z_p.dtype)
    shift_q = (theta_y @ y_q.double().T).to(z_p.dtype)
    return float(squared_wasserstein(z_p + shift_p, z_q + shift_q).mean().sqrt())
