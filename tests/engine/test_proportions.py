"""Which conditions particles have: proportions of classes, rows used equally often."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.encoded_y import (
    ClassIndices,
    ContinuousY,
    SeparateClassIndices,
)
from sliceflow.engine.proportions import (
    MIN_PARTICLES,
    proportional_indices,
    y_with_added_particles,
)
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


@pytest.mark.parametrize(
    ("m", "shared_sizes", "separate_sizes"),
    [
        (10, [1500, 0, 500], [1500, 0, 1000]),  # 2,000 in the data's proportions
        (8000, [7500, 0, 500], [7500, 0, 1000]),  # enough of the first class
        (40_000, [39_500, 0, 500], [39_500, 0, 1000]),  # 2√M of a shared class is 400
    ],
)
def test_particles_are_added_to_small_fits_and_to_small_classes(
    m, shared_sizes, separate_sizes
):
    y_q = torch.repeat_interleave(torch.tensor([0, 2]), torch.tensor([75, 25]))
    n_small = min(500, m // 2)
    n_large = m - n_small
    y_p = torch.repeat_interleave(
        torch.tensor([0, 2]), torch.tensor([n_large, n_small])
    )
    for make_y, sizes in (
        (ClassIndices, shared_sizes),
        (lambda values: SeparateClassIndices(values, 3), separate_sizes),
    ):
        y = y_with_added_particles(y_p=make_y(y_p), y_q=make_y(y_q), seed=Seed(0))
        assert type(y) is type(make_y(y_q))
        assert torch.equal(y.values[:m], y_p)
        assert y.sizes(3).tolist() == sizes


@pytest.mark.parametrize("m", [5, MIN_PARTICLES + 1])
def test_continuous_y_of_added_particles_is_of_the_data(m):
    y_p = torch.randn(m, 2)
    y_q = torch.randn(30, 2)
    y = y_with_added_particles(
        y_p=ContinuousY(y_p), y_q=ContinuousY(y_q), seed=Seed(0)
    ).values
    assert len(y) == max(m, MIN_PARTICLES)
    assert torch.equal(y[:m], y_p)
    assert set(map(tuple, y[m:].tolist())) <= set(map(tuple, y_q.tolist()))
