"""Values as exact numbers: whole numbers of cents, of days, of microseconds since 1970 in UTC.

Floats are whole numbers of their last decimal, if few decimals suffice for all of them. So steps, sums
and orders are exact, in Python's own integers where 64 bits are few.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

import numpy as np

from sliceflow.number_formats import NumberFormat
from sliceflow.spaces.tables.cells import pandas

EXACT = 2**53  # floats below this are whole if integers are
_MOST_DECIMALS = 6
TICKS: dict[Any, str] = {
    Fraction(1, 1000**k): tick for k, tick in enumerate(("s", "ms", "us", "ns"))
}
TICKS[Fraction(86_400)] = "D"
_UNITS = {tick: unit for unit, tick in TICKS.items()}
_ISO = ("%Y-%m-%d", r"\d{4}-\d\d-\d\d(?!\d)")
# A date such as 20240131; a column with missing cells may have it as a float.
_COMPACT = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(\.0)?")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?( [AP]M)?")  # a time of day
_END = re.compile(
    r"(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?$"
)  # fractions of a second, offset from UTC


@dataclass(frozen=True)
class DateText:
    """Times written as text in one format of `strftime`; those of ISO 8601 may omit parts of it."""

    format: str
    digits: int = 6  # of fractions of a second
    offset: str = ""  # from UTC, such as "Z", if all texts have the same

    def parse(self, texts: Any) -> np.ndarray:
        """Times in UTC as datetime64; NaT for what is not written this way."""
        pd = pandas()
        how = self.format
        stripped = pd.Series(texts, dtype="str").str.strip()
        if how == "%Y%m%d":
            stripped = stripped.str.removesuffix(".0")
        elif how.startswith(_ISO[0]):
            stripped = stripped.where(stripped.str.match(_ISO[1]))
            how = "ISO8601"
        found = pd.to_datetime(stripped, format=how, errors="coerce", utc=True)
        unit = "ns" if self.digits > 6 else "us"
        return np.asarray(found.dt.tz_localize(None).to_numpy(f"datetime64[{unit}]"))

    def write(self, times: np.ndarray) -> list[str]:
        moment = datetime.fromisoformat(f"2000-01-01T00:00:00{self.offset}")
        local = times + np.timedelta64(moment.utcoffset() or 0, "s")
        seconds = local.astype("datetime64[s]")
        rest = (local - seconds).astype("timedelta64[ns]").astype(np.int64).tolist()
        form = self.format.replace("%z", self.offset)
        pairs = zip(seconds.tolist(), rest, strict=True)
        return [
            time.strftime(form.replace("%f", f"{ns:09}"[: self.digits]))
            for time, ns in pairs
        ]


Writing = NumberFormat | DateText  # to write numbers or times as text


def dates_as(texts: list[str]) -> list[DateText]:
    """The formats of dates that all texts have; several if day and month could be either."""
    longest = max(texts, key=len).strip()
    with warnings.catch_warnings():  # that the day of a date cannot come first
        warnings.simplefilter("ignore")
        guess = pandas().tseries.api.guess_datetime_format
        orders = (
            (False,)
            if longest[:4].isdigit()
            else (True, False)
            if "/" in longest
            else (True,)
        )
        found = {guess(longest, dayfirst=order) for order in orders}
    forms = sorted(
        form for form in found if form and "%d" in form and not longest.isdigit()
    )
    if all(_COMPACT.fullmatch(text.strip()) for text in texts):
        forms = ["%Y%m%d"]
    elif clock := _CLOCK.fullmatch(longest):
        hour, noon = ("%I", " %p") if clock[2] else ("%H", "")
        forms = [f"{hour}:%M{':%S' if clock[1] else ''}{noon}"]
    if not forms:
        return []
    ends = {
        _END.findall(text.strip())[0]
        for text in texts
        if "%f" in forms[0] or "%z" in forms[0]
    }
    digits = max((len(fraction) for fraction, _ in ends if "%f" in forms[0]), default=6)
    offsets = {offset for _, offset in ends}
    offset = offsets.pop() if len(offsets) == 1 else ""
    writings = [DateText(form, digits, offset) for form in forms]
    return [writing for writing in writings if not np.isnat(writing.parse(texts)).any()]


def whole_numbers(
    items: Any, form: str, writing: Writing | None
) -> tuple[np.ndarray, Fraction | None]:
    """A Series as whole numbers of a unit, in ones or seconds; or as floats, and None; or a ValueError."""
    if isinstance(writing, DateText) or form == "date":
        times = (
            items.to_numpy("datetime64[D]") if writing is None else writing.parse(items)
        )
        if np.isnat(times).any():
            raise ValueError("it is no time")
        return times.astype(np.int64), _UNITS[np.datetime_data(times.dtype)[0]]
    if form in ("datetime", "timedelta"):
        (tick,) = re.findall(r"\[([mun]?s)\b", str(items.dtype))
        return items.astype("int64").to_numpy(), _UNITS[tick]
    if form in ("int", "Decimal"):
        places = 0
        whole = items.tolist()
        if form == "Decimal":
            places = max(0, *(-v.as_tuple().exponent for v in whole))
            whole = [int(Fraction(v) * 10**places) for v in whole]
        small = -(2**63) <= min(whole) <= max(whole) < 2**63
        return np.array(whole, dtype=np.int64 if small else object), Fraction(
            1, 10**places
        )
    numbers = items.to_numpy(np.float64) if writing is None else writing.parse(items)
    if np.isnan(numbers).any():
        raise ValueError("it is no number")
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = np.rint(numbers * 10.0**decimals)
        if not np.abs(scaled).max(initial=0) < EXACT:
            break
        if np.array_equal(scaled / 10.0**decimals, numbers):
            return scaled.astype(np.int64), Fraction(1, 10**decimals)
    return numbers, None
