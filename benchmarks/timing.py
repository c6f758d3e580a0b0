"""Time on a device: of one call, and of the steps of every stage of a flow."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from sliceflow import ImageFlow
from sliceflow.engine.events import Event

__all__ = [
    "Ends",
    "between_marks",
    "own_seconds",
    "steps_own_seconds",
    "steps_seconds",
    "timed_fit",
    "wait",
]

MARK = "spin_kernel"  # the kernel of torch.cuda._sleep


def wait(device: torch.device) -> None:
    """Until the device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_fit(
    images: np.ndarray, labels: np.ndarray | None, m: int | None, n_steps: int, **settings: object
) -> tuple[ImageFlow, float]:
    """A flow and the seconds of its `fit`, everything compiled before by a short one."""
    few = min(8000, len(images))  # fewer pictures would be sorted, not counted
    short = ImageFlow(n_particles=min(m or few, 8000), quality=1, **settings)
    short.fit(images[:few], None if labels is None else labels[:few])
    began = time.perf_counter()
    flow = ImageFlow(n_particles=m, quality=n_steps, **settings).fit(images, labels)
    return flow, time.perf_counter() - began


def own_seconds(work: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Median seconds of one call on the device itself, the host's part left out.

    Inputs that fit into the cache may lie there, as they do in a step.
    """
    for _ in range(3):
        work()
    wait(device)
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda._sleep(20_000_000)  # some 10 ms, in which the host queues all of the work
    for begin, end in events:
        begin.record()
        work()
        end.record()
    wait(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1000


@dataclass(frozen=True)
class Ends:
    """A listener that acts when the first and when the last of a stage's steps is done."""

    n_steps: int
    act: Callable[[], object]

    def __call__(self, event: Event) -> None:
        if event.step in (0, self.n_steps - 1):
            self.act()


def steps_seconds(run: Callable[..., object], n_steps: int, device: torch.device) -> list[float]:
    """Seconds per step of every stage that ``run(listeners=…)`` goes through, first steps left out."""
    times: list[float] = []

    def look() -> None:
        wait(device)
        times.append(time.perf_counter())

    run(listeners=(Ends(n_steps, look),))
    return [(b - a) / (n_steps - 1) for a, b in zip(times[::2], times[1::2], strict=True)]


def steps_own_seconds(run: Callable[..., object], n_steps: int) -> list[float]:
    """The GPU's kernels alone of the same steps, added up; empty where the profiler sees none."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(listeners=(Ends(n_steps, partial(torch.cuda._sleep, 1)),))
        torch.cuda.synchronize()
    kernels = [
        (event.time_range.start, event.name, event.time_range.elapsed_us() / 1e6)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return [seconds / (n_steps - 1) for seconds in between_marks(kernels)]


def between_marks(kernels: Sequence[tuple[float, str, float]]) -> list[float]:
    """Of (start, name, seconds), the sums from the first mark to the second, third to fourth, …"""
    sums: list[float] = []
    inside = False
    for _, name, seconds in sorted(kernels):
        if MARK in name:
            inside = not inside
            if inside:
                sums.append(0.0)
        elif inside:
            sums[-1] += seconds
    return sums
