"""Histograms and the maps between them on NVIDIA GPUs, in Triton.

They are for float32 projections. Levels of F_p and F_q are compared as integers (count
× the other's total): no mass crosses a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.kernels import reference
from sliceflow.kernels.reference.histograms import histogram_with_kernels
from sliceflow.kernels.triton.values import bin_at, bins_per_unit, larger, value_range

# Values of one direction that are counted together: a quarter to an eighth of a class,
# within these bounds. Larger blocks leave lanes idle at the end of a class.
_MIN_BLOCK = 1024
_MAX_BLOCK = 4096
# A histogram of more bins does not fit into registers. It is added up in memory, by
# programs that each count `_BLOCK_IN_MEMORY` values.
_MAX_BINS_IN_REGISTERS = 512
_BLOCK_IN_MEMORY = 1024
_MIN_BINS = 32  # the fewest bins for which the kernels are made
_CACHE_BYTES = 1 << 24  # of tensors that say where classes start


@triton.jit
def _count_kernel(
    z,
    lo,
    hi,
    counts,
    starts,
    stride,
    FIND_RANGE: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the points of a class along one direction; its range is found or given."""
    row = tl.program_id(0).to(tl.int64)
    class_ = tl.program_id(1)
    first = tl.load(starts + class_)
    n = tl.load(starts + class_ + 1) - first
    z += row * stride + first
    row += class_.to(tl.int64) * tl.num_programs(0)  # of the histograms
    if FIND_RANGE:
        low = tl.full([BLOCK], float("inf"), tl.float32)
        high = tl.full([BLOCK], float("-inf"), tl.float32)
        for begin in range(0, n, BLOCK):
            point = begin + tl.arange(0, BLOCK)
            valid = point < n
            low = tl.minimum(low, tl.load(z + point, mask=valid, other=float("inf")))
            high = tl.maximum(high, tl.load(z + point, mask=valid, other=float("-inf")))
        start = tl.where(n > 0, tl.min(low, 0), 0.0)
        end = tl.where(n > 0, tl.max(high, 0), 0.0)
        tl.store(lo + row, start)
        tl.store(hi + row, end)
    else:
        start = tl.load(lo + row).to(tl.float32)
        end = tl.load(hi + row).to(tl.float32)
    per_unit = bins_per_unit(start, end, BINS)
    total = tl.zeros([BINS], tl.int32)
    for begin in range(0, n, BLOCK):
        point = begin + tl.arange(0, BLOCK)
        v = tl.load(z + point, mask=point < n, other=start)
        b = bin_at((v - start) * per_unit, BINS)
        counted = tl.histogram(tl.where(point < n, b, 0), BINS)
        # The interpreter of Triton 3.4 has int64 numbers here, which it calls int32, so
        # that a store would write beyond the last bin. A cast to int32 alone would do
        # nothing. On a GPU the two casts are none.
        total += counted.to(tl.int64).to(tl.int32)
    bins = tl.arange(0, BINS)
    n_beyond = (BLOCK - n % BLOCK) % BLOCK  # lanes after the last point, in bin 0
    tl.store(counts + row * BINS + bins, total - tl.where(bins == 0, n_beyond, 0))


@triton.jit
def _add_counts_kernel(
    z, lo, hi, counts, n, stride, BINS: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of points along one direction, added to its histogram in memory."""
    row = tl.program_id(0).to(tl.int64)
    point = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(lo + row).to(tl.float32)
    per_unit = bins_per_unit(start, tl.load(hi + row).to(tl.float32), BINS)
    v = tl.load(z + row * stride + point, mask=point < n, other=0.0)
    b = bin_at((v - start) * per_unit, BINS)
    tl.atomic_add(counts + row * BINS + b, 1, mask=point < n, sem="relaxed")


def _counted(
    z: Tensor,
    n_bins: int,
    starts: Sequence[int],
    lo: Tensor,
    hi: Tensor,
    find_range: bool,
) -> Tensor:
    """The histograms of each class and direction, int32, over the ranges lo to hi.

    With `find_range`, lo and hi are written, otherwise they are read. Many bins are
    counted for all points together only.
    """
    if z.stride(1) != 1:
        z = z.contiguous()
    h, n = z.shape
    grid: Any
    if n_bins > _MAX_BINS_IN_REGISTERS:
        if find_range:
            torch.aminmax(z, dim=1, out=(lo, hi))
        counts = torch.zeros((h, n_bins), dtype=torch.int32, device=z.device)
        grid = (h, triton.cdiv(n, _BLOCK_IN_MEMORY))
        _add_counts_kernel[grid](
            z, lo, hi, counts, n, z.stride(0), BINS=n_bins, BLOCK=_BLOCK_IN_MEMORY
        )
        return counts
    n_classes = len(starts) - 1
    counts = torch.empty((n_classes * h, n_bins), dtype=torch.int32, device=z.device)
    block = 1 << (n // n_classes).bit_length() >> 3  # 4 to 8 blocks a class
    block = min(max(block, _MIN_BLOCK), _MAX_BLOCK)
    grid = (h, n_classes)
    _count_kernel[grid](
        z,
        lo,
        hi,
        counts,
        _on_device(tuple(starts), z.device),
        z.stride(0),
        FIND_RANGE=find_range,
        BINS=n_bins,
        BLOCK=block,
        num_warps=8,
    )
    return counts


@cached(_CACHE_BYTES)
def _on_device(starts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(starts, dtype=torch.int32, device=device)


def _is_countable(z: Tensor, n_bins: int, weights: Tensor | None) -> bool:
    """Whether the kernels can count: float32, no weights, a power of two of bins."""
    return (
        weights is None
        and z.dtype == torch.float32
        and n_bins & (n_bins - 1) == 0
        and n_bins >= _MIN_BINS
    )


def bin_counts(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    if not _is_countable(z, n_bins, weights):
        return reference.bin_counts(z, lo, hi, n_bins, weights)
    return _counted(z, n_bins, (0, z.shape[1]), lo, hi, find_range=False)


def histogram(
    z: Tensor, n_bins: int, weights: Tensor | None = None, starts: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    if not starts:
        starts = (0, z.shape[1])
    if not _is_countable(z, n_bins, weights):
        return reference.histogram(z, n_bins, weights, starts)
    if n_bins > _MAX_BINS_IN_REGISTERS and len(starts) > 2:
        counts, lo, hi = histogram_with_kernels(
            bin_counts, value_range, z, n_bins, None, starts
        )
        return counts, lo.float(), hi.float()  # the zeros of an empty slice are float64
    n_rows = (len(starts) - 1) * len(z)
    lo, hi = torch.empty((2, n_rows), dtype=torch.float32, device=z.device)
    return _counted(z, n_bins, starts, lo, hi, find_range=True), lo, hi


@triton.jit
def _bracket(keys, target, n_bins, STEPS: tl.constexpr, LEFT: tl.constexpr):
    """By bisection, bin i with keys[i] <= target < keys[i + 1].

    With LEFT, keys[i] < target <= keys[i + 1].
    """
    low = tl.zeros_like(target).to(tl.int32)
    high = low + n_bins
    for _ in range(STEPS):
        middle = (low + high) // 2
        key = tl.load(keys + middle)
        below = key < target if LEFT else key <= target
        open_ = high - low > 1
        low = tl.where(open_ & below, middle, low)
        high = tl.where(open_ & ~below, middle, high)
    return low


@triton.jit
def _quantile(keys, target, n_bins, STEPS: tl.constexpr, LEFT: tl.constexpr):
    """The position in bins at which F_q is the target, just below it or just above."""
    i = _bracket(keys, target, n_bins, STEPS, LEFT)
    left = tl.load(keys + i)
    mass = tl.load(keys + i + 1) - left
    f = (target - left).to(tl.float32) / tl.maximum(mass, 1).to(tl.float32)
    return i.to(tl.float32) + tl.where(
        mass > 0, tl.minimum(tl.maximum(f, 0.0), 1.0), 0.0
    )


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def _compose_kernel(
    counts_p, counts_q, keys, lo_p, hi_p, lo_q, hi_q, values, mean_squared_displacement,
    BINS_P: tl.constexpr, BINS_Q: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """One map. `keys` is memory for the cumulative counts of the data."""
    row = tl.program_id(0).to(tl.int64)
    counts_p += row * BINS_P
    counts_q += row * BINS_Q
    keys += row * (BINS_Q + 1)
    values += row * (BINS_P + 1)
    # Twice as many lanes as bins: edges 0 to BINS_P must fit.
    edge = tl.arange(0, 2 * BINS_P)
    used = edge <= BINS_P
    edge_q = tl.arange(0, 2 * BINS_Q)
    before_count = tl.load(counts_p + edge - 1, mask=used & (edge > 0), other=0)
    after_count = tl.load(counts_p + edge, mask=edge < BINS_P, other=1)
    count_q = tl.load(
        counts_q + edge_q - 1, mask=(edge_q > 0) & (edge_q <= BINS_Q), other=0
    )
    # In integers: F_p · total_q against F_q · total_p. Twice, so that ½ is an
    # integer too.
    total_p = tl.sum(before_count, 0).to(tl.int64)
    total_q = tl.sum(count_q, 0).to(tl.int64)
    target = 2 * tl.cumsum(before_count, 0).to(tl.int64) * total_q
    tl.store(
        keys + edge_q,
        2 * tl.cumsum(count_q, 0).to(tl.int64) * total_p,
        mask=edge_q <= BINS_Q,
    )
    tl.debug_barrier()  # the search below reads what other threads wrote
    empty_left = before_count == 0
    empty_right = after_count == 0  # edge 0: empty on its left
    start_p = tl.load(lo_p + row).to(tl.float32)
    end_p = tl.load(hi_p + row).to(tl.float32)
    is_point = end_p <= start_p
    target = tl.where(is_point, total_p * total_q, target)
    low = _quantile(keys, target, BINS_Q, STEPS, True)
    high = _quantile(keys, target, BINS_Q, STEPS, False)
    inside = empty_left & empty_right & (edge > 0) & used
    before = tl.associative_scan(tl.where(inside, 0, edge), 0, larger)
    after = tl.associative_scan(
        tl.where(inside, BINS_P, edge), 0, _smaller, reverse=True
    )
    f = (edge - before).to(tl.float32) / tl.maximum(after - before, 1).to(tl.float32)
    position = tl.where(inside, low + f * (high - low), tl.where(empty_left, high, low))
    position = tl.where(is_point, high, position)
    start = tl.load(lo_q + row).to(tl.float32)
    value = start + (tl.load(hi_q + row).to(tl.float32) - start) / BINS_Q * position
    tl.store(values + edge, value, mask=used)
    tl.debug_barrier()
    bin_width = (end_p - start_p) / BINS_P
    left = value - (start_p + bin_width * edge)
    right = tl.load(values + edge + 1, mask=edge < BINS_P, other=0.0) - (
        start_p + bin_width * (edge + 1)
    )
    moved = tl.where(edge < BINS_P, after_count, 0).to(tl.float32)
    square = left * left + left * right + right * right
    tl.store(
        mean_squared_displacement + row, tl.sum(moved * square, 0) / (3.0 * total_p)
    )


def compose_histograms(
    counts_p: Tensor,
    lo_p: Tensor,
    hi_p: Tensor,
    counts_q: Tensor,
    lo_q: Tensor,
    hi_q: Tensor,
) -> tuple[Tensor, Tensor]:
    if counts_p.dtype != torch.int32 or counts_q.dtype != torch.int32:
        return reference.compose_histograms(
            counts_p.double(),
            lo_p.double(),
            hi_p.double(),
            counts_q.double(),
            lo_q.double(),
            hi_q.double(),
        )
    h, bins_p = counts_p.shape
    bins_q = counts_q.shape[1]
    device = counts_p.device
    values = torch.empty((h, bins_p + 1), dtype=torch.float32, device=device)
    keys = torch.empty((h, bins_q + 1), dtype=torch.int64, device=device)
    mean_squared_displacement = torch.empty(h, dtype=torch.float32, device=device)
    _compose_kernel[(h,)](
        counts_p,
        counts_q,
        keys,
        lo_p,
        hi_p,
        lo_q,
        hi_q,
        values,
        mean_squared_displacement,
        BINS_P=bins_p,
        BINS_Q=bins_q,
        STEPS=bins_q.bit_length(),
    )
    return values, mean_squared_displacement


@triton.jit
def _shrink_kernel(
    lo,
    hi,
    values,
    counts,
    mean_squared_displacement,
    thresholds,
    out,
    factors,
    rows_per_class,
    BINS: tl.constexpr,
):
    """One map. Moments are taken around the middle bin, in bins."""
    row = tl.program_id(0).to(tl.int64)
    edge = tl.arange(0, 2 * BINS)  # twice as many lanes as bins: all edges must fit
    used = edge <= BINS
    count = tl.load(counts + row * BINS + edge, mask=edge < BINS, other=0).to(
        tl.float32
    )
    middle = edge.to(tl.float32) - (BINS - 1) / 2
    total = tl.maximum(tl.sum(count, 0), 1.0)
    mean = tl.sum(count * middle, 0) / total
    variance = tl.sum(count * (middle - mean) * (middle - mean), 0) / total
    start = tl.load(lo + row).to(tl.float32)
    end = tl.load(hi + row).to(tl.float32)
    width = (end - start) / BINS
    noise = (
        tl.load(thresholds + row // rows_per_class).to(tl.float32)
        * variance
        * width
        * width
    )
    moved = tl.load(mean_squared_displacement + row).to(tl.float32)
    f = tl.where(moved > noise, 1.0 - noise / moved, 0.0)
    tl.store(factors + row, f)
    position = start + (end - start) * (edge.to(tl.float32) / BINS)
    value = tl.load(values + row * (BINS + 1) + edge, mask=used, other=0.0)
    shrunk = position + f * (value - position)
    tl.store(out + row * (BINS + 1) + edge, shrunk, mask=used)


def shrink(
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    counts: Tensor,
    mean_squared_displacement: Tensor,
    thresholds: Tensor,
    variance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    h, n_bins = counts.shape
    if variance is not None or values.dtype != torch.float32 or n_bins & (n_bins - 1):
        return reference.shrink(
            lo, hi, values, counts, mean_squared_displacement, thresholds, variance
        )
    out = torch.empty_like(values)
    factors = torch.empty(h, dtype=torch.float32, device=values.device)
    _shrink_kernel[(h,)](
        lo,
        hi,
        values.contiguous(),
        counts.contiguous(),
        mean_squared_displacement,
        thresholds,
        out,
        factors,
        h // len(thresholds),
        BINS=n_bins,
    )
    return out, factors
