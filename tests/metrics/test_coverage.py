"""Density and coverage: cases done by hand, brute force, expectations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.metrics import density_coverage


@given(
    st.integers(6, 50), st.integers(6, 50), st.integers(1, 4), st.integers(1, 5), st.integers(0, 999)
)
def test_they_are_those_of_all_pairs(n, m, d, k, seed):
    rng = np.random.default_rng(seed)
    samples, real = rng.normal(size=(n, d)), 1.3 * rng.normal(size=(m, d)) + 0.5
    radii = np.sort(cdist(real, real), axis=1)[:, k]  # column 0 is the row itself
    inside = cdist(samples, real) <= radii * (1 + 1e-9)
    expected = inside.sum() / (k * n), inside.any(0).mean()
    assert density_coverage(samples, real, k=k, device="cpu") == pytest.approx(expected)


def test_a_case_by_hand():
    # Balls with k = 1: [-1, 1], [0, 2], [2, 2 + 8] around 0, 1 and 10 (whose nearest is 1, 9 away).
    real = np.array([[0.0], [1.0], [10.0]])
    samples = np.array([[0.5], [1.5], [30.0]])
    # 0.5 is in the balls of 0 and 1; 1.5 in those of 1 and 10; 30 in none.
    assert density_coverage(samples, real, k=1, device="cpu") == pytest.approx((4 / 3, 1))


def test_an_equal_set_is_covered_a_far_one_is_not_and_a_repeated_sample_covers_little():
    real = np.random.default_rng(0).normal(size=(400, 2))
    assert density_coverage(real, real, device="cpu").coverage == 1
    assert density_coverage(real + 100, real, device="cpu") == (0, 0)
    assert density_coverage(real[:1] + 1e-3 * real, real, device="cpu").coverage < 0.1


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
