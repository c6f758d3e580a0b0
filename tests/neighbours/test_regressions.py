"""Rows move along the regression of their mode, and BIC counts the modes."""

import math

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbours.regressions import adjust
from sliceflow.neighbours.search import kernel_weights


def neighbourhood(x, y, y0=0.0, **more):
    order = (y[:, 0] - y0).abs().argsort()
    x, offset = x[order][None], (y[order] - y0)[None]
    weight, radius = kernel_weights(offset.abs()[..., 0])
    return adjust(x, offset / radius[..., None], weight, order[None], more.pop("most", 4), **more)


def test_a_linear_regression_is_taken_out():
    y = Seed(0).normal(500, 1)
    rest = 0.1 * Seed(1).normal(500, 2)
    slopes = torch.tensor([[2.0, -1.0]]).double()
    found = neighbourhood(y @ slopes + rest, y)
    assert found.component.max() == 0
    assert torch.allclose(found.x[0], rest[found.rows[0]], atol=0.05)


def test_each_mode_moves_by_itself():
    """x = ±y: the slopes are 1 and −1. One regression would have slope 0."""
    y, sign = Seed(0).uniform(800, 1) + 1, torch.sign(Seed(1).normal(800, 1))
    x = sign * y + 0.01 * Seed(2).normal(800, 1)
    found = neighbourhood(x, y, 1.5)
    assert found.component.max() == 1
    assert float((found.x.abs() - 1.5).abs().max()) < 0.06
    assert float((neighbourhood(x, y, 1.5, most=1).x.abs() - 1.5).abs().max()) > 0.3


def test_the_density_at_a_point_is_the_gaussians():
    y = Seed(0).normal(4_000, 1)
    x = 3 * y + 0.5 * Seed(1).normal(4_000, 1)
    found = neighbourhood(x, y, 1.0, at=torch.tensor([[3.5]]).double())
    wanted = -0.5 - math.log(0.5 * math.sqrt(2 * math.pi))
    assert float(found.log_density) == pytest.approx(wanted, abs=0.1)


def test_equal_rows_do_not_fail():
    x, offset = torch.ones(1, 30, 2).double(), torch.zeros(1, 30, 1).double()
    found = adjust(x, offset, torch.full((1, 30), 1 / 30).double(), torch.arange(30)[None], 4)
    assert torch.equal(found.x, x)
