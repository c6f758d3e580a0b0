"""The coordinates of cells (`columns` explains them), and those of cells without value.

A coordinate from 0 to k − 1, for k levels, is a value: a level if it is whole, else a
new value between two levels. Three other numbers say that there is no value:

| constant     | the cell                                                   |
|--------------|------------------------------------------------------------|
| `MISSING`    | is missing, in the table or in a finished new row          |
| `UNDRAWN`    | is not drawn yet, in a new row whose columns are drawn     |
| `IMPOSSIBLE` | should have a value that its column cannot have            |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Floats, Mask

# −1, as the code of a missing cell: as a feature, it is next to the lowest level.
MISSING = -1.0
UNDRAWN = np.nan
IMPOSSIBLE = np.inf


def has_value(coords: Floats) -> Mask:
    """Which cells have a value: a level, or a new one between two levels."""
    return (coords >= 0) & np.isfinite(coords)


def has_all_values(cell_coords: Floats, column_indices: Sequence[int]) -> Mask:
    """Which rows (m,) of (m, d) have a value in all of some columns."""
    return np.asarray(has_value(cell_coords[:, list(column_indices)]).all(axis=1))


def is_missing(coords: Floats) -> Mask:
    """Which cells are missing."""
    return coords < 0


def is_undrawn(coords: Floats) -> Mask:
    """Which cells are not drawn yet: (…)."""
    return np.isnan(coords)


def is_impossible(coords: Floats) -> Mask:
    """Which cells should have a value that their column cannot have."""
    return np.isinf(coords)
