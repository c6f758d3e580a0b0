"""The fit of pictures: prepare, then move the particles level by level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sliceflow.devices import columns_looked_at
from sliceflow.engine import conditions, events
from sliceflow.engine.batches import Batches, Target, divide, divide_apart, even_parts
from sliceflow.engine.clouds import Cloud, Runs, sort_by_class
from sliceflow.engine.flow import Noise, Run, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrunk, noise_rates
from sliceflow.engine.transports import Auto, Transport
from sliceflow.errors import ParameterError, need
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.particles import Assigned, kept_particles
from sliceflow.models.ranks import Place, Ranks, across_ranks, weighted_batches
from sliceflow.spaces.pictures import plan as plans
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import Layout, mask_of
from sliceflow.spaces.pictures.mosaics import Mosaics, start
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows, read_pictures

__all__ = ["PictureJob", "PictureSpace"]


def assign_labels(data: PictureData, m: int, amplifier: float, model: bool, seed: Seed) -> Assigned:
    """The classes of m particles, in the data's proportions, each at least once."""
    codes = data.codes
    if codes is None:
        return Assigned()
    rows = conditions.proportional(codes, m, seed, least=1)
    moved = conditions.moved(codes, codes[rows], amplifier, seed, model)
    assigned = Assigned(None if data.names is None else data.names[rows.numpy()], moved)
    if amplifier == 0 or len(moved) == m:
        return assigned
    return assigned.shuffled(seed.child("mixed"))  # mixes the additional particles with the others


@dataclass(frozen=True)
class PictureSpace:
    """Pictures, for one estimator."""

    parameters: Mapping[str, Any]  # the estimator's checked ones, and `options`, never None
    device: torch.device  # device of the fit
    layout: Layout | None = None  # that pictures must have; None takes theirs

    def read(self, X: Any, y: Any, ranks: Ranks) -> PictureRows:
        if y is not None and self.parameters["observed"] is not None:
            raise ValueError("a flow can use labels or observed pixels, not both; choose one")
        if self.parameters["keep_rows"] and ranks.size > 1:
            advice = "fit without it, or in one process"
            raise ParameterError("keep_rows", True, "keeps all pictures in one process", advice)
        return read_pictures(X, y, self.parameters["n_pixel_values"], self.layout, ranks)

    def prepare(self, rows: PictureRows, seed: Seed, ranks: Ranks) -> PictureJob:
        parameters, observed = self.parameters, self.parameters["observed"]
        data = PictureData.from_rows(rows, self.device)
        if parameters["mirror"]:
            data = data.with_mirror_images()
        m = plans.choose_particles(parameters, data.n, data.condition, self.device)
        if data.condition is None and observed is None:
            k = plans.choose_clusters(parameters, m, data.n, data.layout.shape, self.device)
            if k > 1:
                upsampling = parameters["options"].upsampling
                data = data.clustered(k, seed.child("data"), upsampling, ranks)
        mask = None if observed is None else mask_of(observed, data.layout)
        need(m >= ranks.size, "n_particles", m, f"at least {ranks.size}, one per rank")
        plan = self._plan(data, m, ranks)
        model = plan.n_knots > 0
        assigned = assign_labels(data, m, plan.amplifier, model, seed.child("conditions"))
        plan = self._complete(plan, data, assigned.n_moved(m, model), ranks)
        return PictureJob(plan, data, assigned, mask, seed, ranks)

    def _plan(self, data: PictureData, m: int, ranks: Ranks) -> PicturePlan:
        """The plan, without what depends on the number of particles that are moved."""
        parameters, options, layout = self.parameters, self.parameters["options"], data.layout
        condition, observed, n = data.condition, parameters["observed"], data.n
        amplifier, width = 0.0, 0 if condition is None else condition.width
        if condition is not None:
            xi = math.inf if condition.hidden else parameters["amplifier"]
            amplifier = plans.choose_amplifier(xi, parameters["transport"], m, n, width)
        apart, shared = width if math.isinf(amplifier) else 0, 0 < amplifier < math.inf
        n_summed = plans.choose_start(options.start, layout, shared, observed is not None)
        joint = not apart and not n_summed
        basis = plans.choose_patch_basis(parameters["patch_basis"], data, ranks)
        different = n / ((2 if parameters["mirror"] else 1) * (apart or 1))
        steps = plans.steps_per_stage(parameters["quality"], joint, self.device)
        kind: Any = "none" if condition is None else "clusters" if condition.hidden else "labels"
        return PicturePlan(
            device=str(self.device),
            n_ranks=ranks.size,
            n_pictures=n,
            layout=layout,
            mirror=bool(parameters["mirror"]),
            n_particles=m,
            n_moved=m,
            condition="observed" if observed is not None else kind,
            n_conditions=width,
            amplifier=amplifier,
            stages=tuple(plans.choose_stages(parameters["schedule"], layout, steps)),
            patch_basis=basis,
            transport=plans.choose_transport(parameters["transport"], amplifier),
            n_looked_at=None,
            n_knots=plans.choose_knots(options.n_knots, m, amplifier, width),
            precision=plans.choose_operands(options.precision, self.device),
            n_summed=n_summed,
            locality=float(options.locality) if n_summed else 0.0,
            shrinkage=plans.choose_shrinkage(options.shrinkage, different, steps, n_summed > 0),
            options=options,
        )

    def _complete(self, plan: PicturePlan, data: PictureData, moved: int, ranks: Ranks) -> PicturePlan:
        """The plan for this number of moved particles, with what it takes."""
        n, transport, apart = data.n, plan.transport, plan.apart
        if isinstance(transport, Auto):
            transport = transport.choose((plan.n_particles if apart else moved) + n, ranks.size)
        looked_at = None
        if ranks.size == 1:
            looked_at = columns_looked_at(transport.most, max(plan.directions), self.device)
        by_stage = self.device.type == "cpu" and plan.options.dequantize_every == "stage"
        if by_stage and looked_at is not None:
            looked_at = min(looked_at, max(moved, plans.FEWEST_LOOKED_AT))
        if looked_at is not None and looked_at >= max(moved, n):
            looked_at = None  # all of them
        plan = replace(plan, n_moved=moved, transport=transport, n_looked_at=looked_at)
        n_here, m_here = data.raw.shape[1], ranks.share(moved).count
        what = f"n_particles={m_here}, {n_here} pictures of {plan.layout.dimension} values and a model"
        advice = "lower n_particles, quality or n_knots (0 keeps no model)"
        takes = plans.fit_bytes(plan, n_here, m_here), plans.fit_seconds(plan)
        return plan.taking(*takes, f"{what} of {plan.n_steps} steps need", advice)


@dataclass(frozen=True)
class PictureJob:
    """A planned fit of pictures. No particle has moved yet. It is its own only part."""

    plan: PicturePlan
    data: PictureData  # with mirror images and clusters
    assigned: Assigned  # the particles' classes
    mask: Tensor | None  # (d, 1) observed pixels
    seed: Seed
    ranks: Ranks
    name: str = ""

    @property
    def parts(self) -> tuple[PictureJob]:
        return (self,)

    @property
    def n_stages(self) -> int:
        return len(self.plan.stages)

    @property
    def n_steps(self) -> int:
        return self.plan.n_steps

    def begin(self) -> MovingPictures:
        """Particles at their start, the batches of data, and the flow between them."""
        plan, data, seed, ranks = self.plan, self.data, self.seed, self.ranks
        device, apart, share = data.device, plan.apart, ranks.share(plan.n_moved)
        codes = None if data.codes is None else data.codes.to(device)
        codes_p, column = (
            None if t is None else t.to(device) for t in (self.assigned.codes, self.assigned.column)
        )
        runs = None
        if apart and codes_p is not None:
            codes_p, _, sorted_column, all_runs = sort_by_class(codes_p, apart)
            column = sorted_column if column is None else sorted_column[column]
            runs = all_runs.part(share.slice)
        parts = self._parts()
        batches = Batches() if parts else self._batches(codes, codes_p, runs)
        mosaics = Mosaics.from_data(plan, data, codes, ranks) if plan.n_summed else None
        noise = Noise(seed.child("particles"), share.first)
        own = None if codes_p is None else codes_p[share.slice]
        x = start(plan, mosaics, share.count, own, noise, device)
        if self.known is not None:
            x = torch.where(self.known, self._observed(share), x)
        both = (codes_p, codes) if plan.amplifier > 0 else (None, None)
        how: Any = dict(most=plan.n_looked_at, distinct=0.5 if plan.mirror else 1.0)
        rates = noise_rates(plan.n_moved, data.n, *both, n_apart=apart, **how)
        cloud = Cloud(x, own, runs)
        return MovingPictures(self, cloud, column, batches, parts, noise, share, mosaics, rates)

    @property
    def known(self) -> Tensor | None:
        """The mask on the device. A mask without pixels is the unconditional flow."""
        empty = self.mask is None or not bool(self.mask.any())
        return None if empty or self.mask is None else self.mask.to(self.data.device)

    def _parts(self) -> list[Tensor]:
        """The columns of the pictures that each stage looks at, in turn; none if all stages see all."""
        plan, data, most = self.plan, self.data, self.plan.n_looked_at
        shared = 0 < plan.amplifier < math.inf
        if data.device.type != "cpu" or most is None or plan.n_moved > most or data.n <= most or shared:
            return []  # else even the encoding of all pictures would take long
        order = self.seed.child("batches", "order").permutation(data.n)
        runs = Runs((0, data.n))
        if plan.apart and data.own_codes is not None:
            order = order[torch.argsort(data.own_codes[order], stable=True)]
            runs = Runs.from_codes(data.own_codes, plan.apart)
        return [order[columns] for columns in even_parts(runs, most, data.device)[0]]

    def _batches(self, codes: Tensor | None, codes_p: Tensor | None, runs: Runs | None) -> Batches:
        """The columns that each step uses; `runs` are those of this rank's particles, if apart."""
        plan, data, seed = self.plan, self.data, self.seed.child("batches")
        codes_p = None if plan.amplifier == 0 else codes_p
        if self.ranks.size > 1:  # a step uses all columns
            if runs is not None and data.own_codes is not None:
                own_runs = Runs.from_codes(data.own_codes, plan.apart)
                order = torch.argsort(data.own_codes, stable=True)
                return Batches(order=order, runs=[(runs, own_runs)])
            return weighted_batches(codes, codes_p, data.own_numbers, data.device)
        if plan.apart and codes is not None and codes_p is not None:
            return divide_apart(plan.n_looked_at, codes_p, codes, plan.apart, seed)
        return divide(plan.n_moved, data.n, plan.n_looked_at, codes_p, codes, seed, data.device)

    def _observed(self, share: Place) -> Tensor:
        """The particles' observed pixels. Kept and other particles use each picture equally often."""
        data, seed, n_kept = self.data, self.seed, self.plan.n_particles
        seeds = seed.child("conditions"), seed.child("conditions", "further")
        pairs = zip((n_kept, share.total - n_kept), seeds, strict=True)
        numbers = torch.cat([conditions.even_rows(data.n, *pair) for pair in pairs])[share.slice]
        raw = data.picked(numbers.to(data.device), self.ranks)
        how: Any = dict(dequantize=self.plan.options.dequantize, total=share.total)
        return data.layout.encode(raw, seed.child("observed"), runs=[share.slice], **how)

    def finish(self, results: Sequence[Any]) -> tuple[FittedPictures, Any, Any]:
        ((fitted, pixels),), y = results, self.assigned.y
        y = None if y is None else y[self.ranks.share(self.plan.n_particles).slice]
        return fitted, self.data.layout.write(pixels), y

    def copies(self, results: Sequence[Any]) -> str:
        if self.ranks.size > 1 or self.mask is not None:
            return ""
        ((_, pixels),), layout = results, replace(self.data.layout, tensor=False)
        particles = layout.write(pixels).reshape(pixels.shape[1], -1)
        shape = (*layout.shape, self.data.raw.shape[1])
        rows = self.data.raw.view(shape).permute(3, 1, 2, 0).reshape(shape[3], -1)
        shown = copy_warning([(rows, particles)], self.plan.device)
        more = f"more shrinkage than {self.plan.shrinkage:.2g} (PictureOptions)"
        return shown and f"{shown}); {more}, or a lower quality, help"


@dataclass
class MovingPictures:
    """A fit whose particles stand at their start, or are on their way."""

    job: PictureJob
    particles: Cloud  # of this rank
    column: Tensor | None  # of each particle, the kept ones first; None if they are in that order
    batches: Batches
    parts: list[Tensor]  # pictures that stages look at, in turn; none if all stages see all
    noise: Noise
    share: Place  # this rank's part of all moved particles
    mosaics: Mosaics | None  # where the particles started; None is noise
    rates: tuple[float, ...]  # of the noise of the maps

    @property
    def first(self) -> int:
        return self.share.first

    def _shrunk(self, transport: Transport) -> Transport:
        """The transport with shrunk maps, if the plan has shrinkage."""
        plan = self.job.plan
        n_shared = plan.n_conditions if 0 < plan.amplifier < math.inf else 0
        shrunk = Shrunk(transport, plan.shrinkage, self.rates, n_shared)
        return shrunk if plan.shrinkage else transport

    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None:
        job, plan = self.job, self.job.plan
        data, options = replace(job.data, order=self.batches.order), plan.options
        levels = plan.levels(job.seed, data.device, job.known)
        flow = across_ranks(levels.flow(plan.transport, plan.n_knots, self._shrunk), job.ranks)
        every_step = options.dequantize and options.dequantize_every == "step"
        parts: list[slice] = []
        if self.parts:  # side by side in memory
            data = data.part(torch.cat(self.parts))
            ends = list(accumulate(map(len, self.parts), initial=0))
            parts = [slice(*pair) for pair in pairwise(ends)]

        def draw(*place: int) -> Cloud:
            numbers = place if every_step else place[:1]
            of_stage = data.part(parts[place[0] % len(parts)]) if parts else data
            cloud = of_stage.cloud(job.seed.child("data", *numbers), options.dequantize)
            if parts and plan.apart and cloud.y is not None:
                cloud.runs = Runs.from_codes(cloud.y, plan.apart)
            return cloud

        target = Target(draw, self.batches, every_step)
        simulate(flow, self.particles, target, self.noise, listeners=listeners, run=run)

    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> tuple[FittedPictures, Tensor]:
        """The fitted state, and the pixels (d, n) of this rank's kept particles."""
        job, data, m = self.job, self.job.data, self.job.plan.n_particles
        x = kept_particles(self.particles.x, self.column, self.share, m, job.ranks)
        model = job.plan, job.seed, tuple(run.model), data.condition, data.codes
        return FittedPictures(*model, job.mask, self.mosaics, data.device), x
