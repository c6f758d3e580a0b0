"""Holes that rules compute from other holes of the same row.

Take the rule total = a + b, and a row in which b and the total are missing. A model of
b that sees a and the total of the last sweep knows b exactly, and would draw the old b
again in each sweep. So b is drawn by a model that does not see the total, and the total
is computed from the new b. Of the missing cells of a rule, the one that is computed is
the one that `solve_rules.solve_rows` computes.

This is for sums and products. In a lookup, such as a country that follows from a town,
the country leaves a choice of towns, so a model that sees it draws new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns import Column
from sliceflow.estimators.tables.level_positions import (
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.rules import LookupRule, SolvableRule
from sliceflow.estimators.tables.solve_rules import solve_column

# A column has models of its own for this many sets of hidden columns, the most frequent
# ones. Those of each set take as long as the models that see all columns. A sum of
# three columns needs two at most. With five, the orange juice of ISLR, whose eight
# prices are in six rules, took more than twice as long.
MAX_HIDDEN_SETS = 2


@dataclass(frozen=True, eq=False)
class ComputedHoles:
    """Holes of one column that one rule computes."""

    rule: SolvableRule
    column_index: int
    in_rows: Mask  # (m,)


@dataclass(frozen=True, eq=False)
class HoleGroup:
    """Holes of one column that the same models draw."""

    row_indices: Ints  # (k,), ascending
    # Columns that models do not see, because their cells follow from the drawn one.
    hidden_indices: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DependentHoles:
    """All holes that rules compute, in m rows of which all holes have a first filling.

    Each hole is computed by one rule at most, in the order of the list.
    """

    holes: Mask  # (m, d)
    computed: Sequence[ComputedHoles]

    @classmethod
    def from_rows(
        cls, rules: Sequence[SolvableRule], cell_positions: LevelPositions, holes: Mask
    ) -> DependentHoles:
        """The `holes` (m, d) of filled rows (m, d) that rules compute.

        As in `solve_rows`, determined holes come first, and no cell of a rule that
        has computed one is computed by another rule.
        """
        open_holes = holes.copy()
        rules = [rule for rule in rules if not isinstance(rule, LookupRule)]
        in_both_orders = [*rules, *reversed(rules)]
        computed = [
            *_assign_until_stable(in_both_orders, cell_positions, open_holes),
            *_assign_all(
                in_both_orders, cell_positions, open_holes, only_determined=False
            ),
            *_assign_until_stable(in_both_orders, cell_positions, open_holes),
        ]
        return cls(holes, computed)

    def groups(self, c: int) -> list[HoleGroup]:
        """The holes of column c, by which columns their models do not see.

        Holes that hide none come first.
        """
        row_indices = np.flatnonzero(self.holes[:, c])
        hidden = self._computed_from(c)[row_indices]
        patterns, index, counts = np.unique(
            hidden, axis=0, return_inverse=True, return_counts=True
        )
        index = index.reshape(-1)
        most_frequent = [
            i for i in np.argsort(-counts, kind="stable").tolist() if patterns[i].any()
        ][:MAX_HIDDEN_SETS]
        sees_all = ~np.isin(index, most_frequent)
        groups = []
        if sees_all.any():
            groups.append(HoleGroup(row_indices[sees_all], ()))
        for i in most_frequent:
            hidden_indices = tuple(np.flatnonzero(patterns[i]).tolist())
            groups.append(HoleGroup(row_indices[index == i], hidden_indices))
        return groups

    def _computed_from(self, c: int) -> Mask:
        """Which holes (m, d) follow from the cell of column c, if it is drawn."""
        is_drawn = self.holes[:, c].copy()
        for computed in self.computed:
            if computed.column_index == c:
                is_drawn &= ~computed.in_rows
        follows = np.zeros(self.holes.shape, dtype=bool)
        follows[:, c] = is_drawn
        for computed in self.computed:
            others = [
                other
                for other in computed.rule.column_indices
                if other != computed.column_index
            ]
            changes = computed.in_rows & follows[:, others].any(axis=1)
            follows[changes, computed.column_index] = True
        follows[:, c] = False
        return follows

    def solve_hidden(
        self,
        columns: Sequence[Column],
        cell_positions: LevelPositions,
        group: HoleGroup,
    ) -> None:
        """Solve for what a group hides in rows (m, d), in place, after it was drawn.

        A cell stays as it is where its column cannot have the value that follows.
        """
        in_group = np.zeros(len(cell_positions), dtype=bool)
        in_group[group.row_indices] = True
        for computed in self.computed:
            c = computed.column_index
            if c not in group.hidden_indices:
                continue
            row_indices = np.flatnonzero(computed.in_rows & in_group)
            rows = cell_positions[row_indices]
            solved = solve_column([computed.rule], columns, rows, c)
            is_possible = has_value(solved)
            cell_positions[row_indices[is_possible], c] = solved[is_possible]


def _assign_until_stable(
    rules: Sequence[SolvableRule], cell_positions: LevelPositions, open_holes: Mask
) -> list[ComputedHoles]:
    """The holes that are determined, and those that are once others are computed.

    They are closed in `open_holes` (m, d), in place.
    """
    computed = list[ComputedHoles]()
    while True:
        found = _assign_all(rules, cell_positions, open_holes, only_determined=True)
        if not found:
            return computed
        computed.extend(found)


def _assign_all(
    rules: Sequence[SolvableRule],
    cell_positions: LevelPositions,
    open_holes: Mask,
    *,
    only_determined: bool,
) -> list[ComputedHoles]:
    """The holes that rules compute, one rule after the other; see `_assign`."""
    computed = list[ComputedHoles]()
    for rule in rules:
        applies = has_all_values(cell_positions, rule.column_indices)
        computed.extend(_assign(rule, applies, open_holes, only_determined))
    return computed


def _assign(
    rule: SolvableRule, applies: Mask, open_holes: Mask, only_determined: bool
) -> list[ComputedHoles]:
    """The holes that a rule computes in rows (m,) where it applies, by their column.

    With `only_determined`, not in rows where several of its cells are open. All its
    cells are closed in `open_holes` (m, d), in place, where it computes one.
    """
    column_indices = sorted(set(rule.column_indices))
    n_open = open_holes[:, column_indices].sum(axis=1)
    computed = []
    for c in rule.solvable_indices:
        in_rows = applies & open_holes[:, c]
        if only_determined:
            in_rows &= n_open == 1
        if in_rows.any():
            open_holes[np.ix_(in_rows, np.array(column_indices))] = False
            computed.append(ComputedHoles(rule, c, in_rows))
    return computed
