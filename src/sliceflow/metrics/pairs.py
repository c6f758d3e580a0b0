"""The nearest rows of an array, in blocks, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from sliceflow.devices import resolve_device
from sliceflow.errors import from_tensor, is_int, require

_BLOCK_NUMBERS = 1 << 24  # numbers in a block of rows: 128 MiB of float64
_BLOCK_ROWS = 4096  # so two blocks make at most 16 million pairs
_SPARE = 8  # candidates beyond k whose distance is computed again: float32 may swap near ties


def as_rows(x: Any, name: str = "x") -> np.ndarray:
    """`x` as (n, d): pictures are flattened, the type is unchanged. Values must be finite numbers."""
    x = np.asarray(from_tensor(x))
    if x.ndim < 2 or x.size == 0:
        raise ValueError(
            f"{name} has the shape {x.shape}; pass rows (n, d) or pictures (n, h, w[, c])"
        )
    rows: np.ndarray = x.reshape(len(x), -1)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {rows.dtype}, not numbers")
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ValueError(
            f"{name} has a NaN or an infinity in row {bad}; leave such rows out"
        )
    return rows


def same_width(a: np.ndarray, b: np.ndarray, names: str) -> None:
    """Raise unless both have the same number of columns."""
    if a.shape[1] != b.shape[1]:
        widths = f"{a.shape[1]} and {b.shape[1]}"
        raise ValueError(f"{names} have {widths} numbers in a row; pass equally many")


def subsample(x: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """n random rows without repetition, in their order; all rows if there are no more."""
    if len(x) <= n:
        return x
    return x[np.sort(np.random.default_rng(seed).permutation(len(x))[:n])]


def blocks(rows: np.ndarray) -> Iterator[slice]:
    """Slices of at most 4096 rows and 16 million numbers."""
    size = int(np.clip(_BLOCK_NUMBERS // rows.shape[1], 1, _BLOCK_ROWS))
    for first in range(0, len(rows), size):
        yield slice(first, min(first + size, len(rows)))


def _centred(
    rows: np.ndarray, centre: np.ndarray, device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of rows less a centre, subtracted in float64 so that float32 loses less."""
    for part in blocks(rows):
        yield part, torch.from_numpy(rows[part] - centre).to(device, torch.float32)


def nearest(
    rows: Any,
    data: Any,
    k: int = 1,
    *,
    device: str = "auto",
    leave_out_itself: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Distances (n, k) of each row to its k nearest rows of `data`, and their indices (n, k).

    Candidates come from products in float32. The distances of the best k + 8 are computed again as
    |a − b| in float64: that of a copy is 0. Ties are in order of the indices. It takes below 1 GiB.

    Parameters
    ----------
    rows, data : (n, d) and (N, d), or pictures; integers are not converted in memory
    leave_out_itself : `rows` are `data`; row i is not a neighbour of itself, but its copies are

    Examples
    --------
    >>> data = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    >>> distances, index = nearest(np.array([[0.9, 0.0]]), data, k=2, device="cpu")
    >>> distances.round(3), index
    (array([[0.1, 0.9]]), array([[1, 0]]))
    """
    rows = as_rows(rows, "rows")
    data = as_rows(data, "data")
    same_width(rows, data, "rows and data")
    if leave_out_itself and len(rows) != len(data):
        counts = f"{len(rows)}, {len(data)}"
        raise ValueError(
            f"leave_out_itself=True needs rows that are the data: {counts}"
        )
    there = len(data) - leave_out_itself
    require(
        is_int(k, 1) and k <= there,
        "k",
        k,
        f"a whole number from 1 to {there}, the rows there are",
    )
    wanted = min(k + _SPARE, there)
    distances = np.empty((len(rows), k))
    index = np.empty((len(rows), k), np.int64)
    centre = data.mean(axis=0, dtype=np.float64)
    where = resolve_device(device)
    for i, x in _centred(rows, centre, where):
        left = torch.cat((-x, x.new_ones(len(x), 1)), 1)
        best = x.new_empty(len(x), 0)
        number = best.long()
        for j, y in _centred(data, centre, where):
            # ½|x − y|² without ½|x|², which is alike for all; one product is faster than addmm.
            score = left @ torch.cat((y, y.square().sum(1, keepdim=True) / 2), 1).T
            if leave_out_itself:
                same = np.arange(max(i.start, j.start), min(i.stop, j.stop))
                score[same - i.start, same - j.start] = torch.inf
            near = score.topk(
                min(wanted, score.shape[1]), dim=1, largest=False, sorted=False
            )
            best = torch.cat((best, near.values), 1)
            number = torch.cat((number, near.indices + j.start), 1)
            best, kept = best.topk(
                min(wanted, best.shape[1]), dim=1, largest=False, sorted=False
            )
            number = number.gather(1, kept)
        distances[i], index[i] = _exact(
            rows[i], data, np.sort(number.cpu().numpy(), axis=1), k
        )
    return distances, index


def _exact(
    rows: np.ndarray, data: np.ndarray, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of each row's candidates, (n, c) indices in ascending order."""
    distances = np.empty(candidates.shape)
    for c, number in enumerate(candidates.T):
        for part in blocks(rows):
            apart = np.subtract(
                rows[part], data[number[part]], dtype=np.float64
            )  # bytes must not wrap
            distances[part, c] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, 1), np.take_along_axis(
        candidates, order, 1
    )
