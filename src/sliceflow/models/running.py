"""The run of a flow: its particles move, with a history and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from sliceflow.engine.events import History, Listener
from sliceflow.engine.flow import FlowState, simulate
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.protocols import FitResult, FittedFlowT, RunningFlow
from sliceflow.models.ranks import Ranks


def run_flow(
    running: RunningFlow[FittedFlowT],
    listeners: Sequence[Listener],
    ranks: Ranks,
    checkpoints: Checkpoints | None,
) -> FitResult[FittedFlowT]:
    """Move the particles to the end of the flow, and finish the fit.

    With `checkpoints`, this goes on where the last one ended, and writes more.
    """
    if ranks.size > 1:
        listeners = ranks.synchronized(listeners)
    state = FlowState()
    history = History()
    all_listeners: list[Listener] = [history, *listeners]
    saving: AbstractContextManager[None] = nullcontext()
    if checkpoints is not None:
        saving = checkpoints.protecting(state, running, history)
    with saving:
        simulate(
            running.flow,
            running.particles,
            running.target(),
            running.particle_rng,
            listeners=all_listeners,
            state=state,
        )
        result = running.finish(state, all_listeners)
    return replace(result, history=history.as_columns())
