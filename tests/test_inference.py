"""Posteriors of simulators: against formulas and true draws; bounds; calibration."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from posterior_tasks import TASKS

from sliceflow.inference import posterior
from sliceflow.metrics import calibration, sliced_wasserstein

LINEAR, MOONS = TASKS["Gaussian linear"], TASKS["two moons"]


def simulated(task, n, seed):
    return map(torch.from_numpy, task.draw(n, seed))


@pytest.fixture(scope="module")
def moons():
    return posterior(*simulated(MOONS, 2_000, 0), bounds=(-1, 1))


def test_a_linear_gaussian_posterior_is_the_formulas():
    found = posterior(*simulated(LINEAR, 2_000, 0))
    x0 = torch.full((10,), 0.2, dtype=torch.float64)
    made = found.sample((4_000,), x=x0, random_state=0)
    assert made.shape == (4_000, 10)
    assert float((made.mean(0) - 0.1).abs().max()) < 0.05
    assert float((made.std(0) - 0.05**0.5).abs().max()) < 0.02


def test_two_moons_are_the_true_ones(moons):
    x0 = MOONS.draw(1, 7)[1][0]
    true, other = (MOONS.posterior(x0, 2_000, np.random.default_rng(seed)) for seed in (0, 1))
    made = moons.sample((2_000,), x=x0, random_state=0).numpy()
    floor = sliced_wasserstein(other, true)
    assert sliced_wasserstein(made, true) < floor + 0.02
    assert sliced_wasserstein(moons.near.x.numpy(), true) > 0.3, "the prior is far away"


def test_no_sample_leaves_the_bounds():
    """At the edge of the prior much of a neighbourhood would be outside."""
    theta, x = simulated(TASKS["Gaussian mixture"], 1_000, 0)
    x0 = torch.tensor([[9.9, -9.9], [0.0, 0.0], [11.0, 11.0]])
    held = posterior(theta, x, bounds=(-10, [10, 10]))
    free = replace(held, low=held.low - np.inf, high=held.high + np.inf)
    assert float(free.sample_batched((500,), x=x0, random_state=0).abs().max()) > 10
    made = held.sample_batched((500,), x=x0, random_state=0)
    assert made.shape == (500, 3, 2)
    assert float(made.abs().max()) <= 10
    assert float(made[:, 0].std(0).min()) > 0.1, "spread, not heaped at the bound"
    half = replace(free, high=held.high).sample((500,), x=x0[0], random_state=0)
    assert float(half.max()) <= 10
    assert float(half.min()) < -10


def test_types_and_shapes_are_sbis(moons):
    assert moons.sample((2, 3), x=np.zeros(2), random_state=0).shape == (2, 3, 2)
    single = posterior(torch.rand(60, 1), torch.rand(60, 3))
    assert single.sample((5,), x=torch.zeros(3)).dtype == torch.float32
    one, again = (moons.sample((9,), x=[[0, 0]], random_state=3) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, moons.sample((9,), x=[[0, 0]]))


def test_there_is_no_density_and_it_says_so(moons):
    with pytest.raises(NotImplementedError, match="samples but no density"):
        moons.log_prob(torch.zeros(1, 2), x=torch.zeros(2))


def test_a_far_observation_warns_with_its_distance(moons):
    with pytest.warns(UserWarning, match=r"x\[0\] is .* standard deviations of x from the nearest"):
        moons.sample((3,), x=[50.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moons.sample((3,), x=[0.0, 0.0])


THETA, X = np.zeros((5, 2)) + np.arange(5)[:, None], np.arange(5.0)[:, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posterior(THETA[:, 0], X), r"theta has shape \(5,\); pass one row"),
        (lambda: posterior(THETA, X[:4]), "theta has 5 rows but x has 4"),
        (lambda: posterior(THETA, np.where(X == 2, np.nan, X)), r"x contains nan at \[2, 0\]"),
        (lambda: posterior(THETA, X, bounds=(0, 3)), r"bounds=\(0, 3\) must have low < high"),
        (lambda: posterior(THETA, X).sample((3,)), "x is missing"),
        (
            lambda: posterior(THETA, X).sample((3,), x=[1, 2]),
            r"x has shape \(2,\) but simulations have 1",
        ),
        (lambda: posterior(THETA, X).sample((3,), x=[[1], [2]]), "x has 2 observations"),
        (lambda: posterior(THETA, X).sample((3,), x=[np.inf]), "x contains inf"),
        (lambda: posterior(THETA, X).sample((0,), x=[1]), r"shape=\(0,\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two moons", "Gaussian linear"])
def test_ranks_are_uniform(name):
    task = TASKS[name]
    found = posterior(*task.draw(10_000, 0), bounds=task.bounds)
    truth, x0 = task.draw(500, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = found.sample_batched((100,), x=x0, random_state=0).transpose(0, 1)
    assert calibration(made, truth).p_values.min() > 0.01
