"""Smoothing the target along its own neighbours, so that a flow fits the distribution, not the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.flow import Cloud
from sliceflow.engine.random import Seed
from sliceflow.vectors.data import Rows

__all__ = ["Smoothed", "neighbours_of"]


@dataclass(frozen=True)
class Smoothed:
    """Rows that are drawn anew for every step, each within its own neighbourhood.

    A draw of row i is xᵢ + h·Σⱼ wⱼ·(xⱼ − x̄ᵢ) over its k nearest rows j, x̄ᵢ being their mean and
    wⱼ ~ N(0, 1/(k − 1)): a Gaussian around xᵢ with h² times the covariance of the neighbourhood. It
    follows the shape of the data: along a curve, and hardly across it.

    Parameters
    ----------
    data : the rows, as columns (d, n), and their codes
    neighbours : (n, k) row numbers
    strength : h
    seed : of the draws
    """

    data: Cloud
    neighbours: Tensor
    strength: float
    seed: Seed

    def at(self, step: int) -> Cloud:
        """The draws of a step."""
        x, (n, k) = self.data.x, self.neighbours.shape
        weights = self.seed.child(step).normal(n, k, dtype=x.dtype, device=x.device)
        weights = (weights - weights.mean(1, keepdim=True)) * (self.strength / math.sqrt(k - 1))
        moved = x.clone()
        for j in range(k):
            moved.addcmul_(x[:, self.neighbours[:, j]], weights[:, j])
        return Cloud(moved, self.data.y)


def neighbours_of(rows: Rows, k: int) -> Tensor:
    """The k nearest rows of each row, itself among them: (n, k). With labels, of its own class.

    Classes of fewer than k rows repeat their rows. Columns of a condition count like those of x.
    """
    x, codes = rows.x.double().numpy(), rows.codes
    if codes is None or codes.dim() == 2:
        joint = x if codes is None else np.concatenate((x, codes.numpy()), axis=1)
        return torch.from_numpy(_nearest(joint, k))
    out = np.empty((len(x), k), dtype=np.int64)
    for c in torch.unique(codes).tolist():
        own = np.flatnonzero(codes.numpy() == c)
        out[own] = own[_nearest(x[own], k)]
    return torch.from_numpy(out)


def _nearest(x: np.ndarray, k: int) -> np.ndarray:
    found = NearestNeighbors(n_neighbors=min(k, len(x))).fit(x).kneighbors(x, return_distance=False)
    return np.asarray(np.resize(found.T, (k, len(x))).T)  # repeats the columns where there are too few
