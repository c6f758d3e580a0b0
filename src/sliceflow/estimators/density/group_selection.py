"""Which groups of features the regression of each column has.

Every function starts as a constant. A group of features enters where the gradient of
the likelihood depends on it (Rao's score test). It stays if rows that were held out
become more likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sliceflow.arrays import SMALLEST_POSITIVE, Floats, Ints, Mask
from sliceflow.estimators.density.bases import N_STAGES, is_in_chosen_group
from sliceflow.estimators.density.column_regression import (
    BasisExpansion,
    ColumnRegression,
    Design,
    ScaleName,
)

# A group enters if its score is this many standard deviations above what chance gives.
# There are hundreds of groups: at 2 many enter by chance, at 6 weak ones are missed.
MIN_SCORE = 4.0
# How often groups are tested in a stage; later tests see residuals of a better fit.
TESTS_PER_STAGE = 2
# Added to the variances of features, which are about 1, so that the covariance of a
# group has an inverse even if two of its features are the same.
_MIN_VARIANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ScoreTest:
    """Rao's score test of groups of features: does a gradient depend on them?

    Parameters
    ----------
    features : (n, p)
    groups : the group of each feature (p,), −1 of the constant
    whitening : for each of the g groups, a matrix that makes its features uncorrelated
    """

    features: Floats
    groups: Ints
    whitening: Sequence[Floats] = field(repr=False)

    @classmethod
    def from_features(cls, features: Floats, groups: Ints) -> ScoreTest:
        """The test of features (n, p) that belong to groups (p,)."""
        whitening = []
        for group in range(int(groups.max()) + 1):
            of_group = features[:, groups == group]
            n, size = of_group.shape
            gram = of_group.T @ of_group / n + _MIN_VARIANCE * np.eye(size)
            whitening.append(np.linalg.inv(np.linalg.cholesky(gram)))
        return cls(features, groups, whitening)

    def __call__(self, gradient: Floats) -> Floats:
        """Scores (g,) of a gradient (n,), in standard deviations above chance."""
        n = len(gradient)
        correlations = self.features.T @ gradient
        correlations /= np.sqrt(n * np.mean(gradient**2)) + SMALLEST_POSITIVE
        scores = np.empty(len(self.whitening))
        for group, matrix in enumerate(self.whitening):
            white = matrix @ correlations[self.groups == group]
            size = max(len(white), 1)
            # |white|² is χ² with `size` degrees of freedom by chance.
            scores[group] = (white @ white - size) / (2 * size) ** 0.5
        return scores


@dataclass(frozen=True, eq=False)
class GroupSelection:
    """Selects the groups of one column's regression.

    Parameters
    ----------
    train, held_out : rows that regressions are fitted to, and that judge them
    test : of the features of the training rows
    stages : of the g groups: each stage is tried after the one before
    """

    train: Design
    held_out: Design
    test: ScoreTest
    stages: Ints

    def select(self) -> ColumnRegression:
        """Fit the regression with the groups that held-out rows gain by.

        Groups are selected for mean and scale first, and then for slopes and their
        scale. Last, all functions are fitted together.
        """
        without_y = ColumnRegression.without_y(self.train, self.test.groups)
        best = self._grow(without_y, "log_scale")
        if not best.slopes:
            return best
        with_slopes = best.with_constant_slopes().fitted_to(
            self.train, ["log_residual_scale"]
        )
        best = self._likelier(best, with_slopes)
        best = self._grow(best, "log_residual_scale")
        fitted_together = best.fitted_to(
            self.train, ["log_residual_scale", "log_scale"]
        )
        return self._likelier(best, fitted_together)

    def _likelier(
        self, model: ColumnRegression, challenger: ColumnRegression
    ) -> ColumnRegression:
        """The one of two models that makes held-out rows more likely."""
        model_score = model.log_likelihood(self.held_out)
        challenger_score = challenger.log_likelihood(self.held_out)
        if challenger_score - model_score > 0:
            return challenger
        return model

    def _grow(self, model: ColumnRegression, scale: ScaleName) -> ColumnRegression:
        """Add groups of all stages to a scale, and to what is fitted with it.

        That is the mean for "log_scale", and the slopes for "log_residual_scale".
        """
        for stage in range(N_STAGES):
            is_candidate = self.stages <= stage
            for _ in range(TESTS_PER_STAGE):
                larger = self._add_groups(model, scale, is_candidate)
                if larger is None:
                    break
                fitted = larger.fitted_to(self.train, [scale])
                model = self._likelier(model, fitted)
                if model is not fitted:
                    break
        return model

    def _add_groups(
        self, model: ColumnRegression, scale: ScaleName, is_candidate: Mask
    ) -> ColumnRegression | None:
        """Add candidate groups (g,) with high scores, as `_grow` says.

        None if the model has all of them already. Coefficients of new features are 0.
        """
        residualized = model.residualize(self.train)
        weighted_residual = residualized.residual * np.exp(
            -residualized.log_residual_scale
        )
        scale_gradient, _ = residualized.scale_gradient(scale)
        new_scale = self._extend(
            model.scale_expansion(scale), scale_gradient, is_candidate
        )
        larger = model.with_scale(scale, new_scale)
        if scale == "log_scale":
            mean_gradient = weighted_residual * np.exp(-residualized.log_scale)
            mean = self._extend(model.mean, mean_gradient, is_candidate)
            larger = replace(larger, mean=mean)
        else:
            slopes = []
            earlier_residuals = self.train.earlier_residuals.T
            for slope, earlier in zip(model.slopes, earlier_residuals, strict=True):
                slope_gradient = weighted_residual * earlier
                slopes.append(self._extend(slope, slope_gradient, is_candidate))
            larger = replace(larger, slopes=tuple(slopes))
        if larger.has_same_features(model):
            return None
        return larger

    def _extend(
        self, expansion: BasisExpansion, gradient: Floats, is_candidate: Mask
    ) -> BasisExpansion:
        """Add the candidate groups (g,) on which a gradient depends to a function.

        `gradient` has the derivatives (n,) of log-likelihoods with the function's
        values.
        """
        is_entering = is_candidate & (self.test(gradient) > MIN_SCORE)
        if not is_entering.any():
            return expansion
        is_added = is_in_chosen_group(is_entering, self.test.groups)
        return expansion.with_features(is_added)
