"""The initial imputation of missing cells: from donors, corrected by a regression.

It is the guess from which the sweeps (`sweeps`) start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Floats, Ints
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_value,
    is_missing,
)

# A row is first filled from one of this many donors, the nearest ones. Donors are some
# of the training rows, and are compared by the first columns; both limits save time. 40
# nearest donors were no better (on caschool, the error was .293 instead of .295).
N_NEAREST_DONORS = 10
MAX_DONORS = 5_000
MAX_COLUMNS_OF_DONORS = 50

# The penalty of the regression that corrects the initial imputation, relative to
# variances of about 1: it allows that columns determine each other. A larger one would
# keep filled cells of such columns near their donors. If donors have missing cells, the
# regression takes this many iterations of expectation maximization: few, because it is
# only a first guess.
COVARIANCE_PENALTY = 1e-4
N_EM_ITERATIONS = 4


def impute_from_donors(
    columns: Sequence[Column],
    training_positions: LevelPositions,
    level_positions: LevelPositions,
    fillable_indices: Sequence[int],
    rng: np.random.Generator,
) -> None:
    """Fill the missing cells of rows (m, d), in place, as a first guess.

    The nearest donors of a row are put in random order. A missing category is copied
    from the first of these donors that has the cell. A missing number is that of the
    first donor, plus the difference between donor and row that a regression on their
    other cells expects.

    Parameters
    ----------
    columns : all columns of the table
    training_positions : (r, d); the donors are the first of these rows
    level_positions : (m, d), the rows to fill
    fillable_indices : indices of the columns to fill
    rng : chooses the donors of each row
    """
    donor_positions = training_positions[:MAX_DONORS]
    donor_points = _points(columns, donor_positions, fillable_indices)
    # Equal rows, of which there are many copies, are looked up once.
    distinct_positions, index = np.unique(level_positions, axis=0, return_inverse=True)
    index = index.reshape(-1)
    points = _points(columns, LevelPositions(distinct_positions), fillable_indices)
    nearest = rng.permuted(_find_donors(donor_points, points)[index], axis=1)
    expected = _expected_points(donor_points, nearest[:, 0], points[index])
    axis_of_column = _first_axes(columns, fillable_indices)
    for c in fillable_indices:
        is_to_fill = is_missing(level_positions[:, c])
        if columns[c].is_quantitative and c in axis_of_column:
            scores = expected[is_to_fill, axis_of_column[c]]
            level_positions[is_to_fill, c] = _nearest_levels(columns[c], scores)
        else:
            donor_cells = donor_positions[nearest[is_to_fill], c]
            level_positions[is_to_fill, c] = _first_observed(donor_cells)


def _first_axes(
    columns: Sequence[Column], fillable_indices: Sequence[int]
) -> dict[int, int]:
    """The first axis that each column has in `_points`, by the column's index."""
    axis_of_column = {}
    axis = 0
    for c in fillable_indices[:MAX_COLUMNS_OF_DONORS]:
        axis_of_column[c] = axis
        axis += columns[c].features(_all_levels(columns[c])).shape[1]
    return axis_of_column


def _nearest_levels(column: Column, scores: Floats) -> LevelPositions:
    """The levels, as positions (m,), whose normal scores are nearest to scores (m,)."""
    levels = _all_levels(column)
    level_scores = column.features(levels)[:, 0]
    return LevelPositions(np.rint(np.interp(scores, level_scores, levels)))


def _all_levels(column: Column) -> LevelPositions:
    """The positions (k,) of all levels of a column: 0, 1, …"""
    return LevelPositions(np.arange(column.n_levels, dtype=np.float64))


def _find_donors(donor_points: Floats, points: Floats) -> Ints:
    """Indices (m, k) of the donors nearest to points (m, a), the nearest first."""
    # This imports torch, which takes seconds; without missing cells it is not needed.
    from sliceflow.neighbors.search import build_index, query_index

    k = min(N_NEAREST_DONORS, len(donor_points))
    donor_index = build_index(donor_points, metric="nan_euclidean")
    return query_index(donor_index, points, k)[1].numpy()


def _expected_points(donor_points: Floats, donor: Ints, points: Floats) -> Floats:
    """Points (m, a) whose missing features (NaN) follow from one donor (m,) each.

    A missing feature is the donor's, plus the expected difference between both points.
    This is the conditional mean of the difference, given the other features, in the
    Gaussian of all donors.
    """
    completed, precision = _fit_gaussian(donor_points)
    donor_features = completed[donor]
    differences, _ = _conditional_means(points - donor_features, precision)
    return np.asarray(donor_features + differences)


def _first_observed(positions: LevelPositions) -> LevelPositions:
    """The first cell in each row of (m, k) that is not missing, unless all are."""
    first = np.argmax(has_value(positions), axis=1)
    return positions[np.arange(len(positions)), first]


def _points(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    fillable_indices: Sequence[int],
) -> Floats:
    """The features (m, a) of the first columns, NaN for missing cells."""
    axes = []
    for c in fillable_indices[:MAX_COLUMNS_OF_DONORS]:
        features = columns[c].features(level_positions[:, c])
        axes.append(np.where(is_missing(level_positions[:, [c]]), np.nan, features))
    return np.hstack(axes)


def _fit_gaussian(points: Floats) -> tuple[Floats, Floats]:
    """Fit a Gaussian to points (m, a) with missing features (NaN).

    Returns the points with missing features replaced by their expectations, and the
    precision matrix (a, a). Expectation maximization computes in turn the expectations
    given the Gaussian, and the Gaussian given the completed points and the covariance
    around the expectations.
    """
    n_axes = points.shape[1]
    is_missing_feature = np.isnan(points)
    n_observed = np.maximum(1, (~is_missing_feature).sum(0))
    mean = np.nansum(points, axis=0) / n_observed
    completed = np.where(is_missing_feature, mean, points)
    residual_covariance = np.zeros((n_axes, n_axes))
    n_iterations = 1
    if is_missing_feature.any():
        n_iterations = N_EM_ITERATIONS
    for _ in range(n_iterations):
        covariance = np.atleast_2d(np.cov(completed.T, ddof=0)) + residual_covariance
        covariance = covariance + COVARIANCE_PENALTY * np.eye(n_axes)
        precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        mean = completed.mean(0)
        completed, residual_covariance = _conditional_means(points - mean, precision)
        completed += mean
    return completed, precision


def _conditional_means(points: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Points (m, a) of a Gaussian around 0, with NaN replaced by conditional means.

    With the precision matrix P and missing features M, the others K, the mean is x_M
    = −P_MM⁻¹ P_MK x_K, with the covariance P_MM⁻¹. Also returns the mean (a, a) of
    these covariances over all points.
    """
    completed = np.nan_to_num(points)
    mean_covariance = np.zeros_like(precision)
    patterns, index = np.unique(np.isnan(points), axis=0, return_inverse=True)
    index = index.reshape(-1)
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    groups = np.split(order, ends[:-1])
    for pattern, row_indices in zip(patterns, groups, strict=True):
        missing = np.flatnonzero(pattern)  # indices of axes
        observed = np.flatnonzero(~pattern)
        covariance = np.linalg.inv(precision[np.ix_(missing, missing)])
        slopes = precision[np.ix_(observed, missing)] @ covariance
        known = completed[np.ix_(row_indices, observed)]
        completed[np.ix_(row_indices, missing)] = -known @ slopes
        share = len(row_indices) / len(points)
        mean_covariance[np.ix_(missing, missing)] += covariance * share
    return completed, mean_covariance
