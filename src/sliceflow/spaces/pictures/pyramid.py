"""Pyramid subspaces: pictures that are upsampled from r×r coefficients.

Level r of a pyramid is the span of U_h ⊗ U_w, where U is the (R, r) upsampling matrix of one axis with
orthonormalised columns. So adding ``extend`` of a change in coefficients changes nothing orthogonal to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine import schedule

_CACHE_BYTES = 1 << 25  # bytes of cached bases
_CHUNK = 1 << 28  # values that are resampled at a time
_LOBES = 5  # a of Lanczos' kernel sinc(t)·sinc(t/a)


def _weights(full: int, small: int) -> Tensor:
    """W, (full, small), float64: Lanczos' kernel sampled at pixel centres; rows sum to 1."""
    centre = (torch.arange(full, dtype=torch.float64) + 0.5) * (small / full) - 0.5
    t = centre[:, None] - torch.arange(small, dtype=torch.float64)
    weights = torch.where(t.abs() < _LOBES, torch.sinc(t) * torch.sinc(t / _LOBES), 0.0)
    return weights / weights.sum(dim=1, keepdim=True)


@cached(_CACHE_BYTES)
def upsampled(full: int, small: int, device: torch.device | str = "cpu") -> Tensor:
    """UᵀW, (small, small), float64: coefficients in `basis` U of the columns of W = U·(UᵀW)."""
    if small == full:
        return torch.eye(full, dtype=torch.float64, device=device)
    return torch.mm(basis(full, small).T, _weights(full, small)).to(device)


@cached(_CACHE_BYTES)
def basis(
    full: int,
    small: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """U, (full, small): upsampling from `small` to `full` pixels, columns orthonormal.

    Löwdin's W(WᵀW)^-½ has the orthonormal columns closest to those of W, which are therefore local.
    """
    if small == full:
        return torch.eye(full, dtype=dtype, device=device)
    weights = _weights(full, small)
    values, vectors = torch.linalg.eigh(weights.T @ weights)
    return torch.mm(torch.mm(weights, vectors / values.sqrt()), vectors.T).to(
        device, dtype
    )


def _product(a: Tensor, image: Tensor) -> Tensor:
    """a @ image, where the rounding of a column does not depend on the other columns."""
    if len(a) > 1:
        return torch.matmul(a, image)
    # A product with a single row runs other code: the same picture would differ between ranks.
    return torch.matmul(a.repeat(2, 1), image)[..., :1, :].contiguous()


@dataclass(frozen=True)
class Subspace(schedule.Subspace):
    """Level (h, w) of pictures of `channels` × (height, width) pixels, stored as columns (d, n).

    If `clip`, a stage at this level ends with all pixels in [−1, 1].
    """

    channels: int
    height: int
    width: int
    h: int
    w: int
    clip: bool = False

    @property
    def is_full_resolution(self) -> bool:
        return (self.h, self.w) == (self.height, self.width)

    @property
    def dimension(self) -> int:
        return self.channels * self.h * self.w

    def _bases(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """U of rows and U of columns, on the device and in the dtype of x."""
        kind = x.device, x.dtype
        return basis(self.height, self.h, *kind), basis(self.width, self.w, *kind)

    def _apply(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        d = self.channels * len(rows) * len(columns)
        n = x.shape[1]
        chunk = max(256, _CHUNK // max(d, len(x)))
        if n > chunk:  # bounds the memory between the two products
            out = x.new_empty(d, n)
            for part in (slice(first, first + chunk) for first in range(0, n, chunk)):
                out[:, part] = self._apply(x[:, part], rows, columns)
            return out
        # This copies x if it is a slice of columns.
        image = x.reshape(self.channels, rows.shape[1], columns.shape[1] * n)
        image = _product(rows, image).view(
            self.channels * len(rows), columns.shape[1], n
        )
        return _product(columns, image).view(d, n)

    def restrict(self, x: Tensor) -> Tensor:
        """Coefficients of pictures: (C·H·W, n) -> (C·h·w, n)."""
        if self.is_full_resolution:
            return x
        return self._apply(x, *(u.T for u in self._bases(x)))

    def extend(self, coordinates: Tensor) -> Tensor:
        """Pictures of coefficients: (C·h·w, n) -> (C·H·W, n)."""
        if self.is_full_resolution:
            return coordinates
        return self._apply(coordinates, *self._bases(coordinates))

    def finish(self, x: Tensor) -> None:
        """Clip pictures at the end of a stage."""
        if self.clip:
            x.clamp_(-1, 1)
