"""The algorithm: move particles onto data, step by step, and replay the steps on other particles.

This is Algorithm 1 of Du et al. (ICML 2023) with exchangeable parts: the schedule and its frames, the
transport, and the condition. `simulate` is the method; read it first.

The engine stores particles and data as columns, (d, n). Projections (h, n) then have the values of each
direction side by side in memory, which makes sorting and counting fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from sliceflow.engine.batches import MiniBatches, divide
from sliceflow.engine.classes import Runs
from sliceflow.engine.compact import CompactTable, Step, thinned
from sliceflow.engine.conditions import Offset
from sliceflow.engine.events import Event, Listener, now, tell
from sliceflow.engine.frames import AnyFrame, Axis, Frame, MaxSliced, releasing
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import Shrinkage, variance_within
from sliceflow.engine.transports import Fit, GridTable, Table, Transport

__all__ = ["Cloud", "Counted", "Flow", "Noise", "Redrawn", "Run", "batches_for", "replay", "simulate"]

BUDGET = 1 << 28  # bytes for the projections of one chunk of particles
STILL = 0.05  # a stage is done if no more than this share of its maps move
_NUMBERS = 1 << 26  # random numbers drawn at a time


@dataclass
class Cloud:
    """Points with their conditions: x (d, n) moves, y (n codes, or None) does not.

    With ξ = ∞ the points are sorted by class, and `runs` holds the range of each class.
    """

    x: Tensor
    y: Tensor | None = None
    runs: Runs | None = None

    def part(self, columns: slice | Tensor) -> Cloud:
        """Some of the points; a slice gives a view."""
        return Cloud(self.x[:, columns], None if self.y is None else self.y[columns])


@dataclass(frozen=True)
class Redrawn:
    """Data with new noise at every step, such as pixels that are dequantised again.

    Parameters
    ----------
    at : gives the cloud for step k of a stage. Only x changes between steps
    """

    at: Callable[[int], Cloud]

    def part(self, columns: slice | Tensor) -> Redrawn:
        """Some of the points."""
        return Redrawn(lambda step: self.at(step).part(columns))


class Counted(Protocol):
    """Data of which only the counts for each step exist (`online`)."""

    def fit(self, z_p: Tensor, flow: Flow, frame: AnyFrame, i: int, k: int) -> Fit:
        """The maps of step k of stage i, for projected particles z_p (h, M)."""
        ...


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
            count, start = part.shape[1], self.first + first
            part.copy_(self.seed.normal(count, d, start=start, dtype=x.dtype, device=x.device).T)
        return x


@dataclass(frozen=True)
class Flow:
    """The settings of a flow, for `simulate` and `replay`.

    Parameters
    ----------
    schedule : the stages
    seed : root of the frames' seeds
    n_conditions : l, the width of the condition; 0 for none
    amplifier : ξ. 0 ignores the condition: the unconditional flow, bit for bit. With ∞ each class has
        its own maps
    entropy : λ of the entropy-regularised flow (Liutkus et al. 2019)
    budget : bytes for projections; more particles are moved in chunks
    precision : dtype of the rotations of picture tiles; None takes the particles' dtype
    """

    schedule: Sequence[Stage]
    seed: Seed
    n_conditions: int = 0
    amplifier: float = 10.0
    entropy: float = 0.0
    budget: int = BUDGET
    precision: torch.dtype | None = None

    @property
    def conditional(self) -> bool:
        return self.n_conditions > 0 and self.amplifier > 0

    @property
    def apart(self) -> bool:
        """Whether each class has its own maps."""
        return self.conditional and math.isinf(self.amplifier)

    @property
    def maps(self) -> int:
        """Number of maps per direction."""
        return self.n_conditions if self.apart else 1

    def frame(self, i: int, k: int, x: Tensor, data: Tensor | None = None) -> AnyFrame:
        """The frame of step k of stage i, on x's device, for particles x; `data` to fit frames to."""
        width = self.n_conditions if self.conditional and not self.apart else 0
        seed, dtype = self.seed.child("frame", i), self.precision or x.dtype
        kind = self.schedule[i].frame
        if isinstance(kind, MaxSliced) and data is not None and not width:
            return kind.fitted(seed, k, x, data)
        return kind.draw(seed, k, x.shape[0], width, x.device, dtype)

    def offset(self, frame: AnyFrame, y: Tensor | None) -> Offset | None:
        """ξ·θ_yᵀy, which the condition adds to the projections."""
        if y is None or frame.theta_y is None:
            return None
        return Offset(self.amplifier * frame.theta_y, y)

    def project(self, frame: AnyFrame, cloud: Cloud, columns: slice | Tensor | None = None) -> Tensor:
        """z = Θx + ξ·θ_yᵀy of some or all columns, (h, n)."""
        if isinstance(columns, slice):
            cloud, columns = cloud.part(columns), None
        return frame.project(cloud.x, columns, self.offset(frame, cloud.y))

    def move(
        self,
        cloud: Cloud,
        frame: AnyFrame,
        table: Table,
        dz: Tensor | None,
        i: int,
        k: int,
        noise: Noise,
    ) -> None:
        """x += s·Θᵀdz/c + √(2λη)·ε in place, where η = s·d is the step size in the paper's units.

        If dz is None, the table gives dz = T(z) − z, in chunks of particles.
        """
        x, stage = cloud.x, self.schedule[i]
        (d, n), size = x.shape, stage.size_of(k)
        if dz is not None:
            x.add_(frame.lift(dz), alpha=size)
        else:
            offset = self.offset(frame, cloud.y)
            chunk = max(256, self.budget // (x.itemsize * max(frame.n_directions, d)))
            for first in range(0, n, chunk):
                part = slice(first, first + chunk)
                if self.apart:
                    self._move_apart(cloud, part, frame, table, size)
                else:
                    frame.move(x[:, part], table, None if offset is None else offset.of(part), size)
        if self.entropy > 0 and not isinstance(
            stage.frame, Axis
        ):  # axis steps are exact, without noise
            epsilon = noise.child("entropy", i, k).fill(torch.empty_like(x))
            x.add_(epsilon, alpha=math.sqrt(2 * self.entropy * size * d))

    def _move_apart(
        self, cloud: Cloud, part: slice, frame: AnyFrame, table: Table, size: float
    ) -> None:
        """`move` for classes with separate maps; mixed classes take the weighted mean of their maps."""
        x, y, runs = cloud.x[:, part], cloud.y, cloud.runs
        assert isinstance(table, GridTable)
        assert y is not None
        if runs is not None:
            frame.move(x, table, None, size, runs.part(part))
            return
        z = frame.project(x)
        dz = x.new_zeros(z.shape)
        for c, weight in enumerate(y[part].T.to(x.dtype)):
            if bool(weight.any()):
                dz.addcmul_(weight, table.of_class(c, self.n_conditions).displace(z))
        x.add_(frame.lift(dz), alpha=size)


@dataclass
class Run:
    """The progress of a simulation: where to start, and its state after every step.

    Parameters
    ----------
    stage, step : the next step; `step` is the stage's number of steps at its end
    done, spared : steps done, and steps that listeners skipped
    seconds : time spent
    model : the steps of the model, stage by stage
    level : coefficients that a stage of pictures moves; None if it moves the particles
    after : called after every step
    """

    stage: int = 0
    step: int = 0
    done: int = 0
    spared: int = 0
    seconds: float = 0.0
    model: list[list[Step]] = field(default_factory=list)
    level: Tensor | None = None
    after: Callable[[], None] = lambda: None


@releasing()
def simulate(
    flow: Flow,
    particles: Cloud,
    data: Cloud | Redrawn | Counted,
    transport: Transport,
    noise: Noise,
    *,
    n_knots: int | None = 512,
    listeners: Sequence[Listener] = (),
    batches: MiniBatches | None = None,
    run: Run | None = None,
    n_stages: int | None = None,
    shrinkage: Shrinkage | None = None,
) -> list[Step]:
    """Move the particles onto the data, in place, and return the model: the steps that did it.

    Only ``particles.x`` is written; y never moves. A listener that returns True ends the stage. So does
    a step in which hardly any map moves, with `shrinkage`; every fourth step is looked at.

    Parameters
    ----------
    n_knots : maximum number of knots kept per map; 0 keeps no model, None keeps the fitted maps
    batches : the columns that each step uses, with the data in their order already. None chooses them;
        `Counted` data always use all particles
    run : resumes a simulation; `particles` must be at its position
    n_stages : stop after this many stages
    shrinkage : of maps within their noise; axis steps are never shrunk, so that they stay exact
    """
    run = run or Run()
    run.model += [[] for _ in flow.schedule[len(run.model) :]]
    total, began = sum(stage.n_steps for stage in flow.schedule), now() - run.seconds
    for i, stage in enumerate(flow.schedule[:n_stages]):
        solver = stage.transport or transport
        if not isinstance(data, Cloud | Redrawn):
            stage_batches = MiniBatches()
        elif batches is None:
            cloud = data.at(0) if isinstance(data, Redrawn) else data
            stage_batches = batches_for(flow, particles, cloud, solver)
            data = data if stage_batches.order is None else data.part(stage_batches.order)
        else:
            stage_batches = batches
        if i < run.stage:
            continue
        for k in range(run.step, stage.n_steps):
            target = data.at(k) if isinstance(data, Redrawn) else data
            frame = flow.frame(i, k, particles.x, target.x if isinstance(target, Cloud) else None)
            columns_p, columns_q = stage_batches.at(k)
            z_p = flow.project(frame, particles, columns_p)
            z_q = None
            if not isinstance(target, Cloud):
                fit = target.fit(z_p, flow, frame, i, k)
            elif flow.apart:
                assert particles.runs is not None
                assert target.runs is not None
                runs = stage_batches.runs_at(k) or (particles.runs, target.runs)
                fit = solver.fit(z_p, flow.project(frame, target, columns_q), None, runs)
            else:
                z_q = flow.project(frame, target, columns_q)
                fit = solver.fit(z_p, z_q, stage_batches.weights)
            moving: Tensor | None = None
            if shrinkage is not None and not isinstance(stage.frame, Axis):
                variance = None
                if flow.conditional and not flow.apart:
                    variance = _variance_within(flow, z_q, target, columns_q, solver)
                fit, factor = shrinkage.shrunk(fit, variance)
                moving = (factor > 0).to(factor.dtype).mean()
            del z_q
            dz = fit.dz if columns_p is None else None
            if (
                dz is None
                and columns_p is None
                and z_p.device.type == "cpu"
                and z_p.nbytes <= flow.budget
            ):
                # Reuse the projections; a GPU recomputes them faster than it reads them.
                dz = fit.table.displace(z_p, *([particles.runs] if flow.apart else []))
            flow.move(particles, frame, fit.table, dz, i, k, noise)

            if n_knots != 0:
                table = fit.table
                if n_knots is not None:
                    shared, exact = flow.conditional and not flow.apart, isinstance(stage.frame, Axis)
                    table = thinned(table, n_knots, stage.reach, shared, exact)
                theta = None
                if isinstance(stage.frame, MaxSliced) and isinstance(frame, Frame):
                    theta = frame.theta
                run.model[i].append(Step(i, k, table, theta))
            run.stage, run.step, run.done, run.seconds = i, k + 1, run.done + 1, now() - began
            done = moving is not None and k % 4 == 3 and float(moving) <= STILL
            distance, left = fit.cost.mean().sqrt(), total - run.spared
            left -= stage.n_steps - run.step if done else 0
            event = Event(
                stage.name,
                i,
                k,
                run.done,
                left,
                distance,
                run.seconds,
                particles.x,
                moving,
                stage.n_steps,
            )
            if tell(listeners, event) or done:
                run.spared += stage.n_steps - run.step
                run.step = stage.n_steps
            run.after()
            if run.step == stage.n_steps:
                break
        run.stage, run.step = i + 1, 0
    return [step for steps in run.model for step in steps]


def _variance_within(
    flow: Flow,
    z_q: Tensor | None,
    target: Cloud | Counted,
    columns: slice | Tensor | None,
    transport: Transport,
) -> Tensor:
    """The variances of projected data within their classes, added up; of the data of all ranks."""
    y = target.y if isinstance(target, Cloud) else None
    if z_q is None or y is None or y.dim() != 1:
        raise ValueError(
            "shrinkage needs the variance within each class, which counted data and continuous "
            "conditions do not have; set shrinkage=0"
        )
    total = getattr(transport, "total", lambda sums: sums)
    return variance_within(z_q, y if columns is None else y[columns], flow.n_conditions, total)


def replay(flow: Flow, model: Sequence[Step], particles: Cloud, noise: Noise) -> None:
    """Move fresh particles, in place, with the steps of a model."""
    for step in model:
        if step.theta is None:
            frame = flow.frame(step.stage, step.step, particles.x)
        else:
            frame = Frame(step.theta.to(particles.x), None)
        table = step.table.grid() if isinstance(step.table, CompactTable) else step.table
        flow.move(particles, frame, table, None, step.stage, step.step, noise)


def batches_for(flow: Flow, particles: Cloud, data: Cloud, transport: Transport) -> MiniBatches:
    """The columns that each step of `transport` uses."""
    codes = (particles.y, data.y) if flow.conditional else (None, None)
    m, n = particles.x.shape[1], data.x.shape[1]
    return divide(m, n, transport.most, *codes, flow.seed.child("batches"), data.x.device)
