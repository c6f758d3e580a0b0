"""Clouds: points, which are particles or data, with their conditions.

n points in d dimensions are the columns of a tensor x (d, n), so point i is x[:, i].

Maps that classes share
-----------------------
With a finite ξ a class offsets the projections, and a direction has one map for all
classes. The points may be in any order.

Separate maps of classes
------------------------
With ξ = ∞ each class has its own maps along the same h directions. `simulate` has no
branch for this: the type of y says it. The y of rows and of particles is then
`SeparateClassIndices`. A `ClassOrder` sorts points by class, and their y becomes
`SortedClassIndices`. A step takes only points that are sorted by class: the transport
fits the maps of a class to the slice of its points, and the maps, stacked class by
class, move each slice of the particles.

`base.particle_allocation` sorts the particles of a fit before the first step, and
`DataTarget` sorts the data when it loads them. `replay` and axis steps take particles
in any order: they move a copy that `Cloud.moving_in_class_order` sorts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from sliceflow.engine.encoded_y import (
    ClassIndices,
    ClassSlices,
    ContinuousY,
    EncodedY,
    FlowY,
    MixedY,
    SeparateClassIndices,
    SortedClassIndices,
    require_sorted,
)
from sliceflow.engine.random import Seed
from sliceflow.engine.wasserstein import squared_wasserstein
from sliceflow.errors import DataError

PermutationT = TypeVar("PermutationT", bound="Permutation")
# Which of n points: a slice, or indices (k,).
PointIndices = slice | Tensor


@dataclass(frozen=True, eq=False)
class PointSelection:
    """Which points of a cloud a step uses."""

    indices: PointIndices | None  # None selects all points


@dataclass(frozen=True, eq=False)
class SortedSelection(PointSelection):
    """A selection of points sorted by class, where each class has its own maps."""

    indices: Tensor | None
    class_slices: ClassSlices  # of the classes among the selected points


ALL_POINTS = PointSelection(None)


@dataclass(frozen=True, eq=False)
class Permutation:
    """Another order of n points, and the way back.

    Attributes
    ----------
    indices : tensor (n,)
        Point i of the new order was point ``indices[i]``.
    """

    indices: Tensor

    @cached_property
    def inverse(self) -> Tensor:
        """The way back (n,): point i of the old order is ``inverse[i]`` of the new."""
        return self.indices.argsort()

    def then(self, following: PermutationT) -> PermutationT:
        """This order followed by `following`, which reorders its points."""
        return replace(following, indices=self.indices[following.indices])

    def apply_to_y(self, y: FlowY) -> FlowY:
        """The y of the points, brought into the new order."""
        return y.take(self.indices)

    def undo_on_x(self, x: Tensor) -> Tensor:
        """Points x (d, n), given in the new order, brought into the old order."""
        return x[:, self.inverse]


@dataclass(frozen=True, eq=False)
class ClassOrder(Permutation):
    """An order that sorts points by class.

    Attributes
    ----------
    class_slices : ClassSlices
        Where the classes are in the new order. The points of each class are counted
        once, however often points are brought into this order.
    """

    class_slices: ClassSlices

    @classmethod
    def from_y(cls, y: ClassIndices, n_classes: int) -> ClassOrder:
        """The order that sorts points by class. Points of a class keep their order."""
        return cls(
            y.values.argsort(stable=True),
            ClassSlices.from_class_indices(y, n_classes),
        )

    def apply_to_y(self, y: FlowY) -> FlowY:
        """The y of the points, brought into the new order.

        `SeparateClassIndices` become `SortedClassIndices`.
        """
        reordered = y.take(self.indices)
        if isinstance(reordered, SeparateClassIndices):
            return SortedClassIndices(
                reordered.values, reordered.n_classes, self.class_slices
            )
        return reordered


@dataclass(eq=False)
class Cloud:
    """Points with their conditions. Steps move the points x; the conditions y stay.

    Attributes
    ----------
    x : tensor (d, n)
        The points.
    y : FlowY or None, default None
        The conditions of the points; None if there are none.
    """

    x: Tensor
    y: FlowY | None = None

    @classmethod
    def from_rows(cls, rows: Tensor, y: FlowY | None, device: torch.device) -> Cloud:
        """Rows (n, d) and their y as points, which are columns, on the device."""
        if y is not None:
            y = y.to(device)
        return cls(rows.to(device).T.contiguous(), y)

    @property
    def class_slices(self) -> ClassSlices | None:
        """The points of each class, if each class has its own maps; else None.

        Raises a ValueError if each class has its own maps, but the points are not
        sorted by class.
        """
        if isinstance(self.y, SeparateClassIndices):
            return require_sorted(self.y).class_slices
        return None

    @property
    def all_points(self) -> PointSelection:
        """All points, as a selection."""
        if self.class_slices is None:
            return ALL_POINTS
        return SortedSelection(None, self.class_slices)

    def take(self, indices: PointIndices | None) -> Cloud:
        """Some of the points, or all: a view of a slice, a copy of other indices."""
        if indices is None:
            return self
        y = None if self.y is None else self.y.take(indices)
        return Cloud(self.x[:, indices], y)

    def reordered(self, order: Permutation) -> Cloud:
        """A copy with the points in another order."""
        y = None if self.y is None else order.apply_to_y(self.y)
        return Cloud(self.x[:, order.indices], y)

    def sorted_by_class(self) -> Cloud:
        """The points, sorted by class if each class has its own maps.

        This is a copy if the points must be sorted, and the cloud itself otherwise.
        """
        order = self._class_order()
        if order is None:
            return self
        return self.reordered(order)

    def _class_order(self) -> ClassOrder | None:
        """The order that sorts the points by class; None if they need no sorting."""
        y = self.y
        if not isinstance(y, SeparateClassIndices) or isinstance(y, SortedClassIndices):
            return None
        return ClassOrder.from_y(y, y.n_classes)

    @contextmanager
    def moving_in_class_order(self) -> Iterator[tuple[Cloud, Permutation | None]]:
        """The points, sorted by class for separate maps, to move in a `with` block.

        Yields a sorted copy of the cloud, and the order that sorts it. When the block
        ends, the points of this cloud move to where the points of the copy are. If an
        error ends the block, this cloud stays as it was. If classes share maps, or if
        the points are sorted already, this yields the cloud itself and None.
        """
        order = self._class_order()
        if order is None:
            yield self, None
            return
        sorted_cloud = self.reordered(order)
        yield sorted_cloud, order
        self.x.copy_(order.undo_on_x(sorted_cloud.x))


def sliced_distance(
    x_p: Tensor,
    x_q: Tensor,
    seed: Seed,
    n_directions: int = 100,
    *,
    y_p: EncodedY | None = None,
    y_q: EncodedY | None = None,
) -> float:
    """The sliced Wasserstein distance SW₂ between points (d, M) and (d, N).

    It is the root of the mean of W₂² over random unit vectors drawn from `seed`; M and
    N may differ.

    If `y_p` and `y_q` have classes, the points x_q of a class are compared only with
    the points x_p of the same class. W₂² of a class is weighted by the share of x_q in
    this class. If `y_p` and `y_q` have continuous columns (n, l), pairs (x, y) are
    compared: the projections of y along random vectors of length about 1 are added to
    the projections of x. Mixed conditions have classes and continuous columns.
    """
    theta = seed.normal(n_directions, len(x_q), dtype=x_q.dtype)
    theta = (theta / theta.norm(dim=1, keepdim=True)).to(x_q.device)
    z_p = theta @ x_p
    z_q = theta @ x_q
    columns_p = _continuous_columns(y_p)
    columns_q = _continuous_columns(y_q)
    if columns_p is not None and columns_q is not None:
        condition_dim = columns_q.shape[1]
        theta_y = seed.child("y").normal(n_directions, condition_dim)
        theta_y = (theta_y / math.sqrt(condition_dim)).to(z_q.device)
        z_p = z_p + (theta_y @ columns_p.to(theta_y).T).to(z_p.dtype)
        z_q = z_q + (theta_y @ columns_q.to(theta_y).T).to(z_q.dtype)
    costs = _costs_within_classes(z_p, z_q, _classes(y_p), _classes(y_q))
    return float(costs.mean().sqrt())


def _costs_within_classes(
    z_p: Tensor, z_q: Tensor, classes_p: Tensor | None, classes_q: Tensor | None
) -> Tensor:
    """W₂² (h,) between z_p (h, m) and z_q (h, n) in each class: the mean over classes.

    A class is weighted by its share of z_q. If `classes_p` or `classes_q` is None, the
    result is W₂² between all values.
    """
    if classes_p is None or classes_q is None:
        return squared_wasserstein(z_p, z_q)
    classes_p = classes_p.to(z_p.device)
    classes_q = classes_q.to(z_q.device)
    total = z_q.new_zeros(len(z_q))
    for c in torch.unique(classes_q):
        class_p = z_p[:, classes_p == c]
        class_q = z_q[:, classes_q == c]
        if class_p.shape[1] == 0:
            fact = f"there are no samples of class {int(c)}, which the data have"
            raise DataError(fact, "draw samples with the conditions of the data")
        costs = squared_wasserstein(class_p, class_q)
        total += class_q.shape[1] / z_q.shape[1] * costs
    return total


def _classes(y: EncodedY | None) -> Tensor | None:
    """The classes (n,) of y; None if it has none."""
    if isinstance(y, ClassIndices):
        return y.values
    if isinstance(y, MixedY):
        return y.class_indices
    return None


def _continuous_columns(y: EncodedY | None) -> Tensor | None:
    """The standardized columns (n, l) of y; None if it has none."""
    if isinstance(y, ContinuousY):
        return y.values
    if isinstance(y, MixedY):
        return y.continuous
    return None
