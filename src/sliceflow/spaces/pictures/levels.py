"""The flow of pictures through the levels of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its level
(`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine.clouds import Cloud, Indices
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.flow import FlowSpec, ParticleStreams, Step, replay
from sliceflow.engine.frames import Frame, FrameKind
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
from sliceflow.spaces.pictures.pyramid import PyramidLevel
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles


@dataclass(frozen=True)
class PictureFlowBuilder:
    """Builds the flow through the levels of a pyramid, for fitting and sampling.

    A stage moves the coefficients of its level; at its end the change is upsampled and
    added to the pixels. With observed pixels, every step is upsampled instead, and does
    not move the observed pixels.
    """

    plan: PicturePlan
    seed: Seed  # of the fit
    device: torch.device
    observed_mask: Tensor | None = None  # (d, 1), True where a pixel is observed

    def flow(self, noise_rates: tuple[float, ...] = ()) -> FlowSpec:
        """The engine's flow; a fit shrinks its maps by the rates of their noise."""
        plan = self.plan
        transport = plan.transport
        if noise_rates and plan.shrinkage:
            n_shared_classes = 0
            if plan.condition_use == "shared":
                n_shared_classes = plan.condition_dim
            transport = Shrunk(transport, plan.shrinkage, noise_rates, n_shared_classes)
        return FlowSpec(
            stages=[self._stage(i, transport) for i in range(len(plan.stages))],
            seed=self.seed.child("flow"),
            condition_dim=plan.condition_dim,
            amplifier=plan.amplifier,
            budget=projection_budget(self.device),
        )

    def frame_kind(self, i: int) -> Tiles | RandomPatches:
        """The kind of frames of stage i, on the coefficients of its level."""
        plan = self.plan
        stage = plan.stages[i]
        channels, height, width = plan.layout.shape
        if plan.patch_basis == "random":
            return RandomPatches(
                channels,
                stage.height,
                stage.width,
                stage.patch,
                n_directions=plan.n_directions,
                full_size=(height, width),
            )
        return Tiles(
            channels,
            stage.height,
            stage.width,
            stage.patch,
            cosines=plan.patch_basis == "cosines",
            precision=self._precision(i),
        )

    def count_directions(self, i: int, step_index: int) -> int:
        """The number of directions of a step of stage i."""
        seed = self.seed.child("flow", *_frame_seed_path(i))
        return self.frame_kind(i).count_directions(seed, step_index)

    def _precision(self, i: int) -> torch.dtype | None:
        """The type of the rotations of stage i; None is that of the particles."""
        # Single pixels become exact, which takes the particles' precision.
        if self.device.type == "cpu" or self._has_single_pixels(i):
            return None
        name = self.plan.options.precision
        if name == "auto":
            return torch.float16
        precision: torch.dtype = getattr(torch, name)
        return precision

    def _stage(self, i: int, transport: Transport) -> Stage:
        """Stage i. Single pixels have another transport, whose maps are not shrunk."""
        plan = self.plan
        stage = plan.stages[i]
        channels, height, width = plan.layout.shape
        level = PyramidLevel(channels, height, width, stage.height, stage.width)
        n_knots = plan.n_knots
        if self._has_single_pixels(i):
            transport = self._single_pixel_transport()
            if n_knots and transport != plan.transport:
                n_knots = SINGLE_PIXEL_BINS

        taper = 0.0
        if self._is_last_of_patches(i):
            taper = plan.options.taper

        # Clipped before a stage of single pixels, ties at ±1 would stay ties.
        clip = plan.options.clip and level.is_full_resolution
        if self._has_single_pixels(i + 1):
            clip = False

        frame: FrameKind = self.frame_kind(i)
        subspace = replace(level, clip=clip)
        if self.observed_mask is not None:
            frame = MaskedFrameKind(level, self.frame_kind(i), self.observed_mask)
            subspace = replace(subspace, height=height, width=width)
        return Stage(
            name=stage.name,
            frame_kind=frame,
            n_steps=stage.n_steps,
            transport=transport,
            step_size=self._step_size(level),
            taper=taper,
            n_knots=n_knots,
            max_displacement=self._reach(stage),
            subspace=subspace,
            frame_seed_path=_frame_seed_path(i),
        )

    def _step_size(self, level: PyramidLevel) -> float:
        """1; for random patches at most H/d, as in the authors' script.

        They keep η at or below the number of directions H: else the flow diverges.
        """
        if self.plan.patch_basis != "random":
            return 1.0
        return min(1.0, self.plan.n_directions / level.dimension)

    def _reach(self, stage: PictureStage) -> float:
        """A bound on how far a projection can move.

        Pixels are in [−1, 1], and a direction covers one tile. Lanczos' kernel spreads
        the tile by about a coefficient on each side.
        """
        covered = (stage.patch + 2) ** 2 / (stage.height * stage.width)
        n_values = self.plan.layout.dimension * min(1.0, covered)
        return 2 * math.sqrt(n_values)

    def _has_single_pixels(self, i: int) -> bool:
        """Whether stage i moves each pixel of grey pictures by itself.

        Such a stage makes the distribution of each pixel exact.
        """
        if i >= len(self.plan.stages) or self.plan.patch_basis == "random":
            return False
        stage = self.plan.stages[i]
        coefficients = (1, stage.height, stage.width)
        return stage.patch == 1 and coefficients == self.plan.layout.shape

    def _is_last_of_patches(self, i: int) -> bool:
        """Whether stage i is the last one that is not of single pixels."""
        if self._has_single_pixels(i):
            return False
        later = range(i + 1, len(self.plan.stages))
        return all(self._has_single_pixels(k) for k in later)

    def _single_pixel_transport(self) -> Transport:
        """The transport of single pixels.

        A histogram gets bins that begin and end where pixel values do: so black stays
        black.
        """
        transport = self.plan.transport
        n_values = self.plan.layout.n_pixel_values
        if not isinstance(transport, Histogram) or n_values is None:
            return transport
        wanted = min(1 << int(n_values).bit_length(), SINGLE_PIXEL_BINS)
        n_bins = max(transport.n_bins, wanted)
        bins_per_value = n_bins // n_values
        if bins_per_value == 0:
            return transport
        # The bins that are used cover [−1, 1], the range of pixels. Those left over lie
        # beyond it.
        end = 2 * n_bins / (bins_per_value * n_values) - 1
        return AlignedHistogram(n_bins, transport.max_samples, (-1.0, end))


def _frame_seed_path(i: int) -> tuple[str | int, ...]:
    """The branch of a flow's seed that draws the frames of stage i."""
    return "level", i, "frame", 0


def replay_with_snapshots(
    flow: FlowSpec,
    model: Sequence[ModelStep],
    particles: Cloud,
    noise: ParticleStreams,
    n_snapshots: int,
) -> list[Tensor]:
    """Move particles by the steps of a model, as `replay`, and record where they are.

    Returns
    -------
    snapshots, each with all pictures (d, n): at the start, in between, and at the end;
    with ``n_snapshots=1`` only at the end. If the model has fewer steps than
    `n_snapshots`, there is one snapshot after each step
    """
    n_steps = len(model)
    snapshots = []
    if n_snapshots > 1:
        snapshots.append(particles.x.clone())
    recorded_steps = set()
    for k in range(1, n_snapshots - 1):
        recorded_steps.add(round(n_steps * k / (n_snapshots - 1)))
    recorded_steps.discard(n_steps)  # the end is added below

    def record(step: Step) -> None:
        if step.steps_before + 1 in recorded_steps:
            snapshots.append(step.current_points())

    replay(flow, model, particles, noise, record)
    snapshots.append(particles.x)
    return snapshots


@dataclass(frozen=True)
class MaskedFrameKind:
    """Frames of a pyramid level that act on pixels but never move known ones."""

    level: PyramidLevel
    kind: Tiles | RandomPatches  # on the coefficients of the level
    observed_mask: Tensor  # (d, 1), True where a pixel never moves

    @property
    def n_directions(self) -> int | None:
        """That of the kind of frame on the coefficients."""
        return self.kind.n_directions

    def draw(
        self,
        seed: Seed,
        step_index: int,
        x: Tensor,
        condition_dim: int = 0,
        data: Tensor | None = None,
    ) -> MaskedFrame:
        """The frame of a step. What is observed is the only condition."""
        return MaskedFrame(
            self.level, self.kind.draw(seed, step_index, x), self.observed_mask
        )


@dataclass(frozen=True)
class MaskedFrame:
    """A frame of a pyramid level that acts on pixels: z = ΘUᵀx, and dx = M·UΘᵀdz.

    U extends coefficients of the level to pixels, Θ are directions on coefficients, and
    M is 0 where a pixel is known: these pixels never move.
    """

    level: PyramidLevel
    frame: Frame  # on the coefficients of the level
    observed_mask: Tensor  # (d, 1)
    theta_to_store: None = None  # a model stores nothing of it

    @property
    def n_directions(self) -> int:
        return self.frame.n_directions

    def amplified(self, amplifier: float) -> Self:
        """The same: what is observed is the only condition."""
        return self

    def project(self, cloud: Cloud, indices: Indices = None) -> Tensor:
        """z (h, n) of some or all columns of pictures (d, n)."""
        cloud = cloud.part(indices)
        coefficients = self.level.restrict(cloud.x)
        return self.frame.project(replace(cloud, x=coefficients))

    def lift(self, dz: Tensor) -> Tensor:
        """dx (d, n) of dz (h, n); 0 where a pixel is known."""
        return self.level.extend(self.frame.lift(dz)) * ~self.observed_mask

    def move(self, cloud: Cloud, transport_map: TransportMap, step_size: float) -> None:
        """Move the hidden pixels of pictures, in place."""
        before = self.level.restrict(cloud.x)
        after = before.clone()
        self.frame.move(replace(cloud, x=after), transport_map, step_size)
        cloud.x += self.level.extend(after.sub_(before)) * ~self.observed_mask
