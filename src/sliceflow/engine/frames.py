"""Frames: the directions of one step. They project, lift, and know their Parseval constant.

A frame's directions are the rows of Θ (h, d). It is *Parseval* with constant c when ΘᵀΘ = c·I; then
``lift`` divides by c, so that a step of size 1 solves every direction at once:
``x += lift(T(project(x)) − project(x))``. For orthogonal rows c = 1 and this is exact; for H random
unit vectors c = H/d holds only on average, and dividing by it is the paper's factor η/H with η = d.

A *kind* of frame (`Random`, `Orthogonal`, `Axis`) is a small, printable description; ``draw`` makes
the frame of one step from a seed, whose bits are the same on every device, and in float64 until it is
rounded, so that a model replays anywhere. `Tiles`, for pictures, is in `local`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.caches import cached
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, need

if TYPE_CHECKING:
    from sliceflow.engine.classes import Runs
    from sliceflow.engine.conditions import Offset
    from sliceflow.engine.transports import Table

__all__ = [
    "AnyFrame",
    "Axis",
    "Frame",
    "FrameKind",
    "Orthogonal",
    "Random",
    "condition_directions",
    "frame_bytes",
    "independent",
    "releasing",
    "rotation",
    "rotation_bytes",
    "step_uniform",
]

_MAX_FRESH = 16  # up to this dimension every step draws its own rotation
_POOL = 8
_BLOCK = 32
_POOLS, _BLOCKS = 1 << 27, 1 << 26  # bytes that are kept of all seeds' pools, and of their rotations


@dataclass(frozen=True)
class Frame:
    """The directions of one step, on a device.

    Parameters
    ----------
    theta : (h, d) directions in the space of x, or None for the coordinates themselves
    theta_y : (h, l) directions in the space of the condition, or None if the frame ignores it
    parseval : c, with ΘᵀΘ = c·I, exactly or on average
    """

    theta: Tensor | None
    theta_y: Tensor | None
    parseval: float = 1.0

    @property
    def n_directions(self) -> int:
        """h; 0 for the coordinates themselves, however many there are."""
        return 0 if self.theta is None else len(self.theta)

    def project(self, x: Tensor, columns: Tensor | None = None, offset: Offset | None = None) -> Tensor:
        """z = Θx + the condition's offset for particles stored as columns: (d, n) -> (h, n)."""
        if columns is not None:
            x, offset = x[:, columns], None if offset is None else offset.of(columns)
        z = x if self.theta is None else torch.mm(self.theta, x)
        return z if offset is None else offset.added(z)

    def move(
        self, x: Tensor, table: Table, offset: Offset | None, size: float, runs: Runs | None = None
    ) -> None:
        """x += s·Θᵀ(T(z) − z)/c in place, z being `project`'s, T that of each run if there are any."""
        z = self.project(x, None, offset)
        x.add_(self.lift(table.displace(z, *([] if runs is None else [runs]))), alpha=size)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz / c: (h, n) -> (d, n)."""
        return dz if self.theta is None else torch.mm(self.theta.T / self.parseval, dz)


class AnyFrame(Protocol):
    """What a step needs of a frame; see `Frame` for the meaning of each."""

    @property
    def theta_y(self) -> Tensor | None: ...
    @property
    def n_directions(self) -> int: ...
    def project(
        self, x: Tensor, columns: Tensor | None = None, offset: Offset | None = None
    ) -> Tensor: ...
    def lift(self, dz: Tensor) -> Tensor: ...
    def move(
        self, x: Tensor, table: Table, offset: Offset | None, size: float, runs: Runs | None = None
    ) -> None: ...


class FrameKind(Protocol):
    """What a schedule holds: how the frames of its steps are drawn."""

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> AnyFrame:
        """The frame of `step`, for x in R^d and a condition in R^n_conditions (0: none)."""
        ...


def independent(
    theta: Tensor, seed: Seed, n_conditions: int, device: torch.device | str, dtype: torch.dtype
) -> Frame:
    """The frame of h independent directions θ_x (h, d), normalised together with a random θ_y.

    ΘᵀΘ = c·I with c = h/d holds on average only.
    """
    h, d = theta.shape
    joint = torch.cat((theta, seed.child("y").normal(h, n_conditions)), dim=1)
    joint = torch.nn.functional.normalize(joint, dim=1).to(device, dtype)
    return Frame(joint[:, :d], joint[:, d:] if n_conditions else None, parseval=h / d)


def uniform_rotations(normal: Tensor) -> Tensor:
    """Uniformly random rotations (k, d, d) from normal numbers of that shape."""
    q, r = torch.linalg.qr(normal)
    # The signs make them uniform (Mezzadri 2007) and independent of LAPACK's choice.
    return torch.mul(q, torch.sign(torch.diagonal(r, dim1=1, dim2=2))[:, None, :])


# Random numbers are drawn for a block of steps at once: a draw for a single step costs more than the
# rest of a small step. Row `step` of a stream belongs to that step, so blocks change nothing.


@lru_cache(maxsize=64)
def _uniform_block(seed: Seed, block: int, columns: int) -> list[list[float]]:
    numbers: list[list[float]] = seed.uniform(_BLOCK, columns, start=block * _BLOCK).tolist()
    return numbers


def step_uniform(seed: Seed, step: int, columns: int) -> list[float]:
    """Row `step` of the stream at `seed`: `columns` numbers in (0, 1)."""
    return _uniform_block(seed, step // _BLOCK, columns)[step % _BLOCK]


@cached(_POOLS, always=True)
def _rotation_pool(entropy: int, d: int, device: torch.device | str) -> Tensor:
    """The rotations (8, d, d) that all of a seed's tree shares, made on the CPU for every device."""
    pool = torch.empty((_POOL, d, d), dtype=torch.float64, device=device)
    for k in range(_POOL):  # one at a time: a decomposition takes three times the memory of its result
        pool[k] = uniform_rotations(Seed(entropy).child("pool", d, k).normal(d, d)[None])[0]
    return pool


@contextmanager
def releasing() -> Iterator[None]:
    """Around a flow that runs: then a large pool of rotations, which nobody needs any more, goes."""
    try:
        yield
    finally:
        _rotation_pool.trim()


def rotation_bytes(d: int, itemsize: int) -> int:
    """What drawing the `rotation` of a step takes at most, the pool and its own bytes included."""
    if d <= _MAX_FRESH:
        return 0
    making = 4 * 8  # of a rotation of the pool: normal numbers, Q, R, and Q with its signs
    turning = _steps_at_once(d) * (4 * 8 + 2 * itemsize)  # A, A·D, B, A·D·B; rounded, filled up
    return d * d * (_POOL * 8 + max(making, turning) + 2 * itemsize)


def frame_bytes(kind: FrameKind, d: int, n_conditions: int, itemsize: int) -> int:
    """What drawing one frame of a kind takes at most."""
    if isinstance(kind, Axis):
        return 0
    if isinstance(kind, Orthogonal):
        return rotation_bytes(d, itemsize) + 40 * d * n_conditions
    h = getattr(kind, "n_directions", d)
    return int(h) * (d + n_conditions) * (4 * 8 + 2 * itemsize)  # drawn, joined, normalised, rounded


@cached(_BLOCKS)
def _rotation_block(
    seed: Seed,
    block: int,
    steps: int,
    d: int,
    side: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """The rotations of steps block·steps … of a stage, (steps, side, side)."""
    first = block * steps
    if d <= _MAX_FRESH:
        normal = seed.child("x").normal(steps * d, d, start=first * d).view(steps, d, d)
        return zero_padded(uniform_rotations(normal).to(device, dtype), side)
    pool = _rotation_pool(seed.entropy, d, device)
    pair = (seed.child("pair").uniform(steps, 2, start=first) * _POOL).long().to(device)
    signs = torch.sign(seed.child("signs").uniform(steps, d, start=first, device=device) - 0.5)
    turned = torch.bmm(pool[pair[:, 0]] * signs[:, None, :], pool[pair[:, 1]])
    return zero_padded(turned.to(dtype), side)


def zero_padded(rotations: Tensor, side: int) -> Tensor:
    """Filled up with zeros to (…, side, side), and row by row in memory, which QR's are not."""
    more = side - rotations.shape[-1]
    return torch.nn.functional.pad(rotations, (0, more, 0, more)).contiguous()


def rotation(
    seed: Seed,
    step: int,
    d: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    side: int | None = None,
) -> Tensor:
    """The random rotation of a step, (d, d), or filled up with zeros to (side, side).

    Up to d = 16 it is drawn afresh. Above, where a QR decomposition would cost as much as the step, it
    is A·D·B: A and B out of a pool of eight that all of the seed's tree shares, D random signs.
    """
    steps = _steps_at_once(d)
    return _rotation_block(seed, step // steps, steps, d, side or d, device, dtype)[step % steps]


def _steps_at_once(d: int) -> int:
    """Rotations that are made together: some 30 MB."""
    return max(1, min(_BLOCK, (1 << 22) // (d * d)))


def condition_directions(
    seed: Seed, h: int, n_conditions: int, device: torch.device | str, dtype: torch.dtype
) -> Tensor | None:
    """(h, l) directions of the condition: independent Laplace numbers, E|θ_y|² = 1.

    Their lengths must vary. A direction that always holds conditions far apart cannot see how x
    spreads at one y; the Laplace distribution, also the authors' choice, gives many short ones. They
    have their own branch of the seed, so that a condition never changes the directions of x.
    """
    if n_conditions == 0:
        return None
    k = kernels.for_device(device)
    theta: Tensor = k.laplace(h, n_conditions, seed.child("y").key, device)
    return theta.to(torch.float32 if dtype.itemsize < 4 else dtype)


@dataclass(frozen=True)
class Random:
    """H independent directions, the paper's choice (Algorithm 1).

    Unconditional: uniform on the sphere of R^d. With a condition: (θ_x, θ_y) uniform on the sphere of
    R^(d+l), normalised together, so θ_x is a little shorter than 1.

    Parameters
    ----------
    n_directions : int
        H. Below d the directions do not span the space; the paper uses 10,000.
    fixed : bool
        Draw once and keep for the whole flow, as SWF (Liutkus et al. 2019) does, instead of anew
        each step.

    Examples
    --------
    >>> frame = Random(n_directions=500).draw(Seed(0), step=0, d=3, n_conditions=0)
    >>> frame.theta.shape, frame.parseval
    (torch.Size([500, 3]), 166.66666666666666)
    """

    n_directions: int = 1000
    fixed: bool = False

    def __post_init__(self) -> None:
        need(is_int(self.n_directions, 1), "n_directions", self.n_directions, "an int of at least 1")

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Frame:
        seed = seed.child("fixed") if self.fixed else seed.child(step)
        theta = seed.child("x").normal(self.n_directions, d)
        return independent(theta, seed, n_conditions, device, dtype)


@dataclass(frozen=True)
class Orthogonal:
    """A random rotation of R^d: d orthonormal directions, Parseval with c = 1. The default.

    Examples
    --------
    >>> theta = Orthogonal().draw(Seed(0), step=0, d=5, n_conditions=0).theta
    >>> bool(torch.allclose(theta @ theta.T, torch.eye(5, dtype=theta.dtype)))
    True
    """

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Frame:
        theta_y = condition_directions(seed.child(step), d, n_conditions, device, dtype)
        return Frame(rotation(seed, step, d, device, dtype), theta_y)


@dataclass(frozen=True)
class Axis:
    """The coordinates themselves: a step makes every column's own distribution exact.

    The condition is left out: its offset would cost the exact values of discrete columns, and by the
    end of a flow, where these steps belong, the classes are in place.
    """

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Frame:
        return Frame(None, None)
