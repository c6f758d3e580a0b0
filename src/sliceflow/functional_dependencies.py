"""Functional dependencies between columns of a table: a town determines its country.

Models of tables keep the dependencies that they find, and metrics of tables measure how
many samples keep them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats

# A determinant must have this many rows per value on average. With a smaller number, it
# would be hard to tell a dependency from chance. With a larger one, real dependencies
# would be lost, such as dependencies on a date in a table with a few rows of each day.
_MIN_ROWS_PER_VALUE = 3
# A dependency must be less probable than this in columns that are independent. There
# are at most 300² pairs of columns, so hardly any table has a dependency by chance.
_MAX_CHANCE = 1e-9
# These first rows refute most pairs of columns, before all rows are compared.
_ROWS_COMPARED_FIRST = 500


class Dependency(NamedTuple):
    """A column whose value follows from the value of another column."""

    determinant: int  # the index of the column that determines, such as the town
    dependent: int  # the index of the column that follows, such as the country
    one_to_one: bool  # whether the determinant follows from the dependent, too


def find_dependencies(cells: Floats) -> list[Dependency]:
    """Functional dependencies between columns of cells (n, d); NaN is a missing cell.

    All rows with the same value of the determinant have the same value of the
    dependent. Only rows count in which both are known: missing cells neither break a
    dependency nor make one. A dependency must be too good for chance: if the most
    frequent value of the dependent has a share p of these n rows, n rows in k groups
    with one value each have a probability of at most pⁿ⁻ᵏ in independent columns.

    If two columns determine each other, the list has one dependency of the two, whose
    determinant comes first in the table.
    """
    n_values = dict[int, int]()
    for c in range(cells.shape[1]):
        known = cells[~np.isnan(cells[:, c]), c]
        n_different = len(np.unique(known))
        if 1 < n_different <= len(known) / _MIN_ROWS_PER_VALUE:
            n_values[c] = n_different

    dependencies = list[Dependency]()
    # Determinants that follow from their dependents, too: that direction is left out.
    one_to_one = set[int]()
    for determinant in sorted(n_values, key=lambda c: (-n_values[c], c)):
        order = np.argsort(cells[:, determinant], kind="stable")
        first_order = np.argsort(cells[:_ROWS_COMPARED_FIRST, determinant])
        for c in n_values:
            could_depend = n_values[c] <= n_values[determinant] and c != determinant
            if not could_depend or c in one_to_one:
                continue
            pair = cells[:, [determinant, c]]
            if not _is_function(pair[first_order]) or not _is_function(pair[order]):
                continue
            pair = pair[~np.isnan(pair).any(axis=1)]
            if not _is_beyond_chance(pair):
                continue
            is_one_to_one = _n_different(pair[:, 0]) == _n_different(pair[:, 1])
            if is_one_to_one:
                one_to_one.add(determinant)
            dependencies.append(Dependency(determinant, c, is_one_to_one))
    return dependencies


def _is_function(pair: Floats) -> bool:
    """Whether each known first cell has one second cell; rows (n, 2) by first cell."""
    known = pair[~np.isnan(pair).any(axis=1)]
    same_group = np.diff(known[:, 0]) == 0
    differs = np.diff(known[:, 1]) != 0
    return not (same_group & differs).any()


def _is_beyond_chance(pair: Floats) -> bool:
    """Whether independent columns would hardly have this dependency; rows (n, 2)."""
    n_groups = _n_different(pair[:, 0])
    counts = np.unique(pair[:, 1], return_counts=True)[1]
    if len(counts) < 2:
        return False
    largest_share = counts.max() / len(pair)
    log_chance = (len(pair) - n_groups) * np.log(largest_share)
    return bool(log_chance < np.log(_MAX_CHANCE))


def _n_different(values: Floats) -> int:
    """The number of different values among `values` (n,)."""
    return len(np.unique(values))
