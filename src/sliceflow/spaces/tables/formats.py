"""How the levels of a column stand for numbers, and numbers for values of the column.

Most are *whole* numbers: of cents, of days, of seconds since 1970. Floats have decimals, if few suffice
for all of them. So steps, sums and orders are exact, in Python's own integers where 64 bits are few.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from sliceflow.spaces.tables.cells import Cells, pandas
from sliceflow.written import DateText, IsoText, Written

__all__ = ["EXACT", "Format", "date_text", "format_of", "months", "number_text", "whole"]

EXACT = 2**53  # floats below this are whole if integers are
_MOST_DECIMALS = 6
_SECONDS = {"D": Fraction(86_400), "m": Fraction(60), "s": Fraction(1), "ms": Fraction(1, 10**3)}
_SECONDS |= {"us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}

Parsed = tuple[np.ndarray, int | None]  # whole numbers of 10^−decimals; or floats, and None


@dataclass(frozen=True)
class Format:
    """A way to write numbers.

    Parameters
    ----------
    parse : the numbers of levels, a Series; a ValueError or TypeError if they have none
    write : the values of such numbers and their decimals, as a Series
    clock : what whole numbers count: nothing, the "time" on the wall, or a "duration"
    tick : the unit of times
    instants : whole numbers that compare as the values do, of whole numbers
    """

    parse: Callable[[Any], Parsed]
    write: Callable[[np.ndarray, int | None], Any]
    clock: str = ""
    tick: str = ""
    instants: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def unit(self) -> Fraction:
        """What whole numbers count, in ones or seconds."""
        return _SECONDS.get(self.tick, Fraction(1))


def whole(values: Any) -> np.ndarray:
    """Integers of 64 bits, or Python's own if they are larger."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)


def _with_decimals(values: np.ndarray) -> Parsed:
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = np.rint(values * 10.0**decimals)
        if not np.abs(scaled).max(initial=0) < EXACT:
            break
        if np.array_equal(scaled / 10.0**decimals, values):
            return scaled.astype(np.int64), decimals
    return values, None


def format_of(cells: Cells) -> Format:
    """That of numbers and times, by their type."""
    pd, dtype = pandas(), cells.dtype
    if cells.form in ("datetime", "timedelta", "date"):
        return _clock(cells)
    if cells.form == "Decimal":
        return Format(_read_decimals, _write_decimals)

    def parse(levels: Any) -> Parsed:
        kind = levels.dtype.kind
        if kind == "i":
            return levels.to_numpy(np.int64), 0
        if kind == "u" or (kind == "O" and all(type(v) is int for v in levels)):
            return whole(levels.tolist()), 0
        return _with_decimals(levels.to_numpy(np.float64))

    def write(numbers: np.ndarray, decimals: int | None) -> Any:
        values = numbers / 10**decimals if decimals else numbers
        return (
            pd.Series(values.tolist(), dtype=object)
            if dtype == "object"
            else pd.Series(values).astype(dtype)
        )

    return Format(parse, write)


def _read_decimals(levels: Any) -> Parsed:
    values = [Decimal(str(v)) for v in levels]
    places = max(0, *(-int(v.as_tuple().exponent) for v in values), 0)
    return whole([int(Fraction(v) * 10**places) for v in values]), places


def _write_decimals(numbers: np.ndarray, decimals: int | None) -> Any:
    return pandas().Series([Decimal(f"{v}e-{decimals}") for v in numbers.tolist()], dtype=object)


def _clock(cells: Cells) -> Format:
    """Typed times: the clock on the wall shows an hour twice when it is set back; the first one counts."""
    pd, dtype = pandas(), cells.dtype
    tick = "D" if cells.form == "date" else re.findall(r"\[(ns|us|ms|s)", dtype)[0]
    kind = "timedelta64" if cells.form == "timedelta" else "datetime64"
    zone = cells.levels.dt.tz if cells.form == "datetime" else None

    def parse(levels: Any) -> Parsed:
        local = levels if zone is None else levels.dt.tz_localize(None)
        return local.to_numpy(f"{kind}[{tick}]").astype(np.int64), 0

    def write(numbers: np.ndarray, decimals: int | None) -> Any:
        times = numbers.astype(np.int64).astype(f"{kind}[{tick}]")
        if dtype == "object":
            return pd.Series(times.tolist(), dtype=object)
        if zone is None:
            return pd.Series(times).astype(dtype)
        first, later = np.ones(len(times), dtype=bool), "shift_forward"
        return pd.Series(times).dt.tz_localize(zone, ambiguous=first, nonexistent=later).astype(dtype)

    def instants(numbers: np.ndarray) -> np.ndarray:
        return numbers if zone is None else np.asarray(write(numbers, 0).astype("int64"))

    return Format(parse, write, "duration" if cells.form == "timedelta" else "time", tick, instants)


def months(of: Format) -> Format:
    """Times that all are the first of a month: whole numbers count months."""

    def ticks(numbers: np.ndarray) -> np.ndarray:
        times = numbers.astype(np.int64).astype("datetime64[M]")
        return np.asarray(times.astype(f"datetime64[{of.tick}]").astype(np.int64))

    def parse(levels: Any) -> Parsed:
        times = of.parse(levels)[0].astype(f"datetime64[{of.tick}]")
        return times.astype("datetime64[M]").astype(np.int64), 0

    write, instants = lambda n, _: of.write(ticks(n), 0), lambda n: of.instants(ticks(n))
    return replace(of, parse=parse, write=write, instants=instants)


def number_text(dtype: str, way: Written) -> Format:
    """Numbers as text."""

    def write(numbers: np.ndarray, decimals: int | None) -> Any:
        texts = way.write(numbers / 10**decimals if decimals else numbers)
        return pandas().Series(texts, dtype=object).astype(dtype)

    return Format(lambda levels: _with_decimals(way.parse(levels.to_numpy(dtype=object))), write)


def date_text(dtype: str, way: DateText | IsoText) -> Format:
    """Times as text."""
    tick = getattr(way, "unit", "s")

    def parse(levels: Any) -> Parsed:
        times = way.parse([str(v) for v in levels])
        if np.isnat(times).any():
            raise ValueError("a text is no time")
        return times.astype(np.int64), 0

    def write(numbers: np.ndarray, decimals: int | None) -> Any:
        texts = way.write(numbers.astype(np.int64).astype(f"datetime64[{tick}]"))
        return pandas().Series(texts, dtype=object).astype(dtype)

    return Format(parse, write, "time", tick)
