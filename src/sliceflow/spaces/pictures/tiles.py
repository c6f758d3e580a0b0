"""Local frames for pictures: each direction covers one small patch. Same interface as `engine.frames`.

`Tiles` cuts the (h, w) picture into S×S tiles at a random offset and applies one random rotation to all
tiles, so the frame is Parseval with c = 1. Tiles beyond the border are padded with zeros.
`RandomPatches` are the paper's directions: independent patches at random positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.clouds import Cloud, Indices
from sliceflow.engine.frames import Frame, condition_directions, rotation, step_uniform
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import GridMap, TransportMap
from sliceflow.kernels.geometry import Geometry
from sliceflow.spaces.pictures.cosines import cosine_rotation
from sliceflow.spaces.pictures.pyramid import upsampled

_NUMBERS = 1 << 22  # values of random patches that are placed at a time


@dataclass(frozen=True, kw_only=True)
class TileFrame(Frame):
    """The tiles of one step: `geometry` cuts the pictures, `theta` (C·S², C·S²) rotates each tile."""

    geometry: Geometry

    @property
    def n_directions(self) -> int:
        return self.geometry.n_directions

    def _shift(self, cloud: Cloud) -> tuple[Tensor | None, Tensor | None]:
        """What shifts projections, if anything does: θ_y, and the class numbers."""
        known = self.theta_y is not None and cloud.y is not None
        return (self.theta_y, cloud.y) if known else (None, None)

    def project(self, cloud: Cloud, columns: Indices = None) -> Tensor:
        """z = Θx + θ_yᵀy: (C·h·w, n) -> (tiles·C·S², n)."""
        if isinstance(columns, slice):
            cloud = cloud.part(columns)
            columns = None
        project = kernels.for_tensor(cloud.x).project_tiles
        shift = self._shift(cloud)
        return project(cloud.x, self.theta, self.geometry, columns, *shift)  # type: ignore[no-any-return]

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz: (tiles·C·S², n) -> (C·h·w, n)."""
        dx: Tensor = kernels.for_tensor(dz).lift_tiles(dz, self.theta, self.geometry)
        return dx

    def move(self, cloud: Cloud, table: TransportMap, size: float) -> None:
        """x += s·Θᵀ(T(z) − z) in place; a GPU writes only x."""
        x = cloud.x
        starts = None if cloud.class_slices is None else cloud.class_slices.starts
        if isinstance(table, GridMap):
            maps = (table.lo, table.hi, table.values)
            tiles = (self.theta, self.geometry)
            kernels.for_tensor(x).move_tiles(
                x, *tiles, *maps, size, *self._shift(cloud), starts
            )
        else:
            super().move(cloud, table, size)


@dataclass(frozen=True)
class Tiles:
    """S×S tiles at a random offset, with one shared random rotation: the default for pictures."""

    channels: int
    height: int  # and width: of the pictures, or of a pyramid level's coefficients
    width: int
    patch: int  # S
    cosines: bool = (
        False  # rotate groups of a tile's cosines, for photographs; else all pixels
    )
    precision: torch.dtype | None = (
        None  # dtype of the rotations; None takes the particles'
    )

    @property
    def most_directions(self) -> int:
        """The maximum number of directions over all offsets."""
        return self._geometry(1 - 1e-9, 1 - 1e-9).n_directions

    def geometry(self, seed: Seed, step: int) -> Geometry:
        return self._geometry(*step_uniform(seed.child("offset"), step, 2))

    def _geometry(self, down: float, right: float) -> Geometry:
        """The tiles at these fractions of a tile; one as large as the picture has offset 0."""
        s = min(self.patch, self.height)
        t = min(self.patch, self.width)
        offset = (
            int(down * s) if s < self.height else 0,
            int(right * t) if t < self.width else 0,
        )
        return Geometry((self.channels, self.height, self.width), (s, t), offset)

    def count(self, seed: Seed, step: int) -> int:
        return self.geometry(seed, step).n_directions

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> TileFrame:
        geometry = self.geometry(seed, step)
        device = x.device
        dtype = self.precision or x.dtype
        side = kernels.for_device(device).lanes(geometry.side)
        if self.cosines:
            tile = (self.channels, *geometry.size)
            theta = cosine_rotation(seed, step, tile, device, dtype, side)
        else:
            theta = rotation(seed, step, geometry.side, device, dtype, side)
        h = geometry.n_directions
        theta_y = condition_directions(seed.child(step), h, n_conditions, device, dtype)
        return TileFrame(theta, theta_y, geometry=geometry)


@dataclass(frozen=True)
class RandomPatches:
    """The paper's locally-connected directions: H random patches, redrawn at every step.

    A patch is uniform on the sphere of R^(C·S²). It is placed in a picture of zeros with its centre at
    a random pixel. Parts beyond the border are cut off, and the rest is normalised. At a level of a
    pyramid it is upsampled to `full` pixels by the plain kernel W, and returned as coefficients. With a
    condition, θ_y is uniform on the sphere of R^l, and (θ_x, θ_y) both have length 1/√2. A step of size
    1 has η = C·h·w, the dimension of the level: that of the full picture would overshoot.
    """

    channels: int
    height: int  # and width: of the pictures, or of a pyramid level's coefficients
    width: int
    patch: int  # S
    n_directions: int = 1000  # H; the paper uses 10,000
    full: tuple[int, int] | None = None  # size of the picture; None if the level has it

    def count(self, seed: Seed, step: int) -> int:
        return self.n_directions

    def draw(
        self,
        seed: Seed,
        step: int,
        x: Tensor,
        n_conditions: int = 0,
        data: Tensor | None = None,
    ) -> Frame:
        c = self.channels
        h = self.height
        w = self.width
        s = self.patch
        count = self.n_directions
        full = self.full or (h, w)
        seed = seed.child(step)
        device = x.device
        dtype = x.dtype
        patches = (
            seed.child("x").normal(count, c * s * s, device=device).view(count, c, s, s)
        )
        size = torch.tensor([h, w], device=device)
        centre = (seed.child("centre").uniform(count, 2, device=device) * size).long()
        rows, columns = (
            _columns_around(upsampled(full[axis], side, device), centre[:, axis], s)
            for axis, side in enumerate((h, w))
        )
        theta = torch.empty(count, c * h * w, dtype=dtype, device=device)
        length = math.sqrt(2) if n_conditions else 1.0
        chunk = max(1, _NUMBERS // (c * h * w))
        for part in (slice(first, first + chunk) for first in range(0, count, chunk)):
            placed = (
                rows[part, None] @ patches[part] @ columns[part, None].mT
            )  # (chunk, C, h, w)
            theta[part] = (
                torch.nn.functional.normalize(placed.flatten(1), dim=1) / length
            )
        theta_y = None
        if n_conditions:
            normal = seed.child("y").normal(count, n_conditions, device=device)
            theta_y = (torch.nn.functional.normalize(normal, dim=1) / length).to(dtype)
        return Frame(theta, theta_y, parseval=count / (c * h * w))


def _columns_around(matrix: Tensor, centre: Tensor, s: int) -> Tensor:
    """For each of n centres, the s columns of a matrix (h, h) around it: (n, h, s); 0 beyond the ends."""
    beyond = torch.nn.functional.pad(matrix, (s, s))
    first = centre - s // 2 + s
    index = first[:, None] + torch.arange(s, device=matrix.device)
    return beyond[:, index].permute(1, 0, 2)
