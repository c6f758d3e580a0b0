"""Displacements by tables on NVIDIA GPUs, in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.kernels import reference

Packed = tuple[
    Tensor, Tensor
]  # where the bins lie (h, 4), and a word for each bin (≥ h, B)


@cached(1 << 24)
def blocks_of(starts: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """(blocks, 3) int32: run, first column and end of blocks of columns, each within one run."""
    blocks = [
        (run, at, min(at + width, end))
        for run, (first, end) in enumerate(pairwise(starts))
        for at in range(first, end, width)
    ]
    return torch.tensor(blocks, dtype=torch.int32, device=device).view(-1, 3)


@triton.jit
def block_of(blocks, i):
    return (
        tl.load(blocks + 3 * i),
        tl.load(blocks + 3 * i + 1),
        tl.load(blocks + 3 * i + 2),
    )


@triton.jit
def bins_per_unit(lo, hi, n_bins):
    width = hi - lo
    rate = n_bins / tl.where(width > 0, width, 1.0)
    return tl.where((width > 0) & (rate < 3.0e38), rate, 0.0)


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    lo, hi = torch.aminmax(z, dim=1)
    return lo, hi


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _pack_kernel(lo, hi, values, rows, words, n_bins, BINS: tl.constexpr):
    """A direction's table: the place of the bins, and per bin the displacement and growth in half precision."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(lo + row).to(tl.float32)
    end = tl.load(hi + row).to(tl.float32)
    values += row * (n_bins + 1)
    width = (end - start) / n_bins
    rate = 1.0 / tl.where(width > 0, width, 1.0)
    rate = tl.where((width > 0) & (rate < 3.0e38), rate, 0.0)
    # Beyond its ends a map is a rigid shift, or the one point that all of it leads to.
    rigid = tl.load(values + n_bins) > tl.load(values)
    tl.store(rows + 4 * row, start)
    tl.store(rows + 4 * row + 1, rate)
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
def by_word(word, beyond):
    """The displacement at `beyond` the left edge of the bin of `word`."""
    start = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    growth = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return start + beyond * growth


@triton.jit
def _displace_kernel(
    z, rows, words, offsets, codes, blocks, n, n_bins, n_classes,
    LABELS: tl.constexpr, RUNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    here = z + row * n
    if RUNS:
        run, first, end = block_of(blocks, tl.program_id(1))
        row += run.to(tl.int64) * tl.num_programs(0)  # of the tables
    else:
        first = tl.program_id(1) * BLOCK
        end = n
    column = first + tl.arange(0, BLOCK)
    valid = column < end
    here += column
    v = tl.load(here, mask=valid, other=0.0).to(tl.float32)
    if LABELS:
        code = tl.load(codes + column, mask=valid, other=0)
        v += tl.load(offsets + row * n_classes + code, mask=valid, other=0.0)
    position = (v - tl.load(rows + 4 * row)) * tl.load(rows + 4 * row + 1)
    position = tl.minimum(
        tl.maximum(position, tl.load(rows + 4 * row + 2)), tl.load(rows + 4 * row + 3)
    )
    b = tl.minimum(tl.maximum(position, 0.0), n_bins - 1).to(tl.int32)
    dz = by_word(tl.load(words + row * n_bins + b), position - b.to(tl.float32))
    tl.store(here, dz.to(z.dtype.element_ty), mask=valid)


def pack(lo: Tensor, hi: Tensor, values: Tensor) -> Packed:
    """The maps (lo, hi, values) packed for the kernels that move."""
    h = values.shape[0]
    n_bins = values.shape[1] - 1
    rows = torch.empty((h, 4), dtype=torch.float32, device=values.device)
    words = torch.empty(
        (h + 128, n_bins), dtype=torch.int32, device=values.device
    )  # blocks run over
    grid: Any = (h,)
    _pack_kernel[grid](
        lo, hi, values, rows, words, n_bins, BINS=1 << (n_bins - 1).bit_length()
    )
    return rows, words


def displace_in_place(
    z: Tensor, table: Packed, offsets: Tensor | None = None, codes: Tensor | None = None,
    starts: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """z (h, n) becomes T(z + offset) − z − offset, of its class; with `starts`, each run has its own table."""
    h, n = z.shape
    rows, words = table
    blocks = z if starts is None else blocks_of(tuple(starts), 2048, z.device)
    grid: Any = (h, triton.cdiv(n, 2048) if starts is None else len(blocks))
    offset, code, n_classes = (
        (z, z, 1) if offsets is None else (offsets, codes, offsets.shape[1])
    )
    _displace_kernel[grid](
        z, rows, words, offset, code, blocks, n, words.shape[1], n_classes,
        LABELS=offsets is not None, RUNS=starts is not None, BLOCK=2048,
    )  # fmt: skip


@triton.jit
def _add_kernel(z, offsets, codes, out, n, stride, n_classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < n
    code = tl.load(codes + column, mask=valid, other=0)
    v = tl.load(z + row * stride + column, mask=valid, other=0.0)
    shift = tl.load(offsets + row * n_classes + code, mask=valid, other=0.0)
    tl.store(out + row * n + column, v + shift, mask=valid)


def add_class_offsets(z: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    h, n = z.shape
    if z.stride(1) != 1:
        z = z.contiguous()
    dtype = torch.promote_types(z.dtype, offsets.dtype)
    out = torch.empty((h, n), dtype=dtype, device=z.device)
    grid: Any = (h, triton.cdiv(n, 4096))
    _add_kernel[grid](
        z,
        offsets.contiguous(),
        codes,
        out,
        n,
        z.stride(0),
        offsets.shape[1],
        BLOCK=4096,
    )
    return out


@triton.jit
def _displace_grid_kernel(
    z, lo, hi, values, out, n, stride, n_bins, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < n
    start = tl.load(lo + row).to(tl.float32)
    end = tl.load(hi + row).to(tl.float32)
    table = values + row * (n_bins + 1)
    low_end = tl.load(table)
    high_end = tl.load(table + n_bins)
    slope = tl.where((end > start) & (high_end > low_end), 1.0, 0.0)
    v = tl.load(z + row * stride + column, mask=valid, other=0.0)
    position = (v - start) * bins_per_unit(start, end, n_bins)
    b = tl.minimum(tl.maximum(position, 0.0), n_bins - 1).to(tl.int32)
    left = tl.load(table + b, mask=valid, other=0.0)
    right = tl.load(table + b + 1, mask=valid, other=0.0)
    image = left + (position - b.to(tl.float32)) * (right - left)
    image = tl.where(position <= 0, low_end + slope * (v - start), image)
    image = tl.where(position >= n_bins, high_end + slope * (v - end), image)
    tl.store(out + row * n + column, image - v, mask=valid)


def displace_grid(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    if z.dtype != torch.float32 or values.dtype != torch.float32:
        return reference.displace_grid(z, lo, hi, values)
    h, n = z.shape
    if z.stride(1) != 1:
        z = z.contiguous()
    out = torch.empty((h, n), dtype=z.dtype, device=z.device)
    grid: Any = (h, triton.cdiv(n, 4096))
    _displace_grid_kernel[grid](
        z,
        lo,
        hi,
        values.contiguous(),
        out,
        n,
        z.stride(0),
        values.shape[1] - 1,
        BLOCK=4096,
    )
    return out


displace_classes = partial(reference.displace_classes, displace=displace_grid)
