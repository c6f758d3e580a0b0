"""Functional dependencies between the columns of a table, as of a country on its town.

Models of tables keep the dependencies that they find, and metrics of tables measure how
many samples keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints

# Rows per value that a determinant must have on average. With fewer it would be hard
# to tell a dependency from chance; with more, real ones in small tables would be lost.
_MIN_ROWS_PER_VALUE = 5
# A dependency must be less probable than this in columns that are independent. There
# are at most 300² pairs of columns, so that hardly any table has one by chance.
_MAX_CHANCE = 1e-9
# These first rows refute most pairs of columns, before all rows are compared.
_ROWS_COMPARED_FIRST = 500


class Dependency(NamedTuple):
    """A column whose value follows from that of another column."""

    determinant: int  # the index of the column that determines, such as the town
    dependent: int  # that of the column which follows, such as the country
    one_to_one: bool  # whether the determinant follows from the dependent, too


def find_dependencies(cells: Floats) -> list[Dependency]:
    """Functional dependencies between columns of cells (n, d); NaN is a missing cell.

    All rows with the same value of the determinant have the same value of the
    dependent. Missing cells break no dependency. It must be too good for chance: if
    the most frequent value of the dependent has a share p, n rows in k groups with one
    value each have a probability of at most pⁿ⁻ᵏ in independent columns.

    Of two columns that determine each other, the list has one dependency, whose
    determinant comes first in the table.
    """
    n_values = dict[int, int]()
    largest_share = dict[int, float]()
    for c in range(cells.shape[1]):
        values, counts = np.unique(cells[:, c], return_counts=True)
        if 1 < len(values) <= len(cells) / _MIN_ROWS_PER_VALUE:
            n_values[c] = len(values)
            largest_share[c] = float(counts.max() / len(cells))

    dependencies = list[Dependency]()
    # Determinants of columns that determine them, too: the other way is left out.
    one_to_one = set[int]()
    for determinant in sorted(n_values, key=lambda c: (-n_values[c], c)):
        row_indices = np.flatnonzero(~np.isnan(cells[:, determinant]))
        n_repeated = len(row_indices) - n_values[determinant]
        candidates = []
        for c in n_values:
            could_depend = n_values[c] <= n_values[determinant] and c != determinant
            log_chance = n_repeated * np.log(largest_share[c])
            beyond_chance = log_chance < np.log(_MAX_CHANCE)
            if could_depend and beyond_chance and c not in one_to_one:
                candidates.append(c)
        first_rows = row_indices[:_ROWS_COMPARED_FIRST]
        candidates = _dependents(cells, determinant, candidates, first_rows)
        for dependent in _dependents(cells, determinant, candidates, row_indices):
            is_one_to_one = n_values[dependent] == n_values[determinant]
            if is_one_to_one:
                one_to_one.add(determinant)
            dependencies.append(Dependency(determinant, dependent, is_one_to_one))
    return dependencies


def _dependents(
    cells: Floats, determinant: int, candidates: Sequence[int], row_indices: Ints
) -> list[int]:
    """The candidates with one value for each value of the determinant.

    Only some rows of cells (n, d) are compared, of which the determinant is known.
    """
    order = np.argsort(cells[row_indices, determinant], kind="stable")
    sorted_cells = cells[row_indices[order]]
    same_group = np.diff(sorted_cells[:, determinant]) == 0
    dependents = []
    for c in candidates:
        # The difference to a missing cell is NaN, which is not above 0.
        differs = np.abs(np.diff(sorted_cells[:, c])) > 0
        if not (same_group & differs).any():
            dependents.append(c)
    return dependents
