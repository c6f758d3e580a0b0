"""Pictures as bytes, for files: the same pictures come back, bit for bit, or a ValueError.

A pixel is stored as v − left − above + (left above): 0 where pictures are flat or change evenly. Of
three channels, the first and the last are stored as differences from the middle one. zlib does the
rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sliceflow.models.deflate import deflated, inflated

__all__ = ["from_bytes", "to_bytes"]

_VALUES = 1 << 24  # of a block; blocks are packed side by side


def to_bytes(pictures: np.ndarray) -> list[bytes]:
    """Blocks of bytes that `from_bytes` reads, of pictures (n, c, h, w) of uint8.

    Examples
    --------
    >>> pictures = np.arange(2 * 3 * 20 * 20, dtype=np.uint8).reshape(2, 3, 20, 20)
    >>> blocks = to_bytes(pictures)
    >>> bool((from_bytes(blocks, pictures.shape) == pictures).all()), sum(map(len, blocks)) < 100
    (True, True)
    """

    def pack(part: np.ndarray) -> bytes:
        stored = part.swapaxes(0, 1).copy()  # channel by channel
        if len(stored) == 3:
            stored[::2] -= stored[1]
        for axis in (2, 3):
            stored = np.diff(stored, axis=axis, prepend=np.uint8(0))  # modulo 256
        return deflated(stored.tobytes())

    size = _size(pictures.shape)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(pack, (pictures[i : i + size] for i in range(0, len(pictures), size))))


def from_bytes(blocks: Sequence[bytes], shape: tuple[int, int, int, int]) -> np.ndarray:
    """The pictures of `to_bytes`, of this shape (n, c, h, w); a ValueError if anything does not fit."""
    n, c, h, w = shape
    size = _size(shape)
    counts = [min(size, n - first) for first in range(0, n, size)]
    if len(blocks) != len(counts):
        raise ValueError(f"{n} pictures have {len(blocks)} blocks instead of {len(counts)}")

    def unpack(packed: bytes, count: int) -> np.ndarray:
        wanted = count * c * h * w
        wrong = f"a block of pictures does not have the {wanted} bytes of {count}"
        whole = inflated(packed, wanted, "pictures", wrong)
        stored = np.frombuffer(whole, np.uint8).reshape(c, count, h, w)
        for axis in (3, 2):
            stored = np.cumsum(stored, axis=axis, dtype=np.uint8)
        if c == 3:
            stored[::2] += stored[1]
        return stored.swapaxes(0, 1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(unpack, blocks, counts)))


def _size(shape: tuple[int, ...]) -> int:
    """Pictures of a block."""
    return max(1, _VALUES // int(np.prod(shape[1:])))
