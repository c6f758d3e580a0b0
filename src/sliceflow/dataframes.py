"""DataFrames of pandas and polars: which columns are usable, and rows as a DataFrame again.

A library is imported only to make one of its DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["Form", "check_columns"]

_FLOATS = ("float32", "float64", "Float32", "Float64")  # the last two with NA, or of polars


@dataclass(frozen=True)
class Form:
    """The columns of a DataFrame, from which another one can be made.

    Parameters
    ----------
    library : "pandas" or "polars"
    names : of the columns
    dtypes : of the columns of floats; None for all others, whose samples may be fractions

    Examples
    --------
    >>> import pandas as pd
    >>> form = Form.of(pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}))
    >>> form.dtypes
    (None, 'float64')
    >>> form.made(np.array([[1.2, 0.7]]))
         a    b
    0  1.2  0.7
    """

    library: str
    names: tuple[str | int | float | tuple[str | int | float, ...], ...]
    dtypes: tuple[str | None, ...]

    @classmethod
    def of(cls, X: Any) -> Form | None:
        """The form of X; None if it is not a DataFrame."""
        library = _library(X)
        if library is None:
            return None
        dtypes = (str(dtype) for dtype in X.dtypes)
        return cls(library, tuple(X.columns), tuple(d if d in _FLOATS else None for d in dtypes))

    def made(self, rows: np.ndarray) -> Any:
        """Rows (n, d) as a DataFrame; unchanged if its library is not installed."""
        try:
            library: Any = import_module(self.library)
        except ImportError:
            return rows
        names, own = list(self.names), str(rows.dtype)
        if self.library == "pandas":
            frame = library.DataFrame(rows, columns=names)
            both = zip(frame.columns, self.dtypes, strict=True)
            others = {name: dtype for name, dtype in both if dtype not in (None, own)}
            return frame.astype(others) if others else frame
        frame = library.DataFrame(rows, schema=names, orient="row")
        return frame.with_columns(
            library.col(name).cast(getattr(library, d))
            for name, d in zip(names, self.dtypes, strict=True)
            if d in ("Float32", "Float64")
        )

    def packed(self) -> dict[str, Any]:
        """The form as JSON; names other than strings and integers become strings."""
        names = [name if type(name) in (str, int) else str(name) for name in self.names]
        return {"library": self.library, "names": names, "dtypes": list(self.dtypes)}

    @classmethod
    def unpacked(cls, library: str, names: list[Any], dtypes: list[Any]) -> Form:
        """The form of `packed`; a ValueError says what is wrong."""
        if library not in ("pandas", "polars"):
            raise ValueError(f"frame.library is {library!r}; it must be 'pandas' or 'polars'")
        if not all(type(name) in (str, int) for name in names) or len(set(names)) != len(names):
            raise ValueError("frame.names are not distinct texts and whole numbers")
        if len(dtypes) != len(names) or not all(d is None or d in _FLOATS for d in dtypes):
            raise ValueError(f"frame.dtypes are not one of {list(_FLOATS)} or null for every column")
        return cls(library, tuple(names), tuple(dtypes))


def check_columns(X: Any) -> None:
    """Raise a ValueError for a DataFrame with columns that are not numbers or have the same name."""
    if type(X).__name__ == "LazyFrame":
        raise ValueError("X is a LazyFrame, which has no rows yet; pass X.collect()")
    library = _library(X)
    if library is None:
        return
    names = list(X.columns)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"X has two columns named {twice!r}; give each a name of its own")
    for i, (name, dtype) in enumerate(zip(names, X.dtypes, strict=True)):
        told = _polars_fault(dtype) if library == "polars" else _pandas_fault(X.iloc[:, i], dtype)
        if told is not None:
            fact, advice = told
            raise ValueError(f"column {name!r} of X {fact}; {advice}, or leave the column out")


_DATES = "turn it into numbers, such as a count of days"
_TEXT = "turn it into numbers (categories one-hot, for example), pass it as y if it is the label"
_OTHER = "turn it into real numbers"


def _pandas_fault(column: Any, dtype: Any) -> tuple[str, str] | None:
    """What is wrong with a column, and what to do; None if nothing is."""
    if dtype.kind in "biuf":
        return None
    if dtype == np.dtype(object):
        for row, value in enumerate(column):
            if value is None or type(value).__name__ == "NAType":
                return f"has no value in row {row} ({value!r})", "drop or fill missing values"
            if not isinstance(value, Real | Decimal | np.bool):
                return f"has dtype object and holds {value!r} in row {row}", _TEXT
        return None
    fact = f"has dtype {dtype}"
    if dtype.kind in "mM" or str(dtype).startswith("period"):
        return fact, _DATES
    return fact, _TEXT if dtype.kind == "O" else _OTHER


def _polars_fault(dtype: Any) -> tuple[str, str] | None:
    if dtype.is_numeric() or str(dtype) == "Boolean":
        return None
    return f"has dtype {dtype}", _DATES if dtype.is_temporal() else _TEXT


def _library(X: Any) -> str | None:
    """The library of a DataFrame."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(X).__mro__)
    return next((m for m, name in kinds if name == "DataFrame" and m in ("pandas", "polars")), None)
