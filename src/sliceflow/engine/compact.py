"""Compact tables: the maps of a step in few bytes each, as models keep them.

A map is kept as its displacement D(z) = T(z) − z: piecewise linear through a few knots, which are where
the map bends, and rounded to whole steps. `at_bends` makes such a table from a grid. To move particles,
it is turned into a grid again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.transports import (
    GridMap,
    KnotMap,
    TransportMap,
    join_classes,
)
from sliceflow.fields import FLOATS, Array, Between, Count

MOST_KNOTS = 257  # of a map: its two ends, and as many as a byte can count
MOST_BINS = (1 << 16) - 1
_STEPS = (
    kernels.MOST_LEVEL // 4
)  # steps of rounding in the reach of a map: far below its noise
_ARRAYS = ("lo", "hi", "at", "levels")
_ORTHONORMAL = 1e-3  # how far products of fitted directions may be from 0 and 1
JUMPS = 64  # between atoms, that a model resolves in each map, with three knots each
_SHARED = 8  # times as many knots of a map that classes share


@dataclass(frozen=True)
class CompactMap:
    """Maps through K knots on the edges of a uniform grid of `n_bins` bins over [lo, hi], both (h,).

    Knot k of a map is at edge `at[:, k]` and moves by ``levels[:, k] · 2**exponent``, both (h, K). D is
    linear between knots. The first knot is at edge 0, the last at edge `n_bins`. `dtype` is that of the
    grid's values. If `numbers` (h,) is not None, these are only some of `n_all` maps, by their numbers,
    and the others move nothing.
    """

    lo: Annotated[Tensor, Array("h", torch.float64, packed="planes")]
    hi: Annotated[Tensor, Array("h", torch.float64, packed="planes")]
    at: Annotated[Tensor, Array("h k", torch.int32, packed="delta")]
    levels: Annotated[Tensor, Array("h k", torch.int16, packed="delta")]
    n_bins: Annotated[int, Between(1, MOST_BINS)]
    exponent: Annotated[int, Between(-1000, 1000)]
    dtype: torch.dtype = torch.float32
    numbers: Annotated[Tensor, Array("h", torch.int64, ge=0, packed="delta")] | None = (
        None
    )
    n_all: Count = 0

    def check(self) -> None:
        at = self.at
        k = self.at.shape[1]
        if not 2 <= k <= MOST_KNOTS or self.dtype not in FLOATS:
            raise ValueError(f"compact maps have {k} knots of {self.dtype}")
        ends = bool((at[:, 0] == 0).all() and (at[:, -1] == self.n_bins).all())
        if not ends or not bool((at[:, :-1] < at[:, 1:]).all()):
            raise ValueError(
                f"compact maps have knots that do not ascend from 0 to {self.n_bins}"
            )
        if self.numbers is not None and len(self.numbers):
            ascend = bool((self.numbers[:-1] < self.numbers[1:]).all())
            if not ascend or int(self.numbers[-1]) >= self.n_all:
                raise ValueError(
                    f"compact maps have numbers that do not ascend below {self.n_all}"
                )
        if not bool((self.lo <= self.hi).all()):
            raise ValueError("compact maps have ranges that end before they begin")
        farthest = (
            max(-float(self.lo.amin()), float(self.hi.amax())) if len(self.lo) else 0.0
        )
        if not farthest + 2.0 ** (self.exponent + 15) < torch.finfo(self.dtype).max / 4:
            raise ValueError(f"compact maps reach beyond the numbers of {self.dtype}")

    @property
    def n_maps(self) -> int:
        """The number of maps, also of those that move nothing."""
        return len(self.lo) if self.numbers is None else self.n_all

    def grid(self) -> GridMap:
        """The same maps on their whole grid, made to ascend: the same bits on every device."""
        maps = self.whole()
        form = (self.n_bins, self.exponent, self.dtype)
        through = kernels.for_tensor(maps.lo).through_knots
        return GridMap(
            maps.lo, maps.hi, through(maps.lo, maps.hi, maps.at, maps.levels, *form)
        )

    def whole(self) -> CompactMap:
        """The same with all maps. This does not wait for a GPU."""
        if self.numbers is None:
            return self
        parts = {}
        for name in _ARRAYS:
            part = getattr(self, name)
            parts[name] = part.new_zeros(self.n_all, *part.shape[1:]).index_copy_(
                0, self.numbers, part
            )
        return replace(self, **parts, numbers=None, n_all=0).plain()

    def moving(self) -> CompactMap:
        """The same without the maps that move nothing."""
        if self.numbers is not None:
            return self
        numbers = self.levels.any(1).nonzero()[:, 0]
        parts = {name: getattr(self, name)[numbers] for name in _ARRAYS}
        return replace(self, **parts, numbers=numbers, n_all=len(self.lo))

    def plain(self) -> CompactMap:
        """The same; maps that move nothing, which models do not keep, are on [−1, 1], with even knots."""
        moving = self.levels.any(1)
        k = self.at.shape[1]
        even = torch.arange(k, device=self.at.device) * self.n_bins // (k - 1)
        lo, hi = (
            torch.where(moving, end, to)
            for end, to in ((self.lo, -1.0), (self.hi, 1.0))
        )
        at = torch.where(moving[:, None], self.at, even.to(self.at.dtype))
        return replace(self, lo=lo, hi=hi, at=at)


@dataclass(frozen=True)
class ModelStep:
    """One step of a model: its maps, and the directions `theta` (h, d) if they were fitted.

    If it is None, the frame is drawn again from its position: step `step` of stage number `stage`.
    """

    stage: Count
    step: Count
    table: KnotMap | GridMap | CompactMap
    theta: Annotated[Tensor, Array("h d", FLOATS)] | None = None

    def check(self) -> None:
        if self.theta is None:
            return
        one = torch.eye(
            len(self.theta), dtype=self.theta.dtype, device=self.theta.device
        )
        if not bool(((self.theta @ self.theta.T - one).abs() < _ORTHONORMAL).all()):
            raise ValueError("the fitted directions of a step are not orthonormal")

    def moving(self) -> ModelStep:
        """The same without the maps that move nothing, if they can be left out."""
        table = self.table
        return (
            replace(self, table=table.moving())
            if isinstance(table, CompactMap)
            else self
        )

    def maps(self) -> KnotMap | GridMap:
        """The maps as they move particles."""
        return self.table.grid() if isinstance(self.table, CompactMap) else self.table


def thinned(
    table: TransportMap,
    n_knots: int,
    reach: float | None,
    shared: bool,
    tails: bool = False,
) -> TransportMap | CompactMap:
    """What a model keeps of a table: `n_knots` knots of each map, where it bends.

    Maps that classes share, or of sorted particles, keep eight times as many. Where it is unknown how
    far values can move (`reach`), knots are spaced evenly. `tails` keeps those of sorted particles.
    """
    if isinstance(table, KnotMap):
        if reach is not None and not tails:
            n_knots *= _SHARED
        if table.knots_per_class is None:
            return _thin_sorted(table, n_knots, tails)
        maps = [
            None if one is None else _thin_sorted(one, n_knots, tails)
            for one in table.split_classes()
        ]
        return join_classes(maps, len(table.knots) // len(maps), table.knots)
    if reach is None:
        return thin_grid(table, n_knots)
    n_knots *= _SHARED if shared else 1
    if n_knots >= table.values.shape[1] - 1:
        return thin_grid(table, n_knots)
    return at_bends(table, min(max(2, n_knots), MOST_KNOTS), reach)


def _thin_sorted(table: KnotMap, n_knots: int, tails: bool) -> KnotMap:
    """Sorted maps of one class, or that classes share, with fewer knots."""
    thin = thin_knots(table, n_knots, tails)
    return _flat_beyond(thin) if tails else thin


def thin_grid(table: GridMap, n_knots: int) -> GridMap:
    """Keep every k-th edge, where k divides the number of bins, and smooth the tails."""
    values = table.values
    n_bins = table.values.shape[1] - 1
    stride = next(
        k for k in range(1, n_bins + 1) if n_bins % k == 0 and n_bins // k <= n_knots
    )
    if table.counts is not None:
        steady = kernels.for_tensor(values).steady_tails
        values = steady(table.lo, table.hi, values, table.counts)
    return GridMap(table.lo, table.hi, values[:, ::stride].contiguous())


def thin_knots(table: KnotMap, n_knots: int, tails: bool = False) -> KnotMap:
    """Average over `n_knots` cells of equal mass: particles' sampling noise would push fresh ones away.

    With `tails` the outer cells are split into cells of 1, 1, 2, 4, 8, … particles from the ends, to
    resolve heavy tails. Where the values jump between atoms, such as 0 and 1, the two particles beside
    the jump are cells of their own: hardly any fresh particle ends up between the atoms.
    """
    size = table.knots.shape[1]
    if size <= n_knots:
        return table
    edge = torch.arange(n_knots + 1, device=table.knots.device) * size // n_knots
    if tails:
        outer = [2**k for k in range(int(edge[1]).bit_length())]
        edge = edge.new_tensor(
            sorted({*edge.tolist(), *outer, *(size - k for k in outer)})
        )
        jumps = _jumps(table.values)
        if jumps is not None:
            beside = torch.cat((jumps - 1, jumps, jumps + 1), 1).clamp(0, size)
            edges = torch.cat((edge.expand(len(beside), -1), beside), 1).sort(1).values
            return KnotMap(
                _cell_means(table.knots, edges), _cell_means(table.values, edges)
            )
    first = edge[:-1, None]
    count = edge.diff()[:, None]
    member = torch.arange(int(count.max()), device=edge.device)
    index = (first + member).clamp(max=size - 1)
    valid = member < count

    def mean(t: Tensor) -> Tensor:
        cells = torch.where(valid, t[:, index], 0.0)
        return (cells.sum(2, dtype=torch.float64) / count[:, 0]).to(t.dtype)

    return KnotMap(mean(table.knots), mean(table.values))


def _flat_beyond(table: KnotMap) -> KnotMap:
    """The same with a knot far beyond each end: nothing leaves the range of the data."""
    k = table.knots
    v = table.values
    far = 16 * (k[:, -1:] - k[:, :1]) + 1
    knots = torch.cat((k[:, :1] - far, k, k[:, -1:] + far), 1)
    return KnotMap(knots, torch.cat((v[:, :1], v, v[:, -1:]), 1))


def _jumps(values: Tensor) -> Tensor | None:
    """The widest jumps of each row to or from an atom, at least ½ % of equal values: (h, J), with K
    where a row has fewer; None if no row has any.
    """
    gap = values.diff(dim=1)
    size = max(2, values.shape[1] // 200)
    atom = values[:, size - 1 :] == values[:, : 1 - size]  # from here on
    atom = torch.nn.functional.pad(atom, (size, size))
    before, after = (atom[:, i + 1 : i + 1 + gap.shape[1]] for i in (0, size))
    gap = torch.where(before | after, gap, 0.0)
    n_jumps = min(JUMPS, int((gap > 0).sum(1).amax()) if gap.numel() else 0)
    if n_jumps == 0:
        return None
    widest = gap.topk(n_jumps, dim=1)
    return torch.where(widest.values > 0, widest.indices + 1, values.shape[1])


def _cell_means(t: Tensor, edges: Tensor) -> Tensor:
    """Averages over the cells between ascending edges (h, E + 1); an empty cell is a particle."""
    first = edges[:, :-1]
    end = edges[:, 1:]
    last = t.shape[1] - 1
    up_to = torch.nn.functional.pad(t.double().cumsum(1), (1, 0))
    sums = up_to.gather(1, end) - up_to.gather(1, first)
    low = t.gather(1, first.clamp(max=last))
    high = t.gather(1, (end - 1).clamp(min=0))
    equal = (end == first) | (low == high)  # exact, where sums are rounded
    mean = torch.where(equal, low, sums / (end - first).clamp(min=1))
    return mean.to(t.dtype).cummax(1).values


def map_bytes(n_knots: int, n_bins: int | None, shared: bool) -> int:
    """The most memory that a map of `thinned` takes; `n_bins` is None for sorted particles."""
    if n_knots == 0:
        return 0
    if n_bins is None:
        return 8 * _SHARED * n_knots  # their positions before and after
    n_knots *= _SHARED if shared else 1
    if n_knots >= n_bins:
        return 4 * n_bins + 20  # values on the whole grid, and the range
    return 6 * min(max(2, n_knots), MOST_KNOTS) + 16  # edges, levels, range


def at_bends(table: GridMap, n_knots: int, reach: float) -> CompactMap:
    """The maps of a grid with `n_knots` knots each, where they bend and particles are.

    A line through knots a distance δ apart errs by D″δ²/8. Over particles of density p, the mean square
    of this error is least if the density of the knots is proportional to (p·D″²)^⅕. The lines are then
    fitted to all particles between them. Displacements are rounded to about 8,000 steps in `reach`.
    """
    n_bins = table.values.shape[1] - 1
    counts = table.counts
    if counts is None:
        counts = torch.ones((len(table.lo), n_bins), device=table.lo.device)
    exponent = math.frexp(reach / _STEPS)[1]
    at_bends = kernels.for_tensor(table.values).at_bends
    maps = at_bends(table.lo, table.hi, table.values, counts, n_knots, exponent)
    lo, hi, at, levels = maps
    return CompactMap(lo, hi, at, levels, n_bins, exponent, table.values.dtype).plain()
