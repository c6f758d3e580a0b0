"""What a fit would take, without running it: stages, memory, time."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from sliceflow.checks import default_particles, free_memory, resolve_device
from sliceflow.cli.data import Data
from sliceflow.cli.display import seconds_text
from sliceflow.picture_parameters import choose_amplifier, choose_clusters, direction_bytes
from sliceflow.transports import Auto

__all__ = ["Plan", "plan"]

_PROBE = 4096  # particles, and data, that a step is timed with


@dataclass(frozen=True)
class Plan:
    """Estimates; `bytes` are of the particles, the data and the model, `seconds` of the steps alone."""

    stages: list[str]
    steps: int
    particles: int
    device: str
    bytes: int
    free_bytes: int | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f" of {self.free_bytes / 2**30:.1f} GiB free"
        return "\n".join(
            (
                f"stages:    {len(self.stages)}: {' '.join(self.stages)}",
                f"steps:     {self.steps}",
                f"particles: {self.particles}",
                f"device:    {self.device}",
                f"memory:    about {self.bytes / 2**30:.2f} GiB{free}",
                f"time:      about {seconds_text(self.seconds)}, from two steps of each stage with at "
                f"most {_PROBE} particles",
                "nothing was written",
            )
        )


def plan(flow: Any, data: Data, labels: Any) -> Plan:
    """What fitting `flow` to the data takes. Two steps of every stage are timed on some of the data."""
    device, n = resolve_device(flow.device), len(data.x) * _times(flow)
    m = flow.n_particles or default_particles(n)
    d = int(np.prod(data.x.shape[1:]))
    stages, directions = _stages(flow, data)
    amplifier, classes = _classes(flow, data, labels, m, n)
    if data.pictures:
        one = direction_bytes(flow, m, n, amplifier, classes)
    else:
        one = 4 * (flow.n_knots + 1)
    model = one * sum(h * k for (_, k), h in zip(stages, directions, strict=True))
    wanted = 4 * d * (4 * m + 3 * n) + data.x.nbytes + model
    return Plan(
        [name for name, _ in stages],
        sum(k for _, k in stages),
        m,
        str(device),
        wanted,
        free_memory(device),
        _seconds(flow, data, labels, m, n, classes if amplifier == math.inf else 1, stages),
    )


def _times(flow: Any) -> int:
    """How many pictures are fitted for each that is given."""
    return 2 if getattr(flow, "mirror", False) else 1


def _stages(flow: Any, data: Data) -> tuple[list[tuple[str, int]], list[int]]:
    """Name and steps of every stage, and the directions of each step."""
    if not data.pictures:
        stages = flow.stages()
        return [(stage.name, stage.n_steps) for stage in stages], [2 * data.x.shape[1]] * len(stages)
    from sliceflow.local import Tiles

    channels = data.x.shape[3] if data.x.ndim == 4 else 1
    levels = flow.stages(*data.x.shape[1:3])
    directions = [Tiles(channels, v.h, v.w, v.patch).most_directions for v in levels]
    return [(v.name, v.n_steps) for v in levels], directions


def _classes(flow: Any, data: Data, labels: Any, m: int, n: int) -> tuple[float, int]:
    """How far apart classes of pictures are held, and how many there are; clusters are classes."""
    if not data.pictures or flow.observed is not None:
        return 0.0, 1
    if labels is None:
        h, w, c = (*data.x.shape[1:], 1)[:3]
        k = choose_clusters(flow, m, n, (c, h, w))
        return math.inf if k > 1 else 0.0, k
    k = len(np.unique(labels))
    return choose_amplifier(flow.amplifier, flow.transport, m, n, k), k


def _seconds(
    flow: Any, data: Data, labels: Any, m: int, n: int, maps: int, stages: list[tuple[str, int]]
) -> float:
    some = np.linspace(0, len(data.x) - 1, min(_PROBE, len(data.x))).astype(int)
    few: dict[str, Any] = {"n_steps": 2} if not data.pictures else {"quality": 2}
    if flow.transport == "auto":  # as all of the data have it
        few["transport"] = "sorted" if m + n <= Auto().threshold else "histogram"
    if maps > 1:
        few |= {"clusters": maps} if labels is None else {"amplifier": math.inf}
    probe = clone(flow).set_params(n_particles=min(m, _PROBE), **few)
    probe.fit(data.x[some], None if labels is None else labels[some])
    moments, names = [0.0, *probe.history_["seconds"]], probe.history_["stage"]
    took: dict[str, float] = {}
    for name, before, after in zip(names, moments, moments[1:], strict=False):
        took[name] = after - before  # of the last step: the first one compiles
    larger = (m + n) / (min(m, _PROBE) + len(some) * _times(flow))
    return larger * sum(took.get(name, 0.0) * count for name, count in stages)  # names come again
