"""Precision, recall, density and coverage: cases done by hand, brute force, expectations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.metrics import density_coverage, precision_recall


def brute_force(samples, real, k):
    """As the papers define them, over all pairs."""

    def radii(x):
        return np.sort(cdist(x, x), axis=1)[:, k]  # column 0 is the row itself

    inside = cdist(samples, real) <= radii(real) * (1 + 1e-9)
    back = cdist(real, samples) <= radii(samples) * (1 + 1e-9)
    return (
        inside.any(1).mean(),
        back.any(1).mean(),
        inside.sum() / (k * len(samples)),
        inside.any(0).mean(),
    )


@given(
    st.integers(6, 50), st.integers(6, 50), st.integers(1, 4), st.integers(1, 5), st.integers(0, 999)
)
def test_all_four_are_those_of_all_pairs(n, m, d, k, seed):
    rng = np.random.default_rng(seed)
    samples, real = rng.normal(size=(n, d)), 1.3 * rng.normal(size=(m, d)) + 0.5
    precision, recall, density, coverage = brute_force(samples, real, k)
    found = precision_recall(samples, real, k=k, device="cpu")
    assert found == pytest.approx((precision, recall))
    assert density_coverage(samples, real, k=k, device="cpu") == pytest.approx((density, coverage))


def test_a_case_by_hand():
    # Balls with k = 1: [-1, 1], [0, 2], [2, 2 + 8] around 0, 1 and 10 (whose nearest is 1, 9 away).
    real = np.array([[0.0], [1.0], [10.0]])
    samples = np.array([[0.5], [1.5], [30.0]])
    # 0.5 is in the balls of 0 and 1; 1.5 in those of 1 and 10; 30 in none.
    assert density_coverage(samples, real, k=1, device="cpu") == pytest.approx((4 / 3, 1))
    # Balls of the samples: [-.5, 1.5], [.5, 2.5], [1.5, 58.5]: they hold 0 and 1; 10.
    assert precision_recall(samples, real, k=1, device="cpu") == pytest.approx((2 / 3, 1))


def test_an_equal_set_is_covered_and_a_far_one_is_not():
    real = np.random.default_rng(0).normal(size=(80, 3))
    assert precision_recall(real, real, device="cpu") == (1, 1)
    assert density_coverage(real, real, device="cpu").coverage == 1
    assert precision_recall(real + 100, real, device="cpu") == (0, 0)
    assert density_coverage(real + 100, real, device="cpu") == (0, 0)


def test_one_sample_repeated_is_precise_but_covers_nothing():
    rng = np.random.default_rng(0)
    real = rng.normal(size=(400, 2))
    samples = np.zeros((400, 2)) + 1e-3 * rng.normal(size=(400, 2))
    precision, recall = precision_recall(samples, real, device="cpu")
    assert precision == 1
    assert recall < 0.05
    assert density_coverage(samples, real, device="cpu").coverage < 0.1


def test_a_point_on_the_border_is_inside_wherever_the_rows_are():
    for shift in (0.0, 1e5):
        real = np.array([[0.0], [1.0], [2.0], [3.0]]) + shift
        samples = np.array([[-1.0], [4.0], [1.5], [1.6]]) + shift
        assert density_coverage(samples, real, k=1, device="cpu").density == pytest.approx(6 / 4)


def test_coverage_of_the_same_distribution_is_as_expected():
    a, b = np.random.default_rng(0).normal(size=(2, 3000, 2))
    density, coverage = density_coverage(a, b, k=5, device="cpu")
    assert coverage == pytest.approx(1 - 2**-5, abs=0.01)
    assert density == pytest.approx(1, abs=0.03)
