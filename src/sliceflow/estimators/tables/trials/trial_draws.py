"""Draws of chains that are fitted only to compare ways to draw rows.

A detector measures how good draws are: boosted trees try to tell them from rows that
the chain has not seen. Two ways to draw rows are compared on halves of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import StratifiedKFold, cross_val_score

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    split_in_halves,
)
from sliceflow.estimators.tables.draws.chain import (
    draw_chain,
    fit_chain,
    make_blank_row,
)
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.row_distances import compared_columns
from sliceflow.estimators.tables.draws.strategies import Strategy
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.table import Table
from sliceflow.metrics.tables import BoostingSettings, boosted_trees

# Two ways to draw rows are compared on this many rows. If there are fewer, they are
# halved several times, because a single score would depend on luck.
ROWS_COMPARED = 600

# The detector has few, small trees, because it is fitted dozens of times. It need only
# find out which of two sets of draws is easier to tell from rows.
DETECTOR_SETTINGS = BoostingSettings(max_iter=20, max_leaf_nodes=8, min_samples_leaf=10)

# The folds of the detector's cross-validation.
N_FOLDS = 3

# The seed of all trials: the same rows always choose the same settings. "detail" is a
# part of it: another word could change what is chosen.
CHOICE_SEED = Seed(0).child("detail")


class Split(NamedTuple):
    """Two halves of the rows of a table, split at random: positions (n/2, d)."""

    train: LevelPositions
    held_out: LevelPositions


def count_splits(n_compared: int) -> int:
    """How many splits `iter_splits` gives."""
    return 2 * max(1, ROWS_COMPARED // n_compared)


def iter_splits(
    level_positions: LevelPositions, seed: Seed, n_compared: int
) -> Iterator[Split]:
    """Split rows (n, d) in halves, often enough to compare two ways to draw them.

    Each half is fitted once, and held out once.

    Parameters
    ----------
    level_positions : positions of all rows
    seed : of the splits
    n_compared : how many of the rows are compared with draws
    """
    for i in range(count_splits(n_compared) // 2):
        rng = np.random.default_rng(seed.child(i).key)
        first, second = split_in_halves(
            LevelPositions(rng.permutation(level_positions))
        )
        yield Split(first, second)
        yield Split(second, first)


def trial_draws(
    table: Table,
    level_positions: LevelPositions,
    n_draws: int,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    *,
    drawn_indices: Sequence[int] | None = None,
    fixed_positions: Mapping[int, float] | None = None,
) -> LevelPositions:
    """Positions (n_draws, d) drawn by a chain that is fitted to rows (n, d).

    Constraints are ignored. Columns that are not drawn are as in a blank row.

    Parameters
    ----------
    table, settings, strategies : of all rows
    level_positions : the rows that the chain is fitted to
    n_draws : how many rows are drawn
    drawn_indices : the columns to draw; by default the columns that are compared
    fixed_positions : positions of columns that are not drawn, by their indices
    """
    if drawn_indices is None:
        drawn_indices = compared_columns(table)
    fixed_positions = fixed_positions or {}
    blank_row = make_blank_row(table.columns, fixed_positions)
    draws = LevelPositions(np.tile(blank_row, (n_draws, 1)))
    not_drawn = [c for c in table.drawing_order if c not in drawn_indices]
    rng = np.random.default_rng(CHOICE_SEED.child("draws").key)
    chain = fit_chain(
        table,
        level_positions,
        [*not_drawn, *fixed_positions],
        seed=CHOICE_SEED,
        settings=settings,
        strategies=strategies,
    )
    draw_chain(chain, PartlyDrawnRows(draws), rng)
    return draws


def trial_auc(
    table: Table,
    train_positions: LevelPositions,
    held_out_positions: LevelPositions,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
) -> float:
    """How well a detector tells draws from held-out rows: an AUC.

    The draws come from a chain that is fitted to training rows.
    """
    draws = trial_draws(
        table, train_positions, len(held_out_positions), settings, strategies
    )
    compared = compared_columns(table)
    return detector_auc(held_out_positions[:, compared], draws[:, compared])


def detector_auc(level_positions: LevelPositions, draws: Floats) -> float:
    """The area under the ROC curve of boosted trees that tell draws from rows.

    ½ if they cannot. Rows are positions (n, p), and draws (m, p), at least `N_FOLDS`
    of each.
    """
    x = np.concatenate((level_positions, draws))
    y = np.repeat((0, 1), (len(level_positions), len(draws)))
    no_categories = [False] * x.shape[1]
    detector = boosted_trees(no_categories, DETECTOR_SETTINGS)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    return float(cross_val_score(detector, x, y, cv=folds, scoring="roc_auc").mean())
