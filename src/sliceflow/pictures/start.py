"""What a fit of pictures starts from: particles, batches, transport, and the walk ahead of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.devices import columns_looked_at, need_memory, projection_budget
from sliceflow.engine import conditions, transports
from sliceflow.engine.batches import MiniBatches, divide, divide_apart
from sliceflow.engine.classes import sort_by_class
from sliceflow.engine.flow import Cloud, Noise
from sliceflow.engine.frames import rotation_bytes
from sliceflow.engine.random import Seed
from sliceflow.errors import need
from sliceflow.pictures import schedules
from sliceflow.pictures.data import PictureData
from sliceflow.pictures.layout import Layout, mask_of
from sliceflow.pictures.levels import Walk
from sliceflow.pictures.plan import (
    choose_amplifier,
    choose_knots,
    choose_operands,
    choose_particles,
    choose_patch_basis,
    choose_transport,
    direction_bytes,
)
from sliceflow.pictures.tiles import Tiles
from sliceflow.ranks import Place, Ranks, shared_transport, weighted_batches

if TYPE_CHECKING:
    from sliceflow.pictures.estimator import ImageFlow

__all__ = ["PictureStart", "begin", "check_refresh_memory", "stage_bytes"]

_BINS = 48  # bytes per bin: both counts, values, and what finding their bends takes


@dataclass(frozen=True)
class PictureStart:
    """Everything that is there before the first step.

    Parameters
    ----------
    share : which of all particles are this rank's
    kept : which of those that the user asked for this rank gives back: the fit may have more
    particles : those of this rank
    noise : where they come from
    rows : rows of the data, whose labels the particles asked for have; None without labels
    place : where all particles stand, the ones asked for first; None where they stand in that order
    batches : which particles and data a step looks at
    transport : between the clouds of all ranks
    walk : the stages
    mask : (d, 1) observed pixels; None without `observed`
    n_knots : that are kept of each map
    """

    share: Place
    kept: Place
    particles: Cloud
    noise: Noise
    rows: Tensor | None
    place: Tensor | None
    batches: MiniBatches
    transport: transports.Transport
    walk: Walk
    mask: Tensor | None
    n_knots: int

    def given_back(self, ranks: Ranks) -> Tensor:
        """x (d, n) of this rank's share of the particles that are kept, as `rows` are ordered."""
        x, place = self.particles.x, self.place
        if place is None and self.kept == self.share:
            return x
        if place is None:
            place = torch.arange(self.share.total, device=x.device)
        return ranks.pick(x, place[self.kept.slice])


def begin(flow: ImageFlow, data: PictureData, seed: Seed, ranks: Ranks | None) -> PictureStart:
    """Where the parameters of `flow` let a fit of the data start; an error names what forbids it."""
    together, layout = ranks or Ranks(), data.layout
    m = choose_particles(flow.n_particles, data.n, data.condition)
    kept = together.share(m)
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
    n_knots = choose_knots(flow._options.n_knots, m, amplifier, n_classes)
    one = direction_bytes(flow, m, data.n, amplifier, n_classes)
    bins = (apart or 1) * getattr(transport, "n_bins", 0)
    _check_memory(one, data, kept, stages, directions, most, bins)
    rows, codes, codes_p, place, runs = None, None, None, None, None
    if data.codes is not None:
        rows, codes_p, place = _labels(data.codes, m, amplifier, n_knots > 0, seed.child("conditions"))
        rows, codes, codes_p = (t.to(data.device) for t in (rows, data.codes, codes_p))
        place = None if place is None else place.to(data.device)
    m = _enough(m, n_knots > 0) if codes_p is None else len(codes_p)
    share = together.share(m)
    if share != kept:
        _check_memory(one, data, share, stages, directions, most, bins)
    if apart and codes_p is not None:
        codes_p, _, stand, whole = sort_by_class(codes_p, apart)
        place = stand if place is None else stand[place]
        runs = whole.part(share.slice)
    seen = None if amplifier == 0 else codes_p
    batches, n_seen = _batches(data, m, codes, seen, apart, most, seed.child("batches"), ranks)
    if ranks is not None:  # all ranks have the same maps
        transport = shared_transport(transport, ranks, n_seen)
    noise = Noise(seed.child("particles"), share.first)
    x = torch.empty(layout.dimension, share.count, dtype=torch.float32, device=data.device)
    noise.child("start").fill(x).mul_(flow._options.start_noise)
    if known is not None:
        x = torch.where(
            known, _observed(data, share, kept, seed, flow._options.dequantize, together), x
        )
    particles = Cloud(x, None if codes_p is None else codes_p[share.slice], runs)
    walk = _walk(flow, data, amplifier, stages, known, seed.child("flow"), together)
    return PictureStart(
        share, kept, particles, noise, rows, place, batches, transport, walk, mask, n_knots
    )


def _enough(m: int, model: bool) -> int:
    """How many particles are fitted where m are asked for; more only for the sake of a model."""
    return max(m, conditions.ENOUGH) if model else m


def _labels(
    codes: Tensor, m: int, amplifier: float, model: bool, seed: Seed
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows of the data whose labels the m particles asked for have; the codes of all that are fitted.

    And where they stand, if that is not in this order: further ones are mixed with them.
    """
    rows = conditions.proportional(codes, m, seed, least=1)
    if amplifier == 0:
        more = codes[conditions.proportional(codes, _enough(m, model) - m, seed.child("further"))]
        return rows, torch.cat((codes[rows], more)), None
    more = codes[:0]
    if model:
        more = conditions.extra_codes(codes, codes[rows], math.isinf(amplifier), seed.child("further"))
    if len(more) == 0:
        return rows, codes[rows], None
    order = seed.child("mixed").permutation(m + len(more))
    return rows, torch.cat((codes[rows], more))[order], torch.argsort(order)


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
    batches, left_out = weighted_batches(codes, codes_p, data.here, data.device)
    return batches, n_seen - left_out


def _observed(
    data: PictureData, share: Place, kept: Place, seed: Seed, dequantize: bool, ranks: Ranks
) -> Tensor:
    """The particles' observed pixels: the pictures' own, each used equally often, also by the kept."""
    seeds = seed.child("conditions"), seed.child("conditions", "further")
    counts = kept.total, share.total - kept.total
    numbers = torch.cat([conditions.even_rows(data.n, *of) for of in zip(counts, seeds, strict=True)])
    numbers = numbers[share.slice]
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
    stages: list[schedules.PictureStage],
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
        upsampling=flow._options.upsampling,
        patch_basis=choose_patch_basis(flow.patch_basis, layout, raw, data.here, data.n, ranks),
        clip=flow._options.clip,
        dequantize=flow._options.dequantize,
        start_noise=float(flow._options.start_noise),
        taper=flow._options.taper,
        budget=projection_budget(data.device),
        precision=choose_operands(flow._options.precision, data.device),
    )


def stage_bytes(
    layout: Layout,
    stages: list[schedules.PictureStage],
    directions: list[int],
    looked_at: int,
    bins: int,
) -> int:
    """What the steps take besides particles and pictures: projections, bins, and rotations."""
    tiles = [layout.shape[0] * min(v.patch, v.h) * min(v.patch, v.w) for v in stages]
    return max(directions) * (4 * looked_at + _BINS * bins) + rotation_bytes(max(tiles), 4)


def check_refresh_memory(walk: Walk, m: int, n_bins: int, n_classes: int, device: torch.device) -> None:
    """Refuse particles that a refresh of counted pictures has no memory for."""
    layout, stages = walk.layout, walk.stages
    directions = [Tiles(layout.shape[0], v.h, v.w, v.patch).most_directions for v in stages]
    bins = n_bins * n_classes
    need_memory(
        4 * 4 * layout.dimension * m + stage_bytes(layout, stages, directions, m, bins),
        device,
        f"n_particles={m} of {layout.dimension} values and {n_bins} bins need",
        "lower n_particles",
    )


def _check_memory(
    one: int,
    data: PictureData,
    share: Place,
    stages: list[schedules.PictureStage],
    directions: list[int],
    most: int | None,
    bins: int,
) -> None:
    """Refuse what cannot fit: particles, a level's coefficients, pictures, projections, the model.

    And rotations, and the `bins` of every direction.
    """
    m, (d, n) = share.count, data.raw.shape
    looked_at = min(m, most or share.total) + min(n, most or data.n)
    n_maps = sum(h * v.n_steps for h, v in zip(directions, stages, strict=True))
    clouds = 4 * d * (4 * m + 3 * n) + data.raw.nbytes
    need_memory(
        clouds + stage_bytes(data.layout, stages, directions, looked_at, bins) + n_maps * one,
        data.device,
        f"n_particles={m}, {n} pictures of {d} values and a model of {n_maps} maps need",
        "lower n_particles, quality or n_knots (0 keeps no model)",
    )
