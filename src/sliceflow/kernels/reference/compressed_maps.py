"""Maps with few knots, in plain torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The largest stored displacement, in steps of rounding: it is an int16.
MAX_QUANTIZED_DISPLACEMENT = (1 << 15) - 1
# Beyond this many times √M particles from either end, a stored map of M particles has
# a constant displacement. Maps are noisy there: the mass below the k-th smallest of M
# values varies by about 1/√k of itself. A larger share cuts off real tails, a smaller
# one stores noise.
TAIL_SHARE_OF_ROOT = 0.25
# Iterations of Jacobi's method for the displacements at knots. Each halves the error,
# so that 2⁻⁸ of the first error remains. More would only cost time: maps have noise of
# their own.
JACOBI_ITERATIONS = 8
# This share of the mean density of knots is added everywhere, so that a stored map has
# some knots where it does not bend. A larger share spends knots on straight parts;
# without it, a long part with slight bends would have no knot.
EVEN_SHARE_OF_KNOTS = 0.05
# The least density of knots. That of a straight map would be 0; with this its knots are
# evenly spaced.
MIN_KNOT_DENSITY = 1e-12


def flatten_tails(lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """Maps on a grid with rigid tails, for particles that they were not fitted to.

    Beyond the ¼√M-th particle from either end (`TAIL_SHARE_OF_ROOT`), a map is noise.
    There all points move as far as that particle does, but not out of the data's range.

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
    tail_particles = torch.cat((tail, total - tail), 1)
    # The bins (h, 2) that hold those two particles.
    bins = torch.searchsorted(below, tail_particles) - 1
    below_bin = below.gather(1, bins)
    inside = (tail_particles - below_bin) / (below.gather(1, bins + 1) - below_bin)

    edge = torch.arange(n_bins + 1, dtype=torch.float64, device=values.device)
    position = lo[:, None] + (hi - lo)[:, None] * _divide(edge, n_bins)
    displacements = values.double() - position
    tail_displacement = displacements.gather(1, bins).lerp(
        displacements.gather(1, bins + 1), inside
    )
    is_in_low_tail = edge <= bins[:, :1]
    is_in_high_tail = edge > bins[:, 1:]
    rigid = torch.where(is_in_high_tail, tail_displacement[:, 1:], displacements)
    rigid = torch.where(is_in_low_tail, tail_displacement[:, :1], rigid)
    flattened = (position + rigid).clamp(values[:, :1], values[:, -1:])
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
    quantized_displacements : int16 (h, K), the displacement of each knot in steps of
        2**exponent
    """
    n_bins = values.shape[1] - 1
    resolution = math.ldexp(1.0, exponent)
    values = flatten_tails(lo, hi, values, counts).double()
    unit = resolution / 8
    lo = (lo.double() / unit).round() * unit
    hi = (hi.double() / unit).round() * unit
    edge = torch.arange(n_bins + 1, dtype=torch.float64, device=lo.device)
    displacements = values - (lo[:, None] + (hi - lo)[:, None] * _divide(edge, n_bins))
    edges = _knot_edges(displacements, counts, n_knots)
    quantized_displacements = (
        _fit_knots(displacements, counts.double(), edges) / resolution
    )
    quantized_displacements = quantized_displacements.round().clamp(
        -MAX_QUANTIZED_DISPLACEMENT, MAX_QUANTIZED_DISPLACEMENT
    )
    return lo, hi, edges.int(), quantized_displacements.to(torch.int16)


def _knot_edges(displacements: Tensor, counts: Tensor, n_knots: int) -> Tensor:
    """The grid edges (h, K) at which `displacements` (h, B + 1) get knots.

    `counts` (h, B) are the particles in each bin.
    """
    pad = torch.nn.functional.pad
    device = displacements.device
    n_bins = counts.shape[1]
    bend_at_edges = displacements.diff(n=2, dim=1).abs()  # at the inner edges
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
    distinct_edges = (edges - k).cummax(1).values + k
    largest_edges = n_bins - (n_knots - 1) + k  # where the next knots still have edges
    return torch.minimum(distinct_edges, largest_edges)


def _fit_knots(displacements: Tensor, counts: Tensor, edges: Tensor) -> Tensor:
    """The displacements (h, K) at knots that fit the particles' displacements best.

    This is least squares for a function D that is linear between knots: over the
    particles, as if each were in the middle of its bin, and over half a particle at
    each knot, which makes the solution unique. Its linear system is tridiagonal.

    Parameters
    ----------
    displacements : the displacements (h, B + 1) at the edges of the grid
    counts : the particles (h, B) in each bin
    edges : the edges (h, K) at which the knots are
    """
    start = displacements.gather(1, edges)
    sums = _sum_between_knots(displacements, counts, edges)
    system = _system_of_knots(sums, start)
    return _solve_by_jacobi(system, start)


class _SumsBetweenKnots(NamedTuple):
    """Sums over the particles between each two neighboring knots, all (h, K − 1).

    t is the place of a particle between its knots, from 0 at the first to 1 at the
    second, and D is its displacement.
    """

    sum_1: Tensor  # of 1: the number of particles
    sum_t: Tensor
    sum_tt: Tensor  # of t²
    sum_d: Tensor  # of D
    sum_td: Tensor  # of t·D


def _sum_between_knots(
    displacements: Tensor, counts: Tensor, edges: Tensor
) -> _SumsBetweenKnots:
    """The sums that `_fit_knots` needs; they are differences of running sums."""
    middle = (displacements[:, 1:] + displacements[:, :-1]) / 2
    n_bins = middle.shape[1]
    place = torch.arange(n_bins, dtype=torch.float64, device=edges.device) + 0.5

    def sum_between_knots(of_bins: Tensor) -> Tensor:
        running_sum = torch.nn.functional.pad(of_bins.cumsum(1), (1, 0))
        return running_sum.gather(1, edges).diff(dim=1)

    # Of the particles' places x on the grid, and of D.
    sum_1 = sum_between_knots(counts)
    sum_x = sum_between_knots(counts * place)
    sum_xx = sum_between_knots(counts * place**2)
    sum_d = sum_between_knots(counts * middle)
    sum_xd = sum_between_knots(counts * place * middle)
    # With t = (x − first)/size.
    first = edges[:, :-1].double()
    size = edges.diff(dim=1).double()
    sum_t = (sum_x - first * sum_1) / size
    sum_tt = (sum_xx - 2 * first * sum_x + first**2 * sum_1) / size**2
    sum_td = (sum_xd - first * sum_d) / size
    return _SumsBetweenKnots(sum_1, sum_t, sum_tt, sum_d, sum_td)


class _TridiagonalSystem(NamedTuple):
    """h symmetric tridiagonal systems of K linear equations."""

    diagonal: Tensor  # (h, K)
    off_diagonal: Tensor  # (h, K − 1)
    right_side: Tensor  # (h, K)


def _system_of_knots(sums: _SumsBetweenKnots, start: Tensor) -> _TridiagonalSystem:
    """The least squares system of the displacements at knots.

    At t the fitted function is (1 − t)·(left knot) + t·(right knot). So the system has
    the sums of (1 − t)², t², t·(1 − t), (1 − t)·D and t·D. Half a particle at each knot
    has the displacement `start` (h, K).
    """
    pad = torch.nn.functional.pad
    sum_1, sum_t, sum_tt, sum_d, sum_td = sums
    squares_to_next = pad(sum_1 - 2 * sum_t + sum_tt, (0, 1))
    squares_to_previous = pad(sum_tt, (1, 0))
    products_to_next = pad(sum_d - sum_td, (0, 1))
    products_to_previous = pad(sum_td, (1, 0))
    return _TridiagonalSystem(
        diagonal=squares_to_next + squares_to_previous + 0.5,
        off_diagonal=sum_t - sum_tt,
        right_side=products_to_next + products_to_previous + 0.5 * start,
    )


def _solve_by_jacobi(system: _TridiagonalSystem, start: Tensor) -> Tensor:
    """Solve by some iterations of Jacobi's method, from `start` (h, K).

    Where particles are spread evenly, the diagonal is twice as large as the sum of the
    other numbers in a row, so that every iteration halves the error.
    """
    pad = torch.nn.functional.pad
    diagonal, off_diagonal, right_side = system
    solution = start
    for _ in range(JACOBI_ITERATIONS):
        from_next = pad(off_diagonal * solution[:, 1:], (0, 1))
        from_previous = pad(off_diagonal * solution[:, :-1], (1, 0))
        solution = (right_side - (from_next + from_previous)) / diagonal
    return solution


def expand_grid(
    lo: Tensor,
    hi: Tensor,
    edges: Tensor,
    quantized_displacements: Tensor,
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
    values = position + quantized_displacements.double() * math.ldexp(1.0, exponent)
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
