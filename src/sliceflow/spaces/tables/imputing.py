"""Missing cells, filled by trees that see all other columns of the row.

This is multiple imputation by trees: Doove, van Buuren and Dusseldorp (2014),
"Recursive partitioning for missing data imputation in the presence of interaction
effects", Computational Statistics & Data Analysis 72.

1. All missing cells of a row start together, with those of a near row, moved along a
   regression on the known cells.
2. In each sweep, every missing cell is drawn again, column by column: as the cell of a
   random row in the leaf of a random tree, or along a ridge regression.
3. Each tree of a column is fitted to another copy of the training rows. Holes of these
   are filled in the same sweeps, so that trees see rows without holes.
4. Rows that break a constraint go through 1 and 2 again, with the same trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import ColumnModel, fit_column_model
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.constraints import Rules
from sliceflow.spaces.tables.strategies import choose_strategy
from sliceflow.spaces.tables.table import Table, generator
from sliceflow.spaces.tables.trees import TreeSettings

# Trees of a column: one for each table that is asked for, within these limits. Round
# numbers: a few show how uncertain trees are, many take time.
MIN_TREES = 3
MAX_TREES = 10

# Each tree is fitted to this share of its rows, drawn without replacement. A bootstrap
# sample has as many different rows (1 − 1/e).
BAGGING_SHARE = 0.63

# Leaves of 5 rows instead of 8 were no better: mean errors of .381 and .399 for .382
# and .401, but worse on small tables (benchmarks/RESULTS.md).
TREE_SETTINGS = TreeSettings(min_samples_leaf=8, ccp_factor=2.0)

# Training rows to learn from, by rows and by cells: these limit time and memory.
MAX_TRAINING_ROWS = 20_000
MAX_TRAINING_CELLS = 2_000_000

# A row starts from one of its nearest rows, among some training rows and by the first
# columns. Starts from 40 near rows were no better (caschool: error .293 for .295).
N_NEAREST = 10
MAX_DONORS = 5_000
MAX_COLUMNS_COMPARED = 50

# The regression of the start: the penalty, and the iterations of expectation
# maximisation where donors have holes themselves.
RIDGE_PENALTY = 1e-4
N_EM_ITERATIONS = 4

# Sweeps over the columns. Four gave the error .305 in place of .295 on caschool.
N_SWEEPS = 2

# Rounds for rows that break a constraint. In the first ones, dependencies that the
# table shows without being asked for are kept, too; known cells may break these.
MAX_ROUNDS = 10
ROUNDS_WITH_IMPLIED_RULES = 2


def fill(
    table: Table, z: np.ndarray, n: int, seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Fill the missing cells of rows with positions z (m, d), n times.

    Returns positions (n·m, d), one filling below the other, and the indices of those of
    these rows that are left as they were, because they would break a constraint.
    Identifiers, and columns without values, stay missing.
    """
    training_rows = _sample_training_rows(table, seed)
    fillable = _fillable_columns(table, training_rows)
    forests = _Forests(
        table.columns,
        fillable,
        training_rows,
        int(np.clip(n, MIN_TREES, MAX_TREES)),
        seed,
    )
    rng = generator(seed.child("fill"))

    # Copies of training rows come first, then the user's rows.
    n_training = len(forests.copies)
    user_rows = np.tile(_with_constants(table.columns, z), (n, 1))
    rows = np.concatenate((forests.copies, user_rows))
    is_hole = (rows < 0) & np.isin(np.arange(len(table.columns)), fillable)
    hole_columns = [c for c in fillable if is_hole[:, c].any()]

    rules = table.rules
    unfinished = np.flatnonzero(is_hole.any(axis=1))
    for attempt in range(MAX_ROUNDS):
        if not len(unfinished):
            break
        if attempt == ROUNDS_WITH_IMPLIED_RULES:
            rules = _without_implied(rules)
        cells = rows[unfinished]
        holes = is_hole[unfinished]
        is_training = unfinished < n_training
        _start(table.columns, training_rows[:MAX_DONORS], cells, fillable, rng)
        for sweep in range(N_SWEEPS):
            needs_fit = attempt == 0 and (sweep == 0 or forests.have_holes)
            for column in hole_columns:
                if needs_fit:
                    forests.copies[unfinished[is_training]] = cells[is_training]
                    forests.fit(column, sweep)
                _redraw(rules, forests.models[column], cells, holes, rng)
            cells, keeps_rules = _apply_rules(rules, cells, holes)
        rows[unfinished[keeps_rules]] = cells[keeps_rules]
        # Training rows have served their purpose once the trees are fitted.
        unfinished = unfinished[~keeps_rules & ~is_training]
    return rows[n_training:], unfinished - n_training


def _sample_training_rows(table: Table, seed: Seed) -> np.ndarray:
    """Positions (r, d) of the training rows to learn from, in random order."""
    n_rows = min(MAX_TRAINING_ROWS, MAX_TRAINING_CELLS // len(table.columns))
    order = generator(seed.child("some")).permutation(len(table.z))
    return table.z[order[:n_rows]]


def _fillable_columns(table: Table, training_rows: np.ndarray) -> list[int]:
    """Columns that can be filled: some cells are known, and it is no identifier."""
    fillable = []
    for c in table.order:
        is_identifier = table.columns[c].kind == "identifier"
        if not is_identifier and (training_rows[:, c] >= 0).any():
            fillable.append(c)
    return fillable


def _with_constants(columns: Sequence[Column], z: np.ndarray) -> np.ndarray:
    """Positions z (m, d) in which constant columns have their value in all cells."""
    is_constant = [
        column.kind == "constant" and len(column.level_codes) > 0 for column in columns
    ]
    return np.where(is_constant, 0.0, z)


def _without_implied(rules: Rules) -> Rules:
    """The rules that the user asked for."""
    asked = tuple(rule for rule in rules.rules if not rule.implied)
    return replace(rules, rules=asked)


@dataclass(eq=False)
class _Forests:
    """Models of each column given all others, each of one copy of training rows."""

    columns: Sequence[Column]  # all columns of the table
    fillable: list[int]  # the columns that models see, and draw
    training_rows: np.ndarray  # (r, d), positions, with holes
    n_copies: int
    seed: Seed
    copies: np.ndarray = field(
        init=False
    )  # (n_copies · r, d), holes are filled in place
    models: dict[int, list[ColumnModel]] = field(default_factory=dict)  # by column

    def __post_init__(self) -> None:
        self.copies = np.tile(self.training_rows, (self.n_copies, 1))

    @cached_property
    def have_holes(self) -> bool:
        """Whether training rows have holes, so that every sweep changes the copies."""
        return bool((self.training_rows[:, self.fillable] < 0).any())

    def fit(self, column: int, sweep: int) -> None:
        """Fit the models of a column to the copies as they are filled now."""
        seed = self.seed.child("column", column, sweep)
        others = [c for c in self.fillable if c != column]
        predictors = np.array(others, dtype=np.int64)
        is_known = self.training_rows[:, column] >= 0
        copies = self.copies.reshape(self.n_copies, *self.training_rows.shape)
        copies = copies[:, is_known]
        strategy = choose_strategy(
            self.columns, copies[0], column, predictors, seed=seed.child("way").key
        )
        models = []
        for t, rows in enumerate(copies):
            order = generator(seed.child("rows", t)).permutation(len(rows))
            bag = rows[order[: round(BAGGING_SHARE * len(rows))]]
            model = fit_column_model(
                self.columns,
                bag,
                column,
                predictors,
                seed=seed.child("grow", t).key,
                settings=TREE_SETTINGS,
                strategy=strategy,
            )
            models.append(model)
        self.models[column] = models


def _redraw(
    rules: Rules,
    models: Sequence[ColumnModel],
    cells: np.ndarray,
    holes: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw the holes (m, d) of one column of `cells` again, in place.

    Each is drawn by a random one of the column's models, given all other cells of the
    row. It stays where constraints allow no draw.
    """
    column = models[0].column
    rows_with_hole = rng.permutation(np.flatnonzero(holes[:, column]))
    parts = np.array_split(rows_with_hole, len(models))
    for model, rows in zip(models, parts, strict=True):
        given = cells[rows]
        # For the rules, cells that are still missing, and this column, are not drawn
        # yet.
        known = np.where(holes[rows] & (given < 0), np.nan, given)
        known[:, column] = np.nan
        is_allowed = partial(rules.allowed, column, known, False)
        drawn = model.draw(given, rng, is_allowed)
        cells[rows, column] = np.where(np.isnan(drawn), given[:, column], drawn)


def _apply_rules(
    rules: Rules, cells: np.ndarray, holes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the holes that are sums of other cells.

    Returns the cells (m, d), and which rows (m,) are filled and keep all rules.
    """
    completed = np.where(holes & (cells < 0), np.nan, cells)
    keeps_rules = rules.complete(completed, holes)
    return np.where(np.isfinite(completed), completed, cells), keeps_rules


def _start(
    columns: Sequence[Column],
    donors: np.ndarray,
    cells: np.ndarray,
    fillable: list[int],
    rng: np.random.Generator,
) -> None:
    """Fill the missing cells of rows (m, d) from near rows, in place, as a first guess.

    A category is that of the first of the nearest donors, in random order, that has
    one. A number is that of the first donor plus what a regression on the known cells
    expects of the difference between the two rows.
    """
    donor_points = _points(columns, donors, fillable)
    distinct, index = np.unique(cells, axis=0, return_inverse=True)
    index = index.reshape(-1)
    points = _points(columns, distinct, fillable)
    search = NearestNeighbors(
        n_neighbors=min(N_NEAREST, len(donors)), metric="nan_euclidean"
    ).fit(donor_points)
    nearest = search.kneighbors(points, return_distance=False)[index]
    nearest = rng.permuted(nearest, axis=1)

    completed, precision = _fit_gaussian(donor_points)
    expected = completed[nearest[:, 0]]
    expected += _conditional_means(points[index] - expected, precision)[0]

    axis = 0  # the first axis of each column among those of points
    for c in fillable:
        column = columns[c]
        is_missing = cells[:, c] < 0
        donor_cells = donors[nearest[is_missing], c]
        first_known = np.argmax(donor_cells >= 0, axis=1)
        cells[is_missing, c] = donor_cells[np.arange(len(donor_cells)), first_known]
        levels = np.arange(len(column.level_codes))
        level_axes = column.features(levels)
        if column.is_number and axis < expected.shape[1]:
            scores = expected[is_missing, axis]
            cells[is_missing, c] = np.rint(np.interp(scores, level_axes[:, 0], levels))
        axis += level_axes.shape[1]


def _points(
    columns: Sequence[Column], z: np.ndarray, fillable: Sequence[int]
) -> np.ndarray:
    """Comparable coordinates (m, a) of the first columns; missing cells are NaN."""
    axes = []
    for c in fillable[:MAX_COLUMNS_COMPARED]:
        is_missing = z[:, [c]] < 0
        axes.append(np.where(is_missing, np.nan, columns[c].features(z[:, c])))
    return np.hstack(axes)


def _fit_gaussian(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a Gaussian to points (m, a) with missing coordinates (NaN).

    Returns the points with these replaced by their expectations, and the precision
    matrix (a, a). Expectation maximisation: expectations given the Gaussian, then the
    Gaussian given these and the covariance that they leave.
    """
    n_axes = points.shape[1]
    is_missing = np.isnan(points)
    n_known = np.maximum(1, (~is_missing).sum(0))
    mean = np.nansum(points, axis=0) / n_known
    completed = np.where(is_missing, mean, points)
    covariance_left = np.zeros((n_axes, n_axes))
    n_iterations = 1
    if is_missing.any():
        n_iterations = N_EM_ITERATIONS
    for _ in range(n_iterations):
        covariance = np.atleast_2d(np.cov(completed.T, ddof=0)) + covariance_left
        precision = np.linalg.inv(covariance + RIDGE_PENALTY * np.eye(n_axes))
        mean = completed.mean(0)
        completed, covariance_left = _conditional_means(points - mean, precision)
        completed += mean
    return completed, precision


def _conditional_means(
    points: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points (m, a) of a Gaussian around 0, with NaN replaced by conditional means.

    With the precision matrix P and missing coordinates M, known ones K, that is
    x_M = −P_MM⁻¹ P_MK x_K, with the covariance P_MM⁻¹. Also returns the mean (a, a) of
    these covariances over all points.
    """
    completed = np.nan_to_num(points)
    mean_covariance = np.zeros_like(precision)
    patterns, index = np.unique(np.isnan(points), axis=0, return_inverse=True)
    index = index.reshape(-1)
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    groups = np.split(order, ends[:-1])
    for missing, rows in zip(patterns, groups, strict=True):
        known = ~missing
        covariance = np.linalg.inv(precision[np.ix_(missing, missing)])
        slopes = precision[np.ix_(known, missing)] @ covariance
        completed[np.ix_(rows, missing)] = -completed[np.ix_(rows, known)] @ slopes
        share = len(rows) / len(points)
        mean_covariance[np.ix_(missing, missing)] += covariance * share
    return completed, mean_covariance
