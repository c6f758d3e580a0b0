"""Completions of pictures by the pictures most like them: `sliceflow.complete`."""

from dataclasses import replace

import completions
import numpy as np
import pytest
import torch
from sklearn.svm import SVC

from sliceflow import complete, metrics
from sliceflow.datasets import load
from sliceflow.spaces.pictures.completion import Completion

TRAIN, TEST = load("digits", "train"), load("digits", "test")
ON = dict(n_pixel_values=17, random_state=0)
FREE = np.random.default_rng(0).random((8, 8)) < 0.6  # any mask will do


@pytest.fixture(scope="module")
def judge():
    return SVC(gamma=0.001).fit(TRAIN.images.reshape(-1, 64), TRAIN.labels)


def recognised(judge, images, labels):
    return (judge.predict(images.reshape(-1, 64)) == labels).mean()


TOP = np.arange(8)[:, None] < np.full((1, 8), 4)


@pytest.mark.parametrize("mask", ["top", FREE], ids=["top", "free"])
def test_known_pixels_are_kept_and_digits_stay_what_they_are(judge, mask):
    images, labels = TEST.images[:150], TEST.labels[:150]
    done = complete(images, mask, TRAIN.images, 2, **ON)
    assert done.shape == (len(images), 2, 8, 8)
    assert done.dtype == np.uint8
    assert done.max() <= 16
    known = TOP if isinstance(mask, str) else mask
    assert (done[:, :, known] == images[:, None, known]).all()
    assert (done[:, 0] != done[:, 1]).any()
    # Half of the pixels of a digit do not say all of it; real ones reach .99.
    assert recognised(judge, done[:, 0], labels) > 0.8


def test_completions_are_new_and_their_pixels_are_distributed_as_real_ones():
    done = complete(TEST.images[:200], "top", TRAIN.images, **ON)[:, 0]
    assert (done[:, 4:] == 0).mean() == pytest.approx((TEST.images[:, 4:] == 0).mean(), abs=0.03)
    halves = [images[:, 4:].reshape(-1, 32) for images in (done, TRAIN.images, TEST.images)]
    assert 0.8 < metrics.nn_ratio(*halves) < 1.3
    assert metrics.copies(*halves) < 0.05


@pytest.mark.parametrize("drawn", [False, True], ids=["photographs", "drawings"])
def test_completions_continue_the_known_pixels(drawn):
    walks = np.random.default_rng(0).normal(size=(500, 10, 10)).cumsum(1).cumsum(2)
    grey = (walks - walks.min()) / (walks.max() - walks.min())
    images = (255 * ((grey > np.median(grey)) if drawn else grey)).astype(np.uint8)
    hidden = np.arange(10) >= np.full((10, 1), 5)
    done = complete(images[:100], "left", images[100:], random_state=0)[:, 0]
    ratio = completions.seam(done, hidden) / completions.seam(images[:100], hidden)
    assert 0.2 < ratio < 1.25
    if drawn:  # no fog
        assert np.isin(done, (0, 255)).mean() > 0.99


def test_photographs_have_the_detail_that_components_leave_out():
    rng = np.random.default_rng(0)
    shade = rng.normal(size=(600, 16, 16, 3)).cumsum(1).cumsum(2)
    images = (128 + 3 * shade + 12 * rng.normal(size=shade.shape)).clip(1, 254).astype(np.uint8)
    hidden, test = np.arange(16) >= np.full((16, 1), 8), images[:100]
    made = Completion.of(images[100:], "left", random_state=0)
    ratios = [
        completions.speckle(way.sample(test, random_state=0)[:, 0], hidden)
        / completions.speckle(test, hidden)
        for way in (made, replace(made, detail=None))
    ]
    assert 0.9 < ratios[0] < 1.1
    assert ratios[1] < 0.8


def test_labels_decide_what_a_part_does_not_say(judge):
    n = 60
    known = np.zeros((8, 8), bool)
    known[0] = True  # hardly anything
    wanted = np.arange(n) % 10
    done = complete(TEST.images[:n], known, TRAIN.images, y=wanted, like_y=TRAIN.labels, **ON)[:, 0]
    assert recognised(judge, done, wanted) > 0.6
    without = complete(TEST.images[:n], known, TRAIN.images, **ON)[:, 0]
    assert recognised(judge, without, wanted) < 0.4


def test_hidden_pixels_and_other_pictures_play_no_part():
    made = Completion.of(TRAIN.images, "top", **ON)
    given = TEST.images[:5].copy()
    done = made.sample(given, 3, random_state=1)
    given[:, 4:] = 7
    assert np.array_equal(made.sample(given, 3, random_state=1), done)
    assert np.array_equal(made.sample(given[:2], 3, random_state=1), done[:2])
    assert not np.array_equal(made.sample(given, 3, random_state=2), done)


def test_colour_and_floats_and_tensors():
    rng = np.random.default_rng(0)
    shade = rng.random((300, 1, 1, 3)).astype(np.float32)
    images = np.broadcast_to(shade, (300, 6, 5, 3)).copy()  # one colour each
    done = complete(images[:20], "left", images[20:], random_state=0)[:, 0]
    assert done.dtype == np.float32
    assert np.abs(done - images[:20]).mean() < 0.1
    assert complete(torch.from_numpy(images[:2]), "left", images[20:], random_state=0).shape[0] == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mask": np.ones((8, 8), bool)}, "every pixel is known in mask"),
        ({"mask": np.zeros((8, 8), bool)}, "no pixel is known in mask"),
        ({"mask": "half"}, "'half' is not one of"),
        ({"like": TRAIN.images[:5]}, "5 pictures to learn from; pass at least 10"),
        ({"y": [1, 2, 3]}, "y and like_y go together"),
        ({"y": [1, 2], "like_y": TRAIN.labels}, r"y has shape \(2,\)"),
        ({"y": [1, 2, 77], "like_y": TRAIN.labels}, "77"),
        ({"like_y": TRAIN.labels[:3], "y": [1, 2, 3]}, r"y has shape \(3,\)"),
        ({"X": TEST.images[:3, :7]}, "pictures are"),
        ({"n_samples": 0}, "n_samples"),
        ({"n_neighbors": 1}, "n_neighbors"),
    ],
)
def test_bad_input_is_named(changed, message):
    given = {"X": TEST.images[:3], "mask": "top", "like": TRAIN.images, **ON} | changed
    with pytest.raises(ValueError, match=message):
        complete(**given)


def test_few_pictures_and_a_constant_part_work():
    images = np.zeros((12, 4, 4), np.uint8)
    images[:, 3] = np.arange(12)[:, None]  # the known part says nothing
    done = complete(images[:2], "top", images, 50, n_pixel_values=17, random_state=0)
    assert done[:, :, 3].std() > 1
    assert (done[:, :, 2] == 0).all()


def test_the_benchmark_runs(tmp_path):
    rows = completions.main(f"--sets digits --quick --device cpu --out {tmp_path}".split())
    real, copy, *others = rows
    assert [row["method"] for row in rows] == ["real", "copy", "complete", "labels", "flow"]
    assert (real["NN ratio"], real["speckle"], real["seam"]) == (1, 1, 1)
    assert (copy["NN ratio"], copy["copies"]) == (0, 1)
    assert all(row["NN ratio"] > 0.8 for row in others)
    assert {path.name for path in tmp_path.iterdir()} == {
        "completions.json", "completions.md", "digits.png"
    }  # fmt: skip


def test_the_benchmark_measures_speckle_and_seams():
    hidden = np.zeros((8, 8), bool)
    hidden[4:] = True
    flat = np.full((1, 8, 8, 3), 100, np.uint8)
    checks = flat + np.where(hidden[..., None], np.indices((8, 8)).sum(0)[..., None] % 2, 0)
    stepped = flat + 50 * hidden[..., None]
    assert [completions.speckle(x, hidden) for x in (flat, checks, stepped)] == [0, 4, 0]
    assert [completions.seam(x, hidden) for x in (flat, checks, stepped)] == [0, 0.5, 50]
