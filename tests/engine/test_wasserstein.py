"""The distance in one dimension is POT's, for samples of any sizes."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.wasserstein import squared_wasserstein

sizes = st.integers(1, 40)


@given(sizes, sizes, st.integers(0, 99))
def test_it_is_pots(m, n, seed):
    rng = np.random.default_rng(seed)
    z_p = rng.normal(size=(3, m))
    z_q = rng.gamma(2, size=(3, n))
    found = squared_wasserstein(torch.from_numpy(z_p), torch.from_numpy(z_q))
    exact = ot.wasserstein_1d(z_p.T, z_q.T, p=2)
    assert found.numpy() == pytest.approx(exact, rel=1e-9)


def test_equal_values_are_at_distance_0_in_any_order_and_number():
    z = torch.tensor([[3.0, 1.0, 2.0]])
    assert float(squared_wasserstein(z, z.flip(1))) == 0
    assert float(squared_wasserstein(z, z.repeat(1, 4))) == 0
    assert squared_wasserstein(z, z).dtype == torch.float32
