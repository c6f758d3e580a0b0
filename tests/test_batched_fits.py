"""Fits whose steps look at few columns end where they should."""

import numpy as np
import pytest

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.metrics import sliced_wasserstein


@pytest.mark.parametrize("transport", [Histogram(64, most=500), Sorted(most=500)], ids=str)
def test_a_flow_of_batches_ends_near_the_data(transport):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 2000)
    rows = rng.normal(size=(4000, 3)) * [1, 0.5, 2] + 6 * labels[:, None]
    flow = SlicedWassersteinFlow(
        n_particles=3000,
        n_steps=30,
        transport=transport,
        random_state=0,
        options=VectorOptions(smoothing=0),
    )
    flow.fit(rows, labels)
    for label in (0, 1):
        ours = flow.particles_[flow.particle_conditions_ == label]
        assert sliced_wasserstein(ours, rows[labels == label]) < 0.1
        assert sliced_wasserstein(flow.sample(500, label, 0), rows[labels == label]) < 0.3


def test_particles_come_back_in_the_order_of_their_own_conditions():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 500)
    rows = rng.normal(size=(1000, 2)) + 20 * labels[:, None]
    wanted = np.repeat([1, 0], [900, 100])  # sorted: a run of them is not a fair sample
    transport = Histogram(64, most=200)
    flow = SlicedWassersteinFlow(n_steps=20, transport=transport, random_state=0)
    flow.fit(rows, labels, particle_conditions=wanted)
    assert np.array_equal(flow.particles_.mean(axis=1) > 10, wanted == 1)


def test_pictures_in_batches_keep_their_classes():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 900)
    pictures = np.clip(60 + 120 * labels[:, None, None] + rng.normal(0, 20, (900, 4, 4)), 0, 255)
    flow = ImageFlow(
        n_particles=800,
        quality=5,
        transport=Histogram(64, most=200),
        options=PictureOptions(n_knots=0),
        random_state=0,
    ).fit(pictures.astype(np.uint8), labels)
    assert np.array_equal(flow.particles_.mean(axis=(1, 2)) > 120, flow.particle_conditions_ == 1)
