"""Regressions of rows x on conditions y: means, scales and correlations.

Column by column, in the triangular form of Knothe and Rosenblatt, the residuals are

    e_j = ((x_j − m_j(y)) / exp(s_j(y)) − Σ_{k<j} a_jk(y)·e_k) / exp(t_j(y)),

with functions m, s, a and t of `bases.py`: mean and scale of a column given y, then its
slopes on the residuals before it, and the scale of what these leave. If x given y is
Gaussian, residuals are N(0, I) and independent of y.

`group_selection.py` chooses the features of each function, and `column_regression.py`
fits the functions of one column. This module joins all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.estimators.density.bases import SmoothBasis, is_in_chosen_group
from sliceflow.estimators.density.column_regression import (
    BasisExpansion,
    ColumnRegression,
    Design,
    ScaleName,
    limit_log_scale,
)
from sliceflow.estimators.density.group_selection import GroupSelection, ScoreTest
from sliceflow.estimators.density.learned_directions import (
    N_ROUNDS,
    TRIAL_DIRECTIONS,
    learn_directions,
)
from sliceflow.estimators.density.log_normal import (
    log_normal_score,
    normal_score,
    take_logs,
)
from sliceflow.estimators.density.progress import ExpectedPhases, FitProgress
from sliceflow.estimators.density.trials import RowsGivenY, Split
from sliceflow.saved_types import ArraySpec

__all__ = [
    "AffineMapGivenY",
    "TriangularRegression",
    "fit_triangular_regression",
]

# Groups are selected with at most this many rows, of which a fifth is held out. With
# more, it takes longer than the last fit to all rows.
MAX_SELECTION_ROWS = 20_000
HELD_OUT_SHARE = 0.2
# What the progress of a fit calls the phase in which groups of features are tried.
TRIAL_FEATURES = "trial features"


@dataclass(frozen=True, eq=False)
class AffineMapGivenY:
    """The affine map of rows to residuals at each of n conditions y.

    It has a mean, a scale and slopes of d columns at each y. Rows are standardized
    here, as in the regressions.

    Parameters
    ----------
    mean, log_scale, log_residual_scale : m, s and t, (n, d)
    slopes : a, (n, r), of the r pairs of columns that have one
    slope_pairs : (r, 2), the columns j and k of these
    """

    mean: Floats
    log_scale: Floats
    log_residual_scale: Floats
    slopes: Floats
    slope_pairs: Ints

    def call_and_ladj(self, rows: Floats) -> tuple[Floats, Floats]:
        """Residuals e (n, d) of rows (n, d) or (1, d), and log|det ∂e/∂rows| (n,)."""
        residuals = (rows - self.mean) * np.exp(-self.log_scale)
        for j in range(residuals.shape[1]):
            for i in np.flatnonzero(self.slope_pairs[:, 0] == j):
                earlier = residuals[:, self.slope_pairs[i, 1]]
                residuals[:, j] -= self.slopes[:, i] * earlier
            residuals[:, j] *= np.exp(-self.log_residual_scale[:, j])
        return residuals, -(self.log_scale + self.log_residual_scale).sum(axis=1)

    def inverse(self, residuals: Floats) -> Floats:
        """The rows (n, d) that have these residuals (n, d)."""
        scaled = residuals * np.exp(self.log_residual_scale)
        for i, (j, k) in enumerate(self.slope_pairs):
            scaled[:, j] += self.slopes[:, i] * residuals[:, k]
        return np.asarray(scaled * np.exp(self.log_scale) + self.mean)


@dataclass(frozen=True, eq=False)
class TriangularRegression:
    """Means, scales and slopes of all columns, as functions of y.

    Parameters
    ----------
    basis : the p features of y that are used
    is_logged : which columns (d,) of x are taken as logarithms
    shift, scale : units (d,) of the columns
    mean, log_scale, log_residual_scale : coefficients (p, d) of m, s and t
    slope_pairs : (r, 2), the columns j and k of the slopes that are not 0
    slopes : coefficients (p, r) of these slopes
    """

    basis: SmoothBasis
    is_logged: Annotated[np.ndarray, ArraySpec("d", "bool")]
    shift: Annotated[np.ndarray, ArraySpec("d", "float64")]
    scale: Annotated[np.ndarray, ArraySpec("d", "float64")]
    mean: Annotated[np.ndarray, ArraySpec("p d", "float64")]
    log_scale: Annotated[np.ndarray, ArraySpec("p d", "float64")]
    log_residual_scale: Annotated[np.ndarray, ArraySpec("p d", "float64")]
    slope_pairs: Annotated[np.ndarray, ArraySpec("r 2", "int64", ge=0)]
    slopes: Annotated[np.ndarray, ArraySpec("p r", "float64")]

    def map_given(self, y: Floats) -> AffineMapGivenY:
        """The affine map at each of n conditions y (n, l)."""
        features = self.basis.features(y)
        return AffineMapGivenY(
            mean=features @ self.mean,
            log_scale=limit_log_scale(features @ self.log_scale),
            log_residual_scale=limit_log_scale(features @ self.log_residual_scale),
            slopes=features @ self.slopes,
            slope_pairs=self.slope_pairs,
        )

    def call_and_ladj(
        self, x: Floats, map_given_y: AffineMapGivenY
    ) -> tuple[Floats, Floats]:
        """Residuals e (n, d) of rows x (n, d), and log|det ∂e/∂x| (n,).

        x may also be one row (1, d) for all n conditions.
        """
        standardized, ladj = self._standardize(x)
        residuals, ladj_of_residuals = map_given_y.call_and_ladj(standardized)
        return residuals, ladj + ladj_of_residuals

    def inverse(self, residuals: Floats, map_given_y: AffineMapGivenY) -> Floats:
        """Rows x (n, d) that have these residuals (n, d)."""
        rows = map_given_y.inverse(residuals) * self.scale + self.shift
        rows[:, self.is_logged] = np.exp(rows[:, self.is_logged])
        return np.asarray(rows)

    def _standardize(self, x: Floats) -> tuple[Floats, Floats]:
        """Rows x (n, d) in units of the regressions, and log|det| (n,) of that."""
        logs = take_logs(x, self.is_logged)
        ladj = -logs[:, self.is_logged].sum(axis=1) - np.log(self.scale).sum()
        return (logs - self.shift) / self.scale, ladj


def fit_triangular_regression(
    x: Floats, y: Floats, seed: Seed, progress: FitProgress
) -> TriangularRegression:
    """Fit the regression to rows x (n, d) and their conditions y (n, l).

    Trials choose the features of each function; then all rows are fitted. No column of
    x may be constant.
    """
    progress.announce(
        [
            ExpectedPhases(TRIAL_DIRECTIONS, 1, 1 + N_ROUNDS),
            ExpectedPhases(TRIAL_FEATURES, 1, x.shape[1]),
        ]
    )
    units = _ColumnUnits.from_data(x)
    rows = RowsGivenY(units.standardize(x), y)
    split = _split_rows(rows, seed.child("held out"))
    basis = learn_directions(
        SmoothBasis.from_data(y, seed.child("basis")),
        split,
        seed.child("learned directions"),
        progress,
    )
    columns = _select_columns(basis, split, progress)
    refitted, used_basis = _refit(columns, basis, rows)
    return _join_columns(refitted, used_basis, units)


class _ColumnUnits(NamedTuple):
    """The units of the columns of x: logarithms of some, in standard deviations."""

    is_logged: Mask  # (d,)
    shift: Floats  # (d,)
    scale: Floats  # (d,)

    @classmethod
    def from_data(cls, x: Floats) -> _ColumnUnits:
        """The units of rows x (n, d), with logarithms where log-normals fit better."""
        is_logged = np.array(
            [log_normal_score(column) > normal_score(column) for column in x.T]
        )
        logs = take_logs(x, is_logged)
        return cls(is_logged, shift=logs.mean(axis=0), scale=logs.std(axis=0))

    def standardize(self, x: Floats) -> Floats:
        """Rows x (n, d) in these units, (n, d)."""
        return np.asarray((take_logs(x, self.is_logged) - self.shift) / self.scale)


def _split_rows(rows: RowsGivenY, seed: Seed) -> Split[RowsGivenY]:
    """The rows to which groups are fitted, and those that judge them."""
    order = seed.permutation(len(rows.x)).numpy()[:MAX_SELECTION_ROWS]
    n_held_out = max(1, int(HELD_OUT_SHARE * len(order)))
    return Split(rows.take(order[n_held_out:]), rows.take(order[:n_held_out]))


def _select_columns(
    basis: SmoothBasis, split: Split[RowsGivenY], progress: FitProgress
) -> list[ColumnRegression]:
    """Fit the regressions of all d columns with the groups that held-out rows gain by.

    Parameters
    ----------
    basis : all features
    split : standardized rows (n, d) and their conditions (n, l)
    progress : hears of every column
    """
    features = basis.features(split.train.y)
    held_out_features = basis.features(split.held_out.y)
    test = ScoreTest.from_features(features, basis.group_of_each_feature())
    stages = basis.stage_of_each_group()
    residuals = np.empty(split.train.x.shape)
    held_out_residuals = np.empty(split.held_out.x.shape)
    _, d = split.train.x.shape
    columns = []
    progress.begin_phase(TRIAL_FEATURES)
    for j in range(d):
        design = Design(features, residuals[:, :j], split.train.x[:, j])
        held_out_design = Design(
            held_out_features, held_out_residuals[:, :j], split.held_out.x[:, j]
        )
        column = GroupSelection(design, held_out_design, test, stages).select()
        residuals[:, j] = column.residualize(design).residual
        held_out_residuals[:, j] = column.residualize(held_out_design).residual
        columns.append(column)
        score = column.log_likelihood(held_out_design)
        progress.notify_of_trial(f"functions of y for column {j + 1} of {d}", score)
    return columns


def _refit(
    columns: Sequence[ColumnRegression], basis: SmoothBasis, rows: RowsGivenY
) -> tuple[list[ColumnRegression], SmoothBasis]:
    """Fit the regressions of all columns again, to all rows.

    The basis keeps the features that the regression of any column has.

    Parameters
    ----------
    columns : the regressions, fitted to some of the rows
    basis : the features that they have so far
    rows : standardized rows (n, d) and their conditions (n, l)

    Returns
    -------
    refitted : the regressions, fitted to all rows
    used_basis : the groups that any function of any column has
    """
    is_group_used = _is_group_used(columns, basis)
    used_basis = basis.take_groups(is_group_used)
    is_kept = is_in_chosen_group(is_group_used, basis.group_of_each_feature())
    groups = used_basis.group_of_each_feature()
    features = used_basis.features(rows.y)
    residuals = np.empty(rows.x.shape)
    refitted = []
    for j, column in enumerate(columns):
        scales: list[ScaleName] = ["log_scale"]
        if j > 0:
            scales = ["log_residual_scale", "log_scale"]
        design = Design(features, residuals[:, :j], rows.x[:, j])
        fitted = column.take_features(is_kept, groups).fitted_to(design, scales)
        residuals[:, j] = fitted.residualize(design).residual
        refitted.append(fitted)
    return refitted, used_basis


def _is_group_used(columns: Sequence[ColumnRegression], basis: SmoothBasis) -> Mask:
    """Which groups (g,) of the basis any function of any column has."""
    groups = basis.group_of_each_feature()
    is_feature_used = np.zeros(len(groups), bool)
    for column in columns:
        for expansion in column.expansions:
            is_feature_used |= expansion.is_active
    is_group_used = np.zeros(int(groups.max()) + 1, bool)
    is_group_used[groups[is_feature_used & (groups >= 0)]] = True
    return is_group_used


def _join_columns(
    columns: Sequence[ColumnRegression], basis: SmoothBasis, units: _ColumnUnits
) -> TriangularRegression:
    """One regression of all columns, which have the features of a basis."""
    slope_pairs = []
    slopes = []
    for j, column in enumerate(columns):
        for k, slope in enumerate(column.slopes):
            if not slope.is_zero:
                slope_pairs.append((j, k))
                slopes.append(slope.coefficients)
    p = len(columns[0].groups)
    return TriangularRegression(
        basis=basis,
        is_logged=units.is_logged,
        shift=units.shift,
        scale=units.scale,
        mean=_coefficients([column.mean for column in columns]),
        log_scale=_coefficients([column.log_scale for column in columns]),
        log_residual_scale=_coefficients(
            [column.log_residual_scale for column in columns]
        ),
        slope_pairs=np.array(slope_pairs, int).reshape(-1, 2),
        slopes=np.array(slopes).reshape(-1, p).T,
    )


def _coefficients(functions: Sequence[BasisExpansion]) -> Floats:
    """The coefficients (p, d) of one function of each of d columns."""
    return np.stack([function.coefficients for function in functions], 1)
