"""Invertible maps of rows, and the density that a map gives.

All rows are (n, d) here. As in zuko, `call_and_ladj` maps rows, and also returns the
logarithm of the absolute determinant of the Jacobian, "ladj", (n,). The method
`inverse` maps rows back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.normal import LOG_TWO_PI
from sliceflow.engine.rotations import are_orthonormal
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.saved_types import ArraySpec

# Directions of a file may deviate by this from orthonormal ones: those of a fit do by
# rounding errors, some 1e-15 in float64.
_ORTHONORMAL_TOL = 1e-6


class InvertibleMap(Protocol):
    """A smooth map of rows x (n, d) to rows z (n, d), which has an inverse."""

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z (n, d), and log|det ∂z/∂x| (n,)."""

    def inverse(self, z: Tensor) -> Tensor:
        """The rows x (n, d) that `call_and_ladj` sends to z (n, d)."""


def standard_normal_log_prob(z: Tensor) -> Tensor:
    """The log-density (n,) of N(0, I) at rows z (n, d)."""
    return -(z.square().sum(1) + z.shape[1] * LOG_TWO_PI) / 2


def log_prob(
    x: Tensor,
    transform: InvertibleMap,
    base: Callable[[Tensor], Tensor] = standard_normal_log_prob,
) -> Tensor:
    """The log-density of rows x (n, d) that a map sends to rows with a known one.

    It is base(z) + log|det ∂z/∂x|.

    Parameters
    ----------
    x : rows (n, d)
    transform : the map of x to z
    base : the log-density of rows z (n, d), (n,); or several of them, (k, n)
    """
    z, ladj = transform.call_and_ladj(x)
    return base(z) + ladj


@dataclass(frozen=True)
class Composition:
    """Maps that are applied one after the other."""

    maps: Sequence[InvertibleMap]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows (n, d) after all maps, and the sum (n,) of their ladj."""
        ladj = x.new_zeros(len(x))
        for transform in self.maps:
            x, ladj_of_map = transform.call_and_ladj(x)
            ladj = ladj + ladj_of_map
        return x, ladj

    def inverse(self, z: Tensor) -> Tensor:
        """The rows (n, d) before all maps."""
        for transform in reversed(self.maps):
            z = transform.inverse(z)
        return z


@dataclass(frozen=True, eq=False)
class ColumnwiseMap:
    """A smooth increasing map of every column."""

    maps: SmoothMaps  # one for each of d columns

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """T(x) (n, d), and Σ log T′(x) (n,)."""
        columns, log_slopes = self.maps.call_and_ladj(x.T)
        return columns.T, log_slopes.sum(0)

    def inverse(self, z: Tensor) -> Tensor:
        """The rows x (n, d) with T(x) = z."""
        return self.maps.inverse(z.T).T


@dataclass(frozen=True, eq=False)
class SlicedMap:
    """A step of a density's flow: Θᵀ·T(Θx), with T as in a `ColumnwiseMap`.

    Θ rotates, so it does not change the determinant.
    """

    theta: Annotated[Tensor, ArraySpec("d d", "float64")]  # Θ
    maps: SmoothMaps  # T, one for each of d directions

    @classmethod
    def from_step(cls, step: ModelStep | None) -> SlicedMap:
        """The map of a step of `engine.flow.simulate` that moves points to noise."""
        assert step is not None, "the flow stores all knots"
        assert step.theta is not None, "the directions of densities are fitted"
        assert isinstance(step.maps, SmoothMaps), "the maps of densities are smooth"
        return cls(step.theta, step.maps)

    def check_saved(self) -> None:
        """Raise a ValueError if there are not d orthonormal directions with maps."""
        if not are_orthonormal(self.theta, _ORTHONORMAL_TOL):
            raise ValueError("the directions of a step are not orthonormal")
        if len(self.maps.knots) != len(self.theta):
            raise ValueError("a step does not have one map for each direction")

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows (n, d) after the step, and Σ log T′ (n,)."""
        values, log_slopes = self.maps.call_and_ladj(self.theta @ x.T)
        return (self.theta.T @ values).T, log_slopes.sum(0)

    def inverse(self, z: Tensor) -> Tensor:
        """The rows (n, d) before the step."""
        return (self.theta.T @ self.maps.inverse(self.theta @ z.T)).T


@dataclass(frozen=True, eq=False)
class Whitening:
    """z = L⁻¹(x − shift), with the lower triangular L = `cholesky_factor`."""

    shift: Annotated[Tensor, ArraySpec("d", "float64")]
    cholesky_factor: Annotated[Tensor, ArraySpec("d d", "float64")]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z (n, d), and −log det L for every row (n,)."""
        deviations = x.T - self.shift[:, None]
        white = torch.linalg.solve_triangular(
            self.cholesky_factor, deviations, upper=False
        )
        ladj = -torch.diagonal(self.cholesky_factor).log().sum()
        return white.T, ladj.expand(len(x))

    def inverse(self, z: Tensor) -> Tensor:
        """x = L·z + shift (n, d)."""
        return (self.cholesky_factor @ z.T + self.shift[:, None]).T
