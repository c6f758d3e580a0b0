"""How fine the trees of a table are, and whether nearest rows draw its smooth numbers.

The training rows choose: the finest trees whose draws are hardly nearer to rows than
rows are to each other.

In a table of many rows, a chain is fitted to each of two halves. The share of its draws
that are nearer to their own half than to the other is ½ if nothing is copied. How far
it is above ½ says how coarse trees must be. In a table of few rows, halves would say
little, so the distances of draws to rows are compared with those between rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from sliceflow.neighbours.distance_ratios import MIN_DISTANCE_RATIO, log_distance_ratio
from sliceflow.spaces.tables.coords import Coords, split_in_halves
from sliceflow.spaces.tables.row_distances import (
    MAX_COLUMNS_COMPARED,
    nearest_distances,
)
from sliceflow.spaces.tables.strategies import Strategy
from sliceflow.spaces.tables.table import Table, generator
from sliceflow.spaces.tables.trees import TreeSettings
from sliceflow.spaces.tables.trial_draws import (
    CHOICE_SEED,
    iter_halves,
    trial_auc,
    trial_draws,
)

# --- tables of many rows -------------------------------------------------------------

# Tables with at least twice this many rows are halved to choose. Each half then has
# enough rows to say how many draws are nearer to their own half. With fewer, that
# share would be too noisy.
MIN_ROWS_PER_HALF = 3_000

# A half has at most this many rows: more would take longer, and hardly say more.
MAX_ROWS_PER_HALF = 6_000

# Draws of each chain for each row of its half. More draws make the share less noisy,
# and take longer.
DRAWS_PER_ROW = 3

# The share of draws that may be nearer to the rows of their trees than to other rows is
# ½ plus this. Set with the five tables of benchmarks/standard_tables.py in view, whose
# shares (DCR) then are .524 to .538.
MAX_NEARER_EXCESS = 0.0355

# The excess of that share above ½ is about c·exp(−0.8·t)·n^−0.1 for trees of coarseness
# t that are fitted to n rows: measured on five tables. Only c depends on the table.
DECAY_WITH_COARSENESS = 0.8
DECAY_WITH_ROWS = 0.1

# The least excess that a logarithm is taken of: a measured one may be 0 or negative.
MIN_EXCESS = 1e-6

# --- tables of few rows --------------------------------------------------------------

# With fewer rows, distances say too little about trees: the coarsest are taken.
MIN_ROWS_TO_CHOOSE = 40

# Added to all distances, whose logarithms are compared: equal rows have the distance 0.
# It is small beside 1, which is the distance between the ends of a number's range.
DISTANCE_OF_EQUAL_ROWS = 0.01

# Draws of a chain for each row, to compare distances. More would be less noisy, and
# take longer, as above.
TRIAL_DRAWS_PER_ROW = 2

# Nearest rows are tried in tables with fewer rows than this. In larger tables trees are
# as good, and nearest rows would copy (in the table Magic, DCR was .68).
MAX_ROWS_FOR_NEIGHBOURS = 1_000

# The numbers of nearest rows that are tried; each is about 1.5 times the one before.
N_NEIGHBORS_TRIED = (8, 12, 18, 27, 40, 60, 90, 135)


def choose_tree_settings(table: Table, strategies: Sequence[Strategy]) -> TreeSettings:
    """The finest trees whose draws copy no rows, and how many nearest rows, if any."""
    n = len(table.cell_coords)
    if n < MIN_ROWS_TO_CHOOSE or not table.drawing_order:
        return TreeSettings.from_coarseness(1).for_n_rows(n)
    if n >= 2 * MIN_ROWS_PER_HALF:
        coarseness = _coarseness_by_halves(table, strategies)
        return TreeSettings.from_coarseness(coarseness).for_n_rows(n)

    row_distances = nearest_distances(
        table, table.cell_coords, table.cell_coords, exclude_self=True
    )
    settings = _choose_trees_of_few_rows(table, strategies, row_distances)
    if not may_use_neighbours(table, strategies):
        return settings
    k = _smallest_neighbourhood(table, settings, strategies, row_distances)
    if k == 0 or not _neighbours_are_better(table, settings, k, strategies):
        return settings
    return settings._replace(n_neighbors=k)


def may_use_neighbours(table: Table, strategies: Sequence[Strategy]) -> bool:
    """Whether nearest rows may draw smooth numbers: in small, free tables.

    A constraint may compare any columns, and near rows would break it.
    """
    is_small = (
        len(table.cell_coords) < MAX_ROWS_FOR_NEIGHBOURS
        and len(table.drawing_order) <= MAX_COLUMNS_COMPARED
    )
    is_asked = any(not rule.is_discovered for rule in table.rule_set.rules)
    if not is_small or is_asked:
        return False
    return len(table.columns_for_neighbours(strategies)) > 0


def _coarseness_by_halves(table: Table, strategies: Sequence[Strategy]) -> float:
    """The coarseness of trees at which not too many draws are nearer to their rows.

    A chain with trees of coarseness ½ is fitted to each of two halves of the rows, or
    of some rows of a large table. Of the share p of draws that are nearer to their own
    half, the excess is p − ½.
    """
    n = len(table.cell_coords)
    size = min(MAX_ROWS_PER_HALF, n // 2)
    row_indices = generator(CHOICE_SEED).permutation(n)[: 2 * size]
    first, second = split_in_halves(table.cell_coords[row_indices])
    is_nearer = torch.cat(
        [
            _nearer_to_own(table, first, second, strategies),
            _nearer_to_own(table, second, first, strategies),
        ]
    )
    excess_of_halves = float(is_nearer.mean()) / 2  # of numbers that are ±1
    return _coarseness_for_all_rows(excess_of_halves, size, n)


def _coarseness_for_all_rows(excess_of_half: float, n_half: int, n: int) -> float:
    """The coarseness t at which trees of n rows have the excess that is allowed.

    `excess_of_half` was measured with trees of coarseness ½, of n_half rows. With
    excess(t, n) = c·exp(−0.8·t)·n^−0.1, this gives excess(½, n) for n rows, and

        t = ½ + ln(excess(½, n) / MAX_NEARER_EXCESS) / 0.8,

    which is limited to [0, 1].
    """
    excess = excess_of_half * (n_half / n) ** DECAY_WITH_ROWS
    ratio = max(excess, MIN_EXCESS) / MAX_NEARER_EXCESS
    coarseness = 0.5 + math.log(ratio) / DECAY_WITH_COARSENESS
    return min(1.0, max(0.0, coarseness))


def _nearer_to_own(
    table: Table,
    own_coords: Coords,
    other_coords: Coords,
    strategies: Sequence[Strategy],
) -> Tensor:
    """1 for each draw that is nearer to its own rows than to others, else −1.

    A draw's own rows are those from which it was drawn. 0 for a draw that is as near to
    both.
    """
    settings = TreeSettings.from_coarseness(0.5)
    n_draws = DRAWS_PER_ROW * len(own_coords)
    draws = trial_draws(table, own_coords, n_draws, settings, strategies)
    to_others = nearest_distances(table, draws, other_coords)
    to_own = nearest_distances(table, draws, own_coords)
    return (to_others - to_own).sign()


def _choose_trees_of_few_rows(
    table: Table, strategies: Sequence[Strategy], row_distances: Tensor
) -> TreeSettings:
    """The finest trees whose draws are far enough from rows.

    Draws of trees in the middle, and of the finest or the coarsest, are tried. A
    straight line between their two excesses says at which coarseness draws are just far
    enough.
    """

    def excess(coarseness: float) -> float:
        settings = TreeSettings.from_coarseness(coarseness)
        return _nearness_excess(table, settings, strategies, row_distances)

    middle_excess = excess(0.5)
    extreme = 1.0  # the coarsest trees, if draws are too near
    if middle_excess <= 0:
        extreme = 0.0  # the finest, if they are far enough
    extreme_excess = excess(extreme)
    coarseness = extreme
    if (middle_excess <= 0) != (extreme_excess <= 0):
        share = middle_excess / (middle_excess - extreme_excess)
        coarseness = 0.5 + (extreme - 0.5) * share
    return TreeSettings.from_coarseness(coarseness).for_n_rows(len(table.cell_coords))


def _smallest_neighbourhood(
    table: Table,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    row_distances: Tensor,
) -> int:
    """The least number of nearest rows whose draws are far enough from rows; 0 if none.

    Found by bisection: more nearest rows give draws that are farther away.
    """
    candidates = [k for k in N_NEIGHBORS_TRIED if 2 * k <= len(table.cell_coords)]

    def is_far_enough(k: int) -> bool:
        with_neighbours = settings._replace(n_neighbors=k)
        return _nearness_excess(table, with_neighbours, strategies, row_distances) <= 0

    index = bisect_left(candidates, True, key=is_far_enough)
    if index == len(candidates):
        return 0
    return candidates[index]


def _neighbours_are_better(
    table: Table, settings: TreeSettings, k: int, strategies: Sequence[Strategy]
) -> bool:
    """Whether a detector finds draws from nearest rows harder to tell than from trees.

    Draws are of one half of the rows, with k/2 nearest rows, and the detector compares
    them with the other half.
    """
    only_trees = settings._replace(n_neighbors=0)
    with_neighbours = settings._replace(n_neighbors=k // 2)
    gain = 0.0
    seed = CHOICE_SEED.child("near")
    n = len(table.cell_coords)
    for fitted, held_out in iter_halves(table.cell_coords, seed, n_compared=n):
        auc_of_trees = trial_auc(table, fitted, held_out, only_trees, strategies)
        auc_of_neighbours = trial_auc(
            table, fitted, held_out, with_neighbours, strategies
        )
        gain += auc_of_trees - auc_of_neighbours
    return gain > 0


def _nearness_excess(
    table: Table,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
    row_distances: Tensor,
) -> float:
    """How much nearer to rows draws are than they may be; positive if too near.

    It is the logarithm of the least allowed ratio of distances minus that of the actual
    ratio, of draws to rows over `row_distances` (n,), which are between rows.
    """
    n_draws = TRIAL_DRAWS_PER_ROW * len(table.cell_coords)
    draws = trial_draws(table, table.cell_coords, n_draws, settings, strategies)
    draw_distances = nearest_distances(table, draws, table.cell_coords)
    log_ratio = log_distance_ratio(
        draw_distances, row_distances, offset=DISTANCE_OF_EQUAL_ROWS
    )
    return math.log(MIN_DISTANCE_RATIO) - log_ratio
