"""Columns that are given: which rows of the table have what is given.

Samples are plain draws that have what is given (`GivenRows.matches`), or draws of
another chain: one of the other columns, which is fitted to the rows that have it.
`FittedTable` chooses. If few rows have a given number, the nearest rows are moved to it
(`moved_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import to_exact_values
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.columns.read_values import locate_values
from sliceflow.estimators.tables.given.moved_rows import move_to_values
from sliceflow.estimators.tables.rows.stored_levels import ColumnName
from sliceflow.estimators.tables.rows.table_rows import format_names
from sliceflow.estimators.tables.rules.kinds import (
    LinearRule,
    MembershipRule,
    Relation,
    Rule,
)
from sliceflow.estimators.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

# If fewer rows than this have a given number, the nearest rows are taken, too. With
# fewer rows, samples would repeat their values.
MIN_ROWS_WITH_VALUE = 20

# An answer with fewer rows behind it gets a warning, because samples are close to these
# rows. Copies are .02 to .05 of the samples for 20 rows instead of .01, and .01 to .02
# for 60. With a larger limit, users would be warned of what is harmless.
MIN_ROWS_TO_SHARE = 50


@dataclass(frozen=True)
class ValueRange:
    """A range of numbers or times. A bound that is None is open.

    In `given`, a tuple (low, high) is short for a range that contains its bounds.
    """

    low: object = None
    high: object = None
    with_low: bool = True  # whether the bound itself belongs to the range
    with_high: bool = True

    def __repr__(self) -> str:
        """As users write it, such as "> 100" or "> 100 and <= 200"."""
        parts = []
        if self.low is not None:
            parts.append(f"{'>=' if self.with_low else '>'} {self.low}")
        if self.high is not None:
            parts.append(f"{'<=' if self.with_high else '<'} {self.high}")
        return " and ".join(parts)


class FoundValue(NamedTuple):
    """Where a user's value is in a column."""

    position: float  # of the value, or of the nearest one that the column has
    grid_value: float  # NaN for a missing cell
    cell: pd.Series  # of length 1, in the dtype of the column

    def is_at_position(self, column: Column) -> bool:
        """Whether this is the value at its position, and not only near it."""
        if self.position == MISSING:
            return True
        position = LevelPositions(np.array([self.position]))
        return bool(column.grid_values_at(position)[0] == self.grid_value)


@dataclass(frozen=True, eq=False)
class GivenRows:
    """What a user gave, such as {"plan": "gold"}, and the rows that have it."""

    table: Table  # with a rule for each range and list that is given
    level_positions: LevelPositions  # (n, d); some are moved to given numbers
    # Of columns with one given value, by their indices: its position, and of numbers
    # also the value as the user wrote it, in a Series of one cell.
    fixed_positions: dict[int, float]
    fixed_values: dict[int, pd.Series]
    rules: tuple[Rule, ...] = ()  # of ranges and lists
    is_moved: bool = False  # whether rows were moved
    # The parts of a warning, such as that few rows have a value.
    notes: tuple[str, ...] = ()

    @property
    def column_indices(self) -> set[int]:
        """The columns that are given, which `matches` reads."""
        indices = set(self.fixed_positions)
        for rule in self.rules:
            indices.update(rule.column_indices)
        return indices

    def share_of(self, table: Table) -> float:
        """How many rows these are, as a share of the rows of a table."""
        return len(self.level_positions) / len(table.level_positions)

    def matches(self, level_positions: LevelPositions) -> Mask:
        """Which rows (m,) of positions (m, d) have what is given."""
        has_given = np.full(len(level_positions), True)
        for c, position in self.fixed_positions.items():
            has_given &= level_positions[:, c] == position
        for rule in self.rules:
            has_given &= ~self.table.rule_set.broken(rule, level_positions)
            if isinstance(rule, LinearRule):  # a range has no missing cell
                has_given &= has_all_values(level_positions, rule.column_indices)
        return has_given


@dataclass(frozen=True, eq=False)
class _GivenColumn:
    """What is given of one column: a range or a list, which are rules, or a value."""

    index: int  # of the column in the table
    column: Column
    rules: tuple[Rule, ...] = ()  # of a range or a list
    value: FoundValue | None = None
    notes: tuple[str, ...] = ()  # for a warning

    @property
    def number(self) -> FoundValue | None:
        """The value, if it is a number or a time; None if it is anything else."""
        if self.value is None or self.value.position == MISSING:
            return None
        return self.value if self.column.is_quantitative else None

    def may_have_given(self, positions: LevelPositions) -> Mask:
        """Which cells (n,) have the given value, or the one nearest to a given number.

        Rules are not checked here, except that a range has no missing cells.
        """
        if self.value is not None:
            return np.asarray(positions == self.value.position)
        if any(isinstance(rule, LinearRule) for rule in self.rules):
            return has_value(positions)
        return np.full(len(positions), True)


@dataclass(frozen=True, eq=False)
class _Given:
    """All that is given, column by column."""

    columns: tuple[_GivenColumn, ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of all ranges and lists."""
        rules = list[Rule]()
        for column in self.columns:
            rules.extend(column.rules)
        return tuple(rules)

    @property
    def notes(self) -> list[str]:
        """The parts of a warning that are about single columns."""
        notes = list[str]()
        for column in self.columns:
            notes.extend(column.notes)
        return notes

    @property
    def fixed_positions(self) -> dict[int, float]:
        """The positions of given values, by the indices of their columns."""
        positions = {}
        for column in self.columns:
            if column.value is not None:
                positions[column.index] = column.value.position
        return positions

    @property
    def fixed_values(self) -> dict[int, pd.Series]:
        """The given numbers and times as the user wrote them, by column index."""
        values = {}
        for column in self.columns:
            if column.number is not None:
                values[column.index] = column.number.cell
        return values


class _MatchingRows(NamedTuple):
    """The rows that samples may come from."""

    # Which rows (n,) have all that is given, except for given numbers that few rows
    # have. In place of a number that is not in the table, the nearest one counts.
    is_match: Mask
    # The numbers that few rows have, by the indices of their columns, as grid values:
    # the nearest of the matching rows are moved to them.
    rare_grid_values: dict[int, float]
    n_with_given: int  # how many rows have exactly what is given


def rows_with_given(table: Table, given: Mapping[ColumnName, object]) -> GivenRows:
    """The rows of a table that have what is given.

    `given` has a value, a list or a range by the name of the column. An error names
    what no row can have.
    """
    all_given = _read_given(table, given)
    if all_given.rules:
        table = table.with_rules(all_given.rules)
    matching = _find_matching_rows(table, all_given)
    if not matching.is_match.any():
        fact = f"no row of the table has given={dict(given)}"
        raise DataError(fact, "leave out what never occurs together")
    level_positions = table.level_positions[matching.is_match]
    notes = all_given.notes
    if matching.rare_grid_values:
        level_positions, n_near = move_to_values(
            table,
            level_positions,
            matching.rare_grid_values,
            all_given.fixed_positions,
        )
        if n_near < MIN_ROWS_WITH_VALUE:
            notes.append(_few_rows(n_near, "is near it", "are near it"))
    if len(level_positions) < MIN_ROWS_TO_SHARE:
        notes.append(_note_of_few_rows(len(level_positions), matching))
    return GivenRows(
        table,
        level_positions,
        all_given.fixed_positions,
        all_given.fixed_values,
        rules=all_given.rules,
        is_moved=bool(matching.rare_grid_values),
        notes=tuple(notes),
    )


def _find_matching_rows(table: Table, all_given: _Given) -> _MatchingRows:
    """The rows that samples may come from. The table has the given rules already."""
    n = len(table.level_positions)
    is_match = np.full(n, True)
    has_given = np.full(n, True)
    rare_grid_values = {}
    for given_column in all_given.columns:
        positions = table.level_positions[:, given_column.index]
        may_have_given = given_column.may_have_given(positions)
        number = given_column.number
        has_given &= may_have_given
        if number is not None:
            has_given &= number.is_at_position(given_column.column)
        n_matches = int((is_match & may_have_given).sum())
        if number is not None and n_matches < MIN_ROWS_WITH_VALUE:
            rare_grid_values[given_column.index] = number.grid_value
        else:
            is_match &= may_have_given
    for rule in all_given.rules:
        keeps_rule = ~table.rule_set.broken(rule, table.level_positions)
        is_match &= keeps_rule
        has_given &= keeps_rule
    return _MatchingRows(is_match, rare_grid_values, int(has_given.sum()))


def _note_of_few_rows(n_rows: int, matching: _MatchingRows) -> str:
    """Words for a warning that samples come from few rows, `n_rows` of them."""
    n_with_given = matching.n_with_given
    if matching.rare_grid_values:
        source = f"the {n_rows} rows that are moved to it"
    elif n_with_given < n_rows:
        source = f"the {n_rows} rows nearest to it"
    elif n_with_given == 1:
        source = "it"
    else:
        source = "them"
    fact = _few_rows(n_with_given, "has this", "have this")
    return f"{fact}, and samples are close to {source}"


def _few_rows(n: int, singular: str, plural: str) -> str:
    """Such as "only 3 rows of the table have this", with the verb for one or more."""
    if n == 0:
        return f"no row of the table {singular}"
    if n == 1:
        return f"only 1 row of the table {singular}"
    return f"only {n} rows of the table {plural}"


def _read_given(table: Table, given: Mapping[ColumnName, object]) -> _Given:
    """What a user asks for, with each given value looked up in its column."""
    if not isinstance(given, Mapping):
        fact = "must be a dict such as {'plan': 'gold', 'age': (30, 40)}"
        raise ParameterError("given", given, fact)
    given_columns = []
    for name, value in given.items():
        c = _column_index(table, name)
        column = table.columns[c]
        if isinstance(value, tuple | ValueRange):
            rules = _range_rules(column, c, value)
            given_columns.append(_GivenColumn(c, column, tuple(rules)))
        elif _is_list(value):
            given_columns.append(_read_list(column, c, value))
        else:
            given_columns.append(_read_value(column, c, value))
    return _Given(tuple(given_columns))


def _read_list(column: Column, c: int, values: Iterable[object]) -> _GivenColumn:
    """A list that is given for column c: its cells have one of the values."""
    positions = set[float]()
    notes = []
    values = list(values)
    if not values:
        fact = "given [] is an empty list"
        hint = "list at least one value, or leave the column out"
        raise DataError(fact, hint, column=column.name)
    for value in values:
        found = find_value(column, value)
        if found.is_at_position(column):
            positions.add(found.position)
        else:
            notes.append(f"no row has {column.name}={value}")
    rule = MembershipRule(f"given {column.name}", (c,), tuple(sorted(positions)))
    return _GivenColumn(c, column, rules=(rule,), notes=tuple(notes))


def _read_value(column: Column, c: int, value: object) -> _GivenColumn:
    """One value that is given for column c."""
    given = _GivenColumn(c, column, value=find_value(column, value))
    if given.number is None:
        return given
    lowest = column.level_grid_values[0]
    highest = column.level_grid_values[-1]
    if lowest <= given.number.grid_value <= highest:
        return given
    note = f"{column.name}={value} is outside the table's values"
    return replace(given, notes=(note,))


def _is_list(value: object) -> TypeGuard[Iterable[object]]:
    """Whether a given value is several values, of any library."""
    if isinstance(value, list | set | frozenset | range):
        return True
    return hasattr(value, "__array__") and np.ndim(value) > 0


def _column_index(table: Table, name: ColumnName) -> int:
    """The index of the column of this name, which must be one that can be given."""
    if name not in table.names:
        fact = f"given {name!r} is not a column"
        raise DataError(fact, f"there are {format_names(table.names)}")
    c = table.names.index(name)
    kind = table.columns[c].kind
    if kind in ("identifier", "drop"):
        fact = f"it is given, but is of kind {kind}"
        raise DataError(fact, "leave it out: samples make it up", column=name)
    return c


def find_value(column: Column, value: object) -> FoundValue:
    """Find a value, or a text for a value, in a column.

    Numbers outside the range of the column have the position of its nearest end. An
    error if the column cannot have the value.
    """
    cell = _checked_cell(column, value)
    if cell.isna().all():
        return FoundValue(MISSING, np.nan, cell.astype(column.encoded.levels.dtype))
    located = locate_values(column, cell)
    position = float(located.positions[0])
    is_level = len(located.unseen_values) == 0
    if is_level:
        found = column.levels.iloc[[int(position)]].reset_index(drop=True)
    else:
        found = located.unseen_values
    if column.only_known_levels:
        position = float(np.rint(position))
    return FoundValue(position, float(located.grid_values[0]), found)


def _checked_cell(column: Column, value: object) -> pd.Series:
    """A value as a Series of one cell; an error if no cell of a table can have it.

    The cell may be missing if cells of the column are.
    """
    import pandas as pd

    if hasattr(value, "__array__") and np.ndim(value) == 0:
        value = np.asarray(value)[()]  # a number of numpy, from an array without axes
    if not isinstance(value, Hashable):
        fact = f"given {value!r} is a {type(value).__name__}"
        hint = "pass a value, a list of values, or a range (low, high)"
        raise DataError(fact, hint, column=column.name)
    is_number = column.encoded.value_type in ("int", "float", "Decimal")
    if is_number and isinstance(value, bool | np.bool):
        fact = f"given {value} is a bool, but the column has numbers"
        raise DataError(fact, "pass a number", column=column.name)
    if isinstance(value, float) and math.isinf(value):
        fact = f"given {value} is no value of a table"
        hint = "a range may have no end: (low, None)"
        raise DataError(fact, hint, column=column.name)
    cell = pd.Series([value], dtype=object)
    if cell.isna().all():
        if not column.encoded.missing.any():
            fact = "it is given as missing, but no cell of this column is"
            raise DataError(fact, column=column.name)
        return cell
    is_datetime = column.encoded.value_type == "datetime"
    if is_datetime and getattr(value, "tzinfo", None) is None:
        return cell.astype(str)  # a time without zone is on the column's clock
    return cell


def _range_rules(
    column: Column, c: int, given: tuple[object, ...] | ValueRange
) -> list[Rule]:
    """The rules low ≤ column and column ≤ high, or with < for what is not included."""
    bounds = _as_range(column, given)
    low = _exact_bound(column, bounds.low)
    high = _exact_bound(column, bounds.high)
    if low is not None and high is not None and low > high:
        fact = f"given {given} is an empty range: {bounds.low} is above {bounds.high}"
        raise DataError(fact, "pass the lower end first", column=column.name)
    text = f"given {column.name}={given}"
    rules = list[Rule]()
    if low is not None:
        rules.append(_lower_bound_rule(text, column, c, low, bounds.with_low))
    if high is not None:
        rules.append(_upper_bound_rule(text, column, c, high, bounds.with_high))
    return rules


def _lower_bound_rule(
    text: str, column: Column, c: int, low: Fraction, is_included: bool
) -> LinearRule:
    """The rule low ≤ column, or low < column if the bound is not included.

    A bound between two units is rounded so that the rule holds for the same numbers.
    """
    bound: int | float
    if column.unit is None:
        bound = float(low)
    elif is_included:
        bound = ceil(low / column.unit)
    else:
        bound = floor(low / column.unit)
    relation: Relation = "<=" if is_included else "<"
    return LinearRule(text, (c,), (-1,), relation, -bound, column.unit)


def _upper_bound_rule(
    text: str, column: Column, c: int, high: Fraction, is_included: bool
) -> LinearRule:
    """The rule column ≤ high, or column < high if the bound is not included."""
    bound: int | float
    if column.unit is None:
        bound = float(high)
    elif is_included:
        bound = floor(high / column.unit)
    else:
        bound = ceil(high / column.unit)
    relation: Relation = "<=" if is_included else "<"
    return LinearRule(text, (c,), (1,), relation, bound, column.unit)


def _as_range(column: Column, given: tuple[object, ...] | ValueRange) -> ValueRange:
    """The range that is given; an error if it is not a range of numbers or times."""
    import pandas as pd

    if isinstance(given, ValueRange):
        ends: tuple[object, ...] = (given.low, given.high)
    else:
        ends = given
    bounds = [end for end in ends if end is not None]
    is_range = len(ends) == 2 and len(bounds) > 0 and column.is_quantitative
    if not is_range or pd.Series(bounds, dtype=object).isna().any():
        fact = f"given {given} is not a range (low, high) of numbers or times"
        raise DataError(fact, "pass a list", column=column.name)
    if isinstance(given, ValueRange):
        return given
    low, high = ends
    return ValueRange(low, high)


def _exact_bound(column: Column, value: object) -> Fraction | None:
    """A bound of a range as an exact number; None if it is open."""
    if value is None:
        return None
    cell = find_value(column, value).cell
    exact_values, unit = to_exact_values(
        cell, column.encoded.value_type, column.text_format
    )
    return Fraction(exact_values[0]) * (unit or 1)
