"""Ridge regressions that predict a number of a row from the other columns of the row.

Numbers are taken on one of three scales: as normal scores, as they are, or as
logarithms. If there are few numbers, their products are regressors, too. So a
regression of the numbers themselves finds sums and products of columns, and one of
logarithms finds ratios.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sliceflow.spaces.tables.columns import Column

Scale = Literal["scores", "numbers", "logs"]

# The penalty of squared coefficients, relative to the variance of a regressor. A total
# must stay the sum of its parts, so regressions of numbers and of logarithms have only
# the penalty that rounding errors need. Predicted scores need not be exact: they are
# one more feature of a tree.
RIDGE_PENALTY: dict[Scale, float] = {"scores": 1e-3, "numbers": 1e-6, "logs": 1e-6}

# With more numeric columns, their products are left out, to limit the regressors: of
# 12 columns there are 78 products.
MAX_COLUMNS_WITH_PRODUCTS = 12

# With fewer rows a regression with products would fit the noise. A usual rule of thumb.
MIN_ROWS_PER_REGRESSOR = 5

# A regression counts as exact if the median of its errors is at most this many standard
# deviations of the column: rounded totals are, measured ones are not.
EXACT_ERROR = 0.005

# Regressors are clipped to this many standard deviations, or one outlier and its
# products would decide the regression.
MAX_STANDARD_DEVIATIONS = 6

# Rows that are predicted at a time. It limits memory and changes no result.
ROWS_PER_BLOCK = 50_000

# exp(700) is just below the largest float64.
MAX_LOGARITHM = 700.0


@dataclass(frozen=True, eq=False)
class RidgeRegression:
    """A ridge regression of one number on other columns."""

    scale: Scale
    columns: Sequence[Column]  # all columns of the table
    predictors: np.ndarray  # (p,), indices of the columns that it sees
    means: np.ndarray  # of the numbers among these, to standardise them
    deviations: np.ndarray  # the standard deviations of the same numbers
    regressor_means: np.ndarray  # (q,)
    coefficients: np.ndarray  # (q,)
    intercept: float  # the mean of what is predicted

    @classmethod
    def fit(
        cls,
        scale: Scale,
        columns: Sequence[Column],
        z: np.ndarray,
        target: int,
        predictors: np.ndarray,
    ) -> RidgeRegression | None:
        """Regress the column `target` on `predictors`, for rows of positions z (n, d).

        The target has no missing cells. None if there are too few rows.
        """
        numbers = numbers_on_scale(scale, columns, z, predictors)
        with warnings.catch_warnings(action="ignore"):  # a column may be all missing
            means = np.nan_to_num(np.nanmean(numbers, axis=0))
            deviations = np.nan_to_num(np.nanstd(numbers, axis=0))
        deviations[deviations <= 0] = 1
        standardised = (numbers - means) / deviations
        x = _regressors(scale, columns, z, predictors, standardised)
        n_rows, n_regressors = x.shape
        if scale != "scores" and n_rows < MIN_ROWS_PER_REGRESSOR * n_regressors:
            return None
        y = numbers_on_scale(scale, columns, z, [target])[:, 0]
        regressor_means = x.mean(axis=0)
        x = x - regressor_means
        intercept = float(y.mean())
        penalty = RIDGE_PENALTY[scale] * n_rows * np.eye(n_regressors)
        coefficients = np.linalg.solve(x.T @ x + penalty, x.T @ (y - intercept))
        return cls(
            scale,
            columns,
            predictors,
            means,
            deviations,
            regressor_means,
            coefficients,
            intercept,
        )

    def predict(self, z: np.ndarray) -> np.ndarray:
        """Predictions (m,), on the scale of the regression, for positions z (m, d)."""
        n_blocks = len(z) // ROWS_PER_BLOCK + 1
        predictions = []
        for block in np.array_split(z, n_blocks):
            numbers = numbers_on_scale(self.scale, self.columns, block, self.predictors)
            standardised = (numbers - self.means) / self.deviations
            x = _regressors(
                self.scale, self.columns, block, self.predictors, standardised
            )
            predictions.append((x - self.regressor_means) @ self.coefficients)
        return self.intercept + np.concatenate(predictions)

    def to_positions(self, column: Column, values: np.ndarray) -> np.ndarray:
        """The positions of values (m,) that are on the scale of the regression.

        What is outside the range of the column becomes its lowest or highest value.
        """
        numbers = values
        if self.scale == "logs":
            numbers = np.exp(np.minimum(values, MAX_LOGARITHM)) - _log_offset(column)
        inside = np.clip(numbers, column.level_numbers[0], column.level_numbers[-1])
        return column.grid.grid_values_to_positions(column.grid.round(inside))

    def is_exact(self, z: np.ndarray, target: int) -> bool:
        """Whether it leaves hardly any error, as for a total and its parts."""
        column = self.columns[target]
        predicted = column.numbers(self.to_positions(column, self.predict(z)))
        errors = predicted - column.numbers(z[:, target])
        return bool(
            np.median(np.abs(errors)) <= EXACT_ERROR * column.level_numbers.std()
        )


def numbers_on_scale(
    scale: Scale, columns: Sequence[Column], z: np.ndarray, indices: Iterable[int]
) -> np.ndarray:
    """The cells (m, p) of the numeric columns among `indices`; missing ones are NaN.

    Of normal scores, missing cells have a score like a lowest value.
    """
    values = []
    for index in indices:
        column = columns[index]
        if not column.is_number:
            continue
        positions = z[:, index]
        if scale == "scores":
            values.append(column.features(positions)[:, 0])
        elif scale == "logs":
            values.append(np.log(column.numbers(positions) + _log_offset(column)))
        else:
            values.append(column.numbers(positions))
    if not values:
        return np.empty((len(z), 0))
    return np.column_stack(values)


def _log_offset(column: Column) -> float:
    """What is added to the numbers of a column before logarithms are taken.

    Numbers count steps from the lowest value. If the values themselves are positive,
    the offset gives these back. Else the lowest number becomes 1.
    """
    zero = column.grid.origin / column.grid.step
    if column.level_numbers[0] + zero > 0:
        return zero
    return 1.0 - float(column.level_numbers[0])


def _regressors(
    scale: Scale,
    columns: Sequence[Column],
    z: np.ndarray,
    predictors: np.ndarray,
    standardised: np.ndarray,
) -> np.ndarray:
    """The regressors (m, q) of rows with positions z (m, d).

    These are the standardised numbers, with the mean for a missing one, the axes of
    categories, and the products of numbers if these are few.
    """
    x = np.clip(
        np.nan_to_num(standardised), -MAX_STANDARD_DEVIATIONS, MAX_STANDARD_DEVIATIONS
    )
    parts = [x]
    for index in predictors:
        if not columns[index].is_number:
            parts.append(columns[index].features(z[:, index]))
    if scale != "scores" and x.shape[1] <= MAX_COLUMNS_WITH_PRODUCTS:
        first, second = np.triu_indices(x.shape[1])
        parts.append(x[:, first] * x[:, second])
    return np.hstack(parts)
