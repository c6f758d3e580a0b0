"""Rows that are being drawn: which cells they allow, and what follows from rules."""

import numpy as np
import pandas as pd
import pytest

from sliceflow.estimators.tables.columns.level_positions import (
    IMPOSSIBLE,
    MISSING,
    UNDRAWN,
)
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.rows.table_rows import read_dataframe
from sliceflow.estimators.tables.rules.solve import solve_column, solve_rows
from sliceflow.estimators.tables.table import Table


@pytest.fixture
def table(rng):
    """Columns a, b and total = a + b, in which every position is its value."""
    a, b = np.divmod(np.arange(16), 4)
    frame = pd.DataFrame({"a": a, "b": b, "total": a + b})
    order = rng.permutation(len(frame))
    rows = read_dataframe(frame.iloc[order])
    return Table.from_rows(rows, {}, ["total = a + b"], search_rules=False)


def test_a_draft_allows_what_keeps_the_rules_and_changes_no_row(table):
    rows = np.array(
        [[UNDRAWN, 1, 2], [UNDRAWN, UNDRAWN, 6], [UNDRAWN, UNDRAWN, UNDRAWN]]
    )
    partly_drawn = PartlyDrawnRows(rows.copy(), table.rule_set)
    row_indices = np.array([0, 0, 1, 1, 2])
    a = np.array([1.0, 3.0, 3.0, 2.0, 0.0])
    allowed = partly_drawn.allows(0, row_indices, a)
    # 1 + 1 = 2; 3 + 1 is not 2; 3 + 3 = 6; 2 + 4 = 6, but no b is 4; b may be anything.
    assert allowed.tolist() == [True, False, True, False, True]
    assert np.array_equal(partly_drawn.level_positions, rows, equal_nan=True)


def test_only_allowed_proposals_become_cells(table):
    rows = np.array([[UNDRAWN, 1, 2]] * 4)
    partly_drawn = PartlyDrawnRows(rows, table.rule_set)
    proposed = np.array([1.0, 3.0, UNDRAWN, IMPOSSIBLE])
    cells = partly_drawn.keep_allowed(0, proposed)
    assert np.array_equal(cells, [1, UNDRAWN, UNDRAWN, UNDRAWN], equal_nan=True)


def test_a_total_whose_parts_are_drawn_is_allowed_because_it_is_computed(table):
    rows = np.array([[1, 1, UNDRAWN], [UNDRAWN, 1, UNDRAWN]])
    partly_drawn = PartlyDrawnRows(rows, table.rule_set)
    total = np.array([6.0, 6.0])
    # The first total will be 2. In the second row no a is 5.
    assert partly_drawn.allows(2, np.arange(2), total).tolist() == [True, False]
    rows[0, 2] = 6
    finished = table.rule_set.finish_rows(rows[:1], np.array([False, False, True]))
    assert finished.is_valid.all()
    assert finished.level_positions.tolist() == [[1, 1, 2]]
    assert rows[0].tolist() == [1, 1, 6]


def test_a_draft_without_missing_cells_refuses_these_and_no_others(table):
    rows = np.full((2, 3), UNDRAWN)
    row_indices = np.array([0, 1])
    positions = np.array([MISSING, 2.0])
    assert PartlyDrawnRows(rows).allows(0, row_indices, positions).all()
    for rule_set in (None, table.rule_set):
        partly_drawn = PartlyDrawnRows(rows, rule_set, allow_missing=False)
        assert partly_drawn.allows(0, row_indices, positions).tolist() == [False, True]


def test_some_rows_of_a_draft_are_asked_by_their_own_indices(rng):
    frame = pd.DataFrame({"low": np.arange(8), "high": np.arange(8) + 1})
    rows = read_dataframe(frame)
    table = Table.from_rows(rows, {}, ["low < high"], search_rules=False)
    low = rng.integers(0, 8, 50).astype(float)
    partly_drawn = PartlyDrawnRows(
        np.column_stack((low, np.full(50, UNDRAWN))), table.rule_set
    )
    high = rng.integers(0, 8, 50).astype(float)  # the position p is the value p + 1
    allowed = partly_drawn.allows(1, np.arange(50), high)
    assert allowed.tolist() == (low < high + 1).tolist()
    subset = rng.permutation(50)[:20]
    of_subset = partly_drawn.take(subset).allows(1, np.arange(20), high[subset])
    assert of_subset.tolist() == allowed[subset].tolist()


def test_rules_see_what_is_drawn_into_some_rows_of_a_draft(table):
    partly_drawn = PartlyDrawnRows(np.full((2, 3), UNDRAWN), table.rule_set)
    taken = partly_drawn.take(np.array([0, 1]))
    taken.set_columns([1, 2], np.array([[1.0, 2.0], [1.0, 2.0]]))
    a = np.array([1.0, 3.0])
    assert taken.allows(0, np.arange(2), a).tolist() == [True, False]  # 3 + 1 is not 2


def test_one_column_is_computed_from_known_cells_only(table):
    rows = np.array(
        [[1, 2, UNDRAWN], [3, UNDRAWN, UNDRAWN], [3, MISSING, UNDRAWN], [0, 3, 2]]
    )
    before = rows.copy()
    rules = table.rule_set.rules_in_solving_order
    total = solve_column(rules, table.columns, rows, 2)
    assert np.array_equal(total, [3, UNDRAWN, UNDRAWN, 3], equal_nan=True)
    a = solve_column(rules, table.columns, rows, 0)
    assert a[3] == IMPOSSIBLE  # 2 − 3
    assert np.array_equal(rows, before, equal_nan=True)


def test_rows_are_completed_by_the_only_cell_that_is_changeable_or_else_by_the_total(
    table,
):
    rows = np.array([[1.0, 2, 6], [1, 2, 6], [1, MISSING, 6], [1, 2, 0]])
    is_changeable = np.array(
        [
            [True, True, True],  # the total follows from its parts
            [True, False, False],  # only a may change
            [True, True, True],  # nothing follows from a missing cell
            [False, True, False],  # b cannot be −1
        ]
    )
    before = rows.copy()
    rules = table.rule_set.rules_in_solving_order
    solved = solve_rows(rules, table.columns, rows, is_changeable)
    expected = [[1, 2, 3], [IMPOSSIBLE, 2, 6], [1, MISSING, 6], [1, IMPOSSIBLE, 0]]
    assert solved.tolist() == expected
    assert np.array_equal(rows, before)
