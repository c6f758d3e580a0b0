"""Compression: the maps that a model stores have few knots, and few bytes for each.

`compress_map` chooses how. Maps through sorted particles become averages over cells of
particles (`compress_knots`). Maps on a grid keep every k-th edge of it
(`compress_grid_evenly`), or become a `CompressedMap` (`compress_grid_at_bends`): the
displacement D(z) = T(z) − z is then piecewise linear through a few knots, which are
where the map bends, and is rounded to whole steps. To move particles, a `CompressedMap`
is turned into a grid again.
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
from sliceflow.saved_types import FLOAT_DTYPES, ArraySpec, Between, Count

# Knots of a compressed map: its two ends, and as many more as one byte can count.
MAX_COMPRESSED_KNOTS = 257
# Bins of a compressed map: the index of an edge fits into 16 bits.
MAX_BINS = (1 << 16) - 1
# Displacements are stored as int16, as multiples of a rounding step. The largest
# displacement that is expected has this many steps, 8,191: far finer than the noise of
# any map. Displacements four times as large can still be stored.
_STEPS_IN_MAX_DISPLACEMENT = kernels.MAX_QUANTIZED_SHIFT // 4
# How far ΘΘᵀ of stored directions may be from the identity: far above the rounding of
# float32. Directions of a damaged file are much worse.
_ORTHONORMAL_TOL = 1e-3
# Jumps between atoms that a model stores of each map, with three knots each: enough for
# 65 atoms. More of them only make files larger.
MAX_JUMPS = 64
# An atom is a value that at least one in this many particles moves to. Rarer values are
# treated as continuous, and particles may land between them.
_ATOM_ONE_IN = 200
# Maps that classes share, and those of sorted particles, get this many times as many
# knots, because they bend more often: a shared map bends within every class. It trades
# the size of a model for detail.
_MORE_KNOTS_IF_SHARED = 8
# Particles farther from a map's range than this many times its width move to the end of
# the data. Nearer ones are shifted rigidly, so that moderate outliers keep their order.
_FAR_BEYOND = 16


@dataclass(frozen=True)
class CompressedMap:
    """h maps through K knots each, on the edges of a uniform grid over [lo, hi].

    Knot k of a map is at edge `edges[:, k]` of its `n_bins` bins, and moves by
    ``quantized_shifts[:, k] · 2**exponent``. The displacement D is linear between
    knots. The first knot is at edge 0, the last at edge `n_bins`. `dtype` is that of
    the grid's values. If each class has its own maps, h stands for C·h.

    Identity maps can be left out. Then `map_indices` (h,) are the indices of the stored
    maps among all `n_all` maps. If none are left out, `map_indices` is None.
    """

    lo: Annotated[Tensor, ArraySpec("h", torch.float64)]
    hi: Annotated[Tensor, ArraySpec("h", torch.float64)]
    edges: Annotated[Tensor, ArraySpec("h k", torch.int32, differences=1)]
    quantized_shifts: Annotated[Tensor, ArraySpec("h k", torch.int16, differences=1)]
    n_bins: Annotated[int, Between(1, MAX_BINS)]
    exponent: Annotated[int, Between(-1000, 1000)]
    dtype: torch.dtype = torch.float32
    map_indices: (
        Annotated[Tensor, ArraySpec("h", torch.int64, ge=0, differences=1)] | None
    ) = None
    n_all: Count = 0

    def check_saved(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        self._check_edges()
        self._check_map_indices()
        self._check_range()

    def _check_edges(self) -> None:
        edges = self.edges
        n_knots = edges.shape[1]
        if not 2 <= n_knots <= MAX_COMPRESSED_KNOTS or self.dtype not in FLOAT_DTYPES:
            raise ValueError(f"compressed maps have {n_knots} knots of {self.dtype}")
        from_first = bool((edges[:, 0] == 0).all())
        to_last = bool((edges[:, -1] == self.n_bins).all())
        ascend = bool((edges[:, :-1] < edges[:, 1:]).all())
        if not (from_first and to_last and ascend):
            raise ValueError(
                f"compressed maps have knots that do not ascend from 0 to {self.n_bins}"
            )

    def _check_map_indices(self) -> None:
        if self.map_indices is None or len(self.map_indices) == 0:
            return
        ascend = bool((self.map_indices[:-1] < self.map_indices[1:]).all())
        if not ascend or int(self.map_indices[-1]) >= self.n_all:
            raise ValueError(
                f"compressed maps have indices that do not ascend below {self.n_all}"
            )

    def _check_range(self) -> None:
        if not bool((self.lo <= self.hi).all()):
            raise ValueError("compressed maps have ranges that end before they begin")
        farthest = 0.0
        if len(self.lo):
            farthest = max(-float(self.lo.amin()), float(self.hi.amax()))
        farthest += 2.0 ** (self.exponent + 15)  # shifts are below 2¹⁵ steps
        if not farthest < torch.finfo(self.dtype).max / 4:
            raise ValueError(
                f"compressed maps reach beyond the numbers of {self.dtype}"
            )

    @property
    def n_maps(self) -> int:
        """The number of maps, including the identity maps that are left out."""
        return len(self.lo) if self.map_indices is None else self.n_all

    def to_grid(self) -> GridMap:
        """The same maps on their whole grid, made to ascend.

        The bits are the same on every device.
        """
        maps = self.with_identity_maps()
        values = kernels.for_tensor(maps.lo).expand_grid(
            maps.lo,
            maps.hi,
            maps.edges,
            maps.quantized_shifts,
            self.n_bins,
            self.exponent,
            self.dtype,
        )
        return GridMap(maps.lo, maps.hi, values)

    def with_identity_maps(self) -> CompressedMap:
        """The same with the identity maps added. This does not wait for a GPU."""
        if self.map_indices is None:
            return self
        map_indices = self.map_indices

        def zeros_elsewhere(stored: Tensor) -> Tensor:
            all_rows = stored.new_zeros(self.n_all, *stored.shape[1:])
            return all_rows.index_copy_(0, map_indices, stored)

        return replace(
            self,
            lo=zeros_elsewhere(self.lo),
            hi=zeros_elsewhere(self.hi),
            edges=zeros_elsewhere(self.edges),
            quantized_shifts=zeros_elsewhere(self.quantized_shifts),
            map_indices=None,
            n_all=0,
        ).with_standard_identity_maps()

    def without_identity_maps(self) -> CompressedMap:
        """The same without the identity maps."""
        if self.map_indices is not None:
            return self
        moving = self.quantized_shifts.any(1).nonzero()[:, 0]
        return replace(
            self,
            lo=self.lo[moving],
            hi=self.hi[moving],
            edges=self.edges[moving],
            quantized_shifts=self.quantized_shifts[moving],
            map_indices=moving,
            n_all=len(self.lo),
        )

    def with_standard_identity_maps(self) -> CompressedMap:
        """The same, where identity maps have the range [−1, 1] and evenly spaced knots.

        So they need not be stored: `with_identity_maps` makes the same ones.
        """
        moving = self.quantized_shifts.any(1)
        n_knots = self.edges.shape[1]
        even = torch.arange(n_knots, device=self.edges.device)
        even = (even * self.n_bins // (n_knots - 1)).to(self.edges.dtype)
        return replace(
            self,
            lo=torch.where(moving, self.lo, -1.0),
            hi=torch.where(moving, self.hi, 1.0),
            edges=torch.where(moving[:, None], self.edges, even),
        )


@dataclass(frozen=True)
class ModelStep:
    """One step of a model: step `step_index` of stage `stage_index`, and its maps.

    `theta` (h, d) are the directions if they were fitted. If it is None, the frame is
    drawn again from the numbers of the stage and the step.
    """

    stage_index: Count
    step_index: Count
    maps: KnotMap | GridMap | CompressedMap
    theta: Annotated[Tensor, ArraySpec("h d", FLOAT_DTYPES)] | None = None

    def check_saved(self) -> None:
        """Raise a ValueError if the directions are not orthonormal."""
        theta = self.theta
        if theta is None:
            return
        identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        deviation = (theta @ theta.T - identity).abs()
        if not bool((deviation < _ORTHONORMAL_TOL).all()):
            raise ValueError("the fitted directions of a step are not orthonormal")

    def without_identity_maps(self) -> ModelStep:
        """The same without the identity maps, if they are compressed."""
        if isinstance(self.maps, CompressedMap):
            return replace(self, maps=self.maps.without_identity_maps())
        return self

    def expanded(self) -> TransportMap:
        """The maps as they move particles."""
        if isinstance(self.maps, CompressedMap):
            return self.maps.to_grid()
        return self.maps


def compress_map(
    transport_map: TransportMap,
    n_knots: int,
    max_displacement: float | None,
    shared: bool,
    tails: bool = False,
) -> TransportMap | CompressedMap:
    """Compress fitted maps for a model, to about `n_knots` knots each.

    Parameters
    ----------
    transport_map : the maps as they were fitted
    n_knots : knots of each map. Maps that classes share, and maps of sorted particles,
        get eight times as many (`_MORE_KNOTS_IF_SHARED`)
    max_displacement : an upper bound on how far a value moves. If it is unknown, None,
        knots are spaced evenly
    shared : whether classes share the maps
    tails : whether to resolve the tails of sorted maps; otherwise they are averages
    """
    if isinstance(transport_map, KnotMap):
        if max_displacement is not None and not tails:
            n_knots *= _MORE_KNOTS_IF_SHARED
        return _compress_sorted(transport_map, n_knots, tails)
    if max_displacement is None:
        return compress_grid_evenly(transport_map, n_knots)
    if shared:
        n_knots *= _MORE_KNOTS_IF_SHARED
    n_bins = transport_map.values.shape[1] - 1
    if n_knots >= n_bins:
        return compress_grid_evenly(transport_map, n_knots)
    return compress_grid_at_bends(
        transport_map, min(max(2, n_knots), MAX_COMPRESSED_KNOTS), max_displacement
    )


def map_bytes(n_knots: int, n_bins: int | None, shared: bool) -> int:
    """The most bytes of one compressed map; `n_bins` is None if it was sorted."""
    if n_knots == 0:
        return 0
    if n_bins is None:
        # Positions before and after, 4 bytes each.
        return 8 * _MORE_KNOTS_IF_SHARED * n_knots
    if shared:
        n_knots *= _MORE_KNOTS_IF_SHARED
    if n_knots >= n_bins:
        return 4 * n_bins + 20  # values on the whole grid, and the range
    return 6 * min(max(2, n_knots), MAX_COMPRESSED_KNOTS) + 16  # edges, shifts, range


def compress_grid_evenly(grid: GridMap, n_knots: int) -> GridMap:
    """Maps on a coarser grid: every k-th edge of the first one, with rigid tails.

    k divides the number of bins, and is the least that leaves at most `n_knots` bins.
    """
    values = grid.values
    n_bins = values.shape[1] - 1
    stride = 1
    while n_bins % stride != 0 or n_bins // stride > n_knots:
        stride += 1
    if grid.counts is not None:
        flatten_tails = kernels.for_tensor(values).flatten_tails
        values = flatten_tails(grid.lo, grid.hi, values, grid.counts)
    return GridMap(grid.lo, grid.hi, values[:, ::stride].contiguous())


def compress_grid_at_bends(
    grid: GridMap, n_knots: int, max_displacement: float
) -> CompressedMap:
    """The maps of a grid with `n_knots` knots each, where they bend and particles are.

    A line through knots a distance δ apart errs by D″δ²/8. Over particles of density p,
    the mean square of this error is least if the density of the knots is proportional
    to (p·D″²)^⅕. The lines are then fitted to all particles between them. Displacements
    are rounded to about 8,000 steps in `max_displacement`.
    """
    n_bins = grid.values.shape[1] - 1
    counts = grid.counts
    if counts is None:
        counts = torch.ones((len(grid.lo), n_bins), device=grid.lo.device)
    exponent = math.frexp(max_displacement / _STEPS_IN_MAX_DISPLACEMENT)[1]
    lo, hi, edges, quantized_shifts = kernels.for_tensor(grid.values).compress_grid(
        grid.lo, grid.hi, grid.values, counts, n_knots, exponent
    )
    compressed = CompressedMap(
        lo, hi, edges, quantized_shifts, n_bins, exponent, grid.values.dtype
    )
    return compressed.with_standard_identity_maps()


def _compress_sorted(knot_map: KnotMap, n_knots: int, tails: bool) -> KnotMap:
    """Sorted maps with fewer knots; if each class has its own maps, class by class."""
    if knot_map.knots_per_class is None:
        compressed = compress_knots(knot_map, n_knots, tails)
        return _flat_far_beyond(compressed) if tails else compressed
    maps: list[KnotMap | None] = []
    for class_map in knot_map.split_classes():
        if class_map is None:
            maps.append(None)
        else:
            maps.append(_compress_sorted(class_map, n_knots, tails))
    h = len(knot_map.knots) // len(maps)
    return join_classes(maps, h, knot_map.knots)


def compress_knots(knot_map: KnotMap, n_knots: int, tails: bool = False) -> KnotMap:
    """Average over `n_knots` cells with equal numbers of particles.

    A map through every particle would follow the sampling noise of single ones.

    With `tails` the outer cells are split into cells of 1, 1, 2, 4, 8, … particles from
    the ends, to resolve heavy tails. Where the values jump between atoms, such as 0 and
    1, the two particles beside the jump are cells of their own: hardly any fresh
    particle ends up between the atoms.
    """
    size = knot_map.knots.shape[1]
    if size <= n_knots:
        return knot_map
    bounds = torch.arange(n_knots + 1, device=knot_map.knots.device) * size // n_knots
    if tails:
        bounds = _with_tail_cells(bounds)
        jumps = _jumps(knot_map.values)
        if jumps is not None:
            beside = torch.cat((jumps - 1, jumps, jumps + 1), 1).clamp(0, size)
            row_bounds = torch.cat((bounds.expand(len(beside), -1), beside), 1)
            row_bounds = row_bounds.sort(1).values
            return KnotMap(
                _means_of_own_cells(knot_map.knots, row_bounds),
                _means_of_own_cells(knot_map.values, row_bounds),
            )
    return KnotMap(
        _cell_means(knot_map.knots, bounds), _cell_means(knot_map.values, bounds)
    )


def _with_tail_cells(bounds: Tensor) -> Tensor:
    """The bounds of cells with the outer two split into cells of 1, 1, 2, 4, 8, …"""
    size = int(bounds[-1])
    outer = [2**k for k in range(int(bounds[1]).bit_length())]
    from_the_end = [size - k for k in outer]
    return bounds.new_tensor(sorted({*bounds.tolist(), *outer, *from_the_end}))


def _cell_means(t: Tensor, bounds: Tensor) -> Tensor:
    """Averages of t (h, n) over cells between bounds (E + 1,) that all rows share."""
    first = bounds[:-1, None]
    count = bounds.diff()[:, None]
    member = torch.arange(int(count.max()), device=bounds.device)
    index = (first + member).clamp(max=t.shape[1] - 1)
    cells = torch.where(member < count, t[:, index], 0.0)
    return (cells.sum(2, dtype=torch.float64) / count[:, 0]).to(t.dtype)


def _means_of_own_cells(t: Tensor, bounds: Tensor) -> Tensor:
    """Averages of t (h, n) over the cells between ascending bounds (h, E + 1).

    A cell without particles takes the particle at its bound.
    """
    first = bounds[:, :-1]
    end = bounds[:, 1:]
    last = t.shape[1] - 1
    running_sum = torch.nn.functional.pad(t.double().cumsum(1), (1, 0))
    sums = running_sum.gather(1, end) - running_sum.gather(1, first)
    low = t.gather(1, first.clamp(max=last))
    high = t.gather(1, (end - 1).clamp(min=0))
    all_equal = (end == first) | (low == high)  # exact, where sums are rounded
    mean = torch.where(all_equal, low, sums / (end - first).clamp(min=1))
    return mean.to(t.dtype).cummax(1).values


def _jumps(values: Tensor) -> Tensor | None:
    """Where the values (h, K) jump to or from an atom: the widest jumps of each row.

    An atom is a run of equal values. The result (h, J) has the index of the first value
    after each jump, and K where a row has fewer than J jumps. It is None if no row has
    any.
    """
    gap = values.diff(dim=1)
    atom_size = max(2, values.shape[1] // _ATOM_ONE_IN)
    starts_atom = values[:, atom_size - 1 :] == values[:, : 1 - atom_size]
    starts_atom = torch.nn.functional.pad(starts_atom, (atom_size, atom_size))
    n_gaps = gap.shape[1]
    ends_before = starts_atom[:, 1 : 1 + n_gaps]
    starts_after = starts_atom[:, atom_size + 1 : atom_size + 1 + n_gaps]
    gap = torch.where(ends_before | starts_after, gap, 0.0)
    if gap.numel() == 0:
        return None
    n_jumps = min(MAX_JUMPS, int((gap > 0).sum(1).amax()))
    if n_jumps == 0:
        return None
    widest = gap.topk(n_jumps, dim=1)
    return torch.where(widest.values > 0, widest.indices + 1, values.shape[1])


def _flat_far_beyond(knot_map: KnotMap) -> KnotMap:
    """The same with a knot far beyond each end: nothing leaves the data's range."""
    knots = knot_map.knots
    values = knot_map.values
    first = knots[:, :1]
    last = knots[:, -1:]
    far = _FAR_BEYOND * (last - first) + 1
    return KnotMap(
        torch.cat((first - far, knots, last + far), 1),
        torch.cat((values[:, :1], values, values[:, -1:]), 1),
    )
