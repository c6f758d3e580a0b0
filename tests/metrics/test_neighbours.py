"""Neighbours against brute force: blocks, ties, bytes, mirrors. NN ratio, copies and strays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.metrics import copies, lookalikes, nearest, nearest_pictures, nn_ratio, pairs, strays
from sliceflow.metrics.neighbours import share_of_copies, share_of_strays

rng = np.random.default_rng(0)


@given(st.integers(1, 60), st.integers(2, 60), st.integers(1, 9), st.integers(0, 999), st.booleans())
def test_neighbours_are_those_of_all_pairs(n, m, d, seed, whole):
    draw = np.random.default_rng(seed)
    a, b = (draw.integers(0, 5, (size, d)) if whole else draw.normal(size=(size, d)) for size in (n, m))
    k = min(3, m)
    distances, index = nearest(a, b, k, device="cpu")
    full = cdist(a.astype(float), b.astype(float))
    order = np.argsort(full.round(12), axis=1, kind="stable")[:, :k]
    assert np.allclose(distances, np.take_along_axis(full, order, 1), atol=1e-12)
    if not whole:  # ties of whole numbers may be more than the candidates
        assert np.array_equal(index, order)
    other = nearest(b, b, min(k, m - 1), device="cpu", leave_out_itself=True)
    full = cdist(b.astype(float), b.astype(float))
    np.fill_diagonal(full, np.inf)
    assert np.allclose(other[0], np.sort(full, axis=1)[:, : min(k, m - 1)], atol=1e-12)
    assert not (other[1] == np.arange(m)[:, None]).any()


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_blocks_change_nothing(rows, monkeypatch):
    a, b = rng.normal(size=(50, 5)), rng.normal(size=(83, 5))
    whole = nearest(a, b, 4, device="cpu")
    alone = nearest(b, b, 4, device="cpu", leave_out_itself=True)
    monkeypatch.setattr(pairs, "_ROWS", rows)
    for before, now in zip(
        (*whole, *alone),
        (*nearest(a, b, 4, device="cpu"), *nearest(b, b, 4, device="cpu", leave_out_itself=True)),
        strict=True,
    ):
        assert np.array_equal(before, now)


def test_copies_are_at_exactly_zero_far_from_the_origin():
    data = 1e4 + rng.normal(size=(2000, 300))
    distances, index = nearest(data[::7], data, device="cpu")
    assert np.all(distances == 0)
    assert np.array_equal(index[:, 0], np.arange(2000)[::7])
    data = rng.integers(0, 256, (500, 3072)).astype(np.uint8)
    assert np.all(nearest(data[:40], data, device="cpu")[0] == 0)
    near = data[:40].copy()
    near[:, 0] ^= 1  # one grey level: bytes must not wrap around
    assert np.all(nearest(near, data, device="cpu")[0] == 1)


def test_mirror_images_are_found_once_and_turned():
    train = rng.integers(0, 256, (30, 6, 6, 3)).astype(np.uint8)
    images = train[:4, :, ::-1]
    found, distances = nearest_pictures(images, train, 3, mirror=True, device="cpu")
    assert np.all(distances[:, 0] == 0)
    assert np.array_equal(found[:, 0], images)
    assert np.all(distances[:, 1] > 0)  # not the same picture again
    assert np.all(np.diff(distances) >= 0)
    assert np.all(nearest_pictures(images, train, 3, device="cpu")[1] > 0)
    test = rng.integers(0, 256, (9, 6, 6, 3))
    assert nn_ratio(images, train, test, mirror=True, device="cpu") == 0
    assert nn_ratio(images, train, test, device="cpu") > 0.5
    assert copies(images, train, test, mirror=True, device="cpu") == 1
    assert copies(images, train, test, device="cpu") == 0
    # Without test rows, a row's own mirror image is not its neighbour: all would be copies of theirs.
    even = np.concatenate((train, train[:, :, ::-1]), axis=2)
    others = nearest(even, even, device="cpu", leave_out_itself=True)[0][:, 0]
    ratio = nn_ratio(even[::-1], even, mirror=True, device="cpu")
    assert ratio == 0 < np.median(others)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"k": 0}, "k=0"),
        ({"k": 6}, "from 1 to 5"),
        ({"k": 5, "leave_out_itself": True}, "from 1 to 4"),
        ({"device": "no such"}, "no such"),
    ],
)
def test_wrong_arguments_are_named(keywords, said):
    rows = rng.normal(size=(5, 2))
    with pytest.raises(ValueError, match=said):
        nearest(rows, rows, **keywords)


def test_itself_can_only_be_left_out_of_itself():
    with pytest.raises(ValueError, match="3 rows and 4 data"):
        nearest(np.zeros((3, 1)), np.zeros((4, 1)), leave_out_itself=True)


@pytest.mark.slow
def test_ten_thousand_pictures_in_bounded_memory():
    import tracemalloc

    data = rng.integers(0, 256, (10_000, 3072)).astype(np.uint8)
    tracemalloc.start()
    distances, _ = nearest(data[::5], data, device="cpu")
    assert tracemalloc.get_traced_memory()[1] < 1 << 30  # numpy's part
    tracemalloc.stop()
    assert np.all(distances == 0)


@pytest.mark.parametrize("metric", [nn_ratio, copies, strays, lookalikes])
def test_rows_have_no_mirror_images(metric):
    rows = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(ValueError, match=r"rows of shape \(20, 4\) have no mirror images"):
        metric(rows, rows, rows, mirror=True, device="cpu")
    with pytest.raises(ValueError, match=r"rows of shape \(20, 4\) have no mirror images"):
        nearest_pictures(rows, rows, mirror=True, device="cpu")


def test_lookalikes_need_some_rows_to_stand_out_of():
    with pytest.raises(ValueError, match="lookalikes needs 10 train rows or more, but there are 9"):
        lookalikes(np.zeros((5, 2)), np.zeros((9, 2)), np.zeros((5, 2)), device="cpu")


@pytest.mark.parametrize("metric", [nn_ratio, copies, strays])
def test_rows_that_are_their_own_neighbours_are_refused(metric):
    rows = rng.normal(size=(20, 4))
    with pytest.raises(ValueError, match=r"the median test row is identical .* between test and train"):
        metric(rows, rows, rows, device="cpu")
    with pytest.raises(ValueError, match=r"the median train row is identical .* duplicates in train"):
        metric(rows, np.repeat(rows, 2, axis=0), device="cpu")


def on_a_line(distances):
    """Rows at these distances from the one train row 0."""
    return np.asarray(distances, float)[:, None]


def test_copies_are_samples_nearer_than_one_percent_of_the_test_rows():
    origin, test = np.zeros((1, 1)), on_a_line(range(1, 1000))  # the limit is 10, at rank 1000 / 100
    samples = on_a_line([0, 3, 9.9, 10.1, 11, 50, 999, 1000])
    assert copies(samples, origin, test, device="cpu") == 3 / 8
    assert strays(samples, origin, test, device="cpu") == 1 / 8
    test = on_a_line(range(1, 11))  # the limit is the least of few
    assert copies(samples, origin, test, device="cpu") == 1 / 8
    assert strays(samples, origin, test, device="cpu") == 5 / 8


def test_samples_that_tie_with_test_rows_count_in_part():
    origin, test = np.zeros((1, 1)), on_a_line([0] * 4 + [1] * 96)  # 4 % equal the train row
    share = copies(on_a_line([0] * 8 + [1] * 92), origin, test, device="cpu")
    assert share == pytest.approx(0.02)  # twice as many
    assert copies(test, origin, test, device="cpu") == pytest.approx(0.01)
    assert strays(test, origin, test, device="cpu") == 0


@given(st.integers(1, 3000), st.integers(0, 999), st.booleans())
def test_test_rows_themselves_score_one_percent_and_no_strays(n, seed, whole):
    draw = np.random.default_rng(seed)
    distances = draw.integers(0, 40, n).astype(float) if whole else draw.exponential(size=n)
    assert share_of_copies(distances, distances) == pytest.approx(0.01, abs=min(0.005, 1 / n))
    assert share_of_strays(distances, distances) == 0


@given(
    st.integers(100, 300), st.integers(1, 5), st.integers(0, 999), st.integers(-20, 20), st.booleans()
)
def test_copies_and_strays_have_no_unit_and_see_copies_and_far_samples(n, d, seed, power, held_out):
    draw = np.random.default_rng(seed)
    train, test, fresh = draw.normal(size=(3, n, d))
    others = (train, test) if held_out else (train,)
    mixed = np.concatenate((train[: n // 2], fresh, fresh[: n // 3] * 20))
    for metric in (copies, strays):
        before = metric(mixed, *others, device="cpu")
        scaled = (2.0**power * x for x in (mixed, *others))
        assert metric(*scaled, device="cpu") == before
    assert copies(train, *others, device="cpu") == 1
    assert strays(train, *others, device="cpu") == 0
    assert copies(fresh + 99, *others, device="cpu") == 0
    assert strays(fresh + 99, *others, device="cpu") == 1


@pytest.mark.parametrize("n", [30, 150, 250])
@pytest.mark.parametrize("held_out", [True, False])
def test_new_real_rows_score_one_percent_copies_and_one_in_n_strays(n, held_out):
    found = []
    for seed in range(150):
        draw = np.random.default_rng(seed)
        train, test = draw.normal(size=(2, n, 2))
        others = (train, test) if held_out else (train,)
        fresh = draw.normal(size=(1000, 2))
        found.append([metric(fresh, *others, device="cpu") for metric in (copies, strays)])
    off = np.std(found, axis=0) / 150**0.5  # standard errors of the means
    nearest_rows = 1 if held_out else 2  # two train rows share the least distance
    expected = np.array([max(0.01, nearest_rows / (n + 1)), 1 / (n + 1)])
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 4 * off), (np.mean(found, axis=0), off)
    assert np.all(off < expected / 5)
