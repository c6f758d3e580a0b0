"""Neighbours against brute force: blocks, copies, ties, bytes, mirrors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.metrics import nearest, nearest_pictures, nn_ratio, pairs

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


def test_rows_have_no_mirror_images():
    rows = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(ValueError, match=r"rows of shape \(20, 4\) have no mirror images"):
        nn_ratio(rows, rows, rows, mirror=True, device="cpu")
