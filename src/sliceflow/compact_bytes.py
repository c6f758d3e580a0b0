"""Compact tables as bytes, for files: the same tables come back, bit for bit, or a ValueError."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from sliceflow.compact import MOST_BINS, MOST_KNOTS, CompactTable

__all__ = ["from_bytes", "to_bytes"]

_MOST_RATIO = 1032  # of what zlib can make of its bytes


def to_bytes(tables: Sequence[CompactTable]) -> bytes:
    """What `from_bytes` makes tables of again; they must have one type and one number of bins.

    All their numbers of one kind follow each other, and of these the lowest bytes come first: so zlib
    sees what is alike. Of a map's knots the ends have no place: they are at 0 and `n_bins`.
    """
    for table in tables:
        _check_range(table)
    lo, hi, sizes, at, levels = (
        torch.cat([getattr(table, name).cpu() for table in tables]).numpy()
        for name in ("lo", "hi", "sizes", "at", "levels")
    )
    inner = ~_ends(sizes.astype(np.int64))
    gaps = np.diff(at, prepend=0)[inner].astype("<u2")
    kinds = (lo.astype("<f8"), hi.astype("<f8"), (sizes - 2).astype("u1"), gaps, levels.astype("<i2"))
    # Only runs and the bytes' own frequencies: smaller here than all of zlib, and much faster.
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    return stream.compress(b"".join(map(_planes, kinds))) + stream.flush()


def from_bytes(
    packed: bytes,
    directions: Sequence[int],
    exponents: Sequence[int],
    n_bins: int,
    n_knots: int,
    dtype: torch.dtype,
) -> list[CompactTable]:
    """The tables of `to_bytes`, of so many `directions` each and `n_knots` in all; else a ValueError.

    The numbers are checked before anything is allocated, against each other and against `packed`.
    """
    h = sum(directions)
    if len(directions) != len(exponents) or not all(abs(e) <= 1000 for e in exponents):
        raise ValueError(f"there are {len(exponents)} exponents for {len(directions)} tables")
    if not 1 <= n_bins <= MOST_BINS or not 2 * h <= n_knots <= MOST_KNOTS * h:
        raise ValueError(f"{h} compact maps have {n_knots} knots on {n_bins} bins")
    counts = [8 * h, 8 * h, h, 2 * (n_knots - 2 * h), 2 * n_knots]
    if sum(counts) > _MOST_RATIO * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot hold {n_knots} knots")
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(packed, sum(counts) + 1)
    except zlib.error as error:
        raise ValueError(f"compact maps cannot be unpacked: {error}") from error
    if len(whole) != sum(counts) or not stream.eof or stream.unused_data:
        raise ValueError(f"compact maps do not have the {sum(counts)} bytes of {n_knots} knots")
    parts = np.split(np.frombuffer(whole, np.uint8), np.cumsum(counts)[:-1])
    kinds = ("<f8", "<f8", "u1", "<u2", "<i2")
    lo, hi, sizes, gaps, levels = (_whole(p, kind) for p, kind in zip(parts, kinds, strict=True))
    sizes = sizes.astype(np.int64) + 2
    if sizes.sum() != n_knots:
        raise ValueError(f"compact maps have {sizes.sum()} knots, not {n_knots}")
    steps = np.zeros(n_knots, np.int64)
    ends = _ends(sizes)
    steps[~ends] = gaps
    at, last = np.cumsum(steps), np.cumsum(sizes) - 1
    at -= np.repeat(at[last - sizes + 1], sizes)
    at[last] = n_bins
    if (np.diff(at)[~ends[1:] | ~ends[:-1]] < 1).any() or not (lo <= hi).all():
        raise ValueError("compact maps have knots that do not ascend")
    out, rows, knots = [], 0, 0
    for count, exponent in zip(directions, exponents, strict=True):
        of, rows = slice(rows, rows + count), rows + count
        held = int(sizes[of].sum())
        where, knots = slice(knots, knots + held), knots + held
        parts = [lo[of], hi[of], sizes[of].astype("i2"), at[where].astype("i4"), levels[where]]
        a, b, c, d, e = (torch.from_numpy(p.astype(p.dtype.newbyteorder("="))) for p in parts)
        out.append(CompactTable(a, b, c, d, e, n_bins, exponent, dtype))
        _check_range(out[-1])
    return out


def _check_range(table: CompactTable) -> None:
    """Refuse maps whose values may not be finite."""
    farthest = max(float(t.abs().amax()) for t in (table.lo, table.hi)) if len(table.lo) else 0.0
    if not farthest + math.ldexp(1.0, table.exponent + 15) < torch.finfo(table.dtype).max / 4:
        raise ValueError(
            f"compact maps reach beyond the numbers of {str(table.dtype).removeprefix('torch.')}"
        )


def _ends(sizes: np.ndarray) -> np.ndarray:
    """Which knots are the first or the last of their map."""
    out = np.zeros(int(sizes.sum()), bool)
    last = np.cumsum(sizes) - 1
    out[last] = out[last - sizes + 1] = True
    return out


def _planes(array: np.ndarray) -> bytes:
    """The lowest bytes of all numbers, then the next."""
    return array.view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _whole(planes: np.ndarray, kind: str) -> np.ndarray:
    wide = np.dtype(kind).itemsize
    return np.ascontiguousarray(planes.reshape(wide, -1).T).reshape(-1).view(kind)
