"""Local frames for pictures: directions that see one small patch. Same interface as `frames`.

`Tiles` cuts the (h, w) picture into S×S tiles at a random offset and turns all tiles by one random
rotation. The tiles partition the pixels, so the frame is Parseval with c = 1. Tiles that hang over the
border are filled up with zeros: a rotation restricted to the real pixels still has orthonormal columns.
`RandomPatches` is the paper's literal choice, kept as the reference and for the ablation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.frames import Frame, condition_directions, independent, rotation, step_uniform
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import GridTable
from sliceflow.kernels.geometry import Geometry
from sliceflow.pictures.cosines import cosine_rotation

if TYPE_CHECKING:
    from sliceflow.engine.classes import Runs
    from sliceflow.engine.conditions import Offset
    from sliceflow.engine.transports import Table

__all__ = ["RandomPatches", "TileFrame", "Tiles"]


@dataclass(frozen=True)
class TileFrame:
    """One step's tiles: pictures cut as `geometry` says, all tiles turned by `theta` (C·S², C·S²)."""

    theta: Tensor
    theta_y: Tensor | None  # (directions, l)
    geometry: Geometry
    parseval: float = 1.0

    @property
    def n_directions(self) -> int:
        return self.geometry.n_directions

    def project(self, x: Tensor, columns: Tensor | None = None, offset: Offset | None = None) -> Tensor:
        """z = Θx + the condition's offset: (C·h·w, n) -> (tiles·C·S², n)."""
        fused = offset is not None and offset.by_class
        shift = (offset.theta, offset.codes) if offset is not None and fused else (None, None)
        z: Tensor = kernels.for_tensor(x).project_tiles(x, self.theta, self.geometry, columns, *shift)
        if offset is None or fused:
            return z
        return (offset if columns is None else offset.of(columns)).added(z)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz: (tiles·C·S², n) -> (C·h·w, n)."""
        dx: Tensor = kernels.for_tensor(dz).lift_tiles(dz, self.theta, self.geometry)
        return dx

    def move(
        self, x: Tensor, table: Table, offset: Offset | None, size: float, runs: Runs | None = None
    ) -> None:
        """x += s·Θᵀ(T(z) − z) in place; on a GPU nothing but x is written."""
        if isinstance(table, GridTable) and (offset is None or offset.by_class):
            shift = (None, None) if offset is None else (offset.theta, offset.codes)
            step = (self.theta, self.geometry, table.lo, table.hi, table.values, size, *shift)
            starts = None if runs is None else runs.starts
            kernels.for_tensor(x).move_tiles(x, *step, starts)
        else:
            x.add_(self.lift(table.displace(self.project(x, None, offset))), alpha=size)


@dataclass(frozen=True)
class Tiles:
    """S×S tiles at a random offset, one shared random rotation: the default for pictures.

    Parameters
    ----------
    channels, height, width : shape of the pictures (or of a pyramid level's coefficients)
    patch : S; tiles are cut down to the picture where S is larger
    cosines : turn a few of a tile's cosines at a time, for photographs; else all of its pixels
    """

    channels: int
    height: int
    width: int
    patch: int
    cosines: bool = False

    @property
    def most_directions(self) -> int:
        """Of the frames that can be drawn, the most directions."""
        s, t = min(self.patch, self.height), min(self.patch, self.width)
        offset = (s - 1 if s < self.height else 0, t - 1 if t < self.width else 0)
        return Geometry((self.channels, self.height, self.width), (s, t), offset).n_directions

    def geometry(self, seed: Seed, step: int) -> Geometry:
        """How `step` cuts the pictures."""
        s, t = min(self.patch, self.height), min(self.patch, self.width)
        # A tile as large as the picture has nowhere to go: offset 0 along that axis.
        down, right = step_uniform(seed.child("offset"), step, 2)
        offset = (int(down * s) if s < self.height else 0, int(right * t) if t < self.width else 0)
        return Geometry((self.channels, self.height, self.width), (s, t), offset)

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> TileFrame:
        geometry = self.geometry(seed, step)
        side = kernels.for_device(device).lanes(geometry.side)
        if self.cosines:
            tile = (self.channels, *geometry.size)
            theta = cosine_rotation(seed, step, tile, device, dtype, side)
        else:
            theta = rotation(seed, step, geometry.side, device, dtype, side)
        theta_y = condition_directions(
            seed.child(step), geometry.n_directions, n_conditions, device, dtype
        )
        return TileFrame(theta, theta_y, geometry)


@dataclass(frozen=True)
class RandomPatches:
    """The paper's locally-connected directions: an S×S patch from the sphere at a random centre.

    What hangs over the border is cut off and the rest normalised. With a condition (θ_x, θ_y) are
    normalised together. ΘᵀΘ = c·I holds only on average, and less so near the borders.
    """

    channels: int
    height: int
    width: int
    patch: int
    n_directions: int = 1000

    def draw(
        self,
        seed: Seed,
        step: int,
        d: int,
        n_conditions: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> Frame:
        c, h, w, s = self.channels, self.height, self.width, self.patch
        seed, count = seed.child(step), self.n_directions
        patches = seed.child("x").normal(count, c * s * s).view(count, c, s, s)
        centre = seed.child("centre").uniform(count, 2) * torch.tensor([h, w])
        theta = torch.zeros(count, c, h + 2 * s, w + 2 * s, dtype=torch.float64)
        for i, (row, column) in enumerate(centre.long().tolist()):
            top, left = row - s // 2 + s, column - s // 2 + s
            theta[i, :, top : top + s, left : left + s] = patches[i]
        theta = theta[:, :, s : s + h, s : s + w].reshape(count, -1)
        theta = torch.nn.functional.normalize(theta, dim=1)
        return independent(theta, seed, n_conditions, device, dtype)
