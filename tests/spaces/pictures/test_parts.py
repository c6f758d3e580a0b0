"""On a CPU, stages look at parts of many pictures in turn."""

import numpy as np
from sklearn.datasets import load_digits

from sliceflow import ImageFlow


def test_parts_have_all_classes_and_every_picture_is_seen():
    digits = load_digits()
    images = np.tile(digits.images.astype("uint8"), (7, 1, 1))[:12_000]
    labels = np.tile(digits.target, 7)[:12_000]
    flow = ImageFlow(quality=1, n_pixel_values=17, n_particles=500, random_state=0, device="cpu")
    job = flow.prepare(images, labels).job
    assert job.plan.n_looked_at == 10_000
    assert flow.plan(images[:1797], labels[:1797]).n_looked_at is None  # every stage sees all
    parts = job.begin().parts
    assert len(parts) == 2
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(12_000))
    for part in parts:
        assert np.bincount(labels[part.numpy()], minlength=10).min() > 500
    flow.fit(images, labels)
    both = (images, labels), (flow.particles_, flow.particle_conditions_)
    for c in (0, 1):
        means = [x[y == c].mean(0) for x, y in both]
        assert np.abs(means[0] - means[1]).max() < 2.5  # of 16


def test_a_cpu_has_fewer_particles_than_twice_the_pictures():
    images = np.zeros((30_000, 4, 4), np.uint8)
    images[:, 0, 0] = np.arange(30_000) % 251
    plans = {q: ImageFlow(quality=q, device="cpu").plan(images) for q in ("draft", "standard", "best")}
    assert [plan.n_particles for plan in plans.values()] == [10_000, 20_000, 40_000]
