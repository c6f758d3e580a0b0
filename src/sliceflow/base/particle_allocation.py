"""Which particles a fit moves: how many, with which y, and which of them the user gets.

A fit may move more particles than the user wants, because maps that are fitted to few
particles would be poor for fresh particles. The flow moves particles in an order of its
own: added particles are mixed among the user's particles, because batches and ranks
take contiguous parts. If every class has maps of its own, the mixed particles are then
sorted by class.

`ParticleAllocation.kept_indices` says where the user's particles stand in that order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray

from sliceflow.base.ranks import Communicator
from sliceflow.base.rows import Conditions
from sliceflow.devices import require_memory
from sliceflow.engine.clouds import ClassOrder, Cloud, Permutation, PointIndices
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.flow import MapSharing, ParticleRng
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
class ParticleAllocation:
    """The particles of a fit on all ranks, before they are placed in space.

    Attributes
    ----------
    n_kept : the number of particles that the user gets
    n_moved : the number of particles that the flow moves: the kept particles, and more
        for better maps
    n_own : the number of moved particles that this rank has: all, in one process
    kept_indices : which of the moved particles the user gets, in the user's order
    moved_y : the conditions of the moved particles, in the flow's order; None if the
        flow ignores y
    row_y : the conditions of all rows; None if the flow ignores y
    kept_user_y : the conditions of the kept particles, as the user writes y; None
        without y, and for clusters, which the user did not pass
    first_own : the index of the first of this rank's particles among the moved ones
    """

    n_kept: int
    n_moved: int
    n_own: int
    kept_indices: PointIndices
    moved_y: FlowY | None = None
    row_y: FlowY | None = None
    kept_user_y: NDArray[Any] | None = None
    first_own: int = 0

    def on_rank(self, ranks: Communicator) -> ParticleAllocation:
        """The allocation on a rank that has its equal part of the moved particles."""
        shard = ranks.own_shard(self.n_moved)
        return replace(self, n_own=shard.count, first_own=shard.first)

    @property
    def own_slice(self) -> slice:
        """Which of the moved particles this rank has."""
        return slice(self.first_own, self.first_own + self.n_own)

    def own_y(self, device: torch.device) -> FlowY | None:
        """The y of this rank's moved particles, on the device."""
        if self.moved_y is None:
            return None
        return self.moved_y.take(self.own_slice).to(device)

    def particle_rng(self, seed: Seed) -> ParticleRng:
        """The random numbers of this rank's moved particles, by the seed of the fit."""
        return ParticleRng(seed.child("particles"), self.first_own)

    @property
    def kept_y(self) -> FlowY | None:
        """The y of the kept particles of all ranks; None if the flow ignores y."""
        if self.moved_y is None:
            return None
        return self.moved_y.take(self.kept_indices)

    def kept_cloud(self, particles: Cloud, ranks: Communicator) -> Cloud:
        """This rank's equal part of the kept particles, in the user's order.

        `particles` are this rank's moved particles, where the flow has left them.
        """
        if ranks.size > 1:
            return self._gather_kept(particles, ranks)
        if isinstance(self.kept_indices, slice):
            return particles.take(self.kept_indices)
        return particles.take(self.kept_indices.to(particles.x.device))

    def _gather_kept(self, particles: Cloud, ranks: Communicator) -> Cloud:
        """This rank's part of the kept particles, which other ranks may have moved."""
        own_kept = ranks.own_shard(self.n_kept)
        kept_y = self.kept_y
        if kept_y is not None:
            kept_y = kept_y.take(own_kept.slice).to(particles.x.device)
        in_place = isinstance(self.kept_indices, slice)
        if in_place and own_kept.slice == self.own_slice:
            return Cloud(particles.x, kept_y)
        indices = torch.arange(self.n_moved)[self.kept_indices][own_kept.slice]
        x = ranks.gather_points(particles.x, indices.to(particles.x.device))
        return Cloud(x, kept_y)


def allocate_particles(
    conditions: Conditions | None,
    n_kept: int,
    map_sharing: MapSharing,
    seed: Seed,
    *,
    stores_maps: bool = True,
) -> ParticleAllocation:
    """Allocate particles with y in the proportions of the data, all to one process.

    Every class has at least one particle. If the model `stores_maps`, particles are
    added where maps of few particles would be poor for fresh particles.

    Parameters
    ----------
    conditions : the conditions of all rows; None without y
    n_kept : the number of particles that the user gets
    map_sharing : what the flow does with y
    seed : draws which conditions the particles have, and their order
    stores_maps : whether the model draws samples later
    """
    n_moved = n_kept
    if stores_maps:
        n_moved = max(n_kept, MIN_PARTICLES)
    without_y = ParticleAllocation(n_kept, n_moved, n_moved, slice(0, n_kept))
    if conditions is None:
        return without_y

    row_indices = _draw_rows(conditions, n_kept, seed)
    kept_user_y = None
    if not conditions.encoder.encodes_clusters:
        kept_user_y = conditions.y[row_indices.numpy()]
    row_y = conditions.as_flow_y(map_sharing)
    if row_y is None:
        return replace(without_y, kept_user_y=kept_user_y)

    user_order_y = row_y.take(row_indices)
    if stores_maps:
        user_order_y = y_with_added_particles(
            y_p=user_order_y, y_q=row_y, seed=seed.child("further")
        )
    kept_indices: PointIndices = slice(0, n_kept)
    moved_y = user_order_y
    order = _flow_order(user_order_y, n_kept, seed.child("mixed"))
    if order is not None:
        moved_y = order.apply_to_y(user_order_y)
        kept_indices = order.inverse[:n_kept]
    return ParticleAllocation(
        n_kept=n_kept,
        n_moved=len(moved_y),
        n_own=len(moved_y),
        kept_indices=kept_indices,
        moved_y=moved_y,
        row_y=row_y,
        kept_user_y=kept_user_y,
    )


def _draw_rows(conditions: Conditions, n: int, seed: Seed) -> torch.Tensor:
    """Indices (n,) of the rows whose conditions n particles take, in proportion."""
    # The plan counts all memory, but only after conditions are known.
    require_memory(
        _BYTES_PER_CONDITION * n,
        "cpu",
        f"the conditions of n_particles={n} need",
        "lower n_particles",
    )
    return proportional_indices(conditions.encoded_y, n, seed, minimum=1)


def _flow_order(y: FlowY, n_kept: int, seed: Seed) -> Permutation | None:
    """The order in which the flow moves particles with this y; None to leave them.

    The first `n_kept` particles are kept. If there are added particles, these are mixed
    among the kept ones. If classes have separate maps, the particles are then sorted by
    class.
    """
    mixed = None
    if len(y) > n_kept:
        mixed = Permutation(seed.permutation(len(y)))
        y = mixed.apply_to_y(y)
    if not isinstance(y, SeparateClassIndices):
        return mixed
    by_class = ClassOrder.from_y(y, y.n_classes)
    return by_class if mixed is None else mixed.then(by_class)
