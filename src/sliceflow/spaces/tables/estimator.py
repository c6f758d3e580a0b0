"""`TableFlow`: synthetic, conditional and imputed rows of a table with columns of any kind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow.cells import Cells, Kept, made, read_cells
from sliceflow.devices import resolve_device
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, is_real, need
from sliceflow.models.old_file import Fields
from sliceflow.models.old_limits import Allowance
from sliceflow.spaces.tables import saved
from sliceflow.spaces.tables.chained import redrawn
from sliceflow.spaces.tables.columns import Column, grid_of, new_identifiers, some, understood
from sliceflow.spaces.tables.conditional import completed
from sliceflow.spaces.tables.files import check_width, read_table
from sliceflow.spaces.tables.fitted import FittedTable, checked, fitted_to
from sliceflow.spaces.tables.scores import Stream, quantiles

__all__ = ["TableFlow"]

_WHOLE = 20_000  # a sample is part of a table of at most this many rows, or of as many as asked for


class TableFlow(BaseEstimator):  # type: ignore[misc]
    """Generative model of a table: numbers, categories, dates, missing cells.

    Every column becomes a normal score (`sliceflow.spaces.tables.scores`). New rows are draws along the
    neighbours of rows, corrected by a sliced-Wasserstein flow with shrunk maps
    (`sliceflow.spaces.tables.local`). Then each column's score is turned back by rank, so that columns keep
    their own distributions: types, categories, bounds, decimals, and shares of missing cells. There is
    no network and no training.

    The cost is n·d² + d³ for n rows and d columns, in products of matrices, and 4096·n·d for the
    neighbours. The flow moves at most 256 principal coordinates. The model keeps the
    rows, because `sample(given=…)`, `impute`, `partial_fit` and `forget` need them, and so does its
    file: treat it like the table.

    Parameters
    ----------
    columns : dict or None
        Kinds of columns that the table does not show, by name: "continuous", "integer", "boolean",
        "category", "ordered", "datetime", "identifier", or "drop" to leave a column out.
    constraints : sequence of str
        What must hold between columns, such as ``"start <= end"``, ``"total = a + b"``, ``"x >= 0"``
        or ``"combinations(make, model)"``; see `sliceflow.spaces.tables.constraints`.
    missing : "model" or "fill"
        "model" generates missing cells as often, and together with what, as in the table. "fill" gives
        samples without any.
    n_neighbors : int
        k, the nearest rows along which a draw goes, the row itself among them. With `smoothing`
        "auto", the least k of three.
    smoothing : float or "auto"
        h, how far it goes: 0 copies rows, 1 forgets which of the neighbours it was. "auto" tries k, 2k
        and 4k neighbours, and takes the k and h that blur least of those with which draws keep as far
        from rows as rows keep from each other.
    shrinkage : float
        κ of the flow: maps are shrunk within κ times their noise.
    n_steps : int
        Steps of the flow; 0 leaves the draws as they are.
    device : str or torch.device
        "auto" uses a GPU if there is one.
    random_state : int, RandomState, Generator or None
        The same seed on the same machine gives the same bits.

    Attributes
    ----------
    columns_ : DataFrame
        One row per column: its kind, share of missing cells, different values, and a note.
    n_rows_ : int
        Rows that the model knows.
    n_features_in_, feature_names_in_ : number and names of the columns
    n_neighbors_ : int
        k of the fit.
    smoothing_ : float
        h of the fit.

    Examples
    --------
    >>> import pandas as pd
    >>> from sliceflow import TableFlow
    >>> rng = np.random.default_rng(0)
    >>> plan = rng.choice(["basic", "gold"], 300)
    >>> age = rng.integers(18, 80, 300)
    >>> spent = np.round(rng.gamma(2, 20 + (plan == "gold") * age), 2)
    >>> table = pd.DataFrame({"plan": plan, "age": age, "spent": spent})
    >>> flow = TableFlow(random_state=0).fit(table)
    >>> new = flow.sample(5, random_state=0)
    >>> list(new.columns), bool((new.dtypes == table.dtypes).all())
    (['plan', 'age', 'spent'], True)
    >>> flow.sample(3, given={"plan": "gold", "age": 40}, random_state=0)[["plan", "age"]]
       plan  age
    0  gold   40
    1  gold   40
    2  gold   40
    """

    _fitted: FittedTable

    def __init__(
        self,
        columns: Mapping[str, str] | None = None,
        constraints: Sequence[str] = (),
        missing: str = "model",
        n_neighbors: int = 10,
        smoothing: float | str = "auto",
        shrinkage: float = 1.0,
        n_steps: int = 100,
        device: str | torch.device = "auto",
        random_state: Any = None,
    ) -> None:
        self.columns = columns
        self.constraints = constraints
        self.missing = missing
        self.n_neighbors = n_neighbors
        self.smoothing = smoothing
        self.shrinkage = shrinkage
        self.n_steps = n_steps
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Understand the columns of a table, and fit the model.

        Parameters
        ----------
        X : DataFrame of pandas or polars, or a path to a CSV, Parquet or Excel file
        y : ignored
        """
        columns, numbers, library = self._understood(X)
        return self._keep(columns, numbers, library, Seed.from_random_state(self.random_state))

    def check(self, X: Any) -> Self:
        """Raise the error that a fit to this table would raise because of its cells or constraints."""
        columns, numbers, _ = self._understood(X)
        checked(columns, numbers, self.constraints)
        return self

    def _understood(self, X: Any) -> tuple[list[Column], np.ndarray, str]:
        """The columns of a table, its numbers, and its library."""
        self._check_parameters()
        cells, library = _read(X)
        known = self.columns or {}
        names = [of.kept.name for of in cells]
        for name in known:
            if name not in names:
                raise ValueError(
                    f"columns names {name!r}, which is not a column; there are {some(names)}"
                )
        columns = [understood(of, known.get(of.kept.name)) for of in cells]
        return columns, _numbers(columns, cells), library

    def _keep(self, columns: list[Column], numbers: np.ndarray, library: str, seed: Seed) -> Self:
        fitted = fitted_to(
            columns, numbers, library, seed, resolve_device(self.device), self.get_params(deep=False)
        )
        self._fitted = fitted
        return self._describe()

    def _describe(self) -> Self:
        fitted = self._fitted
        self.n_rows_ = len(fitted.numbers)
        self.n_features_in_ = len(fitted.columns)
        self.feature_names_in_ = np.array([column.name for column in fitted.columns], dtype=object)
        self.n_neighbors_, self.smoothing_ = fitted.flow.near.shape[1], fitted.flow.h
        return self

    @property
    def columns_(self) -> Any:
        """A table of the columns."""
        check_is_fitted(self, "n_rows_")
        fitted = self._fitted
        rows = [column.told(x) for column, x in zip(fitted.columns, fitted.numbers.T, strict=True)]
        for rule, _ in fitted.rules:
            if rule.kind == "follows":
                for c in rule.columns[1:]:
                    rows[c]["note"] += f", follows from {fitted.columns[rule.columns[0]].name}"
        forms = {
            "column": "text",
            "kind": "text",
            "missing": "number",
            "distinct": "integer",
            "note": "text",
        }
        types = {
            "text": ("str", "String"),
            "number": ("float64", "Float64"),
            "integer": ("int64", "Int64"),
        }
        polars = fitted.library == "polars"
        return made(
            fitted.library,
            [
                (
                    Kept(name, form, types[form][polars]),
                    np.array([row[name] for row in rows], dtype=object if form == "text" else None),
                    np.zeros(len(rows), dtype=bool),
                )
                for name, form in forms.items()
            ],
        )

    @property
    def kinds_(self) -> dict[str, str]:
        """The kind of every column."""
        check_is_fitted(self, "n_rows_")
        return {column.name: column.kind for column in self._fitted.columns}

    def value_of(self, name: str, text: str) -> Any:
        """The value of a column that a text stands for, for `given`; an empty text is missing.

        A ValueError says why it cannot be given.
        """
        c = list(self.feature_names_in_).index(name)
        column = self._fitted.columns[c]
        value: Any = next((label for label in column.labels if str(label) == text), text or None)
        if column.kind == "boolean" and text.lower() in ("true", "false", "yes", "no"):
            value = text.lower() in ("true", "yes")
        self._fitted.number_of(c, value)
        return value

    def sample(
        self, n_samples: int = 1, given: Mapping[str, Any] | None = None, random_state: Any = None
    ) -> Any:
        """New rows, as a DataFrame of the library of the fitted one.

        Parameters
        ----------
        n_samples : int
        given : values that all rows must have, by column; None as a value means missing
        random_state : int, RandomState, Generator or None
            None gives new rows on every call.
        """
        check_is_fitted(self, "n_rows_")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        fitted, n, seed = self._fitted, int(n_samples), Seed.from_random_state(random_state)
        if given:
            numbers = self._given(given, n, seed)
        else:
            # Columns are exact in a whole table; a few rows are some of it.
            whole = max(n, min(len(fitted.numbers), _WHOLE))
            z = fitted.flow.sample(whole, seed.child("rows"), resolve_device(self.device))
            keep = slice(n)
            modelled = fitted.scores.decode(z, quantiles(z), missing=self.missing == "model")[keep]
            numbers = fitted.restored(modelled)
        return self._made(numbers, seed)

    def _given(self, given: Mapping[str, Any], n: int, seed: Seed) -> np.ndarray:
        """Numbers (n, columns) of rows that have what is given."""
        fitted, names = self._fitted, list(self.feature_names_in_)
        wanted = np.full(len(names), -np.inf)
        for name, value in given.items():
            if name not in names:
                raise ValueError(
                    f"given names {name!r}, which is not a column; there are {some(names)}"
                )
            wanted[names.index(name)] = fitted.number_of(names.index(name), value)
        told = wanted != -np.inf
        at = fitted.condition(wanted, n, Stream(seed.child("given")))
        z = completed(fitted.scores, fitted.flow.z, fitted.modelled, at, seed.child("rows"), 1)[0]
        out = fitted.restored(fitted.scores.decode(z, missing=self.missing == "model"))
        out[:, told] = wanted[told]
        out = fitted.mended(out, np.broadcast_to(told, out.shape))
        for rule, kinds in fitted.rules:
            if rule.broken(out, kinds).any():
                raise ValueError(f"given={dict(given)} contradicts the constraint {rule.text!r}")
        return out

    def impute(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Any:
        """The table with its missing cells filled; all other cells are as they were.

        Each filled cell is a draw given the other cells of its row: first all of a row together, along
        its nearest rows, then one by one from the rows that trees find alike
        (`sliceflow.spaces.tables.chained`). The best single guess of a cell is the median, or the most
        frequent, of many draws.

        Parameters
        ----------
        X : DataFrame with the columns of the fitted one, or a path; with missing cells
        n_samples : int
            1 returns one DataFrame. More return a list of them, for multiple imputation: their spread
            is the uncertainty of the cells.
        random_state : int, RandomState, Generator or None
        """
        check_is_fitted(self, "n_rows_")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        fitted, seed = self._fitted, Seed.from_random_state(random_state)
        cells, library = _read(X)
        cells = self._in_order(cells)
        numbers = _numbers(fitted.columns, cells)
        modelled = fitted.encoded(numbers)
        z = fitted.scores.encode(modelled, Stream(seed.child("encode")))
        for j, k in enumerate(fitted.scores.coordinates):
            if k.flag:  # whether a cell is missing says nothing about its value
                z[:, j] = np.inf
            else:
                z[np.isnan(modelled[:, k.column]), j] = np.nan
        there = ~np.isnan(numbers)
        tables = completed(
            fitted.scores, fitted.flow.z, fitted.modelled, z, seed.child("rows"), int(n_samples)
        )
        gone = np.tile(np.isnan(modelled), (int(n_samples), 1))
        made = np.concatenate([fitted.scores.decode(table, missing=False) for table in tables])
        made = np.where(gone, made, np.tile(modelled, (int(n_samples), 1)))
        made = redrawn(fitted.scores, fitted.flow.z, fitted.modelled, made, gone, seed.child("chained"))
        out = []
        for table in np.split(made, int(n_samples)):
            full = fitted.mended(np.where(there, numbers, fitted.restored(table)), there)
            out.append(self._filled(cells, full, there, library))
        return out[0] if n_samples == 1 else out

    def _filled(self, cells: list[Cells], full: np.ndarray, there: np.ndarray, library: str) -> Any:
        """The user's cells, with those that were missing from `full`."""
        out = []
        for j, (column, of) in enumerate(zip(self._fitted.columns, cells, strict=True)):
            kept, values, _ = column.cells(full[:, j])
            fillable = column.kind not in ("identifier", "drop") and not np.isnan(full[:, j]).any()
            if not there[:, j].all() and fillable and _alike(kept, of.kept):
                joined = (
                    of.values.astype(object)
                    if of.kept.form == "text"
                    else of.values.astype(values.dtype)
                )
                joined[~there[:, j]] = values[~there[:, j]]
                out.append((of.kept, joined, np.zeros(len(joined), dtype=bool)))
            else:
                out.append((of.kept, of.values, of.missing))
        return made(library, out)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add rows to the model, as if they had been in the table from the start."""
        if not hasattr(self, "n_rows_"):
            return self.fit(X)
        fitted = self._fitted
        cells, _ = _read(X)
        columns = [fitted.extended(c, of) for c, of in enumerate(self._in_order(cells))]
        numbers = np.concatenate((fitted.numbers, _numbers(columns, self._in_order(cells))))
        columns = [_regridded(column, numbers[:, c]) for c, column in enumerate(columns)]
        return self._keep(columns, numbers, fitted.library, fitted.seed)

    def forget(self, X: Any, y: Any = None) -> Self:
        """Remove rows. The model is then that of the remaining rows; nothing else of them is kept."""
        check_is_fitted(self, "n_rows_")
        fitted = self._fitted
        cells = self._in_order(_read(X)[0])
        rows = _numbers(fitted.columns, cells)
        left: dict[bytes, list[int]] = {}
        for i, key in enumerate(_keys(fitted.numbers)):
            left.setdefault(key, []).append(i)
        gone = []
        for i, key in enumerate(_keys(rows)):
            if not left.get(key):
                raise ValueError(
                    f"row {i} of X is not in the model, or X names it more often; nothing was forgotten"
                )
            gone.append(left[key].pop(0))
        keep = np.setdiff1d(np.arange(len(fitted.numbers)), gone)
        if len(keep) < 2:
            raise ValueError(
                f"forgetting {len(gone)} rows would leave {len(keep)}; delete the model instead"
            )
        columns = [fitted.without(c, of) for c, of in enumerate(cells)]
        return self._keep(columns, fitted.numbers[keep], fitted.library, fitted.seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, which `sliceflow.load` opens; it holds the rows."""
        check_is_fitted(self, "n_rows_")
        saved.write_table(path, self, self._fitted)

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        flow = cls(**saved.parameters(header, cls()))
        flow._check_parameters()
        flow._fitted = saved.unpacked(header, tensors, device, allowed)
        return flow._describe()

    def _in_order(self, cells: list[Cells]) -> list[Cells]:
        """The columns in the order of the fit."""
        names, found = list(self.feature_names_in_), {of.kept.name: of for of in cells}
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"the table lacks the column {missing[0]!r}; the model has {some(names)}")
        if more := [name for name in found if name not in names]:
            raise ValueError(
                f"the table has a column {more[0]!r} that the model does not know; leave it out"
            )
        return [found[name] for name in names]

    def _made(self, numbers: np.ndarray, seed: Seed) -> Any:
        """A DataFrame of numbers (n, columns)."""
        out, fitted = [], self._fitted
        for c, column in enumerate(fitted.columns):
            if column.kind == "drop":
                continue
            if column.kind == "identifier":
                draw = Stream(seed.child("identifiers", c))
                ids = new_identifiers(column, len(numbers), draw.uniform)
                out.append((column.kept, ids, np.zeros(len(ids), dtype=bool)))
            else:
                out.append(column.cells(numbers[:, c]))
        return made(fitted.library, out)

    def _check_parameters(self) -> None:
        words = ("model", "fill")
        need(self.missing in words, "missing", self.missing, "'model' or 'fill'")
        need(is_int(self.n_neighbors, 2), "n_neighbors", self.n_neighbors, "an int of at least 2")
        ok = self.smoothing == "auto" or is_real(self.smoothing, 0, 1)
        need(ok, "smoothing", self.smoothing, "'auto' or a number from 0 to 1")
        need(is_real(self.shrinkage, 0), "shrinkage", self.shrinkage, "a number of at least 0")
        need(is_int(self.n_steps, 0), "n_steps", self.n_steps, "an int of at least 0")
        texts = not isinstance(self.constraints, str)
        need(texts, "constraints", self.constraints, "a list of expressions such as ['a <= b']")
        ok = self.columns is None or isinstance(self.columns, Mapping)
        need(ok, "columns", self.columns, "None or a dict such as {'zip': 'category'}")


def _read(X: Any) -> tuple[list[Cells], str]:
    """The cells of a DataFrame or file, and its library; a ValueError says what is wrong."""
    if isinstance(X, str | os.PathLike):
        X = read_table(X)
    shape = getattr(X, "shape", (1, 1))
    if len(shape) == 2:
        check_width(shape[1])
    cells, library = read_cells(X)
    if not cells:
        raise ValueError("the table has no columns")
    return cells, library


def _numbers(columns: Sequence[Column], cells: Sequence[Cells]) -> np.ndarray:
    numbers = np.column_stack([column.numbers(of) for column, of in zip(columns, cells, strict=True)])
    if len(numbers) == 0:
        raise ValueError("the table has no rows")
    return numbers


def _alike(a: Kept, b: Kept) -> bool:
    """Whether cells of one column can stand in another."""
    numbers = ("number", "integer")
    return a.form == b.form or (a.form in numbers and b.form in numbers)


def _regridded(column: Column, numbers: np.ndarray) -> Column:
    """The column with the grid of more numbers."""
    present = numbers[~np.isnan(numbers)]
    if column.labels or column.kind in ("identifier", "drop") or not len(present):
        return column
    if column.kind == "constant" and len(np.unique(present)) > 1:
        times = column.kept.form in ("datetime", "date", "duration")
        column = replace(column, kind="datetime" if times else "continuous")
    if column.kind == "constant" or (
        column.step == 0 and column.kind == "continuous" and column.offset == 0
    ):
        return column
    step, offset = grid_of(present)
    return replace(column, step=step, offset=offset)


def _keys(numbers: np.ndarray) -> list[bytes]:
    clean = np.where(np.isnan(numbers), np.nan, numbers + 0.0)  # one NaN, no −0
    return [row.tobytes() for row in np.ascontiguousarray(clean)]
