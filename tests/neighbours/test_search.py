"""The search is exact, weights are Epanechnikov's, and draws are as far from rows as these are apart."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.random import Seed
from sliceflow.neighbours import search
from sliceflow.neighbours.search import (
    build_search,
    choose_spread,
    find_nearest,
    kernel_weights,
    pick,
)


@given(st.integers(2, 40), st.integers(1, 9), st.integers(0, 99))
def test_the_nearest_rows_are_found_and_the_row_itself_is_left_out(n, d, seed):
    rows = torch.from_numpy(
        np.random.default_rng(seed).integers(0, 4, (n, d)).astype(float)
    )
    k = max(1, (n - 1) // 2)
    far = torch.cdist(rows, rows)
    distance, _ = find_nearest(build_search(rows), rows, k)
    assert torch.allclose(distance, far.sort(1).values[:, :k], atol=1e-9)
    distance, found = find_nearest(build_search(rows), rows, k, without=torch.arange(n))
    others = far + torch.diag(torch.full((n,), torch.inf, dtype=torch.float64))
    assert torch.allclose(distance, others.sort(1).values[:, :k], atol=1e-9)
    assert not (found == torch.arange(n)[:, None]).any()


def test_many_wide_rows_are_searched_by_all_distances(monkeypatch):
    monkeypatch.setattr(search, "_MANY", 50)
    rows = Seed(0).normal(60, 7)
    assert build_search(rows).algorithm == "brute"
    assert build_search(rows[:, :6]).algorithm == "auto"
    assert (
        find_nearest(build_search(rows), rows, 1)[1][:, 0] == torch.arange(60)
    ).all()


def test_weights_fall_with_the_squared_distance():
    weight, radius = kernel_weights(
        torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]).double()
    )
    assert weight[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0], abs=1e-5)
    assert weight[1].tolist() == pytest.approx([1 / 3] * 3)
    assert radius[:, 0].tolist() == pytest.approx([2, 1], rel=1e-5)


def test_picks_follow_the_weights():
    weight = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).double()
    picked = pick(weight, Seed(0).uniform(1, 20_000))[0]
    assert (torch.bincount(picked, minlength=4) / 20_000 - weight[0]).abs().max() < 0.01


def around(rows, h, seed=1):
    return rows + h * Seed(seed).normal(*rows.shape)


def test_equal_rows_count_once_and_rows_that_are_all_equal_give_0():
    rows = 3 * Seed(0).normal(300, 2)
    once = choose_spread([rows], lambda h: [around(rows, h)])
    twice = choose_spread([torch.cat((rows, rows))], lambda h: [around(rows, h)])
    assert once == twice > 0
    assert (
        choose_spread([torch.ones(9, 2)], lambda h: pytest.fail("nothing to choose"))
        == 0
    )
