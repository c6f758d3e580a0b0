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

    shape: tuple[int, int, int]  # channels, height and width of the pictures
    size: tuple[int, int]  # height and width of a tile
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
    def values_per_tile(self) -> int:
        """k, the number of values of a tile and of its directions."""
        return self.shape[0] * self.size[0] * self.size[1]

    @property
    def n_directions(self) -> int:
        """The number of directions of all tiles."""
        return self.grid[0] * self.grid[1] * self.values_per_tile

    @cached_property
    def scatter_index(self) -> Tensor:
        """Where each value (d,) of a picture is among the values of all tiles."""
        channels, height, width = self.shape
        tile_height, tile_width = self.size
        top, left = self.offset
        row = torch.arange(top, top + height)[:, None]
        column = torch.arange(left, left + width)
        tile = row // tile_height * self.grid[1] + column // tile_width
        in_tile = row % tile_height * tile_width + column % tile_width
        channel = torch.arange(channels)[:, None, None] * (tile_height * tile_width)
        return (tile * self.values_per_tile + channel + in_tile).view(-1)

    @cached_property
    def beyond_indices(self) -> Tensor:
        """The indices of the values of all tiles that lie beyond the picture."""
        is_beyond = torch.ones(self.n_directions, dtype=torch.bool)
        is_beyond[self.scatter_index] = False
        return is_beyond.nonzero()[:, 0]
