"""The sliced distance between samples and rows, by which `score` judges a model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.random import Seed


def sliced_distance(samples: Cloud, rows: Cloud, seed: Seed, n_directions: int = 100) -> float:
    """SW₂ over random directions, by the samples' quantiles at the rows' own levels.

    Rows of a class are compared with samples of that class, rows with continuous y as pairs (x, y).
    """
    theta = seed.normal(n_directions, len(rows.x), dtype=rows.x.dtype)
    theta = (theta / theta.norm(dim=1, keepdim=True)).to(rows.x.device)
    z, target = theta @ samples.x, theta @ rows.x
    pairs = [(z, target)]
    if rows.y is not None and samples.y is not None:
        y_p, y_q = (y.to(z.device) for y in (samples.y, rows.y))
        if y_q.dim() == 1:
            pairs = [(z[:, y_p == c], target[:, y_q == c]) for c in torch.unique(y_q)]
        else:
            width = y_q.shape[1]
            theta_y = seed.child("y").normal(n_directions, width).to(z.device) / math.sqrt(width)
            shifts = ((theta_y @ y.double().T).to(z.dtype) for y in (y_p, y_q))
            pairs = [(z + next(shifts), target + next(shifts))]
    squares = [(_quantiles(a, b.shape[1]) - b.sort(1).values).square() for a, b in pairs]
    return float(torch.cat(squares, dim=1).mean().sqrt())


def _quantiles(z: Tensor, n: int) -> Tensor:
    """Quantiles of z (h, m) at the levels of n sorted values: (h, n)."""
    z, m = torch.sort(z, dim=1).values, z.shape[1]
    position = ((torch.arange(n, device=z.device) + 0.5) * (m / n) - 0.5).clamp(0, m - 1)
    i = position.floor().long().clamp(max=max(m - 2, 0))
    f = (position - i).to(z.dtype)
    return z[:, i] + f * (z[:, (i + 1).clamp(max=m - 1)] - z[:, i])
