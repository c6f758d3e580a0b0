"""The prior of parameters, as a density, from the draws that were simulated.

Each parameter is uniform between its bounds, normal or log-normal: whichever makes its
draws most likely. Parameters that are not uniform may be correlated. Beyond the bounds
the prior is 0, and its height there does not matter to samples of a posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sliceflow.arrays import SMALLEST_POSITIVE, Floats
from sliceflow.estimators.density.log_normal import (
    log_normal_score,
    normal_score,
    take_logs,
)
from sliceflow.saved_types import ArraySpec

__all__ = ["Prior"]

# This share of the variance of each parameter is added to it, so that the covariance
# has an inverse even if two parameters are equal up to rounding.
MIN_VARIANCE_SHARE = 1e-10


def _likeliest_kind(column: Floats, low: float, high: float) -> str:
    """The kind of the prior of one parameter, by its draws (n,) between its bounds."""
    log_probs = {"normal": normal_score(column)}
    if np.isfinite(high - low):
        log_probs["uniform"] = -float(np.log(high - low))
    log_probs["log-normal"] = log_normal_score(column)
    return max(log_probs, key=lambda kind: log_probs[kind])


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior density of parameters θ (d,), up to a factor.

    Parameters
    ----------
    low, high : the bounds (d,)
    is_uniform : which parameters (d,) are uniform between their bounds
    is_logged : which of the other parameters (d,) are log-normal
    mean, precision : moments of the parameters that are not uniform, of log-normal ones
    of their logarithms
    """

    low: Annotated[np.ndarray, ArraySpec("d", "float64", finite=False)]
    high: Annotated[np.ndarray, ArraySpec("d", "float64", finite=False)]
    is_uniform: Annotated[np.ndarray, ArraySpec("d", "bool")]
    is_logged: Annotated[np.ndarray, ArraySpec("d", "bool")]
    mean: Annotated[np.ndarray, ArraySpec("g", "float64")]
    precision: Annotated[np.ndarray, ArraySpec("g g", "float64")]

    @classmethod
    def from_data(cls, theta: Floats, low: Floats, high: Floats) -> Prior:
        """Fit the prior to draws theta (n, d) between bounds (d,)."""
        kinds = []
        for column, column_low, column_high in zip(theta.T, low, high, strict=True):
            kinds.append(_likeliest_kind(column, column_low, column_high))
        is_uniform = np.array([kind == "uniform" for kind in kinds])
        is_logged = np.array([kind == "log-normal" for kind in kinds])
        gaussian = take_logs(theta, is_logged)[:, ~is_uniform]
        mean = gaussian.mean(axis=0)
        deviation = gaussian - mean
        covariance = deviation.T @ deviation / len(theta)
        least = MIN_VARIANCE_SHARE * np.diag(covariance) + SMALLEST_POSITIVE
        precision = np.linalg.inv(covariance + np.diag(least))
        return cls(low, high, is_uniform, is_logged, mean, precision)

    def log_prob(self, theta: Floats) -> Floats:
        """Log-densities (n,) of parameters (n, d), up to a constant; −∞ outside."""
        is_beyond = (theta < self.low) | (theta > self.high)
        is_outside = np.asarray(is_beyond.any(axis=1))
        is_outside |= (theta[:, self.is_logged] <= 0).any(axis=1)
        values = take_logs(np.where(is_outside[:, None], 1.0, theta), self.is_logged)
        deviation = values[:, ~self.is_uniform] - self.mean
        log_prob = -0.5 * ((deviation @ self.precision) * deviation).sum(axis=1)
        log_prob -= values[:, self.is_logged].sum(axis=1)
        return np.where(is_outside, -np.inf, log_prob)

    def __str__(self) -> str:
        kinds = []
        for uniform, logged in zip(self.is_uniform, self.is_logged, strict=True):
            if uniform:
                kinds.append("uniform")
            elif logged:
                kinds.append("log-normal")
            else:
                kinds.append("normal")
        return ", ".join(kinds)
