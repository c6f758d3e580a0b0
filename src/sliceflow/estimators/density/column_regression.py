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
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

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


@dataclass
class BasisExpansion:
    """A function of y: a linear combination of some of the p features of a basis.

    Parameters
    ----------
    active : which features (p,) the function has
    coefficients : of all features (p,), 0 where they are not active
    penalties : of the squared coefficients in each of the g groups, (g,)
    """

    active: Mask
    coefficients: Floats
    penalties: Floats

    @classmethod
    def constant(cls, value: float, groups: Ints) -> BasisExpansion:
        """A constant function, which has only the first feature; groups are (p,)."""
        expansion = cls.zero(groups)
        expansion.active[0] = True
        expansion.coefficients[0] = value
        return expansion

    @classmethod
    def zero(cls, groups: Ints) -> BasisExpansion:
        """The function 0, without features; groups of the features are (p,)."""
        p = len(groups)
        n_groups = int(groups.max()) + 1
        return cls(np.zeros(p, bool), np.zeros(p), np.ones(n_groups))

    @property
    def is_zero(self) -> bool:
        """Whether the function has no features."""
        return not self.active.any()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    """A function in which residuals are linear, and its factor in each row, (n,)."""

    expansion: BasisExpansion
    factor: Floats

    def matrix(self, features: Floats) -> Floats:
        """What residuals are, for coefficients of 1: (n, active) of features (n, p)."""
        return np.asarray(features[:, self.expansion.active] * self.factor[:, None])


@dataclass
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
    slopes: list[BasisExpansion]
    log_residual_scale: BasisExpansion

    @classmethod
    def without_y(cls, design: Design, groups: Ints) -> ColumnRegression:
        """The regression with a constant mean and a constant standard deviation."""
        n_earlier = design.earlier_residuals.shape[1]
        return cls(
            groups=groups,
            mean=BasisExpansion.constant(float(design.x.mean()), groups),
            log_scale=BasisExpansion.constant(float(np.log(design.x.std())), groups),
            slopes=[BasisExpansion.zero(groups) for _ in range(n_earlier)],
            log_residual_scale=BasisExpansion.zero(groups),
        )

    @property
    def expansions(self) -> tuple[BasisExpansion, ...]:
        """All functions: mean, log_scale, log_residual_scale, and then the slopes."""
        return (self.mean, self.log_scale, self.log_residual_scale, *self.slopes)

    def keep_features(self, is_kept: Mask, groups: Ints) -> None:
        """Keep some of the features, of the p that the regression has so far.

        Parameters
        ----------
        is_kept : which features are kept, (p,)
        groups : the groups of those that are, counted anew
        """
        old_groups = self.groups[is_kept]
        self.groups = groups
        n_groups = int(groups.max()) + 1
        for expansion in self.expansions:
            expansion.active = expansion.active[is_kept]
            expansion.coefficients = expansion.coefficients[is_kept]
            penalties = np.ones(n_groups)
            penalties[groups[1:]] = expansion.penalties[old_groups[1:]]
            expansion.penalties = penalties

    def scale_expansion(self, name: ScaleName) -> BasisExpansion:
        """The function s or t that has this name."""
        if name == "log_scale":
            return self.log_scale
        return self.log_residual_scale

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

    def fit(self, design: Design, scales: Sequence[ScaleName]) -> Self:
        """Fit mean and slopes, and these `scales`, in turn."""
        before = self.log_likelihood(design)
        for _ in range(MAX_SWEEPS):
            self._fit_mean_and_slopes(design)
            for name in scales:
                self._fit_scale(name, design)
            after = self.log_likelihood(design)
            if abs(after - before) < LIKELIHOOD_TOL:
                break
            before = after
        return self

    def _fit_mean_and_slopes(self, design: Design) -> None:
        """Fit m and a by least squares: residuals are linear in both."""
        residualized = self.residualize(design)
        weight = np.exp(-residualized.log_residual_scale)
        mean_factor = weight * np.exp(-residualized.log_scale)
        terms = [_LinearTerm(self.mean, mean_factor)]
        for slope, earlier in zip(self.slopes, design.earlier_residuals.T, strict=True):
            if not slope.is_zero:
                terms.append(_LinearTerm(slope, weight * earlier))
        n_groups = len(self.mean.penalties)
        blocks = []
        groups = []
        for i, term in enumerate(terms):
            blocks.append(term.matrix(design.features))
            groups_of_term = self.groups[term.expansion.active]
            # Each term has penalties of its own. Constants, of group −1, have none.
            is_penalized = groups_of_term >= 0
            groups.append(groups_of_term + i * n_groups * is_penalized)
        matrix = np.concatenate(blocks, axis=1)
        coefficients, penalties = evidence_ridge(
            matrix.T @ matrix,
            matrix.T @ (design.x * mean_factor),
            np.concatenate(groups),
            np.concatenate([term.expansion.penalties for term in terms]),
        )
        ends = np.cumsum([block.shape[1] for block in blocks])
        coefficients_of_terms = np.split(coefficients, ends[:-1])
        penalties_of_terms = np.split(penalties, len(terms))
        for i, term in enumerate(terms):
            expansion = term.expansion
            expansion.coefficients[expansion.active] = coefficients_of_terms[i]
            expansion.penalties = penalties_of_terms[i]

    def _fit_scale(self, name: ScaleName, design: Design) -> None:
        """Fit s or t by Fisher scoring, with steps halved until rows are as likely."""
        expansion = self.scale_expansion(name)
        if expansion.is_zero:
            return
        features = design.features[:, expansion.active]
        before = self.log_likelihood(design)
        for _ in range(SCORING_STEPS):
            residualized = self.residualize(design)
            gradient, information = residualized.scale_gradient(name)
            working = information * residualized.values_of(name) + gradient
            proposed, expansion.penalties = evidence_ridge(
                (features * information[:, None]).T @ features,
                features.T @ working,
                self.groups[expansion.active],
                expansion.penalties,
            )
            after = self._line_search(expansion, proposed, design, before)
            if abs(after - before) < LIKELIHOOD_TOL:
                return
            before = after

    def _line_search(
        self,
        expansion: BasisExpansion,
        proposed: Floats,
        design: Design,
        before: float,
    ) -> float:
        """Move coefficients towards the proposed ones, and return the log-likelihood.

        Steps are halved until little is lost of `before`, the log-likelihood of the
        coefficients that it starts from.
        """
        start = expansion.coefficients[expansion.active]
        step = 1.0
        while step > MIN_STEP:
            expansion.coefficients[expansion.active] = start + step * (proposed - start)
            after = self.log_likelihood(design)
            if after > before - ACCEPTED_LOSS * LIKELIHOOD_TOL:
                return after
            step /= 2
        expansion.coefficients[expansion.active] = start
        return before


def limit_log_scale(log_scale: Floats) -> Floats:
    """Logarithms of scales between ±`MAX_LOG_SCALE`."""
    return np.clip(log_scale, -MAX_LOG_SCALE, MAX_LOG_SCALE)
