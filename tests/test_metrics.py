"""Metrics against POT, closed forms and known extremes."""

import numpy as np
import ot
import pytest

from sliceflow.metrics import (
    frechet_distance,
    frechet_distance_pca,
    nn_ratio,
    sliced_wasserstein,
    two_sample_accuracy,
)

rng = np.random.default_rng(0)


@pytest.mark.parametrize(("n", "m"), [(100, 100), (100, 70), (1, 50), (33, 1)])
def test_sliced_distance_is_pots(n, m):
    a, b = rng.normal(size=(n, 5)), rng.gamma(2, size=(m, 5))
    directions = rng.normal(size=(40, 5))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    exact = ot.sliced_wasserstein_distance(a, b, projections=directions.T)
    assert sliced_wasserstein(a, b, directions=directions) == pytest.approx(exact, rel=1e-9)


def test_frechet_distance_of_gaussians_is_their_wasserstein_distance():
    a = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3))
    b = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3)) + 1
    exact = ot.gaussian.bures_wasserstein_distance(a.mean(0), b.mean(0), np.cov(a.T), np.cov(b.T))
    assert frechet_distance(a, b) == pytest.approx(exact**2, rel=1e-6)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a[:, :1], a[:, :1] + 2) == pytest.approx(4)
    assert frechet_distance_pca(a, a + 5, a, n_components=3) == pytest.approx(75, rel=1e-6)


def test_nn_ratio_tells_copies_from_fresh_rows():
    train, test, fresh = (rng.normal(size=(300, 4)) for _ in range(3))
    assert nn_ratio(train, train, test) == 0
    assert nn_ratio(fresh, train, test) == pytest.approx(1, abs=0.2)
    assert nn_ratio(fresh + 10, train, test) > 5
    with pytest.raises(ValueError, match="identical to a train row"):
        nn_ratio(fresh, train, train)


def test_two_sample_accuracy_is_half_for_equal_distributions_and_one_for_others():
    a, b = rng.normal(size=(2, 300, 3))
    assert two_sample_accuracy(a, b) == pytest.approx(0.5, abs=0.08)
    assert two_sample_accuracy(a, b + 9) == 1
    with pytest.raises(ValueError, match=r"4 samples and .* real rows; pass 5 or more"):
        two_sample_accuracy(a[:4], b)
