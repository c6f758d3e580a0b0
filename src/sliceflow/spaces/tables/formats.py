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
from sliceflow.written import DateText, IsoText, Written

__all__ = ["EXACT", "Format"]

EXACT = 2**53  # floats below this are whole if integers are
_MOST_DECIMALS = 6
_SECONDS = {"D": Fraction(86_400), "m": Fraction(60), "s": Fraction(1), "ms": Fraction(1, 10**3)}
_SECONDS |= {"us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}

Parsed = tuple[np.ndarray, Fraction | None]  # whole numbers of a unit; or floats, and None


@dataclass(frozen=True)
class Format:
    """That of the numbers or times of a column; texts have a `way` to write them."""

    cells: Cells
    way: Written | DateText | IsoText | None = None

    @property
    def tick(self) -> str:
        """The unit of times on the clock on the wall, and of durations; empty for numbers."""
        found = re.search(r"\[(ns|us|ms|s)", self.cells.dtype)
        return getattr(
            self.way, "unit", "D" if self.cells.form == "date" else found[1] if found else ""
        )

    @property
    def clock(self) -> str:
        return self.tick and ("duration" if self.cells.form == "timedelta" else "time")

    @property
    def _kind(self) -> str:
        return f"{'timedelta64' if self.clock == 'duration' else 'datetime64'}[{self.tick}]"

    @property
    def _zone(self) -> Any:
        return self.cells.levels.dt.tz if self.cells.form == "datetime" else None

    def times(self, levels: Any) -> np.ndarray:
        if isinstance(self.way, DateText | IsoText):
            return self.way.parse(levels.tolist())
        return np.asarray((levels.dt.tz_localize(None) if self._zone else levels).to_numpy(self._kind))

    def parse(self, levels: Any) -> Parsed:
        """The numbers of a Series of the column's dtype. A ValueError if it has none."""
        if self.clock:
            if np.isnat(times := self.times(levels)).any():
                raise ValueError("it is no time")
            return times.astype(np.int64), _SECONDS[self.tick]
        if self.cells.form == "Decimal":
            places = max(0, *(-v.as_tuple().exponent for v in levels), 0)
            return _whole([int(Fraction(v) * 10**places) for v in levels]), Fraction(1, 10**places)
        if self.cells.form == "int":
            return _whole(levels.tolist()), Fraction(1)
        numbers = levels.to_numpy(np.float64) if self.way is None else self.way.parse(levels)
        if np.isnan(numbers).any():
            raise ValueError("it is no number")
        return _with_decimals(numbers)

    def write(self, numbers: np.ndarray, unit: Fraction | None) -> Any:
        """A Series of values."""
        pd, dtype, values = pandas(), self.cells.dtype, numbers
        if self.clock:
            values = numbers.astype(np.int64).astype(self._kind)
        elif self.cells.form == "Decimal" and unit is not None:
            values = [Decimal(f"{v}e{1 - len(str(unit.denominator))}") for v in numbers.tolist()]
        elif unit not in (None, 1):
            values = numbers / unit.denominator
        if self._zone is not None:  # when the clock is set back, the first time counts
            first, later = np.ones(len(values), dtype=bool), "shift_forward"
            return (
                pd.Series(values)
                .dt.tz_localize(self._zone, ambiguous=first, nonexistent=later)
                .astype(dtype)
            )
        if self.way is not None:
            values = self.way.write(values)
        if dtype == "object":
            return pd.Series([*np.asarray(values, dtype=object)], dtype=object)
        return pd.Series(values).astype(dtype)

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
