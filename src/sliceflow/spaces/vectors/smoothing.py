"""Smoothing: draws along the rows' neighbours, so that a flow fits the distribution, not the rows.

A draw of row i is xᵢ + h·Σⱼ wⱼ·(xⱼ − x̄ᵢ) over its k nearest rows j of the same class, x̄ᵢ being their
mean and wⱼ ~ N(0, 1/(k − 1)): a Gaussian around xᵢ with h² times the covariance of the neighbourhood.
It follows the shape of the data: along a curve, and hardly across it. Then the draws of a class are
moved linearly to the mean and covariance of its rows, because draws spread more than the rows.

The rows themselves choose h: a draw should be as far from its nearest row as a row is from its nearest
other row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.ranks import Place, Ranks
from sliceflow.spaces.vectors.data import Rows
from sliceflow.spaces.vectors.options import VectorOptions

__all__ = ["Group", "Strength", "draws", "groups_of", "resolved"]

NEAREST = 0.97  # distance of a draw to its nearest row, over that of a row to its nearest other row
_TRIED = 4_000  # draws whose distances choose h; with many columns, where these differ less,
_TRIED_IN_MANY_COLUMNS = 1_000
_HALVINGS, _LARGEST = 7, 2.0  # of the range of h
_NUMBERS = 1 << 22  # numbers in memory at a time
_MOST_COLUMNS = 256  # whose covariance draws keep
_KOLMOGOROV = 1.36  # √n times the largest difference of two distribution functions, once in twenty
_FEWEST = 10  # rows that "auto" smooths,
_MOST = 50_000  # and most: more are hardly copied, and the search would take longer than the flow.
_MOST_OF_MANY_COLUMNS = 5_000  # Both come sooner
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
    if options.smoothing != "auto":
        h = float(options.smoothing)
        if h and ranks.size > 1 and n > _MOST:
            fact = f"needs all rows in one process, and {n} rows in {ranks.size} are too many"
            raise ParameterError("smoothing", h, fact, "use 'auto' or 0, or fit in one process")
        found = groups_of(ranks.gather(rows.x), codes, options.n_neighbors) if h else []
        return Strength(h), found
    most = _MOST if d <= _FEW_COLUMNS else _MOST_OF_MANY_COLUMNS
    if codes is not None and codes.dim() == 2:
        return Strength(0.0, "y is continuous"), []
    if not _FEWEST <= n <= most:
        return Strength(
            0.0, f"fewer than {_FEWEST} rows" if n < _FEWEST else f"more than {most} rows"
        ), []
    groups = groups_of(ranks.gather(rows.x), codes, options.n_neighbors)
    h = ranks.broadcast(chosen(groups))
    return Strength(
        h, "leave-one-out distances of the rows" if h else "no rows of a class differ"
    ), groups


def scaled(x: Tensor, noise: Tensor, h: float) -> Tensor:
    """The draws x + h·noise, (n, times, d), moved linearly to the mean and the covariance of x.

    With C the covariance of x and E that of the draws, the map is that which moves them least,
    E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ². With very many columns only their variances are moved.
    """
    draws = (x[:, None] + h * noise).flatten(0, 1)
    centred, made = x - x.mean(0), draws - draws.mean(0)
    if x.shape[1] > _MOST_COLUMNS:
        was, now = centred.square().mean(0), made.square().mean(0)
        out = made * (was / now.clamp(min=1e-300)).sqrt()
    else:
        out = made @ _least_map(made.T @ made / len(made), centred.T @ centred / len(x))
    # A column of one value stays as it is, to the last bit.
    return torch.where((x != x[0]).any(0), x.mean(0) + out, draws).view(noise.shape)


def _least_map(e: Tensor, c: Tensor) -> Tensor:
    """E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ²; the identity in directions in which E has no spread."""
    w, v = torch.linalg.eigh(e)
    inside = w > 1e-10 * w.max()
    v, root = v[:, inside], w[inside].sqrt()
    squares, turned = torch.linalg.eigh((v * root).T @ c @ (v * root))
    half = (v / root) @ turned
    out: Tensor = (half * squares.clamp(min=0).sqrt()) @ half.T - v @ v.T
    return out + torch.eye(len(e), dtype=e.dtype)


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
    n, d = sum(len(group.x) for group in groups), groups[0].x.shape[1]
    most = _TRIED if d <= _FEW_COLUMNS else _TRIED_IN_MANY_COLUMNS
    tried, step = [], max(1, n // most)
    for i, group in enumerate(groups):
        some = torch.arange(0, len(group.x), step)
        noise = group.noise(some, -(-most // n), Seed(0).child(i))  # h depends on the rows alone
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
    x: Tensor, rows: Rows, groups: Sequence[Group], h: float, times: int, seed: Seed, exact: Tensor
) -> tuple[Rows, Rows]:
    """`times` draws of each of this rank's rows, in their order: for the flow, and for its axis steps.

    Axis steps look at each column by itself. So those for them have the row's own value where `keeps`
    says so and where a draw leaves the range of its column. Where the distribution of a column is still
    another than that of the rows, they `spread` the rows' values instead.

    Parameters
    ----------
    x : (n, d), the rows of all ranks
    exact : columns (d,) to spread in any case
    """
    place = Place(*(times * number for number in astuple(rows.place)))
    codes = None if rows.codes is None else rows.codes.repeat_interleave(times, 0)
    flow, last = (x.new_empty(len(x), times, x.shape[1]) for _ in range(2))
    kept = keeps(x)[:, None]
    for i, group in enumerate(groups):
        own, at = group.x[:, None], group.numbers
        made = scaled(group.x, group.noise(torch.arange(len(own)), times, seed.child(i)), h)
        flow[at] = made.to(x.dtype)
        low, high = own.amin(0), own.amax(0)  # the ends of the range stay, too
        stays = kept[at] | (made < low) | (made > high) | (own == low) | (own == high)
        made = torch.where(stays, own, made)
        even = exact | _differs(group.x, made.flatten(0, 1))
        last[at] = torch.where(even, spread(group.x, kept[at, 0], times), made).to(x.dtype)
    mine = [t[rows.place.slice].flatten(0, 1) for t in (flow, last)]
    first, second = (replace(rows, x=t, place=place, codes=codes, y=None) for t in mine)
    return first, second


def _differs(x: Tensor, draws: Tensor) -> Tensor:
    """Columns (d,) in which the rows would refute the draws: Kolmogorov's test, at 5 %."""
    a, b = (t.T.contiguous().sort(1).values for t in (x, draws))
    shares = [torch.searchsorted(t, a, right=True) / t.shape[1] for t in (a, b)]
    return (shares[0] - shares[1]).abs().amax(1) > _KOLMOGOROV / math.sqrt(len(x))


def spread(x: Tensor, kept: Tensor, times: int) -> Tensor:
    """The values of each column, spread evenly halfway to the next values: (n, times, d).

    The column's distribution stays, linear between its values. Values that are `kept` stay exactly.

    Examples
    --------
    >>> x = torch.tensor([[4.0], [0.0], [1.0]])
    >>> spread(x, x == 4, 2)[:, :, 0]
    tensor([[4.0000, 4.0000],
            [0.0000, 0.2500],
            [0.7500, 1.7500]])
    """
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    end = gap.new_zeros(1, x.shape[1])
    down, up = (torch.empty_like(x).scatter_(0, order, torch.cat(t)) for t in ((end, gap), (gap, end)))
    t = ((torch.arange(times, dtype=x.dtype) + 0.5) / times - 0.5)[:, None]
    moved = x[:, None] + t * torch.where(t < 0, down[:, None], up[:, None])
    return torch.where(kept[:, None], x[:, None], moved)


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
