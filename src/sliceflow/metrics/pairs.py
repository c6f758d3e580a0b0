"""Distances between all pairs of rows, in blocks, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["as_rows", "blocks", "mean_distance", "on_device", "squared_distances"]

_NUMBERS = 1 << 24  # in a block of rows, and
_ROWS = 4096  # at most: two blocks make 16 million pairs


def as_rows(x: np.ndarray, name: str = "x") -> np.ndarray:
    """`x` as (n, d): pictures are flattened, the type is unchanged. Values must be finite."""
    x = np.asarray(x)
    if x.ndim < 2 or len(x) == 0 or x.size == 0:
        raise ValueError(f"{name} has the shape {x.shape}; pass rows (n, d) or pictures (n, h, w[, c])")
    rows = x.reshape(len(x), -1)
    if rows.dtype.kind == "f":
        for part in blocks(rows):
            if not np.isfinite(rows[part]).all():
                bad = part.start + int(np.flatnonzero(~np.isfinite(rows[part]).all(axis=1))[0])
                raise ValueError(f"{name} has a NaN or an infinity in row {bad}; leave such rows out")
    elif rows.dtype.kind not in "biu":
        raise ValueError(f"{name} holds {rows.dtype}, not numbers")
    return rows


def same_width(a: np.ndarray, b: np.ndarray, names: str) -> None:
    """Raise unless both have the same number of columns."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"{names} have {a.shape[1]} and {b.shape[1]} numbers in a row; pass equally many"
        )


def blocks(rows: np.ndarray) -> Iterator[slice]:
    """Slices of at most 4096 rows and 16 million numbers."""
    size = int(np.clip(_NUMBERS // rows.shape[1], 1, _ROWS))
    for first in range(0, len(rows), size):
        yield slice(first, min(first + size, len(rows)))


def on_device(part: np.ndarray, centre: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows minus `centre`, subtracted in float64: small numbers are rounded less."""
    import torch

    return torch.from_numpy(part - centre).to(device=device, dtype=dtype)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """|a_i − b_j|² as |a_i|² + |b_j|² − 2·a_iᵀb_j, never below 0; (n, m)."""
    import torch

    sums = a.square().sum(1)[:, None] + b.square().sum(1)[None]
    return torch.addmm(sums, a, b.T, alpha=-2).clamp_(min=0)


def mean_distance(a: np.ndarray, b: np.ndarray, device: str = "auto") -> float:
    """The mean of |a_i − b_j| over all pairs, in float64.

    Examples
    --------
    >>> mean_distance(np.array([[0.0], [1.0]]), np.array([[3.0]]), device="cpu")
    2.5
    """
    import torch

    from sliceflow.devices import resolve_device

    a, b = as_rows(a, "a"), as_rows(b, "b")
    same_width(a, b, "a and b")
    where, centre, total = resolve_device(device), b.mean(axis=0, dtype=np.float64), 0.0
    for i in blocks(a):
        ours = on_device(a[i], centre, where, torch.float64)
        for j in blocks(b):
            theirs = on_device(b[j], centre, where, torch.float64)
            total += float(squared_distances(ours, theirs).sqrt_().sum())
    return total / (len(a) * len(b))
