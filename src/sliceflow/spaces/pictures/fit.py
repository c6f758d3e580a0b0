"""The fit of pictures: plan it, then move the particles level by level."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import total_memory
from sliceflow.engine import conditions
from sliceflow.engine.batches import (
    Batches,
    Target,
    divide,
    divide_per_class,
    even_parts,
    weighted_batches,
)
from sliceflow.engine.clouds import ClassSlices, Cloud, sort_by_class
from sliceflow.engine.events import Listener
from sliceflow.engine.flow import FlowState, Noise
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates
from sliceflow.errors import CopyWarning, DataError, require
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.fitting import run_flow
from sliceflow.models.particles import (
    ParticleConditions,
    count_moved,
    select_particles,
)
from sliceflow.models.protocols import FlowResult
from sliceflow.models.ranks import SINGLE, Ranks, across_ranks
from sliceflow.models.rows import RowConditions
from sliceflow.spaces.pictures import plan as plans
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import Layout, as_mask
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.mosaics import (
    build_mosaics,
    initial_particles,
    stored_pictures,
)
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows

# The fewest pictures that a step uses, whatever the memory, and the fewest on a CPU if
# pictures are encoded once per stage.
MIN_BATCH = 4096
MIN_CPU_BATCH = 10_000
# A step's projections may take this share of all memory of the device.
CPU_MEMORY_SHARE = 8
GPU_MEMORY_SHARE = 4

# Integer pixels that all are below this share of the possible values are probably of
# another range than the user said.
DARK_SHARE = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Pictures, for one estimator."""

    parameters: Mapping[str, Any]  # the estimator's checked ones; `options` never None
    device: torch.device
    layout: Layout | None = None  # that pictures must have; None takes theirs
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> PictureRows:
        """The user's pictures and labels, checked."""
        if y is not None and self.parameters["observed"] is not None:
            fact = "a flow can use labels or observed pixels, not both"
            raise DataError(fact, "choose one")
        layout = self.layout
        if layout is None:
            layout = Layout.infer(X, self.parameters["n_pixel_values"])
        pixels = layout.read(X)
        if layout.n_pixel_values is None:
            dtype = np.promote_types(layout.dtype, np.float32)
            pixels = pixels.astype(dtype, copy=False)
        elif self.layout is None:
            _warn_if_dark(pixels, layout.n_pixel_values)

        labels = None
        kind = str(layout)
        if y is not None:
            labels = _check_labels(y, len(pixels))
            kind += " and labels"
        shard = None
        if self.ranks.size > 1:
            shard = self.ranks.gather_shard(len(pixels), kind)
        row_conditions = None
        if labels is not None:
            all_labels = self.ranks.gather(labels)
            row_conditions = RowConditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, row_conditions, shard)

    def plan(self, rows: PictureRows, seed: Seed) -> PictureFit:
        """What a fit of these pictures will do; an error if that is impossible."""
        parameters = self.parameters
        ranks = self.ranks
        observed = parameters["observed"]
        data = PictureData.from_rows(rows, self.device, bool(parameters["mirror"]))
        m = plans.choose_particles(parameters, data.n, self.device)
        least = max(ranks.size, data.n_conditions)
        kind = f"at least {least}, one for each class and rank"
        require(m >= least, "n_particles", m, kind)

        amplifier = parameters["amplifier"]
        if data.conditions is None and observed is None:
            shape = data.layout.shape
            k = plans.choose_clusters(parameters, m, data.n, shape, self.device)
            if k > 1:
                data = data.with_clusters(k, seed.child("data"), ranks)
                amplifier = math.inf
        known = None
        if observed is not None:
            known = as_mask(observed, data.layout).copy()
        amplifier = plans.choose_amplifier(
            amplifier, parameters["transport"], m, data.n, data.n_conditions
        )
        has_model = parameters["options"].n_knots != 0
        assigned = None
        if data.conditions is not None:
            drawn_from = seed.child("conditions")
            assigned = ParticleConditions.in_proportion(
                data.conditions,
                m,
                amplifier,
                drawn_from,
                drawn_from.child("mixed"),
                has_model,
            )
        n_moved = count_moved(m, assigned, has_model)
        plan = self._with_cost(self._resolve(data, m, n_moved, amplifier), data)
        return PictureFit(plan, data, assigned, known, seed, ranks)

    def _resolve(
        self, data: PictureData, m: int, n_moved: int, amplifier: float
    ) -> PicturePlan:
        """The plan for m particles, of which the fit moves `n_moved`, without its cost."""
        parameters = self.parameters
        options = parameters["options"]
        layout = data.layout
        n = data.n
        n_classes = data.n_conditions
        is_observed = parameters["observed"] is not None
        shared = 0 < amplifier < math.inf
        per_class = math.isinf(amplifier)
        mosaic_size = plans.choose_mosaic_size(
            options.start, layout, shared, is_observed
        )
        joint = not per_class and mosaic_size == 0
        n_steps = plans.steps_per_stage(parameters["quality"], joint, self.device)
        n_different_per_map = n / 2 if parameters["mirror"] else float(n)
        if per_class:
            n_different_per_map /= n_classes
        n_sorted_or_counted = n + (m if per_class else n_moved)
        plan = PicturePlan(
            device=str(self.device),
            n_ranks=self.ranks.size,
            n_pictures=n,
            layout=layout,
            mirror=data.mirrored,
            n_particles=m,
            n_moved=n_moved,
            condition=_condition_kind(data, is_observed),
            n_conditions=n_classes,
            amplifier=amplifier,
            stages=self._stages(layout, n_steps),
            patch_basis=plans.choose_patch_basis(
                parameters["patch_basis"], data, self.ranks
            ),
            transport=plans.choose_transport(
                parameters["transport"],
                amplifier,
                n_sorted_or_counted,
                self.ranks.size,
            ),
            n_knots=plans.choose_knots(options.n_knots, m, amplifier, n_classes),
            mosaic_size=mosaic_size,
            shrinkage=plans.choose_shrinkage(
                options.shrinkage, n_different_per_map, n_steps, mosaic_size > 0
            ),
            options=options,
        )
        if self.ranks.size > 1:
            return plan
        return replace(plan, batch_size=self.choose_batch_size(plan))

    def _stages(
        self, layout: Layout, n_steps: int
    ) -> tuple[schedules.PictureStage, ...]:
        """The stages that the parameter `schedule` says."""
        channels, height, width = layout.shape
        text = self.parameters["schedule"]
        if text == "auto":
            text = schedules.auto(height, width, channels)
        elif text == "paper":
            text = schedules.paper(height, width)
        return tuple(schedules.from_string(text, height, width, n_steps))

    def choose_batch_size(self, plan: PicturePlan) -> int | None:
        """The most particles, and the most pictures, of a step; None is all of them.

        They fit into a share of all memory: not of the free one, because they change
        the result of a step.
        """
        batch_size = plan.transport.max_samples
        if batch_size is None:
            return None
        on_cpu = self.device.type == "cpu"
        memory = total_memory(self.device)
        if memory is not None:
            share = CPU_MEMORY_SHARE if on_cpu else GPU_MEMORY_SHARE
            bytes_per_picture = 8 * max(plan.directions_per_stage)
            affordable = memory // share // bytes_per_picture
            batch_size = min(batch_size, max(MIN_BATCH, affordable))
        if on_cpu and plan.options.dequantize_every == "stage":
            batch_size = min(batch_size, max(plan.n_moved, MIN_CPU_BATCH))
        if batch_size >= max(plan.n_moved, plan.n_pictures):
            return None
        return batch_size

    def _with_cost(self, plan: PicturePlan, data: PictureData) -> PicturePlan:
        n = data.pixels.shape[1]
        m = self.ranks.share(plan.n_moved).count
        pictures = f"{n} pictures of {plan.layout.dimension} values"
        what = f"n_particles={m}, {pictures} and a model of {plan.n_steps} steps need"
        hint = "lower n_particles, quality or n_knots (0 keeps no model)"
        return plan.with_cost(plan.fit_bytes(n, m), plan.fit_seconds(), what, hint)


def _warn_if_dark(pixels: np.ndarray, n_pixel_values: int) -> None:
    """Warn if integer pixels probably have fewer values than `n_pixel_values`."""
    brightest = int(pixels.max())
    if 0 < brightest < n_pixel_values // DARK_SHARE:
        fact = f"the brightest pixel is {brightest}"
        fact += f", but pixels may have {n_pixel_values} values"
        hint = f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}"
        warnings.warn(f"{fact}; {hint}", UserWarning, stacklevel=6)  # the call of fit


def _check_labels(y: Any, n: int) -> np.ndarray:
    """The labels of n pictures as an array (n,)."""
    labels = np.atleast_1d(conditions.as_array(y, "labels"))
    if len(labels) != n:
        fact = f"there are {n} pictures but {len(labels)} labels"
        raise DataError(fact, "pass one label per picture")
    if labels.ndim != 1:
        fact = f"labels have shape {labels.shape}"
        raise DataError(fact, "pass one class label per picture")
    return labels


def _condition_kind(
    data: PictureData, is_observed: bool
) -> Literal["none", "labels", "clusters", "observed"]:
    """What the flow is conditioned on."""
    if is_observed:
        return "observed"
    if data.conditions is None:
        return "none"
    return "clusters" if data.conditions.condition.hidden else "labels"


@dataclass(frozen=True)
class PictureFit:
    """A planned fit of pictures. No particle has moved yet."""

    plan: PicturePlan
    data: PictureData  # with mirror images and clusters
    assigned: ParticleConditions | None  # the particles' classes
    observed: np.ndarray | None  # (h, w), True where a pixel is known
    seed: Seed
    ranks: Ranks

    def start(self) -> MovingPictures:
        """The particles at their start."""
        return MovingPictures(self)

    def run(
        self, listeners: Sequence[Listener], checkpoints: Checkpoints | None = None
    ) -> FlowResult[FittedPictures]:
        """Move the particles."""
        return run_flow(self.start(), listeners, checkpoints)


class MovingPictures:
    """A flow whose particles stand at their start, or are on their way."""

    def __init__(self, planned: PictureFit) -> None:
        plan = planned.plan
        data = planned.data
        device = data.device
        self.planned = planned
        self.share = planned.ranks.share(plan.n_moved)
        self.noise = Noise(planned.seed.child("particles"), self.share.first)
        self._set_codes()
        # Columns of the pictures that each stage uses, in turn; none if all use all.
        self.parts = self._divide_pictures()
        self.batches = Batches()
        if not self.parts:
            self.batches = self._batches()

        # The pictures of which mosaics are made; None if particles start as noise.
        self.stored_pixels: Tensor | None = None
        if plan.mosaic_size:
            self.stored_pixels = stored_pictures(data, planned.ranks)
        own_codes = None
        if self.codes_p is not None:
            own_codes = self.codes_p[self.share.slice]
        mosaics = build_mosaics(plan, self.stored_pixels, self.codes_q, device)
        x = initial_particles(
            plan, mosaics, self.share.count, own_codes, self.noise, device
        )
        known_values = data.layout.known_values(planned.observed, device)
        if known_values is not None:
            x = torch.where(known_values, self._observed(), x)
        self.particles = Cloud(x, own_codes, self.class_slices)

        levels = LevelFlow(plan, planned.seed, device, known_values)
        self.flow = levels.flow(self._noise_rates())
        if planned.ranks.size > 1:
            self.flow = across_ranks(self.flow, planned.ranks)
        self.n_stages = len(self.flow.stages)

    def _set_codes(self) -> None:
        """Set the class numbers of all particles and pictures, on the device.

        If classes have their own maps, particles are sorted by class; `class_slices` are
        those of this rank's particles.
        """
        planned = self.planned
        device = planned.data.device
        per_class = planned.plan.per_class
        self.codes_p: Tensor | None = None
        self.codes_q: Tensor | None = None
        self.positions: Tensor | None = None  # see `ParticleConditions`
        self.class_slices: ClassSlices | None = None
        if planned.assigned is None:
            return
        assert planned.data.codes is not None
        self.codes_q = planned.data.codes.to(device)
        self.codes_p = planned.assigned.codes.to(device)
        if planned.assigned.positions is not None:
            self.positions = planned.assigned.positions.to(device)
        if per_class:
            self.codes_p, _, inverse, slices = sort_by_class(self.codes_p, per_class)
            if self.positions is None:
                self.positions = inverse
            else:
                self.positions = inverse[self.positions]
            self.class_slices = slices.part(self.share.slice)

    def _divide_pictures(self) -> list[Tensor]:
        """The columns of the pictures that each stage uses, in turn.

        There are none if all stages use all pictures. On a CPU, where even the encoding
        of all pictures would take long, a stage uses a part of many.
        """
        plan = self.planned.plan
        data = self.planned.data
        batch_size = plan.batch_size
        if batch_size is None or plan.n_moved > batch_size or data.n <= batch_size:
            return []
        if data.device.type != "cpu" or plan.classes_share_maps:
            return []
        order = self.planned.seed.child("batches", "order").permutation(data.n)
        class_slices = ClassSlices((0, data.n))
        if plan.per_class and data.local_codes is not None:
            order = order[torch.argsort(data.local_codes[order], stable=True)]
            class_slices = ClassSlices.from_codes(data.local_codes, plan.per_class)
        parts, _ = even_parts(class_slices, batch_size, data.device)
        return [order[columns] for columns in parts]

    def _batches(self) -> Batches:
        """The columns that each step uses."""
        plan = self.planned.plan
        data = self.planned.data
        codes_p = None if plan.amplifier == 0 else self.codes_p
        codes_q = self.codes_q
        if self.planned.ranks.size > 1:  # a step uses all columns
            if self.class_slices is None or data.local_codes is None:
                return weighted_batches(codes_q, codes_p, data.indices, data.device)
            slices_q = ClassSlices.from_codes(data.local_codes, plan.per_class)
            order = torch.argsort(data.local_codes, stable=True)
            return Batches(order=order, class_slices=[(self.class_slices, slices_q)])
        seed = self.planned.seed.child("batches")
        if plan.per_class and codes_p is not None and codes_q is not None:
            return divide_per_class(
                plan.batch_size, codes_p, codes_q, plan.per_class, seed
            )
        return divide(
            plan.n_moved,
            data.n,
            plan.batch_size,
            codes_p,
            codes_q,
            seed,
            data.device,
        )

    def _observed(self) -> Tensor:
        """The particles' observed pixels, encoded.

        Kept particles use each picture equally often, and so do the others.
        """
        planned = self.planned
        data = planned.data
        share = self.share
        n_kept = planned.plan.n_particles
        seed = planned.seed.child("conditions")
        of_kept = conditions.even_rows(data.n, n_kept, seed)
        of_others = conditions.even_rows(
            data.n, share.total - n_kept, seed.child("further")
        )
        numbers = torch.cat((of_kept, of_others))[share.slice]
        pixels = data.gather_columns(numbers.to(data.device), planned.ranks)
        return data.layout.encode(
            pixels,
            planned.seed.child("observed"),
            n_total=share.total,
            column_slices=[share.slice],
        )

    def _noise_rates(self) -> tuple[float, ...]:
        """What the noise of the maps is proportional to, for their shrinkage."""
        plan = self.planned.plan
        uses_codes = plan.amplifier > 0
        return noise_rates(
            plan.n_moved,
            self.planned.data.n,
            self.codes_p if uses_codes else None,
            self.codes_q if uses_codes else None,
            n_classes=plan.per_class,
            max_samples=plan.batch_size,
            distinct=0.5 if plan.mirror else 1.0,
        )

    def target(self) -> Target:
        """The pictures, dequantised anew for every stage or every step."""
        planned = self.planned
        data = planned.data
        per_class = planned.plan.per_class
        every_step = planned.plan.options.dequantize_every == "step"

        def draw(stage_index: int, step_index: int) -> Cloud:
            seed = planned.seed.child("data", stage_index)
            if every_step:
                seed = seed.child(step_index)
            if not self.parts:
                return data.cloud(seed).part(self.batches.order)
            cloud = data.cloud(seed, self.parts[stage_index % len(self.parts)])
            if per_class and cloud.y is not None:
                cloud.class_slices = ClassSlices.from_codes(cloud.y, per_class)
            return cloud

        return Target(draw, self.batches, every_step)

    def finish(
        self, state: FlowState, listeners: Sequence[Listener]
    ) -> FlowResult[FittedPictures]:
        """What the fit gives, without its history."""
        planned = self.planned
        data = planned.data
        m = planned.plan.n_particles
        x = select_particles(
            self.particles.x, self.positions, self.share, m, planned.ranks
        )
        fitted = FittedPictures(
            planned.plan,
            planned.seed,
            tuple(step.without_still_maps() for step in state.model),
            data.conditions,
            planned.observed,
            self.stored_pixels,
            data.device,
        )
        y = None
        if planned.assigned is not None and planned.assigned.y is not None:
            y = planned.assigned.y[planned.ranks.share(m).slice]
        return FlowResult(
            fitted,
            warning=self._copy_warning(x),
            particles=data.layout.write(x),
            y=y,
        )

    def _copy_warning(self, x: Tensor) -> CopyWarning | None:
        """What to tell the user if the particles x (d, n) copy pictures; else nothing."""
        planned = self.planned
        if planned.ranks.size > 1 or planned.observed is not None:
            return None
        layout = replace(planned.data.layout, tensor=False)
        particles = layout.write(x).reshape(x.shape[1], -1)
        n = planned.data.pixels.shape[1]
        pixels = planned.data.pixels.view(*layout.shape, n)
        rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
        shown = copy_warning([(rows, particles)], planned.plan.device)
        if not shown:
            return None
        more = f"more shrinkage than {planned.plan.shrinkage:.2g} (PictureOptions)"
        hint = f"{more}, or a lower quality, help"
        return CopyWarning(f"the particles copy rows of X ({shown}); {hint}")
