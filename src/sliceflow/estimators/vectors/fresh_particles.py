"""Fresh particles of a fit of vectors, which the flow has not been fitted to.

Samples of the model are fresh particles, too. So the model's axis steps are fitted to
fresh particles, not to those that the flow has moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sliceflow.base.ranks import Communicator, Shard
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY
from sliceflow.engine.flow import ParticleRng
from sliceflow.engine.proportions import proportional_indices, y_with_added_particles
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.plan import VectorPlan


@dataclass(frozen=True, eq=False)
class FreshParticles:
    """New particles, placed where a flow begins.

    Attributes
    ----------
    cloud : the fresh particles of this rank
    particle_rng : the random numbers of this rank's fresh particles
    n : the number of fresh particles of all ranks
    y : the conditions of the fresh particles of all ranks; None if the flow ignores y
    """

    cloud: Cloud
    particle_rng: ParticleRng
    n: int
    y: FlowY | None

    @classmethod
    def draw(
        cls,
        plan: VectorPlan,
        row_y: FlowY | None,
        seed: Seed,
        ranks: Communicator,
        device: torch.device,
    ) -> FreshParticles:
        """Draw the fresh particles of a fit. `row_y` is the y of its rows."""
        seed = seed.child("fresh")
        n = plan.n_fresh_particles
        y = None
        if row_y is not None:
            y = _fresh_y(n, row_y, seed)
            n = len(y)
        shard = ranks.own_shard(n)
        own_y = None
        if y is not None:
            own_y = y.take(shard.slice)
        rows = sobol_normal(shard, plan.n_columns, seed.child("start"))
        cloud = Cloud.from_rows(rows.to(plan.torch_dtype), own_y, device)
        particle_rng = ParticleRng(seed.child("particles"), shard.first)
        return cls(cloud, particle_rng, n, y)


def _fresh_y(n: int, row_y: FlowY, seed: Seed) -> FlowY:
    """Conditions of n fresh particles in the rows' proportions, and of added ones.

    Particles are added to classes that would have too few.
    """
    indices = proportional_indices(row_y, n, seed.child("conditions"))
    y = row_y.take(indices)
    return y_with_added_particles(y_p=y, y_q=row_y, seed=seed)


def sobol_normal(shard: Shard, d: int, seed: Seed) -> Tensor:
    """The points (n, d) of a shard of a scrambled Sobol sequence, mapped to N(0, I).

    If d is more than torch knows a Sobol sequence for, the points are random.
    """
    engine = torch.quasirandom.SobolEngine
    if d > engine.MAXDIM:
        return seed.normal(shard.count, d, first_row=shard.first)
    scramble_seed = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = engine(d, True, scramble_seed)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(shard.first).draw(
        shard.count, dtype=torch.float64
    )
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x
