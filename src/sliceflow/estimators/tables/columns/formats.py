"""Exact values, which are integers of a unit, and dates that are written as text.

An amount of 12.50 is 1250 cents, a date is a number of days, a time a number of
microseconds since 1970 in UTC: integers of a `unit`, a fraction of one or of a second.
Floats are integers of their last decimal, if few decimals suffice for all of them. So
differences, sums and comparisons of values are exact. Python's own integers take over
where 64 bits are too few.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.estimators.tables.rows.stored_levels import ValueType
from sliceflow.number_formats import NumberFormat

if TYPE_CHECKING:
    import pandas as pd

# Values (n,) as numbers that count a unit: int64, or Python's integers if these are too
# large for it; float64 if there is no unit.
ExactValues = NDArray[Any]
# Times (n,) in UTC.
Times = NDArray[np.datetime64]

# Every integer below this is exact as a float.
MAX_EXACT_FLOAT = 2**53
# Floats that need more decimals than these are kept as floats: money has two to four,
# and coordinates six.
_MAX_DECIMALS = 6
# A sum of decimals is a float beside the decimal that is meant: 0.1 + 0.2 is
# 0.30000000000000004. Up to this many units in the last place of the column's largest
# number count as such: a sum of five columns has four additions.
_MAX_ROUNDING_ULPS = 4
# Such errors must be less than this share of a unit of the last decimal, so that
# measured floats do not look like decimals by chance.
_MAX_ROUNDING_SHARE = 1e-3

# numpy's names of the units of time, by their length in seconds.
TIME_UNITS = {
    Fraction(86_400): "D",
    Fraction(1): "s",
    Fraction(1, 10**3): "ms",
    Fraction(1, 10**6): "us",
    Fraction(1, 10**9): "ns",
}
_SECONDS_OF_UNIT = {name: unit for unit, name in TIME_UNITS.items()}

# Texts of a column of which pandas guesses the format: it fails for one in three texts
# of some formats, so for all of these once in a billion columns.
_N_TEXTS_GUESSED = 20

_ISO_FORMAT = "%Y-%m-%d"
_ISO_DATE = r"\d{4}-\d\d-\d\d(?!\d)"
_COMPACT_FORMAT = "%Y%m%d"
# A date such as 20240131; a column with missing cells may have it as a float.
_COMPACT_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(\.0)?")
_TIME_OF_DAY = re.compile(r"\d\d?:\d\d(?P<seconds>:\d\d)?(?P<half> [AP]M)?")
# How a time may end: fractions of a second, and an offset from UTC.
_TIME_END = re.compile(r"(?:\.(?P<fraction>\d+))?(?P<offset>Z|[+-]\d\d:?\d\d)?$")


def times_of_exact_values(exact_values: ExactValues, unit: Fraction | None) -> Times:
    """Times (m,) of integers (m,) that count a unit since 1970; it is in seconds."""
    assert unit is not None, "times count a unit"
    return exact_values.astype(f"datetime64[{TIME_UNITS[unit]}]")


@dataclass(frozen=True)
class DateFormat:
    """Times written as text in one format of `strftime`.

    Texts of an ISO 8601 format may omit parts of it.
    """

    format: str
    digits: int = 6  # of fractions of a second
    offset: str = ""  # from UTC, such as "Z", if all texts have the same

    def parse(self, texts: Sequence[str] | pd.Series) -> Times:
        """Times (n,) in UTC as datetime64; NaT for what is not written this way."""
        import pandas as pd

        stripped = pd.Series(texts, dtype="str").str.strip()
        date_format = self.format
        if date_format == _COMPACT_FORMAT:
            stripped = stripped.str.removesuffix(".0")
        elif date_format.startswith(_ISO_FORMAT):
            stripped = stripped.where(stripped.str.match(_ISO_DATE))
            date_format = "ISO8601"
        times = pd.to_datetime(stripped, format=date_format, errors="coerce", utc=True)
        unit = "us"
        if self.digits > 6:
            unit = "ns"
        return np.asarray(times.dt.tz_localize(None).to_numpy(f"datetime64[{unit}]"))

    def write(self, times: Times) -> list[str]:
        """Times (n,) in UTC, as datetime64, as n texts."""
        moment = datetime.fromisoformat(f"2000-01-01T00:00:00{self.offset}")
        local = times + np.timedelta64(moment.utcoffset() or 0, "s")
        seconds = local.astype("datetime64[s]")
        nanoseconds = (local - seconds).astype("timedelta64[ns]").astype(np.int64)
        date_format = self.format.replace("%z", self.offset)
        texts = []
        for second, remainder in zip(
            seconds.tolist(), nanoseconds.tolist(), strict=True
        ):
            fraction = f"{remainder:09}"[: self.digits]  # strftime has six digits only
            texts.append(second.strftime(date_format.replace("%f", fraction)))
        return texts


# How numbers or times are written as text.
TextFormat = NumberFormat | DateFormat


def infer_date_formats(texts: Sequence[str]) -> list[DateFormat]:
    """The formats of dates in which all texts are written; none if they are no dates.

    There are two if day and month could be either, as in 01/02/2024.
    """
    stripped = [text.strip() for text in texts]
    if all(_COMPACT_DATE.fullmatch(text) for text in stripped):
        formats = [_COMPACT_FORMAT]
    else:
        formats = _formats_of_some(stripped)
    if not formats:
        return []
    digits, offset = _fraction_digits_and_offset(stripped, formats[0])
    date_formats = [DateFormat(text, digits, offset) for text in formats]
    return [
        date_format
        for date_format in date_formats
        if not np.isnat(date_format.parse(texts)).any()
    ]


def _formats_of_some(texts: list[str]) -> list[str]:
    """The formats that some of the longest texts may have, sorted.

    pandas guesses none for some dates, such as 01/03/2020 01:30 PM, so one text is not
    enough.
    """
    max_length = max(map(len, texts))
    longest = [text for text in texts if len(text) == max_length]
    stride = max(1, len(longest) // _N_TEXTS_GUESSED)
    formats: set[str] = set()
    for text in longest[::stride]:
        formats.update(_possible_formats(text))
    return sorted(formats)


def _possible_formats(text: str) -> list[str]:
    """Formats of `strftime` that a text may have, sorted."""
    time_of_day = _TIME_OF_DAY.fullmatch(text)
    if time_of_day:
        seconds = ""
        if time_of_day["seconds"]:
            seconds = ":%S"
        if time_of_day["half"]:
            return [f"%I:%M{seconds} %p"]
        return [f"%H:%M{seconds}"]
    if text.isdigit():
        return []
    guesses = {_guess_format(text, day_first) for day_first in _day_first_options(text)}
    return sorted(guess for guess in guesses if guess and "%d" in guess)


def _day_first_options(text: str) -> tuple[bool, ...]:
    """The values of `dayfirst` to try: whether the day stands before the month."""
    if text[:4].isdigit():
        return (False,)
    if "/" in text:
        return (True, False)
    return (True,)


def _guess_format(text: str, day_first: bool) -> str | None:
    """The format that pandas guesses for a text."""
    from pandas.tseries.api import guess_datetime_format

    with warnings.catch_warnings():  # pandas warns if the day cannot come first
        warnings.simplefilter("ignore")
        guess: str | None = guess_datetime_format(text, dayfirst=day_first)
    return guess


def _fraction_digits_and_offset(texts: list[str], date_format: str) -> tuple[int, str]:
    """Digits of fractions of a second, and the offset from UTC if all have the same."""
    if "%f" not in date_format and "%z" not in date_format:
        return 6, ""
    ends = [_TIME_END.search(text) for text in texts]
    offsets = {end["offset"] or "" for end in ends if end is not None}
    offset = ""
    if len(offsets) == 1:
        offset = offsets.pop()
    digits = 6
    if "%f" in date_format:
        digits = max(len(end["fraction"] or "") for end in ends if end is not None)
    return digits, offset


def to_exact_values(
    values: pd.Series, value_type: ValueType, text_format: TextFormat | None
) -> tuple[ExactValues, Fraction | None]:
    """Values (n,) as integers of a unit, and this unit in ones or seconds.

    No value may be missing. If no unit suits all of them, they come back as floats, and
    the unit is None. A ValueError says that a value is no time or no number.
    """
    if isinstance(text_format, DateFormat):
        return _integers_of_times(text_format.parse(values))
    if value_type == "date":
        return _integers_of_times(values.to_numpy("datetime64[D]"))
    if value_type in ("datetime", "timedelta"):
        (unit_name,) = re.findall(r"\[([mun]?s)\b", str(values.dtype))
        return values.astype("int64").to_numpy(), _SECONDS_OF_UNIT[unit_name]
    if value_type == "int":
        return _as_narrow_integers(values.tolist()), Fraction(1)
    if value_type == "Decimal":
        decimals = max(0, *(-value.as_tuple().exponent for value in values))
        integers = [int(Fraction(value) * 10**decimals) for value in values]
        return _as_narrow_integers(integers), Fraction(1, 10**decimals)
    if text_format is None:
        return _integers_of_floats(values.to_numpy(np.float64))
    return _integers_of_floats(text_format.parse(values))


def from_exact_values(
    exact_values: ExactValues,
    unit: Fraction | None,
    value_type: ValueType,
    text_format: TextFormat | None,
) -> ExactValues | list[str] | list[date] | list[Decimal]:
    """Values (m,) of this type from numbers (m,) that count a unit, or ones if None.

    The inverse of `to_exact_values`. Times and durations stay integers of their unit.
    """
    unit = unit or Fraction(1)
    if isinstance(text_format, DateFormat):
        return text_format.write(times_of_exact_values(exact_values, unit))
    if value_type == "date":
        return _dates_of_integers(exact_values)
    if value_type in ("datetime", "timedelta", "int"):
        return exact_values
    if value_type == "Decimal":
        return _decimals_of_integers(exact_values, unit)
    numbers: Floats = exact_values / unit.denominator
    if text_format is None:
        return numbers
    return text_format.write(numbers)


def _dates_of_integers(days: ExactValues) -> list[date]:
    """Dates of numbers of days (m,) since 1970."""
    dates: list[date] = days.astype("datetime64[D]").tolist()
    return dates


def _decimals_of_integers(integers: ExactValues, unit: Fraction) -> list[Decimal]:
    """Decimals of integers (m,) that count a unit, a power of 1/10."""
    exponent = 1 - len(str(unit.denominator))  # −2 if the unit is 1/100
    return [Decimal(f"{integer}e{exponent}") for integer in integers.tolist()]


def _integers_of_times(times: Times) -> tuple[ExactValues, Fraction]:
    """Times of datetime64 as integers of their unit since 1970."""
    if np.isnat(times).any():
        raise ValueError("it is no time")
    unit_name = np.datetime_data(times.dtype)[0]
    return times.astype(np.int64), _SECONDS_OF_UNIT[unit_name]


def _as_narrow_integers(integers: list[int]) -> ExactValues:
    """An array of int64, or of Python's integers if these are too large for it."""
    if min(integers) >= -(2**63) and max(integers) < 2**63:
        return np.array(integers, dtype=np.int64)
    return np.array(integers, dtype=object)


def _integers_of_floats(numbers: Floats) -> tuple[ExactValues, Fraction | None]:
    """Floats as integers of their last decimal, if few decimals suffice for all.

    Rounding errors of sums are taken away: 0.1 + 0.2 has one decimal.
    """
    if np.isnan(numbers).any():
        raise ValueError("it is no number")
    rounding_error = _MAX_ROUNDING_ULPS * np.spacing(np.abs(numbers).max(initial=0))
    for decimals in range(_MAX_DECIMALS + 1):
        scaled = np.rint(numbers * 10.0**decimals)
        if not np.abs(scaled).max(initial=0) < MAX_EXACT_FLOAT:
            break
        tolerance = min(rounding_error, _MAX_ROUNDING_SHARE * 10.0**-decimals)
        if np.abs(scaled / 10.0**decimals - numbers).max(initial=0) <= tolerance:
            return scaled.astype(np.int64), Fraction(1, 10**decimals)
    return numbers, None
