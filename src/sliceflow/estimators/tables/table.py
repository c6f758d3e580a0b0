"""A table whose columns and rules are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.column_data import ColumnData
from sliceflow.estimators.tables.columns.infer import infer_column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
    is_undrawn,
)
from sliceflow.estimators.tables.columns.rare_levels import merge_rare_levels
from sliceflow.estimators.tables.columns.read_values import encode_cells
from sliceflow.estimators.tables.rows.stored_levels import ColumnName
from sliceflow.estimators.tables.rows.table_rows import (
    TableRows,
    format_names,
    make_dataframe,
)
from sliceflow.estimators.tables.rules.kinds import (
    LinearRule,
    LookupRule,
    ProductRule,
    Rule,
    SolvableRule,
    is_solvable,
)
from sliceflow.estimators.tables.rules.parse_constraints import parse_constraint
from sliceflow.estimators.tables.rules.rule_set import RuleSet
from sliceflow.estimators.tables.rules.search import find_rules
from sliceflow.estimators.tables.rules.solve import solve_column

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FoundRule:
    """A rule that was found in the rows of a table.

    Attributes
    ----------
    text : str
        The rule in words, such as "total = net + tax".
    share : float
        The share of the rows with all its cells that keep it.
    columns : tuple
        The names of its columns, the derived one first.
    """

    text: str
    share: float
    columns: tuple[ColumnName, ...]

    def __repr__(self) -> str:
        """Such as "total = net + tax (all rows)"."""
        if self.share == 1:
            return f"{self.text} (all rows)"
        return f"{self.text} ({100 * self.share:.4g} % of rows)"


def _is_implied_by_others(rule: Rule, determinants: Mapping[int, set[int]]) -> bool:
    """Whether a column follows from a determinant by way of another column.

    `determinants` has the determinants of each dependent. For example, the country
    follows from the postal code, because the town does, and the country follows from
    the town.
    """
    if not isinstance(rule, LookupRule):
        return False
    dependent, determinant = rule.column_indices
    for other in determinants[dependent]:
        if determinant in determinants.get(other, set()):
            return True
    return False


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a model, with their columns and rules."""

    rows: TableRows  # as the user passed them
    columns: tuple[Column, ...]  # their kinds, levels and grids
    rule_set: RuleSet  # the rules that hold in every row
    level_positions: LevelPositions  # (n, d), of all cells among their levels
    approximate_rules: tuple[SolvableRule, ...] = ()  # these hold in nearly every row

    @classmethod
    def from_rows(
        cls,
        rows: TableRows,
        kinds: Mapping[str, str],
        constraints: Sequence[str],
        *,
        search_rules: bool = True,
        min_count: int = 1,
        merges_rare_levels: bool = False,
    ) -> Table:
        """Infer what the columns of rows are, and which rules hold between them.

        An error names the column, row or constraint that is wrong.

        Parameters
        ----------
        rows : the user's rows
        kinds : the kinds of some columns, by their names as texts
        constraints : expressions, as users write them (`rules.parse_constraints`)
        search_rules : whether to find more rules in the rows (`rules.search`)
        min_count : numbers of fewer rows are not drawn (`draws.rare_numbers`)
        merges_rare_levels : whether to merge levels of fewer rows
            (`columns.rare_levels`)
        """
        _check_names(rows, kinds)
        distinct = _first_occurrences(rows)
        columns = list[Column]()
        for encoded in rows.columns:
            column = infer_column(encoded, distinct, kinds.get(str(encoded.name)))
            column = replace(column, min_count=min_count)
            if merges_rare_levels:
                column = merge_rare_levels(column)
            columns.append(column)
        level_positions = LevelPositions(
            np.column_stack([column.positions for column in columns])
        )
        rules = [parse_constraint(text, columns) for text in constraints]
        no_rules = RuleSet((), columns, level_positions)
        table = cls(rows, tuple(columns), no_rules, level_positions).with_rules(rules)
        table.rule_set.check_rows()
        if not search_rules:
            return table
        found = find_rules(columns, level_positions, rules)
        approximate_rules = [
            rule for rule in found if rule.share < 1 and is_solvable(rule)
        ]
        table = table.with_rules([rule for rule in found if rule.share == 1])
        return replace(table, approximate_rules=tuple(approximate_rules))

    def with_rules(self, more: Sequence[Rule]) -> Table:
        """The table with more rules.

        Some rules only know the levels of columns (`allows_only_levels`). In these
        columns, no other values are drawn.
        """
        newly_restricted = set[int]()
        for rule in more:
            if rule.allows_only_levels:
                newly_restricted.update(rule.column_indices)
        columns = []
        for c, column in enumerate(self.columns):
            allows_only_levels = column.allows_only_levels or c in newly_restricted
            columns.append(replace(column, allows_only_levels=allows_only_levels))
        rule_set = RuleSet((*self.rule_set.rules, *more), columns, self.level_positions)
        return replace(self, columns=tuple(columns), rule_set=rule_set)

    @cached_property
    def names(self) -> list[ColumnName]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @cached_property
    def drawing_order(self) -> list[int]:
        """Indices of the columns that the chain draws, in the order of drawing.

        Categories of two levels, as labels often are, come first, so that the models of
        all other columns see them.
        """
        modeled = [c for c, column in enumerate(self.columns) if column.is_modeled]
        modeled.sort(key=lambda c: not self.columns[c].is_binary)
        return replace(self.rule_set, rules=self.all_rules).drawing_order(modeled)

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The rules that all rows keep, and then the rules that nearly all keep."""
        return (*self.rule_set.rules, *self.approximate_rules)

    @cached_property
    def found_rules(self) -> list[FoundRule]:
        """The rules that were found, except rules that follow from others."""
        determinants = dict[int, set[int]]()
        for rule in self.all_rules:
            if isinstance(rule, LookupRule):
                dependent, determinant = rule.column_indices
                determinants.setdefault(dependent, set()).add(determinant)
        found = []
        for rule in self.all_rules:
            if rule.is_discovered and not _is_implied_by_others(rule, determinants):
                names = tuple(self.names[c] for c in rule.column_indices)
                found.append(FoundRule(rule.text, rule.share, names))
        return found

    def shares_kept(self, level_positions: LevelPositions) -> dict[str, float]:
        """The share of rows (m, d) that keep each of `found_rules`, by its text.

        Rows with a missing cell in the columns of a rule do not count for it. If no
        rows are left, the share is 1.
        """
        found_texts = {rule.text for rule in self.found_rules}
        shares = {}
        for rule in self.all_rules:
            if rule.text not in found_texts:
                continue
            if not isinstance(rule, LinearRule | LookupRule | ProductRule):
                continue
            is_complete = has_all_values(level_positions, rule.column_indices)
            shares[rule.text] = 1.0
            if is_complete.any():
                is_broken = rule.is_broken(self.columns, level_positions[is_complete])
                shares[rule.text] = 1 - float(is_broken.mean())
        return shares

    def rules_that_compute(
        self, c: int, indices_before: Iterable[int]
    ) -> list[SolvableRule]:
        """The rules that compute column c from columns drawn before it, and constants.

        An approximate rule counts only if no exact one computes the column.
        """
        known = {*indices_before, *self._constant_indices}
        rules = self.rule_set.rules_that_compute(c, known)
        for rule in self.approximate_rules:
            derived, *others = rule.column_indices
            if not rules and c == derived and known.issuperset(others):
                rules.append(rule)
        return rules

    @cached_property
    def _constant_indices(self) -> list[int]:
        """Indices of columns with one value, which no model draws."""
        return [
            c
            for c, column in enumerate(self.columns)
            if column.n_levels and not column.is_modeled
        ]

    def needs_draw(self, c: int, indices_before: Iterable[int]) -> Mask:
        """Which rows (n,) have a cell of column c that a model must draw.

        No exact rule computes it from the columns drawn before it, and constants.
        """
        known = {*indices_before, *self._constant_indices}
        rules = self.rule_set.rules_that_compute(c, known)
        return is_undrawn(solve_column(rules, self.columns, self.level_positions, c))

    def column_data(self, c: int, predictor_indices: Sequence[int]) -> ColumnData:
        """What a model of column c, drawn from its predictors, is fitted to."""
        return ColumnData(
            self.columns,
            self.level_positions,
            c,
            np.array(predictor_indices, dtype=np.int64),
        )

    @cached_property
    def unique_rows(self) -> set[bytes]:
        """The rows that occur once, as bytes of their positions.

        A new row that equals such a row is a copy of it. The set is empty if most rows
        occur more than once: then equal rows are usual, and no copies.
        """
        counts = Counter(row.tobytes() for row in self.level_positions)
        unique = {row for row, count in counts.items() if count == 1}
        if 2 * len(unique) <= len(self.level_positions):
            return set()
        return unique

    def is_copy_of_unique_row(self, level_positions: LevelPositions) -> Mask:
        """Which rows of positions (m, d) copy a row that occurs once."""
        return np.array(
            [row.tobytes() in self.unique_rows for row in level_positions], dtype=bool
        )

    def positions_of(
        self,
        rows: TableRows,
        *,
        new_as_missing: bool = False,
        outside_as_missing: bool = False,
    ) -> LevelPositions:
        """The positions (m, d) of other rows. An error names an impossible value.

        With `new_as_missing`, new levels of categories count as missing cells, and with
        `outside_as_missing`, numbers outside the range of their column.
        """
        others = rows.align_columns(self.rows).columns
        by_column = []
        for column, encoded in zip(self.columns, others, strict=True):
            positions = encode_cells(
                column,
                encoded,
                new_as_missing=new_as_missing,
                outside_as_missing=outside_as_missing,
            )
            by_column.append(positions)
        return LevelPositions(np.column_stack(by_column))

    def to_dataframe(
        self,
        level_positions: LevelPositions,
        seed: Seed,
        given: Mapping[int, pd.Series] | None = None,
    ) -> pd.DataFrame:
        """A DataFrame of rows with positions (m, d).

        `given` columns have one value in all rows, which is passed as a Series of one.
        """
        named_columns = []
        for c, column in enumerate(self.columns):
            if given and c in given:
                series = given[c].repeat(len(level_positions)).reset_index(drop=True)
                named_columns.append((column.name, series))
            elif column.kind != "drop":
                series = _decode(
                    column, level_positions[:, c], seed.child("identifiers", c)
                )
                named_columns.append((column.name, series))
        return make_dataframe(self.rows, named_columns)


def _decode(column: Column, positions: LevelPositions, seed: Seed) -> pd.Series:
    """The values (m,) of new rows; identifiers are made up."""
    if column.kind == "identifier":
        return column.draw_identifiers(positions, np.random.default_rng(seed.key))
    return column.decode(positions)


def _check_names(rows: TableRows, kinds: Mapping[str, str]) -> None:
    """Raise a `ParameterError` for a kind of a column that is not there."""
    names = [encoded.name for encoded in rows.columns]
    texts = [str(name) for name in names]
    for name, kind in kinds.items():
        if name not in texts:
            fact = f"names {name!r}, which is not a column"
            hint = f"there are {format_names(names)}"
            raise ParameterError("kinds", {name: kind}, fact, hint)


def _first_occurrences(rows: TableRows) -> Ints:
    """The indices of rows that do not repeat an earlier row."""
    import pandas as pd

    codes = pd.DataFrame({c: column.codes for c, column in enumerate(rows.columns)})
    is_repeated = codes.duplicated().to_numpy()
    return np.flatnonzero(~is_repeated)
