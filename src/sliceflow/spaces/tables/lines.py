"""Lines: numbers predicted from other columns, by ridge regression.

A line measures numbers by their normal scores, as they are, or by logarithms. If numbers are few, it
takes their products, too. So sums, products and ratios of columns are on a line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sliceflow.spaces.tables.columns import Column

_RIDGE = {"scores": 1e-3, "numbers": 1e-6, "logs": 1e-6}  # less than that is rounding
_PRODUCTS = 12  # numbers, at most, that are multiplied
_PER_REGRESSOR = 5  # rows, at least
_EXACT = 0.005  # standard deviations
_FARTHEST = 6  # standard deviations, to which outliers are moved
_BLOCK = 50_000  # rows at a time


@dataclass(frozen=True, eq=False)
class Line:
    """A ridge regression of a number on the columns before: of normal scores, numbers or logarithms."""

    measure: str
    columns: Sequence[Column]  # of the table
    before: np.ndarray  # numbers of those that it sees
    units: np.ndarray  # (2, p), centre and scale of the numbers before
    mean: np.ndarray  # (q,), of the regressors,
    slopes: np.ndarray  # and theirs
    start: float  # mean of what is predicted

    @classmethod
    def fit(
        cls,
        measure: str,
        columns: Sequence[Column],
        z: np.ndarray,
        column: int,
        before: np.ndarray,
    ) -> Line | None:
        """None for too few rows."""
        numbers = measured(measure, columns, z, before)
        with warnings.catch_warnings(action="ignore"):  # all may be missing
            units = np.nan_to_num([np.nanmean(numbers, 0), np.nanstd(numbers, 0)])
        units[1, units[1] <= 0] = 1
        x = _regressors(measure, columns, z, before, (numbers - units[0]) / units[1])
        if measure != "scores" and len(x) < _PER_REGRESSOR * x.shape[1]:
            return None
        y = measured(measure, columns, z, [column])[:, 0]
        mean = x.mean(0)
        x = x - mean
        start = float(y.mean())
        gram = x.T @ x + _RIDGE[measure] * len(x) * np.eye(x.shape[1])
        slopes = np.linalg.solve(gram, x.T @ (y - start))
        return cls(measure, columns, before, units, mean, slopes, start)

    def at(self, z: np.ndarray) -> np.ndarray:
        """Predictions (m,) of rows."""
        how = (self.measure, self.columns)
        found = []
        for of in np.array_split(z, len(z) // _BLOCK + 1):
            numbers = (measured(*how, of, self.before) - self.units[0]) / self.units[1]
            found.append(
                (_regressors(*how, of, self.before, numbers) - self.mean) @ self.slopes
            )
        return self.start + np.concatenate(found)

    def is_exact(self, own: Column, z: np.ndarray, column: int) -> bool:
        """Whether it leaves hardly anything over, as of a total and its parts."""
        left = own.numbers(self.position(own, self.at(z))) - own.numbers(z[:, column])
        return bool(np.median(np.abs(left)) <= _EXACT * own.values.std())

    def position(self, own: Column, values: np.ndarray) -> np.ndarray:
        """The positions of what is predicted, with what was left over."""
        numbers = (
            np.exp(np.minimum(values, 700.0)) - _offset(own)
            if self.measure == "logs"
            else values
        )
        return own.positions_of(
            own.on_grid(np.clip(numbers, own.values[0], own.values[-1]))
        )


def _offset(own: Column) -> float:
    """What makes numbers positive: the zero of the column, if they all are."""
    zero = own.base / own.step
    return zero if own.values[0] + zero > 0 else 1.0 - float(own.values[0])


def measured(
    measure: str, columns: Sequence[Column], z: np.ndarray, which: Iterable[int]
) -> np.ndarray:
    """(m, p), the numbers among some columns."""
    out = []
    for own, at in ((columns[c], z[:, c]) for c in which):
        if own.is_number and measure == "scores":
            out.append(own.axes(at)[:, 0])
        elif own.is_number:
            numbers = own.numbers(at)
            out.append(np.log(numbers + _offset(own)) if measure == "logs" else numbers)
    return np.column_stack(out) if out else np.empty((len(z), 0))


def _regressors(
    measure: str,
    columns: Sequence[Column],
    z: np.ndarray,
    before: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """(m, q), what a line takes of rows and their standardised numbers; a missing one is average."""
    x = np.clip(np.nan_to_num(numbers), -_FARTHEST, _FARTHEST)
    others = [columns[c].axes(z[:, c]) for c in before if not columns[c].is_number]
    if measure != "scores" and x.shape[1] <= _PRODUCTS:
        a, b = np.triu_indices(x.shape[1])
        others.append(x[:, a] * x[:, b])
    return np.hstack((x, *others))
