"""Encoders of y: each encodes one kind of the user's y.

There are three kinds of y: class labels, continuous columns, which are columns of
numbers, and both together. The encoded y is one of the classes of `encoded_y`. Its
dimension l, everywhere `condition_dim`, is the number of classes, or of continuous
columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Floats, Mask
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY, MixedY
from sliceflow.engine.labels import (
    HASHABLE_HINT,
    are_numbers,
    as_array,
    as_finite,
    check_labels,
    check_no_fractions,
    format_label,
    label_key,
    list_labels,
    object_array,
    row_tuples,
)
from sliceflow.errors import DataError
from sliceflow.saved_types import ArraySpec, Label
from sliceflow.validation import unmasked


@dataclass(frozen=True, eq=False)
class ClassEncoder:
    """Encodes class labels, of any hashable kind, as class indices.

    Labels of different types differ: 1, "1" and True are three classes. But 1.0 is 1.
    """

    kind: ClassVar[Literal["labels"]] = "labels"
    classes: Annotated[NDArray[Any], Label]  # (C,), the label of each class
    encodes_clusters: bool = False  # whether classes are clusters that a fit found

    def check_saved(self) -> None:
        """Raise a ValueError unless there are labels and all differ."""
        n_distinct = len({label_key(label) for label in self.classes.tolist()})
        if n_distinct == 0 or n_distinct != self.n_classes:
            raise ValueError(
                f"there are no labels, or not all {self.n_classes} are distinct"
            )

    @classmethod
    def from_data(cls, y: NDArray[Any]) -> ClassEncoder:
        """The distinct labels of y (n,), sorted if possible, else as they appear."""
        if y.dtype != object:
            return cls(np.unique(y))
        labels: dict[Hashable, Any] = {}
        for label in y.tolist():
            labels.setdefault(label_key(label), label)
        distinct = list(labels.values())
        with contextlib.suppress(TypeError):  # labels of different types have no order
            distinct = sorted(distinct)
        return cls(object_array(distinct))

    @property
    def n_classes(self) -> int:
        """C, the number of classes."""
        return len(self.classes)

    @property
    def condition_dim(self) -> int:
        """l, the number of classes."""
        return self.n_classes

    def encode(self, y: Any) -> ClassIndices:
        """The class indices of labels (n,)."""
        array = as_array(y)
        if array.ndim != 1:
            raise DataError(
                f"y has shape {array.shape} but the model was fitted with class labels",
                "pass one label for each row, (n,)",
            )
        class_index = {
            label_key(label): i for i, label in enumerate(self.classes.tolist())
        }
        labels = array.tolist()
        try:
            indices = [class_index.get(label_key(label)) for label in labels]
        except TypeError as error:
            raise DataError("y has a label of no hash", HASHABLE_HINT) from error
        if None in indices:
            self._raise_unknown(labels, indices)
        return ClassIndices(torch.tensor(indices, dtype=torch.int64))

    def _raise_unknown(self, labels: list[Any], indices: list[int | None]) -> None:
        """Raise a `DataError` that lists the labels that are no class."""
        pairs = zip(labels, indices, strict=True)
        without_class = [label for label, index in pairs if index is None]
        unknown = list(dict.fromkeys(without_class))  # without repetitions
        plural = "s" if len(unknown) > 1 else ""
        hint = f"the model knows {list_labels(self.classes.tolist())}"
        nearest = self._nearest_classes(unknown[0])
        if nearest:
            verb = "is" if len(nearest) == 1 else "are"
            near = " and ".join(map(format_label, nearest))
            hint += f"; nearest to {format_label(unknown[0])} {verb} {near}"
        raise DataError(f"unknown label{plural} {list_labels(unknown)}", hint)

    def _nearest_classes(self, label: Any) -> list[Any]:
        """The classes next below and above a number; none if some are no numbers."""
        classes = self.classes.tolist()
        are_all_numbers = are_numbers([label, *classes])
        if not are_all_numbers or any(isinstance(c, bool) for c in [label, *classes]):
            return []
        below = [c for c in classes if c < label]
        above = [c for c in classes if c > label]
        nearest = []
        if below:
            nearest.append(max(below))
        if above:
            nearest.append(min(above))
        return nearest

    def decode(self, y: ClassIndices) -> NDArray[Any]:
        """The labels (n,) of class indices."""
        return np.asarray(self.classes[y.values.cpu().numpy()])


@dataclass(frozen=True, eq=False)
class ContinuousEncoder:
    """Encodes continuous columns: standardizes each of them.

    A constant column is only centered.
    """

    mean: Annotated[Floats, ArraySpec("l", "float64")]
    scale: Annotated[Floats, ArraySpec("l", "float64")]
    kind: ClassVar[Literal["continuous"]] = "continuous"
    encodes_clusters: ClassVar[bool] = False

    def check_saved(self) -> None:
        """Raise a ValueError unless there are columns, with positive scales."""
        if not (self.scale > 0).all() or self.condition_dim == 0:
            raise ValueError(
                "a condition has no columns, or a scale that is not positive"
            )

    @classmethod
    def from_data(cls, y: Floats) -> ContinuousEncoder:
        """The mean and the standard deviation of the columns of y (n, l)."""
        with np.errstate(over="ignore", invalid="ignore"):
            scale = y.std(axis=0)
        low = y.min(axis=0)
        is_constant = low == y.max(axis=0)
        is_wrong = ~is_constant & ~(np.isfinite(scale) & (scale > 0))
        if is_wrong.any():
            column = int(np.argmax(is_wrong))
            deviation = f"its standard deviation is {scale[column]}"
            fact = f"y cannot be standardized: {deviation}"
            raise DataError(fact, "rescale it", column=column)
        # The computed mean and deviation of a constant have rounding errors.
        mean = np.where(is_constant, low, y.mean(axis=0))
        return cls(mean, np.where(is_constant, 1.0, scale))

    @property
    def n_columns(self) -> int:
        """The number of columns."""
        return len(self.mean)

    @property
    def condition_dim(self) -> int:
        """l, the number of columns."""
        return self.n_columns

    def encode(self, y: Any) -> ContinuousY:
        """The standardized columns of the user's y (n, l)."""
        return self.standardize(self.as_columns(y))

    def as_columns(self, y: Any) -> Floats:
        """The user's y as (n, l) finite numbers; a `DataError` for any other y."""
        array = as_array(y)
        if array.ndim != 2 or array.shape[1] != self.n_columns:
            raise DataError(
                f"y has shape {array.shape} but the model was fitted with "
                f"{self.n_columns} continuous columns",
                f"pass an (n, {self.n_columns}) array",
            )
        return as_finite(array)

    def standardize(self, columns: Floats) -> ContinuousY:
        """The encoded y of columns (n, l) in the user's units."""
        return ContinuousY(torch.from_numpy((columns - self.mean) / self.scale))


@dataclass(frozen=True, eq=False)
class MixedEncoder:
    """Encodes labels and continuous columns in one y: an (n, L) array or a DataFrame.

    A column of labels is one whose values are not all numbers. All labels of a row
    together, as a tuple, are the class of the row.

    Attributes
    ----------
    label_encoder : encodes the tuples of labels
    continuous_encoder : encodes the continuous columns
    labeled : which columns (L,) are labels
    """

    label_encoder: ClassEncoder
    continuous_encoder: ContinuousEncoder
    labeled: tuple[bool, ...]
    kind: ClassVar[Literal["mixed"]] = "mixed"
    encodes_clusters: ClassVar[bool] = False

    def check_saved(self) -> None:
        """Raise a ValueError if labels and columns do not fit together."""
        n_labels = sum(self.labeled)
        is_wrong = self.n_columns - n_labels != self.continuous_encoder.n_columns
        for combination in self.label_encoder.classes:
            if not isinstance(combination, tuple) or len(combination) != n_labels:
                is_wrong = True
        if is_wrong:
            raise ValueError(
                "the labels and columns of a condition do not fit together"
            )

    @classmethod
    def from_data(cls, y: NDArray[Any]) -> MixedEncoder:
        """The combinations of labels, and the continuous columns, of y (n, L)."""
        labeled = tuple(not are_numbers(column) for column in y.T)
        if all(labeled):
            raise DataError(
                f"y has {len(labeled)} columns, all of them labels",
                "pass one label per row, such as a tuple, or a column of numbers",
            )
        is_label = np.array(labeled)
        combinations = row_tuples(y[:, is_label])
        check_labels(combinations, "y")
        continuous_encoder = ContinuousEncoder.from_data(as_finite(y[:, ~is_label]))
        return cls(ClassEncoder.from_data(combinations), continuous_encoder, labeled)

    @property
    def n_columns(self) -> int:
        """L, the number of columns."""
        return len(self.labeled)

    @property
    def condition_dim(self) -> int:
        """l, the number of continuous columns; labels divide the rows instead."""
        return self.continuous_encoder.condition_dim

    @property
    def _is_label(self) -> Mask:
        """Which columns (L,) are labels."""
        return np.array(self.labeled)

    def encode(self, y: Any) -> MixedY:
        """The classes and the standardized columns of the user's y; see `split`."""
        classes, continuous = self.split(y)
        return MixedY.from_parts(
            classes, self.continuous_encoder.standardize(continuous)
        )

    def split(self, y: Any) -> tuple[ClassIndices, Floats]:
        """The classes of the user's y, and its continuous columns (n, l).

        y is an (n, L) array, one row (L,), or a sequence of n tuples.
        """
        array = as_array(y)
        if array.ndim == 1 and len(array) and all(isinstance(r, tuple) for r in array):
            array = np.array([list(row) for row in array], dtype=object)
        array = np.atleast_2d(array)
        if array.ndim != 2 or array.shape[1] != self.n_columns:
            raise DataError(
                f"y has shape {np.shape(y)} but the model was fitted with "
                f"{self.n_columns} columns, {sum(self.labeled)} of them labels",
                f"pass an (n, {self.n_columns}) array",
            )
        combinations = row_tuples(array[:, self._is_label].astype(object))
        continuous = self.continuous_encoder.as_columns(array[:, ~self._is_label])
        return self.label_encoder.encode(combinations), continuous

    def merge(self, classes: ClassIndices, continuous: Floats) -> NDArray[Any]:
        """y (n, L) as the user writes it, from what `split` gives."""
        combinations = self.label_encoder.decode(classes)
        y = np.empty((len(classes), self.n_columns), dtype=object)
        for place, column in enumerate(np.flatnonzero(self._is_label)):
            labels = [combination[place] for combination in combinations]
            y[:, column] = object_array(labels)
        y[:, ~self._is_label] = continuous
        return y


ConditionEncoder = ClassEncoder | ContinuousEncoder | MixedEncoder


def infer_encoder(
    array: NDArray[Any], n_rows: int, name: str = "y"
) -> ConditionEncoder:
    """The encoder for the user's y of n rows.

    A y with one dimension is labels. In a y with two dimensions, a column is continuous
    if all of its values are numbers, and labels otherwise.
    """
    if array.ndim not in (1, 2):
        raise DataError(
            f"y has shape {array.shape}", "pass labels (n,) or columns (n, l)"
        )
    if len(array) != n_rows:
        raise DataError(
            f"X has {n_rows} rows but y has {len(array)}",
            "pass one y for every row of X",
        )
    if array.ndim == 1:
        check_labels(array, name)
        check_no_fractions(array, name)
        return ClassEncoder.from_data(array)
    if array.shape[1] == 0:
        raise DataError("y has 0 columns", "leave it out for an unconditional flow")
    if array.dtype == object and not are_numbers(array.flat):
        return MixedEncoder.from_data(array)
    return ContinuousEncoder.from_data(as_finite(array))


def require_encoder(encoder: ConditionEncoder | None) -> ConditionEncoder:
    """The encoder of a model's y; a `DataError` if the model was fitted without y."""
    if encoder is None or encoder.encodes_clusters:
        raise DataError("y was given but the model was fitted without y", "omit y")
    return encoder


def broadcast_condition(encoder: ConditionEncoder, y: Any, n: int) -> Any:
    """The user's y of n points: one condition is repeated n times, several stay.

    An empty y stands for no points, whatever its kind.
    """
    y = unmasked(y, "y")
    if isinstance(encoder, ClassEncoder):
        if not _is_one_label(y, encoder):
            return y
        label = y.item() if isinstance(y, np.generic | np.ndarray | Tensor) else y
        return object_array([label] * n)
    array = as_array(y)
    if array.shape == (0,):
        return array.reshape(0, encoder.n_columns)
    is_one_number = array.ndim == 0
    if not is_one_number and not _is_one_row(array, encoder.n_columns):
        return array
    if isinstance(encoder, MixedEncoder):
        array = array.astype(object)
    return np.tile(array.reshape(1, -1), (n, 1))


def _is_one_label(y: Any, encoder: ClassEncoder) -> bool:
    """Whether y is a single label, not a sequence of labels."""
    if isinstance(y, str | bytes):
        return True
    if isinstance(y, tuple):
        try:
            return y in set(encoder.classes.tolist())
        except TypeError:  # it holds what has no hash, so it is no label
            return False
    if isinstance(y, Sequence):  # of labels: tuples of any lengths, for example
        return False
    return np.ndim(y) == 0


def _is_one_row(array: NDArray[Any], n_columns: int) -> bool:
    """Whether an array is one row of `n_columns` values, not a sequence of rows."""
    is_one_row = array.ndim == 1 and len(array) == n_columns
    return is_one_row and not isinstance(array[0], tuple)
