"""Regressions of rows on conditions: against closed forms of Gaussians."""

import warnings
from copy import deepcopy
from dataclasses import asdict, replace

import numpy as np
import pytest

from sliceflow import SlicedDensity, load
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning
from sliceflow.estimators.density.bases import SmoothBasis
from sliceflow.estimators.density.column_regression import ColumnRegression, Design
from sliceflow.estimators.density.progress import FitProgress
from sliceflow.estimators.density.regression import fit_triangular_regression
from sliceflow.estimators.density.ridge import evidence_ridge
from sliceflow.estimators.density.trials import MAX_CROSS_VALIDATED

LOG_TWO_PI = np.log(2 * np.pi)


def correlated(n, rng):
    """Two columns given one y: mean, scale and correlation depend on it.

    Returns rows, conditions and the log-densities log p(x | y).
    """
    y = rng.uniform(-2, 2, (n, 1))
    noise = rng.normal(size=(n, 2))
    log_scale = 0.5 * y[:, 0]
    correlation = np.tanh(y[:, 0])
    rest = np.sqrt(1 - correlation**2)
    first = np.sin(2 * y[:, 0]) + np.exp(log_scale) * noise[:, 0]
    second = correlation * noise[:, 0] + rest * noise[:, 1]
    log_prob = -0.5 * (noise**2).sum(1) - LOG_TWO_PI - log_scale - np.log(rest)
    return np.stack((first, second), 1), y, log_prob


def mean_log_prob(regression, x, y):
    residuals, ladj = regression.call_and_ladj(x, regression.map_given(y))
    return float((ladj - 0.5 * (residuals**2).sum(1) - LOG_TWO_PI).mean())


def test_means_scales_and_correlations_are_found(rng):
    """Some 30 coefficients cost 30/(2·3000) = .005 nats, and approximations as much."""
    x, y, _ = correlated(3_000, rng)
    regression = fit_triangular_regression(x, y, Seed(0), FitProgress())
    held_out, conditions, true = correlated(3_000, rng)
    found = mean_log_prob(regression, held_out, conditions)
    assert found == pytest.approx(true.mean(), abs=0.04)
    residuals, _ = regression.call_and_ladj(held_out, regression.map_given(conditions))
    assert np.cov(residuals.T) == pytest.approx(np.eye(2), abs=0.12)


def test_a_regression_is_fitted_from_another_which_stays_as_it_is(rng):
    """Lines of 500 rows have slopes with an error of .045: .3 is nearly 7 of them."""
    y = rng.normal(size=(500, 1))
    x = 2 * y[:, 0] + rng.normal(size=500)
    features = np.column_stack((np.ones(500), y))
    earlier_residuals = rng.normal(size=(500, 1))
    design = Design(features, earlier_residuals, x)
    constant = ColumnRegression.without_y(design, groups=np.array([-1, 0]))
    line = replace(constant, mean=constant.mean.with_features(np.array([True, True])))
    before = deepcopy(line)
    fitted = line.with_constant_slopes().fitted_to(
        design, ["log_residual_scale", "log_scale"]
    )
    np.testing.assert_equal(asdict(line), asdict(before))
    assert fitted.log_likelihood(design) > line.log_likelihood(design) + 0.5
    assert fitted.mean.coefficients[1] == pytest.approx(2, abs=0.3)


def test_lines_with_constant_noise_are_the_least_squares(rng):
    """Nothing bends by chance: coefficients are those of the straight regression."""
    y = rng.normal(size=(1_000, 3))
    slopes = np.array([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]])
    x = y @ slopes + rng.normal(size=(1_000, 2))
    regression = fit_triangular_regression(x, y, Seed(0), FitProgress())
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    center = regression.inverse(np.zeros((4, 2)), regression.map_given(places))
    design = np.column_stack((np.ones(1_000), y))
    least_squares = np.linalg.lstsq(design, x, rcond=None)[0]
    assert center[0] == pytest.approx(least_squares[0], abs=0.15)
    assert center[1:] - center[0] == pytest.approx(least_squares[1:], abs=0.15)


def test_residuals_go_back_to_rows(rng):
    x, y, _ = correlated(300, rng)
    x[:, 0] = np.exp(x[:, 0])  # a positive column, which is taken as logarithms
    regression = fit_triangular_regression(x, y, Seed(0), FitProgress())
    assert regression.is_logged.tolist() == [True, False]
    map_given_y = regression.map_given(y)
    residuals, _ = regression.call_and_ladj(x, map_given_y)
    assert regression.inverse(residuals, map_given_y) == pytest.approx(x, rel=1e-9)


def test_conditions_that_explain_nothing_are_left_out(rng):
    """With a score of 4, a chance group enters in a few per cent of fits."""
    x = rng.normal(size=(1_000, 2))
    y = rng.normal(size=(1_000, 2))
    regression = fit_triangular_regression(x, y, Seed(0), FitProgress())
    assert mean_log_prob(regression, x, y) < -LOG_TWO_PI - 1 + 0.2
    assert regression.mean.shape[0] < 20


def test_constant_conditions_and_few_values_are_allowed(rng):
    """A column of y with two values has straight lines, but no splines."""
    y = np.column_stack((np.full(200, 3.0), np.arange(200) % 2))
    basis = SmoothBasis.from_data(y, Seed(0))
    features = basis.features(y)
    groups = basis.group_of_each_feature()
    stages = basis.stage_of_each_group()
    assert features.shape == (200, len(groups))
    assert len(stages) == int(groups.max()) + 1
    x = y[:, 1:] + rng.normal(size=(200, 1))
    regression = fit_triangular_regression(x, y, Seed(0), FitProgress())
    assert np.isfinite(mean_log_prob(regression, x, y))


def test_splines_are_uncorrelated_and_constant_outside(rng):
    y = rng.uniform(-1, 1, (500, 1))
    basis = SmoothBasis.from_data(y, Seed(0))
    features = basis.features(y)[:, 1:]
    gram = features.T @ features / len(y)
    assert gram == pytest.approx(np.eye(len(gram)), abs=1e-6)
    outside = basis.features(np.array([[5.0], [9.0]]))
    assert outside[0, 2:] == pytest.approx(outside[1, 2:])


def test_penalties_follow_what_groups_explain(rng):
    """The mean of γ/|β|² for coefficients of N(0, 1) is about 1, and huge for 0."""
    design = rng.normal(size=(2_000, 40))
    coefficients = np.concatenate((rng.normal(size=20), np.zeros(20)))
    groups = np.repeat([0, 1], 20)
    z = design @ coefficients + rng.normal(size=2_000)
    penalties = np.ones(2)
    for _ in range(5):
        found, penalties = evidence_ridge(
            design.T @ design, design.T @ z, groups, penalties
        )
    assert 0.3 < penalties[0] < 5
    assert penalties[1] > 100
    assert found == pytest.approx(coefficients, abs=0.15)


@pytest.fixture(scope="module")
def density():
    x, y, _ = correlated(1_000, np.random.default_rng(0))
    return SlicedDensity(random_state=0).fit(x, y)


def test_a_density_given_a_continuous_y_integrates_to_1(density):
    places = np.linspace(-9, 9, 181)
    grid = np.stack(np.meshgrid(places, places), -1).reshape(-1, 2)
    total = np.exp(density.score_samples(grid, [1.0])).sum() * 0.1**2
    assert total == pytest.approx(1, abs=1e-3)


def test_a_density_given_a_continuous_y_is_the_closed_form(density, rng):
    x, y, true = correlated(2_000, rng)
    assert density.score(x, y) == pytest.approx(true.mean(), abs=0.1)
    z = density.transform(x, y)
    assert density.inverse_transform(z, y) == pytest.approx(x, abs=1e-6)
    assert "regression on y" in str(density.plan_)


def test_samples_given_a_continuous_y_have_their_moments(density):
    """1,000 samples: errors of means are 1/√1000, those of scales less."""
    samples, y = density.sample(1_000, y=[1.0], random_state=0, return_y=True)
    assert y.shape == (1_000, 1)
    assert samples[:, 0].mean() == pytest.approx(np.sin(2), abs=0.4)
    assert samples[:, 0].std() == pytest.approx(np.exp(0.5), rel=0.2)
    assert np.corrcoef(samples.T)[0, 1] == pytest.approx(np.tanh(1), abs=0.12)


def test_samples_come_with_the_very_y_that_was_asked_for(density, rng):
    y = 3.3 * rng.normal(size=(20, 1))  # to standardize them and back rounds
    assert (density.sample(y=y, return_y=True)[1] == y).all()
    for one in y[:3]:
        assert (density.sample(2, y=one, return_y=True)[1] == one).all()


def test_a_density_given_a_continuous_y_is_saved(density, tmp_path):
    density.save(tmp_path / "density")
    loaded = load(tmp_path / "density")
    x = np.zeros((3, 2))
    y = np.array([[0.0], [1.0], [2.0]])
    assert (loaded.score_samples(x, y) == density.score_samples(x, y)).all()


def test_a_density_given_a_continuous_y_has_nothing_to_tune(rng):
    """Its trials need the residuals, so they are a part of the fit."""
    x, y, _ = correlated(100, rng)
    planned_fit = SlicedDensity(random_state=0).prepare(x, y).planned_fit
    heard = []
    assert planned_fit.tune([heard.append]) is planned_fit
    assert not heard


def test_what_is_left_over_has_a_flow(rng):
    """Noise of two narrow peaks: N(0, 1) loses 0.6 nats or so, the flow less.

    Of more than `MAX_CROSS_VALIDATED` rows one split chooses, which is five times
    cheaper.
    """
    n = MAX_CROSS_VALIDATED + 1
    y = rng.normal(size=(n, 1))
    peaks = rng.choice([-1.0, 1.0], n) + 0.2 * rng.normal(size=n)
    fitted = SlicedDensity(random_state=0).fit((y[:, 0] + peaks)[:, None], y)
    at_peak, between = fitted.score_samples([[1.0], [0.0]], [[0.0], [0.0]])
    assert at_peak - between > 2


@pytest.mark.parametrize("dtype", [int, float, object])
def test_a_column_of_numbers_is_continuous_whatever_its_type(rng, dtype):
    y = np.arange(200)[:, None] % 3
    plan = SlicedDensity().plan(y + rng.normal(size=(200, 1)), y.astype(dtype))
    assert plan.condition_dim == 1


def test_missing_and_few_conditions_are_named(density, rng):
    with pytest.raises(DataError, match="y is missing; pass the conditions"):
        density.score_samples(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="continuous columns"):
        density.score_samples(np.zeros((2, 2)), [[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(DataError, match="there are 20 rows with a continuous y"):
        SlicedDensity().fit(rng.normal(size=(20, 2)), rng.normal(size=(20, 1)))


def test_parameters_that_a_regression_ignores_are_named(rng):
    x, y, _ = correlated(200, rng)
    with pytest.warns(DataWarning, match="n_steps, penalty of a flow .* do nothing"):
        SlicedDensity(n_steps=3, penalty=30.0, random_state=0).plan(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SlicedDensity(random_state=0).plan(x, y)
