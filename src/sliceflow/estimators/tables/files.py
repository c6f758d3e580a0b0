"""Tables from CSV, Parquet and Excel files, and back into them.

CSV files have no types. A cell is missing if it is empty or one of ``NA``, ``N/A``,
``nan``, ``null``, ``none``, ``?``, ``-`` in any case. A column is boolean if all other
cells are ``True`` or ``False``, numbers if they all are plain numbers, and text
otherwise. Dates, ``1,234``, ``7%``, ``$5`` and codes such as ``00123`` are text here;
`TableFlow` understands them, and writes them again in the same way. In columns of
numbers and of dates, words such as ``unknown`` are missing cells as well.

The `Dialect` of a text file says how it is laid out. A table that is drawn from a model
of the file can be written in the same way.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from sliceflow.base.atomic import write_atomically
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.estimators.tables.columns.formats import infer_date_formats
from sliceflow.estimators.tables.rows.encoded_columns import require_pandas
from sliceflow.number_formats import PLAIN_NUMBER, infer_number_format
from sliceflow.table_files import (
    MISSING_WORDS,
    TABLE_ENDINGS,
    UNKNOWN_WORDS,
    Dialect,
)
from sliceflow.validation import duplicates

if TYPE_CHECKING:
    import pandas as pd

# The formats of binary files, by their endings. All other files are text.
_BinaryFormat = Literal["parquet", "excel"]
_BINARY_FORMATS: dict[str, _BinaryFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".xlsx": "excel",
    ".xls": "excel",
}
_SEPARATORS = ",;\t"
# Whether the first row has the names of the columns is decided by this many rows below.
_MAX_ROWS_BELOW_HEADER = 100
_LEADING_ZERO = r"[+-]?0\d"
_YEAR = re.compile(r"(1[89]|20|21)\d\d")


class TableFile(NamedTuple):
    """The content of a file: a table, how it is laid out, and notes."""

    df: pd.DataFrame
    dialect: Dialect  # the usual one for files that are not text
    notes: list[DataWarning]  # which words were taken for missing cells


class _Layout(NamedTuple):
    """The columns of a text file, and whether its first row names them."""

    names: list[str]  # of the columns
    has_header: bool  # whether the first row has these names


def read_if_path(X: object) -> object:
    """A table, read from its file if X is a path; anything else is unchanged."""
    if isinstance(X, str | os.PathLike):
        return read_table(X)
    return X


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a file as a pandas DataFrame. A `DataError` says what is wrong with it."""
    file = read_file(path)
    for note in file.notes:
        warn_user(note)
    return file.df


def read_file(path: str | os.PathLike[str], missing: Collection[str] = ()) -> TableFile:
    """Read a file. A `DataError` says what is wrong with it.

    Cells that are one of the words `missing` are missing, beside the usual words.
    """
    require_pandas()
    import pandas as pd

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    words = {*MISSING_WORDS, *(word.strip().lower() for word in missing)}
    binary_format = _binary_format(path)
    if binary_format == "parquet":
        return _with_missing_words(pd.read_parquet(path), words)
    if binary_format == "excel":
        return _with_missing_words(pd.read_excel(path), words)
    return _read_text_file(path, words)


def _read_text_file(path: Path, words: Collection[str]) -> TableFile:
    """The table of a text file. Cells that are one of the words are missing."""
    import pandas as pd

    text, encoding = _read_text(path)
    separator = _find_separator(text)
    layout = _find_layout(path, text, separator)
    header = None
    if layout.has_header:
        header = 0
    texts = pd.read_csv(
        io.StringIO(text),
        names=layout.names,
        header=header,
        sep=separator,
        skipinitialspace=True,
        dtype=str,
        na_filter=False,
    )
    notes = list[DataWarning]()
    columns = {}
    for name in layout.names:
        cells = texts.pop(name).str.strip()
        cells = cells.mask(cells.str.lower().isin(words))
        is_unknown = _is_unknown_value(cells)
        if is_unknown.any():
            notes.append(_unknown_words_note(name, cells[is_unknown]))
        columns[name] = _infer_type(cells.mask(is_unknown))
    line_end = "\n"
    if "\r\n" in text:
        line_end = "\r\n"
    dialect = Dialect(separator, encoding, line_end)
    return TableFile(pd.DataFrame(columns), dialect, notes)


def _with_missing_words(df: pd.DataFrame, words: Collection[str]) -> TableFile:
    """A table in which words for missing cells are replaced by missing cells.

    Its columns have types already. But columns of numbers with such words among them
    have the type of Python objects.
    """
    notes = list[DataWarning]()
    for column_index, name in enumerate(df.columns):
        cells = df.iloc[:, column_index]
        if cells.dtype != object:
            continue
        lower_texts = _texts_among(cells).str.strip().str.lower()
        is_missing = lower_texts.isin(words)
        is_unknown = lower_texts.isin(UNKNOWN_WORDS) & ~is_missing
        if _has_only_values(cells.mask(is_missing | is_unknown)):
            if is_unknown.any():
                notes.append(_unknown_words_note(name, cells[is_unknown]))
            is_missing |= is_unknown
            # The new types can have missing cells, so that whole numbers stay whole.
            cells = cells.mask(is_missing).convert_dtypes()
        if is_missing.any():
            df.isetitem(column_index, cells.mask(is_missing).array)
    return TableFile(df, Dialect(), notes)


def _texts_among(cells: pd.Series) -> pd.Series:
    """The cells of a column of Python objects that are texts; others are missing."""
    return cells.where(cells.map(lambda cell: isinstance(cell, str)))


def _has_only_values(cells: pd.Series) -> bool:
    """Whether a column of Python objects has values, and none of them is a text."""
    return bool(cells.notna().any() and _texts_among(cells).isna().all())


def _is_unknown_value(texts: pd.Series) -> pd.Series:
    """Which cells are words such as "unknown", if all others are numbers, or dates."""
    import pandas as pd

    is_unknown = texts.str.lower().isin(UNKNOWN_WORDS)
    others = texts[~is_unknown].dropna()
    if is_unknown.any() and len(others) and _has_only_numbers_or_dates(others):
        return is_unknown
    return pd.Series(False, index=texts.index)


def _has_only_numbers_or_dates(texts: pd.Series) -> bool:
    """Whether nearly all texts are numbers, or all are dates, in one way of writing."""
    if infer_number_format(texts.to_numpy(dtype=object)) is not None:
        return True
    return bool(infer_date_formats(texts.tolist()))


def _unknown_words_note(name: Hashable, unknown: pd.Series) -> DataWarning:
    """The note that words of a column, `unknown`, were taken for missing cells."""
    words = ", ".join(repr(word) for word in unknown.unique())
    fact = f"{words} is taken for a missing cell ({len(unknown)} of them)"
    return DataWarning(fact, column=name)


def write_table(
    df: pd.DataFrame, path: str | os.PathLike[str], dialect: Dialect | None = None
) -> None:
    """Write a DataFrame to a CSV, Parquet or Excel file, by the ending of its name.

    The file is written whole or not at all. `dialect` says how text is written; a
    .tsv file has tabs.
    """
    binary_format = _binary_format(Path(path))
    if dialect is None:
        dialect = Dialect()
    if Path(path).suffix.lower() == ".tsv":
        dialect = replace(dialect, separator="\t")

    def write(file: BinaryIO) -> None:
        # Excel files seek in what they write, so it is written to memory first. That is
        # done within `write`, because writers of Excel also use the disk, and
        # `write_atomically` adds the path to the error of a full one.
        content = io.BytesIO()
        if binary_format == "parquet":
            df.to_parquet(content, index=False)
        elif binary_format == "excel":
            df.to_excel(content, index=False)
        else:
            content.write(as_csv(df, dialect))
        file.write(content.getbuffer())

    write_atomically(path, write)


def as_csv(df: pd.DataFrame, dialect: Dialect) -> bytes:
    """A DataFrame as the bytes of a text file."""
    text: str = df.to_csv(
        index=False, sep=dialect.separator, lineterminator=dialect.line_end
    )
    return text.encode(dialect.encoding)


def _binary_format(path: Path) -> _BinaryFormat | None:
    """The format of a file with this ending; None for text."""
    ending = path.suffix.lower()
    if ending not in TABLE_ENDINGS:
        endings = ", ".join(TABLE_ENDINGS)
        raise DataError(f"{path} is not a table: its name ends with none of {endings}")
    return _BINARY_FORMATS.get(ending)


def _read_text(path: Path) -> tuple[str, str]:
    """The text of a file in UTF-8 or UTF-16, and its encoding.

    Other text is Windows-1252, with a warning.
    """
    raw = path.read_bytes()
    encoding = "utf-8"
    if raw.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif raw.startswith(b"\0"):  # every Latin letter has a zero byte in UTF-16
        encoding = "utf-16-be"
    elif b"\0" in raw:
        encoding = "utf-16-le"
    try:
        return raw.decode(encoding), encoding
    except UnicodeDecodeError as error:
        odd_byte = f"byte {raw[error.start]:#x}"
    encoding = "cp1252"
    text = raw.decode(encoding, "replace")
    if "\ufffd" in text or "\0" in text:
        raise DataError(
            f"{path} is neither UTF-8 nor Windows-1252 text ({odd_byte})",
            "save it as UTF-8",
        )
    warn_user(
        f"{path} is not UTF-8 text ({odd_byte}) and was read as Windows-1252; "
        "if letters are wrong, save it as UTF-8"
    )
    return text, encoding


def _find_layout(path: Path, text: str, separator: str) -> _Layout:
    """The column names of a text file.

    A `DataError` names a row with more or fewer cells than the first.
    """
    rows = _rows_with_cells(text, separator)
    first_rows = [
        [cell.strip() for cell in row] for row in islice(rows, _MAX_ROWS_BELOW_HEADER)
    ]
    if not first_rows:
        raise DataError(f"{path} is empty", "pass a table with a row of column names")
    n_cells = len(first_rows[0])
    _check_row_lengths(path, chain(first_rows, rows), n_cells)
    has_header = _is_header(first_rows[0], first_rows[1:])
    if has_header and len(first_rows) == 1:
        raise DataError(f"{path} has column names but no rows", "add rows")
    names = [""] * n_cells
    if has_header:
        names = first_rows[0]
    names = [name or f"column {number}" for number, name in enumerate(names, 1)]
    repeated = duplicates(names)
    if repeated:
        raise DataError(f"{path} has two columns named {repeated[0]!r}", "rename one")
    return _Layout(names, has_header)


def _check_row_lengths(path: Path, rows: Iterable[list[str]], n_cells: int) -> None:
    """Raise a `DataError` for the first row that has more or fewer cells."""
    for number, row in enumerate(rows, 1):
        if len(row) != n_cells:  # pandas would fill up short ones
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, "
                f"but the first row has {n_cells}",
                "fix that row, or quote cells with separators",
            )


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

    Names are words. Years are names, too, if the cells below them are not all years.
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
    """A column of texts, some missing, as booleans, numbers or texts."""
    observed = texts.dropna()
    if not len(observed):
        return texts.astype("float64")
    typed: pd.Series
    all_plain_numbers = observed.str.fullmatch(PLAIN_NUMBER).all()
    if observed.isin(["True", "False"]).all():
        typed = observed == "True"
    elif not all_plain_numbers or observed.str.match(_LEADING_ZERO).any():
        return texts
    elif observed.str.fullmatch(r"[+-]?\d+").all():
        typed = observed.map(int)  # Python's own beyond 64 bits
    else:
        typed = observed.astype("float64")
    if len(observed) < len(texts) and typed.dtype.kind in "biu":
        typed = typed.convert_dtypes()  # to types that have missing cells
    return typed.reindex(texts.index)
