"""Tables as numbers, so that metrics can compare their rows.

Columns become numbers (dates count days) or codes of categories; NaN is a missing cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.dataframes import DATE_PATTERN, column_kind
from sliceflow.errors import DataError
from sliceflow.number_formats import infer_number_format
from sliceflow.validation import require

if TYPE_CHECKING:
    import pandas as pd

# The most categories of a column that boosted trees take (scikit-learn's limit is 255),
# and that have an axis each as points; all others count as one category.
MAX_CATEGORIES = 250
# Texts identify their row if more than this share of them is different.
_IDENTIFIER_SHARE = 0.9
# Fewer texts may all be different by chance.
_MIN_IDENTIFIERS = 20


class EncodedTables(NamedTuple):
    """Tables with the same c columns as numbers, without those that identify a row."""

    names: list[str]
    is_categorical: list[bool]  # which columns hold codes
    samples: Floats  # (n, c)
    train: Floats  # (N, c)
    others: list[Floats]  # (m, c) of each other table
    # Of the columns left out: the share of the first table's texts that are real.
    revealed: dict[str, float]


def encode_tables(
    samples: pd.DataFrame, train: pd.DataFrame, *others: pd.DataFrame
) -> EncodedTables:
    """Samples, training rows and other rows, all with the same columns, as numbers.

    Columns in which nearly every text is different are left out.
    """
    import pandas as pd

    dfs = (samples, train, *others)
    _require_same_columns(dfs)
    names = []
    is_categorical = []
    columns = []
    revealed = {}
    for name in train.columns:
        joined = pd.concat([df[name] for df in dfs], ignore_index=True)
        column = as_numbers(joined)
        if column.is_category and _is_identifier(train[name]):
            revealed[str(name)] = _share_of_real_values(samples[name], train[name])
        else:
            names.append(str(name))
            is_categorical.append(column.is_category)
            columns.append(column.numbers)
    if not columns:
        raise DataError("every column identifies its row; there is nothing to compare")
    ends = np.cumsum([len(df) for df in dfs])[:-1]
    sample_rows, train_rows, *other_rows = np.split(np.column_stack(columns), ends)
    return EncodedTables(
        names=names,
        is_categorical=is_categorical,
        samples=sample_rows,
        train=train_rows,
        others=other_rows,
        revealed=revealed,
    )


def _require_same_columns(dfs: Sequence[pd.DataFrame]) -> None:
    """Raise an error unless all are DataFrames of pandas with the same columns."""
    import pandas as pd

    names = set(dfs[1].columns)
    for df in dfs:
        if not isinstance(df, pd.DataFrame):
            library = type(df).__module__
            raise TypeError(f"tables are DataFrames of pandas, not of {library}")
        not_in_all = names ^ set(df.columns)
        if not_in_all:
            first = min(map(str, not_in_all))
            raise DataError(
                f"the tables have different columns: {first!r} is not in all"
            )


def _is_identifier(column: pd.Series) -> bool:
    """Whether nearly every text of a column is different, as addresses are."""
    texts = column.dropna()
    if len(texts) < _MIN_IDENTIFIERS:
        return False
    return bool(texts.nunique() > _IDENTIFIER_SHARE * len(texts))


def _share_of_real_values(samples: pd.Series, train: pd.Series) -> float:
    """The share of the samples' values that are in the training rows."""
    if len(samples) == 0:
        return 0.0
    real = set(train.dropna())
    return float(samples.dropna().isin(real).mean())


class ColumnOfNumbers(NamedTuple):
    """A column as numbers; NaN is a missing cell."""

    numbers: Floats  # (n,)
    is_category: bool  # whether they are codes of categories


def as_numbers(column: pd.Series) -> ColumnOfNumbers:
    """A column as numbers, or as codes of categories.

    Dates and durations are days. Texts are numbers or dates if all of them are.
    """
    import pandas as pd

    kind = column_kind(column)
    if kind in ("integer", "float"):
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        return ColumnOfNumbers(numbers, is_category=False)
    observed = column.notna().to_numpy()
    numbers = np.full(len(column), np.nan)
    if kind in ("datetime", "timedelta"):
        numbers[observed] = _days(column[observed])
        return ColumnOfNumbers(numbers, is_category=False)
    texts = column[observed].astype(str)
    parsed = None
    if len(texts) > 0 and kind != "boolean":
        parsed = _parse_texts(texts)
    if parsed is not None:
        numbers[observed] = parsed
        return ColumnOfNumbers(numbers, is_category=False)
    codes, _ = pd.factorize(texts, sort=True)
    numbers[observed] = codes
    return ColumnOfNumbers(numbers, is_category=True)


def _parse_texts(texts: pd.Series) -> Floats | None:
    """Texts as numbers, or dates as days; None unless all are numbers, or all dates."""
    import pandas as pd

    number_format = infer_number_format(texts.to_numpy())
    if number_format is not None:
        numbers = number_format.parse(texts.to_numpy())
    elif texts.str.match(DATE_PATTERN).all():
        dates = pd.to_datetime(
            texts,
            errors="coerce",
            format="mixed",
            dayfirst=_is_day_first(texts),
            utc=True,
        )
        if dates.isna().any():
            return None
        numbers = _days(dates)
    else:
        return None
    if np.isnan(numbers).any():
        return None
    return numbers


def _is_day_first(texts: pd.Series) -> bool:
    """Whether the day stands before the month in dates that do not begin with a year.

    It does in 17.05.2024 and 17-05-2024. With slashes, as in 05/17/2024, the month is
    first unless some first number is above 12.
    """
    first_numbers = texts.str.extract(r"^(\d+)", expand=False)
    if (first_numbers.str.len() > 2).any():
        return False
    if texts.str.contains("/").any():
        return bool((first_numbers.astype(int) > 12).any())
    return True


def _days(times: pd.Series) -> Floats:
    """Dates or durations as days."""
    unit = np.timedelta64(1, times.dt.unit) / np.timedelta64(1, "D")
    return np.asarray(times.astype("int64") * unit)


def as_points(rows: Floats, is_categorical: Sequence[bool], train: Floats) -> Floats:
    """Rows (n, c) as points (n, a), between which distances are measured.

    Units and axes are those of the training rows (N, c); `is_categorical` says which of
    the c columns hold codes.

    Another category and one standard deviation of a number both are a distance of 1. A
    missing cell has an axis of its own. Categories with codes above those of the
    training rows share one more axis: they are as far from each known category.
    """
    axes = []
    for c, is_category in enumerate(is_categorical):
        column = rows[:, c]
        is_missing = np.isnan(column)[:, None]
        known = train[~np.isnan(train[:, c]), c]
        if is_category:
            axes.append(_category_axes(column, known))
            axes.append(is_missing / np.sqrt(2))
        else:
            if len(known):
                unit = known.std() or 1.0
                scaled = (column - np.median(known)) / unit
                axes.append(np.where(is_missing, 0.0, scaled[:, None]))
            axes.append(is_missing / 1.0)
    return np.hstack(axes)


def _category_axes(codes: Floats, known: Floats) -> Floats:
    """Codes (n,) one-hot, over √2: two categories are at a distance of 1; NaN is 0."""
    is_missing = np.isnan(codes)
    last = min(int(known.max(initial=-1)) + 1, MAX_CATEGORIES - 1)
    codes = np.where(is_missing, 0, codes).clip(max=last).astype(int)
    one_hot = np.eye(last + 1)[codes] / np.sqrt(2)
    return np.where(is_missing[:, None], 0.0, one_hot)


def choose_target(target: Hashable | None, names: Sequence[str], rows: Floats) -> str:
    """The column to predict: the user's, or the last of rows (n, c) that varies."""
    if target is not None:
        name = str(target)
        wanted = f"the name of a column: {', '.join(names)}"
        require(name in names, "y", name, wanted)
        return name
    for name, column in zip(reversed(names), rows.T[::-1], strict=True):
        if np.nanstd(column) > 0:
            return name
    return names[-1]
