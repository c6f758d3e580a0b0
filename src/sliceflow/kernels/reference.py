"""All kernels in plain torch: slow, short, for any device. They define what the fast ones must return.

Positions and masses are in float64. Results for float32 are those of float64, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sliceflow.kernels.geometry import Geometry

__all__ = [  # every kernel
    "add_class_offsets",
    "argsort_rows",
    "at_bends",
    "box_muller",
    "closest",
    "compose",
    "count",
    "displace_classes",
    "displace_grid",
    "displace_knots",
    "histogram",
    "lanes",
    "lift_tiles",
    "match",
    "move_tiles",
    "philox",
    "project_tiles",
    "shrink",
    "sort_rows",
    "steady_tails",
    "through_knots",
    "value_range",
]  # fmt: skip

# Levels of F are compared across a gap: far above their rounding, far below an atom's mass.
LEVEL_EPSILON = 1e-8
GAP_RATIO = 8.0
MAX_LEVEL = (1 << 15) - 1  # of a displacement at a knot, in steps: an int16
ROUNDS = 8  # of Jacobi's method, for the displacements at knots
_MASK = 0xFFFFFFFF


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    """Philox4x32-10: four 32-bit words for each counter first..first+n-1 (wrapping int64), as int64 (n, 4)."""
    counter = torch.arange(first, first + n, dtype=torch.int64, device=device)
    c0 = counter & _MASK
    c1 = (counter >> 32) & _MASK
    c2 = torch.zeros_like(c0)
    c3 = torch.zeros_like(c0)
    k0, k1 = key
    for _ in range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & _MASK) ^ c1 ^ k0
        c1 = p1 & _MASK
        c2 = ((p0 >> 32) & _MASK) ^ c3 ^ k1
        c3 = p0 & _MASK
        k0 = (k0 + 0x9E3779B9) & _MASK
        k1 = (k1 + 0xBB67AE85) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=1)


def box_muller(words: Tensor) -> Tensor:
    """Words (a, b) of (n, 2m) as u, v = (a + ½, b + ½)/2³², then as normal √(−2 ln u)·(cos 2πv, sin 2πv)."""
    u = (words.to(torch.float64) + 0.5) / 2**32
    radius = torch.sqrt(-2 * torch.log(u[:, 0::2]))
    angle = 2 * math.pi * u[:, 1::2]
    pair = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pair.flatten(1)


def sort_rows(z: Tensor) -> Tensor:
    """Each row of z (h, n) in ascending order."""
    return torch.sort(z, dim=1).values


def argsort_rows(z: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted rows of z (h, n), and where each value came from, int64 (h, n)."""
    values, order = torch.sort(z, dim=1)
    return values, order


def add_class_offsets(z: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    """z (h, n) with column t shifted by its class: offsets (h, C), class numbers codes (n,)."""
    return z + offsets[:, codes]


def closest(x: Tensor, rows: Tensor, most: Tensor, others: bool = False) -> Tensor:
    """How far points x (m, d) are from the closest of rows (n, d): min Σ min(|x − r|, most) over rows r.

    `most` (d,) is the most that a column counts. With `others`, rows are x, and no row counts for itself.
    """
    out = x.new_empty(len(x))
    for i, point in enumerate(x):
        away = torch.minimum((rows - point).abs(), most).sum(1)
        away[i : i + others] = torch.inf
        out[i] = away.min()
    return out


def _interpolate(position: Tensor, values: Tensor) -> Tensor:
    """values (h, n) read at fractional positions 0..n-1 (h, m), linearly; clamped at both ends."""
    last = values.shape[1] - 1
    position = position.clamp(0, last)
    i = position.floor().nan_to_num(0.0).clamp(max=max(last - 1, 0)).long()
    left = torch.gather(values, 1, i)
    right = torch.gather(values, 1, (i + 1).clamp(max=last))
    return left + (position - i) * (right - left)


def _bracket(levels: Tensor, knots: Tensor) -> Tensor:
    """Fractional position of each level among ascending knots (h, n), ties read at their last."""
    last = knots.shape[1] - 1
    i = (torch.searchsorted(knots, levels, right=True) - 1).clamp(0, max(last - 1, 0))
    left = torch.gather(knots, 1, i)
    gap = torch.gather(knots, 1, (i + 1).clamp(max=last)) - left
    return i + torch.where(gap > 0, (levels - left) / gap, 0.0).clamp(0, 1)


def match(z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None) -> Tensor:
    """T = F_q⁻¹(F_p(z)) at every sorted particle: (h, M), ascending.

    A particle is an atom of mass 1/M, a datum one of mass w_i/Σw. The level of an atom is the middle of
    its mass, F(z_k) = (C_{k-1} + C_k)/2 with C the cumulative masses; tied particles share the middle
    of theirs. F⁻¹ is linear between the data and constant beyond them.

    Across a gap more than `GAP_RATIO` times as wide as both gaps beside it F⁻¹ jumps where the mass of
    one datum ends: so no particle lands between two classes that the amplifier separates, nor between
    two values of a discrete column. z_p (h, M) and z_q (h, N) are sorted, with positive weights w_q (h,
    N).
    """
    m = z_p.shape[1]
    n = z_q.shape[1]
    z = z_p.contiguous()
    first = torch.searchsorted(z, z, right=False)
    after = torch.searchsorted(z, z, right=True)
    level = (first + after).double() / (2 * m)  # F_p(z), (h, M)
    q = z_q.double()
    if w_q is None:
        position = level * n - 0.5
    else:
        w = w_q.double()
        total = w.cumsum(1)
        position = _bracket(level, ((total - w / 2) / total[:, -1:]).contiguous())
    if n > 2:
        i = position.clamp(0, n - 1).floor().clamp(max=n - 2).long()
        gap = q.diff(dim=1)
        beside = torch.nn.functional.pad(gap, (1, 1))  # none beyond the ends
        wide = gap > GAP_RATIO * torch.maximum(beside[:, :-2], beside[:, 2:])
        edge = (
            0.5
            if w_q is None
            else torch.gather(w[:, :-1] / (w[:, :-1] + w[:, 1:]), 1, i)
        )
        jump = i + (position - i > edge).double()
        position = torch.where(torch.gather(wide, 1, i), jump, position)
    return _interpolate(position, q).to(z_p.dtype)


def displace_knots(z: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """T(z) − z where T is linear between (knots, values); (h, n). Beyond the ends: see `_beyond`."""
    zd = z.double().contiguous()
    k = knots.double().contiguous()
    v = values.double()
    below, above = _beyond(zd, k[:, :1], k[:, -1:], v)
    inside = _interpolate(_bracket(zd, k), v)
    out = torch.where(
        zd <= k[:, :1], below, torch.where(zd >= k[:, -1:], above, inside)
    )
    return (out - zd).to(z.dtype)


def _beyond(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """T(z) below lo and above hi (h, 1): a rigid shift by the end's displacement.

    Particles with unusual y get there at every step, and a slope would pull them ever further. Where
    the whole map leads to one point (a constant column), everything beyond does, too.
    """
    low_end = values[:, :1]
    high_end = values[:, -1:]
    slope = ((hi > lo) & (high_end > low_end)).to(z.dtype)
    return low_end + slope * (z - lo), high_end + slope * (z - hi)


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's smallest and largest value, (h,) and (h,), in float64."""
    return z.amin(1).double(), z.amax(1).double()


def _bins_per_unit(lo: Tensor, hi: Tensor, n_bins: int) -> Tensor:
    """Bins per unit of z, 0 where the range is empty or too small to divide by."""
    rate = n_bins / (hi - lo)
    return torch.where(torch.isfinite(rate), rate, torch.zeros_like(rate))


def count(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    """Counts of each row in `n_bins` equal bins of [lo, hi], float64; outside: the end bins, NaN: the first."""
    rate = _bins_per_unit(lo, hi, n_bins)
    place = (z.double() - lo[:, None]) * rate[:, None]
    b = (
        place.nan_to_num(0.0).clamp(0, n_bins - 1).long()
    )  # NaN as an integer is undefined
    # Integers, because a GPU adds in any order and should give the same bits every time.
    unit = 1 if weights is None else 2**30
    w = torch.ones_like(z[0]) if weights is None else weights.double() * unit
    counts = torch.zeros((z.shape[0], n_bins), dtype=torch.int64, device=z.device)
    return counts.scatter_add_(1, b, w.round().long().expand_as(z)).double() / unit


def histogram(
    z: Tensor, n_bins: int, weights: Tensor | None = None, starts: Sequence[int] = (),
    count: Callable[..., Tensor] = count,
    value_range: Callable[..., tuple[Tensor, Tensor]] = value_range,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`count` over each row's own range: the counts, and lo and hi of `value_range`.

    With `starts`, those of every run of columns, (C·h, n_bins), (C·h,), (C·h,); of an empty one all is 0.
    """
    out = []
    for first, end in pairwise(starts or (0, z.shape[1])):
        part = z[:, first:end]
        none = z.new_zeros((2, len(z)), dtype=torch.float64)
        lo, hi = value_range(part) if first < end else none
        out.append((count(part, lo, hi, n_bins, weights), lo, hi))
    counts, lo, hi = (torch.cat(parts) for parts in zip(*out, strict=True))
    return counts, lo, hi


def _quantile(level: Tensor, counts: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """F⁻¹(level) with F linear inside each bin; level must not fall where F is flat."""
    total = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
    position = _bracket(level.contiguous(), (total / total[:, -1:]).contiguous())
    return lo[:, None] + ((hi - lo) / counts.shape[1])[:, None] * position


def compose(
    counts_p: Tensor,
    lo_p: Tensor,
    hi_p: Tensor,
    counts_q: Tensor,
    lo_q: Tensor,
    hi_q: Tensor,
) -> tuple[Tensor, Tensor]:
    """T at the particles' bin edges, F_q⁻¹(F_p(edge)), (h, B + 1) ascending, and the cost of each map.

    The cost (h,) is the mean of (T(z) − z)² over the particles spread evenly in their bins. Over a run
    of bins without particles F_p is flat, and the data may have a gap at the same level (two separate
    classes): the run starts at F_q⁻¹(level⁻) and ends at F_q⁻¹(level⁺), and T is linear over the run.
    If all particles are at one point (lo_p = hi_p), that point goes to the data's median.
    """
    h, n_bins = counts_p.shape
    pad = torch.nn.functional.pad
    empty = counts_p == 0
    empty_left = pad(empty, (1, 0), value=True)  # edge 0 counts as the end of a run
    empty_right = pad(empty, (0, 1), value=False)
    level = pad(counts_p.cumsum(1), (1, 0))
    level = level / level[:, -1:]
    level = (level + torch.where(empty_left, LEVEL_EPSILON, -LEVEL_EPSILON)).clamp(0, 1)
    level = torch.where((hi_p > lo_p)[:, None], level, 0.5)
    values = _quantile(level, counts_q, lo_q, hi_q)

    # Edges inside a run are interpolated between the run's own two ends.
    edge = torch.arange(n_bins + 1, device=counts_p.device).expand(h, -1)
    inside = empty_left & empty_right & (edge > 0)
    before = torch.where(inside, 0, edge).cummax(1).values
    after = torch.where(inside, n_bins, edge).flip(1).cummin(1).values.flip(1)
    span = (after - before).clamp(min=1)
    start = torch.gather(values, 1, before)
    end = torch.gather(values, 1, after)
    values = torch.where(
        inside, start + (edge - before).double() / span * (end - start), values
    )

    moved = values - (lo_p[:, None] + edge * ((hi_p - lo_p) / n_bins)[:, None])
    left = moved[:, :-1]
    right = moved[:, 1:]
    square = (left * left + left * right + right * right) / 3
    return values, (counts_p * square).sum(1) / counts_p.sum(1)


def shrink(
    lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor, cost: Tensor, rate: Tensor,
    variance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Maps of a grid, shrunk within their noise, and their factors (h,): z + f·(T(z) − z).

    f = max(0, 1 − r·σ²/c), with the `cost` c (h,) of a map, the `variance` σ² (h,) of its particles, by
    default that of the middles of their bins, and the `rate` r (C,) of noise of C equal parts. If c =
    0, f = 0.
    """
    h, n_bins = counts.shape
    lo = lo.double()
    hi = hi.double()
    cost = cost.double()
    place = torch.arange(n_bins + 1, device=lo.device, dtype=torch.float64)
    if (
        variance is None
    ):  # not by a product of matrices, whose bits depend on the number of threads
        p = counts.double()
        middle = place[:-1] - (n_bins - 1) / 2
        total = p.sum(1).clamp(min=1)
        square = (p * middle.square()).sum(1) / total - (
            (p * middle).sum(1) / total
        ).square()
        variance = square.clamp(min=0) * ((hi - lo) / n_bins).square()
    noise = rate.double().repeat_interleave(h // len(rate)) * variance
    factor = torch.where(cost > noise, 1 - noise / cost, 0.0)
    edges = torch.lerp(lo[:, None], hi[:, None], place / n_bins)
    out = torch.lerp(edges, values.double(), factor[:, None]).to(values.dtype)
    return out, factor.to(values.dtype)


def displace_grid(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    """T(z) − z where T is linear between `values` on a uniform grid of [lo, hi]; else `_beyond`."""
    n_bins = values.shape[1] - 1
    zd = z.double()
    v = values.double()
    position = (zd - lo[:, None]) * _bins_per_unit(lo, hi, n_bins)[:, None]
    below, above = _beyond(zd, lo[:, None], hi[:, None], v)
    inside = _interpolate(position, v)
    out = torch.where(
        position <= 0, below, torch.where(position >= n_bins, above, inside)
    )
    return (out - zd).to(z.dtype)


def displace_classes(
    z: Tensor, lo: Tensor, hi: Tensor, values: Tensor, starts: Sequence[int],
    displace: Callable[..., Tensor] = displace_grid,
) -> Tensor:  # fmt: skip
    """`displace_grid` of every run of columns by its own tables: lo and hi (C·h,), run by run."""
    h = len(z)
    out = torch.empty_like(z)
    for c, (first, end) in enumerate(pairwise(starts)):
        rows = slice(c * h, (c + 1) * h)
        if first < end:
            out[:, first:end] = displace(
                z[:, first:end], lo[rows], hi[rows], values[rows]
            )
    return out


def steady_tails(lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """A grid's values (h, B + 1) with rigid tails, for particles that the maps were not fitted to.

    Beyond the ¼√M-th particle from either end, where T is noise, all are shifted by the displacement
    there, but not out of the data's range.
    """
    n_bins = counts.shape[1]
    below = torch.nn.functional.pad(
        counts.double().cumsum(1), (1, 0)
    )  # particles below each edge
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
    """Maps of a grid by `n_knots`: lo, hi (float64, in ⅛ steps of 2**exponent), int32 edges, int16 levels."""
    n_bins = values.shape[1] - 1
    device = lo.device
    step = math.ldexp(1.0, exponent)
    values = steady_tails(lo, hi, values, counts).double()
    lo, hi = ((t.double() / (step / 8)).round() * (step / 8) for t in (lo, hi))
    place = torch.arange(n_bins + 1, dtype=torch.float64, device=device)
    shift = values - (lo[:, None] + (hi - lo)[:, None] * _over(place, n_bins))
    bend = shift.diff(n=2, dim=1).abs()
    bend = torch.nn.functional.pad(bend, (1, 0)) + torch.nn.functional.pad(
        bend, (0, 1)
    )  # of each bin
    density = (counts * bend.square()) ** 0.2
    density += 0.05 * density.mean(1, keepdim=True) + 1e-12
    below = torch.nn.functional.pad(density.cumsum(1), (1, 0))
    share = _over(
        torch.arange(1, n_knots - 1, dtype=torch.float64, device=device), n_knots - 1
    )
    inner = torch.searchsorted(below, below[:, -1:] * share)
    at = torch.nn.functional.pad(
        torch.nn.functional.pad(inner, (1, 0)), (0, 1), value=n_bins
    )
    number = torch.arange(n_knots, device=device)
    at = (at - number).cummax(1).values + number  # no two at the same edge,
    at = torch.minimum(at, n_bins - (n_knots - 1) + number)  # and none beyond the last
    levels = (
        (_fitted(shift, counts.double(), at) / step)
        .round()
        .clamp(-MAX_LEVEL, MAX_LEVEL)
    )
    return lo, hi, at.int(), levels.to(torch.int16)


def _fitted(shift: Tensor, counts: Tensor, at: Tensor) -> Tensor:
    """Values at knots, (h, K), whose lines are nearest to `shift` (h, B + 1) for the counted particles.

    Least squares over the middles of bins, with half a particle at each knot, by running sums.
    """
    start = shift.gather(1, at)
    pad = torch.nn.functional.pad
    middle = (shift[:, 1:] + shift[:, :-1]) / 2
    place = torch.arange(middle.shape[1], dtype=torch.float64, device=at.device) + 0.5

    def between(t: Tensor) -> Tensor:
        return pad(t.cumsum(1), (1, 0)).gather(1, at).diff(dim=1)

    first = at[:, :-1].double()
    size = at.diff(dim=1).double()
    n = between(counts)
    p = between(counts * place)
    pp = between(counts * place**2)
    d = between(counts * middle)
    pd = between(counts * place * middle)
    t = (p - first * n) / size
    tt = (pp - 2 * first * p + first**2 * n) / size**2  # 0 to 1 in between
    td = (pd - first * d) / size
    diagonal = pad(n - 2 * t + tt, (0, 1)) + pad(tt, (1, 0)) + 0.5
    beside = t - tt
    right = pad(d - td, (0, 1)) + pad(td, (1, 0)) + 0.5 * start
    values = start
    for _ in range(ROUNDS):  # the diagonal is twice as large as what is beside it
        others = pad(beside * values[:, 1:], (0, 1)) + pad(
            beside * values[:, :-1], (1, 0)
        )
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
    """Values (h, B + 1) of the maps of a `compact.CompactMap` on their whole grid, made to ascend."""
    place = at.double()
    edge = lo[:, None] + _over(hi - lo, n_bins)[:, None] * place
    values = edge + levels.double() * math.ldexp(1.0, exponent)
    rise = values.diff(dim=1) / place.diff(dim=1)
    rise = torch.nn.functional.pad(rise, (0, 1))  # the last knot is the last edge
    grid = torch.arange(n_bins + 1, dtype=at.dtype, device=at.device).expand(
        len(at), -1
    )
    k = torch.searchsorted(at, grid.contiguous(), right=True) - 1
    beyond = grid - at.gather(1, k)
    return (values.gather(1, k) + beyond * rise.gather(1, k)).to(dtype).cummax(1).values


def lanes(k: int) -> int:
    """Rows and columns to which a rotation of k directions is padded on this device."""
    return k


def project_tiles(
    x: Tensor, theta: Tensor, geometry: Geometry, columns: Tensor | None = None,
    offsets: Tensor | None = None, codes: Tensor | None = None,
    add: Callable[..., Tensor] = add_class_offsets,
) -> Tensor:  # fmt: skip
    """z = Θx for pictures x (C·h·w, n), all tiles rotated by theta (k, k): (tiles·k, n).

    theta may be padded (`lanes`). `columns` chooses some. Offsets (tiles·k, C) by codes (n,) shift z.
    """
    if columns is not None:
        x = x[:, columns]
        codes = None if codes is None else codes[columns]
    n = x.shape[1]
    k = geometry.side
    theta = theta[:k, :k]
    tiles = x
    if geometry.grid != (1, 1):  # one tile is the picture itself
        tiles = x.new_zeros(geometry.n_directions, n)
        tiles.index_copy_(0, geometry.place.to(x.device), x)
    z = torch.matmul(theta.to(x.dtype), tiles.reshape(-1, k, n)).view(-1, n)
    return z if offsets is None else add(z, offsets, codes)


def lift_tiles(dz: Tensor, theta: Tensor, geometry: Geometry) -> Tensor:
    """dx = Θᵀdz: (tiles·k, n) -> (C·h·w, n)."""
    n = dz.shape[1]
    k = geometry.side
    theta = theta[:k, :k]
    tiles = torch.matmul(theta.T.to(dz.dtype), dz.view(-1, k, n)).view(-1, n)
    return (
        tiles
        if geometry.grid == (1, 1)
        else tiles.index_select(0, geometry.place.to(dz.device))
    )


def move_tiles(  # many: tiles, a map and classes, as bare tensors
    x: Tensor, theta: Tensor, geometry: Geometry, lo: Tensor, hi: Tensor, values: Tensor, size: float,
    offsets: Tensor | None = None, codes: Tensor | None = None, starts: Sequence[int] | None = None,
    project: Callable[..., Tensor] = project_tiles, displace: Callable[..., Tensor] = displace_grid,
) -> None:  # fmt: skip
    """x += size·Θᵀ(T(z) − z) in place, z = `project_tiles` and T the table, or one for each run of columns."""
    z = project(x, theta, geometry, None, offsets, codes)
    table = (z, lo, hi, values)
    dz = (
        displace(*table)
        if starts is None
        else displace_classes(*table, starts, displace)
    )
    x.add_(lift_tiles(dz, theta, geometry), alpha=size)
