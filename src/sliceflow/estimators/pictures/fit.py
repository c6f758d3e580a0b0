"""The fit of pictures: plan it, choose its start, move particles from coarse to fine.

`PictureAdapter` reads the user's pictures and plans their fit: a `PlannedPictureFit`.
Its `tune` chooses where particles start. It then runs as `RunningPictureFit`, which
holds the particles, the flow and the pictures that they move onto, for
`engine.flow.simulate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Mask
from sliceflow.base.checkpoints import Checkpoints
from sliceflow.base.distributed import across_ranks
from sliceflow.base.flow_estimator import run_flow
from sliceflow.base.particles import ParticleAllocation
from sliceflow.base.protocols import FinishedFlow, FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator, Shard
from sliceflow.base.rows import Conditions
from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES, even_indices
from sliceflow.engine.batches import Batches, Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, SeparateClassIndices
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import ParticleNoise, Step, flow_y, resolve_map_sharing
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import inverse_sample_sizes
from sliceflow.errors import CopyWarning, DataError, DataWarning, warn_user
from sliceflow.estimators.pictures import choices
from sliceflow.estimators.pictures.batching import (
    batches_of_all_points,
    batches_of_steps,
    choose_batch_size,
    divide_pictures,
)
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.known_parts import as_known
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import PicturePlan, plan_pictures
from sliceflow.estimators.pictures.rows import PictureData, PictureRows
from sliceflow.estimators.pictures.start_trial import needs_trial, noise_is_better
from sliceflow.metrics.copying import evidence_of_copying

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Reads pictures and plans their fit, for the parameters of one `ImageFlow`."""

    parameters: PictureParameters
    device: torch.device
    layout: Layout | None = None  # the layout of pictures; None infers it from them
    ranks: Communicator = ONE_PROCESS

    def read(self, X: Any, y: Any) -> PictureRows:
        """The user's pictures and labels, checked."""
        if y is not None and self.parameters.known is not None:
            raise DataError(
                "a flow can use labels or known pixels, not both", "choose one"
            )
        layout = self.layout
        if layout is None:
            layout = Layout.infer(X, self.parameters.n_pixel_values)
        pixels = layout.read(X)
        if layout.n_pixel_values is None:
            dtype = np.promote_types(layout.dtype, np.float32)
            pixels = pixels.astype(dtype, copy=False)
        elif self.layout is None:
            _warn_if_dark(pixels, layout.n_pixel_values)

        labels = None
        kind = str(layout)
        if y is not None:
            labels = _as_labels(y, len(pixels))
            kind += " and labels"
        shard = None
        if self.ranks.size > 1:
            shard = self.ranks.shard_by_counts(len(pixels), kind)
        conditions = None
        if labels is not None:
            all_labels = self.ranks.all_gather_rows(labels)
            conditions = Conditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, conditions, shard)

    def plan_fit(self, rows: PictureRows, seed: Seed) -> PlannedPictureFit:
        """What a fit of these pictures will do; an error if that is impossible."""
        parameters = self.parameters
        data = PictureData.from_rows(rows, self.device, parameters.mirror)
        m = choices.choose_n_picture_particles(
            parameters, data.n, data.n_classes, self.ranks.size, self.device
        )
        amplifier = parameters.amplifier
        n_clusters = self._choose_n_clusters(data, m)
        if n_clusters > 1:
            data = data.with_clusters(n_clusters, seed.child("data"), self.ranks)
            amplifier = math.inf  # clusters have separate maps
        amplifier = choices.choose_amplifier(
            amplifier, parameters.transport, m, data.n, data.n_classes
        )

        allocation = self._allocate_particles(data, m, amplifier, seed)
        known = None
        if parameters.known is not None:
            known = as_known(parameters.known, data.layout).copy()
        plan = plan_pictures(
            data, parameters, allocation, amplifier, self.device, self.ranks
        )
        plan = replace(plan, batch_size=choose_batch_size(plan, self.device))
        self._require_memory(plan, data)
        return PlannedPictureFit(plan, rows, seed, self, data, allocation, known)

    def with_parameters(self, parameters: PictureParameters) -> PictureAdapter:
        """An adapter for other parameters, on the same device and ranks."""
        return replace(self, parameters=parameters)

    @property
    def _stores_maps(self) -> bool:
        """Whether the fit keeps its maps, to draw samples later."""
        return self.parameters.options.n_knots != 0

    def _allocate_particles(
        self, data: PictureData, m: int, amplifier: float, seed: Seed
    ) -> ParticleAllocation:
        """The particles, with classes or clusters in the data's proportions."""
        if data.conditions is None:
            n_flow_particles = max(m, MIN_PARTICLES) if self._stores_maps else m
            return ParticleAllocation(m, n_flow_particles)
        conditions_seed = seed.child("conditions")
        return ParticleAllocation.in_proportion(
            data.conditions,
            m,
            resolve_map_sharing(amplifier, data.n_classes),
            conditions_seed,
            conditions_seed.child("mixed"),
            self._stores_maps,
        )

    def _choose_n_clusters(self, data: PictureData, m: int) -> int:
        """How many clusters the pictures are divided into; 1 does not divide them.

        Pictures with labels or with known pixels have no clusters.
        """
        if data.conditions is not None or self.parameters.known is not None:
            return 1
        return choices.choose_n_clusters(
            self.parameters, m, data.n, data.layout.shape, self.device
        )

    def _require_memory(self, plan: PicturePlan, data: PictureData) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        n_shard = data.pixel_points.shape[1]
        m_shard = self.ranks.own_shard(plan.n_flow_particles).count
        what = (
            f"{m_shard} moving particles, for n_particles={plan.n_particles}, "
            f"{n_shard} pictures of {plan.layout.dimension} values and a model of "
            f"{plan.n_steps} steps need"
        )
        hint = "lower n_particles, steps_per_stage or n_knots (0 keeps no model)"
        nbytes = plan.fit_bytes(n_shard, m_shard)
        require_memory(nbytes, self.device, what, hint)


@dataclass(frozen=True)
class PlannedPictureFit:
    """A planned fit of pictures. No particle has moved yet."""

    plan: PicturePlan
    rows: PictureRows  # the user's, checked
    seed: Seed
    adapter: PictureAdapter  # which planned it, and plans the trials of its start
    data: PictureData  # the rows on the device, with mirror images and clusters
    allocation: ParticleAllocation
    known: Mask | None  # (h, w), True where a pixel is known
    checkpoints: Checkpoints | None = None

    @property
    def ranks(self) -> Communicator:
        """Those that take part."""
        return self.adapter.ranks

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedPictureFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedPictures]:
        """Choose where particles start, if that is open, move them, finish the fit.

        The flow goes on where a checkpoint ended, if there is one.
        """
        running = RunningPictureFit(self.tune())
        return run_flow(running, listeners, self.ranks, self.checkpoints)

    def tune(self) -> PlannedPictureFit:
        """This fit, planned anew if trials choose that particles start as noise."""
        if not needs_trial(self.plan, self.ranks.size) or not noise_is_better(self):
            return self
        parameters = self.adapter.parameters
        options = replace(parameters.options, start="noise")
        with_noise = replace(parameters, options=options)
        return self.adapter.with_parameters(with_noise).plan_fit(self.rows, self.seed)


class RunningPictureFit:
    """The fit of pictures while it runs: the particles, and all that moves them."""

    def __init__(self, planned_fit: PlannedPictureFit) -> None:
        self.planned_fit = planned_fit
        self.plan = planned_fit.plan
        self.data = planned_fit.data
        self.seed = planned_fit.seed
        self.ranks = planned_fit.ranks
        self.allocation = planned_fit.allocation

        # This rank's particles among those of all ranks.
        self.shard = self.ranks.own_shard(self.plan.n_flow_particles)
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
        is_known = self.data.layout.repeat_for_channels(planned_fit.known, device)
        self.particles = self._initial_particles(is_known)
        builder = PictureFlowBuilder(self.plan, self.seed, device, is_known)
        spec = builder.flow_spec(self._inverse_sample_sizes())
        if self.ranks.size > 1:
            spec = across_ranks(spec, self.ranks)
        self.spec = spec

    def _initial_particles(self, is_known: Tensor | None) -> Cloud:
        """This rank's particles at their start, with the known pixels of pictures."""
        device = self.data.device
        y = self.allocation.own_y(self.ranks, device)
        assert y is None or isinstance(y, ClassIndices), "pictures have labels"
        mosaics = build_mosaics(
            self.plan, self.mosaic_pixels, self.data.label_y, device
        )
        x = initial_particles(
            self.plan, mosaics, self.shard.count, y, self.particle_noise, device
        )
        if is_known is not None:
            encoded = _encode_to_complete(self.planned_fit, self.shard)
            x = torch.where(is_known, encoded, x)
        return self.allocation.cloud(x, self.ranks)

    def _inverse_sample_sizes(self) -> tuple[float, ...]:
        """Numbers, one for each class, to which the noise of maps is proportional."""
        plan = self.plan
        distinct = 1.0
        if plan.mirror:
            distinct = 0.5
        return inverse_sample_sizes(
            plan.n_flow_particles,
            self.data.n,
            y_p=self.allocation.particle_y,
            y_q=self.allocation.row_y,
            batch_size=plan.batch_size,
            distinct_share=distinct,
        )

    def target(self) -> Target:
        """The pictures, dequantized anew for every stage or every step.

        The module `batching` explains how they are divided among stages or steps.
        """
        every_step = self.plan.options.dequantize_every == "step"
        if self.picture_parts:
            return Target(self._load_part, reloads_every_step=every_step)
        return Target(self._load_all, self._load_batches, every_step)

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
        y_p = self.allocation.particle_y
        y_q = self.allocation.row_y
        if self.ranks.size > 1:
            return batches_of_all_points(self.data, y_p=y_p, y_q=y_q)
        seed = self.seed.child("batches")
        return batches_of_steps(self.plan, self.data, seed, y_p=y_p, y_q=y_q)

    def result(self, finished_flow: FinishedFlow) -> FitResult[FittedPictures]:
        """What the fit gives, once the particles have arrived."""
        x = self.allocation.kept_cloud(self.particles.x, self.ranks).x
        steps = finished_flow.state.model_steps
        fitted = FittedPictures(
            plan=self.plan,
            seed=self.seed,
            steps=tuple(step.without_identity_maps() for step in steps),
            conditions=self.data.conditions,
            known=self.planned_fit.known,
            mosaic_pixels=self.mosaic_pixels,
            device=self.data.device,
        )
        y = self.allocation.kept_user_y
        if y is not None:
            y = y[self.ranks.own_shard(self.allocation.n_particles).slice]
        return FitResult(
            fitted,
            finished_flow.history.as_columns(),
            _copy_warning(self.planned_fit, x),
            ParticleResult(self.data.layout.write(x), y),
        )


def _encode_to_complete(planned_fit: PlannedPictureFit, shard: Shard) -> Tensor:
    """The values (d, n) of the pictures that this rank's particles complete.

    Their known pixels do not move. Kept particles use each picture equally often, and
    so do the others.
    """
    data = planned_fit.data
    n_kept = planned_fit.plan.n_particles
    seed = planned_fit.seed.child("conditions")
    pictures_of_kept = even_indices(data.n, n_kept, seed)
    pictures_of_others = even_indices(
        data.n, shard.total - n_kept, seed.child("further")
    )
    indices = torch.cat((pictures_of_kept, pictures_of_others))[shard.slice]
    pixel_points = data.gather_pictures(indices.to(data.device), planned_fit.ranks)
    return data.layout.encode(
        pixel_points,
        planned_fit.seed.child("observed"),
        n_total=shard.total,
        index_slices=[shard.slice],
    )


def _copy_warning(planned_fit: PlannedPictureFit, x: Tensor) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy pictures, else None.

    Two kinds of fits are not checked. On several ranks, none has all pictures. And
    particles with known pixels copy these.
    """
    if planned_fit.ranks.size > 1 or planned_fit.known is not None:
        return None
    layout = replace(planned_fit.data.layout, tensor=False)
    particles = np.asarray(layout.write(x)).reshape(x.shape[1], -1)
    n = planned_fit.data.pixel_points.shape[1]
    pixels = planned_fit.data.pixel_points.view(*layout.shape, n)
    rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
    evidence = evidence_of_copying([(rows, particles)], planned_fit.plan.device)
    if not evidence:
        return None
    return CopyWarning(
        f"the particles copy rows of X ({evidence}); more shrinkage than "
        f"{planned_fit.plan.shrinkage:.2g} (ImageOptions), or a lower quality, help"
    )


def _warn_if_dark(pixels: NDArray[Any], n_pixel_values: int) -> None:
    """Warn if integer pixels probably have fewer values than `n_pixel_values`."""
    brightest = int(pixels.max())
    if 0 < brightest < n_pixel_values // DARK_DIVISOR:
        warning = DataWarning(
            f"the brightest pixel is {brightest}, but pixels may have "
            f"{n_pixel_values} values",
            f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}",
        )
        warn_user(warning)


def _as_labels(y: Any, n: int) -> NDArray[Any]:
    """The labels of n pictures as an array (n,)."""
    labels = np.atleast_1d(as_array(y, "labels"))
    if len(labels) != n:
        raise DataError(
            f"there are {n} pictures but {len(labels)} labels",
            "pass one label per picture",
        )
    if labels.ndim != 1:
        raise DataError(
            f"labels have shape {labels.shape}", "pass one class label per picture"
        )
    return labels
