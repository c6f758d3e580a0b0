"""A DataFrame as a model stores it: the levels of each column, a code for each cell.

The levels of a column are its different values. The code of a cell is the index of its
level, or −1 if the cell is missing. The column ``["b", "a", None, "b"]`` has the levels
``["a", "b"]`` and the codes ``[1, 0, -1, 1]``. Levels keep pandas' own types, so a
column comes back exactly as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.dataframes import column_kind
from sliceflow.errors import DataError
from sliceflow.estimators.tables.rows.stored_levels import (
    OBJECT_TYPES,
    PANDAS_ERRORS,
    VALUE_TYPES,
    Categorical,
    LevelValues,
    ValueType,
    check_levels,
    store_levels,
    to_python_type,
    value_of_label,
)
from sliceflow.saved_types import ArraySpec, Label

if TYPE_CHECKING:
    import pandas as pd

_Codes = Annotated[np.ndarray, ArraySpec("n", "int64", ge=-1, n_difference_axes=1)]


def require_pandas() -> None:
    """Raise an ImportError that says how to install pandas, unless it is there."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "tables need pandas: pip install 'sliceflow[tables]'"
        ) from error


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column: its levels, which are its different values, and the code of each cell.

    Levels are stored as `values` if they are numbers, booleans or times, else as
    `labels`. A Decimal or a date is the label (name of its type, its text).
    """

    name: Label
    dtype: str  # of the levels, as pandas writes it
    codes: _Codes  # (n,), the level of every cell; −1 where it is missing
    # (k,), ascending; times are counted in the unit of their dtype since 1970 in UTC
    values: LevelValues = field(default_factory=lambda: np.empty(0))
    labels: tuple[Label, ...] = ()
    # The kind of pandas' categories, empty for other columns. Only levels of categories
    # may have no cell.
    categorical: Categorical = ""

    def check_saved(self) -> None:
        """Raise a ValueError if the column cannot have been written by `encode_column`.

        A damaged file may hold anything. Levels of a sound one are stored again as
        they were.
        """
        try:
            check_levels(self.levels, self.categorical)
            stored = store_levels(self.levels)
        except PANDAS_ERRORS as error:
            raise ValueError(
                f"column {self.name!r} has levels that are not {self.dtype}"
            ) from error
        has_same_labels = stored.labels == self.labels
        has_same_values = np.array_equal(stored.values, self.values)
        highest_code = int(self.codes.max(initial=-1))
        if (
            not has_same_labels
            or not has_same_values
            or highest_code >= len(self.levels)
        ):
            raise ValueError(f"column {self.name!r} has a cell with an unknown level")

    @cached_property
    def levels(self) -> pd.Series:
        """The levels (k,), as a Series."""
        require_pandas()
        import pandas as pd

        dtype = pd.api.types.pandas_dtype(self.dtype)
        if len(self.values):
            return pd.Series(self.values).astype(dtype)
        objects = [value_of_label(label) for label in self.labels]
        return pd.Series(objects, dtype=object).astype(dtype)

    @cached_property
    def value_type(self) -> ValueType:
        """The type of the levels, such as "float"."""
        kind = column_kind(self.levels)
        if kind in VALUE_TYPES:
            return VALUE_TYPES[kind]
        if self.dtype != "object" or not len(self.levels):
            return "str"
        types = {type(value) for value in self.levels}
        if len(types) > 1:
            return "float"  # integers and floats, the only types that may be mixed
        return OBJECT_TYPES[types.pop()]

    @property
    def is_missing(self) -> Mask:
        """Which cells (n,) are missing."""
        return np.asarray(self.codes < 0)

    @property
    def observed_codes(self) -> Ints:
        """The codes (m,) of the m cells that are not missing."""
        return np.asarray(self.codes[self.codes >= 0])

    def to_series(self, codes: Ints) -> pd.Series:
        """A column of the user's dtype, with cells of these codes (m,)."""
        import pandas as pd

        if self.categorical:
            categories = pd.Categorical.from_codes(
                codes, pd.Index(self.levels), ordered=self.categorical == "ordered"
            )
            return pd.Series(categories)
        if self.dtype == "object":
            # The code −1 is the last value, None. pandas would make NaN of it.
            values = np.array([*self.levels, None], dtype=object)
            return pd.Series(values[codes], dtype=object)
        return self.levels.reindex(codes).reset_index(drop=True)

    def take(self, row_indices: Ints) -> EncodedColumn:
        """The rows with these indices (m,), without levels that have no cell left."""
        codes = self.codes[row_indices]
        is_kept = _has_cells(codes, len(self.levels))
        if self.categorical:  # categories that never had a cell stay
            is_kept |= ~_has_cells(self.codes, len(self.levels))
        new_code = np.append(np.cumsum(is_kept) - 1, -1)  # −1 stays −1
        stored = store_levels(self.levels[is_kept])
        return replace(
            self, codes=new_code[codes], values=stored.values, labels=stored.labels
        )

    def keys(self) -> list[Hashable]:
        """The value of every cell; None where it is missing."""
        values = [*self.levels.tolist(), None]
        return [values[code] for code in self.codes.tolist()]


def _has_cells(codes: Ints, n_levels: int) -> Mask:
    """Whether each of k levels has a cell: (k,)."""
    return np.bincount(codes[codes >= 0], minlength=n_levels) > 0


def encode_column(column: pd.Series, name: Label) -> EncodedColumn:
    """The levels and codes of a column of a DataFrame."""
    import pandas as pd

    kind = column_kind(column)
    if str(column.dtype).startswith("Sparse"):
        hint = "make it dense: .sparse.to_dense()"
        raise DataError(f"it has dtype {column.dtype}", hint, column=name)
    if kind == "object":
        codes, levels = _factorize_objects(column, name)
        return _encode_levels(name, codes, levels)
    if kind == "float":
        _check_finite(column, name)
    try:
        if kind == "category":
            return _encode_categories(column, name)
        codes, distinct = pd.factorize(column, sort=True)
        levels = pd.Series(distinct)
        if column.dtype == np.float16:  # `factorize` makes float32 of it
            levels = levels.astype(np.float16)
        return _encode_levels(name, codes.astype(np.int64), levels)
    except PANDAS_ERRORS as error:
        hint = "convert it by .astype(str), for example, or drop it"
        if str(column.dtype).startswith("period"):
            hint = "convert it by .dt.to_timestamp(), or drop it"
        raise DataError(
            f"tables do not support the dtype {column.dtype}", hint, column=name
        ) from error


def _encode_categories(column: pd.Series, name: Label) -> EncodedColumn:
    """The column of pandas' categories, which are its levels, in their order."""
    import pandas as pd

    categorical: Categorical = "unordered"
    if column.cat.ordered:
        categorical = "ordered"
    levels = pd.Series(column.cat.categories)
    codes = column.cat.codes.to_numpy().astype(np.int64)
    return _encode_levels(name, codes, levels, categorical)


def _check_finite(column: pd.Series, name: Label) -> None:
    """Raise a `DataError` for the first infinite number."""
    is_infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
    if is_infinite.any():
        row = int(np.flatnonzero(is_infinite)[0])
        raise DataError(
            f"the value is {column.iloc[row]:g}",
            "replace infinities, or make them missing",
            row,
            name,
        )


def _encode_levels(
    name: Label, codes: Ints, levels: pd.Series, categorical: Categorical = ""
) -> EncodedColumn:
    """The column with these levels; an error of pandas if a file cannot hold them."""
    check_levels(levels, categorical)
    stored = store_levels(levels)
    return EncodedColumn(
        name, str(levels.dtype), codes, stored.values, stored.labels, categorical
    )


def _factorize_objects(column: pd.Series, name: Label) -> tuple[Ints, pd.Series]:
    """Codes (n,) and levels (k,) of Python objects, which must be of one type."""
    import pandas as pd

    observed = np.flatnonzero(column.notna())  # the indices of rows that have a value
    values = [to_python_type(value) for value in column.to_numpy()[observed].tolist()]
    _check_objects(values, observed, name)
    # Levels are told apart by their texts: the Decimals 1.10 and 1.1 are two of them.
    texts = [repr(value) for value in values]
    value_of_text = dict(zip(texts, values, strict=True))
    sorted_texts = sorted(value_of_text, key=lambda text: (value_of_text[text], text))
    code_of_text = {text: code for code, text in enumerate(sorted_texts)}
    codes = np.full(len(column), -1, dtype=np.int64)
    codes[observed] = [code_of_text[text] for text in texts]
    levels = [value_of_text[text] for text in sorted_texts]
    return codes, pd.Series(levels, dtype=object)


def _is_unicode(text: str) -> bool:
    """Whether a text can be written to a file: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_objects(values: Sequence[object], row_indices: Ints, name: Label) -> None:
    """Raise a `DataError` for the first value that does not have the column's type.

    The column's type is the type of most values; integers and floats may be mixed.
    """
    counts = Counter(type(value) for value in values)
    if set(counts) == {int, float}:
        allowed = {int, float}
    else:
        allowed = {value_type for value_type, _ in counts.most_common(1)}
    hint = "convert the column to one type of texts, numbers, dates or booleans, or "
    hint += "drop it"
    for row, value in zip(row_indices.tolist(), values, strict=True):
        fact = f"the cell holds {value!r}, a {type(value).__name__}"
        if type(value) not in allowed:
            most_common_type = counts.most_common(1)[0][0].__name__
            raise DataError(f"{fact}, but most are {most_common_type}", hint, row, name)
        if type(value) not in OBJECT_TYPES:
            raise DataError(f"{fact}, which no column can have", hint, row, name)
        if isinstance(value, str) and not _is_unicode(value):
            hint = "decode the text again, with its encoding"
            raise DataError(f"{fact} that is not Unicode", hint, row, name)
        if isinstance(value, Decimal) and not value.is_finite():
            raise DataError(f"the cell holds {value}", "make it missing", row, name)
