"""How far the fit of a density is, for its listeners: trials, and then steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sliceflow.engine.events import EventListener, FlowEvent, History, notify, now

# What the progress of a fit calls the phase in which a flow is fitted to all rows.
FLOW = "flow"


@dataclass(frozen=True)
class DensityTrialEvent:
    """A trial of settings that was just done, or a step of one.

    It has what progress bars read of any event (`sliceflow.events.ProgressEvent`).

    A listener that returns True ends the search to which the trial belongs, and the fit
    takes what was best so far. There is one search for the size of each kind of
    mixture, one for the penalty and the steps of a flow, and one for directions of a
    continuous y. Functions of y are chosen for every column, whatever listeners return.

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
        is an estimate until the last step of the last trial.
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
DensityEvent: TypeAlias = FlowEvent | DensityTrialEvent


@dataclass
class _PhaseEstimate:
    """How many phases of one kind will still begin, and how long each will be."""

    n_left: int
    expected_steps: float
    n_ended: int = 0


@dataclass(eq=False)
class _FitCounts:
    """What was counted of a fit so far, in all its phases."""

    steps_done: int = 0
    # The phases that were announced, by their class and kind.
    estimates: dict[tuple[str, str], _PhaseEstimate] = field(default_factory=dict)
    running_phase: _PhaseEstimate = field(default_factory=lambda: _PhaseEstimate(0, 0))
    steps_done_in_phase: int = 0
    steps_left_in_phase: int = 0
    last_event: DensityEvent | None = None


@dataclass(frozen=True, eq=False)
class FitProgress:
    """Counts the trials and steps of one fit, and notifies its listeners of each.

    A fit has phases, one after the other, of several kinds: the trials of mixtures of
    one kind, one trial of a flow, a flow. `expect` announces those of a kind, and
    `begin_phase` begins each. `for_class` gives what the phases of one class report to.

    Parameters
    ----------
    listeners : of the fit
    class_name : the class whose phases these are; "" without classes
    class_index : its index among the classes, which is that of its flow
    started_at : when the fit began
    history : of the flows, without trials
    """

    listeners: Sequence[EventListener[DensityEvent]] = ()
    class_name: str = ""
    class_index: int = 0
    started_at: float = field(default_factory=now)
    history: History = field(default_factory=History)
    _counts: _FitCounts = field(default_factory=_FitCounts)

    def for_class(self, name: str, index: int) -> FitProgress:
        """The progress of the same fit, for the phases of one class."""
        return replace(self, class_name=name, class_index=index)

    def expect(self, kind: str, n_phases: int, n_steps: float) -> None:
        """Announce phases of a kind, for the class, of about `n_steps` each.

        This replaces what was announced of the kind before.
        """
        estimate = _PhaseEstimate(n_phases, n_steps)
        self._counts.estimates[self.class_name, kind] = estimate

    def expect_no_more(self) -> None:
        """Announce that the running phase is the last of the fit."""
        self._counts.estimates.clear()

    def begin_phase(self, kind: str) -> None:
        """Begin a phase, which ends the one before."""
        counts = self._counts
        key = (self.class_name, kind)
        estimate = counts.estimates.setdefault(key, _PhaseEstimate(1, 1))
        estimate.n_left = max(0, estimate.n_left - 1)
        counts.running_phase = estimate
        counts.steps_done_in_phase = 0
        counts.steps_left_in_phase = round(estimate.expected_steps)

    def end_phase(self) -> None:
        """End the phase. Others of its kind are expected to be as long on average."""
        estimate = self._counts.running_phase
        n_steps = self._counts.steps_done_in_phase
        if estimate.n_ended > 0:
            n_steps += round(estimate.n_ended * estimate.expected_steps)
        estimate.n_ended += 1
        estimate.expected_steps = n_steps / estimate.n_ended
        self._counts.steps_left_in_phase = 0

    @property
    def steps_done(self) -> int:
        """Trials and steps that were done in all phases."""
        return self._counts.steps_done

    @property
    def steps_total(self) -> int:
        """All steps, as far as they are known now."""
        counts = self._counts
        steps_after = sum(
            estimate.n_left * estimate.expected_steps
            for estimate in counts.estimates.values()
        )
        return counts.steps_done + counts.steps_left_in_phase + round(steps_after)

    def _count_step(self) -> None:
        """Count a step of the running phase."""
        counts = self._counts
        counts.steps_done += 1
        counts.steps_done_in_phase += 1
        counts.steps_left_in_phase = max(0, counts.steps_left_in_phase - 1)

    def notify_of_trial(
        self, trial: str, held_out_log_prob: float, is_last: bool = False
    ) -> bool:
        """Count a trial, or a step of one; return whether a listener ends the search.

        `is_last` says that the phase ends with it anyway.
        """
        self._count_step()
        if is_last:
            self.end_phase()
        if self.class_name:
            trial = f"{trial} for class {self.class_name}"
        event = DensityTrialEvent(
            trial=trial,
            held_out_log_prob=held_out_log_prob,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            seconds=now() - self.started_at,
        )
        self._counts.last_event = event
        return notify(self.listeners, event)

    def notify_of_step(self, event: FlowEvent) -> bool:
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
            stage_index=self.class_index,
            steps_done=self.steps_done,
            steps_total=self.steps_total,
            seconds=now() - self.started_at,
        )
        self._counts.last_event = counted
        self.history(counted)
        return notify(self.listeners, counted)

    def notify_of_end(self) -> None:
        """Tell listeners that all is done, if the last event expected more trials.

        That is so if a listener has ended a search, and the flow has no steps: then no
        event follows. So they get the last one again, with the steps that were done.
        """
        event = self._counts.last_event
        if not isinstance(event, DensityTrialEvent):
            return
        if event.steps_total > self.steps_done:
            seconds = now() - self.started_at
            last = replace(event, steps_total=self.steps_done, seconds=seconds)
            notify(self.listeners, last)
