"""p(x | y) for conditions y that are numbers: regressions first, then the flow.

What y explains is taken off (`regression.py`); what is left over has one density for
all y, that of the flow (`gaussianization.py`), unless N(0, I) is as good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.spaces.density.gaussianization import (
    Gaussianization,
    GaussianizationSettings,
    choose_settings,
    fit_gaussianization,
)
from sliceflow.spaces.density.regression import Functions, TriangularRegression

__all__ = ["ConditionalDensity"]

# A flow must make held-out residuals more likely than N(0, I) by this, in nats per
# row. Less is noise, for which every density would cost more time.
MIN_GAIN = 0.01
# Residuals that the flow is fitted to, at most: they are a matter of shape, which does
# not depend on y, and more rows would take longer than the regression.
MAX_FLOW_ROWS = 20_000
HELD_OUT_SHARE = 0.2
# The flow that is tried first: if it gains nothing, no settings need to be chosen,
# which takes some seconds.
TRIAL = GaussianizationSettings(n_steps=20, smoothing=100.0)


@dataclass(frozen=True)
class ConditionalDensity:
    """p(x | y), of rows x (n, d) given conditions y (n, c).

    Parameters
    ----------
    regression : what y explains of x
    flow : of the residuals; None if they are N(0, I)
    """

    regression: TriangularRegression
    flow: Gaussianization | None

    @classmethod
    def fit_to(cls, x: Floats, y: Floats, seed: Seed) -> ConditionalDensity:
        """Fit both; columns of x must not be constant."""
        regression = TriangularRegression.fit_to(x, y, seed.child("regression"))
        order = seed.child("flow rows").permutation(len(x)).numpy()[:MAX_FLOW_ROWS]
        residuals, _ = regression.to_residuals(x[order], regression.at(y[order]))
        return cls(regression, _fit_flow(residuals, seed.child("flow")))

    @property
    def n_columns(self) -> int:
        """d, the number of columns of x."""
        return len(self.regression.shift)

    def check_conditions(self, n_conditions: int) -> None:
        """Raise a ValueError if it needs more columns of y than there are."""
        if int(self.regression.basis.columns.max(initial=0)) >= n_conditions:
            raise ValueError(
                f"the regression needs more than {n_conditions} conditions"
            )

    def at(self, y: Floats) -> Functions:
        """What the regression says at conditions y (n, c)."""
        return self.regression.at(y)

    def log_density(self, x: Floats, functions: Functions) -> Floats:
        """log p(x | y) (n,) of rows x (n, d), or of one row (1, d) at all n."""
        residuals, log_det = self.regression.to_residuals(x, functions)
        return log_det + _log_density(self.flow, residuals)

    def to_noise(self, x: Floats, functions: Functions) -> Floats:
        """Rows x (n, d) as rows z (n, d) near N(0, I)."""
        residuals, _ = self.regression.to_residuals(x, functions)
        if self.flow is None:
            return residuals
        return self.flow.to_noise(torch.from_numpy(residuals))[0].numpy()

    def from_noise(self, z: Floats, functions: Functions) -> Floats:
        """The rows x (n, d) that `to_noise` sends to z (n, d)."""
        residuals = z
        if self.flow is not None:
            residuals = self.flow.from_noise(torch.from_numpy(z)).numpy()
        return self.regression.from_residuals(residuals, functions)


def _fit_flow(residuals: Floats, seed: Seed) -> Gaussianization | None:
    """The flow of residuals (n, d), if held-out ones gain by it."""
    rows = torch.from_numpy(residuals)
    n_held_out = int(HELD_OUT_SHARE * len(rows))
    held_out = rows[:n_held_out]
    fitted = rows[n_held_out:]
    normal = float(_log_density(None, residuals[:n_held_out]).mean())
    trial = fit_gaussianization(fitted, TRIAL, seed, held_out=held_out)
    log_densities = trial.log_densities_by_step(held_out)
    best = max(float(values.mean()) for values in log_densities)
    if not best - normal > MIN_GAIN:
        return None
    return fit_gaussianization(rows, choose_settings(rows, seed), seed)


def _log_density(flow: Gaussianization | None, residuals: Floats) -> Floats:
    """Log-densities (n,) of residuals (n, d) under the flow, or N(0, I)."""
    if flow is not None:
        return flow.log_density(torch.from_numpy(residuals)).numpy()
    squares = np.square(residuals).sum(axis=1)
    return np.asarray(-0.5 * (squares + residuals.shape[1] * math.log(2 * math.pi)))
