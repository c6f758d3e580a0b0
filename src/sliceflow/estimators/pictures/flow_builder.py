"""The flow of pictures through the resolutions of a pyramid, stage by stage.

Each stage runs `engine.flow` with local frames (`tiles`) in the subspace of its
resolution (`pyramid`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    is_known: Tensor | None = None  # (d, 1), True where a pixel is known

    def flow_spec(self, noise_factors: tuple[float, ...] = ()) -> FlowSpec:
        """The engine's flow; a fit shrinks its maps by their noise."""
        plan = self.plan
        stage_indices = range(len(plan.picture_stages))
        spec = FlowSpec(
            stages=[self._stage(i) for i in stage_indices],
            seed=self.seed.child("flow"),
            condition_dim=plan.n_classes,
            amplifier=plan.amplifier,
            max_projection_bytes=max_projection_bytes(self.device),
        )
        if not noise_factors or not plan.shrinkage:
            return spec
        unshrunk_stages = [i for i in stage_indices if self._has_single_pixels(i)]
        return shrunk_flow(spec, plan.shrinkage, noise_factors, unshrunk_stages)

    def frame_kind(self, i: int) -> Tiles | RandomPatches:
        """The kind of frames of stage i, on the coefficients of its resolution."""
        plan = self.plan
        stage = plan.picture_stages[i]
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

    def directions_of_step(self, i: int, step_index: int) -> int:
        """The number of directions of a step of stage i."""
        seed = self.seed.child("flow", *_frame_seed_path(i))
        return self.frame_kind(i).directions_of_step(seed, step_index)

    def _precision(self, i: int) -> torch.dtype | None:
        """The dtype of the rotations of stage i; None takes that of the particles."""
        # Single pixels become exact, which takes the particles' precision.
        if self.device.type == "cpu" or self._has_single_pixels(i):
            return None
        name = self.plan.options.precision
        if name == "auto":
            return torch.float16
        precision: torch.dtype = getattr(torch, name)
        return precision

    def _stage(self, i: int) -> Stage:
        """Stage i, on the coefficients of its resolution."""
        plan = self.plan
        stage = plan.picture_stages[i]
        channels, height, width = plan.layout.shape
        coefficients = PyramidSubspace(
            channels, height, width, stage.height, stage.width
        )
        frame_kind, subspace = self._frame_kind_and_subspace(i, coefficients)
        transport, max_knots = self._transport_and_max_knots(i)
        taper = 0.0
        if self._is_last_of_patches(i):
            taper = plan.options.taper
        return Stage(
            name=stage.name,
            frame_kind=frame_kind,
            n_steps=stage.n_steps,
            transport=transport,
            step_size=self._step_size(coefficients),
            taper=taper,
            stores_maps=plan.n_knots > 0,
            max_knots=max_knots,
            max_displacement=self._max_displacement(stage),
            subspace=subspace,
            frame_seed_path=_frame_seed_path(i),
        )

    def _frame_kind_and_subspace(
        self, i: int, coefficients: PyramidSubspace
    ) -> tuple[FrameKind, PyramidSubspace]:
        """What makes the frames of stage i, and the subspace that particles move in.

        Both are of the coefficients, unless there are known pixels. Coefficients mix
        these with others. So particles then move as whole pictures, in which known
        pixels can stay, and only frames see coefficients.
        """
        # Clipped before a stage of single pixels, ties at ±1 would stay ties.
        clip = self.plan.options.clip and coefficients.is_whole
        if self._has_single_pixels(i + 1):
            clip = False
        frame_kind = self.frame_kind(i)
        if self.is_known is None:
            return frame_kind, replace(coefficients, clip=clip)
        channels, height, width = self.plan.layout.shape
        whole = PyramidSubspace(channels, height, width, height, width, clip)
        return MaskedFrameKind(coefficients, frame_kind, self.is_known), whole

    def _step_size(self, coefficients: PyramidSubspace) -> float:
        """The step size: 1, or less with few random patches, as in the paper's code."""
        if self.plan.patch_basis != "random":
            return 1.0
        return largest_step_size(self.plan.n_directions, coefficients.dimension)

    def _max_displacement(self, stage: PictureStage) -> float:
        """A bound on how far a projection can move.

        Pixels are in [−1, 1], and a direction covers one tile. Lanczos' kernel spreads
        the tile by about a coefficient on each side.
        """
        covered = (stage.patch + 2) ** 2 / (stage.height * stage.width)
        n_values = self.plan.layout.dimension * min(1.0, covered)
        return 2 * math.sqrt(n_values)

    def _has_single_pixels(self, i: int) -> bool:
        """Whether stage i moves each pixel of gray pictures by itself.

        Such a stage makes the distribution of each pixel exact.
        """
        if i >= len(self.plan.picture_stages) or self.plan.patch_basis == "random":
            return False
        stage = self.plan.picture_stages[i]
        coefficients = (1, stage.height, stage.width)
        return stage.patch == 1 and coefficients == self.plan.layout.shape

    def _is_last_of_patches(self, i: int) -> bool:
        """Whether stage i is the last one that is not of single pixels."""
        if self._has_single_pixels(i):
            return False
        later = range(i + 1, len(self.plan.picture_stages))
        return all(self._has_single_pixels(k) for k in later)

    def _transport_and_max_knots(self, i: int) -> tuple[Transport, int]:
        """The transport of stage i, and the most knots that a map of it keeps.

        A histogram of single pixels gets bins that begin and end where pixel values do:
        so black stays black. Its maps keep a knot for each of these bins.
        """
        transport = self.plan.transport
        n_values = self.plan.layout.n_pixel_values
        if (
            self._has_single_pixels(i)
            and isinstance(transport, HistogramTransport)
            and n_values is not None
            and n_values <= max(transport.n_bins, MAX_SINGLE_PIXEL_BINS)
        ):
            return _aligned_with_values(transport, n_values), MAX_SINGLE_PIXEL_BINS
        return transport, self.plan.n_knots


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


def _frame_seed_path(i: int) -> tuple[str | int, ...]:
    """The branch of a flow's seed that draws the frames of stage i."""
    # The names are part of every fitted model: others would draw other frames.
    return "level", i, "frame", 0


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
