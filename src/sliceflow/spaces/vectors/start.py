"""The start of a fit: particles, data, and the flow that moves the particles onto the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import conditions
from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Flow, Noise
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.models.ranks import Place, Ranks, across_ranks, weighted_batches
from sliceflow.spaces.vectors.data import Rows
from sliceflow.spaces.vectors.plan import VectorPlan

__all__ = [
    "ParticleConditions",
    "Start",
    "as_cloud",
    "begin",
    "choose_conditions",
    "cloud_of",
    "target_of",
]


@dataclass(frozen=True)
class ParticleConditions:
    """The conditions of the particles of all ranks.

    Parameters
    ----------
    y : conditions of the kept particles, as the user wrote them; None without conditions
    codes : encoded conditions of all moved particles
    order : the moved particles are shuffled: position j holds particle ``order[j]``. Kept particles
        have the lowest numbers. None if they are not shuffled
    """

    y: np.ndarray | None = None
    codes: Tensor | None = None
    order: Tensor | None = None

    def n_moved(self, m: int) -> int:
        """Number of particles to move in order to keep m."""
        return max(m, conditions.ENOUGH) if self.codes is None else len(self.codes)

    def kept_codes(self, m: int) -> Tensor | None:
        """The codes of the m kept particles, in the user's order."""
        if self.codes is None:
            return None
        return (self.codes if self.order is None else self.codes[torch.argsort(self.order)])[:m]


def choose_conditions(
    rows: Rows, m: int, y: np.ndarray | None, amplifier: float, seed: Seed
) -> ParticleConditions:
    """The conditions of m particles: the user's y, or conditions in the data's proportions."""
    if rows.condition is None or rows.codes is None or rows.y is None:
        return ParticleConditions()
    chosen_by_user = y is not None
    if y is not None:
        codes = rows.condition.encode(y)
        if codes.dim() == 1 and bool((lost := ~torch.isin(codes, rows.codes)).any()):
            label = conditions.format_label(y[lost.numpy()][0])
            raise ValueError(
                f"particle_conditions has {label}, but early_stopping holds out all its rows; add "
                "rows of this class or set early_stopping=False"
            )
    else:
        numbers = conditions.proportional(rows.codes, m, seed, least=1)
        y, codes = rows.y[numbers.numpy()], rows.codes[numbers]
    moved = conditions.moved(rows.codes, codes, amplifier, seed)
    if amplifier == 0 or (not chosen_by_user and len(moved) == m):
        return ParticleConditions(y, moved)
    order = seed.permutation(len(moved))  # the flow needs a random order
    return ParticleConditions(y, moved[order], order)


@dataclass(frozen=True)
class Start:
    """The start of a fit.

    Parameters
    ----------
    plan : the plan of the fit
    particles : this rank's particles at their starting positions
    data : this rank's data
    noise : the particles' random numbers
    flow : the flow that replays the model
    fitting : the same flow, with shrunk maps that are fitted to the clouds of all ranks
    target : the data of each step, and the columns that it looks at
    share : this rank's part of all moved particles
    kept : this rank's part of the kept particles
    assigned : the conditions of all ranks' particles
    """

    plan: VectorPlan
    particles: Cloud
    data: Cloud
    noise: Noise
    flow: Flow
    fitting: Flow
    target: Target
    share: Place
    kept: Place
    assigned: ParticleConditions

    @property
    def y(self) -> np.ndarray | None:
        """Conditions of this rank's kept particles, as the user wrote them."""
        return None if self.assigned.y is None else self.assigned.y[self.kept.slice]

    @property
    def seen_codes(self) -> Tensor | None:
        """Encoded conditions of all ranks' particles; None if the flow ignores them."""
        return self.assigned.codes if self.flow.conditional else None

    def in_users_order(self, ranks: Ranks) -> Tensor:
        """x (d, n) of this rank's kept particles, in the order of `y`."""
        x, order = self.particles.x, self.assigned.order
        if order is None and self.kept == self.share:
            return x
        place = torch.arange(self.share.total) if order is None else torch.argsort(order)
        return ranks.pick(x, place[self.kept.slice].to(x.device))


def begin(
    plan: VectorPlan,
    rows: Rows,
    assigned: ParticleConditions,
    seed: Seed,
    device: torch.device,
    ranks: Ranks,
) -> Start:
    """The start of a fit. With several ranks, each step uses all particles and data."""
    x, place = rows.x, rows.place
    kept, share = ranks.share(plan.n_particles), ranks.share(plan.n_moved)
    data = cloud_of(rows, device)
    noise = Noise(seed.child("particles"), share.first)
    own_codes = None if assigned.codes is None else assigned.codes[share.slice]
    particles = as_cloud(x.new_empty(share.count, x.shape[1]), own_codes, device)
    noise.child("start").fill(particles.x)
    flow = Flow(
        plan.stages(),
        seed.child("flow"),
        plan.n_conditions,
        plan.amplifier,
        plan.entropy,
        projection_budget(device),
    )
    fitting = flow
    if plan.shrinkage:
        rates = noise_rates(
            plan.n_moved,
            place.total,
            *((assigned.codes, rows.codes) if flow.conditional else (None, None)),
            most=plan.transport.most if ranks.size == 1 else None,
            distinct=plan.n_rows / place.total,
        )
        fitting = shrunk_flow(flow, plan.shrinkage, rates)
    fitting = across_ranks(fitting, ranks)
    target = target_of(fitting, particles, data, rows, assigned.codes, ranks)
    return Start(plan, particles, data, noise, flow, fitting, target, share, kept, assigned)


def target_of(
    flow: Flow,
    particles: Cloud,
    data: Cloud,
    rows: Rows,
    codes_p: Tensor | None,
    ranks: Ranks,
    stage: int = 0,
) -> Target:
    """The data for a stage; `codes_p` are the conditions of the particles of all ranks."""
    if ranks.size == 1:
        return flow.target(particles, data, stage)
    pair = (rows.codes, codes_p) if flow.conditional else (None, None)
    first = rows.place.first
    here = torch.arange(first, first + rows.place.count)
    return Target.from_cloud(data, weighted_batches(*pair, here, data.x.device))


def cloud_of(rows: Rows, device: torch.device) -> Cloud:
    """This rank's rows in the engine's layout."""
    return as_cloud(rows.x, None if rows.codes is None else rows.codes[rows.place.slice], device)


def as_cloud(x: Tensor, codes: Tensor | None, device: torch.device) -> Cloud:
    """Rows (n, d) and codes in the engine's layout: columns, on the device."""
    return Cloud(x.to(device).T.contiguous(), None if codes is None else codes.to(device))
