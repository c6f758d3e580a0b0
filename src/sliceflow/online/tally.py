"""Histograms with exact addition and removal of values.

The bin of a value depends on that value alone: bins are narrow near 0 and wider further out. So the
counts depend only on the values present, not on values that were added and removed. A flow gets bins
of equal width, just wide enough for the outermost value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.transports import Counts

__all__ = ["Tally", "mix", "power"]


def power(k: Tensor) -> Tensor:
    """2^k for k from 0 to 62, in float64. Unlike `ldexp`, exact on every device."""
    return (torch.ones_like(k) << k).double()


def _empty() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


@dataclass
class Tally:
    """Histograms of one class, for each direction of one step.

    Bin b of B counts values from (b − B/2)·width to (b + 1 − B/2)·width. A value outside is counted at
    the first level k = 1, 2, … whose bins of 2ᵏ·width contain it. Each level needs only its outer B/2
    bins, which are stored for the directions and levels in use.

    Parameters
    ----------
    counts : (h, B) int32
    width : (h,) float64
    keys : (r,) int64, ascending: level k of direction i is k·h + i
    outer : (r, B/2) int32, counts at these levels: B/4 bins on the left and B/4 on the right

    Examples
    --------
    >>> tally = Tally(torch.zeros(1, 4, dtype=torch.int32), torch.tensor([1.0], dtype=torch.float64))
    >>> tally.add(torch.tensor([[-1.5, 0.5, 0.7]]))
    >>> tally.counts
    tensor([[1, 0, 2, 0]], dtype=torch.int32)
    >>> tally.add(torch.tensor([[3.0]]))
    >>> tally.even()
    (tensor([[0, 1, 2, 1]], dtype=torch.int32), tensor([2.], dtype=torch.float64))
    >>> tally.add(torch.tensor([[3.0]]), -1)
    >>> tally.even()
    (tensor([[1, 0, 2, 0]], dtype=torch.int32), tensor([1.], dtype=torch.float64))
    """

    counts: Tensor
    width: Tensor
    keys: Tensor = field(default_factory=_empty)
    outer: Tensor = field(default_factory=_empty)

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.keys.nbytes + self.outer.nbytes

    @property
    def total(self) -> int:
        """Number of values in each direction."""
        first = self.outer[self.keys % len(self.counts) == 0]
        return int(self.counts[0].sum()) + int(first.sum())

    def add(self, z: Tensor, sign: int = 1) -> None:
        """Count the values z (h, n); sign −1 removes them. All or nothing."""
        h, n_bins = self.counts.shape
        place = (z.double() / self.width[:, None]).floor_()
        far = torch.where(place < 0, -1 - place, place) / (n_bins // 2)
        if bool((far < 1).all()):
            middle = place.add_(n_bins / 2 + 0.5).float()  # of bins of width 1
            lo = torch.zeros(h, dtype=torch.float64, device=z.device)
            more = kernels.for_tensor(z).count(middle, lo, lo + n_bins, n_bins)
            self.counts.add_(more.int(), alpha=sign)
        else:
            self._add_far(place, torch.frexp(far).exponent.clamp_(min=0).long(), sign)

    def _add_far(self, place: Tensor, level: Tensor, sign: int) -> None:
        """The same for values outside the narrow bins."""
        (h, n_bins), half = self.counts.shape, self.counts.shape[1] // 2
        row = torch.arange(h, device=place.device)[:, None].expand_as(place)
        one = torch.full((1,), sign, dtype=torch.int32, device=place.device)

        near = level == 0
        at = (row[near] * n_bins + place[near].long()).add_(half)
        counts = self.counts.flatten().scatter_add(0, at, one.expand_as(at))

        key = level[~near] * h + row[~near]
        b = (place[~near] / power(level[~near])).floor_().long()
        b = torch.where(b < 0, b + half, b).clamp_(0, half - 1)
        keys = torch.unique(torch.cat((self.keys.to(key), key)))
        outer = torch.zeros((len(keys), half), dtype=torch.int32, device=key.device)
        if len(self.keys):
            outer[torch.searchsorted(keys, self.keys)] = self.outer
        at = torch.searchsorted(keys, key).mul_(half).add_(b)
        outer.view(-1).scatter_add_(0, at, one.expand_as(at))
        used = outer.any(dim=1)
        keys, outer = (keys[used], outer[used]) if bool(used.any()) else (_empty(), _empty())
        # One statement, so that an interrupt cannot leave half of the change.
        self.counts, self.keys, self.outer = counts.view(h, n_bins), keys, outer

    def even(self) -> tuple[Tensor, Tensor]:
        """Counts (h, B) in bins of equal width, and the width for each direction (h,).

        Pairs of bins are merged until the bins contain the outermost value.
        """
        h, n_bins = self.counts.shape
        if len(self.keys) == 0:  # no value is outside the narrow bins
            return self.counts, self.width
        level, row = self.keys // h, self.keys % h
        top = torch.zeros(h, dtype=torch.int64, device=row.device)
        top.scatter_reduce_(0, row, level, "amax")
        counts, quarter = self.counts.clone(), n_bins // 4
        for k in range(1, int(top.max()) + 1):
            wider, here = top >= k, level == k
            pairs = counts[wider].view(-1, n_bins // 2, 2).sum(2, dtype=torch.int32)
            counts[wider] = torch.nn.functional.pad(pairs, (quarter, quarter))
            left, right = self.outer[here].tensor_split(2, dim=1)
            counts[row[here], :quarter] = left
            counts[row[here], -quarter:] = right
        return counts, self.width * power(top)


def mix(tallies: Sequence[Tally], masses: Sequence[int], offsets: Tensor | None, n_bins: int) -> Counts:
    """The histogram of a mixture of classes with given masses, each shifted by its offset.

    Parameters
    ----------
    tallies : the tallies of one step, one per class
    masses : integer weights of the classes, applied exactly
    offsets : (h, C), or None for no shift
    n_bins : bins of the result

    Examples
    --------
    >>> tally = Tally(torch.tensor([[0, 3, 1, 0]]).int(), torch.ones(1, dtype=torch.float64))
    >>> counts, lo, hi = mix([tally, tally], [4, 4], torch.tensor([[0.0, 9.0]]), 11)
    >>> counts.long() * 8 // counts.sum()
    tensor([[3, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1]])
    >>> lo, hi
    (tensor([-1.], dtype=torch.float64), tensor([10.], dtype=torch.float64))
    """
    shift = torch.zeros(1, len(tallies)) if offsets is None else offsets
    shift = shift.to(tallies[0].width)
    used = [
        (t.even(), mass, shift[:, c])
        for c, (t, mass) in enumerate(zip(tallies, masses, strict=True))
        if mass
    ]
    reach = [_reach(*even) for even, _, _ in used]
    lo = torch.stack([low + by for (low, _), (_, _, by) in zip(reach, used, strict=True)]).amin(0)
    hi = torch.stack([high + by for (_, high), (_, _, by) in zip(reach, used, strict=True)]).amax(0)
    step = (hi - lo) / n_bins
    unit = (1 << 30) // sum(mass for _, mass, _ in used)  # keeps sums exact in float64 and int32
    total = torch.zeros((len(lo), n_bins + 1), dtype=torch.float64, device=lo.device)
    for (counts, width), mass, by in used:
        n_rows = int(counts[0].sum())  # every direction has the same total
        kernels.for_tensor(total).add_below(total, counts, width, lo - by, step, mass * unit / n_rows)
    # Round the cumulative sums, not the bins: beyond the end of a class its full mass must count.
    return Counts(total.round_().diff(dim=1).int(), lo, hi)


def _reach(counts: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """The outer edges of the occupied bins, (h,) and (h,)."""
    n_bins = counts.shape[1]
    occupied = (counts > 0).byte()
    first, after = occupied.argmax(1), n_bins - occupied.flip(1).argmax(1)
    return (first - n_bins // 2) * width, (after - n_bins // 2) * width
