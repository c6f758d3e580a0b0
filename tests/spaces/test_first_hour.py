"""What a new user meets in the first hour."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_moons

from sliceflow import ImageFlow, SlicedWassersteinFlow, frames


def test_the_papers_preset_scales_its_directions_to_the_data():
    X, y = make_moons(500, noise=0.05, random_state=0)
    plan = SlicedWassersteinFlow(preset="paper").plan(X, y)
    assert plan.frame == frames.Random(128)
    assert plan.nbytes < 1 << 30
    few = SlicedWassersteinFlow(preset="paper", n_particles=50)
    wide = few.plan(np.zeros((50, 200)) + np.arange(50)[:, None])
    assert wide.frame == frames.Random(10_000)


def test_a_patch_larger_than_its_resolution_is_refused():
    images = load_digits().images.astype("uint8")
    with pytest.raises(ValueError, match="patch of 9 pixels at a resolution of 4"):
        ImageFlow(schedule="1[1] 4[9]", n_pixel_values=17).plan(images)


def test_a_forgotten_number_of_pixel_values_is_told():
    images = load_digits().images.astype("uint8")
    with pytest.warns(UserWarning, match="n_pixel_values=17"):
        ImageFlow().plan(images)
