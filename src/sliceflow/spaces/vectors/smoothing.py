"""Smoothing of vectors: whether a fit sees its rows or draws along them (`sliceflow.neighbours`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.neighbours.smoothing import ClassNeighbours, find_class_neighbours
from sliceflow.neighbours.smoothing import choose_smoothing as choose_h
from sliceflow.spaces.vectors.options import VectorOptions

_KOLMOGOROV = 1.36  # √n times the largest difference of two distribution functions, once in twenty
_FEWEST = 10  # rows that "auto" smooths,
_MOST = 50_000  # and most: more are hardly copied, and the search would take longer than the flow.
_MOST_OF_MANY_COLUMNS = 5_000
_FEW_COLUMNS = 4  # Both come sooner if there are more columns than this.


@dataclass(frozen=True)
class Smoothing:
    """Draws along the rows' neighbours, so that a flow fits the distribution and not the rows."""

    h: float  # how far rows are spread
    x: Tensor  # (n, d), the rows of all ranks
    groups: Sequence[ClassNeighbours]  # the rows of each class with their neighbours
    exact: Tensor  # columns (d,) whose own distribution the axis steps keep in any case: heavy tails

    def draws(self, times: int, seed: Seed, here: Shard) -> tuple[Tensor, Tensor]:
        """`times` draws of each of this rank's rows, in their order: for the flow, and its axis steps.

        Axis steps see the row's own value where that is an atom, or a draw leaves the range of its
        column; and the rows' values, spread evenly, where the distribution is still another.
        """
        x = self.x
        atoms = are_atoms(self.x)
        flow, last = (x.new_empty(len(x), times, x.shape[1]) for _ in range(2))
        for i, group in enumerate(self.groups):
            own = group.x[:, None]
            at = group.indices
            draws = group.draw(self.h, times, seed.child(i))
            flow[at] = draws.to(x.dtype)
            low = own.amin(0)
            high = own.amax(0)  # the ends of the range stay, too
            outside = (draws < low) | (draws > high) | (own == low) | (own == high)
            draws = torch.where(atoms[at, None] | outside, own, draws)
            even = self.exact | _differs(group.x, draws.flatten(0, 1))
            last[at] = torch.where(
                even, spread_evenly(group.x, atoms[at], times), draws
            ).to(x.dtype)
        return flow[here.slice].flatten(0, 1), last[here.slice].flatten(0, 1)


def choose_smoothing(
    x: Tensor,
    codes: Tensor | None,
    n: int,
    options: VectorOptions,
    exact: np.ndarray,
    ranks: Ranks,
) -> tuple[Smoothing | None, str]:
    """The option `smoothing` for this rank's rows x, of n in all, and why "auto" is so.

    `codes` are those of all ranks. None fits the rows themselves. The reason is empty if the user chose.
    """
    most = _MOST if x.shape[1] <= _FEW_COLUMNS else _MOST_OF_MANY_COLUMNS
    h = options.smoothing
    why = ""
    if h == "auto" and codes is not None and codes.dim() == 2:
        why = "y is continuous"
    elif h == "auto" and not _FEWEST <= n <= most:
        why = f"fewer than {_FEWEST} rows" if n < _FEWEST else f"more than {most} rows"
    if why or not h:
        return None, why
    x = ranks.gather(x)
    groups = find_class_neighbours(x, codes, options.n_neighbors)
    if h == "auto":
        h = ranks.broadcast(choose_h(groups))
        why = (
            "leave-one-out distances of the rows" if h else "no rows of a class differ"
        )
    return Smoothing(float(h), x, groups, torch.from_numpy(exact)) if h else None, why


def _differs(x: Tensor, draws: Tensor) -> Tensor:
    """Columns (d,) in which the rows would refute the draws: Kolmogorov's test, at 5 %."""
    a, b = (t.T.contiguous().sort(1).values for t in (x, draws))
    shares = [torch.searchsorted(t, a, right=True) / t.shape[1] for t in (a, b)]
    return (shares[0] - shares[1]).abs().amax(1) > _KOLMOGOROV / math.sqrt(len(x))


def spread_evenly(x: Tensor, kept: Tensor, times: int) -> Tensor:
    """The values of each column, spread halfway to the next values: (n, times, d); `kept` ones stay."""
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    end = gap.new_zeros(1, x.shape[1])
    down, up = (
        torch.empty_like(x).scatter_(0, order, torch.cat(t))
        for t in ((end, gap), (gap, end))
    )
    t = ((torch.arange(times, dtype=x.dtype) + 0.5) / times - 0.5)[:, None]
    moved = x[:, None] + t * torch.where(t < 0, down[:, None], up[:, None])
    return torch.where(kept[:, None], x[:, None], moved)


def are_atoms(x: Tensor) -> Tensor:
    """Which values (n, d) are atoms: all of columns of mostly shared values, else those of 2 % of rows."""
    out = torch.empty(x.shape, dtype=torch.bool)
    for j, column in enumerate(x.T):
        _, number, size = torch.unique(column, return_inverse=True, return_counts=True)
        shared = size[number]
        mostly = (shared > 1).double().mean() > 0.5
        out[:, j] = mostly | (shared >= max(5, 0.02 * len(x)))
    return out
