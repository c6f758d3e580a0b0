"""The particles of a fit: which conditions they have, and which of them are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.models.rows import Conditions


@dataclass(frozen=True)
class ParticleConditions:
    """The conditions of the particles of all ranks."""

    y: np.ndarray | None = (
        None  # of the kept particles, as the user wrote them; None without
    )
    codes: Tensor | None = None  # of all moved particles
    column: Tensor | None = (
        None  # of each particle, the kept ones first; None: in this order
    )

    @classmethod
    def in_proportion(
        cls,
        given: Conditions | None,
        m: int,
        amplifier: float,
        seed: Seed,
        mixing: Seed,
        model: bool = True,
    ) -> ParticleConditions:
        """Conditions of m particles in the data's proportions, and of those that only a `model` needs."""
        if given is None:
            return cls()
        numbers = conditions.proportional(given.codes, m, seed, least=1)
        y = None if given.condition.hidden else given.y[numbers.numpy()]
        codes = given.codes[numbers]
        if model and amplifier == 0:
            more = codes[
                conditions.even_rows(m, max(0, conditions.MIN_PARTICLES - m), seed)
            ]
            return cls(y, torch.cat((codes, more)))
        if model:
            per_class = math.isinf(amplifier)
            more = conditions.extra_codes(
                given.codes, codes, per_class, seed.child("further")
            )
            codes = torch.cat((codes, more))
        if len(codes) == m:
            return cls(y, codes)
        order = mixing.permutation(len(codes))  # the flow needs a random order
        return cls(y, codes[order], torch.argsort(order))

    def n_moved(self, m: int, model: bool = True) -> int:
        """Number of particles to move in order to keep m; a `model` may need more than m."""
        if self.codes is not None:
            return len(self.codes)
        return max(m, conditions.MIN_PARTICLES) if model else m

    def kept_codes(self, m: int) -> Tensor | None:
        """The codes of the m kept particles, in the user's order."""
        if self.codes is None:
            return None
        return (self.codes if self.column is None else self.codes[self.column])[:m]


def select_particles(
    x: Tensor, column: Tensor | None, share: Shard, m: int, ranks: Ranks
) -> Tensor:
    """This rank's part of the m kept particles in the user's order; x (d, n) is its `share` of all."""
    kept = ranks.share(m)
    if column is None and kept == share:
        return x
    columns = torch.arange(share.total) if column is None else column
    return ranks.pick(x, columns[kept.slice].to(x.device))
