"""The kernels for NVIDIA GPUs, in Triton; what is not here is `reference`'s.

Float32 projections only. Levels of F_p and F_q are compared as integers (count × the other's total), so
no rounding can carry mass across a gap. Each function is tested against its namesake in `reference`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.kernels import reference
from sliceflow.kernels.reference import (
    argsort_rows,
    box_muller,
    displace_knots,
    match,
    philox,
    sort_rows,
)

__all__ = [
    "add_class_offsets",
    "argsort_rows",
    "box_muller",
    "compose",
    "count",
    "displace_grid",
    "displace_knots",
    "match",
    "philox",
    "sort_rows",
    "value_range",
]

_SPAN = 16384  # values of one direction that one program handles


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    lo, hi = torch.aminmax(z, dim=1)
    return lo.double(), hi.double()


@triton.jit
def _rate(lo, hi, n_bins):
    width = hi - lo
    rate = n_bins / tl.where(width > 0, width, 1.0)
    return tl.where((width > 0) & (rate < 3.0e38), rate, 0.0)


@triton.jit
def _count_kernel(
    z, lo, hi, counts, n, stride, BINS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * SPAN
    start = tl.load(lo + row).to(tl.float32)
    rate = _rate(start, tl.load(hi + row).to(tl.float32), BINS)
    total = tl.zeros([BINS], tl.int32)
    outside = 0
    for at in range(first, min(first + SPAN, n), BLOCK):
        column = at + tl.arange(0, BLOCK)
        valid = column < n
        v = tl.load(z + row * stride + column, mask=valid, other=start)
        b = tl.minimum(tl.maximum((v - start) * rate, 0.0), BINS - 1).to(tl.int32)
        b = tl.where(valid, b, 0)
        total += tl.histogram(b, BINS)
        outside += BLOCK - tl.sum(valid.to(tl.int32))  # the filling was counted in bin 0
    bins = tl.arange(0, BINS)
    total -= tl.where(bins == 0, outside, 0)
    tl.atomic_add(counts + row * BINS + bins, total, mask=total != 0)


def count(z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None) -> Tensor:
    if weights is not None or z.dtype != torch.float32 or n_bins & (n_bins - 1) or n_bins < 32:
        return reference.count(z, lo, hi, n_bins, weights)
    h, n = z.shape
    counts = torch.zeros((h, n_bins), dtype=torch.int32, device=z.device)
    if z.stride(1) != 1:
        z = z.contiguous()
    grid: Any = (h, triton.cdiv(n, _SPAN))
    _count_kernel[grid](z, lo, hi, counts, n, z.stride(0), BINS=n_bins, BLOCK=1024, SPAN=_SPAN)
    return counts


@triton.jit
def _bracket(keys, level, n_bins, STEPS: tl.constexpr, LEFT: tl.constexpr):
    """Bin i with keys[i] <= level < keys[i+1]; LEFT: keys[i] < level <= keys[i+1]."""
    low = tl.zeros_like(level).to(tl.int32)
    high = low + n_bins
    for _ in range(STEPS):
        middle = (low + high) // 2
        key = tl.load(keys + middle)
        below = key < level if LEFT else key <= level
        open_ = high - low > 1
        low = tl.where(open_ & below, middle, low)
        high = tl.where(open_ & ~below, middle, high)
    return low


@triton.jit
def _quantile(keys, level, n_bins, STEPS: tl.constexpr, LEFT: tl.constexpr):
    i = _bracket(keys, level, n_bins, STEPS, LEFT)
    left = tl.load(keys + i)
    mass = tl.load(keys + i + 1) - left
    f = (level - left).to(tl.float32) / tl.maximum(mass, 1).to(tl.float32)
    return i.to(tl.float32) + tl.where(mass > 0, tl.minimum(tl.maximum(f, 0.0), 1.0), 0.0)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def _compose_kernel(
    counts_p, total_p, keys_q, lo_p, hi_p, lo_q, hi_q, values,
    BINS_P: tl.constexpr, BINS_Q: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    edge = tl.arange(0, 2 * BINS_P)  # twice as many lanes as bins: edges 0..BINS_P must fit
    used = edge <= BINS_P
    level = tl.load(total_p + row * (BINS_P + 1) + edge, mask=used, other=0)
    before_count = tl.load(counts_p + row * BINS_P + edge - 1, mask=used & (edge > 0), other=0)
    after_count = tl.load(counts_p + row * BINS_P + edge, mask=edge < BINS_P, other=1)
    empty_left, empty_right = before_count == 0, after_count == 0  # edge 0: empty on its left
    point = tl.load(hi_p + row) <= tl.load(lo_p + row)
    keys = keys_q + row * (BINS_Q + 1)
    level = tl.where(point, tl.load(keys + BINS_Q) // 2, level)
    low = _quantile(keys, level, BINS_Q, STEPS, True)
    high = _quantile(keys, level, BINS_Q, STEPS, False)
    inside = empty_left & empty_right & (edge > 0) & used
    before = tl.associative_scan(tl.where(inside, 0, edge), 0, _larger)
    after = tl.associative_scan(tl.where(inside, BINS_P, edge), 0, _smaller, reverse=True)
    f = (edge - before).to(tl.float32) / tl.maximum(after - before, 1).to(tl.float32)
    position = tl.where(inside, low + f * (high - low), tl.where(empty_left, high, low))
    position = tl.where(point, high, position)
    start = tl.load(lo_q + row).to(tl.float32)
    width = (tl.load(hi_q + row).to(tl.float32) - start) / BINS_Q
    tl.store(values + row * (BINS_P + 1) + edge, start + width * position, mask=used)


def compose(
    counts_p: Tensor, lo_p: Tensor, hi_p: Tensor, counts_q: Tensor, lo_q: Tensor, hi_q: Tensor
) -> Tensor:
    if counts_p.dtype != torch.int32 or counts_q.dtype != torch.int32:
        return reference.compose(counts_p.double(), lo_p, hi_p, counts_q.double(), lo_q, hi_q)
    h, bins_p = counts_p.shape
    bins_q = counts_q.shape[1]
    total_p = torch.nn.functional.pad(counts_p.cumsum(1), (1, 0))
    total_q = torch.nn.functional.pad(counts_q.cumsum(1), (1, 0))
    # Every row counts all values, so both totals are the same for all rows; no read-back needed.
    level = 2 * total_p * total_q[:, -1:]  # 2: so that half of all is an integer too
    keys = 2 * total_q * total_p[:, -1:]
    values = torch.empty((h, bins_p + 1), dtype=torch.float32, device=counts_p.device)
    _compose_kernel[(h,)](
        counts_p, level, keys, lo_p, hi_p, lo_q, hi_q, values,
        BINS_P=bins_p, BINS_Q=bins_q, STEPS=bins_q.bit_length(),
    )  # fmt: skip
    return values


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
    out = torch.empty((h, n), dtype=z.dtype, device=z.device)
    grid: Any = (h, triton.cdiv(n, 4096))
    _add_kernel[grid](z, offsets.contiguous(), codes, out, n, z.stride(0), offsets.shape[1], BLOCK=4096)
    return out


@triton.jit
def _displace_kernel(z, lo, hi, values, out, n, stride, n_bins, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < n
    start, end = tl.load(lo + row).to(tl.float32), tl.load(hi + row).to(tl.float32)
    table = values + row * (n_bins + 1)
    low_end, high_end = tl.load(table), tl.load(table + n_bins)
    slope = tl.where((end > start) & (high_end > low_end), 1.0, 0.0)
    v = tl.load(z + row * stride + column, mask=valid, other=0.0)
    position = (v - start) * _rate(start, end, n_bins)
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
    _displace_kernel[grid](
        z, lo, hi, values.contiguous(), out, n, z.stride(0), values.shape[1] - 1, BLOCK=4096
    )
    return out
