"""How long a fit takes on a CPU: a model of a step, and a few timed steps for this CPU's speed.

The constants were measured on one core, for pictures of 28×28 and 53×37 and for tables of 2 to 300
columns. For nine steps in ten the model is off by less than a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from sliceflow.cli.data import Data
from sliceflow.engine.transports import MOST
from sliceflow.spaces.vectors.options import VectorOptions

__all__ = ["Job", "Work", "speed"]

_STEP = 2.6e-3  # seconds for any step
_MAPS = 3.2e-5  # for each direction's map that is kept, with pictures
_COUNT, _SORT = 1.4e-8, 7e-8  # for each projected value, by histogram or sorted
_TURN = 4.5e-11  # for each product in a projection
_DRAW = 6e-10  # for drawing a rotation, times the cube of its side
_BUDGET = 0.04  # seconds that the model allows for a timed step
_TIMED = 5  # steps that are timed


@dataclass(frozen=True)
class Work:
    """A stage: its name, its steps, the directions per step, and the values each direction sees."""

    name: str
    steps: int
    directions: int
    side: int


@dataclass(frozen=True)
class Job:
    """A fit: its stages, particles, data, transport, and maps per direction."""

    stages: Sequence[Work]
    pictures: bool
    particles: int
    data: int
    sorts: bool
    maps: int = 1

    @property
    def seconds(self) -> float:
        """The model's time for all steps."""
        return sum(work.steps * self.step(work) for work in self.stages)

    def step(self, work: Work) -> float:
        """The model's seconds for a step of that stage."""
        sorts = self.sorts or work.name == "axis"
        looked = sum(n if sorts else min(n, MOST) for n in (self.particles, self.data))
        values = float(work.directions) * (looked + self.particles)  # all particles are moved
        kept = _MAPS * work.directions * self.maps if self.pictures and not sorts else 0.0
        turned = (_SORT if sorts else _COUNT) + _TURN * work.side
        return _STEP + kept + values * turned + _DRAW * float(work.side) ** 3


def speed(flow: Any, data: Data, job: Job) -> float:
    """How much longer a step takes here than the model says. Finding out takes about a second.

    It runs the finest stage that the budget allows, on some particles and data, and on some of the
    columns of a table. The shortest time counts: other programs may have disturbed the others.
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
    took = np.diff(probe.history_["seconds"])  # without the first step, which compiles
    return float(took.min()) / few.step(work)


def _sides(work: Work) -> tuple[int, int]:
    h, _, w = work.name.partition("[")[0].partition("×")
    return int(h), int(w)


def _affordable(job: Job) -> tuple[Job, Work]:
    """The stage to time, and a fit so small that its step is within the budget."""
    stages = sorted((w for w in job.stages if w.name != "axis"), key=job.step, reverse=True)
    if not job.pictures:  # a flow with fewer columns
        one = stages[0]
        stages = [
            replace(one, directions=2 * d, side=d) for d in (one.side, 300, 100, 30) if d <= one.side
        ]
    for most in (4096, 1024, 256, 64):  # many particles before a fine stage: their values take the time
        for work in stages:
            few = replace(job, particles=min(job.particles, most), data=min(job.data, most), maps=1)
            if few.step(work) <= _BUDGET:
                return few, work
    return few, work
