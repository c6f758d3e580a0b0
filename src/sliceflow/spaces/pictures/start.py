"""The start of a fit of pictures: particles, batches, transport and stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import conditions
from sliceflow.engine.batches import Batches, divide, divide_apart
from sliceflow.engine.clouds import Cloud, Runs, sort_by_class
from sliceflow.engine.flow import Flow, Noise
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrunk, noise_rates
from sliceflow.engine.transports import Transport
from sliceflow.models.ranks import Place, Ranks, across_ranks, weighted_batches
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
    levels : the flow through the levels of the pyramid
    fitting : the same for the engine, with shrunk maps that are fitted to the clouds of all ranks
    sums : where the particles started; None is noise
    """

    share: Place
    kept: Place
    particles: Cloud
    noise: Noise
    place: Tensor | None
    batches: Batches
    levels: LevelFlow
    fitting: Flow
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
    ranks: Ranks,
) -> PictureStart:
    """The start of a fit of the data; `mask` (d, 1) marks the observed pixels."""
    device, apart = data.device, plan.apart
    kept, share = ranks.share(plan.n_particles), ranks.share(plan.n_moved)
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
    batches = _batches(plan, data, codes, codes_p, runs, seed.child("batches"), ranks)
    rates = noise_rates(
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
        sums = Sums.of(plan.n_summed, plan.locality, data, codes, plan.apart, ranks)
    if known is not None:
        observed = _observed(data, share, kept, seed, plan.dequantize, ranks)
    x = start_of(levels, sums, share.count, codes_here, noise, device, observed)
    particles = Cloud(x, codes_here, runs)
    n_shared = 0 if apart or plan.amplifier == 0 else plan.n_conditions

    def shrunk(transport: Transport) -> Transport:
        return Shrunk(transport, plan.shrinkage, rates, n_shared) if plan.shrinkage else transport

    fitting = across_ranks(levels.flow(plan.transport, plan.n_knots, shrunk), ranks)
    return PictureStart(share, kept, particles, noise, place, batches, levels, fitting, sums)


def _batches(
    plan: PicturePlan,
    data: PictureData,
    codes: Tensor | None,
    codes_p: Tensor | None,
    runs: Runs | None,
    seed: Seed,
    ranks: Ranks,
) -> Batches:
    """The columns that each step uses: all of them with several ranks.

    `runs` are those of this rank's particles, if every class has its own maps.
    """
    apart, most, own = plan.apart, plan.n_looked_at, data.own_codes
    if plan.amplifier == 0:
        codes_p = None
    if runs is not None and codes is not None and codes_p is not None and own is not None:
        if ranks.size == 1:
            return divide_apart(most, codes_p, codes, apart, seed)
        own_runs = Runs.from_codes(own, apart)
        return Batches(order=torch.argsort(own, stable=True), runs=[(runs, own_runs)])
    if ranks.size == 1:
        return divide(plan.n_moved, data.n, most, codes_p, codes, seed, data.device)
    return weighted_batches(codes, codes_p, data.own_numbers, data.device)


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
