"""Functional dependencies: found beyond chance, whatever is missing, one way each."""

import numpy as np
import pytest

from sliceflow.functional_dependencies import Dependency, find_dependencies


@pytest.fixture
def towns(rng):
    """Towns, their countries, and a column that has nothing to do with them."""
    town = rng.integers(0, 8, 400).astype(float)
    return np.column_stack((town, town // 3, rng.integers(0, 4, 400)))


def test_a_column_that_follows_is_found_and_others_are_not(towns):
    assert find_dependencies(towns) == [Dependency(0, 1, one_to_one=False)]


def test_missing_cells_break_no_dependency(towns):
    towns[:40, 0] = np.nan  # of these rows, countries differ
    towns[30:60, 1] = np.nan
    assert find_dependencies(towns) == [Dependency(0, 1, one_to_one=False)]
    known = np.flatnonzero(~np.isnan(towns).any(axis=1))
    towns[known[-1], 1] += 1  # one row breaks it
    assert find_dependencies(towns) == []


def test_of_columns_that_determine_each_other_the_first_is_the_determinant(towns):
    codes = np.array([5.0, 3, 7, 1, 0, 2, 6, 4])
    town = towns[:, 0].astype(int)
    cells = np.column_stack((codes[town], town, towns[:, 2]))
    assert find_dependencies(cells) == [Dependency(0, 1, one_to_one=True)]


def test_what_may_be_chance_is_no_dependency():
    """Rows of one small group are alike with a probability of (79/80)³²⁰, 2 percent."""
    group = np.arange(400.0) // 5
    assert find_dependencies(np.column_stack((group, group == 7))) == []
    nearly_unique = np.arange(400.0) // 4  # too few rows of each value
    assert find_dependencies(np.column_stack((nearly_unique, group % 7))) == []


def test_missing_cells_are_no_level():
    """A column with one known cell in every tenth group follows from nothing."""
    row = np.arange(3000)
    group = row // 10.0
    mostly_empty = np.where(row % 100 == 0, row // 100 % 2, np.nan)
    other = np.where(row % 2 == 0, group % 3, np.nan)
    cells = np.column_stack((group, mostly_empty, other))
    assert find_dependencies(cells) == [Dependency(0, 2, one_to_one=False)]


def test_values_around_a_missing_cell_are_compared(towns):
    """In one group, the cells of the dependent are 1, missing and 2."""
    group = np.flatnonzero(towns[:, 0] == towns[0, 0])
    towns[group[1::2], 1] = np.nan
    towns[group[2::4], 1] += 1
    assert find_dependencies(towns) == []
