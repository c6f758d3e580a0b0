"""Progress of a running fit: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sliceflow.engine.events import Event

_PIXELS = re.compile(r"(\d+)×(\d+)\[")
_ANY_STEP = 30  # what a step costs besides its pixels, in pixels
_SURE = 0.1  # share of the work after which remaining time is shown


def seconds_text(seconds: float) -> str:
    """Such as 12 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _work(stage: str) -> float:
    """What a step of a stage costs: stages of pictures are named by their pixels."""
    sides = _PIXELS.match(stage)
    return _ANY_STEP + (int(sides[1]) * int(sides[2]) if sides else 0)


class Clock:
    """How much of the work is done, and how long the rest takes.

    Later steps see more pixels, so work is not the number of steps. The clock starts after the first
    step of this process, which compiles, and with the first stage that costs half of what the dearest
    does. It tells the remaining time only after a tenth of the work, and only while the pace is steady.
    `stages` are the name and the number of steps of every stage.
    """

    def __init__(self, stages: Sequence[tuple[str, int]]) -> None:
        self._costs = [_work(name) for name, _ in stages]
        self._before = [0.0]
        for cost, (_, steps) in zip(self._costs, stages, strict=True):
            self._before.append(self._before[-1] + cost * steps)
        self._seen: list[tuple[float, float]] = []  # (moment, share of the work)
        self.share = 0.0

    def update(self, event: Event) -> None:
        i = event.stage_index
        if event.steps_done >= event.steps_total or i >= len(
            self._costs
        ):  # or not the planned stages
            self.share = event.steps_done / event.steps_total
        else:
            self.share = (
                self._before[i] + self._costs[i] * (event.step + 1)
            ) / self._before[-1]
        if i < len(self._costs) and 2 * self._costs[i] < max(self._costs):
            self._seen.clear()  # small pictures do not tell the time of large ones
        self._seen.append((time.monotonic(), self.share))

    def left(self) -> float | None:
        """Seconds that remain; None as long as that is a guess."""
        if len(self._seen) < 3 or self.share < _SURE:
            return None
        began, first = self._seen[0]
        now, done = self._seen[-1]
        half = next(
            s
            for s in self._seen[1:]
            if 2 * (s[0] - began) >= now - began or s[1] == done
        )
        if not began < half[0] < now:
            return None
        early = (half[1] - first) / (half[0] - began)
        late = (done - half[1]) / (now - half[0])
        left = (1 - done) / late
        return left if left >= 1 and late / 2 <= early <= 2 * late else None


class Progress:
    """A listener: a bar with stage, distance and remaining time; without a terminal, a line per tenth."""

    def __init__(self, stages: Sequence[tuple[str, int]]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._clock = Clock(stages)
        self._shown = -1.0
        console = Console(stderr=True)
        self._bar: Any = None
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (
                BarColumn(20),
                TextColumn("{task.percentage:>3.0f} % {task.description}"),
            )
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task("preparing", total=1.0)
            self._bar.start()

    def __call__(self, event: Event) -> None:
        self._clock.update(event)
        # Reading the distance waits for the device, so not at every step.
        mark = time.monotonic() * 8 if self._bar else int(10 * self._clock.share)
        if mark < self._shown + 1 and event.steps_done < event.steps_total:
            return
        self._shown = mark
        left = self._clock.left()
        text = f"step {event.steps_done}/{event.steps_total}, stage {event.stage}"
        text += f", {event.measure} {float(event.distance):.4g}"
        if left is not None and event.steps_done < event.steps_total:
            text += f", {seconds_text(left)} left"
        if self._bar:
            self._bar.update(self._task, completed=self._clock.share, description=text)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
