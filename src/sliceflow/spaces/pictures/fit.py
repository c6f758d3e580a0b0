"""The fit of pictures: prepare, then move the particles level by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Run, simulate
from sliceflow.engine.random import Seed
from sliceflow.errors import need
from sliceflow.models.old_checkpoints import CheckpointWriter
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.data import PictureData
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import mask_of
from sliceflow.spaces.pictures.plan import (
    PicturePlan,
    choose_clusters,
    choose_particles,
    choose_patch_basis,
    make_plan,
)
from sliceflow.spaces.pictures.start import ParticleLabels, begin, choose_labels

__all__ = ["Job", "prepare", "run"]


@dataclass(frozen=True)
class Job:
    """The pictures to fit, and the plan of the fit. No particle has moved yet.

    Parameters
    ----------
    plan : the plan of the fit
    data : the pictures, with mirror images and clusters if enabled
    assigned : the particles' classes
    mask : (d, 1) observed pixels, or None
    seed : the seed of all random numbers
    """

    plan: PicturePlan
    data: PictureData
    assigned: ParticleLabels
    mask: Tensor | None
    seed: Seed


class FitResult(NamedTuple):
    """A fitted flow, the batched samples, and their labels."""

    fitted: FittedPictures
    particles: Any
    y: Any


def prepare(parameters: Mapping[str, Any], data: PictureData, seed: Seed, ranks: Ranks) -> Job:
    """The job of fitting the pictures; raises an error if that is impossible."""
    options = parameters["options"]
    if parameters["mirror"]:
        data = data.with_mirror_images()
    if data.condition is None and parameters["observed"] is None:
        k = choose_clusters(parameters, data.n, data.layout.shape)
        if k > 1:
            data = data.clustered(k, seed.child("data"), options.upsampling, ranks)
    mask = None if parameters["observed"] is None else mask_of(parameters["observed"], data.layout)
    basis = choose_patch_basis(
        parameters["patch_basis"], data.layout, data.raw, data.own_numbers, data.n, ranks
    )
    common: dict[str, Any] = dict(
        layout=data.layout,
        n=data.n,
        condition=data.condition,
        patch_basis=basis,
        device=data.device,
        ranks=ranks,
    )
    n_here = data.raw.shape[1]
    m = choose_particles(parameters, data.n, data.condition)
    local_counts = (n_here, ranks.share(m).count)
    plan = make_plan(parameters, n_moved=None, local_counts=local_counts, **common)
    model = plan.n_knots > 0
    need(m >= ranks.size, "n_particles", m, f"at least {ranks.size}, one per rank")
    assigned = choose_labels(data.codes, m, plan.amplifier, model, seed.child("conditions"))
    n_moved = assigned.n_moved(m, model)
    local_counts = (n_here, ranks.share(n_moved).count)
    return Job(
        make_plan(parameters, n_moved=n_moved, local_counts=local_counts, **common),
        data,
        assigned,
        mask,
        seed,
    )


def run(
    job: Job,
    history: events.History,
    listeners: Sequence[events.Listener],
    writer: CheckpointWriter | None,
    ranks: Ranks,
) -> FitResult:
    """Move the particles onto the pictures, level by level."""
    plan, seed = job.plan, job.seed
    start = begin(plan, job.data, job.assigned, job.mask, seed, ranks)
    data, by_step = replace(job.data, order=start.batches.order), plan.dequantize_every == "step"

    def draw(stage: int, step: int) -> Cloud:
        number = (stage, step) if by_step else (stage,)
        return data.cloud(seed.child("data", *number), plan.dequantize)

    target = Target(draw, start.batches, every_step=plan.dequantize and by_step)
    run = Run()
    checkpointing: Any = nullcontext()
    if writer is not None:
        checkpointing = writer.running(run, start.particles, history, None, start.share.first)
    with checkpointing:
        model = simulate(
            start.fitting,
            start.particles,
            target,
            start.noise,
            listeners=[history, *listeners],
            run=run,
        )
    fitted = FittedPictures(
        start.levels,
        model,
        data.condition,
        data.codes,
        data.place.total,
        data.device,
        job.mask,
        start.sums,
    )
    y, rows = None, job.assigned.rows
    if data.names is not None and rows is not None:
        y = data.names[rows[start.kept.slice].cpu().numpy()]
    return FitResult(fitted, data.layout.write(start.kept_pixels(ranks)), y)
