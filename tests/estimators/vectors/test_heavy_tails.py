"""Columns with heavy tails: samples have their quantiles, dependence and extremes."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from sliceflow import SlicedWassersteinFlow, load
from sliceflow.estimators.vectors.scaling import ColumnScaler

HEAVY = {
    "normal": lambda rng: rng.normal(size=2000),
    "lognormal 1": lambda rng: np.exp(rng.normal(size=2000)),
    "lognormal 2": lambda rng: np.exp(2 * rng.normal(size=2000)),
    "Student t2": lambda rng: rng.standard_t(2, 2000),
    "Cauchy": lambda rng: rng.standard_cauchy(2000),
}


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = np.stack([draw(rng) for draw in HEAVY.values()], axis=1)
    flow = SlicedWassersteinFlow(random_state=0).fit(X)
    return X, flow, flow.sample(100_000, random_state=1)


@pytest.mark.parametrize("column", range(len(HEAVY)), ids=list(HEAVY))
def test_offline_quantiles_and_extremes_are_those_of_the_data(fitted, column):
    X, _, samples = fitted
    levels = [0.01, 0.25, 0.5, 0.75, 0.99]
    theirs = np.quantile(X[:, column], levels)
    ours = np.quantile(samples[:, column], levels)
    spread = theirs[3] - theirs[1]
    assert np.abs(ours - theirs)[1:4].max() < 0.05 * spread
    assert np.abs(ours / theirs - 1)[[0, 4]].max() < 0.15  # Cauchy's own error is 0.2
    assert samples[:, column].min() == pytest.approx(X[:, column].min(), rel=1e-9)
    assert samples[:, column].max() == pytest.approx(X[:, column].max(), rel=1e-9)
    assert samples[:, column].std() / X[:, column].std() == pytest.approx(1, abs=0.2)


def test_two_heavy_columns_keep_their_dependence(rng):
    a = rng.normal(size=1000)
    b = 0.9 * a + np.sqrt(1 - 0.81) * rng.normal(size=1000)
    X = np.exp(2 * np.stack((a, b), axis=1))
    flow = SlicedWassersteinFlow(n_steps=100, random_state=0).fit(X)
    wanted = spearmanr(X).statistic
    assert spearmanr(flow.particles_).statistic == pytest.approx(wanted, abs=0.02)
    assert spearmanr(flow.sample(5000, random_state=1)).statistic == pytest.approx(
        wanted, abs=0.02
    )


def test_units_of_heavy_columns_are_saved(fitted, tmp_path):
    _, flow, _ = fitted
    assert flow._record.model.scaler.is_heavy_tailed.tolist() == [
        False,
        True,
        True,
        True,
        True,
    ]
    flow.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(
        again.sample(50, random_state=0), flow.sample(50, random_state=0)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_go_there_and_back(dtype, rng):
    X = np.stack(
        (rng.standard_cauchy(500), rng.normal(5, 2, 500), np.full(500, 7.0)), axis=1
    )
    X = X.astype(dtype)
    scaler = ColumnScaler.from_data(X, standardize=True)
    back = scaler.inverse_transform(scaler.transform(X))
    assert back.dtype == scaler.transform(X).dtype
    np.testing.assert_allclose(
        back.numpy(), X, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-6
    )
