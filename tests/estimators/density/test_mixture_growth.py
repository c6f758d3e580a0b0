"""Mixtures of many components: grown by splitting, and mapped to noise and back."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from sliceflow.engine.random import Seed
from sliceflow.estimators.density import initial_map_search, mixture, mixture_growth
from sliceflow.estimators.density.initial_map import fit_initial_map
from sliceflow.estimators.density.initial_map_search import _double_mixture
from sliceflow.estimators.density.mixture import MixtureMap
from sliceflow.estimators.density.progress import FitProgress
from sliceflow.estimators.density.settings import InitialMapSettings


def random_mixture(k, d, rng):
    factors = np.tril(0.1 * rng.normal(size=(k, d, d)), -1)
    factors += np.eye(d) * rng.uniform(0.1, 0.5, (k, 1, d))
    weights = rng.dirichlet(np.ones(k))
    parts = (np.log(weights), rng.normal(size=(k, d)), factors)
    return MixtureMap(*map(torch.from_numpy, parts))


def spiral(n, rng):
    """Rows (n, 2) near three turns of a thin spiral."""
    angle = 6 * np.pi * rng.uniform(0.1, 1, n) ** 0.5
    rows = angle[:, None] * np.stack((np.cos(angle), np.sin(angle)), 1)
    return torch.from_numpy(rows + 0.1 * rng.normal(size=(n, 2)))


def test_halves_have_the_mean_and_the_covariance_of_the_whole(rng):
    whole = random_mixture(1, 3, rng)
    halves = mixture_growth._split(whole, 2)
    assert torch.allclose(halves.means.mean(0), whole.means[0])
    within = halves.cholesky_factors @ halves.cholesky_factors.mT
    shift = halves.means - whole.means
    covariance = within.mean(0) + shift.T @ shift / 2
    assert torch.allclose(
        covariance, whole.cholesky_factors[0] @ whole.cholesky_factors[0].T
    )
    assert halves.log_weights.exp().tolist() == pytest.approx([0.5, 0.5])


def test_the_heaviest_components_are_split(rng):
    three = random_mixture(3, 2, rng)
    lightest = int(three.log_weights.argmin())
    five = mixture_growth._split(three, 5)
    assert len(five.means) == 5
    assert torch.equal(five.means[0], three.means[lightest])
    assert float(five.log_weights.exp().sum()) == pytest.approx(1)


@pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)
def test_a_pass_is_that_of_scikit_learn(rng, monkeypatch):
    monkeypatch.setattr(mixture_growth, "_MAX_VALUES_PER_CHUNK", 1_000)
    before = random_mixture(3, 2, rng)
    x = torch.from_numpy(rng.normal(size=(500, 2)))
    sums = mixture_growth._e_step(before, x)
    after = mixture_growth._m_step(sums, 2, reg_covar=1e-3)
    covariances = before.cholesky_factors @ before.cholesky_factors.mT
    peer = GaussianMixture(
        3,
        max_iter=1,
        reg_covar=1e-3,
        weights_init=before.log_weights.exp().numpy(),
        means_init=before.means.numpy(),
        precisions_init=torch.linalg.inv(covariances).numpy(),
    ).fit(x.numpy())
    np.testing.assert_allclose(after.log_weights.exp(), peer.weights_, rtol=1e-9)
    np.testing.assert_allclose(after.means, peer.means_, rtol=1e-9, atol=1e-12)
    fitted = after.cholesky_factors @ after.cholesky_factors.mT
    np.testing.assert_allclose(fitted, peer.covariances_, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_many_components_are_mapped_as_few_are(scale, rng):
    """Also points far out, whose probabilities have no float64."""
    many = random_mixture(40, 3, rng)
    x = torch.from_numpy(scale * rng.normal(size=(200, 3)))
    noise, ladj = many.call_and_ladj(x)
    expected, expected_ladj = many._map_points(x.T)
    assert torch.allclose(noise, expected.T, atol=1e-8, rtol=1e-8)
    assert torch.allclose(ladj, expected_ladj, atol=1e-7, rtol=1e-8)


def test_chunks_of_points_change_nothing(rng, monkeypatch):
    many = random_mixture(40, 3, rng)
    noise = torch.from_numpy(rng.normal(size=(50, 3)))
    whole = (many.inverse(noise), many.log_prob(noise))
    monkeypatch.setattr(mixture, "MAX_VALUES_PER_CHUNK", 40 * 3 * 7)
    assert torch.allclose(many.inverse(noise), whole[0], atol=1e-12)
    assert torch.allclose(many.log_prob(noise), whole[1], atol=1e-12)
    back, _ = many.call_and_ladj(whole[0])
    assert torch.allclose(back, noise, atol=1e-7)


def test_a_thin_spiral_has_many_components(rng):
    """A spiral is no mixture: with 24 components, straight pieces are seen."""
    x = spiral(6_000, rng)
    grown = _double_mixture(
        x, InitialMapSettings(n_components=24), Seed(0), FitProgress()
    )
    assert grown.settings.n_components in (48, 96)
    assert grown.grown_split is not None
    held_out = spiral(2_000, rng)
    scores = []
    for settings in (InitialMapSettings(n_components=24), grown.settings):
        fitted = fit_initial_map(x, settings, Seed(0))
        assert len(fitted.mixture.means) == settings.n_components
        scores.append(float(fitted.log_prob(held_out).mean()))
    assert scores[1] > scores[0] + 0.05


@pytest.mark.parametrize("n", [600, 4_000])
def test_mixtures_of_few_or_of_normal_rows_stay(n, rng):
    settings = InitialMapSettings(n_components=24)
    rows = torch.from_numpy(rng.normal(size=(n, 2)))
    grown = _double_mixture(rows, settings, Seed(0), FitProgress())
    assert grown.settings == settings
    assert grown.grown_split is None


@pytest.mark.parametrize(("n", "d"), [(2_600, 2), (10_000, 20)])
def test_rows_are_as_many_as_parameters_before_mixtures_grow(n, d, rng, monkeypatch):
    """48 components in 20 dimensions have 11,088 parameters."""
    monkeypatch.setattr(initial_map_search, "fit_ungrown_map", pytest.fail)
    settings = InitialMapSettings(n_components=24)
    rows = torch.from_numpy(rng.normal(size=(n, d)))
    assert _double_mixture(rows, settings, Seed(0), FitProgress()).settings == settings


def test_any_number_of_components_can_be_asked_for(rng):
    settings = InitialMapSettings(n_components=30, reg_covar=1e-3)
    fitted = fit_initial_map(spiral(300, rng), settings, Seed(0))
    assert len(fitted.mixture.means) == 30
