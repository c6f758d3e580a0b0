"""The pictures of a fit, in two forms: the user's, and the engine's columns.

`PictureRows` are the user's pictures and labels, checked. `DevicePictures` are the same
pictures as columns on the device of the fit, with mirror images and clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow import kernels
from sliceflow.arrays import Ints
from sliceflow.base.ranks import Communicator, Shard
from sliceflow.base.rows import ArrayRows, Conditions, HasConditions
from sliceflow.engine import y_encoders
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.clusters import (
    gradient_histograms,
    kmeans_centers,
    nearest_center,
)
from sliceflow.estimators.pictures.layout import Layout, PictureArray
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.saved_types import ArraySpec, DTypeName

PIXEL_DTYPES: tuple[DTypeName, ...] = ("uint8", "int32", "float32", "float64")

# k-means is fitted to about this many pictures, which are more than 600 for each of
# the at most 30 clusters of "auto". All others are assigned to the nearest center.
MAX_KMEANS_PICTURES = 20_000

# Longer side, in pixels, of the gray pictures that k-means compares. It is half the
# side of MNIST's digits, which are still easy to tell apart.
KMEANS_SIDE = 14

# Values of pictures whose features are computed at a time: 256 MB in float32.
MAX_VALUES_PER_CHUNK = 1 << 26


@dataclass(frozen=True, eq=False)
class PictureRows(ArrayRows):
    """The user's pictures and labels, checked."""

    layout: Layout
    pixels: Annotated[
        np.ndarray, ArraySpec("n c h w", PIXEL_DTYPES, n_difference_axes=3)
    ]
    conditions: Conditions | None = None  # labels
    partial_shard: Shard | None = field(default=None, metadata={"saved": False})
    _conditions_name = "labels"

    def check_saved(self) -> None:
        """Raise a ValueError if saved pictures contradict their layout or labels."""
        if self.pixels.shape[1:] != self.layout.shape:
            raise ValueError(
                f"pictures are {self.pixels.shape[1:]}, not {self.layout.shape}"
            )
        check_saved_labels(self.conditions)
        self.check_lengths()
        self.layout.read(self.pictures)

    @property
    def values(self) -> NDArray[Any]:
        """This rank's pixels (n, c, h, w)."""
        return self.pixels

    def with_values(self, values: NDArray[Any], conditions: Conditions | None) -> Self:
        """Pictures of the same layout with other pixels and labels."""
        return replace(self, pixels=values, conditions=conditions)

    @property
    def pictures(self) -> PictureArray:
        """The pictures as the user passed them: (n, h, w) or (n, h, w, c)."""
        channels_last = self.pixels.transpose(0, 2, 3, 1)
        return self.layout.in_user_form(np.ascontiguousarray(channels_last))

    def user_X_and_y(
        self, device: torch.device
    ) -> tuple[PictureArray, NDArray[Any] | None]:
        """X and y as the user passed them."""
        return self.pictures, self.y


def check_saved_labels(labels: Conditions | None) -> None:
    """Raise a ValueError for conditions that are no labels."""
    if labels is None:
        return
    if not isinstance(labels.encoder, y_encoders.ClassEncoder):
        kind = type(labels.encoder).__name__
        raise ValueError(f"pictures have labels, not {kind}")


@dataclass(frozen=True, eq=False)
class DevicePictures(HasConditions):
    """This rank's pictures as columns on a device, and the labels of all ranks.

    With mirror images there are N = 2n pictures on all ranks: pictures 0..n-1, then
    their mirror images in the same order. Each rank has its share of both.
    """

    layout: Layout
    pixel_points: Tensor  # (d, n): this rank's pictures, then their mirror images
    shard: Shard  # this rank's pictures among all, without mirror images
    conditions: Conditions | None = None  # labels or clusters of all N pictures
    has_mirror_images: bool = False  # whether there are mirror images

    @classmethod
    def from_rows(cls, rows: PictureRows, device: torch.device, mirror: bool) -> Self:
        """The pictures on the device of a fit, with mirror images if `mirror`."""
        layout = rows.layout
        shard = rows.shard
        labels = rows.conditions
        pixel_points = layout.to_points(torch.from_numpy(rows.pixels).to(device))
        if mirror:
            pixel_points = layout.with_mirror_images(pixel_points)
        if mirror and labels is not None:
            labels = labels.take(torch.arange(2 * shard.total) % shard.total)
        return cls(layout, pixel_points, shard, labels, mirror)

    @property
    def device(self) -> torch.device:
        return self.pixel_points.device

    @property
    def n_pictures(self) -> int:
        """N, the number of pictures of all ranks, including mirror images."""
        if self.has_mirror_images:
            return 2 * self.shard.total
        return self.shard.total

    @property
    def has_clusters(self) -> bool:
        """Whether the conditions are clusters, not labels of the user."""
        return self.conditions is not None and self.conditions.encoder.encodes_clusters

    def has_colors(self, ranks: Communicator) -> bool:
        """Whether any picture of any rank is not gray, such as with equal channels."""
        first, *others = self.pixel_points.chunk(self.layout.shape[0])
        is_gray = all(torch.equal(first, other) for other in others)
        return ranks.max_int(int(not is_gray)) > 0

    @property
    def index_slices(self) -> list[slice]:
        """The indices of this rank's pictures among all N, as slices."""
        pictures = self.shard.slice
        if not self.has_mirror_images:
            return [pictures]
        if self.shard.count == self.shard.total:
            return [slice(0, self.n_pictures)]
        n = self.shard.total
        return [pictures, slice(n + pictures.start, n + pictures.stop)]

    @property
    def indices(self) -> Tensor:
        """The indices of this rank's pictures among all N."""
        ranges = [
            torch.arange(part.start, part.stop, device=self.device)
            for part in self.index_slices
        ]
        return torch.cat(ranges)

    @cached_property
    def own_y(self) -> ClassIndices | None:
        """The classes of this rank's pictures, on their device; None without any."""
        if self.label_y is None:
            return None
        return self.label_y.take(self.indices.cpu()).to(self.device)

    def with_clusters(self, k: int, seed: Seed, ranks: Communicator) -> Self:
        """Divide the pictures into k clusters, their hidden labels, by k-means."""
        stride = max(1, self.n_pictures // MAX_KMEANS_PICTURES)
        subset = torch.arange(0, self.n_pictures, stride, device=self.device)
        features = self._cluster_features(self.gather_pictures(subset, ranks))
        centers = kmeans_centers(features, k, seed.child("clusters"))
        own_features = self._cluster_features(self.pixel_points)
        own_clusters = nearest_center(own_features, centers).cpu().numpy()
        encoder = y_encoders.ClassEncoder(np.arange(k), encodes_clusters=True)
        conditions = Conditions(encoder, self._gather_classes(own_clusters, ranks))
        return replace(self, conditions=conditions)

    def _gather_classes(self, own_classes: Ints, ranks: Communicator) -> Tensor:
        """The classes of all N pictures, from the classes of this rank's pictures."""
        if not self.has_mirror_images:
            return torch.from_numpy(ranks.all_gather_rows(own_classes))
        # The pictures of all ranks come first, then all mirror images.
        halves = np.split(own_classes, 2)
        gathered_halves = [ranks.all_gather_rows(half) for half in halves]
        return torch.from_numpy(np.concatenate(gathered_halves))

    def _cluster_features(self, pixel_points: Tensor) -> Tensor:
        """What k-means compares of columns (d, n): (f, n).

        Gray pictures are compared at a coarse resolution, color pictures by their
        gradients, because similar colors say little of what a picture shows.
        """
        chunk_size = max(1, MAX_VALUES_PER_CHUNK // self.layout.dimension)
        has_one_channel = self.layout.shape[0] == 1
        features = []
        for part in torch.split(pixel_points, chunk_size, dim=1):
            x = self.layout.encode(part)
            if has_one_channel:
                features.append(self._coarse_pixels(x))
            else:
                features.append(gradient_histograms(x, self.layout.shape))
        return torch.cat(features, dim=1)

    def _coarse_pixels(self, x: Tensor) -> Tensor:
        """Pictures (d, n) at the resolution that k-means compares."""
        channels, height, width = self.layout.shape
        scale = KMEANS_SIDE / max(height, width)
        coarse_height = max(1, min(height, round(height * scale)))
        coarse_width = max(1, min(width, round(width * scale)))
        subspace = PyramidSubspace(channels, height, width, coarse_height, coarse_width)
        return subspace.restrict(x)

    def gather_pictures(self, indices: Tensor, ranks: Communicator) -> Tensor:
        """Gather the pictures (d, m) with these indices, of all N, from their ranks."""
        if not self.has_mirror_images or ranks.size == 1:
            return ranks.gather_points(self.pixel_points, indices)
        n = self.shard.total
        pictures, mirror_images = self.pixel_points.chunk(2, dim=1)
        gathered_pictures = ranks.gather_points(pictures, indices % n)
        gathered_mirror_images = ranks.gather_points(mirror_images, indices % n)
        return torch.where(indices < n, gathered_pictures, gathered_mirror_images)

    def cloud(self, seed: Seed, indices: Tensor | None = None) -> Cloud:
        """The encoded pictures with their class indices; `seed` dequantizes.

        `indices` chooses some of the pictures, in a fit of a single process. The
        fractions of these are drawn as if there were no other pictures.
        """
        if indices is None:
            x = self.layout.encode(
                self.pixel_points,
                seed,
                n_total=self.n_pictures,
                index_slices=self.index_slices,
            )
            return Cloud(x, self.own_y)
        y = None
        if self.own_y is not None:
            y = self.own_y.take(indices)
        backend = kernels.for_tensor(self.pixel_points)
        taken = backend.take_points(self.pixel_points, indices)
        return Cloud(self.layout.encode(taken, seed), y)
