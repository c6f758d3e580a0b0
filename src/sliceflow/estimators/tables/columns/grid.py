"""The levels of a column as numbers on a grid, and conversions between their forms.

A cell has a position, and two kinds of numbers (the package explains them):

| form         | for                 | from a position    | to a position         |
|--------------|---------------------|--------------------|-----------------------|
| grid value   | statistics          | `grid_values_at`   | `positions_of`,       |
|              |                     |                    | `rounded_positions`   |
| exact value  | exact rules, values | `exact_values_at`  | `positions_of_exact`  |
|              | that users see      |                    |                       |

Examples
--------
The levels $2.50, $5.00 and $10.00 count cents. Half way between the first two is $3.75,
which is 125 cents above the first:

>>> grid = Grid(np.array([250, 500, 1000]), unit=Fraction(1, 100))
>>> grid.exact_values_at(np.array([0, 0.5, 2]))
array([ 250,  375, 1000])
>>> grid.grid_values_at(np.array([0, 0.5, 2]))
array([  0., 125., 750.])
>>> grid.positions_of(np.array([0.0, 125.0, 750.0]))
array([0. , 0.5, 2. ])
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.estimators.tables.columns.formats import ExactValues
from sliceflow.estimators.tables.columns.level_positions import (
    IMPOSSIBLE,
    MISSING,
    GridValues,
    LevelPositions,
    is_missing,
)

# If some columns of a sum are floats, rounding errors move what is computed for one
# with a unit off its grid. It is rounded if it is off by no more steps than this.
_GRID_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Grid:
    """The levels of a column as numbers, and conversions of cells (see the module).

    Of categories, exact values and grid values are the positions.
    """

    # The exact values (k,) of the levels, ascending: integers that count the unit, as
    # Python's own if they are large, or floats if there is no unit.
    exact_values: ExactValues
    unit: Fraction | None = None  # in ones or seconds; None for floats and categories
    spacing: int = 1  # how many units are between adjacent grid values

    @property
    def origin(self) -> int:
        """The exact value of the grid value 0; 0 if there is no unit."""
        if self.unit is None:
            return 0
        return int(self.exact_values[0])

    @cached_property
    def grid_values(self) -> GridValues:
        """The grid values (k,) of the levels, ascending."""
        if self.unit is None:
            return GridValues(self.exact_values)
        step_counts = (self.exact_values - self.origin) // self.spacing
        return GridValues(step_counts.astype(np.float64))

    def round(self, grid_values: GridValues) -> GridValues:
        """The nearest grid values (m,) that the column can have."""
        if self.unit is None:
            return grid_values
        return GridValues(np.rint(grid_values))

    # Grid values

    def grid_values_at(self, positions: LevelPositions) -> GridValues:
        """The grid values (m,) at positions (m,); NaN where cells are missing."""
        if len(self.grid_values) == 0:
            return GridValues(np.full(len(positions), np.nan))
        grid_values = values_at(self.grid_values, positions)
        return GridValues(np.where(is_missing(positions), np.nan, grid_values))

    def positions_of(self, grid_values: GridValues) -> LevelPositions:
        """The positions (m,) of grid values (m,); NaN becomes `MISSING`.

        Grid values outside the range of the levels become `IMPOSSIBLE`.
        """
        highest_level = len(self.grid_values) - 1
        levels = np.arange(highest_level + 1)
        between = np.interp(grid_values, self.grid_values, levels)
        # np.interp may miss a level by a rounding error, and only levels are exact.
        # Between levels near 1e-308 its slopes overflow.
        level = np.searchsorted(self.grid_values, grid_values)  # at or above each value
        level = np.minimum(level, highest_level)
        is_level = self.grid_values[level] == grid_values
        positions = np.where(is_level | ~np.isfinite(between), level, between)
        is_outside = grid_values < self.grid_values[0]
        is_outside |= grid_values > self.grid_values[-1]
        positions = np.where(is_outside, IMPOSSIBLE, positions)
        return LevelPositions(np.where(np.isnan(grid_values), MISSING, positions))

    def rounded_positions(self, grid_values: GridValues) -> LevelPositions:
        """The positions (m,) of grid values (m,), rounded to the grid first."""
        return self.positions_of(self.round(grid_values))

    # Exact values

    def exact_values_at(self, positions: LevelPositions) -> ExactValues:
        """The exact values (m,) at positions (m,) of no missing cells."""
        level = np.floor(positions).astype(np.int64)
        exact_values = self.exact_values[level]
        is_new = positions != level
        new_values = self.grid_values_at(positions[is_new])
        if self.unit is None:
            exact_values[is_new] = new_values
        else:
            step_counts = np.rint(new_values).astype(np.int64)
            step_counts = step_counts.astype(self.exact_values.dtype)
            exact_values[is_new] = self.origin + self.spacing * step_counts
        return exact_values

    def floats_at(self, positions: LevelPositions) -> Floats:
        """The values (m,) at positions (m,) of no missing cells, in ones or seconds."""
        exact_values = self.exact_values_at(positions)
        return exact_values.astype(np.float64) * float(self.unit or 1)

    def positions_of_exact(
        self, exact_values: ExactValues, unit: Fraction | None
    ) -> LevelPositions:
        """The positions (m,) of values (m,) that count `unit`; it is None for floats.

        They are `IMPOSSIBLE` where the column cannot have the value.
        """
        grid_values = self.grid_values_of(exact_values, unit)
        on_grid = self.round(grid_values)
        tolerance = 0.0
        if unit is None:
            tolerance = _GRID_TOLERANCE
        is_on_grid = np.abs(on_grid - grid_values) <= tolerance
        positions = self.positions_of(on_grid)
        return LevelPositions(np.where(is_on_grid, positions, IMPOSSIBLE))

    def grid_values_of(
        self, exact_values: ExactValues, unit: Fraction | None
    ) -> GridValues:
        """The grid values (m,) of values (m,) that count `unit`; it is None for floats.

        They are not whole where a value is not on the grid.
        """
        ratio = (unit or Fraction(1)) / (self.unit or Fraction(1))
        numerator = ratio.numerator
        denominator = ratio.denominator
        if self.unit is None or unit is None:
            values = exact_values * float(numerator) / float(denominator)
            return GridValues((values - self.origin) / self.spacing)
        # Python's integers divide exactly, and round once.
        differences = exact_values.astype(object) * numerator
        differences = differences - self.origin * denominator
        divisor = denominator * self.spacing
        grid_values = [difference / divisor for difference in differences.tolist()]
        return GridValues(np.array(grid_values, dtype=np.float64))


def values_at(values: Floats, places: Floats) -> Floats:
    """Values (k,) at places (m,): at indices, or on a line between two values."""
    with np.errstate(invalid="ignore"):
        whole = places.astype(np.int64)
    if (whole == places).all():  # the usual case is quick
        return np.asarray(values[whole], dtype=np.float64)
    return np.interp(places, np.arange(len(values)), values)
