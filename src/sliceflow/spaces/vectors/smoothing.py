"""Smoothing of vectors: whether a fit sees its rows or draws along them (`sliceflow.neighbours`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.ranks import Place, Ranks
from sliceflow.neighbours.smoothing import Group, choose_smoothing, find_groups
from sliceflow.spaces.vectors.data import Rows
from sliceflow.spaces.vectors.options import VectorOptions

__all__ = ["Strength", "draw_rows", "resolve"]

_KOLMOGOROV = 1.36  # √n times the largest difference of two distribution functions, once in twenty
_FEWEST = 10  # rows that "auto" smooths,
_MOST = 50_000  # and most: more are hardly copied, and the search would take longer than the flow.
_MOST_OF_MANY_COLUMNS, _FEW_COLUMNS = 5_000, 4  # Both come sooner if there are more columns than this.


class Strength(NamedTuple):
    """h, and why "auto" became it."""

    h: float
    why: str = ""


def resolve(
    rows: Rows, options: VectorOptions, amplifier: float, ranks: Ranks
) -> tuple[Strength, list[Group]]:
    """The option `smoothing` for these rows, and the neighbours of the rows of all ranks."""
    n, codes = rows.place.total, rows.codes if amplifier else None
    most = _MOST if rows.x.shape[1] <= _FEW_COLUMNS else _MOST_OF_MANY_COLUMNS
    if options.smoothing != "auto":
        h = float(options.smoothing)
        if h and ranks.size > 1 and n > _MOST:
            fact = f"needs all rows in one process, and {n} rows in {ranks.size} are too many"
            raise ParameterError("smoothing", h, fact, "use 'auto' or 0, or fit in one process")
        groups = find_groups(ranks.gather(rows.x), codes, options.n_neighbors) if h else []
        return Strength(h), groups
    if codes is not None and codes.dim() == 2:
        return Strength(0.0, "y is continuous"), []
    if n < _FEWEST or n > most:
        why = f"fewer than {_FEWEST} rows" if n < _FEWEST else f"more than {most} rows"
        return Strength(0.0, why), []
    groups = find_groups(ranks.gather(rows.x), codes, options.n_neighbors)
    h = ranks.broadcast(choose_smoothing(groups))
    why = "leave-one-out distances of the rows" if h else "no rows of a class differ"
    return Strength(h, why), groups


def draw_rows(
    x: Tensor, rows: Rows, groups: Sequence[Group], h: float, times: int, seed: Seed, exact: Tensor
) -> tuple[Rows, Rows]:
    """`times` draws of each of this rank's rows, in their order: for the flow, and for its axis steps.

    Axis steps look at each column by itself. So they see the row's own value where that is an atom and
    where a draw leaves the range of its column. Where a column still has another distribution than the
    rows, they see the rows' values, spread evenly.

    Parameters
    ----------
    x : (n, d), the rows of all ranks
    exact : columns (d,) to spread in any case

    """
    flow, last = (x.new_empty(len(x), times, x.shape[1]) for _ in range(2))
    kept = are_atoms(x)[:, None]
    for i, group in enumerate(groups):
        own, at = group.x[:, None], group.numbers
        draws = group.draw(h, times, seed.child(i))
        flow[at] = draws.to(x.dtype)
        low, high = own.amin(0), own.amax(0)  # the ends of the range stay, too
        stays = kept[at] | (draws < low) | (draws > high) | (own == low) | (own == high)
        draws = torch.where(stays, own, draws)
        even = exact | _differs(group.x, draws.flatten(0, 1))
        last[at] = torch.where(even, spread_evenly(group.x, kept[at, 0], times), draws).to(x.dtype)
    place = Place(*(times * number for number in astuple(rows.place)))
    codes = None if rows.codes is None else rows.codes.repeat_interleave(times, 0)
    mine = (t[rows.place.slice].flatten(0, 1) for t in (flow, last))
    first, second = (replace(rows, x=t, place=place, codes=codes, y=None) for t in mine)
    return first, second


def _differs(x: Tensor, draws: Tensor) -> Tensor:
    """Columns (d,) in which the rows would refute the draws: Kolmogorov's test, at 5 %."""
    a, b = (t.T.contiguous().sort(1).values for t in (x, draws))
    shares = [torch.searchsorted(t, a, right=True) / t.shape[1] for t in (a, b)]
    return (shares[0] - shares[1]).abs().amax(1) > _KOLMOGOROV / math.sqrt(len(x))


def spread_evenly(x: Tensor, kept: Tensor, times: int) -> Tensor:
    """The values of each column, spread halfway to the next values: (n, times, d); `kept` ones stay.

    >>> x = torch.tensor([[4.0], [0.0], [1.0]])
    >>> spread_evenly(x, x == 4, 2)[:, :, 0].tolist()
    [[4.0, 4.0], [0.0, 0.25], [0.75, 1.75]]
    """
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    end = gap.new_zeros(1, x.shape[1])
    down, up = (torch.empty_like(x).scatter_(0, order, torch.cat(t)) for t in ((end, gap), (gap, end)))
    t = ((torch.arange(times, dtype=x.dtype) + 0.5) / times - 0.5)[:, None]
    moved = x[:, None] + t * torch.where(t < 0, down[:, None], up[:, None])
    return torch.where(kept[:, None], x[:, None], moved)


def are_atoms(x: Tensor) -> Tensor:
    """Which values (n, d) are atoms: all of a column whose rows mostly share their value with another
    row; in other columns those that at least 2 % of the rows share, and 5 rows.
    """
    out = torch.empty(x.shape, dtype=torch.bool)
    for j, column in enumerate(x.T):
        _, number, size = torch.unique(column, return_inverse=True, return_counts=True)
        shared = size[number]
        mostly = (shared > 1).double().mean() > 0.5
        out[:, j] = mostly | (shared >= max(5, 0.02 * len(x)))
    return out
