"""Schedules: the stages of a flow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sliceflow.engine.frames import FrameKind
from sliceflow.engine.transports import Auto, Transport


class Space:
    """The space that a stage moves particles in: the particles' own, or a subspace of it.

    `down` gives the coordinates of columns x (d, n), x itself if the space is the whole one; `up` the
    columns of coordinates. `finish` does in place what remains to be done at the end of the stage.
    """

    def down(self, x: Tensor) -> Tensor:
        return x

    def up(self, coordinates: Tensor) -> Tensor:
        return coordinates

    def finish(self, x: Tensor) -> None:
        pass


_AUTO = Auto()
WHOLE_SPACE = Space()


@dataclass(frozen=True)
class Stage:
    """`n_steps` steps with one kind of frame, one transport, and in one space."""

    name: str
    frame: FrameKind
    n_steps: int
    transport: Transport = _AUTO
    step_size: float = 1.0
    taper: float = 0.0  # the step size falls to 0 over this last fraction of the stage
    n_knots: int | None = (
        512  # that a model keeps of each map; 0 keeps no model, None all knots
    )
    reach: float | None = (
        None  # how far a value can move: knots are then where maps bend (`compact`)
    )
    exact: bool = False  # the steps make columns exact: no noise, and the tails of all maps are kept
    space: Space = WHOLE_SPACE  # that the particles are moved in
    branch: tuple[
        str | int, ...
    ] = ()  # of the seed of frames; () is ("frame", number of the stage)

    def step_size_at(self, step: int) -> float:
        """The step size of step 0..n_steps-1."""
        left = 1 - step / self.n_steps
        return self.step_size * (min(1.0, left / self.taper) if self.taper > 0 else 1.0)
