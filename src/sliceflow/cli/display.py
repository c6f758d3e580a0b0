"""What is seen of a running fit: a live panel on a terminal, plain lines elsewhere. It only listens."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sliceflow.events import Event

__all__ = ["Lines", "Panel", "display", "memory", "seconds_text", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float], width: int = 32) -> str:
    """The last values as bars, from the least to the largest of them.

    Examples
    --------
    >>> sparkline([4.0, 2.0, 1.0, 0.5])
    '█▄▂▁'
    """
    values = [v for v in values if v == v and abs(v) != float("inf")][-width:]
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


def memory(event: Event) -> int | None:
    """Bytes that the process holds: of the GPU where it runs on one, else the most it ever held."""
    if event.particles.device.type == "cuda":
        import torch

        return int(torch.cuda.memory_allocated(event.particles.device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Pace:
    """How fast it goes, from where this process began: a run that goes on had a head start."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), -1

    def left(self, event: Event) -> float:
        """Seconds to the end, as the steps so far were. Later ones see more pixels and take longer."""
        if self.first < 0:
            self.first = event.steps_done - 1
        per_step = (time.monotonic() - self.began) / (event.steps_done - self.first)
        return per_step * (event.steps_total - event.steps_done)

    def rate(self, event: Event) -> float:
        """Particles moved per second."""
        steps = event.steps_done - max(self.first, 0)
        passed = max(time.monotonic() - self.began, 1e-9)
        return float(event.particles.shape[1]) * steps / passed


class Lines:
    """A plain line on stderr at every new tenth of the way."""

    def __init__(self) -> None:
        self._pace, self._said = _Pace(), 0

    def __call__(self, event: Event) -> None:
        left = self._pace.left(event)
        tenth = event.steps_done * 10 // event.steps_total
        if tenth > self._said:
            self._said = tenth
            print(
                f"step {event.steps_done}/{event.steps_total}, stage {event.stage}, "
                f"sliced distance {float(event.distance):.4g}, {seconds_text(left)} left",
                file=sys.stderr,
                flush=True,
            )


class Panel:
    """A live panel: stage, step, sliced distance, pace, time left, memory."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace, self._drawn = _Pace(), 0.0
        self._distances: list[float] = []
        self._heights: list[float] = []
        self._bar = Progress(
            TextColumn("step"), BarColumn(None), TextColumn("{task.completed}/{task.total}")
        )
        self._task = self._bar.add_task("steps", total=None)
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def __call__(self, event: Event) -> None:
        left, now = self._pace.left(event), time.monotonic()
        # Reading the distance waits for the device, so not at every step.
        if now - self._drawn < 0.12 and event.steps_done < event.steps_total:
            return
        self._drawn = now
        distance = float(event.distance)
        self._distances.append(distance)
        if distance > 0:  # it falls by orders of magnitude: the sparkline is logarithmic
            self._heights.append(math.log10(max(distance, 1e-4 * max(self._distances))))
        self._bar.update(self._task, completed=event.steps_done, total=event.steps_total)
        self._live.update(self._table(event, left))

    def _table(self, event: Event, left: float) -> Any:
        from rich.console import Group
        from rich.table import Table

        held = memory(event)
        table = Table.grid(padding=(0, 2))
        table.add_row("stage", f"{event.stage_index + 1}: {event.stage}, step {event.step + 1}")
        table.add_row("sliced distance", f"{self._distances[-1]:<9.4g} {sparkline(self._heights)}")
        table.add_row("pace", f"{self._pace.rate(event):,.0f} particles per second")
        table.add_row("left", f"about {seconds_text(left)}")
        if held is not None:
            table.add_row("memory", f"{held / 2**20:,.0f} MiB")
        return Group(self._bar, table)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def display(*, quiet: bool, progress: bool) -> list[Any]:
    """The listeners that show a run, as the terminal allows."""
    if quiet or not progress:
        return []
    if sys.stderr.isatty():
        from rich.console import Console

        return [Panel(Console(stderr=True))]
    return [Lines()]
