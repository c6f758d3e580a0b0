"""Neighbors against brute force: ties, bytes; copies at exactly zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.metrics import nearest


@given(
    st.integers(1, 60),
    st.integers(2, 60),
    st.integers(1, 9),
    st.integers(0, 999),
    st.booleans(),
)
def test_neighbors_are_those_of_all_pairs(n, m, d, seed, whole):
    rng = np.random.default_rng(seed)
    if whole:
        a = rng.integers(0, 5, (n, d))
        b = rng.integers(0, 5, (m, d))
    else:
        a = rng.normal(size=(n, d))
        b = rng.normal(size=(m, d))
    k = min(3, m)
    distances, index = nearest(a, b, k, device="cpu")
    full = cdist(a.astype(float), b.astype(float))
    order = np.argsort(full.round(12), axis=1, kind="stable")[:, :k]
    assert np.allclose(distances, np.take_along_axis(full, order, 1), atol=1e-12)
    if not whole:  # ties of whole numbers may be more than the candidates
        assert np.array_equal(index, order)
    k = min(k, m - 1)
    distances, index = nearest(b, b, k, device="cpu", exclude_self=True)
    full = cdist(b.astype(float), b.astype(float))
    np.fill_diagonal(full, np.inf)
    assert np.allclose(distances, np.sort(full, axis=1)[:, :k], atol=1e-12)
    assert not (index == np.arange(m)[:, None]).any()


def test_copies_are_at_exactly_zero_far_from_the_origin(rng):
    data = 1e4 + rng.normal(size=(2000, 300))
    distances, index = nearest(data[::7], data, device="cpu")
    assert np.all(distances == 0)
    assert np.array_equal(index[:, 0], np.arange(2000)[::7])
    data = rng.integers(0, 256, (500, 3072)).astype(np.uint8)
    near = data[:40].copy()
    near[:, 0] ^= 1  # one gray level: bytes must not wrap around
    assert np.all(nearest(near, data, device="cpu")[0] == 1)


def test_wrong_arguments_are_named(rng):
    rows = rng.normal(size=(5, 2))
    for data, keywords, said in (
        (rows, {"k": 0}, "k=0"),
        (rows, {"k": 5, "exclude_self": True}, "from 1 to 4"),
        (rows, {"device": "no such"}, "no such"),
        (rows[:3], {"exclude_self": True}, "rows that are the data: 3, 5"),
    ):
        with pytest.raises(ValueError, match=said):
            nearest(data, rows, **keywords)
