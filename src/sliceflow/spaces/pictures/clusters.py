"""Clusters of pictures without labels, used as classes: separate maps make far better pictures."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.random import Seed

_ROUNDS = 30
_CELLS = 4
_ORIENTATIONS = 8  # of histograms of gradients
_FAINT = 0.02  # squared mean lengths of gradients that count as none


def centres(x: Tensor, k: int, seed: Seed) -> Tensor:
    """The means (f, k) of k clusters of the columns of x (f, n), by Lloyd's algorithm.

    It uses float64 and matrix products only, so that the same seed gives the same bits.
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


def gradient_histograms(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Histograms of oriented gradients (Dalal and Triggs 2005) of pictures x (d, n): (128, n).

    In each of 4×4 cells, the lengths of the gradients of brightness are added up in 8 orientations; the
    8 sums of a cell are divided by their norm. Pictures with the same histograms often show the same
    kind of thing.
    """
    c, h, w = shape
    light = x.view(c, h, w, -1).mean(0)
    down = light[[*range(1, h), h - 1]] - light[[0, *range(h - 1)]]
    right = light[:, [*range(1, w), w - 1]] - light[:, [0, *range(w - 1)]]
    length = (down**2 + right**2).sqrt()
    turn = torch.atan2(down, right) / math.pi * _ORIENTATIONS
    rows, columns = (_cells(side, x.device, x.dtype) for side in (h, w))
    sums = []
    for k in range(_ORIENTATIONS):
        apart = (turn - k + _ORIENTATIONS / 2) % _ORIENTATIONS - _ORIENTATIONS / 2
        share = (1 - apart.abs()).clamp_(
            min=0
        ) * length  # of this orientation and the next
        sums.append(torch.einsum("ih,jw,hwn->ijn", rows, columns, share))
    found = torch.stack(sums, 2)  # (4, 4, 8, n)
    return (found / (found.square().sum(2, keepdim=True) + _FAINT).sqrt()).flatten(0, 2)


def _cells(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The mean over each of 4 parts of a side: (4, side)."""
    part = torch.arange(side, device=device) * _CELLS // side
    member = (torch.arange(_CELLS, device=device)[:, None] == part).to(dtype)
    return member / member.sum(1, keepdim=True).clamp(min=1)
