"""Rows move along the regression of their mode."""

import math

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbors.regressions import MAX_COMPONENTS, adjust_by_regression
from sliceflow.neighbors.weights import kernel_weights


def neighborhood(x, y, y0=0.0, max_components=MAX_COMPONENTS, density_at=None):
    """All rows x as neighbors of y0, moved there."""
    order = (y[:, 0] - y0).abs().argsort()
    offsets = (y[order] - y0)[None]
    weights, radius = kernel_weights(offsets.abs()[..., 0])
    return adjust_by_regression(
        x[order][None],
        offsets / radius[..., None],
        weights,
        order[None],
        max_components,
        density_at,
    )


def test_a_linear_regression_is_taken_out():
    y = Seed(0).normal(500, 1)
    noise = 0.1 * Seed(1).normal(500, 2)
    slopes = torch.tensor([[2.0, -1.0]]).double()
    found = neighborhood(y @ slopes + noise, y)
    assert found.components.max() == 0
    assert torch.allclose(found.x[0], noise[found.row_indices[0]], atol=0.05)


def test_each_mode_moves_by_itself():
    """x = ±y: the slopes are 1 and −1. One regression would have slope 0."""
    y = Seed(0).uniform(800, 1) + 1
    sign = torch.sign(Seed(1).normal(800, 1))
    x = sign * y + 0.01 * Seed(2).normal(800, 1)
    found = neighborhood(x, y, 1.5)
    assert found.components.max() == 1
    assert float((found.x.abs() - 1.5).abs().max()) < 0.06
    by_one = neighborhood(x, y, 1.5, max_components=1)
    assert float((by_one.x.abs() - 1.5).abs().max()) > 0.3


def test_the_density_at_a_point_is_the_gaussians():
    y = Seed(0).normal(4_000, 1)
    x = 3 * y + 0.5 * Seed(1).normal(4_000, 1)
    point = torch.tensor([[3.5]]).double()
    found = neighborhood(x, y, 1.0, density_at=point)
    wanted = -0.5 - math.log(0.5 * math.sqrt(2 * math.pi))
    assert float(found.log_density) == pytest.approx(wanted, abs=0.1)
