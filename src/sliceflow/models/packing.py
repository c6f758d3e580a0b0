"""Arrays made small by zlib, and back: the same bits, or a ValueError before anything large is made."""

from __future__ import annotations

import math
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

_BLOCK = 1 << 22  # bytes that are packed at a time, side by side: zlib takes longer than a fit on a GPU
_MOST_RATIO = 1032  # zlib cannot expand its bytes by more
_Shape = tuple[int, ...]


def pack(arrays: Sequence[np.ndarray], way: str) -> tuple[np.ndarray, list[int]]:
    """Bytes that `unpack` reads, and the size of each of their blocks. The arrays have one dtype.

    "planes" puts the lowest bytes of all numbers first, then the next; "delta" does so with the
    differences along the last axis. "pictures" (n, c, h, w) stores v − left − above + (left above), and
    of three channels the first and the last as differences from the middle one.
    """
    if way == "delta":
        groups: dict[int, list[np.ndarray]] = {}  # rows by their length, in order
        for array in arrays:
            rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
            groups.setdefault(array.shape[-1], []).append(rows)
        whole = b"".join(_delta_bytes(np.concatenate(group)) for group in groups.values())
    elif way == "pictures":
        whole = b"".join(map(_picture_bytes, arrays))
    else:
        whole = _planes(np.concatenate([np.ascontiguousarray(array).reshape(-1) for array in arrays]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, len(whole), _BLOCK)
        blocks = list(pool.map(lambda i: _deflated(whole[i : i + _BLOCK]), starts))
    return np.frombuffer(bytearray(b"".join(blocks)), np.uint8), [len(block) for block in blocks]


def unpack(
    packed: np.ndarray, sizes: Sequence[int], way: str, shapes: Sequence[_Shape], dtype: np.dtype
) -> list[np.ndarray]:
    """The arrays of these shapes; a ValueError if anything does not fit."""
    total = dtype.itemsize * sum(map(math.prod, shapes))
    total += len({shape[-1] for shape in shapes}) if way == "delta" else 0
    lengths = [min(_BLOCK, total - first) for first in range(0, total, _BLOCK)]
    if len(sizes) != len(lengths) or sum(sizes) != len(packed):
        raise ValueError(f"{len(packed)} bytes in {len(sizes)} blocks, not in {len(lengths)}")
    if total > _MOST_RATIO * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot hold {total}")
    parts = [packed[a:b].tobytes() for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        whole = np.frombuffer(bytearray().join(pool.map(_inflated, parts, lengths)), np.uint8)
    if way == "delta":
        return _restore_deltas(whole, shapes, dtype)
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    flat = whole if way == "pictures" else _from_planes(whole, dtype)
    out = [flat[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]
    return list(map(_restore_pictures, out)) if way == "pictures" else out


def unpacked_bytes(shapes: Sequence[_Shape], dtype: np.dtype) -> int:
    """Memory that `unpack` takes: the bytes, their planes and the arrays."""
    return 3 * dtype.itemsize * sum(map(math.prod, shapes))


def _deflated(whole: bytes) -> bytes:
    """zlib by runs (Z_RLE): Z_FILTERED is 1 % smaller and 14 times as slow, all others are larger."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    return stream.compress(whole) + stream.flush()


def _inflated(packed: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(f"a block cannot be unpacked: {error}") from error
    if len(whole) != size or not stream.eof or stream.unused_data:
        raise ValueError(f"a block does not have {size} bytes")
    return whole


def _planes(flat: np.ndarray) -> bytes:
    """The lowest bytes of all numbers, then the next."""
    flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    return flat.view(np.uint8).reshape(-1, flat.itemsize).T.tobytes()


def _from_planes(planes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    wide = np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T)
    return wide.reshape(-1).view(dtype.newbyteorder("<")).astype(dtype, copy=False)


def _delta_bytes(rows: np.ndarray) -> bytes:
    """A byte that says whether differences have signs, and the differences."""
    bits = 8 * rows.itemsize
    signed = rows.view(f"i{rows.itemsize}")
    rises = np.diff(signed, axis=1, prepend=signed.dtype.type(0))  # modulo 2^bits
    falls = bool((rises < 0).any())
    if falls:  # 0, −1, 1, −2, … as 0, 1, 2, 3, …
        rises = (rises << 1) ^ (rises >> (bits - 1))
    return bytes([falls]) + _planes(np.ascontiguousarray(rises.T).reshape(-1))


def _restore_deltas(whole: np.ndarray, shapes: Sequence[_Shape], dtype: np.dtype) -> list[np.ndarray]:
    unsigned, rows = np.dtype(f"u{dtype.itemsize}"), Counter[int]()
    for shape in shapes:
        rows[shape[-1]] += math.prod(shape[:-1])
    at, found = 0, dict[int, np.ndarray]()
    for width, count in rows.items():
        end = at + 1 + width * count * dtype.itemsize
        rises = _from_planes(whole[at + 1 : end], unsigned).reshape(width, count)
        if whole[at]:
            rises = (rises >> 1) ^ (~(rises & 1) + unsigned.type(1))
        values = np.cumsum(rises, axis=0, dtype=unsigned)
        found[width], at = np.ascontiguousarray(values.T).view(dtype), end
    out, used = [], Counter[int]()
    for shape in shapes:
        first, width = used[shape[-1]], shape[-1]
        used[width] += math.prod(shape[:-1])
        out.append(found[width][first : used[width]].reshape(shape))
    return out


def _picture_bytes(pictures: np.ndarray) -> bytes:
    stored = pictures.swapaxes(0, 1).copy()  # channel by channel
    if len(stored) == 3:
        stored[::2] -= stored[1]
    for axis in (2, 3):
        stored = np.diff(stored, axis=axis, prepend=np.uint8(0))  # modulo 256
    return stored.tobytes()


def _restore_pictures(stored: np.ndarray) -> np.ndarray:
    """Pictures (n, c, h, w) from values that are in the order (c, n, h, w)."""
    n, c, h, w = stored.shape
    stored = stored.reshape(c, n, h, w)
    for axis in (3, 2):
        stored = np.cumsum(stored, axis=axis, dtype=np.uint8)
    if c == 3:
        stored[::2] += stored[1]
    return np.ascontiguousarray(stored.swapaxes(0, 1))
