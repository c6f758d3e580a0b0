"""`run_flow`: runs a flow of any kind of data, which may resume from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from sliceflow.engine import events
from sliceflow.engine.flow import FlowState, simulate
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.protocols import FitResult, FittedFlowT, RunningFlow
from sliceflow.models.ranks import Ranks


def run_flow(
    running: RunningFlow[FittedFlowT],
    listeners: Sequence[events.Listener],
    checkpoints: Checkpoints | None,
    ranks: Ranks,
) -> FitResult[FittedFlowT]:
    """Move the particles, or go on where a checkpoint ended, and finish the fit."""
    if ranks.size > 1:
        listeners = ranks.synchronized(listeners)
    state = FlowState()
    history = events.History()
    all_listeners: list[events.Listener] = [history, *listeners]
    saving: AbstractContextManager[None] = nullcontext()
    if checkpoints is not None:
        saving = checkpoints.protecting(state, running, history)
    with saving:
        simulate(
            running.flow,
            running.particles,
            running.target(),
            running.noise,
            listeners=all_listeners,
            state=state,
        )
        result = running.finish(state, all_listeners)
    return replace(result, history=history.as_columns())
