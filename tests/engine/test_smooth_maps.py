"""Smooth maps: increasing, with known slopes and an exact inverse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.smooth_maps import SmoothMaps

SLOPES = st.lists(st.floats(0.01, 50), min_size=2, max_size=8)


def smooth_map(slopes):
    slopes = torch.tensor([slopes], dtype=torch.float64)
    knots = torch.linspace(-2, 2, slopes.shape[1], dtype=torch.float64)[None]
    return SmoothMaps(knots, slopes, torch.tensor([-1.5], dtype=torch.float64))


POINTS = torch.linspace(-30, 30, 1001, dtype=torch.float64)[None]


@given(SLOPES)
def test_the_inverse_undoes_the_map_also_beyond_the_knots(slopes):
    one = smooth_map(slopes)
    values, _ = one.call_and_ladj(POINTS)
    assert bool((values.diff() > 0).all())
    np.testing.assert_allclose(one.inverse(values), POINTS, atol=1e-8)


@given(SLOPES)
def test_slopes_are_those_of_finite_differences(slopes):
    one = smooth_map(slopes)
    # Not at the ends, where the slope may jump.
    inner = torch.linspace(-1.99, 1.99, 777, dtype=torch.float64)[None]
    step = 1e-6
    rise = one.call_and_ladj(inner + step)[0] - one.call_and_ladj(inner - step)[0]
    _, log_slopes = one.call_and_ladj(inner)
    np.testing.assert_allclose(log_slopes.exp(), rise / (2 * step), rtol=2e-3)


def test_a_share_of_a_map_is_between_it_and_the_identity():
    one = smooth_map([0.2, 3.0, 1.0])
    half = one.relaxed(0.5)
    inner = torch.linspace(-2, 2, 99, dtype=torch.float64)[None]
    expected = (inner + one.call_and_ladj(inner)[0]) / 2
    np.testing.assert_allclose(half.call_and_ladj(inner)[0], expected, atol=1e-12)


@pytest.mark.parametrize("slopes", [[1.0, -1.0], [1.0, 0.0], [1.0]])
def test_maps_of_damaged_files_are_refused(slopes):
    with pytest.raises(ValueError, match="smooth maps"):
        smooth_map(slopes).check_saved()
