"""Data as counts: add and remove rows, and fit a flow to the remaining ones.

Each step of a schedule, and each class, has a histogram of the projected data (`tally`). Adding a row
increments one bin per direction; removing it decrements them. Counts are integers, and projections are
exact (below), so the order and batches of the rows leave no trace: the counts depend only on the rows
that remain.

The histograms count Θx alone. The condition of a class adds ξ·θ_y to its projections. This shifts the
histogram of the class and is applied when a flow uses it, so classes can be added and removed. With
ξ = ∞ each class is used separately.

Sums of products do not depend on their order if every factor is a multiple of 2^-18: then all partial
sums are multiples of 2^-36, and float64 represents them exactly below 2^17. Longer rows are rounded to
coarser multiples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from sliceflow.engine.classes import Runs
from sliceflow.engine.flow import BUDGET, Flow
from sliceflow.engine.frames import AnyFrame, Axis, Frame, FrameKind, Orthogonal
from sliceflow.engine.transports import Counts, Fit, Histogram
from sliceflow.online.tally import Tally, mix, power

__all__ = ["REACH", "Change", "CountedStage", "Ledger", "Mixture", "to_grid"]

REACH = 8.0  # range of the first bins, in standard deviations of projections on random directions
_PER_UNIT = 2.0**18


def to_grid(x: Tensor) -> Tensor:
    """x rounded to the nearest multiple of 2^-18, in float64."""
    return (x.double() * _PER_UNIT).round_() / _PER_UNIT


def columns_to_grid(x: Tensor) -> Tensor:
    """The same for columns x (d, n); columns of length ≥ 2^16 use multiples of 2^-17, 2^-16, …

    The rounding of a column depends on that column alone.
    """
    length = x.double().abs().amax(0) * math.sqrt(len(x))  # an upper bound
    over = power((torch.frexp(length).exponent.long() - 16).clamp_(min=0))
    return to_grid(x.double() / over) * over


@dataclass(frozen=True)
class CountedStage:
    """A stage whose data are counted: number `index` of `flow`. Pictures have a subclass."""

    flow: Flow
    index: int

    @property
    def kind(self) -> FrameKind:
        """The frames of the stage."""
        return self.flow.schedule[self.index].frame

    @property
    def n_steps(self) -> int:
        return self.flow.schedule[self.index].n_steps

    @property
    def independent(self) -> bool:
        """Whether the directions of x do not depend on the condition."""
        return isinstance(self.kind, (Orthogonal, Axis))

    @property
    def most_directions(self) -> int:
        """The maximum number of directions per step, if the frame has one; else 0."""
        return getattr(self.kind, "n_directions", 0)

    def down(self, x: Tensor) -> Tensor:
        """Data x (d, n) in the space of the stage, rounded independently of other columns."""
        return columns_to_grid(x)

    def frame(self, k: int, x: Tensor) -> AnyFrame:
        """The frame of step k, without a condition."""
        return self.flow.frame(self.index, k, x)

    def project(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """Θx for the output of `down`, (h, n): exactly reproducible."""
        assert isinstance(frame, Frame)
        return x if frame.theta is None else torch.mm(to_grid(frame.theta), x)

    def reach(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """The range of the first bins on either side of 0, for x (d, n): (h,).

        Standardised rows have length √d, so their projections on random unit vectors have mean 0 and
        standard deviation 1. Values beyond ±8 are rare.
        """
        h = frame.n_directions or x.shape[0]
        return torch.full((h,), REACH, dtype=torch.float64, device=x.device)

    def tally(self, frame: AnyFrame, x: Tensor, n_bins: int) -> Tally:
        """An empty tally for x (d, n)."""
        half = self.reach(frame, x)
        counts = torch.zeros((len(half), n_bins), dtype=torch.int32, device=x.device)
        return Tally(counts, half * (2 / n_bins))


@dataclass
class Change:
    """Rows to add to a ledger, or to remove.

    Parameters
    ----------
    x : x(i, columns) gives columns (d, n) of the data at stage i
    names : names (hashes) of the rows, in the order of the columns
    groups : labels, each with its contiguous columns
    sign : 1 adds, −1 removes
    times : columns per row: mirror images are in the same group
    before : state of each label before: tallies or None, number of columns, counts of these names
    """

    x: Callable[[int, slice], Tensor]
    names: Sequence[int]
    groups: Sequence[tuple[Hashable, slice]]
    sign: int
    times: int = 1
    before: dict[Hashable, tuple[list[list[Tally]] | None, int, Counter[int]]] = field(
        default_factory=dict
    )

    def named(self, of: slice) -> Counter[int]:
        """The names in some columns, and their counts."""
        return Counter(self.names[of.start // self.times : of.stop // self.times])

    def inside(self, part: slice) -> list[tuple[Hashable, slice, int]]:
        """Labels in a part of the columns: their columns in it, and how many up to its end."""
        return [
            (
                label,
                slice(max(of.start - part.start, 0), min(of.stop, part.stop) - part.start),
                min(of.stop, part.stop) - of.start,
            )
            for label, of in self.groups
            if of.start < part.stop and of.stop > part.start
        ]


@dataclass
class Ledger:
    """The data's counts, for each class, stage and step.

    Parameters
    ----------
    places : the stages
    dimension : d of the data
    n_bins : bins per histogram, a multiple of 4
    tallies : histograms by label, stage and step; rows without a label have the label None
    rows : for each label, how often each row is counted, by its name
    change : the change in progress, or None
    """

    places: list[CountedStage]
    dimension: int
    n_bins: int
    tallies: dict[Hashable, list[list[Tally]]] = field(default_factory=dict)
    rows: dict[Hashable, Counter[int]] = field(default_factory=dict)
    change: Change | None = None

    def sizes(self) -> dict[Hashable, int]:
        """Number of rows of each label."""
        return {label: rows.total() for label, rows in self.rows.items()}

    @property
    def nbytes(self) -> int:
        """Memory of the counts."""
        steps = (t for stages in self.tallies.values() for stage in stages for t in stage)
        return sum(t.nbytes for t in steps)

    def apply(self, change: Change) -> None:
        """Apply a change. If this fails, `undo` restores the state before."""
        for label, of in change.groups:
            rows, own = self.rows.get(label, Counter()), change.named(of)
            columns = rows.total() * change.times
            names = Counter({name: rows[name] for name in own})
            change.before[label] = self.tallies.get(label), columns, names
        self.change = change
        for part in self._parts(change):
            self._count(change, part)
        for label, of in change.groups:
            rows = self.rows.setdefault(label, Counter())
            for name, n in change.named(of).items():
                _set_count(rows, name, rows[name] + change.sign * n)
            if not rows:  # the class is empty
                del self.rows[label], self.tallies[label]

    def undo(self) -> None:
        """Undo the change in progress, however far it got. Can be repeated after an interruption."""
        change = self.change
        if change is None:
            return
        for label, (tallies, _, names) in change.before.items():
            if tallies is None:
                self.rows.pop(label, None)
                self.tallies.pop(label, None)
                continue
            self.tallies[label], rows = tallies, self.rows.setdefault(label, Counter())
            for name, n in names.items():
                _set_count(rows, name, n)
        # In reverse order, so that the columns still counted are always the first ones.
        for part in reversed(self._parts(change)):
            self._count(change, part, undo=True)
        self.change = None

    def _parts(self, change: Change) -> list[slice]:
        """Slices of columns to count at a time."""
        widest = max([self.dimension, *(place.most_directions for place in self.places)])
        budget = min((place.flow.budget for place in self.places), default=BUDGET) // 4
        n, chunk = change.groups[-1][1].stop, max(64, budget // (8 * widest))
        return [slice(first, min(first + chunk, n)) for first in range(0, n, chunk)]

    def _count(self, change: Change, part: slice, undo: bool = False) -> None:
        inside, sign = change.inside(part), -change.sign if undo else change.sign
        if not undo:
            for label, _, _ in inside:
                self.tallies.setdefault(label, [[] for _ in self.places])
        for i, place in enumerate(self.places):
            stage_x = None
            for k in range(place.n_steps):
                pending = [
                    (label, columns)
                    for label, columns, n_upto in inside
                    if not undo or self._counted(change, label, i, k) >= n_upto
                ]
                if not pending:
                    continue
                stage_x = place.down(change.x(i, part)) if stage_x is None else stage_x
                frame = place.frame(k, stage_x)
                z = place.project(frame, stage_x)
                for label, columns in pending:
                    tallies = self.tallies[label][i]
                    if k == len(tallies):
                        tallies.append(place.tally(frame, stage_x, self.n_bins))
                    tallies[k].add(z[:, columns], sign)

    def _counted(self, change: Change, label: Hashable, i: int, k: int) -> int:
        """Number of columns of the change that a histogram has counted, from its total."""
        tallies, before, _ = change.before[label]
        return 0 if tallies is None else change.sign * (tallies[i][k].total - before)

    def missing(self, names: Sequence[int], groups: Sequence[tuple[Hashable, slice]]) -> int | None:
        """The first of these rows that is not in the counts, or None."""
        for label, of in groups:
            available, requested = self.rows.get(label, Counter()), Counter[int]()
            for j in range(of.start, of.stop):
                requested[names[j]] += 1
                if requested[names[j]] > available[names[j]]:
                    return j
        return None


def _set_count(rows: Counter[int], name: int, n: int) -> None:
    """Set the count of a name; a count of 0 deletes it."""
    if n:
        rows[name] = n
    else:
        rows.pop(name, None)


@dataclass(frozen=True)
class Mixture:
    """Counts of a ledger as the data of a flow.

    Parameters
    ----------
    ledger : the counts
    place : number of the ledger's stage that is stage 0 of the flow
    labels : labels in the order of the particles' class numbers
    masses : particles per class, or rows per class if the flow ignores classes
    n_bins : bins of the particles' histograms, and of mixed classes
    """

    ledger: Ledger
    place: int
    labels: list[Hashable]
    masses: list[int]
    n_bins: int

    def counts(self, flow: Flow, frame: AnyFrame, i: int, k: int) -> Counts:
        """The data's histograms in step k of stage i."""
        tallies = [self.ledger.tallies[label][self.place + i][k] for label in self.labels]
        if flow.apart or (len(tallies) == 1 and frame.theta_y is None):
            even = [tally.even() for tally in tallies]
            counts = torch.cat([counts for counts, _ in even])
            half = torch.cat([width for _, width in even]) * (counts.shape[1] / 2)
            return Counts(counts, -half, half)
        offsets = None if frame.theta_y is None else flow.amplifier * frame.theta_y
        return mix(tallies, self.masses, offsets, self.n_bins)

    def fit(self, z_p: Tensor, flow: Flow, frame: AnyFrame, i: int, k: int) -> Fit:
        transport = Histogram(self.n_bins)
        runs = Runs(tuple(accumulate(self.masses, initial=0))) if flow.apart else None
        p, q = transport.count(z_p, runs=runs), self.counts(flow, frame, i, k)
        same = Counts(q.counts.to(p.counts.dtype), q.lo.to(p.lo.dtype), q.hi.to(p.hi.dtype))
        still = [] if runs is None else runs.empty
        return transport.between(p, same, z_p.dtype, still, flow.maps)
