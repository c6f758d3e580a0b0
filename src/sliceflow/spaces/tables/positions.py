"""Positions of cells (`columns` explains them), and the positions of cells without one.

A position from 0 to k − 1, for k levels, is a value: a level if it is whole, else a new
value between two levels. Three other numbers say that there is no value:

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


def has_value(positions: Floats) -> Mask:
    """Which cells have a value: a level, or a new one between two levels."""
    return (positions >= 0) & np.isfinite(positions)


def has_all_values(row_positions: Floats, column_indices: Sequence[int]) -> Mask:
    """Which rows (m,) of (m, d) have a value in all of some columns."""
    return np.asarray(has_value(row_positions[:, list(column_indices)]).all(axis=1))


def is_missing(positions: Floats) -> Mask:
    """Which cells are missing."""
    return positions < 0


def is_undrawn(positions: Floats) -> Mask:
    """Which cells are not drawn yet: (…)."""
    return np.isnan(positions)


def is_impossible(positions: Floats) -> Mask:
    """Which cells should have a value that their column cannot have."""
    return np.isinf(positions)
