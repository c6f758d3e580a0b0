"""Maps through a few knots, in plain torch: what a model keeps of a grid, and the grid made from it.

A map's displacement is D(z) = T(z) − z.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["MOST_LEVEL", "ROUNDS", "at_bends", "steady_tails", "through_knots"]

MOST_LEVEL = (1 << 15) - 1
ROUNDS = 8  # of Jacobi's method


def steady_tails(lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """A grid's values (h, B + 1) with rigid tails, for particles that the maps were not fitted to.

    Beyond the ¼√M-th particle from either end, all are shifted by the displacement there, but not out
    of the data's range. In the tails T leads from one extreme value to another, both random. That suits
    the particles of the fit, but is noise for fresh ones. A particle that is in the tails at every
    step, because its observed pixels are unusual, would end as noise.
    """
    n_bins = counts.shape[1]
    below = torch.nn.functional.pad(counts.double().cumsum(1), (1, 0))  # particles below each edge
    tail = below[:, -1:].sqrt() / 4
    level = torch.cat((tail, below[:, -1:] - tail), 1)
    b = torch.searchsorted(below, level) - 1  # the two bins that hold those particles
    start = below.gather(1, b)
    inside = (level - start) / (below.gather(1, b + 1) - start)

    place = torch.arange(n_bins + 1, dtype=torch.float64, device=values.device)
    edge = lo[:, None] + (hi - lo)[:, None] * _over(place, n_bins)
    shift = values.double() - edge
    end = shift.gather(1, b).lerp(shift.gather(1, b + 1), inside)
    shift = torch.where(place > b[:, 1:], end[:, 1:], shift)
    shift = torch.where(place <= b[:, :1], end[:, :1], shift)
    return (edge + shift).clamp(values[:, :1], values[:, -1:]).to(values.dtype)


def _over(x: Tensor, n: int) -> Tensor:
    """x / n, rounded once. By a plain number torch divides on a GPU as x · (1/n), rounded twice."""
    return x / torch.full((), n, dtype=x.dtype, device=x.device)


def at_bends(
    lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor, n_knots: int, exponent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The maps of a grid through `n_knots` knots each, in whole steps of 2**exponent.

    Parameters
    ----------
    lo, hi, values, counts : as in `transports.GridTable`; every map has some particles

    Returns
    -------
    lo and hi (h,), float64, rounded to 1/8 of a step; the edges of the knots, (h, K) int32, and D there
    in steps, int16.
    """
    n_bins, device = values.shape[1] - 1, lo.device
    step = math.ldexp(1.0, exponent)
    values = steady_tails(lo, hi, values, counts).double()
    lo, hi = ((t.double() / (step / 8)).round() * (step / 8) for t in (lo, hi))
    place = torch.arange(n_bins + 1, dtype=torch.float64, device=device)
    shift = values - (lo[:, None] + (hi - lo)[:, None] * _over(place, n_bins))
    bend = shift.diff(n=2, dim=1).abs()
    bend = torch.nn.functional.pad(bend, (1, 0)) + torch.nn.functional.pad(bend, (0, 1))  # of each bin
    density = (counts * bend.square()) ** 0.2
    density += 0.05 * density.mean(1, keepdim=True) + 1e-12
    below = torch.nn.functional.pad(density.cumsum(1), (1, 0))
    share = _over(torch.arange(1, n_knots - 1, dtype=torch.float64, device=device), n_knots - 1)
    inner = torch.searchsorted(below, below[:, -1:] * share)
    at = torch.nn.functional.pad(torch.nn.functional.pad(inner, (1, 0)), (0, 1), value=n_bins)
    number = torch.arange(n_knots, device=device)
    at = (at - number).cummax(1).values + number  # no two at the same edge,
    at = torch.minimum(at, n_bins - (n_knots - 1) + number)  # and none beyond the last
    levels = (_fitted(shift, counts.double(), at) / step).round().clamp(-MOST_LEVEL, MOST_LEVEL)
    return lo, hi, at.int(), levels.to(torch.int16)


def _fitted(shift: Tensor, counts: Tensor, at: Tensor) -> Tensor:
    """Values at knots, (h, K), whose lines are nearest to `shift` (h, B + 1) for the counted particles.

    Least squares over the middles of bins, and half a particle at each knot, which determines knots
    without particles nearby. All sums over the bins between two knots are differences of running sums.
    """
    start, pad = shift.gather(1, at), torch.nn.functional.pad
    middle = (shift[:, 1:] + shift[:, :-1]) / 2
    place = torch.arange(middle.shape[1], dtype=torch.float64, device=at.device) + 0.5

    def between(t: Tensor) -> Tensor:
        return pad(t.cumsum(1), (1, 0)).gather(1, at).diff(dim=1)

    first, size = at[:, :-1].double(), at.diff(dim=1).double()
    n, p, pp = between(counts), between(counts * place), between(counts * place**2)
    d, pd = between(counts * middle), between(counts * place * middle)
    t, tt = (p - first * n) / size, (pp - 2 * first * p + first**2 * n) / size**2  # 0 to 1 in between
    td = (pd - first * d) / size
    diagonal = pad(n - 2 * t + tt, (0, 1)) + pad(tt, (1, 0)) + 0.5
    beside = t - tt
    right = pad(d - td, (0, 1)) + pad(td, (1, 0)) + 0.5 * start
    values = start
    for _ in range(ROUNDS):  # the diagonal is twice as large as what is beside it
        others = pad(beside * values[:, 1:], (0, 1)) + pad(beside * values[:, :-1], (1, 0))
        values = (right - others) / diagonal
    return values


def through_knots(
    lo: Tensor,
    hi: Tensor,
    at: Tensor,
    levels: Tensor,
    n_bins: int,
    exponent: int,
    dtype: torch.dtype,
) -> Tensor:
    """Values (h, B + 1) of the maps of a `compact.CompactTable` on their whole grid, made to ascend."""
    place = at.double()
    edge = lo[:, None] + _over(hi - lo, n_bins)[:, None] * place
    values = edge + levels.double() * math.ldexp(1.0, exponent)
    rise = values.diff(dim=1) / place.diff(dim=1)
    rise = torch.nn.functional.pad(rise, (0, 1))  # the last knot is the last edge
    grid = torch.arange(n_bins + 1, dtype=at.dtype, device=at.device).expand(len(at), -1)
    k = torch.searchsorted(at, grid.contiguous(), right=True) - 1
    beyond = grid - at.gather(1, k)
    return (values.gather(1, k) + beyond * rise.gather(1, k)).to(dtype).cummax(1).values
