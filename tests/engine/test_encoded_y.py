"""Encoded conditions."""

import pytest
import torch

from problems import sorted_classes
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ClassSlices,
    ContinuousY,
    MixedY,
    SeparateClassIndices,
    SortedClassIndices,
)
from sliceflow.engine.flow import as_flow_y

CLASSES = ClassIndices(torch.tensor([2, 0, 2]))
NUMBERS = ContinuousY(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))


@pytest.mark.parametrize("y", [CLASSES, NUMBERS])
def test_points_are_taken_in_order(y):
    indices = torch.tensor([2, 0])
    assert len(y) == 3
    assert torch.equal(y.take(indices).values, y.values[indices])
    assert torch.equal(y.take(slice(1, 3)).values, y.values[1:])
    assert type(y.take(indices).to("cpu")) is type(y)


def test_a_slice_of_sorted_classes_knows_where_they_are():
    y = sorted_classes(ClassSlices((0, 2, 5, 5, 6)))
    assert y.values.tolist() == [0, 0, 1, 1, 1, 3]
    assert y.to("cpu").class_slices == y.class_slices
    assert y.take(slice(1, 3)).class_slices.starts == (0, 1, 2, 2, 2)
    assert y.take(slice(4)).class_slices.starts == (0, 2, 4, 4, 4)
    for indices in (torch.arange(6), slice(0, 6, 2)):
        taken = y.take(indices)
        assert type(taken) is SeparateClassIndices
        assert taken.values.tolist() == y.values[indices].tolist()


@pytest.mark.parametrize("starts", [(0, 2), (0, 2, 4)])
def test_slices_of_other_points_or_classes_are_refused(starts):
    with pytest.raises(AssertionError, match="slices of other"):
        SortedClassIndices(torch.tensor([0, 0, 1]), 2, ClassSlices(starts))


def test_classes_are_counted():
    assert CLASSES.sizes().tolist() == [1, 0, 2]
    assert CLASSES.sizes(4).tolist() == [1, 0, 2, 0]


def test_a_class_offsets_projections_as_its_one_hot_vector_does(rng):
    z = torch.from_numpy(rng.normal(size=(5, 3)))
    theta = torch.from_numpy(rng.normal(size=(5, 3)))
    one_hot = ContinuousY(torch.nn.functional.one_hot(CLASSES.values, 3).double())
    torch.testing.assert_close(
        CLASSES.add_offset(z, theta), one_hot.add_offset(z, theta)
    )


def test_mixed_y_has_both_parts():
    y = MixedY(torch.tensor([[1.0, 0.5], [0.0, -0.5]]))
    assert y.class_indices.tolist() == [1, 0]
    assert y.continuous.tolist() == [[0.5], [-0.5]]
    assert isinstance(y.take(slice(1)), MixedY)


@pytest.mark.parametrize("sharing", ["shared", "separate"])
def test_no_flow_sees_labels_and_numbers(sharing):
    y = MixedY(torch.tensor([[1.0, 0.5], [0.0, -0.5]]))
    with pytest.raises(TypeError, match="no flow takes labels and numbers"):
        as_flow_y(y, sharing, condition_dim=3)
    assert as_flow_y(y, "unconditional", condition_dim=3) is None
