"""What conditions y explain of rows x: means, scales and correlations, one by one.

Column by column, in the triangular form of Knothe and Rosenblatt, the residuals are

    e_j = ((x_j − m_j(y)) / exp(s_j(y)) − Σ_{k<j} a_jk(y)·e_k) / exp(t_j(y)),

with functions m, s, a and t of `bases.py`: mean and scale of a column given y, then its
slopes on the residuals before it, and the scale of what these leave. If x given y is
Gaussian, residuals are N(0, I) and independent of y.

Every function starts as a constant. A group of features enters where the gradient of
the likelihood depends on it (Rao's score test); it stays if rows that were held out
become more likely. Each part is a ridge regression (`ridge.py`) given the others: m and
a together are least squares, s and t a few steps of Fisher scoring. In this form the
parts hardly interact, so that some sweeps suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Self

import numpy as np
import torch

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.saved_types import ArraySpec
from sliceflow.spaces.density.bases import N_STAGES, SmoothBasis
from sliceflow.spaces.density.ridge import evidence_ridge

__all__ = ["TriangularRegression"]

# Rows with which groups are selected; with more it takes longer than the last fit to
# all rows. A fifth of them is held out.
MAX_SELECTION_ROWS = 20_000
HELD_OUT_SHARE = 0.2
# A group enters if its score is so many standard deviations above what chance gives.
# There are hundreds of groups: at 2 many enter by chance, at 6 weak ones are missed.
MIN_SCORE = 4.0
# How often groups are tested in a stage; later tests see residuals of a better fit.
TESTS_PER_STAGE = 2
# Sweeps over the parts, and steps of Fisher scoring in each.
SWEEPS = 3
SCORING_STEPS = 2
# A sweep that gains less, in nats per row, is the last.
MIN_GAIN = 2e-4
# Gradients of scales are limited to this many times their standard deviation: a few
# rows far out should not move a scale everywhere.
MAX_GRADIENT = 5.0
# The largest |s| and |t|: exp(30) is 10¹³.
MAX_LOG_SCALE = 30.0
# The smallest positive number that logarithms are taken of.
SMALLEST = 1e-300
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass
class Term:
    """A function of y: which features it has, their coefficients and penalties.

    Coefficients of features that it does not have are 0.
    """

    active: Mask
    coefficients: Floats
    penalties: Floats

    @classmethod
    def constant(cls, value: float, basis_groups: Ints) -> Term:
        """A constant function, which has only the first feature."""
        term = cls.absent(basis_groups)
        term.active[0] = True
        term.coefficients[0] = value
        return term

    @classmethod
    def absent(cls, basis_groups: Ints) -> Term:
        """The function 0, without features."""
        p = len(basis_groups)
        n_groups = int(basis_groups.max()) + 1
        return cls(np.zeros(p, bool), np.zeros(p), np.ones(n_groups))


@dataclass(frozen=True)
class Rows:
    """One column x (n,), with features (n, p) and the residuals before it (n, j)."""

    features: Floats
    earlier: Floats
    x: Floats


@dataclass(frozen=True)
class Parts:
    """What a column model says of rows: all (n,).

    `scaled` is (x − m)/exp(s), of which the slopes explain `explained`, and `residual`
    is what is left, in units of exp(t).
    """

    log_scale: Floats
    log_rest: Floats
    scaled: Floats
    explained: Floats
    residual: Floats


@dataclass
class ColumnModel:
    """m, s, a and t of one column."""

    groups: Ints
    mean: Term
    log_scale: Term
    slopes: list[Term]
    log_rest: Term

    @classmethod
    def start(cls, rows: Rows, groups: Ints) -> ColumnModel:
        """Constants: the mean and the standard deviation."""
        n_earlier = rows.earlier.shape[1]
        return cls(
            groups=groups,
            mean=Term.constant(float(rows.x.mean()), groups),
            log_scale=Term.constant(float(np.log(rows.x.std())), groups),
            slopes=[Term.absent(groups) for _ in range(n_earlier)],
            log_rest=Term.absent(groups),
        )

    def parts(self, rows: Rows) -> Parts:
        """Scales, what is explained, and residuals."""
        # One product for all functions reads the features once.
        terms = (self.mean, self.log_scale, self.log_rest, *self.slopes)
        coefficients = np.stack([term.coefficients for term in terms], 1)
        values = rows.features @ coefficients
        log_scale = _limited(values[:, 1])
        log_rest = _limited(values[:, 2])
        scaled = (rows.x - values[:, 0]) * np.exp(-log_scale)
        explained = (values[:, 3:] * rows.earlier).sum(axis=1)
        residual = (scaled - explained) * np.exp(-log_rest)
        return Parts(log_scale, log_rest, scaled, explained, residual)

    def log_likelihood(self, rows: Rows) -> float:
        """The mean log-density of Gaussian residuals, in nats per row."""
        parts = self.parts(rows)
        log_density = -0.5 * parts.residual**2 - parts.log_scale - parts.log_rest
        return float(log_density.mean()) - 0.5 * LOG_TWO_PI

    def fit(self, rows: Rows, scales: Sequence[str]) -> Self:
        """Fit mean and slopes, and the `scales` of these names, in turn."""
        before = self.log_likelihood(rows)
        for _ in range(SWEEPS):
            self._fit_mean_and_slopes(rows)
            for name in scales:
                self._fit_scale(name, rows)
            after = self.log_likelihood(rows)
            if abs(after - before) < MIN_GAIN:
                break
            before = after
        return self

    def _fit_mean_and_slopes(self, rows: Rows) -> None:
        """Least squares: residuals are linear in m and a."""
        parts = self.parts(rows)
        weight = np.exp(-parts.log_rest)
        fitted = [(self.mean, weight * np.exp(-parts.log_scale))]
        for term, earlier in zip(self.slopes, rows.earlier.T, strict=True):
            if term.active.any():
                fitted.append((term, weight * earlier))
        blocks = []
        groups = []
        n_groups = len(self.mean.penalties)
        for i, (term, factor) in enumerate(fitted):
            blocks.append(rows.features[:, term.active] * factor[:, None])
            own_groups = self.groups[term.active]
            # The constant of a slope is penalised by nothing either.
            groups.append(np.where(own_groups < 0, -1, own_groups + i * n_groups))
        design = np.concatenate(blocks, axis=1)
        penalties = np.concatenate([term.penalties for term, _ in fitted])
        coefficients, penalties = evidence_ridge(
            design.T @ design,
            design.T @ (rows.x * fitted[0][1]),
            np.concatenate(groups),
            penalties,
        )
        start = 0
        for i, (term, _) in enumerate(fitted):
            end = start + int(term.active.sum())
            term.coefficients[term.active] = coefficients[start:end]
            term.penalties = penalties[i * n_groups : (i + 1) * n_groups]
            start = end

    def _fit_scale(self, name: str, rows: Rows) -> None:
        """Fisher scoring of s or t, with steps halved until rows are as likely."""
        term: Term = getattr(self, name)
        if not term.active.any():
            return
        features = rows.features[:, term.active]
        before = self.log_likelihood(rows)
        for _ in range(SCORING_STEPS):
            parts = self.parts(rows)
            gradient, information = _scale_gradient(name, parts)
            limit = MAX_GRADIENT * information
            current = getattr(parts, name)
            working = information * current + np.clip(gradient, -limit, limit)
            proposed, term.penalties = evidence_ridge(
                (features * information[:, None]).T @ features,
                features.T @ working,
                self.groups[term.active],
                term.penalties,
            )
            after = self._line_search(term, proposed, rows, before)
            if abs(after - before) < MIN_GAIN:
                return
            before = after

    def _line_search(
        self, term: Term, proposed: Floats, rows: Rows, before: float
    ) -> float:
        """Move coefficients towards the proposed ones; the log-likelihood there.

        A penalty may cost some likelihood, so that a little less is accepted.
        """
        start = term.coefficients[term.active]
        step = 1.0
        while step > 0.05:
            term.coefficients[term.active] = start + step * (proposed - start)
            after = self.log_likelihood(rows)
            if after > before - 5 * MIN_GAIN:
                return after
            step /= 2
        term.coefficients[term.active] = start
        return before


def _limited(log_scale: Floats) -> Floats:
    return np.clip(log_scale, -MAX_LOG_SCALE, MAX_LOG_SCALE)


def _scale_gradient(name: str, parts: Parts) -> tuple[Floats, Floats]:
    """The derivative (n,) of the log-likelihood with s or t, and its variance (n,)."""
    if name == "log_rest":
        return parts.residual**2 - 1, np.full(len(parts.residual), 2.0)
    weight = np.exp(-parts.log_rest)
    gradient = parts.residual * parts.scaled * weight - 1
    return gradient, 2 + (parts.explained * weight) ** 2


# --- which groups ---------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreTest:
    """Rao's score test of groups of features: does a gradient depend on them?"""

    features: Floats
    groups: Ints
    factors: Sequence[Floats] = field(repr=False)

    @classmethod
    def of(cls, features: Floats, groups: Ints) -> ScoreTest:
        """Prepare it: factors make the features of each group uncorrelated."""
        factors = []
        for group in range(int(groups.max()) + 1):
            own = features[:, groups == group]
            size = own.shape[1]
            gram = own.T @ own / len(own) + 1e-6 * np.eye(size)
            factors.append(np.linalg.inv(np.linalg.cholesky(gram)))
        return cls(features, groups, factors)

    def __call__(self, gradient: Floats) -> Floats:
        """Scores (g,) of a gradient (n,): standard deviations above chance."""
        n = len(gradient)
        correlations = self.features.T @ gradient
        correlations /= np.sqrt(n * np.mean(gradient**2)) + 1e-300
        scores = np.empty(len(self.factors))
        for group, factor in enumerate(self.factors):
            white = factor @ correlations[self.groups == group]
            size = max(len(white), 1)
            scores[group] = (white @ white - size) / (2 * size) ** 0.5
        return scores


@dataclass
class Selection:
    """Selects the groups of one column's model."""

    fitted: Rows
    held_out: Rows
    test: ScoreTest
    stages: Ints

    def select(self) -> ColumnModel:
        """Mean and scale first; then slopes and what they leave; then all together."""
        model = ColumnModel.start(self.fitted, self.test.groups)
        model = self._grow(model, ["mean", "log_scale"])
        n_earlier = len(model.slopes)
        if n_earlier == 0:
            return model
        related = deepcopy(model)
        for term in (*related.slopes, related.log_rest):
            term.active[0] = True
        related.fit(self.fitted, ["log_rest"])
        model = self._better(model, related)
        model = self._grow(model, ["slopes", "log_rest"])
        joint = deepcopy(model).fit(self.fitted, ["log_rest", "log_scale"])
        return self._better(model, joint)

    def _better(self, model: ColumnModel, candidate: ColumnModel) -> ColumnModel:
        """The one that makes held-out rows more likely."""
        gain = candidate.log_likelihood(self.held_out) - model.log_likelihood(
            self.held_out
        )
        return candidate if gain > 0 else model

    def _grow(self, model: ColumnModel, names: Sequence[str]) -> ColumnModel:
        """Add groups of all stages to the functions of these names."""
        scales = [name for name in names if name.startswith("log")]
        for stage in range(N_STAGES):
            is_candidate = self.stages <= stage
            for _ in range(TESTS_PER_STAGE):
                candidate = deepcopy(model)
                if not self._add_groups(candidate, names, is_candidate):
                    break
                candidate.fit(self.fitted, scales)
                model = self._better(model, candidate)
                if model is not candidate:
                    break
        return model

    def _add_groups(
        self, model: ColumnModel, names: Sequence[str], is_candidate: Mask
    ) -> bool:
        """Add the groups whose scores are high; whether there are any."""
        parts = model.parts(self.fitted)
        terms: list[tuple[Term, Floats]] = []
        weight = np.exp(-parts.log_rest)
        for name in names:
            if name == "mean":
                gradient = parts.residual * weight * np.exp(-parts.log_scale)
                terms.append((model.mean, gradient))
            elif name == "slopes":
                for term, earlier in zip(
                    model.slopes, self.fitted.earlier.T, strict=True
                ):
                    terms.append((term, parts.residual * weight * earlier))
            else:
                gradient, information = _scale_gradient(name, parts)
                limit = MAX_GRADIENT * information
                terms.append((getattr(model, name), np.clip(gradient, -limit, limit)))
        groups = self.test.groups
        n_before = sum(int(term.active.sum()) for term, _ in terms)
        for term, gradient in terms:
            entering = is_candidate & (self.test(gradient) > MIN_SCORE)
            if entering.any():
                term.active |= np.append(entering, False)[groups]
                term.active[0] = True
        return sum(int(term.active.sum()) for term, _ in terms) > n_before


# --- all columns ----------------------------------------------------------------------


@dataclass(frozen=True)
class TriangularRegression:
    """Means, scales and slopes of all columns, as functions of y.

    Parameters
    ----------
    basis : the features of y that are used, p of them
    is_logged : which columns (d,) of x are taken as logarithms
    shift, scale : units (d,) of the columns
    mean, log_scale, log_rest : coefficients (p, d) of m, s and t
    pairs : (r, 2), the columns j and k of the slopes that are not 0
    slopes : their coefficients (p, r)
    """

    basis: SmoothBasis
    is_logged: Annotated[np.ndarray, ArraySpec("d", torch.bool)]
    shift: Annotated[np.ndarray, ArraySpec("d", torch.float64)]
    scale: Annotated[np.ndarray, ArraySpec("d", torch.float64)]
    mean: Annotated[np.ndarray, ArraySpec("p d", torch.float64)]
    log_scale: Annotated[np.ndarray, ArraySpec("p d", torch.float64)]
    log_rest: Annotated[np.ndarray, ArraySpec("p d", torch.float64)]
    pairs: Annotated[np.ndarray, ArraySpec("r 2", torch.int64, ge=0)]
    slopes: Annotated[np.ndarray, ArraySpec("p r", torch.float64)]

    @classmethod
    def fit_to(cls, x: Floats, y: Floats, seed: Seed) -> TriangularRegression:
        """Select the groups of every column, and fit them to all rows.

        Columns of x (n, d) must not be constant; y is (n, c).
        """
        is_logged = _choose_logs(x)
        values = _take_logs(x, is_logged)
        shift = values.mean(axis=0)
        scale = values.std(axis=0)
        z = (values - shift) / scale
        basis = SmoothBasis.fit_to(y, seed.child("basis"))
        order = seed.child("held out").permutation(len(x)).numpy()
        models = _select_columns(basis, z, y, order)

        groups, _ = basis.groups()
        is_feature_used = np.zeros(len(groups), bool)
        for model in models:
            for term in (model.mean, model.log_scale, model.log_rest, *model.slopes):
                is_feature_used |= term.active
        used_groups = np.zeros(int(groups.max()) + 1, bool)
        used_groups[groups[is_feature_used & (groups >= 0)]] = True
        basis = basis.keep(used_groups)
        is_kept = np.append(used_groups, True)[groups]
        _refit(models, basis, is_kept, z, y)
        return cls._of(models, basis, is_logged, shift, scale)

    @classmethod
    def _of(
        cls,
        models: Sequence[ColumnModel],
        basis: SmoothBasis,
        is_logged: Mask,
        shift: Floats,
        scale: Floats,
    ) -> TriangularRegression:
        pairs = []
        slopes = []
        for j, model in enumerate(models):
            for k, term in enumerate(model.slopes):
                if term.active.any():
                    pairs.append((j, k))
                    slopes.append(term.coefficients)
        p = len(models[0].groups)
        return cls(
            basis=basis,
            is_logged=is_logged,
            shift=shift,
            scale=scale,
            mean=np.stack([model.mean.coefficients for model in models], 1),
            log_scale=np.stack([model.log_scale.coefficients for model in models], 1),
            log_rest=np.stack([model.log_rest.coefficients for model in models], 1),
            pairs=np.array(pairs, int).reshape(-1, 2),
            slopes=np.array(slopes).reshape(-1, p).T,
        )

    def at(self, y: Floats) -> Functions:
        """All functions at conditions y (n, c)."""
        features = self.basis.features(y)
        return Functions(
            mean=features @ self.mean,
            log_scale=_limited(features @ self.log_scale),
            log_rest=_limited(features @ self.log_rest),
            slopes=features @ self.slopes,
            pairs=self.pairs,
        )

    def to_residuals(self, x: Floats, functions: Functions) -> tuple[Floats, Floats]:
        """Residuals e (n, d) of rows x (n, d), and log |de/dx| (n,).

        x may also be one row (1, d) for all n conditions.
        """
        units, log_det = self._to_units(x)
        residuals, log_det_of_residuals = functions.to_residuals(units)
        return residuals, log_det + log_det_of_residuals

    def from_residuals(self, residuals: Floats, functions: Functions) -> Floats:
        """Rows x (n, d) that have these residuals (n, d)."""
        values = functions.from_residuals(residuals) * self.scale + self.shift
        values[:, self.is_logged] = np.exp(values[:, self.is_logged])
        return np.asarray(values)

    def _to_units(self, x: Floats) -> tuple[Floats, Floats]:
        """Rows in units of the regression, and the logarithm of the Jacobian (n,)."""
        logs = _take_logs(x, self.is_logged)
        log_det = -logs[:, self.is_logged].sum(axis=1) - np.log(self.scale).sum()
        return (logs - self.shift) / self.scale, log_det


@dataclass(frozen=True)
class Functions:
    """m, s and t (n, d), and slopes (n, r), of a regression at n conditions."""

    mean: Floats
    log_scale: Floats
    log_rest: Floats
    slopes: Floats
    pairs: Ints

    def to_residuals(self, z: Floats) -> tuple[Floats, Floats]:
        """Residuals (n, d) of rows z (n, d) or (1, d), and log |de/dz| (n,)."""
        residuals = (z - self.mean) * np.exp(-self.log_scale)
        for j in range(residuals.shape[1]):
            for i in np.flatnonzero(self.pairs[:, 0] == j):
                residuals[:, j] -= self.slopes[:, i] * residuals[:, self.pairs[i, 1]]
            residuals[:, j] *= np.exp(-self.log_rest[:, j])
        return residuals, -(self.log_scale + self.log_rest).sum(axis=1)

    def from_residuals(self, residuals: Floats) -> Floats:
        """Rows z (n, d) that have these residuals (n, d)."""
        scaled = residuals * np.exp(self.log_rest)
        for i, (j, k) in enumerate(self.pairs):
            scaled[:, j] += self.slopes[:, i] * residuals[:, k]
        return np.asarray(scaled * np.exp(self.log_scale) + self.mean)


def _choose_logs(x: Floats) -> Mask:
    """Which columns (d,) are positive, and closer to a Gaussian as logarithms."""
    is_logged = np.zeros(x.shape[1], bool)
    for j, column in enumerate(x.T):
        if column.min() > 0:
            logs = np.log(column)
            # The log-densities of Gaussians with the same moments, less what is equal.
            gain = np.log(column.std()) - np.log(logs.std() + SMALLEST) - logs.mean()
            is_logged[j] = gain > 0
    return is_logged


def _take_logs(x: Floats, is_logged: Mask) -> Floats:
    """Rows with logarithms in some columns; of what is not positive, a very low one."""
    values = x.copy()
    values[:, is_logged] = np.log(np.maximum(x[:, is_logged], SMALLEST))
    return values


def _select_columns(
    basis: SmoothBasis, z: Floats, y: Floats, order: Ints
) -> list[ColumnModel]:
    """Models of the columns of z (n, d), fitted to some rows and judged by others."""
    order = order[:MAX_SELECTION_ROWS]
    n_held_out = max(1, int(HELD_OUT_SHARE * len(order)))
    held_out = order[:n_held_out]
    fitted = order[n_held_out:]
    features = basis.features(y[fitted])
    held_out_features = basis.features(y[held_out])
    groups, stages = basis.groups()
    test = ScoreTest.of(features, groups)
    residuals = np.empty((len(fitted), z.shape[1]))
    held_out_residuals = np.empty((len(held_out), z.shape[1]))
    models = []
    for j in range(z.shape[1]):
        rows = Rows(features, residuals[:, :j], z[fitted, j])
        held_out_rows = Rows(
            held_out_features, held_out_residuals[:, :j], z[held_out, j]
        )
        model = Selection(rows, held_out_rows, test, stages).select()
        residuals[:, j] = model.parts(rows).residual
        held_out_residuals[:, j] = model.parts(held_out_rows).residual
        models.append(model)
    return models


def _refit(
    models: Sequence[ColumnModel],
    basis: SmoothBasis,
    is_kept: Mask,
    z: Floats,
    y: Floats,
) -> None:
    """Fit the models again, to all rows, with the features of a smaller basis."""
    features = basis.features(y)
    groups, _ = basis.groups()
    n_groups = int(groups.max()) + 1
    residuals = np.empty(z.shape)
    for j, model in enumerate(models):
        old_groups = model.groups[is_kept]
        model.groups = groups
        for term in (model.mean, model.log_scale, model.log_rest, *model.slopes):
            term.active = term.active[is_kept]
            term.coefficients = term.coefficients[is_kept]
            penalties = np.ones(n_groups)
            penalties[groups[1:]] = term.penalties[old_groups[1:]]
            term.penalties = penalties
        rows = Rows(features, residuals[:, :j], z[:, j])
        scales = ["log_rest", "log_scale"] if j else ["log_scale"]
        model.fit(rows, scales)
        residuals[:, j] = model.parts(rows).residual
