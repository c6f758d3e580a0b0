"""Which of two kinds of posterior samples makes the true parameters more likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sliceflow.arrays import MAX_LOG_DENSITY_DROP, SMALLEST_POSITIVE, Floats

__all__ = ["Comparison", "compare"]

# The density of samples at a parameter is judged by the distance to the fifth nearest
# sample. That to the nearest one is noisy, and that to a far one sees no details.
KTH_NEIGHBOR = 5


@dataclass(frozen=True)
class Comparison:
    """Mean log-densities of true parameters under both methods, in nats.

    Both have the same unknown constant added.

    Parameters
    ----------
    neighbors, likelihood : float
        The mean log-density under each method.
    error : float
        The standard error of their difference.
    n : int
        How many true parameters were compared; 0 if there were too few simulations.
    """

    neighbors: float
    likelihood: float
    error: float
    n: int

    @property
    def better(self) -> Literal["neighbors", "likelihood"]:
        """The method with the higher mean; neither needs a lead over the other."""
        if self.likelihood > self.neighbors:
            return "likelihood"
        return "neighbors"

    def __str__(self) -> str:
        if self.n == 0:
            return "there are too few simulations for a likelihood"
        gain = self.likelihood - self.neighbors
        return (
            f"likelihood − neighbors: {gain:+.2f} ± {self.error:.2f} nats on {self.n} "
            "held-out simulations"
        )


def compare(neighbors: Floats, likelihood: Floats, true_theta: Floats) -> Comparison:
    """Compare samples (n, m, d) of both methods at n true parameters (n, d).

    The log-density at a true parameter is −d·log r up to a constant, where r is the
    distance to its fifth nearest sample (Loftsgaarden and Quesenberry 1965), in units
    of the spread of both kinds of samples.
    """
    spread = np.concatenate((neighbors, likelihood), axis=1).std(axis=1)
    spread = np.maximum(spread, SMALLEST_POSITIVE)
    by_neighbors = _log_probs(neighbors, true_theta, spread)
    by_likelihood = _log_probs(likelihood, true_theta, spread)
    difference = by_likelihood - by_neighbors
    return Comparison(
        neighbors=float(by_neighbors.mean()),
        likelihood=float(by_likelihood.mean()),
        error=float(difference.std() / len(true_theta) ** 0.5),
        n=len(true_theta),
    )


def _log_probs(samples: Floats, true_theta: Floats, spread: Floats) -> Floats:
    """The log-densities −d·log r (n,) of samples (n, m, d) at true parameters (n, d).

    Distances r are in units of `spread` (n, d).
    """
    d = true_theta.shape[1]
    deviation = (samples - true_theta[:, None]) / spread[:, None]
    squares = np.sort(np.square(deviation).sum(axis=2), axis=1)
    log_probs = -0.5 * d * np.log(squares[:, KTH_NEIGHBOR - 1] + SMALLEST_POSITIVE)
    least = np.median(log_probs) - MAX_LOG_DENSITY_DROP
    return np.asarray(np.maximum(log_probs, least))
