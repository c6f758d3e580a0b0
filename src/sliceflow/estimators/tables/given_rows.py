"""Columns that are given: which rows of the table have what is given.

Plain draws that have what is given are the answer (`GivenRows.matches`), or draws of a
chain of the other columns that is fitted to the rows that have it: `FittedTable`
chooses. For a number that few rows have, the nearest rows are moved to it
(`moved_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.errors import DataError, ParameterError, warn_user
from sliceflow.estimators.tables.columns import Column
from sliceflow.estimators.tables.formats import to_exact_values
from sliceflow.estimators.tables.level_positions import (
    MISSING,
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.moved_rows import move_to_values
from sliceflow.estimators.tables.read_values import locate_values
from sliceflow.estimators.tables.rule_set import RuleSet
from sliceflow.estimators.tables.rules import LinearRule, MembershipRule, Rule
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.table_rows import format_names

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

    low: Any = None
    high: Any = None
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
    cell_positions: LevelPositions  # (n, d); some are moved to given numbers
    # Of columns with one given value, by their indices: its position, and of numbers
    # also the value as the user wrote it, in a Series of one cell.
    fixed_positions: dict[int, float]
    fixed_values: dict[int, pd.Series]
    rules: tuple[Rule, ...] = ()  # of ranges and lists
    is_moved: bool = False  # whether rows were moved

    @property
    def column_indices(self) -> set[int]:
        """The columns that are given: those that `matches` reads."""
        indices = set(self.fixed_positions)
        for rule in self.rules:
            indices.update(rule.column_indices)
        return indices

    def share_of(self, table: Table) -> float:
        """The share of the rows of a table that these are."""
        return len(self.cell_positions) / len(table.cell_positions)

    def matches(self, cell_positions: LevelPositions) -> Mask:
        """Which rows (m,) of positions (m, d) have what is given."""
        has_given = np.full(len(cell_positions), True)
        for c, position in self.fixed_positions.items():
            has_given &= cell_positions[:, c] == position
        for rule in self.rules:
            has_given &= ~self.table.rule_set.broken(rule, cell_positions)
            if isinstance(rule, LinearRule):  # a range has no missing cell
                has_given &= has_all_values(cell_positions, rule.column_indices)
        return has_given


@dataclass(eq=False)
class _Request:
    """What a user asks for, read column by column; `c` is the index of a column."""

    table: Table
    # (n,), which rows samples may come from: those that have all that is given, but for
    # numbers that few rows have. Of a number outside the table, the nearest one counts.
    matches: Mask
    has_given: Mask  # (n,), which rows have exactly what is given
    rules: list[Rule] = field(default_factory=list)  # of ranges and lists
    fixed_positions: dict[int, float] = field(default_factory=dict)  # as in `GivenRows`
    fixed_values: dict[int, pd.Series] = field(default_factory=dict)  # likewise
    # The grid values that few rows have: nearest rows are moved to them.
    rare_grid_values: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # for a warning

    def add_range(self, c: int, given: tuple[Any, ...] | ValueRange) -> None:
        """Ask for cells of column c in a range."""
        self.rules.extend(_range_rules(self.table.columns[c], c, given))
        self._keep_rows(has_value(self.table.cell_positions[:, c]))

    def add_list(self, c: int, values: Iterable[Any]) -> None:
        """Ask for cells of column c that have one of the values."""
        column = self.table.columns[c]
        positions = set[float]()
        for value in values:
            found = find_value(column, value)
            if found.is_at_position(column):
                positions.add(found.position)
            else:
                self.notes.append(f"no row has {column.name}={value}")
        text = f"given {column.name}"
        self.rules.append(MembershipRule(text, (c,), tuple(sorted(positions))))

    def add_value(self, c: int, value: Any) -> None:
        """Ask for one value in all cells of column c."""
        column = self.table.columns[c]
        found = find_value(column, value)
        self.fixed_positions[c] = found.position
        is_nearest = self.table.cell_positions[:, c] == found.position
        if not column.is_quantitative or found.position == MISSING:
            self._keep_rows(is_nearest)
            return
        self.fixed_values[c] = found.cell
        lowest = column.level_grid_values[0]
        highest = column.level_grid_values[-1]
        if not lowest <= found.grid_value <= highest:
            self.notes.append(f"{column.name}={value} is outside the table's values")
        self.has_given &= is_nearest & found.is_at_position(column)
        if int((is_nearest & self.matches).sum()) < MIN_ROWS_WITH_VALUE:
            self.rare_grid_values[c] = found.grid_value
        else:
            self.matches &= is_nearest

    def apply_rules(self, rule_set: RuleSet) -> None:
        """Leave out rows that break a rule of the ranges and lists."""
        for rule in self.rules:
            self._keep_rows(~rule_set.broken(rule, self.table.cell_positions))

    def _keep_rows(self, is_kept: Mask) -> None:
        """Leave out the rows (n,) that are not kept."""
        self.matches &= is_kept
        self.has_given &= is_kept

    def note_few_rows(self, n_rows: int) -> None:
        """Note that samples come from few rows, and how many have what is given."""
        n_with_given = int(self.has_given.sum())
        if self.rare_grid_values:
            source = f"the {n_rows} rows that are moved to it"
        elif n_with_given < n_rows:
            source = f"the {n_rows} rows nearest to it"
        elif n_with_given == 1:
            source = "it"
        else:
            source = "them"
        fact = _few_rows(n_with_given, "has this", "have this")
        self.notes.append(f"{fact}, and samples are close to {source}")


def rows_with_given(table: Table, given: Mapping[Any, Any]) -> GivenRows:
    """The rows of a table that have what is given.

    `given` has a value, a list or a range by the name of the column. A warning says
    what is doubtful, such as a value that few rows have. An error names what no row can
    have.
    """
    request = _read_request(table, given)
    if request.rules:
        table = table.with_rules(request.rules)
        request.apply_rules(table.rule_set)
    if not request.matches.any():
        fact = f"no row of the table has given={dict(given)}"
        raise DataError(fact, "leave out what never occurs together")
    cell_positions = table.cell_positions[request.matches]
    if request.rare_grid_values:
        cell_positions, n_near = move_to_values(
            table, cell_positions, request.rare_grid_values, request.fixed_positions
        )
        if n_near < MIN_ROWS_WITH_VALUE:
            request.notes.append(_few_rows(n_near, "is near it", "are near it"))
    if len(cell_positions) < MIN_ROWS_TO_SHARE:
        request.note_few_rows(len(cell_positions))
    if request.notes:
        warn_user(f"given={dict(given)}: {'; '.join(request.notes)}")
    return GivenRows(
        table,
        cell_positions,
        request.fixed_positions,
        request.fixed_values,
        rules=tuple(request.rules),
        is_moved=bool(request.rare_grid_values),
    )


def _few_rows(n: int, singular: str, plural: str) -> str:
    """That only n rows do something, in words."""
    if n == 0:
        return f"no row of the table {singular}"
    if n == 1:
        return f"only 1 row of the table {singular}"
    return f"only {n} rows of the table {plural}"


def _read_request(table: Table, given: Mapping[Any, Any]) -> _Request:
    """What a user asks for, with each given value looked up in its column."""
    if not isinstance(given, Mapping):
        fact = "must be a dict such as {'plan': 'gold', 'age': (30, 40)}"
        raise ParameterError("given", given, fact)
    n = len(table.cell_positions)
    request = _Request(table, matches=np.full(n, True), has_given=np.full(n, True))
    for name, value in given.items():
        c = _column_index(table, name)
        if isinstance(value, tuple | ValueRange):
            request.add_range(c, value)
        elif _is_list(value):
            request.add_list(c, value)
        else:
            request.add_value(c, value)
    return request


def _is_list(value: Any) -> bool:
    """Whether a given value is several values, of any library."""
    if isinstance(value, list | set | frozenset | range):
        return True
    return hasattr(value, "__array__") and np.ndim(value) > 0


def _column_index(table: Table, name: Any) -> int:
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


def find_value(column: Column, value: Any) -> FoundValue:
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


def _checked_cell(column: Column, value: Any) -> pd.Series:
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
    column: Column, c: int, given: tuple[Any, ...] | ValueRange
) -> list[Rule]:
    """The rules low ≤ column and column ≤ high, or with < for what is not included."""
    bounds = _as_range(column, given)
    low = _exact_bound(column, bounds.low)
    high = _exact_bound(column, bounds.high)
    if low is not None and high is not None and low > high:
        fact = f"given {given} is an empty range: {bounds.low} is above {bounds.high}"
        raise DataError(fact, "pass the lower end first", column=column.name)
    text = f"given {column.name}={given}"
    rules: list[Rule] = []
    if low is not None:
        relation, rounding = _relation(bounds.with_low, ceil, floor)
        bound = -_bound_in_units(column, low, rounding)
        rules.append(LinearRule(text, (c,), (-1,), relation, bound, column.unit))
    if high is not None:
        relation, rounding = _relation(bounds.with_high, floor, ceil)
        bound = _bound_in_units(column, high, rounding)
        rules.append(LinearRule(text, (c,), (1,), relation, bound, column.unit))
    return rules


def _as_range(column: Column, given: tuple[Any, ...] | ValueRange) -> ValueRange:
    """The range that is given; an error if it is not a range of numbers or times."""
    import pandas as pd

    if isinstance(given, ValueRange):
        ends: tuple[Any, ...] = (given.low, given.high)
    else:
        ends = given
    bounds = [end for end in ends if end is not None]
    is_range = len(ends) == 2 and len(bounds) > 0 and column.is_quantitative
    if not is_range or pd.Series(bounds, dtype=object).isna().any():
        fact = f"given {given} is not a range (low, high) of numbers or times"
        raise DataError(fact, "pass a list", column=column.name)
    if isinstance(given, ValueRange):
        return given
    return ValueRange(*ends)


_Rounding = Callable[[Fraction], int]


def _relation(
    included: bool, into: _Rounding, out_of: _Rounding
) -> tuple[Literal["<=", "<"], _Rounding]:
    """The relation of a bound, and how a bound between two units is rounded.

    A bound that is included is rounded `into` the range, so that ≤ holds for the same
    units; else `out_of` it, so that < does.
    """
    if included:
        return "<=", into
    return "<", out_of


def _exact_bound(column: Column, value: Any) -> Fraction | None:
    """A bound of a range as an exact number; None if it is open."""
    if value is None:
        return None
    cell = find_value(column, value).cell
    exact_values, unit = to_exact_values(
        cell, column.encoded.value_type, column.text_format
    )
    return Fraction(exact_values[0]) * (unit or 1)


def _bound_in_units(
    column: Column, bound: Fraction, to_integer: _Rounding
) -> int | float:
    """A bound of a range as a number of the column's units.

    It is an int, rounded by `to_integer`; a float if the column has no unit.
    """
    if column.unit is None:
        return float(bound)
    return to_integer(bound / column.unit)
