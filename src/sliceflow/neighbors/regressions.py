"""Neighbors of a condition y₀, moved there along linear regressions.

The neighbors of y₀ are described by a mixture of K linear regressions,
x = a + B(y − y₀) + noise, fitted by expectation maximization, with K by BIC. Every row
moves along the regression of its component, to xᵢ − B(yᵢ − y₀), which is the regression
adjustment of Beaumont, Zhang and Balding (2002).

Shapes: q conditions with k neighbors each, d columns of x, l columns of y, n components
of a mixture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sliceflow.arrays import SMALLEST_POSITIVE
from sliceflow.engine.normal import LOG_TWO_PI
from sliceflow.engine.random import Seed
from sliceflow.neighbors.weights import choose_by_weight

# The most components of a mixture; BIC takes fewer where these suffice.
MAX_COMPONENTS = 4
# Iterations of expectation maximization: a fixed number, so that all conditions of a
# batch take the same steps.
_EM_ITERATIONS = 12
# Random starts of k-means; the best one begins expectation maximization. More starts
# and iterations take longer, and expectation maximization mends rough clusters.
_N_STARTS = 3
_LLOYD_ITERATIONS = 4
# Expectation maximization uses about this many of the neighbors, to save time. The
# regressions are then fitted to all.
_EM_ROWS = 500
# Ridge penalty of the regressions, as a share of the squares of each column: enough to
# keep nearly equal columns of y from opposite slopes.
_RIDGE = 1e-3
# The penalty of columns that are all 0.
_MIN_RIDGE = 1e-9
# The penalty of the intercept. It should have none; this only keeps the matrix
# invertible.
_INTERCEPT_RIDGE = 1e-12
# Sums of squared residuals are at least this share of the squares of x, and at least
# _MIN_RESIDUAL_SQUARES, so that a perfect regression has a finite density.
_MIN_UNEXPLAINED_SHARE = 1e-9
_MIN_RESIDUAL_SQUARES = 1e-100
# Added to the weight of a cluster before dividing by it: the cluster may be empty.
_MIN_CLUSTER_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class Neighborhoods:
    """Neighbors of q conditions, moved to these by regressions."""

    x: Tensor  # (q, k, d), the adjusted rows
    weights: Tensor  # (q, k); the weights of a condition sum to 1
    components: Tensor  # (q, k), the regression to which each row belongs
    row_indices: Tensor  # (q, k)
    # (q,), the factor by which residuals underestimate the noise
    noise_inflation: Tensor
    log_density: Tensor  # (q,), of the mixture at the points asked for; else empty


def adjust_by_regression(
    x: Tensor,
    offsets: Tensor,
    weights: Tensor,
    row_indices: Tensor,
    max_components: int,
    density_at: Tensor | None = None,
) -> Neighborhoods:
    """Move neighbors along the mixture of regressions that has the best BIC.

    Parameters
    ----------
    x : (q, k, d), the rows
    offsets : (q, k, l), their y − y₀
    weights : (q, k), which sum to 1 for each condition
    row_indices : (q, k), which the result keeps
    max_components : components are added to a mixture until its BIC gets no better
    density_at : (q, d), points at y₀ whose log density is asked for
    """
    best = _BestMixtures.without_any(x, density_at is not None)
    # The indices of the conditions whose BIC got better with each component so far.
    improving = torch.arange(len(x))
    for n_components in range(1, max_components + 1):
        points = None
        if density_at is not None:
            points = density_at[improving]
        adjusted = _adjust_by_mixture(
            x[improving], offsets[improving], weights[improving], n_components, points
        )
        is_better = adjusted.bic < best.bic[improving]
        if not bool(is_better.any()):
            break
        improving = improving[is_better]
        best.update(improving, adjusted.select(is_better))
    noise_inflation = _noise_inflation(
        weights, best.components, n_slopes=offsets.shape[2]
    )
    return Neighborhoods(
        best.x, weights, best.components, row_indices, noise_inflation, best.log_density
    )


class _AdjustedRows(NamedTuple):
    """The rows of q conditions, adjusted by the regressions of a mixture."""

    x: Tensor  # (q, k, d), the adjusted rows
    components: Tensor  # (q, k), the regression to which each row belongs
    bic: Tensor  # (q,), of the mixture
    log_density: Tensor | None  # (q,), of the mixture at the points asked for

    def select(self, is_selected: Tensor) -> _AdjustedRows:
        """The adjusted rows of some conditions: those of `is_selected` (q,)."""
        log_density = self.log_density
        if log_density is not None:
            log_density = log_density[is_selected]
        return _AdjustedRows(
            self.x[is_selected],
            self.components[is_selected],
            self.bic[is_selected],
            log_density,
        )


@dataclass(eq=False)
class _BestMixtures:
    """The results of the mixture with the best BIC so far, for each of q conditions."""

    x: Tensor  # (q, k, d), the adjusted rows
    components: Tensor  # (q, k), the regression to which each row belongs
    bic: Tensor  # (q,)
    log_density: Tensor  # (q,), at the points asked for; else empty

    @classmethod
    def without_any(cls, x: Tensor, has_density: bool) -> _BestMixtures:
        """The start, before any mixture of the rows x (q, k, d) is fitted."""
        q, k, _ = x.shape
        return cls(
            x=x.clone(),
            components=torch.zeros(q, k, dtype=torch.int64),
            bic=torch.full((q,), math.inf, dtype=x.dtype),
            log_density=torch.zeros(q if has_density else 0, dtype=x.dtype),
        )

    def update(self, conditions: Tensor, adjusted: _AdjustedRows) -> None:
        """Take a better mixture for the conditions with these indices (m,)."""
        self.x[conditions] = adjusted.x
        self.components[conditions] = adjusted.components
        self.bic[conditions] = adjusted.bic
        if adjusted.log_density is not None:
            self.log_density[conditions] = adjusted.log_density


def _adjust_by_mixture(
    x: Tensor,
    offsets: Tensor,
    weights: Tensor,
    n_components: int,
    density_at: Tensor | None,
) -> _AdjustedRows:
    """Move neighbors along a mixture of regressions; see `adjust_by_regression`."""
    fitted = _fit_mixture(x, offsets, weights, n_components)
    mixture = fitted.mixture
    log_density = None
    if density_at is not None:
        log_density = mixture.log_density_at_condition(density_at)
    explained = _explained_by_offsets(mixture.slopes, offsets, fitted.components)
    return _AdjustedRows(x - explained, fitted.components, fitted.bic, log_density)


def _explained_by_offsets(
    slopes: Tensor, offsets: Tensor, components: Tensor
) -> Tensor:
    """B(y − y₀) (q, k, d) of rows, each by the slopes of its component (q, k).

    `slopes` (q, n, 1 + l, d) have the intercept first.
    """
    q, k, _ = offsets.shape
    explained = offsets.new_zeros(q, k, slopes.shape[3])
    for c in range(slopes.shape[1]):
        is_in_component = (components == c)[..., None]
        explained += is_in_component * (offsets @ slopes[:, c, 1:])
    return explained


def _noise_inflation(weights: Tensor, components: Tensor, n_slopes: int) -> Tensor:
    """The factor (q,) by which residuals underestimate the noise, at most √2.

    It is √(rows/(rows − coefficients)), with the effective number of rows.
    """
    n_rows = _effective_rows(weights)
    n_coefficients = (components.amax(1) + 1) * (n_slopes + 1)
    n_free = torch.maximum(n_rows - n_coefficients, n_rows / 2)
    return (n_rows / n_free).sqrt()


def _effective_rows(weights: Tensor) -> Tensor:
    """Kish's effective number (q,) of weighted rows: 1/Σw² for Σw = 1."""
    return 1 / weights.square().sum(1)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """n linear regressions of x − mean on (1, offset), of q conditions.

    A row is a column z = (1, offset, x − mean) of f = 1 + l + d numbers.
    """

    mean: Tensor  # (q, 1, d), of the rows
    slopes: Tensor  # (q, n, 1 + l, d), the intercept first
    whitening: Tensor  # (q, n, d, f); times z: the residual in units of its noise
    # (q, n), the log of a component's share times the constant factor of its density
    log_factor: Tensor

    def log_density(self, z: Tensor) -> Tensor:
        """Log of share times density, (q, n, k), of the columns of z (q, f, k)."""
        q, n, d, f = self.whitening.shape
        residuals = (self.whitening.reshape(q, n * d, f) @ z).view(q, n, d, -1)
        return self.log_factor[..., None] - 0.5 * residuals.square_().sum(2)

    def log_density_at_condition(self, x: Tensor) -> Tensor:
        """Log density (q,) of the mixture at points x (q, d) with an offset of 0."""
        n_slopes = self.slopes.shape[2] - 1
        offset = x.new_zeros(len(x), 1, n_slopes)
        z = _as_columns(x[:, None] - self.mean, offset)
        return torch.logsumexp(self.log_density(z)[:, :, 0], 1)


def _as_columns(x: Tensor, offsets: Tensor) -> Tensor:
    """Columns (1, offset, x) of all rows: (q, f, k) from (q, k, d) and (q, k, l)."""
    ones = torch.ones_like(offsets[..., :1])
    return torch.cat((ones, offsets, x), 2).mT.contiguous()


class _FittedMixture(NamedTuple):
    """A mixture with its BIC, and the regression to which each row belongs."""

    mixture: _Mixture
    bic: Tensor  # (q,), the less the better
    components: Tensor  # (q, k), the most likely of each row


def _fit_mixture(
    x: Tensor, offsets: Tensor, weights: Tensor, n_components: int
) -> _FittedMixture:
    """Fit regressions of x (q, k, d) on offsets (q, k, l), with weights (q, k)."""
    d = x.shape[2]
    n_rows = _effective_rows(weights)
    weights = weights * n_rows[:, None]
    mean = (weights[..., None] * x).sum(1, keepdim=True) / n_rows[:, None, None]
    z = _as_columns(x - mean, offsets)
    if n_components == 1:
        responsibilities = torch.ones_like(weights)[:, None]
    else:
        responsibilities = _fit_em(z, x - mean, weights, mean, n_components)
    mixture = _fit_regressions(z, responsibilities * weights[:, None], mean)
    log_p = mixture.log_density(z)
    log_likelihood = (weights * torch.logsumexp(log_p, 1)).sum(1)
    n_coefficients = d * (offsets.shape[2] + 1)
    n_covariances = d * (d + 1) / 2
    n_parameters = n_components * (n_coefficients + n_covariances + 1) - 1
    bic = n_parameters * n_rows.log() - 2 * log_likelihood
    return _FittedMixture(mixture, bic, components=log_p.argmax(1))


def _fit_em(
    z: Tensor, x: Tensor, weights: Tensor, mean: Tensor, n_components: int
) -> Tensor:
    """Responsibilities (q, n, k) of n components for the rows, by EM.

    The rows are the columns of z (q, f, k), and x (q, k, d) without the mean.
    """
    # The rows are sorted by their distance: one in `stride` of them represents all.
    stride = math.ceil(x.shape[1] / _EM_ROWS)
    z_subset = z[:, :, ::stride].contiguous()
    weights_subset = weights[:, ::stride]
    responsibilities = _k_means(x[:, ::stride], weights_subset, n_components)
    for _ in range(_EM_ITERATIONS):
        mass = responsibilities * weights_subset[:, None]
        mixture = _fit_regressions(z_subset, mass, mean)
        responsibilities = torch.softmax(mixture.log_density(z_subset), 1)
    return torch.softmax(mixture.log_density(z), 1)


def _fit_regressions(z: Tensor, mass: Tensor, mean: Tensor) -> _Mixture:
    """The regressions of a mixture, fitted to weighted rows: the M step of EM.

    The last d of the f numbers in a column of z (q, f, k) are predicted from the first
    ones. `mass` (q, n, k) is the weight of each row in each of n components; `mean`
    (q, 1, d) was subtracted from x.
    """
    q, f, k = z.shape
    n = mass.shape[1]
    d = mean.shape[2]
    weighted = (mass[:, :, None] * z[:, None]).reshape(q, n * f, k)
    products = (weighted @ z.mT).view(q, n, f, f)
    size = products[:, :, 0, 0]  # the total weight of each component
    n_regressors = f - d  # 1 + l: the intercept and the slopes
    gram = products[:, :, :n_regressors, :n_regressors]
    cross = products[:, :, :n_regressors, n_regressors:]
    squares = products[:, :, n_regressors:, n_regressors:]
    slopes = _ridge_slopes(gram, cross)
    explained = slopes.mT @ cross
    residual_squares = squares - explained - explained.mT + slopes.mT @ gram @ slopes
    root = _covariance_root(residual_squares, squares, size)
    return _Mixture(
        mean=mean,
        slopes=slopes,
        whitening=_whitening(slopes, root),
        log_factor=_log_factor(size, root),
    )


def _ridge_slopes(gram: Tensor, cross: Tensor) -> Tensor:
    """Slopes (q, n, 1 + l, d) of ridge regressions, whose intercepts come first.

    `gram` (q, n, 1 + l, 1 + l) has the products of the regressors with each other, and
    `cross` (q, n, 1 + l, d) their products with x.
    """
    penalty = _RIDGE * torch.diagonal(gram, dim1=2, dim2=3) + _MIN_RIDGE
    penalty[..., 0] = _INTERCEPT_RIDGE
    slopes: Tensor = torch.linalg.solve(gram + torch.diag_embed(penalty), cross)
    return slopes


def _covariance_root(residual_squares: Tensor, squares: Tensor, size: Tensor) -> Tensor:
    """Cholesky roots (q, n, d, d) of the covariances of the residuals.

    Each component has one row more, which has the variances of all components
    together: that keeps its covariance from collapsing.
    """
    n = size.shape[1]
    total = size.sum(1)[:, None]
    variances = _pooled_variances(residual_squares, squares, total)
    extra_row = torch.diag_embed(variances.expand(-1, n, -1))
    covariance = (residual_squares + extra_row) / (size + 1)[..., None, None]
    root: Tensor = torch.linalg.cholesky(covariance)
    return root


def _whitening(slopes: Tensor, root: Tensor) -> Tensor:
    """Maps (q, n, d, f) from z to its residual in units of the noise."""
    q, n, d, _ = root.shape
    identity = torch.eye(d, dtype=root.dtype).expand(q, n, d, d)
    residual_map = torch.cat((-slopes.mT, identity), 3)
    whitening: Tensor = torch.linalg.solve_triangular(root, residual_map, upper=False)
    return whitening


def _log_factor(size: Tensor, root: Tensor) -> Tensor:
    """Log (q, n) of a component's share times the constant factor of its density."""
    n = size.shape[1]
    d = root.shape[3]
    total = size.sum(1)[:, None]
    log_share = ((size + 1) / (total + n)).log()
    log_determinant = torch.diagonal(root, dim1=2, dim2=3).log().sum(2)
    return log_share - log_determinant - 0.5 * d * LOG_TWO_PI


def _pooled_variances(
    residual_squares: Tensor, squares: Tensor, total: Tensor
) -> Tensor:
    """Variances (q, 1, d) of the residuals of all components together, above 0."""
    pooled = torch.diagonal(residual_squares, dim1=2, dim2=3).sum(1, keepdim=True)
    all_squares = torch.diagonal(squares, dim1=2, dim2=3).sum(1, keepdim=True)
    least = _MIN_UNEXPLAINED_SHARE * all_squares + _MIN_RESIDUAL_SQUARES
    return (pooled.clamp(min=0) + least) / total[..., None]


def _k_means(x: Tensor, weights: Tensor, n_clusters: int) -> Tensor:
    """Clusters (q, n, k) of rows x (q, k, d), as zeros and ones.

    They are the best of several, which begin at different centers.
    """
    q, k, d = x.shape
    relative_weights = (weights / weights.sum(1, keepdim=True))[..., None]
    centered = x - (relative_weights * x).sum(1, keepdim=True)
    variances = (relative_weights * centered.square()).sum(1, keepdim=True)
    standardized = centered / (variances + SMALLEST_POSITIVE).sqrt()
    best_cost = x.new_full((q,), math.inf)
    labels = torch.zeros(q, k, dtype=torch.int64)
    for start in range(_N_STARTS):
        u = Seed(0).child("clusters", start).uniform(1, n_clusters)
        first_rows = choose_by_weight(weights, u.expand(q, -1).contiguous())
        centers = standardized.gather(1, first_rows[..., None].expand(-1, -1, d))
        for _ in range(_LLOYD_ITERATIONS):
            centers = _cluster_means(standardized, weights, centers)
        distances, nearest = torch.cdist(standardized, centers).min(2)
        cost = (weights * distances.square()).sum(1)
        is_better = cost < best_cost
        labels = torch.where(is_better[:, None], nearest, labels)
        best_cost = torch.minimum(best_cost, cost)
    in_cluster = torch.nn.functional.one_hot(labels, n_clusters).to(x.dtype)
    return in_cluster.mT.contiguous()


def _cluster_means(x: Tensor, weights: Tensor, centers: Tensor) -> Tensor:
    """The means (q, n, d) of the rows x (q, k, d) nearest to each of the centers."""
    nearest = torch.cdist(x, centers).argmin(2)
    in_cluster = torch.nn.functional.one_hot(nearest, centers.shape[1]).to(x.dtype)
    mass = in_cluster * weights[..., None]
    cluster_mass = mass.sum(1)[..., None] + _MIN_CLUSTER_MASS
    return mass.mT @ x / cluster_mass
