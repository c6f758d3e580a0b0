"""Events and their listeners: how to watch and stop a running flow.

A listener is any callable that takes an `Event`. If it returns True, the current stage ends. Its method
``close``, if any, is called when the run ends, even with an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sliceflow.errors import require

__all__ = ["Event", "History", "Listener", "Listeners", "Progress"]


@dataclass(frozen=True)
class Event:
    """The state after a step.

    `distance` is the sliced distance before the step, √(mean over directions of W₂²), in the units of
    the flow (standardised data): a tensor, so that a GPU need not wait; ``float(event.distance)`` reads
    it. `moving` is the share of maps that move anything; None without shrinkage. `particles` (d, M)
    belong to the flow: do not write to them. `stage_steps` is the most steps that the stage may have.
    """

    stage: str
    stage_index: int
    step: int
    steps_done: int
    steps_total: int
    distance: Tensor
    seconds: float
    particles: Tensor
    moving: Tensor | None = None
    stage_steps: int = 0
    measure: str = (
        "sliced distance"  # what `distance` is; of tables, "unexplained share"
    )

    def describe(self) -> str:
        """Such as "stage flow, sliced distance 0.12". It waits for a GPU."""
        return f"stage {self.stage}, {self.measure} {float(self.distance):.4g}"


Listener = Callable[[Event], bool | None]
Listeners = Listener | Iterable[Listener] | None
_COLUMNS = ("stage", "step", "distance", "moving", "seconds")  # of a history


@dataclass
class History:
    """Records the events. `moving` is the share of maps that move anything: 1 without shrinkage."""

    events: list[tuple[str, int, Tensor, Tensor | None, float]] = field(
        default_factory=list
    )
    before: dict[str, list[Any]] = field(
        default_factory=dict
    )  # of the run that is resumed

    def __call__(self, event: Event) -> None:
        self.events.append(
            (event.stage, event.step, event.distance, event.moving, event.seconds)
        )

    def as_columns(self) -> dict[str, list[Any]]:
        """Lists of equal length, for ``pandas.DataFrame(history)``."""
        columns: list[list[Any]] = [
            [e[i] for e in self.events] for i in range(len(_COLUMNS))
        ]
        columns[2], columns[3] = _numbers(columns[2]), _numbers(columns[3])
        return {
            n: [*self.before.get(n, []), *c]
            for n, c in zip(_COLUMNS, columns, strict=True)
        }


def _numbers(values: Sequence[Tensor | None]) -> list[float]:
    """The numbers of tensors, read together; 1 for None."""
    known = [value.double() for value in values if value is not None]
    numbers = iter(torch.stack(known).tolist() if known else [])
    return [1.0 if value is None else next(numbers) for value in values]


def joined(
    histories: Sequence[dict[str, list[Any]]], names: Sequence[str]
) -> dict[str, list[Any]]:
    """The histories of several fits, one behind the other; `names` go before those of their stages."""
    out: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
    for columns, name in zip(histories, names, strict=True):
        before = out["seconds"][-1] if out["seconds"] else 0.0
        stages = [f"{name}: {stage}" for stage in columns["stage"]]
        seconds = [before + s for s in columns["seconds"]]
        for column, values in (columns | {"stage": stages, "seconds": seconds}).items():
            out[column] += values
    return out


class Progress:
    """Prints a line on stderr after each tenth of the steps."""

    _said = 0

    def __call__(self, event: Event) -> None:
        done = event.steps_done
        total = event.steps_total
        if done * 10 // total > self._said:  # reading the distance waits for a GPU
            self._said = done * 10 // total
            moving = (
                ""
                if event.moving is None
                else f", {float(event.moving):.0%} of the maps move"
            )
            line = f"{event.stage} {done}/{total}, {event.measure} {float(event.distance):.4g}{moving}"
            print(f"sliceflow: {line}", file=sys.stderr, flush=True)


def as_listeners(listeners: Listeners) -> tuple[Listener, ...]:
    """The listeners of a user as a tuple: one, several or None."""
    what = "a callable, a tuple of several, or None"
    if listeners is None:
        return ()
    if callable(listeners):
        return (listeners,)
    require(isinstance(listeners, Iterable), "listeners", listeners, what)
    several = tuple(listeners)
    require(all(callable(listener) for listener in several), "listeners", several, what)
    return several


def notify(listeners: Sequence[Listener], event: Event) -> bool:
    """Call all listeners; whether any of them ends the stage."""
    return any([listener(event) for listener in listeners])  # noqa: C419, all of them must hear it


@contextmanager
def closing(listeners: Sequence[Listener]) -> Iterator[None]:
    """Call ``close()`` on the listeners that have it, even after an error."""
    try:
        yield
    finally:
        for listener in listeners:
            getattr(listener, "close", lambda: None)()


def now() -> float:
    """The clock of `Event.seconds`."""
    return time.perf_counter()
