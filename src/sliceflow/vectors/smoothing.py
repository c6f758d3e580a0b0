"""Smoothing: draws along the rows' neighbours, so that a flow fits the distribution, not the rows.

A draw of row i is xᵢ + h·Σⱼ wⱼ·(xⱼ − x̄ᵢ) over its k nearest rows j of the same class, x̄ᵢ being their
mean and wⱼ ~ N(0, 1/(k − 1)): a Gaussian around xᵢ with h² times the covariance of the neighbourhood.
It follows the shape of the data: along a curve, and hardly across it. Then each column of a class is
scaled to the rows' own mean and standard deviation, because draws spread more than the rows.

The rows themselves choose h: a draw should be as far from its nearest row as a row is from its nearest
other row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.ranks import Place, Ranks
from sliceflow.vectors.data import Rows
from sliceflow.vectors.options import VectorOptions

__all__ = ["Group", "Strength", "chosen", "draws", "groups_of", "keeps", "resolved", "scaled"]

NEAREST = 0.97  # distance of a draw to its nearest row, over that of a row to its nearest other row
_TRIED = 4_000  # draws whose distances choose h,
_HALVINGS = 7  # from 0 to this largest h:
_LARGEST = 2.0
_NUMBERS = 1 << 22  # numbers in memory at a time
_FEWEST = 10  # rows that "auto" smooths,
_MOST = 50_000  # and most: more are hardly copied, and the search would take longer than the flow.
_MOST_OF_MANY_COLUMNS = 10_000  # Both come sooner
_FEW_COLUMNS = 4  # if there are more columns than this


class Strength(NamedTuple):
    """h, and why "auto" became it."""

    h: float
    why: str = ""

    @classmethod
    def of_counts(cls, options: VectorOptions) -> Strength:
        """None for `partial_fit`: counts have no neighbours."""
        if options.smoothing not in ("auto", 0):
            fact = "needs rows, but partial_fit keeps only counts"
            raise ParameterError("smoothing", options.smoothing, fact, "use 'auto' or 0, or call fit")
        return cls(0.0, "partial_fit keeps only counts" if options.smoothing == "auto" else "")


class Group(NamedTuple):
    """The rows of one class: numbers (n,), x (n, d) float64, and the k nearest rows of each (n, k)."""

    numbers: Tensor
    x: Tensor
    near: Tensor
    search: NearestNeighbors

    def noise(self, rows: Tensor, times: int, seed: Seed) -> Tensor:
        """Σⱼ wⱼ·(xⱼ − x̄ᵢ) for some rows, `times` each: (n, times, d)."""
        k, d = self.near.shape[1], self.x.shape[1]
        out = torch.zeros(len(rows), times, d, dtype=torch.float64)
        chunk = max(1, _NUMBERS // (k * (times + d)))
        for first in range(0, len(rows) if k > 1 else 0, chunk):
            some = rows[first : first + chunk]
            w = seed.normal(len(some), times * k, start=first).view(-1, times, k)
            w = (w - w.mean(2, keepdim=True)) / math.sqrt(k - 1)
            out[first : first + chunk] = w @ (self.x[self.near[some]] - self.x[some, None])
        return out


def groups_of(x: Tensor, codes: Tensor | None, k: int) -> list[Group]:
    """The rows x (n, d) of each class, and their k nearest neighbours, each row among its own.

    Columns of a condition count like those of x. Classes of fewer than k rows have fewer neighbours.
    """
    x, joint = x.double(), x.double()
    if codes is None or codes.dim() == 2:
        numbers = [torch.arange(len(x))]
        joint = x if codes is None else torch.cat((x, codes.double()), 1)
    else:
        numbers = [torch.nonzero(codes == c)[:, 0] for c in torch.unique(codes).tolist()]
    groups = []
    for own in numbers:
        found = NearestNeighbors(n_neighbors=min(k, len(own))).fit(joint[own].numpy())
        near = torch.from_numpy(found.kneighbors(joint[own].numpy(), return_distance=False))
        groups.append(Group(own, x[own], near, found))
    return groups


def resolved(
    rows: Rows, options: VectorOptions, amplifier: float, ranks: Ranks
) -> tuple[Strength, list[Group]]:
    """The option `smoothing` for these rows, and the neighbours of the rows of all ranks."""
    n, d, codes = rows.place.total, rows.x.shape[1], rows.codes if amplifier else None
    auto, h, why = options.smoothing == "auto", 0.0, ""
    most = _MOST if d <= _FEW_COLUMNS else _MOST_OF_MANY_COLUMNS
    if not auto:
        h = float(options.smoothing)
        if h and ranks.size > 1 and n > _MOST:
            fact = f"needs all rows in one process, and {n} rows in {ranks.size} are too many"
            raise ParameterError("smoothing", h, fact, "use 'auto' or 0, or fit in one process")
    elif codes is not None and codes.dim() == 2:
        why = "y is continuous"
    elif n < _FEWEST:
        why = f"fewer than {_FEWEST} rows"
    elif n > most:
        why = f"more than {most} rows"
    if not h and (why or not auto):
        return Strength(0.0, why), []
    groups = groups_of(ranks.gather(rows.x), codes, options.n_neighbors)
    if not auto:
        return Strength(h), groups
    h = chosen(groups)
    return Strength(h, "leave-one-out distances of the rows" if h else "all rows are the same"), groups


def scaled(x: Tensor, noise: Tensor, h: float) -> Tensor:
    """The draws x + h·noise, (n, times, d), with each column's mean and standard deviation in x."""
    out = x[:, None] + h * noise
    mean, std = out.mean((0, 1)), out.std((0, 1), correction=0)
    factor = torch.where(std > 0, x.std(0, correction=0) / std, 1.0)
    # A column of one value stays as it is, to the last bit.
    return torch.where((x != x[0]).any(0), x.mean(0) + (out - mean) * factor, out)


def chosen(groups: Sequence[Group]) -> float:
    """h of the rows: where draws are `NEAREST` times as far from rows as rows are from other rows."""
    groups = [group for group in groups if len(group.x) > 1]
    if not groups:
        return 0.0
    apart = torch.cat([_to_others(group.x, group.near) for group in groups]).median()
    if apart == 0:  # most rows are there twice
        distinct = [g for group in groups for g in groups_of(torch.unique(group.x, dim=0), None, 2)]
        apart = torch.cat([_to_others(g.x, g.near) for g in distinct if len(g.x) > 1] or [apart[None]])
        apart = apart.median()
    if apart == 0:
        return 0.0
    n = sum(len(group.x) for group in groups)
    tried, step = [], max(1, n // _TRIED)
    for i, group in enumerate(groups):
        some = torch.arange(0, len(group.x), step)
        noise = group.noise(some, -(-_TRIED // n), Seed(0).child(i))  # h depends on the rows alone
        tried.append((group.search, group.x[some], noise))

    def distance(h: float) -> float:
        made = [(search, scaled(x, noise, h).flatten(0, 1).numpy()) for search, x, noise in tried]
        return float(np.median(np.concatenate([s.kneighbors(x, 1)[0][:, 0] for s, x in made])))

    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS if distance(high) > NEAREST * apart else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if distance(middle) < NEAREST * apart else (low, middle)
    return high


def _to_others(x: Tensor, near: Tensor) -> Tensor:
    """Each row's distance to its nearest other row; 0 if there is an equal one."""
    return torch.stack([(x[near[:, j]] - x).norm(dim=1) for j in (0, 1)]).amax(0)


def draws(
    x: Tensor, rows: Rows, groups: Sequence[Group], h: float, times: int, seed: Seed
) -> tuple[Rows, Rows]:
    """`times` draws of each of this rank's rows, in their order: for the flow, and for its axis steps.

    Those for the axis steps have the row's own value where `keeps` says so, and where a draw leaves
    the range of its column. So discrete columns end on their values, in the right shares.

    Parameters
    ----------
    x : (n, d), the rows of all ranks
    """
    first, count, total = rows.place.first, rows.place.count, rows.place.total
    place = Place(times * first, times * count, times * total)
    codes = None if rows.codes is None else rows.codes.repeat_interleave(times, 0)
    made = x.new_empty(len(x), times, x.shape[1])
    for i, group in enumerate(groups):
        noise = group.noise(torch.arange(len(group.x)), times, seed.child(i))
        made[group.numbers] = scaled(group.x, noise, h).to(x.dtype)
    made, own, kept = (
        made[rows.place.slice],
        x[rows.place.slice, None],
        keeps(x)[rows.place.slice, None],
    )
    kept = kept | (made < x.amin(0)) | (made > x.amax(0))
    flow = replace(rows, x=made.flatten(0, 1), place=place, codes=codes, y=None)
    return flow, replace(flow, x=torch.where(kept, own, made).flatten(0, 1))


def keeps(x: Tensor) -> Tensor:
    """Which values (n, d) are atoms: all of a column whose rows mostly share their value with another
    row; in other columns those that at least 2 % of the rows share, and 5 rows.

    Examples
    --------
    >>> x = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> keeps(torch.stack((x, (x > 0).double()), 1)).sum(0)
    tensor([ 5, 11])
    """
    out = torch.empty(x.shape, dtype=torch.bool)
    for j, column in enumerate(x.T):
        _, number, size = torch.unique(column, return_inverse=True, return_counts=True)
        shared = size[number]
        mostly = (shared > 1).double().mean() > 0.5
        out[:, j] = mostly | (shared >= max(5, 0.02 * len(x)))
    return out
