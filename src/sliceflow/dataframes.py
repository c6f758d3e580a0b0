"""DataFrames of pandas and polars, without importing them: usable columns, and rows as a DataFrame again."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any, Literal

import numpy as np

_FLOATS = ("float32", "float64", "Float32", "Float64")  # the last two with NA, or of polars


@dataclass(frozen=True)
class Form:
    """The columns of a DataFrame, from which another one can be made; dtypes only of floats."""

    library: Literal["pandas", "polars"]
    names: tuple[str | int | float | tuple[str | int | float, ...], ...]
    dtypes: tuple[Literal["float32", "float64", "Float32", "Float64"] | None, ...]  # of floats

    def check(self) -> None:
        """Raise a ValueError unless names are distinct, each with its dtype."""
        if not len(set(self.names)) == len(self.names) == len(self.dtypes):
            raise ValueError(f"the names {self.names} of a frame are not distinct, or lack dtypes")

    @classmethod
    def of(cls, X: Any) -> Form | None:
        """The form of X; None if it is not a DataFrame."""
        if (library := _library(X)) is None:
            return None
        dtypes: Any = (str(dtype) for dtype in X.dtypes)
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


def check_columns(X: Any) -> None:
    """Raise a ValueError for a DataFrame with columns that are not numbers or have the same name."""
    if type(X).__name__ == "LazyFrame":
        raise ValueError("X is a LazyFrame, which has no rows yet; pass X.collect()")
    if (library := _library(X)) is None:
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


def _library(X: Any) -> Any:
    """The library of a DataFrame; None for anything else."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(X).__mro__)
    return next((m for m, name in kinds if name == "DataFrame" and m in ("pandas", "polars")), None)
