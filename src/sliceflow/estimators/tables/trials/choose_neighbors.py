"""Whether neighbors draw the dense numbers of a small table, and how many.

The training rows choose the smallest number of neighbors whose draws are hardly
nearer to rows than rows are to each other. Trees draw instead if a detector tells the
draws of trees from rows less easily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from sliceflow.estimators.tables.draws.neighbor_columns import allows_neighbors
from sliceflow.estimators.tables.draws.row_distances import nearest_distances
from sliceflow.estimators.tables.draws.strategies import Strategy
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials.trial_draws import (
    CHOICE_SEED,
    count_splits,
    iter_splits,
    trial_auc,
    trial_draws,
)
from sliceflow.neighbors.distance_ratios import MIN_DISTANCE_RATIO, log_distance_ratio

# With fewer rows, distances say too little, and trees draw all columns.
MIN_ROWS_TO_CHOOSE = 40

# Added to all distances, whose logarithms are compared: equal rows have the distance 0.
# It is small beside 1, which is the distance between the ends of a number's range.
DISTANCE_OF_EQUAL_ROWS = 0.01

# Draws of a chain for each row, to compare distances. More would be less noisy, and
# take longer.
TRIAL_DRAWS_PER_ROW = 2

# The numbers of neighbors that are tried; each is about 1.5 times the one before.
N_NEIGHBORS_TRIED = (8, 12, 18, 27, 40, 60, 90, 135)


def count_neighbor_trials(n: int) -> int:
    """How many trials `choose_n_neighbors` runs on a table of n rows, at most."""
    if n < MIN_ROWS_TO_CHOOSE:
        return 0
    n_bisections = len(_candidates(n)).bit_length()
    return n_bisections + count_splits(n_compared=n)


def choose_n_neighbors(
    table: Table,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    on_trial: Callable[[str], None],
) -> int:
    """From how many neighbors dense numbers are drawn; 0 if trees draw them.

    Parameters
    ----------
    table : the table
    settings : of the trees that draw the other columns
    strategies : one for each column of `table.drawing_order`
    on_trial : called after each trial, with what was tried
    """
    is_large_enough = len(table.level_positions) >= MIN_ROWS_TO_CHOOSE
    if not is_large_enough or not allows_neighbors(table, strategies):
        return 0
    k = _choose_far_enough(table, settings, strategies, on_trial)
    if k == 0:
        return 0
    gain = _gain_of_neighbors(table, settings, k, strategies, on_trial)
    return k if gain > 0 else 0


def _candidates(n: int) -> list[int]:
    """The numbers of neighbors that are tried: at most half of the n rows."""
    return [k for k in N_NEIGHBORS_TRIED if 2 * k <= n]


def _choose_far_enough(
    table: Table,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    on_trial: Callable[[str], None],
) -> int:
    """The least number of neighbors whose draws are far enough from rows; 0 if none.

    Found by bisection: more neighbors give draws that are farther away.
    """
    row_distances = nearest_distances(
        table, table.level_positions, table.level_positions, exclude_self=True
    )
    candidates = _candidates(len(table.level_positions))
    # Candidates before `first` are too few. Those from `last` on are far enough.
    first = 0
    last = len(candidates)
    while first < last:
        middle = (first + last) // 2
        k = candidates[middle]
        with_neighbors = settings._replace(n_neighbors=k)
        excess = _nearness_excess(table, with_neighbors, strategies, row_distances)
        on_trial(f"{k} neighbors")
        if excess <= 0:
            last = middle
        else:
            first = middle + 1
    if first == len(candidates):
        return 0
    return candidates[first]


def _gain_of_neighbors(
    table: Table,
    settings: TreeSettings,
    k: int,
    strategies: Sequence[Strategy],
    on_trial: Callable[[str], None],
) -> float:
    """How much less easily a detector finds draws from neighbors than draws of trees.

    The gain is the sum of differences of AUCs. Draws are of one half of the rows, with
    k/2 neighbors, and the detector compares them with the other half.
    """
    only_trees = settings._replace(n_neighbors=0)
    with_neighbors = settings._replace(n_neighbors=k // 2)
    gain = 0.0
    seed = CHOICE_SEED.child("near")
    n = len(table.level_positions)
    for train, held_out in iter_splits(table.level_positions, seed, n_compared=n):
        auc_of_trees = trial_auc(table, train, held_out, only_trees, strategies)
        auc_of_neighbors = trial_auc(table, train, held_out, with_neighbors, strategies)
        gain += auc_of_trees - auc_of_neighbors
        on_trial("neighbors or trees")
    return gain


def _nearness_excess(
    table: Table,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    row_distances: Tensor,
) -> float:
    """How much nearer to rows draws are than they may be; positive if too near.

    Distances of draws to rows are compared with `row_distances` (n,), which are between
    rows: by their ratio. The excess is the logarithm of the least ratio that is allowed
    minus the logarithm of the actual ratio.
    """
    n_draws = TRIAL_DRAWS_PER_ROW * len(table.level_positions)
    draws = trial_draws(table, table.level_positions, n_draws, settings, strategies)
    draw_distances = nearest_distances(table, draws, table.level_positions)
    log_ratio = log_distance_ratio(
        draw_distances, row_distances, offset=DISTANCE_OF_EQUAL_ROWS
    )
    return math.log(MIN_DISTANCE_RATIO) - log_ratio
