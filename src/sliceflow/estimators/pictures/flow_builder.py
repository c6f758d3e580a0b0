"""The flow of pictures through the resolutions of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its
resolution (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sliceflow.devices import max_projection_bytes
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import FlowSpec, ParticleRng, replay
from sliceflow.engine.frames import FrameKind, largest_step_size
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import shrunk_flow
from sliceflow.engine.transports import (
    AlignedHistogramTransport,
    HistogramTransport,
    Transport,
)
from sliceflow.estimators.pictures.choices import MAX_SINGLE_PIXEL_BINS
from sliceflow.estimators.pictures.masked_frames import MaskedFrameKind
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.estimators.pictures.schedules import PictureStage
from sliceflow.estimators.pictures.tiles import RandomPatches, Tiles


@dataclass(frozen=True)
class StageContext:
    """A stage of a plan, with what depends on the stages before and after it."""

    picture_stage: PictureStage
    stage_index: int  # from 0
    subspace: PyramidSubspace  # of the coefficients of its resolution
    # Whether the stage moves each pixel of gray pictures by itself: then the
    # distribution of each pixel becomes exact.
    is_pixelwise: bool
    is_before_pixelwise: bool  # whether the next stage is pixelwise
    # Whether its step size falls at the end: the last stage that is not pixelwise.
    is_tapered: bool

    @property
    def frame_seed_path(self) -> tuple[str | int, ...]:
        """The branch of a flow's seed that draws the frames of the stage."""
        # The names are part of every fitted model: others would draw other frames.
        return "level", self.stage_index, "frame", 0


def _stage_contexts(plan: PicturePlan) -> list[StageContext]:
    """The stages of a plan in order, each with what depends on the other stages."""
    channels, height, width = plan.layout.shape
    is_pixelwise = [
        _is_pixelwise(plan, picture_stage) for picture_stage in plan.picture_stages
    ]
    contexts = []
    for i, picture_stage in enumerate(plan.picture_stages):
        is_later_pixelwise = is_pixelwise[i + 1 :]
        context = StageContext(
            picture_stage,
            stage_index=i,
            subspace=PyramidSubspace(
                channels, height, width, picture_stage.height, picture_stage.width
            ),
            is_pixelwise=is_pixelwise[i],
            is_before_pixelwise=len(is_later_pixelwise) > 0 and is_later_pixelwise[0],
            is_tapered=not is_pixelwise[i] and all(is_later_pixelwise),
        )
        contexts.append(context)
    return contexts


def _is_pixelwise(plan: PicturePlan, picture_stage: PictureStage) -> bool:
    """Whether a stage moves each pixel of gray pictures by itself."""
    if picture_stage.patch != 1 or plan.patch_basis == "random":
        return False
    gray_shape = (1, picture_stage.height, picture_stage.width)
    return gray_shape == plan.layout.shape


@dataclass(frozen=True, eq=False)
class PictureFlowBuilder:
    """Builds the flow through the resolutions of a pyramid, for fitting and sampling.

    A stage moves the coefficients of its resolution; at its end the change is upsampled
    and added to the pixels. With known pixels, every step is upsampled instead, and
    does not move the known pixels.
    """

    plan: PicturePlan
    seed: Seed  # of the fit
    device: torch.device
    is_known_value: Tensor | None = None  # (d, 1), True for values of known pixels

    @cached_property
    def stage_contexts(self) -> list[StageContext]:
        """The stages of the plan, which the flow has, too."""
        return _stage_contexts(self.plan)

    def flow_spec(self, noise_factors: tuple[float, ...] = ()) -> FlowSpec:
        """The engine's flow; a fit shrinks its maps by their noise."""
        plan = self.plan
        spec = FlowSpec(
            stages=[self._engine_stage(context) for context in self.stage_contexts],
            seed=self.seed.child("flow"),
            condition_dim=plan.n_classes,
            amplifier=plan.amplifier,
            max_projection_bytes=max_projection_bytes(self.device),
        )
        if not noise_factors or not plan.shrinkage:
            return spec
        unshrunk_stages = [
            context.stage_index
            for context in self.stage_contexts
            if context.is_pixelwise
        ]
        return shrunk_flow(spec, plan.shrinkage, noise_factors, unshrunk_stages)

    def frame_kind(self, context: StageContext) -> Tiles | RandomPatches:
        """The kind of frames of a stage, on the coefficients of its resolution."""
        plan = self.plan
        picture_stage = context.picture_stage
        channels, height, width = plan.layout.shape
        if plan.patch_basis == "random":
            return RandomPatches(
                channels,
                picture_stage.height,
                picture_stage.width,
                picture_stage.patch,
                n_directions=plan.n_directions,
                full_size=(height, width),
            )
        return Tiles(
            channels,
            picture_stage.height,
            picture_stage.width,
            picture_stage.patch,
            cosines=plan.patch_basis == "cosines",
            precision=self._precision(context),
        )

    def count_directions_of_step(self, stage_index: int, step_index: int) -> int:
        """The number of directions of a step."""
        context = self.stage_contexts[stage_index]
        seed = self.seed.child("flow", *context.frame_seed_path)
        return self.frame_kind(context).count_directions_of_step(seed, step_index)

    def _precision(self, context: StageContext) -> torch.dtype | None:
        """The dtype of the rotations of a stage; None is the dtype of the particles."""
        # Single pixels become exact, which takes the particles' precision.
        if self.device.type == "cpu" or context.is_pixelwise:
            return None
        name = self.plan.options.precision
        if name == "auto":
            return torch.float16
        precision: torch.dtype = getattr(torch, name)
        return precision

    def _engine_stage(self, context: StageContext) -> Stage:
        """The engine's stage, on the coefficients of its resolution."""
        plan = self.plan
        picture_stage = context.picture_stage
        transport: Transport = plan.transport
        max_knots = plan.n_knots
        aligned_transport = self._aligned_transport(context)
        if aligned_transport is not None:
            transport = aligned_transport
            max_knots = MAX_SINGLE_PIXEL_BINS  # a knot for each of its bins
        taper = 0.0
        if context.is_tapered:
            taper = plan.options.taper
        return Stage(
            name=picture_stage.name,
            frame_kind=self._masked_frame_kind(context),
            n_steps=picture_stage.n_steps,
            transport=transport,
            step_size=self._step_size(context.subspace),
            taper=taper,
            stores_maps=plan.n_knots > 0,
            max_knots=max_knots,
            max_displacement=self._max_displacement(picture_stage),
            subspace=self._moved_subspace(context),
            frame_seed_path=context.frame_seed_path,
        )

    def _moved_subspace(self, context: StageContext) -> PyramidSubspace:
        """The subspace that particles move in: the coefficients of the resolution.

        With known pixels it is the whole picture. Coefficients mix known pixels with
        hidden ones, so only in whole pictures can the known ones stay.
        """
        subspace = context.subspace
        # Clipped before a pixelwise stage, ties at ±1 would stay ties.
        clip = (
            self.plan.options.clip
            and subspace.is_whole
            and not context.is_before_pixelwise
        )
        if self.is_known_value is None:
            return replace(subspace, clip=clip)
        channels, height, width = self.plan.layout.shape
        return PyramidSubspace(channels, height, width, height, width, clip)

    def _masked_frame_kind(self, context: StageContext) -> FrameKind:
        """What makes the frames of a stage; with known pixels these never move."""
        frame_kind = self.frame_kind(context)
        if self.is_known_value is None:
            return frame_kind
        return MaskedFrameKind(context.subspace, frame_kind, self.is_known_value)

    def _step_size(self, subspace: PyramidSubspace) -> float:
        """The step size: 1, or less with few random patches, as in the paper's code."""
        if self.plan.patch_basis != "random":
            return 1.0
        return largest_step_size(self.plan.n_directions, subspace.dimension)

    def _max_displacement(self, picture_stage: PictureStage) -> float:
        """A bound on how far a projection can move.

        Pixels are in [−1, 1], and a direction covers one tile. Lanczos' kernel spreads
        the tile by about a coefficient on each side.
        """
        covered_coefficients = (picture_stage.patch + 2) ** 2
        n_coefficients = picture_stage.height * picture_stage.width
        covered_share = min(1.0, covered_coefficients / n_coefficients)
        n_values = self.plan.layout.dimension * covered_share
        return 2 * math.sqrt(n_values)

    def _aligned_transport(
        self, context: StageContext
    ) -> AlignedHistogramTransport | None:
        """The histograms of single pixels, if the stage is pixelwise; else None.

        Their bins begin and end where pixel values do: so black stays black. Pixels of
        floats, or of very many values, have none.
        """
        transport = self.plan.transport
        n_values = self.plan.layout.n_pixel_values
        if not context.is_pixelwise or not isinstance(transport, HistogramTransport):
            return None
        if n_values is None or n_values > max(transport.n_bins, MAX_SINGLE_PIXEL_BINS):
            return None
        return _aligned_with_values(transport, n_values)


def _aligned_with_values(
    transport: HistogramTransport, n_values: int
) -> AlignedHistogramTransport:
    """A transport whose bins begin and end where pixel values in [−1, 1] do.

    With 17 values and 1,024 bins, each value has 60 bins. These 1,020 bins cover
    [−1, 1], and the 4 that are left over lie beyond 1: all bins cover [−1, 1.008].
    """
    wanted = min(1 << int(n_values).bit_length(), MAX_SINGLE_PIXEL_BINS)
    n_bins = max(transport.n_bins, wanted)
    n_used = n_bins // n_values * n_values
    span = (-1.0, 2 * n_bins / n_used - 1)
    return AlignedHistogramTransport(n_bins, transport.batch_size, span)


def replay_with_snapshots(
    spec: FlowSpec,
    steps: Sequence[ModelStep],
    particles: Cloud,
    particle_rng: ParticleRng,
    n_snapshots: int,
) -> list[Tensor]:
    """Move particles by the steps of a model, as `replay`, and record where they are.

    Returns
    -------
    snapshots, each with all pictures (d, n): at the start, in between, and at the end;
    with ``n_snapshots=1`` only at the end. If the model has fewer steps than
    `n_snapshots`, there is one snapshot after each step
    """
    n_steps = len(steps)
    snapshots = []
    if n_snapshots > 1:
        snapshots.append(particles.x.clone())
    recorded_steps = set()
    for k in range(1, n_snapshots - 1):
        recorded_steps.add(round(n_steps * k / (n_snapshots - 1)))
    recorded_steps.discard(n_steps)  # the end is added below
    snapshots += replay(spec, steps, particles, particle_rng, recorded_steps)
    snapshots.append(particles.x)
    return snapshots
