"""The levels of a column, its different values, as a file stores them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sliceflow.dataframes import column_kind
from sliceflow.saved_types import ArraySpec, Label

if TYPE_CHECKING:
    import pandas as pd

# The name of a column in the DataFrame: mostly a text, or a tuple of a longer header.
# Those of a saved column are labels.
ColumnName: TypeAlias = Hashable

LevelValues = Annotated[np.ndarray, ArraySpec("k", ("int64", "uint64", "float64"))]
# The kinds of pandas' categories; empty for other columns.
Categorical = Literal["", "unordered", "ordered"]

# The types that levels may have.
ValueType = Literal[
    "bool", "int", "float", "str", "Decimal", "date", "datetime", "timedelta"
]
# The types of values by kind of column. Other kinds hold Python objects or texts.
VALUE_TYPES: dict[str, ValueType] = {
    "boolean": "bool",
    "integer": "int",
    "float": "float",
    "datetime": "datetime",
    "timedelta": "timedelta",
}

# Types of Python objects that a file stores as texts, and functions that read these
# again.
_STORED_AS_TEXT: dict[str, Callable[[str], Decimal | date]] = {
    "Decimal": Decimal,
    "date": date.fromisoformat,
}
# Functions that turn a user's text into a number or date, by the name of its type.
OBJECT_OF_TEXT: dict[str, Callable[[str], Decimal | date | int | float]] = {
    **_STORED_AS_TEXT,
    "int": int,
    "float": float,
}
# Types of Python objects that a column may have.
OBJECT_TYPES: dict[type, ValueType] = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    Decimal: "Decimal",
    date: "date",
}

# Errors that pandas and numpy raise for values or dtypes that do not fit together.
# numpy evaluates some names of dtypes as Python, hence the SyntaxError.
PANDAS_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NotImplementedError,
    SyntaxError,
)


class StoredLevels(NamedTuple):
    """Levels as a file holds them, as `values` or `labels`; the other is empty."""

    values: NDArray[Any]  # (k,), of int64, uint64 or float64
    labels: tuple[Label, ...]


def store_levels(levels: pd.Series) -> StoredLevels:
    """Levels (k,) as numbers if they are numbers, booleans or times, else as labels."""
    kind = column_kind(levels)
    if len(levels) == 0 or kind not in VALUE_TYPES:
        objects = [to_python_type(level) for level in levels.tolist()]
        labels = tuple(label_of_value(value) for value in objects)
        return StoredLevels(np.empty(0), labels)
    storage: type[np.int64 | np.uint64 | np.float64] = np.int64
    if kind == "float":
        storage = np.float64
    elif levels.dtype.kind == "u":
        storage = np.uint64
    values = levels.astype(storage).to_numpy() + storage(0)  # −0 becomes 0
    return StoredLevels(values, ())


def value_of_label(label: Label) -> object:
    """The value that a label of a file stands for."""
    if isinstance(label, tuple):
        type_name, text = label
        return _STORED_AS_TEXT[type_name](text)
    return label


def label_of_value(value: Any) -> Any:
    """The label that stands for a value in a file."""
    type_name = type(value).__name__
    if type_name in _STORED_AS_TEXT:
        return type_name, str(value)
    return value


def to_python_type(value: Any) -> Any:
    """A scalar of numpy as a Python scalar, also in tuples; others are unchanged."""
    if isinstance(value, tuple):
        return tuple(to_python_type(part) for part in value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def check_levels(levels: pd.Series, categorical: Categorical) -> None:
    """Raise an error of pandas, or a ValueError, if a file cannot hold the levels."""
    import pandas as pd

    dtype = str(levels.dtype)
    dtype_of_name = str(pd.Series([], dtype=dtype).dtype)
    if dtype_of_name != dtype or dtype == "float128":
        raise ValueError(f"{dtype} cannot be built again")
    kind = column_kind(levels)
    if len(levels) and kind == "datetime":
        _check_years(levels)
    if kind in VALUE_TYPES:
        return
    types = {type(to_python_type(level)) for level in levels.tolist()}
    if not types <= set(OBJECT_TYPES):
        raise ValueError(f"levels of {dtype} are neither numbers, texts nor dates")
    # Only the levels of categories may have different types.
    if len(types) > 1 and types != {int, float} and not categorical:
        raise ValueError(f"levels of {dtype} have different types")


def _check_years(times: pd.Series) -> None:
    """Raise a ValueError for times that Python's datetime cannot hold.

    pandas itself counts on to larger years, and fails only when it writes them.
    """
    if times.min().year < 1 or times.max().year > 9999:
        raise ValueError("a year is not from 1 to 9999")
