"""Which conditions particles have: proportions of classes, rows used equally often."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.encoded_y import ClassIndices, ContinuousY
from sliceflow.engine.proportions import proportional_indices
from sliceflow.engine.random import Seed


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 200))
def test_labels_are_in_the_datas_proportions(sizes, m):
    classes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    chosen = classes[proportional_indices(ClassIndices(classes), m, Seed(0))]
    assert len(chosen) == m
    share = np.array(sizes) * m / sum(sizes)
    counts = np.bincount(chosen, minlength=len(sizes))
    assert np.all(np.abs(counts - share) < 1)


@given(st.integers(1, 20), st.integers(1, 70))
def test_rows_of_continuous_conditions_are_used_equally_often(n, m):
    rows = proportional_indices(ContinuousY(torch.randn(n, 2)), m, Seed(0))
    counts = np.bincount(rows, minlength=n)
    assert counts.sum() == m
    assert counts.max() - counts.min() <= 1
