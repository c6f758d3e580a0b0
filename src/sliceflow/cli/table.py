"""Tables from CSV files: numeric columns, one column of labels, and word of what was left out."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage

__all__ = ["read_csv", "write_csv"]

_MISSING = ("", "na", "nan", "null", "none", "?")
_MOST_CLASSES = 200


def read_csv(
    path: Path, target: str | None = None, wanted: list[str] | None = None
) -> tuple[np.ndarray, np.ndarray | None, list[str], list[str]]:
    """Numbers (n, d), labels of the target or None, the columns' names, and what was left out.

    All columns of numbers are taken, or exactly those `wanted`, in that order.
    """
    header, rows = _cells(path)
    for name in (wanted or []) + ([] if target is None else [target]):
        if name not in header:
            raise WrongUsage(f"{path} has no column {name!r}", f"it has {', '.join(header)}")
    if wanted is not None:
        rows = [[row[header.index(name)] for name in wanted] for row in rows]
        header = wanted
    names, columns, notes = [], [], []
    for i, name in enumerate(header):
        if name == target:
            continue
        cells = [row[i] for row in rows]
        numbers = [_number(cell) for cell in cells]
        words = [cell for cell, v in zip(cells, numbers, strict=True) if v is None]
        if words:
            notes.append(f"left out the column {name!r}, which is not numbers (such as {words[0]!r})")
        elif all(math.isnan(v) for v in numbers if v is not None):
            notes.append(f"left out the column {name!r}, which is empty")
        else:
            names.append(name)
            columns.append(np.array(numbers, dtype=np.float64))
    if wanted is not None and names != wanted:
        raise Failed(f"{path}: {notes[0]}", f"its columns {', '.join(wanted)} must be numbers")
    if not columns:
        raise Failed(f"{path} has no column of numbers", f"add one; {'; '.join(notes)}")
    x = np.stack(columns, axis=1)
    keep = np.asarray(np.isfinite(x).all(axis=1))
    labels = None
    if target is not None:
        text = np.array([row[header.index(target)].strip() for row in rows])
        keep &= np.array([word.lower() not in _MISSING for word in text])
        labels = _labels(text[keep], target)
    if not keep.all():
        notes.append(f"left out {int((~keep).sum())} of {len(keep)} rows with missing values")
    if not keep.any():
        raise Failed(f"{path} has no row without missing values", "fill them in first")
    return x[keep], labels, names, notes


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
