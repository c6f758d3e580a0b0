"""Tables from CSV, Parquet and Excel files, and back into them.

CSV files have no types. A cell is missing if it is empty or one of ``NA``, ``N/A``, ``nan``, ``null``,
``none``, ``?``, ``-`` in any case. A column is boolean if all its other cells are ``True`` or
``False``, numbers if they all are plain numbers, and text otherwise: dates, numbers written in another
way (``1,234``, ``7%``, ``$5``) and codes with leading zeros (``00123``), as `TableFlow` understands them
and writes them again.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

from sliceflow.models.atomic import write_atomically
from sliceflow.spaces.tables.cells import TableRows, pandas, read_frame
from sliceflow.written import MISSING

__all__ = ["SUFFIXES", "read_frame_or_file", "read_table", "write_table"]

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx", ".xls")
_OTHERS = {".parquet": "parquet", ".pq": "parquet", ".xlsx": "excel", ".xls": "excel"}
_LOOKED_AT = 100  # rows that tell whether the first one has names
_INTEGER = r"[+-]?\d+"
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_CODE = r"[+-]?0\d"
_YEAR = re.compile(r"(1[89]|20|21)\d\d")


def read_frame_or_file(X: Any) -> TableRows:
    """The rows of a DataFrame, or of a file. A ValueError says what is wrong."""
    return read_frame(read_table(X) if isinstance(X, str | os.PathLike) else X)


def read_table(path: str | os.PathLike[str]) -> Any:
    """The file as a pandas DataFrame; a ValueError says what is wrong with it."""
    path, pd = Path(path), pandas()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if (other := _ending(path)) is not None:
        try:
            return getattr(pd, f"read_{other}")(path)
        except ImportError as error:
            raise ImportError(f"{path}: {error}") from error
    encoding = _encoding(path)
    names, separator, named = _header(path, encoding)
    how = {"header": 0 if named else None, "names": names, "sep": separator, "encoding": encoding}
    texts = pd.read_csv(path, dtype=str, na_filter=False, skipinitialspace=True, **how)
    return pd.DataFrame({name: _typed(pd, texts.pop(name)) for name in names})


def write_table(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a DataFrame to a CSV, Parquet or Excel file, by the ending of its name; whole or not at all."""
    whole = io.BytesIO()
    if (other := _ending(Path(path))) is not None:
        getattr(frame, f"to_{other}")(whole, index=False)
    else:
        frame.to_csv(whole, index=False, sep="\t" if Path(path).suffix.lower() == ".tsv" else ",")
    write_atomically(path, lambda file: file.write(whole.getbuffer()))


def _ending(path: Path) -> str | None:
    """What pandas calls a file with this ending; None for text."""
    if (kind := path.suffix.lower()) not in SUFFIXES:
        raise ValueError(f"{path} is not a table: its name ends with none of {', '.join(SUFFIXES)}")
    return _OTHERS.get(kind)


def _encoding(path: Path) -> str:
    """UTF-8 or UTF-16 by its mark, else Windows-1252, which is told, because it may be wrong."""
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            with path.open(encoding=encoding) as text:
                while text.read(1 << 20):
                    pass
            break
        except UnicodeDecodeError as error:
            byte = f"byte {error.object[error.start]:#x}"
    else:
        raise ValueError(f"{path} is neither UTF-8 nor Windows-1252 text ({byte}); save it as UTF-8")
    if encoding == "cp1252":
        advice = "if letters are wrong, save it as UTF-8"
        warnings.warn(
            f"{path} is not UTF-8 text ({byte}) and was read as Windows-1252; {advice}", stacklevel=3
        )
    return encoding


def _header(path: Path, encoding: str) -> tuple[list[str], str, bool]:
    """Column names, separator, and whether the first row has the names. An uneven row is an error."""
    with path.open(encoding=encoding, newline="") as file:
        separator = max(",;\t", key=next(filter(str.strip, file), "").count)
        file.seek(0)
        first, n = list[list[str]](), 0
        for row in csv.reader(file, delimiter=separator):
            if any(map(str.strip, row)):
                n += 1
                if n <= _LOOKED_AT:
                    first.append([cell.strip() for cell in row])
                if len(row) != len(first[0]):  # pandas would fill up short ones
                    uneven = f"row {n} has {len(row)} cells, but the first row has {len(first[0])}"
                    advice = "fix that row, or put cells with separators in quotes"
                    raise ValueError(f"{path}: {uneven}; {advice}")
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
    numbers = [i for i, cell in enumerate(rows[0]) if re.fullmatch(_NUMBER, cell.replace(",", "."))]
    below = [row[i] for row in rows[1:] for i in numbers if row[i]]
    years = {rows[0][i] for i in numbers if _YEAR.fullmatch(rows[0][i])}
    return not numbers or (
        len(years) == len(numbers) and not all(map(_YEAR.fullmatch, below or ["1999"]))
    )


def _typed(pd: Any, texts: Any) -> Any:
    """A column of texts as booleans, numbers or texts, with missing cells."""
    texts = texts.str.strip()
    texts = texts.mask(texts.str.lower().isin(MISSING))
    known = texts.dropna()
    if not len(known):
        return texts.astype("float64")
    if known.isin(["True", "False"]).all():
        typed = known == "True"
    elif known.str.match(_CODE).any() or not known.str.fullmatch(_NUMBER).all():
        return texts
    elif not known.str.fullmatch(_INTEGER).all():
        return known.astype("float64").reindex(texts.index)
    else:
        typed = _integers(known)
    if len(known) < len(texts) and typed.dtype != object:
        typed = typed.convert_dtypes()  # that have missing cells
    return typed.reindex(texts.index)


def _integers(texts: Any) -> Any:
    """Whole numbers, however large."""
    values = texts.astype(object).map(int)
    for dtype in ("int64", "uint64"):
        try:
            return values.astype(dtype)
        except (OverflowError, ValueError):
            pass
    return values
