"""The density of N(0, I)."""

import numpy as np
import torch
from scipy.stats import multivariate_normal, norm

from sliceflow.engine.normal import log_density


def test_the_density_is_that_of_scipy(rng):
    z = 3 * rng.normal(size=(4, 50))
    expected = multivariate_normal(np.zeros(4)).logpdf(z.T)
    points = torch.from_numpy(z)
    np.testing.assert_allclose(log_density(points), expected, rtol=1e-12)
    np.testing.assert_allclose(log_density(points.T, dim=1), expected, rtol=1e-12)
    np.testing.assert_allclose(log_density(points[None]), norm.logpdf(z), rtol=1e-12)
