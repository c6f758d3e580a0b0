"""All kernels in plain torch: slow, short, for any device.

They define and document what the fast kernels of `cpu` and `triton` must return.
Projections are tensors (h, n): one row per direction, one column per point. Positions
and masses are computed in float64. Results for float32 are those of float64, rounded
once.

Some kernels take `starts`: the points are sorted by class, and class c has the points
from starts[c] to starts[c + 1] − 1. Each class then has its own row for each direction:
the results have C·h rows, and row c·h + j belongs to class c and direction j.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sliceflow.kernels.classes import displace_by_class
from sliceflow.kernels.geometry import TileGeometry

__all__ = [  # every kernel
    "add_class_offsets",
    "argsort_rows",
    "bin_counts",
    "compose_histograms",
    "compress_grid",
    "displace_grid",
    "displace_knots",
    "expand_grid",
    "flatten_tails",
    "histogram",
    "lift_tiles",
    "match_sorted",
    "move_tiles",
    "nearest_distance",
    "normal",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "shrink_factor",
    "sort_rows",
    "value_range",
]

# Levels of F are compared across a gap with this tolerance: far above their rounding,
# far below an atom's mass.
LEVEL_EPSILON = 1e-8
# A gap of the data is jumped over if it is this many times as wide as both gaps beside
# it. Where the data are dense, gaps are about exponentially distributed, and one in 45
# is that wide by chance: 2·(1/9 − 1/10). Jumping over so narrow a gap changes little. A
# larger ratio would leave particles between classes that stand near each other.
GAP_RATIO = 8.0
# The largest stored displacement, in steps of rounding: it is an int16.
MAX_QUANTIZED_SHIFT = (1 << 15) - 1
# Beyond this many times √M particles from either end, a stored map of M particles is a
# rigid shift. Maps are noisy there: the mass below the k-th smallest of M values varies
# by about 1/√k of itself. A larger share cuts off real tails, a smaller one stores
# noise.
TAIL_SHARE_OF_ROOT = 0.25
# Iterations of Jacobi's method for the displacements at knots. Each halves the error,
# so that 2⁻⁸ of it is left. More would only cost time: maps have noise of their own.
JACOBI_ITERATIONS = 8
# Weights are counted as whole multiples of 2⁻³⁰, because integers have the same sum in
# any order.
_WEIGHT_UNITS = 2**30
# A stored map keeps some knots where it does not bend: this share of the mean density
# of knots is added everywhere. A larger share spends knots on straight parts; without
# any, a long part with slight bends would have none.
EVEN_SHARE_OF_KNOTS = 0.05
# A straight map has no density at all; this makes its knots even.
MIN_KNOT_DENSITY = 1e-12
_MASK_32_BITS = 0xFFFFFFFF

# A function `name_by` implements the kernel `name` in terms of other kernels, which it
# takes as its first arguments. Each device passes its own versions. These are the types
# of such arguments.
BinCounts = Callable[[Tensor, Tensor, Tensor, int, Tensor | None], Tensor]
ValueRange = Callable[[Tensor], tuple[Tensor, Tensor]]
AddClassOffsets = Callable[[Tensor, Tensor, Tensor], Tensor]
DisplaceGrid = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ProjectTiles = Callable[
    [Tensor, Tensor, TileGeometry, Tensor | None, Tensor | None, Tensor | None], Tensor
]


# Random numbers


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    """Philox4x32-10, a counter-based generator of random bits.

    Parameters
    ----------
    first, n : the counters are first to first + n − 1, as int64 that wrap around
    key : two 32-bit words

    Returns
    -------
    words : int64 (n, 4), four 32-bit words for each counter
    """
    counter = torch.arange(first, first + n, dtype=torch.int64, device=device)
    c0 = counter & _MASK_32_BITS
    c1 = (counter >> 32) & _MASK_32_BITS
    c2 = torch.zeros_like(c0)
    c3 = torch.zeros_like(c0)
    k0, k1 = key
    for _ in range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & _MASK_32_BITS) ^ c1 ^ k0
        c1 = p1 & _MASK_32_BITS
        c2 = ((p0 >> 32) & _MASK_32_BITS) ^ c3 ^ k1
        c3 = p0 & _MASK_32_BITS
        k0 = (k0 + 0x9E3779B9) & _MASK_32_BITS
        k1 = (k1 + 0xBB67AE85) & _MASK_32_BITS
    return torch.stack((c0, c1, c2, c3), dim=1)


def normal(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    """Standard normal numbers, float64 (n, 4): `box_muller` of what `philox` draws."""
    return box_muller(philox(first, n, key, device))


def box_muller(words: Tensor) -> Tensor:
    """Standard normal numbers, float64 (n, 2m), from 32-bit words (n, 2m).

    Two neighbouring words (a, b) become u = (a + ½)/2³² and v = (b + ½)/2³², and these
    √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv.
    """
    uniform = (words.to(torch.float64) + 0.5) / 2**32
    radius = torch.sqrt(-2 * torch.log(uniform[:, 0::2]))
    angle = 2 * math.pi * uniform[:, 1::2]
    pair = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pair.flatten(1)


# Sorted samples


def sort_rows(z: Tensor) -> Tensor:
    """Each row of z (h, n) in ascending order."""
    return torch.sort(z, dim=1).values


def argsort_rows(z: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted rows of z (h, n), and the point each value came from, int64 (h, n)."""
    values, order = torch.sort(z, dim=1)
    return values, order


def match_sorted(z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None) -> Tensor:
    """The transport map T = F_q⁻¹(F_p(z)) at every particle.

    A particle is an atom of mass 1/M, a datum one of mass w_i/Σw. The level of an atom
    is the middle of its mass, F(z_k) = (C_{k-1} + C_k)/2 with C the cumulative masses;
    tied particles share the middle of theirs. F⁻¹ is linear between the data and
    constant beyond them.

    Across a gap more than `GAP_RATIO` times as wide as both gaps beside it F⁻¹ jumps
    where the mass of one datum ends: so no particle lands between two classes that the
    amplifier separates, nor between two values of a discrete coordinate.

    Parameters
    ----------
    z_p : sorted particles (h, M)
    z_q : sorted data (h, N)
    w_q : positive weights (h, N) of the data, in their order; None if all are equal

    Returns
    -------
    values : (h, M), ascending in each row
    """
    m = z_p.shape[1]
    n = z_q.shape[1]
    z = z_p.contiguous()
    first = torch.searchsorted(z, z, right=False)
    after = torch.searchsorted(z, z, right=True)
    level = (first + after).double() / (2 * m)  # F_p(z), (h, M)
    # The position of that level among the data: k at datum k, fractions between.
    if w_q is None:
        position = level * n - 0.5
    else:
        w = w_q.double()
        cumulative = w.cumsum(1)
        levels_q = (cumulative - w / 2) / cumulative[:, -1:]
        position = _positions_among(level, levels_q.contiguous())
    q = z_q.double()
    if n > 2:
        i = position.clamp(0, n - 1).floor().clamp(max=n - 2).long()
        gap = q.diff(dim=1)
        padded = torch.nn.functional.pad(gap, (1, 1))  # no gaps beyond the ends
        is_wide = gap > GAP_RATIO * torch.maximum(padded[:, :-2], padded[:, 2:])
        if w_q is None:
            end_of_mass: Tensor | float = 0.5
        else:
            end_of_mass = torch.gather(w[:, :-1] / (w[:, :-1] + w[:, 1:]), 1, i)
        jumped = i + (position - i > end_of_mass).double()
        position = torch.where(torch.gather(is_wide, 1, i), jumped, position)
    return _interpolate_at_positions(position, q).to(z_p.dtype)


def displace_knots(z: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """T(z) − z for z (h, n), where T is linear between T(knots) = values.

    `knots` and `values` are (h, K) and ascend in each row. Beyond the ends T is a rigid
    shift; see `_beyond`.
    """
    zd = z.double().contiguous()
    k = knots.double().contiguous()
    v = values.double()
    first = k[:, :1]
    last = k[:, -1:]
    below, above = _beyond(zd, first, last, v)
    image = _interpolate_at_positions(_positions_among(zd, k), v)
    image = torch.where(zd >= last, above, image)
    image = torch.where(zd <= first, below, image)
    return (image - zd).to(z.dtype)


def _interpolate_at_positions(position: Tensor, values: Tensor) -> Tensor:
    """values (h, n) at fractional positions (h, m) from 0 to n − 1, linearly.

    Positions are clamped at both ends.
    """
    last = values.shape[1] - 1
    position = position.clamp(0, last)
    i = position.floor().nan_to_num(0.0).clamp(max=max(last - 1, 0)).long()
    left = torch.gather(values, 1, i)
    right = torch.gather(values, 1, (i + 1).clamp(max=last))
    return left + (position - i) * (right - left)


def _positions_among(values: Tensor, knots: Tensor) -> Tensor:
    """The fractional positions (h, m) of values (h, m) among ascending knots (h, n).

    The position is k at knot k, and between two knots a fraction. A value at tied knots
    has the position of the last of them.
    """
    last = knots.shape[1] - 1
    i = (torch.searchsorted(knots, values, right=True) - 1).clamp(0, max(last - 1, 0))
    left = torch.gather(knots, 1, i)
    gap = torch.gather(knots, 1, (i + 1).clamp(max=last)) - left
    return i + torch.where(gap > 0, (values - left) / gap, 0.0).clamp(0, 1)


def _beyond(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """T(z) if z (h, n) is below lo (h, 1), and T(z) if it is above hi (h, 1).

    Both are rigid shifts by the displacement of the end. Particles with unusual y get
    there at every step, and a slope would pull them ever further. Where the whole map
    leads to one value (a constant coordinate), everything beyond does, too.
    """
    low_end = values[:, :1]
    high_end = values[:, -1:]
    slope = ((hi > lo) & (high_end > low_end)).to(z.dtype)
    return low_end + slope * (z - lo), high_end + slope * (z - hi)


# Histograms


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each row of z (h, n), both (h,), float64.

    They are NaN if a row holds NaN.
    """
    return z.amin(1).double(), z.amax(1).double()


def bin_counts(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    """How many values of each row of z (h, n) are in each bin, (h, n_bins).

    The bins divide [lo, hi], both (h,), equally. Values outside are counted in the bins
    at the ends, infinite ones too, and NaN in the first bin: every value is in some
    bin. If the range is empty or not finite, all are in the first one.

    With `weights` (n,), the sum of the weights, up to multiples of 2⁻³⁰.
    """
    rate = _bins_per_unit(lo, hi, n_bins)
    position = (z.double() - lo[:, None]) * rate[:, None]
    bins = position.nan_to_num(0.0).clamp(0, n_bins - 1).long()
    counts = torch.zeros((z.shape[0], n_bins), dtype=torch.int64, device=z.device)
    # A GPU adds in any order. Integers make the sum the same every time.
    if weights is None:
        units = torch.ones(z.shape[1], dtype=torch.int64, device=z.device)
        return counts.scatter_add_(1, bins, units.expand_as(z)).double()
    units = (weights.double() * _WEIGHT_UNITS).round().long()
    return counts.scatter_add_(1, bins, units.expand_as(z)).double() / _WEIGHT_UNITS


def histogram(
    z: Tensor, n_bins: int, weights: Tensor | None = None, starts: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """The histogram of each row of z (h, n) over its own range.

    With `starts`, there is a histogram for each class and direction: C·h rows instead
    of h. Those of an empty class are all 0. A GPU may ignore NaN in the range.

    Returns
    -------
    counts : (h, n_bins), as `bin_counts` returns them
    lo, hi : (h,), the range that the bins divide
    """
    return histogram_by(bin_counts, value_range, z, n_bins, weights, starts)


def histogram_by(
    bin_counts: BinCounts,
    value_range: ValueRange,
    z: Tensor,
    n_bins: int,
    weights: Tensor | None,
    starts: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel `histogram` by these kernels `bin_counts` and `value_range`."""
    if not starts:
        starts = (0, z.shape[1])
    counts = []
    lows = []
    highs = []
    for first, end in pairwise(starts):
        z_class = z[:, first:end]
        if first < end:
            lo, hi = value_range(z_class)
        else:
            lo = z.new_zeros(len(z), dtype=torch.float64)
            hi = lo
        counts.append(bin_counts(z_class, lo, hi, n_bins, weights))
        lows.append(lo)
        highs.append(hi)
    return torch.cat(counts), torch.cat(lows), torch.cat(highs)


def compose_histograms(
    counts_p: Tensor,
    lo_p: Tensor,
    hi_p: Tensor,
    counts_q: Tensor,
    lo_q: Tensor,
    hi_q: Tensor,
) -> tuple[Tensor, Tensor]:
    """The transport map F_q⁻¹(F_p(z)) at the particles' bin edges, and its cost.

    Over a run of bins without particles F_p is flat, and the data may have a gap at the
    same level (two separate classes): the run starts at F_q⁻¹(level⁻) and ends at
    F_q⁻¹(level⁺), and T is linear over the run. If all particles are at one point
    (lo_p = hi_p), that point goes to the data's median.

    Parameters
    ----------
    counts_p, lo_p, hi_p : the histograms (h, B) of the particles and their ranges (h,)
    counts_q, lo_q, hi_q : those of the data

    Returns
    -------
    values : (h, B + 1), ascending in each row
    cost : (h,), the mean of (T(z) − z)² over particles spread evenly in their bins
    """
    pad = torch.nn.functional.pad
    is_empty = counts_p == 0
    empty_left = pad(is_empty, (1, 0), value=True)  # edge 0 is like the end of a run
    empty_right = pad(is_empty, (0, 1), value=False)
    level = pad(counts_p.cumsum(1), (1, 0))
    level = level / level[:, -1:]
    level = level + torch.where(empty_left, LEVEL_EPSILON, -LEVEL_EPSILON)
    level = torch.where((hi_p > lo_p)[:, None], level.clamp(0, 1), 0.5)
    values = _quantile(level, counts_q, lo_q, hi_q)
    values = _linear_over_runs(values, empty_left & empty_right)
    return values, _mean_squared_displacement(values, counts_p, lo_p, hi_p)


def _linear_over_runs(values: Tensor, in_run: Tensor) -> Tensor:
    """Values (h, B + 1) at edges, made linear over runs of empty bins.

    `in_run` (h, B + 1) marks the edges with empty bins on both sides. They are
    interpolated between the two ends of their run. Edge 0 always is an end.
    """
    h, n_edges = values.shape
    edge = torch.arange(n_edges, device=values.device).expand(h, -1)
    inside = in_run & (edge > 0)
    before = torch.where(inside, 0, edge).cummax(1).values
    after = torch.where(inside, n_edges - 1, edge).flip(1).cummin(1).values.flip(1)
    run_length = (after - before).clamp(min=1)
    run_start = torch.gather(values, 1, before)
    run_end = torch.gather(values, 1, after)
    share = (edge - before).double() / run_length
    return torch.where(inside, run_start + share * (run_end - run_start), values)


def _mean_squared_displacement(
    values: Tensor, counts: Tensor, lo: Tensor, hi: Tensor
) -> Tensor:
    """The mean (h,) of (T(z) − z)² over particles spread evenly in their bins.

    `values` (h, B + 1) are T at the edges of the bins of [lo, hi], both (h,), and
    `counts` (h, B) the particles in each bin. A displacement that grows linearly from a
    to b over a bin has the mean square (a² + ab + b²)/3 there.
    """
    n_bins = counts.shape[1]
    edge = torch.arange(n_bins + 1, device=values.device)
    bin_width = (hi - lo) / n_bins
    displacement = values - (lo[:, None] + edge * bin_width[:, None])
    left = displacement[:, :-1]
    right = displacement[:, 1:]
    mean_square = (left * left + left * right + right * right) / 3
    return (counts * mean_square).sum(1) / counts.sum(1)


def shrink_factor(cost: Tensor, rate: Tensor, variance: Tensor) -> Tensor:
    """The factor f = max(0, 1 − r·σ²/c) of each of h maps, float64 (h,); 0 if c = 0.

    Parameters
    ----------
    cost : c (h,), the mean squared displacement of each map
    rate : r (C,), one for each class, which has h/C of the rows; (1,) without classes
    variance : σ² (h,)
    """
    rows_per_rate = len(cost) // len(rate)
    noise = rate.double().repeat_interleave(rows_per_rate) * variance.double()
    return torch.where(cost > noise, 1 - noise / cost.double(), 0.0)


def shrink(
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    counts: Tensor,
    cost: Tensor,
    rate: Tensor,
    variance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Maps on a grid, shrunk within their noise: z + f·(T(z) − z).

    `shrink_factor` computes the factor f.

    Parameters
    ----------
    lo, hi, values : the maps (h, B + 1) on [lo, hi], both (h,)
    counts : the particles (h, B) in each bin
    cost : c (h,), the mean squared displacement of each map
    rate : r (C,), one for each class, which has h/C of the rows; (1,) without classes
    variance : σ² (h,); None computes it from `counts`, with all particles of a bin in
        its middle

    Returns
    -------
    values : (h, B + 1), of the shrunk maps
    factor : f (h,)
    """
    n_bins = counts.shape[1]
    lo = lo.double()
    hi = hi.double()
    edge = torch.arange(n_bins + 1, device=lo.device, dtype=torch.float64)
    if variance is None:
        # Not by a product of matrices, whose bits depend on the number of threads.
        p = counts.double()
        middle = edge[:-1] - (n_bins - 1) / 2
        total = p.sum(1).clamp(min=1)
        mean = (p * middle).sum(1) / total
        square = (p * middle.square()).sum(1) / total - mean.square()
        variance = square.clamp(min=0) * ((hi - lo) / n_bins).square()
    factor = shrink_factor(cost, rate, variance)
    positions = torch.lerp(lo[:, None], hi[:, None], edge / n_bins)
    shrunk = torch.lerp(positions, values.double(), factor[:, None])
    return shrunk.to(values.dtype), factor.to(values.dtype)


def displace_grid(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    """T(z) − z for z (h, n), where T is linear between `values` on a uniform grid.

    Edge b of B equal bins of [lo, hi], both (h,), goes to values[:, b], (h, B + 1).
    Beyond the ends T is a rigid shift; see `_beyond`.
    """
    n_bins = values.shape[1] - 1
    zd = z.double()
    v = values.double()
    position = (zd - lo[:, None]) * _bins_per_unit(lo, hi, n_bins)[:, None]
    below, above = _beyond(zd, lo[:, None], hi[:, None], v)
    image = _interpolate_at_positions(position, v)
    image = torch.where(position >= n_bins, above, image)
    image = torch.where(position <= 0, below, image)
    return (image - zd).to(z.dtype)


def _bins_per_unit(lo: Tensor, hi: Tensor, n_bins: int) -> Tensor:
    """Bins per unit of z, 0 where the range is empty or too small to divide by."""
    rate = n_bins / (hi - lo)
    return torch.where(torch.isfinite(rate), rate, torch.zeros_like(rate))


def _quantile(level: Tensor, counts: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """F⁻¹(level) with F linear inside each bin; level must not fall where F is flat."""
    cumulative = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    levels = (cumulative / cumulative[:, -1:]).contiguous()
    position = _positions_among(level.contiguous(), levels)
    bin_width = (hi - lo) / counts.shape[1]
    return lo[:, None] + bin_width[:, None] * position


# Compressed maps


def flatten_tails(lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """Maps on a grid with rigid tails, for particles that they were not fitted to.

    Beyond the ¼√M-th particle from either end (`TAIL_SHARE_OF_ROOT`), a map is noise.
    There it becomes a shift by the displacement of that particle, but leads nowhere
    outside the data's range.

    Parameters
    ----------
    lo, hi, values : the maps (h, B + 1) on [lo, hi], both (h,)
    counts : the particles (h, B) in each bin

    Returns
    -------
    values : (h, B + 1), of the maps with rigid tails
    """
    n_bins = counts.shape[1]
    # Particles below each edge.
    below = torch.nn.functional.pad(counts.double().cumsum(1), (1, 0))
    total = below[:, -1:]
    tail = total.sqrt() * TAIL_SHARE_OF_ROOT
    level = torch.cat((tail, total - tail), 1)
    # The bins (h, 2) that hold those two particles.
    bins = torch.searchsorted(below, level) - 1
    below_bin = below.gather(1, bins)
    inside = (level - below_bin) / (below.gather(1, bins + 1) - below_bin)

    edge = torch.arange(n_bins + 1, dtype=torch.float64, device=values.device)
    position = lo[:, None] + (hi - lo)[:, None] * _divide(edge, n_bins)
    shift = values.double() - position
    tail_shift = shift.gather(1, bins).lerp(shift.gather(1, bins + 1), inside)
    shift = torch.where(edge > bins[:, 1:], tail_shift[:, 1:], shift)
    shift = torch.where(edge <= bins[:, :1], tail_shift[:, :1], shift)
    flattened = (position + shift).clamp(values[:, :1], values[:, -1:])
    return flattened.to(values.dtype)


def compress_grid(
    lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor, n_knots: int, exponent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Maps on a grid, compressed to K = `n_knots` knots each, where the maps bend.

    The tails of the maps are made rigid first. The density of the knots is proportional
    to (p·D″²)^⅕ for a displacement D and a density p of particles. Between knots the
    displacement is linear and fitted to the particles.

    Parameters
    ----------
    lo, hi, values : the maps (h, B + 1) on [lo, hi], both (h,)
    counts : the particles (h, B) in each bin
    n_knots : K
    exponent : displacements are rounded to multiples of 2**exponent

    Returns
    -------
    lo, hi : float64 (h,), rounded to eighths of a step of 2**exponent
    edges : int32 (h, K), the edge of the grid at which each knot is; the first is 0,
        the last B
    quantized_shifts : int16 (h, K), the displacement of each knot in steps of
        2**exponent
    """
    n_bins = values.shape[1] - 1
    resolution = math.ldexp(1.0, exponent)
    values = flatten_tails(lo, hi, values, counts).double()
    unit = resolution / 8
    lo = (lo.double() / unit).round() * unit
    hi = (hi.double() / unit).round() * unit
    edge = torch.arange(n_bins + 1, dtype=torch.float64, device=lo.device)
    shift = values - (lo[:, None] + (hi - lo)[:, None] * _divide(edge, n_bins))
    edges = _knot_edges(shift, counts, n_knots)
    quantized_shifts = _fit_knots(shift, counts.double(), edges) / resolution
    quantized_shifts = quantized_shifts.round().clamp(
        -MAX_QUANTIZED_SHIFT, MAX_QUANTIZED_SHIFT
    )
    return lo, hi, edges.int(), quantized_shifts.to(torch.int16)


def _knot_edges(shift: Tensor, counts: Tensor, n_knots: int) -> Tensor:
    """The grid edges (h, K) at which the displacements `shift` (h, B + 1) get knots.

    `counts` (h, B) are the particles in each bin.
    """
    pad = torch.nn.functional.pad
    device = shift.device
    n_bins = counts.shape[1]
    bend_at_edges = shift.diff(n=2, dim=1).abs()  # at the inner edges
    bend = pad(bend_at_edges, (1, 0)) + pad(bend_at_edges, (0, 1))  # of each bin
    density = (counts * bend.square()) ** 0.2
    mean_density = density.mean(1, keepdim=True)
    density += EVEN_SHARE_OF_KNOTS * mean_density + MIN_KNOT_DENSITY
    below = pad(density.cumsum(1), (1, 0))
    inner = torch.arange(1, n_knots - 1, dtype=torch.float64, device=device)
    share = _divide(inner, n_knots - 1)
    inner_edges = torch.searchsorted(below, below[:, -1:] * share)
    edges = pad(pad(inner_edges, (1, 0)), (0, 1), value=n_bins)
    k = torch.arange(n_knots, device=device)
    edges = (edges - k).cummax(1).values + k  # no two knots at the same edge,
    return torch.minimum(edges, n_bins - (n_knots - 1) + k)  # and none beyond the last


def _fit_knots(shift: Tensor, counts: Tensor, edges: Tensor) -> Tensor:
    """The displacements (h, K) at knots that fit the particles' displacements best.

    This is least squares for a function D that is linear between knots: over the
    particles, as if each were in the middle of its bin, and over half a particle at
    each knot, which makes the solution unique. Its linear system is tridiagonal. The
    sums over the bins between two knots are differences of running sums. Jacobi's
    method solves the system: where particles are spread evenly, its diagonal is twice
    as large as the sum of the other numbers in a row.

    Parameters
    ----------
    shift : the displacements (h, B + 1) at the edges of the grid
    counts : the particles (h, B) in each bin
    edges : the edges (h, K) at which the knots are
    """
    pad = torch.nn.functional.pad
    start = shift.gather(1, edges)
    middle = (shift[:, 1:] + shift[:, :-1]) / 2
    n_bins = middle.shape[1]
    place = torch.arange(n_bins, dtype=torch.float64, device=edges.device) + 0.5

    def sum_between_knots(t: Tensor) -> Tensor:
        return pad(t.cumsum(1), (1, 0)).gather(1, edges).diff(dim=1)

    # Sums over the particles between two knots, (h, K − 1): of 1, of their place x and
    # x², of their displacement D and of x·D.
    sum_1 = sum_between_knots(counts)
    sum_x = sum_between_knots(counts * place)
    sum_xx = sum_between_knots(counts * place**2)
    sum_d = sum_between_knots(counts * middle)
    sum_xd = sum_between_knots(counts * place * middle)
    # With t = (x − first)/size, from 0 at a knot to 1 at the next one, the sums of t,
    # t² and t·D.
    first = edges[:, :-1].double()
    size = edges.diff(dim=1).double()
    sum_t = (sum_x - first * sum_1) / size
    sum_tt = (sum_xx - 2 * first * sum_x + first**2 * sum_1) / size**2
    sum_td = (sum_xd - first * sum_d) / size
    # At t the fitted function is (1 − t)·(left knot) + t·(right knot). So the system
    # has the sums of (1 − t)², t², t·(1 − t), (1 − t)·D and t·D.
    diagonal = pad(sum_1 - 2 * sum_t + sum_tt, (0, 1)) + pad(sum_tt, (1, 0)) + 0.5
    off_diagonal = sum_t - sum_tt
    right_side = pad(sum_d - sum_td, (0, 1)) + pad(sum_td, (1, 0)) + 0.5 * start
    values = start
    for _ in range(JACOBI_ITERATIONS):
        from_next = pad(off_diagonal * values[:, 1:], (0, 1))
        from_previous = pad(off_diagonal * values[:, :-1], (1, 0))
        values = (right_side - (from_next + from_previous)) / diagonal
    return values


def expand_grid(
    lo: Tensor,
    hi: Tensor,
    edges: Tensor,
    quantized_shifts: Tensor,
    n_bins: int,
    exponent: int,
    dtype: torch.dtype,
) -> Tensor:
    """The maps that `compress_grid` returned, on their whole grid and made to ascend.

    Returns
    -------
    values : (h, B + 1), of `dtype`, with B = `n_bins`
    """
    knot_place = edges.double()
    position = lo[:, None] + _divide(hi - lo, n_bins)[:, None] * knot_place
    values = position + quantized_shifts.double() * math.ldexp(1.0, exponent)
    rise = values.diff(dim=1) / knot_place.diff(dim=1)
    rise = torch.nn.functional.pad(rise, (0, 1))  # the last knot is the last edge
    grid = torch.arange(n_bins + 1, dtype=edges.dtype, device=edges.device)
    grid = grid.expand(len(edges), -1)
    k = torch.searchsorted(edges, grid.contiguous(), right=True) - 1
    beyond = grid - edges.gather(1, k)
    on_grid = values.gather(1, k) + beyond * rise.gather(1, k)
    return on_grid.to(dtype).cummax(1).values


def _divide(x: Tensor, n: int) -> Tensor:
    """x / n, rounded once.

    If n is a Python number, torch computes x · (1/n) on a GPU, which rounds twice.
    """
    return x / torch.full((), n, dtype=x.dtype, device=x.device)


# Classes and distances


def add_class_offsets(z: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    """z (h, n) plus the offset of each point's class.

    Offsets are (h, C), and `codes` (n,) the class indices of the points.
    """
    return z + offsets[:, codes]


def nearest_distance(
    x: Tensor, rows: Tensor, max_gap: Tensor, exclude_self: bool = False
) -> Tensor:
    """The distance (m,) of each point of x (m, d) to the closest of rows (n, d).

    The distance is Σ min(|x − r|, max_gap) over the d columns, where `max_gap` (d,) is
    the most that each column counts. With `exclude_self`, rows are x, and no row is
    compared with itself.
    """
    distances = x.new_empty(len(x))
    for i, point in enumerate(x):
        to_rows = torch.minimum((rows - point).abs(), max_gap).sum(1)
        if exclude_self:
            to_rows[i] = torch.inf
        distances[i] = to_rows.min()
    return distances


# Pictures in tiles


def padded_size(k: int) -> int:
    """Rows and columns to which a rotation of k directions is padded on this device."""
    return k


def project_tiles(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    codes: Tensor | None = None,
) -> Tensor:
    """z = Θx for pictures whose tiles are all rotated by the same theta.

    Parameters
    ----------
    x : pictures (d, n), where d = channels · height · width
    theta : the rotation (k, k) of a tile's k values, which may be padded with zeros to
        the size `padded_size`
    geometry : how the pictures are cut into tiles
    indices : the indices of the pictures to project; None is all of them
    offsets, codes : shift z by the offsets (tiles·k, classes) of the pictures' class
        indices (n,)

    Returns
    -------
    z : (tiles·k, n)
    """
    return project_tiles_by(
        add_class_offsets, x, theta, geometry, indices, offsets, codes
    )


def project_tiles_by(
    add_class_offsets: AddClassOffsets,
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None,
    offsets: Tensor | None,
    codes: Tensor | None,
) -> Tensor:
    """The kernel `project_tiles` by this kernel `add_class_offsets`."""
    if indices is not None:
        x = x[:, indices]
        if codes is not None:
            codes = codes[indices]
    z = _rotate_tiles(x, theta, geometry)
    if offsets is None or codes is None:
        return z
    return add_class_offsets(z, offsets, codes)


def _rotate_tiles(x: Tensor, theta: Tensor, geometry: TileGeometry) -> Tensor:
    """z = Θx (tiles·k, n) of all pictures x (d, n), without offsets."""
    n = x.shape[1]
    k = geometry.side
    theta = theta[:k, :k]
    tiles = x
    if geometry.grid != (1, 1):  # one tile is the picture itself
        tiles = x.new_zeros(geometry.n_directions, n)
        tiles.index_copy_(0, geometry.place.to(x.device), x)
    return torch.matmul(theta.to(x.dtype), tiles.reshape(-1, k, n)).view(-1, n)


def lift_tiles(dz: Tensor, theta: Tensor, geometry: TileGeometry) -> Tensor:
    """dx = Θᵀdz, from projections (tiles·k, n) to pictures (d, n)."""
    n = dz.shape[1]
    k = geometry.side
    theta = theta[:k, :k]
    tiles = torch.matmul(theta.T.to(dz.dtype), dz.view(-1, k, n)).view(-1, n)
    if geometry.grid == (1, 1):  # one tile is the picture itself
        return tiles
    return tiles.index_select(0, geometry.place.to(dz.device))


def move_tiles(  # noqa: PLR0913, tiles, a map and classes, as bare tensors
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    step_size: float,
    offsets: Tensor | None = None,
    codes: Tensor | None = None,
    starts: Sequence[int] | None = None,
) -> None:
    """x += step_size·Θᵀ(T(z) − z) in place, with z of `project_tiles`.

    T are the maps `values` on [lo, hi], as for `displace_grid`. With `starts`, each
    class has its own maps, as for `displace_by_class`.
    """
    move_tiles_by(
        project_tiles,
        displace_grid,
        x,
        theta,
        geometry,
        lo,
        hi,
        values,
        step_size,
        offsets,
        codes,
        starts,
    )


def move_tiles_by(  # noqa: PLR0913, two kernels, and the arguments of `move_tiles`
    project_tiles: ProjectTiles,
    displace_grid: DisplaceGrid,
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    step_size: float,
    offsets: Tensor | None,
    codes: Tensor | None,
    starts: Sequence[int] | None,
) -> None:
    """The kernel `move_tiles` by these kernels `project_tiles` and `displace_grid`."""
    z = project_tiles(x, theta, geometry, None, offsets, codes)

    def displace(z_class: Tensor, rows: slice) -> Tensor:
        return displace_grid(z_class, lo[rows], hi[rows], values[rows])

    dz = displace_by_class(z, starts, displace)
    x.add_(lift_tiles(dz, theta, geometry), alpha=step_size)
