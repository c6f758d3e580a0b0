"""Packed arrays: the same bits come back, and they compress well."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sliceflow.base import packing

DTYPES = (np.bool, np.uint8, np.int16, np.int32, np.int64, np.uint64)
DTYPES += (np.float16, np.float32, np.float64)


def comes_back(array, n_difference_axes):
    """The compressed size of an array, which is the same after unpacking."""
    packed = packing.pack(array, n_difference_axes)
    assert packed.dtype == array.dtype
    assert packed.shape == array.shape
    unpacked = packing.unpack(packed, n_difference_axes)
    assert unpacked.dtype == array.dtype
    assert unpacked.shape == array.shape
    assert unpacked.tobytes() == array.tobytes()
    return len(zstandard.compress(packed.tobytes()))


@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 3))
def test_the_same_bits_come_back(data, dtype, n_difference_axes):
    if dtype == np.bool:
        n_difference_axes = 0
    shapes = array_shapes(min_dims=max(1, n_difference_axes), max_dims=4, min_side=0)
    comes_back(data.draw(arrays(dtype, shapes)), n_difference_axes)


@pytest.mark.parametrize("n_difference_axes", [0, 1, 3])
def test_arrays_that_are_not_contiguous_come_back(n_difference_axes):
    array = np.random.default_rng(0).normal(size=(5, 4, 3, 6)).transpose(3, 1, 0, 2)
    comes_back(array, n_difference_axes)


def test_smooth_pictures_take_little_and_noise_no_more_than_it_is():
    y, x = np.mgrid[:32, :32]
    slopes = np.arange(200)[:, None, None, None] % 7
    smooth = np.broadcast_to(slopes * (x + y) + 3, (200, 3, 32, 32)).astype(np.uint8)
    assert comes_back(smooth, 3) < smooth.size / 50
    noise = np.random.default_rng(0).integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
    assert comes_back(noise, 3) < 1.01 * noise.size


def test_ascending_numbers_take_a_byte_each_or_less():
    rows = np.cumsum(np.random.default_rng(0).integers(1, 60, (500, 16)), axis=1)
    assert comes_back(rows, 1) < rows.size


def test_floats_take_less_than_as_they_are():
    floats = np.random.default_rng(0).normal(size=100_000)
    as_they_are = len(zstandard.compress(floats.tobytes()))
    assert comes_back(floats, 0) < 0.95 * as_they_are


def test_any_byte_of_a_file_is_a_bool():
    damaged = np.array([0, 1, 7], np.uint8).view(np.bool)
    unpacked = packing.unpack(damaged)
    assert unpacked.view(np.uint8).tolist() == [0, 1, 1]
