"""Both searches find the nearest rows: against all distances, ties, bytes, blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from sliceflow.engine.random import Seed
from sliceflow.neighbors import search
from sliceflow.neighbors.search import build_index, nearest_rows, query_index

CPU = torch.device("cpu")


@given(st.integers(2, 40), st.integers(1, 9), st.integers(0, 99))
def test_the_nearest_rows_are_found_and_the_row_itself_is_left_out(n, d, seed):
    numbers = np.random.default_rng(seed).integers(0, 4, (n, d))
    rows = torch.from_numpy(numbers.astype(float))
    k = max(1, (n - 1) // 2)
    all_distances = torch.cdist(rows, rows)
    distances, _ = query_index(build_index(rows), rows, k)
    assert torch.allclose(distances, all_distances.sort(1).values[:, :k], atol=1e-9)

    own = torch.arange(n)
    distances, found = query_index(build_index(rows), rows, k, exclude=own)
    itself = torch.full((n,), torch.inf, dtype=torch.float64)
    others = all_distances + torch.diag(itself)
    assert torch.allclose(distances, others.sort(1).values[:, :k], atol=1e-9)
    assert not (found == own[:, None]).any()


def test_many_wide_rows_are_searched_by_all_distances(monkeypatch):
    monkeypatch.setattr(search, "_MAX_TREE_ROWS", 50)
    rows = Seed(0).normal(60, 7)
    assert build_index(rows).algorithm == "brute"
    assert build_index(rows[:, :6]).algorithm == "auto"
    _, found = query_index(build_index(rows), rows, 1)
    assert (found[:, 0] == torch.arange(60)).all()


def test_rows_with_missing_numbers_have_distances_of_the_others():
    rows = np.array([[0.0, np.nan], [np.nan, 3.0], [9.0, 9.0]])
    index = build_index(rows, metric="nan_euclidean")
    _, found = query_index(index, np.array([[0.5, 8.0], [np.nan, 4.0]]), 1)
    assert found[:, 0].tolist() == [0, 1]


@given(st.integers(2, 40), st.integers(1, 9), st.integers(0, 99))
def test_one_row_for_each_point_is_excluded(n, d, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    points = rng.normal(size=(7, d))
    exclude = rng.integers(n, size=7)
    k = min(3, n - 1)
    distances, found = nearest_rows(points, rows, k, device=CPU, exclude=exclude)
    expected = cdist(points, rows)
    expected[np.arange(7), exclude] = np.inf
    assert np.allclose(distances, np.sort(expected, axis=1)[:, :k], atol=1e-12)
    by_index = query_index(
        build_index(rows), points, k, exclude=torch.from_numpy(exclude)
    )
    assert np.array_equal(found, by_index[1].numpy())


@pytest.mark.parametrize("n_rows", [7, 64])
def test_blocks_change_nothing(n_rows, monkeypatch, rng):
    points = rng.normal(size=(50, 5))
    rows = rng.normal(size=(83, 5))

    def found():
        others = nearest_rows(rows, rows, 4, device=CPU, exclude=np.arange(83))
        return [*nearest_rows(points, rows, 4, device=CPU), *others]

    whole = found()
    monkeypatch.setattr(search, "_MAX_BLOCK_ROWS", n_rows)
    for in_blocks, at_once in zip(found(), whole, strict=True):
        assert np.array_equal(in_blocks, at_once)
