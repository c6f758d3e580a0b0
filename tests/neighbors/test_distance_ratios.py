"""Draws of the chosen bandwidth are as far from rows as rows are from each other."""

import math

import numpy as np
import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbors.distance_ratios import (
    choose_bandwidth,
    log_distance_ratio,
    median_distance_ratio,
)


def test_ratios_compare_samples_with_rows():
    samples = torch.tensor([1.0, 2.0, 4.0]).double()
    rows = torch.tensor([2.0, 4.0, 8.0]).double()
    assert log_distance_ratio(samples, rows) == pytest.approx(math.log(0.5))
    assert median_distance_ratio(samples.numpy(), rows.numpy()) == 0.5
    assert log_distance_ratio(rows, rows, offset=1.0) == 0


def test_distances_of_0_are_left_out_unless_an_offset_makes_them_count():
    rows = torch.ones(3).double()
    copied = torch.tensor([0.0, 1.0, 1.0]).double()
    assert log_distance_ratio(copied, rows) == 0
    assert log_distance_ratio(copied, rows, offset=1.0) == pytest.approx(
        -math.log(2) / 3
    )
    assert log_distance_ratio(torch.zeros(3).double(), rows) < -100


def with_noise(rows, h, seed=1):
    return rows + h * Seed(seed).normal(*rows.shape)


def test_equal_rows_count_once_and_rows_that_are_all_equal_give_0():
    rows = 3 * Seed(0).normal(300, 2)
    twice = torch.cat((rows, rows))

    def draw(h):
        return [with_noise(rows, h)]

    assert choose_bandwidth([rows], draw) == choose_bandwidth([twice], draw) > 0

    def fail(h):
        pytest.fail("nothing to choose")

    assert choose_bandwidth([torch.ones(9, 2)], fail) == 0


def test_the_bandwidth_is_the_largest_where_draws_never_get_as_far_from_rows():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 2)))
    assert choose_bandwidth([rows], lambda h: [rows + 1e-6 * h]) == pytest.approx(1.2)
