"""The fit of pictures: particles move onto them from coarse to fine.

A `PictureTask` is a planned fit, which `adapter` makes. It runs as `RunningPictures`,
which holds the particles, the flow and the pictures that the particles move onto, for
`engine.flow.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Mask
from sliceflow.engine.allocation import even_indices
from sliceflow.engine.batches import Batches, Target
from sliceflow.engine.clouds import ClassSlices, Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import ParticleStreams, Step
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import inverse_sample_sizes
from sliceflow.errors import CopyWarning
from sliceflow.metrics.copying import evidence_of_copying
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.distributed import across_ranks
from sliceflow.models.flow_estimator import FlowEnd, run_flow
from sliceflow.models.particles import ParticleAllocation
from sliceflow.models.protocols import FitResult, ParticleResult
from sliceflow.models.ranks import Communicator, Shard
from sliceflow.spaces.pictures.batching import (
    divide_among_stages,
    divide_among_steps,
    use_all_points,
)
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.flow_builder import PictureFlowBuilder
from sliceflow.spaces.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows
from sliceflow.spaces.pictures.start_trial import StartTrial


@dataclass(frozen=True)
class PictureTask:
    """A planned fit of pictures. No particle has moved yet."""

    plan: PicturePlan
    rows: PictureRows  # as the user passed them
    data: PictureData  # the same, with mirror images and clusters
    allocation: ParticleAllocation
    known: Mask | None  # (h, w), True where a pixel is known
    seed: Seed
    ranks: Communicator
    start_trial: StartTrial | None  # decides where the particles of few pictures start
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PictureTask:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedPictures]:
        """Move the particles, or go on where a checkpoint ended, and finish the fit.

        Where they start is chosen before, if that is open.
        """
        task = self.tune()
        flow = RunningPictures(task)
        with run_flow(flow, listeners, self.ranks, self.checkpoints) as flow_end:
            result = flow.result(flow_end)
        return result

    def tune(self) -> PictureTask:
        """This fit, in which a trial has chosen where particles start."""
        if self.start_trial is None:
            return self
        return self.start_trial.run(self)


class RunningPictures:
    """The fit of pictures while it runs: the particles, and all that moves them."""

    def __init__(self, task: PictureTask) -> None:
        plan = task.plan
        data = task.data
        self.task = task
        self.shard = task.ranks.shard(plan.n_flow_particles)  # this rank's particles
        self.particle_streams = ParticleStreams(
            task.seed.child("particles"), self.shard.first
        )
        # The y of all particles and of all pictures on the device of the fit; None if
        # the flow ignores it.
        self.particle_y = task.allocation.flow_y
        self.picture_y = data.flow_y(plan.condition_use)
        if self.particle_y is not None and self.picture_y is not None:
            self.particle_y = self.particle_y.to(data.device)
            self.picture_y = self.picture_y.to(data.device)

        # The indices of the pictures that each stage uses, in turn. An empty list if
        # every stage uses all pictures.
        self.stage_indices = divide_among_stages(plan, data, task.seed.child("batches"))

        # The pictures of which mosaics are made; None if particles start as noise.
        self.mosaic_pixels: Tensor | None = None
        if plan.mosaic_size:
            self.mosaic_pixels = stored_pictures(data, task.ranks)

        is_known = data.layout.repeat_for_channels(task.known, data.device)
        self.particles = self._initial_particles(is_known)
        builder = PictureFlowBuilder(plan, task.seed, data.device, is_known)
        self.spec = builder.flow(self._inverse_sample_sizes())
        if task.ranks.size > 1:
            self.spec = across_ranks(self.spec, task.ranks)

    def _initial_particles(self, is_known: Tensor | None) -> Cloud:
        """This rank's particles at their start, with the known pixels of pictures."""
        plan = self.task.plan
        device = self.task.data.device
        y = None
        if self.particle_y is not None:
            assert isinstance(self.particle_y, ClassIndices), "pictures have labels"
            y = self.particle_y.take(self.shard.slice)
        classes = self.task.data.label_y
        mosaics = build_mosaics(plan, self.mosaic_pixels, classes, device)
        x = initial_particles(
            plan, mosaics, self.shard.count, y, self.particle_streams, device
        )
        if is_known is not None:
            encoded = _encode_to_complete(self.task, self.shard)
            x = torch.where(is_known, encoded, x)
        if y is None:
            return Cloud(x)
        return self.task.allocation.cloud(x, self.task.ranks)

    def _inverse_sample_sizes(self) -> tuple[float, ...]:
        """Numbers, one for each class, to which the noise of maps is proportional."""
        plan = self.task.plan
        distinct = 1.0
        if plan.mirror:
            distinct = 0.5
        return inverse_sample_sizes(
            plan.n_flow_particles,
            self.task.data.n,
            y_p=self.particle_y,
            y_q=self.picture_y,
            max_samples=plan.batch_size,
            distinct_share=distinct,
        )

    def target(self) -> Target:
        """The pictures, dequantised anew for every stage or every step."""
        every_step = self.task.plan.options.dequantize_every == "step"
        return Target(self._load_data, self._load_batches, every_step)

    def _load_data(self, step: Step) -> Cloud:
        """The pictures of a step."""
        task = self.task
        seed = task.seed.child("data", step.stage_index)
        if task.plan.options.dequantize_every == "step":
            seed = seed.child(step.step_index)
        if self.stage_indices:
            return self._pictures_of_stage(step.stage_index, seed)
        return task.data.cloud(seed)

    def _pictures_of_stage(self, stage_index: int, seed: Seed) -> Cloud:
        """The part of the pictures whose turn it is in a stage, sorted by class."""
        indices = self.stage_indices[stage_index % len(self.stage_indices)]
        cloud = self.task.data.cloud(seed, indices)
        n_classes = self.task.plan.n_separate_classes
        if n_classes == 0 or not isinstance(cloud.y, ClassIndices):
            return cloud
        class_slices = ClassSlices.from_class_indices(cloud.y, n_classes)
        return replace(cloud, class_slices=class_slices)

    def _load_batches(self) -> Batches:
        """The particles and pictures that each step uses.

        The module `batching` explains which limit decides.
        """
        if self.stage_indices:
            return Batches()  # a step uses all pictures of its stage
        plan = self.task.plan
        data = self.task.data
        y_p = self.particle_y
        y_q = self.picture_y
        if self.task.ranks.size > 1:
            slices_p = self.particles.class_slices
            return use_all_points(plan, data, slices_p, y_p=y_p, y_q=y_q)
        seed = self.task.seed.child("batches")
        return divide_among_steps(plan, data, seed, y_p=y_p, y_q=y_q)

    def result(self, flow_end: FlowEnd) -> FitResult[FittedPictures]:
        """What the fit gives, once the particles have arrived."""
        task = self.task
        data = task.data
        allocation = task.allocation
        x = allocation.kept_cloud(self.particles.x, task.ranks).x
        steps = flow_end.state.model_steps
        fitted = FittedPictures(
            plan=task.plan,
            seed=task.seed,
            steps=tuple(step.without_identity_maps() for step in steps),
            conditions=data.conditions,
            known=task.known,
            mosaic_pixels=self.mosaic_pixels,
            device=data.device,
        )
        y = allocation.kept_conditions
        if y is not None:
            y = y[task.ranks.shard(allocation.n_kept).slice]
        return FitResult(
            fitted,
            flow_end.history.as_columns(),
            _copy_warning(task, x),
            ParticleResult(data.layout.write(x), y),
        )


def _encode_to_complete(task: PictureTask, shard: Shard) -> Tensor:
    """The values (d, n) of the pictures that this rank's particles complete.

    Their known pixels do not move. Kept particles use each picture equally often, and
    so do the others.
    """
    data = task.data
    n_kept = task.plan.n_particles
    seed = task.seed.child("conditions")
    pictures_of_kept = even_indices(data.n, n_kept, seed)
    pictures_of_others = even_indices(
        data.n, shard.total - n_kept, seed.child("further")
    )
    indices = torch.cat((pictures_of_kept, pictures_of_others))[shard.slice]
    pixel_points = data.gather_pictures(indices.to(data.device), task.ranks)
    return data.layout.encode(
        pixel_points,
        task.seed.child("observed"),
        n_total=shard.total,
        index_slices=[shard.slice],
    )


def _copy_warning(task: PictureTask, x: Tensor) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy pictures, else None.

    Two kinds of fits are not checked. On several ranks, none has all pictures. And
    particles with known pixels copy these.
    """
    if task.ranks.size > 1 or task.known is not None:
        return None
    layout = replace(task.data.layout, tensor=False)
    particles = np.asarray(layout.write(x)).reshape(x.shape[1], -1)
    n = task.data.pixel_points.shape[1]
    pixels = task.data.pixel_points.view(*layout.shape, n)
    rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
    evidence = evidence_of_copying([(rows, particles)], task.plan.device)
    if not evidence:
        return None
    return CopyWarning(
        f"the particles copy rows of X ({evidence}); more shrinkage than "
        f"{task.plan.shrinkage:.2g} (ImageOptions), or a lower quality, help"
    )
