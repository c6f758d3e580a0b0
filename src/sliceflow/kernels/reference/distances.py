"""Offsets of classes, and distances to rows, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def add_class_offsets(z: Tensor, offsets: Tensor, class_indices: Tensor) -> Tensor:
    """z (h, n) plus the offset of each point's class.

    Offsets are (h, C), and `class_indices` (n,) the class indices of the points.
    """
    return z + offsets[:, class_indices]


def keep_smallest(
    scores: Tensor, first: int, best_scores: Tensor, best_columns: Tensor
) -> None:
    """Update, in place, the c smallest scores of each row that were found so far.

    Which of tied scores are kept, and the order within a row, may be any. NaN counts
    as infinity.

    Parameters
    ----------
    scores : more scores (q, m) of each row, in the columns first to first + m − 1
    best_scores, best_columns : the smallest scores (q, c), and their columns; column −1
        is none yet, and such columns are the last of a row
    """
    columns = torch.arange(first, first + scores.shape[1], device=scores.device)
    all_columns = torch.cat((best_columns, columns.expand(len(scores), -1)), 1)
    all_scores = torch.cat((best_scores, scores), 1)
    all_scores = all_scores.nan_to_num(torch.inf, torch.inf, -torch.inf)
    all_scores = all_scores.where(all_columns >= 0, torch.nan)  # larger than infinity
    n = best_scores.shape[1]
    chosen = all_scores.topk(n, dim=1, largest=False).indices
    best_scores.copy_(all_scores.gather(1, chosen))
    best_columns.copy_(all_columns.gather(1, chosen))


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
