"""The particles of a fit: which conditions they have, and which of them are kept.

The same particles stand in up to three orders:

user's order   As `particles_` shows them. The kept particles come first. Those that a
               fit adds for the sake of its maps follow; the user does not see them.
flow's order   As the flow moves them. It mixes the added particles among the others,
               because batches and ranks take contiguous parts.
class order    As the flow moves them if every class has maps of its own: the flow's
               order, stably sorted by class (`clouds.ClassOrder`).

`ParticleOrder` is the order in which a flow moves its particles. Its `flow_index` leads
back: particle i of the user is the column ``flow_index[i]`` of the flow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import require_memory
from sliceflow.engine.allocation import (
    MIN_PARTICLES,
    even_indices,
    extra_y,
    stratified_indices,
)
from sliceflow.engine.clouds import ClassOrder, ClassSlices
from sliceflow.engine.encoded_y import ClassIndices, EncodedY
from sliceflow.engine.flow import ConditionUse
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.models.rows import RowConditions

# Bytes of a particle's conditions: the index of a row, its shuffled copy and the class,
# 8 each.
_BYTES_PER_CONDITION = 24


@dataclass(frozen=True)
class ParticleConditions:
    """The conditions of the particles of all ranks.

    A fit may move more particles than it keeps for the user.

    Attributes
    ----------
    y : conditions of the kept particles in the user's order, as the user writes them;
        None if the user does not know them, as with clusters
    encoded_y : of all moved particles, in the flow's order
    flow_index : the columns (n,) at which the flow has the particles of the user's
        order; None if both orders are the same
    """

    y: np.ndarray | None
    encoded_y: EncodedY
    flow_index: Tensor | None = None

    @classmethod
    def in_proportion(
        cls,
        rows: RowConditions,
        n_kept: int,
        use: ConditionUse,
        seed: Seed,
        mixing_seed: Seed,
        has_model: bool = True,
    ) -> ParticleConditions:
        """Conditions in the data's proportions for the particles of a fit.

        There are `n_kept` kept particles, at least one of every class. `use` is what
        the flow does with conditions. If the fit `has_model`, more particles are added
        where maps of few particles would be poor for fresh ones. Those are mixed among
        the others: a flow needs a random order.
        """
        # The plan counts all memory, but only after conditions are known.
        require_memory(
            _BYTES_PER_CONDITION * n_kept,
            torch.device("cpu"),
            f"the conditions of n_particles={n_kept} need",
            "lower n_particles",
        )
        indices = stratified_indices(rows.encoded_y, n_kept, seed, minimum=1)
        y = None
        if not rows.encoder.is_inferred:
            y = rows.y[indices.numpy()]
        kept_y = rows.encoded_y.take(indices)
        if not has_model:
            return cls(y, kept_y)
        if use == "none":
            n_more = max(0, MIN_PARTICLES - n_kept)
            more = kept_y.take(even_indices(n_kept, n_more, seed))
            return cls(y, kept_y.joined(more))
        further = seed.child("further")
        more = extra_y(
            y_p=kept_y, y_q=rows.encoded_y, per_class=use == "separate", seed=further
        )
        if len(more) == 0:
            return cls(y, kept_y)
        moved_y = kept_y.joined(more)
        order = mixing_seed.permutation(len(moved_y))
        return cls(y, moved_y.take(order), torch.argsort(order))

    def kept_y(self, n_kept: int) -> EncodedY:
        """The encoded y of the kept particles, in the user's order."""
        if self.flow_index is None:
            return self.encoded_y.take(slice(n_kept))
        return self.encoded_y.take(self.flow_index[:n_kept])


@dataclass(frozen=True)
class ParticleOrder:
    """The order in which a flow moves its particles.

    All fields are None without conditions.

    Attributes
    ----------
    y : the encoded y of the particles of all ranks, in this order
    flow_index : the columns (n,) at which the flow has the particles of the user's
        order; None if both orders are the same
    class_slices : this rank's particles of each class, if every class has maps of its
        own: the particles are then sorted by class
    """

    y: EncodedY | None = None
    flow_index: Tensor | None = None
    class_slices: ClassSlices | None = None

    @classmethod
    def from_conditions(
        cls, particles: ParticleConditions, n_separate_classes: int, shard: Shard
    ) -> ParticleOrder:
        """The order of particles with these conditions.

        `n_separate_classes` have maps of their own; 0 if all share maps. This rank has
        a `shard` of the particles.
        """
        if n_separate_classes == 0:
            return cls(particles.encoded_y, particles.flow_index)
        assert isinstance(particles.encoded_y, ClassIndices), "labels have classes"
        by_class = ClassOrder.from_class_indices(
            particles.encoded_y, n_separate_classes
        )
        flow_index = by_class.inverse
        if particles.flow_index is not None:
            flow_index = by_class.inverse[particles.flow_index]
        class_slices = by_class.class_slices.part(shard.slice)
        return cls(by_class.y, flow_index, class_slices)


def select_particles(
    x: Tensor, flow_index: Tensor | None, shard: Shard, n_kept: int, ranks: Ranks
) -> Tensor:
    """This rank's part of the kept particles, in the user's order.

    x (d, n) is its `shard` of all particles, in the flow's order or in class order;
    `flow_index` leads from the user's order to that one.
    """
    kept_shard = ranks.shard(n_kept)
    if flow_index is None and kept_shard == shard:
        return x
    if flow_index is None:
        flow_index = torch.arange(shard.total)
    return ranks.gather_points(x, flow_index[kept_shard.slice].to(x.device))
