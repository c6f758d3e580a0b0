"""Weights of neighbors, and random choices in proportion to weights."""

from __future__ import annotations

import torch
from torch import Tensor

# The radius is farther than the farthest neighbor by this share, so that the weight of
# that neighbor is not 0.
_RADIUS_MARGIN = 1e-6


def kernel_weights(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Epanechnikov's weights of neighbors, from distances (q, k) in ascending order.

    Returns weights (q, k), which are 1 − (distance/r)² scaled to a sum of 1, and the
    radius r (q, 1), hardly more than the distance of the farthest neighbor.
    """
    radius = distances[:, -1:] * (1 + _RADIUS_MARGIN)
    radius = torch.where(radius > 0, radius, 1)
    weights = 1 - (distances / radius).square()
    return weights / weights.sum(1, keepdim=True), radius


def choose_by_weight(weights: Tensor, u: Tensor) -> Tensor:
    """Indices (q, n) in proportion to weights (q, k), by uniform numbers u (q, n)."""
    cumulative = weights.cumsum(1)
    indices = torch.searchsorted(cumulative, u * cumulative[:, -1:])
    return indices.clamp(max=weights.shape[1] - 1)
