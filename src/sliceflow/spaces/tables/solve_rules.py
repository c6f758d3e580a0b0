"""Cells that follow from other cells by rules: the only place that computes them.

There are two questions, and each has one function:

| function          | computes                  | which rule computes a cell           |
|-------------------|---------------------------|--------------------------------------|
| `compute_column`  | one column, from columns  | the first of the rules whose other   |
|                   | that are drawn already    | cells are known; no cell changes     |
| `complete_rows`   | any cell that may change, | first rules of which no other cell   |
|                   | in rows of which some     | may change, so there is no choice;   |
|                   | cells are known           | then totals before their parts       |

A model of one column asks the first one, because it draws that column now. A `RuleSet`
asks the second one, to see whether a row can still keep all rules, and to finish it.

Both write `IMPOSSIBLE` where a column cannot have the value that follows, and leave
cells as they are where a rule determines nothing, as after a division by 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.coords import (
    UNDRAWN,
    Coords,
    has_all_values,
    is_missing,
    is_undrawn,
)
from sliceflow.spaces.tables.rules import ComputingRule


def compute_column(
    rules: Sequence[ComputingRule],
    columns: Sequence[Column],
    cell_coords: Coords,
    c: int,
) -> Coords:
    """The coordinates (m,) of column c that follow from the other cells of rows (m, d).

    The first rule counts of which all other cells are known. `UNDRAWN` if there is
    none, `IMPOSSIBLE` if the column cannot have the value.
    """
    coords = Coords(np.full(len(cell_coords), UNDRAWN))
    for rule in rules:
        follows = is_undrawn(coords) & _knows_all_but(rule, cell_coords, c)
        coords[follows] = rule.solve(columns, cell_coords[follows], c)
    return coords


def complete_rows(
    rules: Sequence[ComputingRule],
    columns: Sequence[Column],
    cell_coords: Coords,
    computable: Mask,
) -> None:
    """Compute the `computable` cells (m, d) of rows (m, d) by rules, in place.

    `rules` are in the order in which they can be computed, and `computable` may also be
    (d,), of whole columns. First come cells that are determined: no other cell of their
    rule may change. Where several may, the total is computed, or else the last part,
    and the others stay as drawn. That may determine cells of other sums.

    Take ab = a + b and abc = ab + c, with abc = 10 and c = 4 given, and with a = 1 and
    b = 2 drawn. Of abc = ab + c only ab may change, so it is 6. Now a and b may change
    in ab = a + b. It is b that does, and is 5.
    """
    # A cell that was drawn as missing stays missing. This also makes a copy (m, d).
    computable = computable & ~is_missing(cell_coords)
    in_both_orders = [*rules, *reversed(rules)]
    _compute_determined_cells(in_both_orders, columns, cell_coords, computable)
    for rule in in_both_orders:
        _compute_by_rule(rule, columns, cell_coords, computable)
    _compute_determined_cells(in_both_orders, columns, cell_coords, computable)


def _compute_determined_cells(
    rules: Sequence[ComputingRule],
    columns: Sequence[Column],
    cell_coords: Coords,
    computable: Mask,
) -> None:
    """Compute cells of rules of which no other cell may change, in place.

    Each computed cell may determine one of another rule, so this goes on until there
    is none. It ends, because each round makes cells uncomputable.
    """
    is_changed = True
    while is_changed:
        is_changed = False
        for rule in rules:
            if _compute_by_rule(
                rule, columns, cell_coords, computable, only_determined=True
            ):
                is_changed = True


def _compute_by_rule(
    rule: ComputingRule,
    columns: Sequence[Column],
    cell_coords: Coords,
    computable: Mask,
    only_determined: bool = False,
) -> bool:
    """Compute a cell of one rule in each row where all its others are known, in place.

    With `only_determined`, not in rows where others may change, too. All cells of a
    rule with a computed cell become uncomputable in `computable` (m, d), in place.

    Returns
    -------
    whether a cell was computed
    """
    is_changed = False
    for c in rule.computable_indices:
        may_compute = computable[:, c] & _knows_all_but(rule, cell_coords, c)
        if only_determined:
            others = _other_indices(rule, c)
            may_compute &= ~computable[:, others].any(axis=1)
        if may_compute.any():
            coords = rule.solve(columns, cell_coords[may_compute], c)
            before = cell_coords[may_compute, c]
            after = np.where(is_undrawn(coords), before, coords)
            cell_coords[may_compute, c] = after
            computable[np.ix_(may_compute, np.array(rule.column_indices))] = False
            is_changed = True
    return is_changed


def _knows_all_but(rule: ComputingRule, cell_coords: Coords, c: int) -> Mask:
    """Which rows (m,) have a value in all columns of a rule, column c aside."""
    return has_all_values(cell_coords, _other_indices(rule, c))


def _other_indices(rule: ComputingRule, c: int) -> list[int]:
    """The columns of a rule without column c."""
    return [other for other in rule.column_indices if other != c]
