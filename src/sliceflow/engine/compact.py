"""Compact tables: the maps of a step in few bytes each, for models that are kept.

A map is kept as its displacement D(z) = T(z) − z, piecewise linear through a few knots that stand where
it bends, rounded to whole steps. `at_bends` makes such a table of a grid at once, with so many knots
for each map. For moving particles it is made a grid again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.transports import GridTable, KnotTable
from sliceflow.kernels.reference_bends import MOST_LEVEL

if TYPE_CHECKING:
    from sliceflow.engine.transports import Table

__all__ = [
    "MOST_BINS",
    "MOST_KNOTS",
    "CompactTable",
    "Step",
    "at_bends",
    "map_bytes",
    "thinned",
]

MOST_KNOTS = 257  # of a map: its two ends, and as many as a byte can count
MOST_BINS = (1 << 16) - 1
_STEPS = MOST_LEVEL // 4  # that are the reach of a map at its bends: its noise is far above one
_SHARED = 8  # times as many knots of a map that classes share


@dataclass(frozen=True)
class Step:
    """One step of a model: T is kept, the frame is drawn again from its place in the schedule."""

    stage: int
    step: int
    table: Table


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
        values = kernels.for_tensor(self.lo).through_knots(
            self.lo, self.hi, self.sizes, self.at, self.levels, self.n_bins, self.exponent, self.dtype
        )
        return GridTable(self.lo, self.hi, values)

    def to(self, device: torch.device) -> CompactTable:
        """The same on another device."""
        names = ("lo", "hi", "sizes", "at", "levels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def displace(self, z: Tensor) -> Tensor:
        return self.grid().displace(z)

    def thin(self, n_knots: int) -> CompactTable:
        return self


def thinned(
    table: Table, n_knots: int, reach: float | None, shared: bool, tails: bool = False
) -> Table:
    """What a model keeps of a table: `n_knots` knots of each map, at its bends.

    Eight times as many of a map that classes share, and of one between sorted particles. Where it is
    not known how far values can move, `reach`, knots are spread evenly, and sorted particles keep
    their `tails` if that is asked for.
    """
    if tails and isinstance(table, KnotTable):
        return table.thin(n_knots, tails)
    if reach is None:
        return table.thin(n_knots)
    if shared or not isinstance(table, GridTable):
        n_knots *= _SHARED
    if not isinstance(table, GridTable) or n_knots >= table.values.shape[1] - 1:
        return table.thin(n_knots)
    return at_bends(table, min(max(2, n_knots), MOST_KNOTS), reach)


def map_bytes(n_knots: int, n_bins: int | None, shared: bool) -> int:
    """What a map of `thinned` takes in memory at most; one between sorted particles has no bins."""
    if n_knots == 0:
        return 0
    if n_bins is None:
        return 8 * _SHARED * n_knots  # their places before and after
    n_knots *= _SHARED if shared else 1
    if n_knots >= n_bins:
        return 5 * n_bins + 20  # values and weights of the whole grid, its range
    return 6 * min(max(2, n_knots), MOST_KNOTS) + 18  # places and levels, range, how many


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
    exponent = math.frexp(reach / _STEPS)[1]
    lo, hi, at, levels = kernels.for_tensor(table.values).at_bends(
        table.lo, table.hi, table.values, counts, n_knots, exponent
    )
    sizes = torch.full((len(at),), n_knots, dtype=torch.int16, device=device)
    return CompactTable(
        lo, hi, sizes, at.view(-1), levels.view(-1), n_bins, exponent, table.values.dtype
    )
