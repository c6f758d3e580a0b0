"""The fit of a table: its rows are read, its plan is made, and its chain is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sliceflow.devices import require_memory
from sliceflow.engine import events
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning
from sliceflow.models.estimator import FitResult
from sliceflow.spaces.tables.chain import ChainStep
from sliceflow.spaces.tables.choose_strategies import choose_strategies
from sliceflow.spaces.tables.events import ColumnEvent
from sliceflow.spaces.tables.files import read_if_path
from sliceflow.spaces.tables.fitted import FittedTable
from sliceflow.spaces.tables.parameters import RareLevels
from sliceflow.spaces.tables.plan import TablePlan
from sliceflow.spaces.tables.rare_levels import rare_level_codes
from sliceflow.spaces.tables.strategies import Strategy
from sliceflow.spaces.tables.table import Table
from sliceflow.spaces.tables.table_rows import TableRows, format_names, read_dataframe
from sliceflow.spaces.tables.trees import DEFAULT_TREE_SETTINGS, TreeSettings


@dataclass(frozen=True)
class TableAdapter:
    """Reads and plans the rows of a `TableFlow`."""

    kinds: Mapping[str, str]  # of columns, as the user gave them
    constraints: Sequence[str]
    known_rows: TableRows | None  # new rows must have the same columns
    tree_settings: TreeSettings | None  # None takes ours
    search_rules: bool  # whether to find rules beside the constraints
    min_count: int  # numbers of fewer rows are not drawn
    rare_levels: RareLevels  # what becomes of levels of fewer rows

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

    def plan_fit(self, rows: TableRows, seed: Seed) -> PlannedTableFit:
        """Find out what the columns are and how each is drawn."""
        table = self.infer_table(rows)
        strategies = choose_strategies(table)
        settings = self._resolve_tree_settings(table, strategies)
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
        return PlannedTableFit(plan, rows, FittedTable(plan, seed, table), warns)

    def _resolve_tree_settings(
        self, table: Table, strategies: Sequence[Strategy]
    ) -> TreeSettings:
        """The settings that the user chose, as far as the table allows, or ours."""
        # It imports torch, which takes seconds, and plain draws need none of it.
        from sliceflow.spaces.tables.choose_neighbours import (
            choose_n_neighbors,
            may_use_neighbours,
        )

        n = len(table.cell_coords)
        if self.tree_settings is None:
            settings = DEFAULT_TREE_SETTINGS.for_n_rows(n)
            k = choose_n_neighbors(table, settings, strategies)
            return settings._replace(n_neighbors=k)
        settings = self.tree_settings.for_n_rows(n)
        if settings.n_neighbors and not may_use_neighbours(table, strategies):
            return settings._replace(n_neighbors=0)
        return settings


@dataclass(frozen=True)
class PlannedTableFit:
    """A planned fit."""

    plan: TablePlan
    rows: TableRows
    fitted: FittedTable  # without its chain
    warns_of_rare_levels: bool

    @property
    def seed(self) -> Seed:
        """The seed of the fit."""
        return self.fitted.seed

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
        fitted = replace(self.fitted, fitted_chain=tuple(chain))
        warning = self._warning_of_real_values() or self._warning_of_rare_levels()
        return FitResult(fitted, history, warning)

    def _column_names(self, step: ChainStep) -> list[str]:
        """The names of the columns that a step draws."""
        return [str(self.fitted.table.names[c]) for c in step.drawn_indices]

    def _warning_of_real_values(self) -> DataWarning | None:
        """A warning of columns whose real values come back, if there are any."""
        columns = self.fitted.table.columns
        names = [column.name for column in columns if column.discloses_rows]
        if not names:
            return None
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
        names_and_counts = []
        for column in columns:
            n_rare = len(rare_level_codes(column))
            if n_rare:
                names_and_counts.append(f"{column.name} ({n_rare})")
        if not names_and_counts:
            return None
        fact = (
            f"samples contain categories of fewer than {columns[0].min_count} rows, of "
            f"the columns {format_names(names_and_counts)}"
        )
        return DataWarning(fact, "choose rare_levels='merge', or 'keep'")


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
