"""Displacements by maps on NVIDIA GPUs, in Triton.

For moves, maps are packed: 32 bits per bin hold the displacement at its left edge and
how much it grows up to the right edge, both in half precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.kernels import reference
from sliceflow.kernels.classes import displace_by_class

# Packed maps: float32 (h, 4), the left end of the bins, bins per unit, and the least
# and largest position in bins; int32 (at least h, B), a word for each bin.
Packed = tuple[Tensor, Tensor]

_CACHE_BYTES = 1 << 24  # of tensors that say how points are divided
_DISPLACED_POINTS = 2048  # the points that one program displaces
_POINTS = 4096  # the points on which one program of a simpler kernel works
# Rows of packed maps that may be read, but not used, after the last one: tiles are
# moved by blocks of up to this many directions.
_ROWS_READ_BEYOND = 128


@cached(_CACHE_BYTES)
def blocks_of(starts: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """Blocks of at most `width` points, each within one class.

    They are int32 (blocks, 3): the class, the first point and the end of each.
    """
    blocks = []
    for c, (first, end) in enumerate(pairwise(starts)):
        for begin in range(first, end, width):
            blocks.append((c, begin, min(begin + width, end)))
    return torch.tensor(blocks, dtype=torch.int32, device=device).view(-1, 3)


@triton.jit
def block_of(blocks, i):
    """The class, the first point and the end of the block i that `blocks_of` made."""
    class_ = tl.load(blocks + 3 * i)
    first = tl.load(blocks + 3 * i + 1)
    end = tl.load(blocks + 3 * i + 2)
    return class_, first, end


@triton.jit
def bin_at(position, n_bins):
    """The bin at a position in bins, within 0 and n_bins − 1; that of NaN is 0.

    tl.maximum may return NaN, whose integer is undefined, but no comparison with NaN
    holds.
    """
    position = tl.where(position > 0.0, position, 0.0)
    return tl.minimum(position, n_bins - 1).to(tl.int32)


@triton.jit
def bins_per_unit(lo, hi, n_bins):
    """Bins per unit; 0 if the range is empty, too small to divide by, or not finite."""
    width = hi - lo
    per_unit = n_bins / tl.where(width > 0, width, 1.0)
    return tl.where((width > 0) & (per_unit < 3.0e38), per_unit, 0.0)


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    lo, hi = torch.aminmax(z, dim=1)
    return lo, hi


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _pack_kernel(lo, hi, values, rows, words, n_bins, BINS: tl.constexpr):
    """Pack the map of one direction; see `Packed`."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(lo + row).to(tl.float32)
    end = tl.load(hi + row).to(tl.float32)
    values += row * (n_bins + 1)
    width = (end - start) / n_bins
    per_unit = 1.0 / tl.where(width > 0, width, 1.0)
    per_unit = tl.where((width > 0) & (per_unit < 3.0e38), per_unit, 0.0)
    # Beyond its ends a map has a constant displacement, for which positions are
    # clamped, or leads to the one point that all of it leads to.
    rigid = tl.load(values + n_bins) > tl.load(values)
    tl.store(rows + 4 * row, start)
    tl.store(rows + 4 * row + 1, per_unit)
    tl.store(rows + 4 * row + 2, tl.where(rigid, 0.0, -3.0e38))
    tl.store(rows + 4 * row + 3, tl.where(rigid, n_bins, 3.0e38))
    b = tl.arange(0, BINS)
    valid = b < n_bins
    left = tl.load(values + b, mask=valid, other=0.0) - (start + width * b)
    right = tl.load(values + b + 1, mask=valid, other=0.0) - (start + width * (b + 1))
    low = left.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    high = (right - left).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16
    tl.store(words + row * n_bins + b, low | high, mask=valid)


@triton.jit
def unpack_displacement(word, beyond):
    """The displacement at `beyond` the left edge of a bin, in bins, by its `word`."""
    start = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    growth = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return start + beyond * growth


@triton.jit
def _displace_kernel(
    z, rows, words, offsets, class_indices, blocks, n, n_bins, n_classes,
    LABELS: tl.constexpr, PER_CLASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of points along one direction, by `displace_in_place`."""
    row = tl.program_id(0).to(tl.int64)
    here = z + row * n
    if PER_CLASS:
        class_, first, end = block_of(blocks, tl.program_id(1))
        row += class_.to(tl.int64) * tl.num_programs(0)  # of the maps
    else:
        first = tl.program_id(1) * BLOCK
        end = n
    point = first + tl.arange(0, BLOCK)
    valid = point < end
    here += point
    v = tl.load(here, mask=valid, other=0.0).to(tl.float32)
    if LABELS:
        code = tl.load(class_indices + point, mask=valid, other=0)
        v += tl.load(offsets + row * n_classes + code, mask=valid, other=0.0)
    position = (v - tl.load(rows + 4 * row)) * tl.load(rows + 4 * row + 1)
    position = tl.minimum(
        tl.maximum(position, tl.load(rows + 4 * row + 2)), tl.load(rows + 4 * row + 3)
    )
    b = bin_at(position, n_bins)
    word = tl.load(words + row * n_bins + b)
    dz = unpack_displacement(word, position - b.to(tl.float32))
    tl.store(here, dz.to(z.dtype.element_ty), mask=valid)


def pack(lo: Tensor, hi: Tensor, values: Tensor) -> Packed:
    """The maps (lo, hi, values) packed for the kernels that move."""
    h = values.shape[0]
    n_bins = values.shape[1] - 1
    rows = torch.empty((h, 4), dtype=torch.float32, device=values.device)
    words = torch.empty(
        (h + _ROWS_READ_BEYOND, n_bins), dtype=torch.int32, device=values.device
    )
    grid: Any = (h,)
    _pack_kernel[grid](
        lo, hi, values, rows, words, n_bins, BINS=1 << (n_bins - 1).bit_length()
    )
    return rows, words


def displace_in_place(
    z: Tensor,
    maps: Packed,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
    starts: Sequence[int] | None = None,
) -> None:
    """z (h, n) becomes T(z + o) − z − o, where o is the offset of a point's class.

    With `starts`, each class has its own maps.
    """
    h, n = z.shape
    rows, words = maps
    if starts is None:
        blocks = z  # not read
        n_blocks = triton.cdiv(n, _DISPLACED_POINTS)
    else:
        blocks = blocks_of(tuple(starts), _DISPLACED_POINTS, z.device)
        n_blocks = len(blocks)
    offset, code, n_classes = class_arguments(offsets, class_indices, z)
    grid: Any = (h, n_blocks)
    _displace_kernel[grid](
        z,
        rows,
        words,
        offset,
        code,
        blocks,
        n,
        words.shape[1],
        n_classes,
        LABELS=offsets is not None,
        PER_CLASS=starts is not None,
        BLOCK=_DISPLACED_POINTS,
    )


def class_arguments(
    offsets: Tensor | None, class_indices: Tensor | None, unread: Tensor
) -> tuple[Tensor, Tensor, int]:
    """The offsets and indices of classes, and their number, as arguments of a kernel.

    Without classes they are not read, and any tensor will do: `unread`.
    """
    if offsets is None or class_indices is None:
        return unread, unread, 1
    return offsets, class_indices, offsets.shape[1]


@triton.jit
def _add_kernel(
    z, offsets, class_indices, out, n, stride, n_classes, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = point < n
    code = tl.load(class_indices + point, mask=valid, other=0)
    v = tl.load(z + row * stride + point, mask=valid, other=0.0)
    offset = tl.load(offsets + row * n_classes + code, mask=valid, other=0.0)
    tl.store(out + row * n + point, v + offset, mask=valid)


def add_class_offsets(z: Tensor, offsets: Tensor, class_indices: Tensor) -> Tensor:
    h, n = z.shape
    if z.stride(1) != 1:
        z = z.contiguous()
    dtype = torch.promote_types(z.dtype, offsets.dtype)
    out = torch.empty((h, n), dtype=dtype, device=z.device)
    grid: Any = (h, triton.cdiv(n, _POINTS))
    _add_kernel[grid](
        z,
        offsets.contiguous(),
        class_indices,
        out,
        n,
        z.stride(0),
        offsets.shape[1],
        BLOCK=_POINTS,
    )
    return out


@triton.jit
def _displace_grid_kernel(
    z, lo, hi, values, out, n, stride, n_bins, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = point < n
    start = tl.load(lo + row).to(tl.float32)
    end = tl.load(hi + row).to(tl.float32)
    row_values = values + row * (n_bins + 1)
    low_end = tl.load(row_values)
    high_end = tl.load(row_values + n_bins)
    slope = tl.where((end > start) & (high_end > low_end), 1.0, 0.0)
    v = tl.load(z + row * stride + point, mask=valid, other=0.0)
    position = (v - start) * bins_per_unit(start, end, n_bins)
    b = bin_at(position, n_bins)
    left = tl.load(row_values + b, mask=valid, other=0.0)
    right = tl.load(row_values + b + 1, mask=valid, other=0.0)
    image = left + (position - b.to(tl.float32)) * (right - left)
    image = tl.where(position <= 0, low_end + slope * (v - start), image)
    image = tl.where(position >= n_bins, high_end + slope * (v - end), image)
    tl.store(out + row * n + point, image - v, mask=valid)


def displace_grid(
    z: Tensor,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    starts: Sequence[int] | None = None,
) -> Tensor:
    def displace(z_class: Tensor, rows: slice) -> Tensor:
        return _displace_by_one_map(z_class, lo[rows], hi[rows], values[rows])

    return displace_by_class(z, starts, displace)


def _displace_by_one_map(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    """`displace_grid` without classes."""
    if z.dtype != torch.float32 or values.dtype != torch.float32:
        return reference.displace_grid(z, lo, hi, values)
    h, n = z.shape
    if z.stride(1) != 1:
        z = z.contiguous()
    out = torch.empty((h, n), dtype=z.dtype, device=z.device)
    grid: Any = (h, triton.cdiv(n, _POINTS))
    _displace_grid_kernel[grid](
        z,
        lo,
        hi,
        values.contiguous(),
        out,
        n,
        z.stride(0),
        values.shape[1] - 1,
        BLOCK=_POINTS,
    )
    return out
