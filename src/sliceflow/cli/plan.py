"""The stages, memory and time that a fit would take, without running it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from sliceflow.cli.cost import Job, Work, speed
from sliceflow.cli.data import Data
from sliceflow.cli.progress import seconds_text
from sliceflow.cli.settings import Settings
from sliceflow.devices import free_memory, resolve_device
from sliceflow.engine.conditions import default_particles
from sliceflow.pictures.plan import choose_amplifier, choose_clusters, direction_bytes

__all__ = ["Plan", "long_fit", "plan"]

_PROBE = 4096  # particles, and rows of data, in the steps timed on a GPU
_LONG = 120.0  # seconds: for longer fits, shorter settings are suggested
_FEW, _SMALL = 2000, 32  # particles, and pixels of a side, of the shorter settings


@dataclass(frozen=True)
class Plan:
    """Estimates. `bytes` counts the particles, the data and the model, `seconds` only the steps.

    For a fit that takes minutes, `shorter` maps flags to the seconds a fit with them would take.
    """

    stages: list[str]
    steps: int
    particles: int
    device: str
    bytes: int
    free_bytes: int | None
    seconds: float
    shorter: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ways(self) -> list[str]:
        """The shorter settings in words."""
        return [f"{flags} takes about {seconds_text(s)}" for flags, s in self.shorter.items()]

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f" of {self.free_bytes / 2**30:.1f} GiB free"
        return "\n".join(
            (
                f"stages:    {len(self.stages)}: {' '.join(self.stages)}",
                f"steps:     {self.steps}",
                f"particles: {self.particles}",
                f"device:    {self.device}",
                f"memory:    about {self.bytes / 2**30:.2f} GiB{free}",
                f"time:      about {seconds_text(self.seconds)}, from a few timed steps",
                *(f"shorter:   {text}" for text in self.ways),
                "nothing was written",
            )
        )


def plan(flow: Any, data: Data, labels: Any, settings: Settings | None = None) -> Plan:
    """What fitting `flow` to the data takes. A few steps are timed, on some of the data.

    `settings` are those that `flow` came from; without them no shorter ones are suggested.
    """
    device = resolve_device(flow.device)
    job, amplifier, classes = _job(flow, data, labels)
    m, n, d = job.particles, job.data, int(np.prod(data.x.shape[1:]))
    if data.pictures:
        one = direction_bytes(flow, m, n, amplifier, classes)
    else:
        one = 4 * (flow._options.n_knots + 1)
    model = one * sum(work.directions * work.steps for work in job.stages)
    wanted = 4 * d * (4 * m + 3 * n) + data.x.nbytes + model
    took, ways = _time(flow, data, labels, settings, job)
    names, steps = [work.name for work in job.stages], sum(work.steps for work in job.stages)
    return Plan(names, steps, m, str(device), wanted, free_memory(device), took, ways)


def long_fit(flow: Any, data: Data, labels: Any, settings: Settings) -> str:
    """A note for a fit that takes minutes on a CPU, with shorter settings; else nothing."""
    job, _, _ = _job(flow, data, labels)
    if resolve_device(flow.device).type != "cpu" or job.seconds < _LONG / 4:  # or on the slowest
        return ""
    took, ways = _time(flow, data, labels, settings, job)
    if took < _LONG:
        return ""
    shown = "".join(f"; {flags}: {seconds_text(s)}" for flags, s in ways.items())
    return f"this takes about {seconds_text(took)} on this CPU{shown}"


def _job(flow: Any, data: Data, labels: Any, shape: Sequence[int] = ()) -> tuple[Job, float, int]:
    """The job of fitting the data, or such pictures of another shape; its amplifier and classes."""
    n = len(data.x) * (2 if getattr(flow, "mirror", False) else 1)
    m = flow.n_particles or default_particles(n)
    shape = shape or data.x.shape[1:3]
    amplifier, classes = _classes(flow, data, labels, m, n, shape)
    maps = classes if amplifier == math.inf else 1
    if data.pictures:
        from sliceflow.pictures.tiles import Tiles

        c = data.x.shape[3] if data.x.ndim == 4 else 1
        stages = [
            Work(v.name, v.n_steps, Tiles(c, v.h, v.w, v.patch).most_directions, c * v.patch**2)
            for v in flow.stages(*shape)
        ]
    else:
        d = data.x.shape[1]
        stages = [Work(stage.name, stage.n_steps, 2 * d, d) for stage in flow.stages()]
    return Job(stages, data.pictures, m, n, flow.transport, maps), amplifier, classes


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
        shape = (_SMALL, _SMALL) if "size" in change else ()
        less = pace * _job(other.estimator(data), data, labels, shape)[0].seconds
        if less < 0.7 * min((took, *out.values())):
            out[" ".join(f"--{name} {value}" for name, value in change.items())] = less
    return took, out


def _classes(
    flow: Any, data: Data, labels: Any, m: int, n: int, shape: Sequence[int]
) -> tuple[float, int]:
    """The amplifier for pictures, and the number of classes; clusters count as classes."""
    if not data.pictures or flow.observed is not None:
        return 0.0, 1
    if labels is None:
        c = data.x.shape[3] if data.x.ndim == 4 else 1
        k = choose_clusters(flow, m, n, (c, shape[0], shape[1]))
        return math.inf if k > 1 else 0.0, k
    k = len(np.unique(labels))
    return choose_amplifier(flow.amplifier, flow.transport, m, n, k), k


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
