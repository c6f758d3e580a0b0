"""The regression of one column x on conditions y and on the residuals before it.

Its residual is e = ((x − m(y)) / exp(s(y)) − Σ_k a_k(y)·e_k) / exp(t(y)), with the
residuals e_k of the columns before. In the code, m is `mean`, s is `log_scale`, a are
`slopes` and t is `log_residual_scale`: each is a linear combination of features of y
(`bases.py`).

The functions are fitted in turn, each as a ridge regression given the others
(`ridge.py`): m and a together are least squares, s and t a few steps of Fisher scoring.
In this form they hardly interact, so that some sweeps suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.normal import LOG_TWO_PI
from sliceflow.estimators.density.ridge import evidence_ridge

# Sweeps over the functions, and steps of Fisher scoring in each.
MAX_SWEEPS = 3
SCORING_STEPS = 2
# A sweep that changes the log-likelihood by less, in nats per row, is the last.
LIKELIHOOD_TOL = 2e-4
# A step of scoring may lose this many times that limit, because a penalty costs some
# likelihood.
ACCEPTED_LOSS = 5
# Steps of scoring are halved down to this share of their length; after that,
# coefficients stay as they are.
MIN_STEP = 0.05
# Gradients of scales are limited to this many times their variance, which is 2 or more:
# a few rows far out should not move a scale everywhere.
MAX_GRADIENT = 5.0
# The largest |s| and |t|: exp(30) is 10¹³.
MAX_LOG_SCALE = 30.0

# The names of the two functions s and t, whose exponentials are scales.
ScaleName = Literal["log_scale", "log_residual_scale"]


@dataclass(frozen=True, eq=False)
class BasisExpansion:
    """A function of y: a linear combination of some of the p features of a basis.

    Parameters
    ----------
    is_active : which features (p,) the function has
    coefficients : of all features (p,), 0 where they are not active
    penalties : of the squared coefficients in each of the g groups, (g,)
    """

    is_active: Mask
    coefficients: Floats
    penalties: Floats

    @classmethod
    def constant(cls, value: float, groups: Ints) -> BasisExpansion:
        """A constant function, which has only the first feature; groups are (p,)."""
        is_constant = groups < 0
        coefficients = np.where(is_constant, value, 0.0)
        return replace(
            cls.zero(groups), is_active=is_constant, coefficients=coefficients
        )

    @classmethod
    def zero(cls, groups: Ints) -> BasisExpansion:
        """The function 0, without features; groups of the features are (p,)."""
        p = len(groups)
        n_groups = int(groups.max()) + 1
        return cls(np.zeros(p, bool), np.zeros(p), np.ones(n_groups))

    @property
    def is_zero(self) -> bool:
        """Whether the function has no features."""
        return not self.is_active.any()

    def with_features(self, is_added: Mask) -> BasisExpansion:
        """The same function, which also has the features `is_added` (p,)."""
        return replace(self, is_active=self.is_active | is_added)

    def with_coefficients(
        self, coefficients: Floats, penalties: Floats
    ) -> BasisExpansion:
        """The function with other coefficients, of its own features, and penalties."""
        all_coefficients = np.zeros(len(self.is_active))
        all_coefficients[self.is_active] = coefficients
        return BasisExpansion(self.is_active, all_coefficients, penalties)

    def take_features(
        self, is_kept: Mask, old_groups: Ints, groups: Ints
    ) -> BasisExpansion:
        """The same function of only some features, in groups that are counted anew.

        Parameters
        ----------
        is_kept : which features are kept, (p,)
        old_groups : the group of each of all p features so far
        groups : the new group of each kept feature
        """
        is_grouped = groups >= 0
        penalties = np.ones(int(groups.max()) + 1)
        old_groups_of_kept = old_groups[is_kept]
        penalties[groups[is_grouped]] = self.penalties[old_groups_of_kept[is_grouped]]
        return BasisExpansion(
            self.is_active[is_kept], self.coefficients[is_kept], penalties
        )


@dataclass(frozen=True, eq=False)
class Design:
    """The features and residuals on which a column is regressed, for n rows.

    Parameters
    ----------
    features : of y, (n, p)
    earlier_residuals : residuals of the j columns before this one, (n, j)
    x : the column (n,), standardized
    """

    features: Floats
    earlier_residuals: Floats
    x: Floats


@dataclass(frozen=True, eq=False)
class Residualization:
    """How a regression turns a column into residuals, step by step: all (n,).

    Parameters
    ----------
    log_scale : s
    log_residual_scale : t
    scaled : (x − m)/exp(s)
    explained : the part of `scaled` that the slopes explain
    residual : the other part of `scaled`, divided by exp(t)
    """

    log_scale: Floats
    log_residual_scale: Floats
    scaled: Floats
    explained: Floats
    residual: Floats

    def values_of(self, name: ScaleName) -> Floats:
        """The values (n,) of the function s or t that has this name."""
        if name == "log_scale":
            return self.log_scale
        return self.log_residual_scale

    def scale_gradient(self, name: ScaleName) -> tuple[Floats, Floats]:
        """The derivative (n,) of log-likelihoods with s or t, and its variance (n,).

        Derivatives are limited to `MAX_GRADIENT` times their variance.
        """
        if name == "log_residual_scale":
            gradient = self.residual**2 - 1
            variance = np.full(len(gradient), 2.0)
        else:
            weight = np.exp(-self.log_residual_scale)
            gradient = self.residual * self.scaled * weight - 1
            variance = 2 + (self.explained * weight) ** 2
        limit = MAX_GRADIENT * variance
        return np.clip(gradient, -limit, limit), variance


class _LinearTerm(NamedTuple):
    """A function that residuals depend on linearly, and its factor (n,) in each row."""

    expansion: BasisExpansion
    factor: Floats

    def matrix(self, features: Floats) -> Floats:
        """The regressors (n, active) of its coefficients, from features (n, p)."""
        return np.asarray(features[:, self.expansion.is_active] * self.factor[:, None])


class _StackedTerms(NamedTuple):
    """Linear terms side by side, as one regression with c coefficients.

    Parameters
    ----------
    matrix : (n, c)
    groups : of every coefficient (c,); each term has groups of its own
    penalties : of the groups of all terms
    """

    matrix: Floats
    groups: Ints
    penalties: Floats


@dataclass(frozen=True, eq=False)
class ColumnRegression:
    """The regression of one column: its mean, its scale, its slopes, and their scale.

    Parameters
    ----------
    groups : the group of each feature (p,), −1 of the constant
    mean, log_scale, log_residual_scale : the functions m, s and t
    slopes : the functions a, one for each column before
    """

    groups: Ints
    mean: BasisExpansion
    log_scale: BasisExpansion
    slopes: tuple[BasisExpansion, ...]
    log_residual_scale: BasisExpansion

    @classmethod
    def without_y(cls, design: Design, groups: Ints) -> ColumnRegression:
        """The regression with a constant mean and a constant standard deviation."""
        n_earlier = design.earlier_residuals.shape[1]
        return cls(
            groups=groups,
            mean=BasisExpansion.constant(float(design.x.mean()), groups),
            log_scale=BasisExpansion.constant(float(np.log(design.x.std())), groups),
            slopes=(BasisExpansion.zero(groups),) * n_earlier,
            log_residual_scale=BasisExpansion.zero(groups),
        )

    @property
    def expansions(self) -> tuple[BasisExpansion, ...]:
        """All functions: mean, log_scale, log_residual_scale, and then the slopes."""
        return (self.mean, self.log_scale, self.log_residual_scale, *self.slopes)

    def has_same_features(self, other: ColumnRegression) -> bool:
        """Whether each function has the features that it has in another regression."""
        pairs = zip(self.expansions, other.expansions, strict=True)
        return all(np.array_equal(own.is_active, its.is_active) for own, its in pairs)

    def with_constant_slopes(self) -> ColumnRegression:
        """The same regression, in which slopes and their scale have a constant."""
        is_constant = self.groups < 0
        return replace(
            self,
            slopes=tuple(slope.with_features(is_constant) for slope in self.slopes),
            log_residual_scale=self.log_residual_scale.with_features(is_constant),
        )

    def take_features(self, is_kept: Mask, groups: Ints) -> ColumnRegression:
        """The regression on some of the features, of the p that it has so far.

        Parameters
        ----------
        is_kept : which features are kept, (p,)
        groups : the group of each kept feature, counted anew
        """
        return ColumnRegression(
            groups=groups,
            mean=self.mean.take_features(is_kept, self.groups, groups),
            log_scale=self.log_scale.take_features(is_kept, self.groups, groups),
            slopes=tuple(
                slope.take_features(is_kept, self.groups, groups)
                for slope in self.slopes
            ),
            log_residual_scale=self.log_residual_scale.take_features(
                is_kept, self.groups, groups
            ),
        )

    def scale_expansion(self, name: ScaleName) -> BasisExpansion:
        """The function s or t that has this name."""
        if name == "log_scale":
            return self.log_scale
        return self.log_residual_scale

    def with_scale(self, name: ScaleName, scale: BasisExpansion) -> ColumnRegression:
        """The same regression with another function s or t, which has this name."""
        if name == "log_scale":
            return replace(self, log_scale=scale)
        return replace(self, log_residual_scale=scale)

    def residualize(self, design: Design) -> Residualization:
        """The residuals (n,) of a column, and how they come about."""
        # One product for all functions reads the features once.
        coefficients = np.stack([each.coefficients for each in self.expansions], 1)
        values = design.features @ coefficients
        log_scale = limit_log_scale(values[:, 1])
        log_residual_scale = limit_log_scale(values[:, 2])
        scaled = (design.x - values[:, 0]) * np.exp(-log_scale)
        explained = (values[:, 3:] * design.earlier_residuals).sum(axis=1)
        return Residualization(
            log_scale=log_scale,
            log_residual_scale=log_residual_scale,
            scaled=scaled,
            explained=explained,
            residual=(scaled - explained) * np.exp(-log_residual_scale),
        )

    def log_likelihood(self, design: Design) -> float:
        """The mean log-density of Gaussian residuals, in nats per row."""
        residualized = self.residualize(design)
        log_prob = -0.5 * residualized.residual**2
        log_prob -= residualized.log_scale
        log_prob -= residualized.log_residual_scale
        return float(log_prob.mean()) - 0.5 * LOG_TWO_PI

    def fitted_to(
        self, design: Design, scales: Sequence[ScaleName]
    ) -> ColumnRegression:
        """Fit mean, slopes and these `scales` in turn, starting from their values."""
        fitted = self
        before = fitted.log_likelihood(design)
        for _ in range(MAX_SWEEPS):
            fitted = fitted._with_fitted_mean_and_slopes(design)
            for name in scales:
                fitted = fitted._with_fitted_scale(name, design)
            after = fitted.log_likelihood(design)
            if abs(after - before) < LIKELIHOOD_TOL:
                break
            before = after
        return fitted

    def _with_fitted_mean_and_slopes(self, design: Design) -> ColumnRegression:
        """Fit m and a by least squares: residuals are linear in both."""
        residualized = self.residualize(design)
        weight = np.exp(-residualized.log_residual_scale)
        mean_factor = weight * np.exp(-residualized.log_scale)
        terms = [_LinearTerm(self.mean, mean_factor)]
        fitted_slopes = [k for k, slope in enumerate(self.slopes) if not slope.is_zero]
        for k in fitted_slopes:
            factor = weight * design.earlier_residuals[:, k]
            terms.append(_LinearTerm(self.slopes[k], factor))
        stacked = _stack_terms(terms, design.features, self.groups)
        coefficients, penalties = evidence_ridge(
            stacked.matrix.T @ stacked.matrix,
            stacked.matrix.T @ (design.x * mean_factor),
            stacked.groups,
            stacked.penalties,
        )
        mean, *expansions = _unstack_terms(coefficients, penalties, terms)
        slopes = list(self.slopes)
        for k, expansion in zip(fitted_slopes, expansions, strict=True):
            slopes[k] = expansion
        return replace(self, mean=mean, slopes=tuple(slopes))

    def _with_fitted_scale(self, name: ScaleName, design: Design) -> ColumnRegression:
        """Fit s or t by Fisher scoring, with steps halved until rows are as likely."""
        scale = self.scale_expansion(name)
        if scale.is_zero:
            return self
        features = design.features[:, scale.is_active]
        groups = self.groups[scale.is_active]
        fitted = self
        before = self.log_likelihood(design)
        for _ in range(SCORING_STEPS):
            residualized = fitted.residualize(design)
            gradient, information = residualized.scale_gradient(name)
            working = information * residualized.values_of(name) + gradient
            coefficients, penalties = evidence_ridge(
                (features * information[:, None]).T @ features,
                features.T @ working,
                groups,
                fitted.scale_expansion(name).penalties,
            )
            proposed = scale.with_coefficients(coefficients, penalties)
            fitted, after = fitted._line_search(name, proposed, design, before)
            if abs(after - before) < LIKELIHOOD_TOL:
                break
            before = after
        return fitted

    def _line_search(
        self,
        name: ScaleName,
        proposed: BasisExpansion,
        design: Design,
        before: float,
    ) -> tuple[ColumnRegression, float]:
        """Move s or t towards a proposed function; also returns the log-likelihood.

        Steps are halved until little is lost of `before`, the log-likelihood of this
        regression. If even short steps lose more, the coefficients stay, and only the
        proposed penalties are taken.
        """
        start = self.scale_expansion(name).coefficients
        step = 1.0
        while step > MIN_STEP:
            coefficients = start + step * (proposed.coefficients - start)
            moved = self.with_scale(name, replace(proposed, coefficients=coefficients))
            after = moved.log_likelihood(design)
            if after > before - ACCEPTED_LOSS * LIKELIHOOD_TOL:
                return moved, after
            step /= 2
        return self.with_scale(name, replace(proposed, coefficients=start)), before


def _stack_terms(
    terms: Sequence[_LinearTerm], features: Floats, groups: Ints
) -> _StackedTerms:
    """Join terms into one regression, in which each has penalties of its own.

    `groups` (p,) has the group of each feature. Constants, of group −1, stay there.
    """
    blocks = []
    groups_of_blocks = []
    n_groups = 0  # of the terms before
    for term in terms:
        groups_of_term = groups[term.expansion.is_active]
        blocks.append(term.matrix(features))
        groups_of_blocks.append(
            np.where(groups_of_term >= 0, groups_of_term + n_groups, groups_of_term)
        )
        n_groups += len(term.expansion.penalties)
    return _StackedTerms(
        np.concatenate(blocks, axis=1),
        np.concatenate(groups_of_blocks),
        np.concatenate([term.expansion.penalties for term in terms]),
    )


def _unstack_terms(
    coefficients: Floats, penalties: Floats, terms: Sequence[_LinearTerm]
) -> list[BasisExpansion]:
    """The functions of the terms, with the coefficients of the stacked regression.

    The inverse of `_stack_terms`: `coefficients` and `penalties` are of all terms, one
    term after the other.
    """
    expansions = []
    for term in terms:
        n_coefficients = int(term.expansion.is_active.sum())
        n_groups = len(term.expansion.penalties)
        expansion = term.expansion.with_coefficients(
            coefficients[:n_coefficients], penalties[:n_groups]
        )
        expansions.append(expansion)
        coefficients = coefficients[n_coefficients:]
        penalties = penalties[n_groups:]
    return expansions


def limit_log_scale(log_scale: Floats) -> Floats:
    """Logarithms of scales between ±`MAX_LOG_SCALE`."""
    return np.clip(log_scale, -MAX_LOG_SCALE, MAX_LOG_SCALE)
