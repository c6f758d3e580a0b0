"""How pictures are cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """(C, h, w) pictures cut at `offset` into tiles of `size`; tiles are zero beyond the border."""

    shape: tuple[int, int, int]
    size: tuple[int, int]
    offset: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        _, h, w = self.shape
        s, t = self.size
        top, left = self.offset
        return -(-(h + top) // s), -(-(w + left) // t)

    @property
    def side(self) -> int:
        """C·S², the number of values of a tile and of its directions."""
        return self.shape[0] * self.size[0] * self.size[1]

    @property
    def n_directions(self) -> int:
        """The number of directions of all tiles."""
        return self.grid[0] * self.grid[1] * self.side

    @cached_property
    def place(self) -> Tensor:
        """The index of each pixel of the picture among the values of all tiles: (C·h·w,)."""
        c, h, w = self.shape
        s, t = self.size
        top, left = self.offset
        row = torch.arange(top, top + h)[:, None]
        column = torch.arange(left, left + w)
        tile = row // s * self.grid[1] + column // t
        inside = row % s * t + column % t
        channel = torch.arange(c)[:, None, None] * (s * t)
        return (tile * self.side + channel + inside).view(-1)
