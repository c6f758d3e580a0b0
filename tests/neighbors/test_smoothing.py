"""Smoothing along neighbors: moments and classes stay, draws are as far as rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow import metrics
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY
from sliceflow.engine.random import Seed
from sliceflow.neighbors import smoothing
from sliceflow.neighbors.smoothing import (
    choose_smoothing_bandwidth,
    find_class_neighbors,
)


@pytest.mark.parametrize("h", [0.3, 1.0, 2.0])
def test_draws_keep_mean_and_covariance(h, rng):
    x = torch.from_numpy(rng.normal(3, 2, size=(300, 4)) @ rng.normal(size=(4, 4)))
    (group,) = find_class_neighbors(x, None, 20)
    draws = group.draw(h, 50, Seed(0)).flatten(0, 1)
    assert torch.allclose(draws.mean(0), x.mean(0))
    assert torch.allclose(
        torch.cov(draws.T, correction=0), torch.cov(x.T, correction=0)
    )
    assert not torch.allclose(draws, x.repeat_interleave(50, 0), atol=0.1)
    rows = group.draw(0.0, 3, Seed(0)).flatten(0, 1)
    assert torch.allclose(rows, x.repeat_interleave(3, 0))


def test_draws_of_many_columns_keep_the_variances():
    x = Seed(0).normal(30, 300) * torch.linspace(0.1, 9, 300)
    (group,) = find_class_neighbors(x, None, 10)
    draws = group.draw(1.0, 5, Seed(0)).flatten(0, 1)
    assert torch.allclose(draws.var(0, correction=0), group.x.var(0, correction=0))


def test_draws_follow_a_curve():
    """Along a circle the draws stay near it: neighbors spread along, hardly across."""
    angle = torch.linspace(0, 6.283, 200, dtype=torch.float64)
    (group,) = find_class_neighbors(
        torch.stack((angle.cos(), angle.sin()), 1), None, 10
    )
    draws = group.draw(1.0, 20, Seed(0)).flatten(0, 1)
    assert float((draws.norm(dim=1) - 1).abs().quantile(0.99)) < 0.05
    assert float(torch.cdist(draws, group.x).amin(1).median()) > 0.005


@given(st.integers(1, 30), st.integers(2, 12), st.integers(1, 3))
def test_neighbors_are_of_the_same_class_and_the_nearest(n, k, n_classes):
    rng = np.random.default_rng(n + 100 * k)
    x = torch.from_numpy(rng.normal(size=(n, 2)))
    classes = torch.from_numpy(rng.integers(n_classes, size=n))
    groups = find_class_neighbors(x, ClassIndices(classes), k)
    indices = torch.cat([group.indices for group in groups])
    assert indices.sort().values.tolist() == list(range(n))
    for group in groups:
        assert classes[group.indices].unique().numel() == 1
        distances = torch.cdist(group.x, group.x)
        found = distances.gather(1, group.neighbors).sort(1).values
        nearest = distances.sort(1).values[:, : min(k, len(group.x))]
        assert torch.allclose(found, nearest, atol=1e-7)


def test_neighbors_have_like_conditions_and_parts_in_memory_change_no_bit(monkeypatch):
    x = Seed(0).normal(60, 2)
    y = 100.0 * (torch.arange(60)[:, None] % 2)
    (group,) = find_class_neighbors(x, ContinuousY(y), 10)
    assert (y[group.neighbors] == y[:, None]).all()
    whole = group.draw(1.0, 3, Seed(0))
    monkeypatch.setattr(smoothing, "_MAX_VALUES", 100)
    assert torch.allclose(group.draw(1.0, 3, Seed(0)), whole, atol=1e-12)


VALUES = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, -3.5, 1e6, 1e-9])


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40), st.integers(0, 3))
def test_odd_rows_have_a_strength_and_finite_draws(pairs, n_classes):
    """Duplicates, constant columns, fewer rows than neighbors, classes of one row."""
    x = torch.tensor(pairs, dtype=torch.float64)
    y = None
    if n_classes:
        y = ClassIndices(torch.arange(len(x)).clamp(max=n_classes))
    groups = find_class_neighbors(x, y, 20)
    h = choose_smoothing_bandwidth(groups)
    assert 0 <= h <= 2
    for group in groups:
        draws = group.draw(h or 1.0, 4, Seed(0))
        assert draws.isfinite().all()
        same = (group.x == group.x[0]).all(0)
        assert (draws[..., same] == group.x[0, same]).all()


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize(("n", "d"), [(200, 2), (500, 5), (4000, 2)])
def test_the_chosen_draws_are_as_far_from_rows_as_rows_are_from_each_other(
    n, d, labels
):
    x = torch.from_numpy(np.random.default_rng(n).normal(size=(n, d)))
    y = ClassIndices(torch.arange(n) % 3) if labels else None
    groups = find_class_neighbors(x, y, 20)
    h = choose_smoothing_bandwidth(groups)
    ratios = []
    for group in groups:
        draws = group.draw(h, max(1, 12_000 // n), Seed(1)).flatten(0, 1).numpy()
        ratios.append(metrics.nn_ratio(draws, group.x.numpy(), device="cpu"))
    assert np.mean(ratios) == pytest.approx(0.97, rel=0.06)
