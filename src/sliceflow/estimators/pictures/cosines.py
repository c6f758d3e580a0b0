"""Rotations of tiles for photographs: each direction combines a few cosines.

A random direction over all pixels of a tile mostly measures coarse light and shade,
which a few steps match. So the rotation of a tile is Θ = R·P: the rows of P are the
cosines of the tile (its DCT-II basis) in random order, and R rotates groups of 2, 4, 8,
16 or 32 of them. Steps cycle through these group sizes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import (
    rotation,
    steps_drawn_together,
    uniform_rotations,
    zero_padded,
)

# Cosines in a group. Small groups see single frequencies, large ones mixtures.
GROUP_SIZES = (2, 4, 8, 16, 32)

# Rotations of each group size that are drawn once, and then chosen from at random: a QR
# decomposition for each group of each step would cost more than the step.
N_POOLED_ROTATIONS = 256

# Tiles with fewer values use a plain rotation: a group would be the whole tile.
MIN_TILE_VALUES = 8

# Bytes that each of the three caches below may hold. The rotations that are drawn
# together take about 30 MB in float64, so these are a block or two.
CACHE_BYTES = 1 << 26


def _dct_matrix(n: int) -> Tensor:
    """The cosine basis of n values, the DCT-II: (n, n), float64, rows of length 1."""
    i = torch.arange(n, dtype=torch.float64)
    rows = torch.cos(math.pi / n * torch.outer(i, i + 0.5)) * math.sqrt(2 / n)
    rows[0] /= math.sqrt(2)
    return rows


@cached(CACHE_BYTES)
def cosine_basis(
    channels: int, height: int, width: int, device: torch.device | str = "cpu"
) -> Tensor:
    """P (k, k) of tiles of k = C·height·width values.

    Its rows are products of a cosine over channels, a vertical and a horizontal one.
    """
    spatial = torch.kron(_dct_matrix(height), _dct_matrix(width))
    return torch.kron(_dct_matrix(channels), spatial).to(device)


@cached(CACHE_BYTES)
def _group_rotations(root: int, size: int, device: torch.device | str) -> Tensor:
    """The rotations (256, size, size) from which groups of `size` cosines choose.

    All seeds with this root share them.
    """
    seed = Seed(root).child("groups", size)
    normal = seed.normal(N_POOLED_ROTATIONS * size, size)
    return uniform_rotations(normal.view(N_POOLED_ROTATIONS, size, size)).to(device)


@cached(CACHE_BYTES)
def _rotation_block(
    seed: Seed,
    steps: range,
    tile: tuple[int, int, int],
    side: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """The rotations of some steps of a stage: (number of steps, side, side)."""
    k = math.prod(tile)
    # For each step: k numbers draw the order of the cosines, and k the rotations.
    uniform = seed.child("cosines").uniform(
        len(steps), 2 * k, first_row=steps.start, device=device
    )
    order = uniform[:, :k].argsort(dim=1, stable=True)
    pool_index = (uniform[:, k:] * N_POOLED_ROTATIONS).long()
    theta = cosine_basis(*tile, device)[order]  # (number of steps, k, k)
    for size_index, group_size in enumerate(GROUP_SIZES):
        pool = _group_rotations(seed.root, group_size, device)
        # The steps with this group size: every fifth one.
        first = (size_index - steps.start) % len(GROUP_SIZES)
        every_fifth = slice(first, None, len(GROUP_SIZES))
        _rotate_groups(theta[every_fifth], pool, pool_index[every_fifth])
    return zero_padded(theta.to(dtype), side)


def _rotate_groups(theta: Tensor, pool: Tensor, pool_index: Tensor) -> None:
    """Rotate groups of rows of theta (n_steps, k, k), in place.

    The rotations are `pool` (256, size, size). Group j of step i takes the one with the
    number pool_index[i, j]. Rows that are left over at the end are not rotated.
    """
    n_steps, k, _ = theta.shape
    size = pool.shape[-1]
    n_groups = k // size
    n_rotated = n_groups * size
    if n_groups == 0 or n_steps == 0:
        return
    groups = theta[:, :n_rotated].reshape(-1, size, k)
    rotations = pool[pool_index[:, :n_groups].reshape(-1)]
    theta[:, :n_rotated] = torch.bmm(rotations, groups).view(n_steps, n_rotated, k)


def cosine_rotation(
    seed: Seed,
    step_index: int,
    tile: tuple[int, int, int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    side: int | None = None,
) -> Tensor:
    """The rotation of a step for tiles of shape (C, height, width).

    It is (k, k) for k = C·height·width, or zero-padded to (side, side).
    """
    k = math.prod(tile)
    if k < MIN_TILE_VALUES:
        return rotation(seed, step_index, k, device, dtype, side)
    if side is None:
        side = k
    steps = steps_drawn_together(step_index, k)
    block = _rotation_block(seed, steps, tile, side, device, dtype)
    return block[step_index - steps.start]
