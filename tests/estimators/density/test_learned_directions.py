"""The directions in which means bend: found where there are any."""

import numpy as np

from sliceflow.engine.random import Seed
from sliceflow.estimators.density.bases import SmoothBasis
from sliceflow.estimators.density.learned_directions import learn_directions
from sliceflow.estimators.density.progress import FitProgress
from sliceflow.estimators.density.trials import RowsGivenY, Split

N_CONDITIONS = 8


def learn(x, y, listeners=()):
    """A basis, and what is learned from 600 rows and judged by the others."""
    basis = SmoothBasis.from_data(y, Seed(0))
    split = Split(RowsGivenY(x[:600], y[:600]), RowsGivenY(x[600:], y[600:]))
    progress = FitProgress(listeners)
    return basis, learn_directions(basis, split, Seed(1), progress)


def test_the_direction_of_a_wave_is_found(rng):
    """Its mean is a function of y·w alone: most frequencies are near ±w."""
    y = rng.normal(size=(900, N_CONDITIONS))
    w = np.array([2.0, -1.0, 0, 0, 0, 0.5, 0, 0])
    x = np.sin(y @ w)[:, None] + 0.1 * rng.normal(size=(900, 1))
    _, learned = learn(x, y)
    frequencies = learned.frequencies
    cosine = np.abs(w @ frequencies) / np.linalg.norm(frequencies, axis=0)
    assert np.median(cosine) / np.linalg.norm(w) > 0.9
    groups = learned.group_of_each_feature()
    stages = learned.stage_of_each_group()
    assert len(groups) == learned.features(y[:2]).shape[1]
    assert int(groups.max()) + 1 == len(stages)


def test_straight_lines_have_no_directions_to_learn(rng):
    """Held-out rows gain .01 nats by chance in less than one of 100 fits."""
    y = rng.normal(size=(900, N_CONDITIONS))
    x = y[:, :2] + rng.normal(size=(900, 2))
    basis, learned = learn(x, y)
    assert (learned.frequencies == basis.frequencies).all()


def test_one_condition_has_no_directions(rng):
    y = rng.normal(size=(900, 1))
    _, learned = learn(np.sin(5 * y), y)
    assert len(learned.phases) == 0


def test_a_listener_ends_the_search_before_directions_are_learned(rng):
    y = rng.normal(size=(900, N_CONDITIONS))
    heard = []

    def stop(event):
        heard.append(event.trial)
        return True

    basis, learned = learn(np.sin(y[:, :1] + y[:, 1:2]), y, [stop])
    assert heard == ["random directions of y"]
    assert (learned.frequencies == basis.frequencies).all()
