"""The walk of the particles through the levels of a pyramid: the engine, stage by stage.

Each stage runs `flow` with local frames (`local`) in its level's subspace (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sliceflow.engine import events, schedule, transports
from sliceflow.engine.batches import MiniBatches
from sliceflow.engine.classes import Runs
from sliceflow.engine.compact import Step
from sliceflow.engine.conditions import Offset
from sliceflow.engine.flow import Cloud, Counted, Flow, Noise, Redrawn, Run, replay, simulate
from sliceflow.engine.frames import AnyFrame
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Table
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.pyramid import Subspace
from sliceflow.pictures.schedules import PictureStage
from sliceflow.pictures.tiles import RandomPatches, Tiles

__all__ = ["PATCH_BASES", "LevelFlow", "Painted"]

PATCH_BASES = ("pixels", "cosines", "random")  # the last: no tiles but the paper's random patches


@dataclass(frozen=True)
class LevelFlow:
    """The way of the particles through the levels of a pyramid, shared by fitting and sampling.

    A level runs on its coefficients alone and is painted back once, when its stage is done. Where
    pixels are observed that cannot be: every step is painted, and the observed pixels masked.

    With ``patch_basis="random"`` every step has H = `n_directions` of the paper's random patches, in
    the particles' own precision, and η = min(d, H), d being the dimension of the level. The paper has
    H > d on MNIST and CIFAR-10. With fewer directions η = d diverges: near the data the errors of a
    step grow by d/H in mean square. The authors' script has the same bound.
    """

    layout: Layout
    stages: list[PictureStage]
    seed: Seed
    n_conditions: int
    amplifier: float
    known: Tensor | None
    upsampling: str
    patch_basis: str
    clip: bool
    dequantize: bool
    start_noise: float
    taper: float
    budget: int
    precision: torch.dtype | None
    n_directions: int = 1000

    @property
    def apart(self) -> int:
        """How many classes have maps of their own; 0 where all share them."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    def directions(self, i: int) -> Tiles | RandomPatches:
        """The kind of frame that the steps of stage i have, on the coefficients of its level."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        if self.patch_basis == "random":
            place = (h, w), self.upsampling
            return RandomPatches(c, level.h, level.w, level.patch, self.n_directions, *place)
        return Tiles(c, level.h, level.w, level.patch, self.patch_basis == "cosines")

    def _step_size(self, i: int) -> float:
        """In units of the frame's own: 1 for tiles, min(1, H/d) for random patches."""
        if self.patch_basis != "random":
            return 1.0
        return min(
            1.0, self.n_directions / (self.layout.shape[0] * self.stages[i].h * self.stages[i].w)
        )

    def engine(self, i: int) -> tuple[Flow, Subspace]:
        """The flow of stage i, and the subspace it runs in."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        subspace = Subspace(c, h, w, level.h, level.w, self.upsampling)
        directions = self.directions(i)
        last = i == len(self.stages) - 1
        # Pixels are in [−1, 1], and a tile has its share of them; a little more, for Lanczos' sake.
        share = min(1.0, (level.patch + 2) ** 2 / (level.h * level.w))
        stage = schedule.Stage(
            level.name,
            directions if self.known is None else Painted(subspace, directions, self.known),
            level.n_steps,
            self._step_size(i),
            taper=self.taper if last else 0.0,
            reach=2 * math.sqrt(c * h * w * share),
        )
        flow = Flow(
            [stage],
            self.seed.child("level", i),
            self.n_conditions,
            self.amplifier,
            budget=self.budget,
            precision=self.precision if isinstance(directions, Tiles) else None,
        )
        return flow, subspace

    def _levels(self, particles: Cloud, first: int = 0) -> Iterator[tuple[int, Flow, Subspace, Cloud]]:
        """Each stage with the cloud that it moves; painted back, and clipped, when it is done."""
        for i in range(first, len(self.stages)):
            flow, subspace = self.engine(i)
            if self.known is not None or subspace.is_full_resolution:
                yield i, flow, subspace, particles
            else:
                before = subspace.down(particles.x)
                cloud = replace(particles, x=before.clone())
                yield i, flow, subspace, cloud
                particles.x += subspace.up(cloud.x - before)
            if self.clip and subspace.is_full_resolution:
                particles.x.clamp_(-1, 1)

    def simulate(
        self,
        particles: Cloud,
        data: Callable[[int], Cloud | Redrawn | Counted],
        transport: transports.Transport,
        noise: Noise,
        n_knots: int,
        listeners: list[events.Listener],
        batches: MiniBatches,
        run: Run | None = None,
    ) -> list[list[Step]]:
        """Move particles onto the data, `data(i)` being what is known of it at stage i.

        Gives the model per stage.

        `run` is where to go on, with particles that stand there.
        """
        run = run or Run()
        run.model += [[] for _ in self.stages[len(run.model) :]]
        total = sum(level.n_steps for level in self.stages)
        began = events.now() - run.seconds
        for i, flow, subspace, cloud in self._levels(particles, run.stage):
            target = data(i)
            if self.known is None and not subspace.is_full_resolution:
                target = _lowered(target, subspace)
            if run.level is not None:
                cloud.x.copy_(run.level)
            inside = Run(step=run.step, model=[run.model[i]])
            before, spared = run.done - run.step, run.spared

            def relay(event: events.Event, i: int = i) -> bool:
                overall = replace(
                    event,
                    stage_index=i,
                    steps_done=run.done + 1,
                    steps_total=total - run.spared,
                    seconds=events.now() - began,
                )
                return events.tell(listeners, overall)

            def after(
                i: int = i, inside: Run = inside, cloud: Cloud = cloud, spared: int = spared
            ) -> None:
                run.stage, run.step, run.done = i, inside.step, run.done + 1
                run.spared, run.seconds = spared + inside.spared, events.now() - began
                run.level = None if cloud is particles else cloud.x
                run.after()

            inside.after = after
            simulate(
                flow,
                cloud,
                target,
                transport,
                noise,
                n_knots=n_knots,
                listeners=[relay],
                batches=batches.after(before),
                run=inside,
            )
            inside.after = Run().after  # its own holds the level's particles, and itself: never freed
            run.stage, run.step, run.level = i + 1, 0, None
        return run.model

    def replay(self, particles: Cloud, model: list[list[Step]], noise: Noise) -> None:
        """Move fresh particles by a model."""
        for i, flow, _, cloud in self._levels(particles):
            replay(flow, model[i], cloud, noise)


def _lowered(data: Cloud | Redrawn | Counted, subspace: Subspace) -> Cloud | Redrawn | Counted:
    """The data's coefficients; counts are of coefficients already."""
    if isinstance(data, Cloud):
        return replace(data, x=subspace.down(data.x))
    if isinstance(data, Redrawn):
        at = data.at
        return Redrawn(lambda step: replace(cloud := at(step), x=subspace.down(cloud.x)))
    return data


@dataclass(frozen=True)
class Painted:
    """Frames of a pyramid level, seen from the pixels, of which those `known` (d, 1) never move."""

    subspace: Subspace
    directions: Tiles | RandomPatches
    known: Tensor

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> PaintedFrame:
        inner = self.directions.draw(seed, step, self.subspace.dimension, n_conditions, device, dtype)
        return PaintedFrame(self.subspace, inner, self.known)


@dataclass(frozen=True)
class PaintedFrame:
    """One step's frame of `Painted`: project through `down`, lift through `up`."""

    subspace: Subspace
    inner: AnyFrame
    known: Tensor

    @property
    def theta_y(self) -> Tensor | None:
        return self.inner.theta_y

    @property
    def n_directions(self) -> int:
        return self.inner.n_directions

    def project(self, x: Tensor, columns: Tensor | None = None, offset: Offset | None = None) -> Tensor:
        x = x if columns is None else x[:, columns]
        offset = offset if offset is None or columns is None else offset.of(columns)
        return self.inner.project(self.subspace.down(x), None, offset)

    def lift(self, dz: Tensor) -> Tensor:
        return self.subspace.up(self.inner.lift(dz)) * ~self.known

    def move(
        self, x: Tensor, table: Table, offset: Offset | None, size: float, runs: Runs | None = None
    ) -> None:
        before = self.subspace.down(x)
        after = before.clone()
        self.inner.move(after, table, offset, size, runs)
        x += self.subspace.up(after.sub_(before)) * ~self.known
