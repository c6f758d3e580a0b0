"""Draws along neighbours: Gaussians with the shape of a neighbourhood, and their linear correction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.regressions import Adjusted
from sliceflow.neighbours.search import pick

__all__ = ["draw_near", "noise_along", "transport_map", "unit_within"]

NEAR = 20  # adjusted rows whose covariance a draw has
MEASURED = 48  # the least draws of a condition that measure how far draws spread


def noise_along(around: Tensor, w: Tensor) -> Tensor:
    """Gaussian noise (…, t, d) with the covariance of the points around (…, k, d), by normal w (…, t, k)."""
    k = around.shape[-2]
    return w @ (around - around.mean(-2, keepdim=True)) / math.sqrt(max(1, k - 1))


def transport_map(e: Tensor, c: Tensor) -> Tensor:
    """(…, d, d), E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ²: of the linear maps from covariance E to C, the one that moves least.

    It is the identity in directions in which E has no spread.

    Examples
    --------
    >>> transport_map(torch.diag(torch.tensor([4.0, 0.0])), torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    values, vectors = torch.linalg.eigh(e)
    inside = values > 1e-10 * values[..., -1:]
    root = torch.where(inside, values, 0).clamp(min=0).sqrt()
    inverse = torch.where(inside, 1 / torch.where(inside, root, 1), 0)
    half = vectors * root[..., None, :]
    squares, turned = torch.linalg.eigh(half.mT @ c @ half)
    back = (vectors * inverse[..., None, :]) @ turned
    outside = vectors * (~inside)[..., None, :]
    out: Tensor = (back * squares.clamp(min=0).sqrt()[..., None, :]) @ back.mT + outside @ vectors.mT
    return out


def draw_near(near: Adjusted, n: int, h: float, seed: Seed, first: int = 0) -> tuple[Tensor, Tensor]:
    """n new points (q, n, d) along the adjusted rows, and the one (q, n) that each is drawn around.

    A point is an adjusted row, drawn by weight, plus h times a Gaussian with the covariance of the
    adjusted rows nearest to it. Points spread more than rows. So they are scaled to the covariance that
    the rows have within components. `first` is the index of the first condition.
    """
    (q, k, d), m = near.x.shape, max(n, MEASURED)
    own = pick(near.weight, seed.child("row").uniform(q, m, start=first))
    if k == 1:
        return near.x.expand(q, n, d).clone(), own[:, :n]
    centre, mean = _centred(near)
    # With more draws than rows, find the neighbours of the rows once.
    around = _nearest(near, centre, own if m < k else torch.arange(k).expand(q, k), min(NEAR, k))
    if m >= k:
        around = around.gather(1, own[..., None].expand(-1, -1, around.shape[2]))
    points = _rows_at(centre, around.flatten(1)).view(*around.shape, d)
    w = seed.child("noise").normal(q, n * NEAR, start=first).view(q, n, 1, NEAR)
    noise = noise_along(points[:, :n], w[..., : points.shape[2]])[:, :, 0]
    flat = (points - points.mean(2, keepdim=True)).flatten(1, 2)
    extra = flat.mT @ flat / (m * (points.shape[2] - 1))  # the covariance of the noise
    covariance = (near.weight[..., None] * centre).mT @ centre
    scaling = near.inflation[:, None, None] * transport_map(covariance + h**2 * extra, covariance)
    own = own[:, :n]
    return _rows_at(mean, own) + (_rows_at(centre, own) + h * noise) @ scaling, own


def unit_within(near: Adjusted) -> Tensor:
    """1 over the standard deviation within components of each column: (q, 1, d)."""
    return _inverse_scale(near, _centred(near)[0])


def _inverse_scale(near: Adjusted, centre: Tensor) -> Tensor:
    scale = (near.weight[..., None] * centre.square()).sum(1, keepdim=True).sqrt()
    return 1 / torch.where(scale > 0, scale, 1)


def _rows_at(x: Tensor, at: Tensor) -> Tensor:
    """Rows (q, m, d) of x (q, k, d) at the numbers (q, m)."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))


def _centred(near: Adjusted) -> tuple[Tensor, Tensor]:
    """The adjusted rows minus the mean of their component, and these means: twice (q, k, d)."""
    mass = torch.nn.functional.one_hot(near.component, int(near.component.max()) + 1).to(near.x.dtype)
    weighted = mass * near.weight[..., None]
    mean = mass @ (weighted.mT @ near.x / (weighted.sum(1)[..., None] + 1e-300))
    return near.x - mean, mean


def _nearest(near: Adjusted, centre: Tensor, at: Tensor, n: int) -> Tensor:
    """The n nearest adjusted rows (q, m, n) of the same component, for the rows `at` (q, m).

    A component with fewer rows lends those of others, moved to its mean.
    """
    z = centre * _inverse_scale(near, centre)
    other = near.component.gather(1, at)[..., None] != near.component[:, None]
    distance = torch.cdist(_rows_at(z, at), z) + 1e6 * other
    return torch.topk(distance, n, dim=2, largest=False).indices
