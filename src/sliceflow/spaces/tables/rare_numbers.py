"""Numbers and times of few rows, which move so that samples do not hold them.

A number that fewer than `min_count` rows have may tell who is in the table: an exact
income, or the highest age. So where a draw is such a number, it moves to another one
near by (`move`). What is near depends on the order of all numbers: the new one is
between order statistics that are at most `MAX_PLACES_MOVED` places away, between the
lowest and the highest number of the leaf that it was drawn from, and on the grid of the
column, so decimals, steps and bounds stay. It may happen to be another number of the
table.

A number may also have `min_count` rows by chance, among numbers of which most have
nearly as many. How often samples have it would tell whose rows were fitted, so it moves
as well, but may stay where it is. Only heaps stay, such as round prices, which more
rows have than chance explains. Columns of few levels have no such numbers: each of
their levels has many rows.

| the column                              | where its numbers move                |
|-----------------------------------------|---------------------------------------|
| most grid values are levels: ages       | to any grid value near by; there are  |
|                                         | as many as of the numbers around      |
| has many other levels: prices           | between heaps, and not beyond these,  |
|                                         | such as an income of 0                |
| has few levels with gaps: grades        | to the next frequent level            |
| may only have values of the table,      | they stay                             |
| by a rule, or as first days of months   |                                       |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.new_values import NEAR_LEVELS
from sliceflow.spaces.tables.positions import has_value

# How many places a number moves among the sorted numbers, at most. With fewer, it
# stays nearer to the number of its row; with many, leaves of trees would be blurred.
# With 10 or 20 instead of 3, an attacker who looks for verbatim values does as well: on
# four tables his AUC changes by less than .01.
MAX_PLACES_MOVED = 3


class LevelRange(NamedTuple):
    """Ranges of levels in which numbers (m,) may move, with both ends included."""

    first: Ints
    last: Ints

    @classmethod
    def of_column(cls, column: Column, n: int) -> LevelRange:
        """The whole column, for n numbers."""
        return cls(np.zeros(n, dtype=np.int64), np.full(n, column.n_levels - 1))

    def take(self, indices: Ints | Mask) -> LevelRange:
        """The ranges of some of the numbers."""
        return LevelRange(self.first[indices], self.last[indices])

    def within(self, other: LevelRange) -> LevelRange:
        """The common part of both ranges; this one where that is at most one level."""
        first = np.maximum(self.first, other.first)
        last = np.minimum(self.last, other.last)
        is_wide = first < last
        return LevelRange(
            np.where(is_wide, first, self.first), np.where(is_wide, last, self.last)
        )


def may_move(column: Column, positions: Floats) -> Mask:
    """Which positions (m,) are levels in whose place samples have others."""
    if not column.new_values.moving_numbers.any():
        return np.zeros(len(positions), dtype=bool)
    level = np.maximum(positions, 0).astype(np.int64)
    is_level = has_value(positions) & (level == positions)
    return np.asarray(is_level & column.new_values.moving_numbers[level])


def move(
    column: Column, positions: Floats, leaf: LevelRange, rng: np.random.Generator
) -> Floats:
    """Positions (m,) near those of moving levels (m,).

    They are in the range of the `leaf`, unless that is one level, and never at the same
    level if that has fewer than `min_count` rows.
    """
    level = positions.astype(np.int64)
    if not column.new_values.may_fill_gaps:
        return _next_frequent_level(column, level, rng)
    run = _runs(column).take(level)
    limits = run.within(leaf)
    if column.new_values.has_full_grid:
        moved = _move_on_full_grid(column, level, limits, rng)
    else:
        moved = _move_between_levels(column, level, limits, rng)
    is_alone = (run.first == run.last) & _is_rare(column, level)
    moved[is_alone] = _next_frequent_level(column, level[is_alone], rng)
    return moved


def _move_on_full_grid(
    column: Column, level: Ints, limits: LevelRange, rng: np.random.Generator
) -> Floats:
    """Positions (m,) a few places from levels (m,), where any grid value may be.

    Values are drawn as often as those around them: every `NEAR_LEVELS`-th level is a
    knot of a distribution function that is linear in between.
    """
    grid_values = column.level_grid_values
    # What stays is not among the numbers that move.
    counts = np.where(column.new_values.moving_numbers, column.level_counts, 0)
    end = np.cumsum(counts)
    start = end - counts
    place = start[level] + rng.random(len(level)) * counts[level]
    place = _nearby_places(place, start[limits.first], end[limits.last], rng)
    knots = np.arange(0, column.n_levels, NEAR_LEVELS)
    # The rows of a grid value are in the middle of half a step on each side.
    knot_values = np.append(grid_values[knots] - 0.5, grid_values[-1] + 0.5)
    moved = np.interp(place, np.append(start[knots], end[-1]), knot_values)
    return _move_from_rare_levels(column, level, moved, limits)


def _move_between_levels(
    column: Column, level: Ints, limits: LevelRange, rng: np.random.Generator
) -> Floats:
    """Positions (m,) a few places from levels (m,), on a line between two levels."""
    counts = column.level_counts
    middle = np.cumsum(counts) - counts / 2
    place = middle[level] + rng.uniform(-0.5, 0.5, len(level)) * counts[level]
    place = _nearby_places(place, middle[limits.first], middle[limits.last], rng)
    between = np.interp(place, middle, np.arange(column.n_levels))
    moved = column.grid.positions_to_grid_values(between)
    return _move_from_rare_levels(column, level, moved, limits)


def _nearby_places(
    place: Floats, low: Floats, high: Floats, rng: np.random.Generator
) -> Floats:
    """Places (m,) near others, between limits (m,).

    They are reflected at the limits: so all of them stay as likely as they were.
    """
    most = np.minimum(MAX_PLACES_MOVED, high - low)
    place = place + rng.uniform(-1, 1, len(place)) * most
    place = np.where(place < low, 2 * low - place, place)
    place = np.where(place > high, 2 * high - place, place)
    return np.clip(place, low, high)


def _move_from_rare_levels(
    column: Column, level: Ints, moved: Floats, limits: LevelRange
) -> Floats:
    """Positions (m,) of grid values to which levels (m,) `moved`, rounded to the grid.

    What rounding moves back to a level of fewer than `min_count` rows goes one step up
    or down instead, inside the limits.
    """
    grid = column.grid
    before = grid.grid_values[level]
    direction = np.where(moved < before, -1.0, 1.0)
    direction = np.where(level >= limits.last, -1.0, direction)
    direction = np.where(level <= limits.first, 1.0, direction)
    after = grid.round(moved)
    lowest = grid.grid_values[limits.first]
    highest = grid.grid_values[limits.last]
    after = np.clip(after, lowest, highest)
    must_move = _is_rare(column, level) & (after == before)
    after = np.where(must_move, before + direction, after)
    return grid.grid_values_to_positions(after)


def _is_rare(column: Column, level: Ints) -> Mask:
    """Which levels (m,) fewer than `min_count` rows have."""
    return np.asarray(column.level_counts[level] < column.min_count)


def _runs(column: Column) -> LevelRange:
    """Where each level may move: anywhere on a full grid, else between those that stay.

    A level that stays is a run of its own.
    """
    k = column.n_levels
    if column.new_values.has_full_grid:
        return LevelRange.of_column(column, k)
    index = np.arange(k)
    stays = ~column.new_values.moving_numbers
    starts_run = np.ones(k, dtype=bool)
    starts_run[1:] = stays[1:] | stays[:-1]
    first = np.maximum.accumulate(np.where(starts_run, index, 0))
    ends_run = np.append(starts_run[1:], True)
    last = np.minimum.accumulate(np.where(ends_run, index, k)[::-1])[::-1]
    return LevelRange(first, last)


def _next_frequent_level(
    column: Column, level: Ints, rng: np.random.Generator
) -> Floats:
    """The next frequent level (m,) below or above levels (m,), at random.

    If no level is frequent, it is the next level.
    """
    k = column.n_levels
    targets = np.flatnonzero(~column.new_values.moving_numbers)
    if not len(targets):
        targets = np.arange(k)
    below = np.searchsorted(targets, level, "left") - 1
    above = np.searchsorted(targets, level, "right")
    goes_up = rng.random(len(level)) < 0.5
    goes_up = (goes_up | (below < 0)) & (above < len(targets))
    chosen = np.where(goes_up, above, below)
    return targets[chosen].astype(np.float64)
