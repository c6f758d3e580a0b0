"""The start of particles as sums of a few pictures, instead of noise. This is not in the paper.

A particle of a class with mean μ starts, at pixel p, as

    x(p) = μ(p) + r·Σᵢ wᵢ(p)·(xᵢ(p) − μ(p))/‖xᵢ − μ‖,    Σᵢ wᵢ(p)² = 1,

where x₁ … x_s are random pictures of the class, and r = ‖x₀ − μ‖ is the contrast of one more. The
weights are wᵢ ∝ exp(β·gᵢ), where gᵢ are independent Gaussian fields that change smoothly over the
picture, with mean 0 over it. So each picture prevails somewhere and none everywhere, and edges stay
edges, which a flow hardly makes from noise. No picture can be seen in the whole, not even one of high
contrast. With β = 0 all weights are 1/√s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.clouds import sort_by_class
from sliceflow.engine.flow import Noise
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.data import PictureData
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import LevelFlow

__all__ = ["Sums", "start_of"]

_SPREAD = 2e-3  # standard deviation of the noise that is added: equal pixels must not stay ties
_LENGTH = 4  # sides of a picture over the length on which weights change
_WAVES = 6  # cosines along a side that make up a field; the next would have an amplitude below .004
_VALUES = 1 << 25  # values at a time
_LEVELS = 64  # of 256 pixel values that are kept: files are a third smaller, and samples as good


@dataclass(frozen=True)
class Sums:
    """Sums of `size` pictures.

    Parameters
    ----------
    size : s
    locality : β
    layout : the layout of `raw`
    raw : (d, N) raw values of all pictures, with mirror images if they are fitted
    codes : (N,) their class numbers, on the same device; None if there are no classes
    n_classes : C; 1 without classes

    Examples
    --------
    >>> raw = torch.randint(256, (12, 1000), dtype=torch.uint8)
    >>> sums = Sums(4, 2.0, Layout(2, 2, 3, "uint8", 256), raw)
    >>> x = sums.start(5000, None, Noise(Seed(0)))
    >>> pixels = sums.layout.encode(raw, Seed(0), dequantize=False)
    >>> bool(((x.std(1) / pixels.std(1) - 1).abs() < 0.1).all())
    True
    """

    size: int
    locality: float
    layout: Layout
    raw: Tensor
    codes: Tensor | None = None
    n_classes: int = 1

    @classmethod
    def of(
        cls,
        size: int,
        locality: float,
        data: PictureData,
        codes: Tensor | None,
        n_classes: int,
        ranks: Ranks,
    ) -> Sums:
        """Of all pictures of all ranks; `codes` (N,) plays a part if `n_classes` is not 0.

        256 pixel values are rounded to 64: a sum hardly shows it, and the model keeps the pictures.
        """
        raw = data.raw
        if ranks.size > 1:
            raw = ranks.gather(raw[:, : data.place.count].T).T.contiguous()
            raw = data.layout.mirrored(raw) if data.mirrored else raw
        layout = data.layout
        if layout.n_pixel_values == 256:
            raw, layout = raw // (256 // _LEVELS), replace(layout, n_pixel_values=_LEVELS)
        return cls(size, locality, layout, raw, codes if n_classes else None, max(1, n_classes))

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor, Tensor]:
        """The pictures class by class, and the first place and the number of those of each class."""
        codes = self.codes
        if codes is None:
            codes = torch.zeros(self.raw.shape[1], dtype=torch.int64, device=self.raw.device)
        _, order, _, runs = sort_by_class(codes, self.n_classes)
        starts = torch.tensor(runs.starts, device=self.raw.device)
        return order, starts[:-1], starts.diff()

    @cached_property
    def _means(self) -> Tensor:
        """The mean of each class: (d, C)."""
        order, starts, sizes = self._order
        sums = torch.zeros(len(self.raw), self.n_classes, dtype=torch.float64, device=self.raw.device)
        for c, (first, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            for part in range(first, first + size, self._chunk):
                numbers = order[part : min(part + self._chunk, first + size)]
                sums[:, c] += self._values(numbers).double().sum(1)
        return (sums / sizes.clamp(min=1)).float()

    @property
    def _chunk(self) -> int:
        """Pictures at a time."""
        return max(1, _VALUES // len(self.raw))

    def pictures(self, n: int | None, layout: Layout) -> np.ndarray:
        """The first n pictures, or all, in the layout of the model."""
        n = n or self.raw.shape[1]
        parts = [
            torch.arange(first, min(first + self._chunk, n), device=self.raw.device)
            for first in range(0, n, self._chunk)
        ]
        return np.concatenate([np.asarray(layout.write(self._values(part))) for part in parts])

    def _values(self, numbers: Tensor) -> Tensor:
        """The pixels, in [−1, 1], of the pictures with these numbers."""
        return self.layout.encode(self.raw[:, numbers], Seed(0), dequantize=False)

    @cached_property
    def _waves(self) -> Tensor:
        """The fields of unit variance that each product of two cosines has a share in: (hw, k)."""
        _, h, w = self.layout.shape
        waves = torch.kron(_cosines(h), _cosines(w))[:, 1:]  # without the constant
        size = waves.square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        return (waves / size).float().to(self.raw.device)

    def _weights(self, count: int, noise: Noise) -> Tensor:
        """w of each summed picture: (s, hw, count)."""
        waves, s = self._waves, self.size
        if self.locality == 0 or waves.shape[1] == 0:
            return torch.full((s, 1, count), 1 / math.sqrt(s), device=waves.device)
        normal = torch.empty(s * waves.shape[1], count, device=waves.device)
        fields = waves @ noise.child("weights").fill(normal).view(s, -1, count)
        weights = fields.mul_(self.locality).softmax(0)
        return weights / weights.square().sum(0).sqrt()

    def start(self, count: int, y: Tensor | None, noise: Noise) -> Tensor:
        """The start (d, count) of particles of classes y (count,); y is None without classes.

        With class weights y (count, C), the classes of the pictures in a sum are drawn by them, and μ
        is the weighted mean.
        """
        order, starts, sizes = self._order
        x = torch.empty(len(self.raw), count, dtype=torch.float32, device=self.raw.device)
        noise.child("start").fill(x).mul_(_SPREAD)
        if y is None:
            y = torch.zeros(count, dtype=torch.int64, device=x.device)
        shape: Any = dict(rows=count, columns=self.size + 1, start=noise.first, device=x.device)
        u, shares = noise.seed.child("summed").uniform(**shape), None
        if y.dim() == 1:
            classes = y[:, None].expand(-1, self.size + 1)
        else:
            shares = y.clamp(min=0) / y.clamp(min=0).sum(1, keepdim=True).clamp(min=1e-9)
            v = noise.seed.child("classes").uniform(**shape).to(y.dtype)
            classes = torch.searchsorted(shares.cumsum(1), v).clamp(max=self.n_classes - 1)
        numbers = order[starts[classes] + (u * sizes[classes]).long()]
        for first in range(0, count, self._chunk):
            part = slice(first, min(count, first + self._chunk))
            means, n = self._means[:, classes[part, 0]], part.stop - first
            if shares is not None:
                means = self._means @ shares[part].T.float()
            weights = self._weights(n, replace(noise, first=noise.first + first))
            total = torch.zeros_like(means)
            for k, of in enumerate(numbers[part].T):
                away = self._values(of) - self._means[:, classes[part, k]]
                contrast = away.norm(dim=0)
                if k < self.size:
                    away /= contrast.clamp(min=_SPREAD)
                    total += (away.view(self.layout.shape[0], -1, n) * weights[k]).view_as(away)
                else:
                    total *= contrast
            x[:, part] += means + total
        return x


def _cosines(n: int) -> Tensor:
    """Cosines (n, k) with the amplitudes that make a sum of them change on a length of n/4."""
    k = torch.arange(min(n, _WAVES), dtype=torch.float64)
    amplitudes = torch.exp(-((math.pi / _LENGTH * k).square()) / 4)
    return torch.cos(math.pi / n * torch.outer(torch.arange(n) + 0.5, k)) * amplitudes


def start_of(
    levels: LevelFlow,
    sums: Sums | None,
    count: int,
    y: Tensor | None,
    noise: Noise,
    device: torch.device,
    observed: Tensor | None = None,
) -> Tensor:
    """The start (d, count) of particles of a flow: sums, or noise if `sums` is None.

    Parameters
    ----------
    y : their codes, or None
    observed : (d, count), the source of the pixels that the flow knows
    """
    if sums is not None:
        x = sums.start(count, y if levels.apart else None, noise)
    else:
        x = torch.empty(levels.layout.dimension, count, dtype=torch.float32, device=device)
        noise.child("start").fill(x).mul_(levels.start_noise)
    if levels.known is not None and observed is not None:
        x = torch.where(levels.known, observed, x)
    return x
