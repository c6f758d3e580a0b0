"""The particles of a fit: which conditions they have, and which of them are kept.

The same particles stand in two orders:

user's order   As `particles_` shows them. The kept particles come first. Those that a
               fit adds for the sake of its maps follow; the user does not see them.
flow's order   As the flow moves them. It mixes the added particles among the others,
               because batches and ranks take contiguous parts. If every class has maps
               of its own, the mixed particles are then stably sorted by class.

`ParticleConditions.flow_index` leads from one to the other: particle i of the user is
the column ``flow_index[i]`` of the flow. `kept_cloud` takes the kept particles out of
the flow; `Cloud.in_user_order` is the way back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import require_memory
from sliceflow.engine.allocation import extra_y, stratified_indices
from sliceflow.engine.clouds import ClassOrder, ClassSlices, Cloud
from sliceflow.engine.encoded_y import EncodedY, SeparateClasses
from sliceflow.engine.flow import ConditionUse
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Communicator, Shard
from sliceflow.models.rows import RowConditions

# Bytes of a particle's conditions: the index of a row, its shuffled copy and the class,
# 8 each.
_BYTES_PER_CONDITION = 24


@dataclass(frozen=True)
class ParticleConditions:
    """The conditions of the particles of all ranks.

    A fit may move more particles than it keeps for the user. All fields are None
    without conditions.

    Attributes
    ----------
    kept_conditions : of the kept particles in the user's order, as the user writes
        them; None if the user does not know them, as with clusters
    used_y : what the flow sees, encoded: the y of all moved particles, in the flow's
        order; None if it ignores y
    flow_index : the columns (n,) at which the flow has the particles of the user's
        order; None if both orders are the same
    class_slices : the particles of each class in the flow's order, if every class has
        maps of its own
    """

    kept_conditions: np.ndarray | None = None
    used_y: EncodedY | None = None
    flow_index: Tensor | None = None
    class_slices: ClassSlices | None = None

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
        the flow does with conditions. If the fit `has_model` and uses conditions, more
        particles are added where maps of few particles would be poor for fresh ones.
        Those are mixed among the others: a flow needs a random order.
        """
        # The plan counts all memory, but only after conditions are known.
        require_memory(
            _BYTES_PER_CONDITION * n_kept,
            torch.device("cpu"),
            f"the conditions of n_particles={n_kept} need",
            "lower n_particles",
        )
        indices = stratified_indices(rows.encoded_y, n_kept, seed, minimum=1)
        kept_conditions = None
        if not rows.encoder.are_clusters:
            kept_conditions = rows.y[indices.numpy()]
        row_y = rows.used_y(use)
        if row_y is None:
            return cls(kept_conditions)

        y = row_y.take(indices)
        flow_index = None
        if has_model:
            y = y.joined(extra_y(y_p=y, y_q=row_y, seed=seed.child("further")))
        if len(y) > n_kept:
            mixed = mixing_seed.permutation(len(y))
            y = y.take(mixed)
            flow_index = torch.argsort(mixed)
        if not isinstance(y, SeparateClasses):
            return cls(kept_conditions, y, flow_index)

        by_class = ClassOrder.from_class_indices(y, y.n_classes)
        if flow_index is None:
            flow_index = by_class.inverse
        else:
            flow_index = by_class.inverse[flow_index]
        y = y.take(by_class.order)
        return cls(kept_conditions, y, flow_index, by_class.class_slices)

    def cloud(self, x: Tensor, shard: Shard) -> Cloud:
        """This rank's particles x (d, n), its `shard` of all, with what the flow sees.

        They are in the flow's order.
        """
        if self.used_y is None:
            return Cloud(x)
        class_slices = None
        if self.class_slices is not None:
            class_slices = self.class_slices.part(shard.slice)
        return Cloud(x, self.used_y.take(shard.slice).to(x.device), class_slices)

    def kept_used_y(self, n_kept: int) -> EncodedY | None:
        """The encoded y of the kept particles in the user's order, if it is used."""
        if self.used_y is None:
            return None
        if self.flow_index is None:
            return self.used_y.take(slice(n_kept))
        return self.used_y.take(self.flow_index[:n_kept])

    def kept_cloud(
        self, x: Tensor, shard: Shard, n_kept: int, ranks: Communicator
    ) -> Cloud:
        """This rank's part of the kept particles, with what the flow sees.

        x (d, n) is its `shard` of all particles, in the flow's order. The kept ones are
        sorted by class if every class has maps of its own, and otherwise in the user's
        order.
        """
        kept_shard = ranks.shard(n_kept)
        y = self.kept_used_y(n_kept)
        if y is not None:
            y = y.take(kept_shard.slice).to(x.device)
        flow_index = self.flow_index
        if flow_index is None and kept_shard == shard:
            return Cloud(x, y)
        if flow_index is None:
            flow_index = torch.arange(shard.total)
        columns = flow_index[kept_shard.slice].to(x.device)
        if not isinstance(y, SeparateClasses):
            return Cloud(ranks.gather_points(x, columns), y)
        by_class = ClassOrder.from_class_indices(y, y.n_classes)
        return Cloud(
            ranks.gather_points(x, columns[by_class.order]),
            y.take(by_class.order),
            by_class.class_slices,
            by_class.inverse,
        )
