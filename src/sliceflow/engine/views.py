"""What neighbourhoods see of a condition y: its columns, scores of heavy tails, and random features.

A heavy-tailed column is replaced by its normal scores: its quantiles become those of a Gaussian, with
straight lines between 257 of them. Its standard deviation would say nothing about most of its values.
Random features, max(0, wᵀy + b) for Gaussian w and b, let a linear regression follow curves: a
*summary* of y is what they predict of x, by ridge regression. Such summaries are due to Fearnhead and
Prangle (2012), "Constructing summary statistics for approximate Bayesian computation".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.random import Seed

__all__ = ["LEARNT", "View", "per_deviation", "predictions", "targets"]

_KNOTS = 257  # quantiles of a heavy-tailed column
_HEAVY = 40.0  # times the median distance from the median; a normal column stays below 7
LEARNT = 30_000  # rows that the ridge regression sees
_PENALTIES = np.geomspace(1e-6, 1e3, 19)  # that it tries, over the mean square of the columns


@dataclass(frozen=True)
class View:
    """A function of y (n, l), float64.

    Parameters
    ----------
    scores : for heavy-tailed columns, their number with values and the scores of these
    mean, unit : (l,), with which the other columns enter random features
    n_features : how many of these

    Examples
    --------
    >>> y = torch.tan(torch.linspace(-1.57, 1.57, 999, dtype=torch.float64))[:, None]
    >>> View.of(y)(y).abs().max().round(decimals=1)
    tensor(2.9000, dtype=torch.float64)
    >>> View.of(y, n_features=100)(y).shape
    torch.Size([999, 101])
    """

    scores: dict[int, tuple[np.ndarray, np.ndarray]]
    mean: Tensor
    unit: Tensor
    n_features: int = 0

    @classmethod
    def of(cls, y: Tensor, n_features: int = 0) -> View:
        """That of the rows y (n, l)."""
        distance = (y - y.median(0).values).abs()
        typical = torch.stack([d[d > 0].median() if bool(d.any()) else d[0] for d in distance.T])
        heavy = torch.nonzero(distance.amax(0) > _HEAVY * typical)[:, 0].tolist()
        view = cls({j: _scores(y[:, j].numpy()) for j in heavy}, y[0], y[0])
        if not n_features:
            return view
        y = view(y)
        return cls(view.scores, y.mean(0), per_deviation(y), n_features)

    def __call__(self, y: Tensor) -> Tensor:
        if self.scores:
            y = y.clone()
            for j, (values, scores) in self.scores.items():
                y[:, j] = torch.from_numpy(np.interp(y[:, j].numpy(), values, scores))
        if not self.n_features:
            return y
        z, seed = (y - self.mean) * self.unit, Seed(0).child("features")
        w = seed.child("directions").normal(z.shape[1], self.n_features) / math.sqrt(z.shape[1])
        return torch.cat((z, (z @ w + seed.child("offsets").normal(1, self.n_features)).relu()), 1)


def _scores(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct quantiles of a column, increasing, and their normal scores."""
    levels = np.linspace(0, 1, _KNOTS)
    values, own, counts = np.unique(
        np.quantile(column, levels, method="nearest"), return_inverse=True, return_counts=True
    )
    middle = np.bincount(own, levels) / counts
    inside = middle.clip(0.5 / _KNOTS, 1 - 0.5 / _KNOTS)
    return values, torch.special.ndtri(torch.from_numpy(inside)).numpy()


def per_deviation(y: Tensor) -> Tensor:
    """1 over the standard deviation of each column; 1 for columns of one value."""
    scale = y.std(0, correction=0)
    return 1 / torch.where(scale > 1e-12 * y.abs().amax(0), scale, 1)


def targets(x: Tensor) -> Tensor:
    """The columns of x in standard deviations, and their squares."""
    z = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-300)
    return torch.cat((z, z.square().clamp(max=9.0)), 1)


def predictions(x: Tensor, y: Tensor, view: View | None = None) -> Tensor:
    """(f, 2d), what columns of y (n, f) are multiplied with to predict x (n, d) and its squares.

    With a view, the f columns that it has of y. The penalty is that of the least leave-one-out error,
    the same for all columns.
    """
    step = -(-len(x) // LEARNT)
    wanted, columns = targets(x)[::step], y[::step] if view is None else view(y[::step])
    wanted, columns = wanted - wanted.mean(0), columns - columns.mean(0)
    square, vectors = torch.linalg.eigh(columns.T @ columns)
    turned = columns @ vectors
    cross = turned.T @ wanted
    best, found = math.inf, cross
    for penalty in _PENALTIES * float(square.mean()):
        over = 1 / (square.clamp(min=0) + penalty)
        own = (turned.square() @ over + 1 / len(turned)).clamp(max=0.99)
        rest = (wanted - turned @ (over[:, None] * cross)) / (1 - own)[:, None]
        if (error := float(rest.square().mean())) < best:
            best, found = error, over[:, None] * cross
    out: Tensor = vectors @ found
    return out
