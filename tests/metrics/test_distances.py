"""Sliced and Fréchet distances: closed forms, POT; few rows, singular covariances."""

import sys
from types import SimpleNamespace

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import norm
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from sliceflow.errors import DataError
from sliceflow.metrics import (
    coverage,
    fid,
    frechet_distance,
    frechet_distance_pca,
    sliced_wasserstein,
    two_sample_score,
)

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32 - 1)


def cloud(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(("n", "m"), [(100, 100), (100, 70), (1, 50), (33, 1)])
def test_the_sliced_distance_is_pots(n, m):
    a = cloud(0, n, 5)
    b = np.random.default_rng(1).gamma(2, size=(m, 5))
    directions = cloud(2, 40, 5)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    exact = ot.sliced_wasserstein_distance(a, b, projections=directions.T)
    assert sliced_wasserstein(a, b, directions=directions) == pytest.approx(
        exact, rel=1e-9
    )
    with pytest.raises(ValueError, match="5 and 4 numbers in a row"):
        sliced_wasserstein(a, b[:, :4])


def test_the_frechet_distance_is_that_of_gaussians_and_sees_leading_components_only():
    a = cloud(0, 500, 3) @ cloud(1, 3, 3)
    b = cloud(2, 400, 3) @ cloud(3, 3, 3) + 1
    exact = ot.gaussian.bures_wasserstein_distance(
        a.mean(0), b.mean(0), np.cov(a.T), np.cov(b.T)
    )
    assert frechet_distance(a, b) == pytest.approx(exact**2, rel=1e-6)
    assert frechet_distance_pca(a, a + 5, a, n_components=3) == pytest.approx(
        75, rel=1e-6
    )
    shift = np.array([3, 0, 7, 0, 0, 0, 0, 0, 0])
    for n in (6, 300):  # fewer rows than columns, and more
        rows = cloud(4, n, 9) * [9, 5, *[0.01] * 7]
        apart = frechet_distance_pca(rows + shift, rows, rows, n_components=2)
        assert apart == pytest.approx(9, rel=0.01), (
            "a shift along a small component is not seen"
        )


@given(sizes, seeds, st.floats(0.1, 100))
def test_distances_are_symmetric_and_scale_with_the_rows(n, seed, scale):
    a = cloud(seed, n + 1, 3)
    b = cloud(seed + 1, n + 2, 3) + 0.5
    d = sliced_wasserstein(a, b)
    assert d == pytest.approx(sliced_wasserstein(b, a), rel=1e-6)
    assert sliced_wasserstein(scale * a, scale * b) == pytest.approx(
        scale * d, rel=1e-5
    )
    d = frechet_distance(a, b)
    assert d == pytest.approx(frechet_distance(b, a), rel=1e-9)
    assert frechet_distance(scale * a, scale * b) == pytest.approx(
        scale**2 * d, rel=1e-7
    )


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (np.zeros((3, 2)), np.zeros((3, 4)), "2 and 4 numbers in a row"),
        (np.array([[0.0], [np.nan]]), np.zeros((3, 1)), "row 1"),
        (np.zeros(3), np.zeros((3, 1)), r"shape \(3,\)"),
        (np.zeros((1, 2)), np.zeros((3, 2)), "two rows, but there are 1 and 3"),
        (np.array([["a"], ["b"]]), np.zeros((3, 1)), "not numbers"),
    ],
)
def test_what_cannot_be_measured_is_named(a, b, said):
    with pytest.raises(ValueError, match=said):
        frechet_distance(a, b)


# Coverage


@given(
    st.integers(6, 50),
    st.integers(6, 50),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_it_is_that_of_all_pairs(n, m, d, k, seed):
    rng = np.random.default_rng(seed)
    samples = rng.normal(size=(n, d))
    real = 1.3 * rng.normal(size=(m, d)) + 0.5
    radii = np.sort(cdist(real, real), axis=1)[:, k]  # column 0 is the row itself
    inside = cdist(samples, real) <= radii * (1 + 1e-9)
    assert coverage(samples, real, k=k, device="cpu") == inside.any(0).mean()


# The two-sample test

A, B = np.random.default_rng(0).normal(size=(2, 1000, 3))


def test_equal_distributions_are_told_apart_by_chance_only():
    assert two_sample_score(A, B, n_trees=50) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_shifted_gaussians_are_told_apart_as_often_as_is_possible(shift):
    best = LogisticRegression()
    moved = B + np.array([shift, 0, 0])
    found = two_sample_score(A, moved, classifier=best)
    assert found == pytest.approx(norm.cdf(shift / 2), abs=0.04)
    auc = two_sample_score(A, moved, classifier=best, scoring="roc_auc")
    assert auc == pytest.approx(norm.cdf(shift / 2**0.5), abs=0.04)


def test_equally_many_of_both_are_used_and_few_are_refused():
    assert two_sample_score(A[:100], B, n_trees=20) == pytest.approx(0.5, abs=0.15)
    with pytest.raises(
        ValueError, match="4 samples and 1000 held-out rows; pass 5 or more"
    ):
        two_sample_score(A[:4], B)


# FID

GRAY = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.uint8)


def test_torch_fidelity_gets_bytes_of_three_channels(monkeypatch, tmp_path):
    given = {}

    def calculate_metrics(**arguments):
        given.update(arguments)
        return {"frechet_inception_distance": 3.5}

    stub = SimpleNamespace(calculate_metrics=calculate_metrics)
    monkeypatch.setitem(sys.modules, "torch_fidelity", stub)
    assert (
        fid(GRAY, GRAY[:3], n_pixel_values=17, weights=tmp_path / "w.pth", device="cpu")
        == 3.5
    )
    assert (len(given["input1"]), len(given["input2"])) == (5, 3)
    assert (given["fid"], given["cuda"]) == (True, False)
    assert isinstance(given["input1"], torch.utils.data.Dataset)
    first = given["input1"][0]
    assert (first.dtype, first.shape) == (torch.uint8, (3, 8, 8))
    assert np.array_equal(first[1].numpy(), (GRAY[0] * (255 / 16)).round())
    assert given["feature_extractor_weights_path"] == str(tmp_path / "w.pth")
    color = np.stack((GRAY, GRAY + 1, GRAY + 2), axis=3)
    fid(color, color, device="cpu")
    assert np.array_equal(given["input1"][1].numpy(), color[1].transpose(2, 0, 1))


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.usefixtures("torch_warns_every_time")
def test_torch_fidelity_gets_colors_whose_channels_are_first_in_memory(monkeypatch):
    given = {}

    def calculate_metrics(**arguments):
        given.update(arguments)
        return {"frechet_inception_distance": 3.5}

    stub = SimpleNamespace(calculate_metrics=calculate_metrics)
    monkeypatch.setitem(sys.modules, "torch_fidelity", stub)
    color = np.stack((GRAY, GRAY + 1, GRAY + 2), axis=1).transpose(0, 2, 3, 1)
    fid(color, color, device="cpu")
    assert np.array_equal(given["input1"][1].numpy(), color[1].transpose(2, 0, 1))


def test_without_torch_fidelity_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(ImportError, match=r"pip install 'sliceflow\[metrics\]'"):
        fid(GRAY, GRAY)


def test_pictures_are_whole_numbers():
    with pytest.raises(ValueError, match="float64 of shape"):
        fid(GRAY / 17, GRAY)


@pytest.mark.parametrize("scoring", ["accuracy", "roc_auc"])
def test_a_forest_in_threads_scores_as_one_without(rng, scoring):
    samples, real = rng.normal(size=(2, 60, 3)).round(1)  # with ties
    forest = RandomForestClassifier(20, random_state=0)
    options = dict(scoring=scoring, n_trees=20)
    in_threads = two_sample_score(samples, real, **options)
    alone = two_sample_score(samples, real, classifier=forest, **options)
    assert in_threads == alone


def test_rows_that_cannot_be_compared_are_refused(rng):
    """A forest told rows of NaN from others: it said 1.0."""
    a = rng.normal(size=(50, 3))
    with pytest.raises(DataError, match="NaN"):
        two_sample_score(a * np.nan, a)
    with pytest.raises(DataError, match="numbers in a row"):
        two_sample_score(a, a[:, :1])
    with pytest.raises(DataError, match="numbers in a row"):
        frechet_distance_pca(a, a, a[:, :1])
