"""The run of a flow: its steps, with listeners, a history and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from sliceflow.engine.events import History, Listener
from sliceflow.engine.flow import FlowState, simulate
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.protocols import FittedFlowT, FlowResult, RunningFlow


def run_flow(
    running: RunningFlow[FittedFlowT],
    listeners: Sequence[Listener],
    checkpoints: Checkpoints | None,
) -> FlowResult[FittedFlowT]:
    """Move the particles, or go on where a checkpoint ended, and finish the fit."""
    state = FlowState()
    history = History()
    told: list[Listener] = [history, *listeners]
    saving: AbstractContextManager[None] = nullcontext()
    if checkpoints is not None:
        saving = checkpoints.running(state, running, history)
    with saving:
        simulate(
            running.flow,
            running.particles,
            running.target(),
            running.noise,
            listeners=told,
            state=state,
            n_stages=running.n_stages,
        )
        result = running.finish(state, told)
    return replace(result, history=history.as_columns())
