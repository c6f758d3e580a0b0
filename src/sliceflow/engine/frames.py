"""Frames: the directions of one step, with projection, lift and frame bound.

A frame's directions are the rows of Θ (h, d). A frame is *tight* with the frame bound c
if ΘᵀΘ = c·I; with c = 1 it is a Parseval frame. ``lift`` divides by c, so that a step
of size 1 solves all directions at once: ``x += lift(T(project(x)) − project(x))``. For
an orthogonal Θ, c = 1 and this is exact. H random unit vectors are tight only on
average, with c = H/d; dividing by it is the paper's factor η/H with η = d.

A *kind* of frame (`Random`, `Orthogonal`, `Axis`) is a small, printable description.
Its ``make_frame`` makes the frame of one step from a seed, with the same bits on every
device: so a model replays on any. `MaxSliced` looks at particles and data, so its
directions cannot be drawn again: a model stores them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from sliceflow.engine.clouds import ALL_POINTS, Cloud, PointSelection
from sliceflow.engine.encoded_y import add_condition_offset
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation, rotation_bytes
from sliceflow.validation import require_bool, require_int

if TYPE_CHECKING:
    from sliceflow.engine.maps import TransportMaps

__all__ = [
    "Axis",
    "DenseFrame",
    "Frame",
    "FrameKind",
    "MaxSliced",
    "Orthogonal",
    "Random",
]

# How many particles and data max-sliced directions are fitted to; every step takes
# others. More take longer in each iteration, and make the directions less noisy.
_MAX_COMPARED_POINTS = 1000
# Length of one step of the ascent to max-sliced directions, which are unit vectors.
# Longer steps overshoot; shorter ones need more iterations.
_ASCENT_STEP = 0.5


@dataclass(frozen=True, eq=False)
class DenseFrame:
    """The directions of one step, Θ, as matrices on a device.

    Attributes
    ----------
    theta : tensor (h, d) or None
        Directions in the space of x. None stands for the coordinate axes.
    theta_y : tensor (h, l) or None
        Directions in the space of the condition, if the frame has any.
    frame_bound : float, default 1
        c, where ΘᵀΘ = c·I, exactly or on average.
    theta_to_store : tensor (h, d) or None, default None
        Directions that a model must store, because they cannot be drawn again. They
        must be orthonormal, and see no condition.

    Examples
    --------
    >>> from sliceflow.engine.clouds import Cloud
    >>> frame = DenseFrame(theta=torch.eye(2), theta_y=None)
    >>> z = frame.project(Cloud(torch.tensor([[1.0], [2.0]])))
    >>> frame.lift(z).tolist()
    [[1.0], [2.0]]
    """

    theta: Tensor | None
    theta_y: Tensor | None
    frame_bound: float = 1.0
    theta_to_store: Tensor | None = None

    def __post_init__(self) -> None:
        is_replayed = self.theta_y is None and self.frame_bound == 1
        if self.theta_to_store is not None and not is_replayed:
            raise ValueError(
                "a frame that a model stores has theta_y=None and frame_bound=1, but "
                f"this one has frame_bound={self.frame_bound:g}, and theta_y is "
                f"{'None' if self.theta_y is None else 'a tensor'}; draw it from its "
                "seed instead, without theta_to_store"
            )

    def count_directions(self, d: int) -> int:
        """h, the number of directions; d of them for the coordinate axes."""
        return d if self.theta is None else len(self.theta)

    def amplified(self, amplifier: float) -> Self:
        """The frame with the directions of the condition multiplied by ξ."""
        if self.theta_y is None:
            return self
        return replace(self, theta_y=amplifier * self.theta_y)

    def project(self, cloud: Cloud, points: PointSelection = ALL_POINTS) -> Tensor:
        """z = Θx + θ_yᵀy of some or all points: (h, n)."""
        cloud = cloud.take(points.indices)
        z = cloud.x if self.theta is None else torch.mm(self.theta, cloud.x)
        return add_condition_offset(z, self.theta_y, cloud.y)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz / c: (h, n) -> (d, n)."""
        if self.theta is None:
            return dz
        return torch.mm(self.theta.T / self.frame_bound, dz)

    def move(self, cloud: Cloud, maps: TransportMaps, step_size: float) -> None:
        """x += s·Θᵀ(T(z) − z)/c in place, with z from `project`."""
        dz = maps.displace(self.project(cloud), cloud)
        cloud.x.add_(self.lift(dz), alpha=step_size)


class Frame(Protocol):
    """The directions of one step, as the engine uses them.

    `DenseFrame` documents the methods.
    """

    @property
    def theta_to_store(self) -> Tensor | None: ...
    def count_directions(self, d: int) -> int: ...
    def amplified(self, amplifier: float) -> Self: ...
    def project(self, cloud: Cloud, points: PointSelection = ALL_POINTS) -> Tensor: ...
    def lift(self, dz: Tensor) -> Tensor: ...
    def move(self, cloud: Cloud, maps: TransportMaps, step_size: float) -> None: ...


@runtime_checkable
class FrameKind(Protocol):
    """A kind of frame: it makes the frame of each step of a stage."""

    def max_directions(self, d: int) -> int:
        """The most directions of a step for points in d dimensions.

        The estimate of a step's memory uses it.
        """
        ...

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> Frame:
        """Make the frame of a step.

        Parameters
        ----------
        seed : Seed
            The seed of the stage.
        step_index : int
            The index of the step in its stage.
        x_p : tensor (d, M)
            The particles. The frame has their device and dtype. Most kinds do not look
            at their values.
        condition_dim : int, default 0
            l, the dimension of the condition; 0 is none.
        x_q : tensor (d, N) or None, default None
            The data, for kinds that are fitted to both. A model that is replayed has
            none.

        Returns
        -------
        frame : Frame
        """
        ...


def has_condition_directions(kind: FrameKind, x: Tensor, condition_dim: int) -> bool:
    """Whether frames of this kind have directions θ_y of the condition.

    The kind makes a frame for the points x (d, n), to see whether it has `theta_y`. A
    frame that is no `DenseFrame` may project y in its own way, and counts as having
    them.
    """
    if type(kind) in (Random, Orthogonal):  # spares a frame, slow in many columns
        return True
    frame = kind.make_frame(Seed(0), 0, x, condition_dim, x)
    return not isinstance(frame, DenseFrame) or frame.theta_y is not None


def frame_bytes(kind: FrameKind, d: int, condition_dim: int, itemsize: int) -> int:
    """Peak memory to make one frame for points in d dimensions.

    Parameters
    ----------
    kind : the kind of frame; a user's own kind counts as drawing `max_directions`
    d, condition_dim : the dimensions of the points and of the condition
    itemsize : bytes of one value of the points
    """
    if isinstance(kind, Axis):
        return 0
    if isinstance(kind, Orthogonal):
        # Five arrays in float64, while theta_y is drawn.
        theta_y_bytes = d * condition_dim * 5 * 8
        return rotation_bytes(d, itemsize) + theta_y_bytes
    n_drawn = kind.max_directions(d) * (d + condition_dim)
    # Four arrays in float64 (drawn, joined, normalized, signed), and two in the type of
    # the particles.
    drawn_bytes = n_drawn * (4 * 8 + 2 * itemsize)
    if isinstance(kind, MaxSliced):  # its directions start as rows of a rotation
        drawn_bytes += rotation_bytes(d, itemsize)
    return drawn_bytes


def largest_step_size(n_directions: int, d: int) -> float:
    """The step size of random directions in d dimensions: 1, or H/d with fewer, H < d.

    Lifting divides by c = H/d. Then a whole step overshoots by d/H along each
    direction, η is above the number of directions, and the flow diverges.
    """
    return min(1.0, n_directions / d)


@dataclass(frozen=True)
class Random:
    """H independent directions, the paper's choice (Algorithm 1).

    Without a condition, θ is uniform on the sphere of R^d. With one, (θ_x, θ_y) is
    uniform on the sphere of R^(d+l), so θ_x is a little shorter than 1.

    Parameters
    ----------
    n_directions : int, default 1000
        H; the paper uses 10,000. Below d the directions do not span the space, and
        whole steps would diverge: then a fit takes steps of H/d, and needs more of
        them. A `Stage` of your own needs ``step_size=largest_step_size(H, d)``.
    fixed : bool, default False
        Use the same directions in every step, as SWF (Liutkus et al. 2019) does.

    Examples
    --------
    >>> frame = Random(n_directions=500).make_frame(Seed(0), 0, torch.randn(3, 10))
    >>> frame.theta.shape, frame.frame_bound
    (torch.Size([500, 3]), 166.66666666666666)
    """

    n_directions: int = 1000
    fixed: bool = False

    def __post_init__(self) -> None:
        _require_positive_int("n_directions", self.n_directions)
        require_bool("fixed", self.fixed)

    def max_directions(self, d: int) -> int:
        """H, whatever d is."""
        return self.n_directions

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step; see `FrameKind`."""
        step_seed = seed.child("fixed") if self.fixed else seed.child(step_index)
        h = self.n_directions
        d = len(x_p)
        normal_x = step_seed.child("x").normal(h, d)
        normal_y = step_seed.child("y").normal(h, condition_dim)
        joint = torch.nn.functional.normalize(torch.cat((normal_x, normal_y), 1), dim=1)
        directions = joint.to(x_p.device, x_p.dtype)  # (h, d + l)
        theta_y = directions[:, d:] if condition_dim else None
        return DenseFrame(directions[:, :d], theta_y, frame_bound=h / d)


@dataclass(frozen=True)
class Orthogonal:
    """A random rotation of R^d: d orthonormal directions, a tight frame with c = 1.

    This is the default.

    Examples
    --------
    >>> x_p = torch.randn(5, 10, dtype=torch.float64)
    >>> theta = Orthogonal().make_frame(Seed(0), 0, x_p).theta
    >>> bool(torch.allclose(theta @ theta.T, torch.eye(5, dtype=theta.dtype)))
    True
    """

    def max_directions(self, d: int) -> int:
        """d, one for each dimension."""
        return d

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step; see `FrameKind`."""
        d = len(x_p)
        theta = rotation(seed, step_index, d, x_p.device, x_p.dtype)
        theta_y = condition_directions(
            seed.child(step_index), d, condition_dim, x_p.device, x_p.dtype
        )
        return DenseFrame(theta, theta_y)


@dataclass(frozen=True)
class MaxSliced:
    """Orthonormal directions along which particles and data differ most.

    This is not in the paper. From a random rotation, K directions climb to a large Σ
    W₂²(θ·p, θ·q) over θ, as in SINF [1]_; K = 1 is the max-sliced distance [2]_. With
    the sorted projections θ·pᵢ and θ·qᵢ of n = 1,000 particles and data, the gradient
    is 2/n·Σᵢ (θ·pᵢ − θ·qᵢ)(pᵢ − qᵢ). A step does the work of several random ones, and
    costs more. A model stores the directions. They ignore the condition, so conditions
    cannot share the maps: use ``amplifier=math.inf`` with classes.

    Parameters
    ----------
    n_directions : int, default 32
        K, at most. It is never more than half of the d dimensions: with all of them,
        any rotation would be as good.
    n_iterations : int, default 10
        Steps of the ascent.

    References
    ----------
    .. [1] B. Dai, U. Seljak: Sliced Iterative Normalizing Flows. ICML 2021.
    .. [2] I. Deshpande et al.: Max-Sliced Wasserstein Distance and its use for GANs.
       CVPR 2019.

    Examples
    --------
    >>> x_p = torch.randn(6, 2000, generator=torch.Generator().manual_seed(0))
    >>> x_q = x_p.clone()
    >>> x_q[4] *= 3  # they differ along the fifth coordinate alone
    >>> kind = MaxSliced(n_directions=1, n_iterations=50)
    >>> frame = kind.make_frame(Seed(0), 0, x_p, x_q=x_q)
    >>> frame.theta.abs().argmax().item()
    4
    """

    n_directions: int = 32
    n_iterations: int = 10

    def __post_init__(self) -> None:
        _require_positive_int("n_directions", self.n_directions)
        _require_positive_int("n_iterations", self.n_iterations)

    def max_directions(self, d: int) -> int:
        """K for points in d dimensions."""
        half = (d + 1) // 2
        return min(self.n_directions, half)

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step; see `FrameKind`."""
        if x_q is None:
            raise ValueError("max-sliced directions are fitted to particles and data")
        d = len(x_p)
        n = min(_MAX_COMPARED_POINTS, x_p.shape[1], x_q.shape[1])
        u = seed.child("compared").uniform(
            2, n, first_row=2 * step_index, device=x_p.device
        )
        compared_p = x_p[:, (u[0] * x_p.shape[1]).long()]
        compared_q = x_q[:, (u[1] * x_q.shape[1]).long()]
        start = rotation(seed, step_index, d, x_p.device, x_p.dtype)
        theta = start[: self.max_directions(d)]
        for _ in range(self.n_iterations):
            theta = _ascent_step(theta, compared_p, compared_q)
        theta = theta.contiguous()
        return DenseFrame(theta, None, theta_to_store=theta)


def _ascent_step(theta: Tensor, x_p: Tensor, x_q: Tensor) -> Tensor:
    """One step from orthonormal directions theta (K, d) to larger Σ W₂²(θ·p, θ·q).

    The points p and q are (d, n). The gradient is taken along the set of orthonormal
    directions, without its part within their span, and has a fixed length.
    """
    z_p, order_p = (theta @ x_p).sort(dim=1)
    z_q, order_q = (theta @ x_q).sort(dim=1)
    gap = z_p - z_q
    gap_of_p = torch.zeros_like(z_p).scatter_(1, order_p, gap)
    gap_of_q = torch.zeros_like(z_q).scatter_(1, order_q, gap)
    gradient = gap_of_p @ x_p.T - gap_of_q @ x_q.T
    gradient -= gradient @ theta.T @ theta
    length = gradient.norm().clamp(min=torch.finfo(x_p.dtype).tiny)
    climbed = theta + _ASCENT_STEP * gradient / length
    basis: Tensor = torch.linalg.qr(climbed.T)[0]
    return basis.T


@dataclass(frozen=True)
class Axis:
    """The coordinate axes: a step makes the distribution of each coordinate exact.

    The frame ignores the condition: an offset would blur discrete coordinates. So a
    flow of axis steps alone takes no conditions that share maps, only classes with maps
    of their own (``amplifier=math.inf``).

    Examples
    --------
    >>> from sliceflow.engine.clouds import Cloud
    >>> x = torch.randn(3, 10)
    >>> frame = Axis().make_frame(Seed(0), 0, x)
    >>> bool((frame.project(Cloud(x)) == x).all())
    True
    """

    def max_directions(self, d: int) -> int:
        """d, one for each coordinate."""
        return d

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step; see `FrameKind`."""
        return DenseFrame(None, None)


BuiltinFrameKind = Random | Orthogonal | Axis | MaxSliced
# The type of fields in saved dataclasses. A user's own kind of frame runs as well, but
# cannot be written to a file.
StorableFrameKind = Annotated[FrameKind, BuiltinFrameKind]


def _require_positive_int(name: str, value: int) -> None:
    require_int(name, value, 1)


def condition_directions(
    seed: Seed,
    h: int,
    condition_dim: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor | None:
    """(h, l) directions of the condition, or None if l = `condition_dim` is 0.

    They are independent Laplace numbers, as in the authors' code, with E|θ_y|² = 1.
    Their dtype is at least float32.
    """
    if condition_dim == 0:
        return None
    theta = seed.child("y").laplace(h, condition_dim, device)
    return theta.to(torch.float32 if dtype.itemsize < 4 else dtype)
