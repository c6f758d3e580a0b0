"""Tables from CSV, Parquet and Excel files, and back into them.

CSV files have no types. A cell is missing if it is empty or one of ``NA``, ``N/A``, ``nan``, ``null``,
``none``, ``?``, ``-`` in any case. A column is boolean if all others are ``True`` or ``False``, numbers
if they all are plain numbers, and text otherwise: dates, ``1,234``, ``7%``, ``$5`` and codes such as
``00123``, as `TableFlow` understands them and writes them again.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from sliceflow.errors import doubled
from sliceflow.models.atomic import write_atomically
from sliceflow.number_formats import MISSING, PLAIN, TABLES
from sliceflow.spaces.tables.cells import pandas

_OTHERS = {".parquet": "parquet", ".pq": "parquet", ".xlsx": "excel", ".xls": "excel"}
_LOOKED_AT = 100  # rows that tell whether the first one has names
_CODE = r"[+-]?0\d"
_YEAR = re.compile(r"(1[89]|20|21)\d\d")


def as_frame(X: Any) -> Any:
    """A table, read from its file if X is a path."""
    return read_table(X) if isinstance(X, str | os.PathLike) else X


def read_table(path: str | os.PathLike[str]) -> Any:
    """The file as a pandas DataFrame; a ValueError says what is wrong with it."""
    path = Path(path)
    pd = pandas()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if (other := _ending(path)) is not None:
        return getattr(pd, f"read_{other}")(path)
    text = _text(path)
    names, how = _header(path, text)
    texts = pd.read_csv(
        io.StringIO(text), names=names, dtype=str, na_filter=False, **how
    )
    return pd.DataFrame({name: _typed(texts.pop(name)) for name in names})


def write_table(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a DataFrame to a CSV, Parquet or Excel file, by the ending of its name; whole or not at all."""
    other = _ending(Path(path))
    separator = "\t" if Path(path).suffix.lower() == ".tsv" else ","

    def put(
        file: BinaryIO,
    ) -> None:  # here, because Excel files use the disk, which may be full
        whole = io.BytesIO()
        if other is not None:
            getattr(frame, f"to_{other}")(whole, index=False)
        else:
            frame.to_csv(whole, index=False, sep=separator)
        file.write(whole.getbuffer())

    write_atomically(path, put)


def _ending(path: Path) -> str | None:
    """What pandas calls a file with this ending; None for text."""
    if (kind := path.suffix.lower()) not in TABLES:
        raise ValueError(
            f"{path} is not a table: its name ends with none of {', '.join(TABLES)}"
        )
    return _OTHERS.get(kind)


def _text(path: Path) -> str:
    """UTF-8 or UTF-16, which has bytes of 0; else Windows-1252, which is told: it may be wrong."""
    raw = path.read_bytes()
    wide = "utf-16-be" if raw[:1] == b"\0" else "utf-16"
    try:
        return raw.decode(wide if b"\0" in raw else "utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte {raw[error.start]:#x}"
    text = raw.decode("cp1252", "replace")
    if "\ufffd" in text or "\0" in text:
        raise ValueError(
            f"{path} is neither UTF-8 nor Windows-1252 text ({byte}); save it as UTF-8"
        )
    fact = f"{path} is not UTF-8 text ({byte}) and was read as Windows-1252"
    warnings.warn(f"{fact}; if letters are wrong, save it as UTF-8", stacklevel=3)
    return text


def _header(path: Path, text: str) -> tuple[list[str], dict[str, Any]]:
    """Column names, and how pandas finds the rows below them. An uneven row is an error."""
    separator = max(",;\t", key=next(filter(str.strip, io.StringIO(text)), "").count)
    every = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    rows = (row for row in every if any(map(str.strip, row)))
    first = [[cell.strip() for cell in row] for row in islice(rows, _LOOKED_AT)]
    if not first:
        raise ValueError(f"{path} is empty; pass a table with a row of column names")
    for n, row in enumerate(chain(first, rows), 1):
        if len(row) != len(first[0]):  # pandas would fill up short ones
            fact = (
                f"row {n} has {len(row)} cells, but the first row has {len(first[0])}"
            )
            raise ValueError(
                f"{path}: {fact}; fix that row, or quote cells with separators"
            )
    named = _names_columns(first)
    if len(first) == 1 and named:
        raise ValueError(f"{path} has column names but no rows; add rows")
    names = [(named and cell) or f"column {i}" for i, cell in enumerate(first[0], 1)]
    if twice := doubled(names):
        raise ValueError(f"{path} has two columns named {twice[0]!r}; rename one")
    return names, {
        "header": 0 if named else None,
        "sep": separator,
        "skipinitialspace": True,
    }


def _names_columns(rows: list[list[str]]) -> bool:
    """Whether the first row has the names of columns: words, or years above cells that are none."""
    numbers = [
        i
        for i, cell in enumerate(rows[0])
        if re.fullmatch(PLAIN, cell.replace(",", "."))
    ]
    below = [row[i] for row in rows[1:] for i in numbers if row[i]]
    years = {rows[0][i] for i in numbers if _YEAR.fullmatch(rows[0][i])}
    other = not all(map(_YEAR.fullmatch, below or ["1999"]))
    return not numbers or (len(years) == len(numbers) and other)


def _typed(texts: Any) -> Any:
    """A column of texts as booleans, numbers or texts, with missing cells."""
    texts = texts.str.strip()
    texts = texts.mask(texts.str.lower().isin(MISSING))
    known = texts.dropna()
    if not len(known):
        return texts.astype("float64")
    if known.isin(["True", "False"]).all():
        typed = known == "True"
    elif known.str.match(_CODE).any() or not known.str.fullmatch(PLAIN).all():
        return texts
    elif not known.str.fullmatch(r"[+-]?\d+").all():
        typed = known.astype("float64")
    else:
        typed = known.map(int)  # Python's own beyond 64 bits
    if len(known) < len(texts) and typed.dtype.kind in "biu":
        typed = typed.convert_dtypes()  # which have missing cells
    return typed.reindex(texts.index)
