"""Mosaics: particles start as sums of a few pictures, instead of noise.

This is not in the paper. A particle of a class with mean μ starts, at pixel p, as

    x(p) = μ(p) + r·Σᵢ wᵢ(p)·(xᵢ(p) − μ(p))/‖xᵢ − μ‖,    Σᵢ wᵢ(p)² = 1,

where x₁ … x_s are random pictures of the class, and r = ‖x₀ − μ‖ is the contrast of
one more picture x₀. The weights are wᵢ ∝ exp(β·gᵢ), where gᵢ are independent Gaussian
fields that change smoothly over the picture, with mean 0 over it. So each picture
prevails somewhere and none everywhere, and edges stay edges, which a flow hardly makes
from noise. With β = 0 all weights are 1/√s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import chunks
from sliceflow.base.ranks import Communicator
from sliceflow.engine.clouds import ClassOrder
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.flow import ParticleRng
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import DevicePictures

# Standard deviation of the noise that is added to mosaics: equal pixels must not stay
# ties. It is a quarter of a step between 256 pixel values. Contrasts below it count as
# this, so that nothing is divided by zero.
TIE_NOISE = 2e-3

# Weights change over a length of this share of a side. It is the longest with which
# parts of samples are as new as parts of test pictures (CIFAR-10): with longer fields
# parts look more like training pictures.
FIELD_LENGTH = 1 / 4

# A field is made of this many cosines along each side. The next one would have an
# amplitude below .004.
N_FIELD_COSINES = 6

# Pixel values that stored pictures are rounded to: files are a third smaller than with
# 256, and samples as good.
N_STORED_VALUES = 64

# Values of pictures that are summed together: 128 MB in float32.
MAX_VALUES_PER_CHUNK = 1 << 25


def layout_of_mosaic_sources(layout: Layout) -> Layout:
    """The layout of the pictures that a model stores: at most 64 pixel values."""
    n_values = N_STORED_VALUES
    if layout.n_pixel_values is not None:
        n_values = min(N_STORED_VALUES, layout.n_pixel_values)
    return replace(layout, n_pixel_values=n_values)


def gather_mosaic_sources(pictures: DevicePictures, ranks: Communicator) -> Tensor:
    """Gather the pictures of all ranks as a model stores them: bytes (n, c, h, w).

    Mirror images are made again when they are needed.
    """
    n_values = pictures.layout.n_pixel_values
    rows = ranks.all_gather_rows(pictures.pixel_points[:, : pictures.shard.count].T)
    if n_values is None:  # floats: a mosaic hardly shows rounding
        rows = (rows * N_STORED_VALUES).floor().clamp(0, N_STORED_VALUES - 1)
    elif n_values > N_STORED_VALUES:
        rows = rows.long() * N_STORED_VALUES // n_values
    pixels: Tensor = rows.to(torch.uint8).reshape(-1, *pictures.layout.shape).cpu()
    return pixels


@dataclass(frozen=True, eq=False)
class PicturesByClass:
    """Indices of pictures in order of class: class c starts at starts[c]."""

    indices: Tensor  # (N,)
    starts: Tensor  # (C,)
    sizes: Tensor  # (C,)


@dataclass(frozen=True, eq=False)
class Mosaics:
    """Mosaics of `mosaic_size` pictures, as the module describes them."""

    mosaic_size: int  # s
    locality: float  # β
    layout: Layout  # of `pixels`
    pixels: Tensor  # (n, c, h, w), all pictures
    has_mirror_images: bool = False  # whether mirror images follow the pictures
    y: ClassIndices | None = None  # of all N pictures, also of mirror images
    n_classes: int = 1  # C; 1 without classes
    device: torch.device | str = "cpu"

    def draw(self, n: int, y: ClassIndices | None, particle_rng: ParticleRng) -> Tensor:
        """Mosaics (d, n) of the classes `y` of n particles."""
        d = len(self._pixel_points)
        device = self._pixel_points.device
        x = torch.empty(d, n, dtype=torch.float32, device=device)
        particle_rng.fill(x, "start").mul_(TIE_NOISE)
        classes = torch.zeros(n, dtype=torch.int64, device=device)
        if y is not None:
            classes = y.values
        indices = self._random_indices(classes, particle_rng)
        for part in chunks(n, self._chunk_size):
            part_rng = replace(particle_rng, first=particle_rng.first + part.start)
            x[:, part] += self._weighted_sum(indices[part], classes[part], part_rng)
        return x

    def decoded_pictures(self, layout: Layout) -> NDArray[Any]:
        """The pictures, without mirror images, in another layout of the same shape."""
        indices = torch.arange(len(self.pixels), device=self._pixel_points.device)
        parts = [
            np.asarray(layout.decode(self._encoded_pictures(part)))
            for part in torch.split(indices, self._chunk_size)
        ]
        return np.concatenate(parts)

    def _random_indices(self, classes: Tensor, particle_rng: ParticleRng) -> Tensor:
        """Indices (n, s + 1) of random pictures of each particle's class (n,)."""
        by_class = self._pictures_by_class
        u = particle_rng.seed.child("summed").uniform(
            rows=len(classes),
            columns=self.mosaic_size + 1,
            first_row=particle_rng.first,
            device=classes.device,
        )
        index_in_class = (u * by_class.sizes[classes, None]).long()
        return by_class.indices[by_class.starts[classes, None] + index_in_class]

    def _weighted_sum(
        self, indices: Tensor, classes: Tensor, particle_rng: ParticleRng
    ) -> Tensor:
        """x of the formula: (d, n), for the indices (n, s + 1) of x₁ … x_s and x₀."""
        n = len(indices)
        n_channels = self.layout.shape[0]
        means = self._class_means[:, classes]
        weights = self._weights(n, particle_rng)
        total = torch.zeros_like(means)
        for i in range(self.mosaic_size):
            deviation = self._encoded_pictures(indices[:, i]) - means
            deviation /= deviation.norm(dim=0).clamp(min=TIE_NOISE)
            weighted = deviation.view(n_channels, -1, n) * weights[i]
            total += weighted.view_as(deviation)
        contrast = (self._encoded_pictures(indices[:, -1]) - means).norm(dim=0)
        total *= contrast
        return means + total

    def _weights(self, n: int, particle_rng: ParticleRng) -> Tensor:
        """w of each picture of n mosaics: (s, h·w, n), or (s, 1, n) if β = 0."""
        cosines = self._field_cosines
        s = self.mosaic_size
        n_cosines = cosines.shape[1]
        if self.locality == 0 or n_cosines == 0:
            return torch.full((s, 1, n), 1 / math.sqrt(s), device=cosines.device)
        normal = torch.empty(s * n_cosines, n, device=cosines.device)
        particle_rng.fill(normal, "weights")
        fields = cosines @ normal.view(s, -1, n)
        weights = fields.mul_(self.locality).softmax(0)
        return weights / weights.square().sum(0).sqrt()

    @cached_property
    def _pixel_points(self) -> Tensor:
        """All pictures and mirror images as columns of pixels (d, N), on the device."""
        points = self.layout.to_points(self.pixels.to(self.device))
        if self.has_mirror_images:
            return self.layout.with_mirror_images(points)
        return points

    def _encoded_pictures(self, indices: Tensor) -> Tensor:
        """The values, in [−1, 1], of the pictures with these indices: (d, n)."""
        return self.layout.encode(self._pixel_points[:, indices])

    @property
    def _chunk_size(self) -> int:
        """The number of pictures that are summed at a time."""
        return max(1, MAX_VALUES_PER_CHUNK // len(self._pixel_points))

    @cached_property
    def _pictures_by_class(self) -> PicturesByClass:
        device = self._pixel_points.device
        y = self.y
        if y is None:
            n = self._pixel_points.shape[1]
            y = ClassIndices(torch.zeros(n, dtype=torch.int64))
        y = y.to(device)
        class_order = ClassOrder.from_y(y, self.n_classes)
        starts = torch.tensor(class_order.class_slices.starts, device=device)
        return PicturesByClass(class_order.indices, starts[:-1], starts.diff())

    @cached_property
    def _class_means(self) -> Tensor:
        """μ of each class: (d, C)."""
        by_class = self._pictures_by_class
        d = len(self._pixel_points)
        sums = torch.zeros(
            d, self.n_classes, dtype=torch.float64, device=self._pixel_points.device
        )
        members = torch.split(by_class.indices, by_class.sizes.tolist())
        for c, indices in enumerate(members):
            for part in torch.split(indices, self._chunk_size):
                sums[:, c] += self._encoded_pictures(part).double().sum(1)
        return (sums / by_class.sizes.clamp(min=1)).float()

    @cached_property
    def _field_cosines(self) -> Tensor:
        """The products of two cosines that fields consist of: (h·w, k).

        A field is their sum with independent normal factors. It has unit variance at
        every pixel. The constant is left out, so its mean over the picture is 0.
        """
        _, h, w = self.layout.shape
        cosines = torch.kron(_scaled_cosines(h), _scaled_cosines(w))[:, 1:]
        deviation = cosines.square().sum(1, keepdim=True).sqrt()
        # The minimum is for pictures of one pixel, which have no cosines.
        cosines = cosines / deviation.clamp(min=1e-9)
        return cosines.float().to(self._pixel_points.device)


def _scaled_cosines(n: int) -> Tensor:
    """Cosines (n, k) along a side of n pixels, float64.

    Their amplitudes fall as they do in a field with a Gaussian covariance that changes
    over a length of n/4.
    """
    k = torch.arange(min(n, N_FIELD_COSINES), dtype=torch.float64)
    amplitudes = torch.exp(-((math.pi * FIELD_LENGTH * k).square()) / 4)
    positions = torch.arange(n) + 0.5
    return torch.cos(math.pi / n * torch.outer(positions, k)) * amplitudes


def build_mosaics(
    plan: PicturePlan,
    mosaic_sources: Tensor | None,
    y: ClassIndices | None,
    device: torch.device,
) -> Mosaics | None:
    """The mosaics of a plan; None if particles start as noise.

    Parameters
    ----------
    mosaic_sources : the stored pictures (n, c, h, w), or None
    y : the classes of all N pictures, used if they have separate maps
    """
    if mosaic_sources is None:
        return None
    separate_y = y if plan.n_separate_classes else None
    return Mosaics(
        mosaic_size=plan.mosaic_size,
        locality=plan.options.locality,
        layout=layout_of_mosaic_sources(plan.layout),
        pixels=mosaic_sources,
        has_mirror_images=plan.mirror,
        y=separate_y,
        n_classes=max(1, plan.n_separate_classes),
        device=device,
    )


def initial_points(
    plan: PicturePlan,
    mosaics: Mosaics | None,
    n: int,
    y: ClassIndices | None,
    particle_rng: ParticleRng,
    device: torch.device,
) -> Tensor:
    """Where n particles of the classes `y` start: (d, n), mosaics or noise."""
    if mosaics is not None:
        separate_y = y if plan.n_separate_classes else None
        return mosaics.draw(n, separate_y, particle_rng)
    x = torch.empty(plan.layout.dimension, n, dtype=torch.float32, device=device)
    return particle_rng.fill(x, "start").mul_(plan.options.start_noise)
