"""Arrays in an order of bytes that compresses well, and back to the same bits.

A compressor finds few repetitions in the bytes of numbers. Two transformations help it.
Both keep dtype and shape, and can be undone exactly:

- differences: ascending numbers and smooth pictures become small numbers.
- byte planes: the lowest bytes of all numbers come first, then the next, and so on. So
  exponents and zeros of high bytes, which repeat, are neighbors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(array: NDArray[Any], n_difference_axes: int = 0) -> NDArray[Any]:
    """Pack an array: differences along its last axes, in byte planes."""
    array = np.ascontiguousarray(array)
    if n_difference_axes:
        array = _differences(array, n_difference_axes)
    bytes_of_numbers = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    planes = bytes_of_numbers.T.reshape(-1)
    return planes.view(array.dtype).reshape(array.shape)


def unpack(packed: NDArray[Any], n_difference_axes: int = 0) -> NDArray[Any]:
    """The array that `pack` was given."""
    packed = np.ascontiguousarray(packed)
    planes = packed.reshape(-1).view(np.uint8).reshape(packed.itemsize, -1)
    numbers = planes.T.reshape(-1)
    if packed.dtype == np.bool:
        numbers = (numbers != 0).view(np.uint8)  # a file may hold any byte
    array = numbers.view(packed.dtype).reshape(packed.shape)
    if n_difference_axes:
        array = _sums(array, n_difference_axes)
    return array


def _differences(array: NDArray[Any], n_axes: int) -> NDArray[Any]:
    """Differences of the bits as integers, modulo 2^bits.

    The differences 0, −1, 1, −2, … become 0, 1, 2, 3, …, so that the high bytes of
    small differences are zeros, whatever their sign. Protocol Buffers call this code
    zigzag.
    """
    integers = array.view(f"u{array.itemsize}")
    for axis in range(-n_axes, 0):
        integers = np.diff(integers, axis=axis, prepend=integers.dtype.type(0))
    signed = integers.view(f"i{array.itemsize}")
    sign = signed >> (8 * array.itemsize - 1)  # 0 or −1
    codes: NDArray[Any] = (signed << 1) ^ sign
    return codes.view(array.dtype)


def _sums(differences: NDArray[Any], n_axes: int) -> NDArray[Any]:
    """The array from which `_differences` were taken."""
    codes = differences.view(f"u{differences.itemsize}")
    sign = ~(codes & 1) + codes.dtype.type(1)  # 0 or all bits
    integers: NDArray[Any] = (codes >> 1) ^ sign
    for axis in range(-n_axes, 0):
        integers = np.cumsum(integers, axis=axis, dtype=integers.dtype)
    return integers.view(differences.dtype)
