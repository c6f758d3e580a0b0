"""The data of a fit of vectors: its rows in the flow's units, or draws along them.

`PlannedVectorFit.training_vectors` makes them, and chooses how far the draws are
spread. The draws are made only when a step needs data, and those for the axis
steps when these begin. So memory holds the data of one stage at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.ranks import Communicator, Shard
from sliceflow.base.vector_rows import VectorRows
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.smoother import Smoother
from sliceflow.estimators.vectors.units import ColumnScaler, as_cloud


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingVectors:
    """The data onto which the particles of a fit move.

    Attributes
    ----------
    scalers_by_class : the flow's units, see `scalers_of_classes`
    scaled_rows : (n, d), this rank's rows in these units
    smoother : draws around the rows of all ranks; None to fit the rows themselves
    draws_per_row : how often each row is drawn; 1 for the rows themselves
    y : of the data of all ranks; None if the flow ignores it
    shard : which of the data of all ranks this rank has
    seed : of the draws
    device : where the flow runs
    """

    scalers_by_class: tuple[ColumnScaler, ...]
    scaled_rows: Tensor
    smoother: Smoother | None
    draws_per_row: int
    y: FlowY | None
    shard: Shard
    seed: Seed
    device: torch.device

    @property
    def bandwidth(self) -> float:
        """How far rows are spread; 0 for the rows themselves."""
        if self.smoother is None:
            return 0.0
        return self.smoother.bandwidth

    def flow_cloud(self) -> Cloud:
        """This rank's data for the steps of the flow."""
        if self.smoother is None:
            return self._cloud(self.scaled_rows)
        draws = self.smoother.draw_for_flow(self.draws_per_row, self.seed)
        return self._cloud(draws[self.shard.slice])

    def axis_cloud(self) -> Cloud:
        """This rank's data for the axis steps; see `Smoother.draw_for_axes`."""
        if self.smoother is None:
            return self._cloud(self.scaled_rows)
        heavy_tails = [scaler.heavy_tailed for scaler in self.scalers_by_class]
        spread_columns = torch.from_numpy(np.any(heavy_tails, axis=0))
        draws = self.smoother.draw_for_axes(
            self.draws_per_row, self.seed, spread_columns
        )
        return self._cloud(draws[self.shard.slice])

    def _cloud(self, rows: Tensor) -> Cloud:
        """This rank's data (n, d), in the flow's units, with their y."""
        y = None
        if self.y is not None:
            y = self.y.take(self.shard.slice)
        return as_cloud(rows, y, self.device)


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
