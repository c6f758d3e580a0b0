"""The model of one column, given the columns before it: a tree whose leaves hold rows.

The tree splits the rows by the columns before. A new cell has the value of a random row
in the leaf, or one between two neighbours there. A number that follows from the columns
before more closely, as a total from its parts, is what a ridge regression predicts plus
a residual, and the tree is of the residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeGuard

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.spaces.tables import rare_numbers
from sliceflow.spaces.tables.cell_sources import (
    CellSources,
    all_rows_keep,
    convert_grid_values,
    find_sources,
    needs_source_tree,
)
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.coords import (
    MISSING,
    UNDRAWN,
    has_value,
    is_impossible,
    is_missing,
    is_undrawn,
)
from sliceflow.spaces.tables.draft_rows import DraftRows
from sliceflow.spaces.tables.predictors import find_predictors
from sliceflow.spaces.tables.ridge_regression import (
    RidgeRegression,
    Scale,
    values_on_scale,
)
from sliceflow.spaces.tables.rules import ComputingRule
from sliceflow.spaces.tables.solve_rules import compute_column
from sliceflow.spaces.tables.trees import (
    Features,
    Tree,
    TreeSettings,
    subsample_indices,
    tree_targets,
)

# A number with fewer levels is not predicted by a regression, because leaves draw its
# few levels well, and a regression would only add time.
MIN_LEVELS_FOR_RIDGE = 12

# The most draws of a cell until one is allowed by the constraints, and after how many
# of them draws are from the node above, which has more rows. Six nodes are tried: more
# draws would take longer where no draw is allowed, and fewer would give up more cells,
# whose whole rows are then drawn again. A new node after fewer draws would leave the
# leaf, which knows most about the row, too soon.
MAX_DRAWS = 24
DRAWS_PER_NODE = 4

# How often a rare number is moved until the constraints allow its new place. After that
# it keeps its first place, which was allowed. More moves would take longer, and fewer
# would leave more rare numbers in samples of tables with constraints.
MAX_MOVES = 8

# The largest uniform random number: 1 itself would be beyond the last row of a leaf.
MAX_UNIFORM = 1 - 1e-12

# How a column is drawn: from the leaves of a tree; as a label whose levels have trees
# of their own for all other columns; or by a ridge regression of grid values or of
# their logarithms, with a residual from the leaves of a tree.
Strategy = Literal["tree", "per_level", "ridge", "log_ridge"]
RidgeStrategy = Literal["ridge", "log_ridge"]

# The strategies with a regression, and the scale of each regression.
SCALE_OF_STRATEGY: dict[RidgeStrategy, Scale] = {
    "ridge": "grid_value",
    "log_ridge": "log",
}


def uses_ridge(strategy: Strategy) -> TypeGuard[RidgeStrategy]:
    """Whether a column of this strategy is drawn by a ridge regression."""
    return strategy in SCALE_OF_STRATEGY


@dataclass(frozen=True, eq=False)
class _NewCells:
    """The cells of one column that are being drawn, for all rows of a draft."""

    draft: DraftRows
    column_index: int
    coords: Floats  # (m,); `UNDRAWN` until a proposal is accepted

    def propose(self, row_indices: Ints, coords: Floats) -> Mask:
        """Set the cells of rows (k,) to coordinates (k,), where the draft allows these.

        Returns
        -------
        accepted : (k,), which proposals were accepted
        """
        accepted = self.draft.allows(self.column_index, row_indices, coords)
        self.coords[row_indices[accepted]] = coords[accepted]
        return accepted


class _NodeDraws(NamedTuple):
    """Coordinates that were drawn from nodes of a tree."""

    coords: Floats  # (m,)
    # (m,), which coordinates are those of rows, and so may disclose these rows. A
    # prediction of a regression is a number of the table only by accident, and if it
    # moved, a total would no longer be the sum of its parts.
    is_of_row: Mask


@dataclass(frozen=True, eq=False)
class ColumnModel:
    """The conditional distribution of one column, given other columns.

    `source_tree` draws where a new cell comes from (`CellSources`), and `tree` draws
    the values of those that come from it.
    """

    columns: Sequence[Column]  # all columns of the table
    column_index: int  # the column that is drawn
    predictors: Ints  # indices of the columns that its trees see
    regressions: tuple[RidgeRegression, ...]  # its trees see their predictions, too
    tree: Tree  # of the rows whose cells come from the tree
    values: Floats  # (n,), coordinates of these cells, or with `is_ridge` residuals
    is_ridge: bool  # whether draws are residuals of the last regression
    sources: CellSources  # of all rows
    # Draws the sources of new cells; None if no source has to be drawn
    # (`needs_source_tree`).
    source_tree: Tree | None
    rules: tuple[ComputingRule, ...] = ()  # rules that compute some of the cells

    @property
    def column(self) -> Column:
        """The column that is drawn."""
        return self.columns[self.column_index]

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list."""
        return [self.column_index]

    @property
    def unexplained(self) -> float:
        """The tree's residual impurity, times the share of cells that are drawn."""
        return float(self.tree.residual_impurity * (~self.sources.computed).mean())

    def draw(
        self, draft: DraftRows, rng: np.random.Generator, clip: bool = True
    ) -> Floats:
        """Coordinates (m, 1) of new cells for the m rows of a draft; see `ChainStep`.

        In this order, a cell is copied from an equal column or left missing, if such a
        source is drawn for it; computed by a rule; or drawn from the tree.
        """
        cell_coords = draft.cell_coords
        cells = _NewCells(draft, self.column_index, np.full(len(draft), UNDRAWN))
        x, predicted = _features(cell_coords, self.predictors, self.regressions)
        computed = compute_column(
            self.rules, self.columns, cell_coords, self.column_index
        )
        is_computed = ~is_undrawn(computed)
        if self.source_tree is not None:
            sources = self._draw_sources(self.source_tree, x, rng)
            self._copy_equal_columns(sources, cell_coords, cells)
            self._leave_missing(sources, cells)
            if not all_rows_keep(self.rules):
                is_computed &= sources.computed
        self._take_computed(is_computed, computed, cells)
        row_indices = np.flatnonzero(is_undrawn(cells.coords) & ~is_computed)
        node = self.tree.nodes.apply(x[row_indices])
        self._draw_from_tree(row_indices, node, predicted, cells, rng, clip)
        return cells.coords[:, None]

    def _draw_sources(
        self, source_tree: Tree, x: Features, rng: np.random.Generator
    ) -> CellSources:
        """Sources of m new cells, given features x (m, p)."""
        node = source_tree.nodes.apply(x)
        place = _stratified_uniforms(node, rng) * source_tree.node_size[node]
        index = source_tree.node_start[node] + place.astype(np.int64)
        return self.sources.take(source_tree.row_order[index])

    def _copy_equal_columns(
        self, sources: CellSources, cell_coords: Floats, cells: _NewCells
    ) -> None:
        """Copy cells of earlier columns, where these are the source."""
        for c in sources.equal_indices:
            row_indices = np.flatnonzero(sources.equals(c))
            grid_values = convert_grid_values(
                cell_coords[row_indices, c],
                from_grid=self.columns[c].grid,
                to_grid=self.column.grid,
            )
            copied = self.column.grid.grid_values_to_coords(grid_values)
            is_known = has_value(copied)
            cells.propose(row_indices[is_known], copied[is_known])

    def _leave_missing(self, sources: CellSources, cells: _NewCells) -> None:
        """Set cells to missing, where that is the source."""
        row_indices = np.flatnonzero(sources.missing)
        cells.propose(row_indices, np.full(len(row_indices), MISSING))

    def _take_computed(
        self, is_computed: Mask, computed: Floats, cells: _NewCells
    ) -> None:
        """Set cells to `computed` ones (m,), in rows in which rules compute them.

        A computed cell that is not allowed stays undrawn: any other would break a rule.
        """
        is_possible = ~is_impossible(computed) & is_undrawn(cells.coords)
        row_indices = np.flatnonzero(is_computed & is_possible)
        cells.propose(row_indices, computed[row_indices])

    def _draw_from_tree(
        self,
        row_indices: Ints,
        node: Ints,
        predicted: Floats,
        cells: _NewCells,
        rng: np.random.Generator,
        clip: bool,
    ) -> None:
        """Draw the cells of rows (k,) from their nodes (k,), until all are allowed.

        `predicted` (m,) is what the last regression predicts, for all rows. After a few
        draws that are not allowed, draws are from the node above the leaf. A prediction
        beyond the ends of the column is clipped to the nearest end, or without `clip`
        left undrawn: draws from other nodes would be no better.
        """
        for attempt in range(MAX_DRAWS):
            if not len(row_indices):
                break
            drawn = self._draw_from_nodes(node, predicted[row_indices], rng, clip)
            is_inside = ~is_impossible(drawn.coords)
            row_indices = row_indices[is_inside]
            node = node[is_inside]
            coords = drawn.coords[is_inside]
            is_of_row = drawn.is_of_row[is_inside]
            accepted = cells.propose(row_indices, coords)
            is_rare = rare_numbers.is_rare(self.column, coords)
            to_move = accepted & is_of_row & is_rare
            self._move_rare_numbers(row_indices[to_move], node[to_move], cells, rng)
            row_indices = row_indices[~accepted]
            node = node[~accepted]
            if attempt % DRAWS_PER_NODE == DRAWS_PER_NODE - 1:
                node = self.tree.parent[node]

    def _move_rare_numbers(
        self,
        row_indices: Ints,
        node: Ints,
        cells: _NewCells,
        rng: np.random.Generator,
    ) -> None:
        """Move rare numbers, which were drawn for rows (k,) from nodes (k,).

        They stay where they are if no move is allowed.
        """
        for _ in range(MAX_MOVES):
            if not len(row_indices):
                break
            leaf = self._range_of_nodes(node)
            rare = cells.coords[row_indices]
            moved = rare_numbers.move(self.column, rare, leaf, rng)
            accepted = cells.propose(row_indices, moved)
            row_indices = row_indices[~accepted]
            node = node[~accepted]

    def _range_of_nodes(self, node: Ints) -> rare_numbers.LevelRange:
        """The lowest and the highest level among the rows of each node (m,).

        Rows of a node above leaves are not sorted, so its range is that of the column.
        """
        tree = self.tree
        start = tree.node_start[node]
        last = self.values[tree.row_order[start + tree.node_size[node] - 1]]
        first = self.values[tree.row_order[start + self._n_missing[node]]]
        whole = rare_numbers.LevelRange.of_column(self.column, len(node))
        is_sorted = tree.is_leaf(node)
        return rare_numbers.LevelRange(
            np.where(is_sorted, first, whole.first).astype(np.int64),
            np.where(is_sorted, last, whole.last).astype(np.int64),
        )

    @cached_property
    def _n_missing(self) -> Ints:
        """How many cells of each node are missing, at most all but one: (nodes,)."""
        tree = self.tree
        missing = is_missing(self.values[tree.row_order])
        n_before = np.append(0, np.cumsum(missing))
        end = tree.node_start + tree.node_size
        n_missing = n_before[end] - n_before[tree.node_start]
        return np.asarray(np.minimum(n_missing, tree.node_size - 1))

    def _draw_from_nodes(
        self, node: Ints, predicted: Floats, rng: np.random.Generator, clip: bool
    ) -> _NodeDraws:
        """Coordinates (m,) of random rows of nodes (m,), or between two of these rows.

        With `is_ridge`, draws are residuals, which are added to what the last
        regression predicts, `predicted` (m,). Sums beyond the ends of the column are
        `IMPOSSIBLE`, or with `clip` at the nearest end.
        """
        tree = self.tree
        start = tree.node_start[node]
        size = tree.node_size[node]
        place = _stratified_uniforms(node, rng) * size
        drawn = self.values[tree.row_order[start + place.astype(np.int64)]]
        if not self.is_ridge and not self.column.new_values.free_levels.any():
            return _NodeDraws(drawn, is_of_row=np.full(len(node), True))

        # Rows of a leaf are sorted by value, so a draw may be between the two rows
        # around its place. Rows of a node above are not sorted, so a draw from there
        # has the value of its row.
        place = np.clip(place - 0.5, 0, size - 1)
        below = place.astype(np.int64)
        above = np.minimum(below + 1, size - 1)
        fraction = place - below
        low = self.values[tree.row_order[start + below]]
        high = self.values[tree.row_order[start + above]]
        is_sorted = tree.is_leaf(node)
        if self.is_ridge:
            residual = np.where(is_sorted, low + fraction * (high - low), drawn)
            regression = self.regressions[-1]
            new = regression.to_coords(self.column, predicted + residual, clip)
            return _NodeDraws(new, is_of_row=np.full(len(node), False))
        between = self.column.new_values.interpolate(low, high, fraction, drawn)
        coords = np.where(is_sorted, between, drawn)
        is_of_row = (coords == drawn) | (coords == low) | (coords == high)
        return _NodeDraws(coords, is_of_row)


@dataclass(frozen=True, eq=False)
class PerLevelModel:
    """The models of one column, one for each level of a label: no tree mixes levels."""

    label_index: int  # the column of the label
    models: Mapping[float, ColumnModel]  # by the label's coordinates

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list. All models draw the same column."""
        first_model = next(iter(self.models.values()))
        return first_model.drawn_indices

    @property
    def unexplained(self) -> float:
        """The mean of what the models of the levels leave unexplained."""
        return float(np.mean([model.unexplained for model in self.models.values()]))

    def draw(
        self, draft: DraftRows, rng: np.random.Generator, clip: bool = True
    ) -> Floats:
        """Draw each row by the model of its level; see `ColumnModel.draw`."""
        coords = np.full((len(draft), 1), UNDRAWN)
        labels = draft.cell_coords[:, self.label_index]
        for level, model in self.models.items():
            of_level = np.flatnonzero(labels == level)
            coords[of_level] = model.draw(draft.take(of_level), rng, clip)
        return coords


def fit_column_model(
    columns: Sequence[Column],
    cell_coords: Floats,
    column_index: int,
    predictors: Ints,
    *,
    seed: Seed,
    settings: TreeSettings,
    strategy: Strategy = "tree",
    rules: Sequence[ComputingRule] = (),
) -> ColumnModel:
    """Fit the model of a column given `predictors`, to rows with coordinates (n, d).

    Cells that follow from `rules` are computed; the tree is of the other rows.
    """
    rng = np.random.default_rng(seed.key)
    coords = cell_coords[:, column_index]
    predictors = find_predictors(columns, cell_coords, column_index, predictors)
    regressions = []
    score_regression = _fit_score_regression(
        columns, cell_coords, column_index, predictors, rng
    )
    if score_regression is not None:
        regressions.append(score_regression)

    sources = find_sources(columns, cell_coords, column_index, predictors, rules)
    ridge = None
    if uses_ridge(strategy):
        may_regress = sources.from_tree | sources.computed
        to_regress = np.flatnonzero(may_regress & ~is_missing(coords))
        sample = cell_coords[subsample_indices(to_regress, rng)]
        scale = SCALE_OF_STRATEGY[strategy]
        ridge = RidgeRegression.from_data(
            scale, columns, sample, column_index, predictors
        )
    if ridge is not None:
        regressions.append(ridge)
        # A missing cell has no residual that the tree could draw.
        sources = sources.with_missing(is_missing(coords))

    x, predicted = _features(cell_coords, predictors, regressions)
    source_tree = None
    if needs_source_tree(sources, rules):
        source_ids = sources.source_ids
        sort_values = source_ids.astype(np.float64)
        source_tree = Tree.from_data(x, source_ids, sort_values, settings, rng)
    in_tree = _rows_in_tree(sources, coords)
    values = coords[in_tree]
    if ridge is not None:
        actual = values_on_scale(
            ridge.scale, columns, cell_coords[in_tree], [column_index]
        )
        values = actual[:, 0] - predicted[in_tree]
    targets = tree_targets(columns[column_index], values)
    tree = Tree.from_data(x[in_tree], targets, values, settings, rng)
    return ColumnModel(
        columns=columns,
        column_index=column_index,
        predictors=predictors,
        regressions=tuple(regressions),
        tree=tree,
        values=values,
        is_ridge=ridge is not None,
        sources=sources,
        source_tree=source_tree,
        rules=tuple(rules),
    )


def _rows_in_tree(sources: CellSources, coords: Floats) -> Mask:
    """Which rows (n,) the tree of a column with coordinates (n,) is fitted to.

    It is never empty: constraints may forbid all other sources in a new row.
    """
    if sources.from_tree.any():
        return sources.from_tree
    if has_value(coords).any():
        return has_value(coords)
    return np.full(len(coords), True)


def _fit_score_regression(
    columns: Sequence[Column],
    cell_coords: Floats,
    column_index: int,
    predictors: Ints,
    rng: np.random.Generator,
) -> RidgeRegression | None:
    """A regression of normal scores, whose predictions are a feature of the trees.

    A tree needs many splits to find a sum of several columns; of this feature it needs
    few. None for categories, numbers of few levels, and fewer than two predictors.
    """
    column = columns[column_index]
    has_many_levels = column.is_quantitative and column.n_levels >= MIN_LEVELS_FOR_RIDGE
    if not has_many_levels or len(predictors) <= 1:
        return None
    sample = cell_coords[subsample_indices(np.arange(len(cell_coords)), rng)]
    return RidgeRegression.from_data("score", columns, sample, column_index, predictors)


def _features(
    cell_coords: Floats, predictors: Ints, regressions: Sequence[RidgeRegression]
) -> tuple[Features, Floats]:
    """What trees see of rows with coordinates (m, d), and the last prediction.

    Features (m, p) are the coordinates of the predictors and the predictions of all
    regressions, in single precision, as scikit-learn takes them. What the last
    regression predicts, (m,), is in double; 0 if there is none.
    """
    x = cell_coords[:, predictors]
    if len(predictors) == 0:
        x = np.zeros((len(cell_coords), 1))  # a tree of one leaf
    predictions = [regression.predict(cell_coords) for regression in regressions]
    features = np.column_stack((x, *predictions)).astype(np.float32)
    if not predictions:
        return features, np.zeros(len(cell_coords))
    return features, predictions[-1]


def _stratified_uniforms(node: Ints, rng: np.random.Generator) -> Floats:
    """Uniform random numbers in [0, 1) for nodes (m,), stratified within equal nodes.

    Of k equal nodes, one has a number in each of [0, 1/k), [1/k, 2/k), …: so no row of
    a leaf is drawn more often than its share.
    """
    order = np.lexsort((rng.random(len(node)), node))
    group_start = np.flatnonzero(np.diff(node[order], prepend=-1))
    group_size = np.diff(group_start, append=len(node))
    index_in_group = np.arange(len(node)) - np.repeat(group_start, group_size)
    size = np.repeat(group_size, group_size)
    uniforms = np.empty(len(node))
    # Rounding could give 1.
    stratified = (index_in_group + rng.random(len(node))) / size
    uniforms[order] = np.minimum(stratified, MAX_UNIFORM)
    return uniforms
