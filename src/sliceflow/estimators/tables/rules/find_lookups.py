"""Rules that a column follows from another one, or from a part of a time.

A country follows from its town, and a month from a date: `functional_dependencies`
finds such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
    has_value,
    is_missing,
)
from sliceflow.estimators.tables.rules.kinds import DatePart, LookupRule, lookup_keys
from sliceflow.functional_dependencies import find_dependencies

# A number determines others only if at most this share of its rows have rare numbers.
# With a larger share, samples would hold numbers of single rows: on the table Wage,
# whose wages follow from their logarithms, an attacker had an AUC of .65.
MAX_RARE_SHARE = 0.1


def find_lookups(
    columns: Sequence[Column], level_positions: LevelPositions, derived: set[int]
) -> list[LookupRule]:
    """The rules of functional dependencies, except of columns that others derive."""
    usable = [
        c
        for c, column in enumerate(columns)
        if column.is_category or column.is_quantitative
    ]
    cells = np.where(is_missing(level_positions), np.nan, level_positions)[:, usable]
    rules = []
    for dependency in find_dependencies(cells):
        determinant = usable[dependency.determinant]
        dependent = usable[dependency.dependent]
        if dependent not in derived and not _has_disclosing_keys(columns[determinant]):
            rule = _lookup_rule(columns, level_positions, dependent, determinant, None)
            rules.append(replace(rule, one_to_one=dependency.one_to_one))
    return rules


def _has_disclosing_keys(column: Column) -> bool:
    """Whether a lookup by the numbers of this column would disclose many rare ones.

    The keys of a lookup are numbers of the table. So the column could have no others,
    and its rare numbers could not move.
    """
    if not column.is_quantitative or column.quantity != "number":
        return False
    counts = column.level_counts
    n_rare = counts[counts < column.min_count].sum()
    return bool(n_rare > MAX_RARE_SHARE * counts.sum())


def find_date_parts(
    columns: Sequence[Column], level_positions: LevelPositions, derived: set[int]
) -> list[LookupRule]:
    """Columns that follow from a part of a time, as a month from a date."""
    rules = []
    times = [c for c, column in enumerate(columns) if column.is_time]
    for time in times:
        keys = _date_part_keys(columns[time], level_positions[:, time])
        for c, column in enumerate(columns):
            if c in times or c in derived:
                continue
            if column.is_category or column.is_quantitative:
                part = _best_date_part(level_positions[:, c], keys)
                if part is not None:
                    rules.append(_lookup_rule(columns, level_positions, c, time, part))
    return rules


def _date_part_keys(
    column: Column, positions: LevelPositions
) -> dict[DatePart, Floats]:
    """The parts (n,) of the times at positions (n,); NaN where cells are missing."""
    is_observed = has_value(positions)
    keys = dict[DatePart, Floats]()
    for part in get_args(DatePart):
        keys[part] = np.full(len(positions), np.nan)
        keys[part][is_observed] = lookup_keys(column, positions[is_observed], part)
    return keys


def _best_date_part(
    positions: LevelPositions, keys: dict[DatePart, Floats]
) -> DatePart | None:
    """The part with the fewest values from which positions (n,) follow, if any."""
    cells = np.where(is_missing(positions), np.nan, positions)
    fewest = np.inf
    best = None
    for part, key in keys.items():
        n_keys = len(np.unique(key[~np.isnan(key)]))
        if n_keys < fewest and _is_determined_by(cells, key):
            fewest = n_keys
            best = part
    return best


def _is_determined_by(dependent: Floats, determinant: Floats) -> bool:
    """Whether a column (n,) follows from another one (n,); NaN is a missing cell."""
    for found in find_dependencies(np.column_stack((determinant, dependent))):
        if found.determinant == 0 or found.one_to_one:
            return True
    return False


def _lookup_rule(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    dependent: int,
    determinant: int,
    part: DatePart | None,
) -> LookupRule:
    """The rule with the position of the dependent for each key."""
    is_complete = has_all_values(level_positions, [dependent, determinant])
    keys = lookup_keys(
        columns[determinant], level_positions[is_complete, determinant], part
    )
    different, first = np.unique(keys, return_index=True)
    text = f"{columns[dependent].name} follows from {columns[determinant].name}"
    if part is not None:
        text = f"{columns[dependent].name} is the {part} of {columns[determinant].name}"
    positions = level_positions[is_complete, dependent][first]
    return LookupRule(text, (dependent, determinant), different, positions, part)
