"""How far the fit of a density is, for its listeners: trials, and then steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sliceflow.engine.events import Event, EventListener, History, notify, now

# What the progress of a fit calls the part in which a flow is fitted to all rows.
FLOW = "flow"


@dataclass(frozen=True)
class DensityTrialEvent:
    """A trial of settings that was just done, or a step of one.

    It has what progress bars read of any event (`sliceflow.events.ProgressEvent`). A
    listener that returns True ends the trial, and others of the same kind.

    Attributes
    ----------
    trial : str
        What was tried, such as "mixture of 8 components".
    held_out_log_prob : float
        The mean log-density of held-out rows in the trial, in its own units: compare it
        with those of other trials.
    steps_done : int
        Trials and steps done.
    steps_total : int
        Trials and steps of the whole fit. Searches end when nothing is gained, so this
        is an estimate until the last trial is over.
    seconds : float
        Time since the fit began.
    """

    trial: str
    held_out_log_prob: float
    steps_done: int
    steps_total: int
    seconds: float

    def describe(self) -> str:
        """Such as "trial of a mixture of 8 components, held-out log-density -2.31"."""
        text = f"trial of {self.trial}"
        return f"{text}, held-out log-density {self.held_out_log_prob:.4g}"


# What the listeners of a density get: trials first, then the steps of its flows.
DensityEvent: TypeAlias = Event | DensityTrialEvent


@dataclass
class _Parts:
    """Parts of a fit of one kind: how many follow, and about how long each is."""

    n_left: int
    n_steps: float
    n_ended: int = 0


@dataclass
class FitProgress:
    """Counts the trials and steps of one fit, and notifies its listeners of each.

    A fit has parts, one after the other, of several kinds: the trials of mixtures, one
    trial of a flow, a flow. `expect` announces them, and `begin` begins each.
    """

    listeners: Sequence[EventListener[DensityEvent]] = ()
    class_name: str = ""  # of the class whose parts these are; "" without classes
    started_at: float = field(default_factory=now)
    history: History = field(default_factory=History)  # of the flows, without trials
    steps_done: int = 0
    _parts: dict[tuple[str, str], _Parts] = field(default_factory=dict)
    _running: _Parts = field(default_factory=lambda: _Parts(0, 0))
    _steps_of_part: int = 0  # that are done
    _steps_left_of_part: int = 0

    def expect(self, kind: str, n_parts: int, n_steps: int) -> None:
        """Some parts of a kind will come, for the class, of about `n_steps` each."""
        self._parts[self.class_name, kind] = _Parts(n_parts, n_steps)

    def begin(self, kind: str) -> None:
        """Begin a part, which ends the one before."""
        key = (self.class_name, kind)
        self._running = self._parts.setdefault(key, _Parts(1, 1))
        self._running.n_left = max(0, self._running.n_left - 1)
        self._steps_of_part = 0
        self._steps_left_of_part = round(self._running.n_steps)

    def end(self) -> None:
        """End the part. Others of its kind will be as long as those that have ended."""
        parts = self._running
        n_steps = self._steps_of_part
        if parts.n_ended > 0:
            n_steps += round(parts.n_ended * parts.n_steps)
        parts.n_ended += 1
        parts.n_steps = n_steps / parts.n_ended
        self._steps_left_of_part = 0

    @property
    def steps_total(self) -> int:
        """All steps, as far as they are known now."""
        steps_after = sum(each.n_left * each.n_steps for each in self._parts.values())
        return self.steps_done + self._steps_left_of_part + round(steps_after)

    def _count_step(self) -> None:
        self.steps_done += 1
        self._steps_of_part += 1
        self._steps_left_of_part = max(0, self._steps_left_of_part - 1)

    def notify_of_trial(
        self, trial: str, held_out_log_prob: float, is_last: bool = False
    ) -> bool:
        """Count a trial, or a step of one; return whether a listener ends the part.

        `is_last` says that it ends anyway.
        """
        self._count_step()
        if is_last:
            self.end()
        if self.class_name:
            trial = f"{trial} for class {self.class_name}"
        event = DensityTrialEvent(
            trial=trial,
            held_out_log_prob=held_out_log_prob,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            seconds=now() - self.started_at,
        )
        return notify(self.listeners, event)

    def notify_of_step(self, event: Event, stage_index: int = 0) -> bool:
        """Count a step of a flow that is fitted; return whether a listener ends it.

        Every class has a flow of its own, of one stage. For the listeners, these are
        the stages of one flow.
        """
        self._count_step()
        stage_name = "flow"
        if self.class_name:
            stage_name = f"class {self.class_name}"
        counted = replace(
            event,
            stage_name=stage_name,
            stage_index=stage_index,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            seconds=now() - self.started_at,
        )
        self.history(counted)
        return notify(self.listeners, counted)
