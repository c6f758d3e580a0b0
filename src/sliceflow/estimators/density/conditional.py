"""p(x | y) for a continuous y: regressions first, then a flow.

Regressions take off what y explains (`regression.py`). The residuals have one density
for all y: that of a flow (`gaussianization.py`), unless N(0, I) is as good. All arrays
are of numpy, and rows (n, d).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.normal import LOG_TWO_PI
from sliceflow.engine.random import Seed
from sliceflow.estimators.density.gaussianization import (
    Gaussianization,
    fit_gaussianization,
)
from sliceflow.estimators.density.initial_map import fit_initial_map
from sliceflow.estimators.density.progress import FLOW, FitProgress
from sliceflow.estimators.density.regression import (
    AffineMapGivenY,
    TriangularRegression,
    fit_triangular_regression,
)
from sliceflow.estimators.density.settings import (
    GaussianizationParameters,
    GaussianizationSettings,
)
from sliceflow.estimators.density.settings_search import (
    choose_settings,
    expected_phases,
)
from sliceflow.estimators.density.trials import MappedSplit, Split, cross_validate_flow

__all__ = ["ConditionalDensity", "fit_conditional_density"]

# With fewer rows, a regression on y learns too little: half of them would be held out,
# or used up by a dozen coefficients.
MIN_CONDITIONAL_ROWS = 50
# A flow must make held-out residuals more likely than N(0, I) by this, in nats per
# row. A smaller gain may be noise, and each density takes longer with a flow.
MIN_FLOW_GAIN = 0.01
# The flow is fitted to at most this many residuals. It learns only their shape, which
# does not depend on y, and more rows would take longer than the regression.
MAX_FLOW_ROWS = 20_000
# The share of residuals that judge a trial flow: with a fifth, few rows are lost to it.
HELD_OUT_SHARE = 0.2
# The settings of a flow that is tried first. If it gains nothing, the search for better
# settings is left out, which takes some seconds.
TRIAL_SETTINGS = GaussianizationSettings(n_steps=20, penalty=100.0)
# All settings of the flow are then chosen.
FLOW_PARAMETERS = GaussianizationParameters()


@dataclass(frozen=True, eq=False)
class ConditionalDensity:
    """p(x | y), the density of rows x (n, d) given conditions y (n, l).

    Parameters
    ----------
    regression : what y explains of x
    residual_flow : the map of residuals to noise; None if they are N(0, I)
    """

    regression: TriangularRegression
    residual_flow: Gaussianization | None

    @property
    def n_columns(self) -> int:
        """d, the number of columns of x."""
        return len(self.regression.shift)

    def check_conditions(self, condition_dim: int) -> None:
        """Raise a ValueError if the density needs more columns of y than there are."""
        if int(self.regression.basis.used_columns.max(initial=0)) >= condition_dim:
            raise ValueError(
                f"the regression needs more than {condition_dim} conditions"
            )

    def map_given(self, y: Floats) -> AffineMapGivenY:
        """The map of rows to residuals at each of n conditions y (n, l).

        Compute it once, if several densities are asked for at the same y.
        """
        return self.regression.map_given(y)

    def log_prob(self, x: Floats, map_given_y: AffineMapGivenY) -> Floats:
        """log p(x | y) (n,) of rows x (n, d), or of one row (1, d) at all n."""
        residuals, ladj = self.regression.call_and_ladj(x, map_given_y)
        return ladj + _log_prob_of_residuals(residuals, self.residual_flow)

    def to_noise(self, x: Floats, map_given_y: AffineMapGivenY) -> Floats:
        """Rows x (n, d) as noise (n, d) near N(0, I)."""
        residuals, _ = self.regression.call_and_ladj(x, map_given_y)
        if self.residual_flow is None:
            return residuals
        return self.residual_flow.to_noise(torch.from_numpy(residuals)).numpy()

    def from_noise(self, noise: Floats, map_given_y: AffineMapGivenY) -> Floats:
        """The rows x (n, d) that `to_noise` sends to noise (n, d)."""
        residuals = noise
        if self.residual_flow is not None:
            residuals = self.residual_flow.inverse(torch.from_numpy(noise)).numpy()
        return self.regression.inverse(residuals, map_given_y)


def fit_conditional_density(
    x: Floats, y: Floats, seed: Seed, progress: FitProgress
) -> ConditionalDensity:
    """Fit the density of rows x (n, d) given y (n, l).

    Trials choose the functions of y, and whether residuals get a flow, with which
    settings. No column of x may be constant.
    """
    n_flow_rows = min(len(x), MAX_FLOW_ROWS)
    progress.announce(expected_phases(n_flow_rows, FLOW_PARAMETERS))
    regression = fit_triangular_regression(x, y, seed.child("regression"), progress)
    order = seed.child("flow rows").permutation(len(x)).numpy()[:n_flow_rows]
    residuals, _ = regression.call_and_ladj(x[order], regression.map_given(y[order]))
    residual_flow = _fit_residual_flow(
        torch.from_numpy(residuals), seed.child("flow"), progress
    )
    return ConditionalDensity(regression, residual_flow)


def _fit_residual_flow(
    residuals: Tensor, seed: Seed, progress: FitProgress
) -> Gaussianization | None:
    """Fit a flow to residuals (n, d); None if a trial finds N(0, I) as good."""
    gain = _fit_trial_flow(residuals, seed, progress)
    if not gain > MIN_FLOW_GAIN:
        return None
    # The trial that has just ended was a phase of the same kind as those that follow.
    progress.announce(expected_phases(len(residuals), FLOW_PARAMETERS))
    settings = choose_settings(residuals, FLOW_PARAMETERS, seed, progress)
    progress.begin_phase(FLOW)
    return fit_gaussianization(residuals, settings, seed, [progress.notify_of_step])


def _fit_trial_flow(residuals: Tensor, seed: Seed, progress: FitProgress) -> float:
    """Fit a flow on trial; return its gain, in mean log-density of held-out residuals.

    The gain is over N(0, I), with the best number of steps. Residuals are (n, d).
    """
    n_held_out = int(HELD_OUT_SHARE * len(residuals))
    split = Split(train=residuals[n_held_out:], held_out=residuals[:n_held_out])
    log_probs = _log_prob_of_residuals(split.held_out.numpy(), residual_flow=None)
    without_flow = float(log_probs.mean())
    initial_map = fit_initial_map(split.train, TRIAL_SETTINGS.initial_map, seed)
    mapped_split = MappedSplit.from_split(split, initial_map)

    def best_gain(curve: Floats) -> float:
        """The gain with the best number of steps, by the log-densities (k,)."""
        return float(curve.max()) - without_flow

    def announce_rest(curve: Floats) -> None:
        """Announce that nothing follows if there will be no flow."""
        if not best_gain(curve) > MIN_FLOW_GAIN:
            progress.announce_last_phase()

    curve = cross_validate_flow(
        [mapped_split], TRIAL_SETTINGS, seed, progress, announce_rest
    )
    return best_gain(curve.log_probs)


def _log_prob_of_residuals(
    residuals: Floats, residual_flow: Gaussianization | None
) -> Floats:
    """Log-densities (n,) of residuals (n, d) by their flow; under N(0, I) without."""
    if residual_flow is not None:
        return residual_flow.log_prob(torch.from_numpy(residuals)).numpy()
    # In numpy, because chains call this thousands of times.
    squares = np.square(residuals).sum(axis=1)
    return np.asarray(-0.5 * (squares + residuals.shape[1] * LOG_TWO_PI))
