"""Points, in plain torch."""

from __future__ import annotations

from torch import Tensor


def take_points(x: Tensor, indices: Tensor) -> Tensor:
    """The points of x (d, n) with these indices (m,), in this order: (d, m)."""
    return x[:, indices]
