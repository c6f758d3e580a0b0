"""The algorithm: move particles onto data, step by step, and replay the steps on other particles.

This is Algorithm 1 of Du et al. (ICML 2023) with exchangeable parts: the stages with their frames,
transports and spaces, the target, and the condition. `simulate` is the method; read it first.

The engine stores particles and data as columns, (d, n). Projections (h, n) then have the values of each
direction side by side in memory, which makes sorting and counting fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.engine.batches import Target, divide
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import CompactMap, ModelStep, thinned
from sliceflow.engine.events import Event, Listener, notify, now
from sliceflow.engine.frames import AnyFrame, Frame, releasing
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import FittedMap, TransportMap

BUDGET = 1 << 28  # bytes for the projections of one chunk of particles
CONVERGENCE_TOL = 0.05  # a stage is done if no more than this share of its maps move,
_LOOK = 4  # which every fourth step finds out: reading the share waits for a GPU
_NUMBERS = 1 << 26  # random numbers drawn at a time


@dataclass(frozen=True)
class Noise:
    """The particles' random numbers: particle j uses row `first + j`.

    So a particle's numbers do not depend on the number of particles or on its chunk.
    """

    seed: Seed
    first: int = 0

    def child(self, *names: str | int) -> Noise:
        return Noise(self.seed.child(*names), self.first)

    def fill(self, x: Tensor) -> Tensor:
        """Fill x (d, n) with N(0, I) and return it."""
        d, n = x.shape
        chunk = max(256, _NUMBERS // d)
        for first in range(0, n, chunk):  # transpose rows of numbers into columns
            part = x[:, first : first + chunk]
            count = part.shape[1]
            start = self.first + first
            part.copy_(
                self.seed.normal(
                    count, d, start=start, dtype=x.dtype, device=x.device
                ).T
            )
        return x


@dataclass(frozen=True)
class Flow:
    """The settings of a flow, for `simulate` and `replay`."""

    stages: Sequence[Stage]  # the schedule
    seed: Seed  # root of the frames' seeds
    n_conditions: int = 0  # l, the width of the condition; 0 for none
    # ξ. 0 ignores the condition: the unconditional flow, bit for bit. With ∞ each class has its own maps
    amplifier: float = 10.0
    entropy: float = 0.0  # λ of the entropy-regularised flow (Liutkus et al. 2019)
    budget: int = BUDGET  # bytes for projections; more particles are moved in chunks

    @property
    def conditional(self) -> bool:
        return self.n_conditions > 0 and self.amplifier > 0

    @property
    def per_class(self) -> bool:
        """Whether each class has its own maps."""
        return self.conditional and math.isinf(self.amplifier)

    @property
    def n_shared(self) -> int:
        """The width of the condition if maps are shared by all conditions, else 0."""
        return self.n_conditions if self.conditional and not self.per_class else 0

    def target(self, particles: Cloud, data: Cloud, stage: int = 0) -> Target:
        """The data as a target, with as many columns a step as the transport of a stage looks at."""
        max_samples = (
            self.stages[stage].transport.max_samples if self.stages else None
        )  # no stages: no steps
        both = (particles.y, data.y) if self.n_shared else (None, None)
        sizes = (particles.x.shape[1], data.x.shape[1])
        seed = self.seed.child("batches")
        return Target.from_cloud(
            data, divide(*sizes, max_samples, *both, seed, data.x.device)
        )

    def iter_stages(
        self, particles: Cloud, first: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Cloud]]:
        """Each stage's number and the particles in its space; then brings the particles up to date."""
        for i in range(first, len(self.stages) if end is None else end):
            space = self.stages[i].space
            before = space.down(particles.x)
            if before is particles.x:
                yield i, particles
            else:
                moved = replace(particles, x=before.clone())
                yield i, moved
                particles.x += space.up(moved.x - before)
            space.finish(particles.x)

    def steps(
        self, particles: Cloud, run: FlowState, n_stages: int | None = None
    ) -> Iterator[Step]:
        """The steps that are left of a run, whose position the caller moves on."""
        run.began = now() - run.seconds
        for i, moved in self.iter_stages(particles, run.stage, n_stages):
            if run.coordinates is not None:  # of a stage that is resumed
                moved.x.copy_(run.coordinates)
            run.coordinates = None if moved is particles else moved.x
            while run.step < self.stages[i].n_steps:
                yield Step(self, i, run.step, run.done, moved, particles)
            run.stage = i + 1
            run.step = 0
            run.coordinates = None


@dataclass(frozen=True)
class Step:
    """One step of a flow, and the particles that it moves."""

    flow: Flow
    number: int  # of its stage
    k: int  # number of the step in the stage
    turn: int  # steps done before, of all stages
    particles: Cloud  # in the space of the stage
    whole: (
        Cloud  # the particles in their own space, up to date at the start of the stage
    )

    @property
    def stage(self) -> Stage:
        return self.flow.stages[self.number]

    def frame(self, data: Cloud | None = None, theta: Tensor | None = None) -> AnyFrame:
        """The directions: drawn, fitted to particles and data, or `theta`, which a model kept."""
        flow = self.flow
        x = self.particles.x
        if theta is not None:
            return Frame(theta.to(x), None)
        seed = flow.seed.child(*(self.stage.branch or ("frame", self.number)))
        fitted_to = None if data is None else data.x
        frame: Any = self.stage.frame.draw(seed, self.k, x, flow.n_shared, fitted_to)
        xi = flow.amplifier
        y = frame.theta_y
        amplified: AnyFrame = frame if y is None else replace(frame, theta_y=xi * y)
        return amplified

    def move(
        self,
        frame: AnyFrame,
        table: TransportMap,
        noise: Noise,
        z: Tensor | None = None,
        dz: Tensor | None = None,
    ) -> None:
        """x += s·Θᵀ(T(z) − z)/c + √(2λη)·ε in place, where η = s·d is the paper's step size.

        `z` of all particles and `dz` = T(z) − z may be known; else particles are moved in chunks.
        """
        flow = self.flow
        cloud = self.particles
        size = self.stage.step_size_at(self.k)
        x = cloud.x
        d, n = cloud.x.shape
        # A GPU computes the projections faster than it reads them.
        if (
            z is not None
            and dz is None
            and z.device.type == "cpu"
            and z.nbytes <= flow.budget
        ):
            dz = table.displace(z, cloud)
        if z is not None and dz is not None:
            x.add_(frame.lift(dz), alpha=size)
        else:
            chunk = max(256, flow.budget // (x.itemsize * max(frame.n_directions, d)))
            for first in range(0, n, chunk):
                frame.move(cloud.part(slice(first, first + chunk)), table, size)
        if flow.entropy > 0 and not self.stage.exact:
            epsilon = noise.child("entropy", self.number, self.k).fill(
                torch.empty_like(x)
            )
            x.add_(epsilon, alpha=math.sqrt(2 * flow.entropy * size * d))

    def kept(self, frame: AnyFrame, table: TransportMap) -> list[ModelStep]:
        """What a model keeps of the step: nothing, or its maps with fewer knots."""
        stage = self.stage
        if stage.n_knots == 0:
            return []
        kept: TransportMap | CompactMap = table
        if stage.n_knots is not None:
            kept = thinned(
                table, stage.n_knots, stage.reach, self.flow.n_shared > 0, stage.exact
            )
        return [ModelStep(self.number, self.k, kept, frame.kept)]

    def positions(self) -> Tensor:
        """A copy of the particles (d, n) in their own space, as they are now."""
        x = self.whole.x
        space = self.stage.space
        if self.particles is self.whole:
            return x.clone()
        return x + space.up(self.particles.x - space.down(x))


@dataclass
class FlowState:
    """The progress of a simulation: where to start, and its state after every step."""

    stage: int = 0  # that of the next step
    step: int = 0  # the next step; at the end of a stage, its number of steps
    done: int = 0
    spared: int = 0  # steps that were skipped
    seconds: float = 0.0  # time spent
    model: list[ModelStep] = field(default_factory=list)  # the steps of the model
    # of the particles in the space of the stage; None if it moves the particles themselves
    coordinates: Tensor | None = None
    after: Callable[[], None] = lambda: None  # called after every step
    began: float = 0.0

    def advance(
        self, step: Step, fit: FittedMap, listeners: Sequence[Listener]
    ) -> None:
        """Count a step and tell the listeners; end the stage if one says so, or hardly any map moves."""
        stage = step.stage
        self.stage = step.number
        self.step = step.k + 1
        self.done = self.done + 1
        self.seconds = now() - self.began
        left = stage.n_steps - self.step
        moving = fit.moving
        distance = fit.cost.mean().sqrt()
        still = (
            moving is not None
            and self.step % _LOOK == 0
            and float(moving) <= CONVERGENCE_TOL
        )
        planned = sum(stage.n_steps for stage in step.flow.stages)
        total = planned - self.spared - (left if still else 0)
        at = stage.name, step.number, step.k, self.done, total
        event = Event(
            *at, distance, self.seconds, step.particles.x, moving, stage.n_steps
        )
        if notify(listeners, event) or still:
            self.spared = self.spared + left
            self.step = stage.n_steps
        self.after()


@releasing()
def simulate(
    flow: Flow,
    particles: Cloud,
    target: Target,
    noise: Noise,
    *,
    listeners: Sequence[Listener] = (),
    run: FlowState | None = None,
    n_stages: int | None = None,
) -> list[ModelStep]:
    """Move the particles onto the target, in place, and return the model: the steps that did it.

    Only ``particles.x`` is written; y never moves. A listener that returns True ends the stage. So does
    a step in which hardly any map moves. `run` resumes a simulation, with the `particles` at its
    position; `n_stages` stops after so many stages.
    """
    run = run or FlowState()
    for step in flow.steps(particles, run, n_stages):
        data, batch = target.at(step)
        frame = step.frame(data)
        z_p = frame.project(step.particles, batch.particles)
        fit = step.stage.transport.fit(z_p, frame.project(data, batch.data), batch)
        step.move(
            frame, fit.table, noise, z_p if batch.particles is None else None, fit.dz
        )
        run.model += step.kept(frame, fit.table)
        run.advance(step, fit, listeners)
    return run.model


def replay(
    flow: Flow,
    model: Sequence[ModelStep],
    particles: Cloud,
    noise: Noise,
    after: Callable[[Step], None] = lambda step: None,
) -> None:
    """Move fresh particles, in place, by the steps of a model; `after` is called after each of them."""
    turn = 0
    stages = dict[int, list[ModelStep]]()
    for kept in model:
        stages.setdefault(kept.stage, []).append(kept)
    for i, moved in flow.iter_stages(particles):
        for kept in stages.get(i, []):
            step = Step(flow, i, kept.step, turn, moved, particles)
            step.move(step.frame(theta=kept.theta), kept.maps(), noise)
            after(step)
            turn += 1
