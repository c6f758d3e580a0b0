"""Cells that follow from other cells by rules: the only place that solves rules.

There are two questions, and each has one function:

| function       | solves for                  | which rule is solved for a cell       |
|----------------|-----------------------------|---------------------------------------|
| `solve_column` | one column, from columns    | the first of the rules whose other    |
|                | that are drawn already      | cells have a value; no cell changes   |
| `solve_rows`   | any changeable cell,        | first rules of which no other cell    |
|                | in rows of which some       | may change, so there is no choice;    |
|                | cells have a value          | then totals before their parts        |

Both solve exact rules before rounded ones (`exact_first`).

A model of one column asks the first question, because it draws that column now. A
`RuleSet` asks the second question, to see whether a row can still keep all rules, and
to finish the row.

Both functions return new positions, and leave the rows that they are passed as they
are. They answer `IMPOSSIBLE` where a column cannot have the value that follows, and
leave cells as they are where a rule determines nothing, as after a division by 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    UNDRAWN,
    LevelPositions,
    has_all_values,
    has_value,
    is_missing,
    is_undrawn,
)
from sliceflow.estimators.tables.rules.kinds import SolvableRule


def exact_first(rules: Sequence[SolvableRule]) -> list[SolvableRule]:
    """The rules, those that are not rounded first, and else in the same order.

    Take tax = 0.19 · net, rounded, and total = net + tax, with tax = 1.60 and
    total = 10.04. The net is 8.44 by the sum. By the tax, it might be any number from
    8.40 to 8.44, and the nearest one to 1.60 / 0.19 would break the sum.
    """
    return sorted(rules, key=lambda rule: rule.is_rounded)


def solve_column(
    rules: Sequence[SolvableRule],
    columns: Sequence[Column],
    level_positions: LevelPositions,
    c: int,
) -> LevelPositions:
    """The positions (m,) of column c that follow from the other cells of rows (m, d).

    The first rule decides whose other cells all have a value, exact rules before
    rounded ones. The position is `UNDRAWN` if there is no such rule, and `IMPOSSIBLE`
    if the column cannot have the value.
    """
    positions = LevelPositions(np.full(len(level_positions), UNDRAWN))
    for rule in exact_first(rules):
        is_solved = is_undrawn(positions) & _has_all_others(rule, level_positions, c)
        positions[is_solved] = rule.solve(columns, level_positions[is_solved], c)
    return positions


def solve_rows(
    rules: Sequence[SolvableRule],
    columns: Sequence[Column],
    level_positions: LevelPositions,
    is_changeable: Mask,
) -> LevelPositions:
    """New rows: rows (m, d) with the cells that follow from rules.

    `rules` are in the order in which they can be solved. `is_changeable` says which
    cells may change: (m, d), or (d,) of whole columns. First come cells that are
    determined: no other cell of their rule is changeable. Where several cells of a rule
    are, it is solved for the total, or else for the last part, and the others stay as
    drawn. That may determine cells of other sums.

    Take ab = a + b and abc = ab + c, with abc = 10 and c = 4 given, and with a = 1 and
    b = 2 drawn. Of abc = ab + c only ab is changeable, so it is 6. Now a and b are
    changeable in ab = a + b. It is b that changes, to 5.
    """
    # The steps below write into these two new arrays (m, d): into `solved` the
    # cells that they solve, and into `is_open` that the cells of a solved rule change
    # no more. A cell that was drawn as missing stays missing.
    solved = level_positions.copy()
    is_open = is_changeable & ~is_missing(level_positions)
    in_both_orders = [*rules, *reversed(rules)]
    _solve_determined_cells(exact_first(in_both_orders), columns, solved, is_open)
    for rule in in_both_orders:
        _solve_rule(rule, columns, solved, is_open)
    _solve_determined_cells(exact_first(in_both_orders), columns, solved, is_open)
    return solved


def _solve_determined_cells(
    rules: Sequence[SolvableRule],
    columns: Sequence[Column],
    level_positions: LevelPositions,
    is_open: Mask,
) -> None:
    """Solve rules for a cell if no other cell of the rule is open, in place.

    Each solved cell may determine a cell of another rule, so this goes on until no cell
    is determined. It ends, because each round leaves fewer open cells. Rules are in the
    order of `exact_first`: each solved cell of a rounded rule ends its round, so that
    exact rules are asked again before the next rounded one.
    """
    has_solved = True
    while has_solved:
        has_solved = False
        for rule in rules:
            if _solve_rule(
                rule, columns, level_positions, is_open, only_determined=True
            ):
                has_solved = True
                if rule.is_rounded:
                    break


def _solve_rule(
    rule: SolvableRule,
    columns: Sequence[Column],
    level_positions: LevelPositions,
    is_open: Mask,
    only_determined: bool = False,
) -> bool:
    """Solve a rule for a cell in each row where all its others have a value, in place.

    With `only_determined`, rows are left out in which another cell of the rule is
    open, too. A drawn cell that keeps a rounded rule stays. In rows where the rule was
    solved, its cells are closed: `is_open` (m, d) is updated in place.

    Returns
    -------
    whether it was solved in some row
    """
    has_solved = False
    for c in rule.solvable_indices:
        is_solved = is_open[:, c] & _has_all_others(rule, level_positions, c)
        if only_determined:
            others = _other_indices(rule, c)
            is_solved &= ~is_open[:, others].any(axis=1)
        if is_solved.any():
            rows = level_positions[is_solved]
            positions = rule.solve(columns, rows, c)
            stays = is_undrawn(positions)
            if rule.is_rounded:
                # Several values keep the rule, and `rule.solve` knows no other rules.
                # Where a drawn value is one of them, it was drawn given all rules.
                drawn = np.flatnonzero(has_value(rows[:, c]))
                stays[drawn] |= ~rule.is_broken(columns, rows[drawn])
            level_positions[is_solved, c] = np.where(stays, rows[:, c], positions)
            is_open[np.ix_(is_solved, np.array(rule.column_indices))] = False
            has_solved = True
    return has_solved


def _has_all_others(
    rule: SolvableRule, level_positions: LevelPositions, c: int
) -> Mask:
    """Which rows (m,) have a value in all columns of a rule, column c aside."""
    return has_all_values(level_positions, _other_indices(rule, c))


def _other_indices(rule: SolvableRule, c: int) -> list[int]:
    """The columns of a rule without column c."""
    return [other for other in rule.column_indices if other != c]
