"""The fit of a table: plan it, tune it by trials, fit its chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sliceflow.base.estimator import FitResult
from sliceflow.devices import require_memory
from sliceflow.engine import events
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning
from sliceflow.estimators.tables.columns.rare_levels import rare_level_codes
from sliceflow.estimators.tables.draws.chain import ChainStep, fit_chain
from sliceflow.estimators.tables.draws.neighbor_columns import allows_neighbors
from sliceflow.estimators.tables.draws.strategies import Strategy
from sliceflow.estimators.tables.draws.trees import DEFAULT_TREE_SETTINGS, TreeSettings
from sliceflow.estimators.tables.events import ColumnEvent, TableEvent, TableTrialEvent
from sliceflow.estimators.tables.files import read_if_path
from sliceflow.estimators.tables.fitted import FittedTable
from sliceflow.estimators.tables.parameters import TableParameters
from sliceflow.estimators.tables.plan import TablePlan
from sliceflow.estimators.tables.rows.table_rows import (
    TableRows,
    format_names,
    read_dataframe,
)
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials.choose_strategies import (
    choose_strategies,
    plan_strategies,
)


def check_no_y(y: object) -> None:
    """Raise a `DataError` if a user passes y with a table."""
    if y is not None:
        fact = "a table has no y"
        raise DataError(fact, "pass it as a column of X, and given= to sample")


@dataclass(frozen=True, eq=False)
class TableFitPlanner:
    """Reads and plans the rows of a `TableFlow`."""

    parameters: TableParameters
    current_rows: TableRows | None  # new rows must have the same columns

    def read(self, X: object, y: object) -> TableRows:
        """The rows of a DataFrame, or of the file that a path names; y must be None."""
        check_no_y(y)
        rows = read_dataframe(read_if_path(X))
        if self.current_rows is None:
            return rows
        return rows.align_columns(self.current_rows)

    def infer_table(self, rows: TableRows) -> Table:
        """Find out what the columns of rows are, and what holds between them."""
        parameters = self.parameters
        return Table.from_rows(
            rows,
            parameters.kinds or {},
            parameters.constraints,
            search_rules=parameters.rules == "auto",
            min_count=parameters.min_count,
            merges_rare_levels=parameters.rare_levels == "merge",
        )

    def plan_fit(self, rows: TableRows, seed: Seed) -> PlannedTableFit:
        """Find out what the columns are, and what the fit will choose by trial."""
        table = self.infer_table(rows)
        settings = self.parameters.user_tree_settings or DEFAULT_TREE_SETTINGS
        strategies = plan_strategies(table)
        n_regression_trials = 0
        n_label_trials = 0
        for c, strategy in zip(table.drawing_order, strategies, strict=True):
            if strategy is None and table.columns[c].is_quantitative:
                n_regression_trials += 1
            elif strategy is None:
                n_label_trials += 1
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.columns[c].encoded.name for c in table.drawing_order),
            strategies=strategies,
            min_samples_leaf=settings.for_n_rows(rows.n).min_samples_leaf,
            ccp_factor=settings.ccp_factor,
            n_neighbors=settings.n_neighbors,
            rules=tuple(rule.text for rule in table.all_rules),
            identifiers=tuple(
                column.encoded.name
                for column in table.columns
                if column.kind == "identifier"
            ),
            n_regression_trials=n_regression_trials,
            n_label_trials=n_label_trials,
        )
        plan = self._plan_neighbors(table, plan)
        what = f"{plan.n_rows} rows of {plan.n_columns} columns need"
        require_memory(plan.nbytes, "cpu", what, "fit fewer rows")
        return PlannedTableFit(plan, table, seed, self.parameters.rare_levels == "warn")

    def _plan_neighbors(self, table: Table, plan: TablePlan) -> TablePlan:
        """The plan with neighbors, if the table may have them.

        If the user does not say how many, trials choose.
        """
        # With regressions, fewer columns could be drawn from neighbors.
        only_trees: Sequence[Strategy] = ["tree"] * len(table.drawing_order)
        if not allows_neighbors(table, only_trees):
            return replace(plan, n_neighbors=0)
        if self.parameters.tree_settings is not None:
            return plan
        # It imports torch, which takes seconds, and other plans need none of it.
        from sliceflow.estimators.tables.trials.choose_neighbors import (
            count_neighbor_trials,
        )

        n_trials = count_neighbor_trials(plan.n_rows)
        if n_trials == 0:
            return plan
        return replace(plan, n_neighbors=None, n_neighbor_trials=n_trials)


@dataclass(frozen=True, eq=False)
class PlannedTableFit:
    """A planned fit of a table. No model is fitted yet, not even on trial."""

    plan: TablePlan
    table: Table
    seed: Seed
    warns_of_rare_levels: bool

    @property
    def rows(self) -> TableRows:
        """The user's rows, checked."""
        return self.table.rows

    def run(
        self, listeners: Sequence[events.EventListener[TableEvent]]
    ) -> FitResult[FittedTable]:
        """Choose by trial how columns are drawn, and fit the chain that draws them."""
        progress = TableProgress(self.plan, listeners)
        plan = self._tuned_plan(progress.end_trial)
        return replace(self, plan=plan)._fit_chain(progress)

    def tune(self, listeners: Sequence[events.EventListener[TableEvent]]) -> Self:
        """This fit, with every setting chosen by trials."""
        progress = TableProgress(self.plan, listeners)
        return replace(self, plan=self._tuned_plan(progress.end_trial))

    def _tuned_plan(self, on_trial: Callable[[str], None]) -> TablePlan:
        """The plan with every setting chosen.

        `on_trial` is called after each trial, with what was tried.
        """
        strategies = choose_strategies(self.table, self.plan.strategies, on_trial)
        plan = replace(self.plan, strategies=strategies)
        if plan.n_neighbors is None:
            # It imports torch, which takes seconds, and other fits need none of it.
            from sliceflow.estimators.tables.trials.choose_neighbors import (
                choose_n_neighbors,
            )

            settings = TreeSettings(plan.min_samples_leaf, plan.ccp_factor)
            k = choose_n_neighbors(self.table, settings, strategies, on_trial)
            plan = replace(plan, n_neighbors=k)
        elif plan.n_neighbors and not allows_neighbors(self.table, strategies):
            plan = replace(plan, n_neighbors=0)
        return plan

    def _fit_chain(self, progress: TableProgress) -> FitResult[FittedTable]:
        """Fit one step of the chain after the other; every setting must be chosen."""
        settings = self.plan.tree_settings
        steps = fit_chain(
            self.table,
            self.table.level_positions,
            fixed_indices=(),
            seed=self.seed,
            settings=settings,
            strategies=self.plan.chosen_strategies,
        )
        chain = list[ChainStep]()
        for step in steps:
            chain.append(step)
            progress.end_step(step, self.table)
        fitted = FittedTable(self.plan, self.table, self.seed, {settings: chain})
        warning = _warning_of_real_values(self.table)
        if warning is None and self.warns_of_rare_levels:
            warning = _warning_of_rare_levels(self.table)
        return FitResult(fitted, progress.history(), warning)


class TableProgress:
    """What listeners hear of a running fit, and its history.

    Parameters
    ----------
    plan : of the fit, which begins now
    listeners : what they return is ignored
    """

    def __init__(
        self,
        plan: TablePlan,
        listeners: Sequence[events.EventListener[TableEvent]] = (),
    ) -> None:
        self._plan = plan
        self._listeners = listeners
        self._started_at = events.now()
        self._trials_done = 0
        self._columns_done = 0
        self._column_events = list[ColumnEvent]()  # one for each step of the chain

    def end_trial(self, trial: str) -> None:
        """Tell the listeners that a trial has ended."""
        self._trials_done += 1
        event = TableTrialEvent(
            trial=trial,
            trials_done=self._trials_done,
            trials_total=self._plan.n_trials,
            columns_total=len(self._plan.order),
            seconds=events.now() - self._started_at,
        )
        events.notify(self._listeners, event)

    def end_step(self, step: ChainStep, table: Table) -> None:
        """Record a step of the chain, and tell the listeners of it."""
        names = [str(table.names[c]) for c in step.drawn_indices]
        self._columns_done += len(names)
        event = ColumnEvent(
            column=", ".join(names),
            columns_done=self._columns_done,
            columns_total=len(self._plan.order),
            unexplained_share=step.unexplained_share,
            seconds=events.now() - self._started_at,
            trials_done=self._trials_done,
        )
        self._column_events.append(event)
        events.notify(self._listeners, event)

    def history(self) -> events.HistoryColumns:
        """The history of the steps so far, as `TableFlow.history_` shows it."""
        return {
            "column": [event.column for event in self._column_events],
            "unexplained": [event.unexplained_share for event in self._column_events],
            "seconds": [event.seconds for event in self._column_events],
        }


def _warning_of_real_values(table: Table) -> DataWarning | None:
    """A warning of columns whose real values come back, if there are any."""
    names = [column.name for column in table.columns if column.has_disclosing_levels]
    if not names:
        return None
    fact = "samples contain real values, most of which belong to one row"
    if len(names) > 1:
        fact += f" (also those of {format_names(names[1:])})"
    return DataWarning(fact, column=names[0], suggested_kinds=("identifier", "drop"))


def _warning_of_rare_levels(table: Table) -> DataWarning | None:
    """A warning of levels that few rows have, if there are any."""
    names_and_counts = []
    for column in table.columns:
        n_rare = len(rare_level_codes(column))
        if n_rare:
            names_and_counts.append(f"{column.name} ({n_rare})")
    if not names_and_counts:
        return None
    fact = (
        f"samples contain categories of fewer than {table.columns[0].min_count} rows, "
        f"of the columns {format_names(names_and_counts)}"
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

    def as_columns(self) -> events.HistoryColumns:
        """The history as `TableFlow.history_` shows it."""
        return {"column": list(self.column), "unexplained": list(self.unexplained)}
