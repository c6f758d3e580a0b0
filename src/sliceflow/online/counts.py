"""Data kept as counts: rows are added and taken away again, and a flow is fitted to what is left.

Of every step of a schedule, and of every class, the histogram of the data's projections is kept. A row
is one more in some bins; to forget it is one less. The counts are whole numbers and the projections
too (below), so neither the order of the rows nor how they came in batches leaves any trace: whatever
was added and taken away, the counts are those of the rows that remain.

The histograms are of Θx alone. What a class adds to its projections, ξ·θ_y, shifts its whole histogram
and is put in when a flow asks for the step's data: so classes can come and go. With ξ = ∞ every class
is asked for by itself.

Sums of products come out the same in any order if every number in them is a multiple of 2^-18: then all
partial sums are whole multiples of 2^-36, and float64 holds them exactly while they stay below 2^17.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.flow import BUDGET, Flow
from sliceflow.frames import AnyFrame, Axis, Frame, Orthogonal
from sliceflow.kernels.reference import project_tiles
from sliceflow.local import TileFrame, Tiles
from sliceflow.pyramid import Subspace, basis
from sliceflow.runs import Runs
from sliceflow.transports import Counts, Fit, Histogram

__all__ = ["Ledger", "Mixture", "Place", "Tally", "mixed"]

REACH = 8.0  # how far the first bins reach, in standard deviations of an even spread of directions
_NARROW = 2.0**10
_WHOLE = 2.0**18


def whole(x: Tensor) -> Tensor:
    """x to the nearest multiple of 2^-18, in float64."""
    return (x.double() * _WHOLE).round_() / _WHOLE


@dataclass
class Tally:
    """How many rows of one class fell where, in every direction of one step.

    Bin b of B counts values from (b − B/2)·width to (b + 1 − B/2)·width. Where a value falls outside,
    the bins of its direction are merged two by two and so reach twice as far. That is exact as well:
    the counts are what they would have been with wide bins from the start.

    Parameters
    ----------
    counts : (h, B) int32
    width : (h,) float64

    Examples
    --------
    >>> tally = Tally(torch.zeros(1, 4, dtype=torch.int32), torch.tensor([1.0], dtype=torch.float64))
    >>> tally.add(torch.tensor([[-1.5, 0.5, 0.7]]))
    >>> tally.counts
    tensor([[1, 0, 2, 0]], dtype=torch.int32)
    >>> tally.add(torch.tensor([[3.0]]))
    >>> tally.counts, tally.width
    (tensor([[0, 1, 2, 1]], dtype=torch.int32), tensor([2.], dtype=torch.float64))
    """

    counts: Tensor
    width: Tensor

    def add(self, z: Tensor, sign: int = 1) -> None:
        """Count the values z (h, n); sign −1 takes them away."""
        h, n_bins = self.counts.shape
        z = z.double()
        low, high = torch.aminmax(z, dim=1)
        while bool((outside := self._outside(low, high)).any()):
            self._merge(outside)
        place = (z / self.width[:, None]).floor_()
        middle = place.add_(n_bins / 2 + 0.5).float()  # of bins of width 1
        lo = torch.zeros(h, dtype=torch.float64, device=z.device)
        more = kernels.for_tensor(z).count(middle, lo, lo + n_bins, n_bins)
        self.counts.add_(more.int(), alpha=sign)

    def _outside(self, low: Tensor, high: Tensor) -> Tensor:
        half = self.counts.shape[1] // 2
        return ((low / self.width).floor() < -half) | ((high / self.width).floor() >= half)

    def _merge(self, rows: Tensor) -> None:
        """Make the bins of some rows (h,) twice as wide."""
        n_bins = self.counts.shape[1]
        pairs = self.counts[rows].view(-1, n_bins // 2, 2).sum(2, dtype=torch.int32)
        self.counts[rows] = torch.nn.functional.pad(pairs, (n_bins // 4, n_bins // 4))
        self.width[rows] *= 2

    def reach(self) -> tuple[Tensor, Tensor]:
        """The outer edges of the occupied bins, (h,) and (h,)."""
        n_bins = self.counts.shape[1]
        seen = (self.counts > 0).byte()
        first, after = seen.argmax(1), n_bins - seen.flip(1).argmax(1)
        return (first - n_bins // 2) * self.width, (after - n_bins // 2) * self.width


def mixed(
    tallies: Sequence[Tally], masses: Sequence[int], offsets: Tensor | None, n_bins: int
) -> Counts:
    """The histogram of a mixture of classes, each with its mass and shifted by its offset.

    Parameters
    ----------
    tallies : of one step, one of each class
    masses : whole numbers; a class weighs its own share of their sum, to the last unit
    offsets : (h, C), or None where classes are not shifted
    n_bins : of the result

    Examples
    --------
    >>> tally = Tally(torch.tensor([[0, 3, 1, 0]]).int(), torch.ones(1, dtype=torch.float64))
    >>> counts, lo, hi = mixed([tally, tally], [4, 4], torch.tensor([[0.0, 9.0]]), 11)
    >>> counts.long() * 8 // counts.sum()
    tensor([[3, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1]])
    >>> lo, hi
    (tensor([-1.], dtype=torch.float64), tensor([10.], dtype=torch.float64))
    """
    shift = torch.zeros(1, len(tallies)) if offsets is None else offsets
    shift = shift.to(tallies[0].width)
    used = [
        (t, mass, shift[:, c]) for c, (t, mass) in enumerate(zip(tallies, masses, strict=True)) if mass
    ]
    reach = [t.reach() for t, _, _ in used]
    lo = torch.stack([low + by for (low, _), (_, _, by) in zip(reach, used, strict=True)]).amin(0)
    hi = torch.stack([high + by for (_, high), (_, _, by) in zip(reach, used, strict=True)]).amax(0)
    step = (hi - lo) / n_bins
    unit = (1 << 30) // sum(mass for _, mass, _ in used)  # sums are exact in float64 and in int32
    total = torch.zeros((len(lo), n_bins + 1), dtype=torch.float64, device=lo.device)
    for tally, mass, by in used:
        n_rows = int(tally.counts[0].sum())  # every direction has counted them all
        kernels.for_tensor(total).add_below(
            total, tally.counts, tally.width, lo - by, step, mass * unit / n_rows
        )
    # Rounded here and not bin by bin: where a class ends its whole mass must be below.
    return Counts(total.round_().diff(dim=1).int(), lo, hi)


@dataclass(frozen=True)
class Place:
    """A stage whose data are counted: number `index` of `flow`, in a subspace of x or in x itself."""

    flow: Flow
    index: int
    subspace: Subspace | None = None

    @property
    def n_steps(self) -> int:
        return self.flow.schedule[self.index].n_steps

    @property
    def independent(self) -> bool:
        """Whether the directions of x are the same with any condition."""
        return isinstance(self.flow.schedule[self.index].frame, (Tiles, Orthogonal, Axis))

    @property
    def most_directions(self) -> int:
        """Of any of its steps, if the frame says; else 0."""
        kind = self.flow.schedule[self.index].frame
        return kind.most_directions if isinstance(kind, Tiles) else getattr(kind, "n_directions", 0)

    def down(self, x: Tensor) -> Tensor:
        """Data x (d, n) as the stage sees them: whole numbers, whatever comes with them."""
        x, space = whole(x), self.subspace
        if space is None or space.whole:
            return x
        n = x.shape[1]
        rows = whole(basis(space.height, space.h, space.upsampling)).to(x.device)
        columns = whole(basis(space.width, space.w, space.upsampling)).to(x.device)
        image = x.reshape(space.channels, space.height, space.width * n)
        image = whole(torch.matmul(rows.T, image)).view(-1, space.width, n)
        return whole(torch.matmul(columns.T, image)).view(-1, n)

    def frame(self, k: int, x: Tensor) -> AnyFrame:
        """The frame of step k, its directions of x being those of any condition."""
        return self.flow.frame(self.index, k, x)

    def project(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """Θx of what `down` gave, (h, n): the same numbers on every occasion."""
        if isinstance(frame, TileFrame):
            return project_tiles(x, whole(frame.theta), frame.geometry)
        assert isinstance(frame, Frame)
        return x if frame.theta is None else torch.mm(whole(frame.theta), x)

    def tally(self, frame: AnyFrame, x: Tensor, n_bins: int) -> Tally:
        """Nothing counted yet, for x (d, n).

        Standardised rows are of length √d and pixels in [−1, 1] of length √d at most, so that a random
        direction of unit length sees them at 0 ± 1: bins to ±8 are hardly ever left. Pictures can also
        not be further out than the sum of a direction's coefficients. Cosines see some frequencies
        far out and others hardly at all: their bins begin narrow and become as wide as they have to.
        """
        h = frame.n_directions or x.shape[0]
        half = torch.full((h,), REACH, dtype=torch.float64, device=x.device)
        if self.subspace is not None and isinstance(frame, TileFrame):
            space, k = self.subspace, frame.geometry.side
            sums = whole(frame.theta[:k, :k]).abs().sum(1).repeat(h // k)
            largest = math.prod(
                float(basis(full, small, space.upsampling).abs().sum(0).max())
                for full, small in ((space.height, space.h), (space.width, space.w))
            )
            kind = self.flow.schedule[self.index].frame
            if isinstance(kind, Tiles) and kind.cosines:
                half = half / _NARROW
            # A little more: the largest pixel must not lie on the last edge.
            half = torch.minimum(half * space.scale(), sums * (largest * 1.01))
        counts = torch.zeros((h, n_bins), dtype=torch.int32, device=x.device)
        return Tally(counts, half * (2 / n_bins))


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
    whole : False while rows are being counted
    """

    places: list[Place]
    dimension: int
    n_bins: int
    tallies: dict[Hashable, list[list[Tally]]] = field(default_factory=dict)
    rows: dict[Hashable, Counter[int]] = field(default_factory=dict)
    whole: bool = True

    def sizes(self) -> dict[Hashable, int]:
        """How many rows each label has."""
        return {label: rows.total() for label, rows in self.rows.items()}

    @property
    def nbytes(self) -> int:
        """Of the counts."""
        steps = (t for stages in self.tallies.values() for stage in stages for t in stage)
        return sum(t.counts.nbytes for t in steps)

    def change(
        self,
        x: Callable[[int, slice], Tensor],
        names: Sequence[int],
        groups: Sequence[tuple[Hashable, slice]],
        sign: int,
        times: int = 1,
    ) -> None:
        """Add rows (sign 1) or take them away (sign −1).

        Parameters
        ----------
        x : columns (d, n) of the data at place i: x(i, columns)
        names : of the rows, in the order of the columns
        groups : the labels, and the columns of each, one behind the other
        times : so many columns stand for each row: its mirror images are in the same group
        """
        self.whole = False
        widest = max([self.dimension, *(place.most_directions for place in self.places)])
        budget = min((place.flow.budget for place in self.places), default=BUDGET) // 4
        n, chunk = groups[-1][1].stop, max(64, budget // (8 * widest))
        for first in range(0, n, chunk):
            self._count(x, slice(first, min(first + chunk, n)), groups, sign)
        for label, columns in groups:
            self._name(label, names[columns.start // times : columns.stop // times], sign)
        self.whole = True

    def _count(
        self,
        x: Callable[[int, slice], Tensor],
        part: slice,
        groups: Sequence[tuple[Hashable, slice]],
        sign: int,
    ) -> None:
        inside = [
            (label, slice(max(of.start - part.start, 0), min(of.stop, part.stop) - part.start))
            for label, of in groups
            if of.start < part.stop and of.stop > part.start
        ]
        for label, _ in inside:
            self.tallies.setdefault(label, [[] for _ in self.places])
        for i, place in enumerate(self.places):
            seen = place.down(x(i, part))
            for k in range(place.n_steps):
                frame = place.frame(k, seen)
                z = place.project(frame, seen)
                for label, columns in inside:
                    tallies = self.tallies[label][i]
                    if k == len(tallies):
                        tallies.append(place.tally(frame, seen, self.n_bins))
                    tallies[k].add(z[:, columns], sign)

    def _name(self, label: Hashable, names: Sequence[int], sign: int) -> None:
        rows = self.rows.setdefault(label, Counter())
        if sign > 0:
            rows.update(names)
            return
        rows.subtract(names)
        for name in names:
            if rows[name] == 0:
                del rows[name]
        if not rows:  # nothing of the class is left
            del self.rows[label], self.tallies[label]

    def missing(self, names: Sequence[int], groups: Sequence[tuple[Hashable, slice]]) -> int | None:
        """The first of some rows that is not there to be taken away, or None."""
        for label, of in groups:
            there, asked = self.rows.get(label, Counter()), Counter[int]()
            for j in range(of.start, of.stop):
                asked[names[j]] += 1
                if asked[names[j]] > there[names[j]]:
                    return j
        return None


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
            counts = torch.cat([tally.counts for tally in tallies])
            half = torch.cat([tally.width for tally in tallies]) * (counts.shape[1] / 2)
            return Counts(counts, -half, half)
        offsets = None if frame.theta_y is None else flow.amplifier * frame.theta_y
        return mixed(tallies, self.masses, offsets, self.n_bins)

    def fit(self, z_p: Tensor, flow: Flow, frame: AnyFrame, i: int, k: int) -> Fit:
        transport = Histogram(self.n_bins)
        runs = Runs(tuple(accumulate(self.masses, initial=0))) if flow.apart else None
        p, q = transport.count(z_p, runs=runs), self.counts(flow, frame, i, k)
        same = Counts(q.counts.to(p.counts.dtype), q.lo.to(p.lo.dtype), q.hi.to(p.hi.dtype))
        still = [] if runs is None else runs.empty
        return transport.between(p, same, z_p.dtype, still, flow.maps)
