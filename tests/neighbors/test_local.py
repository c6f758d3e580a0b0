"""Local conditions: samples of x given y have the true distribution, and are new."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from sliceflow.engine.random import Seed
from sliceflow.neighbors import local
from sliceflow.neighbors.local import LocalSampler, fit_local_sampler


def tensors(*arrays):
    return tuple(torch.tensor(array, dtype=torch.float64) for array in arrays)


def heteroscedastic(n, rng):
    """x ~ N(sin 2y, (0.1 + 0.4·|y|)²)."""
    y = rng.uniform(-1, 1, (n, 1))
    x = np.sin(2 * y) + (0.1 + 0.4 * np.abs(y)) * rng.normal(size=(n, 1))
    return tensors(x, y)


def heteroscedastic_cdf(x, y):
    return norm.cdf((x - np.sin(2 * y)) / (0.1 + 0.4 * np.abs(y)))


def bimodal(n, rng):
    """x = ±(1.5 + y) with noise 0.2."""
    y = rng.uniform(-1, 1, (n, 1))
    x = rng.choice([-1, 1], (n, 1)) * (1.5 + y) + 0.2 * rng.normal(size=(n, 1))
    return tensors(x, y)


def bimodal_cdf(x, y):
    return (norm.cdf((x - 1.5 - y) / 0.2) + norm.cdf((x + 1.5 + y) / 0.2)) / 2


def norms(n, seed=0):
    """x is the length of y in six columns: no column says much alone, none linearly."""
    y = Seed(seed).normal(n, 6)
    return y.square().sum(1, keepdim=True).sqrt() + 0.1 * Seed(seed + 1).normal(n, 1), y


@pytest.fixture(scope="module")
def fitted():
    """The rows of a problem, and their sampler, which is fitted once."""

    @functools.cache
    def rows_and_sampler(problem):
        rows = problem(2_000, np.random.default_rng(0))
        return rows, fit_local_sampler(*rows)

    return rows_and_sampler


@pytest.mark.parametrize(
    ("problem", "cdf"), [(heteroscedastic, heteroscedastic_cdf), (bimodal, bimodal_cdf)]
)
def test_intervals_cover_as_often_as_they_say(problem, cdf, fitted):
    _, local = fitted(problem)
    y = np.linspace(-0.95, 0.95, 40)
    (y0,) = tensors(y[:, None])
    samples = local.sample(y0, 500, Seed(0)).x.numpy()[..., 0]
    for share in (0.5, 0.9):
        low, high = np.quantile(samples, [(1 - share) / 2, (1 + share) / 2], axis=1)
        assert abs(np.mean(cdf(high, y) - cdf(low, y)) - share) < 0.035, share


def test_two_modes_stay_apart_and_draws_know_their_row(fitted):
    (x, y), local = fitted(bimodal)
    (y0,) = tensors([[0.8]])
    samples = local.sample(y0, 2_000, Seed(0)).x[0, :, 0]
    assert float((samples.abs() < 1.3).double().mean()) < 0.01
    assert abs(float((samples > 0).double().mean()) - 0.5) < 0.08
    draws, rows = local.sample(y[:5], 70, Seed(0))
    assert torch.equal(draws, local.sample(y[:5], 70, Seed(0)).x)
    same_mode = (draws[..., 0] > 0) == (x[rows][..., 0] > 0)
    assert same_mode.double().mean() > 0.99


@pytest.mark.parametrize("d", [1, 2, 6])
def test_samples_are_new(d):
    """Between rows as far as rows are from each other: neither copies nor a blur."""
    rng = np.random.default_rng(d)
    y = rng.normal(size=(1_500, 2))
    x = y[:, :1] + np.exp(0.5 * y[:, 1:]) * rng.normal(size=(1_500, d))
    x, y = tensors(x, y)
    local = fit_local_sampler(x, y, n_neighbors=300)
    rows = local.neighborhoods(y[:20]).x
    samples = local.sample(y[:20], 200, Seed(0)).x
    between_rows = torch.cdist(rows, rows).topk(2, dim=2, largest=False).values[..., 1]
    to_rows = torch.cdist(samples, rows).amin(2)
    ratio = torch.exp(to_rows.log().mean(1) - between_rows.log().mean(1))
    assert 0.78 < float(ratio.median()) < 1.15


def test_heavy_tails_do_not_hide_the_rest():
    """x is log y plus noise: near y₀ in deviations of y would be nearly all rows."""
    z = Seed(0).normal(2_000, 1)
    local = fit_local_sampler(z + 0.1 * Seed(1).normal(2_000, 1), torch.exp(4 * z))
    y0 = torch.exp(torch.tensor([[-4.0], [0.0], [4.0]]).double())
    samples = local.sample(y0, 1_000, Seed(0)).x[..., 0].numpy()
    assert np.abs(samples.mean(1) - [-1, 0, 1]).max() < 0.05
    assert np.abs(samples.std(1) - 0.1).max() < 0.04
    assert "normal scores of 1 heavy-tailed" in local.description


def test_a_summary_is_used_where_rows_left_out_are_more_likely_with_it():
    x, y = norms(400)
    local = fit_local_sampler(x, y)
    assert local.settings.n_random_features == 100
    _, y0 = norms(60, seed=7)
    length = y0.square().sum(1).sqrt()
    columns = fit_local_sampler(x, y, n_neighbors=local.settings.n_neighbors)
    assert columns.settings.n_random_features == 0

    def error(sampler):
        samples = sampler.sample(y0, 50, Seed(0)).x
        return float((samples[..., 0].mean(1) - length).square().mean().sqrt())

    assert error(local) < 0.8 * error(columns)
    y = Seed(0).normal(500, 5)
    plain = fit_local_sampler(y[:, :2] + 0.3 * Seed(1).normal(500, 2), y)
    assert plain.settings.n_random_features == 0, "columns stay where they are better"


SAME = np.full((150, 1), 3.0)
NORMAL = np.random.default_rng(0).normal(size=(150, 1))
COLUMNS = {
    "constant": SAME,
    "constant beside another": np.hstack((NORMAL, SAME)),
    "duplicated": np.hstack((NORMAL, NORMAL)),
    "discrete": np.random.default_rng(1).integers(0, 3, (150, 2)).astype(float),
}


@pytest.mark.parametrize("y", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_any_kind_work(y):
    noise = 0.1 * Seed(0).normal(len(y), 1).numpy()
    x = np.concatenate((y[:, :1] + noise, np.full((len(y), 1), 7.0)), 1)
    x, y = tensors(x, y)
    local = fit_local_sampler(x, y)
    local.check_saved()
    samples = local.sample(y[:3], 500, Seed(0)).x
    assert bool((samples[..., 1] == 7).all()), "a column of one value stays"
    assert np.abs(samples[..., 0].mean(1).numpy() - y[:3, 0].numpy()).max() < 0.1


@pytest.mark.parametrize("n", [1, 2, 3, 12, 51])
def test_few_rows_work(n):
    local = fit_local_sampler(Seed(0).normal(n, 2), Seed(1).normal(n, 1))
    (y0,) = tensors([[0.0], [5.0]])
    assert bool(torch.isfinite(local.sample(y0, 10, Seed(0)).x).all())


def test_the_same_seed_gives_the_same_bits_and_conditions_do_not_disturb_each_other():
    x = Seed(0).normal(200, 2)
    y = Seed(1).normal(200, 1)
    local = fit_local_sampler(x, y)
    (y0,) = tensors([[0.0], [1.0], [-1.0]])
    first = local.sample(y0, 50, Seed(7)).x
    assert torch.equal(first, fit_local_sampler(x, y).sample(y0, 50, Seed(7)).x)
    assert torch.equal(
        first, LocalSampler(local.x, local.y, local.settings).sample(y0, 50, Seed(7)).x
    )
    assert not torch.equal(first, local.sample(y0, 50, Seed(8)).x)
    assert torch.allclose(first[:1], local.sample(y0[:1], 50, Seed(7)).x, atol=1e-8)


def test_each_condition_gets_a_sample_of_its_own():
    """Conditions that occur once, twice and three times, in any order."""
    y = torch.arange(200.0).double()[:, None]
    sampler = fit_local_sampler(y + 0.1 * Seed(0).normal(200, 1), y, n_neighbors=20)
    (y0,) = tensors([[50.0], [150.0], [20.0], [150.0], [50.0], [150.0], [90.0]])
    samples = sampler.sample_each(y0, Seed(7))
    assert torch.allclose(samples, y0, atol=1.0)
    assert len(torch.unique(samples)) == len(y0)


def test_parts_in_memory_change_no_bit_and_repeat_no_draw(monkeypatch):
    found = fit_local_sampler(
        Seed(0).normal(300, 2), Seed(1).normal(300, 1), n_neighbors=60
    )
    (y0,) = tensors([[0.0], [0.0], [1.0]])
    whole = found.sample(y0, 40, Seed(7)).x
    # A condition at a time,
    monkeypatch.setattr(local, "_MAX_VALUES", local.N_NOISE_ROWS * 2 * 40)
    assert torch.allclose(found.sample(y0, 40, Seed(7)).x, whole, atol=1e-8)
    # and eight of its draws.
    monkeypatch.setattr(local, "_MAX_VALUES", local.N_NOISE_ROWS * 2 * 8)
    assert len(torch.unique(found.sample(y0[:1], 40, Seed(7)).x[0], dim=0)) == 40


def test_a_condition_beyond_the_reach_of_the_rows_warns_and_one_within_does_not():
    """Rows 0, 1, …, 99: the tenth neighbor is at most nine rows away, the reach."""
    y = torch.arange(100.0).double()[:, None]
    local = fit_local_sampler(y + 0.1 * Seed(0).normal(100, 1), y, n_neighbors=50)
    unit = float(y.std(correction=0))
    with warnings.catch_warnings(action="error"):
        local.warn_if_far(*tensors([[99 + 8.9], [50.5]]), "y")
    reach = f"{9 / unit:.3g}"
    far = f"{9.5 / unit:.3g}"
    numbers = torch.tensor([4, 6])
    with pytest.warns(
        UserWarning, match=rf"y\[6\] is {far} standard dev.* within {reach}: "
    ) as found:
        local.warn_if_far(*tensors([[50.5], [-9.5]]), "y", numbers)
    assert found[0].filename == __file__


@pytest.fixture(scope="module")
def sound():
    """A sampler of sixty rows."""
    return fit_local_sampler(Seed(0).normal(60, 2), Seed(1).normal(60, 3))


def test_another_k_or_bandwidth_samples_as_if_the_index_was_built_anew(sound):
    (y0,) = tensors([[0.0, 0.0, 0.0]])
    other = sound.with_n_neighbors(20).with_bandwidth(0.5)
    anew = LocalSampler(sound.x, sound.y, other.settings)
    assert (other.settings.n_neighbors, other.settings.bandwidth) == (20, 0.5)
    samples, _ = other.sample(y0, 5, Seed(0))
    assert torch.equal(samples, anew.sample(y0, 5, Seed(0)).x)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_neighbors": 0},
        {"n_neighbors": 61},
        {"n_random_features": 10**9},
        {"projection": torch.ones(2, 3).double()},
        {"projection": torch.full((3, 3), torch.nan).double()},
        {"projection": 1e300 * torch.ones(3, 3).double()},
    ],
    ids=str,
)
def test_damaged_settings_are_refused(changes, sound):
    sound.check_saved()
    with pytest.raises(ValueError, match="local"):
        LocalSampler(sound.x, sound.y, replace(sound.settings, **changes)).check_saved()


def test_few_rows_of_many_columns_have_no_summary(monkeypatch, rng):
    """All rows are neighbors with a summary, so there is nothing to compare."""
    monkeypatch.setattr(local, "_N_HELD_OUT", 20)
    monkeypatch.setattr(local, "_MIN_SUMMARY_ROWS", 100)
    x, y = tensors(rng.normal(size=(110, 20)), rng.normal(size=(110, 5)))
    assert fit_local_sampler(x, y).settings.n_neighbors > 0
