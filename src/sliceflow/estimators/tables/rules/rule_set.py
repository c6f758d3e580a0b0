"""All rules of a table together: which rows keep them, and the order of drawing.

`kinds` has the kinds of rules, one by one. While rows are drawn column by column, some
of their cells are `UNDRAWN`, and cells for which a rule has no solution are
`IMPOSSIBLE` (`columns.level_positions`). Rules *allow* a value, or not, and they
*solve* for a cell that follows from others.

No function here changes the rows that it is passed. A question about rows gets a mask,
and solved rows are new ones:

| function                       | question                       | gives              |
|--------------------------------|--------------------------------|--------------------|
| `RuleSet.is_broken_so_far`     | do rows break one rule?        | a mask             |
| `RuleSet.allows`               | can rows still keep all rules  | a mask             |
|                                | if they take these values?     |                    |
| `RuleSet.finish_rows`          | what follows in drawn rows?    | `FinishedRows`     |
|                                | Do they keep all rules then?   |                    |
| `solve.solve_column`           | what follows for a column?     | a column           |
| `solve.solve_rows`             | what follows in rows?          | new rows           |

Rows change in two other places: `PartlyDrawnRows.set_columns` writes columns that a
model has drawn, and `DependentMissingCells.recompute_excluded` writes missing cells
that follow from a cell that was drawn again.

A model draws only what rules allow given the columns before, and a finished row that
breaks a rule is drawn anew (`draws.chain`). Where missing cells are filled, `imputing`
writes what its models draw into these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import MAX_EXACT_FLOAT
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
    is_impossible,
    is_undrawn,
)
from sliceflow.estimators.tables.rules.kinds import (
    CombinationRule,
    MembershipRule,
    Rule,
    SolvableRule,
    is_solvable,
)
from sliceflow.estimators.tables.rules.solve import solve_rows


class FinishedRows(NamedTuple):
    """Rows after all that follows from rules is solved in them."""

    level_positions: LevelPositions  # (m, d)
    # (m,), which rows have all their cells and break no rule.
    is_valid: Mask


@dataclass(frozen=True, eq=False)
class RuleSet:
    """The rules of a table, its columns, and the positions of its rows."""

    rules: tuple[Rule, ...]
    columns: Sequence[Column]
    level_positions: LevelPositions  # (n, d), the table's own rows, which keep them
    # The combinations that occur, by the indices of their columns: they are looked up
    # many times.
    _combinations: dict[tuple[int, ...], LevelPositions] = field(
        default_factory=dict, init=False
    )

    # Whether the table itself keeps the rules

    def check_rows(self) -> None:
        """Raise a `DataError` if a row breaks a rule, or a sum cannot be computed."""
        for rule in self.rules:
            if is_solvable(rule) and not rule.is_discovered:
                self._check_range_of_derived(rule)
        for rule in self.rules:
            is_broken = self.is_broken_so_far(rule, self.level_positions)
            if is_broken.any():
                row = int(np.flatnonzero(is_broken)[0])
                cells = self._describe_cells(rule, row)
                raise DataError(
                    f"the constraint {rule.text!r} does not hold in "
                    f"{int(is_broken.sum())} rows, here with {cells}",
                    "fix the rows, or leave it out",
                    row,
                )

    def _check_range_of_derived(self, rule: SolvableRule) -> None:
        """Raise a `DataError` if a derived column is too wide to be computed exactly.

        It may have no more than 2^53 steps between its values.
        """
        derived = self.columns[rule.column_indices[0]]
        largest = np.abs(derived.level_grid_values).max(initial=0)
        if derived.unit is not None and largest >= MAX_EXACT_FLOAT:
            raise DataError(
                "it spans more than 2^53 steps, too many for the constraint "
                f"{rule.text!r} to be exact",
                "divide the columns, or leave it out",
                column=derived.name,
            )

    def _describe_cells(self, rule: Rule, row: int) -> str:
        """The cells of a row of the table that a rule is about, as text."""
        cells = []
        for c in rule.column_indices:
            column = self.columns[c]
            value = column.levels.iloc[int(self.level_positions[row, c])]
            cells.append(f"{column.name}={value}")
        return ", ".join(cells)

    # In which order columns are drawn and solved

    @cached_property
    def rules_in_solving_order(self) -> list[SolvableRule]:
        """Rules with a derived column, in the order in which they can be solved.

        A total that is a part of another sum comes before that sum.
        """
        by_derived = dict[int, list[SolvableRule]]()
        for rule in self.rules:
            if is_solvable(rule):
                by_derived.setdefault(rule.column_indices[0], []).append(rule)
        in_order = list[SolvableRule]()
        for c in _solving_order(by_derived):
            in_order.extend(by_derived.get(c, []))
        return in_order

    @cached_property
    def derived_indices(self) -> list[int]:
        """The columns that a rule computes from others, such as totals."""
        return [rule.column_indices[0] for rule in self.rules_in_solving_order]

    def drawing_order(self, column_indices: Sequence[int]) -> list[int]:
        """The columns in the order of drawing, derived ones after what they need."""
        order = list(column_indices)
        for rule in self.rules_in_solving_order:
            derived, *others = rule.column_indices
            needed = [other for other in others if other in order]
            if derived not in order or not needed:
                continue
            last_needed = max(needed, key=order.index)
            if order.index(derived) < order.index(last_needed):
                order.remove(derived)
                order.insert(order.index(last_needed) + 1, derived)
        return order

    def rules_that_compute(self, c: int, known_indices: set[int]) -> list[SolvableRule]:
        """The rules that give column c from known columns."""
        rules = []
        for rule in self.rules_in_solving_order:
            others = {other for other in rule.column_indices if other != c}
            if c in rule.solvable_indices and others <= known_indices:
                rules.append(rule)
        return rules

    # Which rows keep the rules

    def allows(
        self,
        level_positions: LevelPositions,
        c: int,
        row_indices: Ints,
        positions: LevelPositions,
    ) -> Mask:
        """Which rows (k,) can still keep all rules if column c has these positions.

        Each row is tried: a copy gets the position, and what follows from it is solved.
        The row cannot keep the rules if the copy breaks one, or if a column of the copy
        cannot have what follows. Nothing follows from a rule of which several cells are
        undrawn.

        Take total = a + b, with numbers from 0 to 3 in a and b, and 0 to 6 in total:

        | drawn     | asked     | can the row keep the rule?                        |
        |-----------|-----------|---------------------------------------------------|
        | b=1       | a=3       | yes: total can be 4                               |
        | total=6   | a=2       | no: b cannot be 4                                 |
        | b=1       | total=6   | no: a cannot be 5                                 |
        | a=1, b=1  | total=6   | yes: total will be 2 in the finished row          |
        |           | a=0       | yes: nothing follows yet                          |

        Parameters
        ----------
        level_positions : (m, d), the rows that are being drawn
        c : the index of the column
        row_indices : (k,), the rows in question
        positions : (k,), what the column would have in these rows
        """
        rules = self._rules_affected_by(c)
        if not rules:
            return np.full(len(row_indices), True)
        tried = level_positions[row_indices]  # a copy
        tried[:, c] = positions
        solved = self._solved(rules, tried, self._is_changeable_when_tried(tried, c))
        return self._is_valid_so_far(rules, solved)

    def _is_changeable_when_tried(self, tried: LevelPositions, c: int) -> Mask:
        """Which cells of tried rows (k, d) rules may solve: the cells that are undrawn.

        A derived column, such as a total, is computed again when its row is finished.
        So a position that is tried for it may change, too, and does not count if all
        other cells of its rule are drawn.
        """
        is_changeable = is_undrawn(tried)
        is_changeable[:, c] = c in self.derived_indices
        return is_changeable

    def finish_rows(
        self, level_positions: LevelPositions, is_changeable: Mask
    ) -> FinishedRows:
        """Rows (m, d) with all that follows from rules, and which rows are valid.

        Only changeable cells change: (m, d) says which, or (d,) which whole columns. A
        row with a cell that is still not drawn, or has no solution, is not valid.
        """
        solved = self._solved(self.rules, level_positions, is_changeable)
        is_complete = ~is_undrawn(solved).any(axis=1)
        return FinishedRows(
            solved, self._is_valid_so_far(self.rules, solved) & is_complete
        )

    def _rules_affected_by(self, c: int) -> list[Rule]:
        """The rules about column c, or about columns that may follow from it."""
        changing = {c}
        for rule in self.rules_in_solving_order:
            if changing & set(rule.column_indices):
                changing |= set(rule.column_indices)
        return [rule for rule in self.rules if changing & set(rule.column_indices)]

    def _solved(
        self,
        rules: Sequence[Rule],
        level_positions: LevelPositions,
        is_changeable: Mask,
    ) -> LevelPositions:
        """New rows (m, d): the same rows, with what follows from some of the rules."""
        to_solve = [rule for rule in self.rules_in_solving_order if rule in rules]
        return solve_rows(to_solve, self.columns, level_positions, is_changeable)

    def _is_valid_so_far(
        self, rules: Sequence[Rule], level_positions: LevelPositions
    ) -> Mask:
        """Which rows (m,) of (m, d) break none of some rules, as far as they are drawn.

        A row with a cell that is `IMPOSSIBLE` breaks a rule.
        """
        is_valid = np.asarray(~is_impossible(level_positions).any(axis=1))
        for rule in rules:
            row_indices = np.flatnonzero(is_valid)
            is_broken = self.is_broken_so_far(rule, level_positions[row_indices])
            is_valid[row_indices[is_broken]] = False
        return is_valid

    def is_broken_so_far(self, rule: Rule, level_positions: LevelPositions) -> Mask:
        """Which rows (m,) of (m, d) break a rule, as far as they are drawn.

        `Rule.is_broken` asks the same of rows whose cells all have a value.
        """
        if isinstance(rule, MembershipRule):
            positions = level_positions[:, rule.column_indices[0]]
            is_listed = np.isin(positions, rule.positions)
            return ~is_undrawn(positions) & ~is_listed
        if isinstance(rule, CombinationRule):
            return self._has_unknown_combination(rule, level_positions)
        # A rule with a missing cell holds.
        row_indices = np.flatnonzero(
            has_all_values(level_positions, rule.column_indices)
        )
        is_broken = np.zeros(len(level_positions), dtype=bool)
        is_broken[row_indices] = rule.is_broken(
            self.columns, level_positions[row_indices]
        )
        return is_broken

    def _has_unknown_combination(
        self, rule: CombinationRule, level_positions: LevelPositions
    ) -> Mask:
        """Which rows (m,) have a combination of drawn cells that does not occur."""
        combinations = level_positions[:, rule.column_indices]
        is_drawn = ~is_undrawn(combinations)
        is_unknown = np.zeros(len(level_positions), dtype=bool)
        for pattern in np.unique(is_drawn[is_drawn.any(axis=1)], axis=0):
            has_pattern = np.asarray((is_drawn == pattern).all(axis=1))
            pattern_indices = tuple(compress(rule.column_indices, pattern))
            drawn = combinations[has_pattern][:, pattern]
            is_unknown[has_pattern] = ~self._is_in_table(drawn, pattern_indices)
        return is_unknown

    def _is_in_table(
        self, combinations: LevelPositions, column_indices: tuple[int, ...]
    ) -> Mask:
        """Which combinations of positions (m, k) of some columns are in the table."""
        import pandas as pd

        if column_indices not in self._combinations:
            in_table = pd.DataFrame(self.level_positions[:, column_indices])
            distinct = in_table.drop_duplicates().to_numpy()
            self._combinations[column_indices] = LevelPositions(distinct)
        occurring = self._combinations[column_indices]
        df = pd.DataFrame(np.concatenate((occurring, combinations)))
        # Groups are numbered as they appear: the table's own combinations come first.
        group = df.groupby([*df], sort=False).ngroup().to_numpy()
        return np.asarray(group[len(occurring) :] < len(occurring))


def _solving_order(
    by_derived: Mapping[int, Sequence[SolvableRule]],
) -> list[int]:
    """Columns of rules, each after the columns from which it follows.

    `by_derived` has the rules of each derived column. A `ParameterError` says that two
    constraints derive one column, or that some go in a circle.
    """
    computed_from = dict[int, set[int]]()
    for derived, rules in by_derived.items():
        constraints = [rule.text for rule in rules if not rule.is_discovered]
        if len(constraints) > 1:
            raise ParameterError(
                "constraints",
                constraints,
                "compute the same column",
                "leave one of them out",
            )
        computed_from[derived] = set[int]()
        for rule in rules:
            computed_from[derived].update(rule.column_indices[1:])
    try:
        return list(TopologicalSorter(computed_from).static_order())
    except CycleError as error:
        columns_in_circle = error.args[1]
        raise ParameterError(
            "constraints",
            by_derived[columns_in_circle[0]][0].text,
            "is in a circle of sums",
            "leave one out",
        ) from error
