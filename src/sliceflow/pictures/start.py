"""What a fit of pictures starts from: particles, batches, transport, and the stages ahead of them."""

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
from sliceflow.pictures.data import PictureData
from sliceflow.pictures.levels import LevelFlow
from sliceflow.pictures.plan import PicturePlan
from sliceflow.ranks import Place, Ranks, shared_transport, weighted_batches

__all__ = ["ParticleLabels", "PictureStart", "begin", "choose_labels"]


@dataclass(frozen=True)
class ParticleLabels:
    """The classes of the particles of all ranks.

    Parameters
    ----------
    rows : rows of the data, whose labels the particles asked for have; None without labels
    codes : of all that are moved
    place : where all stand, the ones asked for first; None where they stand in that order
    """

    rows: Tensor | None = None
    codes: Tensor | None = None
    place: Tensor | None = None

    def n_moved(self, m: int, model: bool) -> int:
        """How many particles are moved where m are asked for; more only for the sake of a model."""
        if self.codes is not None:
            return len(self.codes)
        return max(m, conditions.ENOUGH) if model else m


def choose_labels(
    codes: Tensor | None, m: int, amplifier: float, model: bool, seed: Seed
) -> ParticleLabels:
    """The classes of m particles, in the proportions of the data's codes, each at least once."""
    if codes is None:
        return ParticleLabels()
    rows = conditions.proportional(codes, m, seed, least=1)
    moved = conditions.moved(codes, codes[rows], amplifier, seed, model)
    if amplifier == 0 or len(moved) == m:
        return ParticleLabels(rows, moved)
    order = seed.child("mixed").permutation(len(moved))  # further ones stand among the others
    return ParticleLabels(rows, moved[order], torch.argsort(order))


@dataclass(frozen=True)
class PictureStart:
    """Everything that is there before the first step.

    Parameters
    ----------
    share : which of all particles are this rank's
    kept : which of those that the user asked for this rank gives back: the fit may have more
    particles : those of this rank
    noise : where they come from
    place : where all particles stand, the ones asked for first; None where they stand in that order
    batches : which particles and data a step looks at
    transport : between the clouds of all ranks
    walk : the stages
    """

    share: Place
    kept: Place
    particles: Cloud
    noise: Noise
    place: Tensor | None
    batches: MiniBatches
    transport: transports.Transport
    levels: LevelFlow

    def kept_pixels(self, ranks: Ranks) -> Tensor:
        """x (d, n) of this rank's share of the particles that are kept, as the user has them."""
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
    """Where a fit of the data starts; `mask` (d, 1) are the observed pixels."""
    all_ranks, device, apart = ranks or Ranks(), data.device, plan.apart
    kept, share = all_ranks.share(plan.n_particles), all_ranks.share(plan.n_moved)
    # Nothing observed: the unconditional flow.
    known = None if mask is None or not bool(mask.any()) else mask.to(device)
    codes = None if data.codes is None else data.codes.to(device)
    codes_p, place = assigned.codes, assigned.place
    codes_p = None if codes_p is None else codes_p.to(device)
    place = None if place is None else place.to(device)
    runs = None
    if apart and codes_p is not None:
        codes_p, _, stand, all_runs = sort_by_class(codes_p, apart)
        place = stand if place is None else stand[place]
        runs = all_runs.part(share.slice)
    batches, n_seen = _batches(plan, data, codes, codes_p, seed.child("batches"), ranks)
    transport = plan.transport
    if ranks is not None:  # all ranks have the same maps
        transport = shared_transport(transport, ranks, n_seen)
    noise = Noise(seed.child("particles"), share.first)
    x = torch.empty(plan.layout.dimension, share.count, dtype=torch.float32, device=device)
    noise.child("start").fill(x).mul_(plan.start_noise)
    if known is not None:
        x = torch.where(known, _observed(data, share, kept, seed, plan.dequantize, all_ranks), x)
    particles = Cloud(x, None if codes_p is None else codes_p[share.slice], runs)
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
    return PictureStart(share, kept, particles, noise, place, batches, transport, levels)


def _batches(
    plan: PicturePlan,
    data: PictureData,
    codes: Tensor | None,
    codes_p: Tensor | None,
    seed: Seed,
    ranks: Ranks | None,
) -> tuple[MiniBatches, int]:
    """What the steps look at, and how many columns that are; of several ranks, everything."""
    apart, most, n_seen = plan.apart, plan.n_looked_at, plan.n_moved + data.n
    if plan.amplifier == 0:
        codes_p = None
    if apart and codes is not None and codes_p is not None and data.own_codes is not None:
        if ranks is None:
            return divide_apart(most, codes_p, codes, apart, seed), n_seen
        return MiniBatches(order=torch.argsort(data.own_codes, stable=True)), n_seen
    if ranks is None:
        return divide(plan.n_moved, data.n, most, codes_p, codes, seed, data.device), n_seen
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
