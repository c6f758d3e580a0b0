"""Smoothing: new rows along the nearest rows, so that a flow fits the distribution and copies no row.

A draw is a row plus h times a Gaussian with the covariance of its k nearest rows of the same class.
Draws of a class are moved linearly to the mean and covariance of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.draws import noise_along, transport_map
from sliceflow.neighbours.search import build_search, choose_spread, find_nearest

_TRIED = 2_000  # draws whose distances choose h
_NUMBERS = 1 << 22  # numbers in memory at a time
_MOST_COLUMNS = 256  # whose covariance draws keep: of more, they keep the variances


@dataclass(frozen=True)
class Group:
    """The rows of one class: numbers (n,), x (n, d) float64, and the k nearest rows of each (n, k)."""

    numbers: Tensor
    x: Tensor
    near: Tensor

    def draw(self, h: float, times: int, seed: Seed, step: int = 1) -> Tensor:
        """`times` draws of each row, or of one in `step`, with the moments of these: (n, times, d)."""
        k = self.near.shape[1]
        x = self.x[::step]
        near = self.near[::step]
        draws = torch.empty(len(x), times, x.shape[1], dtype=torch.float64)
        chunk = max(1, _NUMBERS // (k * (times + x.shape[1])))
        for first in range(0, len(x), chunk):
            some = slice(first, min(first + chunk, len(x)))
            w = seed.normal(some.stop - first, times * k, start=first).view(
                -1, times, k
            )
            draws[some] = x[some, None] + h * noise_along(self.x[near[some]], w)
        off = (draws - draws.mean((0, 1))).flatten(0, 1)
        centre = x - x.mean(0)
        if x.shape[1] > _MOST_COLUMNS:
            off *= (
                centre.square().mean(0) / off.square().mean(0).clamp(min=1e-300)
            ).sqrt()
        else:
            off = off @ transport_map(
                off.T @ off / len(off), centre.T @ centre / len(x)
            )
        # A column of one value stays as it is, to the last bit.
        return torch.where((x != x[0]).any(0), x.mean(0) + off.view(draws.shape), x[0])


def find_groups(x: Tensor, codes: Tensor | None, k: int) -> list[Group]:
    """The rows x (n, d) of each class, or all with columns of codes beside them, and their k nearest."""
    x, joint, numbers = x.double(), x.double(), [torch.arange(len(x))]
    if codes is not None and codes.dim() == 2:
        joint = torch.cat((x, codes.double()), 1)
    elif codes is not None:
        numbers = [
            torch.nonzero(codes == c)[:, 0] for c in torch.unique(codes).tolist()
        ]
    rows = [(own, joint[own]) for own in numbers]
    near = [find_nearest(build_search(z), z, min(k, len(own)))[1] for own, z in rows]
    return [Group(own, x[own], found) for own, found in zip(numbers, near, strict=True)]


def choose_smoothing(groups: Sequence[Group]) -> float:
    """The least h whose draws are no closer to rows than rows are to each other (`choose_spread`)."""
    n = sum(len(group.x) for group in groups)
    times = -(-_TRIED // n)
    step = max(1, n // _TRIED)

    def draw(h: float) -> list[Tensor]:
        draws = (
            group.draw(h, times, Seed(0).child(i), step)
            for i, group in enumerate(groups)
        )
        return [part.flatten(0, 1) for part in draws]

    return choose_spread([group.x for group in groups], draw)
