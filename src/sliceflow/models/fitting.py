"""What a space, its fits and its fitted states look like to the estimator, and the run of a fit.

A fit runs its parts one after the other, with checkpoints, listeners and one history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.flow import Cloud, Run
from sliceflow.engine.random import Seed
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.plan import Plan
from sliceflow.models.ranks import Ranks

__all__ = ["Fitted", "Job", "Part", "Space", "run_parts"]


class Space(Protocol):
    """What an estimator knows of its rows, with its parameters checked.

    `read` checks the user's rows and gives `rows.Rows`. `digests` identifies what else the fit was
    given, by name. `prepare` plans the fit of rows: no particle has moved yet.
    """

    def read(self, X: Any, y: Any, ranks: Ranks) -> Any: ...
    def digests(self) -> dict[str, str]: ...
    def prepare(self, rows: Any, seed: Seed, ranks: Ranks) -> Job: ...


class Job(Protocol):
    """A planned fit.

    `finish` takes the results of the parts. It gives the fitted state, the batched samples in the form
    of the user's X, and their y. `copies` says what shows that particles copy rows, and what helps; it
    is empty if nothing does.
    """

    @property
    def plan(self) -> Plan: ...
    @property
    def parts(self) -> Sequence[Part]: ...
    def finish(self, results: Sequence[Any]) -> tuple[Any, Any, Any]: ...
    def copies(self, results: Sequence[Any]) -> str: ...


class Part(Protocol):
    """One flow of a fit, with its planned stages and steps. A fit per class has one for each class.

    `name` is that of the class, or "" if there is one part.
    """

    @property
    def name(self) -> str: ...
    @property
    def n_stages(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    def begin(self) -> Begun: ...


class Begun(Protocol):
    """A part whose particles stand at their start, with the data allocated.

    A checkpoint writes this rank's `particles`, of which `first` is the number of the first, and puts
    them back. `rule` is the stopping rule, if there is one. `move` does the steps that can be resumed,
    from the position of `run` on. `finish` does what follows, which is quick, and gives the result.
    """

    @property
    def particles(self) -> Cloud: ...
    @property
    def first(self) -> int: ...
    @property
    def rule(self) -> events.HeldOut | None: ...
    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None: ...
    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> Any: ...


class Fitted(Protocol):
    """A fitted state that draws samples, on its `device`; `plan` says what the fit did.

    `needs_rows` tells whether samples need the rows, so that the model keeps them in any case.
    `condition` is the kind of y, and `codes` are the encoded conditions of the training rows; both are
    None without y. `draw` gives n samples in the form of the user's X, and `sample_bytes` its memory.
    `columns` gives rows in that form as columns (d, n), in units that make columns comparable.
    """

    @property
    def plan(self) -> Plan: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def needs_rows(self) -> bool: ...
    @property
    def condition(self) -> Any: ...
    @property
    def codes(self) -> Tensor | None: ...
    def sample_bytes(self, n: int) -> int: ...
    def draw(self, n: int, codes: Tensor | None, seed: Seed) -> Any: ...
    def columns(self, X: Any) -> Tensor: ...


def run_parts(
    parts: Sequence[Part], listeners: Sequence[events.Listener], checkpoints: Sequence[Checkpoints] = ()
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Run the parts; returns their results and the joint history."""
    results: list[Any] = []
    histories: list[dict[str, list[Any]]] = []
    for i, part in enumerate(parts):
        heard = listeners
        if len(parts) > 1:  # the steps of a part as steps of all
            relay = events.relayed(
                listeners,
                part.name,
                stages_before=sum(part.n_stages for part in parts[:i]),
                steps_before=sum(len(history["step"]) for history in histories),
                steps_after=sum(part.n_steps for part in parts[i + 1 :]),
                seconds=sum(history["seconds"][-1] for history in histories if history["seconds"]),
            )
            heard = [relay]
        history = events.History()
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
    rules = [] if begun.rule is None else [begun.rule]
    state = (run, begun.particles, history, begun.rule, begun.first)
    with nullcontext(lambda: None) if checkpoint is None else checkpoint.running(*state) as keep:
        begun.move(run, [history, *listeners, *rules])
        keep()
        return begun.finish(run, [history, *listeners])
