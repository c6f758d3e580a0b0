"""Compact tables: the maps of a step in few bytes each, for models that are kept.

A map is kept as its displacement D(z) = T(z) − z, piecewise linear through a few knots that stand where
it bends, rounded to whole steps. `at_bends` makes such a table of a grid at once, with so many knots
for each map; `compress` takes its time, and as few as an error allows. For moving particles it is made
a grid again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.transports import GridTable, steady

if TYPE_CHECKING:
    from sliceflow.flow import Step
    from sliceflow.transports import Table

__all__ = [
    "MOST_BINS",
    "MOST_KNOTS",
    "CompactTable",
    "at_bends",
    "compress",
    "compress_model",
    "map_bytes",
    "thinned",
]

MOST_KNOTS = 257  # of a map: its two ends, and as many as a byte can count
MOST_BINS = (1 << 16) - 1
_MOST_LEVEL = (1 << 15) - 1
_STEPS = _MOST_LEVEL // 4  # that are the reach of a map at its bends: its noise is far above one
_ROUNDS = 8
_SHARED = 8  # times as many knots of a map that classes share


@dataclass(frozen=True)
class CompactTable:
    """Maps through few knots on the edges of a uniform grid of `n_bins` bins over [lo, hi], both (h,).

    Knot k stands at edge `at[k]` and moves by ``levels[k] · 2**exponent``; D is linear between knots.
    The `sizes` (h,) say how many knots each map has. Its first is at edge 0, its last at edge `n_bins`.
    `dtype` is that of the grid's values.
    """

    lo: Tensor
    hi: Tensor
    sizes: Tensor
    at: Tensor
    levels: Tensor
    n_bins: int
    exponent: int
    dtype: torch.dtype = torch.float32

    def grid(self) -> GridTable:
        """The same maps on their whole grid, made to ascend: the same bits on every device."""
        h, n_bins, device = len(self.lo), self.n_bins, self.lo.device
        at, n_knots = self.at.long(), len(self.at)
        row = torch.arange(h, device=device)
        row = row.repeat_interleave(self.sizes.long(), output_size=n_knots)  # known: no wait for a GPU
        edge = self.lo[row] + ((self.hi - self.lo) / n_bins)[row] * at
        values = edge + self.levels.double() * math.ldexp(1.0, self.exponent)
        # A knot's line runs up to the next knot; that of a map's last one is its own edge only.
        bins = torch.diff(at, append=at[:1])
        bins = torch.where(bins > 0, bins, 1)
        rise = torch.diff(values, append=values[-1:]) / bins
        k = torch.arange(n_knots, device=device)
        k = k.repeat_interleave(bins, output_size=h * (n_bins + 1)).view(h, n_bins + 1)
        beyond = torch.arange(n_bins + 1, device=device) - at[k]
        whole = (values[k] + beyond * rise[k]).to(self.dtype)
        return GridTable(self.lo, self.hi, whole.cummax(1).values)

    def to(self, device: torch.device) -> CompactTable:
        """The same on another device."""
        names = ("lo", "hi", "sizes", "at", "levels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def displace(self, z: Tensor) -> Tensor:
        return self.grid().displace(z)

    def thin(self, n_knots: int) -> CompactTable:
        return self


def thinned(table: Table, n_knots: int, reach: float | None, shared: bool) -> Table:
    """What a model keeps of a table: `n_knots` knots of each map, at its bends.

    Eight times as many of a map that classes share, and of one between sorted particles. Where it is
    not known how far values can move, `reach`, knots are spread evenly.
    """
    if reach is None:
        return table.thin(n_knots)
    if shared or not isinstance(table, GridTable):
        n_knots *= _SHARED
    if not isinstance(table, GridTable) or n_knots >= table.values.shape[1] - 1:
        return table.thin(n_knots)
    return at_bends(table, min(max(2, n_knots), MOST_KNOTS), reach)


def map_bytes(n_knots: int, shared: bool) -> int:
    """What a map of `thinned` takes in memory: places and levels of its knots, range, their number."""
    return 6 * n_knots * (_SHARED if shared else 1) + 18 if n_knots else 0


def at_bends(table: GridTable, n_knots: int, reach: float) -> CompactTable:
    """The maps of a grid with `n_knots` knots each, where they bend and particles are.

    A line through knots a distance δ apart errs by D″δ²/8. The mean square of this over particles of
    density p is the least, for so many knots, if their density is as (p·D″²)^⅕. The lines are then
    fitted to all particles between them: lines through the map itself would cut its corners, at every
    step on the inner side, and samples would shrink. Displacements are rounded to whole steps, of
    which some 8,000 are `reach`. A GPU is not waited for.
    """
    n_bins, device = table.values.shape[1] - 1, table.lo.device
    counts = (
        torch.ones((len(table.lo), n_bins), device=device) if table.counts is None else table.counts
    )
    values = steady(table.lo, table.hi, table.values, counts)
    exponent = math.frexp(reach / _STEPS)[1]
    step = math.ldexp(1.0, exponent)
    lo, hi, shift = _rounded(table.lo.double(), table.hi.double(), values.double(), step)
    bend = shift.diff(n=2, dim=1).abs()
    bend = torch.nn.functional.pad(bend, (1, 0)) + torch.nn.functional.pad(bend, (0, 1))  # of each bin
    density = (counts * bend.square()) ** 0.2
    density += 0.05 * density.mean(1, keepdim=True) + 1e-12
    below = torch.nn.functional.pad(density.cumsum(1), (1, 0))
    share = torch.arange(1, n_knots - 1, dtype=torch.float64, device=device) / (n_knots - 1)
    inner = torch.searchsorted(below, below[:, -1:] * share)
    at = torch.nn.functional.pad(torch.nn.functional.pad(inner, (1, 0)), (0, 1), value=n_bins)
    number = torch.arange(n_knots, device=device)
    at = (at - number).cummax(1).values + number  # no two at one place,
    at = torch.minimum(at, n_bins - (n_knots - 1) + number)  # and none beyond the last
    levels = (_fitted(shift, counts.double(), at) / step).round().clamp(-_MOST_LEVEL, _MOST_LEVEL)
    sizes = torch.full((len(at),), n_knots, dtype=torch.int16, device=device)
    return CompactTable(
        lo, hi, sizes, at.view(-1).int(), levels.view(-1).to(torch.int16),
        n_bins, exponent, table.values.dtype,
    )  # fmt: skip


def _shift(lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    """How far a grid's values (h, B + 1) are from its edges."""
    n_bins = values.shape[1] - 1
    place = torch.arange(n_bins + 1, dtype=torch.float64, device=lo.device) / n_bins
    return values - (lo[:, None] + (hi - lo)[:, None] * place)


def _rounded(lo: Tensor, hi: Tensor, values: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """A grid's range rounded to 1/8 of a step, and how far its values are from the edges then."""
    lo, hi = ((t / (step / 8)).round() * (step / 8) for t in (lo, hi))
    return lo, hi, _shift(lo, hi, values)


def _fitted(shift: Tensor, counts: Tensor, at: Tensor) -> Tensor:
    """Values at knots, (h, K), whose lines are nearest to `shift` (h, B + 1) for the counted particles.

    Least squares over the middles of bins, and half a particle at each knot, which holds those that
    nobody is near. All sums over the bins between two knots are differences of running sums.
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
    for _ in range(_ROUNDS):  # Jacobi's; the diagonal is twice as heavy as what is beside it
        others = pad(beside * values[:, 1:], (0, 1)) + pad(beside * values[:, :-1], (1, 0))
        values = (right - others) / diagonal
    return values


def compress(table: GridTable, error: float) -> CompactTable:
    """The maps of a grid with as few knots as an error allows.

    Parameters
    ----------
    table : with its weights, as `GridTable.thin` keeps them: what counts is the error of particles
    error : root mean square of a particle's error, in the units of z. All maps have the same, and not
        one relative to their displacements: errors of large and small maps add up alike

    Returns
    -------
    Table on the same grid, its range rounded to 1/8 of a step, the displacements to whole ones. A step
    is the largest power of two that is not above `error`, unless displacements are enormous.
    """
    if table.weights is None:
        table = table.thin(table.values.shape[1] - 1)
    if table.weights is None:
        raise ValueError(
            "the tables do not tell where the particles were: compress a flow as it was fitted, "
            "not one that was saved and loaded"
        )
    n_bins, device = table.values.shape[1] - 1, table.lo.device
    if n_bins > MOST_BINS:
        raise ValueError(f"maps of {n_bins} bins; at most {MOST_BINS} can be kept: fit with fewer")
    values = table.values.double().cpu()
    lo, hi = table.lo.double().cpu(), table.hi.double().cpu()
    farthest = float(_shift(lo, hi, values).abs().amax()) if len(lo) else 0.0
    if not math.isfinite(farthest):
        raise ValueError("the maps hold NaN or infinity: the flow did not stay finite")
    fits = math.frexp(farthest / (_MOST_LEVEL - 1))[1]  # 16 bits
    exponent = max(math.frexp(error)[1] - 1, fits, -1000)
    step = math.ldexp(1.0, exponent)
    lo, hi, shift = _rounded(lo, hi, values, step)
    share = table.weights.double().cpu().square()  # they are square roots
    weights = torch.nn.functional.pad(share, (1, 0)) + torch.nn.functional.pad(share, (0, 1))
    from sliceflow.kernels.cpu_bends import bends  # numba is slow to import

    arrays = bends(shift.numpy(), weights.numpy(), error, step, MOST_KNOTS)
    sizes, at, levels = (torch.from_numpy(array).to(device) for array in arrays)
    return CompactTable(
        lo.to(device),
        hi.to(device),
        sizes,
        at,
        levels,
        n_bins,
        exponent,
        table.values.dtype,
    )


def compress_model(model: Sequence[Sequence[Step]], error: float) -> list[list[Step]]:
    """The steps of a model with compact tables in place of grids; other tables stay as they are.

    Steps with few directions, at the coarse levels of pictures, get a smaller part of the error: they
    have few maps to pay for, and later steps build on them.

    Parameters
    ----------
    error : root of the sum of squares of all steps' errors: what they add up to for a particle if they
        are independent of each other
    """
    tables = (step.table for steps in model for step in steps)
    squares = sum(len(table.lo) ** 0.5 for table in tables if isinstance(table, GridTable))

    def small(step: Step) -> Step:
        if not isinstance(step.table, GridTable):
            return step
        part = math.sqrt(len(step.table.lo) ** 0.5 / squares)
        return replace(step, table=compress(step.table, error * part))

    return [[small(step) for step in steps] for steps in model]
