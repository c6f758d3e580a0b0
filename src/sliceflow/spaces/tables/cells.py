"""The cells of a pandas DataFrame, column by column, as a model keeps them and builds them again.

A column is kept as its different values, the levels, and the number of its level for every cell. So
nothing is lost: big integers, Decimals, time zones and categories come back as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from importlib import import_module
from typing import Annotated, Any, Literal

import numpy as np
import torch

from sliceflow.models.codec import Array, Label
from sliceflow.models.identity import digest
from sliceflow.models.ranks import Ranks

__all__ = ["Cells", "TableRows", "pandas", "read_cells", "read_frame"]

Form = Literal["integer", "number", "boolean", "text", "decimal", "datetime", "date", "duration"]
_NUMBERS = (torch.int64, torch.uint64, torch.float64)


def pandas() -> Any:
    """The module; an ImportError says how to install it."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'sliceflow[tables]'") from error


@dataclass(frozen=True, eq=False)
class Cells:
    """One column.

    Parameters
    ----------
    name : its name
    form : what the values are, whatever the dtype
    dtype : the dtype, as pandas writes it
    codes : (n,), the level of every cell; −1 where it is missing
    numbers : (k,), the levels in ascending order; ticks of the clock on the wall for times
    texts : the levels, if they are texts, Decimals, or integers beyond 64 bits
    categories : all categories of a categorical dtype, in its order, also those that no cell has
    ordered : whether they have an order
    zone : the time zone
    """

    name: Label
    form: Form
    dtype: str
    codes: Annotated[np.ndarray, Array("n", torch.int64, ge=-1, packed="delta")]
    numbers: Annotated[np.ndarray, Array("k", _NUMBERS)] = field(default_factory=lambda: np.empty(0))
    texts: tuple[str, ...] = ()
    categories: tuple[Label, ...] | None = None
    ordered: bool = False
    zone: str = ""
    utc: Annotated[np.ndarray, Array("m", torch.int64)] = field(
        default_factory=lambda: np.empty(0, dtype=np.int64)
    )

    def check(self) -> None:
        if len(self.codes) and int(self.codes.max()) >= self.n_levels:
            raise ValueError(f"column {self.name!r} has a cell with an unknown level")
        if self.zone and len(self.utc) != len(self.numbers):
            raise ValueError(f"column {self.name!r} lacks times in UTC")
        build_series(self, np.empty(0, dtype=np.int64))  # raises if the dtype cannot be built

    @property
    def n_levels(self) -> int:
        return len(self.texts) or len(self.numbers)

    @property
    def missing(self) -> np.ndarray:
        return np.asarray(self.codes < 0)

    @property
    def unit(self) -> str:
        """Of times: s, ms, us or ns."""
        if self.form == "date":
            return "s"
        return self.dtype.partition("[")[2].partition("]")[0].partition(",")[0]

    def level(self, k: int) -> Any:
        """The value of a level: a text, a number, a Decimal, or ticks of a clock."""
        if self.form == "decimal":
            return Decimal(self.texts[k])
        if self.form == "integer" and self.texts:
            return int(self.texts[k])
        value = self.texts[k] if self.texts else self.numbers[k].item()
        return bool(value) if self.form == "boolean" else value

    def levels(self) -> list[Any]:
        return [self.level(k) for k in range(self.n_levels)]

    def take(self, rows: np.ndarray) -> Cells:
        """Some rows; levels that none of them has go, and categories that lose their last row."""
        codes = self.codes[rows]
        used, inverse = np.unique(codes[codes >= 0], return_inverse=True)
        renumbered = np.full(len(codes), -1, dtype=np.int64)
        renumbered[codes >= 0] = inverse.reshape(-1)
        if self.categories is None:
            texts = tuple(self.texts[k] for k in used) if self.texts else ()
            numbers = self.numbers[used] if len(self.numbers) else self.numbers
            utc = self.utc[used] if len(self.utc) else self.utc
            return replace(self, codes=renumbered, numbers=numbers, texts=texts, utc=utc)
        lost = set(np.unique(self.codes[self.codes >= 0]).tolist()) - set(used.tolist())
        kept = [c for i, c in enumerate(self.categories) if i not in lost]
        position = {k: i for i, k in enumerate(k for k in range(len(self.categories)) if k not in lost)}
        moved = np.array([position[k] for k in used.tolist()], dtype=np.int64)
        codes = np.where(renumbered < 0, -1, moved[renumbered] if len(moved) else -1)
        return _of_categories(replace(self, codes=codes), tuple(kept))

    def keys(self) -> list[Hashable]:
        """The value of every cell; None where it is missing."""
        labels = list(self.categories) if self.categories is not None else self.levels()
        return [None if c < 0 else labels[c] for c in self.codes.tolist()]


@dataclass(frozen=True)
class TableRows:
    """The user's rows.

    Parameters
    ----------
    cells : the columns
    header : names of the levels of the columns' names, as pandas keeps them; one for plain names
    n : the number of rows
    """

    cells: tuple[Cells, ...]
    header: tuple[Label, ...]
    n: int

    def check(self) -> None:
        if any(len(of.codes) != self.n for of in self.cells):
            raise ValueError("columns have different lengths")
        names = [of.name for of in self.cells]
        if len(set(names)) < len(names) or not names:
            raise ValueError("column names are not different")
        levels = len(self.header)
        if any(
            levels != (len(name) if levels > 1 and isinstance(name, tuple) else 1) for name in names
        ):
            raise ValueError("column names do not fit their header")

    def __len__(self) -> int:
        return self.n

    def append(self, others: TableRows) -> TableRows:
        pd = pandas()
        frames = [rows.in_users_form()[0] for rows in (self, others.like(self))]
        joined = {}
        for of, name in zip(self.cells, frames[0].columns, strict=True):
            columns = [frame[name] for frame in frames]
            if of.categories is not None:
                columns = _union(pd, columns)
            joined[name] = pd.concat(columns, ignore_index=True)
            if str(joined[name].dtype) != of.dtype and of.categories is None:
                try:
                    joined[name] = joined[name].astype(of.dtype)
                except (TypeError, ValueError, OverflowError):
                    raise ValueError(
                        f"column {of.name!r} has dtype {of.dtype} in the model, and the new rows do "
                        f"not fit in it ({joined[name].dtype} would hold both); convert one of them"
                    ) from None
        frame = pd.DataFrame(joined)
        frame.columns = frames[0].columns
        return read_frame(frame)

    def like(self, known: TableRows) -> TableRows:
        """The columns in the order of other rows. A ValueError names one too many or too few."""
        found, names = {of.name: of for of in self.cells}, [of.name for of in known.cells]
        if lacking := [name for name in names if name not in found]:
            raise ValueError(f"the table lacks the column {lacking[0]!r}; the model has {shown(names)}")
        if more := [name for name in found if name not in names]:
            raise ValueError(
                f"the table has a column {more[0]!r} that the model does not know; drop it"
            )
        cells = tuple(_same_clock(found[of.name], of) for of in known.cells)
        return replace(self, cells=cells, header=known.header)

    def take(self, numbers: np.ndarray) -> TableRows:
        return replace(self, cells=tuple(of.take(numbers) for of in self.cells), n=len(numbers))

    def keys(self) -> Sequence[Hashable]:
        return list(zip(*(of.keys() for of in self.cells), strict=True))

    def in_users_form(self, device: Any = None) -> tuple[Any, None]:
        frame = make_frame(self, [(of, build_series(of, of.codes)) for of in self.cells])
        return frame, None

    def digests(self, ranks: Ranks) -> dict[str, str]:
        found = [digest(np.array([repr(of.keys()), of.dtype, repr(of.name)])) for of in self.cells]
        return {"X": digest(np.array(found))}


def _same_clock(cells: Cells, known: Cells) -> Cells:
    """Times in the unit and zone of other cells of their column."""
    times = ("datetime", "duration")
    if cells.dtype == known.dtype or cells.form not in times or known.form not in times:
        return cells
    try:
        return read_cells(build_series(cells, cells.codes).astype(known.dtype), known.name)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {known.name!r} has dtype {cells.dtype}, but {known.dtype} in the model; convert it"
        ) from error


def shown(labels: Sequence[Any]) -> str:
    """The first labels as text, and how many there are."""
    text = ", ".join(str(label) for label in labels[:6])
    return text if len(labels) <= 6 else f"{text}, … ({len(labels)})"


def _union(pd: Any, columns: list[Any]) -> list[Any]:
    """Categorical columns with the categories of both; the later ones come last."""
    first, second = (c if hasattr(c, "cat") else c.astype("category") for c in columns)
    both = [*first.cat.categories, *(c for c in second.cat.categories if c not in first.cat.categories)]
    return [c.cat.set_categories(both, ordered=first.cat.ordered) for c in (first, second)]


# Reading


def read_frame(frame: Any) -> TableRows:
    """The rows of a DataFrame. A ValueError names what cannot be used, and what to do."""
    pd = pandas()
    if not isinstance(frame, pd.DataFrame):
        if type(frame).__module__.startswith("polars"):
            raise TypeError("a table is a pandas DataFrame; pass frame.to_pandas()")
        raise TypeError(
            f"a table is a pandas DataFrame or a path, not {type(frame).__name__}; wrap an array as "
            "pandas.DataFrame(array, columns=[...])"
        )
    names = [_plain(name) for name in frame.columns.tolist()]
    if not names:
        raise ValueError("the table has no columns")
    if len(frame) == 0:
        raise ValueError("the table has no rows")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"two columns are named {twice!r}; give each a name of its own")
    cells = tuple(read_cells(frame.iloc[:, i], name) for i, name in enumerate(names))
    return TableRows(cells, tuple(_plain(level) for level in frame.columns.names), len(frame))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def read_cells(column: Any, name: Any) -> Cells:
    """One column of a DataFrame."""
    pd, dtype = pandas(), str(column.dtype)
    kind = getattr(column.dtype, "kind", "O")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _read_categories(column, name)
    missing = column.isna().to_numpy(dtype=bool)
    if kind in "iub" and not dtype.startswith(("interval", "period", "Sparse")):
        full = column.fillna(False if kind == "b" else 0) if missing.any() else column
        values = full.to_numpy(dtype=np.uint64 if kind == "u" else np.int64)
        return _numeric(name, "boolean" if kind == "b" else "integer", dtype, values, missing)
    if kind == "f" and "[" not in dtype:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise ValueError(
                f"column {name!r} is {values[row]:g} in row {row}; replace infinities, or make them "
                "missing"
            )
        if dtype.endswith("128"):
            raise ValueError(f"column {name!r} has dtype {dtype}; convert it to float64")
        return _numeric(name, "number", dtype, np.where(missing, 0.0, values + 0.0), missing)
    if kind in "mM" and "[" in dtype and not dtype.startswith(("interval", "period")):
        return _read_times(column, name, dtype, missing)
    if kind == "O" and not dtype.startswith(("interval", "period", "Sparse")):
        return _read_objects(column, name, dtype, missing)
    advice = "convert it with .dt.to_timestamp()" if dtype.startswith("period") else "convert it"
    raise ValueError(
        f"column {name!r} has dtype {dtype}, which tables do not support; {advice} to numbers, text, "
        "dates or categories, or drop it"
    )


def _numeric(name: Any, form: Form, dtype: str, values: np.ndarray, missing: np.ndarray) -> Cells:
    levels, inverse = np.unique(values[~missing], return_inverse=True)
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[~missing] = inverse.reshape(-1)
    return Cells(name, form, dtype, codes, levels)


def _read_categories(column: Any, name: Any) -> Cells:
    labels = tuple(_plain(v) for v in column.cat.categories.tolist())
    if not all(isinstance(v, str | int | float | bool) for v in labels):
        raise ValueError(
            f"column {name!r} has categories such as {labels[0]!r}; make them texts or numbers"
        )
    codes = column.cat.codes.to_numpy().astype(np.int64)
    cells = Cells(name, "text", "category", codes, ordered=bool(column.cat.ordered))
    return _of_categories(cells, labels)


def _of_categories(cells: Cells, labels: tuple[Any, ...]) -> Cells:
    return replace(cells, categories=labels, texts=tuple(str(v) for v in labels))


def _read_times(column: Any, name: Any, dtype: str, missing: np.ndarray) -> Cells:
    if column.dtype.kind == "m":
        ticks = column.to_numpy().astype(f"timedelta64[{column.dt.unit}]").astype(np.int64)
        return _numeric(name, "duration", dtype, np.where(missing, 0, ticks), missing)
    zone = "" if column.dt.tz is None else dtype.partition(",")[2].strip(" ]")
    utc = column.dt.tz_convert("UTC").dt.tz_localize(None) if zone else column
    ticks = utc.to_numpy().astype(f"datetime64[{column.dt.unit}]").astype(np.int64)
    cells = _numeric(name, "datetime", dtype, np.where(missing, 0, ticks), missing)
    if not zone:
        return cells
    # The clock on the wall shows an hour twice when it is set back: both are levels.
    wall = column.dt.tz_localize(None).to_numpy().astype(f"datetime64[{column.dt.unit}]")
    wall_of = np.zeros(len(cells.numbers), dtype=np.int64)
    wall_of[cells.codes[~missing]] = wall.astype(np.int64)[~missing]
    order = np.lexsort((cells.numbers, wall_of))
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    codes = np.where(missing, -1, position[cells.codes])
    return replace(cells, codes=codes, numbers=wall_of[order], utc=cells.numbers[order], zone=zone)


_TYPES: dict[type | tuple[type, ...], Form] = {
    (bool, np.bool): "boolean", str: "text", (int, np.integer): "integer", (float, np.floating): "number",
    Decimal: "decimal",
}  # fmt: skip


def _form_of(kind: type) -> str:
    """The form of objects of a type."""
    if kind is date:
        return "date"
    return next((form for types, form in _TYPES.items() if issubclass(kind, types)), "other")


def _read_objects(column: Any, name: Any, dtype: str, missing: np.ndarray) -> Cells:
    """Python objects: all texts, numbers, Decimals, dates or booleans."""
    values = column.to_numpy(dtype=object)
    present = values[~missing].tolist()
    if not present:
        return Cells(name, "text" if dtype != "object" else "number", dtype, np.full(len(values), -1))
    counts = Counter(map(type, present))
    forms = {kind: _form_of(kind) for kind in counts}
    most = forms[counts.most_common(1)[0][0]]
    alike = {"integer", "number"}
    if set(forms.values()) == alike:
        most = "number"
    bad = [
        kind
        for kind, form in forms.items()
        if form == "other" or (form != most and {form, most} != alike)
    ]
    if bad:
        k = next(k for k, v in enumerate(present) if type(v) in bad)
        raise ValueError(
            f"column {name!r} holds {present[k]!r} in row {np.flatnonzero(~missing)[k]}, a "
            f"{type(present[k]).__name__}, but most are {most}; convert the column to one type, or drop it"
        )
    if most == "decimal" and not all(v.is_finite() for v in present):
        raise ValueError(f"column {name!r} holds a Decimal that is not finite; make it missing")
    form: Any = most
    if form == "date":
        present = [v.toordinal() - date(1970, 1, 1).toordinal() for v in present]
    levels = sorted(set(present))
    number_of = {level: k for k, level in enumerate(levels)}
    codes = np.full(len(values), -1, dtype=np.int64)
    codes[~missing] = [number_of[v] for v in present]
    if form in ("text", "decimal") or (form == "integer" and not _fits_int64(levels)):
        return Cells(name, form, dtype, codes, texts=tuple(str(v) for v in levels))
    numbers = np.array(levels, dtype=np.float64 if form == "number" else np.int64)
    return Cells(name, form, dtype, codes, numbers * (86_400 if form == "date" else 1))


def _fits_int64(levels: Sequence[int]) -> bool:
    return levels[0] >= -(2**63) and levels[-1] < 2**63


# Building


def build_series(cells: Cells, codes: np.ndarray, fresh: np.ndarray | None = None) -> Any:
    """A column with the dtype of `cells`: levels by their numbers, −1 for missing, −2 for a new value.

    `fresh` are the new values where codes are −2: texts, ticks, or numbers.
    """
    pd = pandas()
    if cells.categories is not None:
        labels = list(cells.categories)
        return pd.Series(pd.Categorical.from_codes(codes, labels, ordered=cells.ordered))
    missing, new = codes < 0, codes == -2
    if cells.form in ("datetime", "duration") and cells.dtype != "object":
        return _build_times(pd, cells, codes, fresh)
    if cells.texts or cells.form in ("text", "decimal", "date") or cells.dtype == "object":
        levels = _objects(cells, cells.levels())
        values = np.full(len(codes), None, dtype=object)
        values[~missing] = [levels[c] for c in codes[~missing].tolist()]
        if fresh is not None and new.any():
            values[new] = _objects(cells, fresh[new].tolist())
        series = pd.Series(values, dtype=object)
        return series if cells.dtype == "object" else series.astype(cells.dtype)
    empty = len(cells.numbers) == 0
    values = np.zeros(len(codes), np.float64) if empty else cells.numbers[np.maximum(codes, 0)]
    if fresh is not None and new.any():
        values = values.copy()
        values[new] = fresh[new]
    missing &= ~new
    if cells.form == "boolean":
        values = values.astype(bool)
    if not missing.any():
        return pd.Series(values).astype(cells.dtype)
    if cells.form == "number":
        return pd.Series(np.where(missing, np.nan, values)).astype(cells.dtype)
    return pd.Series(pd.array(values).astype(cells.dtype)).mask(missing)


def _objects(cells: Cells, values: list[Any]) -> list[Any]:
    """Levels as Python objects; new values of Decimals arrive as such."""
    if cells.form == "date":
        epoch = date(1970, 1, 1).toordinal()
        return [date.fromordinal(int(v) // 86_400 + epoch) for v in values]
    cast: dict[str, Callable[[Any], Any]] = {"integer": int, "number": float, "boolean": bool}
    return [cast.get(cells.form, lambda v: v)(v) for v in values]


def _build_times(pd: Any, cells: Cells, codes: np.ndarray, fresh: np.ndarray | None) -> Any:
    new, kind = codes == -2, "timedelta64" if cells.form == "duration" else "datetime64"
    levels = cells.utc if cells.zone else cells.numbers
    ticks = np.full(len(codes), np.iinfo(np.int64).min)  # NaT
    ticks[codes >= 0] = levels[codes[codes >= 0]]
    if fresh is not None and new.any():
        ticks[new] = fresh[new]
    times = ticks.view(f"{kind}[{cells.unit}]")
    if not cells.zone:
        return pd.Series(times).astype(cells.dtype)
    series = pd.Series(times).dt.tz_localize("UTC").dt.tz_convert(cells.zone)
    if new.any():
        walls = pd.Series(times[new]).dt.tz_localize(cells.zone, ambiguous=np.ones(new.sum(), bool),
                                                     nonexistent="shift_forward")  # fmt: skip
        series = series.where(~new)
        series[np.flatnonzero(new)] = walls.to_numpy() if series.dtype == object else walls.array
    return series.astype(cells.dtype)


def make_frame(rows: TableRows, columns: Sequence[tuple[Cells, Any]]) -> Any:
    """A DataFrame of columns, named as those of `rows`."""
    pd = pandas()
    frame = pd.DataFrame({i: series for i, (_, series) in enumerate(columns)})
    names = [cells.name for cells, _ in columns]
    if len(rows.header) > 1:
        frame.columns = pd.MultiIndex.from_tuples(names, names=rows.header)
    else:
        frame.columns = pd.Index(names, name=rows.header[0], tupleize_cols=False)
    return frame
