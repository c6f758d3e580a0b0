"""Means over ranks: exact to the last bits, in whatever order rows are added."""

import math

import numpy as np
import pytest

from rank_threads import Threads
from sliceflow.base import exact_means
from sliceflow.base.ranks import ONE_PROCESS


@pytest.fixture
def rows(rng):
    """Columns of other scales, with heavy tails."""
    return rng.standard_t(2, (1000, 3)) * [1e-200, 1.0, 1e30]


def test_a_mean_is_exact_and_does_not_depend_on_the_order(rows, rng, monkeypatch):
    mean = exact_means.mean(rows, len(rows), ONE_PROCESS)
    expected = [math.fsum(column) / len(rows) for column in rows.T]
    # A value is rounded to 2⁻⁶² of the largest magnitude at most.
    assert np.abs(mean - expected).max() <= np.abs(rows).max() * 2.0**-60
    square = exact_means.mean_square(rows, len(rows), mean, ONE_PROCESS)
    assert square == pytest.approx(rows.var(axis=0), rel=1e-12)

    monkeypatch.setattr(exact_means, "VALUES_PER_CHUNK", 21)
    mixed = rng.permutation(rows)
    assert (exact_means.mean(mixed, len(rows), ONE_PROCESS) == mean).all()
    again = exact_means.mean_square(mixed, len(rows), mean, ONE_PROCESS)
    assert (again == square).all()


def test_the_mean_is_the_same_on_any_number_of_ranks(rows):
    n = len(rows)
    mean = exact_means.mean(rows, n, ONE_PROCESS)
    square = exact_means.mean_square(rows, n, mean, ONE_PROCESS)
    threads = Threads(3)

    def means_of_rank(rank):
        own_rows = np.split(rows, [100, 101])[rank]
        own_mean = exact_means.mean(own_rows, n, threads)
        return own_mean, exact_means.mean_square(own_rows, n, own_mean, threads)

    for mean_of_rank, square_of_rank in threads.run(means_of_rank):
        assert (mean_of_rank == mean).all()
        assert (square_of_rank == square).all()


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_column_that_is_not_finite_has_no_finite_mean():
    rows = np.array([[1.0, 1e200], [3.0, -1e200]])
    zeros = np.zeros(2)
    square = exact_means.mean_square(rows, 2, zeros, ONE_PROCESS)
    assert square.tolist() == [5.0, math.inf]
