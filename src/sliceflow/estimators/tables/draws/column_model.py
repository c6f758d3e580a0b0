"""The model of one column, given the columns before it: a tree whose leaves hold rows.

The tree splits the rows by the columns before. A new cell has the value of a random row
in the leaf, or one between those of two rows there. Some numbers depend on the columns
before more closely, as a total depends on its parts. Such a number is what a ridge
regression predicts plus a residual, and the tree holds the residuals.

`fit_column_model` fits a `ColumnModel`: up to two regressions, whose predictions the
trees see; a tree that says where a cell comes from (`cell_sources`); and the tree that
holds the values. `ColumnModel.draw` draws the new cells: it decides where each comes
from. `tree_draws` draws one from a leaf, again and again until the rules allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.column_data import ColumnData, limit_predictors
from sliceflow.estimators.tables.columns.level_positions import (
    MISSING,
    UNDRAWN,
    LevelPositions,
    has_value,
    is_missing,
    is_undrawn,
)
from sliceflow.estimators.tables.draws.cell_sources import (
    CellSources,
    convert_grid_values,
    find_sources,
    has_sources_to_draw,
    is_kept_by_all_rows,
)
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.ridge_regression import (
    RidgeRegression,
    Scale,
    target_on_scale,
)
from sliceflow.estimators.tables.draws.strategies import (
    SCALE_OF_STRATEGY,
    Strategy,
    uses_ridge,
)
from sliceflow.estimators.tables.draws.tree_draws import NodeSampler, TreeDraws
from sliceflow.estimators.tables.draws.trees import (
    Tree,
    TreeFeatures,
    TreeSettings,
    subsample_indices,
    tree_targets,
)
from sliceflow.estimators.tables.rules.kinds import SolvableRule
from sliceflow.estimators.tables.rules.solve import solve_column

# A number with fewer levels is not predicted by a regression, because leaves draw its
# few levels well, and a regression would only add time.
MIN_LEVELS_FOR_RIDGE = 12


class _TreeInput(NamedTuple):
    """What the trees of a column see of m rows."""

    x: TreeFeatures  # (m, p)
    # (m,), what the value regression predicts; None if there is no such regression.
    value_prediction: Floats | None


@dataclass(frozen=True, eq=False)
class ColumnModel:
    """The conditional distribution of one column, given other columns.

    `source_tree` draws where a new cell comes from (`CellSources`). If it comes from
    the tree of the column, `sampler` draws its value.
    """

    columns: Sequence[Column]  # all columns of the table
    column_index: int  # the column that is drawn
    predictor_indices: Ints  # indices of the columns that its trees see
    # A regression of normal scores. The trees see its predictions, and also the
    # predictions of `sampler.value_regression`.
    score_regression: RidgeRegression | None
    sampler: NodeSampler  # of the rows whose cells come from the tree
    training_sources: CellSources  # of the cells of all training rows
    # Its leaves hold the ids of sources; None if no source has to be drawn
    # (`has_sources_to_draw`).
    source_tree: Tree | None
    rules: tuple[SolvableRule, ...] = ()  # rules that compute some of the cells

    @property
    def column(self) -> Column:
        """The column that is drawn."""
        return self.columns[self.column_index]

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list."""
        return [self.column_index]

    @property
    def unexplained_share(self) -> float:
        """The tree's residual impurity, times the share of cells that are drawn."""
        share_drawn = (~self.training_sources.is_computed).mean()
        return float(self.sampler.tree.residual_impurity * share_drawn)

    def draw(
        self,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
        clip_predictions: bool = True,
    ) -> LevelPositions:
        """Positions (m, 1) of new cells for m partly drawn rows, as a `ChainStep`.

        Sources propose positions, and a cell takes the first one that its row allows:

        1. It equals an earlier column or is missing, if that source is drawn for it.
        2. A rule computes it.
        3. It is drawn from the tree.
        """
        level_positions = partly_drawn.level_positions
        tree_input = _make_tree_input(
            level_positions,
            self.predictor_indices,
            self.score_regression,
            self.sampler.value_regression,
        )
        drawn_sources = self._draw_sources(tree_input.x, rng)
        computed = self._computed_positions(level_positions, drawn_sources)
        new_positions = self._draw_from_sources(partly_drawn, drawn_sources, computed)
        # Where a rule computes a cell, any other value would break the rule. So the
        # cell stays undrawn if the column or the row does not allow what is computed.
        from_tree = np.flatnonzero(is_undrawn(new_positions) & is_undrawn(computed))
        new_positions[from_tree] = self._draw_from_tree(
            from_tree, partly_drawn, tree_input, rng, clip_predictions
        )
        return new_positions[:, None]

    def _draw_from_sources(
        self,
        partly_drawn: PartlyDrawnRows,
        drawn_sources: CellSources | None,
        computed: LevelPositions,
    ) -> LevelPositions:
        """Positions (m,) of cells that come from another source than the tree.

        These equal an earlier column, are missing, or are `computed` (m,) by a rule, in
        this order. They are `UNDRAWN` where their row allows none of it.
        """
        proposed = self._equal_or_missing(partly_drawn.level_positions, drawn_sources)
        equal_or_missing = partly_drawn.keep_allowed(self.column_index, proposed)
        allowed_computed = partly_drawn.keep_allowed(self.column_index, computed)
        return LevelPositions(
            np.where(is_undrawn(equal_or_missing), allowed_computed, equal_or_missing)
        )

    def _draw_from_tree(
        self,
        row_indices: Ints,
        partly_drawn: PartlyDrawnRows,
        tree_input: _TreeInput,
        rng: np.random.Generator,
        clip_predictions: bool,
    ) -> LevelPositions:
        """Positions (k,) of cells in these rows (k,), drawn from their leaves."""
        tree_draws = TreeDraws(
            partly_drawn,
            self.column_index,
            self.sampler,
            value_prediction=tree_input.value_prediction,
            rng=rng,
            clip_predictions=clip_predictions,
        )
        leaf = self.sampler.tree.find_leaves(tree_input.x[row_indices])
        return tree_draws.draw_from_leaves(row_indices, leaf)

    def _draw_sources(
        self, x: TreeFeatures, rng: np.random.Generator
    ) -> CellSources | None:
        """Draw the sources of m new cells, given features x (m, p).

        None if no source has to be drawn.
        """
        if self.source_tree is None:
            return None
        leaf = self.source_tree.find_leaves(x)
        source_ids = self.source_tree.draw(leaf, rng).values.astype(np.int64)
        return CellSources(self.training_sources.equal_column_indices, source_ids)

    def _equal_or_missing(
        self, level_positions: LevelPositions, drawn_sources: CellSources | None
    ) -> LevelPositions:
        """Positions (m,) of cells that equal a cell of rows (m, d), or are missing.

        Cells with another source are `UNDRAWN`. So are cells that equal a cell without
        a value, or a cell whose value this column cannot have.
        """
        positions = LevelPositions(np.full(len(level_positions), UNDRAWN))
        if drawn_sources is None:
            return positions
        for c in drawn_sources.equal_column_indices:
            is_equal = drawn_sources.is_equal_to(c)
            grid_values = convert_grid_values(
                level_positions[is_equal, c],
                from_grid=self.columns[c].grid,
                to_grid=self.column.grid,
            )
            copied = self.column.grid.positions_of(grid_values)
            positions[is_equal] = np.where(has_value(copied), copied, UNDRAWN)
        positions[drawn_sources.is_missing] = MISSING
        return positions

    def _computed_positions(
        self, level_positions: LevelPositions, drawn_sources: CellSources | None
    ) -> LevelPositions:
        """The positions (m,) that rules compute for rows (m, d); `UNDRAWN` for others.

        Rules that all rows of the table keep compute whatever follows from them. Other
        rules compute only cells that have a rule as their source, if sources are drawn.
        """
        computed = solve_column(
            self.rules, self.columns, level_positions, self.column_index
        )
        if drawn_sources is None or is_kept_by_all_rows(self.rules):
            return computed
        return LevelPositions(np.where(drawn_sources.is_computed, computed, UNDRAWN))


def fit_column_model(
    data: ColumnData,
    *,
    seed: Seed,
    settings: TreeSettings,
    strategy: Strategy = "tree",
    rules: Sequence[SolvableRule] = (),
) -> ColumnModel:
    """Fit the model of a column given its predictors.

    Cells that follow from `rules` are computed, and the tree is fitted to other rows.
    """
    rng = np.random.default_rng(seed.key)
    data = limit_predictors(data)
    sources = find_sources(data, rules)
    score_regression = _fit_score_regression(data, rng)
    value_regression = _fit_value_regression(data, sources, strategy, rng)
    if value_regression is not None:
        # A missing cell has no residual that the tree could draw.
        sources = sources.with_missing(is_missing(data.positions))
    tree_input = _make_tree_input(
        data.level_positions, data.predictor_indices, score_regression, value_regression
    )
    source_tree = None
    if has_sources_to_draw(sources, rules):
        source_tree = _fit_source_tree(tree_input.x, sources, settings, rng)
    value_tree = _fit_value_tree(
        tree_input, data, sources, value_regression, settings, rng
    )
    return ColumnModel(
        columns=data.columns,
        column_index=data.column_index,
        predictor_indices=data.predictor_indices,
        score_regression=score_regression,
        sampler=NodeSampler(data.column, value_tree, value_regression),
        training_sources=sources,
        source_tree=source_tree,
        rules=tuple(rules),
    )


def _fit_score_regression(
    data: ColumnData, rng: np.random.Generator
) -> RidgeRegression | None:
    """A regression of normal scores, whose predictions are a feature of the trees.

    A tree needs many splits to find a sum of several columns, but few splits of this
    feature. There is none for categories, numbers of few levels, and fewer than two
    predictors.
    """
    has_many_levels = data.column.n_levels >= MIN_LEVELS_FOR_RIDGE
    if not data.column.is_quantitative or not has_many_levels:
        return None
    if len(data.predictor_indices) <= 1:
        return None
    return _fit_to_sample("score", data, rng)


def _fit_value_regression(
    data: ColumnData,
    sources: CellSources,
    strategy: Strategy,
    rng: np.random.Generator,
) -> RidgeRegression | None:
    """The regression whose residuals the tree holds; None if values are in the tree.

    Cells that equal an earlier column are left out, and so are missing ones.
    """
    if not uses_ridge(strategy):
        return None
    is_regressed = sources.is_from_tree | sources.is_computed
    observed = data.select(is_regressed & ~is_missing(data.positions))
    return _fit_to_sample(SCALE_OF_STRATEGY[strategy], observed, rng)


def _fit_to_sample(
    scale: Scale, data: ColumnData, rng: np.random.Generator
) -> RidgeRegression | None:
    """A regression of at most `MAX_ROWS_PER_TREE` random rows; None if too few."""
    sample = subsample_indices(np.arange(len(data)), rng)
    return RidgeRegression.from_data(scale, data.select(sample))


def _make_tree_input(
    level_positions: LevelPositions,
    predictor_indices: Ints,
    score_regression: RidgeRegression | None,
    value_regression: RidgeRegression | None,
) -> _TreeInput:
    """What trees see of rows (m, d): the predictors' positions, and predictions."""
    x: Floats = level_positions[:, predictor_indices]
    if len(predictor_indices) == 0:
        x = np.zeros((len(level_positions), 1))  # a tree of one leaf
    features = [x]
    if score_regression is not None:
        features.append(score_regression.predict(level_positions)[:, None])
    value_prediction = None
    if value_regression is not None:
        value_prediction = value_regression.predict(level_positions)
        features.append(value_prediction[:, None])
    return _TreeInput(np.hstack(features).astype(np.float32), value_prediction)


def _fit_source_tree(
    x: TreeFeatures,
    sources: CellSources,
    settings: TreeSettings,
    rng: np.random.Generator,
) -> Tree:
    """The tree whose leaves hold the ids of sources, given features x (n, p)."""
    source_ids = sources.source_ids
    return Tree.from_data(x, source_ids, source_ids.astype(np.float64), settings, rng)


def _fit_value_tree(
    tree_input: _TreeInput,
    data: ColumnData,
    sources: CellSources,
    value_regression: RidgeRegression | None,
    settings: TreeSettings,
    rng: np.random.Generator,
) -> Tree:
    """The tree whose leaves hold positions, or residuals of the value regression."""
    is_in_tree = _is_in_tree(sources, data.positions)
    values: Floats = data.positions[is_in_tree]
    prediction = tree_input.value_prediction
    if value_regression is not None and prediction is not None:
        actual = target_on_scale(value_regression.scale, data.select(is_in_tree))
        values = actual - prediction[is_in_tree]
    targets = tree_targets(data.column, values)
    return Tree.from_data(tree_input.x[is_in_tree], targets, values, settings, rng)


def _is_in_tree(sources: CellSources, positions: LevelPositions) -> Mask:
    """Which rows (n,) the tree of a column with positions (n,) is fitted to.

    It is never empty: constraints may forbid all other sources in a new row.
    """
    if sources.is_from_tree.any():
        return sources.is_from_tree
    if has_value(positions).any():
        return has_value(positions)
    return np.full(len(positions), True)
