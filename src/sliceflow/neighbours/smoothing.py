"""Smoothing: new rows along the nearest rows, so that a flow fits the distribution and copies no row.

A draw of row i is xᵢ + h·Σⱼ wⱼ·(xⱼ − x̄ᵢ) over its k nearest rows j of the same class, with their mean x̄ᵢ
and wⱼ ~ N(0, 1/(k − 1)): a Gaussian around xᵢ with h² times the covariance of the neighbourhood. It
follows the shape of the data: along a curve, and hardly across it. Draws spread more than rows. So those
of a class are moved linearly to the mean and covariance of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.bandwidth import choose_spread
from sliceflow.neighbours.draws import noise_along, transport_map
from sliceflow.neighbours.search import build_search, find_nearest

__all__ = ["Group", "choose_smoothing", "find_groups", "with_moments_of"]

_TRIED = 4_000  # draws whose distances choose h
_NUMBERS = 1 << 22  # numbers in memory at a time
_MOST_COLUMNS = 256  # whose covariance draws keep: of more, they keep the variances


@dataclass(frozen=True)
class Group:
    """The rows of one class: numbers (n,), x (n, d) float64, and the k nearest rows of each (n, k)."""

    numbers: Tensor
    x: Tensor
    near: Tensor

    def noise(self, rows: Tensor, times: int, seed: Seed) -> Tensor:
        """Gaussian noise along the neighbours of some rows, `times` each: (n, times, d)."""
        k, d = self.near.shape[1], self.x.shape[1]
        out = torch.zeros(len(rows), times, d, dtype=torch.float64)
        chunk = max(1, _NUMBERS // (k * (times + d)))
        for first in range(0, len(rows), chunk):
            some = rows[first : first + chunk]
            w = seed.normal(len(some), times * k, start=first).view(-1, times, k)
            out[first : first + chunk] = noise_along(self.x[self.near[some]], w)
        return out

    def draw(self, h: float, times: int, seed: Seed) -> Tensor:
        """`times` draws of each row, with the moments of the rows: (n, times, d)."""
        return with_moments_of(self.x, self.noise(torch.arange(len(self.x)), times, seed), h)


def find_groups(x: Tensor, codes: Tensor | None, k: int) -> list[Group]:
    """The rows x (n, d) of each class with their k nearest neighbours, each row among its own.

    Codes are class numbers (n,), or columns (n, l) of a condition, which count like those of x. Classes
    of fewer than k rows have fewer neighbours.
    """
    x, joint, numbers = x.double(), x.double(), [torch.arange(len(x))]
    if codes is not None and codes.dim() == 2:
        joint = torch.cat((x, codes.double()), 1)
    elif codes is not None:
        numbers = [torch.nonzero(codes == c)[:, 0] for c in torch.unique(codes).tolist()]
    return [
        Group(own, x[own], find_nearest(build_search(joint[own]), joint[own], min(k, len(own)))[1])
        for own in numbers
    ]


def with_moments_of(x: Tensor, noise: Tensor, h: float) -> Tensor:
    """The draws x + h·noise, (n, times, d), moved linearly to the mean and the covariance of x (n, d)."""
    draws = (x[:, None] + h * noise).flatten(0, 1)
    centred, off = x - x.mean(0), draws - draws.mean(0)
    if x.shape[1] > _MOST_COLUMNS:
        out = off * (centred.square().mean(0) / off.square().mean(0).clamp(min=1e-300)).sqrt()
    else:
        out = off @ transport_map(off.T @ off / len(off), centred.T @ centred / len(x))
    # A column of one value stays as it is, to the last bit.
    return torch.where((x != x[0]).any(0), x.mean(0) + out, draws).view(noise.shape)


def choose_smoothing(groups: Sequence[Group]) -> float:
    """The least h whose draws are no closer to rows than rows are to each other (`choose_spread`)."""
    n = sum(len(group.x) for group in groups)
    times, step = -(-_TRIED // n), max(1, n // _TRIED)
    tried = []
    for i, group in enumerate(groups):
        some = torch.arange(0, len(group.x), step)
        tried.append((group.x[some], group.noise(some, times, Seed(0).child(i))))

    def draw(h: float) -> list[Tensor]:
        return [with_moments_of(x, noise, h).flatten(0, 1) for x, noise in tried]

    return choose_spread([group.x for group in groups], draw)
