"""A chain of conditional models: new rows, one column after the other.

This is a Knothe–Rosenblatt map: a chain of one-dimensional transports, each conditional
on the columns before it; the triangular sibling of the sliced flow. A tree splits the
rows by the columns before. A new cell has the value of a random row in the leaf, or one
between two neighbours there. A number that follows from the columns before more
closely, as a total from its parts, is what a ridge regression predicts plus a residual,
and the tree is of the residuals.

Trees that are grown one column after the other to synthesise tables are known from
synthpop: Nowok, Raab and Dibben (2016), "synthpop: Bespoke creation of synthetic data
in R", Journal of Statistical Software 74(11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeGuard

import numpy as np
from scipy.stats import rankdata

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.columns import Column, Grid
from sliceflow.spaces.tables.positions import (
    MISSING,
    UNDRAWN,
    has_value,
    is_impossible,
    is_missing,
    is_undrawn,
)
from sliceflow.spaces.tables.ridge import RidgeRegression, Scale, values_on_scale
from sliceflow.spaces.tables.rules import ComputingRule, compute
from sliceflow.spaces.tables.trees import (
    Features,
    Tree,
    TreeSettings,
    subsample_indices,
    tree_targets,
)

# The most columns that a model sees: of more, it sees those with the largest
# correlation ratios. So the time of a wide table grows with its columns and not with
# their square. With fewer, a model could miss columns that matter.
MAX_PREDICTORS = 40

# About how many rows these ratios are computed from. It saves time.
N_ROWS_FOR_RATIOS = 2_000

# The most groups of a column's values that a ratio is computed with. With more, groups
# would have few of those rows; with fewer, a column could vary within a group.
MAX_GROUPS = 50

# That a number equals an earlier column is modelled if it does so in at least this
# share of rows. A smaller share would take accidents for a pattern, and a larger one
# would lose patterns that users can see.
MIN_EQUAL_SHARE = 0.001

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

# How a column is drawn: from the leaves of a tree; as a label of which each level has
# trees of its own; or by a ridge regression of grid values or of their logarithms, and
# a residual from the leaves of a tree.
Strategy = Literal["tree", "per_level", "ridge", "log_ridge"]
RidgeStrategy = Literal["ridge", "log_ridge"]

# The strategies with a regression, and the scale of that.
SCALE_OF_STRATEGY: dict[RidgeStrategy, Scale] = {
    "ridge": "grid_value",
    "log_ridge": "log",
}

# Called with the index of a column, the indices (k,) of rows that are being drawn, and
# a position of the column for each of these: which of the positions are allowed (k,).
IsAllowed = Callable[[int, Ints, Floats], Mask]


def allow_all(column_index: int, row_indices: Ints, positions: Floats) -> Mask:
    """An `IsAllowed` without constraints."""
    return np.full(len(row_indices), True)


def uses_ridge(strategy: Strategy) -> TypeGuard[RidgeStrategy]:
    """Whether a column of this strategy is drawn by a ridge regression."""
    return strategy in SCALE_OF_STRATEGY


class ChainStep(Protocol):
    """A step of a chain: it draws one column, or several together."""

    @property
    def drawn_indices(self) -> list[int]:
        """The indices of the k columns that are drawn."""
        ...

    @property
    def unexplained(self) -> float:
        """The share of their impurity or variance that the model leaves."""
        ...

    def draw(
        self,
        z: Floats,
        rng: np.random.Generator,
        is_allowed: IsAllowed,
        clip: bool = True,
    ) -> Floats:
        """Positions (m, k) of new cells, given those of earlier columns in z (m, d).

        `UNDRAWN` where no draw was allowed, and without `clip` where a prediction is
        beyond the ends of the column.
        """
        ...


def draw_chain(
    chain: Iterable[ChainStep],
    z: Floats,
    rng: np.random.Generator,
    is_allowed: IsAllowed = allow_all,
    clip: bool = True,
) -> None:
    """Draw the columns of a chain into positions z (m, d), in place.

    Without `clip`, predictions beyond the ends of their column are left `UNDRAWN`.
    """
    for step in chain:
        z[:, step.drawn_indices] = step.draw(z, rng, is_allowed, clip)


@dataclass(frozen=True, eq=False)
class CellSources:
    """Where the cells of a column come from, row by row.

    A cell is drawn from a tree, or it equals the cell of an earlier column in the same
    row, or it is missing, or a rule computes it. Cells are missing without a draw only
    in columns with a regression or a rule: in others, a tree draws missing cells as one
    more level.

    Another tree predicts the source of new cells, so each source has a code, which is
    its class: 0 for the tree, i + 1 for a cell that equals that of the column
    `equal_indices[i]`, and the next two for missing and computed.
    """

    equal_indices: tuple[int, ...]
    codes: Ints  # (n,)

    @property
    def from_tree(self) -> Mask:
        """(n,), which cells are drawn from a tree."""
        return np.asarray(self.codes == 0)

    @property
    def from_equal_column(self) -> Mask:
        """(n,), which cells equal a cell of an earlier column."""
        return (self.codes > 0) & (self.codes <= len(self.equal_indices))

    @property
    def missing(self) -> Mask:
        """(n,), which cells are missing without a draw from a tree."""
        return np.asarray(self.codes == self._missing_code)

    @property
    def computed(self) -> Mask:
        """(n,), which cells a rule computes."""
        return np.asarray(self.codes == self._missing_code + 1)

    @property
    def _missing_code(self) -> int:
        return len(self.equal_indices) + 1

    def equals(self, column_index: int) -> Mask:
        """(n,), which cells equal the cell of this earlier column."""
        return np.asarray(self.codes == self.equal_indices.index(column_index) + 1)

    def with_missing(self, missing: Mask) -> CellSources:
        """The same sources, but for cells (n,) that are missing without a draw."""
        return replace(self, codes=np.where(missing, self._missing_code, self.codes))

    def with_computed(self, computed: Mask) -> CellSources:
        """The same sources, but for cells (n,) that a rule computes."""
        computed_code = self._missing_code + 1
        return replace(self, codes=np.where(computed, computed_code, self.codes))

    def take(self, row_indices: Ints) -> CellSources:
        """The sources of the cells of some rows (m,)."""
        return replace(self, codes=self.codes[row_indices])


@dataclass(frozen=True, eq=False)
class ColumnModel:
    """The conditional distribution of one column, given other columns.

    `source_tree` draws where a new cell comes from (`CellSources`), and `tree` draws
    the values of those that come from it.
    """

    columns: Sequence[Column]  # all columns of the table
    column_index: int  # the one that is drawn
    predictors: Ints  # indices of the columns that its trees see
    regressions: tuple[RidgeRegression, ...]  # whose predictions its trees see, too
    tree: Tree  # of the rows whose cells come from the tree
    values: Floats  # (n,), their positions, or with `is_ridge` their residuals
    is_ridge: bool  # whether draws are residuals of the last regression
    sources: CellSources  # of all rows
    source_tree: Tree | None  # of all rows; None if the rules say all of them
    rules: tuple[ComputingRule, ...] = ()  # that compute cells; all others are drawn

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
        """Share of the column's impurity that the tree leaves."""
        return float(self.tree.residual_impurity * (~self.sources.computed).mean())

    def draw(
        self,
        z: Floats,
        rng: np.random.Generator,
        is_allowed: IsAllowed = allow_all,
        clip: bool = True,
    ) -> Floats:
        """Positions (m, 1) of new cells, given those of earlier columns in z (m, d).

        `UNDRAWN` where no draw was allowed, and without `clip` where a prediction is
        beyond the ends of the column.
        """
        positions = np.full(len(z), UNDRAWN)
        x, predicted = _features(z, self.predictors, self.regressions)
        computed = compute(self.rules, self.columns, z, self.column_index)
        follows = ~is_undrawn(computed)
        if self.source_tree is not None:
            sources = self._draw_sources(self.source_tree, x, rng)
            self._copy_equal_columns(sources, z, positions, is_allowed)
            self._leave_missing(sources, positions, is_allowed)
            if not _all_exact(self.rules):
                follows &= sources.computed
        self._take_computed(follows, computed, positions, is_allowed)
        row_indices = np.flatnonzero(is_undrawn(positions) & ~follows)
        node = self.tree.nodes.apply(x[row_indices])
        self._draw_from_tree(
            row_indices, node, predicted, positions, rng, is_allowed, clip
        )
        return positions[:, None]

    def _take_computed(
        self, follows: Mask, computed: Floats, positions: Floats, is_allowed: IsAllowed
    ) -> None:
        """Take `computed` positions (m,), in place, where a cell follows from rules.

        Where such a cell is not allowed it stays undrawn, as another would break a
        rule.
        """
        is_possible = ~is_impossible(computed) & is_undrawn(positions)
        row_indices = np.flatnonzero(follows & is_possible)
        accepted = is_allowed(self.column_index, row_indices, computed[row_indices])
        positions[row_indices[accepted]] = computed[row_indices[accepted]]

    def _draw_sources(
        self, source_tree: Tree, x: Features, rng: np.random.Generator
    ) -> CellSources:
        """Sources of m new cells, given features x (m, p)."""
        node = source_tree.nodes.apply(x)
        place = _stratified_uniforms(node, rng) * source_tree.node_size[node]
        index = source_tree.node_start[node] + place.astype(np.int64)
        return self.sources.take(source_tree.row_order[index])

    def _copy_equal_columns(
        self,
        sources: CellSources,
        z: Floats,
        positions: Floats,
        is_allowed: IsAllowed,
    ) -> None:
        """Copy cells of earlier columns, in place, where these are the source."""
        for c in sources.equal_indices:
            row_indices = np.flatnonzero(sources.equals(c))
            grid_values = _grid_values_on(
                self.column.grid, self.columns[c].grid, z[row_indices, c]
            )
            copied = self.column.grid.grid_values_to_positions(grid_values)
            accepted = has_value(copied)
            accepted &= is_allowed(self.column_index, row_indices, copied)
            positions[row_indices[accepted]] = copied[accepted]

    def _leave_missing(
        self, sources: CellSources, positions: Floats, is_allowed: IsAllowed
    ) -> None:
        """Set cells to missing, in place, where that is the source."""
        row_indices = np.flatnonzero(sources.missing)
        missing = np.full(len(row_indices), MISSING)
        accepted = is_allowed(self.column_index, row_indices, missing)
        positions[row_indices[accepted]] = MISSING

    def _draw_from_tree(
        self,
        row_indices: Ints,
        node: Ints,
        predicted: Floats,
        positions: Floats,
        rng: np.random.Generator,
        is_allowed: IsAllowed,
        clip: bool,
    ) -> None:
        """Draw the positions of some rows from their nodes, until all are allowed.

        After a few draws that are not allowed, draws are from the node above the leaf.
        A prediction beyond the ends of the column is clipped to the nearest end, or
        without `clip` left undrawn: draws from other nodes would be no better.
        """
        for attempt in range(MAX_DRAWS):
            if not len(row_indices):
                break
            drawn = self._draw_from_nodes(node, predicted[row_indices], rng, clip)
            is_inside = ~is_impossible(drawn)
            row_indices = row_indices[is_inside]
            node = node[is_inside]
            drawn = drawn[is_inside]
            accepted = is_allowed(self.column_index, row_indices, drawn)
            positions[row_indices[accepted]] = drawn[accepted]
            row_indices = row_indices[~accepted]
            node = node[~accepted]
            if attempt % DRAWS_PER_NODE == DRAWS_PER_NODE - 1:
                node = self.tree.parent[node]

    def _draw_from_nodes(
        self, node: Ints, predicted: Floats, rng: np.random.Generator, clip: bool
    ) -> Floats:
        """Positions (m,) of random rows of nodes (m,), or between two of these rows.

        With `is_ridge`, draws are residuals, which are added to what the last
        regression predicts, `predicted` (m,). Sums beyond the ends of the column are
        `IMPOSSIBLE`, or with `clip` at the nearest end.
        """
        tree = self.tree
        start = tree.node_start[node]
        size = tree.node_size[node]
        place = _stratified_uniforms(node, rng) * size
        drawn = self.values[tree.row_order[start + place.astype(np.int64)]]
        if not self.is_ridge and not self.column.interpolable.any():
            return drawn

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
            return self.regressions[-1].to_positions(
                self.column, predicted + residual, clip
            )
        between = self.column.interpolate(low, high, fraction, drawn)
        return np.where(is_sorted, between, drawn)


@dataclass(frozen=True, eq=False)
class PerLevel:
    """One column with a model for each level of a label: no tree mixes levels."""

    label_index: int  # the column of the label
    models: Mapping[float, ColumnModel]  # by the label's positions

    @property
    def drawn_indices(self) -> list[int]:
        """The index of the column, as a list; it is the same in all models."""
        first_model = next(iter(self.models.values()))
        return first_model.drawn_indices

    @property
    def unexplained(self) -> float:
        """Share of the column's impurity that trees leave, on average over levels."""
        return float(np.mean([model.unexplained for model in self.models.values()]))

    def draw(
        self,
        z: Floats,
        rng: np.random.Generator,
        is_allowed: IsAllowed = allow_all,
        clip: bool = True,
    ) -> Floats:
        """As `ColumnModel.draw`, each row by the model of its level."""
        positions = np.full((len(z), 1), UNDRAWN)
        for level, model in self.models.items():
            of_level = np.flatnonzero(z[:, self.label_index] == level)
            is_allowed_here = _for_subset(is_allowed, of_level)
            positions[of_level] = model.draw(z[of_level], rng, is_allowed_here, clip)
        return positions


def _for_subset(is_allowed: IsAllowed, subset: Ints) -> IsAllowed:
    """An `IsAllowed` that takes indices within a subset of the rows."""

    def is_allowed_in_subset(
        column_index: int, row_indices: Ints, positions: Floats
    ) -> Mask:
        return is_allowed(column_index, subset[row_indices], positions)

    return is_allowed_in_subset


def fit_column_model(
    columns: Sequence[Column],
    z: Floats,
    column_index: int,
    predictors: Ints,
    *,
    seed: Seed,
    settings: TreeSettings,
    strategy: Strategy = "tree",
    rules: Sequence[ComputingRule] = (),
) -> ColumnModel:
    """Fit the model of a column given `predictors`, to rows with positions z (n, d).

    Cells that follow from `rules` are computed; the tree is of the other rows.
    """
    rng = np.random.default_rng(seed.key)
    positions = z[:, column_index]
    predictors = find_predictors(columns, z, column_index, predictors)
    regressions = []
    score_regression = _fit_score_regression(columns, z, column_index, predictors, rng)
    if score_regression is not None:
        regressions.append(score_regression)

    sources = _find_sources(columns, z, column_index, predictors, rules)
    in_tree = sources.from_tree
    ridge = None
    if uses_ridge(strategy):
        is_regressed = (in_tree | sources.computed) & ~is_missing(positions)
        to_regress = np.flatnonzero(is_regressed)
        sample = z[subsample_indices(to_regress, rng)]
        scale = SCALE_OF_STRATEGY[strategy]
        ridge = RidgeRegression.fit(scale, columns, sample, column_index, predictors)
    if ridge is not None:
        regressions.append(ridge)
        # A missing cell has no residual that the tree could draw.
        sources = sources.with_missing(is_missing(positions))
        in_tree = sources.from_tree

    x, predicted = _features(z, predictors, regressions)
    source_tree = None
    if _needs_source_tree(sources, rules):
        codes = sources.codes
        source_tree = Tree.fit(x, codes, codes.astype(np.float64), settings, rng)
    if not in_tree.any():  # constraints may forbid all other sources in a new row
        in_tree = has_value(positions)
    if not in_tree.any():
        in_tree = np.full(len(z), True)
    values = positions[in_tree]
    if ridge is not None:
        actual = values_on_scale(ridge.scale, columns, z[in_tree], [column_index])
        values = actual[:, 0] - predicted[in_tree]
    targets = tree_targets(columns[column_index], values)
    tree = Tree.fit(x[in_tree], targets, values, settings, rng)
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


def _find_sources(
    columns: Sequence[Column],
    z: Floats,
    column_index: int,
    predictors: Ints,
    rules: Sequence[ComputingRule],
) -> CellSources:
    """Where the cells of a column come from, in rows with positions z (n, d)."""
    positions = z[:, column_index]
    if not rules:
        return find_equal_columns(columns, z, column_index, predictors)
    sources = CellSources((), np.zeros(len(z), dtype=np.int64))
    computed = compute(rules, columns, z, column_index)
    follows = ~is_undrawn(computed)
    if not _all_exact(rules):
        follows &= computed == positions
    sources = sources.with_computed(follows)
    return sources.with_missing(is_missing(positions))


def _all_exact(rules: Sequence[ComputingRule]) -> bool:
    """Whether no row breaks any of the rules."""
    return all(rule.share == 1 for rule in rules)


def _needs_source_tree(sources: CellSources, rules: Sequence[ComputingRule]) -> bool:
    """Whether the sources of new cells are drawn.

    Exact rules say where a cell is computed, so only missing cells need a draw.
    """
    if rules and _all_exact(rules):
        return bool(sources.missing.any())
    return not sources.from_tree.all()


def _fit_score_regression(
    columns: Sequence[Column],
    z: Floats,
    column_index: int,
    predictors: Ints,
    rng: np.random.Generator,
) -> RidgeRegression | None:
    """A regression of normal scores, whose predictions are a feature of the trees.

    A tree needs many splits to find a sum of several columns; of this feature it needs
    few. None for categories, numbers of few levels, and fewer than two predictors.
    """
    column = columns[column_index]
    has_many_levels = column.is_number and column.n_levels >= MIN_LEVELS_FOR_RIDGE
    if not has_many_levels or len(predictors) <= 1:
        return None
    sample = z[subsample_indices(np.arange(len(z)), rng)]
    return RidgeRegression.fit("score", columns, sample, column_index, predictors)


def find_equal_columns(
    columns: Sequence[Column], z: Floats, column_index: int, predictors: Ints
) -> CellSources:
    """Earlier columns that a smooth number equals in some rows of z (n, d).

    Of the sources of its cells, none is `missing`.
    """
    column = columns[column_index]
    positions = z[:, column_index]
    codes = np.zeros(len(z), dtype=np.int64)
    is_free = column.is_interpolable(positions)
    if not is_free.any():
        return CellSources((), codes)
    grid_values = column.grid_values_at(positions)
    is_equal = dict[int, Mask]()
    for c in predictors.tolist():
        other = columns[c]
        same_units = (other.unit is None) == (column.unit is None)
        if other.kind == column.kind and same_units:
            other_values = _grid_values_on(column.grid, other.grid, z[:, c])
            is_equal[c] = is_free & (grid_values == other_values)

    equal_indices = list[int]()
    for c in sorted(is_equal, key=lambda c: -is_equal[c].mean()):
        newly_equal = is_equal[c] & (codes == 0)
        if newly_equal.mean() >= MIN_EQUAL_SHARE:
            equal_indices.append(c)
            codes[newly_equal] = len(equal_indices)
    return CellSources(tuple(equal_indices), codes)


def find_predictors(
    columns: Sequence[Column], z: Floats, column_index: int, predictors: Ints
) -> Ints:
    """The predictors, or the `MAX_PREDICTORS` that explain most of the column.

    What they explain is their correlation ratio, for rows with positions z (n, d).
    """
    if len(predictors) <= MAX_PREDICTORS:
        return predictors
    sample = z[:: max(1, len(z) // N_ROWS_FOR_RATIOS)]
    axes = columns[column_index].features(sample[:, column_index])
    ratios = [correlation_ratio(_groups(sample[:, c]), axes) for c in predictors]
    largest = np.argsort(-np.array(ratios), kind="stable")[:MAX_PREDICTORS]
    return np.sort(predictors[largest])


def _groups(positions: Floats) -> Ints:
    """Groups (n,) of cells that are alike, numbered from 0.

    Each level is a group, and so are missing cells. With many levels, these are joined
    to groups of neighbours with about equally many rows.
    """
    levels, group = np.unique(positions, return_inverse=True)
    if len(levels) <= MAX_GROUPS:
        return np.asarray(group, dtype=np.int64)
    ranks = rankdata(positions) - 0.5
    return np.asarray(ranks * MAX_GROUPS / len(positions), dtype=np.int64)


def correlation_ratio(group: Ints, axes: Floats) -> float:
    """The share of the variance of axes (n, a) that groups (n,) explain.

    It is adjusted for the number of groups k, so that it is about 0 for random ones:

        1 − (variance within groups · n / (n − k)) / (variance · n / (n − 1)).
    """
    n = len(group)
    sizes = np.bincount(group)
    sizes = np.maximum(sizes, 1)
    n_groups = int(group.max()) + 1
    centred = axes - axes.mean(axis=0)
    total = float((centred**2).sum())
    between = 0.0
    for axis in centred.T:
        sums = np.bincount(group, weights=axis, minlength=n_groups)
        between += float((sums**2 / sizes).sum())
    if total <= 0 or n <= n_groups:
        return 0.0
    return 1 - (total - between) / total * (n - 1) / (n - n_groups)


def _features(
    z: Floats, predictors: Ints, regressions: Sequence[RidgeRegression]
) -> tuple[Features, Floats]:
    """What trees see of rows with positions z (m, d), and the last prediction.

    Features (m, p) are the positions of the predictors and the predictions of all
    regressions, in single precision, as scikit-learn takes them. What the last
    regression predicts, (m,), is in double; 0 if there is none.
    """
    x = z[:, predictors]
    if len(predictors) == 0:
        x = np.zeros((len(z), 1))  # a tree of one leaf
    predictions = [regression.predict(z) for regression in regressions]
    features = np.column_stack((x, *predictions)).astype(np.float32)
    if not predictions:
        return features, np.zeros(len(z))
    return features, predictions[-1]


def _stratified_uniforms(node: Ints, rng: np.random.Generator) -> Floats:
    """Uniform random numbers in [0, 1) for nodes (m,), stratified within equal nodes.

    Of k equal nodes, one has a number in each of [0, 1/k), [1/k, 2/k), …: so no row of
    a leaf is drawn more often than its share.
    """
    order = np.lexsort((rng.random(len(node)), node))
    group_start = np.flatnonzero(np.diff(node[order], prepend=-1))
    group_size = np.diff(group_start, append=len(node))
    rank = np.arange(len(node)) - np.repeat(group_start, group_size)
    size = np.repeat(group_size, group_size)
    uniforms = np.empty(len(node))
    # Rounding could give 1, which would be beyond the last row of a leaf.
    uniforms[order] = np.minimum((rank + rng.random(len(node))) / size, 1 - 1e-12)
    return uniforms


def _grid_values_on(grid: Grid, other: Grid, positions: Floats) -> Floats:
    """The values at positions (m,) of another grid, as grid values of `grid`."""
    grid_values = other.positions_to_grid_values(positions)
    if grid.unit is None or other.unit is None:
        return grid_values
    ratio = other.unit / grid.unit
    scale = float(other.step * ratio)
    shift = float(other.origin * ratio - grid.origin)
    return (grid_values * scale + shift) / grid.step
