"""What all tests of the command line share."""

import pytest

from running import few_trees


@pytest.fixture(autouse=True)
def quick_measures():
    """Measures have few trees, also those of `digits_run` and of `table_run`."""
    with few_trees():
        yield
