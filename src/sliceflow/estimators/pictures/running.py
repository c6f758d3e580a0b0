"""The fit of pictures while it runs: the particles, the flow, and its target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.distributed import across_ranks
from sliceflow.base.protocols import FinishedFlow, FitResult, ParticleResult
from sliceflow.base.ranks import Shard
from sliceflow.engine.allocation import even_indices
from sliceflow.engine.batches import Batches, DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, SeparateClassIndices
from sliceflow.engine.flow import ParticleNoise, Step, flow_y
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import inverse_sample_sizes
from sliceflow.errors import CopyWarning
from sliceflow.estimators.pictures.batching import (
    batches_of_all_points,
    batches_of_steps,
    divide_pictures,
)
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.estimators.pictures.tuned import TunedPictureFit
from sliceflow.metrics.copying import evidence_of_copying


class RunningPictureFit:
    """The fit of pictures while it runs: the particles, and all that moves them."""

    def __init__(self, fit: TunedPictureFit) -> None:
        self.fit = fit
        self.plan = fit.plan
        self.data = fit.data
        self.seed = fit.seed
        self.ranks = fit.ranks
        self.flow_conditions = fit.flow_conditions

        # This rank's particles among those of all ranks.
        self.shard = self.ranks.own_shard(self.plan.n_moved_particles)
        self.particle_noise = ParticleNoise(
            self.seed.child("particles"), self.shard.first
        )
        # The indices of parts of the pictures, which stages use in turn. An empty list
        # if every stage uses all pictures.
        self.picture_parts = divide_pictures(
            self.plan, self.data, self.seed.child("batches")
        )
        # The pictures of which mosaics are made; None if particles start as noise.
        self.mosaic_pixels: Tensor | None = None
        if self.plan.mosaic_size:
            self.mosaic_pixels = stored_pictures(self.data, self.ranks)

        device = self.data.device
        is_known = self.data.layout.repeat_for_channels(fit.known, device)
        self.particles = self._initial_particles(is_known)
        builder = PictureFlowBuilder(self.plan, self.seed, device, is_known)
        spec = builder.flow_spec(self._inverse_sample_sizes())
        if self.ranks.size > 1:
            spec = across_ranks(spec, self.ranks)
        self.spec = spec

    def _initial_particles(self, is_known: Tensor | None) -> Cloud:
        """This rank's particles at their start, with the known pixels of pictures."""
        device = self.data.device
        y = self.flow_conditions.own_y(self.ranks, device)
        assert y is None or isinstance(y, ClassIndices), "pictures have labels"
        mosaics = build_mosaics(
            self.plan, self.mosaic_pixels, self.data.label_y, device
        )
        x = initial_particles(
            self.plan, mosaics, self.shard.count, y, self.particle_noise, device
        )
        if is_known is not None:
            encoded = _encode_to_complete(self.fit, self.shard)
            x = torch.where(is_known, encoded, x)
        return self.flow_conditions.cloud(x, self.ranks)

    def _inverse_sample_sizes(self) -> tuple[float, ...]:
        """Numbers, one for each class, to which the noise of maps is proportional."""
        plan = self.plan
        distinct = 1.0
        if plan.mirror:
            distinct = 0.5
        return inverse_sample_sizes(
            plan.n_moved_particles,
            self.data.n,
            y_p=self.flow_conditions.moved_y,
            y_q=self.flow_conditions.row_y,
            batch_size=plan.batch_size,
            distinct_share=distinct,
        )

    def target(self) -> DataTarget:
        """The pictures, dequantized anew for every stage or every step.

        The module `batching` explains how they are divided among stages or steps.
        """
        every_step = self.plan.options.dequantize_every == "step"
        if self.picture_parts:
            return DataTarget(self._load_part, reloads_every_step=every_step)
        return DataTarget(self._load_all, self._load_batches, every_step)

    def _dequantizing_seed(self, step: Step) -> Seed:
        """The seed of the fractions that a step adds to pixel values."""
        seed = self.seed.child("data", step.stage_index)
        if self.plan.options.dequantize_every == "step":
            return seed.child(step.step_index)
        return seed

    def _load_all(self, step: Step) -> Cloud:
        """All pictures of this rank."""
        return self._with_flow_y(self.data.cloud(self._dequantizing_seed(step)))

    def _load_part(self, step: Step) -> Cloud:
        """The part of the pictures whose turn it is in a stage, sorted by class."""
        part = step.stage_index % len(self.picture_parts)
        indices = self.picture_parts[part]
        pictures = self._with_flow_y(
            self.data.cloud(self._dequantizing_seed(step), indices)
        )
        if isinstance(pictures.y, SeparateClassIndices):
            return replace(pictures, y=pictures.y.of_sorted_points())
        return pictures

    def _with_flow_y(self, pictures: Cloud) -> Cloud:
        """The pictures with what the flow sees of their classes."""
        sharing = self.plan.map_sharing
        y = flow_y(pictures.y, sharing, self.data.condition_dim)
        return replace(pictures, y=y)

    def _load_batches(self) -> Batches:
        """The particles and pictures that each step uses, of all that there are."""
        y_p = self.flow_conditions.moved_y
        y_q = self.flow_conditions.row_y
        if self.ranks.size > 1:
            return batches_of_all_points(self.data, y_p=y_p, y_q=y_q)
        seed = self.seed.child("batches")
        return batches_of_steps(self.plan, self.data, seed, y_p=y_p, y_q=y_q)

    def result(self, finished_flow: FinishedFlow) -> FitResult[FittedPictures]:
        """What the fit gives, once the particles have arrived."""
        x = self.flow_conditions.kept_cloud(self.particles.x, self.ranks).x
        steps = finished_flow.state.model_steps
        fitted = FittedPictures(
            plan=self.plan,
            seed=self.seed,
            steps=tuple(step.without_identity_maps() for step in steps),
            conditions=self.data.conditions,
            known=self.fit.known,
            mosaic_pixels=self.mosaic_pixels,
            device=self.data.device,
        )
        y = self.flow_conditions.kept_user_y
        if y is not None:
            y = y[self.ranks.own_shard(self.flow_conditions.n_kept).slice]
        return FitResult(
            fitted,
            finished_flow.history.as_columns(),
            _copy_warning(self.fit, x),
            ParticleResult(self.data.layout.write(x), y),
        )


def _encode_to_complete(fit: TunedPictureFit, shard: Shard) -> Tensor:
    """The values (d, n) of the pictures that this rank's particles complete.

    Their known pixels do not move. Kept particles use each picture equally often, and
    so do the others.
    """
    data = fit.data
    n_kept = fit.plan.n_particles
    seed = fit.seed.child("conditions")
    pictures_of_kept = even_indices(data.n, n_kept, seed)
    pictures_of_others = even_indices(
        data.n, shard.total - n_kept, seed.child("further")
    )
    indices = torch.cat((pictures_of_kept, pictures_of_others))[shard.slice]
    pixel_points = data.gather_pictures(indices.to(data.device), fit.ranks)
    return data.layout.encode(
        pixel_points,
        fit.seed.child("observed"),
        n_total=shard.total,
        index_slices=[shard.slice],
    )


def _copy_warning(fit: TunedPictureFit, x: Tensor) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy pictures, else None.

    Two kinds of fits are not checked. On several ranks, none has all pictures. And
    particles with known pixels copy these.
    """
    if fit.ranks.size > 1 or fit.known is not None:
        return None
    layout = replace(fit.data.layout, tensor=False)
    particles = np.asarray(layout.write(x)).reshape(x.shape[1], -1)
    n = fit.data.pixel_points.shape[1]
    pixels = fit.data.pixel_points.view(*layout.shape, n)
    rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
    evidence = evidence_of_copying([(rows, particles)], fit.plan.device)
    if not evidence:
        return None
    return CopyWarning(
        f"the particles copy rows of X ({evidence}); more shrinkage than "
        f"{fit.plan.shrinkage:.2g} (ImageOptions), or a lower quality, help"
    )
