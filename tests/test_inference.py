"""Posteriors of simulators: against formulas and true draws; bounds and files."""

import os
import random
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from posterior_tasks import TASKS
from scipy.stats import truncnorm

import sliceflow
from mutations import change_arrays, change_header
from sliceflow import ModelFileError, inference
from sliceflow.base import file
from sliceflow.base.memory_budget import MemoryBudget
from sliceflow.errors import DataError, ParameterError
from sliceflow.inference import posterior, posteriors
from sliceflow.inference.neighbors import NeighborSampler
from sliceflow.metrics import nearest, sliced_wasserstein

MOONS = TASKS["two moons"]
THETA = np.arange(10.0).reshape(5, 2)
X = np.arange(5.0)[:, None]


@pytest.fixture(scope="module")
def moons():
    return posterior(*MOONS.draw(1_000, 0), bounds=(-1, 1))


@pytest.fixture(scope="module")
def line():
    """θ ~ N(0, 1), x = θ + N(0, 1): the posterior is N(x/2, 1/2)."""
    theta, noise = np.random.default_rng(5).normal(size=(2, 1_000))
    return posterior(theta, theta + noise)


def test_a_gaussian_posterior_is_the_formulas(line):
    samples = line.sample((4_000,), x=1.0, random_state=0)
    assert samples.shape == (4_000, 1)
    assert float(samples.mean()) == pytest.approx(0.5, abs=0.1)
    assert float(samples.std()) == pytest.approx(0.5**0.5, abs=0.1)
    assert float(line.map(x=1.0)) == pytest.approx(0.5, abs=0.35)
    with pytest.warns(UserWarning, match=r"x\[0\] is"):
        line.sample((2,), x=99.0, random_state=0)


def test_two_moons_are_the_true_ones(moons):
    x0 = MOONS.draw(1, 7)[1][0]
    true = MOONS.posterior(x0, 2_000, np.random.default_rng(0))
    samples = moons.sample((1_000,), x=x0, random_state=0).numpy()
    distance_of_prior = sliced_wasserstein(moons.theta, true, n_directions=100)
    distance = sliced_wasserstein(samples, true, n_directions=100)
    assert distance < 0.6 * distance_of_prior
    to_moons = nearest(samples, true, device="cpu")[0]
    assert np.quantile(to_moons, 0.9) < 0.1, "samples are on the moons"
    to_samples = nearest(true, samples, device="cpu")[0]
    assert np.quantile(to_samples, 0.9) < 0.1, "samples are on all of both moons"
    mode = moons.map(x=x0).numpy()
    from_mode = np.linalg.norm(true - mode, axis=1)
    assert from_mode.min() < 0.05, "the mode is on a moon, not between them"


def test_parameters_near_a_million_keep_their_resolution(rng):
    theta = 1e6 + 0.01 * rng.random((500, 1))
    x = (theta - 1e6) * 100 + 0.01 * rng.normal(size=(500, 1))
    given_x = posterior(theta, x, bounds=(1e6, 1e6 + 0.01))
    samples = given_x.sample((300,), x=[0.5], random_state=0)
    assert samples.dtype == torch.float64
    assert len(np.unique(samples)) == 300
    assert float(samples.mean()) - 1e6 == pytest.approx(0.005, abs=1e-4)
    assert float(samples.std()) == pytest.approx(1e-4, rel=0.5)


def test_types_and_shapes_are_sbis(moons):
    assert moons.sample((2, 3), x=np.zeros(2), random_state=0).shape == (2, 3, 2)
    assert moons.sample(x=[0, 0]).shape == (2,)
    batched = moons.sample_batched((4,), x=[[0, 0], [0.1, 0], [0, 0.1]], random_state=0)
    assert batched.shape == (4, 3, 2)
    one = moons.sample((9,), x=[[0, 0]], random_state=3)
    again = moons.sample((9,), x=[[0, 0]], random_state=3)
    assert torch.equal(one, again)
    assert not torch.equal(one, moons.sample((9,), x=[[0, 0]]))
    assert moons.sample(np.int64(2), x=[0, 0]).shape == (2, 2)

    frame = pd.DataFrame({"a": np.arange(60.0), "c": 7.25})
    x = torch.rand(60, generator=torch.Generator().manual_seed(0))
    samples = posterior(frame, x).sample((5,), x=[0.5])
    assert samples.dtype == torch.float64
    assert samples.shape == (5, 2)
    assert bool((samples[:, 1] == 7.25).all()), "a constant stays as it is"

    single = posterior(torch.rand(60, 1), torch.rand(60, 3))
    assert single.sample((5,), x=torch.zeros(3)).dtype == torch.float32
    text = "Posterior of 1 parameters given 3 values, from 60 simulations"
    assert repr(single) == f"{text}, by neighbors"


def test_several_observations_are_drawn_in_batches_each_by_its_own(
    line, monkeypatch, caplog
):
    monkeypatch.setattr(posteriors, "OBSERVATIONS_PER_BATCH", 3)
    monkeypatch.setattr(line, "verbose", True)
    x0 = np.array([-2.0, -1, 0, 0, 1, 2, 2])
    samples = line.sample_batched((500,), x=x0[:, None], random_state=0)
    assert samples.mean(0)[:, 0].numpy() == pytest.approx(x0 / 2, abs=0.35)
    assert caplog.messages[0] == "samples at 3/7 observations"
    assert caplog.messages[-1].endswith("7/7 observations")


@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (-np.inf, 1.0), (0.0, 0.6)])
def test_what_is_outside_is_drawn_again_not_moved(line, monkeypatch, low, high):
    """N(½, 1) between bounds is the truncated Gaussian; mirrored, it is not."""

    def draw_normal(self, encoded_x, n, rng):
        return rng.normal(0.5, 1, (len(encoded_x), n, 1))

    monkeypatch.setattr(NeighborSampler, "_sample_unbounded", draw_normal)
    bounded = replace(line._sampler, low=np.array([low]), high=np.array([high]))
    monkeypatch.setattr(line, "_sampler", bounded)
    samples = line.sample((20_000,), x=0.0, random_state=0).numpy()
    true = truncnorm(low - 0.5, high - 0.5, loc=0.5)
    assert samples.mean() == pytest.approx(true.mean(), abs=0.01)
    assert samples.std() == pytest.approx(true.std(), abs=0.01)


def test_fresh_simulations_calibrate_it_and_its_own_are_refused(line):
    theta, noise = np.random.default_rng(1).normal(size=(2, 150))
    # As many samples as conditions: either axis could be that of samples.
    report = line.calibrate(theta, theta + noise, n_samples=150)
    assert report.ranks.shape == (150, 1)
    assert report.verdict.startswith("calibrated")
    assert line.calibrate(theta + 1, theta + noise).p_values.max() < 1e-4
    with pytest.raises(
        ValueError, match="5 of 5 simulations made this posterior; simulate fresh ones"
    ):
        line.calibrate(line.theta[:5], line.x[:5])


@pytest.fixture(scope="module")
def few_moons():
    return posterior(*MOONS.draw(60, 0), bounds=(-1, 1)).set_default_x([0.1, 0.0])


def test_a_default_observation_a_file_and_the_same_samples(few_moons, tmp_path):
    samples = few_moons.sample((20,), random_state=0)
    at_x = few_moons.sample((20,), x=[0.1, 0.0], random_state=0)
    assert torch.equal(at_x, samples)
    few_moons.save(tmp_path / "moons")
    loaded = inference.load(tmp_path / "moons")
    assert torch.equal(loaded.sample((20,), random_state=0), samples)
    assert loaded.high.tolist() == [1, 1]
    loaded.save(tmp_path / "again")
    written = (tmp_path / "moons").read_bytes()
    assert (tmp_path / "again").read_bytes() == written


def test_a_file_keeps_the_type_of_samples_and_infinite_bounds(tmp_path):
    single = posterior(THETA.astype(np.float32), X, bounds=(0, np.inf))
    single.save(tmp_path / "single")
    loaded = inference.load(tmp_path / "single")
    assert loaded.dtype == "float32"
    assert loaded.default_x is None
    assert loaded.low.tolist() == [0, 0]
    assert loaded.high.tolist() == [np.inf, np.inf]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no posterior")
    with pytest.raises(ModelFileError, match="text: it is not a sliceflow file"):
        inference.load(tmp_path / "text")
    flow = sliceflow.SlicedWassersteinFlow(n_particles=9, n_steps=1, random_state=0)
    flow.fit(THETA).save(tmp_path / "flow")
    message = "holds 'SlicedWassersteinFlow', not one of SavedPosterior"
    with pytest.raises(ModelFileError, match=message):
        inference.load(tmp_path / "flow")
    posterior(THETA, X).save(tmp_path / "posterior")
    with pytest.raises(ModelFileError, match="holds 'SavedPosterior', not one of"):
        sliceflow.load(tmp_path / "posterior")
    with pytest.raises(ModelFileError, match=r"max_memory is 0\.1 KiB"):
        inference.load(tmp_path / "posterior", max_memory=100)


def test_changed_files_are_refused_or_draw_numbers(tmp_path, monkeypatch):
    path = tmp_path / "posterior"
    posterior(THETA, X, bounds=(-1, 10)).set_default_x([2.0]).save(path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    content = path.read_bytes()
    kind_name, header, arrays = file.parse(content, MemoryBudget(len(content)))
    rng = random.Random(0)
    n_refused = 0
    for i in range(60):
        if i % 2:
            tree = change_header(msgspec.msgpack.decode(header), rng)
            file.write(path, kind_name, msgspec.msgpack.encode(tree), arrays)
        else:
            file.write(path, kind_name, header, change_arrays(arrays, rng))
        try:
            loaded = inference.load(path)
        except ModelFileError:
            n_refused += 1
            continue
        assert loaded.sample((5,), x=[2.0], random_state=0).isfinite().all()
    assert n_refused > 15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: posterior(THETA.astype("M8[D]"), X),
            r"theta has dtype datetime64\[D\]; pass numbers",
        ),
        (lambda: posterior(THETA, X.astype(str)), r"x has dtype <U.*; pass numbers"),
        (
            lambda: posterior([[1], [1, 2]], [[1], [2]]),
            "theta cannot be read as numbers: .*; pass numbers in rows of one length",
        ),
        (
            lambda: posterior(THETA, np.ma.masked_array(X, X == 2)),
            "a value of x is masked",
        ),
        (
            lambda: posterior(THETA, X).sample((3,), x="one"),
            "x has dtype <U3; pass numbers",
        ),
        (
            lambda: posterior(THETA[None], X),
            r"theta has shape \(1, 5, 2\); pass one row",
        ),
        (lambda: posterior(THETA, X[:4]), "theta has 5 rows but x has 4"),
        (
            lambda: posterior(THETA, np.where(X == 2, np.nan, X)),
            "row 2, column 0: x contains nan; drop",
        ),
        (
            lambda: posterior(1e200 * THETA, X),
            r"row 0, column 1: theta contains 1e\+200; divide such",
        ),
        (
            lambda: posterior(THETA, X, bounds=(0, 3)),
            r"bounds=\(0, 3\) must enclose all parameters theta; its columns reach",
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
        (
            lambda: posterior(THETA, X).calibrate([[9]], [[9]], n_samples=2.5),
            "n_samples=2.5 must be an int of at least 1",
        ),
        (lambda: posterior(THETA, X, method="nearest"), "method='nearest'"),
        (
            lambda: posterior(THETA, X, method=np.array(["auto", "likelihood"])),
            "method=array.* must be 'neighbors', 'likelihood' or 'auto'",
        ),
        (
            lambda: posterior(THETA, X, verbose="no"),
            "verbose='no' must be a bool, or an int",
        ),
        (
            lambda: posterior(THETA, X, method="likelihood"),
            "there are 5 simulations; method='likelihood' needs at least 50",
        ),
        (
            lambda: posterior(
                np.arange(60.0), np.full((60, 2), 7.0), method="likelihood"
            ),
            "all values of x are constant",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_have_fields():
    with pytest.raises(DataError) as raised:
        posterior(THETA, np.where(X == 2, np.nan, X))
    assert raised.value.row == 2
    assert raised.value.column == 0
    with pytest.raises(ParameterError) as raised:
        posterior(THETA, X, bounds=(0, 3))
    assert raised.value.parameter == "bounds"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two moons", "Gaussian linear"])
def test_ranks_are_uniform(name):
    task = TASKS[name]
    given_x = posterior(*task.draw(10_000, 0), bounds=task.bounds)
    assert given_x.calibrate(*task.draw(500, 1)).p_values.min() > 0.01


def test_a_random_state_of_numpy_seeds_samples():
    given_x = posterior(THETA, X)
    first = given_x.sample((5,), x=[2.0], random_state=np.random.RandomState(3))
    again = given_x.sample((5,), x=[2.0], random_state=np.random.RandomState(3))
    other = given_x.sample((5,), x=[2.0], random_state=np.random.RandomState(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("random_state", [-1, "a", 1.5, True])
def test_a_random_state_that_seeds_nothing_is_refused(random_state):
    given_x = posterior(THETA, X)
    for draw in (
        lambda: given_x.sample((5,), x=[2.0], random_state=random_state),
        lambda: given_x.sample_batched((5,), x=[[2.0]], random_state=random_state),
        lambda: given_x.map([2.0], random_state=random_state),
        lambda: given_x.calibrate([[9, 9]], [[9]], random_state=random_state),
    ):
        with pytest.raises(ParameterError, match=f"^random_state={random_state!r} "):
            draw()


@pytest.fixture(scope="module")
def plane():
    """θ ~ N(0, I), x = θ + N(0, I/4) and a constant: θ given x is N(4x/5, I/5)."""
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(600, 2))
    x = theta + 0.5 * rng.normal(size=(600, 2))
    x = np.column_stack((x, np.full(600, 7.0)))
    return posterior(theta, x, method="likelihood")


def test_a_posterior_by_likelihood_is_the_formulas(plane):
    """The regression's slopes have errors of 0.02, and means of samples of 0.02."""
    samples = plane.sample((2_000,), x=[1.0, -0.5, 7.0], random_state=0)
    assert samples.numpy().mean(0) == pytest.approx([0.8, -0.4], abs=0.12)
    assert samples.numpy().std(0) == pytest.approx([0.2**0.5] * 2, rel=0.1)
    assert abs(float(np.corrcoef(samples.T)[0, 1])) < 0.15
    again = plane.sample((2_000,), x=[1.0, -0.5, 7.0], random_state=0)
    assert torch.equal(samples, again)
    text = "Posterior of 2 parameters given 3 values, from 600 simulations"
    assert repr(plane) == f"{text}, by likelihood"


def test_likelihoods_warn_of_what_no_simulation_is_like(plane):
    """Beyond the prior, 30 standard deviations away, nothing explains the value."""
    with pytest.warns(UserWarning, match=r"x\[0\] is .* standard deviations from"):
        plane.sample((10,), x=[300.0, 0.0, 7.0], random_state=0)


def test_a_far_observation_is_counted_among_all(plane, monkeypatch):
    """Not in its batch, of one observation here."""
    monkeypatch.setattr(posteriors, "OBSERVATIONS_PER_BATCH", 1)
    x = [[0.0, 0.0, 7.0], [300.0, 0.0, 7.0]]
    with pytest.warns(UserWarning, match=r"x\[1\] is .* standard deviations from"):
        plane.sample_batched((10,), x=x, random_state=0)


def test_a_likelihood_is_saved_with_its_posterior(plane, tmp_path):
    plane.save(tmp_path / "plane")
    loaded = inference.load(tmp_path / "plane")
    assert loaded.method == "likelihood"
    x = [[0.0, 0.0, 7.0], [1.0, 1.0, 7.0]]
    samples = plane.sample_batched((30,), x=x, random_state=1)
    assert samples.shape == (30, 2, 2)
    assert torch.equal(loaded.sample_batched((30,), x=x, random_state=1), samples)


def test_samples_by_likelihood_are_between_bounds(rng):
    theta = rng.uniform(0, 1, (300, 1))
    x = theta + 0.5 * rng.normal(size=(300, 1))
    found = posterior(theta, x, bounds=(0, 1), method="likelihood")
    samples = found.sample((500,), x=[0.0], random_state=0)
    assert float(samples.min()) >= 0
    assert float(samples.max()) <= 1


def test_auto_says_which_method_it_takes():
    """A likelihood, for a straight line in ten values; and neighbors, for few rows."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(100, 1))
    x = theta + rng.normal(size=(100, 10))
    found = posterior(theta, x, method="auto")
    assert found.comparison is not None
    assert found.method == found.comparison.better
    assert f"by {found.method} (likelihood − neighbors: " in repr(found)
    few = posterior(THETA, X, method="auto")
    assert few.method == "neighbors"
    assert "too few simulations" in repr(few)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [("two moons", "neighbors"), ("SLCP", "likelihood")],
)
def test_auto_chooses(name, method):
    """Eight values of SLCP are informative; the arcs of two moons bend with θ.

    Held-out simulations do not tell the two methods apart on "Gaussian linear".
    """
    task = TASKS[name]
    found = posterior(*task.draw(2_000, 0), bounds=task.bounds, method="auto")
    assert found.method == method


@pytest.mark.slow
def test_ranks_by_likelihood_are_uniform():
    task = TASKS["SLCP"]
    found = posterior(*task.draw(20_000, 0), bounds=task.bounds, method="likelihood")
    assert found.calibrate(*task.draw(300, 1)).p_values.min() > 0.001


def test_bounds_that_are_no_pair_are_named():
    with pytest.raises(ParameterError, match="bounds=5 is not a pair of bounds"):
        posterior(THETA, X, bounds=5)
    with pytest.raises(ParameterError, match="not below the upper one, at index 0"):
        posterior(THETA, X, bounds=(1, 0))
