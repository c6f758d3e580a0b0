"""Compressed maps on NVIDIA GPUs, in Triton.

A program makes one map, in float64. Products and sums are not fused, to round as torch
does.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.kernels.reference.compressed_maps import (
    EVEN_SHARE_OF_KNOTS,
    JACOBI_ITERATIONS,
    MAX_QUANTIZED_DISPLACEMENT,
    MIN_KNOT_DENSITY,
    TAIL_SHARE_OF_ROOT,
)
from sliceflow.kernels.triton.values import larger

_MAX_BINS_AT_ONCE = 1024  # bins of a map that are read together
_PAIRS_AT_ONCE = 4096  # pairs of a knot and a bin that are computed together


@triton.jit
def _power_of_two(exponent):
    """2^exponent by its bits: a float argument would be rounded to float32."""
    return ((tl.full([], 1023, tl.int64) + exponent) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _whole(x):
    """The nearest integer, ties to even: around 3·2⁵¹ float64 has only integers."""
    near = (x + 6755399441055744.0) - 6755399441055744.0
    return tl.where(tl.abs(x) < 2251799813685248.0, near, x)


@triton.jit
def _edge(lo, width, e, BINS: tl.constexpr):
    """The position of edge e."""
    return lo + width * (e.to(tl.float64) / BINS)


@triton.jit
def _particles_in(counts, b, BINS: tl.constexpr):
    """The particles in bins b; 0 beyond the last one."""
    return tl.load(counts + b, mask=b < BINS, other=0).to(tl.float64)


@triton.jit
def _tail(values, counts, target, lo, width, BINS: tl.constexpr, WIDE: tl.constexpr):
    """The bin of the particle number `target` from below, and its displacement."""
    lane = tl.arange(0, WIDE)
    bin_ = tl.full([], 0, tl.int32)
    seen = tl.full([], 0.0, tl.float64)
    below = tl.full([], 0.0, tl.float64)
    for first in range(0, BINS, WIDE):
        b = first + lane
        count = _particles_in(counts, b, BINS)
        before = (seen + tl.cumsum(count, 0) < target) & (b < BINS)
        bin_ += tl.sum(before.to(tl.int32), 0)
        below += tl.sum(tl.where(before, count, 0.0), 0)
        seen += tl.sum(count, 0)
    bin_ = tl.minimum(bin_, BINS - 1)
    held = tl.load(counts + bin_).to(tl.float64)
    f = (target - below) / tl.where(held > 0, held, 1.0)
    left = tl.load(values + bin_).to(tl.float64) - _edge(lo, width, bin_, BINS)
    right = tl.load(values + bin_ + 1).to(tl.float64) - _edge(lo, width, bin_ + 1, BINS)
    grown = right - left
    return bin_, tl.where(f < 0.5, left + f * grown, right - grown * (1.0 - f))


@triton.jit
def _store_displacements(
    lo,
    hi,
    values,
    counts,
    new_lo,
    new_hi,
    displacements,
    resolution,
    BINS: tl.constexpr,
    WIDE: tl.constexpr,
    TAIL_SHARE: tl.constexpr,
):
    """Store the rounded range, and the displacements of the map with rigid tails."""
    lane = tl.arange(0, WIDE)
    start = tl.load(lo)
    end = tl.load(hi)
    width = (end - start).to(tl.float64)
    start = start.to(tl.float64)
    end = end.to(tl.float64)
    total = tl.full([], 0.0, tl.float64)
    for first in range(0, BINS, WIDE):
        total += tl.sum(_particles_in(counts, first + lane, BINS), 0)
    tail = tl.sqrt(total) * TAIL_SHARE
    first_bin, first_displacement = _tail(
        values, counts, tail, start, width, BINS, WIDE
    )
    last_bin, last_displacement = _tail(
        values, counts, total - tail, start, width, BINS, WIDE
    )
    unit = resolution / 8
    new_start = _whole(start / unit) * unit
    new_end = _whole(end / unit) * unit
    tl.store(new_lo, new_start)
    tl.store(new_hi, new_end)
    least = tl.load(values).to(tl.float64)
    most = tl.load(values + BINS).to(tl.float64)
    for first in range(0, BINS + 1, WIDE):
        e = first + lane
        value = tl.load(values + e, mask=e <= BINS, other=0.0)
        edge = _edge(start, width, e, BINS)
        moved = tl.where(e > last_bin, last_displacement, value.to(tl.float64) - edge)
        moved = tl.where(e <= first_bin, first_displacement, moved)
        steady = tl.minimum(tl.maximum(edge + moved, least), most)
        steady = steady.to(value.dtype).to(tl.float64)
        new = steady - _edge(new_start, new_end - new_start, e, BINS)
        tl.store(displacements + e, new, mask=e <= BINS)


@triton.jit
def _density(displacements, counts, b, BINS: tl.constexpr):
    """The density of knots, (p·D″²)^⅕, in each of the bins b."""
    used = b < BINS
    not_first = (b > 0) & (b < BINS)
    not_last = b < BINS - 1
    left = tl.load(displacements + b, mask=used, other=0.0)
    right = tl.load(displacements + b + 1, mask=used, other=0.0)
    before = tl.load(displacements + b - 1, mask=not_first, other=0.0)
    after = tl.load(displacements + b + 2, mask=not_last, other=0.0)
    grown = right - left
    bend = tl.where(not_first, tl.abs(grown - (left - before)), 0.0)
    bend += tl.where(not_last, tl.abs((after - right) - grown), 0.0)
    square = _particles_in(counts, b, BINS) * (bend * bend)
    positive = tl.where(square > 0, square, 1.0)
    return tl.where(square > 0, tl.exp(0.2 * tl.log(positive)), 0.0)


@triton.jit
def _knot_edges(
    displacements, counts,
    BINS: tl.constexpr, KNOTS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, EVEN_SHARE: tl.constexpr, MIN_DENSITY: tl.constexpr,
):  # fmt: skip
    """The edge of every knot; lanes without a knot have the last edge."""
    total = tl.full([], 0.0, tl.float64)
    for first in range(0, BINS, WIDE):
        total += tl.sum(
            _density(displacements, counts, first + tl.arange(0, WIDE), BINS), 0
        )
    least = EVEN_SHARE * (total / BINS) + MIN_DENSITY
    total += least * BINS
    k = tl.arange(0, LANES)
    target = total * (k.to(tl.float64) / (KNOTS - 1))
    edges = tl.full([LANES], 1, tl.int32)  # below the first edge is nothing
    seen = tl.full([], 0.0, tl.float64)
    for first in range(0, BINS, BLOCK):
        b = first + tl.arange(0, BLOCK)
        density = tl.where(
            b < BINS, _density(displacements, counts, b, BINS) + least, 0.0
        )
        below = tl.where(b < BINS, seen + tl.cumsum(density, 0), float("inf"))
        edges += tl.sum((below[None, :] < target[:, None]).to(tl.int32), 1)
        seen += tl.sum(density, 0)
    edges = tl.where(k < KNOTS - 1, edges, BINS)
    edges = tl.where(k > 0, edges, 0)
    edges = tl.associative_scan(edges - k, 0, larger) + k  # no two at the same edge,
    edges = tl.minimum(edges, BINS - (KNOTS - 1) + k)  # and none beyond the last
    return tl.where(k < KNOTS, edges, BINS)


@triton.jit
def _fit_knots(
    displacements, counts, places, knots, edges,
    BINS: tl.constexpr, KNOTS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    ITERATIONS: tl.constexpr,
):  # fmt: skip
    """The displacements at knots, by least squares.

    A hat is the function that is 1 at a knot, 0 at its neighbors, and linear between.
    The matrix has the sums over the particles of the products of hats.
    """
    k = tl.arange(0, LANES)
    not_first = (k > 0) & (k < KNOTS)
    not_last = k < KNOTS - 1
    here = edges.to(tl.float64)
    before = tl.load(places + k - 1, mask=not_first, other=-1).to(tl.float64)
    after = tl.load(places + k + 1, mask=not_last, other=BINS + 1).to(tl.float64)
    rise = 1.0 / (here - before)
    fall = 1.0 / (after - here)
    start = tl.load(displacements + edges)
    diagonal = tl.full([LANES], 0.5, tl.float64)
    right = 0.5 * start
    with_before = tl.zeros([LANES], tl.float64)
    with_after = tl.zeros([LANES], tl.float64)
    for first in range(0, BINS, BLOCK):
        b = first + tl.arange(0, BLOCK)
        middle = tl.load(displacements + b, mask=b < BINS, other=0.0)
        middle = (tl.load(displacements + b + 1, mask=b < BINS, other=0.0) + middle) / 2
        count = _particles_in(counts, b, BINS)[None, :]
        place = (b.to(tl.float64) + 0.5)[None, :]
        up = (place - before[:, None]) * rise[:, None]
        down = (after[:, None] - place) * fall[:, None]
        hat = tl.maximum(tl.minimum(up, down), 0.0)
        held = count * hat
        diagonal += tl.sum(held * hat, 1)
        right += tl.sum(held * middle[None, :], 1)
        beside = held * (1.0 - hat)
        on_left = place < here[:, None]
        with_before += tl.sum(tl.where(on_left, beside, 0.0), 1)
        with_after += tl.sum(tl.where(on_left, 0.0, beside), 1)
    value = start
    # Two rows of values in turn, so that one barrier is enough.
    for turn in tl.static_range(ITERATIONS):
        now = knots + (turn % 2) * KNOTS
        tl.store(now + k, value, mask=k < KNOTS)
        tl.debug_barrier()
        others = with_after * tl.load(now + k + 1, mask=not_last, other=0.0)
        others += with_before * tl.load(now + k - 1, mask=not_first, other=0.0)
        value = (right - others) / diagonal
    return value


@triton.jit(do_not_specialize=["exponent"])
def _compress_grid_kernel(
    lo, hi, values, counts, new_lo, new_hi, places, quantized_displacements,
    displacements, knots, exponent,
    BINS: tl.constexpr, KNOTS: tl.constexpr, MAX_DISPLACEMENT: tl.constexpr,
    ITERATIONS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, TAIL_SHARE: tl.constexpr, EVEN_SHARE: tl.constexpr,
    MIN_DENSITY: tl.constexpr,
):  # fmt: skip
    """One map. `displacements` and `knots` are memory for it."""
    row = tl.program_id(0).to(tl.int64)
    counts += row * BINS
    displacements += row * (BINS + 1)
    places += row * KNOTS
    resolution = _power_of_two(exponent)
    _store_displacements(
        lo + row,
        hi + row,
        values + row * (BINS + 1),
        counts,
        new_lo + row,
        new_hi + row,
        displacements,
        resolution,
        BINS,
        WIDE,
        TAIL_SHARE,
    )
    tl.debug_barrier()  # what follows reads what other threads wrote
    edges = _knot_edges(
        displacements, counts, BINS, KNOTS, LANES, BLOCK, WIDE, EVEN_SHARE, MIN_DENSITY
    )
    k = tl.arange(0, LANES)
    tl.store(places + k, edges, mask=k < KNOTS)
    tl.debug_barrier()
    knots += row * (2 * KNOTS)
    value = _fit_knots(
        displacements,
        counts,
        places,
        knots,
        edges,
        BINS,
        KNOTS,
        LANES,
        BLOCK,
        ITERATIONS,
    )
    quantized = tl.maximum(_whole(value / resolution), -MAX_DISPLACEMENT)
    quantized = tl.minimum(quantized, MAX_DISPLACEMENT)
    tl.store(
        quantized_displacements + row * KNOTS + k,
        quantized.to(tl.int32).to(tl.int16),
        mask=k < KNOTS,
    )


def compress_grid(
    lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor, n_knots: int, exponent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = len(values)
    n_bins = values.shape[1] - 1
    device = values.device
    new_lo, new_hi = torch.empty((2, h), dtype=torch.float64, device=device)
    places = torch.empty((h, n_knots), dtype=torch.int32, device=device)
    quantized_displacements = torch.empty(
        (h, n_knots), dtype=torch.int16, device=device
    )
    displacements = torch.empty((h, n_bins + 1), dtype=torch.float64, device=device)
    knots = torch.empty((h, 2, n_knots), dtype=torch.float64, device=device)
    lanes = max(triton.next_power_of_2(n_knots), 16)
    bins = max(triton.next_power_of_2(n_bins), 16)
    block = min(bins, max(_PAIRS_AT_ONCE // lanes, 16))
    grid: Any = (h,)
    _compress_grid_kernel[grid](
        lo.contiguous(),
        hi.contiguous(),
        values.contiguous(),
        counts.contiguous(),
        new_lo,
        new_hi,
        places,
        quantized_displacements,
        displacements,
        knots,
        exponent,
        BINS=n_bins,
        KNOTS=n_knots,
        MAX_DISPLACEMENT=MAX_QUANTIZED_DISPLACEMENT,
        ITERATIONS=JACOBI_ITERATIONS,
        LANES=lanes,
        BLOCK=block,
        WIDE=min(bins, _MAX_BINS_AT_ONCE),
        TAIL_SHARE=TAIL_SHARE_OF_ROOT,
        EVEN_SHARE=EVEN_SHARE_OF_KNOTS,
        MIN_DENSITY=MIN_KNOT_DENSITY,
        num_warps=4 if lanes * block <= 2048 else 8,
        enable_fp_fusion=False,
    )
    return new_lo, new_hi, places, quantized_displacements


@triton.jit(do_not_specialize=["exponent"])
def _expand_grid_kernel(
    lo, hi, edges, quantized_displacements, values, exponent,
    BINS: tl.constexpr, KNOTS: tl.constexpr, STEPS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One map. Its knots are found by bisection."""
    row = tl.program_id(0).to(tl.int64)
    values += row * (BINS + 1)
    edges += row * KNOTS
    quantized_displacements += row * KNOTS
    resolution = _power_of_two(exponent)
    start = tl.load(lo + row)
    width = (tl.load(hi + row) - start) / BINS
    so_far = tl.full([], float("-inf"), values.dtype.element_ty)
    for first in range(0, BINS + 1, WIDE):
        e = first + tl.arange(0, WIDE)
        k = tl.zeros([WIDE], tl.int32)
        beyond_k = tl.zeros([WIDE], tl.int32) + KNOTS
        for _ in range(STEPS):  # the last knot at or below the edge
            middle = (k + beyond_k) // 2
            open_ = beyond_k - k > 1
            below = tl.load(edges + middle) <= e
            k = tl.where(open_ & below, middle, k)
            beyond_k = tl.where(open_ & ~below, middle, beyond_k)
        following = tl.minimum(k + 1, KNOTS - 1)  # the last knot is the last edge
        place = tl.load(edges + k)
        next_place = tl.load(edges + following)
        value = (
            start
            + width * place.to(tl.float64)
            + tl.load(quantized_displacements + k).to(tl.float64) * resolution
        )
        next_value = start + width * next_place.to(tl.float64)
        next_value += (
            tl.load(quantized_displacements + following).to(tl.float64) * resolution
        )
        rise = (next_value - value) / tl.maximum(next_place - place, 1).to(tl.float64)
        whole = (value + (e - place).to(tl.float64) * rise).to(values.dtype.element_ty)
        whole = tl.where(e <= BINS, whole, float("-inf"))
        tl.store(
            values + e,
            tl.maximum(tl.associative_scan(whole, 0, larger), so_far),
            mask=e <= BINS,
        )
        so_far = tl.maximum(so_far, tl.max(whole, 0))


def expand_grid(
    lo: Tensor,
    hi: Tensor,
    edges: Tensor,
    quantized_displacements: Tensor,
    n_bins: int,
    exponent: int,
    dtype: torch.dtype,
) -> Tensor:
    h, n_knots = edges.shape
    values = torch.empty((h, n_bins + 1), dtype=dtype, device=lo.device)
    wide = min(max(triton.next_power_of_2(n_bins + 1), 16), _MAX_BINS_AT_ONCE)
    grid: Any = (h,)
    _expand_grid_kernel[grid](
        lo.contiguous(),
        hi.contiguous(),
        edges.contiguous(),
        quantized_displacements.contiguous(),
        values,
        exponent,
        BINS=n_bins,
        KNOTS=n_knots,
        STEPS=n_knots.bit_length(),
        WIDE=wide,
        enable_fp_fusion=False,
    )
    return values
