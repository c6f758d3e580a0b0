"""Mini-batches: which particles and data a step is fitted to.

A map fitted to some tens of thousands of columns is nearly as good as one fitted to all, and moves them
all. The columns are divided once into batches that take turns, so that every step is cheap and every
column is used. In every batch each condition has as many data as particles: where masses differ, the
surplus of one class would be transported across the gap to another.

Batches are contiguous columns, which a GPU reads at full speed. So particles must be in random order,
and data in the `order` that `divide` returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sliceflow.engine.classes import Runs
from sliceflow.engine.conditions import row_groups, row_weights
from sliceflow.engine.random import Seed

__all__ = ["MiniBatches", "divide", "divide_apart"]

_ROUNDS = 4  # batches of data for each batch of labelled particles


@dataclass(frozen=True)
class MiniBatches:
    """Columns of particles and of data for successive steps; None means all columns every time.

    Parameters
    ----------
    order : of the data's columns; None leaves them unchanged
    weights : of the data that are used, if those are always the same
    start : steps done before
    runs : the classes of the particles and data of every batch, if every class has its own maps
    """

    particles: list[slice] | list[Tensor] | None = None
    data: list[slice] | list[Tensor] | None = None
    order: Tensor | None = None
    weights: Tensor | None = None
    start: int = 0
    runs: list[tuple[Runs, Runs]] | None = None

    def at(self, step: int) -> tuple[slice | Tensor | None, slice | Tensor | None]:
        """The columns of particles and of data for `step`."""
        turn, p, q = self.start + step, self.particles, self.data
        return None if p is None else p[turn % len(p)], None if q is None else q[turn % len(q)]

    def runs_at(self, step: int) -> tuple[Runs, Runs] | None:
        """Their classes; None without batches, or if classes share their maps."""
        return None if self.runs is None else self.runs[(self.start + step) % len(self.runs)]

    def after(self, steps: int) -> MiniBatches:
        """The batches for the steps that follow after `steps` steps."""
        return replace(self, start=self.start + steps)


def divide(
    m: int,
    n: int,
    most: int | None,
    codes_p: Tensor | None,
    codes_q: Tensor | None,
    seed: Seed,
    device: torch.device | str = "cpu",
) -> MiniBatches:
    """Batches of at most `most` of m particles and of n data.

    Parameters
    ----------
    most : None uses all columns
    codes_p, codes_q : the conditions of particles and data; None if they play no part

    Examples
    --------
    >>> labels = torch.arange(1000) % 2
    >>> batches = divide(1000, 1000, 100, labels, labels, Seed(0))
    >>> p, q = batches.at(0)
    >>> len(q), int(labels[p].sum()) == int(labels[batches.order][q].sum())
    (100, True)
    """
    conditions = None if codes_p is None or codes_q is None else (codes_q, codes_p)
    if most is None or max(m, n) <= most:
        return MiniBatches() if conditions is None else _weighted(*conditions)
    p = _runs(m, most)
    groups = None if conditions is None else row_groups(*conditions)
    order = seed.child("order").permutation(n)
    q: list[slice] | list[Tensor]
    if groups is None:
        runs = _runs(n, most)
        # Every batch of particles meets every batch of data.
        q = [runs[(b + turn) % len(runs)] for turn in range(len(runs)) for b in range(len(p))]
    else:
        groups_q, groups_p = (g.cpu() for g in groups)
        order = order[torch.argsort(groups_q[order], stable=True)]  # group by group, at random within
        q = [columns.to(device) for columns in _partners(p, groups_p, groups_q)]
    return MiniBatches(p if len(p) > 1 else None, q, order.to(device))


def divide_apart(
    most: int | None, codes_p: Tensor, codes_q: Tensor, n_classes: int, seed: Seed
) -> MiniBatches:
    """The same if every class has its own maps: masses may differ.

    The particles must be sorted by class; the returned `order` sorts the data.

    Examples
    --------
    >>> labels = torch.arange(1000) % 2
    >>> batches = divide_apart(100, labels.sort().values, labels, 2, Seed(0))
    >>> (p, q), (of_p, of_q) = batches.at(0), batches.runs_at(0)
    >>> len(p), of_p
    (100, Runs(starts=(0, 50, 100)))
    """
    m, n = len(codes_p), len(codes_q)
    if most is None or max(m, n) <= most:
        return MiniBatches(order=torch.argsort(codes_q, stable=True))
    order = seed.child("order").permutation(n).to(codes_q.device)
    order = order[torch.argsort(codes_q[order], stable=True)]  # class by class, at random within
    p, of_p = _parts(Runs.of(codes_p, n_classes), most, codes_p.device)
    q, of_q = _parts(Runs.of(codes_q, n_classes), most, codes_q.device)
    turns = range(math.lcm(len(p), len(q)))
    runs = [(of_p[turn % len(p)], of_q[turn % len(q)]) for turn in turns]
    return MiniBatches(p, q, order, runs=runs)


def _parts(runs: Runs, most: int, device: torch.device) -> tuple[list[Tensor], list[Runs]]:
    """All columns in parts of about `most`, each with an equal share of every class."""
    count = -(-runs.starts[-1] // most)
    columns, of = [], []
    for b in range(count):
        ends = [
            (first + (end - first) * b // count, first + (end - first) * (b + 1) // count)
            for first, end in pairwise(runs.starts)
        ]
        columns.append(torch.cat([torch.arange(*pair, device=device) for pair in ends]))
        of.append(Runs(tuple(accumulate((end - first for first, end in ends), initial=0))))
    return columns, of


def _weighted(codes_q: Tensor, codes_p: Tensor) -> MiniBatches:
    """All columns, the data weighted to the particles' shares and without those of weight 0."""
    weights = row_weights(codes_q, codes_p)
    if weights is None or bool(weights.all()):
        return MiniBatches(weights=weights)
    used = torch.nonzero(weights)[:, 0]
    return MiniBatches(data=[used], weights=weights[used])


def _runs(n: int, most: int) -> list[slice]:
    """0..n-1 in as few equal runs of at most `most` as possible; a remainder is left out."""
    count = -(-n // most)
    size = n // count
    if count > 1 and size > 256:
        size -= size % 16  # aligned addresses are faster on GPUs
    return [slice(b * size, (b + 1) * size) for b in range(count)]


def _partners(batches: list[slice], groups_p: Tensor, groups_q: Tensor) -> list[Tensor]:
    """For every batch of particles, in turn, data of the same conditions, different ones every time.

    The data must be sorted by group.
    """
    n_groups = int(max(groups_p.max(), groups_q.max())) + 1
    size = torch.bincount(groups_q, minlength=n_groups)
    start = size.cumsum(0) - size
    out = []
    for turn in range(_ROUNDS * len(batches)):
        group = groups_p[batches[turn % len(batches)]].sort().values
        group = group[size[group] > 0]  # a condition without data has no partners
        rank = torch.arange(len(group)) - torch.searchsorted(group, group)
        share = torch.bincount(group, minlength=n_groups)
        out.append((start[group] + (rank + turn * share[group]) % size[group]).int())
    return out
