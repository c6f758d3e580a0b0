"""Schedules: the stages of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sliceflow.engine.frames import FrameKind
from sliceflow.engine.transports import AutoTransport, Transport


class Subspace(Protocol):
    """The subspace in which a stage moves particles, such as the coarse pictures."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole space, where coordinates are the points."""

    def restrict(self, x: Tensor) -> Tensor:
        """The coordinates of points x (d, n); x itself in the whole space."""

    def embed(self, coordinates: Tensor) -> Tensor:
        """The points (d, n) of the subspace that have these coordinates."""

    def clip_(self, x: Tensor) -> None:
        """Clip points x (d, n), such as pixels, in place at the end of a stage."""


class WholeSpace:
    """The whole space, as a `Subspace`; no point is clipped."""

    is_whole = True

    def restrict(self, x: Tensor) -> Tensor:
        return x

    def embed(self, coordinates: Tensor) -> Tensor:
        return coordinates

    def clip_(self, x: Tensor) -> None:
        pass


WHOLE_SPACE = WholeSpace()
_DEFAULT_TRANSPORT = AutoTransport()


@dataclass(frozen=True)
class Stage:
    """`n_steps` steps with one kind of frame, one transport and one subspace.

    Attributes
    ----------
    name : the name of the stage in events and in the history
    frame_kind : makes the frame of each step
    n_steps : the number of steps; the stage may end earlier
    transport : fits the maps of each step
    step_size : the step size before the taper; 1 moves each projection z to T(z)
    taper : the last fraction of the stage, over which the step size falls linearly to 0
    stores_maps : whether the model stores the steps of this stage
    max_knots : the most knots of each map in the model; None keeps all knots
    max_displacement : an upper bound on how far one step can move a value; None if it
        is unknown. With a bound, maps on a grid are compressed to knots where they
        bend; see `compression.Compression`
    is_axis_stage : whether the steps are axis steps, which end a flow and give every
        coordinate exactly the distribution of the data. So axis steps add no noise,
        their maps are not shrunk and keep their tails when compressed, and several
        ranks count projections in finer bins
    subspace : the subspace in which the particles move
    frame_seed_path : the path from the seed of the flow to the seed of this stage's
        frames. An empty path stands for ("frame", index of the stage)
    """

    name: str
    frame_kind: FrameKind
    n_steps: int
    transport: Transport = _DEFAULT_TRANSPORT
    step_size: float = 1.0
    taper: float = 0.0
    stores_maps: bool = True
    max_knots: int | None = 512
    max_displacement: float | None = None
    is_axis_stage: bool = False
    subspace: Subspace = WHOLE_SPACE
    frame_seed_path: tuple[str | int, ...] = ()

    def step_size_at(self, step_index: int) -> float:
        """The size of step `step_index`, from 0 to n_steps − 1."""
        if self.taper == 0:
            return self.step_size
        fraction_left = 1 - step_index / self.n_steps
        return self.step_size * min(1.0, fraction_left / self.taper)
