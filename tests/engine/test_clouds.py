"""Points sorted by class, and the sliced distance by which models are scored."""

import numpy as np
import ot
import pytest
import torch

from sliceflow.engine.clouds import (
    ClassOrder,
    Cloud,
    Permutation,
    sliced_distance,
)
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ContinuousY,
    MixedY,
    SeparateClassIndices,
)
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError


def points(x):
    return torch.from_numpy(x.T.copy())


def test_points_are_sorted_by_class_and_brought_back():
    y = SeparateClassIndices(torch.tensor([2, 0, 2, 0, 3]), n_classes=5)
    x = torch.arange(10.0).view(2, 5)
    cloud = Cloud(x.clone(), y)
    with cloud.moving_in_class_order() as (by_class, order):
        assert by_class.y.values.tolist() == [0, 0, 2, 2, 3]
        assert by_class.x[0].tolist() == [1, 3, 0, 2, 4]  # in their order in each class
        assert by_class.class_slices.starts == (0, 2, 2, 4, 5, 5)
        assert torch.equal(order.undo_on_x(by_class.x), x)
        by_class.x.mul_(10)
        assert torch.equal(cloud.x, x)
    assert torch.equal(cloud.x, 10 * x)


def test_points_stay_where_they_are_if_an_error_ends_their_move():
    cloud = Cloud(torch.arange(4.0)[None], SeparateClassIndices(torch.arange(4) % 2, 2))

    def fail():
        with cloud.moving_in_class_order() as (by_class, _):
            by_class.x.zero_()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert cloud.x.tolist() == [[0, 1, 2, 3]]


def test_the_distance_by_class_is_pots_in_the_shares_of_the_rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    y = torch.from_numpy(np.repeat([0, 2], [50, 30]))
    samples = rng.normal(size=(110, 3)) + 1
    y_p = torch.from_numpy(np.repeat([2, 0, 7], [30, 50, 30]))
    theta = Seed(0).normal(40, 3)
    directions = (theta / theta.norm(dim=1, keepdim=True)).T.numpy()
    squares = [
        ot.sliced_wasserstein_distance(
            samples[y_p == c], x[y == c], projections=directions
        )
        ** 2
        for c in (0, 2)  # of 7 there are no rows
    ]
    exact = np.sqrt((50 * squares[0] + 30 * squares[1]) / 80)
    found = sliced_distance(
        points(samples),
        points(x),
        Seed(0),
        40,
        y_p=ClassIndices(y_p),
        y_q=ClassIndices(y),
    )
    assert found == pytest.approx(exact, rel=1e-9)


def test_mixed_conditions_have_classes_in_any_order():
    """The numbers of classes are names: exchanged, the distance is the same."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 3))
    classes = rng.integers(0, 2, 200)
    y = torch.from_numpy(np.column_stack((classes, rng.normal(size=200))))
    exchanged = y.clone()
    exchanged[:, 0] = 1 - y[:, 0]
    found = [
        sliced_distance(
            points(x[:100]),
            points(x),
            Seed(0),
            y_p=MixedY(y[:100]),
            y_q=MixedY(y),
        )
        for y in (y, exchanged)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_continuous_conditions_are_compared_together_with_x():
    """x = y + noise against the same x beside other y."""
    rng = np.random.default_rng(2)
    y = torch.from_numpy(rng.normal(size=(1000, 1)))
    x = y.numpy() + 0.1 * rng.normal(size=(1000, 1))
    rows = points(x[:300])
    both_y = {"y_p": ContinuousY(y), "y_q": ContinuousY(y[:300])}
    right = sliced_distance(points(x), rows, Seed(0), **both_y)
    shuffled = points(rng.permutation(x))
    wrong = sliced_distance(shuffled, rows, Seed(0), **both_y)
    assert right < 0.2
    assert wrong > 3 * right


def test_a_class_without_samples_is_named():
    x = torch.zeros(2, 3, dtype=torch.float64)
    y_p = ClassIndices(torch.tensor([0, 0, 2]))
    y_q = ClassIndices(torch.tensor([0, 1, 2]))
    with pytest.raises(DataError, match="no samples of class 1, which the data have"):
        sliced_distance(x, x, Seed(0), y_p=y_p, y_q=y_q)


def test_a_permutation_and_its_inverse():
    y = ClassIndices(torch.tensor([2, 0, 2, 1]))
    by_class = ClassOrder.from_y(y, n_classes=3)
    assert by_class.indices.tolist() == [1, 3, 0, 2]
    assert y.values[by_class.indices][by_class.inverse].tolist() == [2, 0, 2, 1]
    reversed_again = by_class.then(Permutation(torch.tensor([3, 2, 1, 0])))
    assert reversed_again.indices.tolist() == [2, 0, 3, 1]
