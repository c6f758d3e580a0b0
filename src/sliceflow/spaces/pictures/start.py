"""The start of a fit of pictures: particles, batches, transport and stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import conditions, transports
from sliceflow.engine.batches import MiniBatches, divide, divide_apart
from sliceflow.engine.classes import sort_by_class
from sliceflow.engine.flow import Cloud, Noise
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.models.ranks import Place, Ranks, shared_transport, weighted_batches
from sliceflow.spaces.pictures.data import PictureData
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.sums import Sums, start_of

__all__ = ["ParticleLabels", "PictureStart", "begin", "choose_labels"]


@dataclass(frozen=True)
class ParticleLabels:
    """The classes of the particles of all ranks.

    Parameters
    ----------
    rows : pictures whose labels the kept particles take; None without labels
    codes : classes of all moved particles
    place : position of each particle, the kept ones first; None if they are not shuffled
    """

    rows: Tensor | None = None
    codes: Tensor | None = None
    place: Tensor | None = None

    def n_moved(self, m: int, model: bool) -> int:
        """Number of particles to move in order to keep m; a `model` may need more than m."""
        if self.codes is not None:
            return len(self.codes)
        return max(m, conditions.ENOUGH) if model else m


def choose_labels(
    codes: Tensor | None, m: int, amplifier: float, model: bool, seed: Seed
) -> ParticleLabels:
    """The classes of m particles, in the data's proportions, each at least once."""
    if codes is None:
        return ParticleLabels()
    rows = conditions.proportional(codes, m, seed, least=1)
    moved = conditions.moved(codes, codes[rows], amplifier, seed, model)
    if amplifier == 0 or len(moved) == m:
        return ParticleLabels(rows, moved)
    order = seed.child("mixed").permutation(len(moved))  # mix the additional particles with the others
    return ParticleLabels(rows, moved[order], torch.argsort(order))


@dataclass(frozen=True)
class PictureStart:
    """The start of a fit.

    Parameters
    ----------
    share : this rank's part of all moved particles
    kept : this rank's part of the kept particles
    particles : this rank's particles
    noise : the particles' random numbers
    place : position of each particle, the kept ones first; None if they are in that order
    batches : the particles and data that each step uses
    transport : combines the clouds of all ranks
    shrinkage : of the maps; None if it is off
    levels : the flow through the levels of the pyramid
    sums : where the particles started; None is noise
    """

    share: Place
    kept: Place
    particles: Cloud
    noise: Noise
    place: Tensor | None
    batches: MiniBatches
    transport: transports.Transport
    shrinkage: Shrinkage | None
    levels: LevelFlow
    sums: Sums | None = None

    def kept_pixels(self, ranks: Ranks) -> Tensor:
        """x (d, n) of this rank's kept particles, in the user's order."""
        x, place = self.particles.x, self.place
        if place is None and self.kept == self.share:
            return x
        if place is None:
            place = torch.arange(self.share.total, device=x.device)
        return ranks.pick(x, place[self.kept.slice])


def begin(
    plan: PicturePlan,
    data: PictureData,
    assigned: ParticleLabels,
    mask: Tensor | None,
    seed: Seed,
    ranks: Ranks | None,
) -> PictureStart:
    """The start of a fit of the data; `mask` (d, 1) marks the observed pixels."""
    all_ranks, device, apart = ranks or Ranks(), data.device, plan.apart
    kept, share = all_ranks.share(plan.n_particles), all_ranks.share(plan.n_moved)
    # A mask without pixels is the unconditional flow.
    known = None if mask is None or not bool(mask.any()) else mask.to(device)
    codes = None if data.codes is None else data.codes.to(device)
    codes_p, place = assigned.codes, assigned.place
    codes_p = None if codes_p is None else codes_p.to(device)
    place = None if place is None else place.to(device)
    runs = None
    if apart and codes_p is not None:
        codes_p, _, positions, all_runs = sort_by_class(codes_p, apart)
        place = positions if place is None else positions[place]
        runs = all_runs.part(share.slice)
    batches, n_seen = _batches(plan, data, codes, codes_p, seed.child("batches"), ranks)
    transport = plan.transport
    if ranks is not None:  # all ranks have the same maps
        transport = shared_transport(transport, ranks, n_seen)
    shrinkage = Shrinkage.of(
        plan.shrinkage,
        plan.n_moved,
        data.n,
        *((codes_p, codes) if plan.amplifier > 0 else (None, None)),
        n_apart=apart,
        most=plan.n_looked_at,
        distinct=0.5 if plan.mirror else 1.0,
    )
    levels = LevelFlow(
        plan.layout,
        list(plan.stages),
        seed.child("flow"),
        n_conditions=plan.n_conditions,
        amplifier=plan.amplifier,
        known=known,
        upsampling=plan.upsampling,
        patch_basis=plan.patch_basis,
        clip=plan.clip,
        dequantize=plan.dequantize,
        start_noise=plan.start_noise,
        taper=plan.taper,
        budget=projection_budget(device),
        precision=plan.precision,
        n_directions=plan.n_directions or 1,
    )
    noise = Noise(seed.child("particles"), share.first)
    codes_here = None if codes_p is None else codes_p[share.slice]
    sums = observed = None
    if plan.n_summed:
        sums = Sums.of(plan.n_summed, plan.locality, data, codes, plan.apart, all_ranks)
    if known is not None:
        observed = _observed(data, share, kept, seed, plan.dequantize, all_ranks)
    x = start_of(levels, sums, share.count, codes_here, noise, device, observed)
    particles = Cloud(x, codes_here, runs)
    return PictureStart(
        share, kept, particles, noise, place, batches, transport, shrinkage, levels, sums
    )


def _batches(
    plan: PicturePlan,
    data: PictureData,
    codes: Tensor | None,
    codes_p: Tensor | None,
    seed: Seed,
    ranks: Ranks | None,
) -> tuple[MiniBatches, int]:
    """The columns that each step uses, and their number. With ranks, a step uses all columns."""
    apart, most, n_seen = plan.apart, plan.n_looked_at, plan.n_moved + data.n
    if plan.amplifier == 0:
        codes_p = None
    if apart and codes is not None and codes_p is not None and data.own_codes is not None:
        if ranks is None:
            return divide_apart(most, codes_p, codes, apart, seed), n_seen
        return MiniBatches(order=torch.argsort(data.own_codes, stable=True)), n_seen
    if ranks is None:
        return divide(plan.n_moved, data.n, most, codes_p, codes, seed, data.device), n_seen
    batches, left_out = weighted_batches(codes, codes_p, data.own_numbers, data.device)
    return batches, n_seen - left_out


def _observed(
    data: PictureData, share: Place, kept: Place, seed: Seed, dequantize: bool, ranks: Ranks
) -> Tensor:
    """The particles' observed pixels. Kept and other particles use each picture equally often."""
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
