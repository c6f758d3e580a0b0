"""Normal scores of columns."""

import numpy as np

from sliceflow.tables.scores import _coordinate


def test_smooth_scores_go_back_to_their_numbers():
    numbers = np.random.default_rng(0).gamma(2, 10, 500)
    k = _coordinate(0, False, numbers, smooth=True)
    assert k.smooth
    np.testing.assert_allclose(k.unsmoothed(k.smoothed(numbers)), numbers, rtol=1e-9)
    beyond = k.unsmoothed(np.array([-9.0, 9.0]))
    assert beyond.tolist() == [numbers.min(), numbers.max()]
