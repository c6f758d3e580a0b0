"""`score`: minus the sliced distance between fresh samples and rows, for choosing among models."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import GridSearchCV, cross_val_score

import sliceflow
from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions, metrics
from sliceflow.engine.random import Seed

RNG = np.random.default_rng(0)


def moons(n, seed):
    """Two crescents, and which one a row is of."""
    rng = np.random.default_rng(seed)
    t, y = rng.uniform(0, np.pi, n), np.arange(n) % 2
    x = np.stack((np.cos(t) + y, np.sin(t) * (1 - 2 * y) + 0.5 * y), 1) * [1.0, 40.0]
    return x + rng.normal(0, 0.1, (n, 2)), y


X, Y = moons(200, 0)
FRESH, FRESH_Y = moons(300, 1)
NAMES = np.array(["left", "right"])
BARS = (RNG.uniform(size=(150, 4, 4)) * 8).astype(np.uint8)  # dark and bright pictures
KINDS = np.arange(150) % 2
BARS[KINDS == 1] += 9


def vectors(**parameters):
    few = dict(n_particles=300, n_steps=10, random_state=0, device="cpu")
    options = VectorOptions(n_axis_steps=0)  # quick
    return SlicedWassersteinFlow(**{**few, "options": options, **parameters})


def pictures(**parameters):
    small = dict(schedule="1[1] 4[4]", n_particles=300, quality=5, n_pixel_values=17)
    return ImageFlow(**{**small, "random_state": 0, "device": "cpu", **parameters})


@pytest.fixture(scope="module")
def fitted():
    return vectors().fit(X)


@pytest.fixture(scope="module")
def conditional():
    return vectors(n_steps=40).fit(X, Y)


# What it is


@pytest.mark.parametrize("n_steps", [1, 10])
def test_it_is_minus_the_sliced_distance_in_standardised_units(n_steps):
    flow = vectors(n_steps=n_steps).fit(X)
    drawn = flow.sample(2100, random_state=Seed(0).child("score"))
    wanted = metrics.sliced_wasserstein((drawn - X.mean(0)) / X.std(0), (FRESH - X.mean(0)) / X.std(0))
    assert flow.score(FRESH) == pytest.approx(-wanted, rel=0.05, abs=0.005)


def test_it_is_in_the_users_units_without_standardisation():
    x = FRESH / 5
    flow = vectors(standardize=False).fit(X / 5)
    drawn = flow.sample(2100, random_state=Seed(0).child("score"))
    assert flow.score(x) == pytest.approx(-metrics.sliced_wasserstein(drawn, x), rel=0.05)


def test_of_pictures_it_is_the_distance_of_their_pixels():
    flow = pictures().fit(BARS)
    drawn = flow.sample(2100, random_state=Seed(0).child("score"))
    drawn, given = ((x.reshape(-1, 16) + 0.5) / 8.5 - 1 for x in (drawn, BARS))
    assert flow.score(BARS) == pytest.approx(-metrics.sliced_wasserstein(drawn, given), rel=0.1)


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
@settings(max_examples=5)
def test_it_does_not_depend_on_the_users_units(scale, shift):
    wanted = vectors(n_steps=3).fit(X).score(FRESH)
    moved = vectors(n_steps=3).fit(X * scale + shift).score(FRESH * scale + shift)
    assert moved == pytest.approx(wanted, rel=1e-3)


def test_per_class_it_is_in_units_that_the_model_cannot_choose():
    """Models of wildly wrong scales lose, though their samples would set units of their own."""
    right, wrong = vectors(amplifier=math.inf).fit(X, Y), vectors(amplifier=math.inf).fit(50 * X, Y)
    assert wrong.score(FRESH, FRESH_Y) < -5 < -0.5 < right.score(FRESH, FRESH_Y)
    together = vectors(n_steps=60).fit(X, Y).score(FRESH, FRESH_Y)
    assert right.score(FRESH, FRESH_Y) == pytest.approx(together, abs=0.1)


def test_per_class_it_is_in_the_users_units_without_standardisation():
    flow = vectors(amplifier=math.inf, standardize=False).fit(X / 5, Y)
    assert flow.score(FRESH / 5) == pytest.approx(
        -metrics.sliced_wasserstein(flow.sample(4000, random_state=0), FRESH / 5), abs=0.1
    )


# What it is good for


def test_better_models_score_higher_on_held_out_rows():
    scores = [vectors(n_steps=n).fit(X, Y).score(FRESH, FRESH_Y) for n in (0, 3, 40)]
    assert scores == sorted(scores)
    assert scores[-1] > scores[0] + 0.1
    assert all(score < 0 for score in scores)


def test_better_models_of_pictures_score_higher():
    scores = [pictures(quality=q).fit(BARS, KINDS).score(BARS, KINDS) for q in (1, 20)]
    assert scores[0] < scores[1] < 0


def test_swapped_labels_score_lower(conditional):
    right, swapped = conditional.score(FRESH, FRESH_Y), conditional.score(FRESH, 1 - FRESH_Y)
    assert swapped < 2 * right
    flow = pictures().fit(BARS, KINDS)
    assert flow.score(BARS, 1 - KINDS) < 2 * flow.score(BARS, KINDS)


def test_shuffled_columns_score_lower():
    y = X[:, :1] + 5
    flow = vectors(n_steps=40).fit(X, y)
    assert flow.score(FRESH, np.roll(FRESH[:, :1] + 5, 1, axis=0)) < 1.5 * flow.score(
        FRESH, FRESH[:, :1] + 5
    )


def test_shares_of_classes_do_not_matter_with_labels_and_do_without(conditional):
    """Samples take the rows' own labels; without, those of the data."""
    left = FRESH_Y == 0
    assert conditional.score(FRESH[left], FRESH_Y[left]) > 3 * conditional.score(FRESH[left])


# Searches


@pytest.mark.parametrize("labels", [None, Y, NAMES[Y]], ids=["none", "numbers", "names"])
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame])
def test_searches_over_vectors(form, labels):
    x = form(X)
    search = GridSearchCV(vectors(), {"n_steps": [0, 25]}, cv=2, error_score="raise").fit(x, labels)
    assert search.best_params_ == {"n_steps": 25}
    assert search.best_score_ < 0
    scores = cross_val_score(vectors(n_steps=3), x, labels, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert np.all(scores < 0)


def test_searches_over_continuous_conditions_and_options():
    grid = {
        "options": [VectorOptions(n_axis_steps=0), VectorOptions(taper=0)],
        "amplifier": [0.0, 10.0],
    }
    joint = vectors(condition="joint")
    search = GridSearchCV(joint, grid, cv=2, error_score="raise").fit(X, X[:, :1])
    assert search.best_params_["amplifier"] == 10.0


@pytest.mark.parametrize("labels", [None, KINDS, NAMES[KINDS]], ids=["none", "numbers", "names"])
def test_searches_over_pictures(labels):
    blind, usual = PictureOptions(start_noise=0), PictureOptions()  # all samples alike, and not
    search = GridSearchCV(pictures(), {"options": [blind, usual]}, cv=2, error_score="raise")
    assert search.fit(BARS, labels).best_params_ == {"options": usual}
    scores = cross_val_score(pictures(quality=1), BARS, labels, cv=2, error_score="raise")
    assert np.all(scores < 0)


def test_searches_per_class_against_together():
    grid = {"amplifier": [10.0, math.inf]}
    search = GridSearchCV(vectors(), grid, cv=2, error_score="raise").fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# The same again


@pytest.mark.parametrize(
    ("flow", "x", "y"),
    [
        (vectors(), X, Y),
        (vectors(amplifier=math.inf), X, Y),
        (vectors(random_state=np.random.RandomState(0)), X, None),
        (vectors(random_state=np.random.default_rng(0)), X, X[:, :1]),
        (pictures(), BARS, KINDS),
        (pictures(random_state=np.random.default_rng(0)), BARS, None),
    ],
)
def test_it_changes_nothing_and_is_the_same_again(flow, x, y):
    flow.fit(x, y)
    before, attributes = pickle.dumps(flow.get_params()), dict(vars(flow))
    scores = {flow.score(x, y) for _ in range(2)}
    assert len(scores) == 1
    assert pickle.dumps(flow.get_params()) == before
    assert vars(flow) == attributes
    assert isinstance(scores.pop(), float)


def test_another_seed_is_another_score(fitted):
    other = pickle.loads(pickle.dumps(fitted)).set_params(random_state=1)
    assert other.score(FRESH) != fitted.score(FRESH)
    assert other.score(FRESH) == pytest.approx(fitted.score(FRESH), abs=0.05)


def test_models_of_files_score_the_same(conditional, tmp_path):
    conditional.save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert again.score(FRESH, FRESH_Y) == conditional.score(FRESH, FRESH_Y)


def test_lists_tensors_and_frames_score_the_same(conditional):
    wanted = conditional.score(FRESH, FRESH_Y)
    for x, y in (
        (FRESH.tolist(), FRESH_Y.tolist()),
        (torch.from_numpy(FRESH), torch.from_numpy(FRESH_Y)),
        (pd.DataFrame(FRESH), pd.Series(FRESH_Y)),
    ):
        assert conditional.score(x, y) == wanted
    frames = vectors().fit(pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}))
    assert frames.score(pd.DataFrame({"a": FRESH[:, 0], "b": FRESH[:, 1]})) == vectors().fit(X).score(
        FRESH
    )


def test_one_row_has_a_score(fitted, conditional):
    assert math.isfinite(fitted.score(FRESH[:1]))
    assert math.isfinite(conditional.score(FRESH[:1], FRESH_Y[:1]))
    assert math.isfinite(vectors(amplifier=math.inf).fit(X, Y).score(FRESH[:1], FRESH_Y[:1]))


def test_class_weights_are_conditions_too(conditional):
    weights = np.eye(2)[FRESH_Y]
    assert conditional.score(FRESH, weights) == pytest.approx(
        conditional.score(FRESH, FRESH_Y), abs=0.1
    )
    flow = pictures().fit(BARS, KINDS)
    assert math.isfinite(flow.score(BARS, np.eye(2)[KINDS]))


# What is refused


def test_wrong_lengths_are_refused(conditional):
    with pytest.raises(ValueError, match="X has 300 rows but y has 200; pass one y per row"):
        conditional.score(FRESH, Y)
    with pytest.raises(ValueError, match="X has 150 pictures but y has 3; pass one label per picture"):
        pictures().fit(BARS, KINDS).score(BARS, [0, 1, 0])


def test_other_columns_and_labels_are_refused(conditional):
    with pytest.raises(ValueError, match="X has 3 features, but SlicedWassersteinFlow is expecting 2"):
        conditional.score(np.ones((5, 3)))
    with pytest.raises(ValueError, match="unknown label 7"):
        conditional.score(FRESH[:1], [7])
    with pytest.raises(ValueError, match="NaN in row 0, column 1"):
        conditional.score([[0.0, math.nan]])


def test_models_that_cannot_be_judged_are_refused():
    with pytest.raises(ValueError, match="completes pictures"):
        pictures(observed="top").fit(BARS).score(BARS)
    with pytest.raises(ValueError, match="n_knots=0"):
        pictures(options=PictureOptions(n_knots=0)).fit(BARS).score(BARS)
