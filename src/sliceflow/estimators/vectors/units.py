"""The flow's units of vectors, and vectors as clouds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Floats, Mask
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, FlowY
from sliceflow.errors import DataError
from sliceflow.neighbors.features import heavy_tail
from sliceflow.saved_types import ArraySpec

# Only columns with a value farther from their mean, in standard deviations, are tried
# for heavy tails: others are near enough to a normal one.
_MIN_TAIL_DEVIATIONS = 10.0
# sinh overflows float64 beyond about 710.
_MAX_SINH = 700.0


@dataclass(frozen=True)
class ColumnScaler:
    """The flow's units of columns: (g(x) − shift)/scale.

    Columns then have mean 0 and standard deviation 1. g compresses a heavy-tailed
    column, or most of its values would lie in a few bins of a histogram:
    g(x) = asinh((x − tail_center)/tail_scale), with the column's median and the median
    distance from it. A `tail_scale` of 0 marks all other columns, where g(x) = x.
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
        """The units of the rows X (n, d), or of all ranks, which have n rows in total.

        If `standardize` is False, the transformation is the identity.
        """
        d = X.shape[1]
        if n is None:
            n = len(X)
        scaler = cls(np.zeros(d), np.ones(d), np.zeros(d), np.zeros(d))
        if not standardize:
            return scaler
        lowest, highest, mean, std = _summary(X, ranks, n)
        with np.errstate(over="ignore", invalid="ignore"):
            farthest = np.maximum(mean - lowest, highest - mean)
            may_be_heavy = ~(farthest <= _MIN_TAIL_DEVIATIONS * std)
        for j in np.flatnonzero(may_be_heavy & (lowest < highest)):
            column = ranks.all_gather_rows(np.ascontiguousarray(X[:, j])).astype(
                np.float64
            )
            tail = heavy_tail(column)
            if tail is not None:
                scaler.tail_center[j], scaler.tail_scale[j] = tail
        if scaler.tail_scale.any():
            lowest, highest, mean, std = _summary(scaler.compress_tails(X), ranks, n)
        is_constant = lowest == highest
        is_wrong = ~is_constant & ~(np.isfinite(std) & (std > 0))
        if is_wrong.any():
            wrong = int(np.argmax(is_wrong))
            deviation = f"its standard deviation is {std[wrong]}"
            fact = f"column {wrong} of X cannot be standardized: {deviation}"
            raise DataError(fact, "rescale it")
        shift = np.where(is_constant, lowest, mean)
        scale = np.where(is_constant, 1.0, std)
        return replace(scaler, shift=shift, scale=scale)

    @property
    def heavy_tailed(self) -> Mask:
        """Which columns (d,) have heavy tails."""
        return self.tail_scale > 0

    def compress_tails(self, X: NDArray[Any]) -> NDArray[Any]:
        """g(x) for rows (n, d)."""
        heavy = self.tail_scale > 0
        if not heavy.any():
            return X
        X = X.astype(np.float64)
        deviation = X[:, heavy] - self.tail_center[heavy]
        X[:, heavy] = np.arcsinh(deviation / self.tail_scale[heavy])
        return X

    def scale_rows(self, X: NDArray[Any]) -> Tensor:
        """Rows (n, d) in the user's units -> in the flow's units, of the same dtype."""
        standardized = (self.compress_tails(X) - self.shift) / self.scale
        return torch.from_numpy(standardized.astype(X.dtype))

    def rows_from_points(self, x: Tensor) -> Tensor:
        """Points (d, n) in the flow's units -> rows (n, d) in the user's units."""
        shift = torch.from_numpy(self.shift).to(x.device)
        scale = torch.from_numpy(self.scale).to(x.device)
        rows = x.T.double() * scale + shift
        if self.heavy_tailed.any():
            center = torch.from_numpy(self.tail_center).to(x.device)
            tail_scale = torch.from_numpy(self.tail_scale).to(x.device)
            heavy = tail_scale > 0
            compressed = rows[:, heavy].clamp(-_MAX_SINH, _MAX_SINH)
            wide = torch.sinh(compressed) * tail_scale[heavy] + center[heavy]
            # Keeps every number finite, whatever the maps do.
            limit = torch.finfo(x.dtype).max / 4
            rows[:, heavy] = wide.clamp(-limit, limit)
        return rows.to(x.dtype)


def scale_by_class(
    scalers_by_class: Sequence[ColumnScaler], X: NDArray[Any], y: ClassIndices | None
) -> Tensor:
    """Rows (n, d) in the flow's units, which may differ by class.

    With several scalers, row i uses that of its class, ``y.values[i]``; with one, y is
    ignored.
    """
    if len(scalers_by_class) == 1 or y is None:
        return scalers_by_class[0].scale_rows(X)
    scaled = torch.from_numpy(np.empty_like(X))
    for c, scaler_of_class in enumerate(scalers_by_class):
        of_class = y.values == c
        scaled[of_class] = scaler_of_class.scale_rows(X[of_class.numpy()])
    return scaled


def unscale_by_class(
    scalers_by_class: Sequence[ColumnScaler], x: Tensor, y: ClassIndices | None
) -> Tensor:
    """Points (d, n) in the flow's units -> rows (n, d) in the user's units.

    This is the inverse of `scale_by_class`.
    """
    if len(scalers_by_class) == 1 or y is None:
        return scalers_by_class[0].rows_from_points(x)
    rows = x.new_empty(x.shape[1], len(x))
    for c, scaler_of_class in enumerate(scalers_by_class):
        of_class = (y.values == c).to(x.device)
        rows[of_class] = scaler_of_class.rows_from_points(x[:, of_class])
    return rows


def as_cloud(rows: Tensor, y: FlowY | None, device: torch.device) -> Cloud:
    """Rows (n, d) and their y in the engine's layout: columns, on the device."""
    if y is not None:
        y = y.to(device)
    return Cloud(rows.to(device).T.contiguous(), y)


def _summary(
    X: NDArray[Any], ranks: Communicator, n: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Minimum, maximum, mean and standard deviation of each column of all ranks."""
    lowest = X.min(axis=0)
    highest = X.max(axis=0)
    if ranks.size > 1:
        ends = ranks.minimum_(torch.from_numpy(np.stack((lowest, -highest)))).numpy()
        lowest = ends[0]
        highest = -ends[1]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = ranks.mean(X, n)
        std = np.sqrt(ranks.mean_square(X, n, mean))
    return lowest, highest, mean, std
