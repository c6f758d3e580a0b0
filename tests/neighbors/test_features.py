"""What distances see of y: scores of heavy tails, ridge regressions, and relevance."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sliceflow.engine.random import Seed
from sliceflow.neighbors import features
from sliceflow.neighbors.features import (
    FeatureMap,
    fit_ridge,
    heavy_tail,
    relevance,
    standardized_moments,
)

RNG = np.random.default_rng
COLUMNS = {
    "even": (np.arange(1000.0), False),
    "normal": (RNG(0).normal(size=1000), False),
    "exponential": (RNG(0).exponential(size=1000), False),
    "Cauchy": (RNG(0).standard_cauchy(1000), True),
    # A pixel that is black in all pictures but one.
    "rare": (np.eye(1, 1000)[0] * 16, False),
    "zeros and heavy": (
        np.r_[np.zeros(900), np.exp(3 * RNG(0).normal(size=100))],
        True,
    ),
    "constant": (np.ones(50), False),
    # The ratio is no number.
    "overflow": (np.r_[np.full(99, 1e-310), 1e300], False),
}


@pytest.mark.parametrize(("column", "heavy"), COLUMNS.values(), ids=COLUMNS)
def test_heavy_tails_are_those_of_many_median_distances(column, heavy):
    assert (heavy_tail(column) is not None) == heavy


def test_scores_of_a_heavy_tail_are_a_gaussians_and_keep_the_order():
    z = Seed(0).normal(2_000, 1)
    y = torch.cat((torch.exp(4 * z), z), 1)
    feature_map = FeatureMap.from_data(y)
    found = feature_map(y)
    assert torch.equal(found[:, 1], y[:, 1])
    scores = found[:, 0]
    inner = z[:, 0].abs() < 2
    assert float((scores - z[:, 0])[inner].abs().max()) < 0.15
    assert bool((scores[z[:, 0].argsort()].diff() >= 0).all())
    beyond = feature_map(torch.tensor([[-1.0, 0.0], [1e9, 0.0]], dtype=torch.float64))
    assert beyond[0, 0] == scores.min()
    assert beyond[1, 0] == scores.max()


@pytest.mark.parametrize("n", [200, 2_000])
def test_a_ridge_regression_has_the_penalty_of_the_least_error_of_rows_left_out(
    n, monkeypatch
):
    monkeypatch.setattr(features, "_MAX_VALUES", 1_000)  # in several blocks
    y = Seed(0).normal(n, 6) + 100
    x = y.square().sum(1, keepdim=True).sqrt() + 5 * Seed(1).normal(n, 1)
    targets = standardized_moments(x)
    found = fit_ridge(FeatureMap.from_data(y), y, targets)
    centered = y - y.mean(0)
    errors = []
    differences = []
    for penalty in features._PENALTIES * float(centered.square().sum(0).mean()):
        model = Ridge(penalty).fit(y, targets)
        gram = centered.T @ centered + penalty * torch.eye(6)
        hat = centered @ torch.linalg.solve(gram, centered.T)
        residuals = targets - torch.from_numpy(model.predict(y))
        left_out = residuals / (1 - hat.diagonal() - 1 / n)[:, None]
        errors.append(float(left_out.square().mean()))
        differences.append(float(np.abs(model.coef_.T - found.numpy()).max()))
    assert differences[int(np.argmin(errors))] < 1e-8


def test_columns_that_do_not_matter_count_nothing():
    y = Seed(0).normal(1_000, 6)
    mean = y[:, :1] ** 2
    with_variance = y[:, 1:2] * Seed(1).normal(1_000, 1)
    x = torch.cat((mean, with_variance), 1)
    found = relevance(x, y) * y.std(0)
    assert bool((found[:2] > 0.8).all())
    assert bool((found[2:] < 0.1).all())
