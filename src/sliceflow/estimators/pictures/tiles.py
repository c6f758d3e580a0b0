"""Local frames for pictures: each direction covers one small patch.

`Tiles` cuts the (h, w) picture into S×S tiles at a random offset and applies one random
rotation to all tiles, so the frame is tight with bound c = 1. Tiles beyond the border
are padded with zeros. `RandomPatches` are the paper's directions: independent patches
at random positions. Both have the interface of the kinds of frames in `engine.frames`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from sliceflow import kernels
from sliceflow.arrays import chunks
from sliceflow.engine.clouds import ALL_POINTS, Cloud, PointSelection
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.frames import DenseFrame, condition_directions
from sliceflow.engine.maps import GridMaps, TransportMaps
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation, step_uniform
from sliceflow.estimators.pictures.cosines import cosine_rotation
from sliceflow.estimators.pictures.pyramid import lanczos_coefficients
from sliceflow.kernels.geometry import TileGeometry

# Values of random patches that are placed in pictures together: 32 MB in float64.
MAX_PLACED_VALUES = 1 << 22


@dataclass(frozen=True, eq=False)
class TileFrame:
    """The tiles of one step: a `Frame` of C·S² directions for each tile.

    Their Θ (tiles·C·S², C·h·w) has the same rotation for every tile, and is never
    written out. It is orthogonal, so that lifting divides by no frame bound.
    """

    tile_rotation: Tensor  # (C·S², C·S²), of the values of each tile
    # (tiles·C·S², l): directions in the space of the condition, if there is one
    theta_y: Tensor | None
    geometry: TileGeometry  # how the pictures are cut
    theta_to_store: None = None  # no directions to store: the frame can be drawn again

    def count_directions(self, d: int) -> int:
        """The number of directions: every tile has all, also beyond the border."""
        return self.geometry.n_directions

    def amplified(self, amplifier: float) -> Self:
        """The frame with the directions of the condition multiplied by ξ."""
        if self.theta_y is None:
            return self
        return replace(self, theta_y=amplifier * self.theta_y)

    def project(self, cloud: Cloud, points: PointSelection = ALL_POINTS) -> Tensor:
        """z = Θx + θ_yᵀy: (C·h·w, n) -> (tiles·C·S², n)."""
        indices = points.indices
        if isinstance(indices, slice):
            cloud = cloud.take(points.indices)
            indices = None
        backend = kernels.for_tensor(cloud.x)
        return backend.project_tiles(
            cloud.x,
            self.tile_rotation,
            self.geometry,
            indices,
            self._theta_y_of(cloud),
            self._class_indices(cloud),
        )

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz: (tiles·C·S², n) -> (C·h·w, n)."""
        return kernels.for_tensor(dz).lift_tiles(dz, self.tile_rotation, self.geometry)

    def move(self, cloud: Cloud, maps: TransportMaps, step_size: float) -> None:
        """x += s·Θᵀ(T(z) − z) in place; a GPU writes only x."""
        if not isinstance(maps, GridMaps):
            dz = maps.displace(self.project(cloud), cloud)
            cloud.x.add_(self.lift(dz), alpha=step_size)
            return
        class_starts = None
        if cloud.class_slices is not None:
            class_starts = cloud.class_slices.starts
        kernels.for_tensor(cloud.x).move_tiles(
            cloud.x,
            self.tile_rotation,
            self.geometry,
            maps.lo,
            maps.hi,
            maps.values,
            step_size,
            self._theta_y_of(cloud),
            self._class_indices(cloud),
            class_starts,
        )

    def _theta_y_of(self, cloud: Cloud) -> Tensor | None:
        """θ_y, by which the classes of the columns offset projections, if they do."""
        if cloud.y is None:
            return None
        return self.theta_y

    def _class_indices(self, cloud: Cloud) -> Tensor | None:
        """The class indices of the columns, if these offset projections."""
        if self.theta_y is None or cloud.y is None:
            return None
        assert isinstance(cloud.y, ClassIndices), "pictures have labels"
        return cloud.y.values


@dataclass(frozen=True)
class Tiles:
    """S×S tiles at a random offset, all rotated alike: the default for pictures."""

    channels: int
    height: int  # of the pictures, or of the coefficients of a resolution
    width: int
    patch: int  # S
    cosines: bool = False  # rotate groups of cosines, not pixels: for photographs
    precision: torch.dtype | None = None  # of the rotations; None: the particles'

    def max_directions(self, d: int) -> int:
        """The most directions of a step: their number depends on the offset."""
        almost_one = 1 - 1e-9
        return self._geometry_at(almost_one, almost_one).n_directions

    def geometry(self, seed: Seed, step_index: int) -> TileGeometry:
        """The tiles of a step."""
        down, right = step_uniform(seed.child("offset"), step_index, 2)
        return self._geometry_at(down, right)

    def _geometry_at(self, down: float, right: float) -> TileGeometry:
        """The tiles at an offset `down` and `right`, in fractions of a tile.

        An axis that one tile covers has offset 0.
        """
        tile_height = min(self.patch, self.height)
        tile_width = min(self.patch, self.width)
        top = 0
        if tile_height < self.height:
            top = int(down * tile_height)
        left = 0
        if tile_width < self.width:
            left = int(right * tile_width)
        shape = (self.channels, self.height, self.width)
        return TileGeometry(shape, (tile_height, tile_width), (top, left))

    def count_directions_of_step(self, seed: Seed, step_index: int) -> int:
        """The number of directions of one step."""
        return self.geometry(seed, step_index).n_directions

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> TileFrame:
        """The frame of a step, for particles like x_p (C·h·w, n)."""
        geometry = self.geometry(seed, step_index)
        dtype = x_p.dtype
        if self.precision is not None:
            dtype = self.precision
        # Kernels of a GPU want rotations padded to a multiple of their block.
        backend = kernels.for_device(x_p.device)
        padded_size = backend.padded_size(geometry.values_per_tile)
        if self.cosines:
            tile = (self.channels, *geometry.size)
            tile_rotation = cosine_rotation(
                seed, step_index, tile, x_p.device, dtype, padded_size
            )
        else:
            tile_rotation = rotation(
                seed,
                step_index,
                geometry.values_per_tile,
                x_p.device,
                dtype,
                padded_size,
            )
        theta_y = condition_directions(
            seed.child(step_index),
            geometry.n_directions,
            condition_dim,
            x_p.device,
            dtype,
        )
        return TileFrame(tile_rotation, theta_y, geometry)


@dataclass(frozen=True)
class RandomPatches:
    """The paper's locally-connected directions: H random patches, new at every step.

    A patch is uniform on the sphere of R^(C·S²). It is placed in a picture of zeros
    with its center at a random pixel. Parts beyond the border are cut off, and what
    remains is normalized. At a coarse resolution the patch is upsampled to `full_size`
    pixels by Lanczos' kernel W, and returned as coefficients of the coarse resolution.
    With a condition, θ_y is uniform on the sphere of R^l, and θ_x and θ_y both have
    length 1/√2. A step of size 1 has η = C·h·w, the number of coefficients: the number
    of pixels of the full picture would overshoot.
    """

    channels: int
    height: int  # of the pictures, or of the coefficients of a resolution
    width: int
    patch: int  # S
    n_directions: int = 1000  # H; the paper uses 10,000
    full_size: tuple[int, int] | None = None  # of the picture; None: (height, width)

    def count_directions_of_step(self, seed: Seed, step_index: int) -> int:
        """The number of directions of one step."""
        return self.n_directions

    def max_directions(self, d: int) -> int:
        """H, whatever d is."""
        return self.n_directions

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step, for particles like x_p (C·h·w, n)."""
        step_seed = seed.child(step_index)
        h = self.n_directions
        inverse_length = 1.0
        theta_y = None
        if condition_dim:
            inverse_length = math.sqrt(2)
            normal = step_seed.child("y").normal(h, condition_dim, device=x_p.device)
            theta_y = (normalize(normal, dim=1) / inverse_length).to(x_p.dtype)
        theta = self._placed_patches(step_seed, inverse_length, x_p)
        d = self.channels * self.height * self.width
        return DenseFrame(theta, theta_y, frame_bound=h / d)

    def _placed_patches(self, seed: Seed, inverse_length: float, x: Tensor) -> Tensor:
        """The directions θ_x of a step, of length 1/inverse_length: (H, C·h·w)."""
        device = x.device
        n = self.n_directions
        d = self.channels * self.height * self.width
        patches = self._random_patches(seed, device)  # (H, C, S, S)
        vertical, horizontal = self._upsampling_of_patches(seed, device)
        theta = torch.empty(n, d, dtype=x.dtype, device=device)
        for part in chunks(n, max(1, MAX_PLACED_VALUES // d)):
            placed = vertical[part, None] @ patches[part] @ horizontal[part, None].mT
            theta[part] = normalize(placed.flatten(1), dim=1) / inverse_length
        return theta

    def _random_patches(self, seed: Seed, device: torch.device) -> Tensor:
        """Patches (H, C, S, S) of independent normal numbers."""
        n_values = self.channels * self.patch * self.patch
        normal = seed.child("x").normal(self.n_directions, n_values, device=device)
        return normal.view(-1, self.channels, self.patch, self.patch)

    def _upsampling_of_patches(
        self, seed: Seed, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Matrices (H, h, S) and (H, w, S) that place patches at random pixels.

        They take the rows and the columns of a patch to coefficients of a picture.
        """
        size = torch.tensor([self.height, self.width], device=device)
        uniform = seed.child("centre").uniform(self.n_directions, 2, device=device)
        centers = (uniform * size).long()
        full_size = self.full_size
        if full_size is None:
            full_size = (self.height, self.width)
        vertical = lanczos_coefficients(full_size[0], self.height, device)
        horizontal = lanczos_coefficients(full_size[1], self.width, device)
        return (
            _columns_around(vertical, centers[:, 0], self.patch),
            _columns_around(horizontal, centers[:, 1], self.patch),
        )


def _columns_around(matrix: Tensor, centers: Tensor, s: int) -> Tensor:
    """For each of n centers, the s columns of a matrix (h, h) around it: (n, h, s).

    Columns beyond the ends are zero.
    """
    padded = pad(matrix, (s, s))  # (h, s + h + s)
    first_columns = s + centers - s // 2
    column_indices = first_columns[:, None] + torch.arange(s, device=matrix.device)
    columns = padded[:, column_indices]  # (h, n, s)
    return columns.permute(1, 0, 2)
