"""Columns of a table that cannot be fitted: what is wrong, and which flags help.

Free text is left out, with a note. All other problems come in one report, with one
command that avoids them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sliceflow.cli.failures import CommandError, fact_in_file
from sliceflow.dataframes import column_kind
from sliceflow.errors import DataError
from sliceflow.number_formats import infer_number_format

if TYPE_CHECKING:
    import pandas as pd

# If a column of numbers or dates has more different texts that are none than this, they
# are no single mistakes: then the column is taken for categories.
_MAX_ODD_TEXTS = 3
# The report describes at most this many problems. The flags of the others are in the
# command.
_MAX_PROBLEMS_SHOWN = 8


class Problem(NamedTuple):
    """What is wrong with a column, and the flags with which it can be fitted."""

    fact: str
    flags: list[str]


def find_free_text(df: pd.DataFrame, kinds: Mapping[str, str]) -> list[str]:
    """The names of columns of free text, unless the user says what kind they are."""
    names = []
    for column_index, name in enumerate(df.columns):
        cells = df.iloc[:, column_index]
        if str(name) in kinds or column_kind(cells) not in ("object", "text"):
            continue
        if not _has_mostly_distinct_texts(cells):
            continue
        error = _error_of_column(df, column_index, None)
        if error is not None and "drop" in error.suggested_kinds:
            names.append(str(name))
    return names


def _has_mostly_distinct_texts(cells: pd.Series) -> bool:
    """Whether most texts of a column are different; a look is cheap."""
    return bool(2 * cells.nunique() > cells.notna().sum())


def note_free_text(name: str) -> str:
    """The note that a column of free text is left out."""
    flag = shlex.quote(f"{name}=category")
    return (
        f"column {name!r} is left out: it is free text, which a table cannot imitate "
        f"(--column {flag} keeps its texts as they are)"
    )


@contextmanager
def report_on_all_columns(df: pd.DataFrame, kinds: Mapping[str, str]) -> Iterator[None]:
    """Turn the error about one column into a report on all columns.

    `kinds` are the kinds of columns that flags say.
    """
    try:
        yield
    except DataError as error:
        problems = find_problems(df, kinds)
        if not problems:
            raise
        facts = [problem.fact for problem in problems]
        text = "; ".join(facts[:_MAX_PROBLEMS_SHOWN])
        if len(facts) > _MAX_PROBLEMS_SHOWN:
            text += f"; and {len(facts) - _MAX_PROBLEMS_SHOWN} more"
        if len(facts) > 1:
            text = f"{len(facts)} columns cannot be used: {text}"
        flags = [flag for problem in problems for flag in problem.flags]
        command = shlex.join(["sliceflow", *sys.argv[1:], *dict.fromkeys(flags)])
        raise CommandError(text, f"fix the cells, or run: {command}") from error


def find_problems(df: pd.DataFrame, kinds: Mapping[str, str]) -> list[Problem]:
    """What is wrong with each column, with the flags that avoid it."""
    problems = []
    for column_index, name in enumerate(df.columns):
        kind = kinds.get(str(name))
        error = _error_of_column(df, column_index, kind)
        if error is not None:
            flags = _helpful_flags(df.iloc[:, column_index], error)
            problems.append(Problem(fact_in_file(error), flags))
    return problems


def _error_of_column(
    df: pd.DataFrame, column_index: int, kind: str | None
) -> DataError | None:
    """Why a column cannot be used as this kind; None if it can be."""
    from sliceflow.estimators.tables.columns.infer import infer_column
    from sliceflow.estimators.tables.rows.encoded_columns import encode_column

    all_rows = np.arange(len(df))
    try:
        encoded = encode_column(df.iloc[:, column_index], df.columns[column_index])
        infer_column(encoded, all_rows, kind)
    except DataError as error:
        return error
    return None


def _helpful_flags(cells: pd.Series, error: DataError) -> list[str]:
    """The flags with which a column can be fitted: as few cells as can be are lost."""
    odd_texts = _odd_texts(cells)
    if 0 < len(odd_texts) <= _MAX_ODD_TEXTS:
        # Flag and text are one word, because a text may begin with a dash.
        return [f"--missing={text}" for text in odd_texts]
    for kind in reversed(error.suggested_kinds):
        if kind.startswith("datetime") and _is_readable_as(cells, kind):
            return [f"--column={error.column}={kind}"]
    if "category" in error.suggested_kinds:
        return [f"--column={error.column}=category"]
    return [f"--drop={error.column}"]


def _odd_texts(cells: pd.Series) -> list[str]:
    """The texts of a column of numbers, or of dates, that are none; sorted."""
    from sliceflow.estimators.tables.columns.formats import infer_date_formats

    texts = cells.dropna().astype(str)
    number_format = infer_number_format(texts.to_numpy(dtype=object))
    if number_format is not None:
        is_odd = np.isnan(number_format.parse(texts.tolist()))
        return sorted(set(texts[is_odd]))
    counts = texts.value_counts()
    # A date that is written as most are tells the format of all.
    for text in counts.index[: _MAX_ODD_TEXTS + 1]:
        date_formats = infer_date_formats([text])
        if len(date_formats) == 1:
            is_odd = np.isnat(date_formats[0].parse(texts))
            if is_odd.mean() < 1 / 2:
                return sorted(set(texts[is_odd]))
    return []


def _is_readable_as(cells: pd.Series, kind: str) -> bool:
    """Whether a kind such as "datetime:%d/%m/%Y" has a format that reads all texts."""
    from sliceflow.estimators.tables.columns.formats import DateFormat

    _, _, date_format = kind.partition(":")
    if not date_format:
        return False
    times = DateFormat(date_format).parse(cells.dropna().astype(str))
    return not bool(np.isnat(times).any())
