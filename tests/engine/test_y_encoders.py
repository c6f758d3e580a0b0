"""Encoders of y, the offsets of an encoded y, and what a flow does with it."""

import math
from datetime import date, time

import numpy as np
import pandas as pd
import pytest
import torch

from sliceflow.engine.encoded_y import ClassIndices, ContinuousY, add_condition_offset
from sliceflow.engine.flow import resolve_map_sharing
from sliceflow.engine.labels import as_array, as_finite
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ContinuousEncoder,
    broadcast_condition,
    infer_encoder,
)
from sliceflow.errors import DataError


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([3, 1, 3], [1, 0, 1]),
        (["b", "a", "b"], [1, 0, 1]),
        ([True, False, True], [1, 0, 1]),
        ([(0, 1), (0, 0), (0, 1)], [1, 0, 1]),
        ([1, "one", (1,), 1], [0, 1, 2, 0]),
        (pd.Series(["x", "y", "x"]), [0, 1, 0]),
        (torch.tensor([5, 4, 5]), [1, 0, 1]),
    ],
)
def test_labels_of_any_hashable_kind(y, classes):
    array = as_array(y)
    labels = infer_encoder(array, len(classes))
    assert isinstance(labels, ClassEncoder)
    assert labels.encode(array).values.tolist() == classes


def test_whole_floats_are_labels_and_fractions_are_not():
    assert infer_encoder(np.array([0.0, 1.0]), 2).condition_dim == 2
    with pytest.raises(
        ValueError, match=r"holds fractions such as .*0\.5.*; pass y\[:, None\]"
    ):
        infer_encoder(np.array([0.0, 0.5]), 2)


@pytest.mark.parametrize(
    ("y", "value"),
    [
        ([(0.5, 1.0), (0.0, 2.0)], r"\(0.5, 1.0\) holds a fraction, 0.5"),
        ([("a", 1), ("b", 1.5)], r"\('b', 1.5\) holds a fraction, 1.5"),
        (pd.Series([(1, 2), (1, 0.1)]), r"\(1, 0.1\) holds a fraction, 0.1"),
        (np.array([1, 0.5], dtype=object), r"holds fractions such as 0.5"),
    ],
)
def test_tuples_with_fractions_are_a_continuous_y_that_is_refused(y, value):
    with pytest.raises(DataError, match=value):
        infer_encoder(as_array(y), 2)


@pytest.mark.parametrize(
    "y",
    [
        [(0.0, 1), (1.0, 2)],
        [(), ()],
        [("a", 0.5), ("b", "c")],  # no column of numbers
        [(0.5,), (1, 2)],  # nor these
        [0.5, "a"],
    ],
)
def test_other_tuples_are_labels(y):
    assert infer_encoder(as_array(y), 2).kind == "labels"


DATES = {
    "numpy": np.array(["2020", "2021"], "M8[D]"),
    "durations": np.array([1, 2], "m8[D]"),
    "Series": pd.Series(pd.to_datetime(["2020-01-01", None])),
    "time zone": pd.Series(pd.date_range("2020", periods=2, tz="UTC")),
    "index": pd.date_range("2020", periods=2),
    "Timestamps": list(pd.date_range("2020", periods=2)),
    "dates": [date(2020, 1, 1), date(2020, 1, 2)],
    "times": [time(10), time(11)],
    "months": pd.Series(pd.period_range("2020-01", periods=2, freq="M")),
    "categories": pd.Series(pd.Categorical(pd.date_range("2020", periods=2))),
    "tuples": [("a", date(2020, 1, 1)), ("b", date(2020, 1, 2))],
    "column": np.array([["2020"], ["2021"]], "M8[D]"),
    "mixed": pd.DataFrame({"d": pd.date_range("2020", periods=2), "x": [1.0, 2.5]}),
}


@pytest.mark.parametrize("y", DATES.values(), ids=DATES)
def test_dates_are_neither_labels_nor_numbers(y):
    with pytest.raises(DataError, match="turn dates and durations into text"):
        infer_encoder(as_array(y), 2)


def test_columns_are_standardized_and_constant_ones_survive():
    y = np.array([[1.0, 5.0], [3.0, 5.0]])
    columns = infer_encoder(y, 2)
    assert isinstance(columns, ContinuousEncoder)
    assert columns.encode(y).values.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_a_constant_column_is_not_divided_by_its_rounding_error():
    y = np.full((300, 1), 0.1)
    assert y.std() > 0
    columns = infer_encoder(y, 300)
    assert columns.mean.tolist() == [0.1]
    assert columns.scale.tolist() == [1.0]
    in_float32 = columns.encode(np.array([[0.1]], np.float32)).values
    assert float(in_float32.abs().max()) < 1e-8


def test_the_offset_of_a_label_is_that_of_its_one_hot_row():
    theta_y = torch.randn(6, 4)
    classes = torch.tensor([2, 0, 3])
    one_hot = torch.nn.functional.one_hot(classes, 4).float()
    z = torch.randn(6, 3)
    wanted = z + 7 * theta_y @ one_hot.T
    for y in (ClassIndices(classes), ContinuousY(one_hot)):
        assert torch.allclose(
            add_condition_offset(z, 7 * theta_y, y), wanted, atol=1e-5
        )


def test_messages_name_what_does_not_fit():
    labels = infer_encoder(np.arange(10), 10)
    with pytest.raises(
        ValueError, match=r"y has shape \(2, 3\) but the model was fitted with class"
    ):
        labels.encode(np.zeros((2, 3)))
    columns = infer_encoder(np.random.default_rng(0).normal(size=(4, 2)), 4)
    with pytest.raises(ValueError, match="row 1, column 0: y contains nan; "):
        columns.encode(np.array([[0.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(
        ValueError, match=r"row 1: y is a dict, \{\}; labels must be hashable"
    ):
        infer_encoder(as_array([1, {}]), 2)
    with pytest.raises(ValueError, match="labels must be hashable"):
        labels.encode([1, {}])


@pytest.mark.parametrize(
    "value", [None, np.float32("nan"), pd.NaT, pd.NA, ("a", np.nan)], ids=str
)
def test_a_missing_label_is_refused_with_its_row(value):
    for labels in (["a", "b", value], [("a", 1), ("b", 2), value], [1, 2, value]):
        with pytest.raises(ValueError, match="row 2: y has no label"):
            infer_encoder(as_array(labels), 3)


COLUMNS = {
    "objects": pd.Series(["a", None, "b"], dtype=object),
    "text with NA": pd.Series(["a", None, "b"], dtype="string"),
    "categories": pd.Series(["a", None, "b"], dtype="category"),
    "complex": np.array([1j, complex("nan"), 2j]),
    "integers with NA": pd.Series([1, None, 2], dtype="Int64"),
    "floats": np.array([1.0, np.nan, 2.0]),
}


@pytest.mark.parametrize("y", COLUMNS.values(), ids=COLUMNS)
def test_a_missing_label_of_a_column_is_refused_with_its_row(y):
    with pytest.raises(ValueError, match="row 1: y has no label"):
        infer_encoder(as_array(y), 3)
    whole = as_array(y)[[0, 2]]
    assert infer_encoder(whole, 2).encode(whole).values.tolist() == [0, 1]


def test_a_mask_is_not_ignored():
    y = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 0], [1, 0]])
    columns = infer_encoder(np.ones((2, 2)), 2)
    for call in (
        columns.encode,
        lambda y: broadcast_condition(columns, y[1], 3),
    ):
        with pytest.raises(ValueError, match="a value of y is masked"):
            call(y)
    assert type(as_array(np.ma.masked_array([1, 2]))) is np.ndarray


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([1, "1", 1, True], [1, "1", True]),
        ([1, 0, True, False, 1], [1, 0, True, False]),
        ([(1, "a"), (True, "a"), ("1", "a")], [(1, "a"), (True, "a"), ("1", "a")]),
        ([1, 1.0, 2], [1.0, 2.0]),  # numbers of one value are one label
    ],
)
def test_labels_of_different_types_are_different(y, classes):
    labels = infer_encoder(as_array(y), len(y))
    assert sorted(map(repr, labels.classes.tolist())) == sorted(map(repr, classes))
    decoded = labels.decode(labels.encode(y)).tolist()
    assert [(v, isinstance(v, bool)) for v in decoded] == [
        (v, isinstance(v, bool)) for v in y
    ]


def test_a_label_of_another_type_is_unknown():
    labels = infer_encoder(np.array([0, 1]), 2)
    assert labels.encode([1.0, 0]).values.tolist() == [1, 0]
    for y in ([True], ["1"], [(1,)]):
        with pytest.raises(ValueError, match=r"unknown label .*; the model knows 0, 1"):
            labels.encode(y)


@pytest.mark.parametrize(
    ("amplifier", "condition_dim", "sharing"),
    [
        (10.0, 0, "unconditional"),
        (math.inf, 0, "unconditional"),
        (0.0, 3, "unconditional"),
        (0.5, 3, "shared"),
        (math.inf, 3, "separate"),
    ],
)
def test_the_amplifier_says_what_a_flow_does_with_a_condition(
    amplifier, condition_dim, sharing
):
    assert resolve_map_sharing(amplifier, condition_dim) == sharing


def test_numbers_that_are_none_are_named_as_the_caller_calls_them():
    with pytest.raises(DataError, match="theta has a column of numbers"):
        as_finite(np.array([[1.0, "a"]], dtype=object), "theta")


def test_a_label_that_cannot_be_hashed_is_an_error_of_the_data():
    encoder = ClassEncoder.from_data(np.array(["a", "b"]))
    with pytest.raises(DataError, match="labels must be hashable"):
        encoder.encode([["a"], {"b": 1}])


def test_a_tuple_is_no_bool_whatever_is_in_it():
    """The key of True was the tuple of it and the word bool."""
    labels = np.empty(4, object)
    for i, label in enumerate([True, (1, "bool"), True, (1, "bool")]):
        labels[i] = label
    encoder = infer_encoder(labels, 4, "y")
    assert encoder.encode(labels).values.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
