"""Samples by tempering, and priors: against Gaussians and mixtures."""

import numpy as np
import pytest

from sliceflow.engine.random import Seed
from sliceflow.inference.comparison import Comparison, compare
from sliceflow.inference.priors import Prior
from sliceflow.inference.tempering import sample_tempered


def log_normal_prior_density(theta):
    return -0.5 * np.square(theta).sum(1)


def test_gaussians_at_two_observations_are_the_formulas(rng):
    """N(0, I) times N(x, I/100): mean 100x/101, variance 1/101."""
    observed = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5]])
    start = rng.normal(size=(2_000, 3))

    def log_likelihood(theta, observation):
        return -50 * np.square(theta - observed[observation]).sum(1)

    at_starts = np.stack(
        [log_likelihood(start, np.full(2_000, i)) for i in range(len(observed))]
    )
    samples = sample_tempered(
        log_likelihood, log_normal_prior_density, start, at_starts, 1_500, Seed(1)
    )
    assert samples.shape == (2, 1_500, 3)
    assert samples.mean(1) == pytest.approx(observed * 100 / 101, abs=0.03)
    assert samples.std(1) == pytest.approx(np.full((2, 3), 101**-0.5), rel=0.2)


def test_both_modes_have_their_shares(rng):
    """Two modes whose masses are 3 : 1."""
    start = rng.uniform(-1, 1, (2_000, 2))

    def log_likelihood(theta, observation):
        left = -0.5 * np.square((theta + 0.5) / 0.05).sum(1) + np.log(3)
        right = -0.5 * np.square((theta - 0.5) / 0.05).sum(1)
        return np.logaddexp(left, right)

    def log_prior(theta):
        return np.where((np.abs(theta) < 1).all(1), 0.0, -np.inf)

    at_starts = log_likelihood(start, None)[None]
    samples = sample_tempered(
        log_likelihood, log_prior, start, at_starts, 1_000, Seed(2)
    )
    assert (samples[0, :, 0] < 0).mean() == pytest.approx(0.75, abs=0.15)


def test_the_prior_of_each_parameter_is_recognized(rng):
    theta = np.column_stack(
        (rng.uniform(-1, 2, 500), rng.normal(size=500), np.exp(rng.normal(size=500)))
    )
    low = np.array([-1.0, -np.inf, 0.0])
    high = np.array([2.0, np.inf, np.inf])
    prior = Prior.from_data(theta, low, high)
    assert str(prior) == "uniform, normal, log-normal"
    points = np.array([[0.0, 0.0, 1.0], [1.5, 1.0, 2.0], [3.0, 0.0, 1.0]])
    log_prob = prior.log_prob(points)
    assert log_prob[2] == -np.inf
    # −½ of the normal one, −½·(log 2)² − log 2 of the log-normal one
    true = -0.5 - 0.5 * np.log(2) ** 2 - np.log(2)
    assert log_prob[1] - log_prob[0] == pytest.approx(true, abs=0.35)


def test_the_better_samples_are_found(rng):
    """True parameters of N(0, I): samples of N(0, I) are better than of N(0, 4 I)."""
    truth = rng.normal(size=(200, 2))
    right = rng.normal(size=(200, 100, 2))
    wide = 2 * rng.normal(size=(200, 100, 2))
    assert compare(wide, right, truth).better == "likelihood"
    assert compare(right, wide, truth).better == "neighbors"


def test_the_higher_score_is_taken_however_close():
    """A lead within its error is still the better guess; of equals, the quicker one."""
    close = Comparison(neighbors=0.0, likelihood=0.05, error=0.2, n=100)
    assert close.better == "likelihood"
    behind = Comparison(neighbors=0.0, likelihood=-0.05, error=0.2, n=100)
    assert behind.better == "neighbors"
    equal = Comparison(neighbors=0.0, likelihood=0.0, error=0.0, n=100)
    assert equal.better == "neighbors"
