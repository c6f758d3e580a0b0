"""The flow of pictures through the levels of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its level (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.engine.clouds import Cloud, Columns
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Flow, Noise, Step, replay
from sliceflow.engine.frames import AnyFrame, FrameKind
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import AlignedHistogram, Auto, Histogram, Table, Transport
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles

__all__ = ["PATCH_BASES", "SINGLE_PIXEL_BINS", "LevelFlow", "Painted", "evolution"]

SINGLE_PIXEL_BINS = 512  # of single pixels
PATCH_BASES = ("pixels", "cosines", "random")  # "random": the paper's random patches, not tiles


@dataclass(frozen=True)
class LevelFlow:
    """The flow through the levels of a pyramid, for fitting and sampling.

    A stage moves the coefficients of its level; at its end the change is upsampled and added to the
    pixels. With observed pixels, every step is upsampled instead, and the observed pixels are masked.
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
    taper: float
    budget: int
    precision: torch.dtype | None
    n_directions: int = 1000

    @property
    def apart(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    def flow(
        self,
        transport: Transport = Auto(),  # noqa: B008, it is frozen
        n_knots: int = 0,
        shrunk: Callable[[Transport], Transport] = lambda transport: transport,
    ) -> Flow:
        """The flow of the engine; `shrunk` wraps the transports of stages that are not exact."""
        stages = [self._stage(i, transport, n_knots, shrunk) for i in range(len(self.stages))]
        return Flow(stages, self.seed, self.n_conditions, self.amplifier, budget=self.budget)

    def directions(self, i: int) -> Tiles | RandomPatches:
        """The frames of stage i, on the coefficients of its level."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        if self.patch_basis == "random":
            full = (h, w), self.upsampling
            return RandomPatches(c, level.h, level.w, level.patch, self.n_directions, *full)
        # Single pixels become exact, which takes the particles' precision.
        precision = None if self._single_pixels(i) else self.precision
        return Tiles(c, level.h, level.w, level.patch, self.patch_basis == "cosines", precision)

    def count_directions(self, i: int, step: int) -> int:
        """The number of directions of a step of stage i."""
        return self.directions(i).count(self.seed.child(*_branch(i)), step)

    def _stage(
        self, i: int, transport: Transport, n_knots: int, shrunk: Callable[[Transport], Transport]
    ) -> Stage:
        level, (c, h, w), single = self.stages[i], self.layout.shape, self._single_pixels(i)
        subspace = Subspace(c, h, w, level.h, level.w, self.upsampling)
        # Before single pixels, ties at ±1 would stay ties.
        clip = self.clip and subspace.is_full_resolution and not self._single_pixels(i + 1)
        directions, space = self.directions(i), replace(subspace, clip=clip)
        frame: FrameKind = directions
        if self.known is not None:
            frame, space = Painted(subspace, directions, self.known), replace(space, h=h, w=w)
        last = not single and all(map(self._single_pixels, range(i + 1, len(self.stages))))
        finer = self._finer(transport) if single else transport
        # A bound on moves: pixels are in [−1, 1]. Lanczos spreads a tile a little, hence the + 2.
        share = min(1.0, (level.patch + 2) ** 2 / (level.h * level.w))
        size = 1.0
        if self.patch_basis == "random":  # η is at most H, as in the authors' script: else it diverges
            size = min(1.0, self.n_directions / subspace.dimension)
        knots = SINGLE_PIXEL_BINS if n_knots and finer != transport else n_knots
        how: Any = dict(step_size=size, taper=self.taper if last else 0.0, n_knots=knots)
        how |= dict(reach=2 * math.sqrt(c * h * w * share), space=space, branch=_branch(i))
        return Stage(level.name, frame, level.n_steps, finer if single else shrunk(transport), **how)

    def _single_pixels(self, i: int) -> bool:
        """Whether stage i looks at single pixels of grey pictures, which end on their own values."""
        if i >= len(self.stages) or self.patch_basis == "random":
            return False
        stage = self.stages[i]
        return stage.patch == 1 and (1, stage.h, stage.w) == self.layout.shape

    def _finer(self, transport: Transport) -> Transport:
        """The transport with whole bins for every value of a pixel: so black is black."""
        values = self.layout.n_pixel_values
        if not isinstance(transport, Histogram) or values is None:
            return transport
        n_bins = max(transport.n_bins, min(1 << int(values).bit_length(), SINGLE_PIXEL_BINS))
        each = n_bins // values
        if each == 0:  # more values than bins
            return transport
        end = 2 * n_bins / (each * values) - 1  # pixels are in [−1, 1]
        return AlignedHistogram(n_bins, transport.most, (-1.0, end))


def _branch(i: int) -> tuple[str | int, ...]:
    """Of the seed of a flow, for the frames of stage i."""
    return "level", i, "frame", 0


def evolution(
    flow: Flow, model: Sequence[ModelStep], particles: Cloud, noise: Noise, n_frames: int
) -> list[Tensor]:
    """As `replay`; returns whole pictures (d, n) at the start, in between, and at the end; or the end."""
    if n_frames == 1:
        replay(flow, model, particles, noise)
        return [particles.x]
    total, taken = len(model), [particles.x.clone()]
    due = {round(total * k / (n_frames - 1)) for k in range(1, n_frames - 1)} - {total}

    def after(step: Step) -> None:
        if step.turn + 1 in due:
            taken.append(step.positions())

    replay(flow, model, particles, noise, after)
    return [*taken, particles.x]


@dataclass(frozen=True)
class Painted:
    """Frames of a pyramid level that act on pixels. The `known` pixels (d, 1) never move."""

    subspace: Subspace
    directions: Tiles | RandomPatches
    known: Tensor

    def draw(
        self, seed: Seed, step: int, x: Tensor, n_conditions: int = 0, data: Tensor | None = None
    ) -> PaintedFrame:
        inner = self.directions.draw(seed, step, x, n_conditions)
        return PaintedFrame(self.subspace, inner, self.known)


@dataclass(frozen=True)
class PaintedFrame:
    """The frame of one step of `Painted`: projects through `down`, lifts through `up`."""

    subspace: Subspace
    inner: AnyFrame
    known: Tensor

    @property
    def kept(self) -> None:
        """A model keeps nothing of it."""

    @property
    def n_directions(self) -> int:
        return self.inner.n_directions

    def amplified(self, amplifier: float) -> PaintedFrame:
        return replace(self, inner=self.inner.amplified(amplifier))

    def project(self, cloud: Cloud, columns: Columns = None) -> Tensor:
        cloud = cloud.part(columns)
        return self.inner.project(replace(cloud, x=self.subspace.down(cloud.x)))

    def lift(self, dz: Tensor) -> Tensor:
        return self.subspace.up(self.inner.lift(dz)) * ~self.known

    def move(self, cloud: Cloud, table: Table, size: float) -> None:
        before = self.subspace.down(cloud.x)
        after = before.clone()
        self.inner.move(replace(cloud, x=after), table, size)
        cloud.x += self.subspace.up(after.sub_(before)) * ~self.known
