"""Random rotations, from which the frames of steps are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine.random import Seed

# Up to this dimension each step draws its own rotation. For larger ones a QR
# decomposition costs as much as the step, and a rotation is a product of pooled ones.
_MAX_UNPOOLED_DIMENSION = 16
# Rotations in a pool. Pairs of them with random signs make 64·2^d rotations; a larger
# pool takes more memory and QR decompositions, and makes rotations more independent.
_POOL_SIZE = 8
# The random numbers of this many steps are drawn together, because drawing for a single
# step costs more than the rest of a small step. Row `step_index` of a stream belongs to
# that step, so this changes no result.
_STEPS_PER_DRAW = 32
# At most this many numbers are in rotations that are drawn together: about 30 MB.
_MAX_ROTATION_NUMBERS = 1 << 22
# Bytes of pools and of rotations that stay cached between steps: bounds the memory.
_POOL_CACHE_BYTES = 1 << 27
_ROTATION_CACHE_BYTES = 1 << 26


def rotation(
    seed: Seed,
    step_index: int,
    d: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    side: int | None = None,
) -> Tensor:
    """The random rotation of a step: (d, d), or zero-padded to (side, side).

    For d > 16 a QR decomposition would cost as much as the step. The rotation is then
    A·D·B: A and B from a pool of eight rotations, which seeds of the same root
    share, D random signs.
    """
    if side is None:
        side = d
    steps = steps_drawn_together(step_index, d)
    block = _rotation_block(seed, steps, d, side, device, dtype)
    return block[step_index - steps.start]


@cached(_ROTATION_CACHE_BYTES)
def _rotation_block(
    seed: Seed,
    steps: range,
    d: int,
    side: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """The rotations of some steps of a stage: (number of steps, side, side)."""
    first = steps.start
    n_steps = len(steps)
    if d <= _MAX_UNPOOLED_DIMENSION:
        normal = seed.child("x").normal(n_steps * d, d, first_row=first * d)
        rotations = uniform_rotations(normal.view(n_steps, d, d))
        return zero_padded(rotations.to(device, dtype), side)
    pool = _rotation_pool(seed.root, d, device)
    pair = seed.child("pair").uniform(n_steps, 2, first_row=first) * _POOL_SIZE
    pair = pair.long().to(device)
    uniform = seed.child("signs").uniform(n_steps, d, first_row=first, device=device)
    signs = torch.sign(uniform - 0.5)
    rotations = torch.bmm(pool[pair[:, 0]] * signs[:, None, :], pool[pair[:, 1]])
    return zero_padded(rotations.to(dtype), side)


def rotation_bytes(d: int, itemsize: int) -> int:
    """Peak memory to draw the rotation of a step, in a type of `itemsize` bytes.

    Up to `_MAX_UNPOOLED_DIMENSION` it is next to nothing, and counts as 0.
    """
    if d <= _MAX_UNPOOLED_DIMENSION:
        return 0
    pool = _POOL_SIZE * 8
    # One rotation of the pool: normal numbers, Q, R, and Q with signs, in float64.
    making_the_pool = 4 * 8
    # Of each rotation that is drawn: A, A·D, B and A·D·B in float64; rounded; padded.
    multiplying = _rotations_per_draw(d) * (4 * 8 + 2 * itemsize)
    result = 2 * itemsize
    return d * d * (pool + max(making_the_pool, multiplying) + result)


def steps_drawn_together(step_index: int, d: int) -> range:
    """The steps whose rotations are drawn together, `step_index` among them.

    The rotation of a step does not depend on the others: this only saves time.
    """
    n_steps = _rotations_per_draw(d)
    first = step_index // n_steps * n_steps
    return range(first, first + n_steps)


def _rotations_per_draw(d: int) -> int:
    """Number of rotations of R^d that are drawn together."""
    return max(1, min(_STEPS_PER_DRAW, _MAX_ROTATION_NUMBERS // (d * d)))


@cached(_POOL_CACHE_BYTES, keep_latest=True)
def _rotation_pool(root: int, d: int, device: torch.device | str) -> Tensor:
    """The rotations (8, d, d) that all seeds with this root share.

    They are computed on the CPU, one at a time: QR needs three times the memory of its
    result.
    """
    pool = torch.empty((_POOL_SIZE, d, d), dtype=torch.float64, device=device)
    for k in range(_POOL_SIZE):
        normal = Seed(root).child("pool", d, k).normal(d, d)
        pool[k] = uniform_rotations(normal[None])[0]
    return pool


@contextmanager
def freeing_rotation_pools() -> Iterator[None]:
    """Free pools of large rotations when the block ends; also a decorator."""
    try:
        yield
    finally:
        _rotation_pool.trim()


def uniform_rotations(normal: Tensor) -> Tensor:
    """Uniformly random rotations (k, d, d) from normal numbers of that shape."""
    q, r = torch.linalg.qr(normal)
    # The signs make them uniform (Mezzadri 2007) and independent of LAPACK.
    signs = torch.sign(torch.diagonal(r, dim1=1, dim2=2))
    return torch.mul(q, signs[:, None, :])


def zero_padded(rotations: Tensor, side: int) -> Tensor:
    """Rotations padded with zeros to (…, side, side).

    The result is in row-major order, unlike the output of QR.
    """
    extra = side - rotations.shape[-1]
    return torch.nn.functional.pad(rotations, (0, extra, 0, extra)).contiguous()


def step_uniform(seed: Seed, step_index: int, n: int) -> list[float]:
    """The n numbers in (0, 1) of a step: row `step_index` of the stream at `seed`."""
    block = step_index // _STEPS_PER_DRAW
    return _uniform_block(seed, block, n)[step_index % _STEPS_PER_DRAW]


@lru_cache(maxsize=64)
def _uniform_block(seed: Seed, block: int, n: int) -> list[list[float]]:
    """The rows of `step_uniform` for the steps of a block."""
    numbers: list[list[float]] = seed.uniform(
        _STEPS_PER_DRAW, n, first_row=block * _STEPS_PER_DRAW
    ).tolist()
    return numbers


def are_orthonormal(theta: Tensor, tolerance: float) -> bool:
    """Whether ΘΘᵀ of directions Θ (h, d) is nearer than this to the identity."""
    identity = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    deviation = (theta @ theta.T - identity).abs()
    return bool((deviation < tolerance).all())
