"""The rows nearest to points, by Euclidean distances. Both ways are exact.

- `nearest_rows` compares points with all rows, in blocks, on a CPU or a GPU. It suits
  wide rows, such as pictures, that are asked once.
- `build_index` and `query_index` suit rows that are asked several times and have few
  columns: scikit-learn builds a tree of them where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow import kernels
from sliceflow.arrays import Floats, Ints, chunks

# Beyond both limits it is faster to compute all distances than to descend a tree, whose
# cost grows quickly with the number of columns.
_MAX_TREE_COLUMNS = 6
_MAX_TREE_ROWS = 100_000
# Values in a block of rows: 128 MiB of float64.
_MAX_BLOCK_VALUES = 1 << 24
# With this limit, two blocks have at most 16 million distances.
_MAX_BLOCK_ROWS = 4096
# Rows whose mean is the center: any point among the rows will do.
_MAX_CENTERED_ROWS = 4096
# Candidates beyond k whose distances are computed again in float64, because float32 may
# exchange rows that are about equally far.
_SPARE_CANDIDATES = 8


class RowIndex(Protocol):
    """An index of rows (n, d) for `query_index`: a fitted model of scikit-learn."""

    def kneighbors(
        self, points: NDArray[Any], n_neighbors: int, /
    ) -> tuple[Floats, Ints]:
        """Distances and indices (q, k) of the rows nearest to points (q, d)."""
        ...


def build_index(rows: Tensor | NDArray[Any], metric: str = "euclidean") -> RowIndex:
    """An index of rows (n, d) for `query_index`.

    `metric` is one of scikit-learn's, such as "nan_euclidean" for rows with NaN.
    """
    n, d = rows.shape
    algorithm = "auto"
    if d > _MAX_TREE_COLUMNS and n > _MAX_TREE_ROWS:
        algorithm = "brute"
    index: RowIndex = NearestNeighbors(algorithm=algorithm, metric=metric).fit(
        np.asarray(rows)
    )
    return index


def query_index(
    index: RowIndex,
    points: Tensor | NDArray[Any],
    k: int,
    exclude: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k rows of an index that are nearest to each of the points (q, d).

    Returns distances (q, k) in ascending order, and the indices (q, k) of these rows.
    `exclude` (q,) has the index of one row for each point that is not to be found,
    such as the point itself.
    """
    if exclude is None:
        distances, indices = index.kneighbors(np.asarray(points), k)
        return torch.from_numpy(distances), torch.from_numpy(indices)
    distances, indices = index.kneighbors(np.asarray(points), k + 1)
    is_excluded = indices == exclude.numpy()[:, None]
    # Where the excluded row is not among the k + 1 nearest rows, the farthest of these
    # is left out instead.
    is_excluded[:, -1] |= ~is_excluded.any(axis=1)
    shape = (len(points), k)
    return (
        torch.from_numpy(distances[~is_excluded].reshape(shape)),
        torch.from_numpy(indices[~is_excluded].reshape(shape)),
    )


def nearest_rows(
    points: NDArray[Any],
    rows: NDArray[Any],
    k: int,
    *,
    device: torch.device,
    exclude: Ints | None = None,
) -> tuple[Floats, Ints]:
    """The k of the rows (n, d) that are nearest to each of the points (q, d).

    Returns distances (q, k) in ascending order, and the indices (q, k) of these rows;
    rows that are equally far are in the order of their indices. `exclude` (q,) has the
    index of one row for each point that is not to be found.

    Candidates come from matrix products in float32. The distances of the best k + 8 are
    computed again as |a − b| in float64, so that the distance to an equal row is 0.
    This takes less than 1 GiB. Integers are not converted in memory as a whole.
    """
    n_others = len(rows)
    if exclude is not None:
        n_others -= 1
    n_candidates = min(k + _SPARE_CANDIDATES, n_others)
    distances = np.empty((len(points), k))
    indices = np.empty((len(points), k), np.int64)
    center = _center_of(rows)
    for block in _blocks(points):
        excluded = None
        if exclude is not None:
            excluded = exclude[block]
        x = _centered(points[block], center, device)
        candidates = _candidates(x, rows, center, n_candidates, excluded)
        distances[block], indices[block] = _nearest_candidates(
            points[block], rows, candidates, k
        )
    return distances, indices


def _blocks(rows: NDArray[Any]) -> Iterator[slice]:
    """Slices of rows (n, d) that keep both limits of a block."""
    size = _MAX_BLOCK_VALUES // rows.shape[1]
    size = min(max(size, 1), _MAX_BLOCK_ROWS)
    return chunks(len(rows), size)


def _center_of(rows: NDArray[Any]) -> NDArray[Any]:
    """A point (d,) among the rows, in float32 if that holds all of their values.

    Distances from it are short, so that float32 loses little of them.
    """
    stride = max(1, len(rows) // _MAX_CENTERED_ROWS)
    center = rows[::stride].mean(axis=0, dtype=np.float64)
    if np.can_cast(rows.dtype, np.float32):
        return np.asarray(center, np.float32)
    return np.asarray(center)


def _centered(rows: NDArray[Any], center: NDArray[Any], device: torch.device) -> Tensor:
    """Rows minus a center, rounded once, to float32."""
    difference_dtype = np.result_type(rows.dtype, center.dtype)
    difference = np.subtract(rows, center, dtype=difference_dtype)
    return torch.from_numpy(difference).to(device, torch.float32)


def _candidates(
    x: Tensor,
    rows: NDArray[Any],
    center: NDArray[Any],
    n_candidates: int,
    exclude: Ints | None,
) -> Ints:
    """The indices of candidates for the rows nearest to x (q, d), in float32.

    They are (q, n_candidates), ascending. `exclude` (q,) are rows that are no
    candidates.
    """
    extended_x = torch.cat((-x, x.new_ones(len(x), 1)), 1)
    best_scores = x.new_full((len(x), n_candidates), torch.inf)
    best_rows = torch.full_like(best_scores, -1, dtype=torch.int64)
    for block in _blocks(rows):
        y = _centered(rows[block], center, x.device)
        # ½|x − y|² without ½|x|², which is the same for all rows: ½|y|² − x·y. One
        # product of extended vectors is faster than addmm.
        half_squares = y.square().sum(1, keepdim=True) / 2
        scores = extended_x @ torch.cat((y, half_squares), 1).T
        if exclude is not None:
            with_excluded = np.flatnonzero(
                (exclude >= block.start) & (exclude < block.stop)
            )
            scores[with_excluded, exclude[with_excluded] - block.start] = torch.inf
        backend = kernels.for_tensor(scores)
        backend.keep_smallest(scores, block.start, best_scores, best_rows)
    return np.sort(best_rows.cpu().numpy(), axis=1)


def _nearest_candidates(
    points: NDArray[Any], rows: NDArray[Any], candidates: Ints, k: int
) -> tuple[Floats, Ints]:
    """Distances and indices (q, k) of the nearest of each point's candidates (q, c)."""
    distances = np.empty(candidates.shape)
    for c, indices in enumerate(candidates.T):
        for block in _blocks(points):
            # In float64: a difference of bytes would wrap around.
            difference = np.subtract(
                points[block], rows[indices[block]], dtype=np.float64
            )
            squares = np.einsum("ij,ij->i", difference, difference)
            distances[block, c] = np.sqrt(squares)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return (
        np.take_along_axis(distances, order, 1),
        np.take_along_axis(candidates, order, 1),
    )
