"""Frames: the directions of one step. They project, lift, and know their Parseval constant.

A frame's directions are the rows of Θ (h, d). It is *Parseval* with constant c when ΘᵀΘ = c·I; then
``lift`` divides by c, so that a step of size 1 solves every direction at once:
``x += lift(T(project(x)) − project(x))``. For orthogonal rows c = 1 and this is exact; for H random
unit vectors c = H/d holds only on average, and dividing by it is the paper's factor η/H with η = d.

A *kind* of frame (`Random`, `Orthogonal`, `Axis`) is a small, printable description; ``draw`` makes
the frame of one step from a seed, in float64 and from the CPU's numbers, so that a model replays
anywhere. `Tiles`, for pictures, is in `local`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from sliceflow.rng import Seed

__all__ = [
    "AnyFrame",
    "Axis",
    "Frame",
    "FrameKind",
    "Orthogonal",
    "Random",
    "condition_directions",
    "independent",
    "rotation",
    "step_uniform",
]

_POOL = 8
_BLOCK = 32


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

    def project(self, x: Tensor) -> Tensor:
        """z = Θx for particles stored as columns: (d, n) -> (h, n)."""
        return x if self.theta is None else torch.mm(self.theta, x)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz / c: (h, n) -> (d, n)."""
        return dz if self.theta is None else torch.mm(self.theta.T / self.parseval, dz)

    def to(self, device: torch.device, dtype: torch.dtype) -> Frame:
        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device=device, dtype=dtype)

        return Frame(move(self.theta), move(self.theta_y), self.parseval)


class AnyFrame(Protocol):
    """What a step needs of a frame; see `Frame` for the meaning of each."""

    @property
    def theta_y(self) -> Tensor | None: ...
    def project(self, x: Tensor) -> Tensor: ...
    def lift(self, dz: Tensor) -> Tensor: ...
    def to(self, device: torch.device, dtype: torch.dtype) -> AnyFrame: ...


class FrameKind(Protocol):
    """What a schedule holds: how the frames of its steps are drawn."""

    def draw(
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> AnyFrame:
        """The frame of `step`, for x in R^d and a condition in R^n_conditions (0: none)."""
        ...


def independent(theta: Tensor, seed: Seed, n_conditions: int) -> Frame:
    """The frame of h independent directions θ_x (h, d), normalised together with a random θ_y.

    ΘᵀΘ = c·I with c = h/d holds on average only.
    """
    h, d = theta.shape
    if n_conditions == 0:
        return Frame(torch.nn.functional.normalize(theta, dim=1), None, parseval=h / d)
    joint = torch.cat((theta, seed.child("y").normal(h, n_conditions)), dim=1)
    joint = torch.nn.functional.normalize(joint, dim=1)
    return Frame(joint[:, :d], joint[:, d:], parseval=h / d)


def _uniform_rotations(normal: Tensor) -> Tensor:
    """Uniformly random rotations (k, d, d) from normal numbers of that shape."""
    q, r = torch.linalg.qr(normal)
    # The signs make them uniform (Mezzadri 2007) and independent of LAPACK's choice.
    return torch.mul(q, torch.sign(torch.diagonal(r, dim1=1, dim2=2))[:, None, :])


# Random numbers are drawn for a block of steps at once: a draw for a single step costs more than the
# rest of a small step. Row `step` of a stream belongs to that step, so blocks change nothing.


@lru_cache(maxsize=64)
def _uniform_block(seed: Seed, block: int, columns: int, device: torch.device | str) -> Tensor:
    return seed.uniform(_BLOCK, columns, start=block * _BLOCK).to(device)


@lru_cache(maxsize=16)
def _rotation_block(seed: Seed, block: int, d: int, device: torch.device | str) -> Tensor:
    normal = seed.normal(_BLOCK * d, d, start=block * _BLOCK * d).view(_BLOCK, d, d)
    return _uniform_rotations(normal).to(device)


@lru_cache(maxsize=256)
def _pooled_rotation(seed: Seed, d: int, device: torch.device | str) -> Tensor:
    return _uniform_rotations(seed.normal(d, d)[None])[0].to(device)


def step_uniform(seed: Seed, step: int, columns: int, device: torch.device | str = "cpu") -> Tensor:
    """Row `step` of the stream at `seed`: `columns` numbers in (0, 1)."""
    return _uniform_block(seed, step // _BLOCK, columns, device)[step % _BLOCK]


def rotation(seed: Seed, step: int, d: int, device: torch.device | str = "cpu") -> Tensor:
    """The random rotation of a step, (d, d) float64 on `device`.

    Up to d = 64 it is drawn afresh. Above, where a QR decomposition would cost more than the step, it
    is A·D·B: A and B out of a pool of eight that all of the seed's tree shares, D random signs.
    """
    if d <= 64:
        return _rotation_block(seed.child("x"), step // _BLOCK, d, device)[step % _BLOCK]
    first, second = (step_uniform(seed.child("pair"), step, 2) * _POOL).long().tolist()
    pool = Seed(seed.entropy).child("pool", d)
    a, b = (_pooled_rotation(pool.child(k), d, device) for k in (first, second))
    signs = torch.sign(step_uniform(seed.child("signs"), step, d, device) - 0.5)
    return torch.mm(a * signs, b)


def condition_directions(seed: Seed, h: int, n_conditions: int) -> Tensor | None:
    """(h, l) directions of the condition: independent Laplace numbers, E|θ_y|² = 1.

    Their lengths must vary. A direction that always holds conditions far apart cannot see how x
    spreads at one y; the Laplace distribution, also the authors' choice, gives many short ones. They
    have their own branch of the seed, so that a condition never changes the directions of x.
    """
    if n_conditions == 0:
        return None
    u = seed.child("y").uniform(h, n_conditions) - 0.5
    laplace: Tensor = -torch.sign(u) * torch.log1p(-2 * u.abs())
    return laplace / math.sqrt(2 * n_conditions)


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

    def draw(
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> Frame:
        seed = seed.child("fixed") if self.fixed else seed.child(step)
        return independent(seed.child("x").normal(self.n_directions, d), seed, n_conditions)


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
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> Frame:
        theta_y = condition_directions(seed.child(step), d, n_conditions)
        return Frame(rotation(seed, step, d, device), theta_y)


@dataclass(frozen=True)
class Axis:
    """The coordinates themselves: a step makes every column's own distribution exact.

    The condition is left out: its offset would cost the exact values of discrete columns, and by the
    end of a flow, where these steps belong, the classes are in place.
    """

    def draw(
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> Frame:
        return Frame(None, None)
