"""Exact search of the nearest rows, and the weights of the rows that it finds."""

from __future__ import annotations

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

_FEW, _MANY = 6, 100_000  # columns and rows beyond which all distances are faster than a tree


def build_search(rows: Tensor) -> NearestNeighbors:
    """An exact search among rows (n, d): a tree, or all distances where these are faster."""
    brute = rows.shape[1] > _FEW and len(rows) > _MANY
    return NearestNeighbors(algorithm="brute" if brute else "auto").fit(rows.numpy())


def find_nearest(
    search: NearestNeighbors, points: Tensor, k: int, without: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances and numbers (q, k) of the rows nearest to points (q, d), in order, but for `without` (q,)."""
    found = search.kneighbors(points.numpy(), k + (without is not None))
    distance, rows = (torch.from_numpy(part) for part in found)
    if without is None:
        return distance, rows
    own = rows == without[:, None]
    own[:, -1] |= ~own.any(1)  # where the row is not among its nearest, the farthest goes
    return distance[~own].view(len(points), k), rows[~own].view(len(points), k)


def kernel_weights(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Epanechnikov's weights (q, k), 1 − (distance/r)² scaled to sum to 1, and the radius r (q, 1)."""
    radius = distance[:, -1:] * (1 + 1e-6)
    radius = torch.where(radius > 0, radius, 1)
    weight = 1 - (distance / radius).square()
    return weight / weight.sum(1, keepdim=True), radius


def pick(weight: Tensor, u: Tensor) -> Tensor:
    """Numbers (q, n) drawn in proportion to the weights (q, k), by uniform numbers u (q, n)."""
    ends = weight.cumsum(1)
    return torch.searchsorted(ends, u * ends[:, -1:]).clamp(max=weight.shape[1] - 1)


def inverse_deviation(y: Tensor) -> Tensor:
    """1 over the standard deviation of each column; 1 for columns of one value."""
    scale = y.std(0, correction=0)
    return 1 / torch.where(scale > 1e-12 * y.abs().amax(0), scale, 1)
