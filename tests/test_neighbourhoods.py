"""Neighbourhoods: samples of x given y have the true conditional distribution, and are new."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from sliceflow.engine.neighbourhoods import (
    Neighbourhoods,
    choose_spread,
    drawn,
    projection_of,
    relevance,
)
from sliceflow.engine.random import Seed


def heteroscedastic(n, rng):
    """x ~ N(sin 2y, (0.1 + 0.4·|y|)²)."""
    y = rng.uniform(-1, 1, (n, 1))
    return np.sin(2 * y) + (0.1 + 0.4 * np.abs(y)) * rng.normal(size=(n, 1)), y


def heteroscedastic_cdf(x, y):
    return norm.cdf((x - np.sin(2 * y)) / (0.1 + 0.4 * np.abs(y)))


def bimodal(n, rng):
    """x = ±(1.5 + y) with noise 0.2."""
    y = rng.uniform(-1, 1, (n, 1))
    return rng.choice([-1, 1], (n, 1)) * (1.5 + y) + 0.2 * rng.normal(size=(n, 1)), y


def bimodal_cdf(x, y):
    return (norm.cdf((x - 1.5 - y) / 0.2) + norm.cdf((x + 1.5 + y) / 0.2)) / 2


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("problem", "cdf"), [(heteroscedastic, heteroscedastic_cdf), (bimodal, bimodal_cdf)]
)
def test_intervals_cover_as_often_as_they_say(problem, cdf, seed):
    near = Neighbourhoods.of(*problem(2_000, np.random.default_rng(seed)))
    y = np.linspace(-0.95, 0.95, 40)
    made = near.sample(y[:, None], 500, Seed(0)).numpy()[..., 0]
    for share in (0.5, 0.9):
        low, high = np.quantile(made, [(1 - share) / 2, (1 + share) / 2], axis=1)
        assert abs(np.mean(cdf(high, y) - cdf(low, y)) - share) < 0.03, share


def test_the_posterior_of_a_gaussian_is_the_formulas():
    """θ ~ N(0, I), x = θ + N(0, I) in five dimensions: θ given x is N(x/2, I/2)."""
    theta = Seed(0).normal(2_000, 5)
    near = Neighbourhoods.of(theta, theta + Seed(1).normal(2_000, 5), k=1_000)
    x0 = Seed(2).normal(4, 5)
    made = near.sample(x0, 2_000, Seed(3))
    assert float((made.mean(1) - x0 / 2).abs().max()) < 0.15
    for one in made:
        assert float((torch.cov(one.T) - torch.eye(5) / 2).abs().max()) < 0.12


def test_two_modes_stay_apart():
    rng = np.random.default_rng(0)
    near = Neighbourhoods.of(*bimodal(2_000, rng))
    made = near.sample([[0.8]], 2_000, Seed(0))[0, :, 0]
    assert float((made.abs() < 1.3).double().mean()) < 0.01
    assert abs(float((made > 0).double().mean()) - 0.5) < 0.08
    assert int(near.adjusted([[0.8]]).n_components[0]) == 2


@pytest.mark.parametrize("d", [1, 2, 6])
def test_samples_are_new(d):
    """Between rows as far as rows are from each other: neither copies nor a blur."""
    rng = np.random.default_rng(d)
    y = rng.normal(size=(1_500, 2))
    x = y[:, :1] + np.exp(0.5 * y[:, 1:]) * rng.normal(size=(1_500, d))
    near = Neighbourhoods.of(x, y, k=300)
    at = y[:20]
    adjusted, made = near.adjusted(at).x, near.sample(at, 200, Seed(0))
    apart = (
        torch.cdist(adjusted, adjusted).topk(2, dim=2, largest=False).values[..., 1].median(1).values
    )
    nearest = torch.cdist(made, adjusted).amin(2).median(1).values
    assert 0.8 < float((nearest / apart).median()) < 1.2


def test_draws_keep_mean_and_covariance_within_components():
    near = Neighbourhoods.of(Seed(0).normal(400, 3), Seed(1).normal(400, 1), k=400)
    found = near.adjusted([[0.0]])
    weight, x = found.weight[0], found.x[0]
    mean = weight @ x
    covariance = (weight[:, None] * (x - mean)).T @ (x - mean)
    for h in (0.3, 3.0):
        made = drawn(found, 40_000, h, Seed(2))[0]
        assert float((made.mean(0) - mean).abs().max()) < 0.03
        assert float((torch.cov(made.T) - covariance).abs().max()) < 0.04


def test_a_row_that_nothing_foresees_does_not_choose_k():
    y = Seed(0).uniform(1_500, 1) * 6 - 3
    x = torch.sin(6 * y) + 0.05 * Seed(1).normal(1_500, 1)
    before = Neighbourhoods.of(x, y).k
    x[Seed(0).child("k").permutation(1_500)[0]] = 1e3  # it is among the rows left out
    assert Neighbourhoods.of(x, y).k == before < 400


def test_the_spread_grows_with_the_dimension():
    y = Seed(1).normal(500, 1)
    low, high = (choose_spread(Neighbourhoods.of(Seed(0).normal(500, d), y, k=300)) for d in (1, 8))
    assert low < high


def test_draws_of_a_narrow_and_a_wide_component_are_as_far_from_rows_as_these_from_each_other():
    rng = np.random.default_rng(1)
    x = rng.uniform(-5, 5, (1_000, 2))
    y = x + rng.choice([0.1, 1], (1_000, 1)) * rng.normal(size=(1_000, 2))
    near = Neighbourhoods.of(x, y, k=400)
    y0 = rng.uniform(-3, 3, (20, 2))
    rows, made = near.adjusted(y0).x, near.sample(y0, 400, Seed(0))
    apart = torch.cdist(rows, rows).topk(2, dim=2, largest=False).values[..., 1].log().mean(1)
    ratio = torch.exp(torch.cdist(made, rows).amin(2).log().mean(1) - apart)
    assert 0.85 < float(ratio.median()) < 1.1


def test_columns_that_do_not_matter_count_nothing():
    y = Seed(0).normal(1_000, 6)
    x = torch.cat((y[:, :1] ** 2, y[:, 1:2] * Seed(1).normal(1_000, 1)), 1)  # a mean and a variance
    found = relevance(x, y) * y.std(0)
    assert bool((found[:2] > 0.8).all())
    assert bool((found[2:] < 0.3).all())


def test_irrelevant_columns_hardly_change_the_samples():
    rng = np.random.default_rng(0)
    x, y = heteroscedastic(2_000, rng)
    noisy = np.concatenate((y, rng.normal(size=(2_000, 5))), 1)
    made = Neighbourhoods.of(x, noisy).sample(np.array([[0.5, 0, 0, 0, 0, 0]]), 4_000, Seed(0))[0]
    assert abs(float(made.mean()) - np.sin(1)) < 0.06
    assert abs(float(made.std()) - 0.3) < 0.06


def test_many_columns_are_replaced_by_what_they_predict():
    y = Seed(0).normal(1_000, 60)
    x = y[:, :30].sum(1, keepdim=True) / 30**0.5 + 0.3 * Seed(1).normal(1_000, 1)
    assert projection_of(x, y).shape == (60, 2)
    near = Neighbourhoods.of(x, y)
    y0 = torch.zeros(1, 60, dtype=torch.float64)
    y0[0, :30] = 1 / 30**0.5
    made = near.sample(y0, 2_000, Seed(0))[0]
    assert abs(float(made.mean()) - 1) < 0.15
    assert abs(float(made.std()) - 0.3) < 0.1


def columns(kind, n=300):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(n, 1))
    return {
        "constant": np.full((n, 1), 3.0),
        "constant beside another": np.concatenate((y, np.full((n, 1), 3.0)), 1),
        "duplicated": np.concatenate((y, y), 1),
        "discrete": rng.integers(0, 3, (n, 2)).astype(float),
        "all rows equal": np.zeros((n, 2)),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["constant", "constant beside another", "duplicated", "discrete", "all rows equal"]
)
def test_columns_of_any_kind_work(kind):
    y = columns(kind)
    x = np.concatenate(
        (y[:, :1] + 0.1 * Seed(0).normal(len(y), 1).numpy(), np.full((len(y), 1), 7.0)), 1
    )
    near = Neighbourhoods.of(x, y)
    made = near.sample(y[:3], 500, Seed(0))
    assert bool(torch.isfinite(made).all())
    assert bool((made[..., 1] == 7).all()), "a column of one value stays"
    assert np.abs(made[..., 0].mean(1).numpy() - y[:3, 0]).max() < 0.1


def test_draws_say_around_which_row_they_are():
    rng = np.random.default_rng(0)
    x, y = bimodal(2000, rng)
    near = Neighbourhoods.of(x, y)
    made, rows = near.draws(y[:5], 70, Seed(0))
    assert torch.equal(made, near.sample(y[:5], 70, Seed(0)))
    assert rows.shape == (5, 70)
    # Neighbours are adjusted to the condition, but stay in their mode.
    assert ((made[..., 0] > 0) == (torch.from_numpy(x)[rows][..., 0] > 0)).double().mean() > 0.99


@pytest.mark.parametrize("n", [1, 2, 3, 12, 51])
def test_few_rows_work(n):
    near = Neighbourhoods.of(Seed(0).normal(n, 2), Seed(1).normal(n, 1))
    assert bool(torch.isfinite(near.sample([[0.0], [5.0]], 10, Seed(0))).all())


def test_the_same_seed_gives_the_same_bits_and_conditions_do_not_disturb_each_other():
    x, y = Seed(0).normal(500, 2), Seed(1).normal(500, 1)
    near, y0 = Neighbourhoods.of(x, y), [[0.0], [1.0], [-1.0]]
    first = near.sample(y0, 50, Seed(7))
    assert torch.equal(first, Neighbourhoods.of(x, y).sample(y0, 50, Seed(7)))
    assert not torch.equal(first, near.sample(y0, 50, Seed(8)))
    assert torch.allclose(first[:1], near.sample(y0[:1], 50, Seed(7)), atol=1e-8)


def test_far_conditions_are_farther_than_the_rows_reach():
    near = Neighbourhoods.of(Seed(0).normal(500, 1), Seed(1).normal(500, 2))
    assert float(near.distances([[0.0, 0.0]])) < near.reach < float(near.distances([[9.0, 0.0]]))
