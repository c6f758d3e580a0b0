"""The density of N(0, 1)."""

import numpy as np
import torch
from scipy.stats import norm

from sliceflow.engine.normal import log_prob


def test_the_density_is_that_of_scipy(rng):
    z = 3 * rng.normal(size=(4, 50))
    found = log_prob(torch.from_numpy(z))
    np.testing.assert_allclose(found, norm.logpdf(z), rtol=1e-12)
