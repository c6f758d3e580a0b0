"""A Gaussian mixture as an invertible map to N(0, I), with which a density starts.

The map of Knothe and Rosenblatt takes the mixture to N(0, I) one coordinate after the
other: t_j = Φ⁻¹(F_j(x_j | x_1, …, x_{j−1})). The conditional distributions of a mixture
are known in closed form. With one component this is whitening.

Everything here has points, one in each column of a tensor (d, n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from sliceflow.engine import normal
from sliceflow.saved_types import ArraySpec
from sliceflow.spaces.density.settings import MAX_UNGROWN_COMPONENTS

# Halvings of the interval in which an inverse lies. It begins with a width of a few
# standard deviations, so it ends below the precision of float64.
_N_BISECTIONS = 60
# Steps of Newton's method to the normal quantile of a very small probability.
_N_QUANTILE_STEPS = 12
# The most numbers of all components at once, 32 MiB; more points are mapped in chunks.
MAX_VALUES = 2**22
# Of smaller probabilities, and of those as close to 1, logarithms are taken: of 1e-6,
# six digits are lost in 1 − p, and ten remain.
_MIN_PROBABILITY = 1e-6
# Below this logarithm of a probability, float64 has no quantiles.
_LEAST_LOG_PROBABILITY = -600.0


@dataclass(frozen=True)
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

    def to_noise_and_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points x (d, n) as noise (d, n), and log|det ∂noise/∂x| (n,)."""
        if len(self.means) == 1:  # whitening, exact however far out
            white = self._whitened(x)
            log_det = -torch.diagonal(self.cholesky_factors[0]).log().sum()
            return white, log_det.expand(x.shape[1])
        map_points = self._to_noise_and_log_det
        if len(self.means) > MAX_UNGROWN_COMPONENTS:
            map_points = self._to_noise_and_log_det_of_many
        chunks = self._chunks(x)
        if len(chunks) == 1:
            return map_points(x)  # in the layout of x, on which products' bits depend
        mapped = [map_points(points) for points in chunks]
        noise = torch.cat([points for points, _ in mapped], 1)
        return noise, torch.cat([log_det for _, log_det in mapped])

    def _chunks(self, points: Tensor) -> Sequence[Tensor]:
        """Points (d, n) in parts for which arrays of all components are small."""
        return torch.split(points, max(1, MAX_VALUES // self.means.numel()), dim=1)

    def _to_noise_and_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, of several components and not too many points."""
        k, d = self.means.shape
        deviations = x[None] - self.means[:, :, None]  # (k, d, n)
        residuals = torch.linalg.solve_triangular(
            self.cholesky_factors, deviations, upper=False
        )
        log_weights = self.log_weights[:, None].expand(k, x.shape[1])
        noise = torch.empty_like(x)
        log_det = x.new_zeros(x.shape[1])
        for j in range(d):
            residual = residuals[:, j]
            log_scale = self.cholesky_factors[:, j, j, None].log()
            log_densities = log_weights + _log_normal(residual) - log_scale
            log_density = log_densities.logsumexp(0)
            total = log_weights.logsumexp(0)
            below = (log_weights + torch.special.log_ndtr(residual)).logsumexp(0)
            above = (log_weights + torch.special.log_ndtr(-residual)).logsumexp(0)
            noise[j] = _normal_quantile(below - total, above - total)
            log_det += log_density - total - _log_normal(noise[j])
            log_weights = log_densities
        return noise, log_det

    def _to_noise_and_log_det_of_many(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, of many components: three times as fast.

        Probabilities have no logarithms here. So points far out take the other way.
        """
        k, d = self.means.shape
        deviations = x[None] - self.means[:, :, None]  # (k, d, n)
        residuals = torch.linalg.solve_triangular(
            self.cholesky_factors, deviations, upper=False
        )
        weights = self.log_weights.softmax(0)[:, None].expand(k, x.shape[1])
        noise = torch.empty_like(x)
        log_det = x.new_zeros(x.shape[1])
        is_far = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        for j in range(d):
            residual = residuals[:, j]
            log_scale = self.cholesky_factors[:, j, j, None].log()
            below = (weights * torch.special.ndtr(residual)).sum(0)
            is_far |= (below < _MIN_PROBABILITY) | (below > 1 - _MIN_PROBABILITY)
            noise[j] = torch.special.ndtri(below)
            densities = weights * (_log_normal(residual) - log_scale).exp()
            density = densities.sum(0)
            is_far |= density < _MIN_PROBABILITY
            log_det += density.log() - _log_normal(noise[j])
            weights = densities / density
        if bool(is_far.any()):
            noise[:, is_far], log_det[is_far] = self._to_noise_and_log_det(x[:, is_far])
        return noise, log_det

    def _whitened(self, x: Tensor) -> Tensor:
        """Points x (d, n) as noise (d, n), if there is one component."""
        deviations = x - self.means[0, :, None]
        factor = self.cholesky_factors[0]
        white: Tensor = torch.linalg.solve_triangular(factor, deviations, upper=False)
        return white

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) (n,) of points x (d, n) under the mixture, which takes no map."""
        return torch.cat([self._log_density(points) for points in self._chunks(x)])

    def _log_density(self, x: Tensor) -> Tensor:
        """The same, of not too many points."""
        deviations = x[None] - self.means[:, :, None]
        residuals = torch.linalg.solve_triangular(
            self.cholesky_factors, deviations, upper=False
        )
        log_scales = torch.diagonal(self.cholesky_factors, dim1=1, dim2=2).log().sum(1)
        log_weights = self.log_weights - log_scales
        return (log_weights[:, None] + _log_normal(residuals).sum(1)).logsumexp(0)

    def from_noise(self, noise: Tensor) -> Tensor:
        """The points x (d, n) that `to_noise_and_log_det` sends to noise (d, n)."""
        if len(self.means) == 1:
            return self.means[0, :, None] + self.cholesky_factors[0] @ noise
        chunks = self._chunks(noise)
        if len(chunks) == 1:
            return self._from_noise(noise)
        return torch.cat([self._from_noise(part) for part in chunks], 1)

    def _from_noise(self, noise: Tensor) -> Tensor:
        """The same, of several components and not too many points."""
        k, d = self.means.shape
        n = noise.shape[1]
        residuals = noise.new_zeros(k, d, n)
        log_weights = self.log_weights[:, None].expand(k, n)
        x = torch.empty_like(noise)
        for j in range(d):
            shift = torch.bmm(
                self.cholesky_factors[:, j : j + 1, :j], residuals[:, :j]
            )[:, 0]
            mean = self.means[:, j, None] + shift
            scale = self.cholesky_factors[:, j, j, None]
            x[j] = _mixture_quantile(noise[j], log_weights, mean, scale)
            residual = (x[j] - mean) / scale
            residuals[:, j] = residual
            log_weights = log_weights + _log_normal(residual) - scale.log()
            log_weights = log_weights - log_weights.logsumexp(0)
        return x


def _log_normal(values: Tensor) -> Tensor:
    """log of the density of N(0, 1) at each value, in the shape of `values`."""
    return normal.log_density(values[None])


def _normal_quantile(log_below: Tensor, log_above: Tensor) -> Tensor:
    """Φ⁻¹(p) (n,) of probabilities p (n,), given log p and log (1 − p)."""
    is_low = log_below < log_above
    log_tail = torch.minimum(log_below, log_above)
    quantile = torch.special.ndtri(log_tail.clamp(min=_LEAST_LOG_PROBABILITY).exp())
    far = log_tail < _LEAST_LOG_PROBABILITY
    if bool(far.any()):
        target = log_tail[far]
        far_quantile = -(-2 * target).sqrt()
        for _ in range(_N_QUANTILE_STEPS):
            # So far out, the slope φ/Φ of log Φ at q is −q up to 1/q².
            excess = torch.special.log_ndtr(far_quantile) - target
            far_quantile = far_quantile - excess / -far_quantile
        quantile[far] = far_quantile
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
        too_low = side * (tails - total - target) < 0
        low = torch.where(too_low, middle, low)
        high = torch.where(too_low, high, middle)
    return (low + high) / 2
