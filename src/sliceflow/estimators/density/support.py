"""Columns with bounds or heavy tails, mapped to columns without.

It also refuses rows that have no density, and spreads ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import MAX_EXPONENT, Floats, Mask
from sliceflow.engine import normal
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.neighbors.features import heavy_tail
from sliceflow.saved_types import ArraySpec, Label

# One row has no spread, so there is no density to fit.
MIN_ROWS = 2
# A column has no density if one value fills more than this share of the rows: a
# likelihood would grow without limit there. Most rounded measurements are below it.
MAX_SHARE_OF_ONE_VALUE = 0.1
# In a class, this share. Classes have fewer rows, of which rounding alone may put a
# tenth on one value. With more than half of them there, the rows of a split that are
# fitted might all be equal.
MAX_SHARE_IN_CLASS = 0.5
# In few rows, fewer equal values than this may be chance.
MIN_TIES = 4
# With fewer rows, as few equal values may fill half of them, which is what a fit sees
# if the others are held out.
_MIN_ROWS_OF_CHANCE = 2 * MIN_TIES
# The least distance of a row from a bound, as a share of the distance of the bounds.
_MIN_BOUND_DISTANCE = 1e-12


# A column with a smaller standard deviation has squares that float64 rounds to 0.
MIN_STD = 1e-150
# A standard deviation that is a smaller share of the largest value is mostly rounding.
MIN_RELATIVE_STD = 1e-15


# The names of columns, if X is a DataFrame.
Names = tuple[Label, ...] | None


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows to which a density may be fitted: all, or those of a class."""

    name: str  # what users call the rows
    is_member: Mask  # which of the n rows these are, (n,)
    is_class: bool = False


@dataclass(frozen=True, eq=False)
class SupportTransform:
    """A change of units after which rows may be anywhere: u = g(x), column by column.

    Between two bounds g = Φ⁻¹((x − low)/(high − low)), so that a uniform column becomes
    normal. With one bound g = log(x − low), or −log(high − x). A heavy-tailed column
    without bounds has g = asinh((x − tail_center)/tail_scale); a `tail_scale` of 0
    marks all others, where g(x) = x.
    """

    # The bounds, infinite where there are none
    low: Annotated[Tensor, ArraySpec("d", "float64", finite=False)]
    high: Annotated[Tensor, ArraySpec("d", "float64", finite=False)]
    tail_center: Annotated[Tensor, ArraySpec("d", "float64")]
    tail_scale: Annotated[Tensor, ArraySpec("d", "float64", ge=0)]

    def check_saved(self) -> None:
        """Raise a ValueError for bounds that no fit can have."""
        if not bool((self.low < self.high).all()):
            raise ValueError("a lower bound is not below its upper bound")

    @classmethod
    def from_data(
        cls, X: Floats, low: Floats, high: Floats, device: torch.device
    ) -> SupportTransform:
        """The transform of rows X (n, d) between their bounds (d,)."""
        d = X.shape[1]
        tail_center = np.zeros(d)
        tail_scale = np.zeros(d)
        for j in range(d):
            is_open = math.isinf(low[j]) and math.isinf(high[j])
            tail = heavy_tail(X[:, j]) if is_open else None
            if tail is not None:
                tail_center[j], tail_scale[j] = tail

        def as_tensor(values: Floats) -> Tensor:
            return torch.from_numpy(values).to(device)

        return cls(
            low=as_tensor(low),
            high=as_tensor(high),
            tail_center=as_tensor(tail_center),
            tail_scale=as_tensor(tail_scale),
        )

    def is_within_bounds(self, x: Tensor) -> Tensor:
        """Whether rows x (n, d) are within the bounds, (n,)."""
        return ((x > self.low) & (x < self.high)).all(1)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u = g(x) of rows x (n, d) within the bounds, and log|det ∂u/∂x| (n,)."""
        columns = []
        ladj = x.new_zeros(len(x))
        for j in range(x.shape[1]):
            column, log_slope = self._map_column(x[:, j], j)
            columns.append(column)
            ladj = ladj + log_slope
        return torch.stack(columns, 1), ladj

    def _map_column(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Column j (n,) as g(x) (n,), and log g′(x) (n,)."""
        low = self.low[j]
        high = self.high[j]
        if bool(low.isfinite()) and bool(high.isfinite()):
            share = ((x - low) / (high - low)).clamp(
                _MIN_BOUND_DISTANCE, 1 - _MIN_BOUND_DISTANCE
            )
            u = torch.special.ndtri(share)
            return u, -normal.log_prob(u) - (high - low).log()
        if bool(low.isfinite()):
            u = (x - low).log()
            return u, -u
        if bool(high.isfinite()):
            u = -(high - x).log()
            return u, u
        scale = self.tail_scale[j]
        if scale > 0:
            ratio = (x - self.tail_center[j]) / scale
            root = torch.hypot(ratio, ratio.new_ones(1))  # √(ratio² + 1)
            return torch.asinh(ratio), -root.log() - scale.log()
        return x, torch.zeros_like(x)

    def inverse(self, u: Tensor) -> Tensor:
        """The rows x (n, d) with g(x) = u."""
        columns = [self._invert_column(u[:, j], j) for j in range(u.shape[1])]
        return torch.stack(columns, 1)

    def _invert_column(self, u: Tensor, j: int) -> Tensor:
        """The column j (n,) with g(x) = u (n,)."""
        low = self.low[j]
        high = self.high[j]
        if bool(low.isfinite()) and bool(high.isfinite()):
            share: Tensor = torch.special.ndtr(u)
            return low + (high - low) * share
        if bool(low.isfinite()):
            return low + u.clamp(max=MAX_EXPONENT).exp()
        if bool(high.isfinite()):
            return high - (-u).clamp(max=MAX_EXPONENT).exp()
        scale = self.tail_scale[j]
        if scale > 0:
            return self.tail_center[j] + scale * torch.sinh(
                u.clamp(-MAX_EXPONENT, MAX_EXPONENT)
            )
        return u


def check_within_bounds(X: Floats, low: Floats, high: Floats, names: Names) -> None:
    """Raise a `DataError` if a row of X (n, d) is not between the bounds (d,)."""
    for j in range(X.shape[1]):
        column = X[:, j]
        is_outside: Mask = (column <= low[j]) | (column >= high[j])
        if is_outside.any():
            row = int(np.argmax(is_outside))
            fact = (
                f"{column[row]:g} is not between the bounds {low[j]:g} and {high[j]:g}"
            )
            hint = "widen the bounds, or drop the row"
            raise DataError(fact, hint, row, column_label(j, names))


def check_enough_rows(n: int) -> None:
    """Raise a `DataError` if n rows are too few for a density."""
    if n < MIN_ROWS:
        fact = f"Found array with {n} sample(s) (n_samples={n})"
        raise DataError(fact, f"a density needs at least {MIN_ROWS} rows")


def check_scales(unbounded: Tensor, names: Names) -> None:
    """Raise a `DataError` if the scale of a column of rows (n, d) is out of reach.

    That is a column whose squares overflow or are all 0, or whose values differ by
    hardly more than rounding errors, so that no covariance could be inverted.
    """
    std = unbounded.std(dim=0)
    largest = unbounded.abs().amax(dim=0)
    is_resolved = std > MIN_RELATIVE_STD * largest
    is_wrong = ~(std.isfinite() & (std > MIN_STD) & is_resolved)
    if bool(is_wrong.any()):
        j = int(is_wrong.double().argmax())
        fact = "X cannot be standardized: its standard deviation is "
        fact += f"{float(std[j]):.3g}, and its largest value {float(largest[j]):.3g}"
        raise DataError(fact, "shift or rescale it", column=column_label(j, names))


def check_not_constant(X: Floats, group: RowGroup, names: Names) -> None:
    """Raise a `DataError` if a column of X (n, d) is constant in a group of its rows.

    `names` are the names of the columns.
    """
    rows = X[group.is_member]
    for j in range(rows.shape[1]):
        column = rows[:, j]
        if (column == column[0]).all():
            fact = f"all {len(rows)} {group.name} are {column[0]:g}, so there is no "
            fact += "density"
            hint = "drop the column"
            if group.is_class:
                hint += ", or the class"
            raise DataError(fact, hint, column=column_label(j, names))


def column_label(j: int, names: Names) -> Label:
    """What users call column j."""
    if names is None:
        return j
    return names[j]


class TiedColumn(NamedTuple):
    """A column in which one value fills too many rows of a group."""

    column_index: int
    group: RowGroup  # the first such group


def jitter_ties(
    X: Floats, low: Floats, high: Floats, seed: Seed, groups: Sequence[RowGroup]
) -> tuple[Floats, list[TiedColumn]]:
    """Rows X (n, d) without many ties, and the columns that had them.

    A column in which one value fills more than `MAX_SHARE_OF_ONE_VALUE` of the rows, or
    more than `MAX_SHARE_IN_CLASS` of a class, has no density. Its values are
    jittered: each gets uniform noise as wide as the smallest step between two values.
    Then the density at a value, times that step, is about its probability.

    Every group of rows may get a density of its own, so none may have ties.
    """
    jittered = X.copy()
    tied_columns = []
    for j in range(X.shape[1]):
        column = X[:, j]
        tied_groups = [group for group in groups if _has_ties(column, group)]
        if not tied_groups:
            continue
        # "spread" stays, because another path would change the noise.
        noise = seed.child("spread", j).uniform(1, len(X))[0].numpy() - 0.5
        moved = column + float(np.diff(np.unique(column)).min()) * noise
        is_inside = (moved > low[j]) & (moved < high[j])
        jittered[:, j] = np.where(is_inside, moved, column)
        tied_columns.append(TiedColumn(j, tied_groups[0]))
    return jittered, tied_columns


def _has_ties(column: Floats, group: RowGroup) -> bool:
    """Whether one value of a column (n,) fills too many rows of a group."""
    values = column[group.is_member]
    n = len(values)
    _, counts = np.unique(values, return_counts=True)
    max_count = int(counts.max())
    min_ties = MIN_TIES
    if n < _MIN_ROWS_OF_CHANCE:
        min_ties = max(2, n // 2)
    max_share = MAX_SHARE_IN_CLASS if group.is_class else MAX_SHARE_OF_ONE_VALUE
    return max_count >= min_ties and max_count > max_share * n
