"""The plan of the fit of a table: in which order and how its columns are drawn.

What takes a trial is None until the fit has chosen it, and prints as "auto".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sliceflow.base.fit_plan import FitPlan
from sliceflow.estimators.tables.columns.column_data import MAX_PREDICTORS
from sliceflow.estimators.tables.draws.neighbor_columns import allows_neighbors
from sliceflow.estimators.tables.draws.strategies import Strategy, uses_ridge
from sliceflow.estimators.tables.draws.trees import MAX_ROWS_PER_TREE, TreeSettings
from sliceflow.estimators.tables.rows.table_rows import format_names
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials.choose_strategies import MAX_ROWS_PER_TRIAL
from sliceflow.saved_types import Between, Count, Label

# About the cost of a fit, to tell users before it starts: seconds on one thread of an
# x86-64 machine at 2.5 GHz. They were measured on 18 tables of 100 to 100,000 rows and
# 4 to 80 columns: 15 of random numbers and categories, and penguins, diamonds and ofp
# (benchmarks/table_sets.py). Fits took from a quarter to 2.5 times the estimate, and
# less where the first trials said that neighbors are no use. Users are told an order of
# magnitude.
# The trees of the chain, for each row and each column that a tree sees.
SECONDS_PER_ROW_AND_PREDICTOR = 2e-6
# A trial of a regression, for the same, of the rows that trials are limited to. Where
# regressions are good, trees are tried as well, and it takes twice as long.
SECONDS_PER_TRIAL_ROW_AND_PREDICTOR = 4e-6
# A trial of neighbors, most of which a detector takes, and that for each column.
SECONDS_PER_NEIGHBOR_TRIAL = 0.05
SECONDS_PER_NEIGHBOR_TRIAL_AND_COLUMN = 0.012
# Reading a cell.
SECONDS_PER_CELL = 1e-6

# Bytes for each cell: of a fit, and of one that tries neighbors, most of which is the
# detector's. The peaks of 100 to 100,000 rows were measured, without what is imported.
BYTES_PER_CELL = 200
BYTES_PER_CELL_WITH_NEIGHBOR_TRIALS = 2_000
# About the bytes of each drawn cell, and of each cell of the table, which draws read.
BYTES_PER_DRAWN_CELL = 64


@dataclass(frozen=True, kw_only=True)
class TablePlan(FitPlan):
    """The plan of the fit of a table. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # names of the columns, in the order of the chain
    # How each of these columns is drawn; None if a trial will choose that.
    strategies: tuple[Strategy | None, ...]
    min_samples_leaf: Count  # see `TreeSettings`
    ccp_factor: Annotated[float, Between(0)]
    n_neighbors: Count | None = 0  # None if trials will choose it
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up
    # How many trials the fit runs, to choose
    n_regression_trials: Count = 0  # whether regressions are better than trees
    n_label_trials: Count = 0  # whether each level of a label has trees of its own
    n_neighbor_trials: Count = 0  # how many neighbors are best: at most so many trials

    @property
    def method(self) -> str:
        """The method that draws rows, in a few words."""
        if self.n_neighbors:
            return "neighbors and a chain of trees"
        return "chain of trees"

    @property
    def n_trials(self) -> int:
        """How many trials the fit runs, at most."""
        return self.n_regression_trials + self.n_label_trials + self.n_neighbor_trials

    @property
    def chosen_strategies(self) -> tuple[Strategy, ...]:
        """How each column is drawn; a ValueError if a trial has not chosen it yet."""
        chosen = tuple(strategy for strategy in self.strategies if strategy is not None)
        if len(chosen) < len(self.strategies):
            raise ValueError("the fit has not chosen yet how columns are drawn")
        return chosen

    @property
    def tree_settings(self) -> TreeSettings:
        """How fine trees are, as `TableFlow(tree_settings=…)` takes it.

        Raises a ValueError if the fit has not chosen yet how many neighbors it takes.
        """
        if self.n_neighbors is None:
            fact = "the fit has not chosen yet how many neighbors it takes"
            raise ValueError(f"{fact}: plan_ has the tree_settings of a fitted table")
        return TreeSettings(self.min_samples_leaf, self.ccp_factor, self.n_neighbors)

    def tree_settings_for(self, allow_missing: bool) -> TreeSettings:
        """The settings to draw rows with or without missing cells.

        Draws from neighbors have the missing cells of real rows. So if no cell may
        be missing, trees draw all columns.
        """
        if allow_missing:
            return self.tree_settings
        return self.tree_settings._replace(n_neighbors=0)

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", format_names(self.order)),
            ("neighbors", self._neighbors_in_words()),
            ("trees", self._trees_in_words()),
            ("separate trees", self._separate_trees_in_words()),
            ("regressions", self._regressions_in_words()),
            ("rules", format_names(self.rules)),
            ("identifiers", format_names(self.identifiers)),
            ("model", "keeps all rows"),
        ]

    def _neighbors_in_words(self) -> str:
        if self.n_neighbors == 0:
            return ""
        if self.n_neighbors is None:
            return "auto: dense numbers from neighbors, or from trees"
        k = self.n_neighbors
        return f"dense numbers from the {k} rows nearest to a random one"

    def _trees_in_words(self) -> str:
        return (
            f"leaves of {self.min_samples_leaf} rows or more; "
            f"splits worth {self.ccp_factor:g} times noise"
        )

    def _separate_trees_in_words(self) -> str:
        for name, strategy in zip(self.order, self.strategies, strict=True):
            if strategy == "splitting_label":
                return f"for each level of {name!s}"
        if self.n_label_trials and None in self.strategies:
            return "auto"
        return ""

    def _regressions_in_words(self) -> str:
        """The names of columns that are drawn along a regression."""
        if self.n_regression_trials and None in self.strategies:
            return f"auto, of at most {self.n_regression_trials} columns"
        names = []
        for name, strategy in zip(self.order, self.strategies, strict=True):
            if strategy is not None and uses_ridge(strategy):
                names.append(name)
        return format_names(names)

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        n_cells = self.n_rows * max(1, len(self.order))
        if self.n_neighbor_trials:
            return BYTES_PER_CELL_WITH_NEIGHBOR_TRIALS * n_cells
        return BYTES_PER_CELL * n_cells

    def sample_bytes(self, n: int) -> int:
        """About how much memory it takes to draw n rows."""
        n_cells = (n + self.n_rows) * max(1, self.n_columns)
        return BYTES_PER_DRAWN_CELL * n_cells

    @property
    def seconds(self) -> float:
        """About how long the fit takes, on one thread, with its trials."""
        n_drawn = len(self.order)
        if n_drawn == 0:
            return 0.0
        seconds_of_reading = SECONDS_PER_CELL * self.n_rows * n_drawn
        return (
            seconds_of_reading
            + self._seconds_of_trees()
            + self._seconds_of_strategy_trials()
            + self._seconds_of_neighbor_trials()
        )

    @property
    def _n_predictors(self) -> int:
        """The number of columns that trees see or draw, summed over all trees."""
        n_drawn = len(self.order)
        # Each column sees those before it.
        return n_drawn + sum(min(k, MAX_PREDICTORS) for k in range(n_drawn))

    def _seconds_of_trees(self) -> float:
        n_fitted = min(self.n_rows, MAX_ROWS_PER_TREE)
        return SECONDS_PER_ROW_AND_PREDICTOR * n_fitted * self._n_predictors

    def _seconds_of_strategy_trials(self) -> float:
        n_trials = self.n_regression_trials + self.n_label_trials
        n_rows = min(self.n_rows, 2 * MAX_ROWS_PER_TRIAL)
        n_predictors = self._n_predictors * n_trials / len(self.order)
        return SECONDS_PER_TRIAL_ROW_AND_PREDICTOR * n_rows * n_predictors

    def _seconds_of_neighbor_trials(self) -> float:
        seconds_per_trial = SECONDS_PER_NEIGHBOR_TRIAL
        seconds_per_trial += SECONDS_PER_NEIGHBOR_TRIAL_AND_COLUMN * len(self.order)
        return seconds_per_trial * self.n_neighbor_trials

    def is_compatible_with(self, table: Table) -> bool:
        """Whether this can be the plan of a fit to a table, as in a sound file."""
        names = tuple(table.names[c] for c in table.drawing_order)
        if self.order != names or len(self.strategies) != len(names):
            return False
        if None in self.strategies or self.n_neighbors is None:
            return False
        for c, strategy in zip(
            table.drawing_order, self.chosen_strategies, strict=True
        ):
            column = table.columns[c]
            if uses_ridge(strategy) and not column.new_value_policy.allows_new_values:
                return False
            if strategy == "splitting_label" and not column.is_binary:
                return False
        if self.n_neighbors == 0:
            return True
        return allows_neighbors(table, self.chosen_strategies)
