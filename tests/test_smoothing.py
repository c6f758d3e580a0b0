"""Smoothing the target along its neighbours: new rows instead of copies, and atoms that stay exact."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, make_moons

from sliceflow import SlicedWassersteinFlow, VectorOptions, metrics
from sliceflow.engine.flow import Cloud
from sliceflow.engine.random import Seed
from sliceflow.ranks import Place, Ranks
from sliceflow.vectors.data import Rows
from sliceflow.vectors.smoothing import Smoothed, neighbours_of

ON = dict(random_state=0, device="cpu")


def rows_of(x, codes=None):
    return Rows(torch.from_numpy(x), Place(0, len(x), len(x)), codes=codes)


def test_a_draw_has_the_mean_of_its_row_and_the_covariance_of_its_neighbours():
    x = np.random.default_rng(0).normal(size=(40, 3)) @ np.diag([1.0, 3.0, 0.1])
    near = neighbours_of(rows_of(x), 8)
    smoothed = Smoothed(Cloud(torch.from_numpy(x.T.copy())), near, 0.7, Seed(0))
    draws = torch.stack([smoothed.at(k).x for k in range(4000)]).numpy()[:, :, 5]
    assert draws.mean(0) == pytest.approx(x[5], abs=0.1)
    wanted = 0.49 * np.cov(x[near[5].numpy()].T)
    assert np.abs(np.cov(draws.T) - wanted).max() < 0.1 * np.abs(wanted).max()


@given(st.integers(1, 30), st.integers(2, 12), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_neighbours_are_of_the_same_class_and_the_nearest(n, k, n_classes):
    rng = np.random.default_rng(n + 100 * k)
    x, codes = rng.normal(size=(n, 2)), torch.from_numpy(rng.integers(n_classes, size=n))
    near = neighbours_of(rows_of(x, codes), k).numpy()
    assert near.shape == (n, k)
    for i, found in enumerate(near):
        own = np.flatnonzero(codes.numpy() == int(codes[i]))
        far = np.linalg.norm(x[own] - x[i], axis=1)
        nearest = set(own[np.argsort(far, kind="stable")][:k].tolist())
        assert set(found.tolist()) == nearest
        assert i in nearest


def test_two_moons_are_no_longer_copied():
    x, _ = make_moons(400, noise=0.1, random_state=0)
    train, test = x[::2], x[1::2]
    as_they_are, smoothed = (
        SlicedWassersteinFlow(2000, 60, options=VectorOptions(smoothing=h), **ON).fit(train)
        for h in (0.0, 0.8)
    )
    assert metrics.nn_ratio(as_they_are.particles_, train, test) < 0.35
    assert 0.7 < metrics.nn_ratio(smoothed.particles_, train, test) < 1.2
    assert metrics.sliced_wasserstein(smoothed.particles_, test) < 1.2 * metrics.sliced_wasserstein(
        as_they_are.particles_, test
    )
    assert "smoothing" in str(smoothed.plan_)
    assert "smoothing" not in str(as_they_are.plan_)


def test_atoms_stay_exact():
    x = load_diabetes().data  # its column 1 has two values
    flow = SlicedWassersteinFlow(884, 30, options=VectorOptions(smoothing=0.8), **ON).fit(x)
    values, counts = np.unique(x[:, 1], return_counts=True)
    found = np.abs(flow.particles_[:, 1][:, None] - values).argmin(1)
    assert np.abs(flow.particles_[:, 1] - values[found]).max() < 1e-9
    assert np.bincount(found).tolist() == (2 * counts).tolist()


@pytest.mark.parametrize("condition", ["labels", "columns"])
def test_conditions_are_smoothed_within_them(condition):
    x, y = make_moons(200, noise=0.05, random_state=0)
    given_y = y if condition == "labels" else x[:, :1]
    options = VectorOptions(smoothing=0.5, n_neighbors=8)
    flow = SlicedWassersteinFlow(400, 20, options=options, **ON).fit(x, given_y)
    assert np.isfinite(flow.particles_).all()
    assert flow.sample(5, y=1 if condition == "labels" else 0.5, random_state=0).shape == (5, 2)


def test_a_stopped_fit_resumes_with_the_same_draws(tmp_path):
    x, _ = make_moons(100, noise=0.1, random_state=0)
    flow = SlicedWassersteinFlow(200, 12, options=VectorOptions(smoothing=0.8), **ON)
    whole = flow.fit(x).particles_

    def stop(event):
        if event.steps_done == 7:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        flow.fit(x, listeners=stop, checkpoint_dir=tmp_path, checkpoint_every=0)
    assert np.array_equal(flow.fit(x, checkpoint_dir=tmp_path).particles_, whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(smoothing=-1), "smoothing=-1 must be a number of at least 0"),
        (dict(smoothing="a"), "smoothing='a' must be"),
        (dict(n_neighbors=1), "n_neighbors=1 must be an int of at least 2"),
    ],
)
def test_wrong_strengths_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SlicedWassersteinFlow(options=VectorOptions(**options)).fit(np.zeros((5, 2)))


def test_one_rank_smooths_and_rows_in_other_processes_are_refused(monkeypatch):
    x, _ = make_moons(100, noise=0.1, random_state=0)
    flow = SlicedWassersteinFlow(200, 3, options=VectorOptions(smoothing=0.8), **ON)
    assert np.isfinite(flow.fit(x, ranks=Ranks()).particles_).all()
