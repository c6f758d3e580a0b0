"""What distances see of a condition y: its columns by relevance, scores of heavy tails, summaries.

Quantiles of heavy-tailed columns become those of a Gaussian. A *summary* is what random features,
max(0, wᵀy + b) for Gaussian w and b, predict of x by ridge regression (Fearnhead and Prangle, 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from sliceflow.engine.random import Seed

_KNOTS = 257  # quantiles of a heavy-tailed column, with straight lines between them
_HEAVY = (
    40.0  # times the median distance from the median; a normal column stays below 7
)
_LEARNT = 60_000
_SCORED = 2_000  # rows of a ridge regression, and rows whose errors choose its penalty
_PENALTIES = np.geomspace(
    1e-6, 1e3, 19
)  # that it tries, over the mean square of the columns
_GROWN = 4_000  # rows that the trees of `relevance` see
_NUMBERS = 1 << 24  # features in memory at a time


def heavy_tail(column: np.ndarray) -> tuple[float, float] | None:
    """The median of a heavy-tailed column, and the median distance of other values; None for others."""
    middle = float(np.median(column))
    distance = np.abs(column - middle)
    typical = float(np.median(distance[distance > 0])) if distance.any() else math.inf
    return (middle, typical) if math.inf > distance.max() / typical > _HEAVY else None


def inverse_deviation(y: Tensor) -> Tensor:
    """1 over the standard deviation of each column; 1 for columns of one value."""
    scale = y.std(0, correction=0)
    return 1 / torch.where(scale > 1e-12 * y.abs().amax(0), scale, 1)


@dataclass(frozen=True)
class View:
    """A function of y (n, l): `scores` of heavy-tailed columns, and features by its `mean` and `unit`."""

    scores: dict[int, tuple[np.ndarray, np.ndarray]]
    mean: Tensor
    unit: Tensor
    n_features: int = 0

    @classmethod
    def fit_to(cls, y: Tensor, n_features: int = 0) -> View:
        """The view of the rows y (n, l)."""
        columns = enumerate(y.numpy().T)
        scores = {
            j: _scores(column)
            for j, column in columns
            if heavy_tail(column) is not None
        }
        seen = cls(scores, y[0], y[0])(y)
        return cls(scores, seen.mean(0), inverse_deviation(seen), n_features)

    def __call__(self, y: Tensor) -> Tensor:
        """What is seen of y, (n, l + n_features)."""
        y = y.clone() if self.scores else y
        for j, (values, scores) in self.scores.items():
            y[:, j] = torch.from_numpy(np.interp(y[:, j].numpy(), values, scores))
        if not self.n_features:
            return y
        z = (y - self.mean) * self.unit
        seed = Seed(0).child("features")
        w = seed.child("directions").normal(z.shape[1], self.n_features) / math.sqrt(
            z.shape[1]
        )
        return torch.cat(
            (z, (z @ w + seed.child("offsets").normal(1, self.n_features)).relu()), 1
        )


def _scores(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct quantiles of a column, increasing, and their normal scores."""
    levels = np.linspace(0, 1, _KNOTS)
    quantiles = np.quantile(column, levels, method="nearest")
    values, own, counts = np.unique(quantiles, return_inverse=True, return_counts=True)
    middle = (np.bincount(own, levels) / counts).clip(0.5 / _KNOTS, 1 - 0.5 / _KNOTS)
    return values, torch.special.ndtri(torch.from_numpy(middle)).numpy()


def moments(x: Tensor) -> Tensor:
    """The columns of x in standard deviations, and their squares: what a condition should predict."""
    z = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-300)
    return torch.cat((z, z.square().clamp(max=9.0)), 1)


def project(view: View, y: Tensor, projection: Tensor) -> Tensor:
    """What a view has of y (n, l), times a projection (f, m), a part of the rows at a time."""
    parts = torch.split(y, max(1, _NUMBERS // len(projection)))
    return torch.cat([view(part) @ projection for part in parts])


def ridge(view: View, y: Tensor, wanted: Tensor) -> Tensor:
    """(f, p), by which a view of y predicts `wanted` (n, p), but for a constant; by leave-one-out error."""
    step = -(-len(y) // _LEARNT)
    y = y[::step]
    wanted = wanted[::step] - wanted[::step].mean(0)
    width = view(y[:1]).shape[1]
    n = len(y)
    total = y.new_zeros(width)
    gram = y.new_zeros(width, width)
    cross = y.new_zeros(width, wanted.shape[1])
    size = max(1, _NUMBERS // width)
    for part, aims in zip(torch.split(y, size), torch.split(wanted, size), strict=True):
        seen = view(part)
        total += seen.sum(0)
        gram += seen.T @ seen
        cross += seen.T @ aims
    square, vectors = torch.linalg.eigh(gram - torch.outer(total, total) / n)
    cross = vectors.T @ cross
    some = slice(None, None, -(-n // _SCORED))
    turned = (view(y[some]) - total / n) @ vectors
    best = math.inf
    found = cross
    for penalty in _PENALTIES * float(square.mean()):
        over = 1 / (square.clamp(min=0) + penalty)
        leverage = (turned.square() @ over + 1 / n).clamp(max=1 - 1e-9)
        rest = (wanted[some] - turned @ (over[:, None] * cross)) / (1 - leverage)[
            :, None
        ]
        if (error := float(rest.square().mean())) < best:
            best = error
            found = over[:, None] * cross
    out: Tensor = vectors @ found
    return out


def relevance(x: Tensor, y: Tensor) -> Tensor:
    """(l,) what a unit of each column of y counts: √(l·its importance), over its standard deviation.

    Importances are those of randomised trees for x and its squares, minus what a shuffled column
    reaches. So columns that do not matter count nothing. If no column matters, all count alike.
    """
    varies = (y != y[0]).any(0)
    unit = torch.where(varies, inverse_deviation(y), 0)
    if len(y) < 10 or int(varies.sum()) < 2:
        return unit if bool(varies.any()) else torch.ones_like(unit)
    some = Seed(0).child("some").permutation(len(y))[:_GROWN]
    columns = (y * unit)[some][:, varies]
    shuffled = columns[Seed(0).child("shuffled").permutation(len(columns))]
    trees = ExtraTreesRegressor(50, min_samples_leaf=5, random_state=0)
    trees.fit(torch.cat((columns, shuffled), 1).numpy(), moments(x[some]).numpy())
    own, chance = torch.from_numpy(trees.feature_importances_).view(2, -1)
    own = (own - chance.max()).clamp(min=0)
    if own.sum() > 0:
        unit[varies] *= (len(own) * own / own.sum()).sqrt()
    return unit
