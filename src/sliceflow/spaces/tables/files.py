"""Tables from CSV, Parquet and Excel files, and back into them.

CSV files have no types. A cell is missing if it is empty or one of ``NA``, ``N/A``,
``nan``, ``null``, ``none``, ``?``, ``-`` in any case. A column is boolean if all others
are ``True`` or ``False``, numbers if they all are plain numbers, and text otherwise.
Dates, ``1,234``, ``7%``, ``$5`` and codes such as ``00123`` are text here; `TableFlow`
understands them, and writes them again in the same way.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from sliceflow.errors import DataError
from sliceflow.models.atomic import write_atomically
from sliceflow.number_formats import MISSING_WORDS, PLAIN_NUMBER, TABLE_ENDINGS
from sliceflow.spaces.tables.cells import require_pandas
from sliceflow.validation import duplicates

if TYPE_CHECKING:
    import pandas as pd

# The formats of files that are not text, by their endings.
_BinaryFormat = Literal["parquet", "excel"]
_BINARY_FORMATS: dict[str, _BinaryFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "excel",
    ".xls": "excel",
}
_SEPARATORS = ",;\t"
# These first rows tell whether the very first has the names of the columns.
_MAX_ROWS_BELOW_HEADER = 100
_LEADING_ZERO = r"[+-]?0\d"
_YEAR = re.compile(r"(1[89]|20|21)\d\d")


class _Layout(NamedTuple):
    """How a text file is laid out."""

    separator: str
    names: list[str]  # of the columns
    has_header: bool  # whether the first row has these names


def read_if_path(X: Any) -> Any:
    """A table, read from its file if X is a path; anything else is unchanged."""
    if isinstance(X, str | os.PathLike):
        return read_table(X)
    return X


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The file as a pandas DataFrame; a `DataError` says what is wrong with it."""
    require_pandas()
    import pandas as pd

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    binary_format = _binary_format(path)
    if binary_format == "parquet":
        return pd.read_parquet(path)
    if binary_format == "excel":
        return pd.read_excel(path)
    text = _read_text(path)
    layout = _find_layout(path, text)
    header = None
    if layout.has_header:
        header = 0
    texts = pd.read_csv(
        io.StringIO(text),
        names=layout.names,
        header=header,
        sep=layout.separator,
        skipinitialspace=True,
        dtype=str,
        na_filter=False,
    )
    return pd.DataFrame({name: _infer_type(texts.pop(name)) for name in layout.names})


def write_table(df: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a DataFrame to a CSV, Parquet or Excel file, by the ending of its name.

    The file is written whole or not at all.
    """
    binary_format = _binary_format(Path(path))

    def write(file: BinaryIO) -> None:
        # Excel files seek in what they write, so it is written to memory first. That is
        # done within `write`, because writers of Excel also use the disk, and
        # `write_atomically` adds the path to the error of a full one.
        content = io.BytesIO()
        if binary_format == "parquet":
            df.to_parquet(content, index=False)
        elif binary_format == "excel":
            df.to_excel(content, index=False)
        elif Path(path).suffix.lower() == ".tsv":
            df.to_csv(content, index=False, sep="\t")
        else:
            df.to_csv(content, index=False)
        file.write(content.getbuffer())

    write_atomically(path, write)


def _binary_format(path: Path) -> _BinaryFormat | None:
    """The format of a file with this ending; None for text."""
    ending = path.suffix.lower()
    if ending not in TABLE_ENDINGS:
        endings = ", ".join(TABLE_ENDINGS)
        raise DataError(f"{path} is not a table: its name ends with none of {endings}")
    return _BINARY_FORMATS.get(ending)


def _read_text(path: Path) -> str:
    """The text of a file in UTF-8 or UTF-16; in Windows-1252, with a warning."""
    raw = path.read_bytes()
    encoding = "utf-8-sig"
    if raw.startswith(b"\0"):  # every Latin letter has a zero byte in UTF-16
        encoding = "utf-16-be"
    elif b"\0" in raw:
        encoding = "utf-16"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        odd_byte = f"byte {raw[error.start]:#x}"
    text = raw.decode("cp1252", "replace")
    if "\ufffd" in text or "\0" in text:
        raise DataError(
            f"{path} is neither UTF-8 nor Windows-1252 text ({odd_byte})",
            "save it as UTF-8",
        )
    warnings.warn(
        f"{path} is not UTF-8 text ({odd_byte}) and was read as Windows-1252; "
        "if letters are wrong, save it as UTF-8",
        stacklevel=3,
    )
    return text


def _find_layout(path: Path, text: str) -> _Layout:
    """The separator and the column names of a text file.

    A `DataError` names a row with more or fewer cells than the first.
    """
    separator = _find_separator(text)
    rows = _rows_with_cells(text, separator)
    first_rows = [
        [cell.strip() for cell in row] for row in islice(rows, _MAX_ROWS_BELOW_HEADER)
    ]
    if not first_rows:
        raise DataError(f"{path} is empty", "pass a table with a row of column names")
    n_cells = len(first_rows[0])
    for number, row in enumerate(chain(first_rows, rows), 1):
        if len(row) != n_cells:  # pandas would fill up short ones
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, "
                f"but the first row has {n_cells}",
                "fix that row, or quote cells with separators",
            )
    has_header = _is_header(first_rows[0], first_rows[1:])
    if has_header and len(first_rows) == 1:
        raise DataError(f"{path} has column names but no rows", "add rows")
    names = [f"column {number}" for number in range(1, n_cells + 1)]
    if has_header:
        for i, cell in enumerate(first_rows[0]):
            if cell:
                names[i] = cell
    repeated = duplicates(names)
    if repeated:
        raise DataError(f"{path} has two columns named {repeated[0]!r}", "rename one")
    return _Layout(separator, names, has_header)


def _find_separator(text: str) -> str:
    """The separator that is most frequent in the first line that is not blank."""
    for line in io.StringIO(text):
        if line.strip():
            return max(_SEPARATORS, key=line.count)
    return ","


def _rows_with_cells(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a text file that are not blank."""
    for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
        if any(cell.strip() for cell in row):
            yield row


def _is_header(first_row: list[str], rows_below: list[list[str]]) -> bool:
    """Whether the first row has the names of columns.

    These are words, or also years, if the cells below those are not all years.
    """
    number_columns = [
        i
        for i, cell in enumerate(first_row)
        if re.fullmatch(PLAIN_NUMBER, cell.replace(",", "."))
    ]
    if not number_columns:
        return True
    years = [first_row[i] for i in number_columns]
    if len(set(years)) < len(years) or not all(map(_YEAR.fullmatch, years)):
        return False
    for row in rows_below:
        for i in number_columns:
            if row[i] and not _YEAR.fullmatch(row[i]):
                return True
    return False


def _infer_type(texts: pd.Series) -> pd.Series:
    """A column of texts as booleans, numbers or texts, with missing cells."""
    texts = texts.str.strip()
    texts = texts.mask(texts.str.lower().isin(MISSING_WORDS))
    present = texts.dropna()
    if not len(present):
        return texts.astype("float64")
    typed: pd.Series
    all_plain_numbers = present.str.fullmatch(PLAIN_NUMBER).all()
    if present.isin(["True", "False"]).all():
        typed = present == "True"
    elif not all_plain_numbers or present.str.match(_LEADING_ZERO).any():
        return texts
    elif present.str.fullmatch(r"[+-]?\d+").all():
        typed = present.map(int)  # Python's own beyond 64 bits
    else:
        typed = present.astype("float64")
    if len(present) < len(texts) and typed.dtype.kind in "biu":
        typed = typed.convert_dtypes()  # to types that have missing cells
    return typed.reindex(texts.index)
