"""Pyramid subspaces: pictures that are upsampled from r×r coefficients.

Level r of a pyramid is the span of U_h ⊗ U_w, where U is the (R, r) upsampling matrix of one axis with
orthonormalised columns. So adding ``up`` of a change in coefficients changes nothing orthogonal to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.caches import cached

__all__ = ["UPSAMPLINGS", "Subspace", "basis", "upsampled"]

_CACHE_BYTES = 1 << 25  # bytes of cached bases
_CHUNK = 1 << 28  # values that are resampled at a time


def _lanczos(t: Tensor, a: int = 5) -> Tensor:
    return torch.where(t.abs() < a, torch.sinc(t) * torch.sinc(t / a), 0.0)


def _bilinear(t: Tensor) -> Tensor:
    return (1 - t.abs()).clamp(min=0)


def _nearest(t: Tensor) -> Tensor:
    return ((t >= -0.5) & (t < 0.5)).double()


UPSAMPLINGS = {"lanczos": _lanczos, "bilinear": _bilinear, "nearest": _nearest}


def _weights(full: int, small: int, upsampling: str) -> Tensor:
    """W, (full, small), float64: the kernel sampled at pixel centres; rows sum to 1."""
    centre = (torch.arange(full, dtype=torch.float64) + 0.5) * (small / full) - 0.5
    weights = UPSAMPLINGS[upsampling](centre[:, None] - torch.arange(small, dtype=torch.float64))
    return weights / weights.sum(dim=1, keepdim=True)


@cached(_CACHE_BYTES)
def upsampled(full: int, small: int, upsampling: str, device: torch.device | str = "cpu") -> Tensor:
    """UᵀW, (small, small), float64: coefficients in `basis` U of the columns of W = U·(UᵀW)."""
    if small == full:
        return torch.eye(full, dtype=torch.float64, device=device)
    u, w = basis(full, small, upsampling), _weights(full, small, upsampling)
    return torch.mm(u.T, w).to(device)


@cached(_CACHE_BYTES)
def basis(full: int, small: int, upsampling: str = "lanczos") -> Tensor:
    """U, (full, small), float64: upsampling from `small` to `full` pixels, columns orthonormal.

    Löwdin's W(WᵀW)^-½ has the orthonormal columns closest to those of W, which are therefore local.
    """
    if not 1 <= small <= full:
        raise ValueError(f"a level of {small} pixels does not fit a picture of {full}; use 1 to {full}")
    if small == full:
        return torch.eye(full, dtype=torch.float64)
    weights = _weights(full, small, upsampling)
    values, vectors = torch.linalg.eigh(weights.T @ weights)
    if float(values.min()) <= 1e-10 * float(values.max()):
        fact = f"{upsampling} upsampling from {small} to {full} pixels has dependent columns"
        raise ValueError(f"{fact}; choose another resolution, or upsampling 'lanczos'")
    return torch.mm(torch.mm(weights, vectors / values.sqrt()), vectors.T)


@cached(_CACHE_BYTES)
def _basis_as(
    full: int, small: int, upsampling: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`basis` on a device, cached because masked steps use it every time."""
    return basis(full, small, upsampling).to(device=device, dtype=dtype)


def _product(a: Tensor, image: Tensor) -> Tensor:
    """a @ image, where the rounding of a column does not depend on the other columns."""
    if len(a) > 1:
        return torch.matmul(a, image)
    # A product with a single row runs other code: the same picture would differ between ranks.
    return torch.matmul(a.repeat(2, 1), image)[..., :1, :].contiguous()


@dataclass(frozen=True)
class Subspace:
    """Level (h, w) of pictures of `channels` × (height, width) pixels, stored as columns (d, n).

    If `clip`, a stage at this level ends with all pixels in [−1, 1].
    """

    channels: int
    height: int
    width: int
    h: int
    w: int
    upsampling: str = "lanczos"
    clip: bool = False

    @property
    def is_full_resolution(self) -> bool:
        return (self.h, self.w) == (self.height, self.width)

    @property
    def dimension(self) -> int:
        return self.channels * self.h * self.w

    def _bases(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """U of rows and U of columns, on the device and in the dtype of x."""
        kind = self.upsampling, x.device, x.dtype
        return _basis_as(self.height, self.h, *kind), _basis_as(self.width, self.w, *kind)

    def _apply(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        d, n = self.channels * len(rows) * len(columns), x.shape[1]
        chunk = max(256, _CHUNK // max(d, len(x)))
        if n > chunk:  # bounds the memory between the two products
            out = x.new_empty(d, n)
            for part in (slice(first, first + chunk) for first in range(0, n, chunk)):
                out[:, part] = self._apply(x[:, part], rows, columns)
            return out
        # This copies x if it is a slice of columns.
        image = x.reshape(self.channels, rows.shape[1], columns.shape[1] * n)
        image = _product(rows, image).view(self.channels * len(rows), columns.shape[1], n)
        return _product(columns, image).view(d, n)

    def down(self, x: Tensor) -> Tensor:
        """Coefficients of pictures: (C·H·W, n) -> (C·h·w, n)."""
        if self.is_full_resolution:
            return x
        return self._apply(x, *(u.T for u in self._bases(x)))

    def up(self, coefficients: Tensor) -> Tensor:
        """Pictures of coefficients: (C·h·w, n) -> (C·H·W, n)."""
        if self.is_full_resolution:
            return coefficients
        return self._apply(coefficients, *self._bases(coefficients))

    def finish(self, x: Tensor) -> None:
        """Clip pictures at the end of a stage."""
        if self.clip:
            x.clamp_(-1, 1)
