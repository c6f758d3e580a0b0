"""Checks of parameters and data, and conversions of what users pass."""

import math

import numpy as np
import pytest
import torch

from sliceflow import SlicedWassersteinFlow, frames, transports
from sliceflow.engine.events import Progress
from sliceflow.errors import DataError, ParameterError
from sliceflow.validation import (
    as_callables,
    as_column_bounds,
    check_finite,
    from_tensor,
    is_int,
    is_object_of,
    is_real,
    require,
    require_arguments,
    require_bool,
    require_choice,
    require_int,
    require_real,
    require_verbosity,
    unmasked,
)


def test_what_is_required_is_said_with_the_value():
    require(True, "n", 1, "at least 1")
    with pytest.raises(ParameterError, match="n=0 must be at least 1") as caught:
        require(False, "n", 0, "at least 1")
    assert (caught.value.parameter, caught.value.value) == ("n", 0)


@pytest.mark.parametrize(
    ("check", "requirement"),
    [
        (lambda: require_choice("p", "c", ("a", "b")), "'a' or 'b'"),
        (lambda: require_choice("p", 1, (None, "a", "b")), "None, 'a' or 'b'"),
        (lambda: require_choice("p", np.ones(2), ("a",)), "'a'"),
        (lambda: require_bool("p", 1), "True or False"),
        (lambda: require_int("p", 0, 1), "an int of at least 1"),
        (lambda: require_int("p", True, 1), "an int of at least 1"),
        (
            lambda: require_int("p", "often", 1, others=("auto", None)),
            "'auto', None or an int of at least 1",
        ),
        (lambda: require_real("p", np.inf, 0), "a finite number of at least 0"),
        (
            lambda: require_real("p", np.nan, 0, may_be_infinite=True),
            "a number of at least 0, which may be math.inf",
        ),
        (lambda: require_verbosity("much"), "a bool, or an int of at least 0"),
    ],
)
def test_each_check_says_all_that_a_parameter_may_be(check, requirement):
    with pytest.raises(ParameterError) as caught:
        check()
    assert caught.value.fact == f"must be {requirement}"


def test_valid_parameters_pass_the_checks():
    require_choice("p", None, (None, "a"))
    require_bool("p", np.True_)
    require_int("p", np.int8(1), 1)
    require_int("p", "auto", 1, others=("auto",))
    require_real("p", 0, 0)
    require_real("p", np.float64("inf"), 0, may_be_infinite=True)
    require_verbosity(True)
    require_verbosity(2)


def test_results_that_are_not_finite_are_counted():
    check_finite(torch.ones(3), "scale the rows")
    values = torch.tensor([1.0, torch.inf, torch.nan])
    with pytest.raises(DataError, match=r"2 of 3 values .*float32") as caught:
        check_finite(values, "scale the rows")
    assert caught.value.hint == "scale the rows"


def test_bools_and_nan_are_no_numbers():
    assert is_int(3, 3)
    assert is_int(np.int8(3), 1)
    assert not is_int(2, 3)
    assert not is_int(True, 0)
    assert not is_int(2.0, 0)
    assert is_real(0.5, 0, 1)
    assert is_real(np.float32(1), 0, 1)
    assert not is_real(float("nan"), 0)
    assert not is_real(True, 0)
    assert not is_real("1", 0)
    assert not is_real(10**400, 0, math.inf)


def test_bounds_are_arrays_of_all_columns():
    low, high = as_column_bounds((0, torch.tensor([1.0, np.inf])), 2, "columns")
    assert low.tolist() == [0, 0]
    assert high.tolist() == [1, np.inf]
    low[0] = -1  # arrays of their own
    assert low.tolist() == [-1, 0]
    low, high = as_column_bounds(None, 1, "columns")
    assert (low.tolist(), high.tolist()) == ([-np.inf], [np.inf])


@pytest.mark.parametrize("bounds", [5, (1,), (0, 1, 2), ("a", "b"), ([0, 0], 1), {}])
def test_bounds_that_are_no_pair_are_named(bounds):
    with pytest.raises(ParameterError, match="is not a pair of bounds of the rows"):
        as_column_bounds(bounds, 3, "rows")


@pytest.mark.parametrize("bounds", [([0, 1], 1), (0, [1, float("nan")])])
def test_bounds_in_the_wrong_order_are_named(bounds):
    with pytest.raises(ParameterError, match=r"not below .* index 1 of the columns"):
        as_column_bounds(bounds, 2, "columns")


def test_masked_values_are_named_by_their_place():
    array = np.ma.masked_array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]])
    with pytest.raises(DataError, match=r"of X is masked at \[1, 1\]; drop or fill"):
        unmasked(array, "X")
    with pytest.raises(DataError, match=r"of y is masked at \[1, 0, 1\]"):
        unmasked([array[:1], array[1:]], "y")
    assert unmasked(array[:1], "X") is not None
    assert unmasked("text", "X") == "text"


def test_tensors_become_arrays_and_other_things_stay():
    assert from_tensor(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert from_tensor(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert from_tensor("x") == "x"


@pytest.mark.parametrize(
    ("listeners", "count"),
    [(print, 1), ((print,), 1), ([print, len], 2), (iter([print]), 1), (None, 0)],
)
def test_one_callable_several_or_none_may_be_given(listeners, count):
    assert len(as_callables(listeners, "listeners")) == count


def test_the_error_of_a_class_says_how_to_make_an_object():
    with pytest.raises(ParameterError) as caught:
        require(False, "listeners", Progress, "a callable")
    assert caught.value.hint == "this is a class: write Progress()"
    with pytest.raises(ParameterError) as caught:
        require(False, "n", int, "a number", "such as 3")
    assert caught.value.hint == "such as 3"  # int is not a class of this package


def test_a_class_has_the_methods_of_a_protocol_and_is_no_object_of_it():
    assert is_object_of(transports.SortedTransport(), transports.Transport)
    assert not is_object_of(transports.SortedTransport, transports.Transport)
    assert not is_object_of(3, transports.Transport)


class _Frames:
    def max_directions(self, d):
        return d

    def make_frame(self, seed, *arguments):
        raise NotImplementedError


class _FramesOfFewArguments(_Frames):
    def make_frame(self, seed, x):
        raise NotImplementedError


class _FramesOfNamedArguments(_Frames):
    def make_frame(self, seed, step_index, x, condition_dim=0, *, x_q=None):
        raise NotImplementedError


def test_methods_of_users_take_the_arguments_that_they_get():
    require_arguments("frame", _Frames(), frames.FrameKind)
    call = r"make_frame\(seed, step_index, x_p, condition_dim, x_q\)"
    for wrong in (_FramesOfFewArguments(), _FramesOfNamedArguments()):
        assert is_object_of(wrong, frames.FrameKind)
        with pytest.raises(ParameterError, match=f"frame=.* can be called as {call}"):
            require_arguments("frame", wrong, frames.FrameKind)
        with pytest.raises(ParameterError, match=call):
            SlicedWassersteinFlow(frame=wrong).plan(np.zeros((5, 2)))


@pytest.mark.parametrize(
    "listeners", [3, (print, 3), Progress, (print, Progress), "on", {}, {"a": 3}]
)
def test_what_cannot_be_called_is_refused(listeners):
    with pytest.raises(
        ParameterError, match=r"listeners=.* must be a callable, a tuple of several, or"
    ):
        as_callables(listeners, "listeners")
