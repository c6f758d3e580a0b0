"""The flow of pictures through the levels of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its level (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

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
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.engine.transports import Table
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles

__all__ = ["PATCH_BASES", "SINGLE_PIXEL_BINS", "LevelFlow", "Painted"]

SINGLE_PIXEL_BINS = 512  # of single pixels
PATCH_BASES = ("pixels", "cosines", "random")  # "random": the paper's random patches, not tiles


@dataclass(frozen=True)
class LevelFlow:
    """A flow through the levels of a pyramid, for fitting and sampling.

    A stage moves the coefficients of its level; at its end the change is upsampled and added to the
    pixels. With observed pixels, every step is upsampled instead, and the observed pixels are masked.

    With ``patch_basis="random"`` each step has H = `n_directions` of the paper's random patches, in the
    particles' precision, and η = min(d, H), where d is the dimension of the level. The paper has H > d
    on MNIST and CIFAR-10. With fewer directions η = d diverges: near the data the mean squared errors
    grow by d/H in each step. The authors' script has the same bound.
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
    exact_pixels: bool = True  # False: as fits were whose models have format 7 or less

    @property
    def apart(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    def directions(self, i: int) -> Tiles | RandomPatches:
        """The frames of stage i, on the coefficients of its level."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        if self.patch_basis == "random":
            place = (h, w), self.upsampling
            return RandomPatches(c, level.h, level.w, level.patch, self.n_directions, *place)
        return Tiles(c, level.h, level.w, level.patch, self.patch_basis == "cosines")

    def _step_size(self, i: int) -> float:
        """The step size of stage i: 1 for tiles, min(1, H/d) for random patches."""
        if self.patch_basis != "random":
            return 1.0
        return min(
            1.0, self.n_directions / (self.layout.shape[0] * self.stages[i].h * self.stages[i].w)
        )

    def engine(self, i: int) -> tuple[Flow, Subspace]:
        """The flow of stage i, and its subspace."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        subspace = Subspace(c, h, w, level.h, level.w, self.upsampling)
        directions = self.directions(i)
        single = self._single_pixels(i)  # exact: in float32, and no step is a smaller one
        last = not single and all(map(self._single_pixels, range(i + 1, len(self.stages))))
        # A bound on moves: pixels are in [−1, 1]. Lanczos spreads a tile a little, hence the + 2.
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
            precision=self.precision if isinstance(directions, Tiles) and not single else None,
        )
        return flow, subspace

    def _levels(self, particles: Cloud, first: int = 0) -> Iterator[tuple[int, Flow, Subspace, Cloud]]:
        """Each stage with the cloud to move. After a stage, adds the change to the pixels and clips."""
        for i in range(first, len(self.stages)):
            flow, subspace = self.engine(i)
            if self.known is not None or subspace.is_full_resolution:
                yield i, flow, subspace, particles
            else:
                before = subspace.down(particles.x)
                cloud = replace(particles, x=before.clone())
                yield i, flow, subspace, cloud
                particles.x += subspace.up(cloud.x - before)
            if self.clip and subspace.is_full_resolution and not self._single_pixels(i + 1):
                particles.x.clamp_(-1, 1)  # before single pixels, ties at ±1 would stay ties

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
        shrinkage: Shrinkage | None = None,
    ) -> list[list[Step]]:
        """Move particles onto the data, and return the model of each stage.

        `data(i)` is the data of stage i. `run` resumes a fit; `particles` must be at its position.
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
                    steps_total=total - run.spared - (self.stages[i].n_steps - event.steps_total),
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
            single = self._single_pixels(i)
            finer = self._finer(transport) if single else transport
            simulate(
                flow,
                cloud,
                target,
                finer,
                noise,
                n_knots=SINGLE_PIXEL_BINS if n_knots and finer != transport else n_knots,
                listeners=[relay],
                batches=batches.after(before),
                run=inside,
                shrinkage=None if single else shrinkage,
            )
            inside.after = Run().after  # break the reference cycle, or the cloud is never freed
            run.stage, run.step, run.level = i + 1, 0, None
        return run.model

    def _single_pixels(self, i: int) -> bool:
        """Whether stage i looks at single pixels of grey pictures, which end on their own values."""
        if i >= len(self.stages) or self.patch_basis == "random" or not self.exact_pixels:
            return False
        stage = self.stages[i]
        return stage.patch == 1 and (1, stage.h, stage.w) == self.layout.shape

    def _finer(self, transport: transports.Transport) -> transports.Transport:
        """The transport with whole bins, at least two, for every value of a pixel.

        So black is black: no bin has black and other values, between which a map would be linear.
        """
        if hasattr(transport, "transport"):  # of several ranks
            of_ranks: Any = transport
            return cast(
                transports.Transport, replace(of_ranks, transport=self._finer(of_ranks.transport))
            )
        values = self.layout.n_pixel_values
        if not isinstance(transport, transports.Histogram) or values is None:
            return transport
        n_bins = max(transport.n_bins, min(1 << int(values).bit_length(), SINGLE_PIXEL_BINS))
        each = n_bins // values
        if each == 0:  # more values than bins
            return transport
        end = 2 * n_bins / (each * values) - 1  # pixels are in [−1, 1]
        return transports.AlignedHistogram(n_bins, transport.most, (-1.0, end))

    def replay(self, particles: Cloud, model: list[list[Step]], noise: Noise) -> None:
        """Move fresh particles with a model."""
        for i, flow, _, cloud in self._levels(particles):
            replay(flow, model[i], cloud, noise)

    def evolution(
        self, particles: Cloud, model: list[list[Step]], noise: Noise, n_frames: int
    ) -> list[Tensor]:
        """As `replay`; returns whole pictures (d, n) at the start, in between, and at the end."""
        total, done, taken = sum(map(len, model)), 0, [particles.x.clone()]
        due = {round(total * k / (n_frames - 1)) for k in range(1, n_frames - 1)} - {total}
        for i, flow, subspace, cloud in self._levels(particles):
            for step in model[i]:
                replay(flow, [step], cloud, noise)
                done += 1
                if done in due and cloud is particles:
                    taken.append(particles.x.clone())
                elif done in due:
                    change = cloud.x - subspace.down(particles.x)
                    taken.append(particles.x + subspace.up(change))
        return [*taken, particles.x]


def _lowered(data: Cloud | Redrawn | Counted, subspace: Subspace) -> Cloud | Redrawn | Counted:
    """The coefficients of the data; counts are of coefficients already."""
    if isinstance(data, Cloud):
        return replace(data, x=subspace.down(data.x))
    if isinstance(data, Redrawn):
        at = data.at
        return Redrawn(lambda step: replace(cloud := at(step), x=subspace.down(cloud.x)))
    return data


@dataclass(frozen=True)
class Painted:
    """Frames of a pyramid level that act on pixels. The `known` pixels (d, 1) never move."""

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
    """The frame of one step of `Painted`: projects through `down`, lifts through `up`."""

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
