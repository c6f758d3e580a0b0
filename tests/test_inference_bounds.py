"""Posteriors at the bounds of a prior and beyond the simulations."""

import warnings

import numpy as np
import pytest

from sliceflow.inference import posterior


def test_samples_at_a_bound_are_those_of_the_truncated_posterior():
    """Uniform θ in (0, 1), x = θ + N(0, 0.1²): at x = −0.05 little is inside. Samples outside are drawn
    again; mirrored they would have another distribution.
    """
    rng = np.random.default_rng(0)
    theta = rng.uniform(0, 1, (3_000, 1))
    x = theta + 0.1 * rng.normal(size=(3_000, 1))
    free, held = (
        posterior(theta, x, bounds=bounds).sample((4_000,), x=-0.05, random_state=0)[:, 0].numpy()
        for bounds in (None, (0, 1))
    )
    inside = (free >= 0) & (free <= 1)
    assert 0 < inside.sum() < 4_000
    assert np.array_equal(held[inside], free[inside])
    assert held.min() >= 0
    redrawn, mirrored = held[~inside], -free[~inside]
    assert np.median(redrawn) == pytest.approx(np.median(free[inside]), rel=0.15)
    assert np.median(mirrored) < 0.7 * np.median(free[inside]), "mirroring would be seen"


def test_an_observation_just_beyond_the_reach_warns_and_one_within_does_not():
    """Simulations at 0, 1, …, 99: the tenth neighbour is at most nine of them away."""
    x = np.arange(100.0)[:, None]
    found = posterior(x + np.random.default_rng(0).normal(size=(100, 1)), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.sample((2,), x=107.9, random_state=0)
    with pytest.warns(UserWarning, match=r"x\[0\] is"):
        found.sample((2,), x=108.5, random_state=0)
