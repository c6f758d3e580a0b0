"""Smoothing of vectors: a flow fits draws along the rows, not the rows themselves.

`sliceflow.neighbors.smoothing` makes the draws and chooses how far they spread. This
module decides what the axis steps see of them. A plan says whether rows are smoothed at
all (`plan.choose_smoothing`), and `PlannedVectorFit.tune` chooses how far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbors.smoothing import ClassNeighbors

# √n times the largest difference of two distribution functions that is exceeded by
# chance once in twenty: Kolmogorov's test.
_KOLMOGOROV_5_PERCENT = 1.36

# A value is an atom if so many rows share it: this share of them, and at least 5.
_MIN_ATOM_SHARE = 0.02
_MIN_ATOM_ROWS = 5


@dataclass(frozen=True, eq=False)
class Smoother:
    """Draws new rows along the rows' neighbors."""

    bandwidth: float  # how far rows are spread
    rows: Tensor  # (n, d), the rows of all ranks, in the flow's units
    groups: Sequence[ClassNeighbors]  # the rows of each class with their neighbors

    def draw_for_flow(self, draws_per_row: int, seed: Seed) -> Tensor:
        """Draws of each row, in the order of the rows: (n·draws_per_row, d)."""
        n, d = self.rows.shape
        draws_of_all = self.rows.new_empty(n, draws_per_row, d)
        for i, group in enumerate(self.groups):
            draws = group.draw(self.bandwidth, draws_per_row, seed.child(i))
            draws_of_all[group.indices] = draws.to(draws_of_all.dtype)
        return draws_of_all.flatten(0, 1)

    def draw_for_axes(
        self, draws_per_row: int, seed: Seed, spread_columns: Tensor
    ) -> Tensor:
        """Draws for the axis steps, as `draw_for_flow` gives them, but for some values.

        A value is that of its row if the row's is an atom or an end of the range, or if
        it was drawn outside the range. A column has evenly spread row values if it is
        in `spread_columns` (d,), or if a Kolmogorov–Smirnov test rejects its draws.
        """
        n, d = self.rows.shape
        draws_of_all = self.rows.new_empty(n, draws_per_row, d)
        atoms = are_atoms(self.rows)
        for i, group in enumerate(self.groups):
            group_atoms = atoms[group.indices]
            draws = group.draw(self.bandwidth, draws_per_row, seed.child(i))
            draws = _in_range_of_rows(draws, group.x, group_atoms)
            is_spread = spread_columns | _rejected_columns(group.x, draws.flatten(0, 1))
            spread = spread_evenly(group.x, group_atoms, draws_per_row)
            draws = torch.where(is_spread, spread, draws)
            draws_of_all[group.indices] = draws.to(draws_of_all.dtype)
        return draws_of_all.flatten(0, 1)


def _in_range_of_rows(draws: Tensor, x: Tensor, atoms: Tensor) -> Tensor:
    """Draws (n, t, d) of the rows x (n, d), where some values are those of the rows.

    These are values of `atoms` (n, d), ends of a column's range, and draws beyond them.
    """
    rows = x[:, None]
    low = rows.amin(0)
    high = rows.amax(0)
    is_outside = (draws < low) | (draws > high)
    is_end = (rows == low) | (rows == high)
    return torch.where(atoms[:, None] | is_end | is_outside, rows, draws)


def _rejected_columns(x: Tensor, draws: Tensor) -> Tensor:
    """Columns (d,) in which the rows x (n, d) refute the draws: Kolmogorov's test."""
    values = x.T.contiguous().sort(1).values
    drawn = draws.T.contiguous().sort(1).values
    share_of_rows = torch.searchsorted(values, values, right=True) / values.shape[1]
    share_of_draws = torch.searchsorted(drawn, values, right=True) / drawn.shape[1]
    distance = (share_of_rows - share_of_draws).abs().amax(1)
    return distance > _KOLMOGOROV_5_PERCENT / math.sqrt(len(x))


def spread_evenly(x: Tensor, stays: Tensor, draws_per_row: int) -> Tensor:
    """The values of each column of x (n, d), spread halfway to the next values.

    Returns (n, draws_per_row, d). Values stay where `stays` (n, d) is True.
    """
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    no_gap = gap.new_zeros(1, x.shape[1])
    gap_below = torch.empty_like(x).scatter_(0, order, torch.cat((no_gap, gap)))
    gap_above = torch.empty_like(x).scatter_(0, order, torch.cat((gap, no_gap)))
    # From −½ to ½, in the middle of equal intervals, one for each draw.
    middles = torch.arange(draws_per_row, dtype=x.dtype) + 0.5
    t = (middles / draws_per_row - 0.5)[:, None]
    moved = x[:, None] + t * torch.where(t < 0, gap_below[:, None], gap_above[:, None])
    return torch.where(stays[:, None], x[:, None], moved)


def are_atoms(x: Tensor) -> Tensor:
    """Which values of x (n, d) are atoms: values that many rows share.

    If more than half of a column's values occur in several rows, all its values count
    as atoms.
    """
    out = torch.empty(x.shape, dtype=torch.bool)
    min_rows = max(_MIN_ATOM_ROWS, _MIN_ATOM_SHARE * len(x))
    for j, column in enumerate(x.T):
        _, number, size = torch.unique(column, return_inverse=True, return_counts=True)
        n_sharing = size[number]
        mostly_shared = (n_sharing > 1).double().mean() > 0.5
        out[:, j] = mostly_shared | (n_sharing >= min_rows)
    return out
