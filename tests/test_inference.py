"""Posteriors of simulators: against formulas and true draws; bounds, precision, calibration, files."""

import numpy as np
import pandas as pd
import pytest
import torch
from posterior_tasks import TASKS
from scipy.stats import truncnorm

from sliceflow import inference
from sliceflow.inference import posterior
from sliceflow.metrics import nearest, sliced_wasserstein

MOONS = TASKS["two moons"]


@pytest.fixture(scope="module")
def moons():
    return posterior(*MOONS.draw(1_000, 0), bounds=(-1, 1))


@pytest.fixture(scope="module")
def line():
    """θ ~ N(0, 1), x = θ + N(0, 1): the posterior is N(x/2, 1/2)."""
    theta, noise = np.random.default_rng(5).normal(size=(2, 1_000))
    return posterior(theta, theta + noise)


def test_a_gaussian_posterior_is_the_formulas(line):
    made = line.sample((4_000,), x=1.0, random_state=0)
    assert made.shape == (4_000, 1)
    assert float(made.mean()) == pytest.approx(0.5, abs=0.1)
    assert float(made.std()) == pytest.approx(0.5**0.5, abs=0.1)
    assert float(line.map(x=1.0)) == pytest.approx(0.5, abs=0.35)
    with pytest.warns(UserWarning, match=r"x\[0\] is"):
        line.sample((2,), x=99.0, random_state=0)


def test_two_moons_are_the_true_ones(moons):
    x0 = MOONS.draw(1, 7)[1][0]
    true = MOONS.posterior(x0, 2_000, np.random.default_rng(0))
    made = moons.sample((1_000,), x=x0, random_state=0).numpy()
    prior = sliced_wasserstein(moons.theta, true, n_directions=100)
    assert sliced_wasserstein(made, true, n_directions=100) < 0.6 * prior
    assert np.quantile(nearest(made, true, device="cpu")[0], 0.9) < 0.1, "on the moons"
    assert np.quantile(nearest(true, made, device="cpu")[0], 0.9) < 0.1, (
        "on all of them"
    )
    mode = moons.map(x=x0).numpy()
    assert np.linalg.norm(true - mode, axis=1).min() < 0.05, (
        "the mode is on a moon, not between them"
    )


def test_parameters_near_a_million_keep_their_resolution(rng):
    theta = 1e6 + 0.01 * rng.random((500, 1))
    x = (theta - 1e6) * 100 + 0.01 * rng.normal(size=(500, 1))
    made = posterior(theta, x, bounds=(1e6, 1e6 + 0.01)).sample(
        (300,), x=[0.5], random_state=0
    )
    assert made.dtype == torch.float64
    assert len(np.unique(made)) == 300
    assert float(made.mean()) - 1e6 == pytest.approx(0.005, abs=1e-4)
    assert float(made.std()) == pytest.approx(1e-4, rel=0.5)


def test_types_and_shapes_are_sbis(moons):
    assert moons.sample((2, 3), x=np.zeros(2), random_state=0).shape == (2, 3, 2)
    assert moons.sample(x=[0, 0]).shape == (2,)
    batched = moons.sample_batched((4,), x=[[0, 0], [0.1, 0], [0, 0.1]], random_state=0)
    assert batched.shape == (4, 3, 2)
    one, again = (moons.sample((9,), x=[[0, 0]], random_state=3) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, moons.sample((9,), x=[[0, 0]]))
    frame = pd.DataFrame({"a": np.arange(60.0), "c": 7.25})
    found = posterior(frame, torch.rand(60, generator=torch.Generator().manual_seed(0)))
    made = found.sample((5,), x=[0.5])
    assert (made.dtype, made.shape) == (torch.float64, (5, 2))
    assert bool((made[:, 1] == 7.25).all()), "a constant stays as it is"
    single = posterior(torch.rand(60, 1), torch.rand(60, 3))
    assert single.sample((5,), x=torch.zeros(3)).dtype == torch.float32
    assert (
        repr(single) == "Posterior of 1 parameters given 3 values, from 60 simulations"
    )


def test_several_observations_are_asked_in_parts_each_by_its_own(
    line, monkeypatch, capsys
):
    monkeypatch.setattr(inference, "_AT_ONCE", 3)
    monkeypatch.setattr(line, "verbose", True)
    x0 = np.array([-2.0, -1, 0, 0, 1, 2, 2])
    made = line.sample_batched((500,), x=x0[:, None], random_state=0)
    assert made.mean(0)[:, 0].numpy() == pytest.approx(x0 / 2, abs=0.35)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "sliceflow: samples at 3/7 observations"
    assert said[-1].endswith("7/7 observations")


@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (-np.inf, 1.0), (0.0, 0.6)])
def test_what_is_outside_is_drawn_again_not_moved(line, monkeypatch, low, high):
    """Draws of N(½, 1) between bounds are the truncated Gaussian; mirrored ones would not be."""

    def ask(y, n, rng):
        return rng.normal(0.5, 1, (len(y), n, 1))

    monkeypatch.setattr(line, "_ask", ask)
    monkeypatch.setattr(line, "low", np.array([low]))
    monkeypatch.setattr(line, "high", np.array([high]))
    made = line.sample((20_000,), x=0.0, random_state=0).numpy()
    true = truncnorm(low - 0.5, high - 0.5, loc=0.5)
    assert made.mean() == pytest.approx(true.mean(), abs=0.01)
    assert made.std() == pytest.approx(true.std(), abs=0.01)


def test_fresh_simulations_calibrate_it_and_its_own_are_refused(line):
    theta, noise = np.random.default_rng(1).normal(size=(2, 150))
    found = line.calibrate(
        theta, theta + noise, n_samples=150
    )  # as many samples as conditions
    assert found.ranks.shape == (150, 1)
    assert found.verdict.startswith("calibrated")
    assert line.calibrate(theta + 1, theta + noise).p_values.max() < 1e-4
    with pytest.raises(
        ValueError, match="5 of 5 simulations made this posterior; simulate fresh ones"
    ):
        line.calibrate(line.theta[:5], line.x[:5])


def test_a_default_observation_a_file_and_the_same_samples(tmp_path):
    moons = posterior(*MOONS.draw(300, 0), bounds=(-1, 1))
    assert moons.set_default_x([0.1, 0.0]) is moons
    wanted = moons.sample((20,), random_state=0)
    assert torch.equal(moons.sample((20,), x=[0.1, 0.0], random_state=0), wanted)
    moons.save(tmp_path / "moons.safetensors")
    again = inference.load(tmp_path / "moons.safetensors")
    assert torch.equal(again.sample((20,), random_state=0), wanted)
    assert again.high.tolist() == [1, 1]


def test_other_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "text").write_text("no posterior")
    save_file({"theta": np.zeros((2, 1))}, tmp_path / "other")
    for name in ("text", "other"):
        with pytest.raises(ValueError, match=f"{name} is not a posterior"):
            inference.load(tmp_path / name)


THETA = np.arange(10.0).reshape(5, 2)
X = np.arange(5.0)[:, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: posterior(THETA[None], X),
            r"theta has shape \(1, 5, 2\); pass one row",
        ),
        (lambda: posterior(THETA, X[:4]), "theta has 5 rows but x has 4"),
        (
            lambda: posterior(THETA, np.where(X == 2, np.nan, X)),
            r"x contains nan at \[2, 0\]; drop",
        ),
        (
            lambda: posterior(1e200 * THETA, X),
            r"theta contains 1e\+200 at \[0, 1\]; divide such",
        ),
        (
            lambda: posterior(THETA, X, bounds=(0, 3)),
            r"bounds=\(0, 3\) must have low < high",
        ),
        (
            lambda: posterior(THETA, X).sample((3,)),
            "x is missing; pass the observation, or call set_",
        ),
        (
            lambda: posterior(THETA, X).sample((3,), x=[[1, 2]]),
            r"x has shape \(1, 2\) but simulations",
        ),
        (
            lambda: posterior(THETA, X).sample((3,), x=[[1], [2]]),
            "x has 2 observations",
        ),
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
    found = posterior(*task.draw(10_000, 0), bounds=task.bounds).calibrate(
        *task.draw(500, 1)
    )
    assert found.p_values.min() > 0.01
