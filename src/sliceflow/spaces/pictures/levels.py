"""The flow of pictures through the levels of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its level (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine.clouds import Cloud, Indices
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Flow, Noise, Step, replay
from sliceflow.engine.frames import FrameKind
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import (
    AlignedHistogram,
    Histogram,
    Transport,
    TransportMap,
)
from sliceflow.spaces.pictures.plan import SINGLE_PIXEL_BINS, PicturePlan
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles


@dataclass(frozen=True)
class LevelFlow:
    """The flow through the levels of a pyramid, for fitting and sampling.

    A stage moves the coefficients of its level; at its end the change is upsampled and added to the
    pixels. With observed pixels, every step is upsampled instead, and the observed pixels are masked.
    """

    plan: PicturePlan
    seed: Seed  # of the fit
    device: torch.device
    known: Tensor | None = None  # (d, 1) marks the observed pixels

    def flow(self, rates: tuple[float, ...] = ()) -> Flow:
        """The flow of the engine; a fit shrinks its maps by the `rates` of their noise."""
        plan = self.plan
        transport = self.plan.transport
        if rates and plan.shrinkage:
            n_shared = plan.n_conditions if plan.shared else 0
            transport = Shrunk(transport, plan.shrinkage, rates, n_shared)
        stages = [self._stage(i, transport) for i in range(len(plan.stages))]
        condition = (plan.n_conditions, plan.amplifier)
        budget = projection_budget(self.device)
        return Flow(stages, self.seed.child("flow"), *condition, budget=budget)

    def directions(self, i: int) -> Tiles | RandomPatches:
        """The frames of stage i, on the coefficients of its level."""
        plan = self.plan
        level = self.plan.stages[i]
        c, h, w = self.plan.layout.shape
        size = c, level.h, level.w, level.patch
        if plan.patch_basis == "random":
            return RandomPatches(*size, plan.options.n_directions, (h, w))
        name = plan.options.precision
        precision = None
        # Single pixels become exact, which takes the particles' precision.
        if self.device.type != "cpu" and not self._single_pixels(i):
            precision = getattr(torch, "float16" if name == "auto" else name)
        return Tiles(*size, plan.patch_basis == "cosines", precision)

    def count_directions(self, i: int, step: int) -> int:
        """The number of directions of a step of stage i."""
        return self.directions(i).count(self.seed.child("flow", *_branch(i)), step)

    def _stage(self, i: int, transport: Transport) -> Stage:
        """Stage i; single pixels have maps of their own kind, which are not shrunk."""
        plan = self.plan
        level = self.plan.stages[i]
        c, h, w = self.plan.layout.shape
        single = self._single_pixels(i)
        options = plan.options
        knots = plan.n_knots
        subspace = Subspace(c, h, w, level.h, level.w)
        # Before single pixels, ties at ±1 would stay ties.
        clip = (
            options.clip
            and subspace.is_full_resolution
            and not self._single_pixels(i + 1)
        )
        frame: FrameKind = self.directions(i)
        space = replace(subspace, clip=clip)
        if self.known is not None:
            frame = MaskedFrame(subspace, self.directions(i), self.known)
            space = replace(space, h=h, w=w)
        last = not single and all(
            map(self._single_pixels, range(i + 1, len(plan.stages)))
        )
        if single:
            transport = self._finer(plan.transport)
            knots = (
                SINGLE_PIXEL_BINS if knots and transport != plan.transport else knots
            )
        # A bound on moves: pixels are in [−1, 1]. Lanczos spreads a tile a little, hence the + 2.
        share = min(1.0, (level.patch + 2) ** 2 / (level.h * level.w))
        size = 1.0
        if (
            plan.patch_basis == "random"
        ):  # η is at most H, as in the authors' script: else it diverges
            size = min(1.0, options.n_directions / subspace.dimension)
        how: Any = dict(
            step_size=size, taper=options.taper if last else 0.0, n_knots=knots
        )
        how |= dict(
            reach=2 * math.sqrt(c * h * w * share), subspace=space, branch=_branch(i)
        )
        return Stage(level.name, frame, level.n_steps, transport, **how)

    def _single_pixels(self, i: int) -> bool:
        """Whether stage i looks at single pixels of grey pictures, which end on their own values."""
        if i >= len(self.plan.stages) or self.plan.patch_basis == "random":
            return False
        stage = self.plan.stages[i]
        return stage.patch == 1 and (1, stage.h, stage.w) == self.plan.layout.shape

    def _finer(self, transport: Transport) -> Transport:
        """The transport with whole bins for every value of a pixel: so black is black."""
        values = self.plan.layout.n_pixel_values
        if not isinstance(transport, Histogram) or values is None:
            return transport
        n_bins = max(
            transport.n_bins, min(1 << int(values).bit_length(), SINGLE_PIXEL_BINS)
        )
        each = n_bins // values
        if each == 0:  # more values than bins
            return transport
        end = 2 * n_bins / (each * values) - 1  # pixels are in [−1, 1]
        return AlignedHistogram(n_bins, transport.max_samples, (-1.0, end))


def _branch(i: int) -> tuple[str | int, ...]:
    """Of the seed of a flow, for the frames of stage i."""
    return "level", i, "frame", 0


def evolution(
    flow: Flow,
    model: Sequence[ModelStep],
    particles: Cloud,
    noise: Noise,
    n_frames: int,
) -> list[Tensor]:
    """As `replay`; returns whole pictures (d, n) at the start, in between, and at the end; or the end."""
    total = len(model)
    taken = [particles.x.clone()] if n_frames > 1 else []
    due = {round(total * k / (n_frames - 1)) for k in range(1, n_frames - 1)} - {total}

    def after(step: Step) -> None:
        if step.steps_before + 1 in due:
            taken.append(step.positions())

    replay(flow, model, particles, noise, after)
    return [*taken, particles.x]


@dataclass(frozen=True)
class MaskedFrame:
    """Frames of a pyramid level that act on pixels: they project through `restrict`, and lift through `extend`.

    The `known` pixels (d, 1) never move. `draw` fills in the frame of a step.
    """

    subspace: Subspace
    directions: Tiles | RandomPatches
    known: Tensor
    frame: Any = None
    stored: None = None  # a model stores nothing of it

    def amplified(self, amplifier: float) -> MaskedFrame:
        """The same: what is observed is the only condition."""
        return self

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> MaskedFrame:
        return replace(self, frame=self.directions.draw(seed, step, x))

    @property
    def n_directions(self) -> int:
        return int(self.frame.n_directions)

    def project(self, cloud: Cloud, columns: Indices = None) -> Tensor:
        cloud = cloud.part(columns)
        z: Tensor = self.frame.project(
            replace(cloud, x=self.subspace.restrict(cloud.x))
        )
        return z

    def lift(self, dz: Tensor) -> Tensor:
        return self.subspace.extend(self.frame.lift(dz)) * ~self.known

    def move(self, cloud: Cloud, table: TransportMap, size: float) -> None:
        before = self.subspace.restrict(cloud.x)
        after = before.clone()
        self.frame.move(replace(cloud, x=after), table, size)
        cloud.x += self.subspace.extend(after.sub_(before)) * ~self.known
