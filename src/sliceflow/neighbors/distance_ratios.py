"""How near samples are to rows, compared with how near rows are to each other.

Samples that are nearer to rows than rows are to each other are copies in part. Users
are told the median of the distances (`median_distance_ratio`). Choices of settings use
geometric means (`log_distance_ratio`), because a median jumps where a part of the data
is far denser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.neighbors.search import RowIndex, build_index, query_index

# Draws count as far enough from rows if their distance, over that between rows, is at
# least this: hardly below 1.
MIN_DISTANCE_RATIO = 0.97
# This stands for the mean log distance if all distances are 0.
_LOG_OF_ZERO = -1e3
# The largest bandwidth that is tried, for d columns, is 0.8 + 0.2·d, and 2 at most. In
# few columns a larger one would only blur the distribution. In many columns, all
# distances are about equal, so draws need a larger one to get away from rows. The
# three numbers were chosen by hand.
_MAX_BANDWIDTH_BASE = 0.8
_MAX_BANDWIDTH_PER_COLUMN = 0.2
_MAX_BANDWIDTH = 2.0
# Halvings of the interval of bandwidths. Seven leave an interval of at most 2 / 2⁷.
_N_HALVINGS = 7
# Distances between rows are measured for about this many rows of a set: more would
# hardly change the mean.
_MAX_MEASURED_ROWS = 4_000


def median_distance_ratio(sample_distances: Floats, row_distances: Floats) -> float:
    """The median distance of samples to rows, over the median distance between rows."""
    return float(np.median(sample_distances) / np.median(row_distances))


def log_distance_ratio(
    sample_distances: Tensor, row_distances: Tensor, offset: float = 0.0
) -> float:
    """Mean log distance of samples to rows, minus the mean log distance between rows.

    Below 0, samples are nearer to rows than rows are to each other. An `offset` is
    added to all distances, so that equal rows count; without it, distances of 0 are
    left out.
    """
    sample_mean = _mean_log(sample_distances + offset)
    row_mean = _mean_log(row_distances + offset)
    return float(sample_mean - row_mean)


def _mean_log(distances: Tensor) -> Tensor:
    """The mean logarithm of the distances that are not 0, as a tensor of no axes."""
    positive = distances[distances > 0]
    if len(positive) == 0:
        return distances.new_tensor(_LOG_OF_ZERO)
    return positive.log().mean()


@dataclass(frozen=True, eq=False)
class _RowSet:
    """One of the sets of rows, with distances of its rows to their nearest others."""

    set_index: int  # which of the sets it is
    index: RowIndex
    row_distances: Tensor


def choose_bandwidth(
    row_sets: Sequence[Tensor], draw: Callable[[float], Sequence[Tensor]]
) -> float:
    """The least h whose draws are no nearer to rows than rows are to each other.

    Parameters
    ----------
    row_sets : sets of rows (n, d), such as those of each class; equal rows count once
    draw : draw(h) gives draws (m, d) of each of the sets

    Returns
    -------
    bandwidth : in units that `draw` decides; the largest that is tried if no draws
    are far enough, 0 if no rows differ
    """
    measured = _measure_rows(row_sets)
    if not measured:
        return 0.0

    n_columns = row_sets[0].shape[1]
    low = 0.0
    high = _MAX_BANDWIDTH_BASE + _MAX_BANDWIDTH_PER_COLUMN * n_columns
    high = min(high, _MAX_BANDWIDTH)
    min_log_ratio = math.log(MIN_DISTANCE_RATIO)
    if _mean_log_ratio(measured, draw(high)) <= min_log_ratio:
        return high
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        if _mean_log_ratio(measured, draw(middle)) < min_log_ratio:
            low = middle
        else:
            high = middle
    return high


def _mean_log_ratio(row_sets: Sequence[_RowSet], draws: Sequence[Tensor]) -> float:
    """The mean log ratio of distances to rows, over the draws (m, d) of all sets."""
    total = 0.0
    n_draws = 0
    for row_set in row_sets:
        points = draws[row_set.set_index]
        distances, _ = query_index(row_set.index, points, 1)
        total += len(points) * log_distance_ratio(distances, row_set.row_distances)
        n_draws += len(points)
    return total / n_draws


def _measure_rows(row_sets: Sequence[Tensor]) -> list[_RowSet]:
    """The sets that have different rows, with the distances between these."""
    measured = []
    for set_index, rows in enumerate(row_sets):
        distinct = torch.unique(rows, dim=0)
        if len(distinct) < 2:
            continue
        index = build_index(distinct)
        stride = math.ceil(len(distinct) / _MAX_MEASURED_ROWS)
        # The nearest of the two rows is the row itself.
        distances, _ = query_index(index, distinct[::stride], 2)
        measured.append(_RowSet(set_index, index, distances[:, 1]))
    return measured
