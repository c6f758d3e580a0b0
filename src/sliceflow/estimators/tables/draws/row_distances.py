"""Distances of rows of a table to the nearest of other rows.

A distance is a sum over columns. A column of numbers adds their difference, as a share
of the column's range; a column of other levels adds 2 if the levels differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_value,
)
from sliceflow.estimators.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

# Functions that need torch import it themselves: plans and plain draws do without it.

# Only the first columns of a wide table are drawn on trial and compared, to save time.
MAX_COLUMNS_COMPARED = 60

# A number with at most this many values is compared like a category: grades and counts
# of children are. With more, ages would count as categories, too.
MAX_LEVELS_OF_NUMBER = 12

# What two different levels of a category count for a distance: 2, as |x − y| of their
# one-hot vectors. Numbers count by their place in the range of the column, 0 to 1, and
# a missing number is at −½, so it is half a range away from the lowest one.
LEVEL_DISTANCE = 2.0
MISSING_SHARE = -0.5


def compared_columns(table: Table) -> list[int]:
    """The indices of the columns that are compared: the first of the drawing order."""
    return table.drawing_order[:MAX_COLUMNS_COMPARED]


def nearest_distances(
    table: Table,
    level_positions: LevelPositions,
    other_positions: LevelPositions,
    exclude_self: bool = False,
) -> Tensor:
    """Distances (m,) of rows (m, d) to the nearest of other rows (n, d).

    With `exclude_self`, both are the same rows, and the distance is to the nearest one
    but the row itself.
    """
    import torch

    from sliceflow.kernels import for_device

    column_indices = compared_columns(table)
    max_distances = []
    for c in column_indices:
        if _is_compared_by_range(table, c):
            max_distances.append(math.inf)
        else:
            max_distances.append(LEVEL_DISTANCE)
    return for_device("cpu").nearest_distance(
        _standardized_points(table, column_indices, level_positions),
        _standardized_points(table, column_indices, other_positions),
        torch.tensor(max_distances),
        exclude_self,
    )


def _standardized_points(
    table: Table, column_indices: Sequence[int], level_positions: LevelPositions
) -> Tensor:
    """Points (m, p) of p columns of rows (m, d), for `nearest_distances`.

    Different levels are at least `LEVEL_DISTANCE` apart.
    """
    import torch

    points = LEVEL_DISTANCE * level_positions[:, column_indices].astype(np.float32)
    for i, c in enumerate(column_indices):
        if _is_compared_by_range(table, c):
            column = table.columns[c]
            from_lowest = (
                column.grid_values_at(level_positions[:, c])
                - column.level_grid_values[0]
            )
            share = from_lowest / np.ptp(column.level_grid_values)
            points[:, i] = np.where(
                has_value(level_positions[:, c]), share, MISSING_SHARE
            )
    return torch.from_numpy(points)


def _is_compared_by_range(table: Table, c: int) -> bool:
    """Whether a column counts for distances by its numbers, not as levels."""
    column = table.columns[c]
    return column.is_quantitative and column.n_levels > MAX_LEVELS_OF_NUMBER
