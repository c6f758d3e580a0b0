"""Draws along neighbours: Gaussians with the shape of a neighbourhood, and their linear correction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.regressions import Adjusted
from sliceflow.neighbours.search import pick

NEAR = 20  # adjusted rows whose covariance a draw has
MEASURED = 48  # the least draws of a condition that measure how far draws spread


def noise_along(around: Tensor, w: Tensor) -> Tensor:
    """Noise (…, t, d) with the covariance of points (…, k, d), by standard normal w (…, t, k)."""
    return w @ (around - around.mean(-2, keepdim=True)) / math.sqrt(max(1, around.shape[-2] - 1))


def transport_map(e: Tensor, c: Tensor) -> Tensor:
    """E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ², which moves least from covariance E to C; 1 where E has no spread."""
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

    A point is a row, drawn by weight, plus h times a Gaussian of the rows nearest to it, scaled to the
    covariance that rows have within components. `first` is the index of the first condition.
    """
    (q, k, d), m = near.x.shape, max(n, MEASURED)
    own = pick(near.weight, seed.child("row").uniform(q, m, start=first))
    if k == 1:
        return near.x.expand(q, n, d).clone(), own[:, :n]
    centre, mean, unit = centred(near)
    # With more draws than rows, find the neighbours of the rows once.
    at = own if m < k else torch.arange(k).expand(q, k)
    other = near.component.gather(1, at)[..., None] != near.component[:, None]
    # A component of few rows borrows those of others, moved to its mean.
    distance = torch.cdist(_rows_at(centre * unit, at), centre * unit) + 1e6 * other
    around = torch.topk(distance, min(NEAR, k), dim=2, largest=False).indices
    around = around if m < k else _rows_at(around, own)
    points = _rows_at(centre, around.flatten(1)).view(*around.shape, d)
    w = seed.child("noise").normal(q, n * NEAR, start=first).view(q, n, 1, NEAR)
    noise = noise_along(points[:, :n], w[..., : points.shape[2]])[:, :, 0]
    flat = (points - points.mean(2, keepdim=True)).flatten(1, 2)
    extra = flat.mT @ flat / (m * (points.shape[2] - 1))  # the covariance of the noise
    covariance, own = (near.weight[..., None] * centre).mT @ centre, own[:, :n]
    scaling = near.inflation[:, None, None] * transport_map(covariance + h**2 * extra, covariance)
    return _rows_at(mean, own) + (_rows_at(centre, own) + h * noise) @ scaling, own


def centred(near: Adjusted) -> tuple[Tensor, Tensor, Tensor]:
    """Adjusted rows minus the means of their components, the means, and 1 over deviations (q, 1, d)."""
    mass = torch.nn.functional.one_hot(near.component, int(near.component.max()) + 1).to(near.x.dtype)
    weighted = mass * near.weight[..., None]
    mean = mass @ (weighted.mT @ near.x / (weighted.sum(1)[..., None] + 1e-300))
    centre = near.x - mean
    scale = (near.weight[..., None] * centre.square()).sum(1, keepdim=True).sqrt()
    return centre, mean, 1 / torch.where(scale > 0, scale, 1)


def _rows_at(x: Tensor, at: Tensor) -> Tensor:
    """Rows (q, m, d) of x (q, k, d) at the numbers (q, m)."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
