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
from typing import Annotated

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.saved_types import ArraySpec
from sliceflow.spaces.density.bases import SmoothBasis
from sliceflow.spaces.density.column_regression import (
    BasisExpansion,
    ColumnRegression,
    Design,
    ScaleName,
    limit_log_scale,
)
from sliceflow.spaces.density.group_selection import GroupSelection, ScoreTest
from sliceflow.spaces.density.learned_directions import (
    N_ROUNDS,
    TRIAL_DIRECTIONS,
    learn_directions,
)
from sliceflow.spaces.density.log_normal import (
    log_normal_score,
    normal_score,
    take_logs,
)
from sliceflow.spaces.density.progress import FitProgress

__all__ = ["AffineMapGivenY", "TriangularRegression"]

# Groups are selected with at most this many rows, of which a fifth is held out. With
# more, it takes longer than the last fit to all rows.
MAX_SELECTION_ROWS = 20_000
HELD_OUT_SHARE = 0.2
# What the progress of a fit calls the part in which groups of features are tried.
TRIAL_FEATURES = "trial features"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    @classmethod
    def from_data(
        cls, x: Floats, y: Floats, seed: Seed, progress: FitProgress
    ) -> TriangularRegression:
        """Select the groups of every column, and fit them to all rows.

        Columns of x (n, d) must not be constant; y is (n, l).
        """
        progress.expect(TRIAL_DIRECTIONS, 1, 1 + N_ROUNDS)
        progress.expect(TRIAL_FEATURES, 1, x.shape[1])
        is_logged = np.array(
            [log_normal_score(column) > normal_score(column) for column in x.T]
        )
        logs = take_logs(x, is_logged)
        shift = logs.mean(axis=0)
        scale = logs.std(axis=0)
        standardized = (logs - shift) / scale
        full_basis = SmoothBasis.from_data(y, seed.child("basis"))
        order = seed.child("held out").permutation(len(x)).numpy()
        train, held_out = _split(order)
        full_basis = learn_directions(
            full_basis,
            (standardized[train], y[train]),
            (standardized[held_out], y[held_out]),
            seed.child("learned directions"),
            progress,
        )
        columns = _select_columns(
            full_basis,
            (standardized[train], y[train]),
            (standardized[held_out], y[held_out]),
            progress,
        )
        used_groups = _used_groups(columns, full_basis)
        basis = full_basis.keep(used_groups)
        groups, _ = full_basis.groups()
        is_kept = np.append(used_groups, True)[groups]
        _refit(columns, basis, is_kept, standardized, y)

        slope_pairs = []
        slopes = []
        for j, column in enumerate(columns):
            for k, slope in enumerate(column.slopes):
                if not slope.is_zero:
                    slope_pairs.append((j, k))
                    slopes.append(slope.coefficients)
        p = len(columns[0].groups)
        return cls(
            basis=basis,
            is_logged=is_logged,
            shift=shift,
            scale=scale,
            mean=_coefficients([column.mean for column in columns]),
            log_scale=_coefficients([column.log_scale for column in columns]),
            log_residual_scale=_coefficients(
                [column.log_residual_scale for column in columns]
            ),
            slope_pairs=np.array(slope_pairs, int).reshape(-1, 2),
            slopes=np.array(slopes).reshape(-1, p).T,
        )

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


def _coefficients(functions: Sequence[BasisExpansion]) -> Floats:
    """The coefficients (p, d) of one function of each of d columns."""
    return np.stack([function.coefficients for function in functions], 1)


def _split(order: Ints) -> tuple[Ints, Ints]:
    """Indices of the rows to fit groups to, and of those that judge them."""
    order = order[:MAX_SELECTION_ROWS]
    n_held_out = max(1, int(HELD_OUT_SHARE * len(order)))
    return order[n_held_out:], order[:n_held_out]


def _select_columns(
    basis: SmoothBasis,
    train: tuple[Floats, Floats],
    held_out: tuple[Floats, Floats],
    progress: FitProgress,
) -> list[ColumnRegression]:
    """Regressions of all columns, fitted to some rows and judged by others.

    Parameters
    ----------
    basis : all features
    train, held_out : standardized rows (n, d) and their conditions (n, l) each
    progress : hears of every column
    """
    x, y = train
    held_out_x, held_out_y = held_out
    features = basis.features(y)
    held_out_features = basis.features(held_out_y)
    groups, stages = basis.groups()
    test = ScoreTest.from_features(features, groups)
    d = x.shape[1]
    residuals = np.empty(x.shape)
    held_out_residuals = np.empty(held_out_x.shape)
    columns = []
    progress.begin(TRIAL_FEATURES)
    for j in range(d):
        design = Design(features, residuals[:, :j], x[:, j])
        held_out_design = Design(
            held_out_features, held_out_residuals[:, :j], held_out_x[:, j]
        )
        column = GroupSelection(design, held_out_design, test, stages).select()
        residuals[:, j] = column.residualize(design).residual
        held_out_residuals[:, j] = column.residualize(held_out_design).residual
        columns.append(column)
        score = column.log_likelihood(held_out_design)
        trial = f"functions of y for column {j + 1} of {d}"
        progress.notify_of_trial(trial, score)
    return columns


def _used_groups(columns: Sequence[ColumnRegression], basis: SmoothBasis) -> Mask:
    """Which groups (g,) of the basis any function of any column has."""
    groups, _ = basis.groups()
    is_feature_used = np.zeros(len(groups), bool)
    for column in columns:
        for expansion in column.expansions:
            is_feature_used |= expansion.active
    used_groups = np.zeros(int(groups.max()) + 1, bool)
    used_groups[groups[is_feature_used & (groups >= 0)]] = True
    return used_groups


def _refit(
    columns: Sequence[ColumnRegression],
    basis: SmoothBasis,
    is_kept: Mask,
    x: Floats,
    y: Floats,
) -> None:
    """Fit the regressions again, to all rows, with the features of a smaller basis.

    Parameters
    ----------
    columns : the regressions, which change
    basis : the features that are kept
    is_kept : which of the features (p,) they had so far are kept
    x, y : standardized rows (n, d) and their conditions (n, l)
    """
    features = basis.features(y)
    groups, _ = basis.groups()
    n_groups = int(groups.max()) + 1
    residuals = np.empty(x.shape)
    for j, column in enumerate(columns):
        old_groups = column.groups[is_kept]
        column.groups = groups
        for expansion in column.expansions:
            expansion.active = expansion.active[is_kept]
            expansion.coefficients = expansion.coefficients[is_kept]
            penalties = np.ones(n_groups)
            penalties[groups[1:]] = expansion.penalties[old_groups[1:]]
            expansion.penalties = penalties
        design = Design(features, residuals[:, :j], x[:, j])
        scales: list[ScaleName] = ["log_scale"]
        if j > 0:
            scales = ["log_residual_scale", "log_scale"]
        column.fit(design, scales)
        residuals[:, j] = column.residualize(design).residual
