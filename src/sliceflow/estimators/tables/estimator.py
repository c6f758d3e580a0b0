"""`TableFlow`: new, conditional and imputed rows of tables with columns of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from sliceflow.base.estimator import Estimator, draws_per_scored_row
from sliceflow.base.protocols import ParticleResult, StorableModel
from sliceflow.base.saving import FitRecord
from sliceflow.devices import require_memory
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.errors import DataError
from sliceflow.estimators.tables.describe_columns import describe_columns
from sliceflow.estimators.tables.events import TableEvent
from sliceflow.estimators.tables.files import read_if_path
from sliceflow.estimators.tables.fit import TableFitPlanner, TableHistory, check_no_y
from sliceflow.estimators.tables.fitted import FittedTable, SavedTable
from sliceflow.estimators.tables.given.texts import parse_given_text
from sliceflow.estimators.tables.imputing.filled_dataframes import fill_dataframe
from sliceflow.estimators.tables.parameters import (
    MissingCells,
    RareLevels,
    RuleSearch,
    TableParameters,
    TreeSettingsLike,
    require_missing_cells,
)
from sliceflow.estimators.tables.plan import TablePlan
from sliceflow.estimators.tables.rows.stored_levels import ColumnName
from sliceflow.estimators.tables.rows.table_rows import (
    TableRows,
    as_dataframe,
    read_dataframe,
)
from sliceflow.estimators.tables.table import FoundRule, Table
from sliceflow.validation import require_int, require_verbosity, with_plain_numbers

if TYPE_CHECKING:
    import pandas as pd


class TableFlow(Estimator[TableRows, FittedTable, TableEvent, TablePlan]):
    """Generative model of a table: numbers, categories, dates, missing cells.

    This is not a flow of particles. It is a chain of one-dimensional conditional
    transports on trees, after Knothe and Rosenblatt: new rows are drawn column by
    column, each cell given those before it
    (`sliceflow.estimators.tables.draws.chain`). A cell has the value of a similar row,
    or one between two of them. Smooth numbers of a small table may be drawn together,
    from a row and its neighbors (`sliceflow.estimators.tables.draws.neighbors_model`).
    Sequential trees for synthetic tables are known from synthpop [1]_.

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
        `sliceflow.estimators.tables.rules.parse_constraints`.
    rules : "auto" or "off", default "auto"
        "auto" finds more rules that the rows keep, and keeps them: sums, products,
        parts of dates, orders, and columns that follow from others; see
        `estimators.tables.rules.search`. A constraint on the same columns counts
        instead. "off" finds none.
    missing : "model" or "never", default "model"
        Whether samples have missing cells: "model" draws them as often as in the table,
        and in rows like those of the table; "never" draws none. (`impute` fills those
        of a table.)
    tree_settings : TreeSettings, tuple or None, default None
        How fine trees are, such as ``TreeSettings(min_samples_leaf=5, ccp_factor=2)``,
        and from how many neighbors dense numbers are drawn. A tuple has the same
        numbers: ``(5, 2)``. None has leaves of 7 rows or more, splits that gain 2.25
        times what one of noise would, and neighbors if they are better; ``plan_`` shows
        what was taken.
    min_count : int, default 5
        Numbers and times of fewer rows do not come back: where one is drawn, samples
        have another near by, between order statistics of the column and on its grid
        (`sliceflow.estimators.tables.draws.rare_numbers`). 1 lets all of them come
        back.
    rare_levels : "warn", "keep" or "merge", default "warn"
        What becomes of categories of fewer than `min_count` rows: "keep" draws them
        like all others, "warn" does so with a warning that names the columns, and
        "merge" draws "other" instead
        (`sliceflow.estimators.tables.columns.rare_levels`).
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
        it leave, and `seconds` since the fit began, with its trials (not in files).
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

    _saved_types = (SavedTable, TableRows)
    _history_type = TableHistory

    def __init__(  # noqa: PLR0913
        self,
        *,
        kinds: Mapping[str, str] | None = None,
        constraints: Sequence[str] = (),
        rules: RuleSearch = "auto",
        missing: MissingCells = "model",
        tree_settings: TreeSettingsLike | None = None,
        min_count: int = 5,
        rare_levels: RareLevels = "warn",
        random_state: RandomStateLike = None,
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

    def _fit_planner(self, like_fitted: bool = False) -> TableFitPlanner:
        """The planner that reads and plans rows, for the current parameters."""
        current_rows = None
        if like_fitted:
            current_rows = self._current_rows()
        return TableFitPlanner(self._validated_parameters(), current_rows)

    def _validated_parameters(self) -> TableParameters:
        """The parameters, checked."""
        parameters = TableParameters(
            kinds=self.kinds,
            constraints=self.constraints,
            rules=self.rules,
            missing=self.missing,
            tree_settings=self.tree_settings,
            min_count=self.min_count,
            rare_levels=self.rare_levels,
        )
        parameters.require_valid()
        require_verbosity(self.verbose)
        return with_plain_numbers(parameters)

    def plan(self, X: Any, y: Any = None) -> TablePlan:
        """What ``fit(X)`` would do, its memory and its time. Print it.

        The kinds of columns and the rules are found, and no model is fitted. What the
        fit chooses by trial is "auto": which columns regressions predict, whether a
        label has separate trees, and whether neighbors draw dense numbers. `plan_` has
        what was chosen. ``fit(flow.prepare(X))``, whose argument has a `plan`, reads
        the table once.

        Parameters
        ----------
        X : DataFrame or path
            As in `fit`.
        y : None, default None
            Tables have no y.

        Returns
        -------
        plan : TablePlan

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3})
        >>> TableFlow(random_state=0).plan(table).n_columns
        2
        """
        return super().plan(X, y)

    def _allows_missing(self) -> bool:
        """Whether samples have missing cells; an error for an invalid `missing`."""
        require_missing_cells(self.missing)
        return self.missing == "model"

    def _storable_model(self, model: FittedTable) -> SavedTable:
        return model.saved

    def _restore_model(
        self, saved: StorableModel, rows: TableRows | None
    ) -> FittedTable:
        assert isinstance(saved, SavedTable), "files of tables hold this"
        if rows is None:
            raise ValueError("the table has no rows")
        return saved.with_table(self._fit_planner().infer_table(rows))

    def _set_fitted(
        self,
        record: FitRecord[TableRows, FittedTable],
        particles: ParticleResult[Any] | None = None,
    ) -> None:
        super()._set_fitted(record)
        names = record.model.table.names
        self.n_features_in_ = len(names)
        # Names may be tuples, of which numpy would make an array of two dimensions.
        self.feature_names_in_ = np.empty(len(names), dtype=object)
        self.feature_names_in_[:] = names

    @property
    def columns_(self) -> pd.DataFrame:
        """What each column was taken for: a DataFrame with one row for each column."""
        return describe_columns(self._fitted_model().table)

    @property
    def rules_(self) -> list[FoundRule]:
        """Rules that were found in the rows, with the share of rows that keeps each."""
        table: Table = self._fitted_model().table
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
        >>> from sliceflow import TreeSettings
        >>> net = np.arange(300)
        >>> table = pd.DataFrame({"net": net, "tax": net % 7, "total": net + net % 7})
        >>> settings = TreeSettings(min_samples_leaf=5, ccp_factor=2)
        >>> flow = TableFlow(tree_settings=settings).fit(table)
        >>> flow.rules_kept(table.assign(total=0))["total = net + tax"] < 0.01
        True
        """
        table: Table = self._fitted_model().table
        df = as_dataframe(read_if_path(X)).copy(deep=False)
        for column in table.columns:
            if column.kind == "drop" and column.name not in df:
                df[column.name] = None
        level_positions = table.positions_of(
            read_dataframe(df), new_as_missing=True, outside_as_missing=True
        )
        return table.shares_kept(level_positions)

    @property
    def kinds_(self) -> dict[ColumnName, str]:
        """The kind of every column, by name."""
        table: Table = self._fitted_model().table
        return {column.name: column.kind for column in table.columns}

    def sample(
        self,
        n: int = 1,
        *,
        given: Mapping[Any, Any] | None = None,
        random_state: RandomStateLike = None,
    ) -> pd.DataFrame:
        """Draw new rows.

        Parameters
        ----------
        n : int, default 1
            Number of rows.
        given : dict or None, default None
            What all rows must have, by column: a value, None for missing, a list of
            values, or a range (low, high), of which one may be None. Samples are plain
            draws that have what is given, or draws of a chain that is fitted again to
            the rows that have it. A warning says if these rows are few.
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
        require_int("n", n, 1)
        n = int(n)
        model: FittedTable = self._fitted_model()
        seed = Seed.from_random_state(random_state)
        allow_missing = self._allows_missing()
        require_memory(
            model.sample_bytes(n),
            "cpu",
            f"n={n} samples need",
            "draw fewer at a time",
        )
        is_empty = isinstance(given, Mapping) and not given
        if given is None or is_empty:
            return model.sample(n, seed, allow_missing)
        return model.sample_given(n, seed, given, allow_missing)

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
        model: FittedTable = self._fitted_model()
        check_no_y(y)
        seed = self._record.seed.child("score")
        row_features = model.features(read_if_path(X))
        n_rows = row_features.shape[1]
        n_drawn = n_rows * draws_per_scored_row(n_rows)
        sample_features = model.features(model.sample(n_drawn, seed))

        import torch  # it takes seconds, and only the score of a table needs it

        from sliceflow.engine.clouds import sliced_distance

        samples = torch.from_numpy(sample_features)
        rows = torch.from_numpy(row_features)
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
        table: Table = self._fitted_model().table
        texts = [str(column.name) for column in table.columns]
        if name not in texts:
            fact = f"given {name!r} is not a column"
            raise DataError(fact, f"there are {', '.join(texts)}")
        return parse_given_text(table.columns[texts.index(name)], text)

    @overload
    def impute(
        self, X: Any, n: Literal[1] = 1, *, random_state: RandomStateLike = None
    ) -> pd.DataFrame: ...

    @overload
    def impute(
        self, X: Any, n: int, *, random_state: RandomStateLike = None
    ) -> pd.DataFrame | list[pd.DataFrame]: ...

    def impute(
        self, X: Any, n: int = 1, *, random_state: RandomStateLike = None
    ) -> pd.DataFrame | list[pd.DataFrame]:
        """Fill the missing cells of a table; all else stays.

        Other cells, the index and the dtypes are those of X. A filled cell is a draw
        given the other cells of its row (`estimators.tables.imputing.sweeps`). The best
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
        >>> from sliceflow import TreeSettings
        >>> table = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3})
        >>> settings = TreeSettings(min_samples_leaf=5, ccp_factor=2)
        >>> flow = TableFlow(tree_settings=settings).fit(table)
        >>> incomplete = table.head(2).assign(a=[np.nan, 1.0])
        >>> filled = flow.impute(incomplete, random_state=0)
        >>> bool(filled["a"].notna().all()), filled["a"][1].item()
        (True, 1.0)
        """
        require_int("n", n, 1)
        n = int(n)
        table: Table = self._fitted_model().table
        seed = Seed.from_random_state(random_state)
        df = as_dataframe(read_if_path(X))
        nbytes = 8 * n * df.size  # of the cells that are filled, at most
        what = f"n={n} filled tables need"
        require_memory(nbytes, "cpu", what, "fill fewer at a time")
        filled_dfs = fill_dataframe(table, df, n, seed)
        if n == 1:
            return filled_dfs[0]
        return filled_dfs
