"""The positions of users' values in a column."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.errors import DataError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import to_exact_values
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    GridValues,
    LevelPositions,
    is_missing,
)
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn
from sliceflow.estimators.tables.rows.stored_levels import OBJECT_OF_TEXT
from sliceflow.estimators.tables.rows.table_rows import convert_exactly, format_names

if TYPE_CHECKING:
    import pandas as pd


class LocatedValues(NamedTuple):
    """Where values (m,) are in a column."""

    positions: LevelPositions  # (m,); of values outside the range, the nearest end
    grid_values: GridValues  # (m,); of categories, the positions
    unseen_values: pd.Series  # the values that are no levels, in the column's dtype


def locate_values(column: Column, values: pd.Series) -> LocatedValues:
    """Where values (m,) are in a column. They may be texts, but none is missing.

    A `DataError` names a value that the column cannot have.
    """
    is_all_text = all(isinstance(value, str) for value in values)
    as_texts = is_all_text and column.encoded.value_type != "str"
    positions = _positions_of_seen_values(column, values, as_texts)
    grid_values = column.grid.grid_values_at(positions)
    is_unseen = is_missing(positions)
    if not is_unseen.any():
        return LocatedValues(positions, grid_values, unseen_values=values[:0])
    unseen_values, unseen_grid_values = _read_unseen_values(
        column, values[is_unseen], as_texts
    )
    grid_values[is_unseen] = unseen_grid_values
    positions[is_unseen] = np.interp(
        unseen_grid_values, column.grid.grid_values, np.arange(column.n_levels)
    )
    return LocatedValues(positions, grid_values, unseen_values)


def _positions_of_seen_values(
    column: Column, values: pd.Series, as_texts: bool
) -> LevelPositions:
    """The positions (m,) of values (m,) that are levels; others are `MISSING`.

    With `as_texts`, values are compared with the texts of levels.
    """
    position_of = _positions_of_levels(column)
    if as_texts:
        position_of = {str(level): p for level, p in position_of.items()}
    positions = [position_of.get(value, MISSING) for value in values.tolist()]
    return LevelPositions(np.array(positions, dtype=np.float64))


def encode_cells(
    column: Column,
    cells: EncodedColumn,
    *,
    new_as_missing: bool = False,
    outside_as_missing: bool = False,
) -> LevelPositions:
    """The positions (m,) in a column of other cells (m,).

    A `DataError` names a value that the column cannot have. With `new_as_missing`, a
    new level of a category is at the position of missing cells. With
    `outside_as_missing`, so is a number outside the range of the column; else it is at
    the nearest end.
    """
    if column.kind == "identifier" or not (
        column.is_category or column.is_quantitative
    ):
        return LevelPositions(np.where(cells.is_missing, MISSING, 0.0))
    is_read = ~cells.is_missing
    if new_as_missing and column.is_category:
        is_read &= ~_has_new_level(column, cells)
    positions = LevelPositions(np.full(len(cells.codes), MISSING))
    if not is_read.any():
        return positions
    # Each level is looked up once.
    codes, code_index = np.unique(cells.codes[is_read], return_inverse=True)
    located = locate_values(column, cells.levels.iloc[codes])
    positions_of_codes = located.positions
    if outside_as_missing and column.is_quantitative:
        is_outside = located.grid_values < column.grid.grid_values[0]
        is_outside |= located.grid_values > column.grid.grid_values[-1]
        positions_of_codes[is_outside] = MISSING
    positions[is_read] = positions_of_codes[code_index]
    return positions


def _has_new_level(column: Column, cells: EncodedColumn) -> Mask:
    """Which cells (m,) have a level that a column does not have, compared as texts."""
    own_levels = {str(level) for level in column.levels.tolist()}
    is_new_level = [str(level) not in own_levels for level in cells.levels]
    of_code = np.array([*is_new_level, False])  # the code −1 of a missing cell is last
    return np.asarray(of_code[cells.codes], dtype=bool)


def _read_unseen_values(
    column: Column, values: pd.Series, as_texts: bool
) -> tuple[pd.Series, GridValues]:
    """Values (m,) that are no levels, in the column's dtype, and as grid values.

    A `DataError` says that the column cannot have them.
    """
    value_type = column.encoded.value_type
    try:
        converted = _convert_unseen_values(column, values, as_texts)
        exact_values, unit = to_exact_values(converted, value_type, column.text_format)
        return converted, column.grid.grid_values_of(exact_values, unit)
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise DataError(
            f"{values.iloc[0]!r} does not fit the column, which is "
            f"{column.kind} ({column.encoded.levels.dtype})",
            str(error),
            column=column.name,
        ) from error


def _convert_unseen_values(
    column: Column, values: pd.Series, as_texts: bool
) -> pd.Series:
    """Values that are no levels, or texts for them, in the dtype of the column."""
    import pandas as pd

    if not column.is_quantitative:
        raise ValueError(f"it has {format_names(column.levels.tolist())}")
    dtype = column.encoded.levels.dtype
    value_type = column.encoded.value_type
    if as_texts:
        converted = values.astype(dtype)
    else:
        converted = convert_exactly(values, dtype)
    if column.encoded.dtype != "object" or value_type == "str":
        return converted
    make = OBJECT_OF_TEXT[value_type]
    objects = [make(str(value)) for value in converted]
    return pd.Series(objects, dtype=object)


def _positions_of_levels(column: Column) -> dict[Hashable, int]:
    """The position of each level, and of levels that are merged into another."""
    levels = column.levels.tolist()
    position_of: dict[Hashable, int] = {
        level: position for position, level in enumerate(levels)
    }
    for level, merged_into in column.merged_levels.items():
        position_of[level] = position_of[merged_into]
    return position_of
