"""Missing cells that rules compute from other missing cells of the same row.

Take the rule total = a + b, and a row in which b and the total are missing. A model of
b that sees a and the total of the last sweep knows b exactly, and would draw the old b
again in each sweep. So b is drawn by a model that does not see the total, and the total
is computed from the new b. Of the missing cells of a rule, the cell is computed that
`rules.solve.solve_rows` would compute.

This is for sums and products. In a lookup, such as a country that follows from a town,
the country leaves a choice of towns, so a model that sees it draws new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.rules.kinds import LookupRule, SolvableRule
from sliceflow.estimators.tables.rules.solve import exact_first, solve_column

# A column has models of its own for this many sets of excluded columns, the most
# frequent ones. Those of each set take as long as the models that see all columns. A
# sum of three columns needs two at most. With five, the orange juice of ISLR, whose
# eight prices are in six rules, took more than twice as long.
MAX_EXCLUDED_SETS = 2


@dataclass(frozen=True, eq=False)
class ComputedCells:
    """Missing cells of one column that one rule computes."""

    rule: SolvableRule
    column_index: int
    is_computed: Mask  # (m,), in which rows

    @property
    def needed_indices(self) -> list[int]:
        """The columns from which the rule computes these cells."""
        return [c for c in self.rule.column_indices if c != self.column_index]


@dataclass(frozen=True, eq=False)
class MissingCellGroup:
    """Missing cells of one column that the same models draw."""

    row_indices: Ints  # (k,), ascending
    # Columns that models do not see, because their cells follow from the drawn one.
    excluded_indices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DependentMissingCells:
    """All missing cells that rules compute, in m rows that were filled once.

    Each cell is computed by one rule at most, in the order of the list.
    """

    is_missing: Mask  # (m, d), which cells are missing and can be filled
    computed_cells: Sequence[ComputedCells]

    @classmethod
    def from_rows(
        cls,
        rules: Sequence[SolvableRule],
        level_positions: LevelPositions,
        is_missing: Mask,
    ) -> DependentMissingCells:
        """The missing cells of filled rows (m, d) that rules compute.

        As in `solve_rows`, determined cells come first, and no cell of a rule that
        has computed one is computed by another rule.
        """
        is_unassigned = is_missing.copy()
        rules = [rule for rule in rules if not isinstance(rule, LookupRule)]
        in_both_orders = [*rules, *reversed(rules)]
        determining = exact_first(in_both_orders)
        computed = _assign_until_stable(determining, level_positions, is_unassigned)
        computed += _assign_all(
            in_both_orders, level_positions, is_unassigned, only_determined=False
        )
        computed += _assign_until_stable(determining, level_positions, is_unassigned)
        return cls(is_missing, computed)

    def groups(self, c: int) -> list[MissingCellGroup]:
        """The missing cells of column c, grouped by the columns their models exclude.

        The models of the first group see all columns. Cells for which a rare set of
        columns should be excluded belong to this group.
        """
        row_indices = np.flatnonzero(self.is_missing[:, c])
        is_excluded = self._is_following(c)[row_indices]
        is_in_set, set_index, counts = np.unique(
            is_excluded, axis=0, return_inverse=True, return_counts=True
        )
        set_index = set_index.reshape(-1)
        own_models = _most_frequent_sets(is_in_set, counts)

        groups = []
        has_no_excluded = ~np.isin(set_index, own_models)
        if has_no_excluded.any():
            groups.append(MissingCellGroup(row_indices[has_no_excluded], ()))
        for i in own_models:
            excluded_indices = tuple(np.flatnonzero(is_in_set[i]).tolist())
            row_indices_of_set = row_indices[set_index == i]
            groups.append(MissingCellGroup(row_indices_of_set, excluded_indices))
        return groups

    def _is_following(self, c: int) -> Mask:
        """Which cells (m, d) follow, directly or not, from a drawn cell of column c.

        Cells of column c that a rule computes are not drawn.
        """
        is_drawn = self.is_missing[:, c].copy()
        for cells in self.computed_cells:
            if cells.column_index == c:
                is_drawn &= ~cells.is_computed
        is_following = np.zeros(self.is_missing.shape, dtype=bool)
        is_following[:, c] = is_drawn
        for cells in self.computed_cells:
            has_needed = is_following[:, cells.needed_indices].any(axis=1)
            is_following[cells.is_computed & has_needed, cells.column_index] = True
        is_following[:, c] = False
        return is_following

    def recompute_excluded(
        self,
        columns: Sequence[Column],
        level_positions: LevelPositions,
        group: MissingCellGroup,
    ) -> None:
        """Compute the cells of excluded columns of rows (m, d), in place.

        They follow from the cells of a group, which was drawn. A cell stays as it is
        where its column cannot have the value that follows.
        """
        is_in_group = np.zeros(len(level_positions), dtype=bool)
        is_in_group[group.row_indices] = True
        for cells in self.computed_cells:
            c = cells.column_index
            if c not in group.excluded_indices:
                continue
            row_indices = np.flatnonzero(cells.is_computed & is_in_group)
            rows = level_positions[row_indices]
            solved = solve_column([cells.rule], columns, rows, c)
            is_possible = has_value(solved)
            level_positions[row_indices[is_possible], c] = solved[is_possible]


def _most_frequent_sets(is_in_set: Mask, counts: Ints) -> list[int]:
    """The indices of the sets of excluded columns that get models of their own.

    `is_in_set` (s, d) says which columns are in each set, and `counts` (s,) how many
    rows have the set. The empty set needs no such models: its models see all columns.
    """
    by_frequency = np.argsort(-counts, kind="stable").tolist()
    not_empty = [i for i in by_frequency if is_in_set[i].any()]
    return not_empty[:MAX_EXCLUDED_SETS]


def _assign_until_stable(
    rules: Sequence[SolvableRule], level_positions: LevelPositions, is_unassigned: Mask
) -> list[ComputedCells]:
    """The cells that rules compute without a choice, some of them after others.

    In `is_unassigned` (m, d), they are set to False, in place.
    """
    computed = list[ComputedCells]()
    while True:
        found = _assign_all(rules, level_positions, is_unassigned, only_determined=True)
        if not found:
            return computed
        computed.extend(found)


def _assign_all(
    rules: Sequence[SolvableRule],
    level_positions: LevelPositions,
    is_unassigned: Mask,
    *,
    only_determined: bool,
) -> list[ComputedCells]:
    """The cells that rules compute, one rule after the other; see `_assign`."""
    computed = list[ComputedCells]()
    for rule in rules:
        is_applicable = has_all_values(level_positions, rule.column_indices)
        computed.extend(_assign(rule, is_applicable, is_unassigned, only_determined))
    return computed


def _assign(
    rule: SolvableRule, is_applicable: Mask, is_unassigned: Mask, only_determined: bool
) -> list[ComputedCells]:
    """The cells that a rule computes in rows (m,) where it applies, by their column.

    With `only_determined`, it computes none in rows where several of its cells are
    unassigned. Where it computes one, no other rule may compute a cell of this rule: so
    all its cells are set to False in `is_unassigned` (m, d), in place.
    """
    column_indices = sorted(set(rule.column_indices))
    n_unassigned = is_unassigned[:, column_indices].sum(axis=1)
    computed = []
    for c in rule.solvable_indices:
        is_computed = is_applicable & is_unassigned[:, c]
        if only_determined:
            is_computed &= n_unassigned == 1
        if is_computed.any():
            is_unassigned[np.ix_(is_computed, np.array(column_indices))] = False
            computed.append(ComputedCells(rule, c, is_computed))
    return computed
