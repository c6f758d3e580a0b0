"""What the columns of a table are, and the coordinates of their cells.

Each cell has several coordinates. Take a column of five prices:

| coordinate   | the cells                        | what for                        |
|--------------|----------------------------------|---------------------------------|
| value        | $5.00, $2.50, –, $10.00, $2.50   | the user passes and gets values |
| code         | 2, 1, −1, 0, 1                   | files; texts are sorted as such |
| position     | 1, 0, −1, 2, 0                   | models; all columns look alike  |
| scaled value | 500, 250, –, 1000, 250           | exact sums and comparisons      |
| grid value   | 250, 0, NaN, 750, 0              | regressions, interpolation      |
| feature      | .52, −.25, −1.28, 1.28, −.25     | distances; scales are alike     |

The *levels* of a column are its different values. The **position** of a cell is the
rank of its level, from 0: levels of numbers and times ascend, those of categories
descend by frequency. A missing cell is at −1. A position between two levels is a new
value between them: 0.5 has the grid value 125, which is $3.75. New values are drawn
only where they are plausible (`Column.interpolable`). `positions` names the positions
of cells that have no value.

**Scaled values** are integers that count a `unit`, here 1/100. A **grid value** counts
`step` units from the smallest value, `origin`. The step is more than one unit if all
differences are multiples of it, as in a column of whole hours in seconds. So grid
values are whole numbers, and rounding one gives a value that the column can have.
Floats with many decimals have no unit: their scaled and grid values are the floats.
The **features** of a cell are the normal score of a number, or one axis for each
frequent level of a category.

`Column.encode` and `Column.decode` convert between values and positions. The `Grid` of
a column converts between positions, scaled values and grid values.

Names mean the same in all modules of tables:

| name                                   | what it is                                  |
|----------------------------------------|---------------------------------------------|
| `column`, `columns`                    | a `Column`, all columns of the table        |
| `c`, `…_index`, `…_indices`            | indices of columns, or of rows if they      |
| `predictors`, `order`, `fixed`         | are called `row_indices`                    |
| `z`, `…_z`                             | (n, d), positions of rows, all columns      |
| `positions`                            | (n,), positions of one column               |
| `codes`, `scaled_values`, `grid_values`| (n,), as above, of one column               |
| `x`                                    | (n, p), what trees see of rows              |
| `rows`                                 | `TableRows`: all cells, as the user has them|
| `df`                                   | a DataFrame of pandas                       |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, get_args

import numpy as np
from scipy.special import ndtri

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.dataframes import DATE_PATTERN
from sliceflow.errors import DataError, ParameterError
from sliceflow.number_formats import NumberFormat, infer_number_format
from sliceflow.spaces.tables import identifiers
from sliceflow.spaces.tables.cells import (
    OBJECT_OF_TEXT,
    EncodedColumn,
    convert_exactly,
    format_names,
)
from sliceflow.spaces.tables.formats import (
    MAX_EXACT_FLOAT,
    TIME_UNITS,
    DateFormat,
    ScaledValues,
    TextFormat,
    infer_date_formats,
    to_scaled_values,
)
from sliceflow.spaces.tables.positions import (
    IMPOSSIBLE,
    MISSING,
    has_value,
    is_missing,
)

if TYPE_CHECKING:
    import pandas as pd

# Kinds that a user may give. "constant" is another, which only `columns_` shows.
UserKind = Literal[
    "continuous",
    "integer",
    "datetime",
    "boolean",
    "category",
    "ordered",
    "identifier",
    "drop",
]
Kind = UserKind | Literal["constant"]
Quantity = Literal["number", "time", "duration"]
NUMERIC_KINDS = ("continuous", "integer", "datetime")
CATEGORY_KINDS = ("boolean", "category", "ordered")
KINDS: tuple[str, ...] = get_args(UserKind)

# New values are drawn between levels if there are more levels than this share of the
# rows; else the values are few, such as grades, and there is nothing between them.
_MIN_LEVELS_PER_ROW = 0.05
# There must also be at least this many levels. Fewer may have a common divisor of their
# differences by chance, so it does not count as a step, and no new values are drawn.
_MIN_LEVELS = 10
# A level with more rows than the first, and with a larger share of them than the
# second, is an atom, such as an income of 0: no new values are drawn next to it.
_ATOM_MIN_ROWS = 3
_ATOM_MIN_SHARE = 0.0005
# A number is not smooth if one value, or the missing one, has more of the rows.
_MAX_SHARE_IN_SMOOTH_COLUMN = 0.1
# Cells that are looked at to see how a column is written; more would only take time.
_MAX_CELLS_READ = 5_000
# The most frequent levels of a category have an axis each in `Column.features`, at most
# this many; the others are all at the origin.
_MAX_ONE_HOT = 12
# If at least this share of texts look like dates, the others are mistakes. If at least
# this share of levels would be written as they are, new values may be written, too.
_MIN_SHARE_ALIKE = 0.8
# Probabilities of normal scores stay this far from 0 and 1, where scores are infinite.
_MIN_PROBABILITY = 1e-6
# Numbers between these may be dates such as 20240131, of the years from 1900 to 2099.
_COMPACT_DATE_RANGE = (19e6, 21e6)
# Differences of 64-bit integers that are smaller than this do not overflow.
_MAX_INT64_DIFFERENCE = 2**62

_DATE_AND_TIME = re.compile(rf"{DATE_PATTERN}([ T]\d{{1,2}}:\d{{2}}.*)?")


class Located(NamedTuple):
    """Where values are in a column."""

    positions: Floats  # (m,); that of the nearest end for values outside the range
    grid_values: Floats  # (m,); those of categories are their positions
    new_values: pd.Series  # those that are no levels, in the dtype of the column


@dataclass(frozen=True, eq=False)
class Grid:
    """The levels of a column as numbers, and conversions between its coordinates.

    The module explains positions, scaled values and grid values. Of categories, both
    values are the positions.
    """

    # (k,), of the levels, ascending: integers that count the unit, which are Python's
    # own if they are large, or floats if there is no unit.
    scaled_values: ScaledValues
    unit: Fraction | None = None  # in ones or seconds; None for floats and categories
    step: int = 1  # how many units are between neighbours on the grid

    @property
    def origin(self) -> int:
        """The scaled value of the grid value 0; 0 if there is no unit."""
        if self.unit is None:
            return 0
        return int(self.scaled_values[0])

    @cached_property
    def grid_values(self) -> Floats:
        """(k,), the grid values of the levels, ascending."""
        if self.unit is None:
            return self.scaled_values
        steps = (self.scaled_values - self.origin) // self.step
        return np.asarray(steps.astype(np.float64))

    def positions_to_grid_values(self, positions: Floats) -> Floats:
        """The grid values (m,) at positions (m,); NaN where cells are missing."""
        if len(self.grid_values) == 0:
            return np.full(len(positions), np.nan)
        grid_values = _values_at(self.grid_values, positions)
        return np.where(is_missing(positions), np.nan, grid_values)

    def grid_values_to_positions(self, grid_values: Floats) -> Floats:
        """The positions (m,) of grid values (m,), as `MISSING` for NaN.

        They are `IMPOSSIBLE` outside the range of the levels.
        """
        level_positions = np.arange(len(self.grid_values))
        positions = np.interp(grid_values, self.grid_values, level_positions)
        # np.interp may miss a level by a rounding error, and only levels are exact.
        nearest = np.rint(np.nan_to_num(positions)).astype(np.int64)
        is_level = self.grid_values[nearest] == grid_values
        positions = np.where(is_level, nearest, positions)
        is_outside = grid_values < self.grid_values[0]
        is_outside |= grid_values > self.grid_values[-1]
        positions = np.where(is_outside, IMPOSSIBLE, positions)
        return np.where(np.isnan(grid_values), MISSING, positions)

    def grid_values_to_scaled_values(self, grid_values: Floats) -> ScaledValues:
        """The scaled values (m,) of grid values (m,), rounded to the grid."""
        if self.unit is None:
            return grid_values
        steps = np.rint(grid_values).astype(np.int64)
        steps = steps.astype(self.scaled_values.dtype)
        return self.origin + self.step * steps

    def scaled_values_to_grid_values(
        self, scaled_values: ScaledValues, unit: Fraction | None
    ) -> Floats:
        """The grid values (m,) of values (m,) that count any unit; None for floats.

        Grid values of what is not on the grid are not whole.
        """
        ratio = (unit or Fraction(1)) / (self.unit or Fraction(1))
        numerator = ratio.numerator
        denominator = ratio.denominator
        if self.unit is None or unit is None:
            values = scaled_values * float(numerator) / float(denominator)
            return np.asarray((values - self.origin) / self.step)
        # Python's integers divide exactly, and round once.
        differences = scaled_values.astype(object) * numerator
        differences = differences - self.origin * denominator
        divisor = denominator * self.step
        grid_values = [difference / divisor for difference in differences.tolist()]
        return np.array(grid_values, dtype=np.float64)

    def positions_to_scaled_values(self, positions: Floats) -> ScaledValues:
        """The exact scaled values (m,) at positions (m,) of no missing cells."""
        level = np.floor(positions).astype(np.int64)
        scaled_values = self.scaled_values[level]
        is_new = positions != level
        new_values = self.positions_to_grid_values(positions[is_new])
        scaled_values[is_new] = self.grid_values_to_scaled_values(new_values)
        return scaled_values

    def round(self, grid_values: Floats) -> Floats:
        """The nearest grid values (m,) that the column can have."""
        if self.unit is None:
            return grid_values
        return np.rint(grid_values)


def _values_at(values: Floats, positions: Floats) -> Floats:
    """Values (k,) at positions (m,), or on a line between two of them."""
    with np.errstate(invalid="ignore"):
        whole = positions.astype(np.int64)
    if (whole == positions).all():  # as most are, and this is quick
        return np.asarray(values[whole], dtype=np.float64)
    return np.interp(positions, np.arange(len(values)), values)


@dataclass(frozen=True, eq=False)
class Column:
    """The cells of a column and its kind, levels and grid.

    The module explains the coordinates of cells.
    """

    encoded: EncodedColumn  # the user's cells
    kind: Kind
    level_codes: Ints  # (k,), the code of the level at each position
    grid: Grid  # of the levels; empty if the column is left out, or of identifiers
    quantity: Quantity = "number"
    text_format: TextFormat | None = None  # how numbers or times are written as text
    observed_only: bool = False  # whether only values that occur may be drawn
    identifier_reason: str = ""  # why it is an identifier

    @property
    def name(self) -> Any:
        """The name of the column in the DataFrame."""
        return self.encoded.name

    @property
    def n_levels(self) -> int:
        """k, how many different values there are."""
        return len(self.level_codes)

    @property
    def is_category(self) -> bool:
        """Whether it is a category, ordered or not, or boolean."""
        return self.kind in CATEGORY_KINDS

    @property
    def is_binary(self) -> bool:
        """Whether it is a category of at most two levels, as labels often are."""
        return self.is_category and self.n_levels <= 2

    @property
    def is_number(self) -> bool:
        """Whether it has numbers or times, so that others may be between them."""
        return self.kind in NUMERIC_KINDS

    @property
    def is_modelled(self) -> bool:
        """Whether the model draws its positions.

        Of constants and identifiers these only say which cells are missing.
        """
        if self.kind in ("constant", "identifier"):
            return bool(self.encoded.missing.any()) and self.n_levels > 0
        return self.kind != "drop"

    @cached_property
    def levels(self) -> pd.Series:
        """(k,), the value at each position, as a Series."""
        return self.encoded.levels.iloc[self.level_codes]

    @cached_property
    def positions(self) -> Floats:
        """(n,), the positions of the column's own cells."""
        # All identifiers are at the position 0.
        other_levels = MISSING
        if self.n_levels:
            other_levels = 0.0
        position_of_code = np.full(len(self.encoded.levels) + 1, other_levels)
        position_of_code[self.level_codes] = np.arange(self.n_levels)
        position_of_code[-1] = MISSING  # the code −1 of a missing cell is this last one
        return np.asarray(position_of_code[self.encoded.codes])

    @property
    def unit(self) -> Fraction | None:
        """What scaled values count, in ones or seconds; None for floats, categories."""
        return self.grid.unit

    @property
    def level_grid_values(self) -> Floats:
        """(k,), the grid values of the levels, ascending."""
        return self.grid.grid_values

    def grid_values_at(self, positions: Floats) -> Floats:
        """The grid values (m,) at positions (m,); NaN where cells are missing."""
        return self.grid.positions_to_grid_values(positions)

    # New values

    @cached_property
    def allows_new_values(self) -> bool:
        """Whether there can be values that do not occur.

        Most levels must be written again as they were, else new ones would look odd.
        """
        if not self.is_number or self.observed_only:
            return False
        if np.abs(self.grid.grid_values).max(initial=0) >= MAX_EXACT_FLOAT:
            return False
        every = max(1, self.n_levels // _MAX_CELLS_READ)
        level_indices = np.arange(0, self.n_levels, every)
        levels = self.levels.iloc[level_indices]
        written_levels = self._write_values(level_indices.astype(np.float64))
        is_alike = [
            str(written) == str(level)
            for written, level in zip(written_levels, levels, strict=True)
        ]
        return float(np.mean(is_alike)) >= _MIN_SHARE_ALIKE

    @cached_property
    def interpolable(self) -> Mask:
        """(k,): True for levels next to which new values may be drawn.

        These are the levels with few rows. All are False if the column has few distinct
        values or allows no new ones.
        """
        k = self.n_levels
        n = int((~self.encoded.missing).sum())
        few_levels = k < _MIN_LEVELS or k <= _MIN_LEVELS_PER_ROW * n
        if few_levels or not self.allows_new_values:
            return np.zeros(k, dtype=bool)
        present = self.positions[has_value(self.positions)].astype(np.int64)
        counts = np.bincount(present, minlength=k)
        return counts <= max(_ATOM_MIN_ROWS, _ATOM_MIN_SHARE * n)

    def is_interpolable(self, positions: Floats) -> Mask:
        """Which positions (m,) are at or above an interpolable level."""
        levels = np.maximum(positions, 0).astype(np.int64)
        return has_value(positions) & self.interpolable[levels]

    def interpolate(
        self,
        low: Floats,
        high: Floats,
        fraction: Floats,
        fallback: Floats,
    ) -> Floats:
        """Positions of new values between two, all (m,).

        A `fraction` of 0 is at `low`, 1 at `high`. Where new values may not be, the
        result is the position `fallback`.
        """
        low_values = self.grid.positions_to_grid_values(np.maximum(low, 0))
        high_values = self.grid.positions_to_grid_values(np.maximum(high, 0))
        grid_values = low_values + fraction * (high_values - low_values)
        new = self.grid.grid_values_to_positions(self.grid.round(grid_values))
        allowed = self.is_interpolable(low) & self.is_interpolable(high)
        return np.where(allowed & has_value(new), new, fallback)

    def quantile_positions(self, sorted_positions: Floats, ranks: Floats) -> Floats:
        """Quantiles (m,) of sorted positions (n,) at ranks (m,) from 0 to n.

        They are between two of the positions where new values may be.
        """
        n = len(sorted_positions)
        drawn = sorted_positions[np.minimum(ranks.astype(np.int64), n - 1)]
        if not self.interpolable.any():
            return drawn
        # The i-th of n values is in the middle of the ranks from i to i + 1.
        centred = np.clip(ranks - 0.5, 0, n - 1)
        below = centred.astype(np.int64)
        above = np.minimum(below + 1, n - 1)
        return self.interpolate(
            low=sorted_positions[below],
            high=sorted_positions[above],
            fraction=centred - below,
            fallback=drawn,
        )

    # Coordinates that are comparable between columns

    @cached_property
    def is_smooth(self) -> bool:
        """Whether it has numbers, none of them frequent, and few cells are missing."""
        counts = np.unique(self.positions, return_counts=True)[1]
        most_frequent = counts.max()
        n = counts.sum()
        return self.is_number and bool(most_frequent <= _MAX_SHARE_IN_SMOOTH_COLUMN * n)

    @cached_property
    def _normal_scores(self) -> Floats:
        """(k + 1,), the normal score of a missing cell and of each level."""
        counts = np.bincount(
            self.positions.astype(np.int64) + 1, minlength=self.n_levels + 1
        )
        middle_ranks = np.cumsum(counts) - counts / 2
        probabilities = middle_ranks / counts.sum()
        probabilities = np.clip(probabilities, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        return np.asarray(ndtri(probabilities))

    def features(self, positions: Floats) -> Floats:
        """Positions (m,) as coordinates (m, a) of a comparable scale.

        A number has one, its normal score. A category has one for each of its frequent
        levels, so that two different levels have a distance of 1.
        """
        if self.is_category:
            levels = np.arange(min(_MAX_ONE_HOT, self.n_levels))
            return np.asarray((positions[:, None] == levels) / np.sqrt(2))
        return _values_at(self._normal_scores, positions + 1)[:, None]

    # The user's values

    def decode(self, positions: Floats, rng: np.random.Generator) -> pd.Series:
        """The values (m,) at positions (m,), with the dtype of the column.

        Identifiers are new ones, drawn at random.
        """
        if self.kind == "identifier":
            return self._new_identifiers(is_missing(positions), rng)
        level = np.floor(positions).astype(np.int64)
        code_of_level = np.append(self.level_codes, -1)  # −1 stays −1
        values = self.encoded.to_series(code_of_level[level])
        is_new = positions != level
        if is_new.any():
            new_values = self._write_values(positions[is_new])
            values.iloc[np.flatnonzero(is_new)] = new_values.array
        return values

    def _new_identifiers(self, missing: Mask, rng: np.random.Generator) -> pd.Series:
        """Identifiers (m,) that are not in the column, but where cells are missing."""
        import pandas as pd

        values = np.full(len(missing), None, dtype=object)
        n = int((~missing).sum())
        values[~missing] = identifiers.new_identifiers(self.encoded, n, rng)
        return pd.Series(values, dtype=object).astype(self.encoded.levels.dtype)

    def _write_values(self, positions: Floats) -> pd.Series:
        """The values at positions, written anew even if they are levels."""
        import pandas as pd

        value_type = self.encoded.value_type
        unit = self.grid.unit or Fraction(1)
        scaled_values = self.grid.positions_to_scaled_values(positions)
        values: Any = scaled_values
        if value_type == "Decimal":
            exponent = 1 - len(str(unit.denominator))  # −2 if the unit is 1/100
            values = [
                Decimal(f"{value}e{exponent}") for value in scaled_values.tolist()
            ]
        elif value_type == "date":
            values = scaled_values.astype("datetime64[D]").tolist()
        elif isinstance(self.text_format, DateFormat):
            times = scaled_values.astype(f"datetime64[{TIME_UNITS[unit]}]")
            values = self.text_format.write(times)
        elif value_type in ("float", "str"):
            values = scaled_values / unit.denominator
            if self.text_format is not None:
                values = self.text_format.write(values)
        if self.encoded.dtype == "object":
            return pd.Series(values, dtype=object)
        return pd.Series(values).astype(self.encoded.levels.dtype)

    def locate(self, values: pd.Series) -> Located:
        """Where values (m,) are. They may be texts, but none is missing.

        A `DataError` names a value that the column cannot have.
        """
        value_type = self.encoded.value_type
        as_texts = value_type != "str" and all(isinstance(v, str) for v in values)
        levels = self.levels.tolist()
        if as_texts:
            levels = [str(level) for level in levels]
        position_of = {level: position for position, level in enumerate(levels)}
        positions = np.array(
            [position_of.get(value, MISSING) for value in values.tolist()],
            dtype=np.float64,
        )
        grid_values = self.grid.positions_to_grid_values(positions)
        new = np.flatnonzero(is_missing(positions))
        new_values = values.iloc[new]
        if not len(new):
            return Located(positions, grid_values, new_values)
        dtype = self.encoded.levels.dtype
        try:
            new_values = self._convert_new_values(new_values, as_texts)
            scaled_values, unit = to_scaled_values(
                new_values, value_type, self.text_format
            )
            grid_values[new] = self.grid.scaled_values_to_grid_values(
                scaled_values, unit
            )
        except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
            raise DataError(
                f"{values.iloc[new[0]]!r} does not fit the column, which is "
                f"{self.kind} ({dtype})",
                str(error),
                column=self.name,
            ) from error
        positions[new] = np.interp(
            grid_values[new], self.grid.grid_values, np.arange(self.n_levels)
        )
        return Located(positions, grid_values, new_values)

    def _convert_new_values(self, values: pd.Series, as_texts: bool) -> pd.Series:
        """Values that are no levels, or texts for them, in the dtype of the column."""
        import pandas as pd

        if not self.is_number:
            raise ValueError(f"it has {format_names(self.levels.tolist())}")
        dtype = self.encoded.levels.dtype
        value_type = self.encoded.value_type
        if as_texts:
            converted = values.astype(dtype)
        else:
            converted = convert_exactly(values, dtype)
        if self.encoded.dtype != "object" or value_type == "str":
            return converted
        make = OBJECT_OF_TEXT[value_type]
        objects = [make(str(value)) for value in converted]
        return pd.Series(objects, dtype=object)

    def encode(self, cells: EncodedColumn) -> Floats:
        """The positions (m,) of other cells (m,) of this column.

        A `DataError` names a value that the column cannot have.
        """
        if not self.is_category and not self.is_number:
            return np.where(cells.missing, MISSING, 0.0)
        present = ~cells.missing
        used_codes, which = np.unique(cells.codes[present], return_inverse=True)
        positions = np.full(len(cells.codes), MISSING)
        positions[present] = self.locate(cells.levels.iloc[used_codes]).positions[which]
        return positions

    # What `columns_` says

    def describe(self) -> dict[str, Any]:
        """A row of the table `columns_`."""
        missing = self.encoded.missing
        return {
            "column": str(self.name),
            "kind": self.kind,
            "missing": round(float(missing.mean()), 4),
            "distinct": len(np.unique(self.encoded.present_codes)),
            "note": self._note(),
        }

    def _note(self) -> str:
        """What the column holds, in a few words."""
        if self.kind == "drop":
            return "left out, as asked"
        if self.kind == "identifier":
            example = identifiers.example_of(self.encoded)
            return f"{self.identifier_reason}: new ones like {example}"
        if self.is_number:
            return f"{self.levels.iloc[0]} to {self.levels.iloc[-1]}"
        note = format_names(self.levels.tolist()) or "all missing"
        if self.discloses_rows:
            # At the front, because long notes are cut.
            note = f"REAL VALUES in samples, most of which belong to one row; {note}"
        return note

    @property
    def discloses_rows(self) -> bool:
        """Whether samples hold real values, most of which belong to one row."""
        counts = np.bincount(self.encoded.present_codes)
        n = int(counts.sum())
        n_once = int((counts == 1).sum())
        many_rows = n >= identifiers.MIN_ROWS_TO_JUDGE
        return self.is_category and many_rows and 2 * n_once > n


def infer_column(
    encoded: EncodedColumn, distinct_row_indices: Ints, wanted: str | None = None
) -> Column:
    """Infer the kind, the levels and the grid of a column from its cells.

    Parameters
    ----------
    encoded : the cells of the column
    distinct_row_indices : indices of the table's rows without repetitions of whole rows
    wanted : the kind that the user gave; "datetime:%d.%m.%Y" for dates as text
    """
    kind, date_format = _parse_wanted_kind(encoded.name, wanted)
    counts = np.bincount(encoded.present_codes)
    present = np.flatnonzero(counts)  # codes of the levels that have a cell
    if kind == "drop":
        return Column(encoded, "drop", present[:0], Grid(np.empty(0)))

    reason = _identifier_reason(encoded, distinct_row_indices, wanted)
    if reason and reason != identifiers.NEARLY_UNIQUE:
        return _identifier(encoded, present, reason)
    if _is_constant(encoded, present):
        return _constant(encoded, present)
    if encoded.categorical or encoded.value_type == "bool" or kind in CATEGORY_KINDS:
        return _category(encoded, counts, kind)

    column = _infer_numeric(encoded, present, kind, date_format)
    if column is not None:
        return column
    if reason:
        return _identifier(encoded, present, reason)
    _refuse_free_text(encoded, present, kind)
    return _category(encoded, counts, kind)


def _is_user_kind(kind: str) -> TypeGuard[UserKind]:
    """Whether a user may give a column this kind."""
    return kind in KINDS


def _parse_wanted_kind(name: Any, wanted: str | None) -> tuple[UserKind | None, str]:
    """The kind that a user gave, and the format of dates, empty if there is none."""
    if wanted is None:
        return None, ""
    kind, _, date_format = wanted.partition(":")
    if not _is_user_kind(kind) or (date_format and kind != "datetime"):
        raise ParameterError(
            "columns",
            {name: wanted},
            "is not a kind of column",
            f"use one of {', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text",
        )
    return kind, date_format


def _identifier_reason(
    encoded: EncodedColumn, distinct_row_indices: Ints, wanted: str | None
) -> str:
    """Why a column is an identifier; empty if it is none, or if the user says so."""
    if wanted == "identifier":
        return "as asked"
    if wanted:
        return ""
    return identifiers.why_identifier(encoded, distinct_row_indices)


def _identifier(encoded: EncodedColumn, present: Ints, reason: str) -> Column:
    """A column of identifiers. All values are at the position 0."""
    grid = Grid(np.empty(0))
    return Column(encoded, "identifier", present[:1], grid, identifier_reason=reason)


def _is_constant(encoded: EncodedColumn, present: Ints) -> bool:
    """Whether all cells are alike. One value and missing cells are two."""
    if len(present) == 0:
        return True
    return len(present) == 1 and not encoded.missing.any()


def _constant(encoded: EncodedColumn, present: Ints) -> Column:
    """A column with one value or none. Constraints may compare with a number."""
    is_number = encoded.value_type not in ("str", "bool") and not encoded.categorical
    if len(present) and is_number:
        return _numeric_column(encoded, present, "constant", None)
    return Column(encoded, "constant", present, Grid(np.zeros(len(present))))


def _category(encoded: EncodedColumn, counts: Ints, kind: Kind | None) -> Column:
    """A column of categories, of which `counts` says how many cells each code has.

    A `kind` of None is chosen.
    """
    if encoded.value_type == "bool" and not encoded.categorical:
        kind = "boolean"
    elif kind is None and encoded.categorical == "ordered":
        kind = "ordered"
    elif kind is None:
        kind = "category"
    level_codes = np.flatnonzero(counts)
    if kind != "ordered":
        by_frequency = np.argsort(-counts[level_codes], kind="stable")
        level_codes = level_codes[by_frequency]
    positions = np.arange(len(level_codes), dtype=np.float64)
    return Column(encoded, kind, level_codes, Grid(positions))


def _infer_numeric(
    encoded: EncodedColumn, present: Ints, kind: Kind | None, date_format: str
) -> Column | None:
    """A column of numbers or times, which may be written as text; None for words."""
    value_type = encoded.value_type
    last = encoded.levels.iloc[present[-1]]
    may_be_text = value_type == "str"
    if value_type in ("int", "float"):
        low, high = _COMPACT_DATE_RANGE
        may_be_text = bool(date_format) or low < last < high
    text_format = None
    if may_be_text:
        text_format = _infer_text_format(encoded, present, kind, date_format)
    is_plain_number = value_type in ("int", "float", "Decimal") and text_format is None
    if kind == "datetime" and is_plain_number:
        raise DataError(
            f"the column holds {last}, which is a number, not a time",
            "convert it by pandas.to_datetime, with its unit",
            column=encoded.name,
        )
    if value_type == "str" and text_format is None:
        return None
    return _numeric_column(encoded, present, kind, text_format)


def _numeric_column(
    encoded: EncodedColumn,
    present: Ints,
    kind: Kind | None,
    text_format: TextFormat | None,
) -> Column:
    """The column of numbers or times; a `kind` of None is chosen."""
    scaled_values, unit = to_scaled_values(
        encoded.levels.iloc[present], encoded.value_type, text_format
    )
    ascending = np.argsort(scaled_values, kind="stable")
    scaled_values = scaled_values[ascending]
    # A user who calls floats continuous wants no grid of their last decimal.
    is_float = encoded.levels.dtype.kind == "f"
    if unit is not None and kind == "continuous" and is_float:
        scaled_values = scaled_values / unit.denominator
        unit = None

    quantity = _quantity(encoded, text_format)
    if kind is None:
        kind = _kind_of_numbers(quantity, unit)
    column = Column(
        encoded,
        kind,
        level_codes=present[ascending],
        grid=_infer_grid(scaled_values, unit),
        quantity=quantity,
        text_format=text_format,
    )
    if quantity == "time" and _is_on_calendar(column):
        column = replace(column, observed_only=True)
    return column


def _infer_grid(scaled_values: ScaledValues, unit: Fraction | None) -> Grid:
    """The grid of ascending levels (k,), with the largest step that fits all."""
    if unit is None:
        return Grid(scaled_values)
    if int(scaled_values[-1]) - int(scaled_values[0]) >= _MAX_INT64_DIFFERENCE:
        scaled_values = scaled_values.astype(object)  # Python's integers
    step = 1
    if len(scaled_values) >= _MIN_LEVELS:
        step = int(np.gcd.reduce(scaled_values - scaled_values[0])) or 1
    return Grid(scaled_values, unit, step)


def _quantity(encoded: EncodedColumn, text_format: TextFormat | None) -> Quantity:
    """What numbers of the column measure."""
    if isinstance(text_format, DateFormat):
        return "time"
    if encoded.value_type in ("date", "datetime"):
        return "time"
    if encoded.value_type == "timedelta":
        return "duration"
    return "number"


def _kind_of_numbers(quantity: Quantity, unit: Fraction | None) -> Kind:
    """The kind of a column of numbers or times."""
    if quantity != "number":
        return "datetime"
    if unit == 1:
        return "integer"
    return "continuous"


def _is_on_calendar(column: Column) -> bool:
    """Whether times are on a grid that does not have steps of one length in UTC.

    These are first days of months, and times on a grid of the clock on the wall, which
    jumps twice a year. New times between them would not be on the grid.
    """
    import pandas as pd

    if column.encoded.value_type == "datetime":
        times = column.levels
        if len(times) >= _MIN_LEVELS:
            wall_clock = times.dt.tz_localize(None).astype("int64").to_numpy()
            wall_clock_step = np.gcd.reduce(wall_clock - wall_clock[0])
            if wall_clock_step > column.grid.step:
                return True
    else:
        grid = column.grid
        assert grid.unit is not None, "times are integers of a unit"
        unit_name = TIME_UNITS[grid.unit]
        times = pd.Series(grid.scaled_values.astype(f"datetime64[{unit_name}]"))
    is_midnight = times == times.dt.normalize()
    return bool(((times.dt.day == 1) & is_midnight).all())


def _infer_text_format(
    encoded: EncodedColumn, present: Ints, kind: Kind | None, date_format: str
) -> TextFormat | None:
    """How texts write numbers or times, or integers dates; None for other texts.

    A `DataError` names the first cell that is written in another way than most.
    """
    texts = encoded.levels.iloc[present].astype(str).tolist()
    text_format: TextFormat | None = None
    if date_format:
        text_format = DateFormat(date_format)
    elif kind is None or kind == "datetime":
        text_format = _infer_one_date_format(encoded, present, texts)
    if text_format is None and kind != "datetime" and encoded.value_type == "str":
        text_format = _infer_number_format(encoded)
    if text_format is None:
        return None
    unreadable = np.isnan(text_format.parse(texts))
    if unreadable.any():
        first = int(np.argmax(unreadable))
        others = date_format or "numbers"
        raise _odd_cell(encoded, present[first], f"but others are {others}")
    return text_format


def _infer_number_format(encoded: EncodedColumn) -> NumberFormat | None:
    """How the texts of a column write numbers; None if they are other texts."""
    codes = encoded.present_codes
    every = max(1, len(codes) // _MAX_CELLS_READ)
    cells = encoded.levels.iloc[codes[::every]]
    return infer_number_format(cells.to_numpy(dtype=object))


def _infer_one_date_format(
    encoded: EncodedColumn, present: Ints, texts: list[str]
) -> DateFormat | None:
    """The format of dates of all texts; None if most do not look like dates.

    A `DataError` says that there is more than one format, or that one is ambiguous.
    """
    date_formats = infer_date_formats(texts)
    if len(date_formats) == 1:
        return date_formats[0]
    kinds = ("category", "datetime:%d/%m/%Y")
    if len(date_formats) > 1:
        fact = "a date in which day and month could be either"
        raise _odd_cell(encoded, present[0], fact, kinds)
    every = max(1, len(texts) // _MAX_CELLS_READ)
    looks_like_date = [
        _DATE_AND_TIME.fullmatch(text.strip()) is not None for text in texts[::every]
    ]
    if np.mean(looks_like_date) >= _MIN_SHARE_ALIKE:
        first = every * int(np.argmin(looks_like_date))
        fact = "but dates not all in one format"
        raise _odd_cell(encoded, present[first], fact, kinds)
    return None


def _odd_cell(
    encoded: EncodedColumn,
    code: int,
    why: str,
    suggested_kinds: tuple[str, ...] = ("category",),
) -> DataError:
    """The error of the first cell with a code, which holds what others do not."""
    row = int(np.argmax(encoded.codes == code))
    value = str(encoded.levels.iloc[[code]].astype(str).iloc[0])
    return DataError(
        f"the cell holds {value!r}, {why}",
        "fix the cells",
        row,
        encoded.name,
        suggested_kinds,
    )


def _refuse_free_text(encoded: EncodedColumn, present: Ints, kind: Kind | None) -> None:
    """Raise a `DataError` for texts that cannot be categories.

    These are texts where the user wants numbers, and many long, different texts.
    """
    texts = encoded.levels.iloc[present].tolist()
    if kind is not None:
        raise DataError(
            f"the column is text such as {texts[0]!r}, not {kind}",
            "convert it",
            column=encoded.name,
        )
    n = int((~encoded.missing).sum())
    if n < identifiers.MIN_ROWS_TO_JUDGE or 2 * len(texts) <= n:
        return
    mean_length = sum(len(text) for text in texts) / len(texts)
    mean_spaces = sum(text.count(" ") for text in texts) / len(texts)
    if mean_length > identifiers.LONG_TEXT_LENGTH or mean_spaces >= 2:
        raise DataError(
            f"the column is free text such as {texts[0][:30]!r}, which a table cannot "
            "imitate",
            column=encoded.name,
            suggested_kinds=("drop", "identifier", "category"),
        )
