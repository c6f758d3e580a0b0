"""Smoothing of vectors: a flow fits draws along the rows, not the rows themselves.

`sliceflow.neighbours.smoothing` makes the draws and chooses how far they spread. Here
is decided whether rows are smoothed at all, and what the axis steps see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.neighbours.smoothing import (
    ClassNeighbours,
    choose_smoothing,
    find_class_neighbours,
)
from sliceflow.spaces.vectors.options import VectorOptions

# √n times the largest difference of two distribution functions that is exceeded by
# chance once in twenty: Kolmogorov's test.
_KOLMOGOROV_5_PERCENT = 1.36

# The fewest rows that "auto" smooths: with fewer, neighbours say little.
_MIN_SMOOTHED_ROWS = 10
# The most rows that "auto" smooths: more are hardly copied, and the search for
# neighbours would take longer than the flow. The search is slower in more columns.
_MAX_SMOOTHED_ROWS = 50_000
_MAX_SMOOTHED_ROWS_OF_MANY_COLUMNS = 5_000
_FEW_COLUMNS = 4

# A value is an atom if so many rows share it: this share of them, and at least 5.
_MIN_ATOM_SHARE = 0.02
_MIN_ATOM_ROWS = 5


@dataclass(frozen=True)
class Smoothing:
    """Draws along the rows' neighbours."""

    h: float  # how far rows are spread
    x: Tensor  # (n, d), the rows of all ranks
    classes: Sequence[ClassNeighbours]  # the rows of each class with their neighbours
    exact: Tensor  # columns (d,) whose distribution axis steps keep: heavy tails

    def draws(self, times: int, seed: Seed, shard: Shard) -> tuple[Tensor, Tensor]:
        """`times` draws of each of this rank's rows, in their order, both (n, d).

        The first are for the flow, the second for its axis steps. Axis steps see the
        row's own value where it is an atom, or where a draw leaves the range of its
        column. Of columns whose draws have another distribution than the rows, they see
        the rows' values, spread evenly.
        """
        x = self.x
        n, d = x.shape
        atoms = are_atoms(x)
        for_flow = x.new_empty(n, times, d)
        for_axes = x.new_empty(n, times, d)
        for i, group in enumerate(self.classes):
            draws = group.draw(self.h, times, seed.child(i))
            for_flow[group.indices] = draws.to(x.dtype)

            rows = group.x[:, None]
            low = rows.amin(0)
            high = rows.amax(0)
            is_end = (rows == low) | (rows == high)  # the ends of the range stay
            is_outside = (draws < low) | (draws > high)
            group_atoms = atoms[group.indices]
            stays = group_atoms[:, None] | is_outside | is_end
            draws = torch.where(stays, rows, draws)
            even = spread_evenly(group.x, group_atoms, times)
            is_even = self.exact | _differs(group.x, draws.flatten(0, 1))
            for_axes[group.indices] = torch.where(is_even, even, draws).to(x.dtype)
        of_rank = shard.slice
        return for_flow[of_rank].flatten(0, 1), for_axes[of_rank].flatten(0, 1)


def plan_smoothing(
    x: Tensor,
    codes: Tensor | None,
    n: int,
    options: VectorOptions,
    exact: Tensor,
    ranks: Ranks,
) -> tuple[Smoothing | None, str]:
    """What the option `smoothing` means for these rows, and why "auto" is so.

    x (n, d) are this rank's rows, of n in all; `codes` are those of all ranks, and
    `exact` (d,) marks columns with heavy tails. The first result is None if the flow
    fits the rows themselves. The second is empty if the user chose.
    """
    h = options.smoothing
    if h == "auto":
        obstacle = _reason_not_to_smooth(n, x.shape[1], codes)
        if obstacle:
            return None, obstacle
    elif h == 0:
        return None, ""
    if ranks.size > 1:
        x = ranks.gather(x)
    classes = find_class_neighbours(x, codes, options.n_neighbors)
    reason = ""
    if h == "auto":
        h = choose_smoothing(classes)
        if ranks.size > 1:
            h = ranks.broadcast(h)
        if h == 0:
            return None, "no rows of a class differ"
        reason = "leave-one-out distances of the rows"
    return Smoothing(float(h), x, classes, exact), reason


def _reason_not_to_smooth(n: int, d: int, codes: Tensor | None) -> str:
    """Why "auto" does not smooth n rows of d columns; empty if it does."""
    if codes is not None and codes.dim() == 2:
        return "y is continuous"
    if n < _MIN_SMOOTHED_ROWS:
        return f"fewer than {_MIN_SMOOTHED_ROWS} rows"
    most = _MAX_SMOOTHED_ROWS
    if d > _FEW_COLUMNS:
        most = _MAX_SMOOTHED_ROWS_OF_MANY_COLUMNS
    if n > most:
        return f"more than {most} rows"
    return ""


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
    """Which values of x (n, d) are atoms, which many rows share.

    All values of a column are, if most of them are shared by several rows.
    """
    out = torch.empty(x.shape, dtype=torch.bool)
    min_rows = max(_MIN_ATOM_ROWS, _MIN_ATOM_SHARE * len(x))
    for j, column in enumerate(x.T):
        _, number, size = torch.unique(column, return_inverse=True, return_counts=True)
        n_sharing = size[number]
        mostly_shared = (n_sharing > 1).double().mean() > 0.5
        out[:, j] = mostly_shared | (n_sharing >= min_rows)
    return out
