"""Missing cells, filled by trees that see all other columns of the row.

This is multiple imputation by trees: Doove, van Buuren and Dusseldorp (2014),
"Recursive partitioning for missing data imputation in the presence of interaction
effects", Computational Statistics & Data Analysis 72.

1. All missing cells of a row are filled at once from a donor, a training row that is
   near (`initial_imputation`).
2. In each sweep, every missing cell is drawn again, column by column: as the cell of a
   random row in the leaf of a random tree, or by a ridge regression and a residual.
   Of the missing cells of a sum or product, one cell is computed from the others. The
   others are drawn by models that do not see that cell (`dependent_missing_cells`).
3. Each tree of a column is fitted to another copy of the training rows. Missing cells
   of these rows are filled in the same sweeps, so that trees see complete rows.
4. Rows that break a constraint go through 1 and 2 again, with the same trees.

Here, a *missing cell* is one that can be filled: not an identifier, and not in a column
without values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.column_data import ColumnData
from sliceflow.estimators.tables.columns.level_positions import (
    UNDRAWN,
    LevelPositions,
    has_value,
    is_impossible,
    is_missing,
    is_undrawn,
)
from sliceflow.estimators.tables.draws.column_model import ColumnModel, fit_column_model
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.imputing.dependent_missing_cells import (
    DependentMissingCells,
    MissingCellGroup,
)
from sliceflow.estimators.tables.imputing.initial_imputation import (
    impute_from_donors,
)
from sliceflow.estimators.tables.rules.rule_set import RuleSet
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials.choose_strategies import choose_tree_or_ridge

# The least and most trees of a column. Between these limits there is one tree for each
# filled table that is asked for. A few trees show how uncertain trees are; many take
# time.
MIN_TREES = 3
MAX_TREES = 10

# Each tree is fitted to this share of its rows, drawn without replacement: a bootstrap
# sample has about as many different rows, 1 − 1/e of all.
BAGGING_SHARE = 0.63

# The least number of rows of a leaf. Leaves of 5 rows instead of 8 were no better: mean
# errors were .381 and .399 instead of .382 and .401, but worse on small tables
# (benchmarks/RESULTS.md).
IMPUTATION_TREE_SETTINGS = TreeSettings(min_samples_leaf=8, ccp_factor=2.0)

# The most training rows to learn from, and the most of their cells, which counts for
# wide tables. More would take more time and memory.
MAX_TRAINING_ROWS = 20_000
MAX_TRAINING_CELLS = 2_000_000

# The number of sweeps over the columns. With four, the error on the table caschool was
# .305 instead of .295.
N_SWEEPS = 2

# The most rounds in which rows that break a constraint are filled again. In the first
# rounds, rows must also keep dependencies that were found in the table. Later rounds
# drop these, because a row's other cells may break them, and no user asked for them.
# With more rounds, tables whose other cells break a constraint would take longer:
# there, no draw can keep it.
MAX_FILL_ROUNDS = 10
ROUNDS_WITH_DISCOVERED_RULES = 2


def fill_missing(
    table: Table, level_positions: LevelPositions, n: int, seed: Seed
) -> tuple[LevelPositions, Ints]:
    """Fill the missing cells of rows with positions (m, d), n times.

    Identifiers, and columns without values, stay missing. Models are fitted during the
    first round, and serve all later rounds.

    Returns
    -------
    level_positions : (n·m, d), one imputation below the other
    unfilled : the indices of rows among these that stay as they were, because each
        imputation broke a constraint
    """
    training_positions = _sample_training_rows(table, seed)
    training = _TrainingCopies(
        columns=table.columns,
        fillable_indices=_fillable_columns(table, training_positions),
        level_positions=training_positions,
        n_copies=int(np.clip(n, MIN_TREES, MAX_TREES)),
        seed=seed,
    )
    rng = np.random.default_rng(seed.child("fill").key)
    with_constants = _with_constants(table.columns, level_positions)
    filled_positions = LevelPositions(np.tile(with_constants, (n, 1)))
    unfinished = np.flatnonzero(training.is_to_fill(filled_positions).any(axis=1))
    if not len(unfinished):
        return filled_positions, unfinished
    imputer = _Imputer(training)
    rule_set = table.rule_set
    for attempt in range(MAX_FILL_ROUNDS):
        if attempt == ROUNDS_WITH_DISCOVERED_RULES:
            rule_set = _only_constraints(rule_set)
        if attempt == 0:
            filled = imputer.fit_and_fill(rule_set, filled_positions[unfinished], rng)
        else:
            filled = imputer.fill(rule_set, filled_positions[unfinished], rng)
        is_done = filled.is_valid
        filled_positions[unfinished[is_done]] = filled.level_positions[is_done]
        unfinished = unfinished[~is_done]
        if not len(unfinished):
            break
    return filled_positions, unfinished


def _sample_training_rows(table: Table, seed: Seed) -> LevelPositions:
    """Positions (r, d) of the training rows to learn from, in random order."""
    n_rows = min(MAX_TRAINING_ROWS, MAX_TRAINING_CELLS // len(table.columns))
    # "some" is a part of the seed: with another word, other cells would be drawn.
    rng = np.random.default_rng(seed.child("some").key)
    order = rng.permutation(len(table.level_positions))
    return table.level_positions[order[:n_rows]]


def _fillable_columns(table: Table, training_positions: LevelPositions) -> list[int]:
    """Indices of columns that can be filled: no identifiers, and with some values."""
    fillable_indices = []
    for c in table.drawing_order:
        is_identifier = table.columns[c].kind == "identifier"
        if not is_identifier and has_value(training_positions[:, c]).any():
            fillable_indices.append(c)
    return fillable_indices


def _with_constants(
    columns: Sequence[Column], level_positions: LevelPositions
) -> LevelPositions:
    """Positions (m, d) in which constant columns have their value in all cells."""
    is_constant = [
        column.kind == "constant" and column.n_levels > 0 for column in columns
    ]
    return LevelPositions(np.where(is_constant, 0.0, level_positions))


def _only_constraints(rule_set: RuleSet) -> RuleSet:
    """The same set with only the rules that users wrote as constraints."""
    constraints = tuple(rule for rule in rule_set.rules if not rule.is_discovered)
    return replace(rule_set, rules=constraints)


class _FilledRows(NamedTuple):
    """Rows of which all missing cells are filled."""

    level_positions: LevelPositions  # (m, d)
    is_valid: Mask  # (m,), which of the rows keep all rules


# The models of one column, by the indices of the columns that they do not see.
_ModelsByExcluded = dict[tuple[int, ...], list[ColumnModel]]


@dataclass(frozen=True, eq=False)
class _TrainingCopies:
    """Copies of training rows, to which the models of the columns are fitted.

    The missing cells of each copy are filled in another way, and each model of a column
    is fitted to another copy.
    """

    columns: Sequence[Column]  # all columns of the table
    fillable_indices: Sequence[int]  # of the columns that models see and draw
    level_positions: LevelPositions  # (r, d), of the rows of each copy
    n_copies: int  # and so the number of models of each column
    seed: Seed

    def is_to_fill(self, level_positions: LevelPositions) -> Mask:
        """Which cells of rows with positions (m, d) are missing and can be filled."""
        is_fillable = np.isin(np.arange(len(self.columns)), self.fillable_indices)
        return is_missing(level_positions) & is_fillable

    def copies(self) -> LevelPositions:
        """All copies (n_copies · r, d), one below the other, with missing cells."""
        return LevelPositions(np.tile(self.level_positions, (self.n_copies, 1)))

    def fill_initially(
        self, level_positions: LevelPositions, rng: np.random.Generator
    ) -> None:
        """Fill the missing cells of rows (m, d), in place, from donors."""
        impute_from_donors(
            self.columns,
            self.level_positions,
            level_positions,
            self.fillable_indices,
            rng,
        )

    def fit_models(
        self,
        column_index: int,
        excluded_sets: Sequence[tuple[int, ...]],
        copies: LevelPositions,
        sweep: int,
    ) -> _ModelsByExcluded:
        """Fit the models of a column to copies (n_copies · r, d) of training rows.

        Some models see all other columns. For each excluded set there are more models,
        which do not see its columns. Rows whose cell of the column was missing are left
        out. Each `sweep` has other random numbers.
        """
        seed = self.seed.child("column", column_index, sweep)
        is_observed = has_value(self.level_positions[:, column_index])
        observed_copies = [
            LevelPositions(copy_positions[is_observed])
            for copy_positions in np.split(copies, self.n_copies)
        ]
        models: _ModelsByExcluded = {
            (): self._fit_without((), column_index, observed_copies, seed)
        }
        for excluded_indices in excluded_sets:
            if excluded_indices:
                # "hidden" is a part of the seed, as is "some" above.
                models[excluded_indices] = self._fit_without(
                    excluded_indices,
                    column_index,
                    observed_copies,
                    seed.child("hidden", *excluded_indices),
                )
        return models

    def _fit_without(
        self,
        excluded_indices: Sequence[int],
        column_index: int,
        copies: Sequence[LevelPositions],
        seed: Seed,
    ) -> list[ColumnModel]:
        """Models of a column given the columns not excluded, one model of each copy."""
        unseen = {column_index, *excluded_indices}
        seen = [c for c in self.fillable_indices if c not in unseen]
        predictor_indices = np.array(seen, dtype=np.int64)
        data = ColumnData(self.columns, copies[0], column_index, predictor_indices)
        # "way" is a part of the seed, as is "some" above.
        strategy = choose_tree_or_ridge(data, seed=seed.child("way"))
        models = []
        for t, copy_positions in enumerate(copies):
            rng = np.random.default_rng(seed.child("rows", t).key)
            order = rng.permutation(len(copy_positions))
            n_bagged = round(BAGGING_SHARE * len(copy_positions))
            model = fit_column_model(
                data.with_rows(copy_positions[order[:n_bagged]]),
                seed=seed.child("grow", t),
                settings=IMPUTATION_TREE_SETTINGS,
                strategy=strategy,
            )
            models.append(model)
        return models


class _SweptRows:
    """Rows whose missing cells are filled at first, and drawn again in each sweep.

    Parameters
    ----------
    training : says which cells are missing, and fills them at first
    rule_set : the rules that the filled rows must keep
    level_positions : (m, d), the rows with missing cells; they stay as they are
    rng : the random numbers of all draws

    Attributes
    ----------
    level_positions : (m, d), the filled rows
    is_valid : (m,), which rows kept all rules when these were solved last
    column_indices : the columns that have missing cells
    """

    def __init__(
        self,
        training: _TrainingCopies,
        rule_set: RuleSet,
        level_positions: LevelPositions,
        rng: np.random.Generator,
    ) -> None:
        self.level_positions = level_positions.copy()
        self.is_valid: Mask = np.zeros(len(level_positions), bool)
        self._columns = training.columns
        self._rule_set = rule_set
        self._rng = rng
        self._is_to_fill = training.is_to_fill(level_positions)
        self.column_indices = [
            c for c in training.fillable_indices if self._is_to_fill[:, c].any()
        ]
        training.fill_initially(self.level_positions, rng)
        self._dependent = DependentMissingCells.from_rows(
            rule_set.rules_in_solving_order, self.level_positions, self._is_to_fill
        )

    def excluded_sets(self, c: int) -> list[tuple[int, ...]]:
        """The columns that models of column c must not see, for each group of cells."""
        return [group.excluded_indices for group in self._dependent.groups_of_column(c)]

    def redraw(self, c: int, models_by_excluded: _ModelsByExcluded) -> None:
        """Draw the missing cells of column c again, by models of this column.

        Cells of other columns that follow from them are computed.
        """
        sees_all = models_by_excluded[()]
        for group in self._dependent.groups_of_column(c):
            # Later rounds have fewer rules, and so sets that no model was fitted for.
            models = models_by_excluded.get(group.excluded_indices, sees_all)
            self._redraw_group(c, models, group)
            self._dependent.recompute_excluded(
                self._columns, self.level_positions, group
            )

    def _redraw_group(
        self, c: int, models: Sequence[ColumnModel], group: MissingCellGroup
    ) -> None:
        """Draw a group of cells of column c again, each by a random one of the models.

        A cell stays as it was where the rules allow no draw.
        """
        row_indices = self._rng.permutation(group.row_indices)
        parts = np.array_split(row_indices, len(models))
        for model, part in zip(models, parts, strict=True):
            before = self.level_positions[part]
            drawn = self._draw(model, part, undrawn=[c, *group.excluded_indices])
            self.level_positions[part, c] = np.where(
                is_undrawn(drawn), before[:, c], drawn
            )

    def _draw(
        self, model: ColumnModel, row_indices: Ints, undrawn: Sequence[int]
    ) -> LevelPositions:
        """New cells (k,) of a model for some rows; `UNDRAWN` where rules allow none.

        Rules wait for the `undrawn` columns: the column that is drawn, and the columns
        that follow from it.
        """
        level_positions = self.level_positions[row_indices]
        rule_positions = _with_undrawn(level_positions, self._is_to_fill[row_indices])
        rule_positions[:, undrawn] = UNDRAWN
        partly_drawn = PartlyDrawnRows(
            level_positions,
            self._rule_set,
            allow_missing=False,
            rule_positions=rule_positions,
        )
        return model.draw(partly_drawn, self._rng)[:, 0]

    def solve_rules(self) -> None:
        """Solve rules for the missing cells that follow from other cells.

        Cells without a solution stay as they were.
        """
        to_solve = _with_undrawn(self.level_positions, self._is_to_fill)
        finished = self._rule_set.finish_rows(to_solve, self._is_to_fill)
        solved = finished.level_positions
        has_no_solution = is_undrawn(solved) | is_impossible(solved)
        self.level_positions = LevelPositions(
            np.where(has_no_solution, self.level_positions, solved)
        )
        self.is_valid = finished.is_valid

    def filled_rows(self, first: int = 0) -> _FilledRows:
        """The filled rows, from the one with the index `first` on."""
        return _FilledRows(self.level_positions[first:], self.is_valid[first:])


@dataclass(frozen=True, eq=False)
class _Imputer:
    """Fills rows by models of each column that has missing cells, given all others.

    `fit_and_fill` comes first, and fits the models while it fills. `fill` uses them
    again, for other rows.
    """

    training: _TrainingCopies
    models: dict[int, _ModelsByExcluded] = field(default_factory=dict)  # by column

    def fit_and_fill(
        self,
        rule_set: RuleSet,
        level_positions: LevelPositions,
        rng: np.random.Generator,
    ) -> _FilledRows:
        """Fit the models, and fill rows with positions (m, d) in the same sweeps.

        Before a column is drawn again, its models are fitted to the copies of training
        rows as these are filled by then. Copies with missing cells are swept, too.
        """
        copies = self.training.copies()
        incomplete = np.flatnonzero(self.training.is_to_fill(copies).any(axis=1))
        n_swept_copies = len(incomplete)
        to_sweep = LevelPositions(np.concatenate((copies[incomplete], level_positions)))
        rows = _SweptRows(self.training, rule_set, to_sweep, rng)
        for sweep in range(N_SWEEPS):
            # Complete copies never change, so models of the first sweep stay.
            is_to_fit = sweep == 0 or n_swept_copies > 0
            for c in rows.column_indices:
                if is_to_fit:
                    copies[incomplete] = rows.level_positions[:n_swept_copies]
                    self.models[c] = self.training.fit_models(
                        c, rows.excluded_sets(c), copies, sweep
                    )
                rows.redraw(c, self.models[c])
            rows.solve_rules()
        return rows.filled_rows(first=n_swept_copies)

    def fill(
        self,
        rule_set: RuleSet,
        level_positions: LevelPositions,
        rng: np.random.Generator,
    ) -> _FilledRows:
        """Fill rows with positions (m, d), by models that are fitted already."""
        rows = _SweptRows(self.training, rule_set, level_positions, rng)
        for _ in range(N_SWEEPS):
            for c, models in self.models.items():
                rows.redraw(c, models)
            rows.solve_rules()
        return rows.filled_rows()


def _with_undrawn(level_positions: LevelPositions, is_to_fill: Mask) -> LevelPositions:
    """Positions (m, d) with `UNDRAWN` for cells to fill that are still missing.

    Rules wait for a cell that is not drawn yet, but take a missing cell as it is.
    """
    is_unfilled = is_to_fill & is_missing(level_positions)
    return LevelPositions(np.where(is_unfilled, UNDRAWN, level_positions))
