"""Compact tables as bytes, for files: the same tables come back, bit for bit, or a ValueError.

Numbers are made small, similar ones are put side by side, and zlib does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from sliceflow.engine.compact import MOST_BINS, MOST_KNOTS, CompactTable
from sliceflow.models.deflate import deflated, inflated

__all__ = ["PACKING", "from_bytes", "to_bytes"]

PACKING = 3  # the version of the layout: since 3 maps that move nothing are left out
_MOST_RATIO = 1032  # zlib cannot expand its bytes by more
_MOST_UNITS = 1 << 52  # of a range: sums of two are exact in float64


def to_bytes(tables: Sequence[CompactTable]) -> bytes:
    """Bytes that `from_bytes` reads; the tables have one type, one number of bins and one of knots.

    All numbers of one kind follow each other: of knots the first of every map, then the second, and so
    on; of numbers the lowest bytes first. A level is stored as its difference from that of the knot
    before. A range is stored as its beginning and its width, in the eighths of a step to which it was
    rounded. The first and the last knot need no place: they are at 0 and `n_bins`.
    """
    lo, hi, at, levels = (
        torch.cat([getattr(table, name).cpu() for table in tables]).numpy()
        for name in ("lo", "hi", "at", "levels")
    )
    lo, hi = lo.astype("<f8"), hi.astype("<f8")
    exponents = np.repeat([t.exponent for t in tables], [len(t.lo) for t in tables])
    _check_reach(lo, hi, exponents, tables[0].dtype)
    ranges = _in_units(lo, hi, exponents)
    rises = np.diff(levels, axis=1, prepend=np.int16(0))  # modulo 2¹⁶
    kinds = (
        np.array([ranges is not None], "u1"),
        *((lo, hi) if ranges is None else ranges),
        np.full(len(at), at.shape[1] - 2, "u1"),
        np.diff(at[:, :-1], axis=1).T.astype("<u2"),
        ((rises << 1) ^ (rises >> 15)).T.astype("<u2"),  # 0, −1, 1, −2, … as 0, 1, 2, 3, …
    )
    return deflated(b"".join(map(_planes, kinds)))


def from_bytes(
    packed: bytes,
    directions: Sequence[int],
    exponents: Sequence[int],
    n_bins: int,
    n_knots: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> list[CompactTable]:
    """The tables of `to_bytes`, on the `device`; a ValueError if anything does not fit.

    The numbers are checked before anything is allocated, against each other and against `packed`.

    Parameters
    ----------
    directions : the number of maps of each table
    n_knots : of each map
    """
    h, size = sum(directions), n_knots
    if len(directions) != len(exponents) or not all(abs(e) <= 1000 for e in exponents):
        raise ValueError(f"there are {len(exponents)} exponents for {len(directions)} tables")
    if not 1 <= n_bins <= MOST_BINS or not 2 <= size <= MOST_KNOTS:
        raise ValueError(f"compact maps have {size} knots on {n_bins} bins")
    counts = [1, 8 * h, 8 * h, h, 2 * h * (size - 2), 2 * h * size]
    in_units, begin, end, sizes, *knots = _unpacked(packed, counts, size * h)
    if (sizes != size - 2).any():
        raise ValueError(f"{h} compact maps do not all have {size} knots")
    gaps, rises = (
        _whole(t, "<u2").reshape(k, h).T for t, k in zip(knots, (size - 2, size), strict=True)
    )
    at = np.zeros((h, size), np.int32)
    np.cumsum(gaps, axis=1, dtype=np.int32, out=at[:, 1:-1])
    if not gaps.all() or (at[:, -2] >= n_bins).any():
        raise ValueError("compact maps have knots that do not ascend")
    at[:, -1] = n_bins
    levels = np.cumsum((rises >> 1) ^ -(rises & 1), axis=1, dtype=np.uint16)
    lo, hi = (_whole(t, "<u8" if in_units[0] else "<f8") for t in (begin, end))
    if in_units[0]:
        lo, hi = _from_units(lo, hi, np.repeat(np.array(exponents, np.int64), directions))
    if not (lo <= hi).all():
        raise ValueError("compact maps have ranges that end before they begin")
    _check_reach(lo, hi, np.array(exponents), dtype)
    columns = (
        torch.split(torch.from_numpy(values).to(device), list(directions))
        for values in (lo.astype("f8"), hi.astype("f8"), at, np.ascontiguousarray(levels).view("i2"))
    )
    return [
        CompactTable(a, b, places, steps, n_bins, exponent, dtype)
        for a, b, places, steps, exponent in zip(*columns, exponents, strict=True)
    ]


def _unpacked(packed: bytes, counts: list[int], n_knots: int) -> list[np.ndarray]:
    """The arrays of `counts` bytes each that zlib makes of `packed`."""
    if sum(counts) > _MOST_RATIO * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot hold {n_knots} knots")
    wrong = f"compact maps do not have the {sum(counts)} bytes of {n_knots} knots"
    whole = inflated(packed, sum(counts), "compact maps", wrong)
    return np.split(np.frombuffer(whole, np.uint8), np.cumsum(counts)[:-1])


def _check_reach(lo: np.ndarray, hi: np.ndarray, exponents: np.ndarray, dtype: torch.dtype) -> None:
    """Raise a ValueError if values of these maps may not be finite; a step is 2^exponent."""
    farthest = float(np.maximum(np.abs(lo), np.abs(hi)).max(initial=0.0))
    step = math.ldexp(1.0, int(exponents.max(initial=0)) + 15)
    if not farthest + step < torch.finfo(dtype).max / 4:
        raise ValueError(
            f"compact maps reach beyond the numbers of {str(dtype).removeprefix('torch.')}"
        )


def _in_units(
    lo: np.ndarray, hi: np.ndarray, exponents: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """The beginnings and widths of ranges in eighths of a step; None if that is not exact.

    The lowest bit of a beginning is its sign. That of a width is set if the range ends at minus zero.
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
    """`lo` and `hi` of the ranges from which `_in_units` made these."""
    low, width = ((t >> 1).astype("f8") for t in (begin, wide))
    low = np.where(begin & 1, -low, low)
    high = low + width
    high = np.where((wide & 1) & (high == 0), -0.0, high)
    with np.errstate(over="ignore"):
        return np.ldexp(low, exponents - 3), np.ldexp(high, exponents - 3)


def _planes(array: np.ndarray) -> bytes:
    """The lowest bytes of all numbers, then the next."""
    array = np.ascontiguousarray(array).reshape(-1)
    return array.view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _whole(planes: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of `_planes`."""
    wide = np.dtype(kind).itemsize
    return np.ascontiguousarray(planes.reshape(wide, -1).T).reshape(-1).view(kind)
