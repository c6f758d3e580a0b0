"""The data of a fit of vectors: its rows in the flow's units, or draws along them.

`ScaledRows` has the rows and their neighbors, along which `TrainingData` makes draws.
Neighbors are searched for when draws need them. The draws for the flow are made when
its first step needs data, and the draws for the axis steps when these steps begin. So
memory holds the data of one stage at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.ranks import Communicator
from sliceflow.base.vector_rows import VectorRows
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import (
    FlowY,
    SeparateClassIndices,
    separate_classes_or_none,
)
from sliceflow.engine.flow import Step
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.scaling import (
    ColumnScaler,
    transform_by_class,
)
from sliceflow.estimators.vectors.smoother import Smoother
from sliceflow.neighbors.smoothing import ClassNeighbors, find_class_neighbors


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """The rows of a fit in the units in which particles move, and their neighbors.

    Attributes
    ----------
    user_rows : the rows in the user's units
    row_y : the conditions of the rows of all ranks; None if the flow ignores y
    ranks : the ranks that run the fit
    standardize : whether columns are scaled to mean 0 and standard deviation 1
    n_neighbors : k, the number of nearest rows of a row, itself among them
    """

    user_rows: VectorRows
    row_y: FlowY | None
    ranks: Communicator
    standardize: bool
    n_neighbors: int

    @cached_property
    def scalers_by_class(self) -> tuple[ColumnScaler, ...]:
        """The flow's units: one scaler for all rows, or one for each class.

        Classes with separate maps may have very different scales: the flow starts from
        N(0, I), and would hardly resolve a class that is much narrower than the others.
        """
        X = self.user_rows.X
        row_y = self.row_y
        if not isinstance(row_y, SeparateClassIndices):
            n = self.user_rows.n_all_rows
            return (ColumnScaler.from_data(X, self.standardize, self.ranks, n),)
        scalers_by_class = []
        for c in range(row_y.n_classes):
            is_of_class = (row_y.values == c).numpy()
            scaler = ColumnScaler.from_data(X[is_of_class], self.standardize)
            scalers_by_class.append(scaler)
        return tuple(scalers_by_class)

    @cached_property
    def own_rows(self) -> Tensor:
        """This rank's rows (n, d) in the flow's units."""
        return transform_by_class(
            self.scalers_by_class,
            self.user_rows.X,
            separate_classes_or_none(self.row_y),
        )

    @cached_property
    def all_rows(self) -> Tensor:
        """The rows (n, d) of all ranks in the flow's units."""
        return self.ranks.all_gather_rows(self.own_rows)

    @cached_property
    def neighbors(self) -> list[ClassNeighbors]:
        """The rows of each class with their nearest rows."""
        return find_class_neighbors(self.all_rows, self.row_y, self.n_neighbors)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The data onto which the particles of a fit move: its rows, or draws along them.

    Attributes
    ----------
    scaled_rows : the rows in the flow's units
    bandwidth : how far draws are spread around their rows; 0 does not spread them
    draws_per_row : the number of draws of each row. If it is 1 and `bandwidth` is 0,
        the data are the rows themselves
    own_slice : which of the data of all ranks this rank has
    seed : the seed of the draws
    device : where the flow runs
    """

    scaled_rows: ScaledRows
    bandwidth: float
    draws_per_row: int
    own_slice: slice
    seed: Seed
    device: torch.device

    @cached_property
    def y(self) -> FlowY | None:
        """The y of the data of all ranks: the y of each row, once for each draw."""
        row_y = self.scaled_rows.row_y
        if row_y is None:
            return None
        row_indices = torch.arange(len(row_y))
        return row_y.take(row_indices.repeat_interleave(self.draws_per_row))

    @property
    def n(self) -> int:
        """The number of data of all ranks."""
        return self.scaled_rows.user_rows.n_all_rows * self.draws_per_row

    def load_for_flow(self, step: Step) -> Cloud:
        """This rank's data for the steps of the flow, which all have the same data."""
        if self._smoother is None:
            return self._cloud(self.scaled_rows.own_rows)
        draws = self._smoother.draw_for_flow(self.draws_per_row, self.seed)
        return self._cloud(draws[self.own_slice])

    @cached_property
    def axis_cloud(self) -> Cloud:
        """This rank's data for the axis steps; see `Smoother.draw_for_axes`."""
        if self._smoother is None:
            return self._cloud(self.scaled_rows.own_rows)
        heavy_tailed_by_class = [
            scaler.is_heavy_tailed for scaler in self.scaled_rows.scalers_by_class
        ]
        is_heavy_tailed = torch.from_numpy(np.any(heavy_tailed_by_class, axis=0))
        draws = self._smoother.draw_for_axes(
            self.draws_per_row, self.seed, is_heavy_tailed
        )
        return self._cloud(draws[self.own_slice])

    @cached_property
    def _smoother(self) -> Smoother | None:
        """It draws along the rows of all ranks; None if the data are the rows."""
        if self.bandwidth == 0 and self.draws_per_row == 1:
            return None
        return Smoother(
            self.bandwidth, self.scaled_rows.all_rows, self.scaled_rows.neighbors
        )

    def _cloud(self, rows: Tensor) -> Cloud:
        """This rank's data (n, d), in the flow's units, with their y."""
        y = None
        if self.y is not None:
            y = self.y.take(self.own_slice)
        return Cloud.from_rows(rows, y, self.device)
