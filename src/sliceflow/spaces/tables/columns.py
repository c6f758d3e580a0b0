"""What the columns of a table are, and the positions of their cells.

The model sees a column as positions: 0, 1, … for its levels, −1 for a missing cell. Levels of numbers
and times ascend, those of categories descend by frequency. A position between two levels is a new value
between them, rounded to what the column can have.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from sliceflow.spaces.tables.cells import WRITTEN, Cells, convert, pandas, shown
from sliceflow.spaces.tables.formats import EXACT, Format, date_text, format_of, months, number_text
from sliceflow.spaces.tables.identifiers import (
    LONG_TEXT,
    NEARLY_UNIQUE,
    identifies,
    new_identifiers,
    pattern_of,
    reveals,
)
from sliceflow.written import DateText, dates_as, written_as

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
_MOST = (
    0.8  # share of texts that are dates, or written in one way, from which on the others are mistakes
)


@dataclass(frozen=True, eq=False)
class Column:
    """One understood column.

    Parameters
    ----------
    cells : the user's cells
    kind : one of `KINDS`
    order : (k,), the level of each position
    values : (k,), the number of each position, ascending; of categories the position itself
    base, step, decimals : `values` count from base·10^−decimals in steps of step·10^−decimals; None:
        they are any floats
    instants : (k,), exact whole numbers of `unit`, which compare as the levels do
    format : how numbers are written
    reason : why the column is an identifier
    exact : whether new values are never drawn, because only combinations that occur may be
    """

    cells: Cells
    kind: str
    order: np.ndarray
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    base: int | None = None
    step: int = 1
    decimals: int | None = None
    instants: np.ndarray | None = None
    format: Format | None = None
    reason: str = ""
    exact: bool = False

    @property
    def name(self) -> Any:
        return self.cells.name

    @property
    def is_category(self) -> bool:
        return self.kind in ("category", "ordered", "boolean")

    @property
    def unit(self) -> Fraction | None:
        """Of what `exactly` gives, in ones or seconds; None for floats."""
        return (
            None
            if self.format is None or self.base is None
            else self.format.unit / 10 ** (self.decimals or 0)
        )

    @property
    def modelled(self) -> bool:
        """Whether the chain draws it: an identifier only if cells are missing."""
        if self.kind in ("constant", "identifier"):
            return bool(self.cells.missing.any()) and len(self.order) > 0
        return self.kind != "drop"

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
        if self.format is None or self.exact or k < _FEWEST_LEVELS or k <= _SMOOTH * n:
            return np.zeros(k, dtype=bool)
        if np.abs(self.values).max() >= EXACT or not self._same_when_written:
            return np.zeros(k, dtype=bool)
        counts = np.bincount(self.positions[self.positions >= 0].astype(np.int64), minlength=k)
        return np.asarray(counts <= max(_ATOM[0], _ATOM[1] * n))

    @property
    def _same_when_written(self) -> bool:
        some = slice(None, None, max(1, len(self.order) // _LOOKED_AT))
        written, levels = self._write(self.values[some]), self.cells.levels.iloc[self.order[some]]
        return float(np.mean(written.astype(str).to_numpy() == levels.astype(str).to_numpy())) >= _MOST

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

    def _wholes(self, numbers: np.ndarray) -> np.ndarray:
        """Whole numbers, as `format` writes them, of numbers that count steps."""
        assert self.base is not None
        steps = np.rint(numbers).astype(np.int64)
        if abs(self.base) + self.step * abs(float(self.values[-1])) >= 2**62:
            steps = steps.astype(object)
        return np.asarray(self.base + self.step * steps)

    def _write(self, numbers: np.ndarray) -> Any:
        assert self.format is not None
        return self.format.write(numbers if self.base is None else self._wholes(numbers), self.decimals)

    def exactly(self, positions: np.ndarray) -> np.ndarray:
        """What the values at positions are, in units of `unit`; Python's integers where those are large."""
        if self.instants is None or self.format is None:
            return self.numbers(positions)
        level = np.floor(positions).astype(np.int64)
        out, new = self.instants[level], positions != level
        if new.any():
            out[new] = self.format.instants(self._wholes(self.on_grid(self.numbers(positions[new]))))
        return np.asarray(out)

    def steps_of(self, numbers: np.ndarray, decimals: int | None) -> np.ndarray:
        """Numbers in the units of `values`, of what `format` parses."""
        if self.base is None:
            return np.asarray(numbers / 10.0 ** (decimals or 0), dtype=np.float64)
        more = 10 ** max(0, (self.decimals or 0) - (decimals or 0))
        scale = 10 ** max(0, (decimals or 0) - (self.decimals or 0)) * self.step
        exact = numbers.astype(object) * more - self.base * scale // self.step
        return np.array([v / scale for v in exact.tolist()], dtype=np.float64)

    # Values

    def series(self, positions: np.ndarray, rng: np.random.Generator) -> Any:
        """The column of new rows, with its dtype."""
        missing = positions < 0
        if self.kind == "identifier":
            fresh = pandas().Series(
                new_identifiers(self.cells, int((~missing).sum()), rng), dtype=object
            )
            levels = fresh if self.cells.form == "str" else fresh.map(int)
            codes = np.where(missing, -1, np.cumsum(~missing) - 1)
            made = Cells(self.name, self.cells.dtype, codes)
            made.__dict__["levels"] = levels.astype(self.cells.dtype)
            return made.series(codes)
        level = np.floor(positions).astype(np.int64)
        new = np.flatnonzero(positions != level)
        codes = np.append(self.order, -1)[level]
        out = self.cells.series(codes)
        if len(new):
            out.iloc[new] = self._write(self.on_grid(self.numbers(positions[new]))).array
        return out

    def places_of(self, cells: Cells) -> np.ndarray:
        """The positions of other cells of this column. A ValueError names a value that cannot be."""
        if self.kind in ("identifier", "constant", "drop"):
            return np.where(cells.missing, -1.0, 0.0)
        levels = cells.levels
        with suppress(ValueError):  # some may be known, or between levels
            levels = convert(levels, self.cells.levels.dtype)
        place = {value: p for p, value in enumerate(self.cells.levels.iloc[self.order].tolist())}
        out = np.array([place.get(value, np.nan) for value in levels.tolist()] + [-1.0])
        if self.format is not None and np.isnan(out).any():
            new = np.flatnonzero(np.isnan(out))
            try:
                numbers = self.steps_of(*self.format.parse(levels.iloc[new]))
                out[new] = np.interp(numbers, self.values, np.arange(len(self.values)))
            except (ValueError, TypeError, AttributeError):
                pass
        if np.isnan(out[cells.codes]).any():
            row = int(np.flatnonzero(np.isnan(out[cells.codes]))[0])
            bad, known = levels.iloc[cells.codes[row]], shown(list(place))
            raise ValueError(f"column {self.name!r} has no value {bad!r} (row {row}); it has {known}")
        return np.asarray(out[cells.codes])

    def read(self, value: Any) -> Any:
        """A value that was given, or a text for it, as a Series of one. A ValueError if it does not fit."""
        pd, dtype = pandas(), self.cells.levels.dtype
        if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
            if not self.cells.missing.any():
                raise ValueError(f"{self.name!r} is missing, but no cell of this column is")
            return pd.Series([None], dtype=object).astype(dtype)
        levels, text = self.cells.levels.iloc[self.order], isinstance(value, str)
        known = levels[(levels.astype(str) if text else levels) == value]
        if len(known):
            return known.iloc[:1].reset_index(drop=True)
        try:
            if self.format is None:
                raise ValueError(f"it has {shown(levels.tolist())}")
            if self.cells.form == "datetime":
                value, zone = pd.Timestamp(value), levels.dt.tz
                value = value.tz_localize(zone) if zone and not value.tz else value
            made = WRITTEN[self.cells.form](str(value)) if self.cells.form in WRITTEN else value
            one = pd.Series([made]).astype(dtype)
            self.format.parse(one)
            if not text and one.iloc[0] != value:
                raise ValueError(f"it would be {one.iloc[0]!r}")
            return one
        except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
            raise ValueError(
                f"{self.name!r}={value!r} does not fit the column, which is {self.kind} ({dtype}); {error}"
            ) from error

    def number_of(self, one: Any) -> float:
        """The number of a value that `read` gives."""
        assert self.format is not None
        return float(self.steps_of(*self.format.parse(one))[0])

    # For people

    def describe(self) -> dict[str, Any]:
        """A row of the table `columns_`."""
        share, distinct = (
            float(self.cells.missing.mean()),
            len(np.unique(self.cells.codes[~self.cells.missing])),
        )
        row = {"column": str(self.name), "kind": self.kind, "missing": round(share, 4)}
        return row | {"distinct": distinct, "note": self._note()}

    def _note(self) -> str:
        levels = self.cells.levels
        if self.kind == "drop":
            return "left out, as asked"
        if self.kind == "identifier":
            pattern = pattern_of(levels.iloc[:1000].astype(str).tolist())
            return f"{self.reason}: new ones like {pattern.replace(chr(92), '')}"
        if not len(self.order):
            return "all missing"
        levels = levels.iloc[self.order]
        if self.is_category or self.kind == "constant":
            return shown(levels.tolist())
        return f"{levels.iloc[0]} to {levels.iloc[-1]}"

    @property
    def reveals(self) -> bool:
        """Whether samples contain values that most rows have alone."""
        return self.is_category and reveals(self.cells.codes)


# Understanding


def understand(cells: Cells, distinct_rows: np.ndarray, wanted: str | None = None) -> Column:
    """What a column is; `wanted` is a kind that the user gave, "datetime:FORMAT" for dates as text."""
    kind, _, date_format = (wanted or "").partition(":")
    if wanted is not None and (kind not in KINDS or (date_format and kind != "datetime")):
        raise ValueError(
            f"columns={{{cells.name!r}: {wanted!r}}} is not a kind of column; use one of "
            f"{', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text"
        )
    present = np.unique(cells.codes[cells.codes >= 0])
    if kind == "drop":
        return Column(cells, "drop", present[:0])
    reason = identifies(cells, distinct_rows) if wanted is None else ""
    if reason == NEARLY_UNIQUE and _text_format(cells, present, "", "") is not None:
        reason = ""
    if kind == "identifier" or reason:
        return Column(cells, "identifier", present[:1], reason=reason or "as asked")
    if len(present) == 0 or (len(present) == 1 and not cells.missing.any()):
        return Column(cells, "constant", present, np.zeros(len(present)))
    boolean = cells.form == "bool" and not cells.categorical
    if cells.categorical or boolean or kind in ("category", "ordered", "boolean"):
        ordered = kind == "ordered" or (kind != "category" and cells.categorical == "ordered")
        return _category(cells, "boolean" if boolean else "ordered" if ordered else "category", present)
    if cells.form != "str":
        return _numeric(cells, present, kind, format_of(cells))
    form = _text_format(cells, present, kind, date_format)
    if form is not None:
        return _numeric(cells, present, kind, form)
    _refuse_free_text(cells, present, kind)
    return _category(cells, "category", present)


def _category(cells: Cells, kind: str, present: np.ndarray) -> Column:
    counts = np.bincount(cells.codes[cells.codes >= 0])[present]
    order = present if kind == "ordered" else present[np.argsort(-counts, kind="stable")]
    return Column(cells, kind, order, np.arange(len(order), dtype=np.float64))


def _numeric(cells: Cells, present: np.ndarray, wanted: str, form: Format) -> Column:
    levels = cells.levels.iloc[present]
    if form.clock == "time":
        ticks = form.parse(levels)[0].astype(f"datetime64[{form.tick}]")
        first = ticks.astype("datetime64[M]")
        if len(np.unique(first)) > 2 and bool((first.astype(ticks.dtype) == ticks).all()):
            form = months(form)
    numbers, decimals = form.parse(levels)
    sort = np.argsort(numbers, kind="stable")
    numbers, order = numbers[sort], present[sort]
    if decimals is None or (wanted == "continuous" and cells.form != "int"):
        values = numbers / 10.0 ** (decimals or 0)
        return Column(cells, wanted or "continuous", order, values, format=form)
    base, step = int(numbers[0]), 1
    if int(numbers[-1]) - base >= 2**62:
        numbers = numbers.astype(object)
    if len(numbers) >= _FEWEST_LEVELS:  # fewer are too few to know a coarser grid
        step = int(np.gcd.reduce(numbers - base)) or 1
    values = ((numbers - base) // step).astype(np.float64)
    instants = cells.numbers[order] if cells.form == "datetime" else form.instants(numbers)
    kind = wanted or ("datetime" if form.clock else "continuous" if decimals else "integer")
    return Column(cells, kind, order, values, base, step, decimals, instants, form)


def _text_format(cells: Cells, present: np.ndarray, wanted: str, date_format: str) -> Format | None:
    """How texts write numbers or times; None if they do not. A ValueError names one that does not."""
    texts = cells.levels.iloc[present].tolist()
    if wanted in ("", "datetime") and (dates := _dates(cells, present, texts, date_format)) is not None:
        return date_text(cells.dtype, dates)
    codes = cells.codes[cells.codes >= 0]
    some = cells.levels.iloc[codes[:: max(1, len(codes) // _LOOKED_AT)]].to_numpy(dtype=object)
    way = written_as(some) if wanted != "datetime" else None
    if way is None:
        return None
    if np.isnan(wrong := way.parse(np.array(texts, dtype=object))).any():
        k = int(np.flatnonzero(np.isnan(wrong))[0])
        raise ValueError(
            f"column {cells.name!r} holds numbers, but {texts[k]!r} in row {_row(cells, present[k])}; fix "
            f"the cell, or pass columns={{{cells.name!r}: 'category'}}"
        )
    return number_text(cells.dtype, way)


def _row(cells: Cells, level: int) -> int:
    return int(np.flatnonzero(cells.codes == level)[0])


def _dates(cells: Cells, present: np.ndarray, texts: list[str], date_format: str) -> Any:
    """The one format of dates as text; None if they are no dates."""
    if date_format:
        form = DateText(date_format)
        if (bad := np.isnat(form.parse(texts))).any():
            odd = texts[int(np.flatnonzero(bad)[0])]
            raise ValueError(
                f"column {cells.name!r} holds {odd!r}, which is not written as {date_format}"
            )
        return form
    forms, looks = dates_as(texts)
    if len(forms) == 1 or (forms and looks < _MOST):
        return forms[0]
    if looks < _MOST:
        return None
    why = "in which day and month could be either" if forms else "not all in one format"
    k = next(
        (k for k, text in enumerate(texts) if not forms and dates_as([text, texts[0]])[0] == []), 0
    )
    raise ValueError(
        f"column {cells.name!r} holds dates such as {texts[k]!r} (row {_row(cells, present[k])}), {why}; pass "
        f"columns={{{cells.name!r}: 'datetime:%d/%m/%Y'}} with their format, or convert them by "
        "pandas.to_datetime"
    )


def _refuse_free_text(cells: Cells, present: np.ndarray, wanted: str) -> None:
    texts = cells.levels.iloc[present].tolist()
    if wanted:
        raise ValueError(
            f"column {cells.name!r} is text such as {texts[0]!r}, not {wanted}; convert it"
        )
    n = int((~cells.missing).sum())
    length, words = (sum(f(t) for t in texts) / len(texts) for f in (len, lambda t: t.count(" ")))
    if 2 * len(texts) > n >= 20 and (length > LONG_TEXT or words >= 2):
        example = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        raise ValueError(
            f"column {cells.name!r} is free text ({len(texts)} different texts such as {example!r}), "
            f"which a table cannot imitate; pass columns={{{cells.name!r}: 'drop'}} to leave it out, "
            "'identifier' for new ones of the same form, or 'category' to use the texts as they are"
        )
