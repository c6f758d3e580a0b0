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
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard

import numpy as np

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.ridge import RidgeRegression, numbers_on_scale
from sliceflow.spaces.tables.trees import (
    Tree,
    TreeSettings,
    sample_rows,
    tree_targets,
)

# The most columns that a model sees: of more, it sees those with the largest
# correlations. This keeps the time of wide tables linear in their columns. A round
# number.
MAX_PREDICTORS = 40

# About how many rows the correlations for that choice are computed from. It saves time.
N_CORRELATED_ROWS = 2_000

# Added to a standard deviation that is divided by: that of constant columns is 0.
MIN_DEVIATION = 1e-12

# That a number equals an earlier column is modelled if it does so in at least this
# share of rows. A round number: fewer are an accident, or too few to be missed.
MIN_EQUAL_SHARE = 0.001

# A number with fewer levels is not predicted by a regression, because leaves draw it
# well. A round number.
MIN_LEVELS_FOR_RIDGE = 12

# The most draws of a cell until one is allowed by the constraints, and after how many
# of them draws are from the node above, which has more rows. Round numbers.
MAX_DRAWS = 24
DRAWS_PER_NODE = 4

# How a column is drawn: from the leaves of a tree; as a label of which each level has
# trees of its own; or by a ridge regression of numbers or of logarithms, and a residual
# from the leaves of a tree.
Strategy = Literal["leaves", "per_level", "numbers", "logs"]

# The strategies with a regression. Each is also the scale of its regression.
RidgeStrategy = Literal["numbers", "logs"]
RIDGE_STRATEGIES: tuple[RidgeStrategy, ...] = ("numbers", "logs")

# Called with the index of a column, rows (k,) of z and a position of the column for
# each of these: which of the positions are allowed (k,).
IsAllowed = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


def allow_all(column: int, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """An `IsAllowed` without constraints."""
    return np.full(len(rows), True)


def uses_ridge(strategy: Strategy) -> TypeGuard[RidgeStrategy]:
    """Whether a column of this strategy is drawn by a ridge regression."""
    return strategy in RIDGE_STRATEGIES


class ChainStep(Protocol):
    """A step of a chain: it draws one column, or several together."""

    @property
    def drawn_columns(self) -> list[int]:
        """The indices of the k columns that are drawn."""
        ...

    @property
    def is_ridge(self) -> bool:
        """Whether they are drawn by a ridge regression."""
        ...

    @property
    def unexplained(self) -> float:
        """The share of their impurity or variance that the model leaves."""
        ...

    def draw(
        self, z: np.ndarray, rng: np.random.Generator, is_allowed: IsAllowed
    ) -> np.ndarray:
        """Positions (m, k) of new cells, given those of earlier columns in z (m, d).

        NaN where no draw was allowed.
        """
        ...


def draw_chain(
    chain: Iterable[ChainStep],
    z: np.ndarray,
    rng: np.random.Generator,
    is_allowed: IsAllowed = allow_all,
) -> None:
    """Draw the columns of a chain into positions z (m, d), in place."""
    for step in chain:
        z[:, step.drawn_columns] = step.draw(z, rng, is_allowed)


@dataclass(frozen=True, eq=False)
class ColumnModel:
    """The conditional distribution of one column, given other columns.

    A row's cell has one of several sources: 0 is a draw from the leaves of `tree`;
    k ≥ 1 is a copy of the cell of the column `equal_columns[k − 1]`; one more than the
    last k is a missing cell. `source_tree` draws the source.
    """

    columns: Sequence[Column]  # all columns of the table
    column: int  # the index of the one that is drawn
    predictors: np.ndarray  # and of those that its trees see
    regressions: tuple[RidgeRegression, ...]  # whose predictions its trees see, too
    tree: Tree  # of the rows with source 0
    values: np.ndarray  # (n,), their positions, or with `is_ridge` their residuals
    is_ridge: bool  # whether draws are residuals of the last regression
    equal_columns: tuple[int, ...]
    source_tree: Tree | None  # of all rows; None if all have source 0
    sources: np.ndarray  # (n,), of all rows

    @property
    def drawn_columns(self) -> list[int]:
        """The index of the column, as a list."""
        return [self.column]

    @property
    def unexplained(self) -> float:
        """Share of the column's impurity that the tree leaves."""
        return self.tree.residual_impurity

    def draw(
        self,
        z: np.ndarray,
        rng: np.random.Generator,
        is_allowed: IsAllowed = allow_all,
    ) -> np.ndarray:
        """Positions (m, 1) of new cells, given those of earlier columns in z (m, d).

        NaN where no draw was allowed.
        """
        positions = np.full(len(z), np.nan)
        x, predicted = _features(z, self.predictors, self.regressions)
        if self.source_tree is not None:
            sources = self._draw_sources(self.source_tree, x, rng)
            self._copy_equal_columns(sources, z, positions, is_allowed)
            self._leave_missing(sources, positions, is_allowed)
        self._draw_from_tree(x, predicted, positions, rng, is_allowed)
        return positions[:, None]

    def _draw_sources(
        self, source_tree: Tree, x: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Sources (m,) of new cells, given features x (m, p)."""
        node = source_tree.nodes.apply(x)
        place = _stratified_uniforms(node, rng) * source_tree.node_size[node]
        index = source_tree.node_start[node] + place.astype(np.int64)
        return np.asarray(self.sources[source_tree.row_order[index]])

    def _copy_equal_columns(
        self,
        sources: np.ndarray,
        z: np.ndarray,
        positions: np.ndarray,
        is_allowed: IsAllowed,
    ) -> None:
        """Copy cells of earlier columns, in place, where these are the source."""
        column = self.columns[self.column]
        for source, index in enumerate(self.equal_columns, start=1):
            rows = np.flatnonzero(sources == source)
            numbers = _numbers_in_units_of(column, self.columns[index], z[rows, index])
            copied = column.grid.grid_values_to_positions(numbers)
            accepted = (copied >= 0) & is_allowed(self.column, rows, copied)
            positions[rows[accepted]] = copied[accepted]

    def _leave_missing(
        self, sources: np.ndarray, positions: np.ndarray, is_allowed: IsAllowed
    ) -> None:
        """Set cells to missing, in place, where that is the source."""
        rows = np.flatnonzero(sources > len(self.equal_columns))
        accepted = is_allowed(self.column, rows, np.full(len(rows), -1.0))
        positions[rows[accepted]] = -1

    def _draw_from_tree(
        self,
        x: np.ndarray,
        predicted: np.ndarray,
        positions: np.ndarray,
        rng: np.random.Generator,
        is_allowed: IsAllowed,
    ) -> None:
        """Draw the positions that are still NaN, in place, until all are allowed.

        After a few draws that are not allowed, draws are from the node above the leaf.
        """
        rows = np.flatnonzero(np.isnan(positions))
        node = self.tree.nodes.apply(x[rows])
        for attempt in range(MAX_DRAWS):
            if not len(rows):
                break
            drawn = self._draw_from_nodes(node, predicted[rows], rng)
            accepted = is_allowed(self.column, rows, drawn)
            positions[rows[accepted]] = drawn[accepted]
            rows = rows[~accepted]
            node = node[~accepted]
            if attempt % DRAWS_PER_NODE == DRAWS_PER_NODE - 1:
                node = self.tree.parent[node]

    def _draw_from_nodes(
        self, node: np.ndarray, predicted: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Positions (m,) of random rows of nodes (m,), or between two of these rows.

        With `is_ridge`, draws are residuals, which are added to what the last
        regression predicts, `predicted` (m,).
        """
        column = self.columns[self.column]
        tree = self.tree
        start = tree.node_start[node]
        size = tree.node_size[node]
        place = _stratified_uniforms(node, rng) * size
        drawn = self.values[tree.row_order[start + place.astype(np.int64)]]
        if not self.is_ridge and not column.interpolable.any():
            return np.asarray(drawn)

        # Rows of a leaf are sorted by value, so a draw may be between the two rows
        # around its place. Rows of a node above are not sorted, so a draw from there
        # has the value of its row.
        place = np.clip(place - 0.5, 0, size - 1)
        below = place.astype(np.int64)
        above = np.minimum(below + 1, size - 1)
        share = place - below
        low = self.values[tree.row_order[start + below]]
        high = self.values[tree.row_order[start + above]]
        is_sorted = tree.is_leaf(node)
        if self.is_ridge:
            residual = np.where(is_sorted, low + share * (high - low), drawn)
            return self.regressions[-1].to_positions(column, predicted + residual)
        between = column.interpolate(low, high, share, drawn)
        return np.where(is_sorted, between, drawn)


@dataclass(frozen=True, eq=False)
class PerLevel:
    """One column with a model for each level of a label: no tree mixes levels."""

    label: int  # index of the column of the label
    models: Mapping[float, ColumnModel]  # by the label's positions

    @property
    def drawn_columns(self) -> list[int]:
        """The index of the column, as a list; it is the same in all models."""
        first_model = next(iter(self.models.values()))
        return first_model.drawn_columns

    @property
    def is_ridge(self) -> bool:
        """Whether any level is drawn by a regression."""
        return any(model.is_ridge for model in self.models.values())

    @property
    def unexplained(self) -> float:
        """Share of the column's impurity that trees leave, on average over levels."""
        return float(np.mean([model.unexplained for model in self.models.values()]))

    def draw(
        self,
        z: np.ndarray,
        rng: np.random.Generator,
        is_allowed: IsAllowed = allow_all,
    ) -> np.ndarray:
        """As `ColumnModel.draw`, each row by the model of its level."""
        positions = np.full((len(z), 1), np.nan)
        for level, model in self.models.items():
            rows = np.flatnonzero(z[:, self.label] == level)
            positions[rows] = model.draw(z[rows], rng, _for_rows(is_allowed, rows))
        return positions


def _for_rows(is_allowed: IsAllowed, subset: np.ndarray) -> IsAllowed:
    """An `IsAllowed` that takes indices within a subset of the rows."""

    def is_allowed_in_subset(
        column: int, rows: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        return is_allowed(column, subset[rows], positions)

    return is_allowed_in_subset


def fit_column_model(
    columns: Sequence[Column],
    z: np.ndarray,
    column: int,
    predictors: np.ndarray,
    *,
    seed: Seed,
    settings: TreeSettings,
    strategy: Strategy = "leaves",
) -> ColumnModel:
    """Fit the model of a column given `predictors`, to rows with positions z (n, d)."""
    rng = np.random.default_rng(seed.key)
    predictors = find_predictors(z, column, predictors)
    regressions = []
    score_regression = _fit_score_regression(columns, z, column, predictors, rng)
    if score_regression is not None:
        regressions.append(score_regression)

    equal_columns, sources = find_equal_columns(columns, z, column, predictors)
    is_missing = z[:, column] < 0
    ridge = None
    if uses_ridge(strategy):
        rows = sample_rows(np.flatnonzero((sources == 0) & ~is_missing), rng)
        ridge = RidgeRegression.fit(strategy, columns, z[rows], column, predictors)
    if ridge is not None:
        regressions.append(ridge)
        # A missing cell has no residual, so it has a source of its own.
        sources[is_missing] = len(equal_columns) + 1

    x, predicted = _features(z, predictors, regressions)
    source_tree = None
    if sources.any():
        source_tree = Tree.fit(x, sources, sources.astype(np.float64), settings, rng)
    in_tree = sources == 0
    if not in_tree.any():  # constraints may forbid all other sources in a new row
        in_tree = np.full(len(z), True)
    values = z[in_tree, column]
    if ridge is not None:
        actual = numbers_on_scale(ridge.scale, columns, z[in_tree], [column])[:, 0]
        values = actual - predicted[in_tree]
    targets = tree_targets(columns[column], values)
    tree = Tree.fit(x[in_tree], targets, values, settings, rng)
    return ColumnModel(
        columns=columns,
        column=column,
        predictors=predictors,
        regressions=tuple(regressions),
        tree=tree,
        values=values,
        is_ridge=ridge is not None,
        equal_columns=equal_columns,
        source_tree=source_tree,
        sources=sources,
    )


def _fit_score_regression(
    columns: Sequence[Column],
    z: np.ndarray,
    column: int,
    predictors: np.ndarray,
    rng: np.random.Generator,
) -> RidgeRegression | None:
    """A regression of normal scores, whose predictions are a feature of the trees.

    A tree needs many splits to find a sum of several columns; of this feature it needs
    few. None for categories, numbers of few levels, and fewer than two predictors.
    """
    target = columns[column]
    has_many_levels = target.is_number and target.n_levels >= MIN_LEVELS_FOR_RIDGE
    if not has_many_levels or len(predictors) <= 1:
        return None
    rows = sample_rows(np.arange(len(z)), rng)
    return RidgeRegression.fit("scores", columns, z[rows], column, predictors)


def find_equal_columns(
    columns: Sequence[Column], z: np.ndarray, column: int, predictors: np.ndarray
) -> tuple[tuple[int, ...], np.ndarray]:
    """Earlier columns that a smooth number equals in some rows of z (n, d).

    Returns the indices of these columns, and for each row (n,) which of them its cell
    equals: 0 is none, k the k-th of them.
    """
    target = columns[column]
    sources = np.zeros(len(z), dtype=np.int64)
    is_free = target.is_interpolable(z[:, column])
    if not is_free.any():
        return (), sources
    numbers = target.numbers(z[:, column])
    equal_rows = dict[int, np.ndarray]()
    for index in predictors.tolist():
        other = columns[index]
        same_units = (other.unit is None) == (target.unit is None)
        if other.kind == target.kind and same_units:
            others = _numbers_in_units_of(target, other, z[:, index])
            equal_rows[index] = is_free & (numbers == others)

    equal_columns = list[int]()
    for index in sorted(equal_rows, key=lambda index: -equal_rows[index].mean()):
        rows = equal_rows[index] & (sources == 0)
        if rows.mean() >= MIN_EQUAL_SHARE:
            equal_columns.append(index)
            sources[rows] = len(equal_columns)
    return tuple(equal_columns), sources


def find_predictors(z: np.ndarray, column: int, predictors: np.ndarray) -> np.ndarray:
    """The predictors, or the `MAX_PREDICTORS` that correlate most with the column.

    Correlations are Pearson's, of the positions z (n, d): those are the ranks of values
    among the different values of a column, and −1 for missing cells.
    """
    if len(predictors) <= MAX_PREDICTORS:
        return predictors
    sample = z[:: max(1, len(z) // N_CORRELATED_ROWS)]
    x = sample[:, predictors]
    y = sample[:, column]
    covariance = (x - x.mean(0)).T @ (y - y.mean())
    # The deviation of y is left out: it is the same for all.
    correlation = np.abs(covariance) / (x.std(0) * len(x) + MIN_DEVIATION)
    largest = np.argsort(-correlation, kind="stable")[:MAX_PREDICTORS]
    return np.sort(predictors[largest])


def _features(
    z: np.ndarray, predictors: np.ndarray, regressions: Sequence[RidgeRegression]
) -> tuple[np.ndarray, np.ndarray]:
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


def _stratified_uniforms(node: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Uniform numbers in [0, 1) for nodes (m,), stratified within equal nodes.

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


def _numbers_in_units_of(
    column: Column, other: Column, positions: np.ndarray
) -> np.ndarray:
    """The numbers at positions (m,) of another column, in the units of `column`."""
    numbers = other.numbers(positions)
    if column.unit is None or other.unit is None:
        return numbers
    ratio = other.unit / column.unit
    scale = float(other.grid.step * ratio)
    shift = float(other.grid.origin * ratio - column.grid.origin)
    return (numbers * scale + shift) / column.grid.step
