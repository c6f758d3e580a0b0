"""Numbers and times of few rows, which move so that samples do not hold them.

A number that fewer than `min_count` rows have may tell who is in the table: an exact
income, or the highest age. So where a draw is such a number, it moves to another one
near by (`move`). What is near depends on the order of all numbers: the new one is
between order statistics that are at most `MAX_PLACES_MOVED` places away, between the
lowest and the highest number of the leaf that it was drawn from, and on the grid of the
column, so decimals, steps and bounds stay. It may happen to be another number of the
table.

| the column                              | where its rare numbers move           |
|-----------------------------------------|---------------------------------------|
| most grid values are levels: ages       | to any grid value near by             |
| has many other levels: prices           | between rare levels, and not beyond   |
|                                         | frequent ones, such as an income of 0 |
| has few levels with gaps: grades        | to the next frequent level            |
| may only have values of the table,      | they stay                             |
| by a rule, or as first days of months   |                                       |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    GridValues,
    LevelPositions,
    has_value,
)

# How many places a rare number moves among the sorted numbers, at most. With fewer, it
# stays nearer to the number of its row; with many, leaves of trees would be blurred.
# What an attacker finds with 3 is in benchmarks/RESULTS.md; no other was measured.
MAX_PLACES_MOVED = 3

# How often a rare number is moved until the constraints allow its new place. After that
# it keeps its first place, which was allowed. More moves would take longer, and fewer
# would leave more rare numbers in samples of tables with constraints.
MAX_MOVES = 8


class LevelRange(NamedTuple):
    """Ranges of levels in which m numbers may move, with both ends included."""

    first: Ints  # (m,)
    last: Ints  # (m,)

    @classmethod
    def of_column(cls, column: Column, n: int) -> LevelRange:
        """The whole column, for n numbers."""
        return cls(np.zeros(n, dtype=np.int64), np.full(n, column.n_levels - 1))

    def select(self, indices: Ints | Mask) -> LevelRange:
        """The ranges of the numbers with these indices, or of a mask (m,)."""
        return LevelRange(self.first[indices], self.last[indices])

    def within(self, other: LevelRange) -> LevelRange:
        """The common part of both ranges; this one where that is at most one level."""
        first = np.maximum(self.first, other.first)
        last = np.minimum(self.last, other.last)
        is_wide = first < last
        return LevelRange(
            np.where(is_wide, first, self.first), np.where(is_wide, last, self.last)
        )


def is_rare(column: Column, positions: LevelPositions) -> Mask:
    """Which positions (m,) are levels of too few rows, which may move."""
    if not column.new_value_policy.is_rare_number.any():
        return np.zeros(len(positions), dtype=bool)
    level = np.maximum(positions, 0).astype(np.int64)
    is_level = has_value(positions) & (level == positions)
    return np.asarray(is_level & column.new_value_policy.is_rare_number[level])


def move(
    column: Column,
    positions: LevelPositions,
    leaf_range: LevelRange,
    rng: np.random.Generator,
) -> LevelPositions:
    """Positions (m,) near the positions of rare levels (m,), but never the same.

    They are in the range of the leaf, unless that is one level.
    """
    level = positions.astype(np.int64)
    if not column.new_value_policy.allows_values_in_gaps:
        return _next_frequent_level(column, level, rng)
    reachable = _reachable_levels(column).select(level)
    moved = _move_places(column, level, reachable.within(leaf_range), rng)
    is_alone = reachable.first == reachable.last
    moved[is_alone] = _next_frequent_level(column, level[is_alone], rng)
    return moved


def _move_places(
    column: Column, level: Ints, limits: LevelRange, rng: np.random.Generator
) -> LevelPositions:
    """Positions (m,) a few places below or above levels (m,), on the grid."""
    counts = column.level_counts
    place_of_level = np.cumsum(counts) - counts / 2
    low = place_of_level[limits.first]
    high = place_of_level[limits.last]
    max_move = np.minimum(MAX_PLACES_MOVED, high - low)
    place = place_of_level[level] + rng.uniform(-1, 1, len(level)) * max_move
    # Places are reflected at the ends: so all of them stay as likely as they were.
    place = np.where(place < low, 2 * low - place, place)
    place = np.where(place > high, 2 * high - place, place)
    between = np.interp(place, place_of_level, np.arange(column.n_levels))
    return _round_away_from(column, level, LevelPositions(between), limits)


def _round_away_from(
    column: Column, level: Ints, positions: LevelPositions, limits: LevelRange
) -> LevelPositions:
    """Positions (m,), rounded to the grid, but not to the levels (m,) they left.

    A number that rounding would move back goes one step of the grid up or down, inside
    the limits.
    """
    grid = column.grid
    before = grid.grid_values[level]
    after = grid.round(grid.grid_values_at(positions))
    direction = np.where(positions < level, -1.0, 1.0)
    direction = np.where(level >= limits.last, -1.0, direction)
    direction = np.where(level <= limits.first, 1.0, direction)
    after = GridValues(np.where(after == before, before + direction, after))
    return grid.positions_of(after)


def _reachable_levels(column: Column) -> LevelRange:
    """Where each level may move: anywhere on a full grid, else within its run."""
    if column.new_value_policy.has_full_grid:
        return LevelRange.of_column(column, column.n_levels)
    return _runs_of_rare_levels(column.new_value_policy.is_rare_number)


def _runs_of_rare_levels(is_rare_level: Mask) -> LevelRange:
    """The run (k,) in which each of k levels is: rare levels next to each other.

    A frequent level is a run by itself.

    Examples
    --------
    >>> runs = _runs_of_rare_levels(np.array([False, True, True, True, False]))
    >>> runs.first
    array([0, 1, 1, 1, 4])
    >>> runs.last
    array([0, 3, 3, 3, 4])
    """
    k = len(is_rare_level)
    index = np.arange(k)
    is_first = np.ones(k, dtype=bool)  # whether a run begins with this level
    is_first[1:] = ~is_rare_level[1:] | ~is_rare_level[:-1]
    is_last = np.append(is_first[1:], True)
    # The nearest first level at or below each level, and the nearest last one above.
    first = np.maximum.accumulate(np.where(is_first, index, 0))
    last = np.minimum.accumulate(np.where(is_last, index, k)[::-1])[::-1]
    return LevelRange(first, last)


def _next_frequent_level(
    column: Column, level: Ints, rng: np.random.Generator
) -> LevelPositions:
    """The next frequent level (m,) below or above levels (m,), at random.

    If no level is frequent, it is the next level.
    """
    k = column.n_levels
    targets = np.flatnonzero(~column.new_value_policy.is_rare_number)
    if not len(targets):
        targets = np.arange(k)
    below = np.searchsorted(targets, level, "left") - 1
    above = np.searchsorted(targets, level, "right")
    is_upward = rng.random(len(level)) < 0.5
    is_upward = (is_upward | (below < 0)) & (above < len(targets))
    chosen = np.where(is_upward, above, below)
    return LevelPositions(targets[chosen].astype(np.float64))
