"""Tables from CSV files: numeric columns, one column of labels, and word of what was left out."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage

__all__ = ["read_csv", "write_csv"]

_MISSING = ("", "na", "nan", "null", "none", "?")
_MOST_CLASSES = 200
_MOST_NAMED = 5  # columns, in a message


def read_csv(
    path: Path,
    target: str | None = None,
    wanted: Sequence[str] | None = None,
    *,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray | None, list[str], list[str]]:
    """Numbers (n, d), labels of the target or None, the columns' names, and what was left out.

    All columns of numbers are taken, or exactly those `wanted`, in that order. A column is of numbers
    when at least half of what is written in it is. Rows with a cell that is missing or no number are
    left out, unless those are most of the rows: then somebody has to `drop` columns, or `keep` them
    at that price.
    """
    header, rows = _cells(path)
    asked = (*(wanted or ()), *(() if target is None else (target,)), *drop, *keep)
    _check_names(path, header, asked, target, drop, keep)
    place = {name: i for i, name in enumerate(header)}
    kept = keep if wanted is None else wanted
    names, columns, notes, bad = [], [], [], []
    for name in header if wanted is None else wanted:
        if name == target:
            continue
        if name in drop:
            notes.append(f"left out the column {name!r}, as --drop says")
            continue
        column = _Column.of(name, [row[place[name]] for row in rows])
        if column.is_numbers or (name in kept and column.some):
            names.append(name)
            columns.append(column.numbers)
            bad.append(column)
        else:
            notes.append(f"left out the column {name!r}, {column.why_not}")
            if name in kept:
                raise Failed(f"{path} has no number in the column {name!r}", "leave it out, or mend it")
    if not columns:
        raise Failed(f"{path} has no column of numbers", f"add one; {'; '.join(notes)}")
    text = None
    if target is not None:
        text = np.array([row[place[target]].strip() for row in rows])
        missing = np.array([word.lower() in _MISSING for word in text])
        bad.append(_Column(target, np.where(missing, np.nan, 0.0), ()))
    good, note = _whole_rows(path, bad, kept, target, free=wanted is None)
    labels = None if text is None or target is None else _labels(text[good], target)
    return np.stack(columns, axis=1)[good], labels, names, notes + ([note] if note else [])


@dataclass(frozen=True, eq=False)
class _Column:
    """The cells of a column as numbers, NaN where they are missing or `words`."""

    name: str
    numbers: np.ndarray
    words: tuple[str, ...]

    @classmethod
    def of(cls, name: str, cells: list[str]) -> _Column:
        values = [_number(cell) for cell in cells]
        words = tuple(cell for cell, v in zip(cells, values, strict=True) if v is None)
        numbers = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
        return cls(name, numbers, words)

    @property
    def some(self) -> int:
        """How many cells are numbers."""
        return int(np.isfinite(self.numbers).sum())

    @property
    def bad(self) -> int:
        """How many are not."""
        return len(self.numbers) - self.some

    @property
    def is_numbers(self) -> bool:
        return self.some > 0 and self.some >= len(self.words)

    @property
    def why_not(self) -> str:
        if not self.words:
            return "which is empty"
        return f"which is not numbers ({len(self.words)} cells, such as {self.words[0].strip()!r})"

    @property
    def count(self) -> str:
        """The bad cells, such as 'age' 3 (1 no number, such as 'x')."""
        such = (
            f" ({len(self.words)} no number, such as {self.words[0].strip()!r})" if self.words else ""
        )
        return f"{self.name!r} {self.bad}{such}"


def _check_names(
    path: Path,
    header: list[str],
    asked: Sequence[str],
    target: str | None,
    drop: Sequence[str],
    keep: Sequence[str],
) -> None:
    for name in asked:
        if name not in header:
            raise WrongUsage(f"{path} has no column {name!r}", f"it has {', '.join(header)}")
    for name in drop:
        if name == target or name in keep:
            other = "--target" if name == target else "--keep"
            raise WrongUsage(f"--drop {name} and {other} {name} exclude each other", "choose one")


def _whole_rows(
    path: Path, columns: Sequence[_Column], kept: Sequence[str], target: str | None, *, free: bool
) -> tuple[np.ndarray, str]:
    """Which rows have all their cells, and word of the others; refused where those are the most.

    Rows that lack a cell of a column to be `kept` may be many. If not `free` there are no flags to
    decide with.
    """
    whole = np.asarray(np.all([np.isfinite(c.numbers) for c in columns], axis=0))
    gone, n = int((~whole).sum()), len(whole)
    if gone == 0:
        return whole, ""
    worst = sorted((c for c in columns if c.bad), key=lambda c: -c.bad)
    counts = ", ".join(c.count for c in worst[:_MOST_NAMED])
    counts += f" and {len(worst) - _MOST_NAMED} more columns" if len(worst) > _MOST_NAMED else ""
    what = f"cells that are missing or no number: {counts}"
    open_ = [c for c in worst if c.name not in kept]
    lost = np.any([~np.isfinite(c.numbers) for c in open_], axis=0) if open_ else np.zeros(n, bool)
    if gone < n and 2 * int(lost.sum()) <= n:
        return whole, f"left out {gone} of {n} rows, with {what}"
    name = (open_ or worst)[0].name
    cure = f"--drop {shlex.quote(name)} leaves that column out"
    if gone < n:
        cure += f"; --keep {shlex.quote(name)} keeps it, and leaves out the rows that lack it"
    if name == target:
        cure = "fill the labels in, or leave --target out"
    raise Failed(f"{path}: {gone} of {n} rows have {what}", cure if free else "fill them in first")


def write_csv(path: Path, columns: dict[str, list[object]]) -> None:
    """Columns of equal length under their names."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Failed(f"{path} is not text in UTF-8: {error.reason}", "save it as UTF-8") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Failed(f"{path} is empty", "pass a table with a line of names and lines of numbers")
    mark = max(",;\t", key=lines[0].count)
    rows = list(csv.reader(text.splitlines(), delimiter=mark))
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    wide = len(rows[0])
    for i, row in enumerate(rows):
        if len(row) != wide:
            raise Failed(f"{path}: row {i + 1} has {len(row)} cells and the first {wide}", "mend it")
    first = [_number(cell) for cell in rows[0]]
    if any(v is not None and math.isfinite(v) for v in first):  # no line of names
        return [f"column {i + 1}" for i in range(wide)], rows
    if len(rows) == 1:
        raise Failed(f"{path} has names of columns but no rows", "add rows of numbers")
    header = [cell.strip() or f"column {i + 1}" for i, cell in enumerate(rows[0])]
    if len(set(header)) < wide:
        raise Failed(f"{path} has two columns of one name: {', '.join(header)}", "rename one")
    return header, rows[1:]


def _number(cell: str) -> float | None:
    """The number in a cell, NaN where it is missing, None where it is something else."""
    if cell.strip().lower() in _MISSING:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return None


def _labels(text: np.ndarray, target: str) -> np.ndarray:
    classes = len(np.unique(text))
    if classes > _MOST_CLASSES:
        raise Failed(
            f"the column {target!r} has {classes} different values in {len(text)} rows; "
            f"labels have at most {_MOST_CLASSES}",
            "leave --target out to fit it as a column of numbers",
        )
    try:
        return text.astype(np.int64)
    except ValueError:
        return text
