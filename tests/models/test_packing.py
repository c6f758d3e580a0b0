"""Packed arrays: the same bits come back, in few bytes."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sliceflow.models import packing


def comes_back(given_arrays, strategy):
    packed = packing.pack(given_arrays, strategy)
    out = packing.unpack(packed, strategy, [(a.dtype, a.shape) for a in given_arrays])
    for a, b in zip(given_arrays, out, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return len(packed)


@given(st.data())
def test_the_same_pictures_come_back(data):
    shapes = st.tuples(
        st.integers(0, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)
    )
    some = data.draw(st.lists(shapes, min_size=1, max_size=2))
    comes_back([data.draw(arrays(np.uint8, shape)) for shape in some], "pictures")


@pytest.mark.parametrize("strategy", ["planes", "delta", "pictures"])
def test_blocks_are_packed_side_by_side_and_come_back_in_order(monkeypatch, strategy):
    monkeypatch.setattr(packing, "_BLOCK", 100)
    comes_back(
        [np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8)] * 2,
        strategy,
    )


def test_smooth_pictures_take_little_and_noise_no_more_than_it_is():
    y, x = np.mgrid[:32, :32]
    slopes = np.arange(200)[:, None, None, None] % 7
    smooth = np.broadcast_to(slopes * (x + y) + 3, (200, 3, 32, 32)).astype(np.uint8)
    assert comes_back([smooth], "pictures") < smooth.size / 50
    noise = np.random.default_rng(0).integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
    assert comes_back([noise], "pictures") < 1.01 * noise.size


def test_ascending_numbers_take_a_byte_each_or_less():
    rows = np.cumsum(np.random.default_rng(0).integers(1, 60, (500, 16)), axis=1)
    assert comes_back([rows], "delta") < rows.size


FORM = np.dtype(np.uint8), (2, 3, 4, 4)
PACKED = packing.pack([np.arange(96, dtype=np.uint8).reshape(FORM[1])], "pictures")


def block(content):
    """A block with its size before it."""
    return np.frombuffer(len(content).to_bytes(4, "little") + content, np.uint8)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (PACKED[:0], "0 bytes cannot hold 96"),
        (PACKED[:-5], "bytes instead of"),
        (np.append(PACKED, np.uint8(1)), "bytes instead of"),
        (block(PACKED[4:-5].tobytes()), "does not have 96 bytes"),
        (block(PACKED[4:].tobytes() + b"x"), "does not have 96 bytes"),
        (block(b"nothing of zlib"), "cannot be unpacked"),
        (block(zlib.compress(bytes(10**7))), "does not have 96 bytes"),
    ],
)
def test_what_does_not_fit_is_an_error(packed, words):
    with pytest.raises(ValueError, match=words):
        packing.unpack(packed, "pictures", [FORM])
