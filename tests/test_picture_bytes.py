"""Pictures as bytes, for files."""

import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sliceflow.models import picture_bytes
from sliceflow.models.picture_bytes import from_bytes, to_bytes


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)).flatmap(
        lambda shape: arrays(np.uint8, shape)
    )
)
def test_the_same_pictures_come_back(pictures):
    blocks = to_bytes(pictures)
    again = from_bytes(blocks, pictures.shape)
    assert again.dtype == np.uint8
    assert np.array_equal(again, pictures)


def test_blocks_are_packed_side_by_side_and_come_back_in_order(monkeypatch):
    monkeypatch.setattr(picture_bytes, "_VALUES", 100)
    pictures = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8)
    blocks = to_bytes(pictures)
    assert len(blocks) == 50
    assert np.array_equal(from_bytes(blocks, pictures.shape), pictures)


def test_smooth_pictures_take_little_and_noise_no_more_than_it_is():
    y, x = np.mgrid[:32, :32]
    slopes = np.arange(200)[:, None, None, None] % 7
    smooth = np.broadcast_to(slopes * (x + y) + 3, (200, 3, 32, 32)).astype(np.uint8)
    assert sum(map(len, to_bytes(smooth))) < smooth.size / 50
    noise = np.random.default_rng(0).integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
    assert sum(map(len, to_bytes(noise))) < 1.01 * noise.size


PICTURES = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
(BLOCK,) = to_bytes(PICTURES)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([], "2 pictures have 0 blocks instead of 1"),
        ([BLOCK, BLOCK], "2 pictures have 2 blocks instead of 1"),
        ([BLOCK[:-5]], "does not have the 96 bytes of 2"),
        ([BLOCK + b"x"], "does not have the 96 bytes of 2"),
        ([b"nothing of zlib"], "cannot be unpacked"),
        ([zlib.compress(bytes(95))], "does not have the 96 bytes of 2"),
        ([zlib.compress(bytes(10_000_000))], "does not have the 96 bytes of 2"),
    ],
)
def test_what_does_not_fit_is_an_error(blocks, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        from_bytes(blocks, PICTURES.shape)
