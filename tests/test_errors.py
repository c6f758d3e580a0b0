"""Errors: messages from fields, which survive pickling; checks that raise them."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sliceflow.datasets.errors import (
    BrokenPictureError,
    DatasetError,
    MissingSetError,
    MixedSizesError,
)
from sliceflow.errors import (
    DataError,
    DataWarning,
    HintedError,
    NotEnoughMemoryError,
    ParameterError,
    from_tensor,
    is_int,
    is_real,
    require,
    require_finite,
    unmasked,
)

ERRORS = {
    "it fails; do this": HintedError("it fails", "do this"),
    "it fails": HintedError("it fails"),
    "n=-1 must be at least 1": ParameterError("n", -1, "must be at least 1"),
    "n=3 is odd; pass 4": ParameterError("n", np.int64(3), "is odd", "pass 4"),
    "row 5, column 'age': is NaN; drop it": DataError("is NaN", "drop it", 5, "age"),
    "row 0: is empty": DataError("is empty", row=0),
    "column 0: is text": DataError("is text", column=0),
    "there are no rows": DataError("there are no rows"),
    "column 'a': is text; pass columns={'a': 'drop'}": DataError(
        "is text", column="a", suggested_kinds=("drop",)
    ),
    "column 'a': is text; fix it, or pass columns={'a': 'drop'} or {'a': 'category'}": (
        DataWarning(
            "is text", "fix it", column="a", suggested_kinds=("drop", "category")
        )
    ),
    "it needs 9 GiB; fit fewer rows": NotEnoughMemoryError(
        "it needs 9 GiB", "fit fewer rows"
    ),
    "x.png cannot be read; skip it": BrokenPictureError(
        "cannot be read", "skip it", Path("x.png")
    ),
    "a.png is 1x2; pass size=": MixedSizesError("is 1x2", "pass size=", Path("a.png")),
    "nothing is there": DatasetError("nothing is there"),
    "mnist: no files; download it": MissingSetError("no files", "download it", "mnist"),
}


@pytest.mark.parametrize(("message", "error"), ERRORS.items(), ids=ERRORS)
def test_the_message_is_the_place_the_fact_and_the_hint(message, error):
    assert str(error) == message
    assert message.startswith(error.where + error.fact)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_errors_survive_pickling_and_copying_with_their_fields(error):
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ParameterError, ValueError),
        (DataError, ValueError),
        (DatasetError, ValueError),
        (DataWarning, UserWarning),
        (NotEnoughMemoryError, MemoryError),
        (MissingSetError, FileNotFoundError),
    ],
)
def test_errors_are_also_those_that_everybody_catches(error, builtin):
    assert issubclass(error, builtin)
    assert issubclass(error, HintedError)


def test_what_is_required_is_said_with_the_value():
    require(True, "n", 1, "at least 1")
    with pytest.raises(ParameterError, match="n=0 must be at least 1") as caught:
        require(False, "n", 0, "at least 1")
    assert (caught.value.parameter, caught.value.value) == ("n", 0)


def test_results_that_are_not_finite_are_counted():
    require_finite(torch.ones(3), "scale the rows")
    values = torch.tensor([1.0, torch.inf, torch.nan])
    with pytest.raises(DataError, match=r"2 of 3 values .*float32") as caught:
        require_finite(values, "scale the rows")
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
