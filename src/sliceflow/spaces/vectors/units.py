"""The engine's units: columns of mean 0 and standard deviation 1, and the inverse.

A heavy-tailed column is compressed first, else most of its values would lie in a few bins of a
histogram: u = asinh((x − m)/w), with m its median and w the median distance from m.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sliceflow.models.codec import Array
from sliceflow.models.ranks import Ranks
from sliceflow.neighbours.views import heavy_tail

__all__ = ["Units"]

_FAR = 10.0  # standard deviations: only columns with a value beyond this can have heavy tails


@dataclass(frozen=True)
class Units:
    """Units of columns: the engine works on (g(x) − shift)/scale.

    g(x) is asinh((x − middle)/width) for columns with `width` > 0, and x for the others.
    """

    shift: Annotated[np.ndarray, Array("d", torch.float64)]
    scale: Annotated[np.ndarray, Array("d", torch.float64)]
    middle: Annotated[np.ndarray, Array("d", torch.float64)]
    width: Annotated[np.ndarray, Array("d", torch.float64, ge=0)]

    def check(self) -> None:
        """Raise a ValueError unless all scales are positive."""
        if not (self.scale > 0).all():
            raise ValueError("a scale is not positive")

    @classmethod
    def fit_to(
        cls,
        X: np.ndarray,
        standardize: bool,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
        n: int | None = None,
    ) -> Units:
        """The units for the rows of all ranks, n in total; the user's own if not `standardize`."""
        d, n = X.shape[1], len(X) if n is None else n
        units = cls(np.zeros(d), np.ones(d), np.zeros(d), np.zeros(d))
        if not standardize:
            return units
        middle, width = _asinh_parameters(X, ranks, n)
        units = replace(units, middle=middle, width=width)
        shift, scale = _standardization(units._compressed(X), ranks, n)
        return replace(units, shift=shift, scale=scale)

    @property
    def heavy_tailed(self) -> np.ndarray:
        """Which columns have heavy tails."""
        return self.width > 0

    def encode(self, X: np.ndarray) -> Tensor:
        """Rows (n, d) in the user's units -> rows in the engine's units, of the same dtype."""
        values = self._compressed(X)
        x = torch.from_numpy(((values - self.shift) / self.scale).astype(values.dtype))
        return x.float() if X.dtype == np.float32 else x

    def decode(self, x: Tensor) -> Tensor:
        """Columns (d, n) in the engine's units -> rows (n, d) in the user's, of the same dtype."""
        fields = self.scale, self.shift, self.middle, self.width
        scale, shift, middle, width = (torch.from_numpy(t).to(x.device) for t in fields)
        rows, at = x.T.double() * scale + shift, width > 0
        if self.heavy_tailed.any():
            far = torch.finfo(x.dtype).max / 4  # keeps every number finite, whatever the maps do
            wide = torch.sinh(rows[:, at].clamp(-700, 700)) * width[at] + middle[at]
            rows[:, at] = wide.clamp(-far, far)
        return rows.to(x.dtype)

    def _compressed(self, X: np.ndarray) -> np.ndarray:
        """g(x)."""
        if not self.heavy_tailed.any():
            return X
        X, at = X.astype(np.float64), self.heavy_tailed
        X[:, at] = np.arcsinh((X[:, at] - self.middle[at]) / self.width[at])
        return X


def _asinh_parameters(X: np.ndarray, ranks: Ranks, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Middle and width of each column of all ranks' rows; 0 and 0 if its tails are not heavy."""
    middle, width = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    lowest, highest, mean, std = _summary(X, ranks, n)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.maximum(mean - lowest, highest - mean) <= _FAR * std
    for j in np.flatnonzero(~near & (lowest < highest)):
        column = ranks.gather(np.ascontiguousarray(X[:, j])).astype(np.float64)
        if (found := heavy_tail(column)) is not None:
            middle[j], width[j] = found
    return middle, width


def _standardization(X: np.ndarray, ranks: Ranks, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(shift, scale) of each column of all ranks' rows; a constant column is shifted to 0 only."""
    lowest, highest, mean, std = _summary(X, ranks, n)
    constant = lowest == highest
    bad = ~constant & ~(np.isfinite(std) & (std > 0))
    if bad.any():
        column = int(np.argmax(bad))
        fact = f"column {column} of X cannot be standardised: its standard deviation is {std[column]}"
        raise ValueError(f"{fact}; rescale it")
    return np.where(constant, X[0].astype(np.float64), mean), np.where(constant, 1.0, std)


def _summary(X: np.ndarray, ranks: Ranks, n: int) -> tuple[np.ndarray, ...]:
    """Minimum, maximum, mean and standard deviation of each column of all ranks' rows."""
    ends = ranks.minimum(torch.from_numpy(np.stack((X.min(axis=0), -X.max(axis=0))))).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = ranks.mean(X, n)
        return ends[0], -ends[1], mean, np.sqrt(ranks.mean(X, n, about=mean))
