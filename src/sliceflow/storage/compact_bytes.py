"""Compact tables as bytes, for files: the same tables come back, bit for bit, or a ValueError.

Numbers are made small, those that are alike are put side by side, and zlib does the rest.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sliceflow.engine.compact import MOST_BINS, MOST_KNOTS, CompactTable

__all__ = ["PACKING", "from_bytes", "to_bytes"]

PACKING = 2  # how bytes are packed; 1 had ranges as float64, levels as they are, and all map by map
_MOST_RATIO = 1032  # of what zlib can make of its bytes
_MOST_UNITS = 1 << 52  # of a range: sums of two are exact in float64


def to_bytes(tables: Sequence[CompactTable]) -> bytes:
    """What `from_bytes` makes tables of again; they must have one type and one number of bins.

    All numbers of one kind follow each other, of knots the first of every map, then the second, and
    of numbers the lowest bytes first. A level is its difference from that of the knot before; a range
    is where it begins and how wide it is, in the eighths of a step to which it was rounded. Of a map's
    knots the ends have no place: they are at 0 and `n_bins`.

    zlib looks for runs alone, Z_RLE: Z_FILTERED is 1 % smaller and fourteen times as slow to write, the
    default strategy, Huffman's codes alone and lzma are larger.
    """
    lo, hi, sizes, at, levels = (
        torch.cat([getattr(table, name).cpu() for table in tables]).numpy()
        for name in ("lo", "hi", "sizes", "at", "levels")
    )
    lo, hi, sizes = lo.astype("<f8"), hi.astype("<f8"), sizes.astype(np.int64)
    highest = max((t.exponent for t in tables), default=0)
    _check_reach(np.maximum(np.abs(lo), np.abs(hi)), highest, tables[0].dtype)
    exponents = np.repeat([t.exponent for t in tables], [len(t.lo) for t in tables])
    ranges = _in_units(lo, hi, exponents)
    gaps = np.diff(at, prepend=0)[~_ends(sizes)]
    kinds = (
        np.array([ranges is not None], "u1"),
        *((lo, hi) if ranges is None else ranges),
        (sizes - 2).astype("u1"),
        gaps[_knot_by_knot(sizes - 2)].astype("<u2"),
        _rises(levels, sizes)[_knot_by_knot(sizes)].astype("<u2"),
    )
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    return stream.compress(b"".join(map(_planes, kinds))) + stream.flush()


def from_bytes(
    packed: bytes,
    directions: Sequence[int],
    exponents: Sequence[int],
    n_bins: int,
    n_knots: int,
    dtype: torch.dtype,
    packing: int = PACKING,
    device: torch.device | str = "cpu",
) -> list[CompactTable]:
    """The tables of `to_bytes`, of so many `directions` each and `n_knots` in all; else a ValueError.

    The numbers are checked before anything is allocated, against each other and against `packed`. Of an
    earlier version `packing` says which. They lie side by side on the `device`.
    """
    h = sum(directions)
    if len(directions) != len(exponents) or not all(abs(e) <= 1000 for e in exponents):
        raise ValueError(f"there are {len(exponents)} exponents for {len(directions)} tables")
    if not 1 <= n_bins <= MOST_BINS or not 2 * h <= n_knots <= MOST_KNOTS * h:
        raise ValueError(f"{h} compact maps have {n_knots} knots on {n_bins} bins")
    counts = [packing - 1, 8 * h, 8 * h, h, 2 * (n_knots - 2 * h), 2 * n_knots]
    in_units, *ranges, few, gaps, levels = _unpacked(packed, counts, n_knots)
    sizes = few.astype(np.int64) + 2
    if sizes.sum() != n_knots:
        raise ValueError(f"compact maps have {sizes.sum()} knots, not {n_knots}")
    gaps, levels = _whole(gaps, "<u2"), _whole(levels, "<u2")
    if packing > 1:
        gaps, levels = _map_by_map(gaps, sizes - 2), _summed(_map_by_map(levels, sizes), sizes)
    at = _places(gaps, sizes, n_bins)
    lo, hi = (_whole(t, "<u8" if in_units.any() else "<f8") for t in ranges)
    if in_units.any():
        lo, hi = _from_units(lo, hi, np.repeat(np.array(exponents, np.int64), directions))
    if not (lo <= hi).all():
        raise ValueError("compact maps have ranges that end before they begin")
    _check_reach(np.maximum(np.abs(lo), np.abs(hi)), max(exponents, default=0), dtype)
    ends = np.cumsum(directions)
    held = np.diff(np.cumsum(sizes)[ends - 1], prepend=0).tolist() if len(ends) else []
    columns = (
        torch.split(torch.from_numpy(values).to(device), counts)
        for values, counts in (
            (lo.astype("f8"), list(directions)),
            (hi.astype("f8"), list(directions)),
            (sizes.astype("i2"), list(directions)),
            (at, held),
            (levels.astype("u2").view("i2"), held),
        )
    )
    return [
        CompactTable(a, b, c, d, e, n_bins, exponent, dtype)
        for a, b, c, d, e, exponent in zip(*columns, exponents, strict=True)
    ]


def _unpacked(packed: bytes, counts: list[int], n_knots: int) -> list[np.ndarray]:
    """The arrays of so many bytes each that zlib makes of `packed`."""
    if sum(counts) > _MOST_RATIO * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot hold {n_knots} knots")
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(packed, sum(counts) + 1)
    except zlib.error as error:
        raise ValueError(f"compact maps cannot be unpacked: {error}") from error
    if len(whole) != sum(counts) or not stream.eof or stream.unused_data:
        raise ValueError(f"compact maps do not have the {sum(counts)} bytes of {n_knots} knots")
    return np.split(np.frombuffer(whole, np.uint8), np.cumsum(counts)[:-1])


def _check_reach(ends: np.ndarray, exponent: int, dtype: torch.dtype) -> None:
    """Refuse maps whose values may not be finite: they stand within `ends`, a step is 2^`exponent`."""
    farthest = float(ends.max(initial=0.0))
    if not farthest + math.ldexp(1.0, exponent + 15) < torch.finfo(dtype).max / 4:
        raise ValueError(
            f"compact maps reach beyond the numbers of {str(dtype).removeprefix('torch.')}"
        )


# Ranges


def _in_units(
    lo: np.ndarray, hi: np.ndarray, exponents: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Where ranges begin and how wide they are, in eighths of a step; None if that is not exact.

    The lowest bit of a beginning is its sign. That of a width says that the range ends at minus zero.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.ldexp(t, 3 - exponents) for t in (lo, hi))
        width = high - low
    if not ((np.abs(low) < _MOST_UNITS) & (width >= 0) & (width < _MOST_UNITS)).all():
        return None
    begin = np.abs(low).astype("<u8") << 1 | np.signbit(lo)
    wide = width.astype("<u8") << 1 | (np.signbit(hi) & (hi == 0))
    again = _from_units(begin, wide, exponents)
    same = all(a.astype("<f8").tobytes() == b.tobytes() for a, b in zip(again, (lo, hi), strict=True))
    return (begin, wide) if same else None


def _from_units(
    begin: np.ndarray, wide: np.ndarray, exponents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ranges, `lo` and `hi`, of which `_in_units` made these; of any others some numbers."""
    low, width = ((t >> 1).astype("f8") for t in (begin, wide))
    low = np.where(begin & 1, -low, low)
    high = low + width
    high = np.where((wide & 1) & (high == 0), -0.0, high)
    with np.errstate(over="ignore"):
        return np.ldexp(low, exponents - 3), np.ldexp(high, exponents - 3)


# Knots


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Which knots are the first or the last of their map."""
    out = np.zeros(int(sizes.sum()), bool)
    last = np.cumsum(sizes) - 1
    out[last] = out[last - sizes + 1] = True
    return out


def _places(gaps: np.ndarray, sizes: np.ndarray, n_bins: int) -> np.ndarray:
    """Where knots stand, from the bins between them; a ValueError if they do not ascend."""
    at, last = np.zeros(int(sizes.sum()), np.int32), np.cumsum(sizes) - 1
    at[~_ends(sizes)] = gaps
    np.cumsum(at, dtype=np.int32, out=at)  # over all maps, modulo 2³²; within a map they are far below
    at -= np.repeat(at[last - sizes + 1], sizes)
    if not gaps.all() or (at[last] >= n_bins).any():  # the last but one stands where the last does yet
        raise ValueError("compact maps have knots that do not ascend")
    at[last] = n_bins
    return at


def _rises(levels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """By how much levels differ from those before in their map; small ones of either sign are small.

    Modulo 2¹⁶, in which every difference has its place; then 0, −1, 1, −2, … are 0, 1, 2, 3, …
    """
    rises, first = np.diff(levels, prepend=levels[:1]), np.cumsum(sizes) - sizes
    rises[first] = levels[first]
    return ((rises << 1) ^ (rises >> 15)).view(np.uint16)


def _summed(rises: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The levels of which `_rises` were made."""
    rises, first = (rises >> 1) ^ -(rises & 1), np.cumsum(sizes) - sizes
    total = np.cumsum(rises, dtype=np.uint16)
    total -= np.repeat(total[first] - rises[first], sizes)
    return total


def _knot_by_knot(sizes: np.ndarray) -> np.ndarray:
    """The order in which knots that lie map by map are all first ones, then all second ones, …"""
    total = int(sizes.sum())
    first, rows = (np.cumsum(sizes) - sizes).astype(_index(total)), np.flatnonzero(sizes)
    order, filled, number = np.empty(total, first.dtype), 0, 0
    while len(rows):
        np.add(first[rows], number, out=order[filled : filled + len(rows)])
        filled, number = filled + len(rows), number + 1
        rows = rows[sizes[rows] > number]
    return order


def _index(count: int) -> type[np.signedinteger[Any]]:
    """The smaller type that numbers so many: orders are the largest arrays here."""
    return np.int32 if count < 1 << 31 else np.int64


def _map_by_map(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The values in the order from which `_knot_by_knot` took them."""
    if len(sizes) and (sizes == sizes[0]).all():
        return np.ascontiguousarray(values.reshape(-1, len(sizes)).T).reshape(-1)
    out = np.empty(len(values), values.dtype)
    out[_knot_by_knot(sizes)] = values
    return out


# Bytes


def _planes(array: np.ndarray) -> bytes:
    """The lowest bytes of all numbers, then the next."""
    return array.view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _whole(planes: np.ndarray, kind: str) -> np.ndarray:
    wide = np.dtype(kind).itemsize
    return np.ascontiguousarray(planes.reshape(wide, -1).T).reshape(-1).view(kind)
