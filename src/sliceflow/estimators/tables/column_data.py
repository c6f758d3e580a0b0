"""What the model of one column is fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns import Column
from sliceflow.estimators.tables.level_positions import LevelPositions


@dataclass(frozen=True, eq=False)
class ColumnData:
    """A column to model, the columns that it is drawn from, and rows of all columns.

    The number of these rows, n, is its length.
    """

    columns: Sequence[Column]  # all columns of the table
    level_positions: LevelPositions  # (n, d), the rows
    column_index: int  # the column to model
    predictors: Ints  # (p,), the indices of the columns that it is drawn from

    def __len__(self) -> int:
        return len(self.level_positions)

    @property
    def column(self) -> Column:
        """The column to model."""
        return self.columns[self.column_index]

    @property
    def positions(self) -> LevelPositions:
        """The cells (n,) of the column to model."""
        return self.level_positions[:, self.column_index]

    def select(self, rows: Ints | Mask) -> ColumnData:
        """The same columns, with the rows of these indices, or of a mask (n,)."""
        return replace(self, level_positions=self.level_positions[rows])

    def with_rows(self, level_positions: LevelPositions) -> ColumnData:
        """The same columns, with these rows (m, d) in place of its own."""
        return replace(self, level_positions=level_positions)
