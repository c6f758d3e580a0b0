"""A tuned fit of vectors: all settings are chosen, and the units of its rows.

`PlannedVectorFit.tune` makes `TunedVectorFit` of a planned fit. They have the data onto
which the particles move: the rows in the flow's units, or draws along them
(`smoother`). The draws are made only when a step needs data, and those for the axis
steps when these begin. So a plan is quick, and memory holds the data of one stage at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.flow_conditions import FlowConditions
from sliceflow.base.ranks import Communicator, Shard
from sliceflow.base.vector_rows import VectorRows
from sliceflow.engine.batches import Batches, make_batches, make_weighted_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.plan import VectorPlan
from sliceflow.estimators.vectors.smoother import Smoother
from sliceflow.estimators.vectors.units import ColumnScaler, as_cloud


@dataclass(frozen=True, kw_only=True)
class TunedVectorFit:
    """A fit of vectors with all settings chosen. No particle has moved yet."""

    plan: VectorPlan  # with the bandwidth that was chosen
    rows: VectorRows
    seed: Seed
    ranks: Communicator
    device: torch.device
    flow_conditions: FlowConditions
    scalers_by_class: tuple[ColumnScaler, ...]  # see `scalers_of_classes`
    scaled_rows: Tensor  # (n, d), this rank's rows in the flow's units
    # Draws around the rows of all ranks. None if the flow fits the rows themselves.
    smoother: Smoother | None

    @cached_property
    def data_y(self) -> FlowY | None:
        """The y of the data of all ranks: that of each row, once for each draw."""
        row_y = self.flow_conditions.row_y
        if row_y is None:
            return None
        return row_y.repeat_each(self.plan.draws_per_row)

    @property
    def data_shard(self) -> Shard:
        """Which of the data of all ranks this rank has."""
        return self.rows.shard.repeated(self.plan.draws_per_row)

    def flow_cloud(self) -> Cloud:
        """This rank's data for the steps of the flow."""
        if self.smoother is None:
            return self._cloud(self.scaled_rows)
        draws = self.smoother.draw_for_flow(self.plan.draws_per_row, self._drawing_seed)
        return self._cloud(draws[self.data_shard.slice])

    def axis_cloud(self) -> Cloud:
        """This rank's data for the axis steps; see `Smoother.draw_for_axes`."""
        if self.smoother is None:
            return self._cloud(self.scaled_rows)
        heavy_tails = [scaler.heavy_tailed for scaler in self.scalers_by_class]
        spread_columns = torch.from_numpy(np.any(heavy_tails, axis=0))
        draws = self.smoother.draw_for_axes(
            self.plan.draws_per_row, self._drawing_seed, spread_columns
        )
        return self._cloud(draws[self.data_shard.slice])

    @property
    def _drawing_seed(self) -> Seed:
        return self.seed.child("smoothing")

    def _cloud(self, rows: Tensor) -> Cloud:
        """This rank's data (n, d), in the flow's units, with their y."""
        y = None
        if self.data_y is not None:
            y = self.data_y.take(self.data_shard.slice)
        return as_cloud(rows, y, self.device)

    def batches(self, m: int, y_p: FlowY | None, batch_size: int | None) -> Batches:
        """Divide m particles and these data into batches for the steps of a stage.

        `y_p` is the y of the particles of all ranks, in the order in which they move;
        if every class has maps of its own, in any order. A step takes at most
        `batch_size`.
        """
        y_q = self.data_y
        if self.ranks.size > 1:
            if y_p is None or y_q is None:
                return Batches()
            own_data = self.data_shard.slice
            return make_weighted_batches(own_data, self.device, y_p=y_p, y_q=y_q)
        return make_batches(
            m,
            self.plan.n_rows * self.plan.draws_per_row,
            batch_size,
            self.seed.child("flow", "batches"),
            self.device,
            y_p=y_p,
            y_q=y_q,
        )


def scalers_of_classes(
    rows: VectorRows, row_y: FlowY | None, standardize: bool, ranks: Communicator
) -> tuple[ColumnScaler, ...]:
    """The units in which particles move: one for all rows, or one for each class.

    Classes may have very different scales: the flow starts from N(0, I), and would
    hardly resolve a class that is much narrower than the others.
    """
    X = rows.X
    if not isinstance(row_y, SeparateClassIndices):
        return (ColumnScaler.from_data(X, standardize, ranks, rows.n_all_rows),)
    scalers_by_class = []
    for c in range(row_y.n_classes):
        is_of_class = (row_y.values == c).numpy()
        scalers_by_class.append(ColumnScaler.from_data(X[is_of_class], standardize))
    return tuple(scalers_by_class)
