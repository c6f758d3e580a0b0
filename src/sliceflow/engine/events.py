"""Events and their listeners: how to watch and stop a running flow.

A listener is any callable that takes a `FlowEvent`. If it returns True, the current
stage ends. If a listener has a method ``close``, it is called when the run ends, even
with an error. Fits without a flow, such as fits of tables, send events of their own
classes, which have at least the members of `ProgressEvent`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

if TYPE_CHECKING:
    from torch import Tensor

    from sliceflow.engine.model_steps import ModelStep

__all__ = [
    "ClosableListener",
    "EventListener",
    "FlowEvent",
    "History",
    "Listeners",
    "Progress",
    "ProgressEvent",
]


LOGGER = logging.getLogger("sliceflow")

# Lines of `Progress` for a fit. Each one waits for the GPU to read the distance; ten
# are enough to see how fast a fit is.
N_PROGRESS_LINES = 10


@runtime_checkable
class ClosableListener(Protocol):
    """A listener with a method that is called when the run ends."""

    def close(self) -> None:
        """End what the listener has begun, such as the line of a progress bar."""


@dataclass(frozen=True, eq=False)
class FlowEvent:
    """The state of a flow after a step, as listeners get it.

    Attributes
    ----------
    stage_name : str
        The name of the stage.
    stage_index : int
        The index of the stage.
    step_index : int
        The index of the step in its stage.
    steps_done : int
        Steps done in all stages.
    steps_total : int
        Steps of all stages, as far as their number is known now.
    distance : tensor
        The sliced distance before the step, √(mean over directions of W₂²), in the
        units of the flow (standardized data). It is a tensor, so that a GPU need not
        wait; ``float(event.distance)`` reads it.
    seconds : float
        Time since the first step began. What comes before is not counted, such as
        reading rows. If the fit was resumed from a checkpoint, the seconds until that
        checkpoint count, too, and not the time between.
    particles : tensor (d, M)
        The particles. They belong to the flow: do not write to them.
    active_fraction : tensor or None, default None
        The fraction of maps that are not the identity; None without shrinkage.
    stage_steps : int, default 0
        The most steps that the stage may have.
    model_step : ModelStep or None, default None
        The step as the model stores it; None if the model does not store it.

    Examples
    --------
    >>> import torch
    >>> from sliceflow import SlicedWassersteinFlow
    >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=9)
    >>> def stop_after_three(event):
    ...     return event.steps_done == 3
    >>> flow = flow.fit(torch.randn(100, 2), listeners=stop_after_three)
    >>> flow.history_["stage"].count("flow")
    3
    """

    stage_name: str
    stage_index: int
    step_index: int
    steps_done: int
    steps_total: int
    distance: Tensor
    seconds: float
    particles: Tensor
    active_fraction: Tensor | None = None
    stage_steps: int = 0
    model_step: ModelStep | None = None

    def describe(self) -> str:
        """Such as "stage flow, sliced distance 0.12". This waits for a GPU."""
        text = f"stage {self.stage_name}, sliced distance {float(self.distance):.4g}"
        if self.active_fraction is not None:
            text += f", {float(self.active_fraction):.0%} of the maps move"
        return text


class ProgressEvent(Protocol):
    """An event of any fit: what progress bars read.

    Attributes
    ----------
    steps_done : int
        Steps done so far.
    steps_total : int
        Steps of the whole fit, as far as their number is known now.
    seconds : float
        Time since the start of the fit.
    """

    @property
    def steps_done(self) -> int: ...

    @property
    def steps_total(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def describe(self) -> str:
        """What was done in this step, without its number."""
        ...


EventT = TypeVar("EventT", bound=ProgressEvent)
EventT_contra = TypeVar("EventT_contra", bound=ProgressEvent, contravariant=True)


class EventListener(Protocol[EventT_contra]):
    """A callable that takes the events of one kind of fit; True ends the stage."""

    def __call__(self, event: EventT_contra, /) -> bool | None: ...


# The columns of a history, of equal length, by name.
HistoryColumns: TypeAlias = Mapping[str, Sequence[str | float]]

# What users pass as `listeners`: ``Listeners[FlowEvent]`` to the fit of a flow.
Listeners = EventListener[EventT] | Iterable[EventListener[EventT]] | None
FlowListener = EventListener[FlowEvent]


class _RecordedStep(NamedTuple):
    """What a history keeps of an event. The fields are the columns of the history."""

    stage: str
    step: int
    distance: Tensor
    active_fraction: Tensor | None
    seconds: float


@dataclass
class History:
    """A listener that records the events of a fit.

    Pass a new one to every fit: the events of a second fit are added to those of the
    first.

    Attributes
    ----------
    recorded : list of tuple
        Stage, step, distance, active fraction and seconds of each event.
    before : dict of lists
        The columns of an earlier run that was resumed.

    Examples
    --------
    >>> import torch
    >>> from sliceflow import SlicedWassersteinFlow
    >>> history = History()
    >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=3)
    >>> flow = flow.fit(torch.randn(100, 2), listeners=history)
    >>> history.as_columns()["step"][:3]
    [0, 1, 2]
    """

    recorded: list[_RecordedStep] = field(default_factory=list)
    before: HistoryColumns = field(default_factory=dict)

    def __call__(self, event: FlowEvent) -> None:
        step = _RecordedStep(
            stage=event.stage_name,
            step=event.step_index,
            distance=event.distance,
            active_fraction=event.active_fraction,
            seconds=event.seconds,
        )
        self.recorded.append(step)

    def as_columns(self) -> HistoryColumns:
        """The columns of the history, for ``pandas.DataFrame(history.as_columns())``.

        Returns
        -------
        columns : dict of lists
            Columns of equal length: `stage`, `step`, `distance`, `active_fraction` and
            `seconds`. `active_fraction` is the fraction of maps that are not the
            identity: 1 without shrinkage.
        """
        steps = self.recorded
        columns: dict[str, Sequence[str | float]] = {
            "stage": [step.stage for step in steps],
            "step": [step.step for step in steps],
            "distance": _read_together([step.distance for step in steps]),
            "active_fraction": _read_together([step.active_fraction for step in steps]),
            "seconds": [step.seconds for step in steps],
        }
        return {
            name: [*self.before.get(name, []), *values]
            for name, values in columns.items()
        }


def _read_together(values: Sequence[Tensor | None]) -> list[float]:
    """The numbers of tensors, read by one transfer from a GPU; 1 for None."""
    import torch  # events of tables, which are no flows, do not need it

    known = [value.double() for value in values if value is not None]
    numbers = iter(torch.stack(known).tolist() if known else [])
    return [1.0 if value is None else next(numbers) for value in values]


def show_log() -> None:
    """Let the lines of `LOGGER` be seen, if no handler of the user would show them."""
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)
    if not LOGGER.isEnabledFor(logging.INFO):
        LOGGER.setLevel(logging.INFO)


class Progress:
    """A listener that logs a line after each tenth of the steps.

    Lines have the level INFO of the logger "sliceflow". If no handler of Python's
    `logging` would show them, they go to stderr.
    """

    def __init__(self) -> None:
        self._n_logged = 0
        show_log()

    def __call__(self, event: ProgressEvent) -> None:
        n_due = event.steps_done * N_PROGRESS_LINES // event.steps_total
        if n_due <= self._n_logged:
            return
        self._n_logged = n_due
        step = f"step {event.steps_done}/{event.steps_total}"
        LOGGER.info("%s, %s", step, event.describe())


def notify(listeners: Sequence[EventListener[EventT]], event: EventT) -> bool:
    """Call all listeners; return whether any of them ends the stage."""
    answers = [listener(event) for listener in listeners]
    return any(answers)


def now() -> float:
    """The clock of `FlowEvent.seconds`."""
    return time.perf_counter()
