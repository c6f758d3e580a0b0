"""Rules that a column is at most another one in all rows, such as start <= end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
)
from sliceflow.estimators.tables.rules.evidence import (
    MIN_ROWS_OF_RULE,
    NumberColumns,
    RuleEvidence,
)
from sliceflow.estimators.tables.rules.kinds import LinearRule

# Columns with fewer values are not compared: a column of 0 and 1 is at most many others
# by accident.
MIN_LEVELS_OF_ORDER = 8
# An order a ≤ b is intended only if many differences b − a are nearly 0. So this many
# least differences are taken, of rows that could break the order, and at least this
# share of them must be below half of the largest of them. The share would be a quarter
# if the density of differences grew from 0 like a straight line. It is less in the tail
# of a distribution that does not end at 0.
N_LEAST_DIFFERENCES = 100
MIN_SHARE_NEAR_EQUAL = 0.2


def find_orders(
    columns: Sequence[Column], level_positions: LevelPositions, numbers: NumberColumns
) -> list[LinearRule]:
    """Orders a ≤ b that all rows keep, except orders that follow from others.

    Two orders in both directions are an equality, which computes the second column.
    Equalities come first.
    Numbers are compared with numbers, and times with times.
    """
    times = [c for c, column in enumerate(columns) if column.is_time]
    time_columns = NumberColumns.read_columns(columns, level_positions, times)
    larger_columns = _find_larger_columns(columns, level_positions, numbers)
    larger_columns |= _find_larger_columns(columns, level_positions, time_columns)
    orders = []
    equalities = []
    for a, larger in larger_columns.items():
        for b in sorted(larger - _larger_than_any(larger, larger_columns)):
            orders.append(_order_rule(columns, a, b))
        for b in sorted(larger):
            if a in larger_columns[b] and a < b:
                equalities.append(_equality_rule(columns, b, a))
    return [*reversed(equalities), *orders]


def _larger_than_any(
    column_indices: set[int], larger_columns: Mapping[int, set[int]]
) -> set[int]:
    """The columns that are at least as large as any one of some columns."""
    larger = set[int]()
    for c in column_indices:
        larger |= larger_columns[c]
    return larger


def _find_larger_columns(
    columns: Sequence[Column], level_positions: LevelPositions, numbers: NumberColumns
) -> dict[int, set[int]]:
    """For each column, by index, the columns that a rule says are at least as large."""
    has_levels = [
        columns[c].n_levels >= MIN_LEVELS_OF_ORDER for c in numbers.indices.tolist()
    ]
    indices = numbers.indices[has_levels]
    values = numbers.values[:, has_levels]
    larger_columns = dict[int, set[int]]()
    for i, a in enumerate(indices.tolist()):
        is_never_less = np.asarray(~(values[:, [i]] > values).any(axis=0))
        is_never_less[i] = False
        larger_columns[a] = set()
        for j in np.flatnonzero(is_never_less).tolist():
            b = int(indices[j])
            is_order = _is_order_intended(values[:, i], values[:, j])
            complete_positions = level_positions[
                has_all_values(level_positions, [a, b])
            ]
            rule = _order_rule(columns, a, b)
            if is_order and not rule.is_broken(columns, complete_positions).any():
                larger_columns[a].add(b)
    return larger_columns


def _is_order_intended(low: Floats, high: Floats) -> bool:
    """Whether an order low ≤ high of all cells (n,) is a rule, and no accident.

    Shuffled columns would break it, and in many rows that could break it the two
    numbers are close to each other.
    """
    is_observed = ~np.isnan(low) & ~np.isnan(high)
    low = low[is_observed]
    high = high[is_observed]
    if len(low) < MIN_ROWS_OF_RULE:
        return False
    n_not_above = np.searchsorted(np.sort(low), high, "right")
    share_if_shuffled = float(n_not_above.mean() / len(low))
    if not RuleEvidence(len(low), 1.0, share_if_shuffled).is_sufficient:
        return False
    is_breakable = (low > high.min()) & (high < low.max())
    gaps = np.sort((high - low)[is_breakable])[:N_LEAST_DIFFERENCES]
    if len(gaps) < N_LEAST_DIFFERENCES:
        return False
    return bool((gaps <= gaps[-1] / 2).mean() >= MIN_SHARE_NEAR_EQUAL)


def _equality_rule(columns: Sequence[Column], a: int, b: int) -> LinearRule:
    """The rule a = b, which computes a."""
    text = f"{columns[a].name} = {columns[b].name}"
    return replace(_order_rule(columns, a, b), relation="=", text=text)


def _order_rule(columns: Sequence[Column], a: int, b: int) -> LinearRule:
    """The rule a ≤ b."""
    text = f"{columns[a].name} <= {columns[b].name}"
    unit_a = columns[a].unit
    unit_b = columns[b].unit
    if unit_a is None or unit_b is None:
        weights = (float(unit_a or 1), -float(unit_b or 1))
        return LinearRule(text, (a, b), weights, "<=", is_discovered=True)
    unit = min(unit_a, unit_b)
    whole = (int(unit_a / unit), -int(unit_b / unit))
    return LinearRule(text, (a, b), whole, "<=", 0, unit, is_discovered=True)
