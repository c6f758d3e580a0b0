"""The fit of a table: its plan, its chain of models, and what a file keeps of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.devices import require_memory
from sliceflow.engine import events
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning
from sliceflow.models.estimator import FitResult
from sliceflow.models.plan import Plan
from sliceflow.saved_types import Between, Count, Label
from sliceflow.spaces.tables.chain import ChainStep, draw_rows, fit_chain
from sliceflow.spaces.tables.choose_strategies import choose_strategies
from sliceflow.spaces.tables.conditioning import GivenRows, condition_on
from sliceflow.spaces.tables.coords import Coords
from sliceflow.spaces.tables.events import ColumnEvent
from sliceflow.spaces.tables.files import read_if_path
from sliceflow.spaces.tables.rare_levels import rare_level_codes
from sliceflow.spaces.tables.strategies import Strategy, uses_ridge
from sliceflow.spaces.tables.table import Table
from sliceflow.spaces.tables.table_rows import TableRows, format_names, read_dataframe
from sliceflow.spaces.tables.trees import MAX_ROWS_PER_TREE, TreeSettings

if TYPE_CHECKING:
    import pandas as pd

# The modules `tree_tuning` and `conditional_draws` are imported where something is
# chosen: they import torch, which takes seconds, and plain draws need none of it.

# About the cost of a fit, to tell users before it starts: seconds on one thread for
# each cell that a tree is fitted to and each column that the tree sees; seconds for
# each cell that is read; and bytes for each cell. Users are told an order of magnitude.
SECONDS_PER_CELL_AND_PREDICTOR = 1.5e-6
SECONDS_PER_CELL = 1e-6
BYTES_PER_CELL = 200

# About the bytes of each drawn cell, and of each cell of the table, which draws read.
BYTES_PER_DRAWN_CELL = 64


# What is given is looked for in plain draws if at least this share of the rows has it,
# so at most about twenty rows are drawn for one. With a smaller share, samples would
# take long.
MIN_SHARE_TO_FILTER = 0.05

# Rounds of plain draws until enough rows have what is given. The model may draw such
# rows less often than the table has them, and then a second round is too small.
MAX_FILTER_ROUNDS = 4

# How levels of categories that few rows have are treated: they are kept with or without
# a warning, or merged.
RareLevels = Literal["warn", "keep", "merge"]


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """The plan of the fit of a table. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # names of the columns, in the order of the chain
    strategies: tuple[Strategy, ...]  # how each of these columns is drawn
    min_samples_leaf: Count  # see `TreeSettings`
    ccp_factor: Annotated[float, Between(0)]
    n_neighbors: Count = 0
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up

    @property
    def method(self) -> str:
        """The method that draws rows, in a few words."""
        if self.n_neighbors:
            return "near rows and a chain of trees"
        return "chain of trees"

    @property
    def tree_settings(self) -> TreeSettings:
        """How fine trees are, as `TableFlow(tree_settings=…)` takes it."""
        return TreeSettings(self.min_samples_leaf, self.ccp_factor, self.n_neighbors)

    def tree_settings_for(self, allow_missing: bool) -> TreeSettings:
        """The settings to draw rows with or without missing cells.

        Nearest rows give their missing cells to draws, so without these trees draw all
        columns.
        """
        if allow_missing:
            return self.tree_settings
        return self.tree_settings._replace(n_neighbors=0)

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        near_rows = ""
        if self.n_neighbors:
            k = self.n_neighbors
            near_rows = f"smooth numbers from the {k} rows nearest to a random one"
        trees = (
            f"leaves of {self.min_samples_leaf} rows or more; "
            f"splits worth {self.ccp_factor:g} times noise"
        )
        by_regression = []
        per_level = ""
        for name, strategy in zip(self.order, self.strategies, strict=True):
            if uses_ridge(strategy):
                by_regression.append(name)
            if strategy == "per_level":
                per_level = f"each level of {name!s} has trees of its own"
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", format_names(self.order)),
            ("near rows", near_rows),
            ("trees", trees),
            ("regressions", format_names(by_regression)),
            ("per_level", per_level),
            ("rules", format_names(self.rules)),
            ("identifiers", format_names(self.identifiers)),
            ("model", "keeps all rows"),
        ]

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        return BYTES_PER_CELL * self.n_rows * max(1, len(self.order))

    @property
    def seconds(self) -> float:
        """About how long the fit takes, on one thread."""
        n_drawn = len(self.order)
        n_fitted = min(self.n_rows, MAX_ROWS_PER_TREE)
        # Each column sees those before it, so pairs of columns count.
        seconds = SECONDS_PER_CELL_AND_PREDICTOR * n_fitted * n_drawn * (n_drawn + 1)
        return seconds + SECONDS_PER_CELL * self.n_rows * n_drawn

    def is_compatible_with(self, table: Table) -> bool:
        """Whether a table, of the rows of a file, could have this plan."""
        names = tuple(table.names[c] for c in table.drawing_order)
        if self.order != names or len(self.strategies) != len(names):
            return False
        for c, strategy in zip(table.drawing_order, self.strategies, strict=True):
            column = table.columns[c]
            if uses_ridge(strategy) and not column.new_values.are_possible:
                return False
            if strategy == "per_level" and not column.is_binary:
                return False
        if not self.n_neighbors:
            return True
        from sliceflow.spaces.tables.tree_tuning import may_use_neighbours

        return may_use_neighbours(table, self.strategies)


@dataclass(frozen=True)
class TableHistory:
    """The history of a fit in a file, one entry for each step of the chain.

    Seconds are left out: the same fit gives the same file.
    """

    column: Sequence[str]
    unexplained: Sequence[float]

    def check_saved(self) -> None:
        """Raise a ValueError for a damaged file."""
        if len(self.column) != len(self.unexplained):
            raise ValueError("the columns of a history have different lengths")

    def columns(self) -> dict[str, list[Any]]:
        """The history as `TableFlow.history_` shows it."""
        return {"column": list(self.column), "unexplained": list(self.unexplained)}


@dataclass(frozen=True)
class FittedTable:
    """The state of a fitted table, which draws rows.

    A file has the plan, the seed and the rows. The chain is fitted again from these.
    """

    plan: TablePlan
    seed: Seed
    # A state that is read from a file has None here, until `TableFlow` adds the table
    # of the rows.
    known_table: Table | None = field(default=None, metadata={"saved": False})
    known_chain: tuple[ChainStep, ...] | None = field(
        default=None, metadata={"saved": False}
    )

    needs_rows = True

    @property
    def table(self) -> Table:
        """The table that was fitted."""
        if self.known_table is None:
            raise ValueError("the table of a file is not known yet")
        return self.known_table

    @cached_property
    def chain(self) -> tuple[ChainStep, ...]:
        """The chain that draws rows with missing cells."""
        if self.known_chain is not None:
            return self.known_chain
        return tuple(self.fit_chain())

    def fit_chain(self, allow_missing: bool = True) -> Iterator[ChainStep]:
        """Fit the chain that draws rows with or without missing cells."""
        return fit_chain(
            self.table,
            self.table.cell_coords,
            fixed_indices=(),
            seed=self.seed,
            settings=self.plan.tree_settings_for(allow_missing),
            strategies=self.plan.strategies,
        )

    @cached_property
    def _chain_of_trees(self) -> tuple[ChainStep, ...]:
        """The chain that draws rows without missing cells, if `chain` cannot."""
        return tuple(self.fit_chain(allow_missing=False))

    def _chain_for(self, allow_missing: bool) -> tuple[ChainStep, ...]:
        """The chain that draws rows with or without missing cells.

        Only nearest rows need a chain of their own to draw none.
        """
        if not allow_missing and self.plan.n_neighbors:
            return self._chain_of_trees
        return self.chain

    def sample_bytes(self, n: int = 1) -> int:
        """About how much memory it takes to draw n rows."""
        n_cells = (n + self.plan.n_rows) * max(1, self.plan.n_columns)
        return BYTES_PER_DRAWN_CELL * n_cells

    def sample(self, n: int, seed: Seed, allow_missing: bool = True) -> pd.DataFrame:
        """A DataFrame of n new rows, with or without missing cells."""
        chain = self._chain_for(allow_missing)
        cell_coords = draw_rows(
            self.table,
            chain,
            n,
            seed=seed,
            fixed_coords={},
            allow_missing=allow_missing,
        )
        return self.table.to_dataframe(cell_coords, seed)

    def sample_given(
        self, n: int, seed: Seed, given: Mapping[Any, Any], allow_missing: bool = True
    ) -> pd.DataFrame:
        """A DataFrame of n new rows that have what is given, by column.

        They are plain draws that have it, or those of a chain of the other columns that
        is fitted to the rows that have it (`plain_draws_are_better`).
        """
        conditional = condition_on(self.table, given)
        cell_coords = self._filter_plain_draws(n, seed, conditional, allow_missing)
        n_lacking = n - len(cell_coords)
        if n_lacking:
            chain = fit_chain(
                conditional.table,
                conditional.cell_coords,
                fixed_indices=list(conditional.fixed_coords),
                seed=seed.child("given"),
                settings=self.plan.tree_settings_for(allow_missing),
                strategies=self.plan.strategies,
            )
            others = draw_rows(
                conditional.table,
                list(chain),
                n_lacking,
                seed=seed,
                fixed_coords=conditional.fixed_coords,
                allow_missing=allow_missing,
            )
            cell_coords = Coords(np.concatenate((cell_coords, others)))
        return conditional.table.to_dataframe(cell_coords, seed, conditional.values)

    def _filter_plain_draws(
        self, n: int, seed: Seed, conditional: GivenRows, allow_missing: bool
    ) -> Coords:
        """Coordinates (m, d) of at most n plain draws that have what is given.

        There are none if they would take long, or be worse than draws of a chain that
        is fitted to the rows that have it, or if rows were moved to have it.
        """
        found = Coords(np.empty((0, len(self.table.columns))))
        share = len(conditional.cell_coords) / len(self.table.cell_coords)
        if conditional.is_moved or share < MIN_SHARE_TO_FILTER:
            return found
        from sliceflow.spaces.tables.conditional_draws import plain_draws_are_better

        if not plain_draws_are_better(
            self.table,
            conditional.holds,
            conditional.fixed_coords,
            self.plan.tree_settings_for(allow_missing),
            self.plan.strategies,
        ):
            return found
        chain = self._chain_for(allow_missing)
        for round_index in range(MAX_FILTER_ROUNDS):
            drawn = draw_rows(
                self.table,
                chain,
                math.ceil((n - len(found)) / share),
                seed=seed.child("plain", round_index),
                fixed_coords={},
                allow_missing=allow_missing,
            )
            matching = drawn[conditional.holds(drawn)]
            found = Coords(np.concatenate((found, matching)))[:n]
            if len(found) == n:
                break
        return found

    def features(self, X: Any) -> Floats:
        """The features (a, n) of the n rows of a DataFrame."""
        cell_coords = self.table.coords_of(read_dataframe(X))
        axes = []
        for c in self.table.drawing_order:
            axes.append(self.table.columns[c].features(cell_coords[:, c]).T)
        if not axes:
            axes.append(np.zeros((1, len(cell_coords))))
        return np.vstack(axes)


@dataclass(frozen=True)
class TableAdapter:
    """Reads and plans the rows of a `TableFlow`."""

    kinds: Mapping[str, str]  # of columns, as the user gave them
    constraints: Sequence[str]
    known_rows: TableRows | None = None  # new rows must have the same columns
    tree_settings: TreeSettings | None = None  # None lets the rows choose
    search_rules: bool = True  # whether to find rules beside the constraints
    min_count: int = 1  # numbers of fewer rows are not drawn
    rare_levels: RareLevels = "keep"  # what becomes of levels of fewer rows

    def read(self, X: Any, y: Any) -> TableRows:
        """The rows of a DataFrame, or of the file that a path names; y must be None."""
        if y is not None:
            fact = "a table has no y"
            raise DataError(fact, "pass it as a column of X, and given= to sample")
        rows = read_dataframe(read_if_path(X))
        if self.known_rows is None:
            return rows
        return rows.align_columns(self.known_rows)

    def infer_table(self, rows: TableRows) -> Table:
        """Find out what the columns of rows are, and what holds between them."""
        return Table.from_rows(
            rows,
            self.kinds,
            self.constraints,
            search_rules=self.search_rules,
            min_count=self.min_count,
            merges_rare_levels=self.rare_levels == "merge",
        )

    def make_task(self, rows: TableRows, seed: Seed) -> TableTask:
        """Find out what the columns are and how each is drawn."""
        from sliceflow.spaces.tables.tree_tuning import (
            choose_tree_settings,
            may_use_neighbours,
        )

        table = self.infer_table(rows)
        strategies = choose_strategies(table)
        settings = self.tree_settings
        if settings is None:
            settings = choose_tree_settings(table, strategies)
        if settings.n_neighbors and not may_use_neighbours(table, strategies):
            settings = settings._replace(n_neighbors=0)
        settings = settings.for_n_rows(rows.n)
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.names[c] for c in table.drawing_order),
            strategies=strategies,
            min_samples_leaf=settings.min_samples_leaf,
            ccp_factor=settings.ccp_factor,
            n_neighbors=settings.n_neighbors,
            rules=tuple(rule.text for rule in table.all_rules),
            identifiers=tuple(c.name for c in table.columns if c.kind == "identifier"),
        )
        what = f"{plan.n_rows} rows of {plan.n_columns} columns need"
        require_memory(plan.nbytes, "cpu", what, "fit fewer rows")
        warns = self.rare_levels == "warn"
        return TableTask(plan, FittedTable(plan, seed, table), warns)


@dataclass(frozen=True)
class TableTask:
    """A planned fit."""

    plan: TablePlan
    fitted: FittedTable  # without its chain
    warns_of_rare_levels: bool

    def run(
        self, listeners: Sequence[events.EventListener[ColumnEvent]]
    ) -> FitResult[FittedTable]:
        """Fit one step of the chain after the other, and tell the listeners of each."""
        started_at = events.now()
        chain: list[ChainStep] = []
        history: dict[str, list[Any]] = {
            "column": [],
            "unexplained": [],
            "seconds": [],
        }
        columns_done = 0
        for step in self.fitted.fit_chain():
            chain.append(step)
            names = self._column_names(step)
            columns_done += len(names)
            event = ColumnEvent(
                column=", ".join(names),
                columns_done=columns_done,
                columns_total=len(self.plan.order),
                unexplained=step.unexplained,
                seconds=events.now() - started_at,
            )
            history["column"].append(event.column)
            history["unexplained"].append(event.unexplained)
            history["seconds"].append(event.seconds)
            events.notify(listeners, event)
        fitted = replace(self.fitted, known_chain=tuple(chain))
        return FitResult(fitted, history, self._warning())

    def _column_names(self, step: ChainStep) -> list[str]:
        """The names of the columns that a step draws."""
        return [str(self.fitted.table.names[c]) for c in step.drawn_indices]

    def _warning(self) -> DataWarning | None:
        """A warning of columns whose real values come back, if there are any."""
        columns = self.fitted.table.columns
        names = [column.name for column in columns if column.discloses_rows]
        if not names:
            return self._warning_of_rare_levels()
        fact = "samples contain real values, most of which belong to one row"
        if len(names) > 1:
            fact += f" (also those of {format_names(names[1:])})"
        return DataWarning(
            fact, column=names[0], suggested_kinds=("identifier", "drop")
        )

    def _warning_of_rare_levels(self) -> DataWarning | None:
        """A warning of levels that few rows have, if the user wants it."""
        if not self.warns_of_rare_levels:
            return None
        columns = self.fitted.table.columns
        counted = []
        for column in columns:
            n_rare = len(rare_level_codes(column))
            if n_rare:
                counted.append(f"{column.name} ({n_rare})")
        if not counted:
            return None
        fact = (
            f"samples contain categories of fewer than {columns[0].min_count} rows, of "
            f"the columns {format_names(counted)}"
        )
        return DataWarning(fact, "choose rare_levels='merge', or 'keep'")
