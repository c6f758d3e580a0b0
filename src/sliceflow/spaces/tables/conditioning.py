"""Columns that are given: rows that have these cells, or are moved to them.

A chain of the other columns is fitted to the rows that have what is given. For a number
that few rows have, the rows nearest to it are moved there: their other numbers change
by as much as regressions on the given numbers predict, if that is more than noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.errors import DataError, ParameterError
from sliceflow.spaces.tables.cells import format_names
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.formats import to_scaled_values
from sliceflow.spaces.tables.positions import MISSING, has_all_values, has_value
from sliceflow.spaces.tables.rules import LinearRule, MembershipRule, Rule
from sliceflow.spaces.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

# A number that fewer rows have takes the nearest rows, too. With fewer rows, samples
# would repeat their values.
MIN_ROWS = 20

# An answer with fewer rows behind it gets a warning, because samples are close to these
# rows. Copies are .02 to .05 of the samples for 20 rows instead of .01, and .01 to .02
# for 60. With a larger limit, users would be warned of what is harmless.
MIN_ROWS_TO_SHARE = 50

# How many rows are moved to a number: an eighth of all, within these limits. More rows
# are farther away, fewer give a noisier answer.
SHARE_OF_NEAREST_ROWS = 1 / 8
MIN_NEAREST_ROWS = 100
MAX_NEAREST_ROWS = 2_000

# Rows within this many standard deviations count as near, for the warning that few are.
# With more, users would not hear that all rows are far from what they asked for.
NEAR_DISTANCE = 0.5

# What a regression adds must explain this many times as much variance as noise would,
# or rows do not move by it: the square of the usual two standard errors. With 2,
# samples of a mixture were off by up to .8 of a mode's deviation instead of .3; with a
# larger one, curves would be taken for lines.
MIN_F = 4.0

# For one column that changed, a regression has this many rows. With fewer it would fit
# the noise.
ROWS_PER_CHANGED_COLUMN = 20

# Singular values of regressors below this share of the largest count as 0: some numbers
# determine each other.
RANK_TOLERANCE = 1e-9

# Numbers are equal if they differ by at most this much, relative to their size: more
# than rounding errors of float64.
EQUAL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Bounds:
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
    """A value that a column can have."""

    position: float
    grid_value: float  # NaN for a missing cell
    series: pd.Series  # of one cell, in the dtype of the column


@dataclass(frozen=True, eq=False)
class Conditional:
    """Rows that have what is given, for a chain of the other columns."""

    table: Table  # ranges and lists are more rules of it
    row_positions: Floats  # (n, d), positions of the rows, moved to given numbers
    fixed: dict[int, float]  # the position of each column with one given value,
    values: dict[int, pd.Series]  # and of numbers the value itself, as one cell


@dataclass(eq=False)
class _Request:
    """What is asked for, column by column."""

    table: Table
    matches: Mask  # (n,), which rows have all that is given, except rare values
    rules: list[Rule] = field(default_factory=list)  # of ranges and lists
    fixed: dict[int, float] = field(default_factory=dict)  # positions of values
    values: dict[int, pd.Series] = field(default_factory=dict)  # as in `Conditional`
    # The grid values that few rows have: nearest rows are moved to them.
    rare_grid_values: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what is doubtful

    def add_range(self, c: int, bounds: tuple[Any, ...] | Bounds) -> None:
        """Ask for cells of column c from a lower to an upper bound."""
        self.rules.extend(_range_rules(self.table.columns[c], c, bounds))
        self.matches &= has_value(self.table.row_positions[:, c])

    def add_list(self, c: int, values: Iterable[Any]) -> None:
        """Ask for cells of column c that have one of the values."""
        column = self.table.columns[c]
        positions = set[float]()
        for value in values:
            found = find_value(column, value)
            is_missing = found.position == MISSING
            grid_value = column.grid_values_at(np.array([found.position]))[0]
            if is_missing or grid_value == found.grid_value:
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
        has_same_value = self.table.row_positions[:, c] == found.position
        if column.is_number and found.position != MISSING:
            self.values[c] = found.series
            lowest = column.level_grid_values[0]
            highest = column.level_grid_values[-1]
            if not lowest <= found.grid_value <= highest:
                text = f"{column.name}={value} is outside the table's values"
                self.notes.append(text)
            if int((has_same_value & self.matches).sum()) < MIN_ROWS:
                self.rare_grid_values[c] = found.grid_value
                return
        self.matches &= has_same_value


def condition_on(table: Table, given: Mapping[Any, Any]) -> Conditional:
    """The rows of a table that have what is given.

    `given` has a value, a list or a range by the name of the column. A warning says
    what is doubtful, such as a value that few rows have. An error names what no row can
    have.
    """
    request = _read_request(table, given)
    if request.rules:
        table = table.with_rules(request.rules)
        for rule in request.rules:
            request.matches &= ~table.rule_set.broken(rule, table.row_positions)
    n_matches = int(request.matches.sum())
    if n_matches == 0:
        fact = f"no row of the table has given={dict(given)}"
        raise DataError(fact, "leave out what never occurs together")
    row_positions = table.row_positions[request.matches]
    notes = request.notes
    if request.rare_grid_values:
        row_positions, n_near = _move_to_grid_values(
            table, row_positions, request.rare_grid_values, request.fixed
        )
        if n_near < MIN_ROWS:
            notes.append(f"only {n_near} rows of the table are near it")
    if n_matches < MIN_ROWS_TO_SHARE:
        text = f"only {n_matches} rows of the table have this"
        notes.append(f"{text}, and samples are close to them")
    if notes:
        text = f"given={dict(given)}: {'; '.join(notes)}"
        # Below the user's line: TableFlow.sample, FittedTable.sample_given, and this.
        warnings.warn(text, UserWarning, stacklevel=4)
    return Conditional(table, row_positions, request.fixed, request.values)


def _read_request(table: Table, given: Mapping[Any, Any]) -> _Request:
    """What is asked for, with each given value looked up in its column."""
    if not isinstance(given, Mapping):
        fact = "must be a dict such as {'plan': 'gold', 'age': (30, 40)}"
        raise ParameterError("given", given, fact)
    request = _Request(table, np.ones(len(table.row_positions), dtype=bool))
    for name, value in given.items():
        c = _column_index(table, name)
        if isinstance(value, tuple | Bounds):
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
    import pandas as pd

    encoded = column.encoded
    series = pd.Series([value], dtype=object)
    if series.isna().all():
        if not encoded.missing.any():
            fact = "it is given as missing, but no cell of this column is"
            raise DataError(fact, column=column.name)
        return FoundValue(MISSING, np.nan, series.astype(encoded.levels.dtype))
    if encoded.value_type == "datetime" and getattr(value, "tzinfo", None) is None:
        series = series.astype(str)  # a time without zone is on the column's clock
    located = column.locate(series)
    position = float(located.positions[0])
    found = located.new_values
    if not len(found):  # a known level
        found = column.levels.iloc[[int(position)]].reset_index(drop=True)
    if column.observed_only:
        position = float(np.rint(position))
    return FoundValue(position, float(located.grid_values[0]), found)


def _range_rules(column: Column, c: int, given: tuple[Any, ...] | Bounds) -> list[Rule]:
    """The rules low ≤ column and column ≤ high, or with < for what is not included."""
    bounds = _as_bounds(column, given)
    text = f"given {column.name}={given}"
    rules: list[Rule] = []
    if bounds.low is not None:
        relation, rounding = _relation(bounds.with_low, ceil, floor)
        bound = -_bound_in_units(column, bounds.low, rounding)
        rules.append(LinearRule(text, (c,), (-1,), relation, bound, column.unit))
    if bounds.high is not None:
        relation, rounding = _relation(bounds.with_high, floor, ceil)
        bound = _bound_in_units(column, bounds.high, rounding)
        rules.append(LinearRule(text, (c,), (1,), relation, bound, column.unit))
    return rules


def _as_bounds(column: Column, given: tuple[Any, ...] | Bounds) -> Bounds:
    """The range that is given; an error if it is none of numbers or times."""
    import pandas as pd

    if isinstance(given, Bounds):
        ends: tuple[Any, ...] = (given.low, given.high)
    else:
        ends = given
    known_ends = [end for end in ends if end is not None]
    is_range = len(ends) == 2 and len(known_ends) > 0 and column.is_number
    if not is_range or pd.Series(known_ends, dtype=object).isna().any():
        fact = f"given {given} is not a range (low, high) of numbers or times"
        raise DataError(fact, "pass a list", column=column.name)
    if isinstance(given, Bounds):
        return given
    return Bounds(*ends)


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


def _bound_in_units(
    column: Column, value: Any, to_integer: Callable[[Fraction], int]
) -> float:
    """A bound of a range as a number of the column's units.

    It is an int, rounded into the range by `to_integer`; a float if the column has no
    unit.
    """
    series = find_value(column, value).series
    scaled_values, unit = to_scaled_values(
        series, column.encoded.value_type, column.text_format
    )
    bound = Fraction(scaled_values[0]) * (unit or 1)
    if column.unit is None:
        return float(bound)
    return to_integer(bound / column.unit)


def _move_to_grid_values(
    table: Table,
    row_positions: Floats,
    grid_values: Mapping[int, float],
    fixed: Mapping[int, float],
) -> tuple[Floats, int]:
    """Move the rows nearest to given grid values, by column, to these.

    `fixed` has the positions of the same values. Returns the positions (k, d) of the
    nearest of the rows (n, d) after they moved; and how many rows were near.
    """
    for c, grid_value in grid_values.items():
        _require_exact(table, c, grid_value, fixed[c])
    given = list(grid_values)
    row_positions = row_positions[has_all_values(row_positions, given)]
    if not len(row_positions):
        raise DataError("no row has a value of all given columns at once")
    differences = _differences_to(table, row_positions, grid_values)
    distance = np.sqrt((differences**2).sum(axis=1))
    nearest = np.argsort(distance, kind="stable")[: _n_rows_to_move(len(row_positions))]
    nearest = nearest[_balanced(differences[nearest])]
    given_positions = [fixed[c] for c in given]
    moved = _move_rows(table, row_positions[nearest], given, given_positions)
    return moved, int((distance < NEAR_DISTANCE).sum())


def _n_rows_to_move(n: int) -> int:
    """How many of n rows are moved to given numbers."""
    n_nearest = min(int(n * SHARE_OF_NEAREST_ROWS), MAX_NEAREST_ROWS)
    return min(n, max(MIN_NEAREST_ROWS, n_nearest))


def _balanced(differences: Floats) -> Ints:
    """Which rows have the given numbers on average, by `differences` (k, g) to these.

    Near the end of a column, most of the nearest rows are on one side. The farthest of
    these are left out until the mean is the given number, so that the mean of another
    column is right even if nobody knows how that depends on the given one.
    """
    mean = differences.mean(axis=0)
    towards_mean = differences @ mean
    order = np.argsort(towards_mean, kind="stable")
    n_balanced = int((np.cumsum(towards_mean[order]) <= 0).sum())
    return order[: max(n_balanced, MIN_NEAREST_ROWS)]


def _move_rows(
    table: Table,
    row_positions: Floats,
    given: Sequence[int],
    given_positions: Sequence[float],
) -> Floats:
    """Rows (k, d) with other positions in the `given` columns.

    The other smooth numbers change one after the other, by as much as they depend on
    the given columns and on the numbers that changed before. So a total stays the sum
    of its parts.
    """
    moved = row_positions.copy()
    moved[:, given] = given_positions
    changed_columns = list[int]()
    for c in table.drawing_order:
        column = table.columns[c]
        is_moved = column.new_values.at_free_level(row_positions[:, c])
        if c in given or not is_moved.any():
            continue
        given_numbers = _Numbers.of(
            table, given, row_positions[is_moved], moved[is_moved]
        )
        changed = _Numbers.of(
            table, changed_columns, row_positions[is_moved], moved[is_moved]
        )
        before = column.grid_values_at(row_positions[is_moved, c])
        after = before + _predicted_change(before, changed, given_numbers)
        moved[is_moved, c] = column.nearest_positions(after)
        changed_columns.append(c)
    return moved


class _Numbers(NamedTuple):
    """Numbers of some columns, in standard deviations from their means."""

    before: Floats  # (k, p), of rows as they are
    after: Floats  # (k, p), of the same rows when they have moved

    @classmethod
    def of(
        cls,
        table: Table,
        column_indices: Sequence[int],
        row_positions: Floats,
        moved: Floats,
    ) -> _Numbers:
        """The cells of columns at positions (k, d), and where these are `moved`.

        A missing one has the mean of its column.
        """
        before = np.zeros((len(row_positions), len(column_indices)))
        after = np.zeros((len(row_positions), len(column_indices)))
        for i, c in enumerate(column_indices):
            known = has_value(row_positions[:, c])
            values = table.columns[c].grid_values_at(row_positions[known, c])
            new_values = table.columns[c].grid_values_at(moved[known, c])
            scale = values.std() or 1.0
            before[known, i] = (values - values.mean()) / scale
            after[known, i] = (new_values - values.mean()) / scale
        return cls(before, after)

    def join(self, other: _Numbers) -> _Numbers:
        """These numbers and others of the same rows."""
        before = np.hstack((self.before, other.before))
        return _Numbers(before, np.hstack((self.after, other.after)))

    def most_correlated(self, y: Floats, n: int) -> _Numbers:
        """The n columns that have the largest correlations with y (k,)."""
        strength = np.abs(self.before.T @ (y - y.mean()))
        best = np.argsort(-strength, kind="stable")[:n]
        return _Numbers(self.before[:, best], self.after[:, best])

    def products(self) -> _Numbers:
        """The products of all pairs of columns, with themselves, too."""
        first, second = np.triu_indices(self.before.shape[1])
        before = self.before[:, first] * self.before[:, second]
        return _Numbers(before, self.after[:, first] * self.after[:, second])


def _predicted_change(y: Floats, changed: _Numbers, given: _Numbers) -> Floats:
    """How much numbers y (k,) change if numbers of their rows do.

    Three regressions of y, on the numbers that changed before, then also on the given
    ones, then also on products of these, predict it. What one adds to the one before
    counts as far as it is no noise: by the share max(0, 1 − MIN_F/F) of it, where F is
    the usual ratio of explained to unexplained variance. Without this, chance would
    move rows: of a mixture with modes ten deviations apart, by one deviation.
    """
    changed = changed.most_correlated(y, len(y) // ROWS_PER_CHANGED_COLUMN)
    with_given = changed.join(given)
    with_products = with_given.join(given.products())
    smaller = _LeastSquares.from_data(y, changed)
    change = smaller.predicted_change
    for numbers in (with_given, with_products):
        larger = _LeastSquares.from_data(y, numbers)
        share = larger.share_above_noise(smaller)
        change = change + share * (larger.predicted_change - smaller.predicted_change)
        smaller = larger
    return change


class _LeastSquares(NamedTuple):
    """What a regression on some numbers says."""

    predicted_change: Floats  # (k,)
    residual_square: float  # the sum of squared residuals
    degrees_of_freedom: int  # of the residuals

    @classmethod
    def from_data(cls, y: Floats, numbers: _Numbers) -> _LeastSquares:
        """Regress y (k,) on numbers as they are, and predict for those that moved."""
        centre = numbers.before.mean(axis=0)
        x = numbers.before - centre
        target = y - y.mean()
        coefficients, _, rank, _ = np.linalg.lstsq(x, target, rcond=RANK_TOLERANCE)
        residuals = target - x @ coefficients
        change = (numbers.after - numbers.before) @ coefficients
        return cls(change, float(residuals @ residuals), len(y) - 1 - int(rank))

    def share_above_noise(self, smaller: _LeastSquares) -> float:
        """How much of what it says beyond a smaller regression is no noise, 0 to 1."""
        n_added = smaller.degrees_of_freedom - self.degrees_of_freedom
        explained = smaller.residual_square - self.residual_square
        if n_added <= 0 or self.degrees_of_freedom <= 0 or explained <= 0:
            return 0.0
        noise = self.residual_square / self.degrees_of_freedom
        return max(0.0, 1 - MIN_F * noise * n_added / explained)


def _require_exact(table: Table, c: int, grid_value: float, position: float) -> None:
    """Raise an error if a constraint needs a given value that has no exact position.

    `position` is the nearest. Without constraints, samples have the given value itself
    instead of what is at this position.
    """
    column = table.columns[c]
    stored = column.grid.round(column.grid_values_at(np.array([position])))[0]
    if abs(stored - grid_value) <= EQUAL_TOLERANCE * abs(grid_value):
        return
    for rule in table.rule_set.rules:
        if c in rule.column_indices and not rule.is_discovered:
            fact = (
                "the given number is outside the table's values, or finer than they "
                f"are, and the constraint {rule.text!r} needs them"
            )
            raise DataError(fact, "leave one out", column=column.name)


def _differences_to(
    table: Table, row_positions: Floats, grid_values: Mapping[int, float]
) -> Floats:
    """Rows (n, d) minus given values of g columns (n, g), in standard deviations."""
    of_rows = np.column_stack(
        [table.columns[c].grid_values_at(row_positions[:, c]) for c in grid_values]
    )
    deviations = of_rows.std(axis=0)
    deviations = np.where(deviations > 0, deviations, 1.0)
    given = np.array(list(grid_values.values()))
    return np.asarray((of_rows - given) / deviations)
