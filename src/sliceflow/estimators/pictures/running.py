"""The fit of pictures while it runs: the particles, the flow, and its target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.distributed import across_ranks
from sliceflow.base.protocols import FinishedFlow, FitResult, ParticleResult
from sliceflow.base.ranks import Shard
from sliceflow.engine.allocation import even_indices
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.flow import FlowSpec, ParticleNoise
from sliceflow.engine.shrinkage import noise_factors
from sliceflow.errors import CopyWarning
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.estimators.pictures.tuned import TunedPictureFit
from sliceflow.metrics.copying import evidence_of_copying


@dataclass(frozen=True)
class RunningPictureFit:
    """The fit of pictures while it runs: the particles, and all that moves them."""

    tuned: TunedPictureFit
    spec: FlowSpec
    particles: Cloud  # of this rank
    particle_noise: ParticleNoise
    # The pictures of which mosaics are made; None if particles start as noise
    mosaic_pixels: Tensor | None

    @classmethod
    def start(cls, tuned: TunedPictureFit) -> RunningPictureFit:
        """Put this rank's particles where they start, and build the flow."""
        planned_fit = tuned.planned_fit
        data = planned_fit.data
        ranks = planned_fit.ranks
        mosaic_pixels = None
        if tuned.plan.mosaic_size:
            mosaic_pixels = stored_pictures(data, ranks)
        is_known = data.layout.repeat_for_channels(planned_fit.known, data.device)
        first_particle = ranks.own_shard(tuned.plan.n_moved_particles).first
        particle_noise = ParticleNoise(
            planned_fit.seed.child("particles"), first_particle
        )
        particles = _initial_cloud(tuned, mosaic_pixels, is_known, particle_noise)
        spec = _flow_spec(tuned, is_known)
        return cls(tuned, spec, particles, particle_noise, mosaic_pixels)

    def target(self) -> DataTarget:
        """The pictures onto which particles move: all, or a part for each stage."""
        tuned = self.tuned
        every_step = tuned.dequantizes_every_step
        if tuned.picture_parts:
            return DataTarget(tuned.load_part, reloads_every_step=every_step)
        return DataTarget(tuned.load_all, tuned.load_batches, every_step)

    def result(self, finished_flow: FinishedFlow) -> FitResult[FittedPictures]:
        """Make the fitted model, once the particles have arrived."""
        planned_fit = self.tuned.planned_fit
        data = planned_fit.data
        ranks = planned_fit.ranks
        flow_conditions = planned_fit.flow_conditions
        steps = finished_flow.state.model_steps
        fitted = FittedPictures(
            plan=self.tuned.plan,
            seed=planned_fit.seed,
            steps=tuple(step.without_identity_maps() for step in steps),
            conditions=data.conditions,
            known=planned_fit.known,
            mosaic_pixels=self.mosaic_pixels,
            device=data.device,
        )
        x = flow_conditions.kept_cloud(self.particles.x, ranks).x
        y = flow_conditions.kept_user_y
        if y is not None:
            y = y[ranks.own_shard(flow_conditions.n_kept).slice]
        return FitResult(
            fitted,
            finished_flow.history.as_columns(),
            _copy_warning(self.tuned, x),
            ParticleResult(data.layout.decode(x), y),
        )


def _initial_cloud(
    tuned: TunedPictureFit,
    mosaic_pixels: Tensor | None,
    is_known: Tensor | None,
    particle_noise: ParticleNoise,
) -> Cloud:
    """This rank's particles at their start, with the known pixels of pictures.

    Parameters
    ----------
    mosaic_pixels : the pictures of mosaics (n, c, h, w); None starts from noise
    is_known : (d, 1), True where a pixel is known; None if none is
    particle_noise : of this rank's particles
    """
    planned_fit = tuned.planned_fit
    data = planned_fit.data
    ranks = planned_fit.ranks
    shard = ranks.own_shard(tuned.plan.n_moved_particles)
    y = planned_fit.flow_conditions.own_y(ranks, data.device)
    assert y is None or isinstance(y, ClassIndices), "pictures have labels"
    mosaics = build_mosaics(tuned.plan, mosaic_pixels, data.label_y, data.device)
    x = initial_particles(
        tuned.plan, mosaics, shard.count, y, particle_noise, data.device
    )
    if is_known is not None:
        x = torch.where(is_known, _encode_to_complete(tuned, shard), x)
    return Cloud(x, y)


def _flow_spec(tuned: TunedPictureFit, is_known: Tensor | None) -> FlowSpec:
    """The flow of the fit, whose maps are shrunk by their noise.

    `is_known` (d, 1) is True where a pixel is known; None if none is.
    """
    planned_fit = tuned.planned_fit
    builder = PictureFlowBuilder(
        tuned.plan, planned_fit.seed, planned_fit.data.device, is_known
    )
    spec = builder.flow_spec(_noise_factors(tuned))
    if planned_fit.ranks.size > 1:
        spec = across_ranks(spec, planned_fit.ranks)
    return spec


def _noise_factors(tuned: TunedPictureFit) -> tuple[float, ...]:
    """Numbers, one for each class, to which the noise of maps is proportional."""
    plan = tuned.plan
    flow_conditions = tuned.planned_fit.flow_conditions
    distinct_share = 1.0
    if plan.mirror:
        distinct_share = 0.5
    return noise_factors(
        plan.n_moved_particles,
        plan.n_pictures,
        y_p=flow_conditions.moved_y,
        y_q=flow_conditions.row_y,
        batch_size=plan.batch_size,
        distinct_share=distinct_share,
    )


def _encode_to_complete(tuned: TunedPictureFit, shard: Shard) -> Tensor:
    """The values (d, n) of the pictures that this rank's particles complete.

    Their known pixels do not move. Kept particles use each picture equally often, and
    so do the others.
    """
    planned_fit = tuned.planned_fit
    data = planned_fit.data
    n_kept = tuned.plan.n_particles
    seed = planned_fit.seed.child("conditions")
    pictures_of_kept = even_indices(data.n_all, n_kept, seed)
    pictures_of_others = even_indices(
        data.n_all, shard.total - n_kept, seed.child("further")
    )
    indices = torch.cat((pictures_of_kept, pictures_of_others))[shard.slice]
    pixel_points = data.gather_pictures(indices.to(data.device), planned_fit.ranks)
    return data.layout.encode(
        pixel_points,
        planned_fit.seed.child("observed"),
        n_total=shard.total,
        index_slices=[shard.slice],
    )


def _copy_warning(tuned: TunedPictureFit, x: Tensor) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy pictures, else None.

    Two kinds of fits are not checked. On several ranks, none has all pictures. And
    particles with known pixels copy these.
    """
    planned_fit = tuned.planned_fit
    if planned_fit.ranks.size > 1 or planned_fit.known is not None:
        return None
    pixel_points = planned_fit.data.pixel_points
    layout = replace(planned_fit.data.layout, tensor=False)
    particles = np.asarray(layout.decode(x)).reshape(x.shape[1], -1)
    n = pixel_points.shape[1]
    pixels = pixel_points.view(*layout.shape, n)
    rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
    evidence = evidence_of_copying([(rows, particles)], tuned.plan.device)
    if not evidence:
        return None
    return CopyWarning(
        f"the particles copy rows of X ({evidence}); more shrinkage than "
        f"{tuned.plan.shrinkage:.2g} (ImageOptions), or a lower quality, help"
    )
