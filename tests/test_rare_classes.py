"""Every class is sampled as itself, however rare it is and however few particles are kept."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow


def assert_in_place(flow):
    """Samples of the rare class are at 30, those of the common one at 0."""
    for label, place in (("rare", 30), ("common", 0)):
        samples = flow.sample(500, y=label, random_state=1)
        assert (np.abs(samples.mean(axis=1) - place) < 15).mean() > 0.98
        assert (np.abs(samples - place).max(axis=1) < 6).mean() > 0.9


@pytest.mark.parametrize("transport", ["auto", "sorted", "histogram"])
@pytest.mark.parametrize("n_rare", [1, 20])
def test_offline_samples_of_a_rare_class_are_of_that_class(n_rare, transport):
    rng = np.random.default_rng(n_rare)
    X = np.r_[rng.normal(30, 1, (n_rare, 2)), rng.normal(0, 1, (3000, 2))]
    y = np.repeat(["rare", "common"], [n_rare, 3000])
    flow = SlicedWassersteinFlow(n_steps=60, transport=transport, random_state=0).fit(X, y)
    assert_in_place(flow)
    batched = flow.particles_[flow.particle_conditions_ == "rare"]
    assert len(batched) == 4 * n_rare  # in the data's proportions
    assert (batched.mean(axis=1) > 15).all()


@pytest.mark.parametrize("transport", ["auto", pytest.param("sorted", marks=pytest.mark.slow)])
def test_one_row_in_a_hundred_thousand_is_a_class(transport):
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(30, 1, (1, 2)), rng.normal(0, 1, (100_000, 2))]
    y = np.repeat(["rare", "common"], [1, 100_000])
    flow = SlicedWassersteinFlow(n_steps=100, transport=transport, random_state=0).fit(X, y)
    assert_in_place(flow)


def test_a_class_that_the_particles_leave_out_can_be_sampled():
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(30, 1, (200, 2)), rng.normal(0, 1, (200, 2))]
    y = np.repeat(["rare", "common"], 200)
    flow = SlicedWassersteinFlow(n_steps=60, random_state=0)
    flow.fit(X, y, particle_conditions=np.repeat("common", 3000))
    assert flow.particles_.shape == (3000, 2)
    assert (flow.particle_conditions_ == "common").all()
    assert_in_place(flow)


@pytest.mark.parametrize("amplifier", [10.0, np.inf])
@pytest.mark.parametrize("n_rare", [1, 5])
def test_a_rare_class_of_pictures_is_sampled_as_itself(n_rare, amplifier):
    rng = np.random.default_rng(0)
    dark, light = rng.integers(0, 60, (3000, 4, 4)), rng.integers(180, 256, (n_rare, 4, 4))
    images, labels = np.r_[dark, light].astype(np.uint8), np.repeat(["dark", "light"], [3000, n_rare])
    transport = "auto" if np.isfinite(amplifier) else "histogram"
    flow = ImageFlow(
        n_particles=1000, quality=10, amplifier=amplifier, transport=transport, random_state=0
    ).fit(images, labels)
    assert (flow.sample(200, y="light", random_state=1).mean(axis=(1, 2)) > 128).mean() > 0.98
    assert (flow.sample(200, y="dark", random_state=1).mean(axis=(1, 2)) < 128).mean() > 0.98
    assert len(flow.particles_) == len(flow.particle_conditions_) == 1000


def test_few_particles_are_kept_and_offline_samples_are_as_good():
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    svc = SVC(gamma=0.001).fit(images.reshape(-1, 64), labels)
    flow = ImageFlow(n_pixel_values=17, n_particles=250, quality=8, random_state=0).fit(images, labels)
    assert flow.particles_.shape == (250, 8, 8)
    assert np.abs(np.bincount(flow.particle_conditions_) - 25).max() <= 2
    asked = np.arange(500) % 10
    samples = flow.sample(500, y=asked, random_state=1)
    assert (svc.predict(samples.reshape(-1, 64)) == asked).mean() > 0.85
    batched = svc.predict(flow.particles_.reshape(-1, 64))
    assert (batched == flow.particle_conditions_).mean() > 0.85


@pytest.mark.parametrize("m", [1, 10, 100])
def test_few_particles_without_classes_leave_offline_samples_usable(m):
    rng = np.random.default_rng(0)
    X = rng.normal((1, -2, 3), (1, 2, 0.5), (1000, 3))
    flow = SlicedWassersteinFlow(n_particles=m, n_steps=50, random_state=0).fit(X)
    assert flow.particles_.shape == (m, 3)
    samples = flow.sample(4000, random_state=1)
    np.testing.assert_allclose(samples.mean(axis=0), X.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(samples.std(axis=0), X.std(axis=0), rtol=0.1)


def test_few_particles_with_a_continuous_condition_leave_offline_samples_usable():
    rng = np.random.default_rng(0)
    y = rng.uniform(-2, 2, (1000, 1))
    X = y + 0.1 * rng.normal(size=(1000, 2))
    flow = SlicedWassersteinFlow(50, n_steps=60, condition="joint", random_state=0).fit(X, y)
    assert flow.particles_.shape == (50, 2)
    assert np.abs(flow.sample(500, y=1.0, random_state=1) - 1.0).mean() < 0.3


def test_nothing_is_added_where_there_are_enough_particles():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 2)), np.arange(600) % 3
    steps = []
    flow = SlicedWassersteinFlow(n_particles=2000, n_steps=2, random_state=0)
    flow.fit(X, y, listeners=(lambda event: steps.append(event.particles.shape[1]),))
    assert set(steps) == {2000}


def test_rows_that_come_one_after_the_other_have_rare_classes_too():
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(30, 1, (5, 2)), rng.normal(0, 1, (3000, 2))]
    y = np.repeat(["rare", "common"], [5, 3000])
    flow = SlicedWassersteinFlow(n_steps=60, random_state=0).partial_fit(X, y)
    assert_in_place(flow)
    assert (flow.particle_conditions_ == "rare").sum() == 20
    assert len(flow.particles_) == 4 * 3005


@pytest.mark.parametrize("model", [0, 16])
def test_few_particles_of_pictures_that_come_one_after_the_other(model):
    images = np.r_[np.zeros((300, 4, 4)), np.full((3, 4, 4), 200)].astype(np.uint8)
    labels = np.repeat(["dark", "light"], [300, 3])
    flow = ImageFlow(n_particles=20, quality=5, options=PictureOptions(n_knots=model), random_state=0)
    flow.partial_fit(images, labels)
    assert flow.particles_.shape == (20, 4, 4)
    assert sorted(flow.particle_conditions_) == ["dark"] * 19 + ["light"]
    if model:
        assert (flow.sample(50, y="light", random_state=1).mean(axis=(1, 2)) > 128).all()
