"""Whether neighbors may draw a table, and which of its columns.

The table must be small. The columns are categories, and dense numbers that do not
follow from other columns. Rules exclude columns, because neighbors would break them,
and trees do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from sliceflow.estimators.tables.columns.level_positions import has_value
from sliceflow.estimators.tables.draws.cell_sources import find_equal_cells
from sliceflow.estimators.tables.draws.ridge_regression import RidgeRegression
from sliceflow.estimators.tables.draws.row_distances import MAX_COLUMNS_COMPARED
from sliceflow.estimators.tables.draws.strategies import (
    SCALE_OF_STRATEGY,
    Strategy,
    uses_ridge,
)
from sliceflow.estimators.tables.rules.kinds import is_solvable
from sliceflow.estimators.tables.table import Table

# Neighbors are tried in tables with fewer rows than this. In larger tables trees are
# as good, and neighbors would copy (in the table Magic, DCR was .68).
MAX_ROWS_FOR_NEIGHBORS = 1_000

# A number that equals an earlier column in more than this share of the rows does not do
# so by accident: it is not drawn from neighbors, which would lose that. If this were
# larger, samples would lose equalities that users can see.
MAX_EQUAL_SHARE_OF_NEIGHBORS = 0.02

# The results of `columns_for_neighbors`, which is called for every trial fit: by the
# table, and then by the strategies and the given columns.
_CacheKey = tuple[tuple[Strategy, ...], tuple[int, ...]]
_cache: WeakKeyDictionary[Table, dict[_CacheKey, list[int]]] = WeakKeyDictionary()


def allows_neighbors(table: Table, strategies: Sequence[Strategy]) -> bool:
    """Whether neighbors may draw dense numbers: in small tables without constraints.

    A constraint may compare any columns, and neighbors would break it.
    """
    is_small = (
        len(table.level_positions) < MAX_ROWS_FOR_NEIGHBORS
        and len(table.drawing_order) <= MAX_COLUMNS_COMPARED
    )
    has_constraints = any(not rule.is_discovered for rule in table.rule_set.rules)
    if not is_small or has_constraints:
        return False
    return len(columns_for_neighbors(table, strategies)) > 0


def columns_for_neighbors(
    table: Table, strategies: Sequence[Strategy], fixed_indices: Sequence[int] = ()
) -> list[int]:
    """Columns that can be drawn from neighbors, except `fixed_indices`.

    No rule may derive them, or compare them with each other. The list is empty if there
    is no dense number.

    Parameters
    ----------
    table : the table
    strategies : one for each column of `table.drawing_order`
    fixed_indices : indices of columns that are given
    """
    results = _cache.setdefault(table, {})
    key = (tuple(strategies), tuple(fixed_indices))
    if key not in results:
        results[key] = _find_columns(table, strategies, fixed_indices)
    return list(results[key])


def _find_columns(
    table: Table, strategies: Sequence[Strategy], fixed_indices: Sequence[int]
) -> list[int]:
    usable = list[int]()
    for k, (c, strategy) in enumerate(
        zip(table.drawing_order, strategies, strict=True)
    ):
        if c in fixed_indices or _is_bound_by_rule(table, c, usable):
            continue
        column = table.columns[c]
        is_usable = column.is_category
        if column.is_dense_number:
            is_usable = not _is_predictable_from_earlier(table, k, strategy, usable)
        if is_usable:
            usable.append(c)
    if not any(table.columns[c].is_dense_number for c in usable):
        return []
    return usable


def _is_bound_by_rule(table: Table, c: int, earlier: Sequence[int]) -> bool:
    """Whether a rule derives a column, or compares it with an earlier column."""
    for rule in table.all_rules:
        if is_solvable(rule):
            is_bound = c == rule.column_indices[0]
        else:
            compared = set(rule.column_indices)
            is_bound = c in compared and not compared.isdisjoint(earlier)
        if is_bound:
            return True
    return False


def _is_predictable_from_earlier(
    table: Table, k: int, strategy: Strategy, earlier: Sequence[int]
) -> bool:
    """Whether the k-th column of the chain, a number, follows from earlier columns.

    The number follows if it equals one of the `earlier` columns in many rows, or if a
    regression on all columns before predicts the number without an error.
    """
    c = table.drawing_order[k]
    sources = find_equal_cells(table.column_data(c, earlier))
    if sources.is_from_equal_column.mean() > MAX_EQUAL_SHARE_OF_NEIGHBORS:
        return True
    if not uses_ridge(strategy):
        return False
    data = table.column_data(c, table.drawing_order[:k])
    observed = data.select(has_value(data.positions))
    regression = RidgeRegression.from_data(SCALE_OF_STRATEGY[strategy], observed)
    return regression is not None and regression.is_exact(observed)
