"""DataFrames of pandas and polars as plain cells, and plain cells as DataFrames, through narwhals.

`read_cells` turns every column into numbers or texts with a mask of what is missing; `made` builds a
DataFrame with the same library, names, order, dtypes and categories. What a column means is decided in
`columns`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

__all__ = ["Cells", "Kept", "made", "read_cells"]

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Kept:
    """What is needed to build a column again.

    Parameters
    ----------
    name : of the column
    form : "number", "integer", "boolean", "text", "datetime", "date" or "duration"
    dtype : the dtype, as its library writes it
    categories : of a categorical dtype, in its order; None for all others
    ordered : whether the categories have an order
    unit, zone : of datetimes and durations
    """

    name: str
    form: str
    dtype: str
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    unit: str = ""
    zone: str | None = None


@dataclass(frozen=True)
class Cells:
    """A column: float64 or int64 numbers, or objects, and which cells are missing.

    Datetimes are counts of `unit` since 1970 on the clock of their time zone.
    """

    kept: Kept
    values: np.ndarray
    missing: np.ndarray


def read_cells(frame: Any) -> tuple[list[Cells], str]:
    """The columns of a DataFrame, and its library; a ValueError names what cannot be used."""
    nw = _narwhals()
    if type(frame).__name__ == "LazyFrame":
        raise ValueError("the table is a LazyFrame, which has no rows yet; pass frame.collect()")
    module = type(frame).__module__.partition(".")[0]
    if module not in ("pandas", "polars") or type(frame).__name__ != "DataFrame":
        raise TypeError(
            f"a table is a DataFrame of pandas or polars, or a path, not {type(frame).__name__}; "
            "wrap an array as pandas.DataFrame(array, columns=[...])"
        )
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"two columns are named {twice!r}; give each a name of its own")
    if module == "pandas" and not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis(names, axis=1)
    table = nw.from_native(frame, eager_only=True)
    return [_cells(nw, table[name], name) for name in names], module


def _narwhals() -> Any:
    try:
        return import_module("narwhals.stable.v2")
    except ImportError as error:
        raise ImportError("tables need narwhals: pip install 'sliceflow[tables]'") from error


def _cells(nw: Any, column: Any, name: str) -> Cells:
    native = column.to_native()
    dtype, shown = column.dtype, str(native.dtype)
    missing = np.asarray(column.is_null().to_numpy(), dtype=bool)
    if dtype.is_integer():
        values = column.fill_null(0).cast(nw.Int64 if dtype != nw.UInt64 else nw.Float64).to_numpy()
        return Cells(Kept(name, "integer", shown), _int64(values), missing)
    if dtype == nw.Boolean:
        values = np.array(
            [bool(v) if ok else False for v, ok in zip(column.to_list(), ~missing, strict=True)]
        )
        return Cells(Kept(name, "boolean", shown), values.astype(np.int64), missing)
    if dtype.is_float() or dtype.is_decimal():
        values = column.cast(nw.Float64).to_numpy().astype(np.float64)
        missing = missing | np.isnan(values)
        return Cells(Kept(name, "number", shown), np.where(missing, 0.0, values), missing)
    if dtype in (nw.Categorical, nw.Enum):
        return _category(nw, native, name, shown, dtype == nw.Enum)
    if dtype == nw.Datetime or dtype == nw.Date or dtype == nw.Duration:
        return _times(nw, column, name, shown, missing)
    if dtype == nw.String:
        values = np.array(
            [v if ok else None for v, ok in zip(column.to_list(), ~missing, strict=True)], object
        )
        return Cells(Kept(name, "text", shown), values, missing)
    if dtype == nw.Object:
        return _objects(list(native), name)
    raise ValueError(
        f"column {name!r} has dtype {shown}, which tables do not support; convert it to numbers, text, "
        "dates or categories, or leave it out"
    )


def _int64(values: np.ndarray) -> np.ndarray:
    return (
        values.astype(np.int64) if np.abs(values).max(initial=0) < 2**62 else values.astype(np.float64)
    )


def _category(nw: Any, native: Any, name: str, dtype: str, enum: bool) -> Cells:
    """Categories as texts, or as they are in pandas."""
    if hasattr(native, "cat") and hasattr(native.cat, "codes"):  # pandas
        levels, ordered = list(native.cat.categories), bool(native.cat.ordered)
        codes = native.cat.codes.to_numpy()
        values = np.empty(len(codes), dtype=object)
        values[:] = [levels[c] if c >= 0 else None for c in codes]
        plain = tuple(v.item() if isinstance(v, np.generic) else v for v in levels)
        if not all(isinstance(v, str | int | float | bool) for v in plain):
            raise ValueError(
                f"column {name!r} has categories such as {plain[0]!r}; make them texts or numbers"
            )
        return Cells(Kept(name, "text", "category", plain, ordered), values, codes < 0)
    texts = native.to_list()
    values = np.array(texts, dtype=object)
    levels = list(native.dtype.categories) if enum else sorted({v for v in texts if v is not None})
    kept = Kept(name, "text", "Enum" if enum else "Categorical", tuple(levels), enum)
    return Cells(kept, values, np.array([v is None for v in texts]))


def _times(nw: Any, column: Any, name: str, dtype: str, missing: np.ndarray) -> Cells:
    if column.dtype == nw.Date:
        kept, unit = Kept(name, "date", dtype, unit="s"), "s"
        column = column.cast(nw.Datetime("us"))
        ticks = _ticks(column, "us") // 10**6
    elif column.dtype == nw.Duration:
        unit = column.dtype.time_unit
        kept = Kept(name, "duration", dtype, unit=unit)
        ticks = np.asarray(column.to_numpy()).astype(f"timedelta64[{unit}]").astype(np.int64)
    else:
        unit, zone = column.dtype.time_unit, column.dtype.time_zone
        kept = Kept(name, "datetime", dtype, unit=unit, zone=zone)
        if zone is not None:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        ticks = _ticks(column, unit)
        if zone is not None:
            ticks = _moved(ticks, zone, unit, missing, to_local=True)
    return Cells(kept, np.where(missing, 0, ticks), missing)


def _ticks(column: Any, unit: str) -> np.ndarray:
    return np.asarray(column.to_numpy()).astype(f"datetime64[{unit}]").astype(np.int64)


def _moved(
    ticks: np.ndarray, zone: str, unit: str, missing: np.ndarray, *, to_local: bool
) -> np.ndarray:
    """UTC → the clock of a time zone, or back. Where a clock shows an hour twice, the first counts."""
    place, per = _place(zone), _UNITS[unit]
    out = ticks.copy()
    hours, at = np.unique(
        ticks[~missing] // (900 * per), return_inverse=True
    )  # offsets change on these
    moves = np.zeros(len(hours), dtype=np.int64)
    for i, quarter in enumerate(hours.tolist()):
        naive = _EPOCH + timedelta(seconds=quarter * 900)
        aware = naive.replace(tzinfo=UTC).astimezone(place) if to_local else naive.replace(tzinfo=place)
        offset = aware.utcoffset() or timedelta()
        moves[i] = int(offset.total_seconds()) * per
    out[~missing] += moves[at] if to_local else -moves[at]
    return out


def _place(zone: str) -> tzinfo:
    """A time zone by its name, or a fixed one such as UTC+02:00."""
    if fixed := re.fullmatch(r"(?:UTC)?([+-])(\d{2}):(\d{2})", zone):
        sign, hours, minutes = fixed.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(offset if sign == "+" else -offset)
    return ZoneInfo(zone)


def _objects(values: list[Any], name: str) -> Cells:
    """A column of Python objects: all texts, all numbers or all booleans."""
    from datetime import date

    missing = np.array([_is_missing(v) for v in values])
    present = [(i, v) for i, v in enumerate(values) if not missing[i]]
    kinds = [_kind_of(v) for _, v in present]
    if not present:
        return Cells(Kept(name, "number", "object"), np.zeros(len(values)), missing)
    most = max(set(kinds), key=kinds.count)
    for (i, v), kind in zip(present, kinds, strict=True):
        if kind != most:
            raise ValueError(
                f"column {name!r} mixes types: most cells are {most}, but row {i} holds {v!r}; "
                "convert the column to one type"
            )
    if most == "other":
        i, v = present[0]
        raise ValueError(
            f"column {name!r} holds {v!r} in row {i}, a {type(v).__name__}; convert it to numbers, "
            "text, dates or categories, or leave it out"
        )
    if most == "text":
        return Cells(
            Kept(name, "text", "object"),
            np.array([None if m else v for v, m in zip(values, missing, strict=True)], object),
            missing,
        )
    if most == "dates":
        ticks = [
            0
            if m
            else int(
                (datetime.combine(v, datetime.min.time()) if type(v) is date else v)
                .replace(tzinfo=UTC)
                .timestamp()
            )
            for v, m in zip(values, missing, strict=True)
        ]
        return Cells(Kept(name, "date", "object", unit="s"), np.array(ticks, np.int64), missing)
    numbers = np.array([0.0 if m else float(v) for v, m in zip(values, missing, strict=True)])
    whole = all(isinstance(v, int | np.integer) for _, v in present)
    form = "boolean" if most == "booleans" else "integer" if whole else "number"
    return Cells(
        Kept(name, form, "object"), numbers if form == "number" else numbers.astype(np.int64), missing
    )


def _is_missing(v: Any) -> bool:
    return (
        v is None
        or type(v).__name__ in ("NAType", "NaTType")
        or (isinstance(v, float | np.floating) and v != v)
    )


def _kind_of(v: Any) -> str:
    from datetime import date

    if isinstance(v, bool | np.bool):
        return "booleans"
    if isinstance(v, str):
        return "text"
    if isinstance(v, Real | Decimal):
        return "numbers"
    return "dates" if type(v) is date else "other"


def made(library: str, columns: Sequence[tuple[Kept, np.ndarray, np.ndarray]]) -> Any:
    """A DataFrame of columns (kept, values, missing)."""
    nw = _narwhals()
    if library == "pandas":
        pd: Any = import_module("pandas")
        return pd.DataFrame({kept.name: _pandas(pd, kept, v, m) for kept, v, m in columns})
    pl: Any = import_module("polars")
    return pl.DataFrame([_polars(nw, pl, kept, v, m) for kept, v, m in columns])


def _local_times(kept: Kept, values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """int64 ticks in UTC."""
    ticks = values.astype(np.int64)
    return ticks if kept.zone is None else _moved(ticks, kept.zone, kept.unit, missing, to_local=False)


def _pandas(pd: Any, kept: Kept, values: np.ndarray, missing: np.ndarray) -> Any:
    if kept.form in ("datetime", "date", "duration"):
        ticks = _local_times(kept, values, missing)
        kind = "timedelta64" if kept.form == "duration" else "datetime64"
        column = pd.Series(ticks.astype(f"{kind}[{kept.unit}]")).mask(missing)
        if kept.form == "date" and kept.dtype == "object":
            return column.dt.date.astype(object).where(~missing, None)
        if kept.zone is not None:
            column = column.dt.tz_localize("UTC").dt.tz_convert(kept.zone)
        return column.astype(kept.dtype)
    if kept.categories is not None:
        codes = {label: i for i, label in enumerate(kept.categories)}
        at = [-1 if m else codes[v] for v, m in zip(values, missing, strict=True)]
        return pd.Series(pd.Categorical.from_codes(at, list(kept.categories), ordered=kept.ordered))
    if kept.form == "text":
        column = pd.Series(values, dtype=object)
        return (column.where(~missing, None) if missing.any() else column).astype(kept.dtype)
    if kept.dtype == "object":
        cast = {"integer": int, "boolean": bool, "number": float}[kept.form]
        out = np.array([None if m else cast(v) for v, m in zip(values, missing, strict=True)], object)
        return pd.Series(out, dtype=object)
    column = pd.Series(values)
    if missing.any():
        if kept.form == "number" and kept.dtype.startswith("float"):
            return column.astype(kept.dtype).mask(missing)
        nullable = {"integer": "Int64", "boolean": "boolean", "number": "Float64"}[kept.form]
        column = column.astype({"integer": np.int64, "boolean": bool, "number": float}[kept.form])
        return column.astype(nullable).mask(missing).astype(kept.dtype)
    return column.astype(bool if kept.form == "boolean" else column.dtype).astype(kept.dtype)


def _polars(nw: Any, pl: Any, kept: Kept, values: np.ndarray, missing: np.ndarray) -> Any:
    if kept.form in ("datetime", "date", "duration"):
        ticks = _local_times(kept, values, missing).tolist()
        series = pl.Series(
            kept.name, [None if m else v for v, m in zip(ticks, missing, strict=True)], dtype=pl.Int64
        )
        if kept.form == "date":
            return (series // 86400).cast(pl.Int32).cast(pl.Date)
        if kept.form == "duration":
            return series.cast(pl.Duration(kept.unit))
        series = series.cast(pl.Datetime(kept.unit))
        if kept.zone is None:
            return series
        return series.dt.replace_time_zone("UTC").dt.convert_time_zone(kept.zone)
    plain = [None if m else v for v, m in zip(values.tolist(), missing, strict=True)]
    if kept.form == "text":
        types = {
            "Enum": lambda: pl.Enum(list(kept.categories or ())),
            "Categorical": lambda: pl.Categorical,
        }
        return pl.Series(kept.name, plain, dtype=types.get(kept.dtype, lambda: pl.String)())
    if kept.form == "boolean":
        return pl.Series(kept.name, [None if v is None else bool(v) for v in plain], dtype=pl.Boolean)
    dtype = kept.dtype.partition("(")[0]
    if dtype == "Decimal":
        scale = int(kept.dtype.rstrip(")").rpartition("=")[2].rpartition(",")[2])
        return pl.Series(kept.name, plain, dtype=pl.Float64).cast(pl.Decimal(None, scale))
    first = pl.Float64 if kept.form == "number" else pl.Int64
    return pl.Series(kept.name, plain, dtype=first).cast(getattr(pl, dtype))
