"""The map of rows to N(0, I) that gives a density: fitted, applied and inverted.

This knows tensors only: rows (n, d) in float64, in any units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sliceflow.engine.batches import AnalyticTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import FlowSpec, simulate
from sliceflow.engine.noise_transport import (
    GaussianizingTransport,
    LeastGaussianRotation,
)
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.estimators.density.initial_map import (
    InitialMap,
    fit_initial_map,
    fit_normal_initial_map,
)
from sliceflow.estimators.density.invertible_maps import (
    Composition,
    SlicedMap,
    log_prob,
)
from sliceflow.estimators.density.settings import (
    GaussianizationSettings,
    n_knots_for,
)


@dataclass(frozen=True, eq=False)
class Gaussianization:
    """A fitted map of rows to N(0, I), with its inverse and its Jacobian.

    The initial map comes first: it whitens rows and maps a Gaussian mixture to N(0, I).
    Then come the sliced steps. Each step rotates rows, maps every coordinate by a
    smooth increasing function, and rotates back.
    """

    initial_map: InitialMap
    steps: Sequence[SlicedMap]

    @property
    def composition(self) -> Composition:
        """All maps, in their order."""
        return Composition([self.initial_map, *self.steps])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as noise z (n, d) near N(0, I), and log|det ∂z/∂x| (n,)."""
        return self.composition.call_and_ladj(x)

    def to_noise(self, x: Tensor) -> Tensor:
        """Rows x (n, d) as noise (n, d) near N(0, I)."""
        noise, _ = self.call_and_ladj(x)
        return noise

    def inverse(self, z: Tensor) -> Tensor:
        """The rows x (n, d) that `call_and_ladj` sends to noise z (n, d)."""
        return self.composition.inverse(z)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) of rows x (n, d): (n,)."""
        return log_prob(x, self.composition)

    def has_columns(self, d: int) -> bool:
        """Whether all maps are of d columns. In a damaged file, they may not be."""
        has_directions = all(len(step.theta) == d for step in self.steps)
        return has_directions and self.initial_map.has_columns(d)


def fit_gaussianization(
    x: Tensor,
    settings: GaussianizationSettings,
    seed: Seed,
    listeners: Sequence[FlowListener] = (),
) -> Gaussianization:
    """The map that is fitted to rows x (n, d): the initial map first, then the flow."""
    initial_map = fit_initial_map(x, settings.initial_map, seed)
    if settings.n_steps == 0:
        return Gaussianization(initial_map, steps=())
    rows, _ = initial_map.call_and_ladj(x)
    return Gaussianization(initial_map, fit_steps(rows, settings, seed, listeners))


def fit_steps(
    rows: Tensor,
    settings: GaussianizationSettings,
    seed: Seed,
    listeners: Sequence[FlowListener],
) -> tuple[SlicedMap, ...]:
    """The steps that take rows (n, d), after the initial map, to N(0, I).

    The flow goes from data to noise: its particles are the rows, and its target is
    N(0, I).
    """
    stage = Stage(
        "flow",
        LeastGaussianRotation(settings.n_candidates),
        settings.n_steps,
        transport=GaussianizingTransport(
            settings.penalty, n_knots_for(len(rows)), settings.relaxation
        ),
        max_knots=None,
    )
    steps = simulate(
        FlowSpec([stage], seed.child("flow")),
        Cloud(rows.T.contiguous()),
        AnalyticTarget(),
        listeners=listeners,
    )
    return tuple(SlicedMap.from_step(step) for step in steps)


def fit_normal(x: Tensor, rows_by_class: Sequence[Tensor]) -> Gaussianization:
    """A normal distribution around rows x (n, d), if there are too few for steps.

    Its covariance is that within all classes, whose rows are `rows_by_class`.
    """
    return Gaussianization(fit_normal_initial_map(x, rows_by_class), steps=())
