"""Posteriors by neighbors: from the simulations nearest to an observation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sliceflow.arrays import Floats, Mask, chunks
from sliceflow.engine.random import Seed
from sliceflow.engine.y_encoders import ContinuousEncoder
from sliceflow.estimators.vectors.scaling import ColumnScaler
from sliceflow.neighbors.local import LocalSampler, fit_local_sampler

__all__ = ["NeighborSampler", "fit_neighbor_sampler"]

# If any of n samples are outside the bounds, 8n more are drawn to replace them. On
# average that suffices if a ninth of the posterior is inside: n/9 of the first samples,
# and 8n/9 of the others.
REDRAWN_PER_SAMPLE = 8


@dataclass(frozen=True, eq=False)
class NeighborSampler:
    """Samples of θ given x, by local regressions on the nearest simulations.

    Parameters
    ----------
    low, high : bounds (d,) of the parameters, infinite where there are none
    scaler : the units in which parameters are drawn
    x_encoder : the units of simulations
    local_sampler : of all parameters given their simulations, both in these units
    """

    low: Floats
    high: Floats
    scaler: ColumnScaler
    x_encoder: ContinuousEncoder
    local_sampler: LocalSampler

    def iter_samples(
        self, x: Floats, n: int, rng: np.random.Generator, batch_size: int
    ) -> Iterator[Floats]:
        """Draw n samples at each observation x (q, l), between the bounds, in batches.

        Batches are (b, n, d), of at most `batch_size` observations, in their order.
        """
        encoded_x = self.x_encoder.encode(x).values
        self.local_sampler.warn_if_far(encoded_x, "x")
        for batch in chunks(len(x), batch_size):
            yield self._sample_within_bounds(encoded_x[batch], n, rng)

    def _sample_within_bounds(
        self, encoded_x: Tensor, n: int, rng: np.random.Generator
    ) -> Floats:
        """Draw n samples (q, n, d) at observations (q, l), between the bounds.

        Samples outside are replaced by fresh ones that are inside. If these do not
        suffice, the others are mirrored at the bound.
        """
        samples = self._sample_unbounded(encoded_x, n, rng)
        for i in np.flatnonzero(self._is_outside(samples).any(1)):
            outside = np.flatnonzero(self._is_outside(samples[i]))
            one_x = encoded_x[i : i + 1]
            fresh = self._sample_unbounded(one_x, REDRAWN_PER_SAMPLE * n, rng)[0]
            inside = fresh[~self._is_outside(fresh)][: len(outside)]
            samples[i, outside[: len(inside)]] = inside
        return self._reflect(samples)

    def _sample_unbounded(
        self, encoded_x: Tensor, n: int, rng: np.random.Generator
    ) -> Floats:
        """Draw n samples (q, n, d) at observations (q, l), whatever the bounds."""
        # The path (0, n) stays, because another one would change samples.
        seed = Seed(int(rng.integers(2**31))).child(0, n)
        samples = self.local_sampler.sample(encoded_x, n, seed).x
        theta = self.scaler.inverse_transform(samples.flatten(0, 1))
        return theta.view(samples.shape).numpy()

    def _is_outside(self, theta: Floats) -> Mask:
        """Whether any parameter of each sample (…, d) is beyond its bounds: (…)."""
        is_beyond = (theta < self.low) | (theta > self.high)
        return np.asarray(is_beyond.any(-1))

    def _reflect(self, samples: Floats) -> Floats:
        """Mirror what is beyond a bound in samples (…, d) at that bound.

        What is then beyond the other bound is moved onto that one.
        """
        is_below = samples < self.low
        is_beyond = is_below | (samples > self.high)
        mirrored = np.where(is_below, 2 * self.low - samples, 2 * self.high - samples)
        return np.where(is_beyond, np.clip(mirrored, self.low, self.high), samples)


def fit_neighbor_sampler(
    theta: Floats, x: Floats, low: Floats, high: Floats
) -> NeighborSampler:
    """The sampler of parameters (n, d) within bounds (d,), and simulations (n, l).

    Trials choose how many simulations are neighbors, and by which distance.
    """
    scaler = ColumnScaler.from_data(theta, standardize=True)
    x_encoder = ContinuousEncoder.from_data(x)
    local_sampler = fit_local_sampler(
        scaler.transform(theta), x_encoder.encode(x).values
    )
    return NeighborSampler(low, high, scaler, x_encoder, local_sampler)
