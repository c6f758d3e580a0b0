"""How pictures are cut into tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class TileGeometry:
    """Pictures cut into tiles of equal size; tiles are zero beyond the border."""

    shape: tuple[int, int, int]  # of the pictures: channels, height, width
    size: tuple[int, int]  # of a tile: height, width
    offset: tuple[int, int]  # rows and columns of the first tile beyond the border

    @property
    def grid(self) -> tuple[int, int]:
        """The number of tiles down and across."""
        _, height, width = self.shape
        tile_height, tile_width = self.size
        top, left = self.offset
        down = math.ceil((height + top) / tile_height)
        across = math.ceil((width + left) / tile_width)
        return down, across

    @property
    def side(self) -> int:
        """k, the number of values of a tile and of its directions."""
        return self.shape[0] * self.size[0] * self.size[1]

    @property
    def n_directions(self) -> int:
        """The number of directions of all tiles."""
        return self.grid[0] * self.grid[1] * self.side

    @cached_property
    def place(self) -> Tensor:
        """Where each value (d,) of a picture is among the values of all tiles."""
        channels, height, width = self.shape
        tile_height, tile_width = self.size
        top, left = self.offset
        row = torch.arange(top, top + height)[:, None]
        column = torch.arange(left, left + width)
        tile = row // tile_height * self.grid[1] + column // tile_width
        in_tile = row % tile_height * tile_width + column % tile_width
        channel = torch.arange(channels)[:, None, None] * (tile_height * tile_width)
        return (tile * self.side + channel + in_tile).view(-1)

    @cached_property
    def beyond(self) -> Tensor:
        """Which values of all tiles are of no picture, because they lie beyond it."""
        is_beyond = torch.ones(self.n_directions, dtype=torch.bool)
        is_beyond[self.place] = False
        return is_beyond.nonzero()[:, 0]
