"""Where cells of a column come from: a tree, an equal column, a rule, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns.column_data import ColumnData
from sliceflow.estimators.tables.columns.grid import Grid
from sliceflow.estimators.tables.columns.level_positions import (
    GridValues,
    LevelPositions,
    is_missing,
    is_undrawn,
)
from sliceflow.estimators.tables.rules.kinds import SolvableRule
from sliceflow.estimators.tables.rules.solve import solve_column

# If a number equals an earlier column in at least this share of rows, the model draws
# that it does. A smaller share would take accidents for a pattern, and a larger one
# would lose patterns that users can see.
MIN_EQUAL_SHARE = 0.001


@dataclass(frozen=True, eq=False)
class CellSources:
    """Where the cells of a column come from, row by row.

    A cell is drawn from a tree, or it equals the cell of an earlier column in the same
    row, or it is missing, or a rule computes it. Cells are missing without a draw only
    in columns with a regression or a rule: in others, a tree draws missing cells as one
    more level.

    Another tree predicts the source of new cells, so each source has a number, which is
    its class: 0 for the tree, i + 1 for a cell that equals the cell of the column
    `equal_column_indices[i]`, and the next two for missing and computed.
    """

    equal_column_indices: tuple[int, ...]  # earlier columns that cells may equal
    source_ids: Ints  # (n,), the number of each cell's source

    @property
    def is_from_tree(self) -> Mask:
        """Which cells (n,) are drawn from a tree."""
        return np.asarray(self.source_ids == 0)

    @property
    def is_from_equal_column(self) -> Mask:
        """Which cells (n,) equal a cell of an earlier column."""
        return (self.source_ids > 0) & (self.source_ids < self._missing_id)

    @property
    def is_missing(self) -> Mask:
        """Which cells (n,) are missing without a draw from a tree."""
        return np.asarray(self.source_ids == self._missing_id)

    @property
    def is_computed(self) -> Mask:
        """Which cells (n,) a rule computes."""
        return np.asarray(self.source_ids == self._computed_id)

    @property
    def _missing_id(self) -> int:
        return len(self.equal_column_indices) + 1

    @property
    def _computed_id(self) -> int:
        return len(self.equal_column_indices) + 2

    def is_equal_to(self, column_index: int) -> Mask:
        """Which cells (n,) equal the cell of this earlier column."""
        equal_id = self.equal_column_indices.index(column_index) + 1
        return np.asarray(self.source_ids == equal_id)

    def with_missing(self, is_missing: Mask) -> CellSources:
        """These sources, but cells where `is_missing` (n,) need no draw."""
        source_ids = np.where(is_missing, self._missing_id, self.source_ids)
        return replace(self, source_ids=source_ids)

    def with_computed(self, is_computed: Mask) -> CellSources:
        """These sources, but a rule computes the cells where `is_computed` (n,)."""
        source_ids = np.where(is_computed, self._computed_id, self.source_ids)
        return replace(self, source_ids=source_ids)


def find_sources(data: ColumnData, rules: Sequence[SolvableRule]) -> CellSources:
    """Find out where the cells (n,) of a column come from.

    The sources are rules, if there are any, or else earlier columns that it equals.
    """
    if not rules:
        return find_equal_cells(data)
    sources = CellSources((), np.zeros(len(data), dtype=np.int64))
    computed = solve_column(
        rules, data.columns, data.level_positions, data.column_index
    )
    is_computed = ~is_undrawn(computed)
    if not is_kept_by_all_rows(rules):
        is_computed &= computed == data.positions
    sources = sources.with_computed(is_computed)
    return sources.with_missing(is_missing(data.positions))


def is_kept_by_all_rows(rules: Sequence[SolvableRule]) -> bool:
    """Whether no row of the table breaks any of the rules."""
    return all(rule.share == 1 for rule in rules)


def has_sources_to_draw(sources: CellSources, rules: Sequence[SolvableRule]) -> bool:
    """Whether the sources of new cells must be drawn.

    If all rows keep the rules, these determine where a cell is computed, so only
    missing cells need a draw.
    """
    if rules and is_kept_by_all_rows(rules):
        return bool(sources.is_missing.any())
    return not sources.is_from_tree.all()


def find_equal_cells(data: ColumnData) -> CellSources:
    """Which cells (n,) of a column equal the cell of a predictor in the same row.

    Such a cell has the predictor as its source, and any other cell has the tree. Of
    several equal predictors, the predictor that is equal in most rows counts.
    """
    is_equal = _equal_cells_by_predictor(data)
    equal_column_indices = list[int]()
    source_ids = np.zeros(len(data), dtype=np.int64)
    for c in sorted(is_equal, key=lambda c: -is_equal[c].mean()):
        is_newly_equal = is_equal[c] & (source_ids == 0)
        if is_newly_equal.mean() >= MIN_EQUAL_SHARE:
            equal_column_indices.append(c)
            source_ids[is_newly_equal] = len(equal_column_indices)
    return CellSources(tuple(equal_column_indices), source_ids)


def _equal_cells_by_predictor(data: ColumnData) -> dict[int, Mask]:
    """Which cells (n,) equal the cell of each predictor, by the predictor's index.

    Only predictors of the same kind are compared, and only cells where the column may
    have new values: in others, such as grades, equal numbers are no pattern.
    """
    column = data.column
    is_interpolable = column.new_value_policy.is_interpolable(data.positions)
    if not is_interpolable.any():
        return {}
    grid_values = column.grid_values_at(data.positions)
    is_equal = {}
    for c in data.predictor_indices.tolist():
        other = data.columns[c]
        has_like_unit = (other.unit is None) == (column.unit is None)
        if other.kind == column.kind and has_like_unit:
            other_values = convert_grid_values(
                data.level_positions[:, c], from_grid=other.grid, to_grid=column.grid
            )
            is_equal[c] = is_interpolable & (grid_values == other_values)
    return is_equal


def convert_grid_values(
    positions: LevelPositions, from_grid: Grid, to_grid: Grid
) -> GridValues:
    """The values at positions (m,) of one grid, as grid values (m,) of another."""
    grid_values = from_grid.grid_values_at(positions)
    if to_grid.unit is None or from_grid.unit is None:
        return grid_values
    ratio = from_grid.unit / to_grid.unit
    scale = float(from_grid.spacing * ratio)
    shift = float(from_grid.origin * ratio - to_grid.origin)
    return GridValues((grid_values * scale + shift) / to_grid.spacing)
