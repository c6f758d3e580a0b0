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
        The mean log-density of held-out rows in the trial, in units of the trials:
        compare it with other trials only.
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


@dataclass(frozen=True)
class ExpectedPhases:
    """Phases of one kind that a fit will probably have, and about how long each is."""

    kind: str
    n_phases: int
    steps_per_phase: int

    @property
    def n_steps(self) -> int:
        """The steps of all these phases."""
        return self.n_phases * self.steps_per_phase


def expected_flow(n_steps: int) -> ExpectedPhases:
    """The phase in which a flow of so many steps is fitted to all rows."""
    return ExpectedPhases(FLOW, n_phases=1, steps_per_phase=n_steps)


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
    one kind, one trial of a flow, a flow. `announce` says which are expected, and
    `begin_phase` begins each. `for_class` gives what the phases of one class report to.

    Parameters
    ----------
    listeners : of the fit
    class_name : the class whose phases these are; "" without classes
    class_index : its index among the classes, which its flow has, too
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

    def announce(self, phases: Sequence[ExpectedPhases]) -> None:
        """Announce phases of the class that will follow.

        This replaces what was announced of the same kinds before.
        """
        for expected in phases:
            estimate = _PhaseEstimate(expected.n_phases, expected.steps_per_phase)
            self._counts.estimates[self.class_name, expected.kind] = estimate

    def announce_no_more(self, kind: str) -> None:
        """Announce that no other phase of a kind will follow for the class."""
        self.announce([ExpectedPhases(kind, n_phases=0, steps_per_phase=0)])

    def announce_last_phase(self) -> None:
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
        steps_before = 0  # in the phases of this kind that have ended before
        if estimate.n_ended > 0:
            steps_before = round(estimate.n_ended * estimate.expected_steps)
        estimate.n_ended += 1
        steps_so_far = steps_before + self._counts.steps_done_in_phase
        estimate.expected_steps = steps_so_far / estimate.n_ended
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
