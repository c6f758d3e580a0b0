"""The fitted model of a `TableFlow`, which draws rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, warn_user
from sliceflow.estimators.tables.columns.level_positions import LevelPositions
from sliceflow.estimators.tables.draws.chain import ChainStep, draw_rows, fit_chain
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.given.given_rows import GivenRows, rows_with_given
from sliceflow.estimators.tables.plan import TablePlan
from sliceflow.estimators.tables.rows.stored_levels import ColumnName
from sliceflow.estimators.tables.rows.table_rows import format_names, read_dataframe
from sliceflow.estimators.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow.estimators.tables.trials.choose_given_draws import DrawKind

# What is given is looked for in plain draws if at least this share of the rows has it,
# so at most about twenty rows are drawn for one. With a smaller share, samples would
# take long.
MIN_SHARE_TO_FILTER = 0.05

# Rounds of plain draws until enough rows have what is given. The model may draw such
# rows less often than the table has them, and then a second round is too small.
MAX_FILTER_ROUNDS = 4


@dataclass(frozen=True)
class SavedTable:
    """What the file of a fitted table has beside the rows: how to fit them again."""

    plan: TablePlan
    seed: Seed

    def sample_bytes(self, n: int = 1) -> int:
        """About how much memory it takes to draw n rows."""
        return self.plan.sample_bytes(n)

    def with_table(self, table: Table) -> FittedTable:
        """The fitted model, with the table of the file's rows.

        Raises a ValueError if the table does not fit the plan, as in a damaged file.
        """
        if not self.plan.is_compatible_with(table):
            raise ValueError("the rows do not fit the plan")
        return FittedTable(self.plan, table, self.seed)


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A fitted table, which draws rows.

    A fit passes the chain that it has fitted. A file holds no chain, because the rows,
    the seed and the plan give the same one again: when rows are first drawn by it.
    """

    plan: TablePlan
    table: Table
    seed: Seed  # of all chains
    fitted_chains: dict[TreeSettings, Sequence[ChainStep]] = field(default_factory=dict)

    needs_rows = True

    @property
    def saved(self) -> SavedTable:
        """What a file has of the model, beside the rows."""
        return SavedTable(self.plan, self.seed)

    def sample_bytes(self, n: int = 1) -> int:
        """About how much memory it takes to draw n rows."""
        return self.plan.sample_bytes(n)

    def sample(self, n: int, seed: Seed, allow_missing: bool = True) -> pd.DataFrame:
        """A DataFrame of n new rows, with or without missing cells."""
        return self.table.to_dataframe(self._draw(n, seed, allow_missing), seed)

    def sample_given(
        self,
        n: int,
        seed: Seed,
        given: Mapping[ColumnName, object],
        allow_missing: bool = True,
    ) -> pd.DataFrame:
        """A DataFrame of n new rows that have what is given, by column.

        The new rows are plain draws that have what is given, or draws of a chain of the
        other columns, fitted to the rows that have it (`choose_draws_by_trial`). A
        warning says why the new rows may be poor, such as that few rows have it.
        """
        given_rows = rows_with_given(self.table, given)
        if given_rows.notes:
            warn_user(f"given={dict(given)}: {'; '.join(given_rows.notes)}")
        draws = list[LevelPositions]()
        n_left = n
        if self._choose_draws(given_rows, allow_missing) == "plain":
            plain = self._filter_draws(n, seed, given_rows, allow_missing)
            draws.append(plain)
            n_left = n - len(plain)
        if n_left > 0:
            draws.append(self._draw_refitted(n_left, seed, given_rows, allow_missing))
        return given_rows.table.to_dataframe(
            LevelPositions(np.concatenate(draws)), seed, given_rows.fixed_values
        )

    def _draw(self, n: int, seed: Seed, allow_missing: bool) -> LevelPositions:
        """Positions (n, d) of n plain draws."""
        return draw_rows(
            self.table,
            self._chain_for(self.plan.tree_settings_for(allow_missing)),
            n,
            seed=seed,
            fixed_positions={},
            allow_missing=allow_missing,
        )

    def _chain_for(self, settings: TreeSettings) -> Sequence[ChainStep]:
        """The chain with these settings, fitted to all rows if it is not fitted yet."""
        if settings not in self.fitted_chains:
            steps = fit_chain(
                self.table,
                self.table.level_positions,
                fixed_indices=(),
                seed=self.seed,
                settings=settings,
                strategies=self.plan.chosen_strategies,
            )
            self.fitted_chains[settings] = tuple(steps)
        return self.fitted_chains[settings]

    def _choose_draws(self, given_rows: GivenRows, allow_missing: bool) -> DrawKind:
        """Choose between plain draws that have what is given, and refitted draws.

        Refitted draws come from a chain of the rows that have what is given. There are
        three reasons for them: plain draws would take long, plain draws would be worse,
        or rows had to be moved to given numbers.
        """
        share = given_rows.share_of(self.table)
        if given_rows.is_moved or share < MIN_SHARE_TO_FILTER:
            return "refitted"
        # It imports torch, which takes seconds, and plain draws need none of it.
        from sliceflow.estimators.tables.trials.choose_given_draws import (
            choose_draws_by_trial,
        )

        return choose_draws_by_trial(
            self.table,
            given_rows,
            self.plan.tree_settings_for(allow_missing),
            self.plan.chosen_strategies,
        )

    def _filter_draws(
        self, n: int, seed: Seed, given_rows: GivenRows, allow_missing: bool
    ) -> LevelPositions:
        """Positions (m, d) of at most n plain draws that have what is given."""
        found = LevelPositions(np.empty((0, len(self.table.columns))))
        share = given_rows.share_of(self.table)
        for round_index in range(MAX_FILTER_ROUNDS):
            n_draws = math.ceil((n - len(found)) / share)
            drawn = self._draw(n_draws, seed.child("plain", round_index), allow_missing)
            matching = drawn[given_rows.has_given(drawn)]
            found = LevelPositions(np.concatenate((found, matching)))[:n]
            if len(found) == n:
                break
        return found

    def _draw_refitted(
        self, n: int, seed: Seed, given_rows: GivenRows, allow_missing: bool
    ) -> LevelPositions:
        """Positions (n, d) drawn by a chain of the rows that have what is given."""
        chain = fit_chain(
            given_rows.table,
            given_rows.level_positions,
            fixed_indices=list(given_rows.fixed_positions),
            seed=seed.child("given"),
            settings=self.plan.tree_settings_for(allow_missing),
            strategies=self.plan.chosen_strategies,
        )
        try:
            return draw_rows(
                given_rows.table,
                list(chain),
                n,
                seed=seed,
                fixed_positions=given_rows.fixed_positions,
                allow_missing=allow_missing,
            )
        except DataError as error:
            if not given_rows.computed_names:
                raise
            raise _given_is_too_rare_error(given_rows.computed_names) from error

    def features(self, X: object) -> Floats:
        """The features (a, n) of the n rows of a DataFrame."""
        level_positions = self.table.positions_of(read_dataframe(X))
        axes = []
        for c in self.table.drawing_order:
            axes.append(self.table.columns[c].features(level_positions[:, c]).T)
        if not axes:
            axes.append(np.zeros((1, len(level_positions))))
        return np.vstack(axes)


def _given_is_too_rare_error(computed_names: Sequence[ColumnName]) -> DataError:
    """The error for given ranges and lists of computed columns that no draw met."""
    names = format_names([repr(name) for name in computed_names])
    fact = (
        f"a range or list of {names} is given, which a rule computes from other "
        "columns, and draws of these rarely meet it"
    )
    hint = (
        "give one value at a time or a wider range, or give the columns from which it "
        "follows"
    )
    return DataError(fact, hint)
