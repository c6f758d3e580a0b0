"""`TableFlow`: synthetic, conditional and imputed rows of a table with columns of any kind."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sliceflow.devices import require_memory
from sliceflow.engine.clouds import Cloud, sliced_distance
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, is_real, require
from sliceflow.models.estimator import Estimator
from sliceflow.models.saving import Model
from sliceflow.spaces.tables.cells import TableRows, pandas, read_frame, shown
from sliceflow.spaces.tables.chain import LINES
from sliceflow.spaces.tables.choosing import may_be_near
from sliceflow.spaces.tables.files import as_frame
from sliceflow.spaces.tables.fit import FittedTable, TableAdapter, TablePlan
from sliceflow.spaces.tables.given import condition_on, find_value
from sliceflow.spaces.tables.imputing import fill
from sliceflow.spaces.tables.table import Table, draw_rows, generator, grow_chain

_MIN_SCORED = 2_000  # samples that `score` draws, at least


class TableFlow(Estimator[TableRows, FittedTable]):
    """Generative model of a table: numbers, categories, dates, missing cells.

    New rows are drawn column by column, each cell given those before it, by a chain of trees
    (`sliceflow.spaces.tables.chain`). A cell is the value of a similar row, or between two of them. Smooth
    numbers of a small table may be drawn together, from near rows (`sliceflow.spaces.tables.near`). There
    is no network and no training loop: a fit takes seconds. The model keeps the rows, and so does its
    file: treat it like the table. Identifiers and personal data are made up anew.

    Parameters
    ----------
    columns : dict or None
        Kinds of columns that the table does not show, by name: "continuous", "integer", "boolean",
        "category", "ordered", "datetime" (or "datetime:%d.%m.%Y" for text), "identifier", "drop".
    constraints : sequence of str
        What must hold between columns, such as ``"start <= end"``, ``"total = a + b"``, ``"x > 0"``
        or ``"combinations(make, model)"``; see `sliceflow.spaces.tables.constraints`.
    missing : "model" or "fill"
        "model" draws missing cells as often, and together with what, as in the table; "fill" draws none.
    detail : (int, float), (int, float, int) or None
        The least rows of a leaf, and what a split must gain, relative to noise: with more, trees copy
        less. Third, from how many near rows smooth numbers of a small table without rules are drawn; 0
        draws all from trees. None takes the finest that copy no rows, and near rows if they are better.
    device : accepted as in other estimators; trees grow on the CPU
    random_state : int, RandomState, Generator or None
        The same seed on the same machine gives the same bits.
    verbose : whether to show progress

    Attributes
    ----------
    columns_ : DataFrame, one row per column: its kind, share of missing cells, different values, a note
    kinds_ : dict, the kind of every column
    plan_ : TablePlan, what the fit did; print it
    history_ : dict of lists, one step per column; `distance` is the share of the column's impurity that
        the columns before it leave unexplained
    n_features_in_, feature_names_in_ : number and names of the columns

    Examples
    --------
    >>> import pandas as pd
    >>> from sliceflow import TableFlow
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"plan": ["basic", "gold"] * 150, "age": rng.integers(18, 80, 300)})
    >>> table["spent"] = np.round(rng.gamma(2, 20 + (table["plan"] == "gold") * table["age"]), 2)
    >>> flow = TableFlow(random_state=0).fit(table)
    >>> flow.sample(3, given={"plan": "gold", "age": (30, 40)}, random_state=0)["plan"].tolist()
    ['gold', 'gold', 'gold']
    """

    _kinds = (TablePlan, FittedTable, TableRows)

    def __init__(
        self,
        *,
        columns: Mapping[str, str] | None = None,
        constraints: Sequence[str] = (),
        missing: str = "model",
        detail: tuple[int, float] | tuple[int, float, int] | None = None,
        device: str | torch.device = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.columns = columns
        self.constraints = constraints
        self.missing = missing
        self.detail = detail
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _adapter(self, like_fitted: bool = False) -> TableAdapter:
        require(
            self.missing in ("model", "fill"),
            "missing",
            self.missing,
            "'model' or 'fill'",
        )
        texts = not isinstance(self.constraints, str)
        require(
            texts,
            "constraints",
            self.constraints,
            "a list of expressions such as ['a <= b']",
        )
        kinds = {} if self.columns is None else self.columns
        ok = isinstance(kinds, Mapping) and all(isinstance(key, str) for key in kinds)
        require(ok, "columns", kinds, "None or a dict such as {'zip': 'category'}")
        fine = self.detail or (1, 0)
        ok = (
            isinstance(fine, tuple) and len(fine) in (2, 3) and is_int((*fine, 0)[2], 0)
        )
        ok = ok and is_int(fine[0], 1) and is_real(fine[1], 0)
        require(
            ok,
            "detail",
            self.detail,
            "None or numbers such as (10, 2.5) or (10, 2.5, 20)",
        )
        known = self._known_rows() if like_fitted else None
        return TableAdapter(kinds, tuple(self.constraints), known, self.detail)

    def _store_model(self, model: Model) -> None:
        fitted: FittedTable = model.fitted
        if fitted.table is None:
            space = self._adapter()
            table = Table.infer_schema(model.rows, space.kinds, space.constraints)
            plan = fitted.plan
            order = table.order
            pairs = [
                (strategy, table.columns[c])
                for c, strategy in zip(order, plan.strategies, strict=False)
            ]
            fits = len(plan.strategies) == len(order) and plan.order == tuple(
                table.names[c] for c in order
            )
            fits = fits and all(
                of.has_room for strategy, of in pairs if strategy in LINES
            )
            fits = fits and all(
                of.is_label for strategy, of in pairs if strategy == "per_level"
            )
            if not fits or (plan.near and not may_be_near(table, plan.strategies)):
                raise ValueError("the rows do not fit the plan")
            fitted = replace(fitted, table=table)
        super()._store_model(replace(model, fitted=fitted))
        self.n_features_in_ = len(fitted.table.names)
        self.feature_names_in_ = np.empty(self.n_features_in_, dtype=object)
        self.feature_names_in_[:] = fitted.table.names

    @property
    def columns_(self) -> Any:
        table = self._fitted_state().table
        rows = [column.describe() for column in table.columns]
        for rule in table.rules.rules:
            if rule.implied:
                rows[rule.columns[1]]["note"] += (
                    f", follows from {table.names[rule.columns[0]]}"
                )
        return pandas().DataFrame(rows)

    @property
    def kinds_(self) -> dict[Any, str]:
        return {
            column.name: column.kind for column in self._fitted_state().table.columns
        }

    def sample(
        self,
        n: int = 1,
        *,
        given: Mapping[Any, Any] | None = None,
        random_state: Any = None,
    ) -> Any:
        """New rows, as a DataFrame with the columns and dtypes of the table.

        Parameters
        ----------
        n : number of rows
        random_state : int, RandomState, Generator or None (new rows on every call)
        given : what all rows must have, by column: a value, None for missing, a list of values, or a
            range (low, high). The chain is fitted again to the rows that have it. A warning says if these
            are few
        """
        require(is_int(n, 1), "n", n, "an int of at least 1")
        fitted: FittedTable = self._fitted_state()
        seed = Seed.from_random_state(random_state)
        missing = self.missing == "model"
        require_memory(
            fitted.sample_bytes(n),
            torch.device("cpu"),
            f"n={n} samples need",
            "draw fewer at a time",
        )
        if not given:
            return fitted.draw(int(n), seed, missing)
        plan = fitted.plan
        table, rows, fixed, values = condition_on(fitted.table, given)
        detail = plan.detail_for(missing)
        links = [
            *grow_chain(
                table, rows, [*fixed], seed.child("given"), detail, plan.strategies
            )
        ]
        return table.frame(
            draw_rows(table, links, int(n), seed, fixed, missing), seed, values
        )

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance of samples to rows: higher is better.

        Columns are scaled to be comparable. Pass held-out rows: on the fitted rows the
        model that copies best would win.
        """
        fitted: FittedTable = self._fitted_state()
        seed = self._seed_copy().child("score")
        columns = fitted.columns(X)
        n = columns.shape[1]
        times = -(-_MIN_SCORED // n)
        drawn = fitted.columns(fitted.draw(times * n, seed))
        return -sliced_distance(Cloud(drawn), Cloud(columns), Seed(0))

    def value_of(self, name: str, text: str) -> Any:
        """What a text stands for in `given`: a value, ``30..40`` a range, ``a|b`` a list, "" missing."""
        columns = self._fitted_state().table.columns
        column = next(column for column in columns if str(column.name) == name)
        if ".." in text and column.is_number:
            return tuple(
                find_value(column, part)[2].tolist()[0] for part in text.split("..", 1)
            )
        if "|" in text and text not in column.levels.astype(str).tolist():
            return [find_value(column, part)[2].tolist()[0] for part in text.split("|")]
        return find_value(column, text)[2].tolist()[0] if text else None

    def impute(self, X: Any, n: int = 1, *, random_state: Any = None) -> Any:
        """The table with its missing cells filled; all other cells, the index and the dtypes stay.

        A filled cell is a draw given the other cells of its row (`sliceflow.spaces.tables.imputing`); the
        median, or the most frequent, of many is the best guess. A warning says which cells stay empty.

        Parameters
        ----------
        X : DataFrame with the columns of the fitted one, or a path; with missing cells
        n : 1 returns one DataFrame, more a list: their spread is the uncertainty of the cells
        random_state : int, RandomState, Generator or None
        """
        require(is_int(n, 1), "n", n, "an int of at least 1")
        table = self._fitted_state().table
        seed = Seed.from_random_state(random_state)
        frame = as_frame(X)
        z = table.positions_of(read_frame(frame))
        filled, left = fill(table, z, int(n), seed)
        names = frame.columns.tolist()
        out = [frame.copy() for _ in range(int(n))]
        for made, part in zip(out, np.split(filled, int(n)), strict=True):
            for c in np.flatnonzero((z < 0).any(0)).tolist():
                holes = np.flatnonzero((z[:, c] < 0) & (part[:, c] >= 0))
                at = names.index(table.names[c])
                new = table.columns[c].series(part[holes, c], generator(seed))
                made.isetitem(at, _filled(made.iloc[:, at], holes, new))
        if empty := [
            name for name in table.names if any(one[name].isna().any() for one in out)
        ]:
            why = "identifiers and columns without values cannot be filled"
            kept = f"constraints cannot be kept in {len(np.unique(left % len(z)))} of {len(z)} rows"
            said = f"impute left cells of {shown(empty)} empty: {kept if len(left) else why}"
            warnings.warn(said, UserWarning, stacklevel=2)
        return out[0] if n == 1 else out


def _filled(column: Any, holes: np.ndarray, new: Any) -> Any:
    """A column with new cells. One without values takes their dtype; new categories come last."""
    if column.isna().all():
        return new.set_axis(holes).reindex(range(len(column))).set_axis(column.index)
    column = column.copy()
    if hasattr(column, "cat"):
        known = column.cat.categories
        column = column.cat.add_categories(
            [value for value in new.unique() if value not in known]
        )
        new = new.astype(column.dtype)
    try:
        column.iloc[holes] = new.array
    except TypeError as error:
        fact = f"column {column.name!r} has dtype {column.dtype}, and new cells are {new.dtype}"
        raise ValueError(f"{fact}; convert it before impute") from error
    return column
