"""What neighbourhoods see of y: scores of heavy tails, and summaries where they predict better."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import sliceflow
from sliceflow import SlicedWassersteinFlow
from sliceflow.engine.neighbourhoods import Neighbourhoods
from sliceflow.engine.random import Seed
from sliceflow.engine.views import View, predictions, targets


def norms(n, seed=0):
    """x is the length of y in six columns: no column says much alone, and not linearly."""
    y = Seed(seed).normal(n, 6)
    return y.square().sum(1, keepdim=True).sqrt() + 0.1 * Seed(seed + 1).normal(n, 1), y


def test_columns_without_heavy_tails_are_seen_as_they_are():
    y = torch.cat((Seed(0).normal(300, 2), Seed(1).uniform(300, 2).round()), 1)
    assert View.of(y)(y) is y


def test_scores_of_a_heavy_tail_are_a_gaussians_and_keep_the_order():
    z = Seed(0).normal(2_000, 1)
    y = torch.cat((torch.exp(4 * z), z), 1)
    seen = View.of(y)(y)
    assert torch.equal(seen[:, 1], y[:, 1])
    inner = z[:, 0].abs() < 2
    assert float((seen[:, 0] - z[:, 0])[inner].abs().max()) < 0.15
    assert bool((seen[z[:, 0].argsort(), 0].diff() >= 0).all())
    beyond = View.of(y)(torch.tensor([[-1.0, 0.0], [1e9, 0.0]], dtype=torch.float64))
    assert beyond[0, 0] == seen[:, 0].min()
    assert beyond[1, 0] == seen[:, 0].max()


def test_a_column_of_zeros_and_a_few_huge_values_has_scores():
    y = torch.zeros(500, 1, dtype=torch.float64)
    y[:20, 0] = torch.logspace(0, 6, 20, dtype=torch.float64)
    seen = View.of(y)(y)
    assert bool(torch.isfinite(seen).all())
    assert len(torch.unique(seen[20:])) == 1
    assert bool((seen[:20] >= seen[20]).all())


def test_heavy_tails_do_not_hide_the_rest():
    """x is log y plus noise: rows near y₀ in standard deviations of y would be nearly all rows."""
    z = Seed(0).normal(2_000, 1)
    near = Neighbourhoods.of(z + 0.1 * Seed(1).normal(2_000, 1), torch.exp(4 * z))
    made = near.sample(torch.exp(torch.tensor([[-4.0], [0.0], [4.0]])), 1_000, Seed(0))[..., 0]
    assert np.abs(made.mean(1).numpy() - [-1, 0, 1]).max() < 0.05
    assert np.abs(made.std(1).numpy() - 0.1).max() < 0.04


@pytest.mark.parametrize("n", [200, 2_000])
def test_predictions_are_a_ridge_regression(n):
    x, y = norms(n)
    found = predictions(x, y)
    wanted = targets(x)
    errors = []
    for penalty in np.geomspace(1e-6, 1e3, 19) * float((y - y.mean(0)).square().sum(0).mean()):
        ridge = Ridge(penalty).fit(y, wanted)
        errors.append((np.abs(ridge.coef_.T - found.numpy()).max(), penalty))
    assert min(errors)[0] < 1e-8


def test_a_summary_is_used_where_held_out_rows_are_more_likely_with_it():
    x, y = norms(1_000)
    near = Neighbourhoods.of(x, y)
    assert near.view.n_features == 250
    _, y0 = norms(100, seed=7)
    made = near.sample(y0, 50, Seed(0))[..., 0]
    columns = Neighbourhoods.of(x, y, k=near.k).sample(y0, 50, Seed(0))[..., 0]
    length = y0.square().sum(1).sqrt()
    ours, theirs = (float((a.mean(1) - length).square().mean().sqrt()) for a in (made, columns))
    assert ours < 0.8 * theirs


def test_columns_are_kept_where_they_are_better():
    y = Seed(0).normal(1_000, 5)
    assert Neighbourhoods.of(y[:, :2] + 0.3 * Seed(1).normal(1_000, 2), y).view.n_features == 0


def test_a_saved_model_with_a_summary_has_the_same_bits(tmp_path):
    x, y = (a.numpy() for a in norms(600))
    labels = np.repeat(["a", "b"], 300)
    mixed = np.concatenate((labels[:, None], y), 1, dtype=object)
    for i, given in enumerate((y, mixed)):
        flow = SlicedWassersteinFlow(random_state=0).fit(x, given)
        flow.save(tmp_path / f"{i}")
        again = sliceflow.load(tmp_path / f"{i}")
        at = given[[0, 400]]
        first, second = (f.sample(y=at, random_state=1) for f in (flow, again))
        np.testing.assert_array_equal(first, second)
        assert all(near.view.n_features for near in again._fitted.local.near) == (i == 0)
