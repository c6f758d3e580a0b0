"""The rows of a DataFrame as a model stores them, column by column."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.base.prepared_fit import check_not_prepared
from sliceflow.errors import DataError
from sliceflow.estimators.tables.rows.encoded_columns import (
    EncodedColumn,
    encode_column,
    require_pandas,
)
from sliceflow.estimators.tables.rows.stored_levels import (
    PANDAS_ERRORS,
    ColumnName,
    to_python_type,
)
from sliceflow.saved_types import Label
from sliceflow.validation import duplicates

if TYPE_CHECKING:
    import pandas as pd

# The most names that a message lists: with so few, most messages fit in a line.
_MAX_NAMES_LISTED = 6


@dataclass(frozen=True, eq=False)
class TableRows:
    """The user's rows, column by column."""

    columns: tuple[EncodedColumn, ...]
    # The names of the levels of the header, as in `DataFrame.columns.names`: one, which
    # is mostly None, for plain column names, more for a header of several lines.
    header: tuple[Label, ...]
    n: int  # how many rows there are

    def check_saved(self) -> None:
        """Raise a ValueError if the parts do not fit together, as in a damaged file."""
        if any(len(column.codes) != self.n for column in self.columns):
            raise ValueError("columns have different lengths")
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("column names are not different")
        if any(self._n_header_levels(name) != len(self.header) for name in names):
            raise ValueError("column names do not fit their header")

    def _n_header_levels(self, name: Label) -> int:
        """How many levels of the header a column name has."""
        if len(self.header) > 1 and isinstance(name, tuple):
            return len(name)
        return 1

    def __len__(self) -> int:
        return self.n

    def concatenate(self, others: TableRows) -> TableRows:
        """These rows, and others below them."""
        pairs = zip(self.columns, others.align_columns(self).columns, strict=True)
        columns = tuple(_concatenate(above, below) for above, below in pairs)
        return replace(self, columns=columns, n=self.n + others.n)

    def align_columns(self, like: TableRows) -> TableRows:
        """The same rows, with the columns in the order that they have in `like`.

        A `DataError` names a column that is lacking or unknown.
        """
        by_name = {column.name: column for column in self.columns}
        names = [column.name for column in like.columns]
        for name in names:
            if name not in by_name:
                raise DataError(
                    f"the table lacks the column {name!r}",
                    f"the model has {format_names(names)}",
                )
        for name in by_name:
            if name not in names:
                raise DataError(
                    f"the model does not know the column {name!r} of the table",
                    "drop it",
                )
        columns = tuple(by_name[name] for name in names)
        return replace(self, columns=columns, header=like.header)

    def copy(self) -> TableRows:
        """The same rows, with no array of the user's."""
        return self.take(np.arange(self.n))

    def take(self, row_indices: Ints) -> TableRows:
        """The rows with these indices (m,)."""
        columns = tuple(column.take(row_indices) for column in self.columns)
        return replace(self, columns=columns, n=len(row_indices))

    def keys(self) -> Sequence[Hashable]:
        """A key of each row: the tuple of its values."""
        return list(zip(*(column.keys() for column in self.columns), strict=True))


def make_dataframe(
    rows: TableRows, columns: Sequence[tuple[ColumnName, pd.Series]]
) -> pd.DataFrame:
    """A DataFrame of (name, Series) pairs, with a header like the one of `rows`."""
    import pandas as pd

    df = pd.DataFrame({i: series for i, (_, series) in enumerate(columns)})
    names = [name for name, _ in columns]
    if len(rows.header) > 1:
        tuples = [name for name in names if isinstance(name, tuple)]  # all of them
        df.columns = pd.MultiIndex.from_tuples(tuples, names=rows.header)
    else:
        df.columns = pd.Index(names, name=rows.header[0], tupleize_cols=False)
    return df


def as_dataframe(table: object) -> pd.DataFrame:
    """A table that is a DataFrame of pandas already; a TypeError for others."""
    check_not_prepared(table)
    require_pandas()
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    hint = "pass pandas.DataFrame(array)"
    if hasattr(table, "to_pandas"):
        hint = "pass frame.to_pandas()"
    kind = type(table).__name__
    raise TypeError(f"a table is a pandas DataFrame or a path, not {kind}; {hint}")


def read_dataframe(table: object) -> TableRows:
    """The rows of a DataFrame. An error names what cannot be used, and what to do."""
    df = as_dataframe(table)
    names = [to_python_type(name) for name in df.columns.tolist()]
    if not names:
        raise DataError("the table has no columns")
    if not len(df):
        raise DataError("the table has no rows")
    without_name = [i for i, name in enumerate(names) if name != name]
    if without_name:
        fact = f"the name of the column at index {without_name[0]} is NaN"
        raise DataError(fact, "rename it")
    # Constraints and files name columns by texts, so 1 and "1" are the same name.
    repeated = duplicates([str(name) for name in names])
    if repeated:
        raise DataError(
            f"two columns are named {repeated[0]}", "give each a name of its own"
        )
    columns = tuple(encode_column(df.iloc[:, i], name) for i, name in enumerate(names))
    header = tuple(to_python_type(name) for name in df.columns.names)
    return TableRows(columns, header, len(df))


def convert_exactly(values: pd.Series, dtype: Any) -> pd.Series:
    """A Series with another dtype. A ValueError if that would change a value."""
    try:
        converted = values.astype(dtype)
        changed = values[(converted != values) & values.notna()]
    except PANDAS_ERRORS as error:
        raise ValueError(f"{values.dtype} does not fit in {dtype}") from error
    if len(changed):
        raise ValueError(f"{changed.iloc[0]!r} does not fit in {dtype}")
    return converted


def _concatenate(above: EncodedColumn, below: EncodedColumn) -> EncodedColumn:
    """A column of a model with new cells below its own."""
    import pandas as pd

    old_cells = above.to_series(above.codes)
    new_cells = below.to_series(below.codes)
    try:
        if above.categorical:
            dtype = _with_new_categories(above, new_cells)
            old_cells = old_cells.astype(dtype)
            new_cells = new_cells.astype(dtype)
        new_cells = convert_exactly(new_cells, old_cells.dtype)
        return encode_column(
            pd.concat([old_cells, new_cells], ignore_index=True), above.name
        )
    except ValueError as error:
        raise DataError(
            f"new rows do not fit in the model's dtype {old_cells.dtype} ({error})",
            "convert one of them",
            column=above.name,
        ) from error


def _with_new_categories(
    column: EncodedColumn, new_cells: pd.Series
) -> pd.CategoricalDtype:
    """The categories of a column, and behind them the new ones of new cells."""
    import pandas as pd

    values = convert_exactly(
        pd.Series(new_cells.dropna().unique()), column.levels.dtype
    )
    new_values = values[~values.isin(column.levels)].sort_values()
    categories = pd.Index(pd.concat([column.levels, new_values]))
    return pd.CategoricalDtype(categories, column.categorical == "ordered")


def format_names(names: Sequence[object]) -> str:
    """The first names or values as text, and how many there are if not all fit."""
    text = ", ".join(str(name) for name in names[:_MAX_NAMES_LISTED])
    if len(names) <= _MAX_NAMES_LISTED:
        return text
    return f"{text}, … ({len(names)})"
