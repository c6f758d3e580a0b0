"""What distances see of y: scores of heavy tails, ridge regressions, and relevance."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sliceflow.engine.random import Seed
from sliceflow.neighbours import views
from sliceflow.neighbours.views import View, heavy_tail, moments, relevance, ridge


@pytest.mark.parametrize(
    ("column", "heavy"),
    [
        (np.arange(1000.0), False),
        (np.random.default_rng(0).normal(size=1000), False),
        (np.random.default_rng(0).exponential(size=1000), False),
        (np.random.default_rng(0).standard_cauchy(1000), True),
        (
            np.eye(1, 1000)[0] * 16,
            False,
        ),  # a pixel that is black in all pictures but one
        (
            np.r_[np.zeros(900), np.exp(3 * np.random.default_rng(0).normal(size=100))],
            True,
        ),
        (np.ones(50), False),
        (np.r_[np.full(99, 1e-310), 1e300], False),  # the ratio is no number
    ],
    ids=[
        "even",
        "normal",
        "exponential",
        "Cauchy",
        "rare",
        "zeros and heavy",
        "constant",
        "overflow",
    ],
)
def test_heavy_tails_are_those_of_many_median_distances(column, heavy):
    assert (heavy_tail(column) is not None) == heavy


def test_scores_of_a_heavy_tail_are_a_gaussians_and_keep_the_order():
    z = Seed(0).normal(2_000, 1)
    y = torch.cat((torch.exp(4 * z), z), 1)
    view = View.fit_to(y)
    seen = view(y)
    assert torch.equal(seen[:, 1], y[:, 1])
    inner = z[:, 0].abs() < 2
    assert float((seen[:, 0] - z[:, 0])[inner].abs().max()) < 0.15
    assert bool((seen[z[:, 0].argsort(), 0].diff() >= 0).all())
    beyond = view(torch.tensor([[-1.0, 0.0], [1e9, 0.0]], dtype=torch.float64))
    assert (beyond[0, 0], beyond[1, 0]) == (seen[:, 0].min(), seen[:, 0].max())


@pytest.mark.parametrize("n", [200, 2_000])
def test_a_ridge_regression_has_the_penalty_of_the_least_error_of_rows_left_out(
    n, monkeypatch
):
    monkeypatch.setattr(views, "_NUMBERS", 1_000)  # in several blocks
    y = Seed(0).normal(n, 6) + 100
    x = y.square().sum(1, keepdim=True).sqrt() + 5 * Seed(1).normal(n, 1)
    view = View.fit_to(y)
    wanted = moments(x)
    found = ridge(view, y, wanted)
    errors = []
    for penalty in views._PENALTIES * float((y - y.mean(0)).square().sum(0).mean()):
        model = Ridge(penalty).fit(y, wanted)
        centred = y - y.mean(0)
        hat = centred @ torch.linalg.solve(
            centred.T @ centred + penalty * torch.eye(6), centred.T
        )
        rest = (wanted - torch.from_numpy(model.predict(y))) / (
            1 - hat.diagonal() - 1 / n
        )[:, None]
        errors.append(
            (
                float(rest.square().mean()),
                float(np.abs(model.coef_.T - found.numpy()).max()),
            )
        )
    assert min(errors)[1] < 1e-8


def test_columns_that_do_not_matter_count_nothing():
    y = Seed(0).normal(1_000, 6)
    x = torch.cat(
        (y[:, :1] ** 2, y[:, 1:2] * Seed(1).normal(1_000, 1)), 1
    )  # a mean and a variance
    found = relevance(x, y) * y.std(0)
    assert bool((found[:2] > 0.8).all())
    assert bool((found[2:] < 0.1).all())
