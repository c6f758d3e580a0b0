"""Progress of a running fit: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sliceflow.cli.failures import Output
from sliceflow.estimators.tables.events import ColumnEvent, TableTrialEvent
from sliceflow.wording import format_duration, shorten

if TYPE_CHECKING:  # importing it would import torch, which takes seconds
    from sliceflow.engine.events import ProgressEvent

# The fixed cost of a step, as a number of pixels. Only the forecast of the remaining
# time depends on it.
_COST_OF_ANY_STEP = 30
# The share of the work after which the remaining time is shown. Earlier it is a guess.
_MIN_SHARE_FOR_A_FORECAST = 0.1
# How often a second the bar is drawn. The eye sees no more, and reading the distance
# waits for a GPU.
_FRAMES_PER_SECOND = 8
_BAR_WIDTH = 20  # characters
# Names of trials, and of columns that are fitted together, are cut to this, so that a
# line of progress fits into a terminal of 80 characters beside the bar and the
# remaining time.
_MAX_NAME_LENGTH = 30


@runtime_checkable
class StageEvent(Protocol):
    """An event of a flow also says in which stage it is."""

    @property
    def stage_index(self) -> int: ...

    @property
    def step_index(self) -> int: ...


class PlannedStage(Protocol):
    """A planned stage of pictures: steps at a resolution of height×width pixels."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def n_steps(self) -> int: ...


class _Moment(NamedTuple):
    """How much of the work was done at some time."""

    time: float  # in seconds, of `time.monotonic`
    share: float  # the work that was done, over all work


class Forecast:
    """How much of the work is done, and how long the rest takes.

    Later steps of pictures see more pixels, so work is not the number of steps. The
    pace is measured after the first step of this process, which compiles, and from the
    first stage on that costs half of what the dearest one does. There is a forecast
    only after a tenth of the work, and only while the pace is steady.

    Parameters
    ----------
    stages : all planned stages of pictures; empty for other data, whose steps are
        counted
    """

    def __init__(self, stages: Sequence[PlannedStage] = ()) -> None:
        self._costs = [
            _COST_OF_ANY_STEP + stage.height * stage.width for stage in stages
        ]
        self._work_before = [0]  # of each stage, and at last all work
        for cost, stage in zip(self._costs, stages, strict=True):
            self._work_before.append(self._work_before[-1] + cost * stage.n_steps)
        self._moments: list[_Moment] = []
        self.share = 0.0

    def update(self, event: ProgressEvent) -> None:
        """Take note of a step that was done."""
        self.share = event.steps_done / event.steps_total
        is_last = event.steps_done >= event.steps_total
        if isinstance(event, StageEvent) and event.stage_index < len(self._costs):
            cost = self._costs[event.stage_index]
            if not is_last:
                done = self._work_before[event.stage_index] + cost * (
                    event.step_index + 1
                )
                self.share = done / self._work_before[-1]
            if 2 * cost < max(self._costs):
                # Large pictures take another time than small ones.
                self._moments.clear()
        self._moments.append(_Moment(time.monotonic(), self.share))

    def seconds_left(self) -> float | None:
        """Seconds that remain; None as long as that is a guess."""
        if len(self._moments) < 3 or self.share < _MIN_SHARE_FOR_A_FORECAST:
            return None
        first = self._moments[0]
        last = self._moments[-1]
        middle = self._middle_moment(first, last)
        if not first.time < middle.time < last.time:
            return None
        early_pace = (middle.share - first.share) / (middle.time - first.time)
        late_pace = (last.share - middle.share) / (last.time - middle.time)
        seconds = (1 - last.share) / late_pace
        is_steady = late_pace / 2 <= early_pace <= 2 * late_pace
        if seconds < 1 or not is_steady:
            return None
        return seconds

    def _middle_moment(self, first: _Moment, last: _Moment) -> _Moment:
        """The first moment in the second half of the time, before the last share."""
        for moment in self._moments[1:]:
            is_in_second_half = 2 * (moment.time - first.time) >= last.time - first.time
            if is_in_second_half or moment.share == last.share:
                return moment
        return last


class ProgressBar:
    """A listener of any fit: a bar on a terminal, else a line for each tenth.

    Parameters
    ----------
    stages : as in `Forecast`
    """

    def __init__(self, stages: Sequence[PlannedStage] = ()) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._forecast = Forecast(stages)
        self._last_tick = -1.0
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            text = TextColumn("{task.percentage:>3.0f} % {task.description}")
            self._bar = Progress(
                BarColumn(_BAR_WIDTH), text, console=console, transient=True
            )
            self._task = self._bar.add_task("preparing", total=1.0)
            self._bar.start()

    def __call__(self, event: ProgressEvent) -> None:
        self._forecast.update(event)
        is_last = event.steps_done >= event.steps_total
        tick = self._tick()
        if tick < self._last_tick + 1 and not is_last:
            return
        self._last_tick = tick
        text = describe_progress(event)
        seconds_left = self._forecast.seconds_left()
        if seconds_left is not None and not is_last:
            text += f", {format_duration(seconds_left)} left"
        if self._bar is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.update(
                self._task, completed=self._forecast.share, description=text
            )

    def _tick(self) -> float:
        """A number that grows by 1 when something is to be shown again."""
        if self._bar is None:
            return int(10 * self._forecast.share)
        return _FRAMES_PER_SECOND * time.monotonic()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def describe_progress(event: ProgressEvent) -> str:
    """How far a fit is, such as "column 5 of 12 (age)" or "step 20 of 100, …"."""
    if isinstance(event, TableTrialEvent):
        trial = shorten(event.trial, _MAX_NAME_LENGTH)
        return f"trial {event.trials_done} of {event.trials_total} ({trial})"
    if isinstance(event, ColumnEvent):
        column = shorten(event.column, _MAX_NAME_LENGTH)
        return f"column {event.columns_done} of {event.columns_total} ({column})"
    return f"step {event.steps_done} of {event.steps_total}, {event.describe()}"


def progress_bars(
    output: Output, stages: Sequence[PlannedStage] = ()
) -> list[ProgressBar]:
    """The listeners of a fit: a progress bar, unless the output shows none."""
    if not output.progress:
        return []
    return [ProgressBar(stages)]
