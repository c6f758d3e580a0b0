"""Rows that are moved to given numbers, which few or no rows of the table have.

The rows nearest to the given numbers are taken. Their other numbers change by as much
as least-squares regressions on the given numbers predict, if that is more than noise.

These regressions have no penalty, unlike the regressions of `draws.ridge_regression`:
an F ratio judges them, and it needs the rank of the regressors and their residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints
from sliceflow.errors import DataError
from sliceflow.estimators.tables.columns.level_positions import (
    GridValues,
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.table import Table

# How many rows are moved to a number: an eighth of all, within these limits. More rows
# are farther away, fewer give a noisier answer.
SHARE_OF_NEAREST_ROWS = 1 / 8
MIN_NEAREST_ROWS = 100
MAX_NEAREST_ROWS = 2_000

# Rows within this many standard deviations count as near, for the warning that few rows
# are near. With a larger number, users would not hear that all rows are far from what
# they asked for.
NEAR_DISTANCE = 0.5

# What a regression adds must explain this many times as much variance as noise would,
# or rows do not move by it: the square of the usual two standard errors. With 2,
# samples of a mixture were off by up to .8 of a mode's deviation instead of .3; with a
# larger one, curves would be taken for lines.
MIN_F = 4.0

# A regression is on at most one changed column for this many rows. With fewer rows for
# each column, it would fit the noise.
ROWS_PER_CHANGED_COLUMN = 20

# Singular values of regressors below this share of the largest count as 0: some numbers
# determine each other.
RANK_TOLERANCE = 1e-9

# Numbers are equal if they differ by at most this much, relative to their size: more
# than rounding errors of float64.
EQUAL_TOLERANCE = 1e-12


def move_to_values(
    table: Table,
    level_positions: LevelPositions,
    grid_values: Mapping[int, float],
    fixed_positions: Mapping[int, float],
) -> tuple[LevelPositions, int]:
    """Move the nearest of some rows to given numbers.

    Parameters
    ----------
    table : the table of the rows
    level_positions : (n, d), the rows that may be moved
    grid_values : the given numbers, by the indices of their columns
    fixed_positions : the positions of the same numbers, or the nearest in the table

    Returns
    -------
    moved : (k, d), the nearest rows after they moved
    n_near : how many of all rows were near
    """
    for c, grid_value in grid_values.items():
        _check_exact(table, c, grid_value, fixed_positions[c])
    given_indices = list(grid_values)
    complete = level_positions[has_all_values(level_positions, given_indices)]
    if not len(complete):
        raise DataError("no row has a value of all given columns at once")
    differences = _differences_to(table, complete, grid_values)
    distance = np.sqrt((differences**2).sum(axis=1))
    nearest_first = np.argsort(distance, kind="stable")
    nearest = nearest_first[: _n_rows_to_move(len(complete))]
    balanced = nearest[_balanced_rows(differences[nearest])]
    given_positions = [fixed_positions[c] for c in given_indices]
    moved = _move_rows(table, complete[balanced], given_indices, given_positions)
    return moved, int((distance < NEAR_DISTANCE).sum())


def _n_rows_to_move(n: int) -> int:
    """How many of n rows are moved to given numbers."""
    n_nearest = min(int(n * SHARE_OF_NEAREST_ROWS), MAX_NEAREST_ROWS)
    return min(n, max(MIN_NEAREST_ROWS, n_nearest))


def _balanced_rows(differences: Floats) -> Ints:
    """Indices of rows whose `differences` (k, g) to the given numbers average to 0.

    Near the end of a column, most of the nearest rows are on one side. The farthest
    rows of that side are left out until the mean is the given number. So the mean of
    another column is right, even if no regression finds how that column depends on the
    given one.
    """
    mean = differences.mean(axis=0)
    along_mean = differences @ mean
    order = np.argsort(along_mean, kind="stable")
    n_balanced = int((np.cumsum(along_mean[order]) <= 0).sum())
    return order[: max(n_balanced, MIN_NEAREST_ROWS)]


def _move_rows(
    table: Table,
    level_positions: LevelPositions,
    given_indices: Sequence[int],
    given_positions: Sequence[float],
) -> LevelPositions:
    """Rows (k, d) with other positions in the given columns.

    The other dense numbers change one after the other, by as much as they depend on
    the given columns and on the numbers that changed before. So a total stays the sum
    of its parts.
    """
    moved = level_positions.copy()
    moved[:, given_indices] = given_positions
    changed_indices = list[int]()
    for c in table.drawing_order:
        column = table.columns[c]
        is_moved = column.new_value_policy.is_interpolable(level_positions[:, c])
        if c in given_indices or not is_moved.any():
            continue
        given_numbers = _MovedNumbers.from_columns(
            table, given_indices, level_positions[is_moved], moved[is_moved]
        )
        changed = _MovedNumbers.from_columns(
            table, changed_indices, level_positions[is_moved], moved[is_moved]
        )
        before = column.grid_values_at(level_positions[is_moved, c])
        after = before + _predicted_change(before, changed, given_numbers)
        moved[is_moved, c] = column.nearest_positions(GridValues(after))
        changed_indices.append(c)
    return moved


class _MovedNumbers(NamedTuple):
    """Numbers of p columns before and after rows move, in standard deviations."""

    before: Floats  # (k, p), of rows as they are
    after: Floats  # (k, p), of the same rows when they have moved

    @classmethod
    def from_columns(
        cls,
        table: Table,
        column_indices: Sequence[int],
        level_positions: LevelPositions,
        moved: LevelPositions,
    ) -> _MovedNumbers:
        """The numbers of p columns in rows at `level_positions` (k, d), and at `moved`.

        A missing number is 0, the mean of its column.
        """
        before = np.zeros((len(level_positions), len(column_indices)))
        after = np.zeros((len(level_positions), len(column_indices)))
        for i, c in enumerate(column_indices):
            is_observed = has_value(level_positions[:, c])
            values = table.columns[c].grid_values_at(level_positions[is_observed, c])
            new_values = table.columns[c].grid_values_at(moved[is_observed, c])
            scale = values.std() or 1.0
            before[is_observed, i] = (values - values.mean()) / scale
            after[is_observed, i] = (new_values - values.mean()) / scale
        return cls(before, after)

    def join(self, other: _MovedNumbers) -> _MovedNumbers:
        """These numbers and, as further columns, others of the same rows."""
        before = np.hstack((self.before, other.before))
        return _MovedNumbers(before, np.hstack((self.after, other.after)))

    def most_correlated(self, y: Floats, n: int) -> _MovedNumbers:
        """The n columns that have the largest correlations with y (k,)."""
        strength = np.abs(self.before.T @ (y - y.mean()))
        best = np.argsort(-strength, kind="stable")[:n]
        return _MovedNumbers(self.before[:, best], self.after[:, best])

    def products(self) -> _MovedNumbers:
        """The products of all pairs of columns, squares among them."""
        first, second = np.triu_indices(self.before.shape[1])
        before = self.before[:, first] * self.before[:, second]
        return _MovedNumbers(before, self.after[:, first] * self.after[:, second])


def _predicted_change(
    y: Floats, changed: _MovedNumbers, given: _MovedNumbers
) -> Floats:
    """How much numbers y (k,) change if other numbers of their rows do.

    Three regressions of y predict the change: on the numbers that changed before, then
    also on the given numbers, then also on products of the given numbers. What a
    regression adds to the regression before counts by a share of max(0, 1 − MIN_F/F),
    where F is the usual ratio of explained to unexplained variance. Without this share,
    noise would move rows: of a mixture with modes ten deviations apart, by one
    deviation.
    """
    changed = changed.most_correlated(y, len(y) // ROWS_PER_CHANGED_COLUMN)
    with_given = changed.join(given)
    with_products = with_given.join(given.products())
    smaller = _LeastSquaresChange.from_data(y, changed)
    change = smaller.predicted_change
    for numbers in (with_given, with_products):
        larger = _LeastSquaresChange.from_data(y, numbers)
        share = larger.share_above_noise(smaller)
        change = change + share * (larger.predicted_change - smaller.predicted_change)
        smaller = larger
    return change


class _LeastSquaresChange(NamedTuple):
    """How much y changes by a least-squares regression, and how well that fits."""

    predicted_change: Floats  # (k,), of y
    residual_square: float  # the sum of squared residuals of y
    degrees_of_freedom: int  # of the residuals

    @classmethod
    def from_data(cls, y: Floats, numbers: _MovedNumbers) -> _LeastSquaresChange:
        """Regress y (k,) on numbers before they move, and predict by moved numbers."""
        center = numbers.before.mean(axis=0)
        x = numbers.before - center
        target = y - y.mean()
        coefficients, _, rank, _ = np.linalg.lstsq(x, target, rcond=RANK_TOLERANCE)
        residuals = target - x @ coefficients
        change = (numbers.after - numbers.before) @ coefficients
        return cls(change, float(residuals @ residuals), len(y) - 1 - int(rank))

    def share_above_noise(self, smaller: _LeastSquaresChange) -> float:
        """Which share (0 to 1) of the gain over a smaller regression is not noise."""
        n_added = smaller.degrees_of_freedom - self.degrees_of_freedom
        explained = smaller.residual_square - self.residual_square
        if n_added <= 0 or self.degrees_of_freedom <= 0 or explained <= 0:
            return 0.0
        noise = self.residual_square / self.degrees_of_freedom
        return max(0.0, 1 - MIN_F * noise * n_added / explained)


def _check_exact(table: Table, c: int, grid_value: float, position: float) -> None:
    """Raise an error if a constraint needs a given value that has no exact position.

    `position` is where the nearest value is. Without constraints, samples simply have
    the given value itself in place of the nearest one.
    """
    column = table.columns[c]
    stored = column.grid.round(
        column.grid_values_at(LevelPositions(np.array([position])))
    )[0]
    if abs(stored - grid_value) <= EQUAL_TOLERANCE * abs(grid_value):
        return
    for rule in table.rule_set.rules:
        if c in rule.column_indices and not rule.is_discovered:
            fact = (
                "the given number is outside the table's values, or finer than they "
                f"are, and the constraint {rule.text!r} needs them"
            )
            raise DataError(fact, "leave one out", column=column.name)


def _differences_to(
    table: Table, level_positions: LevelPositions, grid_values: Mapping[int, float]
) -> Floats:
    """Rows (n, d) minus given values of g columns (n, g), in standard deviations."""
    values = np.column_stack(
        [table.columns[c].grid_values_at(level_positions[:, c]) for c in grid_values]
    )
    deviations = values.std(axis=0)
    deviations = np.where(deviations > 0, deviations, 1.0)
    given = np.array(list(grid_values.values()))
    return np.asarray((values - given) / deviations)
