"""The run of a fit: its parts one after the other, with checkpoints, listeners and one history.

What a space provides, step by step, in frozen dataclasses that a file can hold:

- `read(X, y, ranks)` checks the user's rows. Rows have `append(others)`, `take(numbers)`, `keys()` that
  are equal for equal rows, `in_users_form(device)`, which gives X and y back, and `digests(ranks)`.
- `prepare(rows, seed, ranks)` plans a job: its `plan` and its `parts`: one, or one for each class, with
  its `name` and `stages`. `part.begin()` allocates data and `particles`, of which the `first`
  has this number among those of all ranks. Its `move(run, listeners)` does the steps that can be
  resumed, and `finish(run, listeners)` what follows.
- `job.finish(results)` gives the fitted state, the batched samples in the form of X, and their y.
  `job.copies(results)` says what shows that particles copy rows, empty if nothing does, and what helps.
- The fitted state has its `plan`, `device`, `condition` (the kind of y) and `codes` of the training rows.
  `needs_rows` tells whether the model always keeps its rows. `draw(n, codes, seed)` takes
  `sample_bytes(n)`. `columns(X)` are rows as columns (d, n), in units that make columns comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from sliceflow.engine import events
from sliceflow.engine.flow import FlowState
from sliceflow.models.checkpoints import Checkpoints


def run_parts(
    parts: Sequence[Any],
    listeners: Sequence[events.Listener],
    checkpoints: Sequence[Checkpoints] = (),
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Run the parts; returns their results and the joint history."""
    results: list[Any] = []
    histories: list[dict[str, list[Any]]] = []
    for i, part in enumerate(parts):
        heard = (
            listeners if len(parts) == 1 else [_relayed(listeners, parts, i, histories)]
        )
        history = events.History()
        results.append(
            _run(part, history, heard, checkpoints[i] if checkpoints else None)
        )
        histories.append(history.as_columns())
    if len(parts) == 1:
        return results, histories[0]
    for checkpoint in checkpoints:
        checkpoint.remove()
    return results, events.joined(histories, [part.name for part in parts])


def _relayed(
    listeners: Sequence[events.Listener],
    parts: Sequence[Any],
    i: int,
    histories: Sequence[Any],
) -> events.Listener:
    """One listener that tells others of the steps of part i as steps of all parts."""
    stages_before = sum(len(part.stages) for part in parts[:i])
    steps_before = sum(len(history["step"]) for history in histories)
    steps_after = sum(stage.n_steps for part in parts[i + 1 :] for stage in part.stages)
    seconds = sum(history["seconds"][-1] for history in histories if history["seconds"])

    def relay(event: events.Event) -> bool:
        overall = replace(
            event,
            stage=f"{parts[i].name}: {event.stage}",
            stage_index=stages_before + event.stage_index,
            steps_done=steps_before + event.steps_done,
            steps_total=steps_before + event.steps_total + steps_after,
            seconds=seconds + event.seconds,
        )
        return events.notify(listeners, overall)

    return relay


def _run(
    part: Any,
    history: events.History,
    heard: Sequence[events.Listener],
    keeper: Checkpoints | None,
) -> Any:
    begun = part.begin()
    run = FlowState()
    with (
        nullcontext() if keeper is None else keeper.running(run, begun, history) as keep
    ):
        begun.move(run, [history, *heard])
        if keep is not None:
            keep()
        return begun.finish(run, [history, *heard])
