"""DataFrames of pandas, which is imported only if X is one: their columns, and rows as a DataFrame again."""

from __future__ import annotations

import sys
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from sliceflow.errors import doubled


def column_names(X: Any) -> tuple[Any, ...] | None:
    """The names of the columns of a DataFrame; None for anything else."""
    pandas = sys.modules.get("pandas")
    return (
        tuple(X.columns)
        if pandas is not None and isinstance(X, pandas.DataFrame)
        else None
    )


def as_frame(rows: np.ndarray, names: tuple[Any, ...]) -> Any:
    """Rows (n, d) as a DataFrame; unchanged if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=list(names))


def check_columns(X: Any) -> None:
    """Raise a ValueError for a DataFrame with columns that are not numbers or have the same name."""
    if type(X).__module__.partition(".")[0] == "polars":
        fact = f"X is a {type(X).__name__} of polars"
        raise ValueError(
            f"{fact}; pass a DataFrame of pandas, X.to_pandas(), or X.to_numpy()"
        )
    names = column_names(X) or ()
    if twice := doubled(names):
        raise ValueError(
            f"X has two columns named {twice[0]!r}; give each a name of its own"
        )
    for i, name in enumerate(names):
        if fault := _fault(X.iloc[:, i]):
            raise ValueError(f"column {name!r} of X {fault}, or leave the column out")


def _fault(column: Any) -> str:
    """What is wrong with a column, and what to do; empty if nothing is."""
    dtype = column.dtype
    fact = f"has dtype {column.dtype}"
    if dtype.kind in "mM" or str(dtype).startswith("period"):
        return f"{fact}; turn it into numbers, such as a count of days"
    if dtype == np.dtype(object):
        for row, value in enumerate(column):
            if value is None or type(value).__name__ == "NAType":
                return f"has no value in row {row} ({value!r}); drop or fill missing values"
            if not isinstance(value, Real | Decimal | np.bool):
                fact = f"has dtype object and holds {value!r} in row {row}"
                break
        else:
            return ""
    advice = "categories one-hot, for example), pass it as y if it is the label"
    return "" if dtype.kind in "biuf" else f"{fact}; turn it into numbers ({advice}"
