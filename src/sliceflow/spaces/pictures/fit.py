"""The fit of pictures: plan it, then move the particles from coarse to fine.

`PictureAdapter` reads the user's pictures and plans their fit: `PictureTask`. The
planned fit runs as `RunningPictures`, which holds the particles, the flow and the
pictures that the particles move onto, for `engine.flow.simulate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Mask
from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES, even_indices
from sliceflow.engine.batches import Batches, Target
from sliceflow.engine.clouds import ClassSlices, Cloud
from sliceflow.engine.conditions import condition_use
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.events import Listener
from sliceflow.engine.flow import FlowState, ParticleStreams
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates
from sliceflow.errors import CopyWarning, DataError, DataWarning, warn_user
from sliceflow.metrics.copying import evidence_of_copying
from sliceflow.models.distributed import across_ranks
from sliceflow.models.flow_estimator import ParticleTask
from sliceflow.models.particles import (
    ParticleConditions,
    ParticleOrder,
    select_particles,
)
from sliceflow.models.protocols import FitResult, ParticleResult, RunningFlow
from sliceflow.models.ranks import SINGLE, Ranks, Shard
from sliceflow.models.rows import RowConditions
from sliceflow.spaces.pictures import plan as plans
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.batching import (
    choose_batch_size,
    divide_among_stages,
    divide_among_steps,
    use_all_points,
)
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.flow_builder import PictureFlowBuilder
from sliceflow.spaces.pictures.layout import Layout, as_mask
from sliceflow.spaces.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.spaces.pictures.parameters import PictureParameters
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows
from sliceflow.spaces.pictures.start_trial import StartTrial, needs_trial
from sliceflow.validation import require

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Reads pictures and plans their fit, for the parameters of one `ImageFlow`."""

    parameters: PictureParameters
    device: torch.device
    layout: Layout | None = None  # that pictures must have; None takes theirs
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> PictureRows:
        """The user's pictures and labels, checked."""
        if y is not None and self.parameters.observed is not None:
            raise DataError(
                "a flow can use labels or observed pixels, not both", "choose one"
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
            shard = self.ranks.gather_shard(len(pixels), kind)
        row_conditions = None
        if labels is not None:
            all_labels = self.ranks.gather(labels)
            row_conditions = RowConditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, row_conditions, shard)

    def make_task(self, rows: PictureRows, seed: Seed) -> PictureTask:
        """What a fit of these pictures will do; an error if that is impossible."""
        parameters = self.parameters
        data = PictureData.from_rows(rows, self.device, parameters.mirror)
        m = self._choose_particles(data)
        clustered = self._with_clusters(data, m, seed)
        amplifier = parameters.amplifier
        if clustered is not data:
            amplifier = math.inf  # clusters have separate maps
        data = clustered
        amplifier = plans.choose_amplifier(
            amplifier, parameters.transport, m, data.n, data.condition_dim
        )

        has_model = parameters.options.n_knots != 0
        particle_conditions = None
        n_flow_particles = m
        if has_model:
            n_flow_particles = max(m, MIN_PARTICLES)
        if data.conditions is not None:
            conditions_seed = seed.child("conditions")
            particle_conditions = ParticleConditions.in_proportion(
                data.conditions,
                m,
                condition_use(amplifier, data.condition_dim),
                conditions_seed,
                conditions_seed.child("mixed"),
                has_model,
            )
            n_flow_particles = len(particle_conditions.encoded_y)

        known = None
        if parameters.observed is not None:
            known = as_mask(parameters.observed, data.layout).copy()
        plan = self._plan(data, m, n_flow_particles, amplifier)
        plan = replace(plan, batch_size=choose_batch_size(plan, self.device))
        self._require_memory(plan, data)
        start_trial = None
        if needs_trial(plan, self.ranks.size):
            start_trial = StartTrial(self, rows, seed)
        return PictureTask(
            plan,
            data,
            particle_conditions,
            known,
            seed,
            start_trial,
            ranks=self.ranks,
        )

    def _choose_particles(self, data: PictureData) -> int:
        """The number of particles to keep."""
        m = plans.choose_particles(self.parameters, data.n, self.device)
        minimum = max(self.ranks.size, data.condition_dim)
        require(
            m >= minimum,
            "n_particles",
            m,
            f"at least {minimum}, one for each class and rank",
        )
        return m

    def _with_clusters(self, data: PictureData, m: int, seed: Seed) -> PictureData:
        """The pictures with clusters, or the same pictures if they get none.

        Pictures with labels or with observed pixels have no clusters.
        """
        if data.conditions is not None or self.parameters.observed is not None:
            return data
        k = plans.choose_clusters(
            self.parameters, m, data.n, data.layout.shape, self.device
        )
        if k == 1:
            return data
        return data.with_clusters(k, seed.child("data"), self.ranks)

    def _plan(
        self, data: PictureData, m: int, n_flow_particles: int, amplifier: float
    ) -> PicturePlan:
        """The plan of a fit that keeps m particles, still without its batch size."""
        parameters = self.parameters
        options = parameters.options
        layout = data.layout
        n_classes = data.condition_dim
        is_observed = parameters.observed is not None
        use = condition_use(amplifier, n_classes)
        mosaic_size = plans.choose_mosaic_size(
            options.start, layout, use == "shared", is_observed
        )
        is_joint = use != "separate" and mosaic_size == 0
        n_steps = plans.steps_per_stage(parameters.quality, is_joint, self.device)

        n_points = data.n + n_flow_particles
        n_distinct_per_map = float(data.n)
        if data.mirrored:
            n_distinct_per_map /= 2
        if use == "separate":
            n_points = data.n + m  # as `choose_amplifier` counted them
            n_distinct_per_map /= n_classes
        return PicturePlan(
            device=str(self.device),
            n_ranks=self.ranks.size,
            n_pictures=data.n,
            layout=layout,
            mirror=data.mirrored,
            n_particles=m,
            n_flow_particles=n_flow_particles,
            condition_kind=_condition_kind(data, is_observed),
            condition_dim=n_classes,
            amplifier=amplifier,
            stages=self._stages(layout, n_steps),
            patch_basis=plans.choose_patch_basis(
                parameters.patch_basis, data, self.ranks
            ),
            n_directions=plans.choose_directions(options.n_directions, layout),
            transport=plans.choose_picture_transport(
                parameters.transport, use, n_points, self.ranks.size
            ),
            n_knots=plans.choose_knots(options.n_knots, m, use, n_classes),
            mosaic_size=mosaic_size,
            shrinkage=plans.choose_shrinkage(
                options.shrinkage, n_distinct_per_map, n_steps, mosaic_size > 0
            ),
            options=options,
        )

    def _stages(
        self, layout: Layout, n_steps: int
    ) -> tuple[schedules.PictureStage, ...]:
        """The stages that the parameter `schedule` says."""
        channels, height, width = layout.shape
        text = self.parameters.schedule
        if text == "auto":
            text = schedules.auto(height, width, channels)
        elif text == "paper":
            text = schedules.paper(height, width)
        return tuple(schedules.from_string(text, height, width, n_steps))

    def _require_memory(self, plan: PicturePlan, data: PictureData) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        n_local = data.pixels.shape[1]
        m_local = self.ranks.shard(plan.n_flow_particles).count
        what = (
            f"n_particles={plan.n_particles}, for which {m_local} move here, {n_local} "
            f"pictures of {plan.layout.dimension} "
            f"values and a model of {plan.n_steps} steps need"
        )
        hint = "lower n_particles, quality or n_knots (0 keeps no model)"
        nbytes = plan.fit_bytes(n_local, m_local)
        require_memory(nbytes, self.device, what, hint)


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


def _condition_kind(
    data: PictureData, is_observed: bool
) -> Literal["none", "labels", "clusters", "observed"]:
    """What the flow is conditioned on."""
    if is_observed:
        return "observed"
    if data.conditions is None:
        return "none"
    if data.conditions.encoder.is_inferred:
        return "clusters"
    return "labels"


@dataclass(frozen=True)
class PictureTask(ParticleTask[FittedPictures]):
    """A planned fit of pictures. No particle has moved yet."""

    plan: PicturePlan
    data: PictureData  # with mirror images and clusters
    particle_conditions: ParticleConditions | None
    observed: Mask | None  # (h, w), True where a pixel is known
    seed: Seed
    start_trial: StartTrial | None  # decides where the particles of few pictures start

    def start(self) -> RunningFlow[FittedPictures]:
        """Choose where particles start, if that is open, and put them there."""
        task = self
        if self.start_trial is not None:
            task = self.start_trial.choose(self)
        running = RunningPictures(task)
        return RunningFlow(
            flow=running.flow,
            particles=running.particles,
            particle_rng=running.particle_rng,
            target=running.target(),
            finish=running.finish,
        )


@dataclass(frozen=True)
class _Classes:
    """The classes of particles and pictures on the device of a fit, or None."""

    order: ParticleOrder  # of the particles in the flow
    y_p: ClassIndices | None = None  # of all particles, in this order
    y_q: ClassIndices | None = None  # of all pictures

    @classmethod
    def from_fit(cls, task: PictureTask, shard: Shard) -> _Classes:
        """The classes of a planned fit; this rank has a `shard` of the particles."""
        particles = task.particle_conditions
        picture_y = task.data.class_indices
        if particles is None or picture_y is None:
            return cls(ParticleOrder())
        order = ParticleOrder.from_conditions(
            particles, task.plan.n_separate_classes, shard
        )
        assert isinstance(order.y, ClassIndices), "pictures have labels"
        device = task.data.device
        return cls(order, order.y.to(device), picture_y.to(device))


class RunningPictures:
    """The fit of pictures while it runs: the particles, and all that moves them."""

    def __init__(self, task: PictureTask) -> None:
        plan = task.plan
        data = task.data
        self.task = task
        self.shard = task.ranks.shard(plan.n_flow_particles)  # this rank's particles
        self.particle_rng = ParticleStreams(
            task.seed.child("particles"), self.shard.first
        )
        self.classes = _Classes.from_fit(task, self.shard)

        # The indices of the pictures that each stage uses, in turn. An empty list if
        # every stage uses all pictures.
        self.stage_indices = divide_among_stages(plan, data, task.seed.child("batches"))
        self.batches = Batches()  # a step uses all pictures of its stage
        if not self.stage_indices:
            self.batches = _batches_of_steps(task, self.classes)

        # The pictures of which mosaics are made; None if particles start as noise.
        self.stored_pixels: Tensor | None = None
        if plan.mosaic_size:
            self.stored_pixels = stored_pictures(data, task.ranks)

        observed_mask = data.layout.observed_mask(task.observed, data.device)
        self.particles = self._initial_particles(observed_mask)
        builder = PictureFlowBuilder(plan, task.seed, data.device, observed_mask)
        self.flow = builder.flow(_noise_rates(task, self.classes))
        if task.ranks.size > 1:
            self.flow = across_ranks(self.flow, task.ranks)

    def _initial_particles(self, observed_mask: Tensor | None) -> Cloud:
        """This rank's particles at their start, with observed values where known."""
        plan = self.task.plan
        device = self.task.data.device
        y = None
        if self.classes.y_p is not None:
            y = self.classes.y_p.take(self.shard.slice)
        mosaics = build_mosaics(plan, self.stored_pixels, self.classes.y_q, device)
        x = initial_particles(
            plan, mosaics, self.shard.count, y, self.particle_rng, device
        )
        if observed_mask is not None:
            observed = _encode_observed(self.task, self.shard)
            x = torch.where(observed_mask, observed, x)
        return Cloud(x, y, self.classes.order.class_slices)

    def target(self) -> Target:
        """The pictures, dequantised anew for every stage or every step."""
        every_step = self.task.plan.options.dequantize_every == "step"
        task = self.task

        def load_data(stage_index: int, step_index: int) -> Cloud:
            seed = task.seed.child("data", stage_index)
            if every_step:
                seed = seed.child(step_index)
            if self.stage_indices:
                return self._pictures_of_stage(stage_index, seed)
            return task.data.cloud(seed).part(self.batches.order)

        return Target(load_data, self.batches, every_step)

    def _pictures_of_stage(self, stage_index: int, seed: Seed) -> Cloud:
        """The part of the pictures whose turn it is in a stage, sorted by class."""
        indices = self.stage_indices[stage_index % len(self.stage_indices)]
        cloud = self.task.data.cloud(seed, indices)
        n_classes = self.task.plan.n_separate_classes
        if n_classes == 0 or not isinstance(cloud.y, ClassIndices):
            return cloud
        class_slices = ClassSlices.from_class_indices(cloud.y, n_classes)
        return replace(cloud, class_slices=class_slices)

    def finish(
        self, state: FlowState, listeners: Sequence[Listener]
    ) -> FitResult[FittedPictures]:
        """What the fit gives, without its history."""
        task = self.task
        data = task.data
        m = task.plan.n_particles
        x = select_particles(
            self.particles.x,
            self.classes.order.flow_index,
            self.shard,
            m,
            task.ranks,
        )
        fitted = FittedPictures(
            plan=task.plan,
            seed=task.seed,
            steps=tuple(step.without_identity_maps() for step in state.steps),
            conditions=data.conditions,
            observed=task.observed,
            pixels=self.stored_pixels,
            device=data.device,
        )
        y = None
        particles = task.particle_conditions
        if particles is not None and particles.y is not None:
            y = particles.y[task.ranks.shard(m).slice]
        return FitResult(
            fitted,
            warning=_copy_warning(task, x),
            particles=ParticleResult(data.layout.write(x), y),
        )


def _batches_of_steps(task: PictureTask, classes: _Classes) -> Batches:
    """The particles and pictures that each step uses, if a stage uses all pictures.

    The module `batching` explains which limit decides.
    """
    plan = task.plan
    data = task.data
    if task.ranks.size > 1:
        return use_all_points(
            plan,
            data,
            classes.order.class_slices,
            y_p=classes.y_p,
            y_q=classes.y_q,
        )
    seed = task.seed.child("batches")
    return divide_among_steps(plan, data, seed, y_p=classes.y_p, y_q=classes.y_q)


def _encode_observed(task: PictureTask, shard: Shard) -> Tensor:
    """The values (d, n) of the pictures whose known pixels this rank's particles have.

    Kept particles use each picture equally often, and so do the others.
    """
    data = task.data
    n_kept = task.plan.n_particles
    seed = task.seed.child("conditions")
    pictures_of_kept = even_indices(data.n, n_kept, seed)
    pictures_of_others = even_indices(
        data.n, shard.total - n_kept, seed.child("further")
    )
    indices = torch.cat((pictures_of_kept, pictures_of_others))[shard.slice]
    pixels = data.gather_pictures(indices.to(data.device), task.ranks)
    return data.layout.encode(
        pixels,
        task.seed.child("observed"),
        n_total=shard.total,
        index_slices=[shard.slice],
    )


def _noise_rates(task: PictureTask, classes: _Classes) -> tuple[float, ...]:
    """What the noise of the maps is proportional to, for their shrinkage."""
    plan = task.plan
    y_p = None
    y_q = None
    if plan.condition_use != "none":
        y_p = classes.y_p
        y_q = classes.y_q
    distinct = 1.0
    if plan.mirror:
        distinct = 0.5
    return noise_rates(
        plan.n_flow_particles,
        task.data.n,
        y_p=y_p,
        y_q=y_q,
        n_classes=plan.n_separate_classes,
        max_samples=plan.batch_size,
        distinct=distinct,
    )


def _copy_warning(task: PictureTask, x: Tensor) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy pictures, else None.

    Two kinds of fits are not checked. On several ranks, none has all pictures. And
    particles with observed pixels are copies where these are known.
    """
    if task.ranks.size > 1 or task.observed is not None:
        return None
    layout = replace(task.data.layout, tensor=False)
    particles = np.asarray(layout.write(x)).reshape(x.shape[1], -1)
    n = task.data.pixels.shape[1]
    pixels = task.data.pixels.view(*layout.shape, n)
    rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
    evidence = evidence_of_copying([(rows, particles)], task.plan.device)
    if not evidence:
        return None
    return CopyWarning(
        f"the particles copy rows of X ({evidence}); more shrinkage than "
        f"{task.plan.shrinkage:.2g} (PictureOptions), or a lower quality, help"
    )
