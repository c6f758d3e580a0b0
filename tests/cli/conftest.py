"""What all tests of the command line share."""

import pytest

from running import few_trees


@pytest.fixture(autouse=True)
def quick_measures():
    """Pictures are measured with few trees, also those that `digits_run` compares."""
    with few_trees():
        yield
