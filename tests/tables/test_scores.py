"""Normal scores of columns."""

import numpy as np
import pandas as pd

from mixed_tables import columns
from sliceflow import TableFlow
from sliceflow.spaces.tables import scores


def test_smooth_scores_go_back_to_their_numbers():
    numbers = np.random.default_rng(0).gamma(2, 10, 500)
    k = scores._coordinate(0, False, numbers, smooth=True)
    assert k.smooth
    np.testing.assert_allclose(k.unsmoothed(k.smoothed(numbers)), numbers, rtol=1e-9)
    beyond = k.unsmoothed(np.array([-9.0, 9.0]))
    assert beyond.tolist() == [numbers.min(), numbers.max()]


def test_predictions_in_blocks_are_those_one_by_one(monkeypatch):
    table = pd.DataFrame(columns(200))
    found = []
    for block in (1, 3, 32):
        monkeypatch.setattr(scores, "_BLOCK", block)
        found.append(TableFlow(random_state=0, n_steps=0, smoothing=0.8).fit(table)._fitted.flow.z)
    np.testing.assert_allclose(found[0], found[1], atol=1e-8)
    np.testing.assert_allclose(found[0], found[2], atol=1e-8)


def test_levels_are_ordered_by_the_columns_that_tell_them_apart_among_many(monkeypatch):
    monkeypatch.setattr(scores, "_ORDERING", 2)
    rng = np.random.default_rng(0)
    level = rng.integers(0, 5, 400)
    noise = rng.normal(size=(400, 30))
    frame = pd.DataFrame(noise, columns=[f"n{i}" for i in range(30)])
    frame["size"] = np.array([3.0, 1.0, 4.0, 0.0, 2.0])[level] + 0.3 * rng.normal(size=400)
    frame["name"] = np.array(list("abcde"))[level]
    model = TableFlow(random_state=0, n_steps=0, smoothing=0.8).fit(frame)._fitted
    order = model.scores.coordinates[-1].levels.astype(int).tolist()
    assert order in ([3, 1, 4, 0, 2], [2, 0, 4, 1, 3])
