"""Arrays as bytes, made small by zlib, and back: the same bits, or a ValueError."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np

_BLOCK = (
    1 << 22
)  # bytes that are packed at a time, side by side: zlib takes longer than a fit on a GPU
_MOST_RATIO = 1032  # zlib cannot expand its bytes by more
Form = tuple[np.dtype, tuple[int, ...]]  # the type and the shape of an array


def pack(arrays: Sequence[np.ndarray], strategy: str) -> np.ndarray:
    """Bytes that `unpack` reads.

    "" is the arrays as they are, of any types. The other ways take arrays of one type, and put the
    lowest bytes of all numbers first, then the next: "planes" those of the numbers, "delta" of their
    differences along the last axis, and "pictures" (n, c, h, w) of v − left − above + (left above),
    where the first and the last of three channels are differences from the middle one.
    """
    if strategy in _FILTERS:
        arrays = [_FILTERS[strategy][0](array) for array in arrays]
    little = (a.astype(a.dtype.newbyteorder("<"), copy=False) for a in arrays)
    parts = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in little]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if not strategy:
        return whole
    planes = whole.reshape(-1, arrays[0].itemsize).T.tobytes()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, len(planes), _BLOCK)
        blocks = list(pool.map(lambda i: _deflated(planes[i : i + _BLOCK]), starts))
    sizes = np.array([len(block) for block in blocks], "<u4").tobytes()
    return np.frombuffer(b"".join([sizes, *blocks]), np.uint8)


def unpack(
    packed: np.ndarray, strategy: str, forms: Sequence[Form]
) -> list[np.ndarray]:
    """The arrays of these types and shapes; a ValueError if anything does not fit."""
    ends = [0, *accumulate(dtype.itemsize * math.prod(shape) for dtype, shape in forms)]
    if strategy and len({dtype for dtype, _ in forms}) != 1:
        raise ValueError("packed arrays are not of one type")
    whole = _planes(packed, ends[-1], forms[0][0].itemsize) if strategy else packed
    if len(whole) != ends[-1]:
        raise ValueError(f"there are {len(whole)} bytes instead of {ends[-1]}")
    out = []
    for (first, end), (dtype, shape) in zip(pairwise(ends), forms, strict=True):
        part = whole[first:end]
        little = part != 0 if dtype.kind == "b" else part.view(dtype.newbyteorder("<"))
        array = np.require(little, dtype, ["A", "W"]).reshape(shape)
        out.append(_FILTERS[strategy][1](array) if strategy in _FILTERS else array)
    return out


def _planes(packed: np.ndarray, total: int, width: int) -> np.ndarray:
    """The `total` bytes of numbers of `width` bytes each."""
    lengths = [min(_BLOCK, total - first) for first in range(0, total, _BLOCK)]
    if 4 * len(lengths) > len(packed) or total > _MOST_RATIO * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot hold {total}")
    sizes = packed[: 4 * len(lengths)].view("<u4").tolist()
    blocks = packed[4 * len(lengths) :]
    if sum(sizes) != len(blocks):
        raise ValueError(f"{len(blocks)} bytes instead of {sum(sizes)}")
    parts = [blocks[a:b].tobytes() for a, b in pairwise([0, *accumulate(sizes)])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        whole = np.frombuffer(
            bytearray().join(pool.map(_inflated, parts, lengths)), np.uint8
        )
    return whole.reshape(width, -1).T.reshape(-1)


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


def _differences(array: np.ndarray) -> np.ndarray:
    """Differences along the last axis, which comes first; 0, −1, 1, −2, … are 0, 1, 2, 3, …"""
    signed = np.ascontiguousarray(array).view(f"i{array.itemsize}")
    rises = np.diff(signed, axis=-1, prepend=signed.dtype.type(0))  # modulo 2^bits
    return np.moveaxis((rises << 1) ^ (rises >> (8 * array.itemsize - 1)), -1, 0)


def _sums(differences: np.ndarray) -> np.ndarray:
    shape = differences.shape
    unsigned = np.dtype(f"u{differences.itemsize}")
    codes = np.moveaxis(
        differences.view(unsigned).reshape(shape[-1:] + shape[:-1]), 0, -1
    )
    rises = (codes >> 1) ^ (~(codes & 1) + unsigned.type(1))
    return np.cumsum(rises, axis=-1, dtype=unsigned).view(differences.dtype)


def _from_neighbours(pictures: np.ndarray) -> np.ndarray:
    whole = pictures.view(f"u{pictures.itemsize}")  # the bits of floats
    stored = whole.swapaxes(0, 1).copy()  # channel by channel
    if len(stored) == 3:
        stored[::2] -= stored[1]
    for axis in (2, 3):
        stored = np.diff(
            stored, axis=axis, prepend=stored.dtype.type(0)
        )  # modulo 2^bits
    return stored


def _pictures(stored: np.ndarray) -> np.ndarray:
    """Pictures (n, c, h, w) from values that are in the order (c, n, h, w)."""
    n, c, h, w = stored.shape
    dtype = stored.dtype
    stored = stored.view(f"u{dtype.itemsize}").reshape(c, n, h, w)
    for axis in (3, 2):
        stored = np.cumsum(stored, axis=axis, dtype=stored.dtype)
    if c == 3:
        stored[::2] += stored[1]
    return np.ascontiguousarray(stored.swapaxes(0, 1)).view(dtype)


_FILTERS = {  # what is packed instead of an array, and the array again
    "delta": (_differences, _sums),
    "pictures": (_from_neighbours, _pictures),
}
