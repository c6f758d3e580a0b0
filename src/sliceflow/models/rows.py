"""Training rows: their conditions, and how rows are appended and compared.

When rows are added or forgotten, all rows that the model then has are fitted
again, with the same seed. So a model that forgot rows is the model that never saw them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Self

import numpy as np
from torch import Tensor

from sliceflow.engine.encoded_y import ClassIndices, EncodedY
from sliceflow.engine.labels import label_key
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ConditionEncoder,
    ContinuousEncoder,
    MixedEncoder,
    infer_encoder,
)
from sliceflow.errors import DataError
from sliceflow.models.fingerprint import digest
from sliceflow.models.ranks import Communicator, Shard
from sliceflow.saved_types import ArraySpec

# The largest standardized condition of a file. Its square is far below 1e308, the end
# of float64, so sums of squares stay finite.
_MAX_STANDARDIZED = 1e50


@dataclass(frozen=True)
class RowConditions:
    """The conditions y of n rows.

    Attributes
    ----------
    encoder : the kind of y, which encodes and decodes it
    class_indices : class indices (n,) of labels, or None if y has no labels
    continuous : continuous columns (n, l) as the user wrote them, or None
    """

    encoder: ConditionEncoder
    class_indices: Annotated[Tensor, ArraySpec("n", "int64", ge=0)] | None = None
    continuous: Annotated[np.ndarray, ArraySpec("n l", "float64")] | None = None

    @classmethod
    def infer(cls, y: np.ndarray, n: int, name: str = "y") -> RowConditions:
        """The conditions of the user's y of n rows; errors say its `name`."""
        y = _in_narrowest_type(y)
        encoder = infer_encoder(y, n, name)
        if isinstance(encoder, ClassEncoder):
            return cls(encoder, encoder.encode(y).values)
        if isinstance(encoder, MixedEncoder):
            is_continuous = ~np.array(encoder.labeled)
            continuous = y[:, is_continuous].astype(np.float64)
            return cls(encoder, encoder.encode(y).class_indices, continuous)
        return cls(encoder, None, y.astype(np.float64))

    @property
    def n(self) -> int:
        """The number of rows."""
        if self.class_indices is not None:
            return len(self.class_indices)
        assert self.continuous is not None
        return len(self.continuous)

    def take(self, indices: Tensor) -> RowConditions:
        """The conditions of the rows with these indices; the kind of y stays."""
        class_indices = None
        if self.class_indices is not None:
            class_indices = self.class_indices[indices]
        continuous = None
        if self.continuous is not None:
            continuous = self.continuous[indices.numpy()]
        return RowConditions(self.encoder, class_indices, continuous)

    def check_saved(self) -> None:
        """Raise a ValueError if conditions from a file contradict each other."""
        labels, columns = _split_encoder(self.encoder)
        if (self.class_indices is None) != (labels is None):
            raise ValueError("classes do not fit the kind of condition")
        if (self.continuous is None) != (columns is None):
            raise ValueError("continuous columns do not fit the kind of condition")
        if isinstance(self.encoder, MixedEncoder):
            _check_mixed(self.encoder)
        if self.class_indices is not None and labels is not None:
            _check_class_indices(self.class_indices, labels)
        if self.continuous is not None and columns is not None:
            _check_continuous(self.continuous, columns)

    @cached_property
    def encoded_y(self) -> EncodedY:
        """The conditions as the engine uses them."""
        if isinstance(self.encoder, ClassEncoder):
            return self.label_y
        return self.encoder.encode(self.y)

    @property
    def label_y(self) -> ClassIndices:
        """The classes of the rows, if y has labels."""
        assert self.class_indices is not None, "y has no labels"
        return ClassIndices(self.class_indices.cpu())  # a file may be loaded on a GPU

    @cached_property
    def y(self) -> np.ndarray:
        """The conditions as the user wrote them."""
        if isinstance(self.encoder, ClassEncoder):
            return self.encoder.decode(self.label_y)
        assert self.continuous is not None, "y has numbers"
        if isinstance(self.encoder, MixedEncoder):
            return self.encoder.merge_columns(self.label_y, self.continuous)
        return self.continuous


def _split_encoder(
    encoder: ConditionEncoder,
) -> tuple[ClassEncoder | None, ContinuousEncoder | None]:
    """The encoders of the labels and of the continuous columns of y."""
    if isinstance(encoder, MixedEncoder):
        return encoder.labels, encoder.continuous
    if isinstance(encoder, ClassEncoder):
        return encoder, None
    return None, encoder


def _check_class_indices(class_indices: Tensor, labels: ClassEncoder) -> None:
    """Raise a ValueError if a file has class indices without a label."""
    if len(class_indices) and int(class_indices.max()) >= labels.n_classes:
        raise ValueError(f"a class index is not below {labels.n_classes}")


def _check_continuous(continuous: np.ndarray, columns: ContinuousEncoder) -> None:
    """Raise a ValueError if a file has values that do not fit their columns."""
    n_columns = continuous.shape[1]
    if n_columns != columns.condition_dim:
        raise ValueError(
            f"there are {n_columns} continuous columns, not {columns.condition_dim}"
        )
    standardized = np.abs(columns.encode(continuous).values.numpy())
    if not (standardized < _MAX_STANDARDIZED).all():
        limit = f"{_MAX_STANDARDIZED:.0e} standard deviations"
        raise ValueError(f"y has numbers beyond {limit}")


def _check_mixed(encoder: MixedEncoder) -> None:
    """Raise a ValueError if the labels and columns of a file do not fit together."""
    n_labels = sum(encoder.labeled)
    for combination in encoder.labels.classes:
        if not isinstance(combination, tuple) or len(combination) != n_labels:
            raise ValueError(
                "the labels and columns of a condition do not fit together"
            )
    if len(encoder.labeled) - n_labels != encoder.continuous.condition_dim:
        raise ValueError("the labels and columns of a condition do not fit together")


class ConditionsMixin:
    """Base class with shortcuts to the field `conditions`."""

    conditions: RowConditions | None  # of the rows of all ranks; None without y

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
        labels, _ = _split_encoder(self.conditions.encoder)
        if labels is None:
            return 0
        return labels.n_classes

    @property
    def condition_dim(self) -> int:
        """The number of classes, or of columns of y; 0 without y."""
        if self.conditions is None:
            return 0
        return self.conditions.encoder.condition_dim


class ArrayRows(ConditionsMixin, ABC):
    """Base class of rows that are in one array.

    A subclass is a frozen dataclass with the fields `conditions` and `rank_shard`.
    """

    # What errors call the conditions.
    _conditions_name: ClassVar[str] = "y"
    # Where these rows are among those of all ranks; None in a fit of one process.
    rank_shard: Shard | None

    @property
    @abstractmethod
    def values(self) -> np.ndarray:
        """This rank's rows (n, …)."""

    @abstractmethod
    def with_values(
        self, values: np.ndarray, row_conditions: RowConditions | None
    ) -> Self:
        """Rows of the same kind with other values and conditions."""

    def check_lengths(self) -> None:
        """Raise a ValueError if there is not one condition for every row of a file."""
        if self.conditions is not None and self.conditions.n != len(self):
            raise ValueError(
                f"there are {self.conditions.n} {self._conditions_name} "
                f"for {len(self)} rows"
            )

    @property
    def shard(self) -> Shard:
        """Which of the rows of all ranks these are."""
        if self.rank_shard is None:
            n = len(self.values)
            return Shard(0, n, n)
        return self.rank_shard

    @property
    def y(self) -> np.ndarray | None:
        """The conditions of the rows of all ranks, as the user wrote them."""
        if self.conditions is None:
            return None
        return self.conditions.y

    def __len__(self) -> int:
        return len(self.values)

    def concatenate(self, others: Self) -> Self:
        """These rows and then the others."""
        values = np.concatenate((self.values, others.values))
        return self._with_new_kind(values, concatenate_y(self.y, others.y))

    def take(self, indices: np.ndarray) -> Self:
        """A copy of the rows with these indices, in this order."""
        y = self.y
        if y is not None:
            y = y[indices]
        return self._with_new_kind(self.values[indices], y)

    def _with_new_kind(self, values: np.ndarray, y: np.ndarray | None) -> Self:
        """Rows with other values and y; the kind of y is inferred anew."""
        row_conditions = None
        if y is not None:
            row_conditions = RowConditions.infer(y, len(values), self._conditions_name)
        return self.with_values(values, row_conditions)

    def keys(self) -> Sequence[Hashable]:
        """A key of each row and its y."""
        return row_keys(self.values, self.y)

    def digests(self, ranks: Communicator) -> dict[str, str]:
        """Short texts that identify X and y."""
        return {"X": digest(self.values, ranks, self.shard), "y": digest(self.y)}


def row_keys(X: np.ndarray, y: np.ndarray | None) -> list[Hashable]:
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
    first: np.ndarray | None, second: np.ndarray | None
) -> np.ndarray | None:
    """The y of earlier and of new rows, one after the other.

    If they are of different kinds, such as numbers and texts, the result has dtype
    object: numpy would turn 1 into "1".
    """
    if first is None and second is None:
        return None
    if first is None or second is None:
        fact = "the earlier rows have y and the new rows have none"
        if first is None:
            fact = "the new rows have y and the earlier rows have none"
        raise DataError(fact, "pass y for all rows")
    if first.ndim != second.ndim or first.shape[1:] != second.shape[1:]:
        shapes = f"{second.shape}, and y of the earlier rows {first.shape}"
        fact = f"y of the new rows has shape {shapes}"
        raise DataError(fact, "pass y of the same kind for all rows")
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        converted = second.astype(first.dtype)
        if np.array_equal(converted, second):
            return np.concatenate((first, converted))
    if _broad_kind(first) != _broad_kind(second):
        first = first.astype(object)
        second = second.astype(object)
    return np.concatenate((first, second))


def _broad_kind(y: np.ndarray) -> str:
    """numpy's letter for the kind of an array, the same for all integers."""
    if y.dtype.kind == "u":
        return "i"
    return y.dtype.kind


def _in_narrowest_type(y: np.ndarray) -> np.ndarray:
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
