"""The fit of vectors: prepare, move the particles, make the columns exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions, events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Noise, Run, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.particles import Assigned, kept_particles
from sliceflow.models.ranks import Place, Ranks, across_ranks, target_across
from sliceflow.spaces.vectors.fitted import FittedVectors, VectorModel, as_cloud
from sliceflow.spaces.vectors.plan import VectorPlan
from sliceflow.spaces.vectors.rows import VectorRows
from sliceflow.spaces.vectors.smoothing import Smoothing
from sliceflow.spaces.vectors.units import Units

__all__ = ["Held", "VectorJob", "VectorPart", "assign_conditions", "hold_out"]


Held = tuple[
    Tensor, Tensor | None
]  # held-out rows (n, d) of all ranks in the engine's units, and codes


class Result(NamedTuple):
    """A fitted flow, and x (d, n) and y of the particles that this rank keeps."""

    model: VectorModel
    particles: Tensor
    y: np.ndarray | None


def assign_conditions(
    rows: VectorRows, m: int, y: np.ndarray | None, amplifier: float, seed: Seed
) -> Assigned:
    """The conditions of m particles: the user's y, or conditions in the data's proportions."""
    condition, codes_q, all_y = rows.condition, rows.codes, rows.y
    if condition is None or codes_q is None or all_y is None:
        return Assigned()
    in_order = y is None
    if y is None:
        numbers = conditions.proportional(codes_q, m, seed, least=1)
        y, codes = all_y[numbers.numpy()], codes_q[numbers]
    else:
        codes = condition.encode(y)
        if codes.dim() == 1 and bool((lost := ~torch.isin(codes, codes_q)).any()):
            label = conditions.format_label(y[lost.numpy()][0])
            fact = f"particle_conditions has {label}, but early_stopping holds out all its rows"
            raise ValueError(f"{fact}; add rows of this class or set early_stopping=False")
    assigned = Assigned(y, moved := conditions.moved(codes_q, codes, amplifier, seed))
    in_order = amplifier == 0 or (in_order and len(moved) == m)
    return assigned if in_order else assigned.shuffled(seed)  # the flow needs a random order


def hold_out(
    rows: VectorRows, x: Tensor, fraction: float, seed: Seed, ranks: Ranks, name: str = ""
) -> tuple[VectorRows, Tensor, Held]:
    """This rank's rows to fit and their x, and the held-out rows of all ranks; `name` is for errors."""
    n, here, n_held = rows.n, rows.here, math.ceil(fraction * rows.n)
    if n_held >= n:
        of = name and f" of class {name}"
        fact = f"early_stopping holds out {n_held} of {n} rows{of} and leaves none to fit"
        raise ValueError(f"{fact}; give more rows or set early_stopping=False")
    order = seed.permutation(n)
    kept, held = (numbers.sort().values for numbers in (order[n_held:], order[:n_held]))
    own_kept, own_held = (
        numbers[(numbers >= here.first) & (numbers < here.first + here.count)] - here.first
        for numbers in (kept, held)
    )
    given, codes = rows.given, None
    if given is not None:
        given, codes = given.take(kept), given.codes[held]
    place = ranks.place(len(own_kept)) if ranks.size > 1 else None
    fitted = replace(rows, X=rows.X[own_kept.numpy()], given=given, place=place)
    return fitted, x[own_kept], (ranks.gather(x[own_held]), codes)


@dataclass(frozen=True)
class VectorPart:
    """One flow of a fit, planned."""

    name: str  # the class, if classes are fitted separately; else ""
    plan: VectorPlan
    rows: VectorRows
    x: Tensor  # (n, d), these rows in the engine's units
    held: Held | None  # the held-out rows; None without early stopping
    units: Units
    assigned: Assigned  # the particles' conditions
    smoothing: Smoothing | None  # draws around the rows; None fits the rows themselves
    seed: Seed
    device: torch.device
    ranks: Ranks

    @property
    def n_stages(self) -> int:
        return len(self.plan.stages())

    @property
    def n_steps(self) -> int:
        return sum(stage.n_steps for stage in self.plan.stages())

    def begin(self) -> MovingVectors:
        """Particles at their start, the data, and the flow between them."""
        plan, ranks, seed = self.plan, self.ranks, self.seed
        share, codes, own = ranks.share(plan.n_moved), self.assigned.codes, self.rows.codes
        x, last_x, times = self.x, self.x, 1
        if self.smoothing is not None:
            x, last_x = self.smoothing.draws(plan.n_draws, seed.child("smoothing"), self.rows.here)
            times = plan.n_draws
        place = Place(*(times * number for number in astuple(self.rows.here)))
        codes_q = None if own is None else own.repeat_interleave(times, 0)
        noise = Noise(seed.child("particles"), share.first)
        mine = None if codes is None else codes[share.slice]
        particles = as_cloud(x.new_empty(share.count, x.shape[1]), mine, self.device)
        noise.child("start").fill(particles.x)
        mine = None if codes_q is None else codes_q[place.slice]
        data, last = (as_cloud(t, mine, self.device) for t in (x, last_x))
        return MovingVectors(self, particles, data, last, noise, share, codes_q, place)


@dataclass
class MovingVectors:
    """A fit whose particles stand at their start, or are on their way."""

    part: VectorPart
    particles: Cloud  # of this rank
    data: Cloud  # of this rank, which the flow looks at
    last_data: Cloud  # those that the axis steps look at
    noise: Noise
    share: Place  # this rank's part of all moved particles
    codes_q: Tensor | None  # conditions of the data of all ranks
    data_place: Place  # of this rank's data among those of all ranks

    def __post_init__(self) -> None:
        part, plan = self.part, self.part.plan
        self.flow = fitting = plan.flow(part.seed, part.device)  # replays the model
        if plan.options.shrinkage:
            codes = (part.assigned.codes, self.codes_q) if fitting.n_shared else (None, None)
            n, distinct = plan.n_rows * plan.n_draws, 1 / plan.n_draws
            rates = noise_rates(plan.n_moved, n, *codes, most=plan.transport.most, distinct=distinct)
            fitting = shrunk_flow(fitting, plan.options.shrinkage, rates)
        self.fitting = across_ranks(fitting, part.ranks)

    @property
    def first(self) -> int:
        return self.share.first

    @property
    def rule(self) -> events.HeldOut | None:
        part = self.part
        if part.held is None:
            return None
        options, (x, codes_held) = part.plan.options, part.held
        x = x.to(self.data.x.device).T.contiguous()
        codes = codes_held, part.assigned.codes if self.flow.conditional else None
        stop: Any = dict(n_iter_no_change=options.n_iter_no_change, tol=options.tol)
        seed = part.seed.child("stopping rule")
        return events.HeldOut(x, seed, *codes, **stop, joint=part.ranks.joint)

    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None:
        self._simulate(self.particles, self.part.assigned.codes, self.data, run, listeners, False)

    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> Result:
        """Axis steps make the distribution of each column exact.

        Earlier steps place the particles that they were fitted to better than fresh ones. So there are
        two sets of axis steps: one for the kept particles, and one for the model, fitted to fresh ones.
        """
        part, model = self.part, tuple(run.model)
        kept, codes = self._kept()
        if any(stage.exact for stage in self.flow.stages):
            last = replace(run, model=[], after=Run().after)
            self._simulate(kept, codes, self.last_data, last, listeners, True)
            fresh, codes = self._fresh(model)
            before = Run(stage=run.stage, model=list(model))
            model = tuple(self._simulate(fresh, codes, self.last_data, before, (), True))
        y = part.assigned.y
        y = None if y is None else y[part.ranks.share(part.plan.n_particles).slice]
        return Result(VectorModel(part.seed, model, part.units), kept.x, y)

    def _simulate(
        self, particles: Cloud, codes: Tensor | None, data: Cloud, run: Run,
        listeners: Sequence[events.Listener], exact: bool,
    ) -> list[ModelStep]:  # fmt: skip
        """Run the stages before the axis steps, or these; `codes` are of the particles of all ranks."""
        stages, ranks = self.fitting.stages, self.part.ranks
        n_stages = len(stages) if exact else sum(not stage.exact for stage in stages)
        if n_stages == 0:
            return run.model
        clouds = self.fitting, particles, data, n_stages - 1, codes, self.codes_q, self.data_place
        how: Any = dict(listeners=listeners, run=run, n_stages=n_stages)
        return simulate(self.fitting, particles, target_across(ranks, *clouds), self.noise, **how)

    def _kept(self) -> tuple[Cloud, Tensor | None]:
        """This rank's kept particles in the user's order, and the codes of those of all ranks."""
        assigned, m, ranks = self.part.assigned, self.part.plan.n_particles, self.part.ranks
        x, codes = self.particles.x, assigned.kept_codes(m)
        x = kept_particles(x, assigned.column, self.share, m, ranks)
        return Cloud(x, None if codes is None else codes[ranks.share(m).slice].to(x.device)), codes

    def _fresh(self, model: Sequence[ModelStep]) -> tuple[Cloud, Tensor | None]:
        """This rank's share of fresh particles, moved by a model, and the codes of all of them."""
        plan, codes_q = self.part.plan, self.part.rows.codes
        seed, m, codes = self.part.seed.child("fresh"), plan.n_fresh, None
        if codes_q is not None:
            codes = codes_q[conditions.proportional(codes_q, m, seed.child("conditions"))]
            if self.flow.conditional:  # give rare classes enough particles
                codes = torch.cat((codes, conditions.extra_codes(codes_q, codes, False, seed)))
        share = self.part.ranks.share(m if codes is None else len(codes))
        x = _sobol_normal(share.first, share.count, plan.n_columns, seed.child("start"))
        own = None if codes is None else codes[share.slice]
        fresh = as_cloud(x.to(self.data.x.dtype), own, self.data.x.device)
        replay(self.flow, model, fresh, Noise(seed.child("particles"), share.first))
        return fresh, codes


def _sobol_normal(first: int, n: int, d: int, seed: Seed) -> Tensor:
    """Points `first` to first + n of a Sobol sequence, mapped to N(0, I): (n, d); random for large d."""
    if d > torch.quasirandom.SobolEngine.MAXDIM:
        return seed.normal(n, d, start=first)
    number = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = torch.quasirandom.SobolEngine(d, True, number)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(first).draw(n, dtype=torch.float64)
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x


@dataclass(frozen=True)
class VectorJob:
    """A planned fit: one part, one per class (ξ = ∞), or none if conditions are local."""

    plan: VectorPlan
    parts: tuple[VectorPart, ...]
    fitted: FittedVectors  # without the models of the parts
    y: np.ndarray | None = None  # of the kept particles, if classes are apart or conditions local
    codes: Tensor | None = None
    seed: Seed | None = None  # of the fit, if conditions are local

    def finish(self, results: Sequence[Result]) -> tuple[FittedVectors, Any, Any]:
        fitted = replace(self.fitted, models=tuple(result.model for result in results))
        if fitted.local is not None:
            assert self.codes is not None and self.seed is not None  # noqa: PT018, one fact
            particles = fitted.draw(len(self.codes), self.codes, self.seed.child("particles"))
            return fitted, particles, self.y
        parts = [fitted.decode(result.model.units, result.particles) for result in results]
        if self.codes is None:
            return fitted, fitted.in_form(parts[0]), results[0].y
        out = parts[0].new_empty(len(self.codes), parts[0].shape[1])
        for c, part in enumerate(parts):  # in the order of the codes
            at = torch.nonzero(self.codes == c)[:, 0].to(out.device)
            if len(at):
                out[at] = part
        return fitted, fitted.in_form(out), self.y

    def copies(self, results: Sequence[Result]) -> str:
        pairs = [(part.x, result.particles) for part, result in zip(self.parts, results, strict=True)]
        given = any(part.assigned.column is not None for part in self.parts)
        if not pairs or given or self.plan.n_ranks > 1:
            return ""
        shown = copy_warning([(x, particles.T) for x, particles in pairs])
        return shown and f"{shown}); {self.plan.against_copying}"
