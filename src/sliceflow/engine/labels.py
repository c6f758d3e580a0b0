"""The user's y as arrays: labels and numbers, their checks, and error messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import date, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.errors import DataError
from sliceflow.validation import from_tensor, unmasked

HASHABLE_HINT = "labels must be hashable: ints, strings, tuples, …"
# Dates are no labels: classes would lose their order, and numbers have no unit yet.
_DATES_HINT = (
    "turn dates and durations into text for classes, or into numbers, such as days, "
    "for a continuous y"
)
_DATE_TYPES = (date, time, timedelta, np.datetime64, np.timedelta64)
# A message lists at most this many labels.
_MAX_LISTED_LABELS = 12


def as_array(y: Any, name: str = "y") -> NDArray[Any]:
    """The user's y as an array.

    A sequence of tuples or of mixed kinds becomes a 1-D array of objects.
    """
    y = unmasked(from_tensor(y), name)
    if hasattr(y, "to_numpy"):  # of pandas
        y = y.to_numpy()
    if isinstance(y, np.ndarray):
        return np.asarray(y)
    if isinstance(y, Sequence) and not isinstance(y, str) and _needs_objects(y):
        return object_array(y)
    try:
        return np.asarray(y)
    except ValueError as error:  # rows of different lengths
        fact = f"{name} cannot be read as an array"
        raise DataError(fact, "pass one label, or as many numbers, in each") from error


def _needs_objects(values: Sequence[Any]) -> bool:
    """Whether numpy would change the values: tuples, or values of mixed kinds."""
    types = {type(value) for value in values}
    if types == {tuple}:
        return True
    only_numbers = all(_is_number_type(t) and t is not bool for t in types)
    return len(types) > 1 and not only_numbers


def object_array(values: Sequence[Any]) -> NDArray[Any]:
    """A 1-D array of objects, also where the objects are sequences themselves."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def row_tuples(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows (n, k) of an array as n tuples, in a 1-D array of objects."""
    return object_array([tuple(row) for row in rows.tolist()])


def _is_number_type(type_: type) -> bool:
    """Whether objects of this type are numbers. Python's bool counts as one."""
    return issubclass(type_, (int, float, np.number))


def are_numbers(values: Any) -> bool:
    """Whether all values are numbers."""
    return all(_is_number_type(type(value)) for value in values)


# In keys of labels, a bool stands beside this object, which is in no label.
_IS_BOOL = object()


def label_key(label: Any) -> Hashable:
    """A hashable key of a label. Keys of different labels differ: True is not 1."""
    if isinstance(label, tuple):
        return tuple(label_key(part) for part in label)
    if isinstance(label, bool | np.bool):
        return (label, _IS_BOOL)
    key: Hashable = label
    return key


def check_labels(array: NDArray[Any], name: str) -> None:
    """Raise a `DataError` for missing labels, dates, and what cannot be hashed."""
    if array.dtype.kind == "f":  # so integers of pandas with NA come, too
        missing_rows = np.flatnonzero(np.isnan(array))
        if len(missing_rows):
            raise _missing_label(name, np.nan, int(missing_rows[0]))
        return
    if array.dtype.kind in "biuUS":  # none can be missing
        return
    is_dates = array.dtype.kind in "mM"
    for row, label in enumerate(array if is_dates else array.tolist()):
        if _is_missing(label):
            raise _missing_label(name, label, row)
        if _is_date(label):
            fact = f"{name} has a date or duration, {format_label(label)}"
            raise DataError(fact, _DATES_HINT, row=row)
        try:
            hash(label)
        except TypeError as error:
            fact = f"{name} is a {type(label).__name__}, {format_label(label)}"
            raise DataError(fact, HASHABLE_HINT, row=row) from error


def _missing_label(name: str, label: object, row: int) -> DataError:
    """The error of a label that is missing, such as None or NaN."""
    return DataError(
        f"{name} has no label ({format_label(label)})",
        "drop such rows, or give them a label such as 'unknown'",
        row=row,
    )


def check_no_fractions(array: NDArray[Any], name: str) -> None:
    """Raise a `DataError` for labels that are fractions: they are a continuous y.

    Labels that are tuples are checked place by place.
    """
    if array.dtype.kind == "f" or (array.dtype == object and are_numbers(array)):
        fractions = array[as_finite(array, name) % 1 != 0]
        if len(fractions):
            hint = "pass y[:, None] for a continuous condition"
            if name == "labels":  # of pictures, which have no continuous condition
                hint = "pass whole numbers or text as classes"
            raise DataError(
                f"{name} is one-dimensional: labels, but holds fractions such as "
                f"{fractions[0]}",
                hint,
            )
    elif array.dtype == object:
        _check_no_fractions_in_tuples(array, name)


def _check_no_fractions_in_tuples(array: NDArray[Any], name: str) -> None:
    """Raise a `DataError` for labels that are tuples with fractions.

    That is so if the items at one place of all tuples are numbers, some with fractions.
    """
    labels = array.tolist()
    if not all(isinstance(label, tuple) for label in labels):
        return
    if len({len(label) for label in labels}) != 1:
        return
    for values in zip(*labels, strict=True):
        if not are_numbers(values):
            continue
        for row, value in enumerate(values):
            if value % 1 != 0:
                raise DataError(
                    f"{name} is tuples: labels, but {format_label(labels[row])} "
                    f"holds a fraction, {format_label(value)}",
                    "pass an array (n, l) for a continuous condition: np.array(y), "
                    "with dtype=object if some columns are labels",
                    row=row,
                )


def _is_date(label: Any) -> bool:
    """Whether a label is a date, a time or a duration, or a tuple with one."""
    if isinstance(label, tuple):
        return any(_is_date(part) for part in label)
    if type(label).__name__ == "Period":  # of pandas, such as a month
        return True
    return isinstance(label, _DATE_TYPES)


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or NA, or a tuple with NaN, NaT or NA."""
    if isinstance(label, tuple):
        return any(_is_missing(part) for part in label if part is not None)
    try:
        return label is None or bool(label != label)  # as NaN and NaT do
    except TypeError:  # the truth value of pandas' NA
        return True


def as_finite(y: NDArray[Any], name: str = "y") -> Floats:
    """Numbers, also of an array of objects, as float64.

    Raises a `DataError` for what is no number, or not finite.
    """
    if y.dtype == object:
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} has a column of numbers with a value that is none: {error}"
            ) from error
    if y.dtype.kind in "mM":
        raise DataError(f"{name} has columns of dtype {y.dtype}", _DATES_HINT)
    if y.dtype.kind not in "fiub":
        raise DataError(
            f"{name} has columns of dtype {y.dtype}",
            "continuous conditions must be numbers, labels 1-D",
        )
    y = y.astype(np.float64)
    not_finite = np.argwhere(~np.isfinite(y))
    if len(not_finite):
        place = not_finite[0].tolist()
        raise DataError(
            f"{name} contains {y[tuple(place)]}",
            "conditions must be finite: drop or fill such rows",
            row=place[0],
            column=place[1] if len(place) > 1 else None,
        )
    return y


def format_label(label: Any) -> str:
    """A label for a message, as Python writes it, without numpy's types."""
    if isinstance(label, tuple):
        parts = ", ".join(format_label(part) for part in label)
        return f"({parts},)" if len(label) == 1 else f"({parts})"
    if isinstance(label, np.datetime64 | np.timedelta64):
        return str(label)
    return repr(label.item() if isinstance(label, np.generic) else label)


def list_labels(labels: list[Any]) -> str:
    """Labels for a message, the first ones if there are many."""
    shown = ", ".join(format_label(label) for label in labels[:_MAX_LISTED_LABELS])
    if len(labels) <= _MAX_LISTED_LABELS:
        return shown
    return f"{shown}, … ({len(labels)} in all)"
