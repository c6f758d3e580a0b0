"""Progress of a running fit: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sliceflow.engine.events import Event

__all__ = ["Clock", "ProgressLines", "ProgressPanel", "listener", "seconds_text", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_PIXELS = re.compile(r"(\d+)×(\d+)\[")
_ANY_STEP = 30  # what a step costs besides its pixels, in pixels
_SURE = 0.1  # share of the work after which remaining time is shown


def sparkline(values: list[float], width: int = 32) -> str:
    """The last values as bars, scaled from the lowest to the highest of them.

    Examples
    --------
    >>> sparkline([4.0, 2.0, 1.0, 0.5])
    '█▄▂▁'
    """
    values = [v for v in values if math.isfinite(v)][-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((v - low) * scale)] for v in values)


def seconds_text(seconds: float) -> str:
    """Such as 12 s, 3 min 20 s, 2 h 05 min.

    Examples
    --------
    >>> seconds_text(200)
    '3 min 20 s'
    """
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
    step of this process, which compiles. It tells the remaining time only after a tenth of the work, and
    only while the pace is steady: half as fast or twice as fast as before, and it says nothing.

    Parameters
    ----------
    stages : the name and the number of steps of every stage
    """

    def __init__(self, stages: Sequence[tuple[str, int]]) -> None:
        self._costs = [_work(name) for name, _ in stages]
        self._before = [0.0]
        for cost, (_, steps) in zip(self._costs, stages, strict=True):
            self._before.append(self._before[-1] + cost * steps)
        self._seen: deque[tuple[float, float]] = deque()  # (moment, work done)
        self.share = 0.0

    def update(self, event: Event) -> None:
        """Note that a step was done."""
        i = event.stage_index
        if event.steps_done >= event.steps_total:
            self.share = 1.0
        elif i < len(self._costs):
            self.share = (self._before[i] + self._costs[i] * (event.step + 1)) / self._before[-1]
        else:  # a fit with other stages than planned
            self.share = event.steps_done / event.steps_total
        self._seen.append((time.monotonic(), self.share))

    def left(self) -> float | None:
        """Seconds that remain; None as long as that is a guess."""
        if len(self._seen) < 3 or self.share < _SURE:
            return None
        (began, first), (now, done) = self._seen[0], self._seen[-1]
        half = next(k for k, (moment, _) in enumerate(self._seen) if 2 * (moment - began) >= now - began)
        middle, share = self._seen[max(1, min(half, len(self._seen) - 2))]
        early, late = ((share - first) / (middle - began or 1e-9), (done - share) / (now - middle or 1e-9))
        if not 0.5 <= early / max(late, 1e-12) <= 2:
            return None
        return (1 - done) / late


class ProgressLines:
    """A listener that prints a plain line on stderr at the first step and every tenth of the work."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._tenth = clock, -1

    def __call__(self, event: Event) -> None:
        self._clock.update(event)
        tenth = int(10 * self._clock.share)
        if tenth > self._tenth:
            self._tenth = tenth
            left = self._clock.left()
            more = "" if left is None or tenth == 10 else f", {seconds_text(left)} left"
            print(
                f"step {event.steps_done}/{event.steps_total}, stage {event.stage}, sliced distance "
                f"{float(event.distance):.4g}{more}",
                file=sys.stderr,
                flush=True,
            )


class ProgressPanel:
    """A listener with a live panel: stage, step, sliced distance, remaining time.

    Parameters
    ----------
    console : of rich
    clock : of the fit
    """

    def __init__(self, console: Any, clock: Clock) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        self._clock, self._shown_at, self._console = clock, 0.0, console
        self._distances: list[float] = []
        self._bar = Progress(BarColumn(None), TextColumn("{task.percentage:>3.0f}%"))
        self._task = self._bar.add_task("work", total=1.0)
        self._live = Live("preparing", console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def __call__(self, event: Event) -> None:
        self._clock.update(event)
        now = time.monotonic()
        # Reading the distance waits for the device, so not at every step.
        if now - self._shown_at < 0.12 and event.steps_done < event.steps_total:
            return
        self._shown_at = now
        self._distances.append(float(event.distance))
        self._bar.update(self._task, completed=self._clock.share)
        self._live.update(self._table(event))

    def _table(self, event: Event) -> Any:
        from rich.console import Group
        from rich.table import Table

        # Distances fall by orders of magnitude, so the sparkline is logarithmic.
        least = 1e-4 * max(self._distances)
        heights = [math.log10(max(d, least)) for d in self._distances if d > 0]
        line = sparkline(heights, max(4, min(48, self._console.width - 23)))
        left = self._clock.left()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=len("distance"))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row("step", f"{event.steps_done} of {event.steps_total}, stage {event.stage}")
        table.add_row("distance", f"{self._distances[-1]:<9.3g}  {line}")
        table.add_row("left", "" if left is None else seconds_text(left))
        return Group(self._bar, table)

    def close(self) -> None:
        """Remove the panel from the terminal."""
        self._live.stop()


def listener(stages: Sequence[tuple[str, int]]) -> ProgressLines | ProgressPanel:
    """What shows the progress of a fit with these stages, as the terminal allows."""
    from rich.console import Console

    console, clock = Console(stderr=True), Clock(stages)
    if not console.is_terminal or console.is_dumb_terminal:
        return ProgressLines(clock)
    return ProgressPanel(console, clock)
