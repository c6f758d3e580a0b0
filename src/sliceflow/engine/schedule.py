"""Schedules: the stages of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sliceflow.engine.frames import FrameKind
from sliceflow.engine.transports import AutoTransport, Transport


class Subspace(Protocol):
    """The subspace that a stage moves particles in, such as that of coarse pictures."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole space, where coordinates are the points."""

    def restrict(self, x: Tensor) -> Tensor:
        """The coordinates of points x (d, n); x itself in the whole space."""

    def embed(self, coordinates: Tensor) -> Tensor:
        """The points (d, n) of the subspace that have these coordinates."""

    def clip_(self, x: Tensor) -> None:
        """Clip points x (d, n) in place, at the end of a stage: such as pixels."""


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
    """`n_steps` steps with one kind of frame, one transport and one subspace."""

    name: str
    frame_kind: FrameKind
    n_steps: int
    transport: Transport = _DEFAULT_TRANSPORT
    step_size: float = 1.0
    # The step size falls linearly to 0 over this last fraction of the stage.
    taper: float = 0.0
    stores_maps: bool = True  # whether the model has the steps of this stage
    max_knots: int | None = 512  # of each map in the model; None keeps all
    # An upper bound on how far one step can move a value. If it is known, maps on a
    # grid are compressed to knots where they bend; see `compression.Compression`.
    max_displacement: float | None = None
    # Whether these are axis steps, which end a flow and give every coordinate exactly
    # the distribution of the data. So they add no noise, their maps are not shrunk and
    # keep their tails when compressed, and several ranks count them in finer bins.
    is_axis_stage: bool = False
    subspace: Subspace = WHOLE_SPACE
    # The path from the seed of the flow to the seed of this stage's frames. An empty
    # path stands for ("frame", index of the stage).
    frame_seed_path: tuple[str | int, ...] = ()

    def step_size_at(self, step_index: int) -> float:
        """The size of step `step_index`, from 0 to n_steps − 1."""
        if self.taper == 0:
            return self.step_size
        fraction_left = 1 - step_index / self.n_steps
        return self.step_size * min(1.0, fraction_left / self.taper)
