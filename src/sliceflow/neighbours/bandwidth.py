"""One choice of how far draws go: the least spread whose draws are no closer to rows than rows are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sliceflow.neighbours.search import build_search, find_nearest

__all__ = ["choose_spread", "largest_spread"]

_NEAREST = 0.97  # distance of a draw to its nearest row, over that of a row to its nearest other row,
_REACHED = 0.97  # but no more than this share of what the largest h reaches
_HALVINGS = 7  # of the range of h
_MEASURED = 4_000  # rows whose distances are measured


def largest_spread(d: int) -> float:
    """The largest h in d columns. In few columns more would only blur."""
    return 0.8 + 0.2 * d


def choose_spread(clouds: Sequence[Tensor], draw: Callable[[float], Sequence[Tensor]]) -> float:
    """The least h whose draws are no closer to rows than rows are to each other.

    Distances to the nearest row are compared by their geometric means: medians jump where a part of
    the data is far denser than another. Equal rows count once.

    Parameters
    ----------
    clouds : sets of rows (n, d)
    draw : gives draws (m, d) of each set for an h

    Returns
    -------
    h; 0 if no set has rows that differ
    """
    distinct = [torch.unique(rows, dim=0) for rows in clouds]
    known = [(i, build_search(rows)) for i, rows in enumerate(distinct) if len(rows) > 1]
    if not known:
        return 0.0
    steps = [distinct[i][:: -(-len(distinct[i]) // _MEASURED)] for i, _ in known]
    pairs = zip(known, steps, strict=True)
    apart = [_mean_log(find_nearest(search, rows, 2)[0][:, 1]) for (_, search), rows in pairs]

    def log_ratio(h: float) -> float:
        draws = draw(h)
        logs = [_mean_log(find_nearest(search, draws[i], 1)[0]) for i, search in known]
        weights = [len(draws[i]) for i, _ in known]
        behind = sum(w * (a - b) for w, a, b in zip(weights, logs, apart, strict=True))
        return behind / sum(weights)

    low, high = 0.0, largest_spread(clouds[0].shape[1])
    aim = min(math.log(_NEAREST), log_ratio(high) + math.log(_REACHED))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if log_ratio(middle) < aim else (low, middle)
    return high


def _mean_log(distance: Tensor) -> float:
    """The mean logarithm of the distances that are not 0."""
    there = distance[distance > 0]
    return float(there.log().mean()) if len(there) else -math.inf
