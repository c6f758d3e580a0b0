"""A chain of conditional models: new rows, one column after the other.

This is a Knothe–Rosenblatt map: a chain of one-dimensional transports, each conditional
on the columns before it; the triangular sibling of the sliced flow. Trees that are
grown one column after the other to synthesize tables are known from synthpop: Nowok,
Raab and Dibben (2016), "synthpop: Bespoke creation of synthetic data in R", Journal of
Statistical Software 74(11).

How one cell of a new row gets its value:

1. `draw_rows` begins with blank rows, whose cells are `UNDRAWN`, as `PartlyDrawnRows`.
   `draw_chain` lets each step draw its column. The columns before are drawn by then.
2. `ColumnModel.draw` tries where the cell may come from (`CellSources`), in this order:
   it equals an earlier column, is missing, follows from a rule, or comes from the tree.
3. From the tree, it takes the value of a random row in the leaf of the new row, or one
   between two rows (`NodeSampler.draw`). A rare number is moved (`rare_numbers`).
4. Each such value is only a proposal, which `PartlyDrawnRows` allows or refuses. For
   that it asks `RuleSet.allows`. This tries the value in a copy of the row: it solves
   what follows there, and says whether some rule is broken already. If so, `TreeDraws`
   draws again from the leaf, and then from the nodes above.
5. When all columns are drawn, `RuleSet.finish_rows` solves what still follows from
   rules, and checks them all. A row that breaks one is drawn anew, from 1.

`rules.solve` solves for cells, in 2, 4 and 5. `Column.decode` makes values of
positions, which the package `columns` explains.

Examples
--------
A table of three rows. Of the plans, gold and basic have the positions 0 and 1; of the
seats, 1, 3 and 5 have 0, 1 and 2:

>>> import pandas as pd
>>> from sliceflow.estimators.tables.rows.table_rows import read_dataframe
>>> df = pd.DataFrame({"plan": ["gold", "basic", "gold"], "seats": [5, 1, 3]})
>>> table = Table.from_rows(read_dataframe(df), kinds={}, constraints=[])
>>> table.level_positions
array([[0., 2.],
       [1., 0.],
       [0., 1.]])

The tree of the seats splits the rows by their plan. Its leaves hold positions: 1 and
2 are in the leaf of gold, and 0 is in that of basic:

>>> plan_model, seats_model = fit_chain(
...     table,
...     table.level_positions,
...     fixed_indices=[],
...     seed=Seed(0),
...     settings=TreeSettings(min_samples_leaf=1, ccp_factor=0),
...     strategies=["tree", "tree"],
... )
>>> seats_model.sampler.tree.values
array([1., 2., 0.])

Two new rows, of gold and basic, get seats from their leaves:

>>> rng = np.random.default_rng(0)
>>> rows = np.array([[0, UNDRAWN], [1, UNDRAWN]])
>>> seats_model.draw(PartlyDrawnRows(rows), rng)
array([[1.],
       [0.]])

If a rule allows only one seat, the leaf of gold has no such value, and the cell is
drawn from the node above it:

>>> from sliceflow.estimators.tables.rules.kinds import MembershipRule
>>> one_seat = MembershipRule("one seat", column_indices=(1,), positions=(0.0,))
>>> rule_set = table.with_rules([one_seat]).rule_set
>>> seats_model.draw(PartlyDrawnRows(rows, rule_set), rng)
array([[0.],
       [0.]])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.column_data import ColumnData
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    UNDRAWN,
    LevelPositions,
    is_impossible,
)
from sliceflow.estimators.tables.draws.column_model import ColumnModel, fit_column_model
from sliceflow.estimators.tables.draws.neighbor_columns import columns_for_neighbors
from sliceflow.estimators.tables.draws.neighbors_model import NeighborsModel
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.strategies import Strategy
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.rules.kinds import Rule, SolvableRule
from sliceflow.estimators.tables.rules.rule_set import FinishedRows, RuleSet
from sliceflow.estimators.tables.table import Table

# The most rounds in which rows that break a constraint are drawn again, before there is
# an error. With fewer, tables with tight constraints would fail more often; with more,
# it takes longer until users hear that constraints cannot be kept.
MAX_DRAW_ROUNDS = 60

# In this many first rounds, two more kinds of rows are drawn again: copies of rows that
# occur once, and rows with a prediction beyond the ends of its column. Later rounds
# accept such rows, because some tables allow no others. With a larger number, such
# tables would take longer.
MAX_STRICT_ROUNDS = 5


class ChainStep(Protocol):
    """A step of a chain: it draws one column, or several together."""

    @property
    def drawn_indices(self) -> list[int]:
        """The indices of the k columns that the step draws."""
        ...

    @property
    def unexplained_share(self) -> float:
        """The share of the columns' impurity or variance that the model leaves."""
        ...

    def draw(
        self,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
        clip_predictions: bool = True,
    ) -> LevelPositions:
        """New cells (m, k) for m partly drawn rows, which do not change.

        They are `UNDRAWN` where no draw was allowed. If a regression predicts a value
        beyond the ends of its column, the cell gets the nearest end, or stays `UNDRAWN`
        without `clip_predictions`.
        """
        ...


def fit_chain(
    table: Table,
    level_positions: LevelPositions,
    fixed_indices: Sequence[int],
    *,
    seed: Seed,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
) -> Iterator[ChainStep]:
    """Fit a chain to rows with positions (n, d), one step after the other.

    Neighbors come first, if they draw columns of this table, and then there is a
    step for each other column. The columns of `fixed_indices` are not drawn, and not
    seen. `strategies` has one entry for each column of `table.drawing_order`, also for
    the fixed ones.
    """
    settings = settings.for_n_rows(len(level_positions))
    indices_before = list[int]()  # the columns of the steps so far
    if settings.n_neighbors:
        indices_before = columns_for_neighbors(table, strategies, fixed_indices)
    if indices_before:
        yield NeighborsModel.from_data(
            table.columns, level_positions, indices_before, settings.n_neighbors
        )

    label = _splitting_label(table, strategies, fixed_indices, level_positions)
    not_in_trees = {*fixed_indices, *indices_before}
    for c, strategy in zip(table.drawing_order, strategies, strict=True):
        if c in not_in_trees:
            continue
        data = table.column_data(c, predictor_indices=indices_before)
        yield _fit_step(
            data.with_rows(level_positions),
            label,
            seed=seed.child("tree", len(indices_before)),
            settings=settings,
            strategy=strategy,
            rules=table.rules_that_compute(c, (*fixed_indices, *indices_before)),
        )
        indices_before.append(c)


@dataclass(frozen=True, eq=False)
class PerLevelModel:
    """The models of one column, one for each level of a label."""

    label_index: int  # the column of the label
    models: Mapping[float, ColumnModel]  # by the label's positions

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list. All models draw the same column."""
        first_model = next(iter(self.models.values()))
        return first_model.drawn_indices

    @property
    def unexplained_share(self) -> float:
        """The mean of the shares that the models of the levels leave."""
        shares = [model.unexplained_share for model in self.models.values()]
        return float(np.mean(shares))

    def draw(
        self,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
        clip_predictions: bool = True,
    ) -> LevelPositions:
        """New cells (m, 1) for m partly drawn rows, each by the model of its level.

        Rows with another label than any of the levels stay `UNDRAWN`.
        """
        positions = LevelPositions(np.full((len(partly_drawn), 1), UNDRAWN))
        labels = partly_drawn.level_positions[:, self.label_index]
        for level, model in self.models.items():
            row_indices = np.flatnonzero(labels == level)
            positions[row_indices] = model.draw(
                partly_drawn.take(row_indices), rng, clip_predictions
            )
        return positions


class _SplittingLabel(NamedTuple):
    """A label whose levels have models of their own for all columns drawn after it."""

    column_index: int
    rows_of_level: Mapping[float, LevelPositions]  # (m, d), by the label's positions


def _splitting_label(
    table: Table,
    strategies: Sequence[Strategy],
    fixed_indices: Sequence[int],
    level_positions: LevelPositions,
) -> _SplittingLabel | None:
    """The label that splits the rows, with the rows of each of its levels."""
    for c, strategy in zip(table.drawing_order, strategies, strict=True):
        if strategy == "splitting_label" and c not in fixed_indices:
            rows_of_level = {}
            labels = level_positions[:, c]
            for level in np.unique(labels).tolist():
                rows_of_level[level] = level_positions[labels == level]
            return _SplittingLabel(c, rows_of_level)
    return None


def _fit_step(
    data: ColumnData,
    label: _SplittingLabel | None,
    *,
    seed: Seed,
    settings: TreeSettings,
    strategy: Strategy,
    rules: Sequence[SolvableRule],
) -> ChainStep:
    """The model of a column, or one for each level of a label that is drawn before."""

    def fit(level_data: ColumnData) -> ColumnModel:
        return fit_column_model(
            level_data, seed=seed, settings=settings, strategy=strategy, rules=rules
        )

    if label is None or label.column_index not in data.predictor_indices:
        return fit(data)
    models = {}
    for level, rows in label.rows_of_level.items():
        models[level] = fit(data.with_rows(rows))
    return PerLevelModel(label.column_index, models)


def draw_chain(
    chain: Iterable[ChainStep],
    partly_drawn: PartlyDrawnRows,
    rng: np.random.Generator,
    clip_predictions: bool = True,
) -> None:
    """Draw the columns of a chain into partly drawn rows, one step after the other.

    `ChainStep.draw` explains `clip_predictions`.
    """
    for step in chain:
        new_cells = step.draw(partly_drawn, rng, clip_predictions)
        partly_drawn.set_columns(step.drawn_indices, new_cells)


def draw_rows(
    table: Table,
    chain: Sequence[ChainStep],
    n: int,
    *,
    seed: Seed,
    fixed_positions: Mapping[int, float],
    allow_missing: bool,
) -> LevelPositions:
    """Positions (n, d) of new rows that keep all rules; an error if there are none.

    `fixed_positions` has the positions of columns that are the same in all rows.
    """
    rng = np.random.default_rng(seed.child("rows").key)
    blank_row = make_blank_row(table.columns, fixed_positions)
    all_indices = np.arange(len(table.columns))
    is_changeable = np.isin(all_indices, list(fixed_positions), invert=True)
    level_positions = LevelPositions(np.empty((n, len(table.columns))))
    unfinished = np.arange(n)  # indices of the rows that are drawn in the next round
    for attempt in range(MAX_DRAW_ROUNDS):
        drawn = LevelPositions(np.tile(blank_row, (len(unfinished), 1)))
        is_strict = attempt < MAX_STRICT_ROUNDS
        partly_drawn = PartlyDrawnRows(drawn, table.rule_set, allow_missing)
        draw_chain(chain, partly_drawn, rng, clip_predictions=not is_strict)
        finished = table.rule_set.finish_rows(drawn, is_changeable)
        level_positions[unfinished] = finished.level_positions
        unfinished = unfinished[_is_refused(table, finished, is_strict)]
        if not len(unfinished):
            return level_positions
    raise _unkept_rule_error(table.rule_set, level_positions[unfinished], n)


def _is_refused(table: Table, finished: FinishedRows, is_strict: bool) -> Mask:
    """Which finished rows (m,) are drawn again, for one of three reasons.

    - The row breaks a rule.
    - A cell is not drawn: no draw was allowed, or in a strict round the prediction was
      beyond the ends of the column.
    - In a strict round, the row copies a row that occurs once.
    """
    is_refused = ~finished.is_valid
    if is_strict:
        is_refused |= table.is_copy_of_unique_row(finished.level_positions)
    return is_refused


def make_blank_row(
    columns: Sequence[Column], fixed_positions: Mapping[int, float]
) -> LevelPositions:
    """The positions (d,) of a row before its columns are drawn.

    Columns that the chain draws are `UNDRAWN`. Others have a position in
    `fixed_positions`, the only level of their column, or are missing.
    """
    row = LevelPositions(np.empty(len(columns)))
    for c, column in enumerate(columns):
        if c in fixed_positions:
            row[c] = fixed_positions[c]
        elif column.is_modeled:
            row[c] = UNDRAWN
        elif column.n_levels:
            row[c] = 0.0
        else:
            row[c] = MISSING
    return row


def _unkept_rule_error(
    rule_set: RuleSet, level_positions: LevelPositions, n: int
) -> DataError:
    """The error for rows (m, d), out of n, that broke a rule in every round.

    It names a broken rule, if there is one among the cells that are drawn.
    """
    rule = _first_broken_rule(rule_set, level_positions)
    if rule is None:
        unkept = "all rules"
        hint = "they may contradict given: change it, or leave a constraint out"
    elif rule.is_discovered:
        unkept = f"the rule {rule.text!r} of the table"
        hint = "it may contradict given: change what is given, or fit with rules='off'"
    else:
        unkept = f"the constraint {rule.text!r}"
        hint = "it may contradict given or another constraint: leave one out"
    return DataError(
        f"{len(level_positions)} of {n} rows could not keep {unkept}", hint
    )


def _first_broken_rule(
    rule_set: RuleSet, level_positions: LevelPositions
) -> Rule | None:
    """The first rule that some of the rows (m, d) break; None if none is broken."""
    drawn = np.where(is_impossible(level_positions), UNDRAWN, level_positions)
    for rule in rule_set.rules:
        if rule_set.is_broken_so_far(rule, LevelPositions(drawn)).any():
            return rule
    return None
