"""Schedules: the list of stages of a flow."""

from __future__ import annotations

from dataclasses import dataclass

from sliceflow.engine.frames import Axis, FrameKind
from sliceflow.engine.transports import Sorted, Transport

__all__ = ["Stage", "flat"]


@dataclass(frozen=True)
class Stage:
    """`n_steps` steps with one kind of frame.

    The step size is 1 and falls linearly to 0 over the last fraction `taper` of the stage. A late step
    of full size solves its directions at the expense of the others; smaller steps average this out.
    A stage may have its own `transport`; None takes the flow's. `reach`, if known, bounds how far a
    value can move: then maps keep their knots where they bend (`compact`).
    """

    name: str
    frame: FrameKind
    n_steps: int
    step_size: float = 1.0
    taper: float = 0.0
    transport: Transport | None = None
    reach: float | None = None

    def size_of(self, step: int) -> float:
        """The step size of step 0..n_steps-1."""
        left = 1 - step / self.n_steps
        return self.step_size * (min(1.0, left / self.taper) if self.taper > 0 else 1.0)


def flat(
    frame: FrameKind,
    n_steps: int,
    *,
    n_axis_steps: int = 2,
    step_size: float = 1.0,
    taper: float = 0.5,
) -> list[Stage]:
    """The schedule for vectors: one stage of `frame`, then axis steps that make each column exact.

    Examples
    --------
    >>> from sliceflow.engine.frames import Orthogonal
    >>> [(stage.name, stage.n_steps) for stage in flat(Orthogonal(), 200)]
    [('flow', 200), ('axis', 2)]
    """
    stages = [
        Stage("flow", frame, n_steps, step_size, taper),
        # Sorted, because bins would blur the values of discrete columns.
        Stage("axis", Axis(), n_axis_steps, transport=Sorted()),
    ]
    return [stage for stage in stages if stage.n_steps > 0]
