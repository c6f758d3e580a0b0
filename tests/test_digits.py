"""The promised quality on scikit-learn's digits, by several metrics.

The thresholds leave room: all these numbers move a little with the instructions that a
processor multiplies matrices by.
"""

import numpy as np
import pytest
from sklearn.svm import SVC

from sliceflow import ImageFlow, SlicedWassersteinFlow
from sliceflow.datasets import load
from sliceflow.metrics import (
    frechet_distance_pca,
    nn_ratio,
    sliced_wasserstein,
    two_sample_score,
)


def rows(images):
    return images.reshape(-1, 64) / 8 - 1


@pytest.fixture(scope="module")
def split():
    train = load("digits", "train")
    test = load("digits", "test")
    return (rows(train.images), train.labels), (rows(test.images), test.labels)


def test_short_fits_are_recognized_and_not_copied(split):
    train, test = split
    settings = dict(n_particles=1000, n_steps=60, transport="histogram", random_state=0)
    vectors = SlicedWassersteinFlow(**settings).fit(*train)
    pictures = digits_as_pictures(1000, 0, steps_per_stage=4)
    judge = SVC(C=10).fit(*train)
    for samples, labels in (
        (vectors.particles_, vectors.particle_conditions_),
        pictures,
    ):
        assert judge.score(samples, labels) >= 0.95
        assert 0.8 <= nn_ratio(samples, train[0], test[0]) <= 1.4


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["sorted", "histogram"])
def test_class_conditional_digits_as_vectors(split, transport):
    train, test = split
    settings = dict(n_particles=2000, n_steps=400, transport=transport, random_state=0)
    flow = SlicedWassersteinFlow(**settings).fit(*train)
    samples = flow.particles_
    assert SVC(C=10).fit(*train).score(samples, flow.particle_conditions_) >= 0.985
    assert frechet_distance_pca(samples, test[0], train[0]) <= 0.29
    assert sliced_wasserstein(samples, test[0]) <= 0.048
    assert two_sample_score(samples, test[0]) <= 0.64
    assert 0.8 <= nn_ratio(samples, train[0], test[0]) <= 1.2


@pytest.mark.slow
def test_offline_samples_are_as_good_as_batched_ones(split):
    """Within 20 % on FD-PCA32 at equal counts and equal labels."""
    train, test = split
    flow = SlicedWassersteinFlow(random_state=0).fit(*train)
    batched = flow.particles_[:2000]
    labels = flow.particle_conditions_[:2000]
    offline = flow.sample(2000, y=np.array(labels), random_state=1)
    offline_distance = frechet_distance_pca(offline, test[0], train[0])
    batched_distance = frechet_distance_pca(batched, test[0], train[0])
    assert offline_distance <= 1.2 * batched_distance


def digits_as_pictures(n_particles, seed, steps_per_stage=30):
    """Samples as rows, and their labels."""
    train = load("digits", "train")
    settings = dict(n_pixel_values=17, steps_per_stage=steps_per_stage, device="cpu")
    flow = ImageFlow(n_particles=n_particles, random_state=seed, **settings)
    flow.fit(train.images, train.labels)
    return rows(flow.particles_), flow.particle_conditions_


@pytest.mark.slow
def test_class_conditional_digits_as_pictures(split):
    """Every seed is near the data and copies none of it; TSTR is judged by the mean.

    TSTR is .990 on average, with a standard deviation over seeds, and over processors,
    of .003: .985, three standard errors lower, can be asked of the mean of three seeds
    on every machine.
    """
    train, test = split
    judge = SVC(C=10).fit(*train)
    scores = []
    for seed in range(3):
        samples, labels = digits_as_pictures(2000, seed)
        assert judge.score(samples, labels) >= 0.985
        assert frechet_distance_pca(samples, test[0], train[0]) <= 0.28
        assert 0.85 <= nn_ratio(samples, train[0], test[0]) <= 1.15
        scores.append(SVC(C=10).fit(samples, labels).score(*test))
    assert np.mean(scores) >= 0.985
