"""The run of a fit: its parts one after the other, with checkpoints, listeners and one history."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Run
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.plan import Plan

__all__ = ["Job", "Part", "run_parts"]


class Part(Protocol):
    """One flow of a fit. Most fits have one; a fit per class has one for each class."""

    @property
    def name(self) -> str:
        """The class, or "" if there is one part."""
        ...

    @property
    def n_stages(self) -> int:
        """Planned stages."""
        ...

    @property
    def n_steps(self) -> int:
        """Planned steps."""
        ...

    def begin(self) -> Any:
        """Allocate particles and data: `Begun`."""
        ...


class Begun(Protocol):
    """A part whose particles stand at their start."""

    @property
    def particles(self) -> Cloud:
        """This rank's particles. A checkpoint writes them and puts them back."""
        ...

    @property
    def first(self) -> int:
        """The number of this rank's first particle."""
        ...

    @property
    def rule(self) -> events.HeldOut | None:
        """The stopping rule; None without early stopping."""
        ...

    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None:
        """Do the steps that can be resumed, from the position of `run` on."""
        ...

    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> Any:
        """Do what follows the last of them, which is quick, and return the result."""
        ...


class Job(Protocol):
    """A planned fit."""

    @property
    def plan(self) -> Plan: ...

    @property
    def parts(self) -> Sequence[Part]: ...

    def finish(self, results: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The fitted state, the batched samples in the form of the user's X, and their y."""
        ...

    def copies(self, results: Sequence[Any]) -> str:
        """What shows that particles copy rows, and what helps; empty if nothing does."""
        ...


def run_parts(
    parts: Sequence[Part],
    listeners: Sequence[events.Listener],
    checkpoints: Sequence[Checkpoints] = (),
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Run the parts; returns their results and the joint history."""
    results: list[Any] = []
    histories: list[dict[str, list[Any]]] = []
    for i, part in enumerate(parts):
        history = events.History()
        heard = listeners if len(parts) == 1 else [_relay(parts, i, histories, listeners)]
        results.append(_run(part, history, heard, checkpoints[i] if checkpoints else None))
        histories.append(history.as_columns())
    if len(parts) == 1:
        return results, histories[0]
    for checkpoint in checkpoints:
        checkpoint.remove()
    return results, events.joined(histories, [part.name for part in parts])


def _run(
    part: Part,
    history: events.History,
    listeners: Sequence[events.Listener],
    checkpoint: Checkpoints | None,
) -> Any:
    begun, run = part.begin(), Run()
    first_heard: list[events.Listener] = [history, *listeners]
    if begun.rule is not None:
        first_heard.append(begun.rule)
    state = (run, begun.particles, history, begun.rule, begun.first)
    running: Any = nullcontext(lambda: None) if checkpoint is None else checkpoint.running(*state)
    with running as keep:
        begun.move(run, first_heard)
        keep()
        return begun.finish(run, [history, *listeners])


def _relay(
    parts: Sequence[Part],
    i: int,
    histories: Sequence[dict[str, list[Any]]],
    listeners: Sequence[events.Listener],
) -> events.Listener:
    """A listener that reports the steps of part i to others as steps of all parts."""
    return events.relayed(
        listeners,
        parts[i].name,
        stages_before=sum(part.n_stages for part in parts[:i]),
        steps_before=sum(len(history["step"]) for history in histories),
        steps_after=sum(part.n_steps for part in parts[i + 1 :]),
        seconds=sum(history["seconds"][-1] for history in histories if history["seconds"]),
    )
