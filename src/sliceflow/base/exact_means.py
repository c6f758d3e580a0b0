"""Means over the rows of all ranks, whose bits do not depend on how rows are spread.

A sum of floats depends on the order in which they are added, and a flow amplifies such
differences. A sum of integers is the same in any order. So values are rounded to
integers that count a tiny unit, and these are added.

The unit of a column is 2⁻⁶² of a power of 2 above all of its magnitudes. A count of
units has 62 bits, and the sum of many counts would not fit into 64 bits. So each count
is written as a·2³² + b, and the a of all values and the b of all values are added
separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats, Ints, chunks
from sliceflow.base.ranks import Communicator

# This many values are added up at a time: 8 MB of float64.
VALUES_PER_CHUNK = 1 << 20
# The bits of a and of b. The sums of both fit into 64 bits for up to 2³² rows.
_UPPER_BITS = 30
_LOWER_BITS = 32

# A function from rows (k, d) to the values (k, d) whose mean is wanted.
_ValuesOf: TypeAlias = Callable[[NDArray[Any]], Floats]


def mean(rows: NDArray[Any], n: int, ranks: Communicator) -> Floats:
    """The mean (d,) of each column over the n rows of all ranks.

    `rows` (k, d) are the rows of this rank.
    """
    return _mean_of_values(rows, _as_float64, n, ranks)


def mean_square(
    rows: NDArray[Any], n: int, about: NDArray[Any], ranks: Communicator
) -> Floats:
    """The mean (d,) of (rows − about)² over the n rows of all ranks.

    `rows` (k, d) are the rows of this rank, and `about` is (d,).
    """

    def squares(some_rows: NDArray[Any]) -> Floats:
        return np.asarray(np.square(_as_float64(some_rows) - about))

    return _mean_of_values(rows, squares, n, ranks)


def _as_float64(rows: NDArray[Any]) -> Floats:
    return np.asarray(rows, np.float64)


def _mean_of_values(
    rows: NDArray[Any], values_of: _ValuesOf, n: int, ranks: Communicator
) -> Floats:
    """The mean (d,) of ``values_of(rows)`` over the n rows of all ranks.

    In a column with values that are not finite, the result is the largest magnitude,
    which is not finite either.
    """
    largest = _largest_magnitudes(rows, values_of, ranks)
    is_finite = np.isfinite(largest)
    _, exponent = np.frexp(largest)  # 2^exponent is above all magnitudes

    d = rows.shape[1]
    sums = np.zeros((2, d), np.int64)  # the sums of all a, and of all b
    for chunk in chunks(len(rows), max(1, VALUES_PER_CHUNK // max(1, d))):
        values = np.where(is_finite, values_of(rows[chunk]), 0.0)
        upper, lower = _counts_of_units(values, exponent)
        sums[0] += upper.sum(axis=0)
        sums[1] += lower.sum(axis=0)
    if ranks.size > 1:
        import torch

        sums = ranks.sum_(torch.from_numpy(sums)).numpy()

    mean_counts = []
    for upper_sum, lower_sum in zip(*sums.tolist(), strict=True):
        # Python's integers have no limit, so that only the division rounds.
        count = (upper_sum << _LOWER_BITS) + lower_sum
        mean_counts.append(count / n)
    means = np.ldexp(np.array(mean_counts), exponent - _UPPER_BITS - _LOWER_BITS)
    return np.asarray(np.where(is_finite, means, largest))


def _counts_of_units(values: Floats, exponent: NDArray[Any]) -> tuple[Ints, Ints]:
    """Values (k, d) as counts a·2³² + b of units: the a (k, d), and the b (k, d).

    All magnitudes in a column are below 2^exponent, (d,).
    """
    scaled = np.ldexp(values, _UPPER_BITS - exponent)
    upper = np.rint(scaled)
    lower = np.rint(np.ldexp(scaled - upper, _LOWER_BITS))
    return upper.astype(np.int64), lower.astype(np.int64)


def _largest_magnitudes(
    rows: NDArray[Any], values_of: _ValuesOf, ranks: Communicator
) -> Floats:
    """The largest magnitude (d,) of ``values_of(rows)`` in each column.

    It is the magnitude of the column's least number, or of its largest number.
    """
    low = rows.min(axis=0).astype(np.float64)
    high = rows.max(axis=0).astype(np.float64)
    if ranks.size > 1:
        import torch

        # The largest value is minus the least of all values times −1: so one message
        # has both ends.
        ends = torch.from_numpy(np.stack((low, -high)))
        low, minus_high = ranks.minimum_(ends).numpy()
        high = -minus_high
    at_low = np.abs(values_of(low))
    at_high = np.abs(values_of(high))
    return np.asarray(np.maximum(at_low, at_high))
