"""Columns that are given: rows that have these cells, or are moved to them.

What is given chooses rows, and a chain of the other columns is fitted to these. For a
number that few rows have, the rows nearest to it are moved there: their other numbers
change along ridge regressions on the given ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np

from sliceflow.errors import DataError, ParameterError
from sliceflow.spaces.tables.cells import format_names, import_pandas
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.constraints import LinearRule, MembershipRule, Rule
from sliceflow.spaces.tables.formats import to_scaled_values
from sliceflow.spaces.tables.ridge import RidgeLine
from sliceflow.spaces.tables.table import Table

# An answer with fewer rows behind it gets a warning, and a number that fewer rows have
# takes the nearest rows, too. A round number.
MIN_ROWS = 20

# How many rows are moved to a number: an eighth of all, within these limits. Round
# numbers: more rows are farther away, fewer give a noisier answer.
SHARE_OF_NEAREST_ROWS = 1 / 8
MIN_NEAREST_ROWS = 100
MAX_NEAREST_ROWS = 2_000

# Rows within this many standard deviations count as near, for the warning.
NEAR_DISTANCE = 0.5

# Numbers are equal if they differ by at most this much, relative to their size.
EQUAL_TOLERANCE = 1e-12


class FoundValue(NamedTuple):
    """A value that a column can have."""

    position: float  # −1 for a missing cell
    number: float  # NaN for a missing cell and for categories
    series: Any  # a Series of one, in the dtype of the column


@dataclass(frozen=True, eq=False)
class Conditional:
    """Rows that have what is given, for a chain of the other columns."""

    table: Table  # ranges and lists are more rules of it
    z: np.ndarray  # (n, d), positions of the rows, moved to given numbers
    fixed: dict[int, float]  # the position of each column with one given value,
    values: dict[int, Any]  # and of numbers the value itself, a Series of one


@dataclass(eq=False)
class _Request:
    """What is asked for, column by column."""

    table: Table
    matches: np.ndarray  # (n,), which rows have what is given
    rules: list[Rule] = field(default_factory=list)  # of ranges and lists
    fixed: dict[int, float] = field(default_factory=dict)  # positions of values
    values: dict[int, Any] = field(default_factory=dict)  # of numbers, a Series of one
    rare_numbers: dict[int, float] = field(default_factory=dict)  # that few rows have
    notes: list[str] = field(default_factory=list)  # what is doubtful

    def add_range(self, c: int, bounds: tuple[Any, ...]) -> None:
        """Ask for cells of column c from a lower to an upper bound."""
        self.rules.extend(_range_rules(self.table.columns[c], c, bounds))
        self.matches &= self.table.z[:, c] >= 0

    def add_list(self, c: int, values: Iterable[Any]) -> None:
        """Ask for cells of column c among some values."""
        column = self.table.columns[c]
        positions = set[float]()
        for value in values:
            found = find_value(column, value)
            is_missing = found.position < 0
            number = column.numbers(np.array([found.position]))[0]
            if is_missing or number == found.number:
                positions.add(found.position)
            else:
                self.notes.append(f"no row has {column.name}={value}")
        text = f"given {column.name}"
        self.rules.append(MembershipRule(text, (c,), tuple(sorted(positions))))

    def add_value(self, c: int, value: Any) -> None:
        """Ask for one value in all cells of column c."""
        column = self.table.columns[c]
        found = find_value(column, value)
        self.fixed[c] = found.position
        has_value = self.table.z[:, c] == found.position
        if column.is_number and not np.isnan(found.number):
            self.values[c] = found.series
            if not column.level_numbers[0] <= found.number <= column.level_numbers[-1]:
                text = f"{column.name}={value} is outside the table's values"
                self.notes.append(text)
            if int((has_value & self.matches).sum()) < MIN_ROWS:
                self.rare_numbers[c] = found.number
                return
        self.matches &= has_value


def condition_on(table: Table, given: Mapping[Any, Any]) -> Conditional:
    """The rows of a table that have what is given.

    That is a value, a list or a range for each of some columns. A warning says what is
    doubtful. Errors name what cannot be.
    """
    request = _read_request(table, given)
    if request.rules:
        table = table.with_rules(request.rules)
        for rule in request.rules:
            request.matches &= ~table.rules.broken(rule, table.z)
    n_matches = int(request.matches.sum())
    if n_matches == 0:
        fact = f"no row of the table has given={dict(given)}"
        raise DataError(fact, "leave out what never occurs together")
    z = table.z[request.matches]
    notes = request.notes
    if request.rare_numbers:
        z, n_near = _move_to_numbers(table, z, request.rare_numbers, request.fixed)
        if n_near < MIN_ROWS:
            notes.append(f"only {n_near} rows of the table are near it")
    if n_matches < MIN_ROWS:
        notes.append(f"only {n_matches} rows of the table have this")
    if notes:
        text = f"given={dict(given)}: {'; '.join(notes)}"
        warnings.warn(text, UserWarning, stacklevel=3)  # the user's call of sample
    return Conditional(table, z, request.fixed, request.values)


def _read_request(table: Table, given: Mapping[Any, Any]) -> _Request:
    """What is asked for, with each given value looked up in its column."""
    if not isinstance(given, Mapping):
        fact = "must be a dict such as {'plan': 'gold', 'age': (30, 40)}"
        raise ParameterError("given", given, fact)
    request = _Request(table, np.ones(len(table.z), dtype=bool))
    for name, value in given.items():
        c = _column_index(table, name)
        if isinstance(value, tuple):
            request.add_range(c, value)
        elif isinstance(value, list | set | frozenset | np.ndarray):
            request.add_list(c, value)
        else:
            request.add_value(c, value)
    return request


def _column_index(table: Table, name: Any) -> int:
    """The index of a column that may be given."""
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
    """Where a value, or a text for it, is in a column.

    Numbers outside the range of the column have the position of its nearest end. An
    error if the column cannot have the value.
    """
    pd = import_pandas()
    encoded = column.encoded
    series = pd.Series([value], dtype=object)
    if series.isna().all():
        if not encoded.missing.any():
            fact = "it is given as missing, but no cell of this column is"
            raise DataError(fact, column=column.name)
        return FoundValue(-1.0, np.nan, series.astype(encoded.dtype))
    if encoded.value_type == "datetime" and getattr(value, "tzinfo", None) is None:
        series = series.astype(str)  # a time without zone is on the column's clock
    positions, numbers, new = column.locate(series)
    position = positions[0]
    if not len(new):  # a known level
        new = column.levels.iloc[[int(position)]].reset_index(drop=True)
    if column.observed_only:
        position = np.rint(position)
    return FoundValue(float(position), float(numbers[0]), new)


def _range_rules(column: Column, c: int, bounds: tuple[Any, ...]) -> list[Rule]:
    """The rules low ≤ column and column ≤ high for bounds (low, high)."""
    is_range = len(bounds) == 2 and column.is_number
    if not is_range or import_pandas().isna([*bounds]).any():
        fact = f"given {bounds} is not a range (low, high) of numbers or times"
        raise DataError(fact, "pass a list", column=column.name)
    text = f"given {column.name}={bounds}"
    low, high = bounds
    lower_bound = -_bound_in_units(column, low, ceil)
    upper_bound = _bound_in_units(column, high, floor)
    return [
        LinearRule(text, (c,), (-1,), "<=", lower_bound, column.unit),
        LinearRule(text, (c,), (1,), "<=", upper_bound, column.unit),
    ]


def _bound_in_units(column: Column, value: Any, to_integer: Any) -> Any:
    """A bound as a number of the column's units, rounded into the range; or a float."""
    series = find_value(column, value).series
    integer_values, unit = to_scaled_values(
        series, column.encoded.value_type, column.text_format
    )
    number = Fraction(integer_values[0]) * (unit or 1)
    if column.unit is None:
        return float(number)
    return to_integer(number / column.unit)


def _move_to_numbers(
    table: Table,
    z: np.ndarray,
    numbers: Mapping[int, float],
    fixed: Mapping[int, float],
) -> tuple[np.ndarray, int]:
    """Move the rows nearest to given `numbers` of some columns there.

    Of rows with positions z (n, d), returns the positions (k, d) of the nearest, in
    which other smooth numbers changed along regressions on the given ones; and how many
    rows were near. `fixed` has the positions of the numbers.
    """
    given = list(numbers)
    given_positions = [fixed[c] for c in given]
    for c in given:
        _require_exact(table, c, numbers[c], fixed[c])
    z = z[(z[:, given] >= 0).all(1)]
    if not len(z):
        raise DataError("no row has a value of all given columns at once")
    distance = _distances_to_numbers(table, z, numbers)
    n_nearest = min(int(len(z) * SHARE_OF_NEAREST_ROWS), MAX_NEAREST_ROWS)
    n_nearest = min(len(z), max(MIN_NEAREST_ROWS, n_nearest))
    z = z[np.argsort(distance, kind="stable")[:n_nearest]]

    for c in set(table.order) - set(given):
        column = table.columns[c]
        is_moved = column.is_interpolable(z[:, c])
        before = z[is_moved]
        line = RidgeLine.fit("numbers", table.columns, before, c, np.array(given))
        if line is not None:
            after = before.copy()
            after[:, given] = given_positions
            predicted = column.numbers(before[:, c]) + line.predict(after)
            moved = predicted - line.predict(before)
            z[is_moved, c] = line.to_positions(column, moved)
    z[:, given] = given_positions
    return z, int((distance < NEAR_DISTANCE).sum())


def _require_exact(table: Table, c: int, number: float, position: float) -> None:
    """An error if a constraint compares a given number that no position stands for."""
    column = table.columns[c]
    stored = column.grid.round(column.numbers(np.array([position])))[0]
    if abs(stored - number) <= EQUAL_TOLERANCE * abs(number):
        return
    for rule in table.rules.rules:
        if c in rule.columns and not rule.implied:
            fact = (
                "the given number is outside the table's values, or finer than they "
                f"are, and the constraint {rule.text!r} needs them"
            )
            raise DataError(fact, "leave one out", column=column.name)


def _distances_to_numbers(
    table: Table, z: np.ndarray, numbers: Mapping[int, float]
) -> np.ndarray:
    """Distances (n,) of rows z (n, d) to numbers, in standard deviations of each."""
    x = np.column_stack([table.columns[c].numbers(z[:, c]) for c in numbers])
    spread = x.std(axis=0)
    target = np.array(list(numbers.values()))
    away = (target - x) / np.where(spread > 0, spread, 1.0)
    return np.asarray(np.sqrt((away**2).sum(axis=1)))
