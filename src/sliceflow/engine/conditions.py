"""Conditions: the kinds of y, how y enters the projection, and which y particles have.

A condition is *encoded* once into codes: class indices (n,) for labels, standardised
columns (n, l) for continuous conditions. Everywhere `codes_p` are those of particles,
which have the distribution p, and `codes_q` those of data, which have q.

A frame's θ_y (h, l) shifts every projection by ``ξ·θ_yᵀy``, where a class index stands
for a one-hot y. So l, which the engine calls `condition_dim`, is the number of classes
or of columns. The codes are never written to, so conditions do not move.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.saved_types import ArraySpec, Label
from sliceflow.validation import from_tensor, unmasked

_HASHABLE_HINT = "labels must be hashable: ints, strings, tuples, …"
# The fewest particles of a fit. Maps of fewer are too noisy for offline samples, which
# they were not fitted to; more cost time.
MIN_PARTICLES = 2_000
# The fewest particles of each class, if classes share their maps. A large fit of M
# particles has more, `_MIN_ROOTS_OF_SHARED_CLASS`·√M: the tails of a stored map, ¼√M
# particles at each end, must not be most of a rare class.
_MIN_OF_SHARED_CLASS = 200
_MIN_ROOTS_OF_SHARED_CLASS = 2
# The fewest particles of each class that has its own maps, which no other class helps
# to estimate. It trades the noise of rare classes for time.
_MIN_OF_OWN_CLASS = 1_000
# With many classes these minima would cost too much. They are lowered so that the
# particles of all classes are at most twice this number, or twice those of the fit.
_ENOUGH_FOR_ALL_CLASSES = 10_000
# Labels listed in a message.
_MAX_LISTED_LABELS = 12
# Weights of data are multiples of 2⁻⁴⁰. Sums up to 2¹³ are then exact, in any order and
# on any ranks.
_WEIGHT_UNIT = 2.0**-40


def add_condition_shift(
    z: Tensor, theta: Tensor | None, codes: Tensor | None
) -> Tensor:
    """z + ξ·θ_yᵀy for every direction and point, (h, n), with theta = ξ·θ_y (h, l).

    A class index stands for a one-hot y, so the offset of class c is theta[:, c].
    Without a condition this is z.
    """
    if theta is None or codes is None:
        return z
    if codes.dim() == 2:
        return torch.addmm(z, theta, codes.T.to(z.dtype))
    return kernels.for_tensor(z).add_class_offsets(z, theta, codes)


@dataclass(frozen=True)
class LabelEncoder:
    """Class labels of any hashable kind, as one-hot vectors.

    Labels of different types differ: 1, "1" and True are three classes. But 1.0 is 1.
    """

    kind: ClassVar[Literal["labels"]] = "labels"
    classes: Annotated[np.ndarray, Label]  # (C,)
    is_inferred: bool = False  # clusters, which the user did not pass

    def check_saved(self) -> None:
        """Raise a ValueError unless there are labels and all differ."""
        n_distinct = len({label_key(label) for label in self.classes.tolist()})
        if n_distinct == 0 or n_distinct != self.condition_dim:
            raise ValueError(
                f"there are no labels, or not all {self.condition_dim} are distinct"
            )

    @classmethod
    def fit_to(cls, y: np.ndarray) -> LabelEncoder:
        """The distinct labels of y (n,), sorted if possible, else as they appear."""
        if y.dtype != object:
            return cls(np.unique(y))
        labels: dict[Hashable, Any] = {}
        for label in y.tolist():
            labels.setdefault(label_key(label), label)
        distinct = list(labels.values())
        with contextlib.suppress(TypeError):  # labels of different types have no order
            distinct = sorted(distinct)
        return cls(_objects(distinct))

    @property
    def condition_dim(self) -> int:
        """l, the number of classes."""
        return len(self.classes)

    def encode(self, y: Any) -> Tensor:
        """Class indices (n,) of labels (n,)."""
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
            raise ValueError(_HASHABLE_HINT) from error
        if None in indices:
            self._raise_unknown(labels, indices)
        return torch.tensor(indices, dtype=torch.int64)

    def _raise_unknown(self, labels: list[Any], indices: list[int | None]) -> None:
        """Raise a `DataError` that lists the labels that are no class."""
        pairs = zip(labels, indices, strict=True)
        without_class = [label for label, index in pairs if index is None]
        unknown = list(dict.fromkeys(without_class))  # each one once
        plural = "s" if len(unknown) > 1 else ""
        raise DataError(
            f"unknown label{plural} {_listed(unknown)}",
            f"the model knows {_listed(self.classes.tolist())}",
        )

    def decode(self, codes: Tensor) -> np.ndarray:
        """The labels (n,) of class indices (n,)."""
        return np.asarray(self.classes[codes.cpu().numpy()])


@dataclass(frozen=True)
class ContinuousEncoder:
    """Continuous conditions, standardised column by column.

    A constant column is only centred.
    """

    mean: Annotated[np.ndarray, ArraySpec("l", torch.float64)]
    scale: Annotated[np.ndarray, ArraySpec("l", torch.float64)]
    kind: ClassVar[Literal["continuous"]] = "continuous"
    is_inferred: ClassVar[bool] = False

    def check_saved(self) -> None:
        """Raise a ValueError unless there are columns, with positive scales."""
        if not (self.scale > 0).all() or self.condition_dim == 0:
            raise ValueError(
                "a condition has no columns, or a scale that is not positive"
            )

    @classmethod
    def fit_to(cls, y: np.ndarray) -> ContinuousEncoder:
        """The mean and the standard deviation of the columns of y (n, l)."""
        scale = y.std(axis=0)
        return cls(y.mean(axis=0), np.where(scale > 0, scale, 1.0))

    @property
    def condition_dim(self) -> int:
        """l, the number of columns."""
        return len(self.mean)

    def encode(self, y: Any) -> Tensor:
        """Standardised columns (n, l) of y (n, l)."""
        array = as_array(y)
        if array.ndim != 2 or array.shape[1] != self.condition_dim:
            raise DataError(
                f"y has shape {array.shape} but the model was fitted with "
                f"{self.condition_dim} continuous columns",
                f"pass an (n, {self.condition_dim}) array",
            )
        return torch.from_numpy((_finite(array) - self.mean) / self.scale)

    def decode(self, codes: Tensor) -> np.ndarray:
        """The columns (n, l) of codes (n, l)."""
        return np.asarray(codes.cpu().numpy() * self.scale + self.mean)


@dataclass(frozen=True)
class MixedEncoder:
    """Labels and continuous columns in one y: an (n, L) array or a DataFrame.

    `labelled` (L,) marks the columns that are not all numbers. A row's labels together,
    a tuple, are its class. The codes (n, l) have two parts: the first column is the
    class index, the others are the standardised columns of numbers.
    """

    labels: LabelEncoder  # of the combinations of labels
    continuous: ContinuousEncoder  # of the other columns
    labelled: tuple[bool, ...]
    kind: ClassVar[Literal["mixed"]] = "mixed"
    is_inferred: ClassVar[bool] = False

    @classmethod
    def fit_to(cls, y: np.ndarray) -> MixedEncoder:
        """The combinations of labels, and the columns of numbers, of y (n, L)."""
        labelled = tuple(not _are_numbers(column) for column in y.T)
        if all(labelled):
            raise DataError(
                f"y has {len(labelled)} columns, all of them labels",
                "pass one label per row, such as a tuple, or a column of numbers",
            )
        is_label = np.array(labelled)
        combinations = _row_tuples(y[:, is_label])
        _check_labels(combinations, "y")
        continuous = ContinuousEncoder.fit_to(_finite(y[:, ~is_label]))
        return cls(LabelEncoder.fit_to(combinations), continuous, labelled)

    @property
    def condition_dim(self) -> int:
        """l, the number of columns of the codes."""
        return 1 + self.continuous.condition_dim

    def encode(self, y: Any) -> Tensor:
        """Codes (n, l) of y (n, L), or of a sequence of n tuples."""
        array = as_array(y)
        if array.ndim == 1 and len(array) and all(isinstance(r, tuple) for r in array):
            array = np.array([list(row) for row in array], dtype=object)
        array = np.atleast_2d(array)
        n_columns = len(self.labelled)
        if array.ndim != 2 or array.shape[1] != n_columns:
            raise DataError(
                f"y has shape {np.shape(y)} but the model was fitted with {n_columns} "
                f"columns, {sum(self.labelled)} of them labels",
                f"pass an (n, {n_columns}) array",
            )
        is_label = np.array(self.labelled)
        combinations = _row_tuples(array[:, is_label].astype(object))
        classes = self.labels.encode(combinations)[:, None].double()
        numbers = self.continuous.encode(array[:, ~is_label])
        return torch.cat((classes, numbers), 1)

    def decode(self, codes: Tensor) -> np.ndarray:
        """y (n, L) of codes (n, l)."""
        return self.joined(codes[:, 0].long(), self.continuous.decode(codes[:, 1:]))

    def joined(self, classes: Tensor, numbers: np.ndarray | None) -> np.ndarray:
        """y (n, L) from class indices (n,), and the columns of numbers (n, l − 1)."""
        is_label = np.array(self.labelled)
        y = np.empty((len(classes), len(is_label)), dtype=object)
        y[:, is_label] = [list(row) for row in self.labels.decode(classes)]
        y[:, ~is_label] = numbers
        return y


ConditionEncoder = LabelEncoder | ContinuousEncoder | MixedEncoder


def infer_encoder(array: np.ndarray, n_rows: int, name: str = "y") -> ConditionEncoder:
    """The kind of condition that the y of `fit` describes.

    One dimension is labels, two are continuous columns, or some of each.
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
        _check_labels(array, name)
        _check_no_fractions(array, name)
        return LabelEncoder.fit_to(array)
    if array.shape[1] == 0:
        raise DataError("y has 0 columns", "leave it out for an unconditional flow")
    if array.dtype == object and not _are_numbers(array.flat):
        return MixedEncoder.fit_to(array)
    return ContinuousEncoder.fit_to(_finite(array))


def broadcast_condition(encoder: ConditionEncoder, y: Any, n: int) -> Any:
    """y for n samples: a single condition is repeated n times, an array stays."""
    y = unmasked(y, "y")
    if isinstance(encoder, LabelEncoder):
        if not _is_one_label(y, encoder):
            return y
        label = y.item() if hasattr(y, "item") else y
        return _objects([label] * n)
    array = as_array(y)
    if isinstance(encoder, MixedEncoder):
        if not _is_one_row(array, len(encoder.labelled)):
            return array
        return np.tile(array.astype(object).reshape(1, -1), (n, 1))
    if array.ndim > 0 and not _is_one_row(array, encoder.condition_dim):
        return array
    return np.tile(array.reshape(1, -1), (n, 1))


def _is_one_label(y: Any, encoder: LabelEncoder) -> bool:
    """Whether y is a single label, not a sequence of labels."""
    if isinstance(y, (str, bytes)) or np.ndim(y) == 0:
        return True
    return isinstance(y, tuple) and y in set(encoder.classes.tolist())


def _is_one_row(array: np.ndarray, n_columns: int) -> bool:
    """Whether an array is one row of `n_columns` values, not a sequence of rows."""
    is_one_row = array.ndim == 1 and len(array) == n_columns
    return is_one_row and not isinstance(array[0], tuple)


def stratified_indices(codes: Tensor, m: int, seed: Seed, minimum: int = 0) -> Tensor:
    """The indices (M,) of the data whose conditions M particles take, in random order.

    Classes have the data's proportions: class c gets M·N_c/N particles, rounded by
    largest remainders, and at least `minimum` if M allows it. `codes` are the
    conditions (N,) or (N, l) of the data.
    """
    n = len(codes)
    if codes.dim() == 2:
        return even_indices(n, m, seed)
    class_sizes = torch.bincount(codes)
    share = class_sizes.double() * (m / n)
    counts = share.floor().long()
    # A stable order, by class index: the same on every machine.
    by_remainder = torch.argsort(share - counts, descending=True, stable=True)
    counts[by_remainder[: m - int(counts.sum())]] += 1
    too_small = (class_sizes > 0) & (counts < minimum)
    for c in torch.nonzero(too_small)[:, 0].tolist():
        # The largest class gives one away.
        while counts[c] < minimum < int(counts.max()):
            counts[counts.argmax()] -= 1
            counts[c] += 1
    # All data of a class have the same condition: any index of the class will do.
    first_of_class = torch.zeros(len(class_sizes), dtype=torch.int64)
    first_of_class[codes.flip(0)] = torch.arange(n - 1, -1, -1)
    indices = torch.repeat_interleave(first_of_class, counts)
    return indices[seed.child("order").permutation(m)]


def even_indices(n: int, m: int, seed: Seed) -> Tensor:
    """Indices (M,) from 0 to N − 1 in random order, each ⌊M/N⌋ or ⌈M/N⌉ times."""
    indices = seed.child("rows").permutation(n).repeat(math.ceil(m / n))[:m]
    return indices[seed.child("order").permutation(m)]


def extra_codes(
    *, codes_p: Tensor, codes_q: Tensor, per_class: bool, seed: Seed
) -> Tensor:
    """Codes of the particles that a fit adds where the requested ones are too few.

    `codes_p` are the codes of the requested particles, `codes_q` those of the data.
    Maps of few particles are too noisy for offline samples. So a fit has at least
    `MIN_PARTICLES`, and at least 200 of every class in the data, or 2√M of M. If each
    class has its own maps, `per_class`, it has at least 1,000 of every class.
    """
    m = len(codes_p)
    n = len(codes_q)
    n_particles = max(m, MIN_PARTICLES)
    if codes_q.dim() == 2:  # no classes
        return codes_q[even_indices(n, n_particles - m, seed)]
    class_sizes = torch.bincount(codes_q)
    n_classes = int((class_sizes > 0).sum())
    if per_class:
        least = _MIN_OF_OWN_CLASS
    else:
        least = max(
            _MIN_OF_SHARED_CLASS,
            math.ceil(_MIN_ROOTS_OF_SHARED_CLASS * math.sqrt(n_particles)),
        )
    enough_for_all = 2 * max(n_particles, _ENOUGH_FOR_ALL_CLASSES)
    least = min(least, enough_for_all // n_classes)
    wanted = torch.zeros_like(class_sizes)
    if m < MIN_PARTICLES:
        wanted = (class_sizes.double() * (n_particles / n)).round().long()
    wanted = torch.where(class_sizes > 0, wanted.clamp(min=least), 0)
    present = torch.bincount(codes_p, minlength=len(class_sizes))
    missing = (wanted - present).clamp(min=0)
    return torch.repeat_interleave(torch.arange(len(class_sizes)), missing)


def row_groups(*, codes_p: Tensor, codes_q: Tensor) -> tuple[Tensor, Tensor] | None:
    """Group indices (M,) of particles and (N,) of data: a group has one condition.

    `codes_p` and `codes_q` are the codes of particles and data. The result is None if
    groups cannot be compared, because data and particles have different sets of
    distinct continuous y.
    """
    if codes_q.dim() == 1:
        return codes_p, codes_q
    n = len(codes_q)
    all_codes = torch.cat((codes_q, codes_p.to(codes_q.dtype)))
    groups = _distinct_row_indices(all_codes)
    groups_q = groups[:n]
    groups_p = groups[n:]
    if not torch.equal(torch.unique(groups_q), torch.unique(groups_p)):
        return None
    return groups_p, groups_q


def _distinct_row_indices(rows: Tensor) -> Tensor:
    """The index (n,) of each row of (n, l) among the distinct rows.

    This is faster than `torch.unique` with dim=0. After each column, `indices` tells
    the rows apart by the columns so far.
    """
    indices = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for column in rows.T:
        distinct, column_indices = torch.unique(column, return_inverse=True)
        pair_indices = indices * len(distinct) + column_indices
        indices = torch.unique(pair_indices, return_inverse=True)[1]
    return indices


def row_weights(*, codes_p: Tensor, codes_q: Tensor) -> Tensor | None:
    """Weights (N,) of the data that give every condition the particles' mass.

    A row whose condition g is shared by N_g of N rows and M_g of M particles counts
    (M_g/M)/(N_g/N) in F_q. Otherwise a surplus of one class would be transported across
    the gap to another, a jump of size ξ. The result is None if all weights are 1, or if
    conditions cannot be compared.
    """
    groups = row_groups(codes_p=codes_p, codes_q=codes_q)
    if groups is None:
        return None
    groups_p, groups_q = groups
    n_groups = int(max(groups_q.max(), groups_p.max())) + 1
    n_g = torch.bincount(groups_q, minlength=n_groups).double()
    m_g = torch.bincount(groups_p, minlength=n_groups).double()
    ratio = (m_g / len(groups_p)) / (n_g / len(groups_q))
    # Rounded, but only 0 becomes 0.
    units = (ratio / _WEIGHT_UNIT).round().clamp(min=1)
    rounded = torch.where(ratio > 0, units * _WEIGHT_UNIT, 0.0)
    weights = rounded[groups_q]
    return None if bool((weights == 1).all()) else weights


def as_array(y: Any, name: str = "y") -> np.ndarray:
    """y as an array.

    A sequence of tuples or of mixed kinds becomes a 1-D array of objects.
    """
    y = unmasked(from_tensor(y), name)
    if hasattr(y, "to_numpy"):  # of pandas
        y = y.to_numpy()
    if isinstance(y, np.ndarray):
        return np.asarray(y)
    if isinstance(y, Sequence) and not isinstance(y, str) and _needs_objects(y):
        return _objects(y)
    return np.asarray(y)


def _needs_objects(values: Sequence[Any]) -> bool:
    """Whether numpy would turn the values into something else: tuples, mixed kinds."""
    kinds = {type(value) for value in values}
    if kinds == {tuple}:
        return True
    only_numbers = all(_is_number(kind) and kind is not bool for kind in kinds)
    return len(kinds) > 1 and not only_numbers


def _objects(values: Sequence[Any]) -> np.ndarray:
    """A 1-D array of objects, also where the objects are sequences themselves."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _row_tuples(rows: np.ndarray) -> np.ndarray:
    """The rows (n, k) of an array as n tuples, in a 1-D array of objects."""
    return _objects([tuple(row) for row in rows.tolist()])


def _is_number(kind: type) -> bool:
    return issubclass(kind, (int, float, np.number))


def _are_numbers(values: Any) -> bool:
    return all(_is_number(type(value)) for value in values)


def label_key(label: Any) -> Hashable:
    """A key that is equal for equal labels: True is not 1, though Python says so."""
    if isinstance(label, tuple):
        return tuple(label_key(part) for part in label)
    if isinstance(label, bool | np.bool):
        return (label, "bool")
    key: Hashable = label
    return key


def _check_labels(array: np.ndarray, name: str) -> None:
    """Raise a `DataError` for missing labels and for those that cannot be hashed."""
    if array.dtype.kind in "biufUS":  # missing floats are found as not finite
        return
    is_dates = array.dtype.kind in "mM"
    for row, label in enumerate(array if is_dates else array.tolist()):
        if _is_missing(label):
            raise DataError(
                f"{name} has no label ({format_label(label)})",
                "drop such rows, or give them a label such as 'unknown'",
                row=row,
            )
        try:
            hash(label)
        except TypeError as error:
            kind = type(label).__name__
            raise DataError(f"{name} is a {kind}", _HASHABLE_HINT, row=row) from error


def _check_no_fractions(array: np.ndarray, name: str) -> None:
    """Raise a `DataError` for labels that are fractions: they are a continuous y."""
    if array.dtype.kind != "f":
        return
    fractions = array[_finite(array, name) % 1 != 0]
    if len(fractions):
        raise DataError(
            f"{name} is one-dimensional: labels, but holds fractions such as "
            f"{fractions[0]}",
            "pass y[:, None] for a continuous condition",
        )


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or NA, or a tuple with NaN, NaT or NA."""
    if isinstance(label, tuple):
        return any(_is_missing(part) for part in label if part is not None)
    try:
        return label is None or bool(label != label)
    except TypeError:  # the truth value of pandas' NA
        return True


def _finite(y: np.ndarray, name: str = "y") -> np.ndarray:
    """Numbers, also of an array of objects, as float64.

    Raises a `DataError` for what is no number, or not finite.
    """
    if y.dtype == object:
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"y has a column of numbers with a value that is none: {error}"
            ) from error
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


def _listed(labels: list[Any]) -> str:
    """Labels for a message, the first ones if there are many."""
    shown = ", ".join(format_label(label) for label in labels[:_MAX_LISTED_LABELS])
    if len(labels) <= _MAX_LISTED_LABELS:
        return shown
    return f"{shown}, … ({len(labels)} in all)"
