"""Posteriors by likelihood: p(x | θ) from regressions, sampled over θ.

The likelihood is a `sliceflow.estimators.density.conditional.ConditionalDensity`: mean,
scale and correlations of x are smooth functions of θ, and a flow fits the residuals. It
uses all simulations, not only those near an observation. So it is right where many
values are informative and no simulation is near. Neighbors are right where the shape
of the noise depends on θ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from sliceflow.arrays import Floats, Ints, chunks
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, warn_user
from sliceflow.estimators.density.bases import varying_columns
from sliceflow.estimators.density.conditional import (
    MIN_CONDITIONAL_ROWS,
    ConditionalDensity,
    fit_conditional_density,
)
from sliceflow.estimators.density.progress import FitProgress
from sliceflow.estimators.density.regression import AffineMapGivenY
from sliceflow.inference.priors import Prior
from sliceflow.inference.tempering import sample_tempered
from sliceflow.saved_types import ArraySpec

__all__ = ["LikelihoodSampler", "fit_likelihood"]

# The most simulations at which chains may start. Chains start at those with a high
# likelihood: with more simulations closer to the posterior, but each observation takes
# longer.
MAX_CHAIN_STARTS = 20_000


@dataclass(frozen=True, eq=False)
class LikelihoodSampler:
    """Draws θ by the likelihood p(x | θ) and the prior of θ, whose product is sampled.

    Parameters
    ----------
    used_columns : indices of the values of x (l',) that vary; the others say nothing
    density : the density of these values given θ
    prior : the prior of θ
    max_squared_noise : the largest |noise|² of a simulation given its own θ, where the
    density maps x to noise, which is N(0, I) if the likelihood is right
    chain_starts : simulated θ (s, d) at which chains may start
    """

    used_columns: Annotated[np.ndarray, ArraySpec("l", "int64", ge=0)]
    density: ConditionalDensity
    prior: Prior
    max_squared_noise: float
    chain_starts: Annotated[np.ndarray, ArraySpec("s d", "float64")]

    def check_dimensions(self, d: int, n_values: int) -> None:
        """Raise a ValueError unless it takes d parameters and `n_values` values."""
        is_consistent = (
            self.chain_starts.shape[1] == d
            and len(self.prior.low) == d
            and self.density.n_columns == len(self.used_columns)
            and int(self.used_columns.max(initial=0)) < n_values
        )
        if not is_consistent:
            raise ValueError("the likelihood is of other parameters or values")
        self.density.check_conditions(d)

    def iter_samples(
        self, x: Floats, n: int, rng: np.random.Generator, batch_size: int
    ) -> Iterator[Floats]:
        """Draw n samples at each observation x (q, l), in batches.

        Batches are (b, n, d), of at most `batch_size` observations, in their order.
        """
        seed = Seed(int(rng.integers(2**31)))
        for batch in chunks(len(x), batch_size):
            samples = self.sample(x[batch], n, seed.child(batch.start))
            self._warn_if_far(x[batch], samples, batch.start)
            yield samples

    def sample(self, x: Floats, n: int, seed: Seed) -> Floats:
        """Draw n samples of θ given each of q observations x (q, l): (q, n, d)."""
        observed = x[:, self.used_columns]

        def log_likelihood(theta: Floats, observation_indices: Ints) -> Floats:
            rows = observed[observation_indices]
            return self.density.log_prob(rows, self.density.map_given(theta))

        log_likelihood_at_starts = []
        for row in observed:
            log_likelihood_at_starts.append(
                self.density.log_prob(row[None], self._map_at_starts)
            )
        return sample_tempered(
            log_likelihood,
            self.prior.log_prob,
            self.chain_starts,
            np.stack(log_likelihood_at_starts),
            n,
            seed,
        )

    @cached_property
    def _map_at_starts(self) -> AffineMapGivenY:
        """The map of simulations to residuals at each of the chain starts."""
        return self.density.map_given(self.chain_starts)

    def _warn_if_far(self, x: Floats, samples: Floats, start: int) -> None:
        """Warn of an observation (q, l) that none of its samples (q, n, d) explains.

        A sample explains an observation if it does so as well as some simulation is
        explained by its own parameters. `start` is the index of the first observation
        among the user's.
        """
        for i, row in enumerate(x[:, self.used_columns]):
            map_given_y = self.density.map_given(samples[i])
            noise = self.density.to_noise(row[None], map_given_y)
            min_squared_noise = float(np.square(noise).sum(axis=1).min())
            if min_squared_noise > self.max_squared_noise:
                distance = f"{min_squared_noise**0.5:.3g}"
                known = f"{self.max_squared_noise**0.5:.3g}"
                warn_user(
                    f"x[{start + i}] is {distance} standard deviations from what its "
                    f"samples would give, where simulations are at most {known}: its "
                    "samples are extrapolated"
                )
                return


def fit_likelihood(
    theta: Floats, x: Floats, low: Floats, high: Floats, seed: Seed
) -> LikelihoodSampler:
    """The likelihood of parameters (n, d) within bounds (d,), and simulations (n, l).

    Trials choose its settings, so this takes seconds to minutes.
    """
    if len(theta) < MIN_CONDITIONAL_ROWS:
        raise DataError(
            f"there are {len(theta)} simulations",
            f"method='likelihood' needs at least {MIN_CONDITIONAL_ROWS}",
        )
    used_columns = varying_columns(x)  # constant ones do not depend on θ
    if len(used_columns) == 0:
        raise DataError("all values of x are constant", "pass what was simulated")
    used_x = x[:, used_columns]
    density_seed = seed.child("density")
    density = fit_conditional_density(used_x, theta, density_seed, FitProgress())
    order = seed.child("starts").permutation(len(theta)).numpy()
    chosen = order[:MAX_CHAIN_STARTS]
    chain_starts = theta[chosen]
    noise = density.to_noise(used_x[chosen], density.map_given(chain_starts))
    return LikelihoodSampler(
        used_columns=used_columns,
        density=density,
        prior=Prior.from_data(theta, low, high),
        max_squared_noise=float(np.square(noise).sum(axis=1).max()),
        chain_starts=chain_starts,
    )
