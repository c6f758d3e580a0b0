"""What the columns of a table are, and the positions of their cells.

The model sees a column as positions: 0, 1, … for its levels, −1 for a missing cell. Levels of numbers
and times ascend, those of categories descend by frequency. A position between two levels is a new value
between them, rounded to what the column can have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from sliceflow.number_formats import infer_number_format
from sliceflow.spaces.tables import identifiers
from sliceflow.spaces.tables.cells import MAKE, EncodedColumn, convert, pandas, shown
from sliceflow.spaces.tables.formats import (
    EXACT,
    TICKS,
    DateText,
    Writing,
    dates_as,
    whole_numbers,
)

NUMBERS = ("continuous", "integer", "datetime")
CATEGORIES = ("boolean", "category", "ordered")
KINDS = (
    *NUMBERS,
    *CATEGORIES,
    "identifier",
    "drop",
)  # that a user may give; "constant" is another
_SMOOTH = (
    0.05  # different values per row, from which on new values between them are drawn,
)
_FEWEST_LEVELS = 10
_ATOM = (
    3,
    0.0005,
)  # except next to values of more rows than these, and than this share
_FREQUENT = 0.1  # share of the rows
_MAYBE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
_LOOKED_AT = 5_000  # cells, to see how numbers are written
_AXES = 12  # categories with an axis each, the most frequent
_MOST = 0.8  # share of texts that are dates, or come back, from which on the others are mistakes


@dataclass(frozen=True, eq=False)
class Column:
    """One understood column."""

    cells: EncodedColumn  # the user's
    kind: str  # one of `KINDS`, or "constant"
    order: np.ndarray  # (k,), the level of each position
    integer_values: (
        np.ndarray
    )  # (k,), what each is, ascending: whole numbers of units, or floats
    unit: Fraction | None = None  # in ones or seconds; None for floats and categories
    step: int = 1  # in units, between values
    clock: str = ""  # "time" or "duration" if units are seconds
    writing: Writing | None = None  # to write numbers or times as text
    exact: bool = (
        False  # whether new values are never drawn, because only what occurs may be
    )
    reason: str = ""  # why it is an identifier

    @property
    def name(self) -> Any:
        return self.cells.name

    @property
    def is_category(self) -> bool:
        return self.kind in CATEGORIES

    @property
    def is_label(self) -> bool:
        return self.is_category and len(self.order) < 3

    @property
    def modelled(self) -> bool:
        """Whether the chain draws it: an identifier only if cells are missing."""
        if self.kind in ("constant", "identifier"):
            return bool(self.cells.missing.any()) and len(self.order) > 0
        return self.kind != "drop"

    @cached_property
    def levels(self) -> Any:
        """(k,), the value at each position, a Series."""
        return self.cells.levels.iloc[self.order]

    @cached_property
    def positions(self) -> np.ndarray:
        """(n,), of the column's own cells."""
        place = np.full(len(self.cells.levels) + 1, 0.0 if len(self.order) else -1.0)
        place[self.order] = np.arange(len(self.order))
        place[-1] = -1.0
        return np.asarray(place[self.cells.codes])

    @cached_property
    def free(self) -> np.ndarray:
        """(k,), levels of few rows, between which new values are drawn; none if values are few."""
        k = len(self.order)
        n = int((~self.cells.missing).sum())
        if k < _FEWEST_LEVELS or k <= _SMOOTH * n or not self.has_room:
            return np.zeros(k, dtype=bool)
        counts = np.bincount(
            self.positions[self.positions >= 0].astype(np.int64), minlength=k
        )
        return np.asarray(counts <= max(_ATOM[0], _ATOM[1] * n))

    @cached_property
    def is_smooth(self) -> bool:
        """Whether it has numbers of which none is frequent, and cells are not often missing."""
        counts = np.unique(self.positions, return_counts=True)[1]
        return self.is_number and bool(counts.max() <= _FREQUENT * counts.sum())

    def is_free(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(
            (positions >= 0) & self.free[np.maximum(positions, 0).astype(np.int64)]
        )

    @cached_property
    def has_room(self) -> bool:
        """Whether there can be new values: most levels are written again as they were."""
        if (
            not self.is_number
            or self.exact
            or np.abs(self.values).max(initial=0) >= EXACT
        ):
            return False
        some = np.arange(0, len(self.order), max(1, len(self.order) // _LOOKED_AT))
        pairs = zip(self._write(some), self.levels.iloc[some], strict=True)
        return float(np.mean([str(a) == str(b) for a, b in pairs])) >= _MOST

    @cached_property
    def _scores(self) -> np.ndarray:
        """(k + 1,), the normal score of a missing cell and of each level."""
        counts = np.bincount(
            self.positions.astype(np.int64) + 1, minlength=len(self.order) + 1
        )
        middle = np.cumsum(counts) - counts / 2
        return np.asarray(ndtri(np.clip(middle / counts.sum(), 1e-6, 1 - 1e-6)))

    def axes(self, positions: np.ndarray) -> np.ndarray:
        """(m, a), comparable coordinates: a normal score, or one axis for each frequent category."""
        if self.is_category:
            levels = np.arange(min(_AXES, len(self.order)))
            return np.asarray((positions[:, None] == levels) / np.sqrt(2))
        return _at(self._scores, positions + 1)[:, None]

    @property
    def is_number(self) -> bool:
        """Whether it has numbers or times, with values between them."""
        return self.kind in NUMBERS

    @property
    def base(self) -> int:
        """Numbers count steps from here; floats are as they are."""
        return 0 if self.unit is None else int(self.integer_values[0])

    @cached_property
    def values(self) -> np.ndarray:
        """(k,), the number of each position: steps from the base, or floats."""
        if self.unit is None:
            return self.integer_values
        return np.asarray(
            ((self.integer_values - self.base) // self.step).astype(np.float64)
        )

    def numbers(self, positions: np.ndarray) -> np.ndarray:
        """The number at each position, NaN where it is missing."""
        if len(self.values) == 0:
            return np.full(len(positions), np.nan)
        return np.where(positions < 0, np.nan, _at(self.values, positions))

    def positions_of(self, numbers: np.ndarray) -> np.ndarray:
        """The positions of numbers within the range of the column; NaN outside it, −1 for NaN."""
        at = np.interp(
            numbers, self.values, np.arange(len(self.values)), np.nan, np.nan
        )
        # np.interp may miss a level by a rounding error, and only levels are exact.
        near = np.rint(np.nan_to_num(at)).astype(np.int64)
        at = np.where(self.values[near] == numbers, near, at)
        return np.where(np.isnan(numbers), -1.0, at)

    def on_grid(self, numbers: np.ndarray) -> np.ndarray:
        return numbers if self.unit is None else np.asarray(np.rint(numbers))

    def between(
        self, ends: Sequence[np.ndarray], share: np.ndarray, other: np.ndarray
    ) -> np.ndarray:
        """Positions between two, if new values may be there; `other` ones elsewhere."""
        a, b = (self.numbers(np.maximum(end, 0)) for end in ends)
        new = self.positions_of(self.on_grid(a + share * (b - a)))
        return np.where(
            self.is_free(ends[0]) & self.is_free(ends[1]) & (new >= 0), new, other
        )

    def quantiles(self, known: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Positions at places from 0 to n of sorted ones (n,), or between two of them."""
        n = len(known)
        drawn = known[np.minimum(at.astype(np.int64), n - 1)]
        if not self.free.any():
            return np.asarray(drawn)
        at = np.clip(at - 0.5, 0, n - 1)
        low = at.astype(np.int64)
        return self.between(
            (known[low], known[np.minimum(low + 1, n - 1)]), at - low, drawn
        )

    def ticks_at(self, positions: np.ndarray) -> np.ndarray:
        """What the values at positions are, exactly, in units; Python's integers where those are large."""
        level = np.floor(positions).astype(np.int64)
        out = self.integer_values[level]
        new = positions != level
        numbers = self.numbers(positions[new])
        if self.unit is not None:
            steps = np.rint(numbers).astype(np.int64).astype(self.integer_values.dtype)
            numbers = self.base + self.step * steps
        out[new] = numbers
        return np.asarray(out)

    def in_steps(self, integer_values: np.ndarray, unit: Fraction | None) -> np.ndarray:
        """Whole numbers of another unit, or floats, as `values` are."""
        ratio = (unit or Fraction(1)) / (self.unit or Fraction(1))
        above = ratio.numerator
        below = ratio.denominator
        if self.unit is None or unit is None:
            return np.asarray(
                (integer_values * float(above) / float(below) - self.base) / self.step
            )
        scaled = integer_values.astype(object) * above - self.base * below
        return np.array(
            [v / (below * self.step) for v in scaled.tolist()], dtype=np.float64
        )

    def _write(self, positions: np.ndarray) -> Any:
        """A Series of new values."""
        form = self.cells.form
        dtype = self.cells.dtype
        unit = self.unit or Fraction(1)
        values: Any = self.ticks_at(positions)
        if form == "Decimal":
            values = [
                Decimal(f"{v}e{1 - len(str(unit.denominator))}")
                for v in values.tolist()
            ]
        elif form == "date":
            values = values.astype("datetime64[D]").tolist()
        elif isinstance(self.writing, DateText):
            values = self.writing.write(values.astype(f"datetime64[{TICKS[unit]}]"))
        elif form in ("float", "str"):
            values = values / unit.denominator
            values = values if self.writing is None else self.writing.write(values)
        return (
            pandas()
            .Series(values, dtype=object if dtype == "object" else None)
            .astype(dtype)
        )

    def series(self, positions: np.ndarray, rng: np.random.Generator) -> Any:
        """The column of new rows, with its dtype."""
        missing = positions < 0
        level = np.floor(positions).astype(np.int64)
        if self.kind == "identifier":
            new = np.full(len(missing), None, dtype=object)
            new[~missing] = identifiers.new(self.cells, int((~missing).sum()), rng)
            return pandas().Series(new, dtype=object).astype(self.cells.dtype)
        out = self.cells.series(np.append(self.order, -1)[level])
        between = positions != level
        if between.any():
            out.iloc[np.flatnonzero(between)] = self._write(positions[between]).array
        return out

    def find(self, values: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Positions of values or texts for them, at most the ends; numbers; new ones in its dtype."""
        form = self.cells.form
        dtype = self.cells.levels.dtype
        texts = form != "str" and all(isinstance(value, str) for value in values)
        place = {str(v) if texts else v: p for p, v in enumerate(self.levels.tolist())}
        at = np.array(
            [place.get(value, -1) for value in values.tolist()], dtype=np.float64
        )
        numbers = self.numbers(at)
        new = np.flatnonzero(at < 0)
        made = values.iloc[new]
        if not len(new):
            return at, numbers, made
        try:
            if not self.is_number:
                raise ValueError(f"it has {shown(self.levels.tolist())}")
            made = made.astype(dtype) if texts else convert(made, dtype)
            if self.cells.dtype == "object" and form != "str":
                made = pandas().Series(
                    [MAKE[form](str(value)) for value in made], dtype=object
                )
            numbers[new] = self.in_steps(*whole_numbers(made, form, self.writing))
        except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
            fact = f"{values.iloc[new[0]]!r} does not fit the column {self.name!r}"
            raise ValueError(
                f"{fact}, which is {self.kind} ({dtype}); {error}"
            ) from error
        at[new] = np.interp(numbers[new], self.values, np.arange(len(self.values)))
        return at, numbers, made

    def places_of(self, cells: EncodedColumn) -> np.ndarray:
        """The positions of other cells of this column. A ValueError names a value that cannot be."""
        if self.kind in ("identifier", "constant", "drop"):
            return np.where(cells.missing, -1.0, 0.0)
        used, codes = np.unique(cells.codes[~cells.missing], return_inverse=True)
        out = np.full(len(cells.codes), -1.0)
        out[~cells.missing] = self.find(cells.levels.iloc[used])[0][codes]
        return out

    def describe(self) -> dict[str, Any]:
        """A row of the table `columns_`."""
        missing = self.cells.missing
        if self.kind == "drop":
            note = "left out, as asked"
        elif self.kind == "identifier":
            places = identifiers.alphabets(
                self.cells.levels.iloc[:1000].astype(str).tolist()
            )
            note = f"{self.reason}: new ones like {''.join(letters[-1] for letters in places)}"
        elif self.is_number:
            note = f"{self.levels.iloc[0]} to {self.levels.iloc[-1]}"
        else:
            note = shown(self.levels.tolist()) or "all missing"
        if self.reveals:
            note += "; SAMPLES CONTAIN REAL VALUES, most of which belong to one row"
        share = round(float(missing.mean()), 4)
        distinct = len(np.unique(self.cells.codes[~missing]))
        return dict(
            column=str(self.name),
            kind=self.kind,
            missing=share,
            distinct=distinct,
            note=note,
        )

    @property
    def reveals(self) -> bool:
        """Whether samples contain real values, most of which occur once and so tell their row."""
        counts = np.bincount(self.cells.codes[~self.cells.missing])
        once = int((counts == 1).sum())
        n = int(counts.sum())
        return self.is_category and n >= identifiers.FEWEST and 2 * once > n


def _at(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Values at positions, or on a line between two of them. Whole positions, as most are, are quick."""
    with np.errstate(invalid="ignore"):
        whole = positions.astype(np.int64)
    if (whole == positions).all():
        return np.asarray(values[whole], dtype=np.float64)
    return np.asarray(np.interp(positions, np.arange(len(values)), values))


def infer_schema(
    cells: EncodedColumn, distinct_rows: np.ndarray, wanted: str | None = None
) -> Column:
    """What a column is; `wanted` is a kind that the user gave, "datetime:FORMAT" for dates as text."""
    kind, _, date_format = (wanted or "").partition(":")
    if wanted is not None and (
        kind not in KINDS or (date_format and kind != "datetime")
    ):
        fact = f"columns={{{cells.name!r}: {wanted!r}}} is not a kind of column"
        cure = (
            f"use one of {', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text"
        )
        raise ValueError(f"{fact}; {cure}")
    counts = np.bincount(cells.codes[cells.codes >= 0])
    present = np.flatnonzero(counts)
    asked = "as asked" if kind == "identifier" else ""
    reason = asked if wanted else identifiers.reason(cells, distinct_rows)
    if kind == "drop":
        return Column(cells, "drop", present[:0], np.empty(0))
    if reason and reason != identifiers.NEARLY_UNIQUE:
        return Column(cells, "identifier", present[:1], np.empty(0), reason=reason)
    if len(present) == 0 or (len(present) == 1 and not cells.missing.any()):
        if len(present) and cells.form not in ("str", "bool") and not cells.categorical:
            return _numeric(
                cells, present, "constant", None
            )  # constraints may compare with it
        return Column(cells, "constant", present, np.zeros(len(present)))
    boolean = cells.form == "bool" and not cells.categorical
    if not (cells.categorical or boolean or kind in CATEGORIES):
        last = cells.levels.iloc[present[-1]]
        dated = cells.form in ("int", "float") and (
            date_format or 19e6 < last < 21e6
        )  # as 20240131
        writing = (
            _writing(cells, present, kind, date_format)
            if dated or cells.form == "str"
            else None
        )
        if (
            kind == "datetime"
            and writing is None
            and cells.form in ("int", "float", "Decimal")
        ):
            fact = f"column {cells.name!r} holds {last}, which is a number, not a time"
            raise ValueError(f"{fact}; convert it by pandas.to_datetime, with its unit")
        if writing is not None or cells.form != "str":
            return _numeric(cells, present, kind, writing)
        if reason:
            return Column(cells, "identifier", present[:1], np.empty(0), reason=reason)
        _refuse_free_text(cells, present, kind)
    if boolean or not kind:
        kind = (
            "boolean"
            if boolean
            else "ordered"
            if cells.categorical == "ordered"
            else "category"
        )
    order = (
        present
        if kind == "ordered"
        else present[np.argsort(-counts[present], kind="stable")]
    )
    return Column(cells, kind, order, np.arange(len(order), dtype=np.float64))


def _numeric(
    cells: EncodedColumn, present: np.ndarray, kind: str, writing: Writing | None
) -> Column:
    integer_values, unit = whole_numbers(
        cells.levels.iloc[present], cells.form, writing
    )
    sort = np.argsort(integer_values, kind="stable")
    step = 1
    integer_values = integer_values[sort]
    order = present[sort]
    if unit is not None and kind == "continuous" and cells.levels.dtype.kind == "f":
        integer_values = integer_values / unit.denominator
        unit = None
    if unit is not None and int(integer_values[-1]) - int(integer_values[0]) >= 2**62:
        integer_values = integer_values.astype(object)
    if (
        unit is not None and len(integer_values) >= _FEWEST_LEVELS
    ):  # fewer are too few to know a coarser grid
        step = int(np.gcd.reduce(integer_values - integer_values[0])) or 1
    time = isinstance(writing, DateText) or cells.form in ("date", "datetime")
    clock = "time" if time else "duration" if cells.form == "timedelta" else ""
    kind = kind or ("datetime" if clock else "integer" if unit == 1 else "continuous")
    column = Column(cells, kind, order, integer_values, unit, step, clock, writing)
    return replace(column, exact=time and _on_calendar(column))


def _on_calendar(column: Column) -> bool:
    """Whether times are first days of months, or on a grid of the clock on the wall; none is between."""
    times = column.levels
    coarser = False
    if column.cells.form != "datetime":
        times = pandas().Series(
            column.integer_values.astype(f"datetime64[{TICKS[column.unit]}]")
        )
    elif len(times) >= _FEWEST_LEVELS:
        wall = times.dt.tz_localize(None).astype("int64").to_numpy()
        coarser = np.gcd.reduce(wall - wall[0]) > column.step
    return bool(
        coarser or ((times.dt.day == 1) & (times == times.dt.normalize())).all()
    )


def _writing(
    cells: EncodedColumn, present: np.ndarray, kind: str, date_format: str
) -> Writing | None:
    """How texts write numbers or times, and integers dates; None for others. A ValueError names an odd one."""
    texts = cells.levels.iloc[present].astype(str).tolist()
    why = ""
    writings: list[Writing] = [DateText(date_format)] if date_format else []
    if kind in ("", "datetime") and not date_format:
        writings = [*dates_as(texts)]
        some = texts[:: max(1, len(texts) // _LOOKED_AT)]
        looks = [bool(_MAYBE_DATE.fullmatch(text.strip())) for text in some]
        if not writings and np.mean(looks) >= _MOST:
            odd = some[np.argmin(looks)]
            why = "but dates not all in one format"
    if not writings and kind != "datetime" and cells.form == "str":
        codes = cells.codes[cells.codes >= 0]
        often = cells.levels.iloc[codes[:: max(1, len(codes) // _LOOKED_AT)]]
        writings = [*filter(None, [infer_number_format(often.to_numpy(dtype=object))])]
    if len(writings) > 1:
        odd = texts[0]
        why = "a date in which day and month could be either"
    elif writings and (bad := np.isnan(writings[0].parse(texts))).any():
        odd = texts[np.argmax(bad)]
        why = f"but others are {date_format or 'numbers'}"
    if why:
        fact = f"column {cells.name!r} holds {odd!r} in row {[*map(str, cells.keys())].index(odd)}, {why}"
        format_too = ", or 'datetime:%d/%m/%Y' for such dates" if "date" in why else ""
        cure = f"columns={{{cells.name!r}: 'category'}}{format_too}"
        raise ValueError(f"{fact}; fix the cells, or pass {cure}")
    return writings[0] if writings else None


def _refuse_free_text(cells: EncodedColumn, present: np.ndarray, kind: str) -> None:
    texts = cells.levels.iloc[present].tolist()
    n = int((~cells.missing).sum())
    length, words = (
        sum(f(t) for t in texts) / len(texts) for f in (len, lambda t: t.count(" "))
    )
    if kind:
        raise ValueError(
            f"column {cells.name!r} is text such as {texts[0]!r}, not {kind}; convert it"
        )
    if 2 * len(texts) > n >= identifiers.FEWEST and (
        length > identifiers.LONG_TEXT or words >= 2
    ):
        fact = f"column {cells.name!r} is free text such as {texts[0][:30]!r}, which a table cannot imitate"
        kinds = f"columns={{{cells.name!r}: 'drop'}}, 'identifier' for new ones of the same form, or 'category'"
        raise ValueError(f"{fact}; pass {kinds}")
