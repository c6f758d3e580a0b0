"""Ridge regressions that predict a number of a row from the other columns of the row.

Quantitative columns are taken on one of three scales: their normal scores, their grid
values, or the logarithms of the grid values. If the columns are few, their products are
regressors, too. So a regression of grid values finds sums and products of columns, and
a regression of logarithms finds ratios.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sliceflow.arrays import MAX_EXPONENT, Floats, Ints
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.column_data import ColumnData
from sliceflow.estimators.tables.columns.level_positions import (
    GridValues,
    LevelPositions,
)

Scale = Literal["score", "grid_value", "log"]

# The penalty of squared coefficients, relative to the variance of a regressor. A total
# must stay the sum of its parts, so regressions of grid values and of logarithms have
# only the penalty that rounding errors need. Predicted scores need not be exact: they
# are one more feature of a tree.
RIDGE_PENALTY_OF_SCALE: dict[Scale, float] = {
    "score": 1e-3,
    "grid_value": 1e-6,
    "log": 1e-6,
}

# With more quantitative columns than this, products are left out, to limit the
# regressors: 12 columns have 78 products.
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


@dataclass(frozen=True, eq=False)
class RidgeRegression:
    """A ridge regression of one quantitative column on other columns."""

    scale: Scale
    columns: Sequence[Column]  # all columns of the table
    predictor_indices: Ints  # (p,), indices of the columns that it sees
    means: Floats  # (p₁,), of the quantitative predictors, to standardize them
    deviations: Floats  # (p₁,), the standard deviations of the same columns
    regressor_means: Floats  # (q,)
    coefficients: Floats  # (q,)
    intercept: float  # the mean of what is predicted

    @classmethod
    def from_data(cls, scale: Scale, data: ColumnData) -> RidgeRegression | None:
        """Regress a column without missing cells on its predictors.

        None if there are too few rows.
        """
        columns = data.columns
        level_positions = data.level_positions
        predictor_indices = data.predictor_indices
        values = values_on_scale(scale, columns, level_positions, predictor_indices)
        means, deviations = _means_and_deviations(values)
        standardized = (values - means) / deviations
        regressors = _regressors(
            scale, columns, level_positions, predictor_indices, standardized
        )
        n_rows, n_regressors = regressors.shape
        if scale != "score" and n_rows < MIN_ROWS_PER_REGRESSOR * n_regressors:
            return None
        target = target_on_scale(scale, data)
        regressor_means = regressors.mean(axis=0)
        intercept = float(target.mean())
        coefficients = _solve_ridge(
            regressors - regressor_means,
            target - intercept,
            penalty=RIDGE_PENALTY_OF_SCALE[scale] * n_rows,
        )
        return cls(
            scale,
            columns,
            predictor_indices,
            means,
            deviations,
            regressor_means,
            coefficients,
            intercept,
        )

    def predict(self, level_positions: LevelPositions) -> Floats:
        """Predictions (m,), on the scale of the regression, for positions (m, d)."""
        n_blocks = len(level_positions) // ROWS_PER_BLOCK + 1
        predictions = []
        for part in np.array_split(level_positions, n_blocks):
            block = LevelPositions(part)
            values = values_on_scale(
                self.scale, self.columns, block, self.predictor_indices
            )
            standardized = (values - self.means) / self.deviations
            regressors = _regressors(
                self.scale, self.columns, block, self.predictor_indices, standardized
            )
            predictions.append((regressors - self.regressor_means) @ self.coefficients)
        return self.intercept + np.concatenate(predictions)

    def to_positions(
        self, column: Column, values: Floats, clip: bool = True
    ) -> LevelPositions:
        """The positions of values (m,) that are on the scale of the regression.

        A value outside the range of the column becomes the lowest or highest value of
        the column, or `IMPOSSIBLE` without `clip`.
        """
        grid_values = values
        if self.scale == "log":
            exponentials = np.exp(np.minimum(values, MAX_EXPONENT))
            grid_values = exponentials - _log_offset(column)
        if clip:
            return column.nearest_positions(GridValues(grid_values))
        return column.grid.rounded_positions(GridValues(grid_values))

    def is_exact(self, data: ColumnData) -> bool:
        """Whether errors are tiny, as for a total that is computed from its parts."""
        column = data.column
        predicted = column.grid_values_at(
            self.to_positions(column, self.predict(data.level_positions))
        )
        errors = np.abs(predicted - column.grid_values_at(data.positions))
        return bool(np.median(errors) <= EXACT_ERROR * column.level_grid_values.std())


def _means_and_deviations(values: Floats) -> tuple[Floats, Floats]:
    """The means and standard deviations (p,) of columns of (n, p); NaN is missing.

    Those of a column without values are 0 and 1, and no deviation is 0.
    """
    with warnings.catch_warnings(action="ignore"):  # a column may be all missing
        means = np.nan_to_num(np.nanmean(values, axis=0))
        deviations = np.nan_to_num(np.nanstd(values, axis=0))
    deviations[deviations <= 0] = 1
    return means, deviations


def _solve_ridge(x: Floats, y: Floats, penalty: float) -> Floats:
    """(xᵀx + penalty·I)⁻¹ xᵀy: coefficients (q,) for centered x (n, q) and y (n,)."""
    gram = x.T @ x + penalty * np.eye(x.shape[1])
    return np.asarray(np.linalg.solve(gram, x.T @ y), dtype=np.float64)


def target_on_scale(scale: Scale, data: ColumnData) -> Floats:
    """The cells (n,) of the column that is regressed, on the regression's scale."""
    return values_on_scale(
        scale, data.columns, data.level_positions, [data.column_index]
    )[:, 0]


def values_on_scale(
    scale: Scale,
    columns: Sequence[Column],
    level_positions: LevelPositions,
    column_indices: Iterable[int],
) -> Floats:
    """The cells (m, p) of the p columns that are quantitative; missing ones are NaN.

    On the scale of normal scores, missing cells have a score below all others.
    """
    values = []
    for c in column_indices:
        column = columns[c]
        if not column.is_quantitative:
            continue
        positions = level_positions[:, c]
        if scale == "score":
            values.append(column.features(positions)[:, 0])
        elif scale == "log":
            grid_values = column.grid_values_at(positions)
            values.append(np.log(grid_values + _log_offset(column)))
        else:
            values.append(column.grid_values_at(positions))
    if not values:
        return np.empty((len(level_positions), 0))
    return np.column_stack(values)


def _log_offset(column: Column) -> float:
    """What is added to the grid values of a column before logarithms are taken.

    Grid values count steps from the lowest value. If the values themselves are
    positive, the offset gives these back. Else the lowest grid value becomes 1.
    """
    lowest = float(column.level_grid_values[0])
    zero = column.grid.origin / column.grid.spacing
    if lowest + zero > 0:
        return zero
    return 1.0 - lowest


def _regressors(
    scale: Scale,
    columns: Sequence[Column],
    level_positions: LevelPositions,
    predictor_indices: Ints,
    standardized: Floats,
) -> Floats:
    """The regressors (m, q) of rows with positions (m, d).

    These are the `standardized` numbers, with the mean for a missing one, the axes of
    categories, and the products of numbers if these are few.
    """
    numbers = np.clip(
        np.nan_to_num(standardized), -MAX_STANDARD_DEVIATIONS, MAX_STANDARD_DEVIATIONS
    )
    parts = [numbers]
    for c in predictor_indices:
        if not columns[c].is_quantitative:
            parts.append(columns[c].features(level_positions[:, c]))
    n_numbers = numbers.shape[1]
    if scale != "score" and n_numbers <= MAX_COLUMNS_WITH_PRODUCTS:
        first, second = np.triu_indices(n_numbers)
        parts.append(numbers[:, first] * numbers[:, second])
    return np.hstack(parts)
