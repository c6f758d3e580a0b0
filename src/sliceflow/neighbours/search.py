"""Exact search of the nearest rows, their weights, and how far draws go from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

_FEW = 6
_MANY = 100_000  # columns and rows beyond which all distances are faster than a tree
_NEAREST = 0.97  # distance of a draw to its nearest row, over that of a row to its nearest other row
_ALWAYS = 0.8
_BY_COLUMN = 0.2
_LARGEST = 2.0  # the largest h: in few columns more would only blur
_HALVINGS = 7
_MEASURED = 4_000  # of the range of h, and rows whose distances are measured


def build_search(rows: Tensor) -> NearestNeighbors:
    """An exact search among rows (n, d): a tree, or all distances where these are faster."""
    brute = rows.shape[1] > _FEW and len(rows) > _MANY
    return NearestNeighbors(algorithm="brute" if brute else "auto").fit(rows.numpy())


def find_nearest(
    search: NearestNeighbors, points: Tensor, k: int, without: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances and numbers (q, k) of the rows nearest to points (q, d), in order, but for `without` (q,)."""
    found = search.kneighbors(points.numpy(), k + (without is not None))
    distance, rows = (torch.from_numpy(part) for part in found)
    if without is None:
        return distance, rows
    own = rows == without[:, None]
    own[:, -1] |= ~own.any(
        1
    )  # where the row is not among its nearest, the farthest goes
    return distance[~own].view(len(points), k), rows[~own].view(len(points), k)


def kernel_weights(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Epanechnikov's weights (q, k), 1 − (distance/r)² scaled to sum to 1, and the radius r (q, 1)."""
    radius = distance[:, -1:] * (1 + 1e-6)
    radius = torch.where(radius > 0, radius, 1)
    weight = 1 - (distance / radius).square()
    return weight / weight.sum(1, keepdim=True), radius


def pick(weight: Tensor, u: Tensor) -> Tensor:
    """Numbers (q, n) drawn in proportion to the weights (q, k), by uniform numbers u (q, n)."""
    ends = weight.cumsum(1)
    return torch.searchsorted(ends, u * ends[:, -1:]).clamp(max=weight.shape[1] - 1)


def choose_spread(
    clouds: Sequence[Tensor], draw: Callable[[float], Sequence[Tensor]]
) -> float:
    """The least h whose draws are no closer to rows than rows are to each other; 0 if all are equal.

    `draw(h)` gives draws (m, d) of each cloud (n, d). Distances to the nearest row are compared by
    geometric means: medians jump where a part of the data is far denser. Equal rows count once.
    """
    distinct = [torch.unique(rows, dim=0) for rows in clouds]
    known = [
        (i, build_search(rows)) for i, rows in enumerate(distinct) if len(rows) > 1
    ]
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
        return sum(
            n * (a - b) for n, a, b in zip(sizes, logs, apart, strict=True)
        ) / sum(sizes)

    low = 0.0
    high = min(_ALWAYS + _BY_COLUMN * clouds[0].shape[1], _LARGEST)
    for _ in range(_HALVINGS if log_ratio(high) > math.log(_NEAREST) else 0):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if log_ratio(middle) < math.log(_NEAREST) else (low, middle)
        )
    return high


def _mean_log(distance: Tensor) -> float:
    """The mean logarithm of the distances that are not 0."""
    there = distance[distance > 0]
    return float(there.log().mean()) if len(there) else -1e3
