"""The density of N(0, I)."""

from __future__ import annotations

import math

from torch import Tensor

LOG_TWO_PI = math.log(2 * math.pi)


def log_density(z: Tensor, dim: int = 0) -> Tensor:
    """log of the density of N(0, I) at points z, whose coordinates are along `dim`.

    Points (d, n) give (n,), and with ``dim=1`` points (n, d) do. Of single numbers z of
    any shape, ``log_density(z[None])`` has the shape of z.

    Examples
    --------
    >>> import torch
    >>> log_density(torch.zeros(2, 3))  # −log 2π at the origin of the plane
    tensor([-1.8379, -1.8379, -1.8379])
    """
    return -(z.square().sum(dim) + z.shape[dim] * LOG_TWO_PI) / 2
