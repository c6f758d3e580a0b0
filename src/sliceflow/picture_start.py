"""What a fit of pictures starts from: particles, batches, transport, and the walk ahead of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow import conditions, schedule, transports
from sliceflow.checks import ParameterError, columns_looked_at, need, need_memory, projection_budget
from sliceflow.distributed import Place, Ranks, weighed
from sliceflow.flow import Cloud, Noise
from sliceflow.local import Tiles
from sliceflow.minibatch import MiniBatches, divide, divide_apart
from sliceflow.picture_data import PictureData
from sliceflow.picture_parameters import (
    choose_amplifier,
    choose_directions,
    choose_knots,
    choose_operands,
    choose_particles,
    choose_transport,
    direction_bytes,
)
from sliceflow.pictures import mask_of
from sliceflow.rng import Seed
from sliceflow.runs import arranged
from sliceflow.walk import Walk

if TYPE_CHECKING:
    from sliceflow.image_flow import ImageFlow

__all__ = ["PictureStart", "begin"]


@dataclass(frozen=True)
class PictureStart:
    """Everything that is there before the first step.

    Parameters
    ----------
    share : which of the M particles are this rank's
    particles : those of this rank
    noise : where they come from
    rows : (M,) rows of the data, whose labels the particles of all ranks have; None without labels
    place : (M,) where those particles stand, if they are in the order of their classes
    batches : which particles and data a step looks at
    transport : between the clouds of all ranks
    walk : the stages
    mask : (d, 1) observed pixels; None without `observed`
    n_knots : that are kept of each map
    """

    share: Place
    particles: Cloud
    noise: Noise
    rows: Tensor | None
    place: Tensor | None
    batches: MiniBatches
    transport: transports.Transport
    walk: Walk
    mask: Tensor | None
    n_knots: int


def begin(flow: ImageFlow, data: PictureData, seed: Seed, ranks: Ranks | None) -> PictureStart:
    """Where the parameters of `flow` let a fit of the data start; an error names what forbids it."""
    together, layout = ranks or Ranks(), data.layout
    m = choose_particles(flow.n_particles, data.n, data.condition)
    share = together.share(m)
    need(m >= together.size, "n_particles", m, f"at least {together.size}, one per rank")
    mask = None if flow.observed is None else mask_of(flow.observed, layout)
    # Nothing observed: the unconditional flow.
    known = None if mask is None or not bool(mask.any()) else mask.to(data.device)
    stages = flow.stages(layout.height, layout.width)
    amplifier = 0.0
    if data.condition is not None:
        xi = math.inf if data.condition.hidden else flow.amplifier
        amplifier = choose_amplifier(xi, flow.transport, m, data.n, data.condition.width)
    transport = choose_transport(flow.transport, amplifier)
    n_classes = 0 if data.condition is None else data.condition.width
    apart = n_classes if amplifier == math.inf else 0
    directions = [Tiles(layout.shape[0], v.h, v.w, v.patch).most_directions for v in stages]
    most = None
    if ranks is None:
        most = columns_looked_at(transport.most, max(directions), data.device)
    if apart and isinstance(transport, transports.Auto):  # by what there is, not by what a step sees
        transport = transport.chosen(m + data.n)
    one = direction_bytes(flow, m, data.n, amplifier, n_classes)
    _check_memory(one, data, share, stages, directions, most)

    rows, codes, codes_p, place, runs = None, None, None, None, None
    if data.codes is not None:
        rows = conditions.proportional(data.codes, m, seed.child("conditions")).to(data.device)
        codes = data.codes.to(data.device)
        codes_p = codes[rows]
    if apart and codes_p is not None:
        _need_particles(m, data.condition, codes_p)
        codes_p, _, place, whole = arranged(codes_p, apart)
        runs = whole.part(share.slice)
    seen = None if amplifier == 0 else codes_p
    batches, n_seen = _batches(data, m, codes, seen, apart, most, seed.child("batches"), ranks)
    if ranks is not None:  # all ranks have the same maps
        transport = ranks.shared(transport, n_seen)
    noise = Noise(seed.child("particles"), share.first)
    x = torch.empty(layout.dimension, share.count, dtype=torch.float32, device=data.device)
    noise.child("start").fill(x).mul_(flow.start_noise)
    if known is not None:
        x = torch.where(known, _observed(data, share, seed, flow.dequantize, together), x)
    particles = Cloud(x, None if codes_p is None else codes_p[share.slice], runs)
    walk = _walk(flow, data, amplifier, stages, known, seed.child("flow"), together)
    n_knots = choose_knots(flow.n_knots, m, amplifier, n_classes)
    return PictureStart(share, particles, noise, rows, place, batches, transport, walk, mask, n_knots)


def _batches(
    data: PictureData,
    m: int,
    codes: Tensor | None,
    codes_p: Tensor | None,
    apart: int,
    most: int | None,
    seed: Seed,
    ranks: Ranks | None,
) -> tuple[MiniBatches, int]:
    """What the steps look at, and how many columns that are; of several ranks, everything."""
    n_seen = m + data.n
    if apart and codes is not None and codes_p is not None and data.own_codes is not None:
        if ranks is None:
            return divide_apart(most, codes_p, codes, apart, seed), n_seen
        return MiniBatches(order=torch.argsort(data.own_codes, stable=True)), n_seen
    if ranks is None:
        return divide(m, data.n, most, codes_p, codes, seed, data.device), n_seen
    batches, left_out = weighed(codes, codes_p, data.here, data.device)
    return batches, n_seen - left_out


def _need_particles(m: int, condition: conditions.Labels | None, codes: Tensor) -> None:
    """Refuse a class of which there is no particle: nothing would be learnt about it."""
    if condition is None or condition.hidden:
        return
    missing = torch.nonzero(torch.bincount(codes, minlength=condition.width) == 0)[:, 0].tolist()
    if missing:
        name = conditions.shown(condition.classes[missing[0]])
        raise ParameterError(
            "n_particles",
            m,
            f"leaves none for class {name}, and with amplifier=inf every class has only its own",
            "pass more particles, or a finite amplifier",
        )


def _observed(data: PictureData, share: Place, seed: Seed, dequantize: bool, ranks: Ranks) -> Tensor:
    """The particles' observed pixels: the pictures' own, each picture used equally often."""
    numbers = conditions.evenly(data.n, share.total, seed.child("conditions"))[share.slice]
    return data.layout.encode(
        data.picked(numbers.to(data.device), ranks),
        seed.child("observed"),
        dequantize=dequantize,
        total=share.total,
        runs=[share.slice],
    )


def _walk(
    flow: ImageFlow,
    data: PictureData,
    amplifier: float,
    stages: list[schedule.PictureStage],
    known: Tensor | None,
    seed: Seed,
    ranks: Ranks,
) -> Walk:
    layout, raw = data.layout, data.raw
    return Walk(
        layout,
        stages,
        seed,
        n_conditions=0 if data.condition is None else data.condition.width,
        amplifier=amplifier,
        known=known,
        upsampling=flow.upsampling,
        directions=choose_directions(flow.directions, layout, raw, data.here, data.n, ranks),
        clip=flow.clip,
        dequantize=flow.dequantize,
        start_noise=float(flow.start_noise),
        taper=flow.taper,
        budget=projection_budget(data.device),
        precision=choose_operands(flow.precision, data.device),
    )


def _check_memory(
    one: int,
    data: PictureData,
    share: Place,
    stages: list[schedule.PictureStage],
    directions: list[int],
    most: int | None,
) -> None:
    """Refuse what cannot fit: particles, a level's coefficients, pictures, projections, the model."""
    m, (d, n) = share.count, data.raw.shape
    looked_at = min(m, most or share.total) + min(n, most or data.n)
    n_maps = sum(h * v.n_steps for h, v in zip(directions, stages, strict=True))
    clouds = 4 * d * (4 * m + 3 * n) + data.raw.nbytes
    need_memory(
        clouds + 4 * max(directions) * looked_at + n_maps * one,
        data.device,
        f"n_particles={m}, {n} pictures of {d} values and a model of {n_maps} maps need",
        "lower n_particles, quality or n_knots (0 keeps no model)",
    )
