"""The cells of a DataFrame as a model keeps them: the levels of each column, and the level of each cell.

Levels are the different values of a column, in pandas' own types, and come back as they were.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Literal

import numpy as np
import torch

from sliceflow.errors import doubled
from sliceflow.fields import Array, Label
from sliceflow.models.ranks import Ranks

_Codes = Annotated[np.ndarray, Array("n", torch.int64, ge=-1, packed="delta")]
_Numbers = Annotated[np.ndarray, Array("k", (torch.int64, torch.uint64, torch.float64))]
_FORMS = {
    "b": "bool",
    "i": "int",
    "u": "int",
    "f": "float",
    "M": "datetime",
    "m": "timedelta",
}
TEXT_TYPES: dict[str, Any] = {
    "Decimal": Decimal,
    "date": date.fromisoformat,
}  # types kept as texts
MAKE = TEXT_TYPES | {
    "int": int,
    "float": float,
    "bool": bool,
}  # Python's objects of texts
_WRONG: Any = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NotImplementedError,
)
_WRONG += (SyntaxError,)  # numpy reads some names of dtypes as Python's


def pandas() -> Any:
    """The module; an ImportError says how to install it."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "tables need pandas: pip install 'sliceflow[tables]'"
        ) from error


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """One column. Levels that are no numbers are labels; Decimals and dates with the name of their type."""

    name: Label
    dtype: str  # of the levels, as pandas writes it
    codes: _Codes  # the level of every cell; −1 where it is missing
    numbers: _Numbers = field(
        default_factory=lambda: np.empty(0)
    )  # ascending; of times, ticks in UTC
    labels: tuple[Label, ...] = ()
    categorical: Literal["", "unordered", "ordered"] = (
        ""  # if not empty, levels may have no cell
    )

    def check(self) -> None:
        try:
            again = _cells(self.name, self.codes, self.levels, self.categorical)
            same = again.labels == self.labels and np.array_equal(
                again.numbers, self.numbers
            )
        except _WRONG as error:
            raise ValueError(
                f"column {self.name!r} has levels that are not {self.dtype}"
            ) from error
        if not same or int(self.codes.max(initial=-1)) >= len(self.levels):
            raise ValueError(f"column {self.name!r} has a cell with an unknown level")

    @cached_property
    def levels(self) -> Any:
        """A Series."""
        if len(self.numbers):
            return pandas().Series(self.numbers).astype(self.dtype)
        values = [
            TEXT_TYPES[v[0]](v[1]) if isinstance(v, tuple) else v for v in self.labels
        ]
        return pandas().Series(values, dtype=object).astype(self.dtype)

    @cached_property
    def form(self) -> str:
        """What the levels are: bool, int, float, str, Decimal, date, datetime or timedelta."""
        if (kind := self.levels.dtype.kind) in _FORMS:
            return _FORMS[kind]
        found = (
            {type(v).__name__ for v in self.levels}
            if self.dtype == "object"
            else {"str"}
        )
        return found.pop() if len(found) == 1 else "float" if found else "str"

    @property
    def missing(self) -> np.ndarray:
        return np.asarray(self.codes < 0)

    def series(self, codes: np.ndarray) -> Any:
        """A column with these levels; −1 is a missing cell."""
        pd = pandas()
        if self.categorical:
            ordered = self.categorical == "ordered"
            return pd.Series(
                pd.Categorical.from_codes(codes, pd.Index(self.levels), ordered=ordered)
            )
        if self.dtype == "object":
            return pd.Series(
                np.array([*self.levels, None], dtype=object)[codes], dtype=object
            )
        return self.levels.reindex(codes).reset_index(drop=True)

    def take(self, rows: np.ndarray) -> EncodedColumn:
        """Some rows; levels that lose their last one go."""
        codes = self.codes[rows]
        k = len(self.levels)
        before, now = (
            np.bincount(c[c >= 0], minlength=k) > 0 for c in (self.codes, codes)
        )
        kept = now | ~before if self.categorical else now
        number = np.append(np.cumsum(kept) - 1, -1)
        return _cells(self.name, number[codes], self.levels[kept], self.categorical)

    def keys(self) -> list[Hashable]:
        """The value of every cell; None where it is missing."""
        values = [*self.levels.tolist(), None]
        return [values[c] for c in self.codes.tolist()]


@dataclass(frozen=True)
class TableRows:
    """The user's rows: columns, the names of the levels of their names (one for plain names), and how many."""

    cells: tuple[EncodedColumn, ...]
    header: tuple[Label, ...]
    n: int

    def check(self) -> None:
        if any(len(of.codes) != self.n for of in self.cells):
            raise ValueError("columns have different lengths")
        names = [of.name for of in self.cells]
        if len(set(names)) < len(names) or not names:
            raise ValueError("column names are not different")
        parts = {
            len(name) if len(self.header) > 1 and isinstance(name, tuple) else 1
            for name in names
        }
        if parts != {len(self.header)}:
            raise ValueError("column names do not fit their header")

    def __len__(self) -> int:
        return self.n

    def append(self, others: TableRows) -> TableRows:
        both = zip(self.cells, others.like(self).cells, strict=True)
        return replace(
            self, cells=tuple(_joined(a, b) for a, b in both), n=self.n + others.n
        )

    def like(self, known: TableRows) -> TableRows:
        """The columns in the order of other rows. A ValueError names one too many or too few."""
        found = {of.name: of for of in self.cells}
        names = [of.name for of in known.cells]
        if lacking := [name for name in names if name not in found]:
            raise ValueError(
                f"the table lacks the column {lacking[0]!r}; the model has {shown(names)}"
            )
        if more := [name for name in found if name not in names]:
            raise ValueError(
                f"the model does not know the column {more[0]!r} of the table; drop it"
            )
        return replace(
            self, cells=tuple(found[name] for name in names), header=known.header
        )

    def take(self, numbers: np.ndarray) -> TableRows:
        return replace(
            self, cells=tuple(of.take(numbers) for of in self.cells), n=len(numbers)
        )

    def keys(self) -> Sequence[Hashable]:
        return list(zip(*(of.keys() for of in self.cells), strict=True))

    def in_users_form(self, device: Any = None) -> tuple[Any, None]:
        return make_frame(
            self, [(of.name, of.series(of.codes)) for of in self.cells]
        ), None

    def digests(self, ranks: Ranks) -> dict[str, str]:
        out = hashlib.blake2b(digest_size=16)
        for of in self.cells:
            out.update(repr((of.name, of.dtype, of.labels, of.categorical)).encode())
            out.update(of.numbers.tobytes() + of.codes.tobytes())
        return {"X": out.hexdigest()}


def make_frame(rows: TableRows, columns: Sequence[tuple[Any, Any]]) -> Any:
    """A DataFrame of named columns, whose names are like those of `rows`."""
    pd = pandas()
    frame = pd.DataFrame({i: series for i, (_, series) in enumerate(columns)})
    names = [name for name, _ in columns]
    if len(rows.header) > 1:
        frame.columns = pd.MultiIndex.from_tuples(names, names=rows.header)
    else:
        frame.columns = pd.Index(names, name=rows.header[0], tupleize_cols=False)
    return frame


def convert(values: Any, dtype: Any) -> Any:
    """A Series with another dtype. A ValueError if that would change a value."""
    try:
        out = values.astype(dtype)
        changed = values[(out != values) & values.notna()]
    except _WRONG as error:
        raise ValueError(f"{values.dtype} does not fit in {dtype}") from error
    if len(changed):
        raise ValueError(f"{changed.iloc[0]!r} does not fit in {dtype}")
    return out


def _joined(first: EncodedColumn, second: EncodedColumn) -> EncodedColumn:
    pd = pandas()
    a = first.series(first.codes)
    b = second.series(second.codes)
    try:
        if first.categorical:  # new categories come last
            new = convert(pd.Series(b.dropna().unique()), first.levels.dtype)
            both = pd.concat([first.levels, new[~new.isin(first.levels)].sort_values()])
            dtype = pd.CategoricalDtype(pd.Index(both), first.categorical == "ordered")
            a = a.astype(dtype)
            b = b.astype(dtype)
        return read_cells(
            pd.concat([a, convert(b, a.dtype)], ignore_index=True), first.name
        )
    except ValueError as error:
        fact = f"column {first.name!r} has dtype {a.dtype} in the model, and new rows do not fit in it"
        raise ValueError(f"{fact} ({error}); convert one of them") from error


def shown(labels: Sequence[Any]) -> str:
    """The first labels as text, and how many there are."""
    text = ", ".join(str(label) for label in labels[:6])
    return text if len(labels) <= 6 else f"{text}, … ({len(labels)})"


def read_frame(frame: Any) -> TableRows:
    """The rows of a DataFrame. A ValueError names what cannot be used, and what to do."""
    if not isinstance(frame, pandas().DataFrame):
        cure = (
            "frame.to_pandas()"
            if hasattr(frame, "to_pandas")
            else "pandas.DataFrame(array)"
        )
        fact = f"a table is a pandas DataFrame or a path, not {type(frame).__name__}"
        raise TypeError(f"{fact}; pass {cure}")
    names = [_plain(name) for name in frame.columns.tolist()]
    if not names or not len(frame):
        raise ValueError(f"the table has no {'rows' if names else 'columns'}")
    if twice := doubled(
        [*map(str, names)]
    ):  # constraints and files name columns by texts
        raise ValueError(
            f"two columns are named {twice[0]}; give each a name of its own"
        )
    cells = tuple(read_cells(frame.iloc[:, i], name) for i, name in enumerate(names))
    return TableRows(
        cells, tuple(_plain(level) for level in frame.columns.names), len(frame)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def read_cells(column: Any, name: Any) -> EncodedColumn:
    """One column of a DataFrame."""
    pd = pandas()
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy(np.int64)
        levels = pd.Series(dtype.categories)
        return _cells(name, codes, levels, "ordered" if dtype.ordered else "unordered")
    if dtype == np.dtype(object):
        return _cells(name, *_objects(column, name))
    if (
        dtype.kind == "f"
        and (bad := np.isinf(column.to_numpy(np.float64, na_value=np.nan))).any()
    ):
        row = int(np.flatnonzero(bad)[0])
        fact = f"column {name!r} is {column.iloc[row]:g} in row {row}"
        raise ValueError(f"{fact}; replace infinities, or make them missing")
    try:
        codes, levels = pd.factorize(column, sort=True)
        return _cells(name, codes.astype(np.int64), pd.Series(levels))
    except _WRONG as error:
        cure = (
            ".dt.to_timestamp()"
            if str(dtype).startswith("period")
            else ".astype(str), for example"
        )
        fact = f"column {name!r} has dtype {dtype}, which tables do not support"
        raise ValueError(f"{fact}; convert it by {cure}, or drop it") from error


def _cells(
    name: Any, codes: np.ndarray, levels: Any, categorical: Any = ""
) -> EncodedColumn:
    pd = pandas()
    dtype = str(levels.dtype)
    kind = levels.dtype.kind
    if str(pd.Series([], dtype=dtype).dtype) != dtype or dtype == "float128":
        raise ValueError(f"{dtype} cannot be built again")
    if len(levels) and kind == "M":
        levels.agg(["min", "max"]).map(str)  # an error outside the years 1 to 9999
    if len(levels) and kind in _FORMS:
        kept = {"u": np.uint64, "f": np.float64}.get(kind, np.int64)
        numbers = levels.astype(kept).to_numpy() + kept(0)  # −0 is 0
        return EncodedColumn(name, dtype, codes, numbers, categorical=categorical)
    values = [_plain(v) for v in levels.tolist()]
    named = (type(v).__name__ for v in values)
    labels: Any = tuple(
        (t, str(v)) if t in TEXT_TYPES else v
        for t, v in zip(named, values, strict=True)
    )
    if any(type(v) not in (str, int, float, bool, tuple) for v in labels):
        raise ValueError(f"levels of {dtype} are neither numbers nor texts")
    return EncodedColumn(name, dtype, codes, labels=labels, categorical=categorical)


def _objects(column: Any, name: Any) -> tuple[np.ndarray, Any]:
    """Codes and levels of Python objects: all texts, numbers, Decimals, dates or booleans."""
    present = np.flatnonzero(column.notna())
    values = [_plain(v) for v in column.to_numpy()[present].tolist()]
    found = Counter(type(v) for v in values).most_common()
    most = (
        {int, float}
        if {*dict(found)} == {int, float}
        else {kind for kind, _ in found[:1]}
    )
    for row, v in zip(present, values, strict=True):
        if type(v) not in most & {str, int, float, bool, Decimal, date}:
            fact = f"column {name!r} holds {v!r} in row {row}, a {type(v).__name__}"
            cure = "convert the column to one type of texts, numbers, dates or booleans, or drop it"
            raise ValueError(f"{fact}, but most are {found[0][0].__name__}; {cure}")
        if isinstance(v, Decimal) and not v.is_finite():
            raise ValueError(f"column {name!r} holds {v} in row {row}; make it missing")
    written = [repr(v) for v in values]  # 1.10 and 1.1 are two levels
    distinct = sorted(
        dict(zip(written, values, strict=True)).items(), key=lambda pair: pair[::-1]
    )
    number = {text: k for k, (text, _) in enumerate(distinct)}
    codes = np.full(len(column), -1, dtype=np.int64)
    codes[present] = [number[text] for text in written]
    return codes, pandas().Series([value for _, value in distinct], dtype=object)
