"""Compression of the maps that a model stores: few knots, and few bytes for each.

`Compression` chooses one of four functions. Maps through sorted particles become
averages over cells of particles, which are equal (`compress_knots`) or smaller in the
tails (`compress_knots_with_tails`). Maps on a grid get a coarser grid
(`compress_grid_evenly`), or become `CompressedMaps` (`compress_grid_at_bends`): the
displacement D(z) = T(z) − z is then piecewise linear through a few knots, which are
where the map bends, and is rounded to whole steps. To move particles, `CompressedMaps`
are turned into a grid again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps, concatenate_classes
from sliceflow.engine.model_steps import MAX_COMPRESSED_KNOTS, CompressedMaps
from sliceflow.engine.smooth_maps import SmoothMaps

# Displacements are stored as int16, as multiples of a rounding step. The largest
# displacement that is expected has this many steps, 8,191: far finer than the noise of
# any map. Displacements four times as large can still be stored.
_STEPS_IN_MAX_DISPLACEMENT = kernels.MAX_QUANTIZED_DISPLACEMENT // 4
# Jumps between atoms that a model stores of each map, with three knots each: enough for
# 65 atoms. More of them only make files larger.
MAX_JUMPS = 64
# An atom is a value that at least one in this many particles moves to. Rarer values are
# treated as continuous, and particles may land between them.
_ATOM_ONE_IN = 200
# Where `max_displacement` is known, maps with many bends get this many times as many
# knots. It trades the size of a model for detail.
_MANY_BENDS_FACTOR = 8
# Particles farther from a map's range than this many times its width move to the end of
# the data. Nearer ones move alike, so that moderate outliers keep their order.
_FAR_BEYOND = 16


@dataclass(frozen=True)
class Compression:
    """How a model stores the maps of a stage: with how many knots, and where.

    Parameters
    ----------
    n_knots : about how many knots each map gets, 1 or more
    max_displacement : an upper bound on how far a value moves. If it is known, maps on
        a grid get their knots where they bend, and maps with many bends get eight times
        as many. If it is unknown, None, the knots of a grid are spaced evenly
    shared_by_conditions : whether conditions share the maps. Maps on a grid then have
        many bends, because they bend within every class. Sorted maps always have many:
        between any two particles
    keep_tails : whether to resolve the tails of sorted maps; otherwise they are
        averages
    """

    n_knots: int
    max_displacement: float | None = None
    shared_by_conditions: bool = False
    keep_tails: bool = False

    def compress(self, maps: TransportMaps) -> TransportMaps | CompressedMaps:
        """The fitted maps as the model stores them."""
        if isinstance(maps, SmoothMaps):  # they have few knots as they are
            return maps
        if isinstance(maps, KnotMaps):
            return _compress_sorted(maps, self._n_sorted_knots, self.keep_tails)
        n_knots = self._n_grid_knots
        n_bins = maps.values.shape[1] - 1
        if self.max_displacement is None or n_knots >= n_bins:
            return compress_grid_evenly(maps, n_knots)
        n_knots = _within_compressed_limits(n_knots)
        return compress_grid_at_bends(maps, n_knots, self.max_displacement)

    def map_bytes(self, n_bins: int | None) -> int:
        """The most bytes of one compressed map in float32.

        It was fitted on a grid of `n_bins`, or to sorted particles if this is None.
        """
        if n_bins is None:
            return 8 * self._n_sorted_knots  # positions before and after, 4 bytes each
        n_knots = self._n_grid_knots
        if self.max_displacement is None or n_knots >= n_bins:
            return 4 * min(n_knots, n_bins) + 20  # values on a grid, and the range
        # Edges, displacements, range.
        return 6 * _within_compressed_limits(n_knots) + 16

    @property
    def _n_sorted_knots(self) -> int:
        """The knots of maps through sorted particles."""
        if self.max_displacement is None:
            return self.n_knots
        return self.n_knots * _MANY_BENDS_FACTOR

    @property
    def _n_grid_knots(self) -> int:
        """The knots of maps on a grid."""
        if self.max_displacement is None or not self.shared_by_conditions:
            return self.n_knots
        return self.n_knots * _MANY_BENDS_FACTOR


def _within_compressed_limits(n_knots: int) -> int:
    """The number of knots that `CompressedMaps` can have, nearest to this one."""
    return min(max(2, n_knots), MAX_COMPRESSED_KNOTS)


def compress_grid_evenly(grid: GridMaps, n_knots: int) -> GridMaps:
    """Maps on a coarser grid of at most `n_knots` bins, with rigid tails.

    The coarser grid has every k-th edge of the given one, with the least k that leaves
    at most `n_knots` bins. If this k does not divide the number of bins, the grid has
    `n_knots` new bins instead, and the values at their edges are interpolated.
    """
    values = grid.values
    n_bins = values.shape[1] - 1
    if grid.counts is not None:
        flatten_tails = kernels.for_tensor(values).flatten_tails
        values = flatten_tails(grid.lo, grid.hi, values, grid.counts)
    stride = math.ceil(n_bins / n_knots)
    if n_bins % stride == 0:
        coarse = values[:, ::stride].contiguous()
    else:
        coarse = _values_at_new_edges(values, n_knots)
    return GridMaps(grid.lo, grid.hi, coarse)


def _values_at_new_edges(values: Tensor, n_bins: int) -> Tensor:
    """The values (h, n_bins + 1) of maps at the edges of `n_bins` equal bins.

    They are interpolated from `values` (h, B + 1), at the edges of B equal bins. Places
    are counted in parts of the range, n_bins·B in all, so that they are whole numbers:
    new edge e is at place e·B, and old edge b at place b·n_bins.
    """
    n_old_bins = values.shape[1] - 1
    place = torch.arange(n_bins + 1, device=values.device) * n_old_bins
    left = (place // n_bins).clamp(max=n_old_bins - 1)
    share = (place - left * n_bins).to(values.dtype) / n_bins
    return torch.lerp(values[:, left], values[:, left + 1], share)


def compress_grid_at_bends(
    grid: GridMaps, n_knots: int, max_displacement: float
) -> CompressedMaps:
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
    lo, hi, edges, quantized_displacements = kernels.for_tensor(
        grid.values
    ).compress_grid(grid.lo, grid.hi, grid.values, counts, n_knots, exponent)
    compressed = CompressedMaps(
        lo=lo,
        hi=hi,
        edges=edges,
        quantized_displacements=quantized_displacements,
        n_maps=len(lo),
        n_bins=n_bins,
        exponent=exponent,
        dtype=grid.values.dtype,
    )
    return compressed.with_canonical_identity_maps()


def _compress_sorted(knot_maps: KnotMaps, n_knots: int, keep_tails: bool) -> KnotMaps:
    """Sorted maps with fewer knots; if each class has its own maps, class by class."""
    if knot_maps.knots_per_class is None:
        if keep_tails:
            return _with_flat_ends(compress_knots_with_tails(knot_maps, n_knots))
        return compress_knots(knot_maps, n_knots)
    maps: list[KnotMaps | None] = []
    for class_maps in knot_maps.split_classes():
        if class_maps is None:
            maps.append(None)
        else:
            maps.append(_compress_sorted(class_maps, n_knots, keep_tails))
    h = len(knot_maps.knots) // len(maps)
    return concatenate_classes(maps, h, knot_maps.knots)


def compress_knots(knot_maps: KnotMaps, n_knots: int) -> KnotMaps:
    """Average over `n_knots` cells with equal numbers of particles.

    A map through every particle would follow the sampling noise of single ones.
    """
    if knot_maps.knots.shape[1] <= n_knots:
        return knot_maps
    return _average_over_cells(knot_maps, _equal_cells(knot_maps, n_knots))


def compress_knots_with_tails(knot_maps: KnotMaps, n_knots: int) -> KnotMaps:
    """Average over `n_knots` cells, and over smaller ones in the tails and at jumps.

    The outer cells are split into cells of 1, 1, 2, 4, 8, … particles from the ends, to
    resolve heavy tails. Where the values jump between atoms, such as 0 and 1, the two
    particles beside the jump are cells of their own: hardly any fresh particle ends up
    between the atoms.
    """
    size = knot_maps.knots.shape[1]
    if size <= n_knots:
        return knot_maps
    bounds = _with_tail_cells(_equal_cells(knot_maps, n_knots))
    jumps = _jumps(knot_maps.values)
    if jumps is None:
        return _average_over_cells(knot_maps, bounds)
    # The bounds of the two cells beside each jump, of one particle each.
    jump_bounds = torch.cat((jumps - 1, jumps, jumps + 1), 1).clamp(0, size)
    bounds_of_rows = torch.cat((bounds.expand(len(jumps), -1), jump_bounds), 1)
    bounds_of_rows = bounds_of_rows.sort(1).values
    return KnotMaps(
        _means_of_row_cells(knot_maps.knots, bounds_of_rows),
        _means_of_row_cells(knot_maps.values, bounds_of_rows),
    )


def _equal_cells(knot_maps: KnotMaps, n_cells: int) -> Tensor:
    """The bounds (E + 1,) of cells with equal numbers of particles."""
    knots = knot_maps.knots
    return torch.arange(n_cells + 1, device=knots.device) * knots.shape[1] // n_cells


def _average_over_cells(knot_maps: KnotMaps, bounds: Tensor) -> KnotMaps:
    """The averages of knots and values over cells that all maps share."""
    return KnotMaps(
        _cell_means(knot_maps.knots, bounds), _cell_means(knot_maps.values, bounds)
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
    place_in_cell = torch.arange(int(count.max()), device=bounds.device)
    index = (first + place_in_cell).clamp(max=t.shape[1] - 1)
    is_in_cell = place_in_cell < count  # (E, largest cell)
    cells = torch.where(is_in_cell, t[:, index], 0.0)  # (h, E, largest cell)
    return (cells.sum(2, dtype=torch.float64) / count[:, 0]).to(t.dtype)


def _means_of_row_cells(t: Tensor, bounds: Tensor) -> Tensor:
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
    is_constant = (end == first) | (low == high)  # then the mean is not rounded
    mean = torch.where(is_constant, low, sums / (end - first).clamp(min=1))
    return mean.to(t.dtype).cummax(1).values


def _jumps(values: Tensor) -> Tensor | None:
    """Where the values (h, K) jump to or from an atom: the widest jumps of each row.

    An atom is a run of equal values, as many as `_ATOM_ONE_IN` says. In a row of

        0  0  0  1  2  5  5  5  6

    with atoms of 3, the gaps from 0 to 1, from 2 to 5 and from 5 to 6 are jumps. The
    result (h, J) has the index of the first value after each jump, and K where a row
    has fewer than J jumps. It is None if no row has any.
    """
    gaps = values.diff(dim=1)  # gap k is between the values k and k + 1
    if gaps.numel() == 0:
        return None
    is_atom_start, is_atom_end = _atom_bounds(values)
    is_jump = is_atom_end[:, :-1] | is_atom_start[:, 1:]
    jump_widths = torch.where(is_jump, gaps, 0.0)
    n_jumps = min(MAX_JUMPS, int((jump_widths > 0).sum(1).amax()))
    if n_jumps == 0:
        return None
    widest = jump_widths.topk(n_jumps, dim=1)
    return torch.where(widest.values > 0, widest.indices + 1, values.shape[1])


def _atom_bounds(values: Tensor) -> tuple[Tensor, Tensor]:
    """Whether an atom starts, and whether one ends, at each of the values (h, K).

    Within a long atom, shorter ones start and end.
    """
    size = max(2, values.shape[1] // _ATOM_ONE_IN)
    n_places = values.shape[1] - size + 1  # where an atom of this size can start
    # The values ascend: if the first and the last of an atom are equal, all are.
    is_atom = values[:, :n_places] == values[:, size - 1 :]
    is_start = torch.zeros_like(values, dtype=torch.bool)
    is_start[:, :n_places] = is_atom
    is_end = torch.zeros_like(is_start)
    is_end[:, size - 1 :] = is_atom
    return is_start, is_end


def _with_flat_ends(knot_maps: KnotMaps) -> KnotMaps:
    """The maps with a knot far beyond each end: nothing leaves the data's range."""
    knots = knot_maps.knots
    values = knot_maps.values
    first = knots[:, :1]
    last = knots[:, -1:]
    far = _FAR_BEYOND * (last - first) + 1
    return KnotMaps(
        torch.cat((first - far, knots, last + far), 1),
        torch.cat((values[:, :1], values, values[:, -1:]), 1),
    )
