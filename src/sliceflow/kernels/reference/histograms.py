"""Maps of histograms, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sliceflow.kernels.classes import displace_by_class
from sliceflow.kernels.reference.interpolation import (
    images_beyond,
    interpolate_at_positions,
    positions_among,
)

# Values of F are compared across a gap with this tolerance: far above their rounding,
# far below an atom's mass.
CDF_TOLERANCE = 1e-8
# Weights are counted as whole multiples of 2⁻³⁰, because integers have the same sum in
# any order.
_WEIGHT_UNITS = 2**30
# A function `name_with_kernels` implements the kernel `name` in terms of other kernels,
# which it takes as its first arguments. Each device passes its own versions. These are
# the types of such arguments.
BinCounts = Callable[[Tensor, Tensor, Tensor, int, Tensor | None], Tensor]
ValueRange = Callable[[Tensor], tuple[Tensor, Tensor]]


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each row of z (h, n), both (h,), float64.

    They are NaN if a row holds NaN.
    """
    return z.amin(1).double(), z.amax(1).double()


def bin_counts(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    """How many values of each row of z (h, n) are in each bin: (h, n_bins).

    The bins divide [lo, hi], both (h,), equally. Values outside are counted in the bins
    at the ends, infinite ones too, and NaN in the first bin: every value is in some
    bin. If the range is empty or not finite, all are in the first one.

    With `weights` (n,), the result is the sum of the weights in each bin, up to
    multiples of 2⁻³⁰.
    """
    bins_per_unit = _bins_per_unit(lo, hi, n_bins)
    position = (z.double() - lo[:, None]) * bins_per_unit[:, None]
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
    of h. All counts of an empty class are 0. A GPU may ignore NaN in the range.

    Returns
    -------
    counts : (h, n_bins), as `bin_counts` returns them
    lo, hi : (h,), the range that the bins divide
    """
    return histogram_with_kernels(bin_counts, value_range, z, n_bins, weights, starts)


def histogram_with_kernels(
    bin_counts: BinCounts,
    value_range: ValueRange,
    z: Tensor,
    n_bins: int,
    weights: Tensor | None,
    starts: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel `histogram`, made of the kernels `bin_counts` and `value_range`."""
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
    """The maps F_q⁻¹(F_p(z)) at the particles' bin edges, and how far they move.

    Over a run of bins without particles F_p is flat, and the data may have a gap at the
    same value a of F_q (two separate classes): the run starts at F_q⁻¹(a⁻) and ends at
    F_q⁻¹(a⁺), and T is linear over the run. If all particles are at one point
    (lo_p = hi_p), that point goes to the data's median.

    Parameters
    ----------
    counts_p, lo_p, hi_p : the histograms (h, B) of the particles and their ranges (h,)
    counts_q, lo_q, hi_q : the histograms of the data and their ranges

    Returns
    -------
    values : (h, B + 1), ascending in each row
    mean_squared_displacement : (h,), the mean of (T(z) − z)² over particles spread
        evenly in their bins
    """
    pad = torch.nn.functional.pad
    is_empty = counts_p == 0
    is_empty_left = pad(is_empty, (1, 0), value=True)  # edge 0 is like the end of a run
    is_empty_right = pad(is_empty, (0, 1), value=False)
    below = pad(counts_p.cumsum(1), (1, 0))  # the particles below each edge
    at_edges = below / below[:, -1:]
    # An edge behind an empty bin goes to F_q⁻¹(a⁺), any other one to F_q⁻¹(a⁻).
    beside_edges = at_edges + torch.where(is_empty_left, CDF_TOLERANCE, -CDF_TOLERANCE)
    has_range = (hi_p > lo_p)[:, None]
    probability = torch.where(has_range, beside_edges.clamp(0, 1), 0.5)
    values = _quantile(probability, counts_q, lo_q, hi_q)
    values = _linear_over_runs(values, is_empty_left & is_empty_right)
    return values, _mean_squared_displacement(values, counts_p, lo_p, hi_p)


def _linear_over_runs(values: Tensor, is_in_run: Tensor) -> Tensor:
    """Values (h, B + 1) at edges, made linear over runs of empty bins.

    `is_in_run` (h, B + 1) marks the edges with empty bins on both sides. They are
    interpolated between the two ends of their run. Edge 0 always is an end.
    """
    h, n_edges = values.shape
    edge = torch.arange(n_edges, device=values.device).expand(h, -1)
    is_inside = is_in_run & (edge > 0)
    before = torch.where(is_inside, 0, edge).cummax(1).values
    after = torch.where(is_inside, n_edges - 1, edge).flip(1).cummin(1).values.flip(1)
    run_length = (after - before).clamp(min=1)
    run_start = torch.gather(values, 1, before)
    run_end = torch.gather(values, 1, after)
    share = (edge - before).double() / run_length
    return torch.where(is_inside, run_start + share * (run_end - run_start), values)


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


def shrink_factors(
    mean_squared_displacement: Tensor, thresholds: Tensor, variance: Tensor
) -> Tensor:
    """The factor f = max(0, 1 − r·σ²/w) of each of h maps, float64 (h,); 0 if w = 0.

    Parameters
    ----------
    mean_squared_displacement : w (h,), of the particles by each map
    thresholds : r (C,), one for each class, which has h/C of the rows; (1,) without
        classes
    variance : σ² (h,)
    """
    rows_per_class = len(mean_squared_displacement) // len(thresholds)
    noise = thresholds.double().repeat_interleave(rows_per_class) * variance.double()
    is_above_noise = mean_squared_displacement > noise
    factors = 1 - noise / mean_squared_displacement.double()
    return torch.where(is_above_noise, factors, 0.0)


def shrink(
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    counts: Tensor,
    mean_squared_displacement: Tensor,
    thresholds: Tensor,
    variance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Maps on a grid, shrunk within their noise: z + f·(T(z) − z).

    `shrink_factors` computes the factor f of each map.

    Parameters
    ----------
    lo, hi, values : the maps (h, B + 1) on [lo, hi], both (h,)
    counts : the particles (h, B) in each bin
    mean_squared_displacement : w (h,), of the particles by each map
    thresholds : r (C,), one for each class, which has h/C of the rows; (1,) without
        classes
    variance : σ² (h,); None computes it from `counts`, with all particles of a bin in
        its middle

    Returns
    -------
    values : (h, B + 1), of the shrunk maps
    shrink_factors : f (h,)
    """
    n_bins = counts.shape[1]
    lo = lo.double()
    hi = hi.double()
    edge = torch.arange(n_bins + 1, device=lo.device, dtype=torch.float64)
    if variance is None:
        variance = _binned_variance(counts, lo, hi)
    factors = shrink_factors(mean_squared_displacement, thresholds, variance)
    positions = torch.lerp(lo[:, None], hi[:, None], edge / n_bins)
    shrunk = torch.lerp(positions, values.double(), factors[:, None])
    return shrunk.to(values.dtype), factors.to(values.dtype)


def _binned_variance(counts: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """The variance (h,) of counts (h, B), as if all were in the middle of their bins.

    The bins divide [lo, hi], both (h,), equally.
    """
    n_bins = counts.shape[1]
    counts = counts.double()
    # In bins, from the middle of the range.
    place = torch.arange(n_bins, device=lo.device, dtype=torch.float64)
    place = place - (n_bins - 1) / 2
    total = counts.sum(1).clamp(min=1)
    # Not by a product of matrices, whose bits depend on the number of threads.
    mean = (counts * place).sum(1) / total
    variance = (counts * place.square()).sum(1) / total - mean.square()
    return variance.clamp(min=0) * ((hi - lo) / n_bins).square()


def displace_grid(
    z: Tensor,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    starts: Sequence[int] | None = None,
) -> Tensor:
    """T(z) − z for z (h, n), where T is linear between `values` on a uniform grid.

    Edge b of B equal bins of [lo, hi], both (h,), goes to values[:, b], (h, B + 1).
    `images_beyond` says where points beyond the ends go. With `starts`, each class has
    its own maps, and there are C·h of them.
    """

    def displace(z_class: Tensor, rows: slice) -> Tensor:
        return _displace_by_one_map(z_class, lo[rows], hi[rows], values[rows])

    return displace_by_class(z, starts, displace)


def _displace_by_one_map(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    """`displace_grid` without classes."""
    n_bins = values.shape[1] - 1
    zd = z.double()
    v = values.double()
    position = (zd - lo[:, None]) * _bins_per_unit(lo, hi, n_bins)[:, None]
    below, above = images_beyond(zd, lo[:, None], hi[:, None], v)
    image = interpolate_at_positions(position, v)
    image = torch.where(position >= n_bins, above, image)
    image = torch.where(position <= 0, below, image)
    return (image - zd).to(z.dtype)


def _bins_per_unit(lo: Tensor, hi: Tensor, n_bins: int) -> Tensor:
    """Bins per unit of z, 0 where the range is empty or too small to divide by."""
    bins_per_unit = n_bins / (hi - lo)
    return torch.where(
        torch.isfinite(bins_per_unit), bins_per_unit, torch.zeros_like(bins_per_unit)
    )


def _quantile(probability: Tensor, counts: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """F⁻¹(probability), with F linear inside each bin; not where F is flat."""
    cumulative = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    edge_probabilities = (cumulative / cumulative[:, -1:]).contiguous()
    position = positions_among(probability.contiguous(), edge_probabilities)
    bin_width = (hi - lo) / counts.shape[1]
    return lo[:, None] + bin_width[:, None] * position
