"""What a user gives, column by column: a value, a list or a range.

A range or list of which a column can have just one value is that value. It becomes one
here, once: everything after this module sees a value.
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
from sliceflow.estimators.tables.columns.formats import (
    MAX_EXACT_FLOAT,
    to_exact_values,
)
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    GridValues,
    LevelPositions,
    has_value,
)
from sliceflow.estimators.tables.columns.read_values import locate_values
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
class GivenColumn:
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

    def has_given(self, positions: LevelPositions) -> Mask:
        """Which cells (n,) have exactly the given value.

        Rules are not checked here, except that a range has no missing cells.
        """
        if self.number is not None and not self.number.is_at_position(self.column):
            return np.full(len(positions), False)
        return self.has_given_or_nearest(positions)

    def has_given_or_nearest(self, positions: LevelPositions) -> Mask:
        """Which cells (n,) have the given value, or the level nearest to that number.

        Rules are not checked here, except that a range has no missing cells.
        """
        if self.value is not None:
            return np.asarray(positions == self.value.position)
        if any(isinstance(rule, LinearRule) for rule in self.rules):
            return has_value(positions)
        return np.full(len(positions), True)


@dataclass(frozen=True, eq=False)
class Given:
    """All that is given, column by column."""

    columns: tuple[GivenColumn, ...]

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


def read_given(table: Table, given: Mapping[ColumnName, object]) -> Given:
    """What a user asks for, with each given value looked up in its column."""
    if not isinstance(given, Mapping):
        fact = "must be a dict such as {'plan': 'gold', 'age': (30, 40)}"
        raise ParameterError("given", given, fact)
    given_columns = []
    for name, value in given.items():
        c = _column_index(table, name)
        column = table.columns[c]
        if isinstance(value, tuple | ValueRange):
            given_columns.append(_read_range(column, c, value))
        elif _is_list(value):
            given_columns.append(_read_list(column, c, value))
        else:
            given_columns.append(_read_value(column, c, value))
    return Given(tuple(given_columns))


def _read_list(column: Column, c: int, values: Iterable[object]) -> GivenColumn:
    """A list that is given for column c: its cells have one of the values.

    If the column can have just one of the values, that value is given.
    """
    values = list(values)
    if not values:
        fact = "given [] is an empty list"
        hint = "list at least one value, or leave the column out"
        raise DataError(fact, hint, column=column.name)
    if len(values) == 1:
        return _read_value(column, c, values[0])
    found_values = dict[float, FoundValue]()  # by their positions
    notes = []
    for value in values:
        found = find_value(column, value)
        if found.is_at_position(column):
            found_values[found.position] = found
        else:
            notes.append(f"no row has {column.name}={value}")
    if len(found_values) == 1:
        (only_value,) = found_values.values()
        return GivenColumn(c, column, value=only_value, notes=tuple(notes))
    rule = MembershipRule(f"given {column.name}", (c,), tuple(sorted(found_values)))
    return GivenColumn(c, column, rules=(rule,), notes=tuple(notes))


def _read_range(
    column: Column, c: int, given: tuple[object, ...] | ValueRange
) -> GivenColumn:
    """A range that is given for column c: its cells are between the bounds.

    If the column can have just one value between the bounds, that value is given.
    """
    bounds = _as_range(column, given)
    low = _exact_bound(column, bounds.low)
    high = _exact_bound(column, bounds.high)
    if low is not None and high is not None and low > high:
        fact = f"given {given} is an empty range: {bounds.low} is above {bounds.high}"
        raise DataError(fact, "pass the lower end first", column=column.name)
    if low is not None and low == high and bounds.with_low and bounds.with_high:
        return _read_value(column, c, bounds.low)
    only_value = _only_grid_value(column, bounds, low, high)
    if only_value is not None:
        return _read_value(column, c, only_value)
    text = f"given {column.name}={given}"
    rules = list[Rule]()
    if low is not None:
        rules.append(_lower_bound_rule(text, column, c, low, bounds.with_low))
    if high is not None:
        rules.append(_upper_bound_rule(text, column, c, high, bounds.with_high))
    return GivenColumn(c, column, rules=tuple(rules))


def _only_grid_value(
    column: Column, bounds: ValueRange, low: Fraction | None, high: Fraction | None
) -> object | None:
    """The value on the grid of a column that is in a range, if it is the only one.

    None if there are several or none, or if the column has no grid. `low` and `high`
    are the exact bounds.
    """
    if column.unit is None:
        return None
    spacing = column.unit * column.grid.spacing
    origin = column.unit * column.grid.origin
    lowest_step = 0
    highest_step = int(column.level_grid_values[-1])
    if low is not None:
        steps_to_low = (low - origin) / spacing
        first = ceil(steps_to_low) if bounds.with_low else floor(steps_to_low) + 1
        lowest_step = max(lowest_step, first)
    if high is not None:
        steps_to_high = (high - origin) / spacing
        last = floor(steps_to_high) if bounds.with_high else ceil(steps_to_high) - 1
        highest_step = min(highest_step, last)
    is_exact_float = lowest_step < MAX_EXACT_FLOAT
    if lowest_step != highest_step or not is_exact_float:
        return None
    grid_value = GridValues(np.array([float(lowest_step)]))
    only_value: object = column.decode(column.grid.positions_of(grid_value)).tolist()[0]
    return only_value


def _read_value(column: Column, c: int, value: object) -> GivenColumn:
    """One value that is given for column c."""
    given = GivenColumn(c, column, value=find_value(column, value))
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
    if column.allows_only_levels:
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
        if not column.encoded.is_missing.any():
            fact = "it is given as missing, but no cell of this column is"
            raise DataError(fact, column=column.name)
        return cell
    is_datetime = column.encoded.value_type == "datetime"
    if is_datetime and getattr(value, "tzinfo", None) is None:
        return cell.astype(str)  # a time without zone is on the column's clock
    return cell


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
