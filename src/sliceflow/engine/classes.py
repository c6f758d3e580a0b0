"""Columns in the order of their classes: what ξ = ∞ needs, where every class has maps of its own.

With ξ finite a class shifts its projections, and a direction has one map for all of them. The more ξ,
the fewer neighbours of another class a particle has; without any left, the flow is one flow per class
with the same directions. That flow has no shift and wastes no bins on gaps: it counts every class by
itself. Its columns are sorted, so that a class is a run of neighbours, and its tables have C·h rows,
class by class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

__all__ = ["Runs", "sort_by_class"]


@dataclass(frozen=True)
class Runs:
    """Class c has the columns from starts[c] to starts[c + 1].

    Examples
    --------
    >>> runs = Runs.of(torch.tensor([0, 0, 0, 2, 2]), n_classes=3)
    >>> runs.starts, runs.empty
    ((0, 3, 3, 5), [1])
    >>> runs.part(slice(2, 4))
    Runs(starts=(0, 1, 1, 2))
    """

    starts: tuple[int, ...]

    @classmethod
    def of(cls, codes: Tensor, n_classes: int) -> Runs:
        """The runs of class numbers that ascend."""
        sizes = torch.bincount(codes, minlength=n_classes).tolist()
        return cls(tuple(accumulate(sizes, initial=0)))

    def __len__(self) -> int:
        """C."""
        return len(self.starts) - 1

    @property
    def empty(self) -> list[int]:
        """The classes without columns."""
        return [c for c, (first, end) in enumerate(pairwise(self.starts)) if first == end]

    def part(self, columns: slice) -> Runs:
        """The runs of some neighbouring columns."""
        first, end = columns.start, min(columns.stop, self.starts[-1])
        return Runs(tuple(min(max(s, first), end) - first for s in self.starts))


def sort_by_class(codes: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor, Runs]:
    """Class numbers (n,) made to ascend, their order, where each of them stands then, and the runs.

    Examples
    --------
    >>> codes, order, place, runs = sort_by_class(torch.tensor([1, 0, 1]), 2)
    >>> codes, order, place, runs
    (tensor([0, 1, 1]), tensor([1, 0, 2]), tensor([1, 0, 2]), Runs(starts=(0, 1, 3)))
    """
    codes, order = codes.sort(stable=True)
    return codes, order, order.argsort(), Runs.of(codes, n_classes)
