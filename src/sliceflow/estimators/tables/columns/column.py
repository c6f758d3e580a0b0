"""A column of a table: its cells, and what was inferred of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from scipy.special import ndtri

from sliceflow.arrays import Floats, Ints
from sliceflow.estimators.tables.columns.formats import (
    TextFormat,
    from_exact_values,
)
from sliceflow.estimators.tables.columns.grid import Grid, values_at
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    GridValues,
    LevelPositions,
    has_value,
)
from sliceflow.estimators.tables.columns.new_values import NewValuePolicy
from sliceflow.estimators.tables.identifiers.judgment import MIN_ROWS_TO_JUDGE
from sliceflow.estimators.tables.identifiers.new_identifiers import new_identifiers
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn
from sliceflow.estimators.tables.rows.stored_levels import ColumnName

if TYPE_CHECKING:
    import pandas as pd

# Kinds that a user may give. One more kind, "constant", is only shown by `columns_`.
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
QUANTITATIVE_KINDS = ("continuous", "integer", "datetime")
CATEGORY_KINDS = ("boolean", "category", "ordered")
KINDS: tuple[str, ...] = get_args(UserKind)

# A number is not dense if one value, or missing cells, have more than this share of
# the rows.
_MAX_SHARE_IN_DENSE_COLUMN = 0.1
# The most frequent levels of a category have an axis each in `Column.features`, at most
# this many; the others are all at the origin.
_MAX_ONE_HOT = 12
# Probabilities of normal scores stay this far from 0 and 1, where scores are infinite.
_MIN_PROBABILITY = 1e-6


def middle_probabilities(counts: Ints) -> Floats:
    """The probabilities (k,) in the middle of ascending values with these counts (k,).

    Examples
    --------
    >>> middle_probabilities(np.array([1, 1, 2]))
    array([0.125, 0.375, 0.75 ])
    """
    return np.asarray((np.cumsum(counts) - counts / 2) / counts.sum())


@dataclass(frozen=True, eq=False)
class Column:
    """The cells of a column and its kind, levels and grid.

    The first lines of the package `columns` explain the forms of cells.
    """

    encoded: EncodedColumn  # the user's cells
    kind: Kind
    level_codes: Ints  # (k,), the code of the level at each position
    grid: Grid  # of the levels; empty if the column is left out, or of identifiers
    quantity: Quantity = "number"
    text_format: TextFormat | None = None  # how numbers or times are written as text
    allows_only_levels: bool = False  # whether only its levels may be drawn
    identifier_reason: str = ""  # why the column has identifiers
    # Numbers that fewer rows have are rare: samples have others near by
    # (`draws.rare_numbers`).
    min_count: int = 1
    # The levels that rare ones were merged into, by the rare level (`rare_levels`).
    merged_levels: Mapping[Hashable, Hashable] = field(default_factory=dict)

    @property
    def name(self) -> ColumnName:
        """The name of the column in the DataFrame."""
        return self.encoded.name

    @property
    def n_levels(self) -> int:
        """k, the number of different values."""
        return len(self.level_codes)

    @property
    def is_category(self) -> bool:
        """Whether models draw levels: of a category, or of identifiers that repeat."""
        return self.kind in CATEGORY_KINDS or self.has_pseudonyms

    @property
    def has_pseudonyms(self) -> bool:
        """Whether samples have a new identifier for each one that is drawn."""
        return self.kind == "identifier" and self.n_levels > 1

    @property
    def is_binary(self) -> bool:
        """Whether this is a category of at most two levels, as labels often are."""
        return self.is_category and self.n_levels <= 2

    @property
    def is_quantitative(self) -> bool:
        """Whether this has numbers or times: other values may be between these."""
        return self.kind in QUANTITATIVE_KINDS

    @property
    def is_time(self) -> bool:
        """Whether the column has times, which can be compared but not added."""
        return self.is_quantitative and self.quantity == "time"

    @property
    def is_modeled(self) -> bool:
        """Whether the model draws its positions.

        Positions of constants, and of identifiers that differ in all rows, only tell
        which cells are missing: these columns are drawn if there are such cells.
        """
        if self.kind in ("constant", "identifier") and not self.has_pseudonyms:
            return bool(self.encoded.is_missing.any()) and self.n_levels > 0
        return self.kind != "drop"

    @cached_property
    def levels(self) -> pd.Series:
        """The value at each position (k,), as a Series."""
        return self.encoded.levels.iloc[self.level_codes]

    @cached_property
    def positions(self) -> LevelPositions:
        """The positions (n,) of the column's own cells."""
        # Identifiers that do not repeat are all at the position 0.
        other_levels = MISSING
        if self.n_levels:
            other_levels = 0.0
        position_of_code = np.full(len(self.encoded.levels) + 1, other_levels)
        position_of_code[self.level_codes] = np.arange(self.n_levels)
        position_of_code[-1] = MISSING  # the code −1 of a missing cell is this last one
        return LevelPositions(position_of_code[self.encoded.codes])

    @property
    def unit(self) -> Fraction | None:
        """The unit that exact values count, in ones or seconds; None if there is none.

        Floats with many decimals and categories have no unit.
        """
        return self.grid.unit

    @property
    def level_grid_values(self) -> GridValues:
        """The grid values (k,) of the levels, ascending."""
        return self.grid.grid_values

    def grid_values_at(self, positions: LevelPositions) -> GridValues:
        """The grid values (m,) at positions (m,); NaN where cells are missing."""
        return self.grid.grid_values_at(positions)

    # New values

    @cached_property
    def new_value_policy(self) -> NewValuePolicy:
        """The policy that says where values may be drawn that are not in the table."""
        return NewValuePolicy(self)

    @cached_property
    def level_counts(self) -> Ints:
        """How many rows have each level: (k,)."""
        observed = self.positions[has_value(self.positions)].astype(np.int64)
        return np.bincount(observed, minlength=self.n_levels)

    def nearest_positions(self, grid_values: GridValues) -> LevelPositions:
        """The positions (m,) of grid values (m,), rounded as the column's values are.

        A grid value outside the range of the column becomes its lowest or highest
        value.
        """
        lowest = self.level_grid_values[0]
        highest = self.level_grid_values[-1]
        inside = GridValues(np.clip(grid_values, lowest, highest))
        return self.grid.rounded_positions(inside)

    # Features, which are comparable between columns

    @cached_property
    def is_dense_number(self) -> bool:
        """Whether this has numbers, none of them frequent, and few missing cells."""
        counts = np.unique(self.positions, return_counts=True)[1]
        most_frequent = counts.max()
        n = counts.sum()
        return self.is_quantitative and bool(
            most_frequent <= _MAX_SHARE_IN_DENSE_COLUMN * n
        )

    @cached_property
    def _normal_scores(self) -> Floats:
        """The normal scores (k + 1,) of a missing cell and of each level."""
        counts = np.bincount(
            self.positions.astype(np.int64) + 1, minlength=self.n_levels + 1
        )
        probabilities = middle_probabilities(counts)
        probabilities = np.clip(probabilities, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        return np.asarray(ndtri(probabilities))

    def features(self, positions: LevelPositions) -> Floats:
        """The features (m, a) of cells with positions (m,), on a comparable scale.

        A number has one, its normal score. A category has one for each of its frequent
        levels, so that two different levels have a distance of 1.
        """
        if self.is_category:
            levels = np.arange(min(_MAX_ONE_HOT, self.n_levels))
            return np.asarray((positions[:, None] == levels) / np.sqrt(2))
        return values_at(self._normal_scores, positions + 1)[:, None]

    # The user's values

    def decode(self, positions: LevelPositions) -> pd.Series:
        """The values (m,) at positions (m,), with the dtype of the column.

        Floats of few decimals have no rounding errors, also where levels have some. The
        values of identifiers are real ones: `draw_identifiers` makes up others.
        """
        level = np.floor(positions).astype(np.int64)
        code_of_level = np.append(self.level_codes, -1)  # −1 stays −1
        values = self.encoded.to_series(code_of_level[level])
        is_written = positions != level
        if self._is_float_of_few_decimals:
            is_written = has_value(positions)
        if is_written.any():
            new_values = self.write_values(positions[is_written])
            values.iloc[np.flatnonzero(is_written)] = new_values.array
        return values

    @property
    def _is_float_of_few_decimals(self) -> bool:
        """Whether levels are floats of few decimals: .1 + .2 is .30000000000000004."""
        is_float = self.is_quantitative and self.encoded.value_type == "float"
        return is_float and self.unit is not None

    def draw_identifiers(
        self, positions: LevelPositions, rng: np.random.Generator
    ) -> pd.Series:
        """New identifiers (m,), at random; missing where positions (m,) are.

        None is in the column. Of identifiers that repeat, each level has a new one.
        """
        import pandas as pd

        is_observed = has_value(positions)
        identifier_index = np.arange(int(is_observed.sum()))  # one for each cell
        if self.has_pseudonyms:
            identifier_index = np.unique(positions[is_observed], return_inverse=True)[1]
        n = int(identifier_index.max(initial=-1)) + 1
        identifiers = new_identifiers(self.encoded, n, rng)
        values = np.full(len(positions), None, dtype=object)
        values[is_observed] = np.array(identifiers, dtype=object)[identifier_index]
        series = pd.Series(values, dtype=object).astype(self.encoded.levels.dtype)
        if self.encoded.categorical:
            return series.astype("category")
        return series

    def write_values(self, positions: LevelPositions) -> pd.Series:
        """The values (m,) at positions (m,), written anew even if they are levels."""
        import pandas as pd

        values = from_exact_values(
            self.grid.exact_values_at(positions),
            self.grid.unit,
            self.encoded.value_type,
            self.text_format,
        )
        if self.encoded.dtype == "object":
            return pd.Series(values, dtype=object)
        return pd.Series(values).astype(self.encoded.levels.dtype)

    @property
    def has_disclosing_levels(self) -> bool:
        """Whether samples hold real values, most of which belong to one row."""
        counts = np.bincount(self.encoded.observed_codes)
        n = int(counts.sum())
        n_once = int((counts == 1).sum())
        has_many_rows = n >= MIN_ROWS_TO_JUDGE
        return self.kind in CATEGORY_KINDS and has_many_rows and 2 * n_once > n
