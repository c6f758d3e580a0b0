"""Progress of a running fit: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sliceflow.cli.data import Data
    from sliceflow.engine.events import Event

__all__ = ["ProgressLines", "ProgressPanel", "last_distance", "listeners", "seconds_text", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


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


def sees_single_values(stage: str) -> bool:
    """Whether the steps of a stage see columns or pixels one by one.

    Such steps are soon exact, so their distance does not say how close the samples are. A picture of
    one pixel has no other stage.
    """
    return stage == "axis" or (stage.endswith("[1]") and stage != "1×1[1]")


def last_distance(stages: Sequence[str], distances: Sequence[float]) -> tuple[str, float]:
    """The last stage whose distance says how close the samples are, and its last distance.

    Examples
    --------
    >>> last_distance(["flow", "flow", "axis"], [0.3, 0.1, 3e-18])
    ('flow', 0.1)
    """
    pairs = list(zip(stages, distances, strict=True))
    return ([pair for pair in pairs if not sees_single_values(pair[0])] or pairs)[-1]


def _memory_used(event: Event) -> int | None:
    """Bytes the process holds: on the GPU if it runs on one, else the most it has ever held."""
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
    """The speed since the first step of this process, which compiles and does not count."""

    def __init__(self) -> None:
        self._began, self._first = 0.0, -1

    def update(self, event: Event) -> None:
        """Start the clock at the first event."""
        if self._first < 0:
            self._began, self._first = time.monotonic(), event.steps_done

    def time_left(self, event: Event) -> str:
        """The time left at the pace so far. Later steps see more pixels and take longer."""
        steps = event.steps_done - self._first
        if steps <= 0:
            return "?"
        per_step = (time.monotonic() - self._began) / steps
        return seconds_text(per_step * (event.steps_total - event.steps_done))

    def particles_per_second(self, event: Event) -> float:
        passed = max(time.monotonic() - self._began, 1e-9)
        return float(event.particles.shape[1]) * (event.steps_done - self._first) / passed


class ProgressLines:
    """A listener that prints a plain line on stderr at every tenth of the way."""

    def __init__(self) -> None:
        self._pace, self._tenth = _Pace(), 0
        self._distance: Any = None

    def __call__(self, event: Event) -> None:
        self._pace.update(event)
        if self._distance is None or not sees_single_values(event.stage):
            self._distance = event.distance  # a tensor: reading it would wait for the device
        tenth = event.steps_done * 10 // event.steps_total
        if tenth > self._tenth:
            self._tenth = tenth
            print(
                f"step {event.steps_done}/{event.steps_total}, stage {event.stage}, sliced distance "
                f"{float(self._distance):.4g}, {self._pace.time_left(event)} left",
                file=sys.stderr,
                flush=True,
            )


class ProgressPanel:
    """A listener with a live panel: stage, step, sliced distance, pace, time left, memory.

    Parameters
    ----------
    console : of rich
    stages : a description of every stage
    """

    def __init__(self, console: Any, stages: list[str]) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace, self._drawn, self._stages, self._console = _Pace(), 0.0, stages, console
        self._distances: list[float] = []
        self._bar = Progress(BarColumn(None), TextColumn("{task.completed}/{task.total}"))
        self._task = self._bar.add_task("steps", total=None)
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def __call__(self, event: Event) -> None:
        self._pace.update(event)
        now = time.monotonic()
        # Reading the distance waits for the device, so not at every step.
        if now - self._drawn < 0.12 and event.steps_done < event.steps_total:
            return
        self._drawn = now
        if not self._distances or not sees_single_values(event.stage):
            self._distances.append(float(event.distance))
        self._bar.update(self._task, completed=event.steps_done, total=event.steps_total)
        self._live.update(self._table(event))

    def _table(self, event: Event) -> Any:
        from rich.console import Group
        from rich.table import Table

        # Distances fall by orders of magnitude, so the sparkline is logarithmic.
        least = 1e-4 * max(self._distances)
        heights = [math.log10(max(d, least)) for d in self._distances if d > 0]
        line = sparkline(heights, max(4, min(48, self._console.width - 23)))
        description = self._stages[event.stage_index]
        memory = _memory_used(event)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=len("distance"))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row("stage", f"{event.stage_index + 1} of {len(self._stages)}: {description}")
        table.add_row("step", f"{event.step + 1} of {event.stage_steps}")
        table.add_row("distance", f"{self._distances[-1]:<9.3g}  {line}")
        if event.moving is not None:
            table.add_row("moving", f"{float(event.moving):.0%} of the maps")
        table.add_row("pace", f"{self._pace.particles_per_second(event):,.0f} particles/s")
        table.add_row("left", self._pace.time_left(event))
        if memory is not None:
            table.add_row("memory", f"{memory / 2**20:,.0f} MiB")
        return Group(self._bar, table)

    def close(self) -> None:
        """Remove the panel from the terminal."""
        self._live.stop()


def listeners(flow: Any, data: Data) -> list[Any]:
    """The listeners that show the progress of fitting `flow` to the data, as the terminal allows."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return [ProgressLines()]
    if data.pictures:
        stages = [
            f"{s.h}×{s.w} pixels, patches of {s.patch}×{s.patch}"
            for s in flow.stages(*data.x.shape[1:])
        ]
    else:
        stages = [f"{s.name} steps" for s in flow.stages()]
    return [ProgressPanel(console, stages)]
