"""Rows and their conditions: `Conditions` of any rows, and `ArrayRows` of a fit.

When rows are added or forgotten, all rows that the model then has are fitted again,
with the same seed. So a model that forgot rows is the model that never saw them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Floats, Ints
from sliceflow.base.fingerprint import digest
from sliceflow.base.ranks import Communicator, Shard
from sliceflow.engine.encoded_y import ClassIndices, EncodedY, FlowY, MixedY
from sliceflow.engine.flow import MapSharing, as_flow_y
from sliceflow.engine.labels import as_array, label_key
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ConditionEncoder,
    ContinuousEncoder,
    MixedEncoder,
    broadcast_condition,
    infer_encoder,
    require_encoder,
)
from sliceflow.errors import DataError
from sliceflow.saved_types import ArraySpec

# The largest standardized condition of a file. Its square is far below 1e308, the end
# of float64, so sums of squares stay finite.
_MAX_STANDARDIZED = 1e50


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions y of n rows of data or samples, as users write y and encoded.

    Continuous columns are kept as the user wrote them, because encoding rounds.

    Attributes
    ----------
    encoder : the kind of y
    class_indices : class indices (n,) of labels, or None if y has no labels
    continuous : continuous columns (n, l) in the user's units, or None if y has none
    """

    encoder: ConditionEncoder
    class_indices: Annotated[Tensor, ArraySpec("n", "int64", ge=0)] | None = None
    continuous: Annotated[Floats, ArraySpec("n l", "float64")] | None = None

    @classmethod
    def infer(cls, y: NDArray[Any], n: int, name: str = "y") -> Conditions:
        """The conditions of the user's y of n rows; errors say its `name`."""
        y = _in_narrowest_type(y)
        return cls._of_kind(infer_encoder(y, n, name), y)

    @classmethod
    def for_model(
        cls, encoder: ConditionEncoder | None, y: Any, n: int | None, noun: str
    ) -> Conditions:
        """The conditions of other rows, from the user's y for a fitted model.

        Parameters
        ----------
        encoder : the encoder of the model; None if the model has no y
        y : the user's y: one condition for all rows, or one for each row
        n : the number of rows; None takes the number of conditions in y
        noun : what errors call the rows, such as "samples"

        Raises
        ------
        DataError
            If the model was fitted without y, or y does not fit it or n.
        """
        encoder = require_encoder(encoder)
        if hasattr(y, "__array__"):  # of any library
            y = as_array(y)
        y_of_rows = broadcast_condition(encoder, y, 1 if n is None else n)
        conditions = cls._of_kind(encoder, y_of_rows)
        if n is not None and len(conditions) != n:
            fact = f"y has {len(conditions)} conditions for {n} {noun}"
            raise DataError(fact, "pass one for all, not in a list, or one for each")
        return conditions

    @classmethod
    def of_samples(cls, encoder: ConditionEncoder | None, y: Any, n: int) -> Conditions:
        """The conditions of the samples that a user asks for, with these y and n.

        For n = 1, the default of `sample`, there is one sample for each condition in y.
        For any other n, y has one condition for all samples, or n of them.
        """
        return cls.for_model(encoder, y, n if n > 1 else None, "samples")

    @classmethod
    def _of_kind(cls, encoder: ConditionEncoder, y: Any) -> Conditions:
        """The conditions of the user's y, one for each row."""
        if isinstance(encoder, ClassEncoder):
            return cls(encoder, encoder.encode(y).values)
        if isinstance(encoder, MixedEncoder):
            classes, continuous = encoder.split(y)
            return cls(encoder, classes.values, continuous)
        return cls(encoder, None, encoder.as_columns(y))

    def __len__(self) -> int:
        """n, the number of rows."""
        if self.class_indices is not None:
            return len(self.class_indices)
        assert self.continuous is not None
        return len(self.continuous)

    def take(self, indices: Tensor) -> Conditions:
        """The conditions of the rows with these indices; the kind of y stays."""
        class_indices = None
        if self.class_indices is not None:
            class_indices = self.class_indices[indices]
        continuous = None
        if self.continuous is not None:
            continuous = self.continuous[indices.numpy()]
        return Conditions(self.encoder, class_indices, continuous)

    def check_saved(self) -> None:
        """Raise a ValueError if conditions from a file contradict each other."""
        label_encoder = _label_encoder(self.encoder)
        if (self.class_indices is None) != (label_encoder is None):
            raise ValueError("classes do not fit the kind of condition")
        continuous_encoder = _continuous_encoder(self.encoder)
        if (self.continuous is None) != (continuous_encoder is None):
            raise ValueError("continuous columns do not fit the kind of condition")
        if self.class_indices is not None and label_encoder is not None:
            _check_class_indices(self.class_indices, label_encoder)
        if self.continuous is not None and continuous_encoder is not None:
            _check_continuous(self.continuous, continuous_encoder)

    @cached_property
    def encoded_y(self) -> EncodedY:
        """The conditions as the engine uses them."""
        if isinstance(self.encoder, ClassEncoder):
            return self.label_y
        assert self.continuous is not None, "y has continuous columns"
        if isinstance(self.encoder, ContinuousEncoder):
            return self.encoder.standardize(self.continuous)
        continuous_y = self.encoder.continuous_encoder.standardize(self.continuous)
        return MixedY.from_parts(self.label_y, continuous_y)

    def as_flow_y(self, sharing: MapSharing) -> FlowY | None:
        """What a flow sees of the conditions; None if it ignores them."""
        return as_flow_y(self.encoded_y, sharing, self.encoder.condition_dim)

    @property
    def label_y(self) -> ClassIndices:
        """The classes of the rows, if y has labels."""
        assert self.class_indices is not None, "y has no labels"
        return ClassIndices(self.class_indices.cpu())  # a file may be loaded on a GPU

    @cached_property
    def y(self) -> NDArray[Any]:
        """The conditions as the user wrote them."""
        if isinstance(self.encoder, ClassEncoder):
            return self.encoder.decode(self.label_y)
        assert self.continuous is not None, "y has continuous columns"
        if isinstance(self.encoder, ContinuousEncoder):
            return self.continuous
        return self.encoder.merge(self.label_y, self.continuous)


def _label_encoder(encoder: ConditionEncoder) -> ClassEncoder | None:
    """The encoder of the labels of y; None if it has none."""
    if isinstance(encoder, MixedEncoder):
        return encoder.label_encoder
    if isinstance(encoder, ClassEncoder):
        return encoder
    return None


def _continuous_encoder(encoder: ConditionEncoder) -> ContinuousEncoder | None:
    """The encoder of the continuous columns of y; None if it has none."""
    if isinstance(encoder, MixedEncoder):
        return encoder.continuous_encoder
    if isinstance(encoder, ContinuousEncoder):
        return encoder
    return None


def _check_class_indices(class_indices: Tensor, label_encoder: ClassEncoder) -> None:
    """Raise a ValueError if a file has class indices without a label."""
    if len(class_indices) and int(class_indices.max()) >= label_encoder.n_classes:
        raise ValueError(f"a class index is not below {label_encoder.n_classes}")


def _check_continuous(
    continuous: Floats, continuous_encoder: ContinuousEncoder
) -> None:
    """Raise a ValueError if a file has values that do not fit their columns."""
    n_columns = continuous.shape[1]
    n_expected = continuous_encoder.condition_dim
    if n_columns != n_expected:
        raise ValueError(f"there are {n_columns} continuous columns, not {n_expected}")
    standardized = continuous_encoder.standardize(continuous).values
    if not bool((standardized.abs() < _MAX_STANDARDIZED).all()):
        limit = f"{_MAX_STANDARDIZED:.0e} standard deviations"
        raise ValueError(f"y has numbers beyond {limit}")


class HasConditions:
    """Base class with shortcuts to the field `conditions`."""

    conditions: Conditions | None  # of the rows of all ranks; None without y

    @property
    def y_encoder(self) -> ConditionEncoder | None:
        """The kind of y; None without y."""
        if self.conditions is None:
            return None
        return self.conditions.encoder

    @property
    def encoded_y(self) -> EncodedY | None:
        """The conditions as the engine uses them; None without y."""
        if self.conditions is None:
            return None
        return self.conditions.encoded_y

    @property
    def label_y(self) -> ClassIndices | None:
        """The classes of the rows; None without labels."""
        if self.conditions is None or self.conditions.class_indices is None:
            return None
        return self.conditions.label_y

    @property
    def n_classes(self) -> int:
        """C, the number of classes; 0 without labels."""
        if self.conditions is None:
            return 0
        label_encoder = _label_encoder(self.conditions.encoder)
        if label_encoder is None:
            return 0
        return label_encoder.n_classes

    @property
    def condition_dim(self) -> int:
        """The number of classes, or of columns of y; 0 without y."""
        if self.conditions is None:
            return 0
        return self.conditions.encoder.condition_dim


class ArrayRows(HasConditions, ABC):
    """Base class of rows that are in one array.

    A subclass is a frozen dataclass with the fields `conditions` and `partial_shard`.
    """

    # What errors call the conditions.
    _conditions_name: ClassVar[str] = "y"
    # Where these rows are among the rows of all ranks. None in a fit of one process,
    # which has all rows; the property `shard` is never None.
    partial_shard: Shard | None

    @property
    @abstractmethod
    def values(self) -> NDArray[Any]:
        """This rank's rows (n, …)."""

    @abstractmethod
    def with_values(self, values: NDArray[Any], conditions: Conditions | None) -> Self:
        """Rows of the same kind with other values and conditions."""

    def check_lengths(self) -> None:
        """Raise a ValueError if there is not one condition for every row of a file."""
        if self.conditions is not None and len(self.conditions) != len(self):
            raise ValueError(
                f"there are {len(self.conditions)} {self._conditions_name} "
                f"for {len(self)} rows"
            )

    @property
    def shard(self) -> Shard:
        """Where these rows are among the rows of all ranks."""
        if self.partial_shard is None:
            n = len(self.values)
            return Shard(0, n, n)
        return self.partial_shard

    @property
    def y(self) -> NDArray[Any] | None:
        """The conditions of the rows of all ranks, as the user wrote them."""
        if self.conditions is None:
            return None
        return self.conditions.y

    def __len__(self) -> int:
        return len(self.values)

    def concatenate(self, others: Self) -> Self:
        """These rows, followed by the `others`."""
        values = np.concatenate((self.values, others.values))
        return self._with_values_and_y(values, concatenate_y(self.y, others.y))

    def copy(self) -> Self:
        """The same rows, with copies of all arrays of the user."""
        conditions = self.conditions
        if conditions is not None:
            conditions = conditions.take(torch.arange(len(conditions)))
        return self.with_values(np.array(self.values), conditions)

    def take(self, indices: Ints) -> Self:
        """A copy of the rows with these indices, in this order."""
        y = self.y
        if y is not None:
            y = y[indices]
        return self._with_values_and_y(self.values[indices], y)

    def _with_values_and_y(self, values: NDArray[Any], y: NDArray[Any] | None) -> Self:
        """Rows with other values and y; the kind of y is inferred anew."""
        conditions = None
        if y is not None:
            conditions = Conditions.infer(y, len(values), self._conditions_name)
        return self.with_values(values, conditions)

    def keys(self) -> Sequence[Hashable]:
        """A key of each row and its y."""
        return row_keys(self.values, self.y)

    def digests(self, ranks: Communicator) -> dict[str, str]:
        """Short texts that identify X and y."""
        return {"X": digest(self.values, ranks, self.shard), "y": digest(self.y)}


def row_keys(X: NDArray[Any], y: NDArray[Any] | None) -> list[Hashable]:
    """Keys of rows (n, …) and their y: equal for equal numbers of any type."""
    n = len(X)
    flat = np.ascontiguousarray(X).reshape(n, -1)
    if y is None:
        labels = [None] * n
    else:
        labels = y.tolist()
    keys: list[Hashable] = []
    for row, label in zip(flat, labels, strict=True):
        values = row.astype(np.float64) + 0.0  # turns −0 into 0
        values_key = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        if isinstance(label, list):  # a row of columns
            label = tuple(label)
        keys.append((values_key, label_key(label)))
    return keys


def concatenate_y(
    first: NDArray[Any] | None, second: NDArray[Any] | None
) -> NDArray[Any] | None:
    """The y of earlier and of new rows, one after the other.

    If the two y are of different kinds, such as numbers and texts, the result has dtype
    object: numpy would turn 1 into "1".
    """
    if first is None and second is None:
        return None
    if first is None or second is None:
        if first is None:
            fact = "the new rows have y and the earlier rows have none"
        else:
            fact = "the earlier rows have y and the new rows have none"
        raise DataError(fact, "pass y for all rows")
    if first.ndim != second.ndim or first.shape[1:] != second.shape[1:]:
        earlier = f"y of the earlier rows {first.shape}"
        fact = f"y of the new rows has shape {second.shape}, and {earlier}"
        raise DataError(fact, "pass y of the same kind for all rows")
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        # All numbers get the dtype of the earlier ones, where it can hold them.
        converted = second.astype(first.dtype)
        if np.array_equal(converted, second):
            return np.concatenate((first, converted))
    if _broad_kind(first) != _broad_kind(second):
        first = first.astype(object)
        second = second.astype(object)
    return np.concatenate((first, second))


def _broad_kind(y: NDArray[Any]) -> str:
    """numpy's letter for the kind of an array, the same for all integers."""
    if y.dtype.kind == "u":
        return "i"
    return y.dtype.kind


def _in_narrowest_type(y: NDArray[Any]) -> NDArray[Any]:
    """Labels (n,) of texts or objects in the narrowest dtype of numpy.

    After rows were forgotten, a dtype such as "<U9" would tell that there was a label
    of nine letters: the model would not be the one that never saw it.
    """
    if y.ndim != 1 or y.dtype.kind not in "OUS":
        return y
    labels = y.tolist()
    types = {type(label) for label in labels}
    if len(types) != 1 or not types <= {str, bytes, int, bool}:
        return y
    narrow = np.array(labels)
    if narrow.ndim == 1 and narrow.tolist() == labels:
        return narrow
    return y
