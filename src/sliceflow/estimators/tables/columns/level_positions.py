"""Positions of cells among the levels of a column, also of cells without a value.

A position from 0 to k − 1, for k levels, is a value (the package has an example): a
level if it is whole, and else a new value between two levels. So 1.5 lies between the
levels 1 and 2. Three other numbers say that there is no value:

| constant     | the cell                                                   |
|--------------|------------------------------------------------------------|
| `MISSING`    | is missing, in the table or in a finished new row          |
| `UNDRAWN`    | is not drawn yet, in a new row whose columns are drawn     |
| `IMPOSSIBLE` | should have a value that its column cannot have            |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NewType, Self, overload

import numpy as np

from sliceflow.arrays import Floats, Mask

# Two kinds of floats that must not be mixed. These are classes instead of `NewType`s
# because a part of an array of positions shall have the type of positions, too. numpy's
# own types leave open what an index gives.
if TYPE_CHECKING:

    class LevelPositions(np.ndarray[tuple[Any, ...], np.dtype[np.float64]]):
        """Positions: levels, values between levels, and the constants above.

        They are of a column (n,) or of a table (n, d).
        """

        def __new__(cls, values: Floats) -> Self: ...
        # A cell of a column, or a row of a table.
        @overload  # type: ignore[override]
        def __getitem__(self, key: int | np.integer[Any]) -> Self | float: ...
        @overload
        def __getitem__(self, key: tuple[int, int]) -> float: ...
        @overload
        def __getitem__(self, key: Any) -> Self: ...
        def __getitem__(self, key: Any) -> Any: ...

    class GridValues(np.ndarray[tuple[int], np.dtype[np.float64]]):
        """Grid values of a column (n,); missing cells are NaN."""

        def __new__(cls, values: Floats) -> Self: ...
        @overload  # type: ignore[override]
        def __getitem__(self, key: int | np.integer[Any]) -> float: ...
        @overload
        def __getitem__(self, key: Any) -> Self: ...
        def __getitem__(self, key: Any) -> Any: ...

else:
    # When the code runs, both are arrays like any other.
    LevelPositions = NewType("LevelPositions", np.ndarray)
    GridValues = NewType("GridValues", np.ndarray)

# −1, as the code of a missing cell: as a feature, it is next to the lowest level.
MISSING = -1.0
UNDRAWN = np.nan
IMPOSSIBLE = np.inf


def split_in_halves(
    level_positions: LevelPositions,
) -> tuple[LevelPositions, LevelPositions]:
    """The first and the second half of rows (n, d); an odd row is in the first."""
    first, second = np.array_split(level_positions, 2)
    return LevelPositions(first), LevelPositions(second)


def has_value(positions: LevelPositions) -> Mask:
    """Which cells (…) have a value: a level, or a new one between two levels."""
    return (positions >= 0) & np.isfinite(positions)


def has_all_values(
    level_positions: LevelPositions, column_indices: Sequence[int]
) -> Mask:
    """Which rows (m,) of (m, d) have a value in all of some columns."""
    return np.asarray(has_value(level_positions[:, list(column_indices)]).all(axis=1))


def is_missing(positions: LevelPositions) -> Mask:
    """Which cells (…) are missing."""
    return positions < 0


def is_undrawn(positions: LevelPositions) -> Mask:
    """Which cells (…) are not drawn yet."""
    return np.isnan(positions)


def is_impossible(positions: LevelPositions) -> Mask:
    """Which cells (…) should have a value that their column cannot have."""
    return np.isinf(positions)
