"""Offsets of classes, and distances to rows, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def add_class_offsets(z: Tensor, offsets: Tensor, class_indices: Tensor) -> Tensor:
    """z (h, n) plus the offset of each point's class.

    Offsets are (h, C), and `class_indices` (n,) the class indices of the points.
    """
    return z + offsets[:, class_indices]


def nearest_distance(
    x: Tensor, rows: Tensor, max_gap: Tensor, exclude_self: bool = False
) -> Tensor:
    """The distance (m,) of each point of x (m, d) to the closest of rows (n, d).

    The distance is Σ min(|x − r|, max_gap) over the d columns, where `max_gap` (d,) is
    the most that each column counts. With `exclude_self`, rows are x, and no row is
    compared with itself.
    """
    distances = x.new_empty(len(x))
    for i, point in enumerate(x):
        to_rows = torch.minimum((rows - point).abs(), max_gap).sum(1)
        if exclude_self:
            to_rows[i] = torch.inf
        distances[i] = to_rows.min()
    return distances
