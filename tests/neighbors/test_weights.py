"""Weights are Epanechnikov's, and choices follow weights."""

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbors.weights import choose_by_weight, kernel_weights


def test_weights_fall_with_the_squared_distance():
    distances = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]).double()
    weights, radius = kernel_weights(distances)
    assert weights[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0], abs=1e-5)
    assert weights[1].tolist() == pytest.approx([1 / 3] * 3)
    assert radius[:, 0].tolist() == pytest.approx([2, 1], rel=1e-5)


def test_choices_follow_the_weights():
    weights = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).double()
    chosen = choose_by_weight(weights, Seed(0).uniform(1, 20_000))[0]
    shares = torch.bincount(chosen, minlength=4) / 20_000
    assert (shares - weights[0]).abs().max() < 0.01
