"""Mosaics: particles start as sums of a few pictures, instead of noise. This is not in the paper.

A particle of a class with mean μ starts, at pixel p, as

    x(p) = μ(p) + r·Σᵢ wᵢ(p)·(xᵢ(p) − μ(p))/‖xᵢ − μ‖,    Σᵢ wᵢ(p)² = 1,

where x₁ … x_s are random pictures of the class, and r = ‖x₀ − μ‖ is the contrast of one more. The
weights are wᵢ ∝ exp(β·gᵢ), where gᵢ are independent Gaussian fields that change smoothly over the
picture, with mean 0 over it. So each picture prevails somewhere and none everywhere, and edges stay
edges, which a flow hardly makes from noise. With β = 0 all weights are 1/√s.
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
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData

_SPREAD = 2e-3  # standard deviation of the noise that is added: equal pixels must not stay ties
_LENGTH = 4  # sides of a picture over the length on which weights change
_WAVES = 6  # cosines along a side that make up a field; the next would have an amplitude below .004
_VALUES = 1 << 25  # values at a time
_LEVELS = 64  # pixel values that are kept: files are a third smaller than with 256, samples as good


def kept_layout(layout: Layout) -> Layout:
    """The layout of the pictures that a model keeps: they have at most 64 values."""
    return replace(
        layout, n_pixel_values=min(_LEVELS, layout.n_pixel_values or _LEVELS)
    )


def kept_pictures(data: PictureData, ranks: Ranks) -> Tensor:
    """All pictures of all ranks, without mirror images, as a model keeps them: (n, c, h, w), bytes."""
    raw = ranks.gather(data.raw[:, : data.shard.count].T)
    values = data.layout.n_pixel_values
    if values is None:  # a mosaic hardly shows rounding
        raw = (raw * _LEVELS).floor().clamp(0, _LEVELS - 1)
    elif values > _LEVELS:
        raw = raw.long() * _LEVELS // values
    pixels: Tensor = raw.to(torch.uint8).reshape(-1, *data.layout.shape).cpu()
    return pixels


@dataclass(frozen=True)
class Mosaics:
    """Mosaics of `size` pictures."""

    size: int  # s
    locality: float  # β
    layout: Layout  # the layout of `pixels`
    pixels: Tensor  # (n, c, h, w), all pictures
    mirrored: bool = False  # whether mirror images follow them
    codes: Tensor | None = None  # (N,) class numbers, also of mirror images
    n_classes: int = 1  # C; 1 without classes
    device: torch.device | str = "cpu"

    @cached_property
    def raw(self) -> Tensor:
        """All pictures, with mirror images, as columns (d, N) on the device."""
        raw = self.layout.columns(self.pixels.to(self.device))
        return self.layout.mirrored(raw) if self.mirrored else raw

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor, Tensor]:
        """The pictures class by class, and the first place and the number of those of each class."""
        n = self.raw.shape[1]
        codes = self.codes
        codes = torch.zeros(n, dtype=torch.int64) if codes is None else codes
        _, order, _, class_slices = sort_by_class(
            codes.to(self.raw.device), self.n_classes
        )
        starts = torch.tensor(class_slices.starts, device=self.raw.device)
        return order, starts[:-1], starts.diff()

    @cached_property
    def _means(self) -> Tensor:
        """The mean of each class: (d, C)."""
        order, starts, sizes = self._order
        sums = torch.zeros(
            len(self.raw), self.n_classes, dtype=torch.float64, device=self.raw.device
        )
        for c, (first, size) in enumerate(
            zip(starts.tolist(), sizes.tolist(), strict=True)
        ):
            for part in range(first, first + size, self._chunk):
                numbers = order[part : min(part + self._chunk, first + size)]
                sums[:, c] += self._values(numbers).double().sum(1)
        return (sums / sizes.clamp(min=1)).float()

    @property
    def _chunk(self) -> int:
        return max(1, _VALUES // len(self.raw))

    def pictures(self, layout: Layout) -> np.ndarray:
        """The pictures, without mirror images, in the layout of the model."""
        parts = torch.split(
            torch.arange(len(self.pixels), device=self.raw.device), self._chunk
        )
        return np.concatenate(
            [np.asarray(layout.write(self._values(part))) for part in parts]
        )

    def _values(self, numbers: Tensor) -> Tensor:
        """The pixels, in [−1, 1], of the pictures with these numbers."""
        return self.layout.encode(self.raw[:, numbers])

    @cached_property
    def _waves(self) -> Tensor:
        """The fields of unit variance that each product of two cosines has a share in: (hw, k)."""
        _, h, w = self.layout.shape
        waves = torch.kron(_cosines(h), _cosines(w))[:, 1:]  # without the constant
        size = waves.square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        return (waves / size).float().to(self.raw.device)

    def _weights(self, count: int, noise: Noise) -> Tensor:
        """w of each summed picture: (s, hw, count)."""
        waves = self._waves
        s = self.size
        if self.locality == 0 or waves.shape[1] == 0:
            return torch.full((s, 1, count), 1 / math.sqrt(s), device=waves.device)
        normal = torch.empty(s * waves.shape[1], count, device=waves.device)
        fields = waves @ noise.child("weights").fill(normal).view(s, -1, count)
        weights = fields.mul_(self.locality).softmax(0)
        return weights / weights.square().sum(0).sqrt()

    def start(self, count: int, y: Tensor | None, noise: Noise) -> Tensor:
        """The start (d, count) of particles of classes y (count,)."""
        order, starts, sizes = self._order
        x = torch.empty(
            len(self.raw), count, dtype=torch.float32, device=self.raw.device
        )
        noise.child("start").fill(x).mul_(_SPREAD)
        if y is None:
            y = torch.zeros(count, dtype=torch.int64, device=x.device)
        shape: Any = dict(
            rows=count, columns=self.size + 1, start=noise.first, device=x.device
        )
        u = noise.seed.child("summed").uniform(**shape)
        numbers = order[starts[y, None] + (u * sizes[y, None]).long()]
        for first in range(0, count, self._chunk):
            part = slice(first, min(count, first + self._chunk))
            means = self._means[:, y[part]]
            n = part.stop - first
            weights = self._weights(n, replace(noise, first=noise.first + first))
            total = torch.zeros_like(means)
            for k, of in enumerate(numbers[part].T):
                away = self._values(of) - means
                contrast = away.norm(dim=0)
                if k < self.size:
                    away /= contrast.clamp(min=_SPREAD)
                    total += (
                        away.view(self.layout.shape[0], -1, n) * weights[k]
                    ).view_as(away)
                else:
                    total *= contrast
            x[:, part] += means + total
        return x


def mosaics_of(
    plan: PicturePlan, pixels: Tensor | None, codes: Tensor | None, device: torch.device
) -> Mosaics | None:
    """Of the kept pictures of a model, or None; `codes` (N,) count if classes have separate maps."""
    if pixels is None:
        return None
    how = (
        plan.n_summed,
        plan.options.locality,
        kept_layout(plan.layout),
        pixels,
        plan.mirror,
    )
    return Mosaics(
        *how, codes if plan.per_class else None, max(1, plan.per_class), device
    )


def _cosines(n: int) -> Tensor:
    """Cosines (n, k) with the amplitudes that make a sum of them change on a length of n/4."""
    k = torch.arange(min(n, _WAVES), dtype=torch.float64)
    amplitudes = torch.exp(-((math.pi / _LENGTH * k).square()) / 4)
    return torch.cos(math.pi / n * torch.outer(torch.arange(n) + 0.5, k)) * amplitudes


def start(
    plan: PicturePlan,
    mosaics: Mosaics | None,
    count: int,
    y: Tensor | None,
    noise: Noise,
    device: torch.device,
) -> Tensor:
    """The start (d, count) of particles with codes y: mosaics, or noise if these are None."""
    if mosaics is not None:
        return mosaics.start(count, y if plan.per_class else None, noise)
    x = torch.empty(plan.layout.dimension, count, dtype=torch.float32, device=device)
    return noise.child("start").fill(x).mul_(plan.options.start_noise)
