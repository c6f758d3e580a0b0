"""pandas DataFrames: the kinds of their columns, and rows with column names.

pandas is optional. Nothing here imports it before a DataFrame is there or asked for.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sliceflow.errors import DataError
from sliceflow.validation import duplicates

if TYPE_CHECKING:
    import pandas as pd

ColumnKind = Literal[
    "boolean",
    "integer",
    "float",
    "datetime",
    "timedelta",
    "category",
    "object",
    "text",
    "other",
]

# numpy, pandas' nullable types and Arrow types all have these one-letter kinds.
_KIND_OF_DTYPE: dict[str, ColumnKind] = {
    "b": "boolean",
    "i": "integer",
    "u": "integer",
    "f": "float",
    "M": "datetime",
    "m": "timedelta",
}

# The beginning of texts that look like dates: day, month and year in any order, such as
# 17.05.2024. Metrics and tables both look for it.
DATE_PATTERN = r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}"

_HOW_TO_GET_NUMBERS = (
    "turn it into numbers (categories one-hot, for example), pass it as y if it is "
    "the label, or leave the column out"
)
_HOW_TO_GET_NUMBERS_FROM_TIMES = (
    "turn it into numbers, such as a count of days, or leave the column out"
)


def column_kind(column: pd.Series) -> ColumnKind:
    """The kind of a DataFrame's column, as its dtype tells; no cell is looked at.

    Metrics and tables both begin with this. Numbers, booleans and times are certain.
    Columns of kind "category", "object" and "text" have to be looked into: their cells
    may be words as well as numbers or dates that are written as text.

    Returns
    -------
    "boolean", "integer", "float", "datetime" or "timedelta", of any size or library;
    "category" for pandas' categories of any values; "object" for Python objects;
    "text" for pandas' types of strings; "other" for the rest, such as periods

    Examples
    --------
    >>> import pandas as pd
    >>> from sliceflow.dataframes import column_kind
    >>> column_kind(pd.Series([1, None], dtype="Int64"))
    'integer'
    >>> column_kind(pd.Series(["a", "b"], dtype="category"))
    'category'
    """
    dtype = column.dtype
    if str(dtype) == "category":
        return "category"
    if dtype.kind in _KIND_OF_DTYPE:
        return _KIND_OF_DTYPE[dtype.kind]
    if dtype == np.dtype(object):
        return "object"
    if dtype.type is str:
        return "text"
    return "other"


def column_names(X: Any) -> tuple[Any, ...] | None:
    """The names of the columns of a DataFrame; None for anything else."""
    pandas = sys.modules.get("pandas")  # if it is not imported, X is no DataFrame
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return None
    return tuple(X.columns)


def as_dataframe(rows: np.ndarray, names: tuple[Any, ...]) -> pd.DataFrame | np.ndarray:
    """Rows (n, d) as a DataFrame; unchanged if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=list(names))


def check_columns(X: Any) -> None:
    """Raise a `DataError` if X is a DataFrame whose columns are not all numbers.

    Two columns of the same name are an error, too. Anything else passes.
    """
    if type(X).__module__.partition(".")[0] == "polars":
        raise DataError(
            f"X is a {type(X).__name__} of polars",
            "pass a DataFrame of pandas, X.to_pandas(), or X.to_numpy()",
        )
    names = column_names(X)
    if names is None:
        return
    if not names:
        raise DataError("X has no columns", "pass at least one column of numbers")
    repeated = duplicates(names)
    if repeated:
        raise DataError(
            f"X has two columns named {repeated[0]!r}", "give each a name of its own"
        )
    for i, name in enumerate(names):
        _check_column(X.iloc[:, i], name)


def _check_column(column: pd.Series, name: Any) -> None:
    """Raise a `DataError` if the column of X is not made of numbers."""
    if str(column.dtype).startswith("Sparse"):
        hint = "make it dense: X.sparse.to_dense()"
        raise DataError(f"X has dtype {column.dtype}", hint, column=name)
    kind = column_kind(column)
    if kind in ("boolean", "integer", "float"):
        return
    if kind == "object":
        _check_objects(column, name)
        return
    if kind in ("datetime", "timedelta") or str(column.dtype).startswith("period"):
        hint = _HOW_TO_GET_NUMBERS_FROM_TIMES
    else:
        hint = _HOW_TO_GET_NUMBERS
    raise DataError(f"X has dtype {column.dtype}", hint, column=name)


def _check_objects(column: pd.Series, name: Any) -> None:
    """Raise a `DataError` at the first Python object that is not a number."""
    for row, value in enumerate(column):
        if value is None or type(value).__name__ == "NAType":
            raise DataError(
                f"X has no value ({value!r})",
                "drop or fill missing values, or leave the column out",
                row,
                name,
            )
        if not isinstance(value, Real | Decimal | np.bool):
            raise DataError(
                f"X has dtype object and holds {value!r}",
                _HOW_TO_GET_NUMBERS,
                row,
                name,
            )
