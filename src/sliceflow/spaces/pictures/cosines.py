"""Rotations for photographs: each direction of a tile combines a few cosines, not all pixels.

A random direction over all pixels of a tile mostly measures coarse light and shade, which a few steps
match. So Θ = R·P: the rows of P are the cosines of the tile, and R rotates random groups of 2 to 32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine.frames import rotation, uniform_rotations, zero_padded
from sliceflow.engine.random import Seed

_GROUPS = (2, 4, 8, 16, 32)  # cosines in a group; steps cycle through these sizes
_POOL = 256  # rotations of each group size
_CACHE_BYTES = 1 << 26  # bytes cached, of each kind
_MIN_VALUES = 8  # smaller tiles use a plain rotation: a group would be the whole tile


def _cosines(n: int) -> Tensor:
    """The cosine basis of n values (the DCT-II), rows of unit length: (n, n)."""
    i = torch.arange(n, dtype=torch.float64)
    rows = torch.cos(math.pi / n * torch.outer(i, i + 0.5)) * math.sqrt(2 / n)
    rows[0] /= math.sqrt(2)
    return rows


@cached(_CACHE_BYTES)
def cosine_basis(
    channels: int, s: int, t: int, device: torch.device | str = "cpu"
) -> Tensor:
    """P (k, k), k = C·s·t: products of vertical and horizontal cosines and cosines over channels."""
    basis = torch.kron(_cosines(channels), torch.kron(_cosines(s), _cosines(t)))
    return basis.to(device)


@cached(_CACHE_BYTES)
def _pool(entropy: int, size: int, device: torch.device | str) -> Tensor:
    """The rotations of groups, shared by all seeds with the same entropy."""
    normal = Seed(entropy).child("groups", size).normal(_POOL * size, size)
    return uniform_rotations(normal.view(_POOL, size, size)).to(device)


@cached(_CACHE_BYTES)
def _block(
    seed: Seed,
    first: int,
    steps: int,
    tile: tuple[int, int, int],
    side: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """The rotations of steps first … first + steps − 1 of a stage, (steps, side, side)."""
    k = math.prod(tile)
    numbers = seed.child("cosines").uniform(steps, 2 * k, start=first, device=device)
    order = numbers[:, :k].argsort(dim=1, stable=True)
    chosen = (numbers[:, k:] * _POOL).long()
    rows = cosine_basis(*tile, device)[order]
    for turn, size in enumerate(_GROUPS):
        at = slice((turn - first) % len(_GROUPS), None, len(_GROUPS))
        n = k // size  # leftover cosines are not rotated
        selected = rows[at]
        pool = _pool(seed.entropy, size, device)
        if n == 0 or len(selected) == 0:
            continue
        groups = selected[:, : n * size].reshape(-1, size, k)
        turned = torch.bmm(pool[chosen[at, :n].reshape(-1)], groups)
        selected[:, : n * size] = turned.view(len(selected), n * size, k)
    return zero_padded(rows.to(dtype), side)


def cosine_rotation(
    seed: Seed,
    step: int,
    tile: tuple[int, int, int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    side: int | None = None,
) -> Tensor:
    """The rotation of a step for tiles of (C, s, t): (k, k), or zero-padded to (side, side)."""
    k = math.prod(tile)
    if k < _MIN_VALUES:
        return rotation(seed, step, k, device, dtype, side)
    steps = max(1, min(32, (1 << 22) // (k * k)))  # about 30 MB at a time
    first = step // steps * steps
    return _block(seed, first, steps, tile, side or k, device, dtype)[step - first]
