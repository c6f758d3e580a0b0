"""Posteriors by likelihood: p(x | θ) from regressions, sampled over θ.

The likelihood is that of `sliceflow.spaces.density.conditional`: mean, scale and
correlations of x as smooth functions of θ, and a flow of what is left over. It uses all
simulations, not only those near an observation. So it is right where many values are
informative, and no simulation is near; neighbours are right where the noise has other
shapes at other θ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import torch

from sliceflow.arrays import Floats, Ints
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, warn_user
from sliceflow.inference.priors import Prior
from sliceflow.inference.tempering import sample_tempered
from sliceflow.saved_types import ArraySpec
from sliceflow.spaces.density.conditional import ConditionalDensity
from sliceflow.spaces.density.regression import Functions

__all__ = ["MIN_SIMULATIONS", "Likelihood"]

# Fewer simulations teach regressions too little: half of them would be held out or used
# up by a dozen coefficients.
MIN_SIMULATIONS = 50
# Simulations at which chains may start: those whose likelihood is highest do. With more
# they start closer, but each observation takes longer.
MAX_STARTS = 20_000
# A value that varies by less than this share of its magnitude is constant: it tells
# nothing of θ.
CONSTANT_SHARE = 1e-12


@dataclass(frozen=True)
class Likelihood:
    """p(x | θ) and the prior of θ.

    Parameters
    ----------
    columns : the values of x (l',) that vary; the others say nothing
    density : of these given θ
    prior : of θ
    reach : the largest square sum of noise of a simulation
    starts : simulated θ (s, d) at which chains may start
    """

    columns: Annotated[np.ndarray, ArraySpec("l", torch.int64, ge=0)]
    density: ConditionalDensity
    prior: Prior
    reach: float
    starts: Annotated[np.ndarray, ArraySpec("s d", torch.float64)]

    @classmethod
    def fit_to(
        cls, theta: Floats, x: Floats, low: Floats, high: Floats, seed: Seed
    ) -> Likelihood:
        """Fit it to parameters (n, d) within bounds (d,) and simulations (n, l)."""
        if len(theta) < MIN_SIMULATIONS:
            raise DataError(
                f"there are {len(theta)} simulations",
                f"method='likelihood' needs at least {MIN_SIMULATIONS}",
            )
        columns = np.flatnonzero(x.std(axis=0) > CONSTANT_SHARE * np.abs(x).max(axis=0))
        if len(columns) == 0:
            raise DataError("all values of x are constant", "pass what was simulated")
        x = x[:, columns]
        density = ConditionalDensity.fit_to(x, theta, seed.child("density"))
        order = seed.child("starts").permutation(len(theta)).numpy()
        checked = order[:MAX_STARTS]
        starts = theta[checked]
        noise = density.to_noise(x[checked], density.at(starts))
        reach = float(np.square(noise).sum(axis=1).max())
        prior = Prior.fit_to(theta, low, high)
        return cls(columns, density, prior, reach, starts)

    def check_width(self, d: int, width: int) -> None:
        """Raise a ValueError unless it is of d parameters and `width` values."""
        n_columns = len(self.columns)
        is_consistent = (
            self.starts.shape[1] == d
            and len(self.prior.low) == d
            and self.density.n_columns == n_columns
            and int(self.columns.max(initial=0)) < width
        )
        if not is_consistent:
            raise ValueError("the likelihood is of other parameters or values")
        self.density.check_conditions(d)

    def sample(self, x: Floats, n: int, seed: Seed) -> Floats:
        """n samples of θ given each of q observations x (q, l), as (q, n, d)."""
        observed = x[:, self.columns]

        def log_likelihood(theta: Floats, observation: Ints) -> Floats:
            functions = self.density.at(theta)
            return self.density.log_density(observed[observation], functions)

        at_starts = []
        for row in observed:
            at_starts.append(
                self.density.log_density(row[None], self._functions_at_starts)
            )
        samples = sample_tempered(
            log_likelihood,
            self.prior.log_density,
            self.starts,
            np.stack(at_starts),
            n,
            seed,
        )
        self._warn_if_far(observed, samples)
        return samples

    @cached_property
    def _functions_at_starts(self) -> Functions:
        return self.density.at(self.starts)

    def _warn_if_far(self, observed: Floats, samples: Floats) -> None:
        """Warn of an observation (q, l) that no sample (q, n, d) explains.

        That is, less well than each simulation is explained by its own parameters.
        """
        for i, row in enumerate(observed):
            noise = self.density.to_noise(row[None], self.density.at(samples[i]))
            least = float(np.square(noise).sum(axis=1).min())
            if least > self.reach:
                warn_user(
                    f"x[{i}] is {least**0.5:.3g} standard deviations from what its "
                    f"samples would give, where simulations are at most "
                    f"{self.reach**0.5:.3g}: its samples are extrapolated"
                )
                return
