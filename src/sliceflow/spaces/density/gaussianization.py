"""The map of rows to N(0, I) that gives a density: fitted, applied and inverted.

This knows tensors only: rows x (n, d) in float64, in any units. Within the flow, rows
are points (d, n), as everywhere in the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from sliceflow.engine import normal
from sliceflow.engine.batches import AnalyticTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import Event, FlowListener
from sliceflow.engine.flow import FlowSpec, ParticleStreams, simulate
from sliceflow.engine.gaussianizing import LeastNormal, ToNormal
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.spaces.density.initial_map import (
    InitialMap,
    fit_initial_map,
    fit_normal_initial_map,
)
from sliceflow.spaces.density.settings import GaussianizationSettings, count_knots

# A flow ends if this many steps in a row do not make held-out rows more likely.
PATIENCE = 10


@dataclass(frozen=True)
class Gaussianization:
    """A fitted map of rows to N(0, I), with its inverse and its Jacobian.

    The initial map comes first: it whitens rows and maps a Gaussian mixture to N(0, I).
    Then come the sliced steps. Each step rotates points, maps every coordinate by a
    smooth increasing function, and rotates back.
    """

    initial_map: InitialMap
    steps: Sequence[ModelStep]

    def to_noise_and_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as noise (n, d) near N(0, I), and log|det ∂noise/∂x| (n,)."""
        points, log_det = self.initial_map.apply(x)
        for step in self.steps:
            points, step_log_det = _apply_step(step, points)
            log_det = log_det + step_log_det
        return points.T, log_det

    def to_noise(self, x: Tensor) -> Tensor:
        """Rows x (n, d) as noise (n, d) near N(0, I)."""
        noise, _ = self.to_noise_and_log_det(x)
        return noise

    def from_noise(self, noise: Tensor) -> Tensor:
        """The rows x (n, d) that `to_noise` sends to noise (n, d)."""
        points = noise.T
        for step in reversed(self.steps):
            points = _invert_step(step, points)
        return self.initial_map.invert(points)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) of rows x (n, d): (n,)."""
        noise, log_det = self.to_noise_and_log_det(x)
        return normal.log_density(noise.T) + log_det

    def log_densities_by_step(self, x: Tensor) -> Iterator[Tensor]:
        """log p(x) (n,) without any step, after one step, after two, …"""
        points, log_det = self.initial_map.apply(x)
        yield normal.log_density(points) + log_det
        for step in self.steps:
            points, step_log_det = _apply_step(step, points)
            log_det = log_det + step_log_det
            yield normal.log_density(points) + log_det

    def has_columns(self, d: int) -> bool:
        """Whether all maps are of d columns; damaged ones may not be."""
        thetas = [step.theta for step in self.steps]
        has_directions = all(t is not None and t.shape == (d, d) for t in thetas)
        return self.initial_map.has_columns(d) and has_directions


def _apply_step(step: ModelStep, points: Tensor) -> tuple[Tensor, Tensor]:
    """Points (d, n) after a step, and the logarithms (n,) of its determinants."""
    theta = _directions(step)
    values, log_slopes = _smooth_map(step).apply(theta @ points)
    return theta.T @ values, log_slopes.sum(0)


def _invert_step(step: ModelStep, points: Tensor) -> Tensor:
    """The points (d, n) that a step moves to `points` (d, n)."""
    theta = _directions(step)
    return theta.T @ _smooth_map(step).invert(theta @ points)


def _directions(step: ModelStep) -> Tensor:
    assert step.theta is not None, "the directions of densities are fitted, so stored"
    return step.theta


def _smooth_map(step: ModelStep) -> SmoothMaps:
    assert isinstance(step.maps, SmoothMaps), "the maps of densities are smooth"
    return step.maps


def fit_gaussianization(
    x: Tensor,
    settings: GaussianizationSettings,
    seed: Seed,
    listeners: Sequence[FlowListener] = (),
    held_out: Tensor | None = None,
) -> Gaussianization:
    """Fit the initial map, and then the flow, to rows x (n, d).

    The flow goes from data to noise: its particles are the rows, and its target is
    N(0, I). With `held_out` rows (m, d), it ends when these stop improving.
    """
    initial_map = fit_initial_map(x, settings.initial_map, seed)
    if settings.n_steps == 0:
        return Gaussianization(initial_map, steps=())
    points, _ = initial_map.apply(x)
    if held_out is not None:
        listeners = (*listeners, EarlyStopping(*initial_map.apply(held_out)))
    return Gaussianization(initial_map, fit_steps(points, settings, seed, listeners))


def fit_steps(
    points: Tensor,
    settings: GaussianizationSettings,
    seed: Seed,
    listeners: Sequence[FlowListener],
) -> tuple[ModelStep, ...]:
    """The steps that take points (d, n), after the initial map, to N(0, I)."""
    stage = Stage(
        "flow",
        LeastNormal(settings.n_candidates),
        settings.n_steps,
        transport=ToNormal(
            settings.penalty, count_knots(points.shape[1]), settings.relaxation
        ),
        n_knots=None,
    )
    steps = simulate(
        FlowSpec([stage], seed.child("flow")),
        Cloud(points.contiguous()),
        AnalyticTarget(),
        ParticleStreams(seed.child("noise")),
        listeners=listeners,
    )
    return tuple(steps)


def fit_normal(x: Tensor, rows_by_class: Sequence[Tensor]) -> Gaussianization:
    """A normal distribution around rows x (n, d), if there are too few for steps.

    Its covariance is that within all classes, whose rows are `rows_by_class`.
    """
    return Gaussianization(fit_normal_initial_map(x, rows_by_class), steps=())


@dataclass
class EarlyStopping:
    """A listener that ends a flow when held-out rows stop improving.

    It moves the held-out rows along.
    """

    points: Tensor  # (d, m), the held-out rows after the initial map and all steps
    log_det: Tensor  # (m,), the logarithms of the determinants of these
    # The mean log-density of the held-out rows, by the number of steps
    curve: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._record()

    def _record(self) -> None:
        log_densities = normal.log_density(self.points) + self.log_det
        self.curve.append(float(log_densities.mean()))

    def __call__(self, event: Event) -> bool:
        assert event.model_step is not None, "the flow stores all knots"
        self.points, step_log_det = _apply_step(event.model_step, self.points)
        self.log_det = self.log_det + step_log_det
        self._record()
        best = int(np.argmax(self.curve))
        return len(self.curve) - 1 - best >= PATIENCE
