"""Rows move along the regression of their mode; draws keep moments and follow neighbours."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.random import Seed
from sliceflow.neighbours.draws import (
    Adjusted,
    adjust,
    draw_near,
    noise_along,
    transport_map,
)
from sliceflow.neighbours.local import LocalRows
from sliceflow.neighbours.search import kernel_weights


def test_noise_has_the_covariance_of_the_points():
    points = Seed(0).normal(8, 3) * torch.tensor([1.0, 3.0, 0.1]) + 7
    noise = noise_along(points, Seed(1).normal(40_000, 8))
    wanted = torch.cov(points.T)
    assert noise.mean(0).abs().max() < 0.05 * wanted.diagonal().max().sqrt()
    assert (torch.cov(noise.T) - wanted).abs().max() < 0.05 * wanted.abs().max()


@given(st.integers(1, 5), st.integers(0, 99))
def test_the_map_takes_one_covariance_to_the_other_and_is_symmetric(d, seed):
    a, b = (Seed(seed).child(name).normal(d, d) for name in "ab")
    e = a @ a.T + 0.1 * torch.eye(d)
    c = b @ b.T
    found = transport_map(e, c)
    assert torch.allclose(found, found.T, atol=1e-8)
    assert torch.allclose(found @ e @ found.T, c, atol=1e-7 * float(c.abs().max()))
    assert torch.linalg.eigvalsh(found).min() > -1e-8  # it turns nothing round


@pytest.mark.parametrize("h", [0.3, 3.0])
def test_draws_keep_mean_and_covariance_within_components(h):
    near = LocalRows.fit_to(
        Seed(0).normal(400, 3), Seed(1).normal(400, 1), k=400
    ).adjusted([[0.0]])
    assert near.component.max() == 0
    weight = near.weight[0]
    x = near.x[0]
    mean = weight @ x
    covariance = (weight[:, None] * (x - mean)).T @ (x - mean) * near.inflation**2
    draws, around = draw_near(near, 40_000, h, Seed(2))
    assert float((draws[0].mean(0) - mean).abs().max()) < 0.03
    assert float((torch.cov(draws[0].T) - covariance).abs().max()) < 0.04
    counts = torch.bincount(around[0], minlength=400) / 40_000
    assert float((counts - weight).abs().max()) < 0.002


def test_a_draw_spreads_along_the_rows_of_its_component():
    """One component lies along the first axis, the other along the second."""
    line = torch.linspace(-1, 1, 50).double()
    none = torch.zeros(50).double()
    x = torch.cat((torch.stack((line, none), 1), torch.stack((5 + none, line), 1)))[
        None
    ]
    component = (torch.arange(100) >= 50).long()[None]
    weight = torch.full((1, 100), 0.01).double()
    one = torch.ones(1).double()
    near = Adjusted(x, weight, component, torch.arange(100)[None], one, torch.empty(0))
    draws, around = draw_near(near, 500, 1.0, Seed(0))
    first = around[0] < 50
    assert float(draws[0, first, 1].abs().max()) < 1e-9
    assert float((draws[0, ~first, 0] - 5).abs().max()) < 1e-9


def neighbourhood(x, y, y0=0.0, **more):
    order = (y[:, 0] - y0).abs().argsort()
    x = x[order][None]
    offset = (y[order] - y0)[None]
    weight, radius = kernel_weights(offset.abs()[..., 0])
    return adjust(
        x, offset / radius[..., None], weight, order[None], more.pop("most", 4), **more
    )


def test_a_linear_regression_is_taken_out():
    y = Seed(0).normal(500, 1)
    rest = 0.1 * Seed(1).normal(500, 2)
    slopes = torch.tensor([[2.0, -1.0]]).double()
    found = neighbourhood(y @ slopes + rest, y)
    assert found.component.max() == 0
    assert torch.allclose(found.x[0], rest[found.rows[0]], atol=0.05)


def test_each_mode_moves_by_itself():
    """x = ±y: the slopes are 1 and −1. One regression would have slope 0."""
    y = Seed(0).uniform(800, 1) + 1
    sign = torch.sign(Seed(1).normal(800, 1))
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
