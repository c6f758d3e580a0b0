"""Tiles of pictures on NVIDIA GPUs, in Triton.

They are projected, displaced and lifted without writing intermediate results. A program
owns one tile and a block of pictures, and its loads gather the pixels from x (d, n).
Products take operands in the type of the rotation (16 bits: tensor cores) and add in
float32; x stays float32. Rotations are padded with zeros to `padded_size`, so that no
load of them needs a mask. With float32 rotations moves are not fused. CUDA allows
65,535 programs along the second and third axis of a grid, which count the tiles.

Tiles too large for on-chip memory are cut out into memory, rotated by cuBLAS and pasted
back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.kernels import reference
from sliceflow.kernels.geometry import TileGeometry
from sliceflow.kernels.reference.tiles import move_tiles_with_kernels
from sliceflow.kernels.triton.values import (
    Packed,
    add_class_offsets,
    bin_at,
    block_of,
    blocks_of,
    class_arguments,
    displace_grid,
    displace_in_place,
    pack,
    unpack_displacement,
)

_MAX_LANES_ON_CHIP = 256  # of a tile for which a whole step stays on chip
_TENSOR_CORE_LANES = 16  # the tensor cores multiply blocks of this size
# Directions at a time, pictures at a time and warps of a move, by the lanes of a tile.
_MOVE_BLOCKS = {
    16: (16, 128, 4),
    32: (32, 64, 4),
    64: (64, 64, 4),
    128: (64, 64, 4),
    256: (64, 32, 4),
}
_PICTURES_PER_CUT = 4096  # a program cuts one pixel of a large tile out of so many
_CACHE_BYTES = 1 << 24  # of tensors that say where the pixels of a tile are
# Arguments that change from step to step: the kernels are compiled for all of them.
_GEOMETRY = ["height", "width", "s", "t", "top", "left", "k"]


def padded_size(k: int) -> int:
    """Rows and columns of a rotation of k directions, padded for the tensor cores."""
    if k <= _MAX_LANES_ON_CHIP:
        return max(_TENSOR_CORE_LANES, int(triton.next_power_of_2(k)))
    return math.ceil(k / _TENSOR_CORE_LANES) * _TENSOR_CORE_LANES


@cached(_CACHE_BYTES)
def _pixels_of(
    shape: tuple[int, int, int], size: tuple[int, int], device: torch.device
) -> Tensor:
    """Where the pixels of a tile are, int32 (lanes, 2).

    The first number is how many rows of x a pixel is after the tile's first, the second
    its row in the tile, in the upper 16 bits, and its column. Lanes beyond the pixels
    have a row that is outside every picture.
    """
    channels, height, width = shape
    s, t = size
    pixel = torch.arange(padded_size(channels * s * t))
    channel = pixel // (s * t)
    row = pixel % (s * t) // t
    column = pixel % t
    exists = channel < channels
    row = torch.where(exists, row, 0x7FFF)
    distance = torch.where(exists, (channel * height + row) * width + column, 0)
    return torch.stack((distance, (row << 16) | column), dim=1).int().to(device)


@triton.jit
def _place(pixels, pixel, down, across, height, width, s, t, top, left):
    """The row of x that has each pixel of a tile, and whether it is in the picture."""
    distance = tl.load(pixels + 2 * pixel)
    in_tile = tl.load(pixels + 2 * pixel + 1)
    row = down * s - top + (in_tile >> 16)
    column = across * t - left + (in_tile & 0xFFFF)
    valid = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    first = (down * s - top) * width + across * t - left
    return (distance + first).to(tl.int64), valid


@triton.jit
def _displaced(
    z, first, valid, rows, words, n_bins, BM: tl.constexpr, BN: tl.constexpr
):
    """T(z) − z for directions first … first + BM (valid ones) and BN pictures."""
    row = rows + 4 * (first + tl.arange(0, BM))[:, None]
    start = tl.load(row, mask=valid, other=0.0)
    per_unit = tl.load(row + 1, mask=valid, other=0.0)
    position = (z - start) * per_unit
    position = tl.maximum(position, tl.load(row + 2, mask=valid, other=0.0))
    position = tl.minimum(position, tl.load(row + 3, mask=valid, other=0.0))
    # Flat, so that the threads of a warp look into the same row: their reads meet in
    # the cache.
    position = tl.reshape(position, [BM * BN])
    b = bin_at(position, n_bins)
    direction = first + tl.arange(0, BM * BN) // BN
    word = tl.load(words + direction * n_bins + b)
    dz = unpack_displacement(word, position - b.to(tl.float32))
    return tl.where(valid, tl.reshape(dz, [BM, BN]), 0.0)


@triton.jit(do_not_specialize=_GEOMETRY)
def _move_kernel(
    x, theta, rows, words, offsets, class_indices, blocks, n, stride, step_size, n_bins,
    n_classes, pixels, height, width, s, t, top, left, k,
    LABELS: tl.constexpr, PER_CLASS: tl.constexpr,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """x += step_size·Θᵀ(T(Θx + ξθ_y) − Θx − ξθ_y) for one tile and BN pictures."""
    tile = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    if PER_CLASS:
        class_, begin, end = block_of(blocks, tl.program_id(0))
        n_directions = tl.num_programs(1) * tl.num_programs(2) * k
        skipped = class_.to(tl.int64) * n_directions  # maps of the classes before
        rows += 4 * skipped
        words += skipped * n_bins
    else:
        begin = tl.program_id(0) * BN
        end = n
    point = begin + tl.arange(0, BN)
    pixel = tl.arange(0, K)
    row, inside = _place(
        pixels,
        pixel,
        tl.program_id(2),
        tl.program_id(1),
        height,
        width,
        s,
        t,
        top,
        left,
    )
    here = x + row[:, None] * stride + point[None, :]
    use = inside[:, None] & (point < end)[None, :]
    cut = tl.load(here, mask=use, other=0.0).to(theta.dtype.element_ty)
    if LABELS:
        code = tl.load(class_indices + point, mask=point < end, other=0)
    dx = tl.zeros([K, BN], tl.float32)
    for first in range(0, k, BM):
        i = first + tl.arange(0, BM)
        rotation = tl.load(theta + i[:, None] * K + pixel[None, :])
        z = tl.dot(rotation, cut)
        known = (i < k)[:, None]
        if LABELS:
            direction = (tile * k + i)[:, None]
            z += tl.load(
                offsets + direction * n_classes + code[None, :], mask=known, other=0.0
            )
        dz = _displaced(z, tile * k + first, known, rows, words, n_bins, BM, BN)
        dx = tl.dot(tl.trans(rotation), dz.to(rotation.dtype), dx)
    tl.store(here, tl.load(here, mask=use, other=0.0) + step_size * dx, mask=use)


@triton.jit(do_not_specialize=_GEOMETRY)
def _project_kernel(
    x, theta, indices, out, offsets, class_indices, n, stride, n_classes,
    pixels, height, width, s, t, top, left, k, K,
    CHOSEN: tl.constexpr, LABELS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """z = Θx + ξθ_y for BM directions of one tile and BN pictures."""
    blocks = tl.cdiv(n, BN)
    tile = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    point = tl.program_id(0) % blocks * BN + tl.arange(0, BN)
    picture = point
    if CHOSEN:
        picture = tl.load(indices + point, mask=point < n, other=0)
    i = tl.program_id(0) // blocks * BM + tl.arange(0, BM)
    z = tl.zeros([BM, BN], tl.float32)
    for begin in range(0, k, BK):
        pixel = begin + tl.arange(0, BK)
        row, inside = _place(
            pixels,
            pixel,
            tl.program_id(2),
            tl.program_id(1),
            height,
            width,
            s,
            t,
            top,
            left,
        )
        rotation = tl.load(theta + i[:, None] * K + pixel[None, :])
        use = inside[:, None] & (point < n)[None, :]
        cut = tl.load(x + row[:, None] * stride + picture[None, :], mask=use, other=0.0)
        z = tl.dot(rotation, cut.to(rotation.dtype), z, input_precision=PRECISION)
    known = (i < k)[:, None]
    direction = (tile * k + i)[:, None]
    if LABELS:
        code = tl.load(class_indices + picture, mask=point < n, other=0)
        z += tl.load(
            offsets + direction * n_classes + code[None, :], mask=known, other=0.0
        )
    tl.store(
        out + direction.to(tl.int64) * n + point[None, :],
        z,
        mask=known & (point < n)[None, :],
    )


def _geometry_arguments(
    geometry: TileGeometry, device: torch.device
) -> tuple[Tensor | int, ...]:
    """What the kernels need to know of a geometry, in the order of their arguments."""
    pixels = _pixels_of(geometry.shape, geometry.size, device)
    return (
        pixels,
        *geometry.shape[1:],
        *geometry.size,
        *geometry.offset,
        geometry.values_per_tile,
    )


def project_tiles(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
) -> Tensor:
    if x.dtype != torch.float32 or x.stride(1) != 1:
        return reference.project_tiles(
            x, theta, geometry, indices, offsets, class_indices
        )
    n = x.shape[1] if indices is None else len(indices)
    side = len(theta)
    theta = theta.contiguous()
    if side > _MAX_LANES_ON_CHIP:
        cut = _cut(x, theta, geometry, indices)  # in the type of theta
        z = _rotate(theta, cut, geometry.values_per_tile, x.dtype)
        if offsets is None or class_indices is None:
            return z
        if indices is not None:
            class_indices = class_indices[indices]
        return add_class_offsets(z, offsets, class_indices)
    z = torch.empty((geometry.n_directions, n), dtype=torch.float32, device=x.device)
    bm = min(128, side)
    bn = 128
    bk = min(64, side)
    # It has no effect on operands of 16 bits.
    precision = "ieee" if theta.dtype == torch.float32 else "tf32"
    offset, code, n_classes = class_arguments(offsets, class_indices, x)
    down, across = geometry.grid
    grid: Any = (triton.cdiv(n, bn) * triton.cdiv(side, bm), across, down)
    _project_kernel[grid](
        x,
        theta,
        x if indices is None else indices,
        z,
        offset,
        code,
        n,
        x.stride(0),
        n_classes,
        *_geometry_arguments(geometry, x.device),
        side,
        CHOSEN=indices is not None,
        LABELS=offsets is not None,
        PRECISION=precision,
        BM=bm,
        BN=bn,
        BK=bk,
        num_warps=8 if bm == 128 else 4,
    )
    return z


def move_tiles(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    step_size: float,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
    starts: Sequence[int] | None = None,
) -> None:
    arguments = (
        x,
        theta,
        geometry,
        lo,
        hi,
        values,
        step_size,
        offsets,
        class_indices,
        starts,
    )
    if x.dtype != torch.float32 or x.stride(1) != 1 or values.dtype != torch.float32:
        reference.move_tiles(*arguments)
        return
    if theta.dtype == torch.float32:  # nothing is rounded to 16 bits, not even maps
        move_tiles_with_kernels(project_tiles, displace_grid, *arguments)
        return
    n = x.shape[1]
    side = len(theta)
    theta = theta.contiguous()
    maps = pack(lo, hi, values)
    if side > _MAX_LANES_ON_CHIP:
        _move_large(x, theta, geometry, maps, step_size, offsets, class_indices, starts)
        return
    rows, words = maps
    bm, bn, n_warps = _MOVE_BLOCKS[side]
    if starts is None:
        blocks = x  # not read
        n_blocks = triton.cdiv(n, bn)
    else:
        blocks = blocks_of(tuple(starts), bn, x.device)
        n_blocks = len(blocks)
    offset, code, n_classes = class_arguments(offsets, class_indices, x)
    down, across = geometry.grid
    grid: Any = (n_blocks, across, down)
    _move_kernel[grid](
        x,
        theta,
        rows,
        words,
        offset,
        code,
        blocks,
        n,
        x.stride(0),
        step_size,
        words.shape[1],
        n_classes,
        *_geometry_arguments(geometry, x.device),
        LABELS=offsets is not None,
        PER_CLASS=starts is not None,
        K=side,
        BM=bm,
        BN=bn,
        num_warps=n_warps,
        num_stages=1,
    )


@triton.jit(do_not_specialize=_GEOMETRY[:-1])
def _cut_kernel(
    x, indices, cut, n, stride, across, lanes, k, height, width, s, t, top, left,
    CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One pixel of one tile, in all pictures; zero outside the picture or the tile."""
    place = tl.program_id(0)
    tile = place // lanes
    lane = place % lanes
    row = tile // across * s - top + lane % (s * t) // t
    column = tile % across * t - left + lane % t
    inside = (lane < k) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    pixel = ((lane // (s * t)) * height + row) * width + column
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    picture = i
    if CHOSEN:
        picture = tl.load(indices + i, mask=i < n, other=0)
    use = i < tl.where(inside, n, 0)
    value = tl.load(x + pixel.to(tl.int64) * stride + picture, mask=use, other=0.0)
    tl.store(
        cut + place.to(tl.int64) * n + i, value.to(cut.dtype.element_ty), mask=i < n
    )


@triton.jit(do_not_specialize=_GEOMETRY[:-1])
def _paste_kernel(
    x,
    cut,
    n,
    stride,
    step_size,
    across,
    lanes,
    height,
    width,
    s,
    t,
    top,
    left,
    BLOCK: tl.constexpr,
):
    """x += step_size·cut for one pixel of the picture, in all pictures."""
    pixel = tl.program_id(0)
    row = pixel % (height * width) // width + top
    column = pixel % width + left
    tile = row // s * across + column // t
    lane = pixel // (height * width) * s * t + row % s * t + column % t
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = x + pixel.to(tl.int64) * stride + i
    change = tl.load(
        cut + (tile * lanes + lane).to(tl.int64) * n + i, mask=i < n, other=0.0
    )
    tl.store(
        here,
        tl.load(here, mask=i < n, other=0.0) + step_size * change.to(tl.float32),
        mask=i < n,
    )


def _cut(
    x: Tensor, theta: Tensor, geometry: TileGeometry, indices: Tensor | None
) -> Tensor:
    """The tiles, (tiles, lanes, n), in the type of theta."""
    down, across = geometry.grid
    lanes = len(theta)
    n = x.shape[1] if indices is None else len(indices)
    cut = torch.empty((down * across, lanes, n), dtype=theta.dtype, device=x.device)
    grid: Any = (down * across * lanes, triton.cdiv(n, _PICTURES_PER_CUT))
    _cut_kernel[grid](
        x,
        x if indices is None else indices,
        cut,
        n,
        x.stride(0),
        across,
        lanes,
        geometry.values_per_tile,
        *geometry.shape[1:],
        *geometry.size,
        *geometry.offset,
        CHOSEN=indices is not None,
        BLOCK=_PICTURES_PER_CUT,
    )
    return cut


def _rotate(theta: Tensor, cut: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """The tiles (tiles, lanes, n) rotated by theta, as (tiles·k, n) of `dtype`."""
    rotations = theta[:k].expand(len(cut), k, -1)
    if cut.is_cuda and dtype != theta.dtype:
        # Products are added up in float32, and need not be rounded in between.
        z = torch.bmm(rotations, cut, out_dtype=dtype)
    else:
        z = torch.bmm(rotations, cut).to(dtype)
    return z.view(-1, cut.shape[2])


def _move_large(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    maps: Packed,
    step_size: float,
    offsets: Tensor | None,
    class_indices: Tensor | None,
    starts: Sequence[int] | None,
) -> None:
    """`move_tiles` for large tiles; z is rounded to the type of theta."""
    d, n = x.shape
    k = geometry.values_per_tile
    cut = _cut(x, theta, geometry, None)
    z = _rotate(theta, cut, k, theta.dtype)
    displace_in_place(z, maps, offsets, class_indices, starts)
    back = theta[:k].T.expand(len(cut), -1, k)
    torch.bmm(back, z.view(len(cut), k, n), out=cut)
    grid: Any = (d, triton.cdiv(n, _PICTURES_PER_CUT))
    _paste_kernel[grid](
        x,
        cut,
        n,
        x.stride(0),
        step_size,
        geometry.grid[1],
        len(theta),
        *geometry.shape[1:],
        *geometry.size,
        *geometry.offset,
        BLOCK=_PICTURES_PER_CUT,
    )
