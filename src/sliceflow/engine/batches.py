"""Batches: which particles and data a step is fitted to.

A map fitted to some tens of thousands of columns is nearly as good as one fitted to all, and moves them
all. The columns are divided once into batches that take turns. In every batch each condition has as
many data as particles: a surplus of one class would be transported across the gap to another.

Batches are contiguous columns, which a GPU reads at full speed. So particles must be in random order,
and data in the `order` that `divide` returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sliceflow.engine.clouds import ClassSlices, Cloud, Indices
from sliceflow.engine.conditions import row_groups, row_weights
from sliceflow.engine.random import Seed

if TYPE_CHECKING:
    from sliceflow.engine.flow import Step

_ROUNDS = 4  # batches of data for each batch of labelled particles


@dataclass(frozen=True)
class Batch:
    """What one step is fitted to."""

    # particles, data: columns of the clouds; None is all of them
    particles: Indices = None
    data: Indices = None
    weights: Tensor | None = None  # of these data; None if all count alike
    # the classes of these particles and data, if every class has its own maps
    class_slices: tuple[ClassSlices, ClassSlices] | None = None
    codes: Tensor | None = None  # conditions of all data


ALL = Batch()


@dataclass(frozen=True)
class Batches:
    """The batches of successive steps, which take turns."""

    # particles, data: columns of each batch; None is all columns every time
    particles: Sequence[Indices] | None = None
    data: Sequence[Indices] | None = None
    order: Tensor | None = (
        None  # that the data's columns must have; None leaves them unchanged
    )
    weights: Tensor | None = (
        None  # of the data that are used, if those are always the same
    )
    # the classes of each batch, if every class has its own maps
    class_slices: Sequence[tuple[ClassSlices, ClassSlices]] | None = None

    def at(self, turn: int, codes: Tensor | None = None) -> Batch:
        """The batch of a step; `codes` are the conditions of all data."""
        p, q = (
            None if of is None else of[turn % len(of)]
            for of in (self.particles, self.data)
        )
        class_slices = (
            None
            if self.class_slices is None
            else self.class_slices[turn % len(self.class_slices)]
        )
        return Batch(p, q, self.weights, class_slices, codes)


@dataclass
class Target:
    """What a flow moves particles onto: the data of every step, and the columns that it looks at."""

    # the data for a stage and a step, by their numbers, in the `order` of the batches
    draw: Callable[[int, int], Cloud]
    batches: Batches = Batches()  # the columns that steps look at
    every_step: bool = (
        False  # draw the data anew for every step, not only for every stage
    )
    _drawn: tuple[tuple[int, int], Cloud] | None = field(default=None, repr=False)

    @classmethod
    def from_cloud(cls, data: Cloud, batches: Batches = Batches()) -> Target:  # noqa: B008, frozen
        """The same data for all steps."""
        ordered = data.part(batches.order)
        return cls(lambda stage, step: ordered, batches)

    def at(self, step: Step) -> tuple[Cloud, Batch]:
        """The data of a step, in the space of its stage, and what the step looks at."""
        key = (step.number, step.k if self.every_step else 0)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = None  # frees the memory first
            data = self.draw(*key)
            self._drawn = key, replace(data, x=step.stage.space.down(data.x))
        data = self._drawn[1]
        batch = self.batches.at(step.turn, data.y)
        if step.flow.per_class and batch.class_slices is None:  # of whole clouds
            class_slices: Any = step.particles.class_slices, data.class_slices
            batch = replace(batch, class_slices=class_slices)
        return data, batch


def divide(
    m: int,
    n: int,
    max_samples: int | None,
    codes_p: Tensor | None,
    codes_q: Tensor | None,
    seed: Seed,
    device: torch.device | str = "cpu",
) -> Batches:
    """Batches of at most `max_samples` of m particles and of n data, by their conditions if they have any."""
    if max_samples is None or max(m, n) <= max_samples:
        return weighted_batches(codes_q, codes_p, slice(None), device)
    p = _parts(m, max_samples)
    groups = (
        None if codes_p is None or codes_q is None else row_groups(codes_q, codes_p)
    )
    order = seed.child("order").permutation(n)
    q: list[Indices]
    if groups is None:
        parts = _parts(n, max_samples)
        # Every batch of particles meets every batch of data.
        q = [
            parts[(b + turn) % len(parts)]
            for turn in range(len(parts))
            for b in range(len(p))
        ]
    else:
        groups_q, groups_p = (g.cpu() for g in groups)
        order = order[
            torch.argsort(groups_q[order], stable=True)
        ]  # group by group, at random within
        q = [columns.to(device) for columns in _partners(p, groups_p, groups_q)]
    return Batches(p if len(p) > 1 else None, q, order.to(device))


def divide_per_class(
    max_samples: int | None,
    codes_p: Tensor,
    codes_q: Tensor,
    n_classes: int,
    seed: Seed,
) -> Batches:
    """The same if every class has its own maps, and the particles are sorted by class."""
    m = len(codes_p)
    n = len(codes_q)
    all_runs = [
        ClassSlices.from_codes(codes, n_classes) for codes in (codes_p, codes_q)
    ]
    if max_samples is None or max(m, n) <= max_samples:
        return Batches(
            order=torch.argsort(codes_q, stable=True),
            class_slices=[(all_runs[0], all_runs[1])],
        )
    order = seed.child("order").permutation(n).to(codes_q.device)
    order = order[
        torch.argsort(codes_q[order], stable=True)
    ]  # class by class, at random within
    (p, of_p), (q, of_q) = (
        even_parts(class_slices, max_samples, codes_q.device)
        for class_slices in all_runs
    )
    turns = range(math.lcm(len(p), len(q)))
    class_slices = [(of_p[turn % len(p)], of_q[turn % len(q)]) for turn in turns]
    return Batches(p, q, order, class_slices=class_slices)


def even_parts(
    class_slices: ClassSlices, max_samples: int, device: torch.device
) -> tuple[list[Tensor], list[ClassSlices]]:
    """All columns in parts of about `max_samples`, each with an equal share of every class."""
    count = -(-class_slices.starts[-1] // max_samples)
    columns = []
    of = []
    for b in range(count):
        ends = [
            (
                first + (end - first) * b // count,
                first + (end - first) * (b + 1) // count,
            )
            for first, end in pairwise(class_slices.starts)
        ]
        columns.append(torch.cat([torch.arange(*pair, device=device) for pair in ends]))
        of.append(
            ClassSlices(
                tuple(accumulate((end - first for first, end in ends), initial=0))
            )
        )
    return columns, of


def weighted_batches(
    codes_q: Tensor | None,
    codes_p: Tensor | None,
    here: Tensor | slice,
    device: torch.device | str,
) -> Batches:
    """All columns, the data weighted to the particles' shares and without those of weight 0.

    Codes are those of all ranks, and the data those that are `here`, on this rank.
    """
    weights = (
        None if codes_q is None or codes_p is None else row_weights(codes_q, codes_p)
    )
    if weights is None:
        return Batches()
    own = weights[here]
    used = torch.nonzero(own)[:, 0]
    if len(used) == 0:  # empty projections would fail: keep one column, of weight 0
        used = torch.zeros(1, dtype=torch.int64)
    data = None if len(used) == len(own) else [used.to(device)]
    return Batches(data=data, weights=own[used].to(device))


def _parts(n: int, max_samples: int) -> list[slice]:
    """0..n-1 in as few equal parts of at most `max_samples` as possible; a remainder is left out."""
    count = -(-n // max_samples)
    size = n // count
    if count > 1 and size > 256:
        size -= size % 16  # aligned addresses are faster on GPUs
    return [slice(b * size, (b + 1) * size) for b in range(count)]


def _partners(batches: list[slice], groups_p: Tensor, groups_q: Tensor) -> list[Tensor]:
    """For every batch of particles, in turn, data (sorted by group) of the same conditions."""
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
