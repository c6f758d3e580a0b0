"""Clusters of pictures without labels: classes that the pictures themselves suggest.

A flow that holds classes apart (`runs`) makes far better pictures than one that does not, also if
nobody asks for a class. So pictures without labels are divided by k-means of their coarsest shapes,
every cluster is moved by maps of its own, and samples come from all of them in their proportions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sliceflow.engine.random import Seed

__all__ = ["centres", "nearest"]

_ROUNDS = 30


def centres(x: Tensor, k: int, seed: Seed) -> Tensor:
    """The means (f, k) of k clusters of the columns of x (f, n), by Lloyd's algorithm.

    In float64 and by products alone, so that the same seed gives the same bits.

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
    """The number of the mean (f, k) that is nearest to each column of x (f, n): (n,)."""
    return (means.square().sum(0)[:, None] - 2 * means.T @ x.double()).argmin(0)
