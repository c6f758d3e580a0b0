"""The models of a column for each level of a label, so that no tree mixes levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sliceflow.estimators.tables.column_model import ColumnModel
from sliceflow.estimators.tables.level_positions import UNDRAWN, LevelPositions
from sliceflow.estimators.tables.partly_drawn_rows import PartlyDrawnRows


@dataclass(frozen=True, eq=False)
class PerLevelModel:
    """The models of one column, one for each level of a label."""

    label_index: int  # the column of the label
    models: Mapping[float, ColumnModel]  # by the label's positions

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list. All models draw the same column."""
        first_model = next(iter(self.models.values()))
        return first_model.drawn_indices

    @property
    def unexplained(self) -> float:
        """The mean of what the models of the levels leave unexplained."""
        return float(np.mean([model.unexplained for model in self.models.values()]))

    def draw(
        self,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
        refuses_outside: bool = False,
    ) -> LevelPositions:
        """New cells (m, 1) for m partly drawn rows, each by the model of its level.

        Rows with another label than any of the levels stay `UNDRAWN`.
        """
        positions = LevelPositions(np.full((len(partly_drawn), 1), UNDRAWN))
        labels = partly_drawn.level_positions[:, self.label_index]
        for level, model in self.models.items():
            row_indices = np.flatnonzero(labels == level)
            positions[row_indices] = model.draw(
                partly_drawn.take(row_indices), rng, refuses_outside
            )
        return positions
