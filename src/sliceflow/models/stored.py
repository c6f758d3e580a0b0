"""How files hold the engine's classes, which know nothing of files: steps, maps, conditions and frames.

Each class with arrays has a twin here. Its annotations say what an array may hold, and its `check` what
makes maps that can be applied. Importing this module tells the codec of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions, frames, transports
from sliceflow.engine.compact import MOST_BINS, MOST_KNOTS, CompactTable, ModelStep
from sliceflow.engine.transports import GridTable, KnotTable
from sliceflow.models.codec import Array, Between, Label, store_as
from sliceflow.neighbours.local import LocalSettings

FLOATS = (torch.float32, torch.float64)
Count = Annotated[int, Between(0, 1 << 32)]
_ORTHONORMAL = 1e-3  # how far products of fitted directions may be from 0 and 1
_SLACK = 1e-5  # averages of equal numbers may differ in the last digit
_MOST_LABELS = 1 << 28  # bytes of class labels


# Maps


@dataclass(frozen=True)
class _Knots:
    knots: Annotated[Tensor, Array("h k", FLOATS)]
    values: Annotated[Tensor, Array("h k", FLOATS)]

    def check(self) -> None:
        if self.knots.dtype != self.values.dtype or self.knots.shape[1] < 1:
            raise ValueError(f"maps have {self.knots.shape[1]} knots, or mix types of numbers")
        _check_ascending(self.knots[:, :-1], self.knots[:, 1:])


@dataclass(frozen=True)
class _Grid:
    lo: Annotated[Tensor, Array("h", FLOATS)]
    hi: Annotated[Tensor, Array("h", FLOATS)]
    values: Annotated[Tensor, Array("h b", FLOATS)]

    def check(self) -> None:
        if self.lo.dtype != self.hi.dtype or self.values.shape[1] < 2:
            raise ValueError(f"maps have {self.values.shape[1]} values, or mix types of numbers")
        _check_ascending(self.lo, self.hi)


def _check_ascending(before: Tensor, after: Tensor) -> None:
    falls = before - after
    if falls.numel() and bool((falls > _SLACK * after.abs().amax()).any()):
        raise ValueError("maps have knots that do not ascend")


@dataclass(frozen=True)
class _Compact:
    """Only the maps that move anything, and only the `inner` knots: the ends are at 0 and `n_bins`."""

    lo: Annotated[Tensor, Array("h", torch.float64, packed="planes")]
    hi: Annotated[Tensor, Array("h", torch.float64, packed="planes")]
    inner: Annotated[Tensor, Array("h i", torch.int32, ge=1, lt="n_bins", packed="delta")]
    levels: Annotated[Tensor, Array("h k", torch.int16, packed="delta")]
    numbers: Annotated[Tensor, Array("h", torch.int64, ge=0, lt="n_all", packed="delta")]
    n_all: Count
    n_bins: Annotated[int, Between(1, MOST_BINS)]
    exponent: Annotated[int, Between(-1000, 1000)]
    dtype: torch.dtype

    def check(self) -> None:
        k = self.levels.shape[1]
        if self.inner.shape[1] != k - 2 or not 2 <= k <= MOST_KNOTS or self.dtype not in FLOATS:
            raise ValueError(f"compact maps have {k} knots of {self.dtype}")
        if not all(bool((t.diff(dim=-1) > 0).all()) for t in (self.inner, self.numbers)):
            raise ValueError("compact maps have knots or numbers that do not ascend")
        if not bool((self.lo <= self.hi).all()):
            raise ValueError("compact maps have ranges that end before they begin")
        farthest = max(-float(self.lo.amin()), float(self.hi.amax())) if len(self.lo) else 0.0
        if not farthest + 2.0 ** (self.exponent + 15) < torch.finfo(self.dtype).max / 4:
            raise ValueError(f"compact maps reach beyond the numbers of {self.dtype}")

    @classmethod
    def from_engine(cls, table: CompactTable) -> _Compact:
        t = table.moving()
        numbers = torch.arange(len(t.lo)) if t.numbers is None else t.numbers
        arrays = (t.lo.double(), t.hi.double(), t.at[:, 1:-1], t.levels, numbers)
        return cls(*arrays, t.n_maps, t.n_bins, t.exponent, t.dtype)

    def to_engine(self) -> CompactTable:
        first = self.inner.new_zeros(len(self.lo), 1)
        at = torch.cat([first, self.inner, first + self.n_bins], 1)
        numbers, n_all = (self.numbers, self.n_all) if len(self.lo) < self.n_all else (None, 0)
        about = (self.n_bins, self.exponent, self.dtype, numbers, n_all)
        return CompactTable(self.lo, self.hi, at, self.levels, *about)


@dataclass(frozen=True)
class _Step:
    stage: Count
    step: Count
    table: KnotTable | GridTable | CompactTable
    theta: Annotated[Tensor, Array("h d", FLOATS)] | None

    def check(self) -> None:
        if self.theta is None:
            return
        one = torch.eye(len(self.theta), dtype=self.theta.dtype, device=self.theta.device)
        if not bool(((self.theta @ self.theta.T - one).abs() < _ORTHONORMAL).all()):
            raise ValueError("the fitted directions of a step are not orthonormal")


# Conditions

_FLOAT_ROW = Annotated[np.ndarray, Array("l", torch.float64)]


@dataclass(frozen=True)
class _Columns:
    mean: _FLOAT_ROW
    scale: _FLOAT_ROW

    def check(self) -> None:
        if not (self.scale > 0).all() or not len(self.scale):
            raise ValueError("a condition has no columns, or a scale that is not positive")


@dataclass(frozen=True)
class _Labels:
    dtype: str
    classes: tuple[Label, ...]
    hidden: bool

    def check(self) -> None:
        self.to_engine()

    @classmethod
    def from_engine(cls, labels: conditions.Labels) -> _Labels:
        return cls(labels.classes.dtype.str, tuple(_plain(labels.classes)), labels.hidden)

    def to_engine(self) -> conditions.Labels:
        labels = list(self.classes)
        # numpy would accept more than names of types: lists of them, and worse.
        if re.fullmatch(r"[<>|=]?[biufUSmMO]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?", self.dtype) is None:
            raise ValueError(f"{self.dtype[:60]!r} is not a type of labels")
        dtype = np.dtype(self.dtype)
        if not labels or dtype.itemsize * len(labels) > _MOST_LABELS:
            raise ValueError(f"there are {len(labels)} labels of dtype {dtype}")
        kinds: dict[str, type] = {"b": bool, "f": float, "U": str, "S": bytes}
        if dtype.kind != "O" and not all(type(v) is kinds.get(dtype.kind, int) for v in labels):
            raise ValueError(f"labels are not all of dtype {dtype}")
        classes = np.empty(len(labels), dtype=np.int64 if dtype.kind in "mM" else dtype)
        classes[:] = labels
        classes = classes.view(dtype) if dtype.kind in "mM" else classes
        if _plain(classes) != labels or len(set(map(conditions.label_key, labels))) != len(labels):
            raise ValueError(f"labels are not distinct, or not of dtype {dtype}")
        return conditions.Labels(classes, self.hidden)


def _plain(classes: np.ndarray) -> list[Any]:
    """Labels as Python objects; dates as numpy's integers."""
    plain = (classes.view(np.int64) if classes.dtype.kind in "mM" else classes).tolist()
    return [label.item() if isinstance(label, np.generic) else label for label in plain]


@dataclass(frozen=True)
class _LocalSettings:
    k: Annotated[int, Between(1, 1 << 32)]
    spread: Annotated[float, Between(0, 100)]
    projection: Annotated[Tensor, Array("f m", torch.float64)]
    n_features: Annotated[int, Between(0, 1 << 16)]

    def to_engine(self) -> LocalSettings:
        return LocalSettings(self.k, self.spread, self.projection.cpu(), self.n_features)


@dataclass(frozen=True)
class SavedHistory:
    """The history of a fit, by columns; see `events.History`."""

    stage: Sequence[str]
    step: Sequence[Count]
    distance: Sequence[float]
    moving: Sequence[float]
    seconds: Sequence[float] | None = None  # not of a model: the same fit gives the same file

    def check(self) -> None:
        if len({len(column) for column in self.columns().values()}) != 1:
            raise ValueError("the columns of a history have different lengths")

    def columns(self) -> dict[str, list[Any]]:
        return {name: list(column) for name, column in vars(self).items() if column is not None}


for kind, twin in (
    (KnotTable, _Knots),
    (GridTable, _Grid),
    (CompactTable, _Compact),
    (ModelStep, _Step),
    (conditions.Columns, _Columns),
    (conditions.Labels, _Labels),
    (LocalSettings, _LocalSettings),
    (conditions.Condition, conditions.Labels | conditions.Columns | conditions.Mixed),
    # frames and transports are plain; a file holds no others
    (transports.Table, KnotTable | GridTable | CompactTable),
    (frames.FrameKind, frames.Random | frames.Orthogonal | frames.Axis | frames.MaxSliced),
    (
        transports.Transport,
        transports.Sorted | transports.Interpolated | transports.Histogram | transports.Auto,
    ),
):
    store_as(kind, twin)
