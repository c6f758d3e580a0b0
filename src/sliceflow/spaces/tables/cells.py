"""A DataFrame as a model stores it: the levels of each column, a code for each cell.

The levels of a column are its different values. The code of a cell is the index of its
level, or −1 if the cell is missing. The column ``["b", "a", None, "b"]`` has the levels
``["a", "b"]`` and the codes ``[1, 0, -1, 1]``. Levels keep pandas' own types, so a
column comes back exactly as it was.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch

from sliceflow.arrays import Ints, Mask
from sliceflow.dataframes import column_kind
from sliceflow.errors import DataError
from sliceflow.models.ranks import Ranks
from sliceflow.saved_types import ArraySpec, Label
from sliceflow.validation import duplicates

if TYPE_CHECKING:
    import pandas as pd

_Codes = Annotated[np.ndarray, ArraySpec("n", torch.int64, ge=-1, differences=1)]
_Values = Annotated[
    np.ndarray, ArraySpec("k", (torch.int64, torch.uint64, torch.float64))
]
_Categorical = Literal["", "unordered", "ordered"]

# What the values of a column are. Kinds that are not here hold Python objects or texts.
ValueType = Literal[
    "bool", "int", "float", "str", "Decimal", "date", "datetime", "timedelta"
]
_VALUE_TYPES: dict[str, ValueType] = {
    "boolean": "bool",
    "integer": "int",
    "float": "float",
    "datetime": "datetime",
    "timedelta": "timedelta",
}

# Types of Python objects that a file stores as texts, and what reads these again.
_STORED_AS_TEXT: dict[str, Callable[[str], Any]] = {
    "Decimal": Decimal,
    "date": date.fromisoformat,
}
# What makes a number or date of a user's text, by the name of its type.
OBJECT_OF_TEXT: dict[str, Callable[[str], Any]] = {
    **_STORED_AS_TEXT,
    "int": int,
    "float": float,
}
# Types of Python objects that a column may have.
_OBJECT_TYPES: dict[type, ValueType] = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    Decimal: "Decimal",
    date: "date",
}

# What pandas and numpy raise for values or dtypes that do not fit together. numpy
# evaluates some names of dtypes as Python, hence the SyntaxError.
_PANDAS_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NotImplementedError,
    SyntaxError,
)
# Names that a message lists: with so few, most messages fit in a line.
_MAX_NAMES_LISTED = 6


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
    """One column: its different values, the levels, and the code of each cell.

    Levels are stored as `values` if they are numbers, booleans or times, else as
    `labels`. A Decimal or a date is the label (name of its type, its text).
    """

    name: Label
    dtype: str  # of the levels, as pandas writes it
    codes: _Codes  # (n,), the level of every cell; −1 where it is missing
    # (k,), ascending; times are counted in the unit of their dtype since 1970 in UTC
    values: _Values = field(default_factory=lambda: np.empty(0))
    labels: tuple[Label, ...] = ()
    # Of what kind pandas' categories are; empty for other columns. Only levels of
    # categories may have no cell.
    categorical: _Categorical = ""

    def check_saved(self) -> None:
        """Raise a ValueError if the column cannot have been written by `encode_column`.

        A damaged file may hold anything. Levels of a sound one are stored again as
        they were.
        """
        try:
            _check_levels(self.levels, self.categorical)
            stored = _store_levels(self.levels)
        except _PANDAS_ERRORS as error:
            raise ValueError(
                f"column {self.name!r} has levels that are not {self.dtype}"
            ) from error
        same_labels = stored.labels == self.labels
        same_values = np.array_equal(stored.values, self.values)
        highest_code = int(self.codes.max(initial=-1))
        if not same_labels or not same_values or highest_code >= len(self.levels):
            raise ValueError(f"column {self.name!r} has a cell with an unknown level")

    @cached_property
    def levels(self) -> pd.Series:
        """(k,), the different values, as a Series."""
        require_pandas()
        import pandas as pd

        dtype = pd.api.types.pandas_dtype(self.dtype)
        if len(self.values):
            return pd.Series(self.values).astype(dtype)
        objects = [_value_of_label(label) for label in self.labels]
        return pd.Series(objects, dtype=object).astype(dtype)

    @cached_property
    def value_type(self) -> ValueType:
        """What the levels are."""
        kind = column_kind(self.levels)
        if kind in _VALUE_TYPES:
            return _VALUE_TYPES[kind]
        if self.dtype != "object" or not len(self.levels):
            return "str"
        types = {type(value) for value in self.levels}
        if len(types) > 1:
            return "float"  # integers and floats: no others may stand together
        return _OBJECT_TYPES[types.pop()]

    @property
    def missing(self) -> Mask:
        """(n,), which cells are missing."""
        return np.asarray(self.codes < 0)

    @property
    def present_codes(self) -> Ints:
        """(m,), the codes of the m cells that are not missing."""
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
        """The rows with these indices (m,). Levels that lose their last cell go."""
        codes = self.codes[row_indices]
        stays = _has_cells(codes, len(self.levels))
        if self.categorical:  # categories that never had a cell stay
            stays |= ~_has_cells(self.codes, len(self.levels))
        new_code = np.append(np.cumsum(stays) - 1, -1)  # −1 stays −1
        stored = _store_levels(self.levels[stays])
        return replace(
            self, codes=new_code[codes], values=stored.values, labels=stored.labels
        )

    def keys(self) -> list[Hashable]:
        """The value of every cell; None where it is missing."""
        values = [*self.levels.tolist(), None]
        return [values[code] for code in self.codes.tolist()]


def _has_cells(codes: Ints, n_levels: int) -> Mask:
    """(k,), whether each of k levels has a cell."""
    return np.bincount(codes[codes >= 0], minlength=n_levels) > 0


def _value_of_label(label: Any) -> Any:
    """The value that a label of a file stands for."""
    if isinstance(label, tuple):
        type_name, text = label
        return _STORED_AS_TEXT[type_name](text)
    return label


def _label_of_value(value: Any) -> Any:
    """The label that stands for a value in a file."""
    type_name = type(value).__name__
    if type_name in _STORED_AS_TEXT:
        return type_name, str(value)
    return value


@dataclass(frozen=True)
class TableRows:
    """The user's rows, column by column."""

    columns: tuple[EncodedColumn, ...]
    # The names of the levels of the header, as in `DataFrame.columns.names`: one, which
    # is mostly None, for plain column names, more for a header of several lines.
    header: tuple[Label, ...]
    n: int  # how many rows there are

    def check_saved(self) -> None:
        """Raise a ValueError if the parts do not fit together, as in a damaged file."""
        if any(len(column.codes) != self.n for column in self.columns):
            raise ValueError("columns have different lengths")
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("column names are not different")
        if any(self._n_header_levels(name) != len(self.header) for name in names):
            raise ValueError("column names do not fit their header")

    def _n_header_levels(self, name: Label) -> int:
        """How many levels of the header a column name has."""
        if len(self.header) > 1 and isinstance(name, tuple):
            return len(name)
        return 1

    def __len__(self) -> int:
        return self.n

    def append(self, others: TableRows) -> TableRows:
        """These rows, and others below them."""
        pairs = zip(self.columns, others.align_columns(self).columns, strict=True)
        columns = tuple(_concatenate(above, below) for above, below in pairs)
        return replace(self, columns=columns, n=self.n + others.n)

    def align_columns(self, known: TableRows) -> TableRows:
        """The same rows, with the columns in the order of `known`.

        A `DataError` names a column that is lacking or unknown.
        """
        by_name = {column.name: column for column in self.columns}
        names = [column.name for column in known.columns]
        for name in names:
            if name not in by_name:
                raise DataError(
                    f"the table lacks the column {name!r}",
                    f"the model has {format_names(names)}",
                )
        for name in by_name:
            if name not in names:
                raise DataError(
                    f"the model does not know the column {name!r} of the table",
                    "drop it",
                )
        columns = tuple(by_name[name] for name in names)
        return replace(self, columns=columns, header=known.header)

    def take(self, row_indices: Ints) -> TableRows:
        """The rows with these indices (m,)."""
        columns = tuple(column.take(row_indices) for column in self.columns)
        return replace(self, columns=columns, n=len(row_indices))

    def keys(self) -> Sequence[Hashable]:
        """Each row as a tuple of its values."""
        return list(zip(*(column.keys() for column in self.columns), strict=True))

    def in_users_form(
        self, device: torch.device | None = None
    ) -> tuple[pd.DataFrame, None]:
        """The rows as the user's DataFrame, and no y."""
        columns = [
            (column.name, column.to_series(column.codes)) for column in self.columns
        ]
        return make_dataframe(self, columns), None

    def digests(self, ranks: Ranks) -> dict[str, str]:
        """A hash of the rows, by which a model knows them again."""
        digest = hashlib.blake2b(digest_size=16)
        for column in self.columns:
            header = (column.name, column.dtype, column.labels, column.categorical)
            digest.update(repr(header).encode())
            digest.update(column.values.tobytes())
            digest.update(column.codes.tobytes())
        return {"X": digest.hexdigest()}


def make_dataframe(
    rows: TableRows, columns: Sequence[tuple[Any, pd.Series]]
) -> pd.DataFrame:
    """A DataFrame of (name, Series) pairs, with a header like that of `rows`."""
    import pandas as pd

    df = pd.DataFrame({i: series for i, (_, series) in enumerate(columns)})
    names = [name for name, _ in columns]
    if len(rows.header) > 1:
        df.columns = pd.MultiIndex.from_tuples(names, names=rows.header)
    else:
        df.columns = pd.Index(names, name=rows.header[0], tupleize_cols=False)
    return df


def convert_exactly(values: pd.Series, dtype: Any) -> pd.Series:
    """A Series with another dtype. A ValueError if that would change a value."""
    try:
        converted = values.astype(dtype)
        changed = values[(converted != values) & values.notna()]
    except _PANDAS_ERRORS as error:
        raise ValueError(f"{values.dtype} does not fit in {dtype}") from error
    if len(changed):
        raise ValueError(f"{changed.iloc[0]!r} does not fit in {dtype}")
    return converted


def _concatenate(above: EncodedColumn, below: EncodedColumn) -> EncodedColumn:
    """A column of a model, and new rows of it."""
    import pandas as pd

    old_cells = above.to_series(above.codes)
    new_cells = below.to_series(below.codes)
    try:
        if above.categorical:
            dtype = _with_new_categories(above, new_cells)
            old_cells = old_cells.astype(dtype)
            new_cells = new_cells.astype(dtype)
        new_cells = convert_exactly(new_cells, old_cells.dtype)
        return encode_column(
            pd.concat([old_cells, new_cells], ignore_index=True), above.name
        )
    except ValueError as error:
        raise DataError(
            f"new rows do not fit in the model's dtype {old_cells.dtype} ({error})",
            "convert one of them",
            column=above.name,
        ) from error


def _with_new_categories(
    column: EncodedColumn, new_cells: pd.Series
) -> pd.CategoricalDtype:
    """The categories of a column, and behind them those that only new cells have."""
    import pandas as pd

    values = convert_exactly(
        pd.Series(new_cells.dropna().unique()), column.levels.dtype
    )
    new_values = values[~values.isin(column.levels)].sort_values()
    categories = pd.Index(pd.concat([column.levels, new_values]))
    return pd.CategoricalDtype(categories, column.categorical == "ordered")


def format_names(names: Sequence[Any]) -> str:
    """The first names or values as text, and how many there are if not all fit."""
    text = ", ".join(str(name) for name in names[:_MAX_NAMES_LISTED])
    if len(names) <= _MAX_NAMES_LISTED:
        return text
    return f"{text}, … ({len(names)})"


def read_dataframe(df: Any) -> TableRows:
    """The rows of a DataFrame. An error names what cannot be used, and what to do."""
    require_pandas()
    import pandas as pd

    if not isinstance(df, pd.DataFrame):
        advice = "pass pandas.DataFrame(array)"
        if hasattr(df, "to_pandas"):
            advice = "pass frame.to_pandas()"
        type_name = type(df).__name__
        raise TypeError(
            f"a table is a pandas DataFrame or a path, not {type_name}; {advice}"
        )
    names = [_to_python_type(name) for name in df.columns.tolist()]
    if not names:
        raise DataError("the table has no columns")
    if not len(df):
        raise DataError("the table has no rows")
    # Constraints and files name columns by texts, so 1 and "1" are the same name.
    repeated = duplicates([str(name) for name in names])
    if repeated:
        raise DataError(
            f"two columns are named {repeated[0]}", "give each a name of its own"
        )
    columns = tuple(encode_column(df.iloc[:, i], name) for i, name in enumerate(names))
    header = tuple(_to_python_type(name) for name in df.columns.names)
    return TableRows(columns, header, len(df))


def _to_python_type(value: Any) -> Any:
    """A scalar of numpy as that of Python, in tuples as well; others are unchanged."""
    if isinstance(value, tuple):
        return tuple(_to_python_type(part) for part in value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def encode_column(column: pd.Series, name: Any) -> EncodedColumn:
    """The levels and codes of a column of a DataFrame."""
    import pandas as pd

    kind = column_kind(column)
    if kind == "object":
        codes, levels = _factorize_objects(column, name)
        return _encode_levels(name, codes, levels)
    if kind == "float":
        _refuse_infinities(column, name)
    try:
        if kind == "category":
            return _encode_categories(column, name)
        codes, distinct = pd.factorize(column, sort=True)
        return _encode_levels(name, codes.astype(np.int64), pd.Series(distinct))
    except _PANDAS_ERRORS as error:
        advice = "convert it by .astype(str), for example, or drop it"
        if str(column.dtype).startswith("period"):
            advice = "convert it by .dt.to_timestamp(), or drop it"
        raise DataError(
            f"tables do not support the dtype {column.dtype}", advice, column=name
        ) from error


def _encode_categories(column: pd.Series, name: Any) -> EncodedColumn:
    """A column of pandas' categories. These are its levels, in their order."""
    import pandas as pd

    categorical: _Categorical = "unordered"
    if column.cat.ordered:
        categorical = "ordered"
    levels = pd.Series(column.cat.categories)
    codes = column.cat.codes.to_numpy().astype(np.int64)
    return _encode_levels(name, codes, levels, categorical)


def _refuse_infinities(column: pd.Series, name: Any) -> None:
    """Raise a `DataError` for the first infinite number."""
    infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
    if infinite.any():
        row = int(np.flatnonzero(infinite)[0])
        raise DataError(
            f"the value is {column.iloc[row]:g}",
            "replace infinities, or make them missing",
            row,
            name,
        )


def _encode_levels(
    name: Any, codes: Ints, levels: pd.Series, categorical: _Categorical = ""
) -> EncodedColumn:
    """The column with these levels. An error of pandas if a file cannot hold them."""
    _check_levels(levels, categorical)
    stored = _store_levels(levels)
    return EncodedColumn(
        name, str(levels.dtype), codes, stored.values, stored.labels, categorical
    )


def _check_levels(levels: pd.Series, categorical: _Categorical) -> None:
    """Raise an error of pandas, or a ValueError, if a file cannot hold the levels."""
    import pandas as pd

    dtype = str(levels.dtype)
    dtype_of_name = str(pd.Series([], dtype=dtype).dtype)
    if dtype_of_name != dtype or dtype == "float128":
        raise ValueError(f"{dtype} cannot be built again")
    kind = column_kind(levels)
    if len(levels) and kind == "datetime":
        _check_years(levels)
    if kind in _VALUE_TYPES:
        return
    types = {type(_to_python_type(level)) for level in levels.tolist()}
    if not types <= set(_OBJECT_TYPES):
        raise ValueError(f"levels of {dtype} are neither numbers, texts nor dates")
    # Only those of categories may have different types.
    if len(types) > 1 and types != {int, float} and not categorical:
        raise ValueError(f"levels of {dtype} have different types")


class _StoredLevels(NamedTuple):
    """Levels as a file holds them; one of the two is empty."""

    values: np.ndarray  # (k,), of int64, uint64 or float64
    labels: tuple[Label, ...]


def _store_levels(levels: pd.Series) -> _StoredLevels:
    """Levels (k,) as numbers if they are numbers, booleans or times, else as labels."""
    kind = column_kind(levels)
    if len(levels) == 0 or kind not in _VALUE_TYPES:
        objects = [_to_python_type(level) for level in levels.tolist()]
        labels = tuple(_label_of_value(value) for value in objects)
        return _StoredLevels(np.empty(0), labels)
    storage: Any = np.int64
    if kind == "float":
        storage = np.float64
    elif levels.dtype.kind == "u":
        storage = np.uint64
    values = levels.astype(storage).to_numpy() + storage(0)  # −0 becomes 0
    return _StoredLevels(values, ())


def _check_years(times: pd.Series) -> None:
    """Raise a ValueError for times that Python's datetime cannot hold.

    pandas itself counts on to larger years, and fails only when it writes them.
    """
    if times.min().year < 1 or times.max().year > 9999:
        raise ValueError("a year is not from 1 to 9999")


def _factorize_objects(column: pd.Series, name: Any) -> tuple[Ints, pd.Series]:
    """Codes (n,) and levels (k,) of Python objects, which must be of one type."""
    import pandas as pd

    present = np.flatnonzero(column.notna())  # the indices of rows that have a value
    values = [_to_python_type(value) for value in column.to_numpy()[present].tolist()]
    _check_objects(values, present, name)
    # Levels are told apart by their texts: the Decimals 1.10 and 1.1 are two of them.
    texts = [repr(value) for value in values]
    value_of_text = dict(zip(texts, values, strict=True))
    sorted_texts = sorted(value_of_text, key=lambda text: (value_of_text[text], text))
    code_of_text = {text: code for code, text in enumerate(sorted_texts)}
    codes = np.full(len(column), -1, dtype=np.int64)
    codes[present] = [code_of_text[text] for text in texts]
    levels = [value_of_text[text] for text in sorted_texts]
    return codes, pd.Series(levels, dtype=object)


def _check_objects(values: list[Any], row_indices: Ints, name: Any) -> None:
    """Raise a `DataError` for the first value that does not have the column's type.

    The type is that of most values; integers and floats may stand together.
    """
    counts = Counter(type(value) for value in values)
    if set(counts) == {int, float}:
        allowed = {int, float}
    else:
        allowed = {value_type for value_type, _ in counts.most_common(1)}
    for row, value in zip(row_indices.tolist(), values, strict=True):
        if type(value) not in allowed or type(value) not in _OBJECT_TYPES:
            most_common_type = counts.most_common(1)[0][0].__name__
            raise DataError(
                f"the cell holds {value!r}, a {type(value).__name__}, but most are "
                f"{most_common_type}",
                "convert the column to one type of texts, numbers, dates or booleans, "
                "or drop it",
                row,
                name,
            )
        if isinstance(value, Decimal) and not value.is_finite():
            raise DataError(f"the cell holds {value}", "make it missing", row, name)
