"""How the levels of a column stand for numbers, and numbers for values of the column.

Most are *whole* numbers: of cents, of days, of seconds since 1970. Floats have decimals, if few suffice
for all of them. So steps, sums and orders are exact, in Python's own integers where 64 bits are few.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from sliceflow.spaces.tables.cells import Cells, pandas
from sliceflow.written import Written

__all__ = ["EXACT", "DateText", "Format", "IsoText", "dates_as"]

EXACT = 2**53  # floats below this are whole if integers are
_MOST_DECIMALS = 6
_LOOKED_AT = 2_000  # texts
_SECONDS = {"D": Fraction(86_400), "m": Fraction(60), "s": Fraction(1), "ms": Fraction(1, 10**3)}
_SECONDS |= {"us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
_FORMATS = (
    "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%d-%m-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_MAYBE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:([T ])\d\d:\d\d(:\d\d(?:\.(\d+))?)?(Z|[+-]\d\d:?\d\d)?)?")

Parsed = tuple[np.ndarray, Fraction | None]  # whole numbers of a unit; or floats, and None


@dataclass(frozen=True)
class DateText:
    """Times written as text in one format of `strftime`."""

    format: str
    unit = "s"

    def parse(self, texts: list[str]) -> np.ndarray:
        """Times as datetime64; NaT for what is not written this way."""
        pd = pandas()
        stripped = pd.Series(texts, dtype=object).str.strip()
        found = pd.to_datetime(stripped, format=self.format, errors="coerce")
        return np.asarray(found.to_numpy("datetime64[s]"))

    def write(self, times: np.ndarray) -> list[str]:
        return [time.strftime(self.format) for time in times.tolist()]


@dataclass(frozen=True)
class IsoText:
    """Times as ISO 8601 writes them. Those with different offsets from UTC are read in UTC."""

    unit: str
    separator: str = "T"
    suffix: str = ""  # "Z" or the offset from UTC, if all have the same

    @classmethod
    def like(cls, texts: list[str]) -> IsoText:
        """The way of these texts; where they differ, of the most precise one."""
        found = _ISO.fullmatch(max(texts, key=len).strip())
        offsets = {m[4] if (m := _ISO.fullmatch(text.strip())) else None for text in texts}
        day, clock, fraction, _ = found.groups() if found else (None, None, None, None)
        seconds = {0: "s", 3: "ms", 6: "us"}.get(len(fraction or ""), "ns")
        unit = seconds if clock else "m" if day else "D"
        return cls(unit, day or "T", (offsets.pop() or "") if len(offsets) == 1 else "")

    def parse(self, texts: list[str]) -> np.ndarray:
        """Times as datetime64; NaT for what is not written this way."""
        bare = pandas().Series(texts, dtype="str").str.strip()
        fits = bare.str.fullmatch(_ISO.pattern) & bare.str.endswith(self.suffix)
        bare = bare.where(fits).str.removesuffix(self.suffix)
        found = pandas().to_datetime(bare, format="ISO8601", errors="coerce", utc=True)
        return np.asarray(found.dt.tz_localize(None).to_numpy(f"datetime64[{self.unit}]"))

    def write(self, times: np.ndarray) -> list[str]:
        texts = np.datetime_as_string(times.astype(f"datetime64[{self.unit}]")).tolist()
        return [text.replace("T", self.separator) + self.suffix for text in texts]


def dates_as(texts: list[str]) -> tuple[list[DateText | IsoText], float]:
    """The formats that all texts have, and the share of texts that look like dates."""
    some = texts[:: max(1, len(texts) // _LOOKED_AT)]
    looks = sum(bool(_MAYBE_DATE.fullmatch(text.strip())) for text in some) / len(some)
    forms: list[DateText | IsoText] = [*map(DateText, _FORMATS)]
    if _ISO.fullmatch(texts[0].strip()):
        forms = [IsoText.like(texts)]
    for part in (texts[:1], some, texts):
        forms = [form for form in forms if not np.isnat(form.parse(part)).any()]
    return forms, looks


class Format:
    """That of the numbers or times of a column; texts have a `way` to write them.

    `clock` is empty for numbers; `tick` is the unit of times on the clock on the wall, and of durations.
    """

    def __init__(self, cells: Cells, way: Written | DateText | IsoText | None = None) -> None:
        self.form, self.dtype, self.way = cells.form, cells.dtype, way
        typed = re.findall(r"\[(ns|us|ms|s)", cells.dtype) or ["D" if self.form == "date" else ""]
        self.tick: str = typed[0] if way is None else getattr(way, "unit", "")
        self.clock = self.tick and ("duration" if self.form == "timedelta" else "time")
        self._kind = f"{'timedelta64' if self.clock == 'duration' else 'datetime64'}[{self.tick}]"
        self._zone = cells.levels.dt.tz if self.form == "datetime" else None

    def times(self, levels: Any) -> np.ndarray:
        if self.way is not None:
            return self.way.parse(levels.tolist())
        return np.asarray((levels.dt.tz_localize(None) if self._zone else levels).to_numpy(self._kind))

    def parse(self, levels: Any) -> Parsed:
        """The numbers of a Series of the column's dtype. A ValueError if it has none."""
        if self.clock:
            if np.isnat(times := self.times(levels)).any():
                raise ValueError("it is no time")
            return times.astype(np.int64), _SECONDS[self.tick]
        if self.form == "Decimal":
            places = max(0, *(-v.as_tuple().exponent for v in levels), 0)
            return _whole([int(Fraction(v) * 10**places) for v in levels]), Fraction(1, 10**places)
        if self.form == "int":
            return _whole(levels.tolist()), Fraction(1)
        numbers = levels.to_numpy(np.float64) if self.way is None else self.way.parse(levels)
        if np.isnan(numbers).any():
            raise ValueError("it is no number")
        return _with_decimals(numbers)

    def write(self, numbers: Any, unit: Fraction | None) -> Any:
        """A Series of values."""
        pd, values = pandas(), numbers
        if self.clock:
            values = numbers.astype(np.int64).astype(self._kind)
        elif self.form == "Decimal" and unit is not None:
            values = [Decimal(f"{v}e{1 - len(str(unit.denominator))}") for v in numbers.tolist()]
        elif unit not in (None, 1):
            values = numbers / unit.denominator
        if self._zone is not None:  # when the clock is set back, the first time counts
            how = {"ambiguous": np.ones(len(values), dtype=bool), "nonexistent": "shift_forward"}
            return pd.Series(values).dt.tz_localize(self._zone, **how).astype(self.dtype)
        if self.way is not None:
            values = self.way.write(values)
        if self.dtype == "object":
            return pd.Series([*np.asarray(values, dtype=object)], dtype=object)
        return pd.Series(values).astype(self.dtype)

    def instants(self, numbers: np.ndarray) -> np.ndarray:
        """Whole numbers that compare as the values do."""
        if self._zone is None:
            return numbers
        return np.asarray(self.write(numbers, None).astype("int64"))


def _whole(values: list[int]) -> np.ndarray:
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
            return scaled.astype(np.int64), Fraction(1, 10**decimals)
    return values, None
