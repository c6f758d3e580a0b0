"""One-dimensional optimal transport: one monotone map per direction.

A transport is fitted to projected particles z_p (h, M) and projected data z_q (h, N). It returns a
*table*: the maps ``T = F_q⁻¹ ∘ F_p`` of all h directions, which displace any z (h, n). Tables are plain
tensors and do not depend on the transport. A model is a sequence of them, with fewer knots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, NamedTuple, Protocol

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.batches import ALL, Batch
from sliceflow.engine.clouds import ClassSlices, Cloud
from sliceflow.errors import is_int, require
from sliceflow.fields import FLOATS, Array

__all__ = [
    "AlignedHistogram",
    "Auto",
    "Counts",
    "FittedMap",
    "GridMap",
    "Histogram",
    "Interpolated",
    "KnotMap",
    "SavedTransport",
    "Sorted",
    "Transport",
    "TransportMap",
]

_AT_ONCE = 1 << 30  # values sorted at a time
_SLACK = 1e-5  # averages of equal numbers may differ in the last digit
MOST = 1 << 17  # columns per histogram and step: fewer are faster and a little worse


class FittedMap(NamedTuple):
    """A fitted table, and what the fit knows besides."""

    table: TransportMap
    cost: Tensor  # the mean of (T(z) − z)² over the particles for each direction
    dz: Tensor | None = (
        None  # the particles' displacement, if known more exactly than by the table
    )
    moving: Tensor | None = (
        None  # the share of maps that move anything, if some may stand still
    )


class Counts(NamedTuple):
    """Histograms: counts (h, B) in equal bins of [lo, hi] (h,); with separate maps of classes, (C·h, B)."""

    counts: Tensor
    lo: Tensor
    hi: Tensor


class Transport(Protocol):
    """A way to fit a `TransportMap` to particles z_p (h, M) and data z_q (h, N), at most `max_samples` a step.

    If the batch has `class_slices`, each class gets its own maps.
    """

    @property
    def max_samples(self) -> int | None: ...

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> FittedMap: ...


@dataclass(frozen=True)
class KnotMap:
    """Piecewise linear maps: T(knots) = values, both (h, K) and ascending along each row.

    If each class has its own maps, they stand class by class: (C·h, K). `join_classes`
    makes such maps; the rows of classes with fewer knots repeat their last knot.
    """

    knots: Annotated[Tensor, Array("h k", FLOATS)]
    values: Annotated[Tensor, Array("h k", FLOATS)]
    # The number of different knots of each class, 0 if its maps move nothing. Only a
    # fit knows it; None if all classes share the maps, or after loading.
    knots_per_class: tuple[int, ...] | None = field(
        default=None, metadata={"saved": False}
    )

    def check(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        if self.knots.dtype != self.values.dtype or self.knots.shape[1] < 1:
            raise ValueError(
                f"maps have {self.knots.shape[1]} knots, or mix types of numbers"
            )
        _need_ascending(self.knots[:, :-1], self.knots[:, 1:])

    def displace(self, z: Tensor, cloud: Cloud | None = None) -> Tensor:
        """T(z) − z for projections z (h, n) of the points `cloud`.

        T is linear between knots and a rigid shift beyond the ends. If the cloud has
        class slices, the columns of each class move by the maps of that class.
        """
        displace_knots = kernels.for_tensor(z).displace_knots
        if cloud is None or cloud.class_slices is None:
            shared: Tensor = displace_knots(z, self.knots, self.values)
            return shared
        h = len(z)
        dz = torch.empty_like(z)
        for c, (first, end) in enumerate(pairwise(cloud.class_slices.starts)):
            rows = slice(c * h, (c + 1) * h)
            if first < end:
                dz[:, first:end] = displace_knots(
                    z[:, first:end], self.knots[rows], self.values[rows]
                )
        return dz

    def split_classes(self) -> list[KnotMap | None]:
        """The maps of each class, without padding; None for maps that move nothing."""
        assert self.knots_per_class is not None, "classes share these maps"
        h = len(self.knots) // len(self.knots_per_class)
        maps: list[KnotMap | None] = []
        for c, n_knots in enumerate(self.knots_per_class):
            rows = slice(c * h, (c + 1) * h)
            if n_knots == 0:
                maps.append(None)
            else:
                knots = self.knots[rows, :n_knots]
                maps.append(KnotMap(knots, self.values[rows, :n_knots]))
        return maps


def join_classes(maps: Sequence[KnotMap | None], h: int, like: Tensor) -> KnotMap:
    """Maps of h directions for each class, as one `KnotMap` with the rows class by class.

    Shorter maps are padded with copies of their last knot, which changes no map: nothing
    lies between equal knots. A class with None gets maps that move nothing. `like` is a
    tensor with the dtype and the device of the maps.
    """
    identity = like.new_tensor([0.0, 1.0]).expand(h, -1)  # exact: 0 + z·(1 − 0) = z
    knots = [identity if one is None else one.knots for one in maps]
    values = [identity if one is None else one.values for one in maps]
    n_knots = max(rows.shape[1] for rows in knots)
    knots_per_class = [0 if one is None else one.knots.shape[1] for one in maps]
    return KnotMap(
        torch.cat([_repeat_last(rows, n_knots) for rows in knots]),
        torch.cat([_repeat_last(rows, n_knots) for rows in values]),
        tuple(knots_per_class),
    )


def _repeat_last(rows: Tensor, n: int) -> Tensor:
    """Rows (h, k) with their last column repeated up to (h, n)."""
    return torch.cat((rows, rows[:, -1:].expand(-1, n - rows.shape[1])), 1)


@dataclass(frozen=True)
class GridMap:
    """Maps on a uniform grid: T sends edge b of [lo, hi] (h,) to values[:, b], (h, B + 1).

    If each class has its own maps, they stand class by class: (C·h, B + 1). `counts` (h, B) are the
    particles per bin: maps are noisy where there are few.
    """

    lo: Annotated[Tensor, Array("h", FLOATS)]
    hi: Annotated[Tensor, Array("h", FLOATS)]
    values: Annotated[Tensor, Array("h b", FLOATS)]
    counts: Tensor | None = field(default=None, metadata={"saved": False})

    def check(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        if self.lo.dtype != self.hi.dtype or self.values.shape[1] < 2:
            raise ValueError(
                f"maps have {self.values.shape[1]} values, or mix types of numbers"
            )
        _need_ascending(self.lo, self.hi)

    def displace(self, z: Tensor, cloud: Cloud | None = None) -> Tensor:
        """T(z) − z for projections z (h, n) of the points `cloud`."""
        kernel = kernels.for_tensor(z)
        table = (self.lo, self.hi, self.values)
        class_slices = None if cloud is None else cloud.class_slices
        if class_slices is None or len(class_slices) == 1:
            out: Tensor = kernel.displace_grid(z, *table)
        else:
            out = kernel.displace_classes(z, *table, class_slices.starts)
        return out


TransportMap = KnotMap | GridMap


def _need_ascending(before: Tensor, after: Tensor) -> None:
    falls = before - after
    if falls.numel() and bool((falls > _SLACK * after.abs().amax()).any()):
        raise ValueError("maps have knots that do not ascend")


@dataclass(frozen=True)
class Sorted:
    """Exact transport between the sorted samples, with linear interpolation.

    Each sample sits at the middle of its mass, so that any M particles and N data match without bias.
    If M = N, without ties, the k-th particle moves exactly to the k-th datum. Tied particles move
    together. No particle moves into a gap of the data that is far wider than the adjacent gaps.
    `Interpolated` is the paper's method. The cost is O(M log M + N log N) per direction.

    Parameters
    ----------
    max_samples : fit to this many particles and data, different ones in each step, as the paper does on
        CIFAR-10 and CelebA; None uses all

    Examples
    --------
    >>> z_p, z_q = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[10.0, 30.0, 20.0]])
    >>> fit = Sorted().fit(z_p, z_q)
    >>> z_p + fit.dz
    tensor([[30., 10., 20.]])
    >>> z = torch.tensor([[1.5]])
    >>> z + fit.table.displace(z)
    tensor([[15.]])
    """

    max_samples: int | None = None

    def __post_init__(self) -> None:
        ok = self.max_samples is None or is_int(self.max_samples, 1)
        require(ok, "max_samples", self.max_samples, "None or an int of at least 1")

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> FittedMap:
        if batch.class_slices is not None:
            return self._fit_classes(z_p, z_q, *batch.class_slices)
        return FittedMap(*self._fit_all(z_p, z_q, batch.weights))

    def _fit_classes(
        self, z_p: Tensor, z_q: Tensor, slices_p: ClassSlices, slices_q: ClassSlices
    ) -> FittedMap:
        """Fit every class alone. One without particles or without data moves nothing."""
        h = len(z_p)
        maps: list[KnotMap | None] = []
        costs = []
        dz = torch.zeros_like(z_p)
        for columns_p, columns_q in zip(slices_p.slices, slices_q.slices, strict=True):
            own_p = z_p[:, columns_p]
            own_q = z_q[:, columns_q]
            if own_p.shape[1] == 0 or own_q.shape[1] == 0:
                maps.append(None)
                costs.append(z_p.new_zeros(h))
                continue
            knot_map, cost, own_dz = self._fit_all(own_p, own_q)
            maps.append(knot_map)
            costs.append(cost)
            dz[:, columns_p] = own_dz
        return FittedMap(join_classes(maps, h, z_p), torch.cat(costs), dz)

    def _fit_all(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None
    ) -> tuple[KnotMap, Tensor, Tensor]:
        """The maps of all columns together, their cost, and the displacements (h, M)."""
        k = kernels.for_tensor(z_p)
        if weights is None:
            sorted_q = k.sort_rows(z_q)
            w = None
        else:
            sorted_q, order = k.argsort_rows(z_q)
            w = weights[order]
        knots, order = k.argsort_rows(z_p)
        values = k.match(knots, sorted_q, w)
        moved = values - knots
        dz = torch.empty_like(z_p).scatter_(1, order, moved)
        return KnotMap(knots, values), moved.square().mean(1), dz


@dataclass(frozen=True)
class Interpolated(Sorted):
    """The paper's transport: both CDFs are linear interpolations between the sorted samples.

    With samples z_0 ≤ … ≤ z_{n-1} (the paper's appendix on CDF estimation), T = F_q⁻¹ ∘ F_p, where

        F(z) = (I + (z − z_I)/(z_{I+1} − z_I))/n,  z_I ≤ z ≤ z_{I+1},
        F⁻¹(a) = z_I + (a·n − I)·(z_{I+1} − z_I),  I = ⌊a·n⌋.

    Where the paper says nothing, F⁻¹ stays at z_{n-1} above (n − 1)/n, and I is the last of ties. For
    weighted data, the fraction of the weight below z_k replaces k/n. `Sorted` has its samples at
    (k + ½)/n instead, which makes no difference if M = N.

    Parameters
    ----------
    max_samples : fit to this many particles and data, different ones in each step; None uses all

    Examples
    --------
    >>> z_p, z_q = torch.tensor([[3.0, 1.0, 2.0, 4.0]]), torch.tensor([[10.0, 20.0]])
    >>> z_p + Interpolated().fit(z_p, z_q).dz  # F_p is ½, 0, ¼ and ¾
    tensor([[20., 10., 15., 20.]])
    """

    def _fit_all(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None
    ) -> tuple[KnotMap, Tensor, Tensor]:
        n_rows = max(1, _AT_ONCE // max(z_p.shape[1], z_q.shape[1]))
        if n_rows >= len(z_p):
            return self._fit_rows(z_p, z_q, weights)
        maps = []
        costs = []
        displacements = []
        for first in range(0, len(z_p), n_rows):
            rows = slice(first, first + n_rows)
            knot_map, cost, dz = self._fit_rows(z_p[rows], z_q[rows], weights)
            maps.append(knot_map)
            costs.append(cost)
            displacements.append(dz)
        knots = torch.cat([one.knots for one in maps])
        values = torch.cat([one.values for one in maps])
        return KnotMap(knots, values), torch.cat(costs), torch.cat(displacements)

    def _fit_rows(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None
    ) -> tuple[KnotMap, Tensor, Tensor]:
        """`_fit_all` for as many directions as are sorted at a time."""
        k = kernels.for_tensor(z_p)
        p, order = k.argsort_rows(z_p)
        level_p = _ranks(p) / p.shape[1]
        if weights is None:
            q = k.sort_rows(z_q)
            level_q = _ranks(z_q) / z_q.shape[1]
        else:
            q, order_q = k.argsort_rows(z_q)
            w = weights.double()[order_q]
            level_q = (w.cumsum(1) - w) / w.sum(1, keepdim=True)
        moved = _last_of_ties(p, _linear(level_p, level_q, q)).sub_(p)
        dz = torch.empty_like(z_p).scatter_(1, order, moved)
        # F_p⁻¹ and F_q⁻¹ bend only at these levels; F_p has no values above the last one.
        ends = (
            level_p.expand(len(level_q), -1),
            level_q.clamp(max=float(level_p[0, -1])),
        )
        levels = torch.cat(ends, 1).sort(1).values
        if weights is None:  # the same for all directions
            levels = levels[
                :, torch.nn.functional.pad(levels[0].diff() > 0, (1, 0), value=True)
            ]
        cost = moved.square().mean(1)
        knots = _linear(levels, level_p, p)
        return KnotMap(knots, _linear(levels, level_q, q)), cost, dz


def _ranks(z: Tensor) -> Tensor:
    """0..n-1 for z (h, n), (1, n)."""
    return torch.arange(z.shape[1], dtype=torch.float64, device=z.device)[None]


def _linear(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Linear interpolation of y (h, n) at points (h, m), constant beyond the ends of ascending x."""
    rows = max(len(at), len(x))
    last = x.shape[1] - 1
    at, x = (t.expand(rows, -1).contiguous() for t in (at, x))
    i = (torch.searchsorted(x, at, right=True) - 1).clamp_(0, max(0, last - 1))
    after = (i + 1).clamp_(max=last)
    left = x.gather(1, i)
    gap = x.gather(1, after) - left
    share = torch.where(gap > 0, (at - left) / gap, 0.0).clamp_(0, 1).to(y.dtype)
    low, high = (
        y.gather(1, at) if rows > 1 else y.index_select(1, at[0]) for at in (i, after)
    )
    return torch.lerp(low, high, share)


def _last_of_ties(z: Tensor, values: Tensor) -> Tensor:
    """Set the values (h, n) of ties in z (h, n) to that of the last tie, in place."""
    tied = (
        torch.nn.functional.pad(z[:, 1:] == z[:, :-1], (0, 1)).view(-1).nonzero()[:, 0]
    )
    if len(tied):
        ends = torch.nn.functional.pad(tied.diff() > 1, (0, 1), value=True)
        last = tied[ends][ends.cumsum(0) - ends.long()] + 1
        values.view(-1)[tied] = values.view(-1)[last]
    return values


@dataclass(frozen=True)
class Histogram:
    """Transport between histograms: two passes over memory, no sorting, cost linear in M and N.

    Bins cover [min, max] of each direction. T is exact at the particles' bin edges (up to the data's
    bins) and linear between them. Counts can be added up over chunks and machines.

    Parameters
    ----------
    n_bins : bins for the particles and for the data. Conditions that spread the projections need more:
        each of C classes gets about n_bins/C of them
    max_samples : count at most this many particles and data, different ones in each step; None counts all.
        Fewer are faster and a little worse, with class labels clearly worse

    Examples
    --------
    >>> z = torch.linspace(0, 1, 1001)[None]
    >>> table = Histogram(n_bins=64).fit(z, 2 * z + 1).table
    >>> bool((table.displace(z) - (z + 1)).abs().max() < 1e-2)
    True
    """

    n_bins: int = 256
    max_samples: int | None = MOST

    def __post_init__(self) -> None:
        require(is_int(self.n_bins, 1), "n_bins", self.n_bins, "an int of at least 1")
        Sorted(self.max_samples)  # checks it

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> FittedMap:
        if batch.class_slices is None:
            return self.between(
                self.count(z_p), self.count(z_q, batch.weights), z_p.dtype
            )
        of_p, of_q = batch.class_slices
        p = self.count(z_p, class_slices=of_p)
        q = self.count(z_q, class_slices=of_q)
        return self.between(p, q, z_p.dtype, {*of_p.empty, *of_q.empty}, len(of_p))

    def count(
        self,
        z: Tensor,
        weights: Tensor | None = None,
        class_slices: ClassSlices | None = None,
    ) -> Counts:
        """The histograms of z (h, n), for each direction; with `class_slices`, for each class and direction."""
        starts = () if class_slices is None else class_slices.starts
        return Counts(*kernels.for_tensor(z).histogram(z, self.n_bins, weights, starts))

    def range_of(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """The range of the bins for values from lo to hi."""
        return lo, hi

    def between(
        self,
        p: Counts,
        q: Counts,
        dtype: torch.dtype,
        still: Collection[int] = (),
        n_classes: int = 1,
    ) -> FittedMap:
        """The maps from counted particles to counted data; those of classes `still` are the identity."""
        values, cost = kernels.for_tensor(p.counts).compose(*p, *q)
        counts, lo, hi = (t.clone() for t in p) if still else p
        for c in still:  # a range of positive width: beyond it, the shift is 0
            rows = slice(c * len(cost) // n_classes, (c + 1) * len(cost) // n_classes)
            counts[rows] = 1
            lo[rows] = -1.0
            hi[rows] = 1.0
            cost[rows] = 0.0
            place = torch.linspace(
                -1, 1, values.shape[1], dtype=torch.float64, device=values.device
            )
            values[rows] = place.to(values.dtype)
        return FittedMap(GridMap(lo, hi, values.to(dtype), counts), cost)


@dataclass(frozen=True)
class AlignedHistogram(Histogram):
    """Histograms whose bins cover at least `span`, such as the range of pixels, to end on their values."""

    span: tuple[float, float] = (-1.0, 1.0)

    def count(
        self,
        z: Tensor,
        weights: Tensor | None = None,
        class_slices: ClassSlices | None = None,
    ) -> Counts:
        kernel = kernels.for_tensor(z)
        starts = (0, z.shape[1]) if class_slices is None else class_slices.starts
        parts = []
        for first, end in pairwise(starts):
            some = z[:, first:end] if end > first else z[:, :1]
            lo, hi = self.range_of(*kernel.value_range(some))
            counts = kernel.count(some, lo, hi, self.n_bins, weights)
            parts.append((counts if end > first else torch.zeros_like(counts), lo, hi))
        return Counts(*(torch.cat(of) for of in zip(*parts, strict=True)))

    def range_of(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        return lo.clamp(max=self.span[0]), hi.clamp(min=self.span[1])


@dataclass(frozen=True)
class Auto:
    """`Sorted` for up to `threshold` particles and data in total, else `Histogram`."""

    threshold: int = 5_000
    n_bins: int = 1024
    max_samples: int | None = MOST

    def __post_init__(self) -> None:
        require(
            is_int(self.threshold, 0),
            "threshold",
            self.threshold,
            "an int of at least 0",
        )
        Histogram(self.n_bins, self.max_samples)  # checks them

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> FittedMap:
        return self.choose(z_p.shape[1] + z_q.shape[1]).fit(z_p, z_q, batch)

    def choose(self, n: int, n_ranks: int = 1) -> Sorted | Histogram:
        """The transport for `n` particles and data in total; several ranks can only count."""
        few = n <= self.threshold and n_ranks == 1
        return (
            Sorted(self.max_samples)
            if few
            else Histogram(self.n_bins, self.max_samples)
        )


def choose_transport(
    transport: str | Transport, n: int, n_ranks: int, histogram: Histogram, auto: Auto
) -> Transport:
    """The transport for n particles and data in total, by its name or itself; `Auto` is resolved."""
    named: dict[str, Transport] = {"auto": auto, "histogram": histogram}
    named |= {"sorted": Sorted(), "interpolated": Interpolated()}
    chosen = named[transport] if isinstance(transport, str) else transport
    return chosen.choose(n, n_ranks) if isinstance(chosen, Auto) else chosen


# Files hold these transports only.
SavedTransport = Annotated[Transport, Sorted | Interpolated | Histogram | Auto]
