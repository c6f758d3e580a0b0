"""NN ratio, copies, outliers and memorized rows: by hand, of new real rows, mirrors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sliceflow.errors import ParameterError
from sliceflow.metrics import (
    copy_rate,
    memorized_rate,
    nearest,
    nearest_pictures,
    nn_ratio,
    outlier_rate,
)
from sliceflow.metrics.copying import describe_copying, is_evidence_of_copying


def on_a_line(distances):
    """Rows at these distances from the one train row 0."""
    return np.asarray(distances, float)[:, None]


def test_copies_are_samples_nearer_than_one_percent_of_the_test_rows():
    origin = np.zeros((1, 1))
    test = on_a_line(range(1, 1000))  # the limit is 10, at rank 1000 / 100
    samples = on_a_line([0, 3, 9.9, 10.1, 11, 50, 999, 1000])
    assert copy_rate(samples, origin, test, device="cpu") == 3 / 8
    assert outlier_rate(samples, origin, test, device="cpu") == 1 / 8
    assert nn_ratio(samples, origin, test, device="cpu") == (10.1 + 11) / 2 / 500
    test = on_a_line(range(1, 11))  # the limit is the least of few
    assert copy_rate(samples, origin, test, device="cpu") == 1 / 8
    assert outlier_rate(samples, origin, test, device="cpu") == 5 / 8


def test_samples_that_tie_with_test_rows_count_in_part():
    origin = np.zeros((1, 1))
    test = on_a_line([0] * 4 + [1] * 96)  # 4 % equal the train row
    share = copy_rate(on_a_line([0] * 8 + [1] * 92), origin, test, device="cpu")
    assert share == pytest.approx(0.02)  # twice as many
    assert copy_rate(test, origin, test, device="cpu") == pytest.approx(0.01)


@given(
    st.integers(100, 300),
    st.integers(1, 5),
    st.integers(0, 999),
    st.integers(-20, 20),
    st.booleans(),
)
@settings(max_examples=20)
def test_they_have_no_unit_and_see_copies_and_far_samples(n, d, seed, power, held_out):
    draw = np.random.default_rng(seed)
    train, test, fresh = draw.normal(size=(3, n, d))
    others = (train, test) if held_out else (train,)
    mixed = np.concatenate((train[: n // 2], fresh, fresh[: n // 3] * 20))
    scaled = [2.0**power * x for x in (mixed, *others)]
    for metric in (nn_ratio, copy_rate, outlier_rate):
        assert metric(*scaled, device="cpu") == metric(mixed, *others, device="cpu")
    assert copy_rate(train, *others, device="cpu") == 1
    assert nn_ratio(train, *others, device="cpu") == 0
    assert outlier_rate(train, *others, device="cpu") == 0
    assert copy_rate(fresh + 99, *others, device="cpu") == 0
    assert outlier_rate(fresh + 99, *others, device="cpu") == 1


def test_memorized_patches_are_copies_of_parts_that_copies_does_not_see(rng):
    contrasts = rng.exponential(size=(3, 300, 1, 1))
    train, test, fresh = rng.normal(size=(3, 300, 8, 8)) * contrasts
    made = fresh.copy()
    made[:150, :4, :4] = train[:150, :4, :4]  # one corner of half of them
    assert copy_rate(made, train, test, device="cpu") < 0.05
    found = memorized_rate(made, train, test, patch=4, device="cpu")
    assert found == pytest.approx(0.5 / 9 + 0.01, abs=0.02)  # at one of nine positions
    assert memorized_rate(made[:, :, ::-1], train, test, patch=4, device="cpu") < 0.03
    mirrored = memorized_rate(
        made[:, :, ::-1], train, test, patch=4, mirror=True, device="cpu"
    )
    assert mirrored == pytest.approx(found, abs=0.02)
    with pytest.raises(ValueError, match="patch=9 must be an int from 1 to the side"):
        memorized_rate(made, train, test, patch=9)
    with pytest.raises(
        ValueError, match="needs 10 train rows or more, but there are 9"
    ):
        memorized_rate(made, train[:9], test, device="cpu")


def test_mirror_images_are_found_once_and_turned(rng):
    train = rng.integers(0, 256, (30, 6, 6, 3)).astype(np.uint8)
    images = train[:4, :, ::-1]
    found, distances = nearest_pictures(images, train, 3, mirror=True, device="cpu")
    assert np.all(distances[:, 0] == 0)
    assert np.array_equal(found[:, 0], images)
    assert np.all(distances[:, 1] > 0)  # not the same picture again
    assert np.all(np.diff(distances) >= 0)
    plain, index = nearest(images, train, 3, device="cpu")
    shown, same = nearest_pictures(images, train, 3, device="cpu")
    assert np.array_equal(same, plain)
    assert np.array_equal(shown, train[index])
    test = rng.integers(0, 256, (9, 6, 6, 3))
    assert nn_ratio(images, train, test, mirror=True, device="cpu") == 0
    assert nn_ratio(images, train, test) > 0
    assert copy_rate(images, train, test, mirror=True, device="cpu") == 1
    # Four images that are not turned and nine test rows are as near to train: all four
    # are nearer than all nine in one of 715 runs.
    assert copy_rate(images, train, test, device="cpu") < 1


def test_what_cannot_be_compared_is_named(rng):
    rows = rng.normal(size=(20, 4))
    with pytest.raises(
        ValueError, match=r"rows of shape \(20, 4\) have no mirror images"
    ):
        copy_rate(rows, rows, rows, mirror=True, device="cpu")
    with pytest.raises(
        ValueError,
        match=r"the median held-out row is identical .* between held_out and train",
    ):
        nn_ratio(rows, rows, rows, device="cpu")
    with pytest.raises(
        ValueError, match=r"the median train row is identical .* duplicates in train"
    ):
        outlier_rate(rows, np.repeat(rows, 2, axis=0), device="cpu")


def test_a_fit_warns_of_copies_and_of_nothing_else(rng):
    # Of 300 new rows, one fit in a hundred would warn.
    rows, new = rng.normal(size=(2, 1000, 3))
    assert describe_copying([(rows, new)]) == ""
    assert describe_copying([(rows, rows)]) == "copy rate 1.00, NN ratio 0.00"
    one_in_five = np.concatenate((rows[:200], new[:800]))
    assert describe_copying([(rows, one_in_five)]).startswith("copy rate 0.2")
    one_class_of_two = [(rows[:500], new[:500]), (rows[500:], rows[500:])]
    assert describe_copying(one_class_of_two).startswith("copy rate 0.5")
    assert describe_copying([(rows[:9], rows)]) == "", "too few rows"
    assert describe_copying([(rows, rows[:99])]) == "", "too few particles"
    equal_rows = [(np.zeros((50, 2)), np.zeros((200, 2)))]
    assert describe_copying(equal_rows) == "", "nothing to compare with"
    assert is_evidence_of_copying(0.06, 1.0)
    assert is_evidence_of_copying(0.0, 0.69)
    assert not is_evidence_of_copying(0.06, 1.0, reference=0.02)


@pytest.mark.parametrize("mirror", [False, True])
def test_no_more_pictures_are_found_than_there_are(mirror):
    pictures = np.random.default_rng(0).integers(0, 17, (6, 4, 4))
    message = "k=7 must be a whole number from 1 to 6, the training pictures there are"
    with pytest.raises(ParameterError, match=message):
        nearest_pictures(pictures, pictures, 7, mirror=mirror, device="cpu")
    found, _ = nearest_pictures(pictures, pictures, 6, mirror=mirror, device="cpu")
    assert found.shape == (6, 6, 4, 4)


@pytest.mark.parametrize("patch", [0, 2])
def test_rows_that_are_no_pictures_have_no_patches(patch):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    message = rf"patch={patch} cuts pictures \(n, h, w\), but the rows are \(n, d\)"
    with pytest.raises(ParameterError, match=message):
        memorized_rate(rows, rows, rows, patch=patch, device="cpu")
