"""Which particles a flow moves: how many, with which y, and in which order.

The same particles stand in two orders:

user's order   As `particles_` shows them. The kept particles come first. Those that a
               fit adds for the sake of its maps follow; the user does not see them.
flow's order   As the flow moves them. It mixes the added particles among the others,
               because batches and ranks take contiguous parts. If every class has maps
               of its own, the mixed particles are then stably sorted by class.

`ParticleAllocation.order` leads from the first to the second and back. `kept_cloud`
takes the kept particles out of a flow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.ranks import Communicator, Shard
from sliceflow.base.rows import Conditions
from sliceflow.devices import require_memory
from sliceflow.engine.clouds import ClassOrder, Cloud, Permutation
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.flow import MapSharing
from sliceflow.engine.proportions import (
    MIN_PARTICLES,
    proportional_indices,
    y_with_added_particles,
)
from sliceflow.engine.random import Seed

# Bytes of a particle's conditions: the index of a row, its shuffled copy and the class,
# 8 each.
_BYTES_PER_CONDITION = 24


@dataclass(frozen=True, eq=False)
class ParticleGroup:
    """Particles of all ranks: how many, and what the flow sees of their y.

    The y is None if the flow ignores it.
    """

    n: int
    y: FlowY | None = None

    def own_part(
        self, ranks: Communicator, device: torch.device | str = "cpu"
    ) -> OwnParticles:
        """The particles of this rank, with their y on a device."""
        shard = ranks.own_shard(self.n)
        y = self.y
        if y is not None:
            y = y.take(shard.slice).to(device)
        return OwnParticles(shard, y)


@dataclass(frozen=True, eq=False)
class OwnParticles:
    """This rank's part of a group of particles.

    Attributes
    ----------
    shard : which of the particles of all ranks they are
    y : what the flow sees of their y; None if it ignores y
    """

    shard: Shard
    y: FlowY | None


@dataclass(frozen=True, eq=False)
class ParticleAllocation:
    """How many particles a flow moves, with which y, and which of them the user gets.

    Attributes
    ----------
    kept : those that the user gets, in the user's order
    moved : those that the flow moves, in its order: the kept ones, and more for better
        maps
    order : from the user's order to the flow's; None if both are the same
    map_sharing : who shares the maps of the flow
    row_y : of all rows, as the flow sees it; None if the flow ignores y
    kept_user_y : y of the kept particles as the user writes it; None if the user does
        not know any, as with clusters
    """

    kept: ParticleGroup
    moved: ParticleGroup
    order: Permutation | None = None
    map_sharing: MapSharing = "unconditional"
    row_y: FlowY | None = None
    kept_user_y: NDArray[Any] | None = None

    @classmethod
    def without_y(
        cls,
        n_particles: int,
        stores_maps: bool,
        kept_user_y: NDArray[Any] | None = None,
    ) -> ParticleAllocation:
        """Particles of a flow that sees no y.

        If the model `stores_maps`, more are moved than few kept ones: maps of few
        particles would be poor for fresh ones.
        """
        n_moved = n_particles
        if stores_maps:
            n_moved = max(n_particles, MIN_PARTICLES)
        kept = ParticleGroup(n_particles)
        return cls(kept, ParticleGroup(n_moved), kept_user_y=kept_user_y)

    @classmethod
    def in_proportion(
        cls,
        conditions: Conditions,
        n_particles: int,
        map_sharing: MapSharing,
        seed: Seed,
        stores_maps: bool = True,
    ) -> ParticleAllocation:
        """Particles with y in the data's proportions, at least one of every class.

        `map_sharing` says which maps the flow has. If the model `stores_maps` and the
        flow sees y, more particles are added where maps of few particles would be poor
        for fresh ones. Those are mixed among the others: a flow needs a random order.
        """
        # The plan counts all memory, but only after conditions are known.
        require_memory(
            _BYTES_PER_CONDITION * n_particles,
            torch.device("cpu"),
            f"the conditions of n_particles={n_particles} need",
            "lower n_particles",
        )
        indices = proportional_indices(
            conditions.encoded_y, n_particles, seed, minimum=1
        )
        kept_user_y = None
        if not conditions.encoder.encodes_clusters:
            kept_user_y = conditions.y[indices.numpy()]
        row_y = conditions.as_flow_y(map_sharing)
        if row_y is None:
            return cls.without_y(n_particles, stores_maps, kept_user_y)

        kept_y = row_y.take(indices)
        y = kept_y
        if stores_maps:
            y = y_with_added_particles(y_p=y, y_q=row_y, seed=seed.child("further"))
        order = _flow_order(y, n_particles, seed.child("mixed"))
        if order is not None:
            y = order.reorder_y(y)
        kept = ParticleGroup(n_particles, kept_y)
        moved = ParticleGroup(len(y), y)
        return cls(kept, moved, order, map_sharing, row_y, kept_user_y)

    def kept_cloud(self, x: Tensor, ranks: Communicator) -> Cloud:
        """This rank's part of the kept particles, in the user's order, with their y.

        x (d, n) is where the flow has moved this rank's particles, in its own order.
        """
        own_kept = self.kept.own_part(ranks, x.device)
        if self.order is None and own_kept.shard == ranks.own_shard(self.moved.n):
            return Cloud(x, own_kept.y)
        point_indices = torch.arange(self.moved.n)
        if self.order is not None:
            point_indices = self.order.back
        own_indices = point_indices[own_kept.shard.slice].to(x.device)
        return Cloud(ranks.gather_points(x, own_indices), own_kept.y)


def _flow_order(y: FlowY, n_particles: int, seed: Seed) -> Permutation | None:
    """From the user's order of particles with this y to the flow's.

    The first `n_particles` are kept, and mixed with the others; without others they are
    in random order. None if both orders are the same.
    """
    mixed = None
    if len(y) > n_particles:
        mixed = Permutation(seed.permutation(len(y)))
        y = mixed.reorder_y(y)
    if not isinstance(y, SeparateClassIndices):
        return mixed
    by_class = ClassOrder.sorting(y, y.n_classes)
    return by_class if mixed is None else mixed.then(by_class)
