"""Data kept as counts: rows are added and taken away again, and a flow is fitted to what is left.

Of every step of a schedule, and of every class, the histogram of the data's projections is kept
(`tally`). A row is one more in some bins; to forget it is one less. The counts are whole numbers and
the projections too (below), so neither the order of the rows nor how they came in batches leaves any
trace: whatever was added and taken away, the counts are those of the rows that remain.

The histograms are of Θx alone. What a class adds to its projections, ξ·θ_y, shifts its whole histogram
and is put in when a flow asks for the step's data: so classes can come and go. With ξ = ∞ every class
is asked for by itself.

Sums of products come out the same in any order if every number in them is a multiple of 2^-18: then all
partial sums are whole multiples of 2^-36, and float64 holds them exactly while they stay below 2^17.
Rows that are longer than that are rounded to coarser multiples.
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

REACH = 8.0  # how far the first bins reach, in standard deviations of an even spread of directions
_PER_UNIT = 2.0**18


def to_grid(x: Tensor) -> Tensor:
    """x to the nearest multiple of 2^-18, in float64."""
    return (x.double() * _PER_UNIT).round_() / _PER_UNIT


def columns_to_grid(x: Tensor) -> Tensor:
    """The same for columns x (d, n), those of length 2^16 and more to multiples of 2^-17, 2^-16, …

    What a column is rounded to depends on that column alone.
    """
    length = x.double().abs().amax(0) * math.sqrt(len(x))  # or less
    over = power((torch.frexp(length).exponent.long() - 16).clamp_(min=0))
    return to_grid(x.double() / over) * over


@dataclass(frozen=True)
class CountedStage:
    """A stage whose data are counted: number `index` of `flow`. Pictures have places of their own."""

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
        """Whether the directions of x are the same with any condition."""
        return isinstance(self.kind, (Orthogonal, Axis))

    @property
    def most_directions(self) -> int:
        """Of any of its steps, if the frame says; else 0."""
        return getattr(self.kind, "n_directions", 0)

    def down(self, x: Tensor) -> Tensor:
        """Data x (d, n) as the stage sees them: whole numbers, whatever comes with them."""
        return columns_to_grid(x)

    def frame(self, k: int, x: Tensor) -> AnyFrame:
        """The frame of step k, its directions of x being those of any condition."""
        return self.flow.frame(self.index, k, x)

    def project(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """Θx of what `down` gave, (h, n): the same numbers on every occasion."""
        assert isinstance(frame, Frame)
        return x if frame.theta is None else torch.mm(to_grid(frame.theta), x)

    def reach(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """How far the first bins reach on either side of 0, for x (d, n): (h,).

        Standardised rows are of length √d, so that a random direction of unit length sees them at
        0 ± 1: bins to ±8 are hardly ever left.
        """
        h = frame.n_directions or x.shape[0]
        return torch.full((h,), REACH, dtype=torch.float64, device=x.device)

    def tally(self, frame: AnyFrame, x: Tensor, n_bins: int) -> Tally:
        """Nothing counted yet, for x (d, n)."""
        half = self.reach(frame, x)
        counts = torch.zeros((len(half), n_bins), dtype=torch.int32, device=x.device)
        return Tally(counts, half * (2 / n_bins))


@dataclass
class Change:
    """Rows that are added to a ledger, or taken away.

    Parameters
    ----------
    x : columns (d, n) of the data at place i: x(i, columns)
    names : of the rows, in the order of the columns
    groups : the labels, and the columns of each, one behind the other
    sign : 1 adds, −1 takes away
    times : so many columns stand for each row: its mirror images are in the same group
    before : what each label had: its counts or None, its columns, how often it had these names
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
        """The names in some columns, and how often."""
        return Counter(self.names[of.start // self.times : of.stop // self.times])

    def inside(self, part: slice) -> list[tuple[Hashable, slice, int]]:
        """Labels that a part of the columns has, where it has them, and how many up to its end."""
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
    """The data's counts: of every class, in every step of every place.

    Parameters
    ----------
    places : the stages
    dimension : d of the data
    n_bins : of every histogram, a multiple of 4
    tallies : by label, place and step; None is the label of rows that have none
    rows : how many times each row, known by its name, is in the counts of each label
    change : the one that is being made; None when there is none
    """

    places: list[CountedStage]
    dimension: int
    n_bins: int
    tallies: dict[Hashable, list[list[Tally]]] = field(default_factory=dict)
    rows: dict[Hashable, Counter[int]] = field(default_factory=dict)
    change: Change | None = None

    def sizes(self) -> dict[Hashable, int]:
        """How many rows each label has."""
        return {label: rows.total() for label, rows in self.rows.items()}

    @property
    def nbytes(self) -> int:
        """Of the counts."""
        steps = (t for stages in self.tallies.values() for stage in stages for t in stage)
        return sum(t.nbytes for t in steps)

    def apply(self, change: Change) -> None:
        """Make a change, which can be undone while it is `change`, also where this fails."""
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
            if not rows:  # nothing of the class is left
                del self.rows[label], self.tallies[label]

    def undo(self) -> None:
        """Make as if the change had never begun, however far it came; this too may be interrupted."""
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
        # From the end: then those that are still counted are always the first.
        for part in reversed(self._parts(change)):
            self._count(change, part, undo=True)
        self.change = None

    def _parts(self, change: Change) -> list[slice]:
        """Columns that are counted at a time."""
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
            seen = None
            for k in range(place.n_steps):
                due = [
                    (label, columns)
                    for label, columns, upto in inside
                    if not undo or self._counted(change, label, i, k) >= upto
                ]
                if not due:
                    continue
                seen = place.down(change.x(i, part)) if seen is None else seen
                frame = place.frame(k, seen)
                z = place.project(frame, seen)
                for label, columns in due:
                    tallies = self.tallies[label][i]
                    if k == len(tallies):
                        tallies.append(place.tally(frame, seen, self.n_bins))
                    tallies[k].add(z[:, columns], sign)

    def _counted(self, change: Change, label: Hashable, i: int, k: int) -> int:
        """How many columns of the change a histogram has seen: it tells by its own total."""
        tallies, before, _ = change.before[label]
        return 0 if tallies is None else change.sign * (tallies[i][k].total - before)

    def missing(self, names: Sequence[int], groups: Sequence[tuple[Hashable, slice]]) -> int | None:
        """The first of some rows that is not there to be taken away, or None."""
        for label, of in groups:
            available, requested = self.rows.get(label, Counter()), Counter[int]()
            for j in range(of.start, of.stop):
                requested[names[j]] += 1
                if requested[names[j]] > available[names[j]]:
                    return j
        return None


def _set_count(rows: Counter[int], name: int, n: int) -> None:
    """So many times; a name that is there no more is not kept."""
    if n:
        rows[name] = n
    else:
        rows.pop(name, None)


@dataclass(frozen=True)
class Mixture:
    """A place of a ledger as the data that particles are moved onto.

    Parameters
    ----------
    ledger : of the data
    place : number of the place where the flow's stage 0 is
    labels : in the order of the particles' class numbers
    masses : particles of each class, or rows where the flow does not see classes
    n_bins : of the particles' histograms, and of the data's where classes are mixed
    """

    ledger: Ledger
    place: int
    labels: list[Hashable]
    masses: list[int]
    n_bins: int

    def counts(self, flow: Flow, frame: AnyFrame, i: int, k: int) -> Counts:
        """What is known of the data in step k of stage i."""
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
