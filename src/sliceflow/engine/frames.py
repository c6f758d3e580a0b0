"""Frames: the directions of one step, with projection, lift and Parseval constant.

A frame's directions are the rows of Θ (h, d). It is *Parseval* with constant c if ΘᵀΘ = c·I. ``lift``
divides by c, so that a step of size 1 solves all directions at once:
``x += lift(T(project(x)) − project(x))``. For orthogonal rows c = 1, and this is exact. For H random
unit vectors c = H/d holds only on average, and dividing by it is the paper's factor η/H with η = d.

A *kind* of frame (`Random`, `Orthogonal`, `Axis`) is a small, printable description. Its ``draw`` makes
the frame of one step from a seed, with the same bits on every device: so a model replays on any.
`MaxSliced` looks at particles and data, so its directions cannot be drawn again: a model keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Protocol

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine.conditions import shifted
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, require

if TYPE_CHECKING:
    from sliceflow.engine.clouds import Cloud, Indices
    from sliceflow.engine.transports import TransportMap

__all__ = [
    "AnyFrame",
    "Axis",
    "Frame",
    "FrameKind",
    "MaxSliced",
    "Orthogonal",
    "Random",
]

_MAX_FRESH = 16  # up to this dimension each step draws its own rotation
_POOL = 8
_BLOCK = 32
_COMPARED = 1000  # particles and data that directions are fitted to
_ASCENT = 0.5  # length of a step on the way to the largest distance
_POOLS = 1 << 27
_BLOCKS = 1 << 26  # bytes cached, of pools and of rotations


@dataclass(frozen=True)
class Frame:
    """The directions of one step, on a device."""

    theta: (
        Tensor | None
    )  # (h, d) directions in the space of x, or None for the coordinate axes
    theta_y: (
        Tensor | None
    )  # (h, l) directions in the space of the condition, if the frame has any
    parseval: float = 1.0  # c, with ΘᵀΘ = c·I, exactly or on average
    kept: Tensor | None = (
        None  # directions that a model keeps: fitted ones cannot be drawn again
    )

    @property
    def n_directions(self) -> int:
        """h; 0 for the coordinate axes."""
        return 0 if self.theta is None else len(self.theta)

    def project(self, cloud: Cloud, columns: Indices = None) -> Tensor:
        """z = Θx + θ_yᵀy of some or all columns: (h, n)."""
        cloud = cloud.part(columns)
        z = cloud.x if self.theta is None else torch.mm(self.theta, cloud.x)
        return shifted(z, self.theta_y, cloud.y)

    def move(self, cloud: Cloud, table: TransportMap, size: float) -> None:
        """x += s·Θᵀ(T(z) − z)/c in place, z from `project`."""
        cloud.x.add_(self.lift(table.displace(self.project(cloud), cloud)), alpha=size)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz / c: (h, n) -> (d, n)."""
        return dz if self.theta is None else torch.mm(self.theta.T / self.parseval, dz)


class AnyFrame(Protocol):
    """The interface of a frame; see `Frame`."""

    @property
    def n_directions(self) -> int: ...
    @property
    def theta_y(self) -> Tensor | None: ...
    @property
    def kept(self) -> Tensor | None: ...
    def project(self, cloud: Cloud, columns: Indices = None) -> Tensor: ...
    def lift(self, dz: Tensor) -> Tensor: ...
    def move(self, cloud: Cloud, table: TransportMap, size: float) -> None: ...


class FrameKind(Protocol):
    """Makes the frame of each step of a stage, on the device and in the dtype of particles x (d, M).

    A condition has the width `n_conditions` (0: none). Most kinds look at nothing else; some are fitted
    to x and the `data` (d, N).
    """

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> AnyFrame: ...


def uniform_rotations(normal: Tensor) -> Tensor:
    """Uniformly random rotations (k, d, d) from normal numbers of that shape."""
    q, r = torch.linalg.qr(normal)
    # The signs make them uniform (Mezzadri 2007) and independent of LAPACK.
    return torch.mul(q, torch.sign(torch.diagonal(r, dim1=1, dim2=2))[:, None, :])


# Random numbers are drawn for a block of steps at once, because drawing for a single step costs more
# than the rest of a small step. Row `step` of a stream belongs to that step: blocks change no result.


@lru_cache(maxsize=64)
def _uniform_block(seed: Seed, block: int, columns: int) -> list[list[float]]:
    numbers: list[list[float]] = seed.uniform(
        _BLOCK, columns, start=block * _BLOCK
    ).tolist()
    return numbers


def step_uniform(seed: Seed, step: int, columns: int) -> list[float]:
    """Row `step` of the stream at `seed`: `columns` numbers in (0, 1)."""
    return _uniform_block(seed, step // _BLOCK, columns)[step % _BLOCK]


@cached(_POOLS, always=True)
def _rotation_pool(entropy: int, d: int, device: torch.device | str) -> Tensor:
    """The rotations (8, d, d) that all seeds with this entropy share, computed on the CPU."""
    pool = torch.empty((_POOL, d, d), dtype=torch.float64, device=device)
    for k in range(
        _POOL
    ):  # one at a time: QR needs three times the memory of its result
        pool[k] = uniform_rotations(
            Seed(entropy).child("pool", d, k).normal(d, d)[None]
        )[0]
    return pool


@contextmanager
def releasing() -> Iterator[None]:
    """Free large pools of rotations at the end of a flow."""
    try:
        yield
    finally:
        _rotation_pool.trim()


def rotation_bytes(d: int, itemsize: int) -> int:
    """Peak memory to draw the `rotation` of a step, including the pool and the result."""
    if d <= _MAX_FRESH:
        return 0
    making = 4 * 8  # one rotation of the pool: normal numbers, Q, R, and Q with signs
    turning = _steps_at_once(d) * (
        4 * 8 + 2 * itemsize
    )  # A, A·D, B, A·D·B; rounded, padded
    return d * d * (_POOL * 8 + max(making, turning) + 2 * itemsize)


def count_directions(kind: FrameKind, d: int) -> int:
    """The number of directions of a frame in d columns."""
    count = getattr(kind, "count", None)
    return count(d) if count is not None else int(getattr(kind, "n_directions", d))


def frame_bytes(kind: FrameKind, d: int, n_conditions: int, itemsize: int) -> int:
    """Peak memory to draw one frame."""
    if isinstance(kind, Axis):
        return 0
    if isinstance(kind, Orthogonal):
        return rotation_bytes(d, itemsize) + 40 * d * n_conditions
    h = int(getattr(kind, "n_directions", d))
    return (
        h * (d + n_conditions) * (4 * 8 + 2 * itemsize)
    )  # drawn, joined, normalised, rounded


@cached(_BLOCKS)
def _rotation_block(
    seed: Seed,
    first: int,
    d: int,
    side: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """The rotations of the steps of a stage from step `first` on: (steps, side, side)."""
    steps = _steps_at_once(d)
    if d <= _MAX_FRESH:
        normal = seed.child("x").normal(steps * d, d, start=first * d).view(steps, d, d)
        return zero_padded(uniform_rotations(normal).to(device, dtype), side)
    pool = _rotation_pool(seed.entropy, d, device)
    pair = (seed.child("pair").uniform(steps, 2, start=first) * _POOL).long().to(device)
    signs = torch.sign(
        seed.child("signs").uniform(steps, d, start=first, device=device) - 0.5
    )
    turned = torch.bmm(pool[pair[:, 0]] * signs[:, None, :], pool[pair[:, 1]])
    return zero_padded(turned.to(dtype), side)


def zero_padded(rotations: Tensor, side: int) -> Tensor:
    """Padded with zeros to (…, side, side), in row-major order, unlike the output of QR."""
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
    """The random rotation of a step: (d, d), or zero-padded to (side, side).

    For d > 16 a QR decomposition would cost as much as the step. The rotation is then A·D·B: A and B
    from a pool of eight rotations, which seeds of the same entropy share, D random signs.
    """
    steps = _steps_at_once(d)
    first = step // steps * steps
    return _rotation_block(seed, first, d, side or d, device, dtype)[step - first]


def _steps_at_once(d: int) -> int:
    """Number of rotations drawn together: about 30 MB."""
    return max(1, min(_BLOCK, (1 << 22) // (d * d)))


def condition_directions(
    seed: Seed,
    h: int,
    n_conditions: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor | None:
    """(h, l) directions of the condition: independent Laplace numbers, as the authors', E|θ_y|² = 1."""
    if n_conditions == 0:
        return None
    theta = seed.child("y").laplace(h, n_conditions, device)
    return theta.to(torch.float32 if dtype.itemsize < 4 else dtype)


@dataclass(frozen=True)
class Random:
    """H independent directions, the paper's choice (Algorithm 1).

    Without a condition, θ is uniform on the sphere of R^d. With one, (θ_x, θ_y) is uniform on the
    sphere of R^(d+l), so θ_x is a little shorter than 1.

    Parameters
    ----------
    n_directions : H. Below d the directions do not span the space; the paper uses 10,000
    fixed : use the same directions in every step, as SWF (Liutkus et al. 2019) does

    Examples
    --------
    >>> frame = Random(n_directions=500).draw(Seed(0), 0, torch.randn(3, 10))
    >>> frame.theta.shape, frame.parseval
    (torch.Size([500, 3]), 166.66666666666666)
    """

    n_directions: int = 1000
    fixed: bool = False

    def __post_init__(self) -> None:
        require(
            is_int(self.n_directions, 1),
            "n_directions",
            self.n_directions,
            "an int of at least 1",
        )

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> Frame:
        seed = seed.child("fixed") if self.fixed else seed.child(step)
        h = self.n_directions
        d = len(x)
        parts = seed.child("x").normal(h, d), seed.child("y").normal(h, n_conditions)
        joint = torch.nn.functional.normalize(torch.cat(parts, dim=1), dim=1).to(
            x.device, x.dtype
        )
        return Frame(
            joint[:, :d], joint[:, d:] if n_conditions else None, parseval=h / d
        )


@dataclass(frozen=True)
class Orthogonal:
    """A random rotation of R^d: d orthonormal directions, Parseval with c = 1. The default.

    Examples
    --------
    >>> theta = Orthogonal().draw(Seed(0), 0, torch.randn(5, 10, dtype=torch.float64)).theta
    >>> bool(torch.allclose(theta @ theta.T, torch.eye(5, dtype=theta.dtype)))
    True
    """

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> Frame:
        d = len(x)
        at = (x.device, x.dtype)
        theta_y = condition_directions(seed.child(step), d, n_conditions, *at)
        return Frame(rotation(seed, step, d, *at), theta_y)


@dataclass(frozen=True)
class MaxSliced:
    """Orthonormal directions along which particles and data differ most. This is not in the paper.

    From a random rotation, K directions climb to a large Σ W₂²(θ·x, θ·y) over θ, as in SINF (Dai and
    Seljak 2021); K = 1 is the max-sliced distance (Deshpande et al. 2019). With the sorted projections
    aᵢ = θ·xᵢ and bᵢ = θ·yᵢ of n = 1,000 particles and data, the gradient is 2/n·Σᵢ (aᵢ − bᵢ)(xᵢ − yᵢ).
    A step does the work of several random ones, and costs more. A model keeps its directions.

    Parameters
    ----------
    n_directions : K, but at most half of the columns: all of them would be any rotation
    n_iterations : steps of the ascent

    Examples
    --------
    >>> x = torch.randn(6, 2000, generator=torch.Generator().manual_seed(0))
    >>> y = x.clone()
    >>> y[4] *= 3  # they differ along the fifth column alone
    >>> frame = MaxSliced(n_directions=1, n_iterations=50).draw(Seed(0), 0, x, data=y)
    >>> frame.theta.abs().argmax().item()
    4
    """

    n_directions: int = 32
    n_iterations: int = 10

    def __post_init__(self) -> None:
        require(
            is_int(self.n_directions, 1),
            "n_directions",
            self.n_directions,
            "an int of at least 1",
        )
        require(
            is_int(self.n_iterations, 1),
            "n_iterations",
            self.n_iterations,
            "an int of at least 1",
        )

    def count(self, d: int) -> int:
        """K in d columns."""
        return min(self.n_directions, -(-d // 2))

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> Frame:
        assert data is not None, (
            "max-sliced directions are fitted to particles and data"
        )
        d = len(x)
        n = min(_COMPARED, x.shape[1], data.shape[1])
        y = data
        u = seed.child("compared").uniform(2, n, start=2 * step, device=x.device)
        x, y = (
            of[:, (own * of.shape[1]).long()] for of, own in zip((x, y), u, strict=True)
        )
        theta = rotation(seed, step, d, x.device, x.dtype)[: self.count(d)]
        for _ in range(self.n_iterations):
            a, i = (theta @ x).sort(dim=1)
            b, j = (theta @ y).sort(dim=1)
            apart = a - b
            back = [torch.zeros_like(a).scatter_(1, order, apart) for order in (i, j)]
            gradient = back[0] @ x.T - back[1] @ y.T
            gradient -= gradient @ theta.T @ theta
            climbed = theta + _ASCENT * gradient / gradient.norm().clamp(
                min=torch.finfo(x.dtype).tiny
            )
            theta = torch.linalg.qr(climbed.T)[0].T
        theta = theta.contiguous()
        return Frame(theta, None, kept=theta)


@dataclass(frozen=True)
class Axis:
    """The coordinate axes: a step makes the distribution of each column exact.

    The frame ignores the condition: an offset would blur the values of discrete columns.
    """

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> Frame:
        return Frame(None, None)


# Files hold these frames only.
SavedFrame = Annotated[FrameKind, Random | Orthogonal | Axis | MaxSliced]
