"""Points sorted by class, and the sliced distance by which models are scored."""

import numpy as np
import ot
import pytest
import torch

from sliceflow.engine.clouds import Cloud, Permutation, sliced_distance
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ContinuousY,
    MixedY,
    SeparateClasses,
)
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError


def cloud(x, y=None):
    return Cloud(torch.from_numpy(x.T.copy()), y)


def test_points_are_sorted_by_class_and_brought_back():
    y = SeparateClasses(torch.tensor([2, 0, 2, 0, 3]), n_classes=5)
    x = torch.arange(10.0).view(2, 5)
    by_class = Cloud(x, y).sorted_by_class()
    assert by_class.y.values.tolist() == [0, 0, 2, 2, 3]
    assert by_class.x[0].tolist() == [1, 3, 0, 2, 4]  # in their order in each class
    assert by_class.class_slices.starts == (0, 2, 2, 4, 5, 5)
    assert torch.equal(by_class.in_user_order(), x)
    assert torch.equal(by_class.in_user_order(10 * by_class.x), 10 * x)


def test_points_whose_classes_share_maps_stay_in_order():
    labelled = Cloud(torch.zeros(2, 3), ClassIndices(torch.tensor([2, 0, 1])))
    assert labelled.sorted_by_class() is labelled
    assert labelled.in_user_order() is labelled.x


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
        cloud(samples, ClassIndices(y_p)), cloud(x, ClassIndices(y)), Seed(0), 40
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
        sliced_distance(cloud(x[:100], MixedY(y[:100])), cloud(x, MixedY(y)), Seed(0))
        for y in (y, exchanged)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_continuous_conditions_are_compared_together_with_x():
    """x = y + noise against the same x beside other y."""
    rng = np.random.default_rng(2)
    y = torch.from_numpy(rng.normal(size=(1000, 1)))
    x = y.numpy() + 0.1 * rng.normal(size=(1000, 1))
    rows = cloud(x[:300], ContinuousY(y[:300]))
    right = sliced_distance(cloud(x, ContinuousY(y)), rows, Seed(0))
    shuffled = cloud(rng.permutation(x), ContinuousY(y))
    wrong = sliced_distance(shuffled, rows, Seed(0))
    assert right < 0.2
    assert wrong > 3 * right


def test_a_class_without_samples_is_named():
    points = torch.zeros(2, 3, dtype=torch.float64)
    samples = Cloud(points, ClassIndices(torch.tensor([0, 0, 2])))
    rows = Cloud(points, ClassIndices(torch.tensor([0, 1, 2])))
    with pytest.raises(DataError, match="no samples of class 1, which the data have"):
        sliced_distance(samples, rows, Seed(0))


def test_a_permutation_and_its_inverse():
    y = ClassIndices(torch.tensor([2, 0, 2, 1]))
    by_class = Permutation.sorting_classes(y)
    assert by_class.forward.tolist() == [1, 3, 0, 2]
    assert y.values[by_class.forward][by_class.back].tolist() == [2, 0, 2, 1]
    reversed_again = by_class.then(Permutation(torch.tensor([3, 2, 1, 0])))
    assert reversed_again.forward.tolist() == [2, 0, 3, 1]
    assert Cloud(torch.zeros(1, 4)).permuted(None).order is None
