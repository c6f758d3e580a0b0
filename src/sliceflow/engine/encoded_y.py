"""Encoded conditions: the y of n points, as the engine uses it.

`ClassIndices` encode labels, `ContinuousY` encodes continuous columns, which are
columns of numbers, and `MixedY` encodes both together. The type also says what a flow
does with y. If all points share the maps, y is `ClassIndices` or `ContinuousY`, and
offsets projections. If each class has maps of its own, y is `SeparateClassIndices`, or
`SortedClassIndices` if the points are sorted by class. If the flow ignores y, it gets
None. Nothing writes to a y: conditions do not move.

Everywhere in the package these names have one meaning each:

y, user_y    as users write it: labels (n,) or columns (n, l)
encoded_y    the user's y as an `EncodedY`
flow_y       what a flow sees of the encoded y: a `FlowY`, or None if it ignores y

A variable with a flow_y is named after its points. `row_y` is the y of all rows. `y_p`
is the y of particles, whose distribution is p, and `y_q` the y of data, whose
distribution is q. Data are rows, or draws along them. `ParticleAllocation` has the y of
the particles of a fit.

A frame's θ_y (h, l) offsets projections by ``ξ·θ_yᵀy`` (`add_condition_offset`),
where a class index stands for a one-hot y. So l, everywhere `condition_dim`, is the
number of classes or of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Self

import torch
from torch import Tensor

from sliceflow import kernels


@dataclass(frozen=True, eq=False)
class _PointValues:
    """The base class of all kinds of y: values of n points, along the first axis."""

    values: Tensor

    def __len__(self) -> int:
        """n, the number of points."""
        return len(self.values)

    def to(self, device: torch.device | str) -> Self:
        """The same y on a device."""
        return replace(self, values=self.values.to(device))


@dataclass(frozen=True, eq=False)
class ClassIndices(_PointValues):
    """Labels: `values` (n,) are the indices of classes, int64 from 0 to C − 1."""

    def take(self, indices: slice | Tensor) -> ClassIndices:
        """The y of some of the points."""
        return ClassIndices(self.values[indices])

    def sizes(self, n_classes: int = 0) -> Tensor:
        """The number of points of each class, (C,); C is at least `n_classes`."""
        return torch.bincount(self.values, minlength=n_classes)

    def add_offset(self, z: Tensor, theta: Tensor) -> Tensor:
        """z (h, n) plus theta[:, c] for the points of class c; theta is (h, C)."""
        return kernels.for_tensor(z).add_class_offsets(z, theta, self.values)


@dataclass(frozen=True)
class ClassSlices:
    """Which points belong to each class, if points are sorted by class.

    Class c has the points from starts[c] to starts[c + 1] − 1.
    """

    starts: tuple[int, ...]  # (C + 1,), from 0 to the number of points

    @classmethod
    def from_class_indices(cls, y: ClassIndices, n_classes: int) -> ClassSlices:
        """The slices of the classes, once the points are sorted by class.

        This counts the points of each class: if y is on a GPU, the CPU waits for it.
        """
        sizes = y.sizes(n_classes).tolist()
        return cls(tuple(accumulate(sizes, initial=0)))

    def __len__(self) -> int:
        """C, the number of classes."""
        return len(self.starts) - 1

    @property
    def slices(self) -> list[slice]:
        """The points of each class."""
        return [slice(first, end) for first, end in pairwise(self.starts)]

    @property
    def empty(self) -> list[int]:
        """The classes without points."""
        return [c for c, part in enumerate(self.slices) if part.start == part.stop]

    def part(self, points: slice) -> ClassSlices:
        """The slices of the classes among the points of one slice."""
        first, end, _ = points.indices(self.starts[-1])
        return ClassSlices(tuple(min(max(s, first), end) - first for s in self.starts))


@dataclass(frozen=True, eq=False)
class SeparateClassIndices(ClassIndices):
    """Labels in a flow with ξ = ∞: each of `n_classes` classes has maps of its own.

    The points may be in any order. Steps take only `SortedClassIndices`.
    """

    n_classes: int

    def take(self, indices: slice | Tensor) -> SeparateClassIndices:
        """The y of some of the points."""
        return SeparateClassIndices(self.values[indices], self.n_classes)


@dataclass(frozen=True, eq=False)
class SortedClassIndices(SeparateClassIndices):
    """Labels of points that are sorted by class; each class has maps of its own."""

    class_slices: ClassSlices

    def __post_init__(self) -> None:
        assert len(self.class_slices) == self.n_classes, "slices of other classes"
        assert self.class_slices.starts[-1] == len(self), "slices of other points"

    def take(self, indices: slice | Tensor) -> SeparateClassIndices:
        """The y of some of the points; sorted if `indices` is a slice without step."""
        taken = super().take(indices)
        if isinstance(indices, Tensor) or indices.step is not None:
            return taken
        return SortedClassIndices(
            taken.values, self.n_classes, self.class_slices.part(indices)
        )


@dataclass(frozen=True, eq=False)
class ContinuousY(_PointValues):
    """Continuous columns: `values` (n, l) are standardized."""

    def take(self, indices: slice | Tensor) -> ContinuousY:
        """The y of some of the points."""
        return ContinuousY(self.values[indices])

    def add_offset(self, z: Tensor, theta: Tensor) -> Tensor:
        """z (h, n) plus ``theta @ y`` for each point's y (l,); theta is (h, l)."""
        return torch.addmm(z, theta, self.values.T.to(z.dtype))


@dataclass(frozen=True, eq=False)
class MixedY(_PointValues):
    """Labels and continuous columns: `values` (n, 1 + l), with the class index first.

    Only local conditions use it: no flow takes it.
    """

    @classmethod
    def from_parts(cls, classes: ClassIndices, continuous: ContinuousY) -> Self:
        """The y of points with these classes and these continuous columns."""
        class_column = classes.values[:, None].double()
        return cls(torch.cat((class_column, continuous.values), 1))

    def take(self, indices: slice | Tensor) -> MixedY:
        """The y of some of the points."""
        return MixedY(self.values[indices])

    @property
    def class_indices(self) -> Tensor:
        """The class (n,) of each point."""
        return self.values[:, 0].long()

    @property
    def continuous(self) -> Tensor:
        """The standardized columns (n, l)."""
        return self.values[:, 1:]


# What a flow sees of y: `flow.as_flow_y` makes it. If the flow ignores y, it gets None.
FlowY = ClassIndices | ContinuousY
# The y of local conditions: it has continuous columns, and perhaps labels.
LocalY = ContinuousY | MixedY
EncodedY = ClassIndices | ContinuousY | MixedY


def separate_classes_or_none(y: EncodedY | None) -> SeparateClassIndices | None:
    """y itself if each class has maps of its own; otherwise None."""
    if isinstance(y, SeparateClassIndices):
        return y
    return None


def require_sorted(y: SeparateClassIndices) -> SortedClassIndices:
    """y, or a ValueError if its points are not sorted by class."""
    if isinstance(y, SortedClassIndices):
        return y
    raise ValueError(
        "classes have separate maps, but points are not sorted by class; sort "
        "particles and data by Cloud.reordered(ClassOrder.from_y(y, n_classes))"
    )


def add_condition_offset(z: Tensor, theta: Tensor | None, y: FlowY | None) -> Tensor:
    """z + ξ·θ_yᵀy for every direction and point, (h, n), with theta = ξ·θ_y (h, l).

    A class index stands for a one-hot y, so the offset of class c is theta[:, c].
    If `theta` or `y` is None, the result is z.
    """
    if theta is None or y is None:
        return z
    return y.add_offset(z, theta)
