"""Fixtures of tests of tables."""

import itertools

import pytest

from sliceflow.estimators.tables import conditional_draws
from sliceflow.estimators.tables.trial_draws import iter_halves


@pytest.fixture
def one_comparison(monkeypatch):
    """The ways to draw rows that have what is given are compared once, not on twelve
    halves: for tests of what holds either way.
    """

    def first_halves(*args):
        return itertools.islice(iter_halves(*args), 1)

    monkeypatch.setattr(conditional_draws, "iter_halves", first_halves)
