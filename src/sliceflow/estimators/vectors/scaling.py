"""The units in which vectors move: columns of mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Floats, Mask
from sliceflow.base import exact_means
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.errors import DataError
from sliceflow.neighbors.features import heavy_tail
from sliceflow.saved_types import ArraySpec

# Only columns with a value farther from their mean, in standard deviations, are tried
# for heavy tails: other columns are near enough to normal.
_MIN_TAIL_DEVIATIONS = 10.0
# sinh overflows float64 beyond about 710.
_MAX_SINH = 700.0


@dataclass(frozen=True, eq=False)
class ColumnScaler:
    """Scales columns to mean 0 and standard deviation 1: (g(x) − shift)/scale.

    These are the flow's units. g compresses a heavy-tailed column, or most of its
    values would lie in a few bins of a histogram: g(x) = asinh((x − tail_center)/
    tail_scale), where `tail_center` is the column's median and `tail_scale` the median
    of the distances from it that are not 0. A `tail_scale` of 0 marks all other
    columns, where g(x) = x.
    """

    shift: Annotated[Floats, ArraySpec("d", "float64")]
    scale: Annotated[Floats, ArraySpec("d", "float64")]
    tail_center: Annotated[Floats, ArraySpec("d", "float64")]
    tail_scale: Annotated[Floats, ArraySpec("d", "float64", ge=0)]

    def check_saved(self) -> None:
        """Raise a ValueError for units that no fit can have."""
        if not (self.scale > 0).all():
            raise ValueError("a scale is not positive")

    def check_width(self, d: int) -> None:
        """Raise a ValueError unless these are the units of d columns."""
        if len(self.shift) != d:
            raise ValueError(f"there are not units for {d} columns")

    @classmethod
    def from_data(
        cls,
        X: NDArray[Any],
        standardize: bool,
        ranks: Communicator = ONE_PROCESS,
        n: int | None = None,
    ) -> ColumnScaler:
        """The units of the rows of all ranks, of which this rank has X (k, d).

        n is the number of rows of all ranks; None if X has all of them. If
        `standardize` is False, the transformation is the identity.
        """
        d = X.shape[1]
        if not standardize:
            return cls(np.zeros(d), np.ones(d), np.zeros(d), np.zeros(d))
        if n is None:
            n = len(X)
        summary = _Summary.of_columns(X, ranks, n)
        tail_center, tail_scale = _heavy_tails(X, summary, ranks)
        if tail_scale.any():
            compressed = _compress_tails(X, tail_center, tail_scale)
            summary = _Summary.of_columns(compressed, ranks, n)
        summary.require_scales()
        shift = np.where(summary.is_constant, summary.lowest, summary.mean)
        scale = np.where(summary.is_constant, 1.0, summary.std)
        return cls(shift, scale, tail_center, tail_scale)

    @property
    def is_heavy_tailed(self) -> Mask:
        """Which columns (d,) have heavy tails."""
        return self.tail_scale > 0

    def compress_tails(self, X: NDArray[Any]) -> NDArray[Any]:
        """g(x) for rows (n, d)."""
        return _compress_tails(X, self.tail_center, self.tail_scale)

    def transform(self, X: NDArray[Any]) -> Tensor:
        """Rows (n, d) in the user's units -> in the flow's units, of the same dtype."""
        standardized = (self.compress_tails(X) - self.shift) / self.scale
        return torch.from_numpy(standardized.astype(X.dtype))

    def inverse_transform(self, scaled_rows: Tensor) -> Tensor:
        """Rows (n, d) in the flow's units -> in the user's units, of the same dtype."""
        device = scaled_rows.device
        shift = torch.from_numpy(self.shift).to(device)
        scale = torch.from_numpy(self.scale).to(device)
        rows = scaled_rows.double() * scale + shift
        if self.is_heavy_tailed.any():
            center = torch.from_numpy(self.tail_center).to(device)
            tail_scale = torch.from_numpy(self.tail_scale).to(device)
            is_heavy = tail_scale > 0
            compressed = rows[:, is_heavy].clamp(-_MAX_SINH, _MAX_SINH)
            wide = torch.sinh(compressed) * tail_scale[is_heavy] + center[is_heavy]
            # Keeps every number finite, whatever the maps do.
            limit = torch.finfo(scaled_rows.dtype).max / 4
            rows[:, is_heavy] = wide.clamp(-limit, limit)
        return rows.to(scaled_rows.dtype)


def transform_by_class(
    scalers_by_class: Sequence[ColumnScaler], X: NDArray[Any], y: ClassIndices | None
) -> Tensor:
    """Rows (n, d) in the flow's units, which may differ by class.

    With several scalers, row i uses the scaler of its class, ``y.values[i]``. With one
    scaler, y is ignored.
    """
    if len(scalers_by_class) == 1 or y is None:
        return scalers_by_class[0].transform(X)
    scaled_rows = torch.from_numpy(np.empty_like(X))
    for c, scaler_of_class in enumerate(scalers_by_class):
        is_of_class = y.values == c
        scaled_rows[is_of_class] = scaler_of_class.transform(X[is_of_class.numpy()])
    return scaled_rows


def inverse_transform_by_class(
    scalers_by_class: Sequence[ColumnScaler],
    scaled_rows: Tensor,
    y: ClassIndices | None,
) -> Tensor:
    """Rows (n, d) in the user's units: the inverse of `transform_by_class`."""
    if len(scalers_by_class) == 1 or y is None:
        return scalers_by_class[0].inverse_transform(scaled_rows)
    rows = torch.empty_like(scaled_rows, memory_format=torch.contiguous_format)
    for c, scaler_of_class in enumerate(scalers_by_class):
        is_of_class = (y.values == c).to(scaled_rows.device)
        rows[is_of_class] = scaler_of_class.inverse_transform(scaled_rows[is_of_class])
    return rows


def _compress_tails(
    X: NDArray[Any], tail_center: Floats, tail_scale: Floats
) -> NDArray[Any]:
    """g(x) for rows (n, d), given `tail_center` and `tail_scale` (d,)."""
    is_heavy = tail_scale > 0
    if not is_heavy.any():
        return X
    X = X.astype(np.float64)
    deviation = X[:, is_heavy] - tail_center[is_heavy]
    X[:, is_heavy] = np.arcsinh(deviation / tail_scale[is_heavy])
    return X


def _heavy_tails(
    X: NDArray[Any], summary: _Summary, ranks: Communicator
) -> tuple[Floats, Floats]:
    """The `tail_center` and `tail_scale` (d,) of the columns, over all ranks' rows."""
    d = X.shape[1]
    center = np.zeros(d)
    scale = np.zeros(d)
    for j in np.flatnonzero(summary.may_be_heavy_tailed & ~summary.is_constant):
        column = ranks.all_gather_rows(np.ascontiguousarray(X[:, j]))
        tail = heavy_tail(column.astype(np.float64))
        if tail is not None:
            center[j], scale[j] = tail
    return center, scale


@dataclass(frozen=True, eq=False)
class _Summary:
    """Minimum, maximum, mean and standard deviation (d,) of columns of all ranks."""

    lowest: NDArray[Any]
    highest: NDArray[Any]
    mean: Floats
    std: Floats

    @classmethod
    def of_columns(cls, X: NDArray[Any], ranks: Communicator, n: int) -> _Summary:
        """The summary of the n rows of all ranks, of which this rank has X (k, d)."""
        lowest = X.min(axis=0)
        highest = X.max(axis=0)
        if ranks.size > 1:
            ends = torch.from_numpy(np.stack((lowest, -highest)))
            ends_of_all = ranks.minimum_(ends).numpy()
            lowest = ends_of_all[0]
            highest = -ends_of_all[1]
        with np.errstate(over="ignore", invalid="ignore"):
            mean = exact_means.mean(X, n, ranks)
            std = np.sqrt(exact_means.mean_square(X, n, mean, ranks))
        return cls(lowest, highest, mean, std)

    @property
    def is_constant(self) -> Mask:
        """Which columns (d,) have one value."""
        return np.asarray(self.lowest == self.highest)

    @property
    def may_be_heavy_tailed(self) -> Mask:
        """Which columns (d,) have a value that is far from the mean."""
        with np.errstate(over="ignore", invalid="ignore"):
            above = self.highest - self.mean
            farthest = np.maximum(self.mean - self.lowest, above)
            return np.asarray(~(farthest <= _MIN_TAIL_DEVIATIONS * self.std))

    def require_scales(self) -> None:
        """Raise a `DataError` for a column whose deviation is 0, or not finite."""
        has_scale = np.isfinite(self.std) & (self.std > 0)
        is_wrong = ~self.is_constant & ~has_scale
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            deviation = f"its standard deviation is {self.std[wrong]}"
            fact = f"column {wrong} of X cannot be standardized: {deviation}"
            raise DataError(fact, "rescale it")
