"""Kept rows: the training rows of a model, so that rows can be added to it and removed from it.

A refresh is a fit of what is left with the same seed. So a model that forgot rows never saw them.
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

from sliceflow.engine import conditions
from sliceflow.fields import Array
from sliceflow.models.identity import digest
from sliceflow.models.ranks import Ranks, Shard

_LARGEST = 1e50  # of a standardised condition: its squares and their sums stay finite


@dataclass(frozen=True)
class Conditions:
    """The conditions of rows: their kind, the class numbers of labels, and columns as the user wrote them."""

    condition: conditions.Condition
    classes: (
        Annotated[Tensor, Array("n", torch.int64, ge=0, packed="planes")] | None
    ) = None
    numbers: Annotated[np.ndarray, Array("n l", torch.float64)] | None = None

    @classmethod
    def infer(cls, y: np.ndarray | None, n: int, name: str = "y") -> Conditions | None:
        """Those that the user's y describes; None without y."""
        if y is None:
            return None
        y = _narrow(y)
        condition = conditions.infer(y, n, name)
        codes = condition.encode(y)
        if isinstance(condition, conditions.LabelCondition):
            return cls(condition, codes)
        if not isinstance(condition, conditions.MixedCondition):
            return cls(condition, None, y.astype(np.float64))
        numbers = y[:, ~np.array(condition.labelled)].astype(np.float64)
        return cls(condition, codes[:, 0].long(), numbers)

    def take(self, numbers: Tensor) -> Conditions:
        """Those of some rows; the kind stays."""
        classes = None if self.classes is None else self.classes[numbers]
        columns = None if self.numbers is None else self.numbers[numbers.numpy()]
        return Conditions(self.condition, classes, columns)

    def check(self) -> None:
        kind = self.condition
        classes = self.classes
        numbers = self.numbers
        labels = getattr(kind, "labels", kind)
        columns = getattr(kind, "columns", kind)
        has = (
            isinstance(labels, conditions.LabelCondition),
            isinstance(columns, conditions.ContinuousCondition),
        )
        if has != (classes is not None, numbers is not None):
            raise ValueError("classes or numbers do not fit the kind of condition")
        if isinstance(kind, conditions.MixedCondition):
            n_labels = sum(kind.labelled)
            tuples = all(
                isinstance(row, tuple) and len(row) == n_labels
                for row in kind.labels.classes
            )
            if not tuples or len(kind.labelled) - n_labels != columns.width:
                raise ValueError(
                    "the labels and columns of a condition do not fit together"
                )
        if classes is not None and len(classes) and int(classes.max()) >= labels.width:
            raise ValueError(f"a class number is not below {labels.width}")
        if numbers is not None and numbers.shape[1] != columns.width:
            raise ValueError(
                f"there are {numbers.shape[1]} columns of numbers, not {columns.width}"
            )
        if (
            numbers is not None
            and not (np.abs(columns.encode(numbers).numpy()) < _LARGEST).all()
        ):
            raise ValueError(f"y has numbers beyond {_LARGEST:.0e} standard deviations")

    @cached_property
    def codes(self) -> Tensor:
        """y, encoded: class numbers (n,), or columns (n, l)."""
        if isinstance(self.condition, conditions.LabelCondition):
            assert self.classes is not None
            return self.classes.cpu()  # a file may have been loaded on a GPU
        return self.condition.encode(self.y)

    @cached_property
    def y(self) -> np.ndarray:
        """y, as the user wrote it."""
        kind = self.condition
        classes = self.classes
        numbers = self.numbers
        if classes is None:
            assert numbers is not None
            return numbers
        if isinstance(kind, conditions.MixedCondition):
            return kind.joined(classes, numbers)
        return kind.decode(classes)


class HasConditions:
    """What has the conditions of rows: their kind, and their codes."""

    given: Conditions | None  # of the rows of all ranks; None without y

    @property
    def condition(self) -> conditions.Condition | None:
        return None if self.given is None else self.given.condition

    @property
    def codes(self) -> Tensor | None:
        return None if self.given is None else self.given.codes

    @property
    def n_conditions(self) -> int:
        """The number of classes, or of columns of y; 0 without."""
        return 0 if self.given is None else self.given.condition.width


class ArrayRows(HasConditions):
    """What rows in an array share: their `values` (n, …), their conditions, their place among ranks."""

    _names: ClassVar[
        tuple[str, str]
    ]  # of the field with the values, and of y in errors
    shard: (
        Shard | None
    )  # of these rows among those of all ranks; None if there are no others

    @property
    def values(self) -> np.ndarray:
        """This rank's rows (n, …)."""
        return np.asarray(getattr(self, self._names[0]))

    def append(self, others: Self) -> Self:
        values = np.concatenate((self.values, others.values))
        return self._with(values, join_labels(self.y, others.y))

    def take(self, numbers: np.ndarray) -> Self:
        return self._with(
            self.values[numbers], None if self.y is None else self.y[numbers]
        )

    def _with(self, values: np.ndarray, y: np.ndarray | None) -> Self:
        field, name = self._names
        rows = cast(Any, self)
        made: Self = replace(
            rows, **{field: values}, given=Conditions.infer(y, len(values), name)
        )
        return made

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n(self) -> int:
        """Rows of all ranks."""
        return self.here.total

    @property
    def here(self) -> Shard:
        """The place of this rank's rows."""
        return Shard(0, len(self), len(self)) if self.shard is None else self.shard

    @property
    def y(self) -> np.ndarray | None:
        return None if self.given is None else self.given.y

    def keys(self) -> Sequence[Hashable]:
        return row_keys(self.values, self.y)

    def digests(self, ranks: Ranks) -> dict[str, str]:
        return {"X": digest(self.values, ranks, self.here), "y": digest(self.y)}


def without(rows: Any, gone: Any) -> Any:
    """The rows left when others go, of equal rows the last first; a ValueError for rows that are not there."""
    numbers: dict[Hashable, list[int]] = {}
    for i, key in enumerate(rows.keys()):
        numbers.setdefault(key, []).append(i)
    left = np.ones(len(rows), dtype=bool)
    for i, key in enumerate(gone.keys()):
        if not numbers.get(key):
            advice = "nothing was forgotten. Pass rows with their y, exactly as they were fitted"
            raise ValueError(
                f"row {i} of X is not in the model, or X has it more often; {advice}"
            )
        left[numbers[key].pop()] = False
    if not left.any():
        raise ValueError(
            f"this would forget all {len(rows)} rows; delete the model instead"
        )
    return rows.take(np.flatnonzero(left))


def join_labels(
    first: np.ndarray | None, second: np.ndarray | None
) -> np.ndarray | None:
    """The y of two sets of rows as one; objects if their kinds differ, or numpy would turn 1 into "1"."""
    if (first is None) != (second is None):
        given, missing = ("earlier", "new") if second is None else ("new", "earlier")
        fact = f"the {given} rows have y and the {missing} rows have none"
        raise ValueError(f"{fact}; pass y for all rows")
    if first is None or second is None:
        return None
    if first.ndim != second.ndim or first.shape[1:] != second.shape[1:]:
        fact = f"y of the new rows has shape {second.shape}, and y of the earlier rows {first.shape}"
        raise ValueError(f"{fact}; pass y of the same kind for all rows")
    if first.dtype.kind in "iuf" and second.dtype.kind in "iuf":
        alike = second.astype(first.dtype)
        if np.array_equal(alike, second):
            return np.concatenate((first, alike))
    kinds = [
        {"i": "i", "u": "i"}.get(y.dtype.kind, y.dtype.kind) for y in (first, second)
    ]
    if kinds[0] != kinds[1]:
        first = first.astype(object)
        second = second.astype(object)
    return np.concatenate((first, second))


def _narrow(y: np.ndarray) -> np.ndarray:
    """Labels in the narrowest type: those that are left do not show which others there were."""
    if y.ndim != 1 or y.dtype.kind not in "OUS":
        return y
    labels = y.tolist()
    if len({type(label) for label in labels}) != 1 or type(labels[0]) not in (
        str,
        bytes,
        int,
        bool,
    ):
        return y
    narrow = np.array(labels)
    return narrow if narrow.ndim == 1 and narrow.tolist() == labels else y


def row_keys(X: np.ndarray, y: np.ndarray | None) -> list[Hashable]:
    """Keys of rows (n, …) and their y: equal for equal numbers, whatever their types."""
    flat = np.ascontiguousarray(X).reshape(len(X), -1)
    given: list[Any] = [None] * len(X) if y is None else y.tolist()
    keys: list[Hashable] = []
    for row, c in zip(flat, given, strict=True):
        numbers = row.astype(np.float64) + 0.0  # −0 equals 0
        label = conditions.label_key(tuple(c) if isinstance(c, list) else c)
        keys.append(
            (hashlib.blake2b(numbers.tobytes(), digest_size=16).digest(), label)
        )
    return keys
