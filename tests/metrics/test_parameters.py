"""Parameters of metrics are checked, and errors name them."""

import numpy as np
import pytest

from sliceflow import metrics
from sliceflow.errors import DataError, ParameterError

X = np.random.default_rng(0).normal(size=(40, 3))
PICTURES = np.random.default_rng(0).integers(0, 256, (20, 4, 4)).astype(np.uint8)
RANKS = metrics.calibration(np.zeros((40, 5, 3)), X)


@pytest.mark.parametrize("value", [-1, 0, 1.5, True, "one", None])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n_directions", lambda n: metrics.sliced_wasserstein(X, X, n_directions=n)),
        ("n_components", lambda n: metrics.frechet_distance_pca(X, X, X, n)),
        ("k", lambda k: metrics.coverage(X, X, k=k, device="cpu")),
        ("k", lambda k: metrics.nearest(X, X, k, device="cpu")),
        ("k", lambda k: metrics.nearest_pictures(PICTURES, PICTURES, k)),
        ("n_trees", lambda n: metrics.two_sample_score(X, X, n_trees=n)),
        ("n_pixel_values", lambda n: metrics.fid(X, X, n_pixel_values=n)),
    ],
)
def test_counts_are_positive_ints(name, call, value):
    with pytest.raises(ParameterError, match=rf"^{name}=.* must be") as raised:
        call(value)
    assert raised.value.parameter == name


@pytest.mark.parametrize("patch", [-1, 0, 1.5, True, "one", 5])
def test_a_patch_is_part_of_a_picture(patch):
    with pytest.raises(ParameterError, match=r"^patch=.* an int from 1 to the side"):
        metrics.memorized_rate(PICTURES, PICTURES, PICTURES, patch=patch, device="cpu")


@pytest.mark.parametrize("value", [-1, 1.5, True, "one"])
@pytest.mark.parametrize(
    "call",
    [
        lambda seed: metrics.sliced_wasserstein(X, X, random_state=seed),
        lambda seed: metrics.two_sample_score(X, X, n_trees=2, random_state=seed),
        lambda seed: metrics.calibration(np.zeros((40, 5, 3)), X, random_state=seed),
        lambda seed: metrics.attack(X, X, X, random_state=seed, device="cpu"),
    ],
)
def test_seeds_are_ints_from_0(call, value):
    with pytest.raises(ParameterError, match=r"^random_state=.* an int of at least 0"):
        call(value)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("mirror", lambda no: metrics.nn_ratio(X, X, mirror=no)),
        ("mirror", lambda no: metrics.memorized_rate(X, X, X, mirror=no)),
        ("mirror", lambda no: metrics.nearest_pictures(PICTURES, PICTURES, mirror=no)),
        ("exclude_self", lambda no: metrics.nearest(X, X, exclude_self=no)),
    ],
)
def test_flags_are_true_or_false(name, call):
    with pytest.raises(ParameterError, match=f"^{name}='no' must be True or False"):
        call("no")


@pytest.mark.parametrize("share", [-0.1, 1.1, "half", np.nan])
def test_a_share_is_from_0_to_1(share):
    with pytest.raises(ParameterError, match=r"^share=.* a number from 0 to 1"):
        RANKS.coverage(share)


def test_directions_are_rows_as_wide_as_the_samples():
    with pytest.raises(DataError, match="directions and a have 2 and 3 numbers"):
        metrics.sliced_wasserstein(X, X, directions=np.eye(2))
    with pytest.raises(DataError, match=r"directions has the shape \(0, 3\)"):
        metrics.sliced_wasserstein(X, X, directions=np.eye(3)[:0])
