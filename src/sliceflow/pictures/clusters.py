"""Clusters of pictures without labels, used as classes.

A flow with separate maps for each class makes far better pictures, even for samples of all classes.
So k-means on coarse versions of the pictures divides unlabelled pictures into clusters. Each cluster
gets its own maps, and samples are drawn from all clusters in proportion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sliceflow.engine.random import Seed

__all__ = ["centres", "nearest"]

_ROUNDS = 30


def centres(x: Tensor, k: int, seed: Seed) -> Tensor:
    """The means (f, k) of k clusters of the columns of x (f, n), by Lloyd's algorithm.

    It uses float64 and matrix products only, so that the same seed gives the same bits.

    Examples
    --------
    >>> x = torch.cat((torch.zeros(1, 50), torch.ones(1, 50)), dim=1)
    >>> centres(x, 2, Seed(0)).sort().values
    tensor([[0., 1.]], dtype=torch.float64)
    """
    x, n = x.double(), x.shape[1]
    means = x[:, seed.permutation(n)[:k].to(x.device)]
    for _ in range(_ROUNDS):
        member = torch.nn.functional.one_hot(nearest(x, means), k).double()
        size = member.sum(0)
        means = torch.where(size > 0, x @ member / size.clamp(min=1), means)
    return means


def nearest(x: Tensor, means: Tensor) -> Tensor:
    """For each column of x (f, n), the index of the nearest mean (f, k): (n,)."""
    return (means.square().sum(0)[:, None] - 2 * means.T @ x.double()).argmin(0)
