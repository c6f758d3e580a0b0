"""What the columns of a table are: kinds, grids, levels, and values from and to ranks in (0, 1).

Every column becomes a column of numbers: values, ticks of a clock, or codes of categories. A column is
then a step function: `levels`, the different numbers in ascending order, and how many cells have each.
A rank u in (0, 1) is a level, or a new number between levels where each occurs once.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sliceflow.cells import Cells, Kept
from sliceflow.written import ISO, Written, written_as

__all__ = ["ATOM", "KINDS", "MANY", "Column", "understood"]

KINDS = (
    "continuous", "integer", "boolean", "category", "ordered", "datetime", "identifier", "constant",
    "drop",
)  # fmt: skip
MANY = 40  # different values, from which on numbers are smooth,
ATOM = 0.1  # if none has more than this share of the cells
_MOST_DECIMALS = 6
_FEWEST_IDENTIFIERS = 20
_FEW_PATTERNS = (
    3  # of digits, letters and signs, of different texts that are identifiers, not sentences
)
_LONG_TEXT = 40  # characters, on average, of texts that are no categories
_DATES = 0.8  # share of texts that are dates, from which on the others are mistakes
_LOOKED_AT = 1_000  # texts, to see whether they are dates
_OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})([ T]\d{1,2}:\d{2}.*)?")
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key|index|number|no)$|^(id|uuid)[_\W]|[a-z]I[dD]$", re.I)


@dataclass(frozen=True, eq=False)
class Column:
    """One understood column.

    Parameters
    ----------
    kept : how to build it again
    kind : one of `KINDS`
    labels : of a category: what code 0, 1, … stands for
    step, offset : numbers are offset + step·k for whole k; step 0: any number
    months : ticks count months, because every date is the first of one
    written : how numbers are written as text; None if they are not
    hashes : of an identifier: of the values that must not come back
    pattern : of an identifier: 9, a, A or f for any digit or letter; after a backslash, a fixed one
    """

    kept: Kept
    kind: str
    labels: tuple[Any, ...] = ()
    step: float = 0.0
    offset: float = 0.0
    months: bool = False
    written: Written | None = None
    hashes: np.ndarray | None = None
    pattern: str = ""

    @property
    def name(self) -> str:
        return self.kept.name

    @property
    def modelled(self) -> bool:
        """Whether the flow has a coordinate for it."""
        return self.kind not in ("constant", "identifier", "drop", "derived")

    @property
    def is_category(self) -> bool:
        return self.kind in ("category", "ordered", "boolean")

    # numbers from and to cells

    def numbers(self, cells: Cells) -> np.ndarray:
        """The column as float64, NaN where missing; a ValueError names a cell that does not fit."""
        out = np.full(len(cells.values), np.nan)
        ok = ~cells.missing
        if self.kind in ("identifier", "drop"):
            return np.where(ok, 0.0, np.nan)
        if self.labels:
            codes = {label: i for i, label in enumerate(self.labels)}
            plain = [_plain(v) for v in cells.values[ok].tolist()]
            bad = next((i for i, v in enumerate(plain) if v not in codes), None)
            if bad is not None:
                raise ValueError(
                    f"column {self.name!r} has no category {plain[bad]!r} "
                    f"(row {np.flatnonzero(ok)[bad]}); it has {some(self.labels)}"
                )
            out[ok] = [codes[v] for v in plain]
            return out
        values = cells.values
        if self.written is not None:
            parsed = self.written.parse(values[ok])
            bad = next(iter(np.flatnonzero(np.isnan(parsed)).tolist()), None)
            if bad is not None:
                raise ValueError(
                    f"column {self.name!r} holds numbers, but {values[ok][bad]!r} in row "
                    f"{np.flatnonzero(ok)[bad]}; fix the cell, or pass "
                    f"columns={{{self.name!r}: 'category'}}"
                )
            out[ok] = parsed
        elif cells.kept.form == "text" and ok.any():
            raise ValueError(
                f"column {self.name!r} holds numbers, but row {np.flatnonzero(ok)[0]} is the text "
                f"{values[ok][0]!r}"
            )
        elif ok.any():
            out[ok] = values[ok].astype(np.float64)
        if np.isinf(out).any():
            row = int(np.flatnonzero(np.isinf(out))[0])
            raise ValueError(
                f"column {self.name!r} is {out[row]:g} in row {row}; replace infinities, or make "
                "them missing"
            )
        return _month_numbers(out, self.kept) if self.months else out

    def cells(self, numbers: np.ndarray) -> tuple[Kept, np.ndarray, np.ndarray]:
        """What `sliceflow.cells.made` builds the column of: numbers as values, NaN as missing."""
        missing = np.isnan(numbers)
        full = np.where(missing, 0.0 if not self.labels else 0, numbers)
        if self.labels:
            labels = np.empty(len(self.labels), dtype=object)
            labels[:] = self.labels
            values = labels[full.astype(np.int64)]
            if self.kept.form != "text":
                values = values.astype(np.float64 if self.kept.form == "number" else np.int64)
            return self.kept, values, missing
        if self.months:
            full = _month_ticks(full, self.kept)
        if self.written is not None:
            return self.kept, self.written.texts(full), missing
        whole = self.kept.form in ("integer", "datetime", "date", "duration", "boolean")
        return self.kept, np.rint(full).astype(np.int64) if whole else full, missing

    def on_grid(self, numbers: np.ndarray) -> np.ndarray:
        """The nearest numbers that the column can have."""
        if self.step == 0:
            return numbers
        k = np.rint((numbers - self.offset) / self.step)
        if 0 < self.step < 1:  # 0.1 = 1/10 exactly as decimals are read
            scale = round(1 / self.step) if abs(1 / self.step - round(1 / self.step)) < 1e-9 else 0
            if scale:
                return np.asarray(np.round((np.rint(self.offset * scale) + k) / scale, _MOST_DECIMALS))
            return np.asarray(np.round(self.offset + self.step * k, _MOST_DECIMALS))
        return np.asarray(self.offset + self.step * k)

    # for people

    def told(self, numbers: np.ndarray) -> dict[str, Any]:
        """A row of the table `columns_`."""
        present = numbers[~np.isnan(numbers)]
        share = float(np.mean(np.isnan(numbers))) if len(numbers) else 0.0
        row = {"column": self.name, "kind": self.kind, "missing": round(share, 4)}
        distinct = len(np.unique(present)) if self.hashes is None else len(np.unique(self.hashes))
        return row | {"distinct": distinct, "note": self._note(present)}

    def _note(self, present: np.ndarray) -> str:
        if self.kind == "drop":
            return "left out, as asked"
        if self.kind == "identifier":
            return "new ones like " + self.pattern.replace("\\", "")
        if not len(present):
            return "all missing"
        if self.labels:
            return some(self.labels)
        notes = []
        if self.kind == "datetime":
            notes.append(f"every {_clock(self)}" + (f", {self.kept.zone}" if self.kept.zone else ""))
        else:
            notes.append(f"{present.min():g} to {present.max():g}")
            if self.step:
                notes.append(f"steps of {self.step:g}")
        values, counts = np.unique(present, return_counts=True)
        atoms = values[counts > max(2, ATOM * len(present))]
        if len(values) > MANY and len(atoms) and self.kind != "datetime":
            notes.append("often " + ", ".join(f"{a:g}" for a in atoms[:3]))
        if len(present) > 8 and present.std() > 0 and self.kind != "datetime":
            skew = float(np.mean(((present - present.mean()) / present.std()) ** 3))
            if abs(skew) > 2:
                notes.append(f"skewed {'right' if skew > 0 else 'left'}")
        if self.written is not None:
            notes.append(f"written like {self.written.texts(present[:1])[0]}")
        return ", ".join(notes)


def understood(cells: Cells, override: str | None = None) -> Column:
    """What a column is; `override` is a kind that the user gave."""
    kept, ok = cells.kept, ~cells.missing
    if override is not None and override not in KINDS:
        raise ValueError(
            f"columns={{{kept.name!r}: {override!r}}} is not a kind of column; use one of "
            f"{', '.join(KINDS)}"
        )
    if override == "drop":
        return Column(kept, "drop")
    values = cells.values[ok]
    if override == "identifier":
        return _identifier(kept, values)
    if kept.categories is not None and override in (None, "category", "ordered"):
        ordered = override == "ordered" or (override is None and kept.ordered)
        column = Column(kept, "ordered" if ordered else "category", tuple(kept.categories))
        return column if len(kept.categories) else Column(kept, "constant")
    if len(values) == 0:
        return Column(kept, "constant")
    if override in ("category", "ordered"):
        return Column(kept, override, _sorted_labels(values))
    if kept.form == "boolean" or override == "boolean":
        return Column(kept, "boolean", _sorted_labels(values))
    written = None
    if kept.form == "text":
        written = written_as(values)
        if written is None:
            if override is None:
                _refuse_dates(kept, cells)
            if override in ("continuous", "integer", "datetime"):
                raise ValueError(
                    f"column {kept.name!r} is text such as {values[0]!r}, not {override}; convert it, "
                    "or leave it as category"
                )
            return _text(kept, values)
    column = Column(kept, "constant", written=written)
    numbers = column.numbers(cells)[ok]
    kind = "datetime" if kept.form in ("datetime", "date", "duration") else "continuous"
    if kind == "datetime" and kept.form != "duration" and _first_of_month(numbers, kept):
        column = replace(column, months=True)
        numbers = column.numbers(cells)[ok]
    step, offset = grid_of(numbers)
    whole = kept.form == "integer" or (
        step > 0 and float(step).is_integer() and float(offset).is_integer()
    )
    if kind != "datetime" and whole:
        kind = "integer"
    if override in ("continuous", "integer"):
        kind = override
    if override == "continuous" and kept.form == "number":
        step, offset = 0.0, 0.0
    if override == "integer" and not whole:
        step, offset = 1.0, 0.0
    if len(np.unique(numbers)) == 1 and not cells.missing.any():
        return replace(column, kind="constant", offset=float(numbers[0]), step=step)
    if override is None and kept.form == "integer" and _counts_rows(kept.name, numbers, cells):
        return _identifier(kept, values)
    return replace(column, kind=kind, step=step, offset=offset)


def _refuse_dates(kept: Kept, cells: Cells) -> None:
    """Dates as text would be categories, or be made up like identifiers."""
    rows = np.flatnonzero(~cells.missing)
    texts = [str(v).strip() for v in cells.values[rows].tolist()]
    some = texts[:: max(1, len(texts) // _LOOKED_AT)]
    instead = f"or pass columns={{{kept.name!r}: 'category'}}"
    if sum(ISO.fullmatch(text) is not None for text in some) >= _DATES * len(some):
        bad = next((i for i, text in enumerate(texts) if ISO.fullmatch(text) is None), None)
        if bad is not None:
            raise ValueError(
                f"column {kept.name!r} holds dates, but {texts[bad]!r} in row {rows[bad]}; fix the "
                f"cell, {instead}"
            )
        raise ValueError(
            f"column {kept.name!r} holds dates as text, such as {texts[0]!r}; convert it, for example "
            f"by pandas.to_datetime, {instead}"
        )
    if sum(_OTHER_DATE.fullmatch(text) is not None for text in some) >= _DATES * len(some):
        raise ValueError(
            f"column {kept.name!r} holds dates such as {texts[0]!r}, in which day and month could be "
            f"either; write them as 2024-01-31, {instead}"
        )


def _plain(v: Any) -> Any:
    return v.item() if isinstance(v, np.generic) else v


def _sorted_labels(values: np.ndarray) -> tuple[Any, ...]:
    found = {_plain(v) for v in values.tolist()}
    return tuple(sorted(found, key=lambda v: (isinstance(v, str), v)))


def some(labels: Sequence[Any]) -> str:
    """The first labels as text, and how many there are."""
    shown = ", ".join(str(label) for label in labels[:6])
    return shown if len(labels) <= 6 else f"{shown}, … ({len(labels)})"


def _text(kept: Kept, values: np.ndarray) -> Column:
    """Texts: a category, an identifier, or free text, which is refused."""
    texts = [str(v) for v in values.tolist()]
    distinct, n = set(texts), len(texts)
    length = sum(map(len, texts)) / n
    words = sum(text.count(" ") for text in texts) / n
    alike = words < 0.5 or len({_pattern(text) for text in texts}) <= _FEW_PATTERNS
    if len(distinct) == n >= _FEWEST_IDENTIFIERS and length <= _LONG_TEXT and alike:
        return _identifier(kept, values)
    if 2 * len(distinct) > n >= _FEWEST_IDENTIFIERS and (length > _LONG_TEXT or words >= 2):
        example = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        raise ValueError(
            f"column {kept.name!r} is free text ({len(distinct)} different texts such as {example!r}), "
            f"which a table cannot imitate; pass columns={{{kept.name!r}: 'drop'}} to leave it out, "
            "'identifier' for new ones of the same form, or 'category' to use the texts as they are"
        )
    labels = _sorted_labels(values)
    if len(labels) == 1:
        return Column(kept, "constant", labels)
    return Column(kept, "category", labels)


def _counts_rows(name: str, numbers: np.ndarray, cells: Cells) -> bool:
    """Whether whole numbers identify rows: all different, and consecutive or named like one."""
    n = len(numbers)
    if cells.missing.any() or n < _FEWEST_IDENTIFIERS or len(np.unique(numbers)) < n:
        return False
    return bool(numbers.max() - numbers.min() == n - 1 or _ID_NAME.search(name))


def _identifier(kept: Kept, values: np.ndarray) -> Column:
    texts = [str(v) for v in values.tolist()]
    longest = max(texts, key=lambda text: (len(text), text)) if texts else "a"
    alphabet = {c for text in texts[:1000] for c in text if c.isalnum()}
    hexadecimal = alphabet <= set("0123456789abcdef") and not alphabet <= set("0123456789")
    alike = [text for text in texts[:1000] if len(text) == len(longest)]
    fixed = [
        len(alike) > 2 and len(set(c)) == 1 and c[0] != "0" for c in zip(*alike, strict=True)
    ] or None
    pattern = _pattern(longest, hexadecimal, fixed)
    return Column(kept, "identifier", hashes=hashes(texts), pattern=pattern)


def _pattern(text: str, hexadecimal: bool = False, fixed: list[bool] | None = None) -> str:
    """The text with 9 for every digit and a, A or f for every letter; fixed ones after a backslash."""
    out = ""
    for c, keep in zip(text, fixed or [False] * len(text), strict=True):
        if keep and c.isalnum():
            out += "\\" + c
        elif hexadecimal and c.isalnum():
            out += "f"
        else:
            out += "9" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c
    return out


def hashes(texts: list[str]) -> np.ndarray:
    """63 bits of each text's hash: enough to know it again, not to read it."""
    found = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.array([int.from_bytes(h, "little") >> 1 for h in found], dtype=np.int64)


_PLACES = {"9": "0123456789", "a": "abcdefghijklmnopqrstuvwxyz", "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def new_identifiers(column: Column, n: int, uniform: Callable[[int], np.ndarray]) -> np.ndarray:
    """n different identifiers, none of them in the table: other digits and letters in the same places.

    `uniform(n)` gives n random numbers in (0, 1).
    """
    known = set() if column.hashes is None else set(column.hashes.tolist())
    parts = re.findall(r"\\?.", column.pattern, re.DOTALL)
    sets = dict(_PLACES)
    if not set(parts) & set(sets):
        sets["f"] = "0123456789abcdef"
    whole = column.kept.form == "integer"
    while math.prod(len(sets[c]) for c in parts if c in sets) < 10 * (n + len(known)):
        parts.append("9")  # longer, so that there is room
    out: list[str] = []
    while len(out) < n:
        u = iter(uniform(n * len(parts)).tolist())
        for _ in range(n):
            text = "".join(sets[c][int(next(u) * len(sets[c]))] if c in sets else c[-1] for c in parts)
            if whole and text.startswith("0"):
                text = "1" + text[1:]
            key = int(hashes([text])[0])
            if key not in known and len(out) < n:
                known.add(key)
                out.append(text)
    if whole:
        return np.array([int(text) for text in out], dtype=np.int64)
    if column.kept.form == "number":
        return np.array([float(text) for text in out])
    return np.array(out, dtype=object)


def grid_of(numbers: np.ndarray) -> tuple[float, float]:
    """Step and offset of numbers that are offset + step·k; (0, 0) where there is no such grid."""
    values = np.unique(numbers)
    if np.abs(values).max() >= 2**53:
        return (1.0, float(values[0])) if np.all(values == np.rint(values)) else (0.0, 0.0)
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = values * 10.0**decimals
        if np.abs(scaled).max() >= 2**53:
            break
        if np.all(np.abs(scaled - np.rint(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled)) * 1e-3):
            ticks = np.rint(scaled).astype(np.int64)
            step = int(np.gcd.reduce(np.diff(ticks))) if len(ticks) > 1 else 1
            if len(ticks) < 10:  # too few to know a coarser grid
                step = 1
            return step / 10**decimals, float(ticks[0] / 10**decimals)
    return 0.0, 0.0


def _first_of_month(ticks: np.ndarray, kept: Kept) -> bool:
    days = ticks.astype(np.int64).astype(f"datetime64[{kept.unit}]")
    months = days.astype("datetime64[M]")
    return len(np.unique(months)) > 2 and bool(np.all(months.astype(days.dtype) == days))


def _month_numbers(ticks: np.ndarray, kept: Kept) -> np.ndarray:
    ok = ~np.isnan(ticks)
    out = ticks.copy()
    out[ok] = (
        ticks[ok]
        .astype(np.int64)
        .astype(f"datetime64[{kept.unit}]")
        .astype("datetime64[M]")
        .astype(np.int64)
    )
    return out


def _month_ticks(months: np.ndarray, kept: Kept) -> np.ndarray:
    whole = np.rint(months).astype(np.int64).astype("datetime64[M]")
    return np.asarray(whole.astype(f"datetime64[{kept.unit}]").astype(np.int64), dtype=np.float64)


def _clock(column: Column) -> str:
    if column.months:
        return "month"
    per = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[column.kept.unit]
    seconds = column.step / per
    for size, word in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second")):
        if seconds >= size and seconds % size == 0:
            times = int(seconds // size)
            return word if times == 1 else f"{times} {word}s"
    return f"{seconds:g} s"
