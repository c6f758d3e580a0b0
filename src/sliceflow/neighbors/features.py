"""Features of a condition y, between which distances are measured.

Columns of y count by their relevance for x. Values of heavy-tailed columns become
normal scores. A *summary* of y is what random features, max(0, wᵀy + b) for Gaussian w
and b, predict of x by ridge regression (Fearnhead and Prangle, 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from sliceflow.arrays import SMALLEST_POSITIVE, Floats
from sliceflow.engine.random import Seed

# Quantiles of a heavy-tailed column; its scores are interpolated between them.
_N_QUANTILES = 257
# A column is heavy-tailed if its largest distance from the median is more than this
# many times the median distance. In a million rows, a normal column reaches about 7 and
# an exponential one about 27, so these are not.
_HEAVY_TAIL_RATIO = 40.0
# A ridge regression uses about this many rows. It has a few hundred features, so more
# rows would hardly change it.
_MAX_RIDGE_ROWS = 60_000
# The leave-one-out errors of about this many rows choose its penalty, one of 19.
_MAX_SCORED_ROWS = 2_000
# Penalties that are tried, two in a decade: the least hardly shrinks coefficients, the
# largest shrinks them to almost 0. They are in units of the mean eigenvalue of the Gram
# matrix.
_PENALTIES = np.geomspace(1e-6, 1e3, 19)
# The trees of `relevance` see at most this many rows: a sample suffices to rank
# columns.
_MAX_TREE_ROWS = 4_000
# With fewer rows, all columns count as relevant: these are too few to choose by.
_MIN_TREE_ROWS = 10
# Squares of standardized columns are clamped at this, the square of three standard
# deviations, so that outliers do not dominate them.
_MAX_SQUARE = 9.0
# Columns that vary by less than this share of their largest value hold rounding errors.
_MIN_RELATIVE_DEVIATION = 1e-12
# The leverage of a row is below 1, but rounding may lift it to 1 or more.
_MAX_LEVERAGE = 1 - 1e-9
# Trees whose importances rank the columns of y, and rows of their leaves: a forest of
# medium size, whose leaves average the noise of x.
_N_TREES = 50
_MIN_ROWS_PER_LEAF = 5
# Features in memory at a time: 128 MiB of float64.
_MAX_VALUES = 1 << 24


class HeavyTail(NamedTuple):
    """The center and the scale of a heavy-tailed column."""

    median: float
    # The median distance from the median, of the values that do not equal it
    typical_distance: float


def heavy_tail(column: Floats) -> HeavyTail | None:
    """The center and the scale of a column (n,); None if it is not heavy-tailed."""
    median = float(np.median(column))
    distances = np.abs(column - median)
    if not distances.any():
        return None
    typical_distance = float(np.median(distances[distances > 0]))
    ratio = distances.max() / typical_distance
    if _HEAVY_TAIL_RATIO < ratio < math.inf:
        return HeavyTail(median, typical_distance)
    return None


def inverse_deviation(y: Tensor) -> Tensor:
    """1 over the standard deviation of each column; 1 for columns of one value."""
    deviation = y.std(0, correction=0)
    is_varying = deviation > _MIN_RELATIVE_DEVIATION * y.abs().amax(0)
    return 1 / torch.where(is_varying, deviation, 1)


@dataclass(frozen=True, eq=False)
class NormalScores:
    """Distinct quantiles of a column, increasing, and the normal quantiles for them."""

    quantiles: Floats
    scores: Floats

    @classmethod
    def from_data(cls, column: Floats) -> NormalScores:
        """The scores of a column (n,); equal quantiles have their mean probability."""
        probabilities = np.linspace(0, 1, _N_QUANTILES)
        all_quantiles = np.quantile(column, probabilities, method="nearest")
        quantiles, inverse, counts = np.unique(
            all_quantiles, return_inverse=True, return_counts=True
        )
        mean_probabilities = np.bincount(inverse, probabilities) / counts
        margin = 0.5 / _N_QUANTILES
        inner = torch.from_numpy(mean_probabilities.clip(margin, 1 - margin))
        return cls(quantiles, torch.special.ndtri(inner).numpy())

    def __call__(self, values: Floats) -> Floats:
        """Scores of values (n,), linear between quantiles and constant beyond them."""
        return np.asarray(np.interp(values, self.quantiles, self.scores))


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A function from y (n, l) to features (n, l + n_random_features).

    The features are the columns of y, with normal scores of heavy-tailed ones. If there
    are random features, these follow, and the columns before them are standardized.
    """

    normal_scores: dict[int, NormalScores]  # of the heavy-tailed columns
    mean: Tensor  # (l,)
    inverse_scale: Tensor  # (l,)
    n_random_features: int = 0

    @classmethod
    def from_data(cls, y: Tensor, n_random_features: int = 0) -> FeatureMap:
        """The features of rows y (n, l)."""
        normal_scores = {}
        for j, column in enumerate(y.numpy().T):
            if heavy_tail(column) is not None:
                normal_scores[j] = NormalScores.from_data(column)
        y = _with_scores(y, normal_scores)
        return cls(normal_scores, y.mean(0), inverse_deviation(y), n_random_features)

    def __call__(self, y: Tensor) -> Tensor:
        """The features (n, l + n_random_features) of y (n, l)."""
        y = _with_scores(y, self.normal_scores)
        if not self.n_random_features:
            return y
        z = (y - self.mean) * self.inverse_scale
        n_columns = z.shape[1]
        seed = Seed(0).child("features")
        directions = seed.child("directions").normal(n_columns, self.n_random_features)
        offsets = seed.child("offsets").normal(1, self.n_random_features)
        random_features = (z @ (directions / math.sqrt(n_columns)) + offsets).relu()
        return torch.cat((z, random_features), 1)


def _with_scores(y: Tensor, normal_scores: dict[int, NormalScores]) -> Tensor:
    """A copy of y (n, l) with scores in place of the values of some columns."""
    if not normal_scores:
        return y
    y = y.clone()
    for j, scores in normal_scores.items():
        y[:, j] = torch.from_numpy(scores(y[:, j].numpy()))
    return y


def standardized_moments(x: Tensor) -> Tensor:
    """What a condition should predict of x (n, d): its columns and squares, (n, 2d).

    Columns are in standard deviations.
    """
    z = (x - x.mean(0)) / (x.std(0, correction=0) + SMALLEST_POSITIVE)
    return torch.cat((z, z.square().clamp(max=_MAX_SQUARE)), 1)


def projected_features(
    feature_map: FeatureMap, y: Tensor, projection: Tensor
) -> Tensor:
    """Features of y (n, l), times a projection (f, m): (n, m), in blocks of rows."""
    block_size = max(1, _MAX_VALUES // len(projection))
    blocks = torch.split(y, block_size)
    return torch.cat([feature_map(block) @ projection for block in blocks])


def fit_ridge(feature_map: FeatureMap, y: Tensor, targets: Tensor) -> Tensor:
    """Coefficients (f, p) that predict targets (n, p) from features of y (n, l).

    The columns of features and targets are centered, so there is no intercept. Of the
    `_PENALTIES`, the fit takes the one with the least leave-one-out error.
    """
    stride = math.ceil(len(y) / _MAX_RIDGE_ROWS)
    fitted_y = y[::stride]
    centered_targets = targets[::stride] - targets[::stride].mean(0)
    n = len(fitted_y)
    feature_mean, gram, cross = _products(feature_map, fitted_y, centered_targets)
    # Along the eigenvectors of the Gram matrix, a penalty only divides.
    eigenvalues, vectors = torch.linalg.eigh(gram)
    rotated_cross = vectors.T @ cross

    scored = slice(None, None, math.ceil(n / _MAX_SCORED_ROWS))
    features = (feature_map(fitted_y[scored]) - feature_mean) @ vectors
    least_error = math.inf
    best_coefficients = rotated_cross
    for penalty in _PENALTIES * float(eigenvalues.mean()):
        shrinkage = 1 / (eigenvalues.clamp(min=0) + penalty)
        coefficients = shrinkage[:, None] * rotated_cross
        leverage = features.square() @ shrinkage + 1 / n
        residuals = centered_targets[scored] - features @ coefficients
        error = _leave_one_out_error(residuals, leverage)
        if error < least_error:
            least_error = error
            best_coefficients = coefficients
    out: Tensor = vectors @ best_coefficients
    return out


def _leave_one_out_error(residuals: Tensor, leverage: Tensor) -> float:
    """The mean square of the errors (n, p) that rows have if they are left out.

    The error of a row without it is its residual over 1 minus its leverage (n,).
    """
    errors = residuals / (1 - leverage.clamp(max=_MAX_LEVERAGE))[:, None]
    return float(errors.square().mean())


class _Products(NamedTuple):
    """The sums over rows that a regression on features needs."""

    feature_mean: Tensor  # (f,)
    gram: Tensor  # (f, f), products of centered features
    cross: Tensor  # (f, p), products of centered features with targets


def _products(feature_map: FeatureMap, y: Tensor, targets: Tensor) -> _Products:
    """Products, in blocks, of the features of y (n, l) and centered targets (n, p)."""
    n_features = feature_map(y[:1]).shape[1]
    total = y.new_zeros(n_features)
    gram = y.new_zeros(n_features, n_features)
    cross = y.new_zeros(n_features, targets.shape[1])
    block_size = max(1, _MAX_VALUES // n_features)
    y_blocks = torch.split(y, block_size)
    target_blocks = torch.split(targets, block_size)
    for y_block, target_block in zip(y_blocks, target_blocks, strict=True):
        features = feature_map(y_block)
        total += features.sum(0)
        gram += features.T @ features
        cross += features.T @ target_block
    gram = gram - torch.outer(total, total) / len(y)
    return _Products(total / len(y), gram, cross)


def relevance(x: Tensor, y: Tensor) -> Tensor:
    """How much a unit of each column of y counts in distances: (l,).

    It is √(l·importance) over the column's standard deviation. Importances are those of
    randomized trees that predict x and its squares, minus the importance that a
    shuffled column reaches, so columns that do not matter count nothing. If no column
    matters, all count alike.
    """
    is_varying = (y != y[0]).any(0)
    if not bool(is_varying.any()):
        return torch.ones_like(y[0])
    weights = torch.where(is_varying, inverse_deviation(y), 0)
    if len(y) < _MIN_TREE_ROWS or int(is_varying.sum()) < 2:
        return weights
    chosen = Seed(0).child("some").permutation(len(y))[:_MAX_TREE_ROWS]
    columns = (y * weights)[chosen][:, is_varying]
    importances = _importances_beyond_chance(columns, standardized_moments(x[chosen]))
    if importances.sum() > 0:
        relative = len(importances) * importances / importances.sum()
        weights[is_varying] *= relative.sqrt()
    return weights


def _importances_beyond_chance(columns: Tensor, targets: Tensor) -> Tensor:
    """The importance (p,) of columns (n, p) for targets (n, t), at least 0.

    What the most important of the shuffled columns reaches, by chance, is subtracted.
    """
    shuffled = columns[Seed(0).child("shuffled").permutation(len(columns))]
    importances = _tree_importances(torch.cat((columns, shuffled), 1), targets)
    n_columns = columns.shape[1]
    of_columns = importances[:n_columns]
    of_shuffled = importances[n_columns:]
    return (of_columns - of_shuffled.max()).clamp(min=0)


def _tree_importances(predictors: Tensor, targets: Tensor) -> Tensor:
    """The importance (p,) of each column of predictors (n, p) for targets (n, t)."""
    trees = ExtraTreesRegressor(
        _N_TREES, min_samples_leaf=_MIN_ROWS_PER_LEAF, random_state=0
    )
    trees.fit(predictors.numpy(), targets.numpy())
    return torch.from_numpy(trees.feature_importances_)
