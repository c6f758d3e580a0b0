"""Chunks of long arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.arrays import chunks


@given(n=st.integers(0, 200), size=st.integers(1, 250))
def test_chunks_cover_a_range_once_and_in_order(n, size):
    items = np.arange(n)
    parts = [items[chunk] for chunk in chunks(n, size)]
    assert [int(item) for part in parts for item in part] == list(range(n))
    assert all(len(part) == size for part in parts[:-1])
    assert all(1 <= len(part) <= size for part in parts)
    assert all(chunk.stop <= n for chunk in chunks(n, size))
