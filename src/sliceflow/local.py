"""Local frames for pictures: directions that see one small patch. Same interface as `frames`.

`Tiles` cuts the (h, w) picture into S×S tiles at a random offset and turns all tiles by one random
rotation. The tiles partition the pixels, so the frame is Parseval with c = 1. Tiles that hang over the
border are filled up with zeros: a rotation restricted to the real pixels still has orthonormal columns.
`RandomPatches` is the paper's literal choice, kept as the reference and for the ablation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sliceflow.frames import Frame, condition_directions, independent, rotation, step_uniform
from sliceflow.rng import Seed

__all__ = ["RandomPatches", "TileFrame", "Tiles"]


@dataclass(frozen=True)
class TileFrame:
    """One step's tiles: (C, h, w) pictures cut at `offset` into S×S tiles, all turned by `theta`."""

    theta: Tensor  # (C·S², C·S²)
    theta_y: Tensor | None  # (directions, l)
    shape: tuple[int, int, int]
    size: tuple[int, int]  # height and width of a tile
    offset: tuple[int, int]
    parseval: float = 1.0

    @property
    def grid(self) -> tuple[int, int]:
        """How many tiles there are down and across."""
        (_, h, w), (s, t), (top, left) = self.shape, self.size, self.offset
        return -(-(h + top) // s), -(-(w + left) // t)

    @property
    def n_directions(self) -> int:
        rows, columns = self.grid
        return rows * columns * len(self.theta)

    @cached_property
    def _place(self) -> Tensor:
        """Where each pixel of the picture stands among the tiles' values: (C·h·w,)."""
        device = self.theta.device
        (c, h, w), (s, t), (top, left) = self.shape, self.size, self.offset
        row = torch.arange(top, top + h, device=device)[:, None]
        column = torch.arange(left, left + w, device=device)
        tile = row // s * self.grid[1] + column // t
        inside = row % s * t + column % t
        channel = torch.arange(c, device=device)[:, None, None] * (s * t)
        return (tile * len(self.theta) + channel + inside).view(-1)

    def project(self, x: Tensor) -> Tensor:
        """z = Θx: (C·h·w, n) -> (tiles·C·S², n)."""
        n = x.shape[1]
        tiles = x
        if self.grid != (1, 1):  # one tile is the picture itself
            tiles = x.new_zeros(self.n_directions, n)
            tiles.index_copy_(0, self._place, x)
        return torch.matmul(self.theta, tiles.view(-1, len(self.theta), n)).view(-1, n)

    def lift(self, dz: Tensor) -> Tensor:
        """dx = Θᵀdz: (tiles·C·S², n) -> (C·h·w, n)."""
        n = dz.shape[1]
        tiles = torch.matmul(self.theta.T, dz.view(-1, len(self.theta), n)).view(-1, n)
        return tiles if self.grid == (1, 1) else tiles.index_select(0, self._place)

    def to(self, device: torch.device, dtype: torch.dtype) -> TileFrame:
        theta_y = None if self.theta_y is None else self.theta_y.to(device=device, dtype=dtype)
        return replace(self, theta=self.theta.to(device=device, dtype=dtype), theta_y=theta_y)


@dataclass(frozen=True)
class Tiles:
    """S×S tiles at a random offset, one shared random rotation: the default for pictures.

    Parameters
    ----------
    channels, height, width : shape of the pictures (or of a pyramid level's coefficients)
    patch : S; tiles are cut down to the picture where S is larger
    """

    channels: int
    height: int
    width: int
    patch: int

    def draw(
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> TileFrame:
        shape = (self.channels, self.height, self.width)
        size = (min(self.patch, self.height), min(self.patch, self.width))
        # A tile as large as the picture has nowhere to go: offset 0 along that axis.
        top, left = (
            int(u * s) if s < full else 0
            for u, s, full in zip(
                step_uniform(seed.child("offset"), step, 2).tolist(), size, shape[1:], strict=True
            )
        )
        theta = rotation(seed, step, self.channels * size[0] * size[1], device)
        frame = TileFrame(theta, None, shape, size, (top, left))
        theta_y = condition_directions(seed.child(step), frame.n_directions, n_conditions)
        return replace(frame, theta_y=theta_y)


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
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
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
        return independent(torch.nn.functional.normalize(theta, dim=1), seed, n_conditions)
