"""The resolutions of a pyramid: pictures that are upsampled from r×r coefficients.

Resolution r is the span of U_h ⊗ U_w, where U is the (R, r) upsampling matrix of one
axis with orthonormal columns. So a change of coefficients, extended to a picture and
added to the particles, changes nothing orthogonal to that span.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.arrays import chunks
from sliceflow.caches import cached

# a of Lanczos' kernel sinc(t)·sinc(t/a), as in the script of the paper's authors.
LANCZOS_LOBES = 5

# Bytes that each cache of bases may hold. A basis of 64×32 numbers has 16 kB.
CACHE_BYTES = 1 << 25

# Values (about 1 GB) that are resampled at a time, to bound the memory between the
# products with the two axes. But at least MIN_POINTS_PER_CHUNK, for speed.
MAX_VALUES_PER_CHUNK = 1 << 28
MIN_POINTS_PER_CHUNK = 256


def _lanczos_weights(full: int, small: int) -> Tensor:
    """W (full, small): Lanczos' kernel at pixel centers, float64; rows sum to 1."""
    pixels = torch.arange(full, dtype=torch.float64)
    positions = (pixels + 0.5) * (small / full) - 0.5
    t = positions[:, None] - torch.arange(small, dtype=torch.float64)
    kernel = torch.sinc(t) * torch.sinc(t / LANCZOS_LOBES)
    weights = torch.where(t.abs() < LANCZOS_LOBES, kernel, 0.0)
    return weights / weights.sum(dim=1, keepdim=True)


@cached(CACHE_BYTES)
def upsampling_basis(
    full: int,
    small: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """U (full, small): upsampling from `small` to `full` pixels, columns orthonormal.

    Löwdin's W(WᵀW)^-½ has the orthonormal columns that are closest to the columns of W.
    So they are local, as the columns of W are.
    """
    if small == full:
        return torch.eye(full, dtype=dtype, device=device)
    weights = _lanczos_weights(full, small)
    eigenvalues, vectors = torch.linalg.eigh(weights.T @ weights)
    basis = torch.mm(torch.mm(weights, vectors / eigenvalues.sqrt()), vectors.T)
    return basis.to(device, dtype)


@cached(CACHE_BYTES)
def lanczos_coefficients(
    full: int, small: int, device: torch.device | str = "cpu"
) -> Tensor:
    """UᵀW (small, small), float64: the columns of W as coefficients, W = U·(UᵀW).

    The paper's patches are upsampled by W. In the basis U, they have these
    coefficients.
    """
    if small == full:
        return torch.eye(full, dtype=torch.float64, device=device)
    basis = upsampling_basis(full, small)
    return torch.mm(basis.T, _lanczos_weights(full, small)).to(device)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, where the rounding of a column does not depend on the other columns."""
    if len(a) > 1:
        return torch.matmul(a, b)
    # A product with a single row runs other code, and then the same picture would
    # differ between ranks.
    return torch.matmul(a.repeat(2, 1), b)[..., :1, :].contiguous()


@dataclass(frozen=True)
class PyramidSubspace:
    """Pictures of H×W pixels, as columns (d, n), that have h×w coefficients.

    It is a `Subspace` of the engine.
    """

    channels: int
    full_height: int  # H, of the pictures
    full_width: int  # W
    height: int  # h, of the coefficients
    width: int  # w
    clip: bool = False  # clip pixels to [−1, 1] at the end of a stage

    @property
    def is_whole(self) -> bool:
        """Whether there are as many coefficients as pixels."""
        return (self.height, self.width) == (self.full_height, self.full_width)

    @property
    def dimension(self) -> int:
        return self.channels * self.height * self.width

    def restrict(self, x: Tensor) -> Tensor:
        """Coefficients of pictures: (C·H·W, n) -> (C·h·w, n)."""
        if self.is_whole:
            return x
        vertical, horizontal = self._bases(x)
        return self._resample(x, vertical.T, horizontal.T)

    def embed(self, coordinates: Tensor) -> Tensor:
        """Pictures of coefficients: (C·h·w, n) -> (C·H·W, n)."""
        if self.is_whole:
            return coordinates
        vertical, horizontal = self._bases(coordinates)
        return self._resample(coordinates, vertical, horizontal)

    def clip_(self, x: Tensor) -> None:
        """Clip pictures, in place, at the end of a stage."""
        if self.clip:
            x.clamp_(-1, 1)

    def _bases(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """U of the vertical and of the horizontal axis, on the device of x."""
        return (
            upsampling_basis(self.full_height, self.height, x.device, x.dtype),
            upsampling_basis(self.full_width, self.width, x.device, x.dtype),
        )

    def _resample(self, x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
        """Multiply the two axes of pictures by matrices, in chunks.

        x (C·H·W, n) is multiplied by `vertical` (h, H) and `horizontal` (w, W):
        (C·h·w, n).
        """
        d = self.channels * len(vertical) * len(horizontal)
        n = x.shape[1]
        chunk_size = max(MIN_POINTS_PER_CHUNK, MAX_VALUES_PER_CHUNK // max(d, len(x)))
        if n <= chunk_size:
            return self._resample_chunk(x, vertical, horizontal)
        resampled = x.new_empty(d, n)
        for part in chunks(n, chunk_size):
            resampled[:, part] = self._resample_chunk(x[:, part], vertical, horizontal)
        return resampled

    def _resample_chunk(
        self, x: Tensor, vertical: Tensor, horizontal: Tensor
    ) -> Tensor:
        """Multiply the two axes of all columns at once; see `_resample`."""
        c = self.channels
        n = x.shape[1]
        h, height = vertical.shape
        w, width = horizontal.shape
        rows_resampled = _matmul(vertical, x.reshape(c, height, width * n))
        both_resampled = _matmul(horizontal, rows_resampled.view(c * h, width, n))
        return both_resampled.view(c * h * w, n)
