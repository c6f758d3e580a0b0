"""The kernels of `reference` for the CPU, in numba.

They work on one direction at a time, whose values stay in the cache. A function `_name`
is the compiled loop of the kernel `name`: it takes arrays and writes to `out`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sliceflow.kernels.geometry import TileGeometry
from sliceflow.kernels.reference import (
    compress_grid,
    expand_grid,
    flatten_tails,
    lift_tiles,
    padded_size,
    shrink,
    shrink_factor,
)
from sliceflow.kernels.reference.histograms import CDF_TOLERANCE, histogram_with_kernels
from sliceflow.kernels.reference.sorting import GAP_RATIO
from sliceflow.kernels.reference.tiles import (
    move_tiles_with_kernels,
    project_tiles_with_kernels,
)

__all__ = [  # every kernel; some are those of the reference
    "add_class_offsets",
    "argsort_rows",
    "bin_counts",
    "compose_histograms",
    "compress_grid",
    "displace_grid",
    "displace_knots",
    "expand_grid",
    "flatten_tails",
    "histogram",
    "lift_tiles",
    "match_sorted",
    "move_tiles",
    "nearest_distance",
    "normal",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "shrink_factor",
    "sort_rows",
    "value_range",
]

# error_model="numpy": 1/0 is inf, as in torch. No fastmath: NaN and inf must keep their
# meaning. Not parallel=True: that takes numba ten times as long to compile; `over_rows`
# uses threads instead.
_jit: Any = numba.njit(cache=True, error_model="numpy", nogil=True)
# For values that are never NaN: numba can then vectorise minima.
_jit_without_nan: Any = numba.njit(
    cache=True, error_model="numpy", nogil=True, fastmath={"nnan"}
)
_inline: Any = numba.njit(cache=True, error_model="numpy", inline="always")
# Arrays of fewer values than this are not worth the start of threads.
_MIN_VALUES_FOR_THREADS = 1 << 15


def _array(z: Tensor) -> np.ndarray:
    """A tensor as a contiguous array, which shares its memory if it can."""
    return z.contiguous().numpy()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads of one process (a forked child must not use its parent's)."""
    return ThreadPoolExecutor(threads, thread_name_prefix="sliceflow")


def over_rows(
    kernel: Callable[..., Any], arrays: Sequence[np.ndarray], *shared: Any
) -> None:
    """Call `kernel` on blocks of the rows of `arrays`, in threads.

    There are as many threads as torch uses. Every call also gets all of `shared`.
    """
    n_rows = len(arrays[0])
    n_threads = min(torch.get_num_threads(), n_rows)
    largest = max(array.size for array in arrays)
    if n_threads <= 1 or largest < _MIN_VALUES_FOR_THREADS:
        kernel(*arrays, *shared)
        return
    pool = _pool(os.getpid(), n_threads)
    bounds = [n_rows * k // n_threads for k in range(n_threads + 1)]
    calls = []
    for first, end in pairwise(bounds):
        blocks = [array[first:end] for array in arrays]
        calls.append(pool.submit(kernel, *blocks, *shared))
    for call in calls:
        call.result()


@_inline
def _finite_rate(lo, hi, n_bins):
    """Bins per unit; 0 if the range is empty, too small to divide by, or not finite."""
    rate = n_bins / (hi - lo)
    return rate if rate < np.inf and rate > 0 else 0.0


@_inline
def _bin(v, start, rate, n_bins):
    """The bin of the value v, within 0 and n_bins − 1.

    The bin of NaN is 0, because no comparison with NaN holds. The bin is unsigned, so
    that numba need not test for negative indices.
    """
    position = (v - start) * rate
    position = position if position > 0.0 else 0.0
    return np.uintp(position if position < n_bins - 1.0 else n_bins - 1.0)


@_inline
def _words(counter, key0, key1):
    """The four random words that Philox makes of one counter."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0 = np.uint64(counter) & mask
    c1 = np.uint64(counter) >> shift
    c2 = np.uint64(0)
    c3 = np.uint64(0)
    k0 = np.uint64(key0)
    k1 = np.uint64(key1)
    for _ in range(10):
        p0 = c0 * np.uint64(0xD2511F53)
        p1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (p1 >> shift) ^ c1 ^ k0
        c1 = p1 & mask
        c2 = (p0 >> shift) ^ c3 ^ k1
        c3 = p0 & mask
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@_jit
def _philox(counters, out, key0, key1):
    for i in range(out.shape[0]):
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = _words(counters[i], key0, key1)


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    out = np.empty((n, 4), np.int64)
    over_rows(_philox, [np.arange(first, first + n), out], *key)
    return torch.from_numpy(out)


@_inline
def _box_muller(a, b):
    """Two normal numbers from two words."""
    u = (a + 0.5) / 2.0**32
    v = (b + 0.5) / 2.0**32
    radius = math.sqrt(-2.0 * math.log(u))
    angle = 2.0 * math.pi * v
    return radius * math.cos(angle), radius * math.sin(angle)


@_jit
def _normal(counters, out, key0, key1):
    for i in range(out.shape[0]):
        c0, c1, c2, c3 = _words(counters[i], key0, key1)
        out[i, 0], out[i, 1] = _box_muller(c0, c1)
        out[i, 2], out[i, 3] = _box_muller(c2, c3)


def normal(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    # Words become numbers at once: they need no memory.
    out = np.empty((n, 4))
    over_rows(_normal, [np.arange(first, first + n), out], *key)
    return torch.from_numpy(out)


def sort_rows(z: Tensor) -> Tensor:
    # numpy's vectorised sort is about ten times as fast as torch's or numba's.
    array = _array(z).copy()
    over_rows(np.ndarray.sort, [array])
    return torch.from_numpy(array)


@_jit
def _pack(bits, keys):
    """Pack sorting keys and indices into 64 bits.

    The upper half is a float's bits, changed so that they sort as the float does; the
    lower half is its index.
    """
    for j in range(bits.shape[0]):
        for t in range(bits.shape[1]):
            b = np.int64(bits[j, t])
            in_order = b ^ ((b >> 63) & 0x7FFFFFFF)  # negative floats sort backwards
            keys[j, t] = (in_order << 32) | t


@_jit
def _unpack(z, keys, values):
    """Replace sorted keys by their indices, and write the values at these indices."""
    for j in range(z.shape[0]):
        for t in range(z.shape[1]):
            keys[j, t] &= 0xFFFFFFFF
            values[j, t] = z[j, keys[j, t]]


def _argsort(rows: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, rows.argsort(axis=1))


def argsort_rows(z: Tensor) -> tuple[Tensor, Tensor]:
    array = _array(z)
    if array.dtype != np.float32:
        order = np.empty(array.shape, np.int64)
        over_rows(_argsort, [array, order])
        values = np.take_along_axis(array, order, 1)
        return torch.from_numpy(values), torch.from_numpy(order)
    # Sorting (value, index) packed in 64 bits takes two thirds of numpy's argsort.
    keys = np.empty(array.shape, np.int64)
    values = np.empty_like(array)
    over_rows(_pack, [array.view(np.int32), keys])
    over_rows(np.ndarray.sort, [keys])
    over_rows(_unpack, [array, keys, values])
    return torch.from_numpy(values), torch.from_numpy(keys)


@_jit
def _add_class_offsets(z, offsets, out, class_indices):
    for j in range(z.shape[0]):
        for t in range(z.shape[1]):
            out[j, t] = z[j, t] + offsets[j, class_indices[t]]


def add_class_offsets(z: Tensor, offsets: Tensor, class_indices: Tensor) -> Tensor:
    out = torch.empty_like(z)
    arrays = [_array(z), _array(offsets), out.numpy()]
    over_rows(_add_class_offsets, arrays, _array(class_indices))
    return out


@_jit_without_nan
def _nearest_distance(x, own_row, out, columns, max_gap):
    """`columns` (d, n) are the transposed rows; own_row is −1 to exclude none."""
    distance = np.empty(columns.shape[1], columns.dtype)
    for i in range(x.shape[0]):
        distance[:] = 0
        for c in range(columns.shape[0]):
            for j in range(distance.size):
                distance[j] += min(abs(columns[c, j] - x[i, c]), max_gap[c])
        if own_row[i] >= 0:
            distance[own_row[i]] = np.inf
        least = distance[0]
        for j in range(distance.size):
            if distance[j] < least:
                least = distance[j]
        out[i] = least


def nearest_distance(
    x: Tensor, rows: Tensor, max_gap: Tensor, exclude_self: bool = False
) -> Tensor:
    out = x.new_empty(len(x))
    own_row = torch.full((len(x),), -1)
    if exclude_self:
        own_row = torch.arange(len(x))
    arrays = [_array(x), _array(own_row), out.numpy()]
    over_rows(_nearest_distance, arrays, _array(rows.T), _array(max_gap))
    return out


@_jit
def _match_sorted(z_p, z_q, w_q, out, ratio):  # noqa: C901, PLR0912, one loop is fastest
    """`w_q` (h, 0) stands for equal weights."""
    h, m = z_p.shape
    n = z_q.shape[1]
    for j in range(h):
        total = 0.0
        if w_q.shape[1]:
            for i in range(n):
                total += w_q[j, i]
        i = 0  # the datum left of the current quantile
        below = 0.0  # weight of the data before i
        first = 0
        while first < m:
            end = first + 1  # of the particles that are tied
            while end < m and z_p[j, end] == z_p[j, first]:
                end += 1
            probability = (first + end) / (2.0 * m)  # F_p, in the middle of the tie

            # The datum `right` follows i; f is the share of the way to it.
            if w_q.shape[1]:
                target = probability * total  # F_q should have this weight below
                while (
                    i < n - 1
                    and below + w_q[j, i] + 0.5 * w_q[j, min(i + 1, n - 1)] <= target
                ):
                    below += w_q[j, i]
                    i += 1
                right = min(i + 1, n - 1)
                distance = 0.5 * (w_q[j, i] + w_q[j, right])  # of the two middles
                f = (target - below - 0.5 * w_q[j, i]) / distance
                end_of_mass = 0.5 * w_q[j, i] / distance
            else:
                position = probability * n - 0.5
                i = min(max(int(np.floor(position)), 0), n - 1)
                right = min(i + 1, n - 1)
                f = position - i
                end_of_mass = 0.5
            f = min(max(f, 0.0), 1.0)

            # A gap that is far wider than those beside it is jumped over.
            if n > 2:
                gap = np.float64(z_q[j, right]) - np.float64(z_q[j, i])
                beside = 0.0
                if i > 0:
                    beside = np.float64(z_q[j, i]) - np.float64(z_q[j, i - 1])
                if right < n - 1:
                    after = np.float64(z_q[j, right + 1]) - np.float64(z_q[j, right])
                    beside = max(beside, after)
                if gap > ratio * beside:
                    f = 1.0 if f > end_of_mass else 0.0

            left_value = np.float64(z_q[j, i])
            value = left_value + f * (np.float64(z_q[j, right]) - left_value)
            for t in range(first, end):
                out[j, t] = value
            first = end


def match_sorted(z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None) -> Tensor:
    out = torch.empty_like(z_p)
    weights = np.empty((z_q.shape[0], 0))
    if w_q is not None:
        weights = _array(w_q.double())
    over_rows(
        _match_sorted, [_array(z_p), _array(z_q), weights, out.numpy()], GAP_RATIO
    )
    return out


@_jit
def _knots_before_cells(knots, lo, rate, n_cells):
    """How many of the ascending knots lie before each cell, (n_cells + 1,).

    The cells divide the range of the knots equally. A value in cell c therefore lies at
    or above knot before[c] − 1 and below knot before[c + 1]: the cells of values and of
    knots are rounded alike.
    """
    before = np.empty(n_cells + 1, np.int32)
    c = 0
    for i in range(knots.size):
        cell = np.intp(_bin(np.float64(knots[i]), lo, rate, n_cells))
        while c <= cell:
            before[c] = i
            c += 1
    before[c:] = knots.size
    return before


@_jit
def _last_knot_below(knots, v, low, high):
    """The last knot at or below v, where knots[low] <= v < knots[high]."""
    while high - low > 4:
        middle = (low + high) >> 1
        if knots[middle] <= v:
            low = middle
        else:
            high = middle
    while knots[low + 1] <= v:
        low += 1
    return low


@_jit
def _displace_knots(z, knots, values, out):
    h, n = z.shape
    last = knots.shape[1] - 1
    n_cells = 2 * knots.shape[1]
    for j in range(h):
        row_knots = knots[j]
        row_values = values[j]
        lo = np.float64(row_knots[0])
        hi = np.float64(row_knots[last])
        low_end = np.float64(row_values[0])
        high_end = np.float64(row_values[last])
        slope = 1.0 if hi > lo and high_end > low_end else 0.0
        rate = _finite_rate(lo, hi, n_cells)
        before = _knots_before_cells(row_knots, lo, rate, n_cells)
        for t in range(n):
            v = np.float64(z[j, t])
            if v <= lo:
                out[j, t] = low_end + slope * (v - lo) - v
            elif v < hi:
                cell = np.intp(_bin(v, lo, rate, n_cells))
                low = max(before[cell] - 1, 0)
                high = min(before[cell + 1], last)
                k = _last_knot_below(row_knots, v, low, high)
                left = np.float64(row_knots[k])
                value = np.float64(row_values[k])
                f = (v - left) / (np.float64(row_knots[k + 1]) - left)
                out[j, t] = value + f * (np.float64(row_values[k + 1]) - value) - v
            else:
                out[j, t] = high_end + slope * (v - hi) - v


def displace_knots(z: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    out = torch.empty_like(z)
    over_rows(_displace_knots, [_array(z), _array(knots), _array(values), out.numpy()])
    return out


def _range(z: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> None:
    lo[:] = z.min(axis=1)
    hi[:] = z.max(axis=1)


def value_range(z: Tensor) -> tuple[Tensor, Tensor]:
    lo = torch.empty(z.shape[0], dtype=torch.float64)
    hi = torch.empty_like(lo)
    over_rows(_range, [_array(z), lo.numpy(), hi.numpy()])
    return lo, hi


@_jit
def _bin_counts(z, lo, hi, counts, weights):
    """`weights` (0,) stands for equal weights."""
    n_bins = counts.shape[1]
    # Two histograms in turn, so that equal neighbours do not wait for each other.
    even = np.empty(n_bins, np.int32)
    odd = np.empty(n_bins, np.int32)
    n = z.shape[1]
    for j in range(z.shape[0]):
        row = z[j]
        start = lo[j]
        rate = _finite_rate(start, hi[j], n_bins)
        if weights.shape[0]:
            for t in range(n):
                counts[j, _bin(row[t], start, rate, n_bins)] += weights[t]
            continue
        even[:] = 0
        odd[:] = 0
        for t in range(0, n - 1, 2):
            even[_bin(row[t], start, rate, n_bins)] += 1
            odd[_bin(row[t + 1], start, rate, n_bins)] += 1
        if n % 2:
            even[_bin(row[n - 1], start, rate, n_bins)] += 1
        for b in range(n_bins):
            counts[j, b] = even[b] + odd[b]


def bin_counts(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    counts = torch.zeros((z.shape[0], n_bins), dtype=torch.float64)
    point_weights = np.empty(0)
    if weights is not None:
        point_weights = _array(weights.double())
    arrays = [_array(z), lo.numpy(), hi.numpy(), counts.numpy()]
    over_rows(_bin_counts, arrays, point_weights)
    return counts


def histogram(
    z: Tensor, n_bins: int, weights: Tensor | None = None, starts: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    return histogram_with_kernels(bin_counts, value_range, z, n_bins, weights, starts)


@_jit
def _compose_values(counts_p, is_point, counts_q, lo_q, bin_width_q, values, epsilon):
    """The values of one map at the particles' bin edges, (B + 1,)."""
    n_p = counts_p.size
    n_q = counts_q.size
    mass_p = counts_p.sum()
    mass_q = counts_q.sum()
    i = 0  # the data's bin that holds the current quantile
    below = 0.0  # mass before that bin
    particles = 0.0  # before the current edge
    run_start = 0  # the last edge that is not inside an empty run
    for b in range(n_p + 1):
        if b > 0:
            particles += counts_p[b - 1]
        empty_left = b == 0 or counts_p[b - 1] == 0
        if b > 0 and empty_left and b < n_p and counts_p[b] == 0:
            continue  # inside an empty run
        probability = particles / mass_p + (epsilon if empty_left else -epsilon)
        probability = 0.5 if is_point else min(max(probability, 0.0), 1.0)
        target = probability * mass_q  # the data that should be below
        while i < n_q - 1 and below + counts_q[i] <= target:
            below += counts_q[i]
            i += 1
        mass = counts_q[i]
        f = min(max((target - below) / mass, 0.0), 1.0) if mass > 0 else 0.0
        values[b] = lo_q + bin_width_q * (i + f)
        rise = values[b] - values[run_start]
        for e in range(run_start + 1, b):
            values[e] = values[run_start] + (e - run_start) / (b - run_start) * rise
        run_start = b


@_jit
def _compose_histograms(
    counts_p, lo_p, hi_p, counts_q, lo_q, hi_q, values, cost, epsilon
):
    h, n_p = counts_p.shape
    n_q = counts_q.shape[1]
    for j in range(h):
        is_point = not (hi_p[j] > lo_p[j])
        bin_width_q = (hi_q[j] - lo_q[j]) / n_q
        _compose_values(
            counts_p[j],
            is_point,
            counts_q[j],
            lo_q[j],
            bin_width_q,
            values[j],
            epsilon,
        )
        bin_width_p = (hi_p[j] - lo_p[j]) / n_p
        left = values[j, 0] - lo_p[j]
        total = 0.0
        for b in range(n_p):
            right = values[j, b + 1] - (lo_p[j] + (b + 1) * bin_width_p)
            total += counts_p[j, b] * (left * left + left * right + right * right)
            left = right
        cost[j] = total / (3.0 * counts_p[j].sum())


def compose_histograms(
    counts_p: Tensor,
    lo_p: Tensor,
    hi_p: Tensor,
    counts_q: Tensor,
    lo_q: Tensor,
    hi_q: Tensor,
) -> tuple[Tensor, Tensor]:
    values = torch.empty(
        (counts_p.shape[0], counts_p.shape[1] + 1), dtype=torch.float64
    )
    cost = torch.empty(len(values), dtype=torch.float64)
    arrays = [_array(t) for t in (counts_p, lo_p, hi_p, counts_q, lo_q, hi_q)]
    over_rows(
        _compose_histograms, [*arrays, values.numpy(), cost.numpy()], CDF_TOLERANCE
    )
    return values, cost


@_jit
def _displace_grid(z, lo, hi, values, out):
    n_bins = values.shape[1] - 1
    for j in range(z.shape[0]):
        row = z[j]
        row_values = values[j]
        row_out = out[j]
        start = lo[j]
        end = hi[j]
        rate = _finite_rate(start, end, n_bins)
        low_end = np.float64(row_values[0])
        high_end = np.float64(row_values[n_bins])
        slope = 1.0 if end > start and high_end > low_end else 0.0
        for t in range(row.shape[0]):
            v = np.float64(row[t])
            position = (v - start) * rate
            if position >= n_bins:
                row_out[t] = high_end + slope * (v - end) - v
            elif position > 0:
                b = np.uintp(position)
                low = np.float64(row_values[b])
                rise = np.float64(row_values[b + np.uintp(1)]) - low
                row_out[t] = low + (position - b) * rise - v
            else:  # or it is NaN, and so is this
                row_out[t] = low_end + slope * (v - start) - v


def displace_grid(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    out = torch.empty_like(z)
    arrays = [_array(z), _array(lo), _array(hi), _array(values), out.numpy()]
    over_rows(_displace_grid, arrays)
    return out


def project_tiles(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
) -> Tensor:
    return project_tiles_with_kernels(
        add_class_offsets, x, theta, geometry, indices, offsets, class_indices
    )


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
    move_tiles_with_kernels(
        project_tiles,
        displace_grid,
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
