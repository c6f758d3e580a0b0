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
        rules = [rule for rule in rules if not isinstance(rule, LookupRule)]
        in_both_orders = [*rules, *reversed(rules)]
        determining = exact_first(in_both_orders)
        assignment = _RuleAssignment(level_positions, is_missing)
        assignment.assign_determined(determining)
        assignment.assign(in_both_orders, only_determined=False)
        assignment.assign_determined(determining)
        return cls(is_missing, assignment.computed_cells)

    def groups_of_column(self, c: int) -> list[MissingCellGroup]:
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
        modeled_set_indices = _most_frequent_sets(is_in_set, counts)

        groups = []
        sees_all = ~np.isin(set_index, modeled_set_indices)
        if sees_all.any():
            groups.append(MissingCellGroup(row_indices[sees_all], ()))
        for i in modeled_set_indices:
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


class _RuleAssignment:
    """Which rule computes which missing cells, assigned one rule after the other.

    Parameters
    ----------
    level_positions : (m, d), the filled rows
    is_missing : (m, d), the cells that rules may compute; it stays as it is

    Attributes
    ----------
    computed_cells : the cells that have a rule so far
    """

    def __init__(self, level_positions: LevelPositions, is_missing: Mask) -> None:
        self.computed_cells = list[ComputedCells]()
        self._level_positions = level_positions
        self._is_unassigned = is_missing.copy()

    def assign_determined(self, rules: Sequence[SolvableRule]) -> None:
        """Assign the cells that follow without a choice, some of them after others."""
        n_before = -1
        while len(self.computed_cells) > n_before:
            n_before = len(self.computed_cells)
            self.assign(rules, only_determined=True)

    def assign(self, rules: Sequence[SolvableRule], *, only_determined: bool) -> None:
        """Assign cells to each of the rules, one rule after the other.

        With `only_determined`, a rule computes none in rows where several of its cells
        are unassigned. Where it computes one, no other rule may compute a cell of it.
        """
        for rule in rules:
            column_indices = np.array(sorted(set(rule.column_indices)))
            for cells in self._computable_cells(rule, only_determined):
                rows_and_columns = np.ix_(cells.is_computed, column_indices)
                self._is_unassigned[rows_and_columns] = False
                self.computed_cells.append(cells)

    def _computable_cells(
        self, rule: SolvableRule, only_determined: bool
    ) -> list[ComputedCells]:
        """The unassigned cells that a rule can compute: at most one of a row."""
        is_open = has_all_values(self._level_positions, rule.column_indices)
        if only_determined:
            column_indices = sorted(set(rule.column_indices))
            n_unassigned = self._is_unassigned[:, column_indices].sum(axis=1)
            is_open &= n_unassigned == 1
        computable = []
        for c in rule.solvable_indices:
            is_computed = is_open & self._is_unassigned[:, c]
            if is_computed.any():
                computable.append(ComputedCells(rule, c, is_computed))
                is_open &= ~is_computed
        return computable
