"""The fit of pictures: prepare, then move the particles level by level."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import total_memory
from sliceflow.engine import conditions, events
from sliceflow.engine.batches import (
    Batches,
    Target,
    divide,
    divide_per_class,
    even_parts,
    weighted_batches,
)
from sliceflow.engine.clouds import ClassSlices, Cloud, sort_by_class
from sliceflow.engine.flow import FlowState, Noise, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates
from sliceflow.errors import require
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.particles import ParticleConditions, select_particles
from sliceflow.models.ranks import SINGLE, Ranks, across_ranks
from sliceflow.models.rows import Conditions
from sliceflow.spaces.pictures import plan as plans
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import Layout, part_of
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.mosaics import kept_pictures, mosaics_of, start
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows

_FEWEST_LOOKED_AT = 10_000  # pictures of a step on a CPU


@dataclass(frozen=True)
class PictureAdapter:
    """Pictures, for one estimator."""

    parameters: Mapping[
        str, Any
    ]  # the estimator's checked ones, and `options`, never None
    device: torch.device  # device of the fit
    layout: Layout | None = None  # that pictures must have; None takes theirs
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> PictureRows:
        ranks = self.ranks
        if y is not None and self.parameters["observed"] is not None:
            raise ValueError(
                "a flow can use labels or observed pixels, not both; choose one"
            )
        like = self.layout or Layout.infer(X, self.parameters["n_pixel_values"])
        pixels = like.read(X)
        values = like.n_pixel_values
        if values is None:
            pixels = pixels.astype(np.promote_types(like.dtype, np.float32), copy=False)
        elif self.layout is None and 0 < (brightest := int(pixels.max())) < values // 4:
            fact = f"the brightest pixel is {brightest}, but pixels may have {values} values"
            advice = f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}"
            warnings.warn(
                f"{fact}; {advice}", UserWarning, stacklevel=5
            )  # the call of fit
        shard = ranks.shard(len(pixels), f"{like}{'' if y is None else ' and labels'}")
        given = None
        if y is not None:
            names = np.atleast_1d(conditions.as_array(y, "labels"))
            if len(names) != shard.count:
                fact = f"there are {shard.count} pictures but {len(names)} labels"
                raise ValueError(f"{fact}; pass one label per picture")
            if names.ndim != 1:
                raise ValueError(
                    f"labels have shape {names.shape}; pass one class label per picture"
                )
            given = Conditions.infer(ranks.gather(names), shard.total, "labels")
        return PictureRows(like, pixels, given, None if ranks.size == 1 else shard)

    def plan(self, rows: PictureRows, seed: Seed) -> PictureJob:
        ranks = self.ranks
        parameters = self.parameters
        observed = self.parameters["observed"]
        data = PictureData.from_rows(rows, self.device, bool(parameters["mirror"]))
        m = plans.choose_particles(parameters, data.n, self.device)
        least = max(ranks.size, data.n_conditions)
        require(
            m >= least,
            "n_particles",
            m,
            f"at least {least}, one for each class and rank",
        )
        xi = parameters["amplifier"]
        transport = parameters["transport"]
        n = data.n
        if data.given is None and observed is None:
            k = plans.choose_clusters(parameters, m, n, data.layout.shape, self.device)
            if k > 1:
                data = data.clustered(k, seed.child("data"), ranks)
                xi = math.inf
        mask = None if observed is None else part_of(observed, data.layout).copy()
        xi = plans.choose_amplifier(xi, transport, m, n, data.n_conditions)
        model = parameters["options"].n_knots != 0
        own = seed.child("conditions")
        assigned = ParticleConditions.in_proportion(
            data.given, m, xi, own, own.child("mixed"), model
        )
        plan = self._plan(data, m, assigned.n_moved(m, model), xi, ranks)
        return PictureJob(plan, data, assigned, mask, seed, ranks)

    def _plan(
        self, data: PictureData, m: int, moved: int, amplifier: float, ranks: Ranks
    ) -> PicturePlan:
        """The plan for m particles, of which the fit moves `moved`."""
        parameters = self.parameters
        options = self.parameters["options"]
        layout = data.layout
        given = data.given
        observed = parameters["observed"]
        n = data.n
        width = data.n_conditions
        per_class = width if math.isinf(amplifier) else 0
        shared = 0 < amplifier < math.inf
        n_summed = plans.choose_start(
            options.start, layout, shared, observed is not None
        )
        joint = not per_class and not n_summed
        different = n / ((2 if parameters["mirror"] else 1) * (per_class or 1))
        steps = plans.steps_per_stage(parameters["quality"], joint, self.device)
        c, h, w = layout.shape
        text = parameters["schedule"]
        text = {"auto": schedules.auto(h, w, c), "paper": schedules.paper(h, w)}.get(
            text, text
        )
        size = (m if per_class else moved) + n, ranks.size
        kind: Any = (
            "none"
            if given is None
            else "clusters"
            if given.condition.hidden
            else "labels"
        )
        plan = PicturePlan(
            device=str(self.device),
            n_ranks=ranks.size,
            n_pictures=n,
            layout=layout,
            mirror=data.mirrored,
            n_particles=m,
            n_moved=moved,
            condition="observed" if observed is not None else kind,
            n_conditions=width,
            amplifier=amplifier,
            stages=tuple(schedules.from_string(text, h, w, steps)),
            patch_basis=plans.choose_patch_basis(
                parameters["patch_basis"], data, ranks
            ),
            transport=plans.choose_transport(parameters["transport"], amplifier, *size),
            n_knots=plans.choose_knots(options.n_knots, m, amplifier, width),
            n_summed=n_summed,
            shrinkage=plans.choose_shrinkage(
                options.shrinkage, different, steps, n_summed > 0
            ),
            options=options,
        )
        plan = replace(
            plan, batch_size=None if ranks.size > 1 else self._looked_at(plan)
        )
        n_here = data.raw.shape[1]
        m_here = ranks.share(moved).count
        what = f"n_particles={m_here}, {n_here} pictures of {layout.dimension} values and a model"
        advice = "lower n_particles, quality or n_knots (0 keeps no model)"
        takes = plan.fit_bytes(n_here, m_here), plan.fit_seconds()
        return plan.taking(*takes, f"{what} of {plan.n_steps} steps need", advice)

    def _looked_at(self, plan: PicturePlan) -> int | None:
        """The most particles, and the most pictures, that a step looks at; None is all of them.

        They fit into a share of all memory: not of the free one, as they change a step's result.
        """
        max_samples = plan.transport.max_samples
        memory = total_memory(self.device)
        on_cpu = self.device.type == "cpu"
        if max_samples is None:
            return None
        if memory is not None:
            max_samples = min(
                max_samples,
                max(4096, memory // (8 if on_cpu else 4) // (8 * max(plan.directions))),
            )
        if on_cpu and plan.options.dequantize_every == "stage":
            max_samples = min(max_samples, max(plan.n_moved, _FEWEST_LOOKED_AT))
        return max_samples if max_samples < max(plan.n_moved, plan.n_pictures) else None


@dataclass(frozen=True)
class PictureJob:
    """A planned fit of pictures. No particle has moved yet. It is its own only part."""

    plan: PicturePlan
    data: PictureData  # with mirror images and clusters
    assigned: ParticleConditions  # the particles' classes
    observed: np.ndarray | None  # (h, w), True where a pixel is known
    seed: Seed
    ranks: Ranks

    @property
    def parts(self) -> tuple[PictureJob]:
        return (self,)

    def begin(self) -> MovingPictures:
        return MovingPictures(self)

    def finish(self, results: Sequence[Any]) -> tuple[FittedPictures, Any, Any]:
        ((fitted, pixels),) = results
        y = self.assigned.y
        y = None if y is None else y[self.ranks.share(self.plan.n_particles).slice]
        return fitted, self.data.layout.write(pixels), y

    def copies(self, results: Sequence[Any]) -> tuple[str, str]:
        if self.ranks.size > 1 or self.observed is not None:
            return "", ""
        ((_, pixels),) = results
        layout = replace(self.data.layout, tensor=False)
        particles = layout.write(pixels).reshape(pixels.shape[1], -1)
        shape = (*layout.shape, self.data.raw.shape[1])
        rows = self.data.raw.view(shape).permute(3, 1, 2, 0).reshape(shape[3], -1)
        shown = copy_warning([(rows, particles)], self.plan.device)
        more = f"more shrinkage than {self.plan.shrinkage:.2g} (PictureOptions)"
        return shown, f"{more}, or a lower quality, help"


class MovingPictures:
    """A fit whose particles stand at their start, or are on their way."""

    def __init__(self, job: PictureJob) -> None:
        plan = job.plan
        data = job.data
        device = job.data.device
        ranks = job.ranks
        self.job = job
        self.share = ranks.share(plan.n_moved)  # this rank's part of all particles
        self.first = self.share.first
        self.known = data.layout.known(job.observed, device)
        per_class = plan.per_class
        class_slices = None
        assigned = data.codes, job.assigned.codes, job.assigned.column
        codes, codes_p, column = (None if t is None else t.to(device) for t in assigned)
        if per_class and codes_p is not None:
            codes_p, _, sorted_column, all_runs = sort_by_class(codes_p, per_class)
            column = sorted_column if column is None else sorted_column[column]
            class_slices = all_runs.part(self.share.slice)
        self.column = column  # of each particle, the kept ones first; None if they are in that order
        self.parts = self._parts()
        self.batches = (
            Batches() if self.parts else self._batches(codes, codes_p, class_slices)
        )
        self.pixels = (
            kept_pictures(data, ranks) if plan.n_summed else None
        )  # of mosaics
        self.noise = Noise(job.seed.child("particles"), self.share.first)
        own = None if codes_p is None else codes_p[self.share.slice]
        at = self.share.count, own, self.noise, device
        x = start(plan, mosaics_of(plan, self.pixels, codes, device), *at)
        if self.known is not None:
            x = torch.where(self.known, self._observed(), x)
        self.particles = Cloud(x, own, class_slices)
        both = (codes_p, codes) if plan.amplifier > 0 else (None, None)
        how: Any = dict(
            max_samples=plan.batch_size, distinct=0.5 if plan.mirror else 1.0
        )
        self.rates = noise_rates(
            plan.n_moved, data.n, *both, n_classes=per_class, **how
        )

    def _parts(self) -> list[Tensor]:
        """The columns of the pictures that each stage looks at, in turn; none if all stages see all."""
        plan = self.job.plan
        data = self.job.data
        max_samples = self.job.plan.batch_size
        if max_samples is None or plan.n_moved > max_samples or data.n <= max_samples:
            return []
        if data.device.type != "cpu" or plan.shared:
            return []  # else even the encoding of all pictures would take long
        order = self.job.seed.child("batches", "order").permutation(data.n)
        class_slices = ClassSlices((0, data.n))
        if plan.per_class and data.own_codes is not None:
            order = order[torch.argsort(data.own_codes[order], stable=True)]
            class_slices = ClassSlices.from_codes(data.own_codes, plan.per_class)
        return [
            order[columns]
            for columns in even_parts(class_slices, max_samples, data.device)[0]
        ]

    def _batches(
        self,
        codes: Tensor | None,
        codes_p: Tensor | None,
        class_slices: ClassSlices | None,
    ) -> Batches:
        """The columns that each step uses; `class_slices` are those of this rank's particles, if apart."""
        plan = self.job.plan
        data = self.job.data
        seed = self.job.seed.child("batches")
        codes_p = None if plan.amplifier == 0 else codes_p
        if self.job.ranks.size > 1:  # a step uses all columns
            if class_slices is not None and data.own_codes is not None:
                own_runs = ClassSlices.from_codes(data.own_codes, plan.per_class)
                order = torch.argsort(data.own_codes, stable=True)
                return Batches(order=order, class_slices=[(class_slices, own_runs)])
            return weighted_batches(codes, codes_p, data.own_numbers, data.device)
        if plan.per_class and codes is not None and codes_p is not None:
            return divide_per_class(
                plan.batch_size, codes_p, codes, plan.per_class, seed
            )
        return divide(
            plan.n_moved, data.n, plan.batch_size, codes_p, codes, seed, data.device
        )

    def _observed(self) -> Tensor:
        """The particles' observed pixels. Kept and other particles use each picture equally often."""
        job = self.job
        share = self.share
        data = self.job.data
        n_kept = self.job.plan.n_particles
        seeds = job.seed.child("conditions"), job.seed.child("conditions", "further")
        pairs = zip((n_kept, share.total - n_kept), seeds, strict=True)
        numbers = torch.cat([conditions.even_rows(data.n, *pair) for pair in pairs])[
            share.slice
        ]
        raw = data.picked(numbers.to(data.device), job.ranks)
        seed = job.seed.child("observed")
        return data.layout.encode(
            raw, seed, total=share.total, class_slices=[share.slice]
        )

    def move(self, run: FlowState, listeners: Sequence[events.Listener]) -> None:
        job = self.job
        plan = self.job.plan
        levels = LevelFlow(plan, job.seed, job.data.device, self.known)
        flow = across_ranks(levels.flow(self.rates), job.ranks)
        every_step = plan.options.dequantize_every == "step"

        def draw(*shard: int) -> Cloud:
            seed = job.seed.child("data", *(shard if every_step else shard[:1]))
            if not self.parts:
                return job.data.cloud(seed).part(self.batches.order)
            cloud = job.data.cloud(seed, self.parts[shard[0] % len(self.parts)])
            if plan.per_class and cloud.y is not None:
                cloud.class_slices = ClassSlices.from_codes(cloud.y, plan.per_class)
            return cloud

        target = Target(draw, self.batches, every_step)
        simulate(flow, self.particles, target, self.noise, listeners=listeners, run=run)

    def finish(
        self, run: FlowState, listeners: Sequence[events.Listener]
    ) -> tuple[FittedPictures, Tensor]:
        """The fitted state, and the pixels (d, n) of this rank's kept particles."""
        job = self.job
        data = self.job.data
        m = self.job.plan.n_particles
        x = select_particles(self.particles.x, self.column, self.share, m, job.ranks)
        model = (
            job.plan,
            job.seed,
            tuple(step.moving() for step in run.model),
            data.given,
        )
        return FittedPictures(*model, job.observed, self.pixels, data.device), x
