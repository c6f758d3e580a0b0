"""Conditions: the kinds of y, how y enters the projection, and which y the particles have.

A condition is *encoded* once into codes: class numbers (n,) for labels, standardised columns (n, l) for
continuous conditions. A frame's θ_y then shifts every projection by ``ξ·θ_yᵀy``. The codes are never
written to, so conditions do not move.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.random import Seed
from sliceflow.errors import from_tensor, unmasked
from sliceflow.fields import Array, Label

_HASHABLE = "labels must be hashable: ints, strings, tuples, …"
ENOUGH = 2_000  # the least particles of a fit: maps of fewer are poor for fresh ones
_OF_A_CLASS = 200  # the least of a class that shares its maps with others,
_OF_ONE_APART = 1_000  # and of a class with its own maps;
_IN_ALL = 10_000  # fewer, if all classes together would need more than twice as many


def shifted(z: Tensor, theta: Tensor | None, codes: Tensor | None) -> Tensor:
    """z + ξ·θ_yᵀy for every direction and row, (h, n), with theta = ξ·θ_y (h, l); z without a condition.

    A class number stands for a one-hot y: its offset is one column of theta.
    """
    if theta is None or codes is None:
        return z
    if codes.dim() == 2:
        return torch.addmm(z, theta, codes.T.to(z.dtype))
    out: Tensor = kernels.for_tensor(z).add_class_offsets(z, theta, codes)
    return out


@dataclass(frozen=True)
class LabelCondition:
    """Class labels of any hashable kind, as one-hot vectors.

    Labels of different types differ: 1, "1" and True are three classes. But 1.0 is 1.
    """

    classes: Annotated[np.ndarray, Label]
    hidden: bool = False  # clusters, which the user did not pass

    def check(self) -> None:
        if not 0 < len(set(map(label_key, self.classes.tolist()))) == self.width:
            raise ValueError(
                f"there are no labels, or not all {self.width} are distinct"
            )

    @classmethod
    def fit_to(cls, y: np.ndarray) -> LabelCondition:
        """The distinct labels of y, sorted where they can be, else in order of appearance."""
        if y.dtype != object:
            return cls(np.unique(y))
        first = {label_key(label): label for label in reversed(y.tolist())}
        distinct = [first[key] for key in dict.fromkeys(map(label_key, y.tolist()))]
        with contextlib.suppress(TypeError):
            distinct = sorted(distinct)
        return cls(_objects(distinct))

    @property
    def width(self) -> int:
        return len(self.classes)

    def encode(self, y: Any) -> Tensor:
        """Class numbers (n,) of labels (n,)."""
        array = as_array(y)
        if array.ndim != 1:
            fact = (
                f"y has shape {array.shape} but the model was fitted with class labels"
            )
            raise ValueError(f"{fact}; pass one label for each row, (n,)")
        number = {label_key(label): i for i, label in enumerate(self.classes.tolist())}
        labels = array.tolist()
        try:
            numbers = [number.get(label_key(label)) for label in labels]
        except TypeError as error:
            raise ValueError(_HASHABLE) from error
        if None in numbers:
            unknown = list(
                dict.fromkeys(
                    v for v, i in zip(labels, numbers, strict=True) if i is None
                )
            )
            fact = f"unknown label{'s' if len(unknown) > 1 else ''} {_listed(unknown)}"
            raise ValueError(
                f"{fact}; the model knows {_listed(self.classes.tolist())}"
            )
        return torch.tensor(numbers, dtype=torch.int64)

    def decode(self, codes: Tensor) -> np.ndarray:
        return np.asarray(self.classes[codes.cpu().numpy()])


@dataclass(frozen=True)
class ContinuousCondition:
    """Continuous conditions, standardised column by column (a constant column is only centred)."""

    mean: Annotated[np.ndarray, Array("l", torch.float64)]
    scale: Annotated[np.ndarray, Array("l", torch.float64)]
    hidden = False

    def check(self) -> None:
        if not (self.scale > 0).all() or not self.width:
            raise ValueError(
                "a condition has no columns, or a scale that is not positive"
            )

    @classmethod
    def fit_to(cls, y: np.ndarray) -> ContinuousCondition:
        scale = y.std(axis=0)
        return cls(y.mean(axis=0), np.where(scale > 0, scale, 1.0))

    @property
    def width(self) -> int:
        return len(self.mean)

    def encode(self, y: Any) -> Tensor:
        array = as_array(y)
        if array.ndim != 2 or array.shape[1] != self.width:
            known = f"the model was fitted with {self.width} continuous columns"
            fact = f"y has shape {array.shape} but {known}"
            raise ValueError(f"{fact}; pass an (n, {self.width}) array")
        return torch.from_numpy((_finite(array) - self.mean) / self.scale)

    def decode(self, codes: Tensor) -> np.ndarray:
        return np.asarray(codes.cpu().numpy() * self.scale + self.mean)


@dataclass(frozen=True)
class MixedCondition:
    """Labels and continuous columns in one y: an (n, L) array of objects, or a DataFrame.

    Columns that are not all numbers are `labelled`. Codes (n, l) have the number of a row's combination
    of labels, a tuple, first, and then its standardised columns.
    """

    labels: LabelCondition
    columns: ContinuousCondition
    labelled: tuple[bool, ...]
    hidden = False

    @classmethod
    def fit_to(cls, y: np.ndarray) -> MixedCondition:
        labelled = tuple(not all(_is_number(type(v)) for v in column) for column in y.T)
        if all(labelled):
            fact = f"y has {len(labelled)} columns, all of them labels"
            raise ValueError(
                f"{fact}; pass one label per row, such as a tuple, or a column of numbers"
            )
        is_label = np.array(labelled)
        rows = _objects([tuple(row) for row in y[:, is_label].tolist()])
        _need_labels(rows, "y")
        columns = ContinuousCondition.fit_to(_finite(y[:, ~is_label]))
        return cls(LabelCondition.fit_to(rows), columns, labelled)

    @property
    def width(self) -> int:
        return 1 + self.columns.width

    def encode(self, y: Any) -> Tensor:
        array = as_array(y)
        if (
            array.ndim == 1
            and len(array)
            and all(isinstance(row, tuple) for row in array)
        ):
            array = np.array([list(row) for row in array], dtype=object)
        array = np.atleast_2d(array)
        if array.ndim != 2 or array.shape[1] != len(self.labelled):
            known = f"{len(self.labelled)} columns, {sum(self.labelled)} of them labels"
            fact = f"y has shape {np.shape(y)} but the model was fitted with {known}"
            raise ValueError(f"{fact}; pass an (n, {len(self.labelled)}) array")
        is_label = np.array(self.labelled)
        rows = _objects(
            [tuple(row) for row in array[:, is_label].astype(object).tolist()]
        )
        numbers = self.labels.encode(rows)[:, None].double()
        return torch.cat((numbers, self.columns.encode(array[:, ~is_label])), 1)

    def decode(self, codes: Tensor) -> np.ndarray:
        return self.joined(codes[:, 0].long(), self.columns.decode(codes[:, 1:]))

    def joined(self, classes: Tensor, numbers: np.ndarray | None) -> np.ndarray:
        """y (n, L) from the class numbers (n,) of combinations of labels, and the other columns."""
        is_label = np.array(self.labelled)
        out = np.empty((len(classes), len(is_label)), dtype=object)
        out[:, is_label] = [list(row) for row in self.labels.decode(classes)]
        out[:, ~is_label] = numbers
        return out


Condition = LabelCondition | ContinuousCondition | MixedCondition


def infer(array: np.ndarray, n_rows: int, name: str = "y") -> Condition:
    """The condition that the y of `fit` describes: 1-D is labels, 2-D is continuous columns."""
    if array.ndim not in (1, 2):
        raise ValueError(
            f"y has shape {array.shape}; pass labels (n,) or columns (n, l)"
        )
    if len(array) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows but y has {len(array)}; pass one y for every row of X"
        )
    if array.ndim == 2:
        if array.shape[1] == 0:
            raise ValueError("y has 0 columns; leave it out for an unconditional flow")
        if array.dtype == object and not all(_is_number(type(v)) for v in array.flat):
            return MixedCondition.fit_to(array)
        return ContinuousCondition.fit_to(_finite(array))
    _need_labels(array, name)
    if array.dtype.kind == "f" and len(
        fractions := array[_finite(array, name) % 1 != 0]
    ):
        fact = f"{name} is one-dimensional: labels, but holds fractions such as {fractions[0]}"
        raise ValueError(f"{fact}; pass y[:, None] for a continuous condition")
    return LabelCondition.fit_to(array)


def repeated(condition: Condition, y: Any, n: int) -> Any:
    """y for n samples: one condition is repeated n times, anything else is left as it is."""
    y = unmasked(y, "y")
    if isinstance(condition, LabelCondition):
        one = isinstance(y, (str, bytes)) or np.ndim(y) == 0
        one = one or (isinstance(y, tuple) and y in set(condition.classes.tolist()))
        return _objects([y.item() if hasattr(y, "item") else y] * n) if one else y
    array = as_array(y)
    mixed = isinstance(condition, MixedCondition)
    width = (
        len(condition.labelled)
        if isinstance(condition, MixedCondition)
        else condition.width
    )
    one = array.ndim == 1 and len(array) == width and not isinstance(array[0], tuple)
    if not one and (mixed or array.ndim):
        return array
    return np.tile((array.astype(object) if mixed else array).reshape(1, -1), (n, 1))


def proportional(codes: Tensor, m: int, seed: Seed, least: int = 0) -> Tensor:
    """M rows of the data whose conditions the particles take, in the data's proportions, shuffled.

    Class c gets M·N_c/N particles, rounded by largest remainders, and at least `least` if M allows it.
    """
    n = len(codes)
    if codes.dim() == 2:
        return even_rows(n, m, seed)
    counts = torch.bincount(codes)
    share = counts.double() * (m / n)
    whole = share.floor().long()
    # Stable and by class number: the same on every machine.
    rest = torch.argsort(share - whole, descending=True, stable=True)[
        : m - int(whole.sum())
    ]
    whole[rest] += 1
    for c in torch.nonzero((counts > 0) & (whole < least))[:, 0].tolist():
        while whole[c] < least < int(whole.max()):  # the largest class gives some away
            whole[whole.argmax()] -= 1
            whole[c] += 1
    first_row = torch.zeros(len(counts), dtype=torch.int64)
    first_row[codes.flip(0)] = torch.arange(n - 1, -1, -1)
    return torch.repeat_interleave(first_row, whole)[seed.child("order").permutation(m)]


def even_rows(n: int, m: int, seed: Seed) -> Tensor:
    """M of the rows 0..N-1 in random order, each used ⌊M/N⌋ or ⌈M/N⌉ times."""
    rows = seed.child("rows").permutation(n).repeat(-(-m // n))[:m]
    return rows[seed.child("order").permutation(m)]


def extra_codes(
    codes_q: Tensor, codes_p: Tensor, per_class: bool, seed: Seed
) -> Tensor:
    """Codes of the particles that a fit adds where the requested ones are too few for a model.

    Maps of few particles are poor for fresh ones. So a fit has at least `ENOUGH` particles, and at
    least 200 of every class in the data, or 2√M of M; classes `per_class`, with their own maps, have 1,000.
    """
    m = len(codes_p)
    n = len(codes_q)
    base = max(m, ENOUGH)
    if codes_q.dim() == 2:  # no classes
        return codes_q[even_rows(n, base - m, seed)]
    size = torch.bincount(codes_q)
    n_classes = int((size > 0).sum())
    least = (
        _OF_ONE_APART if per_class else max(_OF_A_CLASS, math.ceil(2 * math.sqrt(base)))
    )
    least = min(least, 2 * max(base, _IN_ALL) // n_classes)
    wanted = (
        (size.double() * (base / n)).round().long()
        if m < ENOUGH
        else torch.zeros_like(size)
    )
    wanted = torch.where(size > 0, wanted.clamp(min=least), 0)
    there = torch.bincount(codes_p, minlength=len(size))
    return torch.repeat_interleave(
        torch.arange(len(size)), (wanted - there).clamp(min=0)
    )


def row_groups(
    data_codes: Tensor, particle_codes: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Numbers (N,) and (M,) that are equal where the conditions are; None if they cannot be compared,
    because data and particles have other sets of distinct continuous y.
    """
    if data_codes.dim() == 1:
        return data_codes, particle_codes
    groups = _numbered(torch.cat((data_codes, particle_codes.to(data_codes.dtype))))
    groups_q = groups[: len(data_codes)]
    groups_p = groups[len(data_codes) :]
    same = torch.equal(torch.unique(groups_q), torch.unique(groups_p))
    return (groups_q, groups_p) if same else None


def _numbered(rows: Tensor) -> Tensor:
    """The index (n,) of each row among the distinct ones: a faster `torch.unique` with dim=0."""
    numbers = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for column in rows.T:
        distinct, own = torch.unique(column, return_inverse=True)
        numbers = torch.unique(numbers * len(distinct) + own, return_inverse=True)[1]
    return numbers


def row_weights(data_codes: Tensor, particle_codes: Tensor) -> Tensor | None:
    """Weights of the data's rows that give every condition the particles' mass; None if all are 1, or
    conditions cannot be compared.

    A row whose condition g is shared by N_g of N rows and M_g of M particles counts (M_g/M)/(N_g/N) in
    F_q: a surplus of one class would be transported across the gap to another, a jump of size ξ.
    """
    groups = row_groups(data_codes, particle_codes)
    if groups is None:
        return None
    groups_q, groups_p = groups
    size = int(max(groups_q.max(), groups_p.max())) + 1
    n_g, m_g = (torch.bincount(g, minlength=size).double() for g in groups)
    ratio = (m_g / len(groups_p)) / (n_g / len(groups_q))
    # Multiples of 2⁻⁴⁰: sums up to 2¹³ are then exact, in any order and on any ranks. Only 0 becomes 0.
    whole = torch.where(ratio > 0, (ratio * 2**40).round().clamp(min=1) / 2**40, 0.0)
    weights = whole[groups_q]
    return None if bool((weights == 1).all()) else weights


def as_array(y: Any, name: str = "y") -> np.ndarray:
    """y as an array; a sequence of tuples or of mixed kinds stays a 1-D array of objects."""
    y = unmasked(from_tensor(y), name)
    if hasattr(y, "to_numpy"):  # of pandas
        y = y.to_numpy()
    if isinstance(y, np.ndarray):
        return np.asarray(y)
    kinds = (
        {type(v) for v in y}
        if isinstance(y, Sequence) and not isinstance(y, str)
        else set()
    )
    alike = all(_is_number(kind) and kind is not bool for kind in kinds)
    return (
        _objects(y)
        if kinds == {tuple} or (len(kinds) > 1 and not alike)
        else np.asarray(y)
    )


def _objects(values: Sequence[Any]) -> np.ndarray:
    """A 1-D array of objects, also where the objects are sequences themselves."""
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _is_number(kind: type) -> bool:
    return issubclass(kind, (int, float, np.number))


def label_key(label: Any) -> Any:
    """What tells labels apart: True is not 1, though Python calls them equal."""
    if isinstance(label, tuple):
        return tuple(map(label_key, label))
    return (label, "bool") if isinstance(label, bool | np.bool) else label


def _need_labels(array: np.ndarray, name: str) -> None:
    """Raise a ValueError for missing values and for labels that cannot be hashed."""
    if array.dtype.kind in "biufUS":  # missing floats are not finite
        return
    for row, label in enumerate(array if array.dtype.kind in "mM" else array.tolist()):
        if _is_missing(label):
            fact = f"row {row} of {name} has no label ({format_label(label)})"
            raise ValueError(
                f"{fact}; drop such rows, or give them a label such as 'unknown'"
            )
        try:
            hash(label)
        except TypeError as error:
            raise ValueError(
                f"row {row} of {name} is a {type(label).__name__}; {_HASHABLE}"
            ) from error


def _is_missing(label: Any) -> bool:
    """Whether it is None, NaN, NaT or pandas' NA, or a tuple that holds NaN, NaT or NA."""
    if isinstance(label, tuple):
        return any(_is_missing(v) for v in label if v is not None)
    try:
        return label is None or bool(label != label)
    except TypeError:  # the truth value of pandas' NA
        return True


def _finite(y: np.ndarray, name: str = "y") -> np.ndarray:
    """Numbers, also of an array of objects, as float64; a ValueError for what is none or not finite."""
    try:
        y = y.astype(np.float64) if y.dtype == object else y
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y has a column of numbers with a value that is none: {error}"
        ) from error
    if y.dtype.kind not in "fiub":
        fact = f"{name} has columns of dtype {y.dtype}"
        raise ValueError(f"{fact}; continuous conditions must be numbers, labels 1-D")
    y = y.astype(np.float64)
    if len(bad := np.argwhere(~np.isfinite(y))):
        at = tuple(bad[0].tolist())
        fact = f"{name} contains {y[at]} at {list(at)}"
        raise ValueError(f"{fact}; conditions must be finite: drop or fill such rows")
    return y


def format_label(label: Any) -> str:
    """A label for a message, as Python writes it, without numpy's types."""
    if isinstance(label, tuple):
        return (
            f"({', '.join(map(format_label, label))}{',' if len(label) == 1 else ''})"
        )
    if isinstance(label, np.datetime64 | np.timedelta64):
        return str(label)
    return repr(label.item() if isinstance(label, np.generic) else label)


def _listed(labels: list[Any], most: int = 12) -> str:
    shown = ", ".join(map(format_label, labels[:most]))
    return shown if len(labels) <= most else f"{shown}, … ({len(labels)} in all)"


def default_particles(n: int) -> int:
    """The smallest multiple of n rows, to use their conditions equally often, of at least 10,000."""
    return n * max(1, -(-10_000 // n))
