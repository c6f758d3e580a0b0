"""Permanent decisions of the first rows: units of vectors, and the patch basis of pictures.

The unit of a column is two integers: its scale is a power of 2, and its shift a multiple of the scale.
Both are coarse, so few rows change them. Coarse counts record the distribution of the remaining first
rows. They tell whether the remaining rows would decide the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

__all__ = ["Column", "FirstRows", "FirstVectors"]

_WINDOW = 8  # adjacent cells that must contain most of the rows; a unit is two cells
_SHARES = (
    (3, 4),
    (31, 32),
    (1, 1),
)  # fractions that count as most: the next one if that many rows are equal
_CONSTANT = 10  # bits of a constant column's value above its unit
_SPAN = 2.0**900


@dataclass(frozen=True)
class Column:
    """The unit of one column, and the distribution of the remaining first rows.

    A cell is 2^exponent wide. The exponent is the smallest for which 8 adjacent cells contain 3/4 of
    the rows; if that many rows are equal, 31/32 of them, or all. The scale is two cells, and the shift
    is the multiple of the scale nearest to the median.

    Parameters
    ----------
    exponent : log₂ of the cell width
    middle : the shift, as a multiple of the scale
    share : index of the fraction of rows that decided; None for a constant column
    cells, counts : the occupied half-cells, ascending, and their counts

    Examples
    --------
    >>> column = Column.of(np.random.default_rng(0).normal(100, 3, size=500))
    >>> column.shift, column.scale
    (100.0, 2.0)
    >>> column.same()
    True
    """

    exponent: int
    middle: int
    share: int | None
    cells: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Column:
        """The unit of a column of values (n,); raises an OverflowError if there is none."""
        x, n = np.sort(values), len(values)
        for share in range(len(_SHARES)):
            m = _rows_needed(n, share)
            with np.errstate(over="ignore"):
                span = float((x[m - 1 :] - x[: n - m + 1]).min())
            if span > _SPAN:
                raise OverflowError
            if span == 0:
                continue
            exponent = max(math.frexp(span / _WINDOW)[1], -900)
            if not _holds(_cells(x, exponent), np.ones(n, np.int64), m):
                exponent += 1
            break
        else:
            share = None
            exponent = math.frexp(x[0])[1] - _CONSTANT - 1 if x[0] else -1
        half_cells, counts = np.unique(_cells(x, exponent - 1), return_counts=True)
        middle = _middle(half_cells, counts)
        return cls(exponent, middle, share, half_cells, counts)

    @property
    def scale(self) -> float:
        return math.ldexp(1.0, self.exponent + 1)

    @property
    def shift(self) -> float:
        return self.middle * self.scale

    def without(self, values: np.ndarray) -> Column:
        """The same unit, with the distribution of the other rows."""
        cells, counts = np.unique(_cells(values, self.exponent - 1), return_counts=True)
        left = self.counts.copy()
        left[np.searchsorted(self.cells, cells)] -= counts
        return replace(self, cells=self.cells[left > 0], counts=left[left > 0])

    def same(self) -> bool:
        """Whether the remaining rows would decide on the same unit."""
        n = int(self.counts.sum())
        if n == 0 or self.share is None:
            return n > 0
        if any(int(self.counts.max()) < _rows_needed(n, share) for share in range(self.share)):
            return False
        m = _rows_needed(n, self.share)
        return (
            _holds(self.cells >> 1, self.counts, m)
            and not _holds(self.cells, self.counts, m)
            and _middle(self.cells, self.counts) == self.middle
        )


def _rows_needed(n: int, share: int) -> int:
    part, of = _SHARES[share]
    return -(-n * part // of)


def _cells(x: np.ndarray, exponent: int) -> np.ndarray:
    """The cells of the values."""
    with np.errstate(over="ignore"):
        cells = np.floor(np.ldexp(x, -exponent))
    return np.asarray(cells.clip(-(2.0**62), 2.0**62)).astype(np.int64)


def _holds(cells: np.ndarray, counts: np.ndarray, m: int) -> bool:
    """Whether any 8 adjacent cells contain m rows."""
    upto = np.append(0, counts.cumsum())
    return int((upto[np.searchsorted(cells, cells + _WINDOW)] - upto[:-1]).max()) >= m


def _middle(half_cells: np.ndarray, counts: np.ndarray) -> int:
    """The multiple of the scale nearest to the (lower) median."""
    upto = counts.cumsum()
    at = int(half_cells[np.searchsorted(upto, (int(upto[-1]) + 1) // 2)])
    return ((at >> 1) + 1) >> 1


@dataclass(frozen=True)
class FirstRows(ABC):
    """The first rows.

    Parameters
    ----------
    names : for each label, the names of the remaining first rows and their counts
    """

    names: dict[Hashable, Counter[int]]

    @abstractmethod
    def without(self, rows: np.ndarray) -> Self:
        """The same without these rows."""

    @abstractmethod
    def trace(self) -> str:
        """Decisions that the remaining rows would not make; "" if there are none."""

    def forgotten(
        self,
        rows: np.ndarray,
        names: Sequence[int],
        groups: Sequence[tuple[Hashable, slice]],
        left: Mapping[Hashable, Counter[int]],
    ) -> Self:
        """The same without forgotten rows. `left` holds the names of all remaining rows.

        Of equal rows, later ones are removed first.
        """
        removed, kept = [], dict(self.names)
        for label, of in groups:
            own, there = kept.get(label, Counter()).copy(), left.get(label, Counter())
            for i in range(of.start, of.stop):
                if own[names[i]] > there[names[i]]:
                    own[names[i]] -= 1
                    removed.append(i)
            kept[label] = +own
        if not removed:
            return self
        return replace(self.without(rows[removed]), names={k: v for k, v in kept.items() if v})


@dataclass(frozen=True)
class FirstVectors(FirstRows):
    """The first rows of vectors, column by column."""

    columns: tuple[Column, ...]

    def without(self, rows: np.ndarray) -> Self:
        columns = tuple(column.without(rows[:, j]) for j, column in enumerate(self.columns))
        return replace(self, columns=columns)

    def trace(self) -> str:
        other = [j for j, column in enumerate(self.columns) if not column.same()]
        if not other:
            return ""
        many = "" if len(other) <= 8 else f", … ({len(other)} in all)"
        listed = ", ".join(
            f"{j} ({self.columns[j].shift:g}, {self.columns[j].scale:g})" for j in other[:8]
        )
        return f"the units (shift, scale) of columns {listed}{many}"
