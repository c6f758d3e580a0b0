"""The promised quality on scikit-learn's digits, by the protocol of `metrics.labelled_protocol`."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sliceflow import SlicedWassersteinFlow
from sliceflow.metrics import frechet_distance_pca, labelled_protocol


@pytest.fixture(scope="module")
def split():
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x / 8 - 1, y, test_size=500, stratify=y, random_state=0
    )
    return (x_train, y_train), (x_test, y_test)


@pytest.mark.parametrize("transport", ["sorted", "histogram"])
def test_class_conditional_digits_as_vectors(split, transport):
    train, test = split
    flow = SlicedWassersteinFlow(2000, 400, transport=transport, random_state=0).fit(*train)
    out = labelled_protocol(flow.particles_, flow.particle_conditions_, train, test)
    assert out["accuracy"] >= 0.99
    assert out["FD-PCA32"] <= 0.27
    assert out["sliced distance"] <= 0.046
    assert out["two-sample accuracy"] <= 0.62
    assert 0.8 <= out["NN ratio"] <= 1.2


def test_offline_samples_are_as_good_as_batched_ones(split):
    """Within 15 % on FD-PCA32 at equal counts and equal labels."""
    train, test = split
    flow = SlicedWassersteinFlow(random_state=0).fit(*train)
    batched, labels = flow.particles_[:2000], flow.particle_conditions_[:2000]
    offline = flow.sample(2000, y=np.array(labels), random_state=1)
    ours, theirs = (frechet_distance_pca(x, test[0], train[0]) for x in (offline, batched))
    assert ours <= 1.15 * theirs
