"""The rows of a table that have what is given, from which samples come.

Samples are plain draws that have what is given (`GivenRows.has_given`), or draws of
another chain: a chain of the other columns, fitted to the rows that have what is given.
`FittedTable` chooses. If few rows have a given number, the rows nearest to the number
are moved to it (`moved_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.errors import DataError
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
)
from sliceflow.estimators.tables.given.moved_rows import move_to_values
from sliceflow.estimators.tables.given.read_given import Given, read_given
from sliceflow.estimators.tables.rows.stored_levels import ColumnName
from sliceflow.estimators.tables.rules.kinds import LinearRule, Rule
from sliceflow.estimators.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

# If fewer rows than this have a given number, the rows nearest to the number are taken,
# too. With fewer rows, samples would repeat their values.
MIN_ROWS_WITH_VALUE = 20

# An answer with fewer rows behind it gets a warning, because samples are close to these
# rows. Copies are .02 to .05 of the samples for 20 rows instead of .01, and .01 to .02
# for 60. With a larger limit, users would be warned of what is harmless.
MIN_ROWS_TO_SHARE = 50


@dataclass(frozen=True, eq=False)
class GivenRows:
    """What a user gave, such as {"plan": "gold"}, and the rows that have it."""

    table: Table  # with a rule for each range and list that is given
    level_positions: LevelPositions  # (n, d); some are moved to given numbers
    # Of columns with one given value, by their indices: its position, and of numbers
    # also the value as the user wrote it, in a Series of one cell.
    fixed_positions: dict[int, float]
    fixed_values: dict[int, pd.Series]
    rules: tuple[Rule, ...] = ()  # of ranges and lists
    is_moved: bool = False  # whether rows were moved
    # The parts of a warning, such as that few rows have a value.
    notes: tuple[str, ...] = ()

    @property
    def column_indices(self) -> set[int]:
        """The columns that are given, which `has_given` reads."""
        indices = set(self.fixed_positions)
        for rule in self.rules:
            indices.update(rule.column_indices)
        return indices

    def share_of(self, table: Table) -> float:
        """How many rows these are, as a share of the rows of a table."""
        return len(self.level_positions) / len(table.level_positions)

    @property
    def computed_names(self) -> list[ColumnName]:
        """The columns of given ranges and lists that another rule computes."""
        derived_indices = self.table.rule_set.derived_indices
        names = list[ColumnName]()
        for rule in self.rules:
            (c,) = rule.column_indices
            if c in derived_indices and self.table.names[c] not in names:
                names.append(self.table.names[c])
        return names

    def has_given(self, level_positions: LevelPositions) -> Mask:
        """Which rows (m,) of positions (m, d) have what is given."""
        has_given = np.full(len(level_positions), True)
        for c, position in self.fixed_positions.items():
            has_given &= level_positions[:, c] == position
        for rule in self.rules:
            has_given &= ~self.table.rule_set.is_broken_so_far(rule, level_positions)
            if isinstance(rule, LinearRule):  # a range has no missing cell
                has_given &= has_all_values(level_positions, rule.column_indices)
        return has_given


def rows_with_given(table: Table, given: Mapping[ColumnName, object]) -> GivenRows:
    """The rows of a table that have what is given.

    `given` has a value, a list or a range by the name of the column. An error names
    what no row can have.
    """
    all_given = read_given(table, given)
    if all_given.rules:
        table = table.with_rules(all_given.rules)
    rare_grid_values = _find_rare_numbers(table, all_given)
    is_match = _has_all_but_rare_numbers(table, all_given, rare_grid_values)
    if not is_match.any():
        fact = f"no row of the table has given={dict(given)}"
        raise DataError(fact, "leave out what never occurs together")
    level_positions = table.level_positions[is_match]
    notes = all_given.notes
    if rare_grid_values:
        level_positions, n_near = move_to_values(
            table, level_positions, rare_grid_values, all_given.fixed_positions
        )
        if n_near < MIN_ROWS_WITH_VALUE:
            notes.append(_few_rows(n_near, "is near it", "are near it"))
    if len(level_positions) < MIN_ROWS_TO_SHARE:
        n_with_given = int(_has_all_given(table, all_given).sum())
        is_moved = len(rare_grid_values) > 0
        notes.append(_note_of_few_rows(len(level_positions), n_with_given, is_moved))
    return GivenRows(
        table,
        level_positions,
        all_given.fixed_positions,
        all_given.fixed_values,
        rules=all_given.rules,
        is_moved=len(rare_grid_values) > 0,
        notes=tuple(notes),
    )


def _find_rare_numbers(table: Table, all_given: Given) -> dict[int, float]:
    """The given numbers that few rows have, as grid values by column index.

    Only rows count that have what is given of the columns before. In place of a number
    that is not in the table, the nearest number counts.
    """
    rare_grid_values = {}
    is_match = np.full(len(table.level_positions), True)
    for given_column in all_given.columns:
        positions = table.level_positions[:, given_column.index]
        has_given = is_match & given_column.has_given_or_nearest(positions)
        number = given_column.number
        if number is not None and int(has_given.sum()) < MIN_ROWS_WITH_VALUE:
            rare_grid_values[given_column.index] = number.grid_value
        else:
            is_match = has_given
    return rare_grid_values


def _has_all_but_rare_numbers(
    table: Table, all_given: Given, rare_grid_values: Mapping[int, float]
) -> Mask:
    """Which rows (n,) of a table have all that is given, except for rare numbers.

    The rows nearest to the rare numbers are moved to them later. In place of another
    number that is not in the table, the nearest number counts.
    """
    is_match = _has_kept_given_rules(table, all_given)
    for given_column in all_given.columns:
        if given_column.index not in rare_grid_values:
            positions = table.level_positions[:, given_column.index]
            is_match &= given_column.has_given_or_nearest(positions)
    return is_match


def _has_all_given(table: Table, all_given: Given) -> Mask:
    """Which rows (n,) of a table have exactly what is given."""
    has_given = _has_kept_given_rules(table, all_given)
    for given_column in all_given.columns:
        positions = table.level_positions[:, given_column.index]
        has_given &= given_column.has_given(positions)
    return has_given


def _has_kept_given_rules(table: Table, all_given: Given) -> Mask:
    """Which rows (n,) of a table keep the rules of all given ranges and lists."""
    is_broken = np.full(len(table.level_positions), False)
    for rule in all_given.rules:
        is_broken |= table.rule_set.is_broken_so_far(rule, table.level_positions)
    return ~is_broken


def _note_of_few_rows(n_rows: int, n_with_given: int, is_moved: bool) -> str:
    """Words for a warning that samples come from few rows.

    `n_with_given` rows of the table have exactly what is given, and samples come from
    `n_rows`, which may be moved to given numbers.
    """
    if is_moved:
        source = f"the {n_rows} rows that are moved to it"
    elif n_with_given < n_rows:
        source = f"the {n_rows} rows nearest to it"
    elif n_with_given == 1:
        source = "it"
    else:
        source = "them"
    fact = _few_rows(n_with_given, "has this", "have this")
    return f"{fact}, and samples are close to {source}"


def _few_rows(n: int, singular: str, plural: str) -> str:
    """Such as "only 3 rows of the table have this", with the verb for one or more."""
    if n == 0:
        return f"no row of the table {singular}"
    if n == 1:
        return f"only 1 row of the table {singular}"
    return f"only {n} rows of the table {plural}"
