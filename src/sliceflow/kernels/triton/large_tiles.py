"""Tiles too large for on-chip memory: cut out into memory, rotated by cuBLAS, pasted back.

Three passes over memory around two products, which at this size are most of the work. Intermediate
results have the type of the rotation, half the size of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.kernels.geometry import Geometry
from sliceflow.kernels.triton.values import Packed, add_class_offsets, displace_in_place

__all__ = ["move", "project"]

_BLOCK = 4096
_GEOMETRY = ["height", "width", "s", "t", "top", "left"]


@triton.jit(do_not_specialize=_GEOMETRY)
def _cut_kernel(
    x, columns, cut, n, stride, across, lanes, k, height, width, s, t, top, left,
    CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One pixel of one tile, in all columns; zero outside the picture and beyond the tile."""
    place = tl.program_id(0)
    tile, lane = place // lanes, place % lanes
    row = tile // across * s - top + lane % (s * t) // t
    column = tile % across * t - left + lane % t
    inside = (lane < k) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    pixel = ((lane // (s * t)) * height + row) * width + column
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(columns + i, mask=i < n, other=0) if CHOSEN else i
    there = i < tl.where(inside, n, 0)
    value = tl.load(x + pixel.to(tl.int64) * stride + at, mask=there, other=0.0)
    tl.store(cut + place.to(tl.int64) * n + i, value.to(cut.dtype.element_ty), mask=i < n)


@triton.jit(do_not_specialize=_GEOMETRY)
def _paste_kernel(
    x, cut, n, stride, size, across, lanes, height, width, s, t, top, left, BLOCK: tl.constexpr
):
    """x += size·cut for one pixel of the picture, in all columns."""
    pixel = tl.program_id(0)
    row, column = pixel % (height * width) // width + top, pixel % width + left
    tile = row // s * across + column // t
    lane = pixel // (height * width) * s * t + row % s * t + column % t
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = x + pixel.to(tl.int64) * stride + i
    change = tl.load(cut + (tile * lanes + lane).to(tl.int64) * n + i, mask=i < n, other=0.0)
    tl.store(here, tl.load(here, mask=i < n, other=0.0) + size * change.to(tl.float32), mask=i < n)


def _cut(x: Tensor, theta: Tensor, geometry: Geometry, columns: Tensor | None) -> Tensor:
    """The tiles, (tiles, lanes, n), in the type of theta."""
    (down, across), lanes = geometry.grid, len(theta)
    n = x.shape[1] if columns is None else len(columns)
    cut = torch.empty((down * across, lanes, n), dtype=theta.dtype, device=x.device)
    grid: Any = (down * across * lanes, triton.cdiv(n, _BLOCK))
    _cut_kernel[grid](
        x, x if columns is None else columns, cut, n, x.stride(0), across, lanes, geometry.side,
        *geometry.shape[1:], *geometry.size, *geometry.offset,
        CHOSEN=columns is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    return cut


def _turned(theta: Tensor, cut: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Θ of every tile, (tiles·k, n)."""
    rotations = theta[:k].expand(len(cut), k, -1)
    if cut.is_cuda and dtype != theta.dtype:  # products are added in float32 and need no rounding
        z = torch.bmm(rotations, cut, out_dtype=dtype)
    else:
        z = torch.bmm(rotations, cut).to(dtype)
    return z.view(-1, cut.shape[2])


def project(
    x: Tensor,
    theta: Tensor,
    geometry: Geometry,
    columns: Tensor | None,
    offsets: Tensor | None,
    codes: Tensor | None,
) -> Tensor:
    """`reference.project_tiles`; the operands of the products are in the type of theta."""
    z = _turned(theta, _cut(x, theta, geometry, columns), geometry.side, x.dtype)
    if offsets is None or codes is None:
        return z
    return add_class_offsets(z, offsets, codes if columns is None else codes[columns])


def move(
    x: Tensor,
    theta: Tensor,
    geometry: Geometry,
    table: Packed,
    size: float,
    offsets: Tensor | None,
    codes: Tensor | None,
    starts: Sequence[int] | None,
) -> None:
    """`reference.move_tiles` with a packed table; z is rounded to the type of theta."""
    (d, n), k = x.shape, geometry.side
    cut = _cut(x, theta, geometry, None)
    z = _turned(theta, cut, k, theta.dtype)
    displace_in_place(z, table, offsets, codes, starts)
    back = theta[:k].T.expand(len(cut), -1, k)
    torch.bmm(back, z.view(len(cut), k, n), out=cut)
    grid: Any = (d, triton.cdiv(n, _BLOCK))
    _paste_kernel[grid](
        x, cut, n, x.stride(0), size, geometry.grid[1], len(theta),
        *geometry.shape[1:], *geometry.size, *geometry.offset, BLOCK=_BLOCK,
    )  # fmt: skip
