"""DataFrames whose missing cells are filled, as `TableFlow.impute` returns them.

`sweeps` draws what they are filled with.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, warn_user
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_value,
    is_missing,
)
from sliceflow.estimators.tables.imputing.sweeps import fill_missing
from sliceflow.estimators.tables.rows.table_rows import (
    TableRows,
    format_names,
    read_dataframe,
)
from sliceflow.estimators.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd


def fill_dataframe(
    table: Table, df: pd.DataFrame, n: int, seed: Seed
) -> list[pd.DataFrame]:
    """n copies of a DataFrame, filled with different draws given its other cells.

    Warnings say which cells stay empty, and which others the model does not know.
    """
    rows = read_dataframe(df).align_columns(table.rows)
    level_positions = table.positions_of(rows, new_as_missing=True)
    is_empty = np.column_stack([encoded.is_missing for encoded in rows.columns])
    _warn_of_new_levels(rows, is_missing(level_positions) & ~is_empty)
    filled_positions, unfilled = fill_missing(table, level_positions, n, seed)
    filled_dfs = []
    for part_positions in np.split(filled_positions, n):
        filled_df = _with_filled_cells(
            df, table, is_empty, LevelPositions(part_positions)
        )
        filled_dfs.append(filled_df)
    _warn_of_empty_cells(table, filled_dfs, np.unique(unfilled % len(level_positions)))
    return filled_dfs


def _with_filled_cells(
    df: pd.DataFrame, table: Table, is_empty: Mask, filled_positions: LevelPositions
) -> pd.DataFrame:
    """A copy of a DataFrame in which empty cells (m, d) are filled.

    `filled_positions` (m, d) are the positions of the filled rows.
    """
    filled_df = df.copy()
    names = list[Hashable](df.columns.tolist())
    for c in np.flatnonzero(is_empty.any(axis=0)).tolist():
        is_filled = is_empty[:, c] & has_value(filled_positions[:, c])
        row_indices = np.flatnonzero(is_filled)
        new_cells = table.columns[c].decode(filled_positions[row_indices, c])
        column_index = names.index(table.names[c])  # in the DataFrame
        series = _with_new_cells(
            filled_df.iloc[:, column_index], row_indices, new_cells
        )
        filled_df.isetitem(column_index, series.array)
    return filled_df


def _with_new_cells(
    series: pd.Series, row_indices: Ints, new_cells: pd.Series
) -> pd.Series:
    """A column of a DataFrame with new cells in the rows with these indices.

    A column without values takes their dtype, and new categories come last.
    """
    if series.isna().all():
        cells = new_cells.set_axis(row_indices).reindex(range(len(series)))
        return cells.set_axis(series.index)
    series = series.copy()
    if hasattr(series, "cat"):
        categories = series.cat.categories
        new = [value for value in new_cells.unique() if value not in categories]
        series = series.cat.add_categories(new)
        new_cells = new_cells.astype(series.dtype)
    try:
        series.iloc[row_indices] = new_cells.array
    except TypeError as error:
        fact = f"it has dtype {series.dtype}, and new cells are {new_cells.dtype}"
        hint = "convert it before impute"
        raise DataError(fact, hint, column=series.name) from error
    return series


def _warn_of_new_levels(rows: TableRows, is_new: Mask) -> None:
    """Warn of cells (m, d) with a level that the model does not know."""
    if not is_new.any():
        return
    row, c = np.argwhere(is_new)[0].tolist()
    encoded = rows.columns[c]
    value = encoded.levels.iloc[encoded.codes[row]]
    n_rows = int(is_new.any(axis=1).sum())
    text = (
        f"{n_rows} rows have values that the model has not seen, such as "
        f"{encoded.name}={value}: they stay, and tell nothing about other cells"
    )
    warn_user(text)


def _warn_of_empty_cells(
    table: Table, filled_dfs: Sequence[pd.DataFrame], unfilled: Ints
) -> None:
    """Warn if cells are still missing; constraints allow none in `unfilled` rows."""
    empty = []
    for name in table.names:
        if any(df[name].isna().any() for df in filled_dfs):
            empty.append(name)
    if not empty:
        return
    reason = "identifiers and columns without values cannot be filled"
    if len(unfilled):
        n_rows = len(filled_dfs[0])
        reason = f"constraints cannot be kept in {len(unfilled)} of {n_rows} rows"
    text = f"impute left cells of {format_names(empty)} empty: {reason}"
    warn_user(text)
