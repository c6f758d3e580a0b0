"""What a column is, inferred from its cells: its kind, its levels and its grid."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import TypeGuard

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.dataframes import DATE_PATTERN
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.tables.columns.column import (
    CATEGORY_KINDS,
    KINDS,
    Column,
    Kind,
    Quantity,
    UserKind,
)
from sliceflow.estimators.tables.columns.formats import (
    DateFormat,
    ExactValues,
    TextFormat,
    infer_date_formats,
    times_of_exact_values,
    to_exact_values,
)
from sliceflow.estimators.tables.columns.grid import Grid
from sliceflow.estimators.tables.columns.new_values import MIN_LEVELS_FOR_NEW_VALUES
from sliceflow.estimators.tables.identifiers.judgment import (
    LONG_TEXT_LENGTH,
    MIN_ROWS_TO_JUDGE,
    NEARLY_UNIQUE,
    IdentifierJudgment,
    has_repeated_values,
    judge_identifier,
)
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn
from sliceflow.estimators.tables.rows.stored_levels import ColumnName, to_python_type
from sliceflow.number_formats import NumberFormat, infer_number_format

# At most this many cells are looked at to see how a column is written; more would only
# take time.
_MAX_CELLS_READ = 5_000
# If at least this share of texts look like dates, the others are mistakes. With a
# larger share, a column of dates with some mistakes would become a category.
_MIN_SHARE_OF_DATES = 0.8
# Numbers between these may be dates such as 20240131, of the years from 1900 to 2099.
_COMPACT_DATE_RANGE = (19e6, 21e6)
# Differences of 64-bit integers that are smaller than this do not overflow.
_MAX_INT64_DIFFERENCE = 2**62

_DATE_AND_TIME = re.compile(rf"{DATE_PATTERN}([ T]\d{{1,2}}:\d{{2}}.*)?")


def infer_column(
    encoded: EncodedColumn, distinct_row_indices: Ints, wanted_kind: str | None = None
) -> Column:
    """Infer the kind, the levels and the grid of a column from its cells.

    The column is the first of these that fits:

    1. left out, if the user says so;
    2. identifiers, by the user's word or by their name or form;
    3. constant;
    4. a category, by the user's word or its dtype;
    5. numbers or times, which may be written as text;
    6. identifiers, because nearly all cells differ: so do those of many numbers and
       times, and therefore these come first;
    7. a category of texts. Free text is an error.

    Parameters
    ----------
    encoded : the cells of the column
    distinct_row_indices : indices of the table's rows without repetitions of whole rows
    wanted_kind : the kind that the user gave; "datetime:%d.%m.%Y" for dates as text
    """
    kind, date_format = _parse_wanted_kind(encoded.name, wanted_kind)
    counts = np.bincount(encoded.observed_codes)
    used_codes = np.flatnonzero(counts)  # of levels that have a cell
    if kind == "drop":
        return Column(encoded, "drop", used_codes[:0], Grid(np.empty(0)))

    judgment = _judge_identifier(encoded, distinct_row_indices, wanted_kind)
    is_surely_identifier = judgment.reason not in ("", NEARLY_UNIQUE)
    if is_surely_identifier:
        return _identifier_column(encoded, counts, judgment)

    if _is_constant(encoded, used_codes):
        return _constant_column(encoded, used_codes)

    is_category = encoded.categorical or encoded.value_type == "bool"
    if is_category or kind in CATEGORY_KINDS:
        return category_column(encoded, counts, kind)

    quantitative = _infer_quantitative(encoded, used_codes, kind, date_format)
    if quantitative is not None:
        return quantitative

    if judgment.reason == NEARLY_UNIQUE:
        return _identifier_column(encoded, counts, judgment)

    _check_not_free_text(encoded, used_codes, kind)
    return category_column(encoded, counts, kind)


def _is_user_kind(kind: str) -> TypeGuard[UserKind]:
    """Whether a user may give a column this kind."""
    return kind in KINDS


def _parse_wanted_kind(
    name: ColumnName, wanted_kind: str | None
) -> tuple[UserKind | None, str]:
    """The kind that a user gave, and the format of dates, empty if there is none."""
    if wanted_kind is None:
        return None, ""
    kind, _, date_format = wanted_kind.partition(":")
    if not _is_user_kind(kind) or (date_format and kind != "datetime"):
        raise ParameterError(
            "kinds",
            {name: wanted_kind},
            "is not a kind of column",
            f"use one of {', '.join(KINDS)}, or 'datetime:%d.%m.%Y' for dates as text",
        )
    return kind, date_format


def _judge_identifier(
    encoded: EncodedColumn, distinct_row_indices: Ints, wanted_kind: str | None
) -> IdentifierJudgment:
    """Why a column is an identifier; the reason is empty if it is none.

    The kind that a user wants decides, if there is one.
    """
    if wanted_kind == "identifier":
        return IdentifierJudgment("as asked", has_repeated_values(encoded))
    if wanted_kind:
        return IdentifierJudgment("")
    return judge_identifier(encoded, distinct_row_indices)


def _identifier_column(
    encoded: EncodedColumn, counts: Ints, judgment: IdentifierJudgment
) -> Column:
    """The column of identifiers, given `counts`, how many cells each code has.

    Identifiers that repeat have levels, as a category. All others are at the position
    0.
    """
    column = replace(
        category_column(encoded, counts, "identifier"),
        identifier_reason=judgment.reason,
    )
    if judgment.has_repeats:
        return column
    return replace(column, level_codes=column.level_codes[:1], grid=Grid(np.empty(0)))


def _is_constant(encoded: EncodedColumn, used_codes: Ints) -> bool:
    """Whether all cells are alike. A value and a missing cell differ."""
    if len(used_codes) == 0:
        return True
    return len(used_codes) == 1 and not encoded.is_missing.any()


def _constant_column(encoded: EncodedColumn, used_codes: Ints) -> Column:
    """A column with one value or none. Constraints may compare with a number."""
    is_quantitative = (
        encoded.value_type not in ("str", "bool") and not encoded.categorical
    )
    if len(used_codes) and is_quantitative:
        return _quantitative_column(encoded, used_codes, "constant", None)
    return Column(encoded, "constant", used_codes, Grid(np.zeros(len(used_codes))))


def category_column(encoded: EncodedColumn, counts: Ints, kind: Kind | None) -> Column:
    """The column of categories, given `counts`, how many cells each code has.

    If `kind` is None, it is inferred.
    """
    if encoded.value_type == "bool" and not encoded.categorical:
        kind = "boolean"
    elif kind is None and encoded.categorical == "ordered":
        kind = "ordered"
    elif kind is None:
        kind = "category"
    level_codes = np.flatnonzero(counts)
    if kind != "ordered":
        by_frequency = np.argsort(-counts[level_codes], kind="stable")
        level_codes = level_codes[by_frequency]
    positions = np.arange(len(level_codes), dtype=np.float64)
    return Column(encoded, kind, level_codes, Grid(positions))


def _infer_quantitative(
    encoded: EncodedColumn, used_codes: Ints, kind: Kind | None, date_format: str
) -> Column | None:
    """A column of numbers or times, which may be written as text; None for words."""
    value_type = encoded.value_type
    last = to_python_type(encoded.levels.iloc[used_codes[-1]])
    is_perhaps_text = value_type == "str"
    if value_type in ("int", "float"):
        low, high = _COMPACT_DATE_RANGE
        is_perhaps_text = bool(date_format) or low < last < high
    text_format = None
    if is_perhaps_text:
        text_format = _infer_text_format(encoded, used_codes, kind, date_format)
    is_plain_number = value_type in ("int", "float", "Decimal") and text_format is None
    if kind == "datetime" and is_plain_number:
        raise DataError(
            f"the column holds {last}, which is a number, not a time",
            "convert it by pandas.to_datetime, with its unit",
            column=encoded.name,
        )
    if value_type == "str" and text_format is None:
        return None
    return _quantitative_column(encoded, used_codes, kind, text_format)


def _quantitative_column(
    encoded: EncodedColumn,
    used_codes: Ints,
    kind: Kind | None,
    text_format: TextFormat | None,
) -> Column:
    """The column of numbers or times. If `kind` is None, it is inferred."""
    exact_values, unit = to_exact_values(
        encoded.levels.iloc[used_codes], encoded.value_type, text_format
    )
    ascending = np.argsort(exact_values, kind="stable")
    exact_values = exact_values[ascending]
    # A user who calls floats continuous wants no grid of their last decimal.
    is_float = encoded.levels.dtype.kind == "f"
    if unit is not None and kind == "continuous" and is_float:
        exact_values = exact_values / unit.denominator
        unit = None

    quantity = _infer_quantity(encoded, text_format)
    if kind is None:
        kind = _infer_quantitative_kind(quantity, unit)
    column = Column(
        encoded,
        kind,
        level_codes=used_codes[ascending],
        grid=_infer_grid(exact_values, unit),
        quantity=quantity,
        text_format=text_format,
    )
    if quantity == "time" and _is_on_calendar(column):
        column = replace(column, allows_only_levels=True)
    return column


def _infer_grid(exact_values: ExactValues, unit: Fraction | None) -> Grid:
    """The grid of ascending levels (k,), with the widest spacing that fits all."""
    if unit is None:
        return Grid(exact_values)
    if int(exact_values[-1]) - int(exact_values[0]) >= _MAX_INT64_DIFFERENCE:
        exact_values = exact_values.astype(object)  # Python's integers
    spacing = 1
    if len(exact_values) >= MIN_LEVELS_FOR_NEW_VALUES:
        spacing = int(np.gcd.reduce(exact_values - exact_values[0])) or 1
    return Grid(exact_values, unit, spacing)


def _infer_quantity(encoded: EncodedColumn, text_format: TextFormat | None) -> Quantity:
    """The quantity that the numbers of the column measure, such as times."""
    if isinstance(text_format, DateFormat):
        return "time"
    if encoded.value_type in ("date", "datetime"):
        return "time"
    if encoded.value_type == "timedelta":
        return "duration"
    return "number"


def _infer_quantitative_kind(quantity: Quantity, unit: Fraction | None) -> Kind:
    """The kind of a column of numbers or times."""
    if quantity != "number":
        return "datetime"
    if unit == 1:
        return "integer"
    return "continuous"


def _is_on_calendar(column: Column) -> bool:
    """Whether times are on a grid that does not have steps of one length in UTC.

    These are first days of months, and times on a grid of the clock on the wall, which
    jumps twice a year. New times between them would not be on the grid.
    """
    import pandas as pd

    if column.encoded.value_type == "datetime":
        times = column.levels
        if len(times) >= MIN_LEVELS_FOR_NEW_VALUES:
            wall_clock = times.dt.tz_localize(None).astype("int64").to_numpy()
            wall_clock_step = np.gcd.reduce(wall_clock - wall_clock[0])
            if wall_clock_step > column.grid.spacing:
                return True
    else:
        grid = column.grid
        times = pd.Series(times_of_exact_values(grid.exact_values, grid.unit))
    is_midnight = times == times.dt.normalize()
    return bool(((times.dt.day == 1) & is_midnight).all())


def _infer_text_format(
    encoded: EncodedColumn, used_codes: Ints, kind: Kind | None, date_format: str
) -> TextFormat | None:
    """How texts write numbers or times, or integers dates; None for other texts.

    A `DataError` names the first cell that is written in another way than most.
    """
    texts = encoded.levels.iloc[used_codes].astype(str).tolist()
    text_format: TextFormat | None = None
    if date_format:
        text_format = DateFormat(date_format)
    elif kind is None or kind == "datetime":
        text_format = _infer_one_date_format(encoded, used_codes, texts)
    if text_format is None and kind != "datetime" and encoded.value_type == "str":
        text_format = _infer_number_format(encoded)
    if text_format is None:
        return None
    is_unreadable = np.isnan(text_format.parse(texts))
    if is_unreadable.any():
        first = int(np.argmax(is_unreadable))
        others = date_format or "numbers"
        raise _odd_cell_error(encoded, used_codes[first], f"but others are {others}")
    return text_format


def _infer_number_format(encoded: EncodedColumn) -> NumberFormat | None:
    """How the texts of a column write numbers; None if they are other texts."""
    codes = encoded.observed_codes
    stride = max(1, len(codes) // _MAX_CELLS_READ)
    cells = encoded.levels.iloc[codes[::stride]]
    return infer_number_format(cells.to_numpy(dtype=object))


def _infer_one_date_format(
    encoded: EncodedColumn, used_codes: Ints, texts: list[str]
) -> DateFormat | None:
    """The format of dates of all texts; None if most do not look like dates.

    A `DataError` says that there is more than one format, or that one is ambiguous.
    """
    date_formats = infer_date_formats(texts)
    if len(date_formats) == 1:
        return date_formats[0]
    kinds = ("category", "datetime:%d/%m/%Y")
    if len(date_formats) > 1:
        fact = "a date in which day and month could be either"
        raise _odd_cell_error(encoded, used_codes[0], fact, kinds)
    stride = max(1, len(texts) // _MAX_CELLS_READ)
    looks_like_date = [
        _DATE_AND_TIME.fullmatch(text.strip()) is not None for text in texts[::stride]
    ]
    if np.mean(looks_like_date) >= _MIN_SHARE_OF_DATES:
        first = stride * int(np.argmin(looks_like_date))
        fact = "but dates not all in one format"
        raise _odd_cell_error(encoded, used_codes[first], fact, kinds)
    return None


def _odd_cell_error(
    encoded: EncodedColumn,
    code: int,
    why: str,
    suggested_kinds: tuple[str, ...] = ("category",),
) -> DataError:
    """The error of the first cell with a code, which holds what others do not."""
    row = int(np.argmax(encoded.codes == code))
    value = str(encoded.levels.iloc[[code]].astype(str).iloc[0])
    return DataError(
        f"the cell holds {value!r}, {why}",
        "fix the cells",
        row,
        encoded.name,
        suggested_kinds,
    )


def _check_not_free_text(
    encoded: EncodedColumn, used_codes: Ints, kind: Kind | None
) -> None:
    """Raise a `DataError` for texts that cannot be categories.

    These are texts where the user wants numbers, and many long, different texts.
    """
    texts = encoded.levels.iloc[used_codes].tolist()
    if kind is not None:
        raise DataError(
            f"the column is text such as {texts[0]!r}, not {kind}",
            "convert it",
            column=encoded.name,
        )
    n = int((~encoded.is_missing).sum())
    if n < MIN_ROWS_TO_JUDGE or 2 * len(texts) <= n:
        return
    mean_length = sum(len(text) for text in texts) / len(texts)
    mean_spaces = sum(text.count(" ") for text in texts) / len(texts)
    if mean_length > LONG_TEXT_LENGTH or mean_spaces >= 2:
        raise DataError(
            f"the column is free text such as {texts[0][:30]!r}, which a table cannot "
            "imitate",
            column=encoded.name,
            suggested_kinds=("drop", "identifier", "category"),
        )
