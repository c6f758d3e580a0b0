"""The stages, memory and time that a fit would take, without running it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from sliceflow.cli.cost import Job, Work, speed
from sliceflow.cli.data import Data
from sliceflow.cli.progress import seconds_text
from sliceflow.cli.settings import Settings
from sliceflow.devices import free_memory, resolve_device
from sliceflow.engine.planning import as_table
from sliceflow.engine.transports import Sorted
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.vectors.plan import VectorPlan

__all__ = ["Estimate", "long_fit", "plan"]

_PROBE = 4096  # particles, and rows of data, in the steps timed on a GPU
_LONG = 120.0  # seconds: for longer fits, shorter settings are suggested
_FEW, _SMALL = 2000, 32  # particles, and pixels of a side, of the shorter settings


@dataclass(frozen=True)
class Estimate:
    """What a fit would take: its plan, the memory that is free, the seconds of its steps.

    For a fit that takes minutes, `shorter` maps flags to the seconds a fit with them would take.
    """

    plan: VectorPlan | PicturePlan
    free_bytes: int | None
    seconds: float
    shorter: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        job = _job(self.plan)
        return {
            "method": self.plan.method,
            "stages": [work.name for work in job.stages],
            "steps": sum(work.steps for work in job.stages),
            "particles": self.plan.n_particles,
            "device": self.plan.device,
            "bytes": self.plan.nbytes,
            "free_bytes": self.free_bytes,
            "seconds": self.seconds,
            "shorter": self.shorter,
        }

    @property
    def ways(self) -> list[str]:
        """The shorter settings in words."""
        return [f"{flags} takes about {seconds_text(s)}" for flags, s in self.shorter.items()]

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f"{self.free_bytes / 2**30:.1f} GiB"
        took = f"about {seconds_text(self.seconds)}, by some steps that were timed"
        rows = [("free", free), ("time", took), *(("shorter", text) for text in self.ways)]
        table = as_table([(f"{name:<9}", text) for name, text in rows])
        return f"{self.plan}\n{table}\nnothing was written"


def plan(flow: Any, data: Data, labels: Any, settings: Settings | None = None) -> Estimate:
    """What fitting `flow` to the data takes. Some steps are timed, on some of the data.

    `settings` are those that `flow` came from; without them no shorter ones are suggested.
    """
    whole = flow.plan(data.x, labels)
    took, ways = _time(flow, data, labels, settings, _job(whole))
    return Estimate(whole, free_memory(resolve_device(flow.device)), took, ways)


def long_fit(flow: Any, data: Data, labels: Any, settings: Settings) -> str:
    """What to say before a fit on a CPU that takes minutes, and how to make it short; else nothing."""
    if resolve_device(flow.device).type != "cpu":
        return ""
    job = _job(flow.plan(data.x, labels))
    if job.seconds < _LONG / 4:  # or on the slowest
        return ""
    took, ways = _time(flow, data, labels, settings, job)
    if took < _LONG:
        return ""
    shown = "".join(f"; {flags}: {seconds_text(s)}" for flags, s in ways.items())
    return f"this takes about {seconds_text(took)} on this CPU{shown}"


def _job(plan: VectorPlan | PicturePlan) -> Job:
    """The work of a plan."""
    sorts = isinstance(plan.transport, Sorted)
    if isinstance(plan, PicturePlan):
        c = plan.layout.shape[0]
        stages = [Work(v.name, v.n_steps, plan.directions_of(v), c * v.patch**2) for v in plan.stages]
        return Job(stages, True, plan.n_moved, plan.n_pictures, sorts, plan.apart or 1)
    d = plan.n_columns
    stages = [Work(stage.name, stage.n_steps, 2 * d, d) for stage in plan.stages()]
    return Job(stages, False, plan.n_moved, plan.n_rows, sorts)


def _time(
    flow: Any, data: Data, labels: Any, settings: Settings | None, job: Job
) -> tuple[float, dict[str, float]]:
    """Seconds of a fit; for a long one on a CPU also shorter settings, with their seconds."""
    if resolve_device(flow.device).type != "cpu":
        return _by_steps(flow, data, labels, job), {}
    pace, out = speed(flow, data, job), dict[str, float]()
    took = pace * job.seconds
    if settings is None or took < _LONG:
        return took, out
    large = data.pictures and settings.size is None and max(data.x.shape[1:3]) > _SMALL
    changes: list[dict[str, Any]] = [{"quality": "draft"}]
    if len(data.x) <= _FEW:
        changes.append({"quality": "draft", "particles": _FEW})
    if large and Path(settings.source).expanduser().is_dir():
        changes.append({"size": _SMALL, "quality": "draft"})
    for change in changes:
        other = replace(settings, **{k: v for k, v in change.items() if k != "size"})
        x = data.x[:, :_SMALL, :_SMALL] if "size" in change else data.x  # of that size, like others
        less = pace * _job(other.estimator(data).plan(x, labels)).seconds
        if less < 0.7 * min((took, *out.values())):
            out[" ".join(f"--{name} {value}" for name, value in change.items())] = less
    return took, out


def _by_steps(flow: Any, data: Data, labels: Any, job: Job) -> float:
    """Seconds from two steps of every stage on some data: for a GPU, which `Job` cannot model."""
    some = np.linspace(0, len(data.x) - 1, min(_PROBE, len(data.x))).astype(int)
    few: dict[str, Any] = {"n_steps": 2} if not data.pictures else {"quality": 2}
    if flow.transport == "auto":  # what it is for all of the data
        few["transport"] = "sorted" if job.sorts else "histogram"
    if job.maps > 1:
        few |= {"n_clusters": job.maps} if labels is None else {"amplifier": math.inf}
    probe = clone(flow).set_params(n_particles=min(job.particles, _PROBE), **few)
    probe.fit(data.x[some], None if labels is None else labels[some])
    moments, names = [0.0, *probe.history_["seconds"]], probe.history_["stage"]
    took: dict[str, float] = {}
    for name, before, after in zip(names, moments, moments[1:], strict=False):
        took[name] = after - before  # the last step's: the first one compiles
    seen = min(job.particles, _PROBE) + len(some) * job.data // len(data.x)
    whole = sum(took.get(work.name, 0.0) * work.steps for work in job.stages)  # names repeat
    return whole * (job.particles + job.data) / seen
