"""Tables from CSV, Parquet and Excel files, and back into them.

CSV files have no types. A cell is missing if it is empty or one of ``NA``, ``N/A``, ``nan``, ``null``,
``none``, ``?``, ``-`` in any case. A column is boolean if all its other cells are ``True`` or
``False``, numbers if they all are plain numbers, dates if they all are ISO dates (``2024-01-31``,
``2024-01-31 12:00``, ``2024-01-31T12:00:00+02:00``; with different offsets from UTC they are times in
UTC), and text otherwise. Numbers written in another way (``1,234``, ``3,14``, ``7%``, ``$5``) stay
text, which `TableFlow` reads, and writes again in the same way. Codes with leading zeros (``00123``)
are text.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sliceflow.models.atomic import write_atomically
from sliceflow.spaces.tables.cells import TableRows, pandas, read_frame
from sliceflow.written import ISO, MISSING, Written, written_as

__all__ = ["SUFFIXES", "read_frame_or_file", "read_table", "write_table"]

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx", ".xls")
_CLOCK = len("2024-01-31T12:00")
_LOOKED_AT = 100  # rows that tell whether the first one has names
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
_YEAR = re.compile(r"(1[89]|20|21)\d\d")


def read_frame_or_file(X: Any) -> TableRows:
    """The rows of a DataFrame, or of a file. A ValueError says what is wrong."""
    return read_frame(read_table(X) if isinstance(X, str | os.PathLike) else X)


def read_table(path: str | os.PathLike[str]) -> Any:
    """The file as a pandas DataFrame; a ValueError says what is wrong with it."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    pd = pandas()
    kind = path.suffix.lower()
    if kind in (".parquet", ".pq", ".xlsx", ".xls"):
        reader = pd.read_parquet if kind in (".parquet", ".pq") else pd.read_excel
        try:
            return reader(path)
        except ImportError as error:
            package = "pyarrow" if kind in (".parquet", ".pq") else "openpyxl"
            raise ImportError(
                f"{path}: reading {kind} files needs {package}: pip install {package}"
            ) from error
    if kind not in SUFFIXES:
        raise ValueError(f"{path} is not a table: its name ends with none of {', '.join(SUFFIXES)}")
    encoding = _encoding(path)
    names, separator, has_header = _header(path, encoding)
    frame = pd.read_csv(
        path,
        sep=separator,
        header=0 if has_header else None,
        names=names,
        dtype=str,
        keep_default_na=False,
        na_filter=False,
        encoding=encoding,
        skipinitialspace=True,
    )
    return pd.DataFrame({name: _typed(pd, frame[name]) for name in names})


def write_table(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a DataFrame to a CSV, Parquet or Excel file, by the ending of its name; whole or not at all."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"{path} is not a table: its name ends with none of {', '.join(SUFFIXES)}")

    def put(file: BinaryIO) -> None:
        if kind in (".parquet", ".pq"):
            frame.to_parquet(file, index=False)
        elif kind in (".xlsx", ".xls"):
            frame.to_excel(whole := io.BytesIO(), index=False)
            file.write(whole.getbuffer())
        else:
            frame.to_csv(file, index=False, sep="\t" if kind == ".tsv" else ",")

    write_atomically(path, put)


def _encoding(path: Path) -> str:
    """UTF-8 or UTF-16 by its mark, else Windows-1252, which is told, because it may be wrong."""
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
    try:
        with path.open(encoding="utf-8") as text:
            while text.read(1 << 20):
                pass
    except UnicodeDecodeError as error:
        byte, read_as = error.object[error.start], "cp1252"
        try:
            path.read_text(encoding=read_as)
        except UnicodeDecodeError:
            raise ValueError(
                f"{path} is neither UTF-8 nor Windows-1252 text (byte {byte:#x}); save it as UTF-8"
            ) from error
        warnings.warn(
            f"{path} is not UTF-8 text (byte {byte:#x}) and was read as Windows-1252; if letters are "
            "wrong, save it as UTF-8",
            UserWarning,
            stacklevel=3,
        )
        return read_as
    return "utf-8-sig"


def _scanned(path: Path, encoding: str) -> tuple[list[list[str]], str, int, str]:
    """The first rows, the separator, how many rows there are, and what is said of an uneven one.

    Rows of different lengths are an error: pandas would fill up short ones.
    """
    with path.open(encoding=encoding, newline="") as file:
        separator = max(",;\t", key=next(filter(str.strip, file), "").count)
        file.seek(0)
        first: list[list[str]] = []
        n = 0
        for row in csv.reader(file, delimiter=separator):
            if not any(map(str.strip, row)):
                continue
            n += 1
            if n <= _LOOKED_AT:
                first.append([cell.strip() for cell in row])
            if len(row) != len(first[0]):
                uneven = f"row {n} has {len(row)} cells, but the first row has {len(first[0])}"
                return first, separator, n, uneven
    return first, separator, n, ""


def _header(path: Path, encoding: str) -> tuple[list[str], str, bool]:
    """Column names, separator, and whether the first row has the names."""
    first, separator, n, uneven = _scanned(path, encoding)
    if uneven:
        raise ValueError(f"{path}: {uneven}; fix that row, or put cells with separators in quotes")
    if not first:
        raise ValueError(f"{path} is empty; pass a table with a row of column names")
    if not _names_columns(first):
        return [f"column {i}" for i in range(1, len(first[0]) + 1)], separator, False
    if n == 1:
        raise ValueError(f"{path} has column names but no rows; add rows")
    names = [cell or f"column {i}" for i, cell in enumerate(first[0], 1)]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"{path} has two columns named {twice!r}; rename one")
    return names, separator, True


def _names_columns(rows: list[list[str]]) -> bool:
    """Whether the first row has the names of columns: words, or years above cells that are none."""
    numbers = [i for i, cell in enumerate(rows[0]) if _NUMBER.fullmatch(cell)]
    if not numbers:
        return True
    below = [row[i] for row in rows[1:] for i in numbers if row[i]]
    years = all(_YEAR.fullmatch(rows[0][i]) for i in numbers)
    different = len({rows[0][i] for i in numbers}) == len(numbers)
    return years and different and bool(below) and not all(map(_YEAR.fullmatch, below))


def _typed(pd: Any, column: Any) -> Any:
    """A column of texts as numbers, dates or texts, with missing cells."""
    texts = column.str.strip()
    gone = texts.str.lower().isin(MISSING).to_numpy()
    present = texts[~gone].to_numpy(dtype=object)
    if len(present) == 0:
        return pd.Series(np.full(len(texts), np.nan))
    if all(ISO.fullmatch(text) for text in present):
        offsets = {text[_CLOCK:].lstrip("0123456789:.") for text in present if len(text) > _CLOCK}
        try:
            return pd.to_datetime(texts.where(~gone), format="ISO8601", utc=len(offsets) > 1)
        except ValueError:
            pass
    if set(present) <= {"True", "False"}:
        return (texts == "True").astype("boolean").mask(gone) if gone.any() else texts == "True"
    if all(map(_INTEGER.fullmatch, present)):
        return _integers(pd, present, gone)
    way = written_as(present)
    if way is not None and (way.decimal, way.thousands, way.prefix, way.suffix) == (".", "", "", ""):
        numbers = np.full(len(texts), np.nan)
        numbers[~gone] = Written().parse(present)
        if not np.isnan(numbers[~gone]).any():
            return pd.Series(numbers)
    return texts.astype(object).where(~gone, None).astype("str")


def _integers(pd: Any, present: np.ndarray, gone: np.ndarray) -> Any:
    """Whole numbers, however large."""
    values = np.zeros(len(gone), dtype=object)
    values[~gone] = [int(text) for text in present]
    if min(values) >= -(2**63) and max(values) < 2**63:
        column = pd.Series(values.astype(np.int64))
        return column.astype("Int64").mask(gone) if gone.any() else column
    if min(values) >= 0 and max(values) < 2**64:
        column = pd.Series(values.astype(np.uint64))
        return column.astype("UInt64").mask(gone) if gone.any() else column
    return pd.Series(values, dtype=object).where(~gone, None)
