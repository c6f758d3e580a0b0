"""The data of a fit of vectors, onto which its particles move.

A flow sees the rows in its own units, or draws along them (`smoother`). `tune` chooses
how far they spread, before the flow begins. The draws are made only when a step needs
data, and those for the axis steps when these begin. So a plan is quick, and memory
holds the data of one stage at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.batches import Batches, make_batches, weighted_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import (
    FlowY,
    SeparateClassIndices,
    separate_classes,
)
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Communicator, Shard
from sliceflow.models.vector_rows import VectorRows
from sliceflow.spaces.vectors.plan import VectorPlan
from sliceflow.spaces.vectors.smoother import Smoother
from sliceflow.spaces.vectors.units import ColumnScaler, as_cloud, encode_classes


@dataclass(frozen=True)
class VectorData:
    """The rows of a fit in the flow's units, or `draws_per_row` draws of each."""

    plan: VectorPlan
    rows: VectorRows
    seed: Seed  # of the fit
    device: torch.device
    ranks: Communicator
    # Draws around the rows of all ranks, after `tune`. None if the flow fits the rows
    # themselves.
    smoother: Smoother | None = None

    def tune(self) -> VectorData:
        """These data, with the bandwidth that "auto" stands for and rows' neighbours.

        Only the bandwidth takes a trial: `plan_vectors` has resolved all other
        settings. This is the first thing that a fit does.
        """
        if self.plan.bandwidth == 0:
            return self
        smoother = Smoother.from_data(
            self.plan.bandwidth,
            self.ranks.gather(self.encoded_rows),
            self.flow_y,
            self.plan.options.n_neighbors,
            self.ranks,
        )
        plan = replace(self.plan, bandwidth=smoother.bandwidth)
        return replace(self, plan=plan, smoother=smoother)

    @cached_property
    def scalers_by_class(self) -> tuple[ColumnScaler, ...]:
        """The units in which particles move: one for all rows, or one for each class.

        Classes may have very different scales: the flow starts from N(0, I), and would
        hardly resolve a class that is much narrower than the others.
        """
        X = self.rows.X
        y = self.flow_y
        standardize = self.plan.standardize
        if not isinstance(y, SeparateClassIndices):
            return (
                ColumnScaler.from_data(X, standardize, self.ranks, self.plan.n_rows),
            )
        scalers_by_class = []
        for c in range(y.n_classes):
            is_of_class = (y.values == c).numpy()
            scalers_by_class.append(ColumnScaler.from_data(X[is_of_class], standardize))
        return tuple(scalers_by_class)

    @property
    def flow_y(self) -> FlowY | None:
        """What the flow sees of y of the rows of all ranks; None if it ignores y."""
        return self.rows.flow_y(self.plan.condition_use)

    @cached_property
    def encoded_rows(self) -> Tensor:
        """This rank's rows (n, d) in the flow's units."""
        y = separate_classes(self.flow_y)
        return encode_classes(self.scalers_by_class, self.rows.X, y)

    # Clouds

    @cached_property
    def y_q(self) -> FlowY | None:
        """The y of the data of all ranks: `flow_y` once for each draw of a row."""
        if self.flow_y is None:
            return None
        return self.flow_y.repeat_each(self.plan.draws_per_row)

    @property
    def shard(self) -> Shard:
        """Which of the data of all ranks this rank has."""
        return self.rows.shard.repeated(self.plan.draws_per_row)

    def flow_cloud(self) -> Cloud:
        """This rank's data for the steps of the flow."""
        if self.smoother is None:
            return self._cloud(self.encoded_rows)
        draws = self.smoother.draw_for_flow(self.plan.draws_per_row, self._drawing_seed)
        return self._cloud(draws[self.shard.slice])

    def axis_cloud(self) -> Cloud:
        """This rank's data for the axis steps; see `Smoother.draw_for_axes`."""
        if self.smoother is None:
            return self._cloud(self.encoded_rows)
        heavy_tails = [scaler.heavy_tailed for scaler in self.scalers_by_class]
        spread_columns = torch.from_numpy(np.any(heavy_tails, axis=0))
        draws = self.smoother.draw_for_axes(
            self.plan.draws_per_row, self._drawing_seed, spread_columns
        )
        return self._cloud(draws[self.shard.slice])

    @property
    def _drawing_seed(self) -> Seed:
        return self.seed.child("smoothing")

    def _cloud(self, rows: Tensor) -> Cloud:
        """This rank's data (n, d), in the flow's units, with their y."""
        y = None
        if self.y_q is not None:
            y = self.y_q.take(self.shard.slice)
        return as_cloud(rows, y, self.device)

    def batches(self, m: int, y_p: FlowY | None, max_samples: int | None) -> Batches:
        """Which of m particles and of these data each step of a stage is fitted to.

        `y_p` is the `flow_y` of the particles of all ranks, in the order in which they
        move. A step takes at most `max_samples`.
        """
        if self.ranks.size > 1:
            return weighted_batches(
                self.shard.slice, self.device, y_p=y_p, y_q=self.y_q
            )
        return make_batches(
            m,
            self.plan.n_rows * self.plan.draws_per_row,
            max_samples,
            self.seed.child("flow", "batches"),
            self.device,
            y_p=y_p,
            y_q=self.y_q,
        )
