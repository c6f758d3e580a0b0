"""The units of the engine: columns of mean 0 and standard deviation 1, and the way back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sliceflow.distributed import Ranks

__all__ = ["decode", "encode", "standardization"]


def standardization(
    X: np.ndarray,
    wanted: bool,
    ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
    n: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(shift, scale) of each column; a constant column is shifted to 0 and not scaled.

    Of the rows of all ranks, n in all. Unless it is `wanted`, 0 and 1.

    Examples
    --------
    >>> shift, scale = standardization(np.array([[1.0, 5.0], [3.0, 5.0]]), wanted=True)
    >>> shift.tolist(), scale.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    """
    n = len(X) if n is None else n
    d = X.shape[1]
    if not wanted:
        return np.zeros(d), np.ones(d)

    ends = ranks.least(torch.from_numpy(np.stack((X.min(axis=0), -X.max(axis=0)))))
    constant = (ends[0] == -ends[1]).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = ranks.mean(X, n)
        std = np.sqrt(ranks.mean(X, n, about=mean))
    bad = ~constant & ~(np.isfinite(std) & (std > 0))
    if bad.any():
        column = int(np.argmax(bad))
        raise ValueError(
            f"column {column} of X cannot be standardised: its values reach "
            f"{np.abs(X[:, column]).max():.3g} and their standard deviation is {std[column]}; "
            "rescale it"
        )
    return np.where(constant, X[0].astype(np.float64), mean), np.where(constant, 1.0, std)


def encode(X: np.ndarray, shift: np.ndarray, scale: np.ndarray) -> Tensor:
    """Rows (n, d) in the user's units -> rows in the engine's, of the same type."""
    return torch.from_numpy(((X - shift) / scale).astype(X.dtype))


def decode(x: Tensor, shift: np.ndarray, scale: np.ndarray) -> Tensor:
    """Columns (d, n) in the engine's units -> rows (n, d) in the user's, of the same type."""
    factor, term = (torch.from_numpy(t).to(x.device) for t in (scale, shift))
    return (x.T.double() * factor + term).to(x.dtype)
