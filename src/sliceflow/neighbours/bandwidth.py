"""How far draws go: the least spread whose draws are no closer to rows than rows are to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sliceflow.neighbours.search import build_search, find_nearest

_NEAREST = 0.97  # distance of a draw to its nearest row, over that of a row to its nearest other row
_ALWAYS, _BY_COLUMN, _LARGEST = 0.8, 0.2, 2.0  # the largest h: in few columns more would only blur
_HALVINGS, _MEASURED = 7, 4_000  # of the range of h, and rows whose distances are measured


def choose_spread(clouds: Sequence[Tensor], draw: Callable[[float], Sequence[Tensor]]) -> float:
    """The least h whose draws are no closer to rows than rows are to each other; 0 if all are equal.

    `draw(h)` gives draws (m, d) of each cloud (n, d). Distances to the nearest row are compared by
    geometric means: medians jump where a part of the data is far denser. Equal rows count once.
    """
    distinct = [torch.unique(rows, dim=0) for rows in clouds]
    known = [(i, build_search(rows)) for i, rows in enumerate(distinct) if len(rows) > 1]
    if not known:
        return 0.0
    apart = []
    for i, search in known:
        some = distinct[i][:: -(-len(distinct[i]) // _MEASURED)]
        apart.append(_mean_log(find_nearest(search, some, 2)[0][:, 1]))

    def log_ratio(h: float) -> float:
        draws = draw(h)
        logs = [_mean_log(find_nearest(search, draws[i], 1)[0]) for i, search in known]
        sizes = [len(draws[i]) for i, _ in known]
        return sum(n * (a - b) for n, a, b in zip(sizes, logs, apart, strict=True)) / sum(sizes)

    low, high = 0.0, min(_ALWAYS + _BY_COLUMN * clouds[0].shape[1], _LARGEST)
    for _ in range(_HALVINGS if log_ratio(high) > math.log(_NEAREST) else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if log_ratio(middle) < math.log(_NEAREST) else (low, middle)
    return high


def _mean_log(distance: Tensor) -> float:
    """The mean logarithm of the distances that are not 0."""
    there = distance[distance > 0]
    return float(there.log().mean()) if len(there) else -1e3
