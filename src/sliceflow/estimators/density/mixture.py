"""A Gaussian mixture as an invertible map to N(0, I), with which a density starts.

The map of Knothe and Rosenblatt takes the mixture to N(0, I) one coordinate after the
other: t_j = Φ⁻¹(F_j(x_j | x_1, …, x_{j−1})). The conditional distributions of a mixture
are known in closed form. With one component this is whitening.

Rows are (n, d) outside. Inside, they are points (d, n), whose coordinates are mapped in
turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from sliceflow.engine import normal
from sliceflow.estimators.density.invertible_maps import Whitening
from sliceflow.estimators.density.settings import MAX_UNGROWN_COMPONENTS
from sliceflow.saved_types import ArraySpec

# Halvings of the interval in which an inverse lies. It begins with a width of a few
# standard deviations, so it ends below the precision of float64.
_N_BISECTIONS = 60
# Steps of Newton's method to the normal quantile of a very small probability.
_N_QUANTILE_STEPS = 12
# The most numbers of all components at once, 32 MiB; more points are mapped in chunks.
MAX_VALUES_PER_CHUNK = 2**22
# Of smaller probabilities, and of those as close to 1, logarithms are taken: of 1e-6,
# six digits are lost in 1 − p, and ten remain.
_MIN_PROBABILITY = 1e-6
# Below this logarithm of a probability, float64 has no quantiles.
_LEAST_LOG_PROBABILITY = -600.0


@dataclass(frozen=True, eq=False)
class MixtureMap:
    """The map to N(0, I) of a Gaussian mixture of k components in d dimensions.

    Component i has x = means[i] + cholesky_factors[i]·e with e of N(0, I), where the
    factors are lower triangular.
    """

    log_weights: Annotated[Tensor, ArraySpec("k", "float64")]
    means: Annotated[Tensor, ArraySpec("k d", "float64")]
    cholesky_factors: Annotated[Tensor, ArraySpec("k d d", "float64")]

    def check_saved(self) -> None:
        """Raise a ValueError if the parameters are not those of a mixture."""
        diagonals = torch.diagonal(self.cholesky_factors, dim1=1, dim2=2)
        if len(self.log_weights) < 1 or not bool((diagonals > 0).all()):
            raise ValueError("a mixture has no components, or one without a density")

    @property
    def n_columns(self) -> int:
        """d, the number of columns."""
        return self.means.shape[1]

    @property
    def n_components(self) -> int:
        """k, the number of components."""
        return len(self.log_weights)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as noise (n, d), and log|det ∂noise/∂x| (n,)."""
        if len(self.means) == 1:  # whitening is exact however far out
            return self._whitening.call_and_ladj(x)
        map_points = self._map_points
        # Mixtures that have grown are large, and few of their rows are far out.
        if len(self.means) > MAX_UNGROWN_COMPONENTS:
            map_points = self._map_points_fast
        chunks = self._chunks(x.T)
        if len(chunks) == 1:  # in the layout of x, on which the bits of products depend
            noise, ladj = map_points(x.T)
            return noise.T, ladj
        mapped = [map_points(points) for points in chunks]
        noise = torch.cat([noise_of_chunk for noise_of_chunk, _ in mapped], 1)
        return noise.T, torch.cat([ladj_of_chunk for _, ladj_of_chunk in mapped])

    @property
    def _whitening(self) -> Whitening:
        """The map of a mixture of one component."""
        return Whitening(self.means[0], self.cholesky_factors[0])

    def _chunks(self, points: Tensor) -> Sequence[Tensor]:
        """Points (d, n) in chunks for which arrays of all components are small."""
        chunk_size = max(1, MAX_VALUES_PER_CHUNK // self.means.numel())
        return torch.split(points, chunk_size, dim=1)

    def _residuals(self, x: Tensor) -> Tensor:
        """The e (k, d, n) that points x (d, n) would have in each component."""
        deviations = x[None] - self.means[:, :, None]
        residuals: Tensor = torch.linalg.solve_triangular(
            self.cholesky_factors, deviations, upper=False
        )
        return residuals

    def _map_points(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points x (d, n), not too many, as noise (d, n), and the ladj (n,).

        Probabilities are logarithms here, so x may be far out.
        """
        k, d = self.means.shape
        residuals = self._residuals(x)
        # The log-density of the coordinates before, together with each component.
        log_joint = self.log_weights[:, None].expand(k, x.shape[1])
        noise = torch.empty_like(x)
        ladj = x.new_zeros(x.shape[1])
        for j in range(d):
            residual = residuals[:, j]
            log_scale = self.cholesky_factors[:, j, j, None].log()
            log_joint_with_x = log_joint + normal.log_prob(residual) - log_scale
            # Given the coordinates before, F_j(x_j), 1 − F_j(x_j) and the density.
            log_before = log_joint.logsumexp(0)
            log_below = (log_joint + torch.special.log_ndtr(residual)).logsumexp(0)
            log_above = (log_joint + torch.special.log_ndtr(-residual)).logsumexp(0)
            log_density = log_joint_with_x.logsumexp(0) - log_before
            noise[j] = _normal_quantile(log_below - log_before, log_above - log_before)
            ladj += log_density - normal.log_prob(noise[j])
            log_joint = log_joint_with_x
        return noise, ladj

    def _map_points_fast(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `_map_points` in a third of the time.

        Probabilities are no logarithms here. So points far out go to `_map_points`.
        """
        k, d = self.means.shape
        residuals = self._residuals(x)
        # The probability of each component, given the coordinates before.
        weights = self.log_weights.softmax(0)[:, None].expand(k, x.shape[1])
        noise = torch.empty_like(x)
        ladj = x.new_zeros(x.shape[1])
        is_far = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        for j in range(d):
            residual = residuals[:, j]
            log_scale = self.cholesky_factors[:, j, j, None].log()
            below = (weights * torch.special.ndtr(residual)).sum(0)
            is_far |= (below < _MIN_PROBABILITY) | (below > 1 - _MIN_PROBABILITY)
            noise[j] = torch.special.ndtri(below)
            densities = weights * (normal.log_prob(residual) - log_scale).exp()
            density = densities.sum(0)
            is_far |= density < _MIN_PROBABILITY
            ladj += density.log() - normal.log_prob(noise[j])
            weights = densities / density
        if bool(is_far.any()):
            noise[:, is_far], ladj[is_far] = self._map_points(x[:, is_far])
        return noise, ladj

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) (n,) of rows x (n, d): in closed form, faster than by the map."""
        return torch.cat([self._log_prob(points) for points in self._chunks(x.T)])

    def _log_prob(self, x: Tensor) -> Tensor:
        """log p(x) (n,) of points x (d, n), not too many."""
        residuals = self._residuals(x)
        log_scales = torch.diagonal(self.cholesky_factors, dim1=1, dim2=2).log().sum(1)
        log_factors = self.log_weights - log_scales
        log_probs = normal.log_prob(residuals).sum(1)
        return (log_factors[:, None] + log_probs).logsumexp(0)

    def inverse(self, z: Tensor) -> Tensor:
        """The rows x (n, d) that `call_and_ladj` sends to noise z (n, d)."""
        if len(self.means) == 1:
            return self._whitening.inverse(z)
        chunks = self._chunks(z.T)
        if len(chunks) == 1:
            return self._invert_points(z.T).T
        return torch.cat([self._invert_points(points) for points in chunks], 1).T

    def _invert_points(self, noise: Tensor) -> Tensor:
        """The points x (d, n) of noise (d, n), not too many."""
        k, d = self.means.shape
        n = noise.shape[1]
        residuals = noise.new_zeros(k, d, n)
        # The log-probability of each component, given the coordinates before.
        log_weights = self.log_weights[:, None].expand(k, n)
        x = torch.empty_like(noise)
        for j in range(d):
            # Given these, the coordinate is normal in each component.
            slopes = self.cholesky_factors[:, j : j + 1, :j]
            shift = torch.bmm(slopes, residuals[:, :j])[:, 0]
            mean = self.means[:, j, None] + shift
            scale = self.cholesky_factors[:, j, j, None]
            x[j] = _mixture_quantile(noise[j], log_weights, mean, scale)
            residual = (x[j] - mean) / scale
            residuals[:, j] = residual
            log_weights = log_weights + normal.log_prob(residual) - scale.log()
            log_weights = log_weights - log_weights.logsumexp(0)
        return x


def _normal_quantile(log_below: Tensor, log_above: Tensor) -> Tensor:
    """Φ⁻¹(p) (n,) of probabilities p (n,), given log p and log (1 − p)."""
    is_low = log_below < log_above
    log_tail = torch.minimum(log_below, log_above)
    quantile = torch.special.ndtri(log_tail.clamp(min=_LEAST_LOG_PROBABILITY).exp())
    is_far = log_tail < _LEAST_LOG_PROBABILITY
    if bool(is_far.any()):
        target = log_tail[is_far]
        far_quantile = -(-2 * target).sqrt()
        for _ in range(_N_QUANTILE_STEPS):
            # So far out, the slope φ/Φ of log Φ at q is −q up to 1/q².
            excess = torch.special.log_ndtr(far_quantile) - target
            far_quantile = far_quantile - excess / -far_quantile
        quantile[is_far] = far_quantile
    return torch.where(is_low, quantile, -quantile)


def _mixture_quantile(
    noise: Tensor, log_weights: Tensor, mean: Tensor, scale: Tensor
) -> Tensor:
    """The x (n,) at which a mixture has as much below it as N(0, 1) below `noise`.

    It is found by bisection: x lies between the quantiles of the components.

    Parameters
    ----------
    noise : normal numbers (n,)
    log_weights, mean : of the k components at each number, (k, n)
    scale : of the components, (k, 1)
    """
    quantiles = mean + scale * noise
    low = quantiles.min(0).values
    high = quantiles.max(0).values
    total = log_weights.logsumexp(0)
    # The smaller tail decides: the other one is 1 up to rounding.
    side = torch.where(noise < 0, 1.0, -1.0).to(noise)
    target = torch.special.log_ndtr(side * noise)
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2
        residual = (middle - mean) / scale
        tails = (log_weights + torch.special.log_ndtr(side * residual)).logsumexp(0)
        is_too_low = side * (tails - total - target) < 0
        low = torch.where(is_too_low, middle, low)
        high = torch.where(is_too_low, high, middle)
    return (low + high) / 2
