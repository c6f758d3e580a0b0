"""What the model of one column is fitted to: rows, and the columns that it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import LevelPositions

# The most columns that a model sees: of more, it sees the columns with the largest
# correlation ratios. So the time of a wide table grows with its columns and not with
# their square. With fewer, a model could miss columns that matter.
MAX_PREDICTORS = 40

# Correlation ratios are computed from about this many rows, to save time.
N_ROWS_FOR_RATIOS = 2_000

# The most groups of a column's values that a ratio is computed with. With more, groups
# would have few of those rows; with fewer, a column could vary within a group.
MAX_GROUPS = 50


@dataclass(frozen=True, eq=False)
class ColumnData:
    """A column to model, the columns that it is drawn from, and rows of all columns.

    The number of these rows, n, is its length.
    """

    columns: Sequence[Column]  # all columns of the table
    level_positions: LevelPositions  # (n, d), the rows
    column_index: int  # the column to model
    predictor_indices: Ints  # (p,), the indices of the columns that it is drawn from

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


def limit_predictors(data: ColumnData) -> ColumnData:
    """The data with the predictors that explain most, at most `MAX_PREDICTORS`.

    What they explain is their correlation ratio.
    """
    if len(data.predictor_indices) <= MAX_PREDICTORS:
        return data
    stride = max(1, len(data) // N_ROWS_FOR_RATIOS)
    sample = data.with_rows(data.level_positions[::stride])
    axes = data.column.features(sample.positions)
    ratios = [
        correlation_ratio(_groups(sample.level_positions[:, c]), axes)
        for c in data.predictor_indices
    ]
    largest = np.argsort(-np.array(ratios), kind="stable")[:MAX_PREDICTORS]
    return replace(data, predictor_indices=np.sort(data.predictor_indices[largest]))


def _groups(positions: LevelPositions) -> Ints:
    """Groups (n,) of cells that are alike, numbered from 0.

    Each level is a group, and so are missing cells. Many levels are joined to groups of
    adjacent levels with about equally many rows.
    """
    levels, group = np.unique(positions, return_inverse=True)
    if len(levels) <= MAX_GROUPS:
        return np.asarray(group, dtype=np.int64)
    from scipy.stats import rankdata  # few tables need it, and it takes long to import

    order = rankdata(positions) - 0.5
    return np.asarray(order * MAX_GROUPS / len(positions), dtype=np.int64)


def correlation_ratio(group: Ints, axes: Floats) -> float:
    """The share of the variance of axes (n, a) that groups (n,) explain.

    It is adjusted for the number of groups k, so that it is about 0 for random ones:

        1 − (variance within groups · n / (n − k)) / (variance · n / (n − 1)).
    """
    n = len(group)
    sizes = np.bincount(group)
    sizes = np.maximum(sizes, 1)
    n_groups = int(group.max()) + 1
    centered = axes - axes.mean(axis=0)
    total = float((centered**2).sum())
    between = 0.0
    for axis in centered.T:
        sums = np.bincount(group, weights=axis, minlength=n_groups)
        between += float((sums**2 / sizes).sum())
    if total <= 0 or n <= n_groups:
        return 0.0
    return 1 - (total - between) / total * (n - 1) / (n - n_groups)
