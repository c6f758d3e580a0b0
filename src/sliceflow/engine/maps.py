"""The maps of a step: piecewise linear, one for each direction.

`KnotMaps` are given at arbitrary knots, `GridMaps` on a uniform grid. Both displace
any projections z (h, n), whatever transport has fitted them. So do `SmoothMaps`, of
densities, which are in the module `smooth_maps`.

If each of C classes has its own maps (ξ = ∞), a step fits C·h maps, and everything that
belongs to maps (knots, counts) has C·h rows, stacked class by class: the first h rows
are the h directions of class 0, the next h rows those of class 1, and so on.
`kernels.rows_of_class_maps` is the slice of one class. What belongs to points (z, dz)
keeps its h rows: there a class is a slice of the points, `ClassSlices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.saved_types import FLOAT_DTYPES, ArraySpec

# The knots of a file may descend by this share of the largest, because averages of
# equal numbers may differ in the last digit.
_ROUNDING_SLACK = 1e-5


@dataclass(frozen=True, eq=False)
class KnotMaps:
    """Piecewise linear maps with T(knots) = values.

    Points beyond the first or the last knot move as far as that knot. But where all
    knots of a map have one value, or are at one place, points beyond go to the value
    of the nearest knot.

    If each class has its own maps, there are C·h rows. `concatenate_classes` makes such
    maps; the rows of classes with fewer knots repeat their last knot.

    Attributes
    ----------
    knots, values : tensor (h, K)
        Ascending in each row.

    Examples
    --------
    >>> maps = KnotMaps(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 3.0]]))
    >>> maps.displace(torch.tensor([[0.5, 2.0]]))  # T is 1.5 and 4
    tensor([[1., 2.]])
    >>> to_five = KnotMaps(torch.tensor([[0.0, 1.0]]), torch.tensor([[5.0, 5.0]]))
    >>> to_five.displace(torch.tensor([[1.0, 2.0, 9.0]]))  # T is 5 everywhere
    tensor([[ 4.,  3., -4.]])
    """

    knots: Annotated[Tensor, ArraySpec("h k", FLOAT_DTYPES)]
    values: Annotated[Tensor, ArraySpec("h k", FLOAT_DTYPES)]
    # The number of different knots of each class, 0 if its maps move nothing. Only a
    # fit knows it; None if all classes share the maps, or after loading.
    knots_per_class: tuple[int, ...] | None = field(
        default=None, metadata={"saved": False}
    )

    def check_saved(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        if self.knots.dtype != self.values.dtype or self.knots.shape[1] < 1:
            raise ValueError(
                f"maps have {self.knots.shape[1]} knots, or mix types of numbers"
            )
        _check_ascending(self.knots[:, :-1], self.knots[:, 1:])

    def displace(self, z: Tensor, cloud: Cloud | None = None) -> Tensor:
        """T(z) − z for projections z (h, n) of the points `cloud`.

        If the cloud has class slices, the points of each class move by the maps of that
        class.
        """
        backend = kernels.for_tensor(z)

        def displace(z_class: Tensor, rows: slice) -> Tensor:
            return backend.displace_knots(z_class, self.knots[rows], self.values[rows])

        return kernels.displace_by_class(z, _class_starts(cloud), displace)

    def shrink(
        self,
        mean_squared_displacement: Tensor,
        thresholds: Tensor,
        variance: Tensor | None = None,
    ) -> tuple[KnotMaps, Tensor]:
        """Maps nearer to the identity, z + f·(T(z) − z), and the factors f (h,).

        The factor of a map is f = max(0, 1 − r·σ²/w); `ShrunkTransport` says why.

        Parameters
        ----------
        mean_squared_displacement : w (h,), of the particles by each map
        thresholds : r (C,), one for each class; (1,) without classes
        variance : σ² (h,); None takes the variance of the knots, which are particles
        """
        if variance is None:
            variance = self._knot_variance()
        shrink_factors = kernels.for_tensor(self.knots).shrink_factors(
            mean_squared_displacement.double(), thresholds, variance
        )
        weights = shrink_factors[:, None].to(self.values.dtype)
        values = torch.lerp(self.knots, self.values, weights)
        return replace(self, values=values), shrink_factors

    def _knot_variance(self) -> Tensor:
        """The variance (h,) or (C·h,) of each map's knots; 0 if it moves nothing."""
        if self.knots_per_class is None:
            return self.knots.double().var(1, correction=0)
        h = len(self.knots) // len(self.knots_per_class)
        variances = []
        for class_maps in self.split_classes():
            if class_maps is None:
                variances.append(self.knots.new_zeros(h, dtype=torch.float64))
            else:
                variances.append(class_maps._knot_variance())
        return torch.cat(variances)

    def split_classes(self) -> list[KnotMaps | None]:
        """The maps of each class, without padding; None for maps that move nothing."""
        assert self.knots_per_class is not None, "classes share these maps"
        h = len(self.knots) // len(self.knots_per_class)
        maps: list[KnotMaps | None] = []
        for c, n_knots in enumerate(self.knots_per_class):
            rows = kernels.rows_of_class_maps(c, h)
            if n_knots == 0:
                maps.append(None)
            else:
                knots = self.knots[rows, :n_knots]
                values = self.values[rows, :n_knots]
                maps.append(KnotMaps(knots, values))
        return maps


def concatenate_classes(
    maps: Sequence[KnotMaps | None], h: int, like: Tensor
) -> KnotMaps:
    """The maps of each class along h directions, as `KnotMaps` of C·h rows.

    Shorter maps are padded with copies of their last knot, which changes no map:
    nothing lies between equal knots. A class with None gets maps that move nothing.
    `like` is a tensor with the dtype and the device of the maps.
    """
    identity = like.new_tensor([0.0, 1.0]).expand(h, -1)  # exact: 0 + z·(1 − 0) = z
    knots = []
    values = []
    knots_per_class = []
    for class_maps in maps:
        if class_maps is None:
            knots.append(identity)
            values.append(identity)
            knots_per_class.append(0)
        else:
            knots.append(class_maps.knots)
            values.append(class_maps.values)
            knots_per_class.append(class_maps.knots.shape[1])
    n_knots = max(class_knots.shape[1] for class_knots in knots)
    return KnotMaps(
        torch.cat([_repeat_last(class_knots, n_knots) for class_knots in knots]),
        torch.cat([_repeat_last(class_values, n_knots) for class_values in values]),
        tuple(knots_per_class),
    )


def _repeat_last(rows: Tensor, n: int) -> Tensor:
    """Rows (h, k) whose last value is repeated up to n values: (h, n)."""
    return torch.cat((rows, rows[:, -1:].expand(-1, n - rows.shape[1])), 1)


@dataclass(frozen=True, eq=False)
class GridMaps:
    """Maps on a uniform grid of [lo, hi], which send edge b to values[:, b].

    T is linear between the edges of B equal bins. Points beyond the range move as far
    as its nearer end. But where all edges of a map have one value, or its range is
    empty, points beyond go to the value of the nearer end. If each class has its own
    maps, there are C·h rows.

    Attributes
    ----------
    lo, hi : tensor (h,)
        The ends of the grid of each map.
    values : tensor (h, B + 1)
        T at the edges of the bins.

    Examples
    --------
    >>> maps = GridMaps(torch.zeros(1), torch.ones(1), torch.tensor([[0.0, 1.0, 3.0]]))
    >>> maps.displace(torch.tensor([[0.75]]))  # T is 2
    tensor([[1.2500]])
    >>> maps.displace(torch.tensor([[5.0]]))  # as far as the end, from 1 to 3
    tensor([[2.]])
    >>> to_five = GridMaps(torch.zeros(1), torch.ones(1), torch.tensor([[5.0, 5.0]]))
    >>> to_five.displace(torch.tensor([[9.0]]))  # T is 5 everywhere
    tensor([[-4.]])
    """

    lo: Annotated[Tensor, ArraySpec("h", FLOAT_DTYPES)]
    hi: Annotated[Tensor, ArraySpec("h", FLOAT_DTYPES)]
    values: Annotated[Tensor, ArraySpec("h b", FLOAT_DTYPES)]
    # The particles in each bin, (h, B): maps are noisy where there are few. Only a fit
    # knows them.
    counts: Tensor | None = field(default=None, metadata={"saved": False})

    def check_saved(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        if self.lo.dtype != self.hi.dtype or self.values.shape[1] < 2:
            raise ValueError(
                f"maps have {self.values.shape[1]} values, or mix types of numbers"
            )
        _check_ascending(self.lo, self.hi)

    def displace(self, z: Tensor, cloud: Cloud | None = None) -> Tensor:
        """T(z) − z for projections z (h, n) of the points `cloud`.

        If the cloud has class slices, the points of each class move by the maps of that
        class.
        """
        return kernels.for_tensor(z).displace_grid(
            z, self.lo, self.hi, self.values, _class_starts(cloud)
        )

    def shrink(
        self,
        mean_squared_displacement: Tensor,
        thresholds: Tensor,
        variance: Tensor | None = None,
    ) -> tuple[GridMaps, Tensor]:
        """Maps nearer to the identity, and their factors; see `KnotMaps.shrink`.

        If `variance` is None, it is computed from `counts`.
        """
        assert self.counts is not None, "only a fit shrinks its maps"
        values, shrink_factors = kernels.for_tensor(self.values).shrink(
            self.lo,
            self.hi,
            self.values,
            self.counts,
            mean_squared_displacement,
            thresholds,
            variance,
        )
        return replace(self, values=values), shrink_factors


TransportMaps = KnotMaps | GridMaps | SmoothMaps


def _class_starts(cloud: Cloud | None) -> Sequence[int] | None:
    """Where the points of each class start, if each class has its own maps."""
    if cloud is None or cloud.class_slices is None:
        return None
    return cloud.class_slices.starts


def _check_ascending(before: Tensor, after: Tensor) -> None:
    """Raise a ValueError where `before` is larger than `after`, except by rounding."""
    falls = before - after
    if falls.numel() == 0:
        return
    if bool((falls > _ROUNDING_SLACK * after.abs().amax()).any()):
        raise ValueError("maps have knots that do not ascend")
