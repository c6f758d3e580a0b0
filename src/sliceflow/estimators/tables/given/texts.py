"""Texts that users type for `TableFlow.sample(given=…)`: values, lists and ranges."""

from __future__ import annotations

import re

import numpy as np

from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import DateFormat
from sliceflow.estimators.tables.given.read_given import ValueRange, find_value
from sliceflow.number_formats import PLAIN_NUMBER, NumberFormat

# A bound such as ">= 100": its relation, and the value after it.
_BOUND = re.compile(r"(?P<relation><=|>=|<|>)\s*(?P<value>.+)")
_ISO_DATES = DateFormat("%Y-%m-%dT%H:%M:%S")


def parse_given_text(column: Column, text: str) -> object:
    """What a text stands for in `given`: a value, a list, a range, or None.

    A text that is a value of the column stands for it, even if it looks like a range.
    """
    text = text.strip()
    if not text:
        return None
    is_level = text in column.levels.astype(str).tolist()
    if is_level:
        return _value(column, text)
    bound = _BOUND.fullmatch(text)
    if bound and column.is_quantitative:
        return _range(bound["relation"], _value(column, bound["value"]))
    if ".." in text and column.is_quantitative:
        low, high = text.split("..", 1)
        return _value(column, low), _value(column, high)
    if "|" in text:
        return [_value(column, part) for part in text.split("|")]
    return _value(column, text)


def _range(relation: str, value: object) -> ValueRange:
    """The range of all that has this relation to a value."""
    is_included = relation.endswith("=")
    if relation.startswith(">"):
        return ValueRange(low=value, with_low=is_included)
    return ValueRange(high=value, with_high=is_included)


def _value(column: Column, text: str) -> object:
    """What a text stands for in a column, as an object of Python or pandas."""
    written = _written_like(column, text.strip())
    return find_value(column, written).cell.tolist()[0]


def _written_like(column: Column, text: str) -> str:
    """An ISO date or a plain number, written as the texts of the column are.

    A text that is written as the column's texts already is unchanged, and so is a text
    that is no date or number.
    """
    text_format = column.text_format
    if isinstance(text_format, DateFormat) and np.isnat(text_format.parse([text])[0]):
        time = _ISO_DATES.parse([text])
        if not np.isnat(time[0]):
            return text_format.write(time)[0]
    if isinstance(text_format, NumberFormat):
        is_foreign = bool(np.isnan(text_format.parse([text])[0]))
        if is_foreign and re.fullmatch(PLAIN_NUMBER, text):
            return text_format.write(np.array([float(text)]))[0]
    return text
