"""Tables from CSV files: numeric columns, one column of labels, and notes on what was left out."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage

__all__ = ["read_csv", "write_csv"]

_MISSING = ("", "na", "nan", "null", "none", "?")  # in any case
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
    """Numbers (n, d), labels from the target column or None, column names, and notes.

    All numeric columns are read, or exactly those `wanted`, in that order. A column is numeric if at
    least half of its non-empty cells are numbers. Rows with a missing or non-numeric cell are left
    out. If those are most of the rows, the user must `drop` columns, or `keep` them at that price.
    """
    frame = _read_frame(path, target)
    for name in (*(wanted or ()), *([] if target is None else [target]), *drop, *keep):
        if name not in frame:
            raise WrongUsage(f"{path} has no column {name!r}", f"it has {', '.join(frame)}")
    for name in drop:
        if name == target or name in keep:
            other = "--target" if name == target else "--keep"
            raise WrongUsage(f"--drop {name} and {other} {name} exclude each other", "choose one")
    kept = keep if wanted is None else wanted
    numbers: dict[str, np.ndarray] = {}
    words, notes = {}, []
    for name in frame if wanted is None else wanted:
        if name == target:
            continue
        if name in drop:
            notes.append(f"left out the column {name!r}, as --drop says")
            continue
        values, others = _numbers(frame[name])
        found = int(np.isfinite(values).sum())
        if found and (name in kept or found >= len(others)):
            numbers[name], words[name] = values, others
        elif name in kept:
            raise Failed(
                f"{path} has no number in the column {name!r}", "leave it out, or fix the file"
            )
        else:
            cells = f"not numeric ({len(others)} cells, such as {others[0]!r})" if others else "empty"
            notes.append(f"left out the column {name!r}, which is {cells}")
    if not numbers:
        raise Failed(f"{path} has no numeric column", f"add one; {'; '.join(notes)}")
    x = np.stack(list(numbers.values()), axis=1)
    bad = {name: ~np.isfinite(column) for name, column in numbers.items()}
    if target is not None:
        bad[target] = _missing(frame[target])
    complete, note = _complete_rows(path, bad, words, kept, target, has_flags=wanted is None)
    labels = None if target is None else _labels(frame[target][complete], target)
    return x[complete], labels, list(numbers), notes + note


def _read_frame(path: Path, target: str | None) -> Any:
    """The table as a DataFrame: numeric columns as numbers, all others and the target as text."""
    import pandas as pd

    names, separator, n_rows, has_header = _read_header(path)
    frame = pd.read_csv(
        path,
        sep=separator,
        header=0 if has_header else None,
        names=names,
        dtype=None if target is None else {target: str},
        na_values=[*_MISSING, *map(str.upper, _MISSING), "NaN", "None"],
        keep_default_na=False,
        low_memory=False,
        encoding="utf-8-sig",
    )
    # pandas skips blank lines, but not lines of separators alone.
    return frame if len(frame) == n_rows else frame.dropna(how="all")


def _read_header(path: Path) -> tuple[list[str], str, int, bool]:
    """Column names, separator, number of rows, and whether the file names its columns."""
    from sliceflow.spaces.tables.files import scanned

    try:
        first, separator, n, uneven = scanned(path)
    except UnicodeDecodeError as error:
        raise Failed(f"{path} is not UTF-8 text: {error.reason}", "save it as UTF-8") from error
    if uneven is not None:
        raise Failed(f"{path}: {uneven}", "fix that row")
    if not first:
        raise Failed(f"{path} is empty", "pass a table with a row of column names and rows of numbers")
    if any(map(_is_finite, first)):
        return [f"column {i}" for i in range(1, len(first) + 1)], separator, n + 1, False
    if n == 0:
        raise Failed(f"{path} has column names but no rows", "add rows of numbers")
    names = [cell.strip() or f"column {i}" for i, cell in enumerate(first, 1)]
    if len(set(names)) < len(names):
        raise Failed(f"{path} has two columns of the same name: {', '.join(names)}", "rename one")
    return names, separator, n, True


def _is_finite(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _missing(cells: Any) -> np.ndarray:
    return np.asarray(cells.isna() | cells.astype(str).str.strip().str.lower().isin(_MISSING))


def _numbers(cells: Any) -> tuple[np.ndarray, list[str]]:
    """The cells of a column as numbers, NaN where there is none, and the cells that are words."""
    import pandas as pd

    if cells.dtype.kind in "iuf":
        return cells.to_numpy(np.float64), []
    text = cells.astype(str).str.strip()
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(np.float64)
    return numbers, list(text[np.isnan(numbers) & ~_missing(cells)])


def _complete_rows(
    path: Path,
    bad: dict[str, np.ndarray],
    words: dict[str, list[str]],
    kept: Sequence[str],
    target: str | None,
    *,
    has_flags: bool,
) -> tuple[np.ndarray, list[str]]:
    """Which rows have no bad cell, and a note on the others; an error if those are the most.

    Rows without a cell of a `kept` column may be many. Without `has_flags` there are no flags to
    decide with.
    """
    incomplete = np.any(list(bad.values()), axis=0)
    gone, n = int(incomplete.sum()), len(incomplete)
    if gone == 0:
        return ~incomplete, []
    worst = sorted((name for name in bad if bad[name].any()), key=lambda name: -bad[name].sum())
    counts = []
    for name in worst[:_MOST_NAMED]:
        others = words.get(name)
        such = f" ({len(others)} not a number, such as {others[0]!r})" if others else ""
        counts.append(f"{name!r} {bad[name].sum()}{such}")
    more = f" and {len(worst) - _MOST_NAMED} more columns" if len(worst) > _MOST_NAMED else ""
    what = f"missing or non-numeric cells: {', '.join(counts)}{more}"
    undecided = [name for name in worst if name not in kept]
    lost = np.any([bad[name] for name in undecided], axis=0).sum() if undecided else 0
    if gone < n and 2 * lost <= n:
        return ~incomplete, [f"left out {gone} of {n} rows, with {what}"]
    name = (undecided or worst)[0]
    hint = f"--drop {shlex.quote(name)} leaves that column out"
    if gone < n:
        hint += f"; --keep {shlex.quote(name)} keeps it, and leaves out the rows that lack it"
    if name == target:
        hint = "fill in the labels, or leave --target out"
    raise Failed(f"{path}: {gone} of {n} rows have {what}", hint if has_flags else "fill them in first")


def _labels(cells: Any, target: str) -> np.ndarray:
    """Labels as whole numbers where they all are, else as text."""
    text = np.array([cell.strip() for cell in cells])
    classes = len(np.unique(text))
    if classes > _MOST_CLASSES:
        raise Failed(
            f"the column {target!r} has {classes} different values in {len(text)} rows; "
            f"labels have at most {_MOST_CLASSES}",
            "leave --target out to fit it as a numeric column",
        )
    try:
        return text.astype(np.int64)
    except ValueError:
        return text


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns of equal length under their names."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
