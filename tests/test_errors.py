"""Errors: messages from fields, which survive pickling."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

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
    warn_user,
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
    "column 'a': is text; pass kinds={'a': 'drop'}": DataError(
        "is text", column="a", suggested_kinds=("drop",)
    ),
    "column 'a': is text; fix it, or pass kinds={'a': 'drop'} or {'a': 'category'}": (
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


def test_a_warning_names_the_line_outside_the_package():
    """Whatever lies between: here a context manager as a decorator."""
    source = (
        "from contextlib import contextmanager\n"
        "@contextmanager\n"
        "def doing():\n"
        "    yield\n"
        "@doing()\n"
        "def inner(warn):\n"
        "    warn('first')\n"
    )
    module = {"__name__": "sliceflow.estimators.somewhere"}
    exec(compile(source, "inside.py", "exec"), module)
    with pytest.warns(UserWarning, match="first") as found:
        module["inner"](warn_user)
    assert found[0].filename == __file__
