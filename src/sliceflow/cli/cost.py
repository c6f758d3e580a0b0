"""How long a fit takes on a CPU: a model of a step, and some steps that say how fast this CPU is.

The constants are those of one core, measured for pictures of 28×28 and 53×37 and for tables of 2 to
300 columns; of nine steps in ten the model is off by less than a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from sliceflow.cli.data import Data
from sliceflow.engine.transports import MOST, Auto
from sliceflow.vectors.options import VectorOptions

__all__ = ["Job", "Work", "speed"]

_STEP = 2.6e-3  # seconds of any step
_MAPS = 3.2e-5  # of each direction's map that is kept, for pictures
_COUNT, _SORT = 1.4e-8, 7e-8  # of each projected value, by bins or sorted
_TURN = 4.5e-11  # of each product in a projection
_DRAW = 6e-10  # of drawing a rotation, by the cube of its side
_BUDGET = 0.04  # seconds that a step of the timed run may take by the model
_TIMED = 5  # steps of it


@dataclass(frozen=True)
class Work:
    """A stage: its name, its steps, the directions of each, and the values that one sees."""

    name: str
    steps: int
    directions: int
    side: int


@dataclass(frozen=True)
class Job:
    """A fit: its stages, particles, data, whether it sorts, and the maps that each direction has."""

    stages: Sequence[Work]
    pictures: bool
    particles: int
    data: int
    transport: str
    maps: int = 1

    @property
    def sorts(self) -> bool:
        few = self.particles + self.data <= Auto().threshold
        return self.transport == "sorted" or (self.transport == "auto" and few)

    @property
    def seconds(self) -> float:
        """Of all steps, by the model."""
        return sum(work.steps * self.step(work) for work in self.stages)

    def step(self, work: Work) -> float:
        """Of a step of that stage."""
        sorts = self.sorts or work.name == "axis"
        looked = sum(n if sorts else min(n, MOST) for n in (self.particles, self.data))
        values = float(work.directions) * (looked + self.particles)  # all particles are moved
        kept = _MAPS * work.directions * self.maps if self.pictures and not sorts else 0.0
        turned = (_SORT if sorts else _COUNT) + _TURN * work.side
        return _STEP + kept + values * turned + _DRAW * float(work.side) ** 3


def speed(flow: Any, data: Data, job: Job) -> float:
    """How much longer a step takes here than the model says; about a second goes into the answer.

    The finest stage that the budget allows is run, on some particles and data; of a table, some of the
    columns. The least of its times counts: other programs may have disturbed the others.
    """
    few, work = _affordable(job)
    rows = np.linspace(0, len(data.x) - 1, min(few.data, len(data.x))).astype(int)
    x = data.x[rows]
    more: dict[str, Any] = {"transport": "sorted" if job.sorts else "histogram"}
    if data.pictures:
        (h, w), patch = _sides(work), work.name.partition("[")[2].rstrip("]")
        x = x[:, :h, :w]  # such pictures have no other stage
        more |= {"schedule": f"{max(h, w)}[{patch}]", "quality": _TIMED, "n_clusters": 1}
    else:
        x = x[:, : work.side]
        more |= {"n_steps": _TIMED, "options": replace(flow.options or VectorOptions(), n_axis_steps=0)}
    probe = clone(flow).set_params(n_particles=few.particles, **more)
    probe.fit(x)
    took = np.diff(probe.history_["seconds"])  # but for the first step, which compiles
    return float(took.min()) / few.step(work)


def _sides(work: Work) -> tuple[int, int]:
    h, _, w = work.name.partition("[")[0].partition("×")
    return int(h), int(w)


def _affordable(job: Job) -> tuple[Job, Work]:
    """The stage to time, and a fit so small that its step is within the budget."""
    stages = sorted((w for w in job.stages if w.name != "axis"), key=job.step, reverse=True)
    if not job.pictures:  # a flow of fewer columns
        one = stages[0]
        stages = [
            replace(one, directions=2 * d, side=d) for d in (one.side, 300, 100, 30) if d <= one.side
        ]
    for most in (4096, 1024, 256, 64):  # many particles before a fine stage: their values take the time
        for work in stages:
            few = replace(job, particles=min(job.particles, most), data=min(job.data, most), maps=1)
            few = replace(few, transport="sorted" if job.sorts else "histogram")
            if few.step(work) <= _BUDGET:
                return few, work
    return few, work
