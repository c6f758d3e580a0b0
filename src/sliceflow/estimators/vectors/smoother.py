"""Smoothing of vectors: a flow fits draws along the rows, not the rows themselves.

`sliceflow.neighbors.smoothing` makes the draws and chooses how far they spread. This
module decides what the axis steps see of them. A plan says whether rows are smoothed at
all (`plan.plan_smoothing`). The search for neighbors, which takes longer, is the first
thing that the fit does (`Smoother.from_data`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.base.ranks import Communicator
from sliceflow.engine.encoded_y import FlowY
from sliceflow.engine.random import Seed
from sliceflow.neighbors.smoothing import (
    ClassNeighbors,
    choose_smoothing_bandwidth,
    find_class_neighbors,
)

# √n times the largest difference of two distribution functions that is exceeded by
# chance once in twenty: Kolmogorov's test.
_KOLMOGOROV_5_PERCENT = 1.36

# A value is an atom if so many rows share it: this share of them, and at least 5.
_MIN_ATOM_SHARE = 0.02
_MIN_ATOM_ROWS = 5


@dataclass(frozen=True)
class Smoother:
    """Draws new rows along the rows' neighbors."""

    bandwidth: float  # h, how far rows are spread
    rows: Tensor  # (n, d), the rows of all ranks, in the flow's units
    groups: Sequence[ClassNeighbors]  # the rows of each class with their neighbors

    @classmethod
    def from_data(
        cls,
        bandwidth: float | None,
        rows: Tensor,
        y: FlowY | None,
        n_neighbors: int,
        ranks: Communicator,
    ) -> Smoother:
        """Find the neighbors of rows (n, d), and the bandwidth if it is None.

        The rows and `y` are those of all ranks. The bandwidth is 0 if no rows of a
        class differ: draws then equal the rows.
        """
        groups = find_class_neighbors(rows, y, n_neighbors)
        if bandwidth is None:
            bandwidth = choose_smoothing_bandwidth(groups)
            if ranks.size > 1:
                bandwidth = ranks.broadcast(bandwidth)
        return cls(float(bandwidth), rows, groups)

    def draw_for_flow(self, times: int, seed: Seed) -> Tensor:
        """`times` draws of each row, in their order: (n·times, d)."""
        draws = self.rows.new_empty(len(self.rows), times, self.rows.shape[1])
        for i, group in enumerate(self.groups):
            group_draws = group.draw(self.bandwidth, times, seed.child(i))
            draws[group.indices] = group_draws.to(draws.dtype)
        return draws.flatten(0, 1)

    def draw_for_axes(self, times: int, seed: Seed, spread_columns: Tensor) -> Tensor:
        """Draws for the axis steps.

        A value is replaced by that of its row if it is an atom, an end of the range, or
        outside the range. A column is replaced by evenly spread row values if it is in
        `spread_columns` (d,), or if a Kolmogorov–Smirnov test rejects its draws.
        """
        draws_of_all = self.rows.new_empty(len(self.rows), times, self.rows.shape[1])
        atoms = are_atoms(self.rows)
        for i, group in enumerate(self.groups):
            draws = group.draw(self.bandwidth, times, seed.child(i))
            rows = group.x[:, None]
            low = rows.amin(0)
            high = rows.amax(0)
            is_end = (rows == low) | (rows == high)  # the ends of the range stay
            is_outside = (draws < low) | (draws > high)
            group_atoms = atoms[group.indices]
            stays = group_atoms[:, None] | is_outside | is_end
            draws = torch.where(stays, rows, draws)
            even = spread_evenly(group.x, group_atoms, times)
            is_even = spread_columns | _differs(group.x, draws.flatten(0, 1))
            draws = torch.where(is_even, even, draws)
            draws_of_all[group.indices] = draws.to(draws_of_all.dtype)
        return draws_of_all.flatten(0, 1)


def _differs(x: Tensor, draws: Tensor) -> Tensor:
    """Columns (d,) in which the rows x (n, d) refute the draws: Kolmogorov's test."""
    values = x.T.contiguous().sort(1).values
    drawn = draws.T.contiguous().sort(1).values
    share_of_rows = torch.searchsorted(values, values, right=True) / values.shape[1]
    share_of_draws = torch.searchsorted(drawn, values, right=True) / drawn.shape[1]
    distance = (share_of_rows - share_of_draws).abs().amax(1)
    return distance > _KOLMOGOROV_5_PERCENT / math.sqrt(len(x))


def spread_evenly(x: Tensor, stays: Tensor, times: int) -> Tensor:
    """The values of each column of x (n, d), spread halfway to the next values.

    Returns (n, times, d). Values stay where `stays` (n, d) is True.
    """
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    no_gap = gap.new_zeros(1, x.shape[1])
    gap_below = torch.empty_like(x).scatter_(0, order, torch.cat((no_gap, gap)))
    gap_above = torch.empty_like(x).scatter_(0, order, torch.cat((gap, no_gap)))
    # From −½ to ½, in the middle of `times` equal intervals.
    t = ((torch.arange(times, dtype=x.dtype) + 0.5) / times - 0.5)[:, None]
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
