"""The kernels of `reference` for the CPU, in numba: one direction at a time, whose values stay in the cache."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from sliceflow.kernels import reference
from sliceflow.kernels.reference import GAP_RATIO, LEVEL_EPSILON

# error_model="numpy": 1/0 is inf, as in torch. No fastmath: NaN and inf must keep their meaning.
# Not parallel=True: that takes numba ten times as long to compile; `over_rows` threads instead.
_jit: Any = numba.njit(cache=True, error_model="numpy", nogil=True)
# For what is never NaN: minima are vectorised.
_no_nan: Any = numba.njit(
    cache=True, error_model="numpy", nogil=True, fastmath={"nnan"}
)
_inline: Any = numba.njit(cache=True, error_model="numpy", inline="always")


def _array(z: Tensor) -> np.ndarray:
    return z.contiguous().numpy()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads of one process (a forked child must not use its parent's)."""
    return ThreadPoolExecutor(threads, thread_name_prefix="sliceflow")


def over_rows(
    kernel: Callable[..., Any], arrays: Sequence[np.ndarray], *shared: Any
) -> None:
    """`kernel` on blocks of rows of `arrays` and all of `shared`, in as many threads as torch uses."""
    rows = len(arrays[0])
    size = max(a.size for a in arrays)
    threads = min(torch.get_num_threads(), rows) if size >= 1 << 15 else 1
    if threads <= 1:
        kernel(*arrays, *shared)
        return
    cuts = [rows * k // threads for k in range(threads + 1)]
    blocks = [[a[lo:hi] for a in arrays] for lo, hi in pairwise(cuts)]
    pool = _pool(os.getpid(), threads)
    for done in [pool.submit(kernel, *block, *shared) for block in blocks]:
        done.result()


@_inline
def _finite_rate(lo, hi, n_bins):
    rate = n_bins / (hi - lo)
    return rate if rate < np.inf and rate > 0 else 0.0


@_inline
def _bin(v, start, rate, n_bins):
    # Unsigned, so that numba tests no negative indices. No comparison with NaN holds: its bin is 0.
    position = (v - start) * rate
    position = position if position > 0.0 else 0.0
    return np.uintp(position if position < n_bins - 1.0 else n_bins - 1.0)


@_jit
def _philox(out, first, key0, key1):
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for i in range(out.shape[0]):
        counter = np.uint64(first + i)
        c0 = counter & mask
        c1 = counter >> shift
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
        out[i, 0] = c0
        out[i, 1] = c1
        out[i, 2] = c2
        out[i, 3] = c3


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    out = np.empty((n, 4), np.int64)
    _philox(out, first, *key)
    return torch.from_numpy(out)


@_jit
def _box_muller(words, out):
    for i in range(words.shape[0]):
        for j in range(0, words.shape[1], 2):
            u = (words[i, j] + 0.5) / 2.0**32
            v = (words[i, j + 1] + 0.5) / 2.0**32
            radius = math.sqrt(-2.0 * math.log(u))
            angle = 2.0 * math.pi * v
            out[i, j] = radius * math.cos(angle)
            out[i, j + 1] = radius * math.sin(angle)


def box_muller(words: Tensor) -> Tensor:
    # Not torch's functions: waking its threads takes longer than a few thousand numbers do.
    out = torch.empty(words.shape, dtype=torch.float64)
    over_rows(_box_muller, [_array(words), out.numpy()])
    return out


def sort_rows(z: Tensor) -> Tensor:
    # numpy's vectorised sort is about ten times as fast as torch's or numba's.
    array = _array(z).copy()
    over_rows(np.ndarray.sort, [array])
    return torch.from_numpy(array)


@_jit
def _pack(bits, keys):
    # Float bits in the order of the floats (negative ones run backwards), then the column.
    for j in range(bits.shape[0]):
        for t in range(bits.shape[1]):
            b = np.int64(bits[j, t])
            keys[j, t] = ((b ^ ((b >> 63) & 0x7FFFFFFF)) << 32) | t


@_jit
def _unpack(z, keys, values):
    for j in range(z.shape[0]):
        for t in range(z.shape[1]):
            keys[j, t] &= 0xFFFFFFFF
            values[j, t] = z[j, keys[j, t]]


def argsort_rows(z: Tensor) -> tuple[Tensor, Tensor]:
    # Sorting (value, column) packed in 64 bits takes two thirds of numpy's argsort.
    array = _array(z)
    if array.dtype != np.float32:
        order = np.empty(array.shape, np.int64)
        over_rows(
            lambda rows, out: np.copyto(out, rows.argsort(axis=1)), [array, order]
        )
        return torch.from_numpy(np.take_along_axis(array, order, 1)), torch.from_numpy(
            order
        )
    keys = np.empty(array.shape, np.int64)
    values = np.empty_like(array)
    over_rows(_pack, [array.view(np.int32), keys])
    over_rows(np.ndarray.sort, [keys])
    over_rows(_unpack, [array, keys, values])
    return torch.from_numpy(values), torch.from_numpy(keys)


@_jit
def _add_class_offsets(z, offsets, out, codes):
    for j in range(z.shape[0]):
        for t in range(z.shape[1]):
            out[j, t] = z[j, t] + offsets[j, codes[t]]


def add_class_offsets(z: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    out = torch.empty_like(z)
    over_rows(
        _add_class_offsets, [_array(z), _array(offsets), out.numpy()], _array(codes)
    )
    return out


@_no_nan
def _closest(x, own, out, rows, most):
    away = np.empty(rows.shape[1], rows.dtype)
    for i in range(x.shape[0]):
        away[:] = 0
        for c in range(rows.shape[0]):
            for j in range(away.size):
                away[j] += min(abs(rows[c, j] - x[i, c]), most[c])
        if own[i] >= 0:
            away[own[i]] = np.inf
        least = away[0]
        for j in range(away.size):
            if away[j] < least:
                least = away[j]
        out[i] = least


def closest(x: Tensor, rows: Tensor, most: Tensor, others: bool = False) -> Tensor:
    out = x.new_empty(len(x))
    own = torch.arange(len(x)) if others else torch.full((len(x),), -1)
    over_rows(
        _closest, [*map(_array, (x, own)), out.numpy()], _array(rows.T), _array(most)
    )
    return out


@_jit
def _match(z_p, z_q, w_q, out, ratio):
    h, m = z_p.shape
    n = z_q.shape[1]
    for j in range(h):
        total = 0.0
        if w_q.shape[1]:
            for i in range(n):
                total += w_q[j, i]
        i = 0  # the datum left of the current level
        below = 0.0  # cumulative weight of the data before i
        k = 0
        while k < m:
            end = k + 1
            while end < m and z_p[j, end] == z_p[j, k]:
                end += 1
            if w_q.shape[1]:
                level = (k + end) / (2.0 * m) * total
                while (
                    i < n - 1
                    and below + w_q[j, i] + 0.5 * w_q[j, min(i + 1, n - 1)] <= level
                ):
                    below += w_q[j, i]
                    i += 1
                right = min(i + 1, n - 1)
                gap = 0.5 * (w_q[j, i] + w_q[j, right])
                f = (level - below - 0.5 * w_q[j, i]) / gap
                edge = 0.5 * w_q[j, i] / gap
            else:
                position = (k + end) / (2.0 * m) * n - 0.5
                i = min(max(int(np.floor(position)), 0), n - 1)
                right = min(i + 1, n - 1)
                f = position - i
                edge = 0.5
            f = min(max(f, 0.0), 1.0)
            if n > 2:
                gap = np.float64(z_q[j, right]) - np.float64(z_q[j, i])
                beside = 0.0
                if i > 0:
                    beside = np.float64(z_q[j, i]) - np.float64(z_q[j, i - 1])
                if right < n - 1:
                    beside = max(
                        beside,
                        np.float64(z_q[j, right + 1]) - np.float64(z_q[j, right]),
                    )
                if gap > ratio * beside:
                    f = 1.0 if f > edge else 0.0
            left_value = np.float64(z_q[j, i])
            value = left_value + f * (np.float64(z_q[j, right]) - left_value)
            for t in range(k, end):
                out[j, t] = value
            k = end


def match(z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None) -> Tensor:
    out = torch.empty_like(z_p)
    w = np.empty((z_q.shape[0], 0)) if w_q is None else _array(w_q.double())
    over_rows(_match, [_array(z_p), _array(z_q), w, out.numpy()], GAP_RATIO)
    return out


@_jit
def _displace_knots(z, knots, values, out):
    h, n = z.shape
    last = knots.shape[1] - 1
    n_cells = 2 * knots.shape[1]
    for j in range(h):
        lo = np.float64(knots[j, 0])
        hi = np.float64(knots[j, last])
        low_end = np.float64(values[j, 0])
        high_end = np.float64(values[j, last])
        slope = 1.0 if hi > lo and high_end > low_end else 0.0
        rate = _finite_rate(lo, hi, n_cells)
        # first[c]: how many knots lie in cells before c. A value in cell c therefore lies at or
        # above knot first[c] - 1 and below knot first[c + 1]: both sides use the same rounding.
        first = np.empty(n_cells + 1, np.int32)
        c = 0
        for i in range(last + 1):
            cell = np.intp(_bin(np.float64(knots[j, i]), lo, rate, n_cells))
            while c <= cell:
                first[c] = i
                c += 1
        first[c:] = last + 1
        for t in range(n):
            v = np.float64(z[j, t])
            if v <= lo:
                out[j, t] = low_end + slope * (v - lo) - v
            elif v < hi:
                own = np.intp(_bin(v, lo, rate, n_cells))
                a = max(first[own] - 1, 0)
                b = min(first[own + 1], last)
                while b - a > 4:  # knots[a] <= v < knots[b]
                    middle = (a + b) >> 1
                    if knots[j, middle] <= v:
                        a = middle
                    else:
                        b = middle
                while knots[j, a + 1] <= v:
                    a += 1
                left = np.float64(knots[j, a])
                low = np.float64(values[j, a])
                f = (v - left) / (np.float64(knots[j, a + 1]) - left)
                out[j, t] = low + f * (np.float64(values[j, a + 1]) - low) - v
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
def _count(z, lo, hi, counts, weights):
    n_bins = counts.shape[1]
    # Two histograms taken in turn, so that equal neighbours do not wait for each other.
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


def count(
    z: Tensor, lo: Tensor, hi: Tensor, n_bins: int, weights: Tensor | None = None
) -> Tensor:
    counts = torch.zeros((z.shape[0], n_bins), dtype=torch.float64)
    w = np.empty(0) if weights is None else _array(weights.double())
    over_rows(_count, [_array(z), lo.numpy(), hi.numpy(), counts.numpy()], w)
    return counts


histogram = partial(reference.histogram, count=count, value_range=value_range)


@_jit
def _compose(counts_p, lo_p, hi_p, counts_q, lo_q, hi_q, values, cost, epsilon):
    h, n_p = counts_p.shape
    n_q = counts_q.shape[1]
    for j in range(h):
        mass_p = counts_p[j].sum()
        mass_q = counts_q[j].sum()
        width = (hi_q[j] - lo_q[j]) / n_q
        point = not (hi_p[j] > lo_p[j])
        i = 0  # the data's bin that holds the current level
        below = 0.0  # mass before that bin
        level = 0.0
        run = 0  # the last edge that is not inside an empty run
        for b in range(n_p + 1):
            if b > 0:
                level += counts_p[j, b - 1]
            empty_left = b == 0 or counts_p[j, b - 1] == 0
            if b > 0 and empty_left and b < n_p and counts_p[j, b] == 0:
                continue
            a = level / mass_p + (epsilon if empty_left else -epsilon)
            a = 0.5 if point else min(max(a, 0.0), 1.0)
            a *= mass_q
            while i < n_q - 1 and below + counts_q[j, i] <= a:
                below += counts_q[j, i]
                i += 1
            mass = counts_q[j, i]
            f = min(max((a - below) / mass, 0.0), 1.0) if mass > 0 else 0.0
            values[j, b] = lo_q[j] + width * (i + f)
            for e in range(run + 1, b):
                values[j, e] = values[j, run] + (e - run) / (b - run) * (
                    values[j, b] - values[j, run]
                )
            run = b
        step = (hi_p[j] - lo_p[j]) / n_p
        left = values[j, 0] - lo_p[j]
        total = 0.0
        for b in range(n_p):
            right = values[j, b + 1] - (lo_p[j] + (b + 1) * step)
            total += counts_p[j, b] * (left * left + left * right + right * right)
            left = right
        cost[j] = total / (3.0 * mass_p)


def compose(
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
    over_rows(_compose, [*arrays, values.numpy(), cost.numpy()], LEVEL_EPSILON)
    return values, cost


@_jit
def _displace_grid(z, lo, hi, values, out):
    n_bins = values.shape[1] - 1
    for j in range(z.shape[0]):
        row = z[j]
        table = values[j]
        moved = out[j]
        start = lo[j]
        end = hi[j]
        rate = _finite_rate(start, end, n_bins)
        low_end = np.float64(table[0])
        high_end = np.float64(table[n_bins])
        slope = 1.0 if end > start and high_end > low_end else 0.0
        for t in range(row.shape[0]):
            v = np.float64(row[t])
            position = (v - start) * rate
            if position >= n_bins:
                moved[t] = high_end + slope * (v - end) - v
            elif position > 0:
                b = np.uintp(position)
                low = np.float64(table[b])
                moved[t] = (
                    low
                    + (position - b) * (np.float64(table[b + np.uintp(1)]) - low)
                    - v
                )
            else:  # or it is NaN, and so is this
                moved[t] = low_end + slope * (v - start) - v


def displace_grid(z: Tensor, lo: Tensor, hi: Tensor, values: Tensor) -> Tensor:
    out = torch.empty_like(z)
    over_rows(
        _displace_grid, [_array(z), _array(lo), _array(hi), _array(values), out.numpy()]
    )
    return out


displace_classes = partial(reference.displace_classes, displace=displace_grid)
project_tiles = partial(reference.project_tiles, add=add_class_offsets)
move_tiles = partial(
    reference.move_tiles, project=project_tiles, displace=displace_grid
)
