"""`TableFlow`: new, conditional and imputed rows of tables with columns of any kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.devices import require_memory
from sliceflow.engine.random import RandomState, Seed
from sliceflow.errors import DataError, warn_user
from sliceflow.models.estimator import Estimator
from sliceflow.models.protocols import ParticleResult
from sliceflow.models.saving import FitRecord
from sliceflow.spaces.tables.coords import Coords, has_value, is_missing
from sliceflow.spaces.tables.events import ColumnEvent
from sliceflow.spaces.tables.files import read_if_path
from sliceflow.spaces.tables.fit import (
    FittedTable,
    RareLevels,
    TableAdapter,
    TableHistory,
    TablePlan,
)
from sliceflow.spaces.tables.given_texts import parse_given
from sliceflow.spaces.tables.imputing import fill_missing
from sliceflow.spaces.tables.rules import is_computing
from sliceflow.spaces.tables.table import FoundRule, Table
from sliceflow.spaces.tables.table_rows import TableRows, format_names, read_dataframe
from sliceflow.spaces.tables.trees import TreeSettings
from sliceflow.validation import is_bool, is_int, is_real, require

if TYPE_CHECKING:
    import pandas as pd

# `score` draws at least this many rows, so that the noise of its draws is small even if
# it compares them with few rows. More would take longer.
MIN_ROWS_SCORED = 2_000

# `columns_` is printed in lines of this many characters: in a terminal of 80, pandas
# leaves out columns in the middle, the kind among them, if lines are longer.
LINE_WIDTH = 79

# Notes are not cut to fewer characters than this, however wide the other columns are: a
# few letters would say nothing.
MIN_NOTE_WIDTH = 12


class TableFlow(Estimator[TableRows, FittedTable, ColumnEvent]):
    """Generative model of a table: numbers, categories, dates, missing cells.

    This is not a flow of particles. It is a chain of one-dimensional conditional
    transports on trees, after Knothe and Rosenblatt: new rows are drawn column by
    column, each cell given those before it (`sliceflow.spaces.tables.chain`). A cell
    has the value of a similar row, or one between two of them. Smooth numbers of a
    small table may be drawn together, from near rows
    (`sliceflow.spaces.tables.nearest_rows_model`). Sequential trees for synthetic
    tables are known from synthpop [1]_.

    There is no network and no training loop: a fit takes seconds, on the CPU. The model
    keeps the rows, and so does its file: treat it like the table. Identifiers and
    personal data are made up anew, and numbers that few rows have are moved.

    Parameters
    ----------
    kinds : dict or None, default None
        Kinds of columns that the table does not show, by name: "continuous", "integer",
        "boolean", "category", "ordered", "datetime" (or "datetime:%d.%m.%Y" for text),
        "identifier", "drop".
    constraints : sequence of str, default ()
        What must hold between columns, such as ``"start <= end"``, ``"total = a + b"``,
        ``"x > 0"`` or ``"combinations(make, model)"``; see
        `sliceflow.spaces.tables.parse_constraints`.
    rules : "auto" or "off", default "auto"
        "auto" finds more rules that the rows keep, and keeps them: sums, products,
        parts of dates, orders, and columns that follow from others; see
        `sliceflow.spaces.tables.rule_search`. A constraint on the same columns counts
        instead. "off" finds none.
    missing : "model" or "never", default "model"
        Whether samples have missing cells: "model" draws them as often, and together
        with what, as in the table; "never" draws none. (`impute` fills those of a
        table.)
    tree_settings : tuple of two or three numbers, TreeSettings or None, default None
        The tuple has `min_samples_leaf`, the least number of rows of a leaf, and
        `ccp_factor`, what a split must gain, relative to a split of pure noise: with
        more of both, trees copy less. A third number is `n_neighbors`, from how many
        near rows smooth numbers of a small table without constraints are drawn; 0, its
        default, draws all from trees. None takes the finest trees that copy no rows,
        and near rows if they are better; ``plan_`` shows what was taken.
    min_count : int, default 5
        Numbers and times of fewer rows do not come back: where one is drawn, samples
        have another near by, between order statistics of the column and on its grid
        (`sliceflow.spaces.tables.rare_numbers`). 1 lets all of them come back.
    rare_levels : "warn", "keep" or "merge", default "warn"
        What becomes of categories of fewer than `min_count` rows: "keep" draws them as
        others, "warn" does so with a warning that names the columns, and "merge" draws
        "other" instead (`sliceflow.spaces.tables.rare_levels`).
    random_state : int, RandomState, Generator or None, default None
        The same seed and machine give the same bits.
    verbose : int, default 0
        1 logs how far the fit is, to the logger "sliceflow" of Python's `logging`, or
        to stderr if no handler shows that.

    Attributes
    ----------
    columns_ : DataFrame
        One row for each column: its kind, its share of missing cells, its number of
        different values, and a note.
    kinds_ : dict
        The kind of every column, by name.
    rules_ : list of FoundRule
        The rules that were found in the rows. Each has a `text`, the `share` of the
        rows that keep it, and the names of its `columns`.
    plan_ : TablePlan
        What the fit did. Print it.
    history_ : dict of lists
        Columns of equal length, with an entry for each step of the chain: `column`, its
        name, `unexplained`, the share of the column's impurity that the columns before
        it leave, and `seconds` since the fit began (not in files).
    n_features_in_ : int
        The number of columns.
    feature_names_in_ : array
        The names of the columns.

    References
    ----------
    .. [1] B. Nowok, G. M. Raab and C. Dibben (2016), "synthpop: Bespoke creation of
       synthetic data in R", Journal of Statistical Software 74(11).

    Examples
    --------
    >>> import pandas as pd
    >>> from sliceflow import TableFlow
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"age": rng.integers(18, 80, 300)})
    >>> table["plan"] = ["basic", "gold"] * 150
    >>> price = 20 + (table["plan"] == "gold") * table["age"]
    >>> table["spent"] = np.round(rng.gamma(2, price), 2)
    >>> flow = TableFlow(random_state=0).fit(table)
    >>> gold = flow.sample(3, given={"plan": "gold", "age": (30, 40)}, random_state=0)
    >>> gold["plan"].tolist()
    ['gold', 'gold', 'gold']
    """

    _state_types = (FittedTable, TableRows)
    plan_: TablePlan
    _history_type = TableHistory

    def __init__(  # noqa: PLR0913
        self,
        *,
        kinds: Mapping[str, str] | None = None,
        constraints: Sequence[str] = (),
        rules: Literal["auto", "off"] = "auto",
        missing: Literal["model", "never"] = "model",
        tree_settings: tuple[int, float] | tuple[int, float, int] | None = None,
        min_count: int = 5,
        rare_levels: RareLevels = "warn",
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        self.kinds = kinds
        self.constraints = constraints
        self.rules = rules
        self.missing = missing
        self.tree_settings = tree_settings
        self.min_count = min_count
        self.rare_levels = rare_levels
        self.random_state = random_state
        self.verbose = verbose

    def _adapter(self, like_fitted: bool = False) -> TableAdapter:
        """The adapter that reads and plans rows, for the current parameters."""
        self._allows_missing()
        is_list = not isinstance(self.constraints, str)
        what = "a list of expressions such as ['a <= b']"
        require(is_list, "constraints", self.constraints, what)
        require(self.rules in ("auto", "off"), "rules", self.rules, "'auto' or 'off'")
        is_count = is_int(self.min_count, 1)
        require(is_count, "min_count", self.min_count, "an int of at least 1")
        is_known = self.rare_levels in get_args(RareLevels)
        require(is_known, "rare_levels", self.rare_levels, "'warn', 'keep' or 'merge'")
        is_verbosity = is_bool(self.verbose) or is_int(self.verbose, 0)
        what = "a bool, or an int of at least 0"
        require(is_verbosity, "verbose", self.verbose, what)
        known_rows = None
        if like_fitted:
            known_rows = self._known_rows()
        return TableAdapter(
            kinds=_checked_kinds(self.kinds),
            constraints=tuple(self.constraints),
            search_rules=self.rules == "auto",
            known_rows=known_rows,
            tree_settings=_checked_tree_settings(self.tree_settings),
            min_count=int(self.min_count),
            rare_levels=self.rare_levels,
        )

    def _allows_missing(self) -> bool:
        """Whether samples have missing cells; an error if `missing` is no choice."""
        is_known = self.missing in ("model", "never")
        require(is_known, "missing", self.missing, "'model' or 'never'")
        return self.missing == "model"

    def _store(
        self,
        record: FitRecord[TableRows, FittedTable],
        particles: ParticleResult | None = None,
    ) -> None:
        """Replace the fitted attributes; the table of a file is read from its rows."""
        fitted = record.fitted
        if fitted.known_table is None:
            if record.rows is None:
                raise ValueError("the table has no rows")
            table = self._adapter().infer_table(record.rows)
            if not fitted.plan.is_compatible_with(table):
                raise ValueError("the rows do not fit the plan")
            fitted = replace(fitted, known_table=table)
        super()._store(replace(record, fitted=fitted))
        names = fitted.table.names
        self.n_features_in_ = len(names)
        # Names may be tuples, of which numpy would make an array of two dimensions.
        self.feature_names_in_ = np.empty(len(names), dtype=object)
        self.feature_names_in_[:] = names

    @property
    def columns_(self) -> pd.DataFrame:
        """What each column was taken for: a DataFrame with one row for each column."""
        import pandas as pd

        table: Table = self._fitted_state().table
        described = [column.describe() for column in table.columns]
        for rule in table.all_rules:
            if rule.is_discovered and is_computing(rule):
                derived, *others = rule.column_indices
                note = described[derived]["note"]
                names = format_names([table.names[c] for c in others])
                described[derived]["note"] = f"follows from {names}, {note}"
        df = pd.DataFrame(described)
        df["note"] = _shortened_notes(df)
        return df

    @property
    def rules_(self) -> list[FoundRule]:
        """Rules that were found in the rows, with the share of rows that keeps each."""
        table: Table = self._fitted_state().table
        return table.found_rules

    def rules_kept(self, X: Any) -> dict[str, float]:
        """The share of rows that keep each rule of `rules_`.

        Rows do not count for a rule if one of its columns has a missing cell, a
        category that is not in the table, or a number outside the table's range: no
        sample has these.

        Parameters
        ----------
        X : DataFrame or path
            Rows with the columns of the table. Columns of the kind "drop" need not be
            there.

        Returns
        -------
        shares : dict
            The share of the rows, from 0 to 1, by the text of the rule.

        Examples
        --------
        >>> import pandas as pd
        >>> net = np.arange(300)
        >>> table = pd.DataFrame({"net": net, "tax": net % 7, "total": net + net % 7})
        >>> flow = TableFlow(tree_settings=(5, 2)).fit(table)
        >>> flow.rules_kept(table.assign(total=0))["total = net + tax"] < 0.01
        True
        """
        table: Table = self._fitted_state().table
        df = read_if_path(X)
        dropped = [column.name for column in table.columns if column.kind == "drop"]
        missing = {name: None for name in dropped if name not in df}
        cell_coords = table.coords_of(
            read_dataframe(df.assign(**missing)),
            new_as_missing=True,
            outside_as_missing=True,
        )
        return table.shares_kept(cell_coords)

    @property
    def kinds_(self) -> dict[Any, str]:
        """The kind of every column, by name."""
        table: Table = self._fitted_state().table
        return {column.name: column.kind for column in table.columns}

    def sample(
        self,
        n: int = 1,
        *,
        given: Mapping[Any, Any] | None = None,
        random_state: RandomState = None,
    ) -> pd.DataFrame:
        """Draw new rows.

        Parameters
        ----------
        n : int, default 1
            Number of rows.
        given : dict or None, default None
            What all rows must have, by column: a value, None for missing, a list of
            values, or a range (low, high), of which one may be None. The chain is
            fitted again to the rows that have it. A warning says if these are few.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new rows.

        Returns
        -------
        rows : DataFrame
            n rows with the columns and dtypes of the table.

        Raises
        ------
        DataError
            If no row can have what is `given`.
        """
        require(is_int(n, 1), "n", n, "an int of at least 1")
        n = int(n)
        fitted: FittedTable = self._fitted_state()
        seed = Seed.from_random_state(random_state)
        allow_missing = self._allows_missing()
        require_memory(
            fitted.sample_bytes(n),
            "cpu",
            f"n={n} samples need",
            "draw fewer at a time",
        )
        if not given:
            return fitted.sample(n, seed, allow_missing)
        return fitted.sample_given(n, seed, given, allow_missing)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance of samples to rows: higher is better.

        Columns are scaled to be comparable. Pass held-out rows: on the fitted rows the
        model that copies best would win.

        Parameters
        ----------
        X : DataFrame or path
            Held-out rows.
        y : None, default None
            Tables have no y.

        Returns
        -------
        score : float
            At most 0.
        """
        fitted: FittedTable = self._fitted_state()
        seed = self._seed_copy().child("score")
        row_features = fitted.features(X)
        n_rows = row_features.shape[1]
        n_drawn = n_rows * math.ceil(MIN_ROWS_SCORED / n_rows)
        sample_features = fitted.features(fitted.sample(n_drawn, seed))

        import torch  # it takes seconds, and only the score of a table needs it

        from sliceflow.engine.clouds import Cloud, sliced_distance

        samples = Cloud(torch.from_numpy(sample_features))
        rows = Cloud(torch.from_numpy(row_features))
        return -sliced_distance(samples, rows, Seed(0))

    def parse_given(self, name: str, text: str) -> Any:
        """What a text stands for in `given`, as the command line takes it.

        ``30..40`` is a range, and so is ``>30`` or ``<=40``; ``a|b`` is a list, and the
        empty text is missing. Any other text is a value. Dates may be ISO dates, and
        numbers plain numbers, however the column writes them.

        Parameters
        ----------
        name : str
            The name of the column.
        text : str
            What the user typed.

        Returns
        -------
        given : the value, list or range
            For `given` of `sample`.
        """
        table: Table = self._fitted_state().table
        texts = [str(column.name) for column in table.columns]
        return parse_given(table.columns[texts.index(name)], text)

    @overload
    def impute(
        self, X: Any, n: Literal[1] = 1, *, random_state: RandomState = None
    ) -> pd.DataFrame: ...

    @overload
    def impute(
        self, X: Any, n: int, *, random_state: RandomState = None
    ) -> pd.DataFrame | list[pd.DataFrame]: ...

    def impute(
        self, X: Any, n: int = 1, *, random_state: RandomState = None
    ) -> pd.DataFrame | list[pd.DataFrame]:
        """Fill the missing cells of a table; all else stays.

        Other cells, the index and the dtypes are those of X. A filled cell is a draw
        given the other cells of its row (`sliceflow.spaces.tables.imputing`). The best
        guess of a number is the median of many draws, and of a category the most
        frequent draw. Cells that follow from others by a rule are computed. A warning
        says which cells stay empty, and which hold a category that the model has not
        seen: such a cell says nothing about the others of its row.

        Parameters
        ----------
        X : DataFrame or path
            A table with the columns of the fitted one, and with missing cells.
        n : int, default 1
            How many filled tables to return. How much a cell differs between them says
            how uncertain it is.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives other draws.

        Returns
        -------
        filled : DataFrame, or a list of n DataFrames if n is more than 1

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3})
        >>> flow = TableFlow(tree_settings=(5, 2)).fit(table)
        >>> holes = table.head(2).assign(a=[np.nan, 1.0])
        >>> filled = flow.impute(holes, random_state=0)
        >>> bool(filled["a"].notna().all()), filled["a"][1].item()
        (True, 1.0)
        """
        require(is_int(n, 1), "n", n, "an int of at least 1")
        n = int(n)
        table: Table = self._fitted_state().table
        seed = Seed.from_random_state(random_state)
        df = read_if_path(X)
        rows = read_dataframe(df).align_columns(table.rows)
        cell_coords = table.coords_of(rows, new_as_missing=True)
        is_hole = np.column_stack([encoded.missing for encoded in rows.columns])
        _warn_of_new_levels(table, rows, is_missing(cell_coords) & ~is_hole)
        filled_coords, unfilled = fill_missing(table, cell_coords, n, seed)
        filled_dfs = []
        for part_coords in np.split(filled_coords, n):
            filled_df = _with_filled_cells(df, table, is_hole, Coords(part_coords))
            filled_dfs.append(filled_df)
        _warn_of_empty_cells(table, filled_dfs, np.unique(unfilled % len(cell_coords)))
        if n == 1:
            return filled_dfs[0]
        return filled_dfs


def _checked_kinds(kinds: Any) -> Mapping[str, str]:
    """The parameter `kinds` as a mapping; an error if it is not one."""
    if kinds is None:
        return {}
    is_valid = isinstance(kinds, Mapping)
    is_valid = is_valid and all(isinstance(name, str) for name in kinds)
    what = "None or a dict such as {'zip': 'category'}"
    require(is_valid, "kinds", kinds, what)
    checked: Mapping[str, str] = kinds
    return checked


def _checked_tree_settings(given: Any) -> TreeSettings | None:
    """The parameter `tree_settings`; an error if it is neither None nor numbers."""
    if given is None:
        return None
    what = "None or numbers such as (10, 2.5) or (10, 2.5, 20)"
    is_tuple = isinstance(given, tuple) and len(given) in (2, 3)
    require(is_tuple, "tree_settings", given, what)
    settings = TreeSettings(*given)
    is_valid = (
        is_int(settings.min_samples_leaf, 1)
        and is_real(settings.ccp_factor, 0)
        and is_int(settings.n_neighbors, 0)
    )
    require(is_valid, "tree_settings", given, what)
    return settings


def _shortened_notes(df: pd.DataFrame) -> list[str]:
    """The notes of `columns_`, as long as there is room beside the other columns."""
    width = LINE_WIDTH - len(str(len(df) - 1))  # of the index
    separator = 2  # spaces before each column
    for name in df.columns:
        width -= separator
        if name != "note":
            cells = [name, *df[name].astype(str)]
            width -= max(len(cell) for cell in cells)
    width = max(MIN_NOTE_WIDTH, width)
    notes = []
    for note in df["note"]:
        if len(note) > width:
            note = f"{note[: width - 1]}…"
        notes.append(note)
    return notes


def _with_filled_cells(
    df: pd.DataFrame, table: Table, is_hole: Mask, filled_coords: Coords
) -> pd.DataFrame:
    """A copy of a DataFrame, whose cells in `is_hole` (m, d) are missing, with these.

    `filled_coords` (m, d) are the coordinates of the filled rows.
    """
    filled_df = df.copy()
    names = df.columns.tolist()
    for c in np.flatnonzero(is_hole.any(axis=0)).tolist():
        holes = np.flatnonzero(is_hole[:, c] & has_value(filled_coords[:, c]))
        new_cells = table.columns[c].decode(filled_coords[holes, c])
        place = names.index(table.names[c])
        series = _with_new_cells(filled_df.iloc[:, place], holes, new_cells)
        filled_df.isetitem(place, series.array)
    return filled_df


def _with_new_cells(series: pd.Series, holes: Ints, new_cells: pd.Series) -> pd.Series:
    """A column of a DataFrame with new cells in the rows with these indices.

    A column without values takes their dtype, and new categories come last.
    """
    if series.isna().all():
        cells = new_cells.set_axis(holes).reindex(range(len(series)))
        return cells.set_axis(series.index)
    series = series.copy()
    if hasattr(series, "cat"):
        known = series.cat.categories
        new = [value for value in new_cells.unique() if value not in known]
        series = series.cat.add_categories(new)
        new_cells = new_cells.astype(series.dtype)
    try:
        series.iloc[holes] = new_cells.array
    except TypeError as error:
        fact = f"it has dtype {series.dtype}, and new cells are {new_cells.dtype}"
        hint = "convert it before impute"
        raise DataError(fact, hint, column=series.name) from error
    return series


def _warn_of_new_levels(table: Table, rows: TableRows, is_new: Mask) -> None:
    """Warn of cells (m, d) with a level that the model does not know."""
    if not is_new.any():
        return
    row, c = np.argwhere(is_new)[0].tolist()
    encoded = rows.columns[c]
    value = encoded.levels.iloc[encoded.codes[row]]
    n_rows = int(is_new.any(axis=1).sum())
    text = (
        f"{n_rows} rows have values that the model has not seen, such as "
        f"{encoded.name}={value}: they stay, and tell nothing about other cells"
    )
    warn_user(text)


def _warn_of_empty_cells(
    table: Table, filled_dfs: Sequence[pd.DataFrame], unfilled: Ints
) -> None:
    """Warn if cells are still missing; constraints allow none in `unfilled` rows."""
    empty = []
    for name in table.names:
        if any(df[name].isna().any() for df in filled_dfs):
            empty.append(name)
    if not empty:
        return
    reason = "identifiers and columns without values cannot be filled"
    if len(unfilled):
        n_rows = len(filled_dfs[0])
        reason = f"constraints cannot be kept in {len(unfilled)} of {n_rows} rows"
    text = f"impute left cells of {format_names(empty)} empty: {reason}"
    warn_user(text)
