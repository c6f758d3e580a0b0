"""Clouds: particles and data as columns, with their conditions.

With a finite ξ a class shifts the projections, and a direction has one map for all classes. With ξ = ∞
each class has its own maps, with the same directions. Columns are then sorted, so that a class is a run
of columns, and tables have C·h rows, class by class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sliceflow.engine.random import Seed

Indices = slice | Tensor | None  # some columns of a cloud; None is all of them


@dataclass(frozen=True)
class ClassSlices:
    """Class c has the columns from starts[c] to starts[c + 1]."""

    starts: tuple[int, ...]

    @classmethod
    def from_codes(cls, codes: Tensor, n_classes: int) -> ClassSlices:
        """The runs of class numbers, once these are sorted."""
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
        return [
            c for c, (first, end) in enumerate(pairwise(self.starts)) if first == end
        ]

    def part(self, columns: slice) -> ClassSlices:
        """The runs of a slice of the columns."""
        first = columns.start
        end = min(columns.stop, self.starts[-1])
        return ClassSlices(tuple(min(max(s, first), end) - first for s in self.starts))


@dataclass
class Cloud:
    """Points with their conditions: x (d, n) moves, y (n codes, or None) does not.

    If each class has its own maps, the points are sorted by class, and `class_slices` has their ranges.
    """

    x: Tensor
    y: Tensor | None = None
    class_slices: ClassSlices | None = None

    def part(self, columns: Indices) -> Cloud:
        """Some of the points; a slice gives a view."""
        if columns is None:
            return self
        class_slices = (
            self.class_slices.part(columns)
            if self.class_slices and isinstance(columns, slice)
            else None
        )
        return Cloud(
            self.x[:, columns],
            None if self.y is None else self.y[columns],
            class_slices,
        )


def sort_by_class(
    codes: Tensor, n_classes: int
) -> tuple[Tensor, Tensor, Tensor, ClassSlices]:
    """Class numbers (n,) sorted, the order that sorts them, its inverse, and the runs."""
    codes, order = codes.sort(stable=True)
    return codes, order, order.argsort(), ClassSlices.from_codes(codes, n_classes)


def sliced_distance(
    samples: Cloud, rows: Cloud, seed: Seed, n_directions: int = 100
) -> float:
    """SW₂ over random directions, by the samples' quantiles at the rows' own levels.

    Rows of a class are compared with samples of that class, rows with continuous y as pairs (x, y).
    """
    theta = seed.normal(n_directions, len(rows.x), dtype=rows.x.dtype)
    theta = (theta / theta.norm(dim=1, keepdim=True)).to(rows.x.device)
    z = theta @ samples.x
    target = theta @ rows.x
    pairs = [(z, target)]
    if rows.y is not None and samples.y is not None:
        y_p, y_q = (y.to(z.device) for y in (samples.y, rows.y))
        if y_q.dim() == 1:
            pairs = [(z[:, y_p == c], target[:, y_q == c]) for c in torch.unique(y_q)]
        else:
            width = y_q.shape[1]
            theta_y = seed.child("y").normal(n_directions, width).to(
                z.device
            ) / math.sqrt(width)
            shifts = ((theta_y @ y.double().T).to(z.dtype) for y in (y_p, y_q))
            pairs = [(z + next(shifts), target + next(shifts))]
    squares = [
        (_quantiles(a, b.shape[1]) - b.sort(1).values).square() for a, b in pairs
    ]
    return float(torch.cat(squares, dim=1).mean().sqrt())


def _quantiles(z: Tensor, n: int) -> Tensor:
    """Quantiles of z (h, m) at the levels of n sorted values: (h, n)."""
    z, m = torch.sort(z, dim=1).values, z.shape[1]
    position = ((torch.arange(n, device=z.device) + 0.5) * (m / n) - 0.5).clamp(
        0, m - 1
    )
    i = position.floor().long().clamp(max=max(m - 2, 0))
    f = (position - i).to(z.dtype)
    return z[:, i] + f * (z[:, (i + 1).clamp(max=m - 1)] - z[:, i])
