"""What the columns of a table are, and the positions of their cells.

The model sees a column as positions: 0, 1, … for its levels, −1 for a missing cell. Levels of numbers
and times ascend, those of categories descend by frequency. A position between two levels is a new value
between them, rounded to what the column can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from sliceflow.spaces.tables import identifiers
from sliceflow.spaces.tables.cells import WRITTEN, Cells, convert, pandas, shown
from sliceflow.spaces.tables.formats import EXACT, DateText, Format, dates_as
from sliceflow.written import written_as

__all__ = ["KINDS", "Column", "understand"]

KINDS = (
    "continuous", "integer", "boolean", "category", "ordered", "datetime", "identifier", "constant",
    "drop",
)  # fmt: skip
_SMOOTH = 0.05  # different values per row, from which on new values between them are drawn,
_FEWEST_LEVELS = 10
_ATOM = (3, 0.0005)  # except next to values of more rows than these, and than this share
_LOOKED_AT = 5_000  # cells, to see how numbers are written
_AXES = 12  # categories with an axis each, the most frequent
_MOST = 0.8  # share of texts that are dates, or come back, from which on the others are mistakes


@dataclass(frozen=True, eq=False)
class Column:
    """One understood column."""

    cells: Cells  # the user's
    kind: str  # one of `KINDS`
    order: np.ndarray  # (k,), the level of each position
    values: np.ndarray  # (k,), the number of each, ascending
    format: Format | None = None  # how numbers are written; None for categories and the like
    base: int | None = None  # numbers count steps from base; None: any floats
    step: int = 1
    unit: Fraction | None = None  # of base and step, in ones or seconds
    instants: np.ndarray | None = None  # (k,), whole numbers of units, which compare as the levels do
    exact: bool = False  # whether new values are never drawn, because only what occurs may be
    reason: str = ""  # why it is an identifier

    @property
    def name(self) -> Any:
        return self.cells.name

    @property
    def is_category(self) -> bool:
        return self.kind in ("category", "ordered", "boolean")

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
        if self.kind != "identifier":
            place[self.order] = np.arange(len(self.order))
        place[-1] = -1.0
        return np.asarray(place[self.cells.codes])

    @cached_property
    def free(self) -> np.ndarray:
        """(k,), levels of few rows, between which new values are drawn; none if values are few."""
        k, n = len(self.values), int((~self.cells.missing).sum())
        if k < _FEWEST_LEVELS or k <= _SMOOTH * n or not self.has_room:
            return np.zeros(k, dtype=bool)
        counts = np.bincount(self.positions[self.positions >= 0].astype(np.int64), minlength=k)
        return np.asarray(counts <= max(_ATOM[0], _ATOM[1] * n))

    @cached_property
    def has_room(self) -> bool:
        """Whether there can be new values: most levels are written again as they were."""
        if self.format is None or self.exact or np.abs(self.values).max(initial=0) >= EXACT:
            return False
        some = slice(None, None, max(1, len(self.order) // _LOOKED_AT))
        pairs = zip(self._write(self.values[some]), self.levels.iloc[some], strict=True)
        return float(np.mean([str(a) == str(b) for a, b in pairs])) >= _MOST

    @cached_property
    def _scores(self) -> np.ndarray:
        """(k + 1,), the normal score of a missing cell and of each level."""
        counts = np.bincount(self.positions.astype(np.int64) + 1, minlength=len(self.order) + 1)
        middle = np.cumsum(counts) - counts / 2
        return np.asarray(ndtri(np.clip(middle / counts.sum(), 1e-6, 1 - 1e-6)))

    def axes(self, positions: np.ndarray) -> np.ndarray:
        """(m, a), comparable coordinates: a normal score, or one axis for each frequent category."""
        if self.is_category:
            levels = np.arange(min(_AXES, len(self.order)))
            return np.asarray((positions[:, None] == levels) / np.sqrt(2))
        return np.asarray(np.interp(positions, np.arange(-1, len(self.order)), self._scores)[:, None])

    # Numbers

    def numbers(self, positions: np.ndarray) -> np.ndarray:
        """The number at each position, NaN where it is missing."""
        if len(self.values) == 0:
            return np.full(len(positions), np.nan)
        found = np.interp(positions, np.arange(len(self.values)), self.values)
        return np.where(positions < 0, np.nan, found)

    def positions_of(self, numbers: np.ndarray) -> np.ndarray:
        """The positions of numbers within the range of the column; NaN outside it, −1 for NaN."""
        at = np.interp(numbers, self.values, np.arange(len(self.values)), np.nan, np.nan)
        # np.interp may miss a level by a rounding error, and only levels are exact.
        near = np.rint(np.nan_to_num(at)).astype(np.int64)
        at = np.where(self.values[near] == numbers, near, at)
        return np.where(np.isnan(numbers), -1.0, at)

    def on_grid(self, numbers: np.ndarray) -> np.ndarray:
        return numbers if self.base is None else np.asarray(np.rint(numbers))

    def _whole(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers in units."""
        if self.base is None:
            return numbers
        steps = np.rint(numbers).astype(np.int64)
        large = abs(self.base) + self.step * abs(float(self.values[-1])) >= 2**62
        return np.asarray(self.base + self.step * (steps.astype(object) if large else steps))

    def in_steps(self, numbers: np.ndarray, unit: Fraction | None) -> np.ndarray:
        """Numbers in another unit as `values` are."""
        ratio = (unit or Fraction(1)) / (self.unit or Fraction(1))
        above, below = ratio.numerator, ratio.denominator
        if self.base is None or unit is None:
            return np.asarray((numbers * float(above) / float(below) - (self.base or 0)) / self.step)
        scaled = numbers.astype(object) * above - self.base * below
        return np.array([v / (below * self.step) for v in scaled.tolist()], dtype=np.float64)

    def exactly(self, positions: np.ndarray) -> np.ndarray:
        """What the values at positions are, in units; Python's integers where those are large."""
        if self.instants is None or self.format is None:
            return self.numbers(positions)
        level = np.floor(positions).astype(np.int64)
        out, new = self.instants[level], positions != level
        if new.any():
            out[new] = self.format.instants(self._whole(self.numbers(positions[new])))
        return np.asarray(out)

    # Values

    def _write(self, numbers: np.ndarray) -> Any:
        assert self.format is not None
        return self.format.write(self._whole(numbers), self.unit)

    def series(self, positions: np.ndarray, rng: np.random.Generator) -> Any:
        """The column of new rows, with its dtype."""
        missing, level = positions < 0, np.floor(positions).astype(np.int64)
        if self.kind == "identifier":
            texts = np.full(len(missing), None, dtype=object)
            new = identifiers.new(self.cells, int((~missing).sum()), rng)
            texts[~missing] = [int(text) for text in new] if self.cells.form == "int" else new
            return pandas().Series(texts, dtype=object).astype(self.cells.dtype)
        out, between = self.cells.series(np.append(self.order, -1)[level]), positions != level
        if between.any():
            out.iloc[np.flatnonzero(between)] = self._write(self.numbers(positions[between])).array
        return out

    def find(self, levels: Any) -> tuple[np.ndarray, np.ndarray]:
        """Positions and numbers of values; NaN for what this column cannot have."""
        try:
            levels = convert(levels, self.cells.levels.dtype)
        except ValueError:
            return np.full(len(levels), np.nan), np.full(len(levels), np.nan)
        place = {value: p for p, value in enumerate(self.levels.tolist())}
        at = np.array([place.get(value, np.nan) for value in levels.tolist()], dtype=np.float64)
        numbers, new = self.numbers(at), np.flatnonzero(np.isnan(at))
        if self.format is not None and len(new):
            numbers[new] = self.in_steps(*self.format.parse(levels.iloc[new]))
            at[new] = np.interp(numbers[new], self.values, np.arange(len(self.values)))
        return at, numbers

    def places_of(self, cells: Cells) -> np.ndarray:
        """The positions of other cells of this column. A ValueError names a value that cannot be."""
        if self.kind in ("identifier", "constant", "drop"):
            return np.where(cells.missing, -1.0, 0.0)
        out: np.ndarray = np.append(self.find(cells.levels)[0], -1.0)[cells.codes]
        if np.isnan(out).any():
            row = int(np.flatnonzero(np.isnan(out))[0])
            bad, known = cells.levels.iloc[cells.codes[row]], shown(self.levels.tolist())
            raise ValueError(f"column {self.name!r} has no value {bad!r} (row {row}); it has {known}")
        return out

    def read(self, value: Any) -> Any:
        """A value that was given, or a text for it, as a Series of one. A ValueError if it does not fit."""
        pd, dtype, text = pandas(), self.cells.levels.dtype, isinstance(value, str)
        if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
            if not self.cells.missing.any():
                raise ValueError(f"{self.name!r} is missing, but no cell of this column is")
            return pd.Series([None], dtype=object).astype(dtype)
        known = self.levels[(self.levels.astype(str) if text else self.levels) == value]
        if len(known):
            return known.iloc[:1].reset_index(drop=True)
        form = self.cells.form
        try:
            if form == "datetime" and getattr(value, "tzinfo", None) is None:
                value, text = str(value), True  # on the clock of the column
            made = WRITTEN[form](str(value)) if form in WRITTEN else value
            one = pd.Series([made], dtype=object if dtype.kind == "O" else None)
            one = one.astype(dtype) if text else convert(one, dtype)
            if self.format is None:
                raise ValueError(f"it has {shown(self.levels.tolist())}")
            self.format.parse(one)
            return one
        except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
            fact = f"{self.name!r}={value!r} does not fit the column, which is {self.kind} ({dtype})"
            raise ValueError(f"{fact}; {error}") from error

    # For people

    def describe(self) -> dict[str, Any]:
        """A row of the table `columns_`."""
        missing = self.cells.missing
        if self.kind == "drop":
            note = "left out, as asked"
        elif self.kind == "identifier":
            pattern = identifiers.pattern_of(self.cells.levels.iloc[:1000].astype(str).tolist())
            note = f"{self.reason}: new ones like {pattern.replace(chr(92), '')}"
        elif self.format is not None:
            note = f"{self.levels.iloc[0]} to {self.levels.iloc[-1]}"
        else:
            note = shown(self.levels.tolist()) or "all missing"
        if self.reveals:
            note += "; SAMPLES CONTAIN REAL VALUES, most of which belong to one row"
        share, distinct = round(float(missing.mean()), 4), len(np.unique(self.cells.codes[~missing]))
        row = {"column": str(self.name), "kind": self.kind, "missing": share}
        return row | {"distinct": distinct, "note": note}

    @property
    def reveals(self) -> bool:
        """Whether samples contain real values, most of which occur once and so tell their row."""
        counts = np.bincount(self.cells.codes[~self.cells.missing])
        once, n = int((counts == 1).sum()), int(counts.sum())
        return self.is_category and n >= identifiers.FEWEST and 2 * once > n


# Understanding


def understand(cells: Cells, distinct_rows: np.ndarray, wanted: str | None = None) -> Column:
    """What a column is; `wanted` is a kind that the user gave, "datetime:FORMAT" for dates as text."""
    kind, _, date_format = (wanted or "").partition(":")
    if wanted is not None and (kind not in KINDS or (date_format and kind != "datetime")):
        fact = f"columns={{{cells.name!r}: {wanted!r}}} is not a kind of column"
        cure = f"use one of {', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text"
        raise ValueError(f"{fact}; {cure}")
    present = np.flatnonzero(np.bincount(cells.codes[cells.codes >= 0]))
    if kind == "drop":
        return Column(cells, "drop", present[:0], np.empty(0))
    reason = "as asked" if kind == "identifier" else ""
    if wanted is None:
        reason = identifiers.reason(cells, distinct_rows)
    form = _format(cells, present, "", "") if reason == identifiers.NEARLY_UNIQUE else None
    if reason and form is None:
        return Column(cells, "identifier", present[:1], np.empty(0), reason=reason)
    if len(present) == 0 or (len(present) == 1 and not cells.missing.any()):
        return Column(cells, "constant", present, np.zeros(len(present)))
    boolean = cells.form == "bool" and not cells.categorical
    if not (cells.categorical or boolean or kind in ("category", "ordered", "boolean")):
        if (form := form or _format(cells, present, kind, date_format)) is not None:
            return _numeric(cells, present, kind, form)
        _refuse_free_text(cells, present, kind)
    if boolean or not kind:
        kind = "boolean" if boolean else "ordered" if cells.categorical == "ordered" else "category"
    counts = np.bincount(cells.codes[cells.codes >= 0])[present]
    order = present if kind == "ordered" else present[np.argsort(-counts, kind="stable")]
    return Column(cells, kind, order, np.arange(len(order), dtype=np.float64))


def _numeric(cells: Cells, present: np.ndarray, kind: str, form: Format) -> Column:
    levels = cells.levels.iloc[present]
    numbers, unit = form.parse(levels)
    sort = np.argsort(numbers, kind="stable")
    numbers, order = numbers[sort], present[sort]
    if unit is None or (kind == "continuous" and levels.dtype.kind == "f"):
        floats = numbers / (unit or Fraction(1)).denominator
        return Column(cells, kind or "continuous", order, floats, form)
    base, step = int(numbers[0]), 1
    if int(numbers[-1]) - base >= 2**62:
        numbers = numbers.astype(object)
    if len(numbers) >= _FEWEST_LEVELS:  # fewer are too few to know a coarser grid
        step = int(np.gcd.reduce(numbers - base)) or 1
    values = ((numbers - base) // step).astype(np.float64)
    instants = cells.numbers[order] if cells.form == "datetime" else form.instants(numbers)
    times = form.times(levels) if form.clock == "time" else None
    months = times is not None and bool((times == times.astype("datetime64[M]")).all())
    kind = kind or ("datetime" if form.clock else "integer" if unit == 1 else "continuous")
    return Column(cells, kind, order, values, form, base, step, unit, instants, exact=months)


def _format(cells: Cells, present: np.ndarray, kind: str, date_format: str) -> Format | None:
    """How a column writes numbers or times; None for words. A ValueError names a text that does not."""
    if cells.form != "str":
        return Format(cells)
    texts = cells.levels.iloc[present].tolist()
    way: Any = DateText(date_format) if date_format else None
    if kind in ("", "datetime") and not date_format:
        way = _dates(cells, texts)
    if way is None and kind != "datetime":
        codes = cells.codes[cells.codes >= 0]
        some = cells.levels.iloc[codes[:: max(1, len(codes) // _LOOKED_AT)]]
        way = written_as(some.to_numpy(dtype=object))
    if way is not None and (bad := np.isnan(way.parse(texts))).any():
        fact = f"column {cells.name!r} holds {date_format or 'numbers'}, but {texts[np.argmax(bad)]!r}"
        row, cure = cells.keys().index(texts[np.argmax(bad)]), f"columns={{{cells.name!r}: 'category'}}"
        raise ValueError(f"{fact} in row {row}; fix the cell, or pass {cure}")
    return None if way is None else Format(cells, way)


def _dates(cells: Cells, texts: list[str]) -> Any:
    """The one format of dates as text; None if they are no dates."""
    forms, looks = dates_as(texts)
    if len(forms) == 1 or looks < _MOST:
        return forms[0] if forms else None
    odd, why = texts[0], "in which day and month could be either"
    if not forms:
        odd = next((text for text in texts if not dates_as([text, odd])[0]), odd)
        why = "not all in one format"
    raise ValueError(
        f"column {cells.name!r} holds dates such as {odd!r} in row {cells.keys().index(odd)}, {why}; pass "
        f"columns={{{cells.name!r}: 'datetime:%d/%m/%Y'}} with their format, or use pandas.to_datetime"
    )


def _refuse_free_text(cells: Cells, present: np.ndarray, kind: str) -> None:
    texts, n = cells.levels.iloc[present].tolist(), int((~cells.missing).sum())
    length, words = (sum(f(t) for t in texts) / len(texts) for f in (len, lambda t: t.count(" ")))
    if kind:
        raise ValueError(f"column {cells.name!r} is text such as {texts[0]!r}, not {kind}; convert it")
    if 2 * len(texts) > n >= identifiers.FEWEST and (length > identifiers.LONG_TEXT or words >= 2):
        raise ValueError(
            f"column {cells.name!r} is free text ({len(texts)} different texts such as {texts[0][:30]!r}), "
            f"which a table cannot imitate; pass columns={{{cells.name!r}: 'drop'}} to leave it out, "
            "'identifier' for new ones of the same form, or 'category' to use the texts as they are"
        )
