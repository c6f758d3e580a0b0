"""What the columns of a table are, and the positions of their cells.

The model sees a column as positions: 0, 1, … for its levels, −1 for a missing cell. Levels of numbers
and times ascend, those of categories descend by frequency. A position between two levels is a new value
between them, rounded to what the column can have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from sliceflow.spaces.tables.cells import Cells, build_series, shown
from sliceflow.spaces.tables.identifiers import (
    NEARLY_UNIQUE,
    identifies,
    mostly_unique,
    new_identifiers,
    pattern_of,
)
from sliceflow.written import ISO, Written, written_as

__all__ = ["KINDS", "Column", "understand"]

KINDS = (
    "continuous", "integer", "boolean", "category", "ordered", "datetime", "identifier", "constant",
    "drop",
)  # fmt: skip
_SMOOTH = 0.05  # different values per row, from which on new values between them are drawn,
_FEWEST_LEVELS = 10
_ATOM = (3, 0.0005)  # except next to values of more rows than these, and than this share
_MOST_DECIMALS = 6
_EXACT = 2**53
_LOOKED_AT = 5_000  # cells, to see how numbers are written
_AXES = 12  # categories with an axis each, the most frequent
_LONG_TEXT = 40  # characters, on average, of texts that are no categories
_DATES = 0.8  # share of texts that are dates, from which on the others are mistakes
_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d",
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%d-%m-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_MAYBE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")


@dataclass(frozen=True)
class DateText:
    """Times written as text in one format."""

    format: str

    def parse(self, text: str) -> int | None:
        """Seconds since 1970; None if it is not written this way."""
        try:
            found = datetime.strptime(text, self.format)
        except ValueError:
            return None
        return (
            int((found - datetime(1970, 1, 1)).total_seconds()) if self.write(found) == text else None
        )

    def write(self, time: datetime) -> str:
        return time.strftime(self.format)

    def texts(self, seconds: np.ndarray) -> list[str]:
        times = seconds.astype(np.int64).astype("datetime64[s]").tolist()
        return [self.write(time) for time in times]


@dataclass(frozen=True, eq=False)
class Column:
    """One understood column.

    Parameters
    ----------
    cells : the user's cells
    kind : one of `KINDS`
    order : (k,), the level of each position
    values : (k,), the number of each position, ascending; of categories the position itself
    step, offset : numbers are offset + step·i for whole i; step 0: any number
    base : of whole numbers and ticks: `values` count from here, in units of `step`
    months : values count months, because every date is the first of one
    written : how numbers or times are written as text
    reason : why the column is an identifier
    """

    cells: Cells
    kind: str
    order: np.ndarray
    values: np.ndarray
    step: float = 0.0
    offset: float = 0.0
    base: int | None = None
    months: bool = False
    written: Written | DateText | None = None
    reason: str = ""

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
    def places(self) -> np.ndarray:
        """(k,), the position of each level."""
        out = np.zeros(max(self.cells.n_levels, 1), dtype=np.int64)
        if self.kind != "identifier":
            out[self.order] = np.arange(len(self.order))
        return out

    @cached_property
    def positions(self) -> np.ndarray:
        """(n,), of the column's own cells."""
        return np.where(self.cells.missing, -1.0, self.places[self.cells.codes])

    @cached_property
    def free(self) -> np.ndarray:
        """(k,), levels of few rows, between which new values are drawn; none if values are few."""
        k, n = len(self.values), int((~self.cells.missing).sum())
        numeric = self.kind in ("continuous", "integer", "datetime")
        if not numeric or k < _FEWEST_LEVELS or k <= _SMOOTH * n or not self._exact:
            return np.zeros(k, dtype=bool)
        counts = np.bincount(self.positions[self.positions >= 0].astype(np.int64), minlength=k)
        return np.asarray(counts <= max(_ATOM[0], _ATOM[1] * n))

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

    @property
    def _exact(self) -> bool:
        return bool(np.abs(self.values).max(initial=0) < _EXACT)

    # Values

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
        if self.base is not None:
            return np.asarray(np.rint(numbers))
        if self.step == 0:
            return numbers
        k = np.rint((numbers - self.offset) / self.step)
        scale = round(1 / self.step)
        if (
            self.step < 1 and abs(1 / self.step - scale) < 1e-9
        ):  # 0.1 = 1/10 exactly as decimals are read
            return np.asarray(np.round((np.rint(self.offset * scale) + k) / scale, _MOST_DECIMALS))
        return np.asarray(np.round(self.offset + self.step * k, _MOST_DECIMALS))

    def series(self, positions: np.ndarray, rng: np.random.Generator) -> Any:
        """The column of new rows, with its dtype."""
        missing = positions < 0
        if self.kind == "identifier":
            return self._identifiers(missing, rng)
        new = ~missing & (positions != np.rint(positions))
        codes = np.full(len(positions), -1, dtype=np.int64)
        codes[~missing & ~new] = self.order[positions[~missing & ~new].astype(np.int64)]
        if not new.any():
            return build_series(self.cells, codes)
        codes[new], fresh = -2, np.zeros(len(positions), dtype=object)
        fresh[new] = self.fresh(self.on_grid(self.numbers(positions[new])))
        texts = self.cells.form in ("text", "decimal") or self.cells.dtype == "object"
        return build_series(self.cells, codes, fresh if texts else _as_numbers(fresh, self.cells))

    def fresh(self, numbers: np.ndarray) -> list[Any]:
        """New values: ticks, texts, Decimals or numbers."""
        values: Any = numbers
        if self.months:
            ticks = np.rint(numbers).astype(np.int64) + (self.base or 0)
            unit = "s" if isinstance(self.written, DateText) else self.cells.unit
            values = ticks.astype("datetime64[M]").astype(f"datetime64[{unit}]").astype(np.int64)
        elif self.base is not None:
            step, base = int(self.step), self.base
            values = np.array([base + step * int(v) for v in np.rint(numbers).tolist()])
        if self.written is not None:
            return list(self.written.texts(values))
        if self.cells.form == "decimal":
            places = min(Decimal(text).as_tuple().exponent for text in self.cells.texts)
            return [Decimal(repr(v)).quantize(Decimal(1).scaleb(int(places))) for v in values.tolist()]
        return list(values.tolist())

    def _identifiers(self, missing: np.ndarray, rng: np.random.Generator) -> Any:
        codes = np.where(missing, -1, -2)
        fresh = np.zeros(len(codes), dtype=object)
        fresh[~missing] = new_identifiers(self.cells, int((~missing).sum()), rng)
        if self.cells.form == "text":
            return build_series(self.cells, codes, fresh)
        fresh[~missing] = [int(text) for text in fresh[~missing]]
        fixed = (
            fresh
            if self.cells.texts or self.cells.dtype == "object"
            else _as_numbers(fresh, self.cells)
        )
        return build_series(self.cells, codes, fixed)

    def places_of(self, cells: Cells) -> np.ndarray:
        """The positions of other cells of this column. A ValueError names a value that cannot be."""
        if self.kind in ("identifier", "constant", "drop"):
            return np.where(cells.missing, -1.0, 0.0)
        number_of = {key: p for p, key in enumerate(_labels(self.cells, self.order))}
        out = np.full(cells.n_levels, np.nan)
        labels = _labels(cells, np.arange(cells.n_levels))
        for k, label in enumerate(labels):
            if label in number_of:
                out[k] = number_of[label]
            elif not self.is_category:
                number = self.number_of(label)
                out[k] = np.clip(np.interp(number, self.values, np.arange(len(self.values))), 0, None)
        used = np.unique(cells.codes[cells.codes >= 0])
        bad = [labels[k] for k in used.tolist() if np.isnan(out[k])]
        if bad:
            row = int(np.flatnonzero(np.isin(cells.codes, np.flatnonzero(np.isnan(out))))[0])
            known = shown(_labels(self.cells, self.order))
            raise ValueError(
                f"column {self.name!r} has no value {bad[0]!r} (row {row}); it has {known}"
            )
        return np.where(cells.missing, -1.0, out[cells.codes] if len(out) else -1.0)

    def number_of(self, value: Any) -> float:
        """The number of a level, in the units of `values`; NaN if it is none."""
        if isinstance(self.written, DateText):
            value = self.written.parse(str(value).strip())
        elif self.written is not None:
            value = float(self.written.parse(np.array([value], dtype=object))[0])
        if value is None or isinstance(value, str):
            return np.nan
        if self.months:
            unit = "s" if self.written is not None else self.cells.unit
            month = np.array([int(value)]).astype(f"datetime64[{unit}]").astype("datetime64[M]")
            return float(month.astype(np.int64)[0] - (self.base or 0))
        if self.base is not None:
            return float((Decimal(value) - self.base) / Decimal(int(self.step)))
        return float(value)

    def number_from(self, value: Any) -> float:
        """The number of a value that the user sees as a number, in the units of `values`."""
        if self.base is not None and not self.months:
            return float((Decimal(value) - self.base) / Decimal(int(self.step)))
        return float(value)

    # For people

    def describe(self) -> dict[str, Any]:
        """A row of the table `columns_`."""
        share = float(self.cells.missing.mean())
        distinct = len(np.unique(self.cells.codes[~self.cells.missing]))
        row = {"column": str(self.name), "kind": self.kind, "missing": round(share, 4)}
        return row | {"distinct": distinct, "note": self._note()}

    def _note(self) -> str:
        if self.kind == "drop":
            return "left out, as asked"
        if self.kind == "identifier":
            texts = [str(self.cells.level(k)) for k in range(min(self.cells.n_levels, 1000))]
            return f"{self.reason}: new ones like {pattern_of(texts).replace(chr(92), '')}"
        if not len(self.order):
            return "all missing"
        labels = _labels(self.cells, self.order)
        if self.is_category or self.kind == "constant":
            return shown(labels)
        first, last = (build_series(self.cells, self.order[[k]]).iloc[0] for k in (0, -1))
        steps = f", steps of {self.step:g}" if self.step and self.kind != "datetime" else ""
        return f"{first} to {last}{steps}" + (", months" if self.months else "")

    @property
    def reveals(self) -> bool:
        """Whether samples contain values that most rows have alone."""
        return self.is_category and mostly_unique(self.cells.codes)


def _as_numbers(fresh: np.ndarray, cells: Cells) -> np.ndarray:
    dtype = cells.numbers.dtype if len(cells.numbers) else np.float64
    return fresh.astype(dtype)


def _labels(cells: Cells, levels: np.ndarray) -> list[Any]:
    if cells.categories is not None:
        return [cells.categories[k] for k in levels.tolist()]
    return [cells.level(k) for k in levels.tolist()]


# Understanding


def understand(cells: Cells, distinct_rows: np.ndarray, wanted: str | None = None) -> Column:
    """What a column is; `wanted` is a kind that the user gave, "datetime:FORMAT" for dates as text."""
    kind, _, date_format = (wanted or "").partition(":")
    if wanted is not None and (kind not in KINDS or (date_format and kind != "datetime")):
        raise ValueError(
            f"columns={{{cells.name!r}: {wanted!r}}} is not a kind of column; use one of "
            f"{', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text"
        )
    if kind == "drop":
        return Column(cells, "drop", np.empty(0, np.int64), np.empty(0))
    present = np.unique(cells.codes[cells.codes >= 0])
    reason = identifies(cells, distinct_rows) if wanted is None else ""
    if reason == NEARLY_UNIQUE and _has_numbers(cells, present):
        reason = ""
    if kind == "identifier" or reason:
        reason, one = reason or "as asked", present[:1]
        return Column(cells, "identifier", one, np.zeros(len(one)), reason=reason)
    if len(present) == 0 or (len(present) == 1 and not cells.missing.any()):
        return Column(cells, "constant", present, np.zeros(len(present)))
    if (
        cells.categories is not None
        or kind in ("category", "ordered", "boolean")
        or cells.form == "boolean"
    ):
        ordered = kind == "ordered" or (kind != "category" and cells.ordered)
        own = "boolean" if cells.form == "boolean" else "ordered" if ordered else "category"
        return _category(cells, own, present)
    if cells.form != "text":
        return _numeric(cells, present, kind)
    return _text(cells, present, kind, date_format)


def _has_numbers(cells: Cells, present: np.ndarray) -> bool:
    """Whether texts are numbers or dates, nearly all of which may differ."""
    first = cells.texts[present[0]].strip()
    return _way(cells) is not None or bool(_MAYBE_DATE.fullmatch(first) or _fitting([first]))


def _way(cells: Cells) -> Written | None:
    """How most cells write numbers; None if they do not."""
    codes = cells.codes[cells.codes >= 0]
    some = codes[:: max(1, len(codes) // _LOOKED_AT)]
    return written_as(np.array([cells.texts[k] for k in some.tolist()], dtype=object))


def _fitting(texts: list[str]) -> list[DateText]:
    """The formats that all texts have."""
    return [
        found
        for f in _FORMATS
        if all((found := DateText(f)).parse(t.strip()) is not None for t in texts)
    ]


def _category(cells: Cells, kind: str, present: np.ndarray) -> Column:
    counts = np.bincount(cells.codes[cells.codes >= 0], minlength=cells.n_levels)[present]
    order = present if kind == "ordered" else present[np.argsort(-counts, kind="stable")]
    return Column(cells, kind, order, np.arange(len(order), dtype=np.float64))


def _numeric(cells: Cells, present: np.ndarray, wanted: str) -> Column:
    whole = cells.form != "number" and cells.form != "decimal"
    if whole:
        ticks = [int(cells.level(k)) for k in present.tolist()]
        times = cells.form in ("datetime", "date", "duration")
        kind = wanted or ("datetime" if times else "integer")
        return _on_ticks(
            Column(cells, kind, present, np.empty(0)), ticks, times and cells.form != "duration"
        )
    values = np.array([float(cells.level(k)) for k in present.tolist()])
    step, offset = (0.0, 0.0) if wanted == "continuous" else grid_of(values)
    integers = step > 0 and float(step).is_integer() and float(offset).is_integer()
    return Column(
        cells, wanted or ("integer" if integers else "continuous"), present, values, step, offset
    )


def _on_ticks(column: Column, ticks: list[int], calendar: bool, unit: str = "") -> Column:
    """Whole numbers, or the ticks of a clock: counted from the first in steps of their grid."""
    if calendar:
        times = np.array(ticks).astype(f"datetime64[{unit or column.cells.unit}]")
        months = times.astype("datetime64[M]")
        if len(np.unique(months)) > 2 and bool(np.all(months.astype(times.dtype) == times)):
            counts = months.astype(np.int64)
            values = (counts - counts[0]).astype(np.float64)
            return replace(column, values=values, base=int(counts[0]), step=1.0, months=True)
    base, step = ticks[0], 1
    if len(ticks) >= _FEWEST_LEVELS:  # fewer are too few to know a coarser grid
        step = int(np.gcd.reduce(np.array([t - base for t in ticks], dtype=object))) or 1
    values = np.array([(t - base) // step for t in ticks], dtype=np.float64)
    return replace(column, values=values, base=base, step=float(step))


def _text(cells: Cells, present: np.ndarray, wanted: str, date_format: str) -> Column:
    texts = [cells.texts[k] for k in present.tolist()]
    if wanted in ("", "datetime") and (found := _dates(cells, texts, date_format)) is not None:
        ticks = [found.parse(text.strip()) for text in texts]
        sort = sorted(range(len(ticks)), key=lambda i: (ticks[i], texts[i]))
        column = Column(cells, "datetime", present[sort], np.empty(0), written=found)
        return _on_ticks(column, [ticks[i] or 0 for i in sort], True, "s")
    way = _way(cells) if wanted != "datetime" else None
    if way is not None:
        values = way.parse(np.array(texts, dtype=object))
        if np.isnan(values).any():
            bad = texts[int(np.flatnonzero(np.isnan(values))[0])]
            row = int(np.flatnonzero(cells.codes == present[texts.index(bad)])[0])
            raise ValueError(
                f"column {cells.name!r} holds numbers, but {bad!r} in row {row}; fix the cell, or pass "
                f"columns={{{cells.name!r}: 'category'}}"
            )
        ascending = np.argsort(values, kind="stable")
        step, offset = (0.0, 0.0) if wanted == "continuous" else grid_of(values)
        whole = step > 0 and step.is_integer() and offset.is_integer()
        kind = wanted or ("integer" if whole else "continuous")
        return Column(cells, kind, present[ascending], values[ascending], step, offset, written=way)
    if wanted:
        raise ValueError(
            f"column {cells.name!r} is text such as {texts[0]!r}, not {wanted}; convert it"
        )
    n = int((~cells.missing).sum())
    length, words = (sum(f(t) for t in texts) / len(texts) for f in (len, lambda t: t.count(" ")))
    if 2 * len(texts) > n >= 20 and (length > _LONG_TEXT or words >= 2):
        example = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        raise ValueError(
            f"column {cells.name!r} is free text ({len(texts)} different texts such as {example!r}), "
            f"which a table cannot imitate; pass columns={{{cells.name!r}: 'drop'}} to leave it out, "
            "'identifier' for new ones of the same form, or 'category' to use the texts as they are"
        )
    return _category(cells, "category", present)


def _dates(cells: Cells, texts: list[str], date_format: str) -> DateText | None:
    """The one format of dates as text; None if they are no dates."""
    if date_format:
        found, bad = (
            DateText(date_format),
            [t for t in texts if DateText(date_format).parse(t.strip()) is None],
        )
        if bad:
            raise ValueError(
                f"column {cells.name!r} holds {bad[0]!r}, which is not written as {date_format}"
            )
        return found
    some = texts[:: max(1, len(texts) // 1000)]
    looks = sum(bool(_MAYBE_DATE.fullmatch(t.strip()) or ISO.fullmatch(t.strip())) for t in some)
    fits = _fitting(texts)
    if len(fits) == 1 or (fits and looks < _DATES * len(some)):
        return fits[0]
    if looks < _DATES * len(some):
        return None
    why = "in which day and month could be either" if len(fits) > 1 else "not all in one format"
    odd = next((t for t in texts if not ISO.fullmatch(t.strip())), texts[0])
    row = int(np.flatnonzero(cells.codes == list(cells.texts).index(odd))[0])
    raise ValueError(
        f"column {cells.name!r} holds dates such as {odd!r} (row {row}), {why}; pass "
        f"columns={{{cells.name!r}: 'datetime:%d/%m/%Y'}} with their format, or convert them by "
        "pandas.to_datetime"
    )


def grid_of(values: np.ndarray) -> tuple[float, float]:
    """Step and offset of ascending numbers that are offset + step·k; (0, 0) if there is no such grid."""
    values = np.unique(values)
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = values * 10.0**decimals
        if np.abs(scaled).max() >= _EXACT:
            break
        if np.all(np.abs(scaled - np.rint(scaled)) <= 1e-9 * np.maximum(1, np.abs(scaled))) and np.all(
            np.round(values, decimals) == values
        ):
            ticks = np.rint(scaled).astype(np.int64)
            step = int(np.gcd.reduce(np.diff(ticks))) if len(ticks) >= _FEWEST_LEVELS else 1
            return step / 10**decimals, float(ticks[0] / 10**decimals)
    return 0.0, 0.0
