"""The fit of vectors: prepare, move the particles, make columns exact."""

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
from sliceflow.models.checkpoints import CheckpointWriter
from sliceflow.models.ranks import Ranks
from sliceflow.neighbours.local import work_bytes
from sliceflow.neighbours.regressions import COMPONENTS
from sliceflow.neighbours.smoothing import Group
from sliceflow.spaces.vectors.data import FitInput, HeldRows, Rows, hold_out
from sliceflow.spaces.vectors.finish import finish, stages_before_axis_steps
from sliceflow.spaces.vectors.fitted import Part
from sliceflow.spaces.vectors.local import LocalModel
from sliceflow.spaces.vectors.plan import VectorPlan, all_bytes, count_particles, make_plan
from sliceflow.spaces.vectors.smoothing import draw_rows, resolve
from sliceflow.spaces.vectors.start import ParticleConditions, Start, begin, choose_conditions, cloud_of
from sliceflow.spaces.vectors.units import Units

__all__ = [
    "FitResult",
    "Job",
    "local_plan",
    "particle_conditions",
    "per_class",
    "prepare",
    "prepare_classes",
    "run",
]

PARTICLES = 200  # of a local fit unless the user says how many: each needs a neighbourhood


@dataclass(frozen=True)
class Job:
    """The rows for one flow, and the plan of the fit. No particle has moved yet.

    Parameters
    ----------
    plan : the plan of the fit
    rows : the rows to fit, in the engine's units
    held : the held-out rows; None without early stopping
    units : the units of the columns
    assigned : the particles' conditions
    seed : the seed of all random numbers
    device : the device of the fit
    name : the class, if classes are fitted separately; else ""
    groups : the neighbours of the rows of all ranks; none without smoothing
    """

    plan: VectorPlan
    rows: Rows
    held: HeldRows | None
    units: Units
    assigned: ParticleConditions
    seed: Seed
    device: torch.device
    name: str = ""
    groups: Sequence[Group] = ()


class FitResult(NamedTuple):
    """A fitted flow, and x (d, n) and y of the particles that this rank keeps."""

    part: Part
    particles: Tensor
    y: np.ndarray | None


def prepare(
    parameters: Mapping[str, Any],
    inputs: FitInput,
    y_p: np.ndarray | None,
    seed: Seed,
    device: torch.device,
    ranks: Ranks,
    n_particles: int | None = None,
    name: str = "",
) -> Job:
    """The job of fitting one flow to all rows; raises an error if that is impossible."""
    units = Units.of(inputs.X, parameters["standardize"], ranks, inputs.place.total)
    rows, held = inputs.rows(units), None
    if parameters["early_stopping"]:
        fraction = parameters["options"].validation_fraction
        rows, held = hold_out(rows, fraction, seed.child("held out"), ranks, name)
    requested = n_particles or parameters["n_particles"]
    m = count_particles(requested, rows.place.total, rows.condition, y_p)
    need(m >= ranks.size, "n_particles", m, f"at least {ranks.size}, one per rank")
    common: dict[str, Any] = dict(
        shape=(rows.place.total, rows.x.shape[1]),
        dtype=rows.x.dtype,
        n_particles=m,
        condition=rows.condition,
        device=device,
        n_ranks=ranks.size,
    )
    local_counts = (len(rows.x), ranks.share(m).count)
    plan = make_plan(
        parameters, codes=None, local_counts=local_counts, **common
    )  # checks the memory before codes are allocated
    strength, groups = resolve(rows, parameters["options"], plan.amplifier, ranks)
    assigned = choose_conditions(rows, m, y_p, plan.amplifier, seed.child("conditions"))
    n_moved = assigned.n_moved(m)
    local_counts = (len(rows.x), ranks.share(n_moved).count)
    plan = make_plan(
        parameters,
        codes=assigned.codes,
        n_moved=n_moved,
        local_counts=local_counts,
        smoothing=strength,
        **common,
    )
    return Job(plan, rows, held, units, assigned, seed, device, name, groups)


def prepare_classes(
    parameters: Mapping[str, Any],
    inputs: FitInput,
    y_p: np.ndarray | None,
    seed: Seed,
    device: torch.device,
    ranks: Ranks,
) -> tuple[list[Job], np.ndarray, Tensor]:
    """One job per class (ξ = ∞), and the particles' y and codes."""
    condition, codes, y = inputs.condition, inputs.codes, inputs.y
    if not isinstance(condition, conditions.Labels) or codes is None or y is None:
        raise ValueError(
            "amplifier=inf fits each class separately, but y is continuous; use a finite amplifier, or "
            "pass class labels (n,)"
        )
    if ranks.size > 1:
        raise ValueError(
            "amplifier=inf fits each class of vectors separately, which several ranks cannot do "
            "together; use a finite amplifier, or fit in one process"
        )
    m = count_particles(parameters["n_particles"], len(codes), condition, y_p)
    if y_p is None:
        _check_memory(parameters, inputs, codes, m, device)  # before allocating codes
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
            inputs.of_class(c),
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
    parameters: Mapping[str, Any], inputs: FitInput, codes: Tensor, m: int, device: torch.device
) -> None:
    """Raise a `NotEnoughMemoryError` if the largest class has too many of the m particles."""
    largest = int(torch.bincount(codes).max())
    make_plan(
        parameters,
        shape=(largest, inputs.X.shape[1]),
        dtype=torch.float32 if inputs.X.dtype == np.float32 else torch.float64,
        n_particles=m * largest // len(codes),
        condition=None,
        codes=None,
        device=device,
    )


def per_class(jobs: Sequence[Job], n_particles: int) -> VectorPlan:
    """The joint plan of all classes, which keep `n_particles` together."""
    plans = [job.plan for job in jobs]
    nbytes = all_bytes(plans)
    what = f"n_particles={n_particles} with {len(jobs)} classes, each with maps"
    need_memory(nbytes, jobs[0].device, f"{what} of its own, needs", "lower n_steps or n_knots")
    largest = max(plans, key=lambda plan: plan.n_moved)
    why = largest.smoothing_from
    return replace(
        largest,
        n_rows=sum(plan.n_rows for plan in plans),
        n_particles=n_particles,
        n_moved=sum(plan.n_moved for plan in plans),
        condition="labels",
        n_conditions=len(jobs),
        amplifier=float("inf"),
        smoothing_from=why and f"{why}, here of the largest class",
        nbytes=nbytes,
    )


def run(
    job: Job,
    history: events.History,
    listeners: Sequence[events.Listener],
    writer: CheckpointWriter | None,
    ranks: Ranks | None,
) -> FitResult:
    """Move the particles onto the rows, then make the columns exact."""
    rows, last_rows = _targets(job, ranks or Ranks())
    start, run = begin(job.plan, rows, job.assigned, job.seed, job.device, ranks), Run()
    all_listeners: list[events.Listener] = [history, *listeners]
    rule = None
    if job.held is not None:
        rule = _stopping_rule(job, job.held, start, ranks or Ranks())
        all_listeners.append(rule)
    checkpointing: Any = nullcontext()
    if writer is not None:
        checkpointing = writer.running(run, start.particles, history, rule, start.share.first)
    with checkpointing:
        simulate(
            start.shared,
            start.particles,
            start.data,
            start.transport,
            start.noise,
            n_knots=job.plan.n_knots,
            listeners=all_listeners,
            batches=start.batches,
            run=run,
            n_stages=stages_before_axis_steps(start.flow),
            shrinkage=start.shrinkage,
        )
        if writer is not None:
            writer.before_last_steps(run, start.particles, history, rule, start.share.first)
        last = start if last_rows is rows else replace(start, data=cloud_of(last_rows, job.device))
        x, model = finish(last, run, last_rows, [history, *listeners], job.seed.child("fresh"), ranks)
    return FitResult(Part(start.flow, model, job.units), x, start.y)


def _targets(job: Job, ranks: Ranks) -> tuple[Rows, Rows]:
    """What the flow looks at, and what its axis steps look at: the rows, or draws around them."""
    plan, rows = job.plan, job.rows
    if plan.smoothing == 0:
        return rows, rows
    x, heavy = ranks.gather(rows.x), torch.from_numpy(job.units.heavy_tailed)
    seed = job.seed.child("smoothing")
    return draw_rows(x, rows, job.groups, plan.smoothing, plan.n_draws, seed, heavy)


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


def local_plan(
    parameters: Mapping[str, Any],
    inputs: FitInput,
    y_p: np.ndarray | None,
    device: torch.device,
) -> tuple[VectorPlan, Units, LocalModel]:
    """The plan of a local fit, its units, and its model: to know k is to have fitted it."""
    assert inputs.codes is not None
    units = Units.of(inputs.X, parameters["standardize"])
    n, d = inputs.X.shape
    given = parameters["n_particles"] or (PARTICLES if y_p is None else None)
    dtype = torch.float32 if inputs.X.dtype == np.float32 else torch.float64
    still = replace(parameters["options"], n_axis_steps=0)
    plan = make_plan(
        {**parameters, "n_steps": 0, "options": still},
        shape=(n, d),
        dtype=dtype,
        n_particles=count_particles(given, n, inputs.condition, y_p),
        condition=inputs.condition,
        codes=None,
        device=device,
    )
    columns = inputs.codes.shape[1]
    nbytes = plan.nbytes + 8 * 4 * n * (d + columns) + work_bytes(n, columns)
    need_memory(
        nbytes, device, f"{n} rows of {d} columns, kept for condition='local', need", "keep fewer"
    )
    labelled = isinstance(inputs.condition, conditions.Mixed)
    model = LocalModel.fit_to(units.encode(inputs.X), inputs.codes, labelled)
    most, words = max(part.settings.k for part in model.parts), model.description
    plan = replace(plan, neighbours=most, distances=words, components=COMPONENTS, nbytes=nbytes)
    return plan, units, model


def particle_conditions(
    inputs: FitInput, m: int, y_p: np.ndarray | None, seed: Seed
) -> tuple[np.ndarray, Tensor]:
    """y of m particles and its codes: the user's, or those of rows, each equally often."""
    assert inputs.codes is not None
    assert inputs.condition is not None
    assert inputs.y is not None
    if y_p is not None:
        return y_p, inputs.condition.encode(y_p)
    rows = conditions.even_rows(len(inputs.codes), m, seed)
    return inputs.y[rows.numpy()], inputs.codes[rows]
