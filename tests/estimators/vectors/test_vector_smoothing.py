"""Smoothing of vectors: small data are not copied, atoms and columns stay exact."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

from sliceflow import SlicedWassersteinFlow, VectorOptions, metrics
from sliceflow.base.ranks import Shard
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.smoother import (
    Smoother,
    are_atoms,
    spread_evenly,
)
from sliceflow.neighbors.smoothing import (
    choose_smoothing_bandwidth,
    find_class_neighbors,
)

RNG = np.random.default_rng(0)


def moons(n, noise=0.1, seed=0):
    return make_moons(n, noise=noise, random_state=seed)


def smooth_rows(x, y=None, h=0.8, times=50, heavy_tailed=()):
    """The draws of rows for the flow, and for its axis steps."""
    is_heavy_tailed = torch.isin(torch.arange(x.shape[1]), torch.tensor(heavy_tailed))
    smoother = Smoother(h, x, find_class_neighbors(x, y, 20))
    for_flow = smoother.draw_for_flow(times, Seed(0))
    return for_flow, smoother.draw_for_axes(times, Seed(0), is_heavy_tailed)


def smoothed(h="auto", m=None, n_steps=60, k=20, **more):
    options = VectorOptions(smoothing=h, n_neighbors=k)
    return SlicedWassersteinFlow(
        n_particles=m,
        n_steps=n_steps,
        options=options,
        random_state=0,
        device="cpu",
        **more,
    )


def test_draws_for_axis_steps_stay_in_the_range_and_keep_atoms(rng):
    x = torch.from_numpy(rng.normal(size=(300, 3)))
    x[:, 2] = (x[:, 2] > 0).double()
    flow, last = smooth_rows(x)
    assert flow.shape == last.shape == (15_000, 3)
    assert (last >= x.amin(0)).all()
    assert (last <= x.amax(0)).all()
    assert (flow[:, 2] != flow[:, 2].round()).any()
    assert torch.equal(last[:, 2], x[:, 2].repeat_interleave(50))


def test_columns_that_draws_would_change_keep_their_distribution(rng):
    """Draws in many columns blur each of them: a skewed one would get another shape."""
    x = torch.from_numpy(rng.normal(size=(1000, 6)))
    x[:, 5] = x[:, 5].mul(2).exp()
    flow, last = smooth_rows(x, h=1.5, times=10)
    levels = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    quantiles = x[:, 5].quantile(levels)
    of_flow = flow[:, 5].quantile(levels)
    of_axis_steps = last[:, 5].quantile(levels)
    # The largest of 50 deviations: of the flow 8 to 150 in 40 seeds, of axis steps 0.02
    # to 0.26.
    assert ((of_flow - quantiles).abs() / quantiles).max() > 2
    assert ((of_axis_steps - quantiles).abs() / quantiles).max() < 0.6
    even = spread_evenly(x, torch.zeros_like(x) > 0, 10)[:, :, 0].flatten()
    assert torch.equal(smooth_rows(x, times=10, heavy_tailed=[0])[1][:, 0], even)


def test_atoms_are_values_that_many_rows_share():
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert are_atoms(torch.stack((x, (x > 0).double()), 1)).sum(0).tolist() == [5, 11]


def test_two_moons_are_no_longer_copied():
    x, _ = moons(600)
    train = x[::2]
    test = x[1::2]
    with pytest.warns(UserWarning, match=r"copy rows of X .*more smoothing than 0"):
        as_they_are = smoothed(0).fit(train)
    with warnings.catch_warnings(action="error"):
        flow = smoothed().fit(train)
    assert metrics.nn_ratio(as_they_are.particles_, train, test) < 0.35
    for samples in (flow.particles_, flow.sample(2000, random_state=1)):
        assert 0.85 < metrics.nn_ratio(samples, train, test) < 1.15
        assert metrics.copy_rate(samples, train, test) < 0.03
        assert metrics.outlier_rate(samples, train, test) < 0.03
    before = metrics.sliced_wasserstein(as_they_are.particles_, test)
    after = metrics.sliced_wasserstein(flow.particles_, test)
    assert after < 1.1 * before
    h = flow.plan_.bandwidth
    assert f"{h:.3g}, along 20 neighbors: leave-one-out distances of the rows" in str(
        flow.plan_
    )


def test_atoms_stay_exact():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(400, 4))
    amount = np.where(z[:, 2] > 0, np.exp(z[:, 2]), 0.0)  # many zeros
    x = np.stack(
        (z[:, 0], z[:, 0] + z[:, 1] > 0, np.rint(2 * z[:, 1]), amount, np.ones(400)), 1
    )
    flow = smoothed(m=4000, n_steps=20).fit(x)
    assert flow.plan_.bandwidth > 0
    for samples, error in (
        (flow.particles_, 1e-3),
        (flow.sample(4000, random_state=1), 0.03),
    ):
        for j in (1, 2, 4):
            values, counts = np.unique(x[:, j], return_counts=True)
            found = np.abs(samples[:, j][:, None] - values).argmin(1)
            assert (np.abs(samples[:, j] - values[found]) < 1e-6).mean() > 1 - 2 * error
            shares = np.bincount(found, minlength=len(values)) / 4000
            assert np.abs(shares - counts / 400).max() <= error
        assert np.mean(np.abs(samples[:, 3]) < 1e-6) == pytest.approx(
            np.mean(amount == 0), abs=error
        )
    assert (
        len(np.unique(flow.particles_[:, 0])) > 3000
    )  # no atoms: other values than the rows'


def test_classes_keep_their_place():
    x, y = moons(300, 0.05)
    x += 50.0 * y[:, None]
    for amplifier in (10.0, math.inf):
        flow = smoothed(m=900, n_steps=30, amplifier=amplifier).fit(x, y)
        for c in (0, 1):
            samples = flow.sample(200, y=c, random_state=0)
            assert np.abs(np.median(samples, 0) - np.median(x[y == c], 0)).max() < 3
            mine = flow.particles_[flow.particle_conditions_ == c]
            assert 0.7 < metrics.nn_ratio(mine, x[y == c]) < 1.3


def test_a_flow_that_ignores_y_smooths_without_y():
    x, y = moons(100)
    plain = smoothed(m=200, n_steps=4).fit(x).plan_
    for given_y in (y, x[:, :1]):
        other = smoothed(m=200, n_steps=4, amplifier=0).fit(x, given_y).plan_
        assert other.bandwidth == plain.bandwidth > 0


def test_a_plan_leaves_the_bandwidth_to_the_fit():
    """Neighbors are searched once, when the fit draws its data."""
    x, _ = moons(100)
    flow = smoothed(m=200, n_steps=2)
    planned = flow.plan(x)
    assert planned.bandwidth is None
    assert "auto, along 20 neighbors: leave-one-out distances" in str(planned)
    fitted = flow.fit(x).plan_
    assert dataclasses.replace(fitted, bandwidth=None) == planned
    chosen = smoothed(fitted.bandwidth, m=200, n_steps=2).fit(x)
    assert np.array_equal(chosen.particles_, flow.particles_)


@pytest.mark.parametrize("n_steps", [0, 2])
def test_rows_that_do_not_differ_are_drawn_as_they_are(n_steps):
    """A rank cannot see before the fit that the rows of all ranks are the same."""
    x = torch.full((50, 2), 3.0, dtype=torch.float64)
    neighbors = find_class_neighbors(x, None, 20)
    assert choose_smoothing_bandwidth(neighbors) == 0
    smoother = Smoother(0.0, x, neighbors)
    no_column = torch.zeros(2, dtype=torch.bool)
    for draws in (
        smoother.draw_for_flow(4, Seed(0)),
        smoother.draw_for_axes(4, Seed(0), no_column),
    ):
        assert torch.equal(draws, x.repeat_interleave(4, 0))
    flow = smoothed(m=60, n_steps=n_steps).fit(x.numpy())
    assert np.abs(flow.particles_ - 3).max() < 1e-6


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (RNG.normal(size=(9, 2)), None, "fewer than 10 rows"),
        (RNG.normal(size=(50, 2)), RNG.normal(size=(50, 1)), "y is continuous"),
        (np.ones((50, 2)), None, "no rows of a class differ"),
        (RNG.normal(size=(5_001, 5)), None, "more than 5000 rows"),
        (RNG.normal(size=(50_001, 2)), None, "more than 50000 rows"),
    ],
    ids=["few", "columns", "same", "many", "more"],
)
def test_auto_is_0_for_a_reason_that_the_plan_says(x, y, why):
    plan = smoothed(m=20, n_steps=1).set_params(condition_mode="joint").plan(x, y)
    assert plan.bandwidth == 0
    assert f"smoothing  0: {why}" in str(plan)


def test_columns_of_a_condition_can_be_smoothed():
    x, _ = moons(200, 0.05)
    flow = (
        smoothed(0.5, 400, 20, k=8).set_params(condition_mode="joint").fit(x, x[:, :1])
    )
    assert np.isfinite(flow.particles_).all()


def test_ranks_share_the_draws_of_all_rows():
    """Each rank has the draws of its rows, with neighbors and scale of all rows."""
    x, y = moons(100)
    flow = smoothed(m=300, n_steps=2)
    fit = flow.prepare(x, y).planned_fit.tune()
    whole = fit.training_data()
    draws_per_row = fit.plan.draws_per_row
    clouds = []
    for shard in (Shard(0, 30, 100), Shard(30, 70, 100)):
        own_slice = shard.repeated(draws_per_row).slice
        part = dataclasses.replace(whole, own_slice=own_slice)
        clouds.append(part.load_for_flow(step=None))
    of_all = whole.load_for_flow(step=None)
    assert [cloud.x.shape[1] for cloud in clouds] == [
        30 * draws_per_row,
        70 * draws_per_row,
    ]
    assert torch.equal(torch.cat([cloud.x for cloud in clouds], 1), of_all.x)
    assert torch.equal(torch.cat([cloud.y.values for cloud in clouds]), of_all.y.values)
