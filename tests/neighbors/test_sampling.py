"""Draws keep moments and follow neighbors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.random import Seed
from sliceflow.neighbors.local import fit_local_sampler
from sliceflow.neighbors.regressions import Neighborhoods
from sliceflow.neighbors.sampling import (
    bures_wasserstein_map,
    local_noise,
    sample_neighborhoods,
)


def test_noise_has_the_covariance_of_the_points():
    points = Seed(0).normal(8, 3) * torch.tensor([1.0, 3.0, 0.1]) + 7
    noise = local_noise(points, Seed(1).normal(40_000, 8))
    wanted = torch.cov(points.T)
    assert noise.mean(0).abs().max() < 0.05 * wanted.diagonal().max().sqrt()
    assert (torch.cov(noise.T) - wanted).abs().max() < 0.05 * wanted.abs().max()


@given(st.integers(1, 5), st.integers(0, 99))
def test_the_map_takes_one_covariance_to_the_other_and_is_symmetric(d, seed):
    a = Seed(seed).child("a").normal(d, d)
    b = Seed(seed).child("b").normal(d, d)
    source = a @ a.T + 0.1 * torch.eye(d)
    target = b @ b.T
    found = bures_wasserstein_map(source, target)
    assert torch.allclose(found, found.T, atol=1e-8)
    reached = found @ source @ found.T
    assert torch.allclose(reached, target, atol=1e-7 * float(target.abs().max()))
    assert torch.linalg.eigvalsh(found).min() > -1e-8  # it turns nothing round


@pytest.mark.parametrize("h", [0.3, 3.0])
def test_draws_keep_mean_and_covariance_within_components(h):
    sampler = fit_local_sampler(
        Seed(0).normal(400, 3), Seed(1).normal(400, 1), n_neighbors=400
    )
    near = sampler.neighborhoods(torch.zeros(1, 1).double())
    assert near.components.max() == 0
    weights = near.weights[0]
    x = near.x[0]
    mean = weights @ x
    covariance = (
        (weights[:, None] * (x - mean)).T @ (x - mean) * near.noise_inflation**2
    )
    draws, chosen = sample_neighborhoods(near, 40_000, h, Seed(2))
    assert float((draws[0].mean(0) - mean).abs().max()) < 0.03
    assert float((torch.cov(draws[0].T) - covariance).abs().max()) < 0.04
    shares = torch.bincount(chosen[0], minlength=400) / 40_000
    assert float((shares - weights).abs().max()) < 0.002


def test_a_draw_spreads_along_the_rows_of_its_component():
    """One component lies along the first axis, the other along the second."""
    line = torch.linspace(-1, 1, 50).double()
    zeros = torch.zeros(50).double()
    horizontal = torch.stack((line, zeros), 1)
    vertical = torch.stack((5 + zeros, line), 1)
    near = Neighborhoods(
        x=torch.cat((horizontal, vertical))[None],
        weights=torch.full((1, 100), 0.01).double(),
        components=(torch.arange(100) >= 50).long()[None],
        row_indices=torch.arange(100)[None],
        noise_inflation=torch.ones(1).double(),
        log_density=torch.empty(0),
    )
    draws, chosen = sample_neighborhoods(near, 500, 1.0, Seed(0))
    first = chosen[0] < 50
    assert float(draws[0, first, 1].abs().max()) < 1e-9
    assert float((draws[0, ~first, 0] - 5).abs().max()) < 1e-9
