"""Training rows: their conditions, and how rows are joined, removed and compared.

A refresh is a fit of the rows that are left, with the same seed. So a model that forgot
rows never saw them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.conditions import (
    Condition,
    ContinuousCondition,
    LabelCondition,
    MixedCondition,
    infer,
    label_key,
)
from sliceflow.errors import DataError
from sliceflow.fields import Array
from sliceflow.models.identity import digest
from sliceflow.models.protocols import RowsT
from sliceflow.models.ranks import Ranks, Shard

# The largest standardised condition of a file: its squares and their sums stay finite.
_MAX_STANDARDISED = 1e50


@dataclass(frozen=True)
class RowConditions:
    """The conditions y of rows: class numbers of labels, columns as the user wrote them.

    `classes` is None if y has no labels, `numbers` if it has no continuous columns.
    """

    condition: Condition  # the kind of y, which encodes and decodes it
    classes: (
        Annotated[Tensor, Array("n", torch.int64, ge=0)] | None
    ) = None
    numbers: Annotated[np.ndarray, Array("n l", torch.float64)] | None = None

    @classmethod
    def infer(cls, y: np.ndarray, n: int, name: str = "y") -> RowConditions:
        """The conditions that the user's y of n rows describes; errors say its `name`."""
        y = _in_narrowest_type(y)
        condition = infer(y, n, name)
        codes = condition.encode(y)
        if isinstance(condition, LabelCondition):
            return cls(condition, codes)
        if isinstance(condition, MixedCondition):
            numbers = y[:, ~np.array(condition.labelled)].astype(np.float64)
            return cls(condition, codes[:, 0].long(), numbers)
        return cls(condition, None, y.astype(np.float64))

    def take(self, numbers: Tensor) -> RowConditions:
        """The conditions of the rows with these numbers; the kind of y stays."""
        classes = None
        if self.classes is not None:
            classes = self.classes[numbers]
        columns = None
        if self.numbers is not None:
            columns = self.numbers[numbers.numpy()]
        return RowConditions(self.condition, classes, columns)

    def check(self) -> None:
        """Raise a ValueError if conditions from a file contradict each other."""
        labels, columns = _split_kind(self.condition)
        has_labels = labels is not None
        has_columns = columns is not None
        has_parts = (self.classes is not None, self.numbers is not None)
        if has_parts != (has_labels, has_columns):
            raise ValueError("classes or numbers do not fit the kind of condition")
        if isinstance(self.condition, MixedCondition):
            _check_mixed(self.condition)
        if self.classes is not None and labels is not None:
            _check_classes(self.classes, labels)
        if self.numbers is not None and columns is not None:
            _check_numbers(self.numbers, columns)

    @cached_property
    def codes(self) -> Tensor:
        """y, encoded: class numbers (n,), or columns (n, l)."""
        if isinstance(self.condition, LabelCondition):
            assert self.classes is not None
            return self.classes.cpu()  # a file may have been loaded on a GPU
        return self.condition.encode(self.y)

    @cached_property
    def y(self) -> np.ndarray:
        """y, as the user wrote it."""
        if self.classes is None:
            assert self.numbers is not None
            return self.numbers
        if isinstance(self.condition, MixedCondition):
            return self.condition.joined(self.classes, self.numbers)
        return self.condition.decode(self.classes)


def _split_kind(
    condition: Condition,
) -> tuple[LabelCondition | None, ContinuousCondition | None]:
    """The kinds of the labels and of the continuous columns of y."""
    if isinstance(condition, MixedCondition):
        return condition.labels, condition.columns
    if isinstance(condition, LabelCondition):
        return condition, None
    return None, condition


def _check_classes(classes: Tensor, labels: LabelCondition) -> None:
    """Raise a ValueError if a file has class numbers without a label."""
    if len(classes) and int(classes.max()) >= labels.width:
        raise ValueError(f"a class number is not below {labels.width}")


def _check_numbers(numbers: np.ndarray, columns: ContinuousCondition) -> None:
    """Raise a ValueError if a file has numbers that do not fit their columns."""
    n_columns = numbers.shape[1]
    if n_columns != columns.width:
        raise ValueError(
            f"there are {n_columns} columns of numbers, not {columns.width}"
        )
    standardised = np.abs(columns.encode(numbers).numpy())
    if not (standardised < _MAX_STANDARDISED).all():
        limit = f"{_MAX_STANDARDISED:.0e} standard deviations"
        raise ValueError(f"y has numbers beyond {limit}")


def _check_mixed(condition: MixedCondition) -> None:
    """Raise a ValueError if the labels and columns of a file do not fit together."""
    n_labels = sum(condition.labelled)
    for combination in condition.labels.classes:
        if not isinstance(combination, tuple) or len(combination) != n_labels:
            raise ValueError(
                "the labels and columns of a condition do not fit together"
            )
    if len(condition.labelled) - n_labels != condition.columns.width:
        raise ValueError("the labels and columns of a condition do not fit together")


class HasConditions:
    """What has the conditions of rows: their kind, and their codes."""

    conditions: RowConditions | None  # of the rows of all ranks; None without y

    @property
    def condition(self) -> Condition | None:
        """The kind of y."""
        return None if self.conditions is None else self.conditions.condition

    @property
    def codes(self) -> Tensor | None:
        """The encoded y."""
        return None if self.conditions is None else self.conditions.codes

    @property
    def n_conditions(self) -> int:
        """The number of classes, or of columns of y; 0 without."""
        return 0 if self.conditions is None else self.conditions.condition.width


class ArrayRows(HasConditions):
    """What rows in an array share, for dataclasses that have such an array.

    `_names` are the names of the field that holds the array (n, …), and of y in errors.
    """

    _names: ClassVar[tuple[str, str]]
    # These rows among those of all ranks; None in a fit of one process.
    rank_shard: Shard | None

    @property
    def values(self) -> np.ndarray:
        """This rank's rows (n, …)."""
        return np.asarray(getattr(self, self._names[0]))

    @property
    def shard(self) -> Shard:
        """The place of this rank's rows among those of all ranks."""
        if self.rank_shard is None:
            return Shard(0, len(self), len(self))
        return self.rank_shard

    @property
    def y(self) -> np.ndarray | None:
        """The conditions of the rows of all ranks, as the user wrote them."""
        return None if self.conditions is None else self.conditions.y

    def __len__(self) -> int:
        return len(self.values)

    def append(self, others: Self) -> Self:
        """These rows and then the others."""
        values = np.concatenate((self.values, others.values))
        return self._with(values, join_labels(self.y, others.y))

    def take(self, numbers: np.ndarray) -> Self:
        """A copy of the rows with these numbers."""
        y = self.y
        if y is not None:
            y = y[numbers]
        return self._with(self.values[numbers], y)

    def _with(self, values: np.ndarray, y: np.ndarray | None) -> Self:
        """Rows of the same kind with other values; the kind of y is inferred anew."""
        field, name_of_y = self._names
        conditions = None
        if y is not None:
            conditions = RowConditions.infer(y, len(values), name_of_y)
        changes: dict[str, Any] = {field: values, "conditions": conditions}
        return cast(Self, replace(cast(Any, self), **changes))

    def keys(self) -> Sequence[Hashable]:
        """A key of each row and its y."""
        return row_keys(self.values, self.y)

    def digests(self, ranks: Ranks) -> dict[str, str]:
        """Short texts that identify X and y."""
        return {"X": digest(self.values, ranks, self.shard), "y": digest(self.y)}


def without(rows: RowsT, removed: RowsT) -> RowsT:
    """The rows that are left when others are removed, of equal rows the last first.

    Raises a `DataError` for rows that are not there.
    """
    numbers_of_key: dict[Hashable, list[int]] = {}
    for number, key in enumerate(rows.keys()):
        numbers_of_key.setdefault(key, []).append(number)
    is_left = np.ones(len(rows), dtype=bool)
    for number, key in enumerate(removed.keys()):
        if not numbers_of_key.get(key):
            fact = "it is not in the model, or X has it more often"
            hint = "nothing was forgotten. Pass rows with their y, as they were fitted"
            raise DataError(fact, hint, row=number)
        is_left[numbers_of_key[key].pop()] = False
    if not is_left.any():
        fact = f"this would forget all {len(rows)} rows"
        raise DataError(fact, "delete the model instead")
    return rows.take(np.flatnonzero(is_left))


def row_keys(X: np.ndarray, y: np.ndarray | None) -> list[Hashable]:
    """Keys of rows (n, …) and their y: equal for equal numbers, whatever their types."""
    n = len(X)
    flat = np.ascontiguousarray(X).reshape(n, -1)
    labels = [None] * n if y is None else y.tolist()
    keys: list[Hashable] = []
    for row, label in zip(flat, labels, strict=True):
        numbers = row.astype(np.float64) + 0.0  # turns −0 into 0
        number_key = hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
        if isinstance(label, list):  # a row of columns
            label = tuple(label)
        keys.append((number_key, label_key(label)))
    return keys


def join_labels(
    first: np.ndarray | None, second: np.ndarray | None
) -> np.ndarray | None:
    """The y of two sets of rows as one.

    It has objects if the kinds differ: numpy would turn 1 into "1".
    """
    if first is None and second is None:
        return None
    if first is None or second is None:
        having, lacking = ("earlier", "new") if second is None else ("new", "earlier")
        fact = f"the {having} rows have y and the {lacking} rows have none"
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
    return "i" if y.dtype.kind in "iu" else y.dtype.kind


def _in_narrowest_type(y: np.ndarray) -> np.ndarray:
    """Labels in the narrowest type of numpy.

    Otherwise the type of those that are left would show which others there were.
    """
    if y.ndim != 1 or y.dtype.kind not in "OUS":
        return y
    labels = y.tolist()
    types = {type(label) for label in labels}
    if len(types) != 1 or not types <= {str, bytes, int, bool}:
        return y
    narrow = np.array(labels)
    return narrow if narrow.ndim == 1 and narrow.tolist() == labels else y
