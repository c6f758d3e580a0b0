"""Where values may be drawn that do not occur in the table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.arrays import Floats, Mask
from sliceflow.estimators.tables.columns.formats import MAX_EXACT_FLOAT
from sliceflow.estimators.tables.columns.level_positions import (
    GridValues,
    LevelPositions,
    has_value,
)

if TYPE_CHECKING:
    from sliceflow.estimators.tables.columns.column import Column

# New values are drawn between levels if there are more levels than this share of the
# rows; else the values are few, such as grades, and there is nothing between them.
_MIN_LEVELS_PER_ROW = 0.05
# There must also be at least this many levels. Fewer may have a common divisor of their
# differences by accident, so it does not count as a step of their grid, and no new
# values are drawn.
MIN_LEVELS_FOR_NEW_VALUES = 10
# A level with more rows than the first, and with a larger share of them than the
# second, is an atom, such as an income of 0: no new values are drawn next to it.
_ATOM_MIN_ROWS = 3
_ATOM_MIN_SHARE = 0.0005
# If at least this share of levels would be written as they are, new values may be
# written, too. With a smaller share, more new values would look unlike the others.
_MIN_SHARE_WRITTEN_ALIKE = 0.8
# At most this many levels are written, to see that; more would only take time.
_MAX_LEVELS_WRITTEN = 5_000


class NewValuePolicy:
    """Where a column may have values that do not occur in it, and how to draw them.

    | question                                    | answer                        |
    |---------------------------------------------|-------------------------------|
    | may there be new values at all?             | `allows_new_values`           |
    | between which levels may draws be new?      | `is_interpolable_level`       |
    | between which positions may they be?        | `is_interpolable`             |
    | may any number between levels be?           | `allows_values_in_gaps`       |
    | which levels must samples not show?         | `is_rare_number`              |
    """

    def __init__(self, column: Column) -> None:
        self._column = column

    @cached_property
    def allows_new_values(self) -> bool:
        """Whether the column may have any value that does not occur.

        Most levels must be written again as they were, else new ones would look odd.
        """
        column = self._column
        if not column.is_quantitative or column.allows_only_levels:
            return False
        if np.abs(column.grid.grid_values).max(initial=0) >= MAX_EXACT_FLOAT:
            return False
        stride = max(1, column.n_levels // _MAX_LEVELS_WRITTEN)
        level_indices = np.arange(0, column.n_levels, stride)
        levels = column.levels.iloc[level_indices]
        written_levels = column.write_values(
            LevelPositions(level_indices.astype(np.float64))
        )
        is_alike = [
            str(written) == str(level)
            for written, level in zip(written_levels, levels, strict=True)
        ]
        return float(np.mean(is_alike)) >= _MIN_SHARE_WRITTEN_ALIKE

    @cached_property
    def is_interpolable_level(self) -> Mask:
        """Which levels (k,) new values may be drawn next to, by interpolation.

        These are the levels with few rows. There are none if the column has few
        distinct values or allows no new ones.
        """
        k = self._column.n_levels
        n = int((~self._column.encoded.is_missing).sum())
        has_few_levels = k < MIN_LEVELS_FOR_NEW_VALUES or k <= _MIN_LEVELS_PER_ROW * n
        if has_few_levels or not self.allows_new_values:
            return np.zeros(k, dtype=bool)
        return self._column.level_counts <= max(_ATOM_MIN_ROWS, _ATOM_MIN_SHARE * n)

    @cached_property
    def is_rare_number(self) -> Mask:
        """Which levels (k,) are numbers of too few rows: samples have others instead.

        The module `draws.rare_numbers` moves them. There are none if only observed
        values may be drawn.
        """
        column = self._column
        allows_moves = column.is_quantitative and not column.allows_only_levels
        if not allows_moves or column.n_levels < 2:
            return np.zeros(column.n_levels, dtype=bool)
        return column.level_counts < column.min_count

    @cached_property
    def has_full_grid(self) -> bool:
        """Whether most levels are adjacent on the grid: any grid value may occur."""
        gaps = np.diff(self._column.grid.grid_values)
        return self._column.unit is not None and float(np.median(gaps)) <= 1

    @property
    def allows_values_in_gaps(self) -> bool:
        """Whether there may be new numbers between levels.

        That takes many levels, or levels that are adjacent on the grid.
        """
        if not self.allows_new_values:
            return False
        return self.has_full_grid or bool(self.is_interpolable_level.any())

    def is_interpolable(self, positions: LevelPositions) -> Mask:
        """Which positions (m,) are at an interpolable level, or right above it."""
        levels = np.maximum(positions, 0).astype(np.int64)
        return has_value(positions) & self.is_interpolable_level[levels]

    def interpolate(
        self,
        low: LevelPositions,
        high: LevelPositions,
        fraction: Floats,
        fallback: LevelPositions,
    ) -> LevelPositions:
        """Positions of new values between two, all (m,).

        A `fraction` of 0 is at `low`, 1 at `high`. Where new values may not be, the
        result is the position `fallback`.
        """
        grid = self._column.grid
        low_values = grid.grid_values_at(LevelPositions(np.maximum(low, 0)))
        high_values = grid.grid_values_at(LevelPositions(np.maximum(high, 0)))
        grid_values = low_values + fraction * (high_values - low_values)
        new = grid.rounded_positions(GridValues(grid_values))
        allowed = self.is_interpolable(low) & self.is_interpolable(high)
        return LevelPositions(np.where(allowed & has_value(new), new, fallback))

    def quantile_positions(
        self, sorted_positions: LevelPositions, places: Floats
    ) -> LevelPositions:
        """Quantiles (m,) of sorted positions (n,) at places (m,) from 0 to n.

        They are between two of the positions where new values may be.
        """
        n = len(sorted_positions)
        drawn = sorted_positions[np.minimum(places.astype(np.int64), n - 1)]
        if not self.is_interpolable_level.any():
            return drawn
        # The i-th of n values is in the middle of the places from i to i + 1.
        centered = np.clip(places - 0.5, 0, n - 1)
        below = centered.astype(np.int64)
        above = np.minimum(below + 1, n - 1)
        return self.interpolate(
            low=sorted_positions[below],
            high=sorted_positions[above],
            fraction=centered - below,
            fallback=drawn,
        )
