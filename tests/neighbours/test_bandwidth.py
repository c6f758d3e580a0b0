"""The chosen spread is the least whose draws are as far from rows as rows are from each other."""

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbours.bandwidth import choose_spread


def around(rows, h, seed=1):
    return rows + h * Seed(seed).normal(*rows.shape)


def log_nearest(a, b, k):
    return torch.cdist(a, b).topk(k, dim=1, largest=False).values[:, k - 1].log().mean()


def test_draws_at_the_chosen_spread_are_as_far_from_rows_as_these_from_each_other():
    rows = 3 * Seed(0).normal(400, 2)
    h = choose_spread([rows], lambda h: [around(rows, h)])
    ratio = (log_nearest(around(rows, h), rows, 1) - log_nearest(rows, rows, 2)).exp()
    assert float(ratio) == pytest.approx(0.97, abs=0.03)


def test_equal_rows_count_once_and_rows_that_are_all_equal_give_0():
    rows = 3 * Seed(0).normal(300, 2)
    once = choose_spread([rows], lambda h: [around(rows, h)])
    twice = choose_spread([torch.cat((rows, rows))], lambda h: [around(rows, h)])
    assert once == twice > 0
    assert choose_spread([torch.ones(9, 2)], lambda h: pytest.fail("nothing to choose")) == 0
