"""The levels of a column as numbers on a grid, and conversions between their forms.

`columns` explains positions, scaled values and grid values, with an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.spaces.tables.formats import ScaledValues
from sliceflow.spaces.tables.level_positions import (
    IMPOSSIBLE,
    MISSING,
    GridValues,
    LevelPositions,
    is_missing,
)


@dataclass(frozen=True, eq=False)
class Grid:
    """The levels of a column as numbers, and conversions between forms of cells.

    Of categories, scaled values and grid values are the positions.
    """

    # The scaled values (k,) of the levels, ascending: integers that count the unit, as
    # Python's own if they are large, or floats if there is no unit.
    scaled_values: ScaledValues
    unit: Fraction | None = None  # in ones or seconds; None for floats and categories
    spacing: int = 1  # how many units are between neighbors on the grid

    @property
    def origin(self) -> int:
        """The scaled value of the grid value 0; 0 if there is no unit."""
        if self.unit is None:
            return 0
        return int(self.scaled_values[0])

    @cached_property
    def grid_values(self) -> GridValues:
        """The grid values (k,) of the levels, ascending."""
        if self.unit is None:
            return GridValues(self.scaled_values)
        step_counts = (self.scaled_values - self.origin) // self.spacing
        return GridValues(step_counts.astype(np.float64))

    def positions_to_grid_values(self, positions: LevelPositions) -> GridValues:
        """The grid values (m,) at positions (m,); NaN where cells are missing."""
        if len(self.grid_values) == 0:
            return GridValues(np.full(len(positions), np.nan))
        grid_values = values_at(self.grid_values, positions)
        return GridValues(np.where(is_missing(positions), np.nan, grid_values))

    def grid_values_to_positions(self, grid_values: GridValues) -> LevelPositions:
        """The positions (m,) of grid values (m,); NaN becomes `MISSING`.

        Grid values outside the range of the levels become `IMPOSSIBLE`.
        """
        positions_of_levels = np.arange(len(self.grid_values))
        positions = np.interp(grid_values, self.grid_values, positions_of_levels)
        # np.interp may miss a level by a rounding error, and only levels are exact.
        nearest = np.rint(np.nan_to_num(positions)).astype(np.int64)
        is_level = self.grid_values[nearest] == grid_values
        positions = np.where(is_level, nearest, positions)
        is_outside = grid_values < self.grid_values[0]
        is_outside |= grid_values > self.grid_values[-1]
        positions = np.where(is_outside, IMPOSSIBLE, positions)
        return LevelPositions(np.where(np.isnan(grid_values), MISSING, positions))

    def grid_values_to_scaled_values(self, grid_values: GridValues) -> ScaledValues:
        """The scaled values (m,) of grid values (m,), rounded to the grid."""
        if self.unit is None:
            return grid_values
        step_counts = np.rint(grid_values).astype(np.int64)
        step_counts = step_counts.astype(self.scaled_values.dtype)
        return self.origin + self.spacing * step_counts

    def scaled_values_to_grid_values(
        self, scaled_values: ScaledValues, unit: Fraction | None
    ) -> GridValues:
        """The grid values (m,) of values (m,) that count any unit; None for floats.

        Grid values of what is not on the grid are not whole.
        """
        ratio = (unit or Fraction(1)) / (self.unit or Fraction(1))
        numerator = ratio.numerator
        denominator = ratio.denominator
        if self.unit is None or unit is None:
            values = scaled_values * float(numerator) / float(denominator)
            return GridValues((values - self.origin) / self.spacing)
        # Python's integers divide exactly, and round once.
        differences = scaled_values.astype(object) * numerator
        differences = differences - self.origin * denominator
        divisor = denominator * self.spacing
        grid_values = [difference / divisor for difference in differences.tolist()]
        return GridValues(np.array(grid_values, dtype=np.float64))

    def positions_to_scaled_values(self, positions: LevelPositions) -> ScaledValues:
        """The exact scaled values (m,) at positions (m,) of no missing cells."""
        level = np.floor(positions).astype(np.int64)
        scaled_values = self.scaled_values[level]
        is_new = positions != level
        new_values = self.positions_to_grid_values(positions[is_new])
        scaled_values[is_new] = self.grid_values_to_scaled_values(new_values)
        return scaled_values

    def round(self, grid_values: GridValues) -> GridValues:
        """The nearest grid values (m,) that the column can have."""
        if self.unit is None:
            return grid_values
        return GridValues(np.rint(grid_values))


def values_at(values: Floats, places: Floats) -> Floats:
    """Values (k,) at places (m,): at indices, or on a line between two of these."""
    with np.errstate(invalid="ignore"):
        whole = places.astype(np.int64)
    if (whole == places).all():  # the usual case is quick
        return np.asarray(values[whole], dtype=np.float64)
    return np.interp(places, np.arange(len(values)), values)
