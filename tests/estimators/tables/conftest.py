"""Fixtures of tests of tables."""

import itertools

import pytest

from sliceflow.estimators.tables import choose_given_draws
from sliceflow.estimators.tables.trial_draws import iter_splits


@pytest.fixture
def one_comparison(monkeypatch):
    """The ways to draw rows that have what is given are compared once, not on twelve
    halves: for tests of what holds either way.
    """

    def first_splits(*args):
        return itertools.islice(iter_splits(*args), 1)

    monkeypatch.setattr(choose_given_draws, "iter_splits", first_splits)
