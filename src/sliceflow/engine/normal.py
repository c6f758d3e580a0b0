"""The density of N(0, 1)."""

from __future__ import annotations

import math

from torch import Tensor

LOG_TWO_PI = math.log(2 * math.pi)


def log_prob(z: Tensor) -> Tensor:
    """The log-density of N(0, 1) at each number, in the shape of z.

    Examples
    --------
    >>> import torch
    >>> log_prob(torch.zeros(2))  # −log √2π
    tensor([-0.9189, -0.9189])
    """
    return -(z.square() + LOG_TWO_PI) / 2
