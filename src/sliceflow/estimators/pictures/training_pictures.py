"""The pictures onto which the particles of a fit move.

They are dequantized anew for every stage or every step. The module `batching` explains
how they are divided among stages or steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sliceflow.base.particle_allocation import ParticleAllocation
from sliceflow.engine.batches import Batches, DataTarget
from sliceflow.engine.clouds import Cloud, SortedSelection
from sliceflow.engine.encoded_y import SeparateClassIndices, SortedClassIndices
from sliceflow.engine.flow import Step, as_flow_y
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.batching import (
    batches_of_all_points,
    batches_of_steps,
    divide_pictures,
)
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import DevicePictures


@dataclass(frozen=True, eq=False)
class TrainingPictures:
    """Loads the pictures of a fit for its steps, all of them or in parts."""

    plan: PicturePlan
    pictures: DevicePictures
    seed: Seed  # of the fit
    allocation: ParticleAllocation

    def target(self) -> DataTarget:
        """What the particles move onto: all pictures, or a part for each stage."""
        reloads_every_step = self.plan.options.dequantize_every == "step"
        if self.parts:
            return DataTarget(self.load_part, reloads_every_step=reloads_every_step)
        return DataTarget(self.load_all, self.make_batches, reloads_every_step)

    @cached_property
    def parts(self) -> list[SortedSelection]:
        """The parts of the pictures that stages use in turn.

        The list is empty if every stage uses all pictures.
        """
        return divide_pictures(self.plan, self.pictures, self._batch_seed)

    def load_all(self, step: Step) -> Cloud:
        """Encode all pictures of this rank for a step."""
        cloud = self.pictures.cloud(self._dequantizing_seed(step))
        return self._with_flow_y(cloud)

    def load_part(self, step: Step) -> Cloud:
        """Encode the part of the pictures whose turn it is in the stage of a step.

        They are sorted by class if classes have separate maps.
        """
        part = self.parts[step.stage_index % len(self.parts)]
        cloud = self.pictures.cloud(self._dequantizing_seed(step), part.indices)
        cloud = self._with_flow_y(cloud)
        y = cloud.y
        if isinstance(y, SeparateClassIndices):
            sorted_y = SortedClassIndices(y.values, y.n_classes, part.class_slices)
            return replace(cloud, y=sorted_y)
        return cloud

    def make_batches(self) -> Batches:
        """Choose the particles and pictures that each step uses, of all there are."""
        pictures = self.pictures
        y_p = self.allocation.moved_y
        y_q = self.allocation.row_y
        if self.plan.n_ranks > 1:
            return batches_of_all_points(pictures, y_p=y_p, y_q=y_q)
        return batches_of_steps(self.plan, pictures, self._batch_seed, y_p=y_p, y_q=y_q)

    @property
    def _batch_seed(self) -> Seed:
        return self.seed.child("batches")

    def _dequantizing_seed(self, step: Step) -> Seed:
        """The seed of the fractions that a step adds to pixel values."""
        stage_seed = self.seed.child("data", step.stage_index)
        if self.plan.options.dequantize_every == "step":
            return stage_seed.child(step.step_index)
        return stage_seed

    def _with_flow_y(self, cloud: Cloud) -> Cloud:
        """The pictures with what the flow sees of their classes."""
        condition_dim = self.pictures.condition_dim
        y = as_flow_y(cloud.y, self.plan.map_sharing, condition_dim)
        return replace(cloud, y=y)
