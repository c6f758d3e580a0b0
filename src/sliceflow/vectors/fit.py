"""A fit of vectors, from the rows to a fitted flow: prepare, move the particles, make columns exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import need_memory
from sliceflow.engine import conditions, events
from sliceflow.engine.flow import Run, simulate
from sliceflow.engine.random import Seed
from sliceflow.errors import need
from sliceflow.ranks import Ranks
from sliceflow.storage.checkpoints import CheckpointWriter
from sliceflow.vectors.data import Given, HeldRows, Rows, hold_out
from sliceflow.vectors.finish import finish, stages_before_axis_steps
from sliceflow.vectors.fitted import Part
from sliceflow.vectors.plan import VectorPlan, all_bytes, count_particles, make_plan
from sliceflow.vectors.start import Asked, Start, begin, particle_conditions
from sliceflow.vectors.units import Units

__all__ = ["Done", "Job", "per_class", "prepare", "prepare_classes", "run"]


@dataclass(frozen=True)
class Job:
    """Rows that are to be fitted by one flow, and the plan for it. Nothing has moved yet.

    Parameters
    ----------
    plan : of the fit
    rows : that are fitted, in the units of the engine
    held : rows that are held out; None without early stopping
    units : of the columns
    asked : the particles' conditions
    seed : of all that is random
    device : where
    name : of the class that is fitted by itself; "" for all rows
    """

    plan: VectorPlan
    rows: Rows
    held: HeldRows | None
    units: Units
    asked: Asked
    seed: Seed
    device: torch.device
    name: str = ""


class Done(NamedTuple):
    """A fitted flow, x (d, n) of the particles that this rank keeps, and their y."""

    part: Part
    particles: Tensor
    y: np.ndarray | None


def prepare(
    parameters: Mapping[str, Any],
    given: Given,
    y_p: np.ndarray | None,
    seed: Seed,
    device: torch.device,
    ranks: Ranks,
    n_particles: int | None = None,
    name: str = "",
) -> Job:
    """The job of fitting all the rows by one flow; an error names what forbids it."""
    units = Units.of(given.X, parameters["standardize"], ranks, given.place.total)
    rows, held = given.rows(units), None
    if parameters["early_stopping"]:
        fraction = parameters["options"].validation_fraction
        rows, held = hold_out(rows, fraction, seed.child("held out"), ranks, name)
    wanted = n_particles or parameters["n_particles"]
    m = count_particles(wanted, rows.place.total, rows.condition, y_p)
    need(m >= ranks.size, "n_particles", m, f"at least {ranks.size}, one per rank")
    about: dict[str, Any] = dict(
        shape=(rows.place.total, rows.x.shape[1]),
        dtype=rows.x.dtype,
        n_particles=m,
        condition=rows.condition,
        device=device,
        n_ranks=ranks.size,
    )
    here = (len(rows.x), ranks.share(m).count)
    plan = make_plan(parameters, codes=None, here=here, **about)  # before so many codes are made
    asked = particle_conditions(rows, m, y_p, plan.amplifier, seed.child("conditions"))
    n_moved = asked.n_moved(m)
    here = (len(rows.x), ranks.share(n_moved).count)
    plan = make_plan(parameters, codes=asked.codes, n_moved=n_moved, here=here, **about)
    return Job(plan, rows, held, units, asked, seed, device, name)


def prepare_classes(
    parameters: Mapping[str, Any],
    given: Given,
    y_p: np.ndarray | None,
    seed: Seed,
    device: torch.device,
    ranks: Ranks,
) -> tuple[list[Job], np.ndarray, Tensor]:
    """A job for every class (ξ = ∞); the particles' y, and their codes."""
    condition, codes, y = given.condition, given.codes, given.y
    if not isinstance(condition, conditions.Labels) or codes is None or y is None:
        raise ValueError(
            "amplifier=inf fits every class by itself, but y is columns; use a finite amplifier, or "
            "pass class labels (n,)"
        )
    if ranks.size > 1:
        raise ValueError(
            "amplifier=inf fits every class of vectors by itself, which ranks cannot share; use a "
            "finite amplifier, or fit in one process"
        )
    m = count_particles(parameters["n_particles"], len(codes), condition, y_p)
    if y_p is None:
        _check_memory(parameters, given, codes, m, device)  # before so many codes are made
        numbers = conditions.proportional(codes, m, seed.child("conditions"), least=1)
        y_p, codes_p = y[numbers.numpy()], codes[numbers]
    else:
        codes_p = condition.encode(y_p)
        if codes_p.dim() != 1:
            raise ValueError("amplifier=inf needs class labels as particle_conditions, not weights")
    sizes = torch.bincount(codes_p, minlength=condition.width).tolist()
    jobs = [
        prepare(
            parameters,
            given.of_class(c),
            None,
            seed.child("class", c),
            device,
            ranks,
            n_particles=max(1, size),
            name=str(condition.classes[c]),
        )
        for c, size in enumerate(sizes)
    ]
    return jobs, y_p, codes_p


def _check_memory(
    parameters: Mapping[str, Any], given: Given, codes: Tensor, m: int, device: torch.device
) -> None:
    """Refuse more particles of the largest class than its fit can have, of m in all."""
    largest = int(torch.bincount(codes).max())
    make_plan(
        parameters,
        shape=(largest, given.X.shape[1]),
        dtype=torch.float32 if given.X.dtype == np.float32 else torch.float64,
        n_particles=m * largest // len(codes),
        condition=None,
        codes=None,
        device=device,
    )


def per_class(jobs: Sequence[Job], n_particles: int) -> VectorPlan:
    """The plan of all classes together, `n_particles` of which are kept."""
    plans = [job.plan for job in jobs]
    nbytes, what = (
        all_bytes(plans),
        f"n_particles={n_particles} with {len(jobs)} classes, each with maps",
    )
    need_memory(nbytes, jobs[0].device, f"{what} of its own, needs", "lower n_steps or n_knots")
    return replace(
        max(plans, key=lambda plan: plan.n_moved),
        n_rows=sum(plan.n_rows for plan in plans),
        n_particles=n_particles,
        n_moved=sum(plan.n_moved for plan in plans),
        condition="labels",
        n_conditions=len(jobs),
        amplifier=float("inf"),
        nbytes=nbytes,
    )


def run(
    job: Job,
    history: events.History,
    listeners: Sequence[events.Listener],
    keeper: CheckpointWriter | None,
    ranks: Ranks | None,
) -> Done:
    """Do it."""
    start, run = begin(job.plan, job.rows, job.asked, job.seed, job.device, ranks), Run()
    heard: list[events.Listener] = [history, *listeners]
    rule = None
    if job.held is not None:
        rule = _stopping_rule(job, job.held, start, ranks or Ranks())
        heard.append(rule)
    kept_up: Any = nullcontext()
    if keeper is not None:
        kept_up = keeper.running(run, start.particles, history, rule, start.share.first)
    with kept_up:
        simulate(
            start.shared,
            start.particles,
            start.data,
            start.transport,
            start.noise,
            n_knots=job.plan.n_knots,
            listeners=heard,
            batches=start.batches,
            run=run,
            n_stages=stages_before_axis_steps(start.flow),
        )
        if keeper is not None:
            keeper.before_last_steps(run, start.particles, history, rule, start.share.first)
        x, model = finish(start, run, job.rows, [history, *listeners], job.seed.child("fresh"), ranks)
    return Done(Part(start.flow, model, job.units), x, start.y)


def _stopping_rule(job: Job, held: HeldRows, start: Start, ranks: Ranks) -> events.HeldOut:
    return events.HeldOut(
        held.x.to(start.data.x.device).T.contiguous(),
        job.seed.child("stopping rule"),
        held.codes,
        start.seen_codes,
        n_iter_no_change=job.plan.n_iter_no_change,
        tol=job.plan.tol,
        joint=ranks.joint,
    )
