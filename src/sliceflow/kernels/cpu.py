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
    flatten_tails,
    lift_tiles,
    padded_size,
    shrink,
    shrink_factors,
)
from sliceflow.kernels.reference.compressed_maps import (
    EVEN_SHARE_OF_KNOTS,
    JACOBI_ITERATIONS,
    MAX_QUANTIZED_DISPLACEMENT,
    MIN_KNOT_DENSITY,
    TAIL_SHARE_OF_ROOT,
)
from sliceflow.kernels.reference.histograms import CDF_TOLERANCE
from sliceflow.kernels.reference.random import LARGEST_FLOAT32_BELOW_1
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
    "keep_smallest",
    "lift_tiles",
    "match_sorted",
    "move_tiles",
    "nearest_distance",
    "normal",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "shrink_factors",
    "sort_rows",
    "take_points",
    "uniform",
    "value_range",
]

# error_model="numpy": 1/0 is inf, as in torch. No fastmath: NaN and inf must keep their
# meaning. Not parallel=True: that takes numba ten times as long to compile; `over_rows`
# uses threads instead.
_jit: Any = numba.njit(cache=True, error_model="numpy", nogil=True)
# For values that are never NaN: numba can then vectorize minima. A zero may change its
# sign.
_jit_without_nan: Any = numba.njit(
    cache=True, error_model="numpy", nogil=True, fastmath={"nnan", "nsz"}
)
_inline: Any = numba.njit(cache=True, error_model="numpy", inline="always")
# Points that `take_points` copies at a time: a cache line of bytes.
_POINTS_TAKEN_TOGETHER = 64
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
def _bins_per_unit(lo, hi, n_bins):
    """Bins per unit; 0 if the range is empty, too small to divide by, or not finite."""
    bins_per_unit = n_bins / (hi - lo)
    return bins_per_unit if bins_per_unit < np.inf and bins_per_unit > 0 else 0.0


@_inline
def _bin(v, start, bins_per_unit, n_bins):
    """The bin of the value v, within 0 and n_bins − 1.

    The bin of NaN is 0, because no comparison with NaN holds. The bin is unsigned, so
    that numba need not test for negative indices.
    """
    position = (v - start) * bins_per_unit
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


@_jit
def _uniform(counters, out, key0, key1, largest):
    for i in range(out.shape[0]):
        words = _words(counters[i], key0, key1)
        for k in range(4):
            out[i, k] = min((words[k] + 0.5) / 2.0**32, largest)


def uniform(
    first: int,
    n: int,
    key: tuple[int, int],
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    # Words become numbers at once: they need no memory.
    out = torch.empty((n, 4), dtype=dtype)
    largest = LARGEST_FLOAT32_BELOW_1 if dtype == torch.float32 else 1.0
    over_rows(_uniform, [np.arange(first, first + n), out.numpy()], *key, largest)
    return out


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
    # numpy's vectorized sort is about ten times as fast as torch's or numba's.
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


@_inline
def _between_middles(target, below, left_weight, right_weight):
    """Where the weight `target` lies between two data, as shares of their distance.

    The data are in the middles of their weights; `below` is the weight before the left
    one. Returns the share at the target, and where the mass of the left datum ends.
    """
    distance = 0.5 * (left_weight + right_weight)
    share = (target - below - 0.5 * left_weight) / distance
    return share, 0.5 * left_weight / distance


@_jit
def _match_sorted(z_p, z_q, w_q, out, ratio):  # noqa: C901, one loop is fastest
    """`w_q` (h, 0) stands for equal weights."""
    # Helpers that take rows of these arrays made it 1.3 to 2 times as slow.
    h, m = z_p.shape
    n = z_q.shape[1]
    for j in range(h):
        total = 0.0
        for i in range(w_q.shape[1]):
            total += w_q[j, i]
        left = 0  # the datum left of the current quantile
        below = 0.0  # weight of the data before it
        first = 0
        while first < m:
            end = first + 1  # of the particles that are tied
            while end < m and z_p[j, end] == z_p[j, first]:
                end += 1
            probability = (first + end) / (2.0 * m)  # F_p, in the middle of the tie

            # The share of the way from the left datum to the right one.
            if w_q.shape[1]:
                target = probability * total  # F_q should have this weight below
                while (
                    left < n - 1
                    and below + w_q[j, left] + 0.5 * w_q[j, left + 1] <= target
                ):
                    below += w_q[j, left]
                    left += 1
                right = min(left + 1, n - 1)
                share, end_of_mass = _between_middles(
                    target, below, w_q[j, left], w_q[j, right]
                )
            else:
                position = probability * n - 0.5
                left = min(max(int(np.floor(position)), 0), n - 1)
                right = min(left + 1, n - 1)
                share = position - left
                end_of_mass = 0.5
            share = min(max(share, 0.0), 1.0)

            left_value = np.float64(z_q[j, left])
            gap = np.float64(z_q[j, right]) - left_value
            # A gap that is far wider than those beside it is jumped over.
            if n > 2:
                gap_beside = 0.0
                if left > 0:
                    gap_beside = left_value - np.float64(z_q[j, left - 1])
                if right < n - 1:
                    right_value = np.float64(z_q[j, right])
                    gap_after = np.float64(z_q[j, right + 1]) - right_value
                    gap_beside = max(gap_beside, gap_after)
                if gap > ratio * gap_beside:
                    share = 1.0 if share > end_of_mass else 0.0

            value = left_value + share * gap
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
def _knots_before_cells(knots, lo, bins_per_unit, n_cells):
    """How many of the ascending knots lie before each cell, (n_cells + 1,).

    The cells divide the range of the knots equally. A value in cell c therefore lies at
    or above knot before[c] − 1 and below knot before[c + 1]: the cells of values and of
    knots are rounded alike.
    """
    before = np.empty(n_cells + 1, np.int32)
    c = 0
    for i in range(knots.size):
        cell = np.intp(_bin(np.float64(knots[i]), lo, bins_per_unit, n_cells))
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
        bins_per_unit = _bins_per_unit(lo, hi, n_cells)
        before = _knots_before_cells(row_knots, lo, bins_per_unit, n_cells)
        for t in range(n):
            v = np.float64(z[j, t])
            if v <= lo:
                out[j, t] = low_end + slope * (v - lo) - v
            elif v < hi:
                cell = np.intp(_bin(v, lo, bins_per_unit, n_cells))
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
def _count_row(row, lo, hi, weights, even, odd, counts):
    """The counts (B,) of one row; `even` and `odd` (B,) are there to work in.

    `weights` (0,) stands for equal weights.
    """
    n = row.size
    n_bins = counts.size
    bins_per_unit = _bins_per_unit(lo, hi, n_bins)
    if weights.shape[0]:
        for t in range(n):
            counts[_bin(row[t], lo, bins_per_unit, n_bins)] += weights[t]
        return
    # Two histograms in turn, so that equal neighbors do not wait for each other.
    even[:] = 0
    odd[:] = 0
    for t in range(0, n - 1, 2):
        even[_bin(row[t], lo, bins_per_unit, n_bins)] += 1
        odd[_bin(row[t + 1], lo, bins_per_unit, n_bins)] += 1
    if n % 2:
        even[_bin(row[n - 1], lo, bins_per_unit, n_bins)] += 1
    for b in range(n_bins):
        counts[b] = even[b] + odd[b]


@_jit
def _bin_counts(z, lo, hi, counts, weights):
    even = np.empty(counts.shape[1], np.int32)
    odd = np.empty(counts.shape[1], np.int32)
    for j in range(z.shape[0]):
        _count_row(z[j], lo[j], hi[j], weights, even, odd, counts[j])


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


@_jit_without_nan
def _range_without_nan(row):
    """The smallest and the largest value of a row of numbers."""
    low = row[0]
    high = row[0]
    for t in range(row.size):
        low = min(low, row[t])
        high = max(high, row[t])
    return low, high


@_jit
def _row_range(row):
    """The smallest and the largest value of a row; NaN if it holds NaN."""
    n_nan = 0
    for t in range(row.size):
        n_nan += row[t] != row[t]
    if n_nan:
        return np.nan, np.nan
    low, high = _range_without_nan(row)
    return np.float64(low), np.float64(high)


@_jit
def _histogram(z, row_indices, starts, weights, counts, lo, hi):
    """Rows of z are counted while they are in the cache, class by class.

    `counts` (C·h, B), `lo` and `hi` have the rows of all directions; z has those of
    `row_indices`.
    """
    n_classes = starts.size - 1
    n_directions = counts.shape[0] // n_classes
    even = np.empty(counts.shape[1], np.int32)
    odd = np.empty(counts.shape[1], np.int32)
    for j in range(z.shape[0]):
        for c in range(n_classes):
            row = z[j, starts[c] : starts[c + 1]]
            if row.size == 0:
                continue
            k = c * n_directions + row_indices[j]
            lo[k], hi[k] = _row_range(row)
            _count_row(row, lo[k], hi[k], weights, even, odd, counts[k])


def histogram(
    z: Tensor, n_bins: int, weights: Tensor | None = None, starts: Sequence[int] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    if not starts:
        starts = (0, z.shape[1])
    n_rows = len(z) * (len(starts) - 1)
    counts = torch.zeros((n_rows, n_bins), dtype=torch.float64)
    lo = torch.zeros(n_rows, dtype=torch.float64)
    hi = torch.zeros(n_rows, dtype=torch.float64)
    point_weights = np.empty(0)
    if weights is not None:
        point_weights = _array(weights.double())
    over_rows(
        _histogram,
        [_array(z), np.arange(len(z))],
        np.asarray(starts),
        point_weights,
        counts.numpy(),
        lo.numpy(),
        hi.numpy(),
    )
    return counts, lo, hi


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
    counts_p,
    lo_p,
    hi_p,
    counts_q,
    lo_q,
    hi_q,
    values,
    mean_squared_displacement,
    epsilon,
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
        mean_squared_displacement[j] = total / (3.0 * counts_p[j].sum())


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
    mean_squared_displacement = torch.empty(len(values), dtype=torch.float64)
    arrays = [_array(t) for t in (counts_p, lo_p, hi_p, counts_q, lo_q, hi_q)]
    over_rows(
        _compose_histograms,
        [*arrays, values.numpy(), mean_squared_displacement.numpy()],
        CDF_TOLERANCE,
    )
    return values, mean_squared_displacement


@_jit
def _displace_row(row, start, end, values, out):
    """The displacements `out` of one row by one map."""
    n_bins = values.size - 1
    bins_per_unit = _bins_per_unit(start, end, n_bins)
    low_end = np.float64(values[0])
    high_end = np.float64(values[n_bins])
    slope = 1.0 if end > start and high_end > low_end else 0.0
    for t in range(row.size):
        v = np.float64(row[t])
        position = (v - start) * bins_per_unit
        if position >= n_bins:
            out[t] = high_end + slope * (v - end) - v
        elif position > 0:
            b = np.uintp(position)
            low = np.float64(values[b])
            rise = np.float64(values[b + np.uintp(1)]) - low
            out[t] = low + (position - b) * rise - v
        else:  # or it is NaN, and so is this
            out[t] = low_end + slope * (v - start) - v


@_jit
def _displace_grid(z, row_indices, out, lo, hi, values, starts):
    """`lo`, `hi` and `values` have the maps of all directions; see `_histogram`."""
    n_classes = starts.size - 1
    n_directions = lo.size // n_classes
    for j in range(z.shape[0]):
        for c in range(n_classes):
            k = c * n_directions + row_indices[j]
            first = starts[c]
            end = starts[c + 1]
            _displace_row(z[j, first:end], lo[k], hi[k], values[k], out[j, first:end])


def displace_grid(
    z: Tensor,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    starts: Sequence[int] | None = None,
) -> Tensor:
    if starts is None:
        starts = (0, z.shape[1])
    out = torch.empty_like(z)
    over_rows(
        _displace_grid,
        [_array(z), np.arange(len(z)), out.numpy()],
        _array(lo),
        _array(hi),
        _array(values),
        np.asarray(starts),
    )
    return out


@_jit
def _flatten_row(lo, hi, values, counts, below, displacements):
    """The displacements (B + 1,) of one map whose tails are made rigid.

    This is `flatten_tails` of the reference; `below` (B + 1,) is there to work in.
    """
    n_bins = counts.size
    below[0] = 0.0
    for b in range(n_bins):
        below[b + 1] = below[b] + counts[b]
    total = below[n_bins]
    tail = math.sqrt(total) * TAIL_SHARE_OF_ROOT
    # The bins that hold the outermost particles that are not in a tail, and the
    # displacements of these particles.
    low_bin = np.searchsorted(below[1:], tail)
    high_bin = np.searchsorted(below[1:], total - tail)
    for e in range(n_bins + 1):
        displacements[e] = values[e] - (lo + (hi - lo) * (e / n_bins))
    low_displacement = _displacement_at(displacements, below, low_bin, tail)
    high_displacement = _displacement_at(displacements, below, high_bin, total - tail)
    for e in range(n_bins + 1):
        if e <= low_bin:
            displacements[e] = low_displacement
        elif e > high_bin:
            displacements[e] = high_displacement


@_inline
def _displacement_at(displacements, below, b, n_particles):
    """The displacement of the particle, in bin b, that has `n_particles` below it."""
    inside = (n_particles - below[b]) / (below[b + 1] - below[b])
    if inside < 0.5:
        return displacements[b] + inside * (displacements[b + 1] - displacements[b])
    return displacements[b + 1] - (displacements[b + 1] - displacements[b]) * (
        1 - inside
    )


@_jit
def _measure_bends(
    lo, hi, values, counts, out_lo, out_hi, displacements, density, unit
):
    """The first half of `compress_grid`, up to the density of knots before its root.

    It writes the ranges, rounded to multiples of `unit`, and the
    `displacements` (h, B + 1) from these ranges.
    """
    h, n_bins = counts.shape
    below = np.empty(n_bins + 1)
    bend = np.zeros(n_bins + 1)  # at each edge; 0 at the ends
    value = np.empty(1, values.dtype)
    for j in range(h):
        _flatten_row(lo[j], hi[j], values[j], counts[j], below, displacements[j])
        out_lo[j] = np.rint(lo[j] / unit) * unit
        out_hi[j] = np.rint(hi[j] / unit) * unit
        for e in range(n_bins + 1):
            image = lo[j] + (hi[j] - lo[j]) * (e / n_bins) + displacements[j, e]
            value[0] = min(max(image, values[j, 0]), values[j, n_bins])  # rounds it
            place = out_lo[j] + (out_hi[j] - out_lo[j]) * (e / n_bins)
            displacements[j, e] = value[0] - place
        for e in range(1, n_bins):
            rise = displacements[j, e + 1] - displacements[j, e]
            bend[e] = abs(rise - (displacements[j, e] - displacements[j, e - 1]))
        for b in range(n_bins):
            bin_bend = bend[b] + bend[b + 1]
            density[j, b] = counts[j, b] * (bin_bend * bin_bend)


@_jit
def _place_and_fit_knots(
    displacements,
    counts,
    density,
    even_density,
    edges,
    quantized_displacements,
    resolution,
):
    """The second half of `compress_grid`: where knots are, and what they store."""
    h, n_knots = edges.shape
    n_sums = 5
    sums = np.empty((n_sums, n_knots))
    values = np.empty(n_knots)
    for j in range(h):
        _place_knots(density[j], even_density[j], edges[j])
        _sums_below_knots(displacements[j], counts[j], edges[j], sums)
        _fit_knots(displacements[j], edges[j], sums, values)
        for k in range(n_knots):
            steps = np.rint(values[k] / resolution)
            steps = min(
                max(steps, -MAX_QUANTIZED_DISPLACEMENT), MAX_QUANTIZED_DISPLACEMENT
            )
            quantized_displacements[j, k] = np.int16(steps)


@_jit
def _place_knots(density, even_density, edges):
    """The `edges` (K,) at which a map with this density (B,) of knots has them."""
    n_bins = density.size
    n_knots = edges.size
    below = np.empty(n_bins + 1)
    below[0] = 0.0
    for b in range(n_bins):
        below[b + 1] = below[b] + (density[b] + even_density)
    edges[0] = 0
    for k in range(1, n_knots):
        edge = n_bins
        if k < n_knots - 1:
            edge = np.searchsorted(below, below[n_bins] * (k / (n_knots - 1)))
        edges[k] = max(edge, edges[k - 1] + 1)  # no two knots at the same edge,
    for k in range(n_knots):  # and none beyond the last
        edges[k] = min(edges[k], n_bins - (n_knots - 1) + k)


@_jit
def _sums_below_knots(displacements, counts, edges, sums):
    """Sums over the particles below each knot, (5, K).

    They are those of 1, of their place x and x², of their displacement D and of x·D.
    """
    sum_1 = 0.0
    sum_x = 0.0
    sum_xx = 0.0
    sum_d = 0.0
    sum_xd = 0.0
    first = 0
    for k in range(edges.size):
        for b in range(first, edges[k]):
            place = b + 0.5
            middle = (displacements[b + 1] + displacements[b]) / 2
            sum_1 += counts[b]
            sum_x += counts[b] * place
            sum_xx += counts[b] * (place * place)
            sum_d += counts[b] * middle
            sum_xd += counts[b] * place * middle
        first = edges[k]
        sums[0, k] = sum_1
        sums[1, k] = sum_x
        sums[2, k] = sum_xx
        sums[3, k] = sum_d
        sums[4, k] = sum_xd


@_jit
def _fit_knots(displacements, edges, sums, values):
    """The displacements at knots: `_fit_knots` of the reference, for one map."""
    n_knots = edges.size
    diagonal = np.zeros(n_knots)
    right_side = np.zeros(n_knots)
    off_diagonal = np.empty(n_knots - 1)
    for k in range(n_knots - 1):
        first = np.float64(edges[k])
        size = np.float64(edges[k + 1] - edges[k])
        sum_1 = sums[0, k + 1] - sums[0, k]
        sum_x = sums[1, k + 1] - sums[1, k]
        sum_xx = sums[2, k + 1] - sums[2, k]
        sum_d = sums[3, k + 1] - sums[3, k]
        sum_xd = sums[4, k + 1] - sums[4, k]
        sum_t = (sum_x - first * sum_1) / size
        sum_tt = sum_xx - 2 * first * sum_x + first * first * sum_1
        sum_tt /= size * size
        sum_td = (sum_xd - first * sum_d) / size
        diagonal[k] += sum_1 - 2 * sum_t + sum_tt
        diagonal[k + 1] += sum_tt
        right_side[k] += sum_d - sum_td
        right_side[k + 1] += sum_td
        off_diagonal[k] = sum_t - sum_tt
    for k in range(n_knots):
        diagonal[k] += 0.5
        right_side[k] += 0.5 * displacements[edges[k]]
        values[k] = displacements[edges[k]]
    for _ in range(JACOBI_ITERATIONS):
        before = 0.0  # of the knot before, in the last iteration
        for k in range(n_knots):
            neighbors = 0.0
            if k < n_knots - 1:
                neighbors = off_diagonal[k] * values[k + 1]
            if k > 0:
                neighbors += off_diagonal[k - 1] * before
            before = values[k]
            values[k] = (right_side[k] - neighbors) / diagonal[k]


def compress_grid(
    lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor, n_knots: int, exponent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = len(values)
    n_bins = values.shape[1] - 1
    resolution = math.ldexp(1.0, exponent)
    out_lo = torch.empty(h, dtype=torch.float64)
    out_hi = torch.empty(h, dtype=torch.float64)
    displacements = torch.empty((h, n_bins + 1), dtype=torch.float64)
    density = torch.empty((h, n_bins), dtype=torch.float64)
    bin_counts = _array(counts.double())
    arrays = [_array(lo.double()), _array(hi.double()), _array(values), bin_counts]
    outs = [out_lo.numpy(), out_hi.numpy(), displacements.numpy(), density.numpy()]
    over_rows(_measure_bends, arrays + outs, resolution / 8)
    # torch's root is vectorized, which makes it five times as fast as numba's.
    density.pow_(0.2)
    even_density = EVEN_SHARE_OF_KNOTS * density.mean(1) + MIN_KNOT_DENSITY
    edges = torch.empty((h, n_knots), dtype=torch.int32)
    quantized_displacements = torch.empty((h, n_knots), dtype=torch.int16)
    arrays = [displacements.numpy(), bin_counts, density.numpy(), even_density.numpy()]
    outs = [edges.numpy(), quantized_displacements.numpy()]
    over_rows(_place_and_fit_knots, arrays + outs, resolution)
    return out_lo, out_hi, edges, quantized_displacements


@_jit
def _expand_grid(lo, hi, edges, quantized_displacements, out, resolution):
    h, n_knots = edges.shape
    n_bins = out.shape[1] - 1
    values = np.empty(n_knots)
    for j in range(h):
        bin_width = (hi[j] - lo[j]) / n_bins
        for k in range(n_knots):
            position = lo[j] + bin_width * edges[j, k]
            values[k] = position + quantized_displacements[j, k] * resolution
        for k in range(n_knots - 1):
            first = edges[j, k]
            rise = (values[k + 1] - values[k]) / (edges[j, k + 1] - first)
            for e in range(first, edges[j, k + 1]):
                out[j, e] = values[k] + (e - first) * rise
        out[j, n_bins] = values[n_knots - 1]
        for e in range(1, n_bins + 1):
            out[j, e] = max(out[j, e], out[j, e - 1])


def expand_grid(
    lo: Tensor,
    hi: Tensor,
    edges: Tensor,
    quantized_displacements: Tensor,
    n_bins: int,
    exponent: int,
    dtype: torch.dtype,
) -> Tensor:
    out = torch.empty((len(lo), n_bins + 1), dtype=dtype)
    arrays = [_array(t) for t in (lo, hi, edges, quantized_displacements)]
    over_rows(_expand_grid, [*arrays, out.numpy()], math.ldexp(1.0, exponent))
    return out


@_jit
def _keep_smallest(scores, best_scores, best_columns, first):
    n_kept = best_scores.shape[1]
    for i in range(scores.shape[0]):
        n_found = 0
        while n_found < n_kept and best_columns[i, n_found] >= 0:
            n_found += 1
        j = 0
        while n_found < n_kept and j < scores.shape[1]:
            score = scores[i, j]
            best_scores[i, n_found] = score if score == score else np.inf
            best_columns[i, n_found] = first + j
            n_found += 1
            j += 1
        worst = best_scores[i].argmax()
        while j < scores.shape[1]:
            if scores[i, j] < best_scores[i, worst]:
                best_scores[i, worst] = scores[i, j]
                best_columns[i, worst] = first + j
                worst = best_scores[i].argmax()
            j += 1


def keep_smallest(
    scores: Tensor, first: int, best_scores: Tensor, best_columns: Tensor
) -> None:
    arrays = [_array(scores), best_scores.numpy(), best_columns.numpy()]
    over_rows(_keep_smallest, arrays, first)


def _take_columns(x: np.ndarray, out: np.ndarray, indices: np.ndarray) -> None:
    # "clip" spares numpy a second array; `take_points` has checked the indices.
    x.take(indices, axis=1, out=out, mode="clip")


@_jit
def _take_points(indices, out, points):
    """`points` (n, d) and `out` (m, d) are transposed: a row is a point.

    Points that are side by side in `out` are copied together: a line of the cache that
    is written gets values of all of them.
    """
    m, d = out.shape
    for first in range(0, m, _POINTS_TAKEN_TOGETHER):
        end = min(first + _POINTS_TAKEN_TOGETHER, m)
        for j in range(d):
            for t in range(first, end):
                out[t, j] = points[indices[t], j]


def take_points(x: Tensor, indices: Tensor) -> Tensor:
    if bool(((indices < 0) | (indices >= x.shape[1])).any()):
        raise IndexError(f"indices of points must be 0 to {x.shape[1] - 1}")
    out = torch.empty((len(x), len(indices)), dtype=x.dtype)
    if x.T.is_contiguous():
        over_rows(_take_points, [_array(indices), out.T.numpy()], x.T.numpy())
    else:
        over_rows(_take_columns, [x.numpy(), out.numpy()], _array(indices))
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
