"""The flow of data to noise, and back: fitted, chosen by held-out likelihood, replayed.

This knows tensors only: rows x (n, d) in float64, in any units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.events import Event, Listener
from sliceflow.engine.flow import Flow, FlowState, ParticleStreams, simulate
from sliceflow.engine.normalizing import LeastNormal, ToNormal, log_normal_density
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.smooth_maps import SmoothMap
from sliceflow.fields import ArraySpec
from sliceflow.spaces.density.mixture_start import MixtureStart

# Smoothings that are tried. Weaker ones follow noise on all sets that were measured.
SMOOTHINGS = (30.0, 100.0, 300.0)
# Components of the mixture that the flow may start from, in the order in which they
# are tried; the search ends when two in a row are no better.
MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
# What is added to the variances of components, as shares of those of all rows.
RIDGES = (1e-3, 3e-2)
# What is added to correlations, to invert them: with many rows nearly nothing, because
# columns may be nearly sums of others; with few rows, correlations are noisy.
_SMALL_RIDGE = 1e-6
_LARGE_RIDGE = 1e-2
# Rows of a fit that choose its settings by cross-validation; with more, one part of
# the rows is held out, which is as good and five times faster.
MAX_CROSS_VALIDATED = 2_000
N_FOLDS = 5
# The most rows that are used to choose settings, and the most that are held out.
MAX_CHOOSING = 20_000
# A flow ends if so many steps in a row do not improve held-out rows.
PATIENCE = 10
# The most steps of a flow whose number is chosen.
MAX_STEPS = 150


@dataclass(frozen=True)
class GaussianizationSettings:
    """How to fit a `Gaussianization`."""

    n_steps: int
    smoothing: float
    n_components: int = 1
    ridge: float = RIDGES[0]
    n_candidates: int = 8
    step_size: float = 0.7


@dataclass(frozen=True)
class Gaussianization:
    """A fitted map of rows to N(0, I), its inverse and its Jacobian.

    Rows are whitened, x = shift + factor·w; a Gaussian mixture is mapped to N(0, I);
    then the sliced steps do the rest.
    """

    shift: Annotated[Tensor, ArraySpec("d", torch.float64)]
    factor: Annotated[Tensor, ArraySpec("d d", torch.float64)]  # lower triangular
    start: MixtureStart
    steps: Sequence[ModelStep]

    def to_noise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as z (n, d) near N(0, I), and log|det ∂z/∂x| (n,)."""
        z, log_det = self._start_points(x)
        for step in self.steps:
            z, log_slopes = _push(step, z)
            log_det = log_det + log_slopes
        return z.T, log_det

    def from_noise(self, z: Tensor) -> Tensor:
        """The rows x (n, d) that `to_noise` sends to z (n, d)."""
        points = z.T
        for step in reversed(self.steps):
            theta = _directions(step)
            points = theta.T @ _smooth_map(step).invert(theta @ points)
        white = self.start.from_noise(points)
        return (self.factor @ white).T + self.shift

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) of rows x (n, d): (n,)."""
        z, log_det = self.to_noise(x)
        return log_normal_density(z.T) + log_det

    def log_densities_by_step(self, x: Tensor) -> Iterator[Tensor]:
        """log p(x) (n,) without any step, after one step, after two, …"""
        z, log_det = self._start_points(x)
        yield log_normal_density(z) + log_det
        for step in self.steps:
            z, log_slopes = _push(step, z)
            log_det = log_det + log_slopes
            yield log_normal_density(z) + log_det

    def _start_points(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as points (d, n) before the steps, and log|det| (n,)."""
        deviations = (x - self.shift).T
        white = torch.linalg.solve_triangular(self.factor, deviations, upper=False)
        z, log_det = self.start.to_noise(white)
        return z, log_det - torch.diagonal(self.factor).log().sum()

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.shift.device


def _push(step: ModelStep, z: Tensor) -> tuple[Tensor, Tensor]:
    """Points z (d, n) after a step, and the logarithms (n,) of its determinants."""
    theta = _directions(step)
    values, log_slopes = _smooth_map(step).apply(theta @ z)
    return theta.T @ values, log_slopes.sum(0)


def _directions(step: ModelStep) -> Tensor:
    assert step.theta is not None, "the directions of densities are fitted, so stored"
    return step.theta


def _smooth_map(step: ModelStep) -> SmoothMap:
    assert isinstance(step.map, SmoothMap), "the maps of densities are smooth"
    return step.map


def fit_gaussianization(
    x: Tensor,
    settings: GaussianizationSettings,
    seed: Seed,
    listeners: Sequence[Listener] = (),
    held_out: Tensor | None = None,
) -> Gaussianization:
    """Fit the flow to rows x (n, d).

    With `held_out` rows (m, d), the flow ends when these stop improving.
    """
    begun = _start(x, settings, seed)
    points, _ = begun._start_points(x)
    d, n = points.shape
    stage = Stage(
        "flow",
        LeastNormal(settings.n_candidates),
        settings.n_steps,
        transport=ToNormal(settings.smoothing, count_knots(n), settings.step_size),
        n_knots=None,
    )
    state = FlowState()
    if held_out is not None:
        listeners = (*listeners, EarlyStopping(begun, state, held_out))
    # The target is N(0, I), which the transport knows: there are no data to draw.
    target = Target.from_cloud(Cloud(points.new_zeros(d, 0)))
    steps = simulate(
        Flow([stage], seed.child("flow")),
        Cloud(points.contiguous()),
        target,
        ParticleStreams(seed.child("noise")),
        listeners=listeners,
        state=state,
    )
    return replace(begun, steps=tuple(steps))


def count_knots(n: int) -> int:
    """The knots of a map that is fitted to n rows."""
    return max(12, min(48, round(1.5 * math.sqrt(n))))


@dataclass
class EarlyStopping:
    """A listener that ends a flow when held-out rows stop improving."""

    begun: Gaussianization
    state: FlowState
    held_out: Tensor  # (m, d)
    curve: list[float] = field(default_factory=list)  # by the number of steps

    def __post_init__(self) -> None:
        self._z, self._log_det = self.begun._start_points(self.held_out)
        self._record()

    def _record(self) -> None:
        self.curve.append(float((log_normal_density(self._z) + self._log_det).mean()))

    def __call__(self, event: Event) -> bool:
        self._z, log_slopes = _push(self.state.steps[-1], self._z)
        self._log_det = self._log_det + log_slopes
        self._record()
        best = int(np.argmax(self.curve))
        return len(self.curve) - 1 - best >= PATIENCE


def _start(x: Tensor, settings: GaussianizationSettings, seed: Seed) -> Gaussianization:
    """The whitening and the mixture, without steps."""
    shift = x.mean(0)
    scale = x.std(0)
    standardised = (x - shift) / scale
    n, d = x.shape
    correlation = standardised.T @ standardised / n
    identity = torch.eye(d, dtype=x.dtype, device=x.device)
    least = _SMALL_RIDGE if n > 2 * d else _LARGE_RIDGE
    factor = torch.linalg.cholesky(correlation + least * identity)
    white = torch.linalg.solve_triangular(factor, standardised.T, upper=False)
    start = _fit_mixture(white.T, settings, seed)
    return Gaussianization(shift, scale[:, None] * factor, start, ())


def fit_normal(x: Tensor, parts: Sequence[Tensor]) -> Gaussianization:
    """A normal distribution around rows x (n, d), for a class of few rows.

    Its covariance is that within all `parts`, the rows of all classes; if these have
    one row each, that of all rows.
    """
    deviations = torch.cat([part - part.mean(0) for part in parts])
    if bool((deviations.std(0) == 0).any()):
        rows = torch.cat(list(parts))
        deviations = rows - rows.mean(0)
    d = x.shape[1]
    scale = deviations.std(0)
    standardised = deviations / scale
    correlation = standardised.T @ standardised / len(deviations)
    identity = torch.eye(d, dtype=x.dtype, device=x.device)
    factor = torch.linalg.cholesky(correlation + _LARGE_RIDGE * identity)
    start = MixtureStart(x.new_zeros(1), x.new_zeros(1, d), identity[None])
    return Gaussianization(x.mean(0), scale[:, None] * factor, start, ())


def _fit_mixture(
    white: Tensor, settings: GaussianizationSettings, seed: Seed
) -> MixtureStart:
    """The mixture of white rows (n, d)."""
    key = seed.child("mixture").key[0]
    mixture = GaussianMixture(
        settings.n_components,
        reg_covar=settings.ridge,
        random_state=np.random.RandomState(key),
    )
    mixture.fit(white.cpu().numpy())
    factors = np.linalg.cholesky(mixture.covariances_)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(white)

    return MixtureStart(
        tensor(np.log(mixture.weights_)), tensor(mixture.means_), tensor(factors)
    )


# Choosing the settings


def choose_settings(
    x: Tensor,
    seed: Seed,
    n_steps: int | None = None,
    smoothing: float | None = None,
) -> GaussianizationSettings:
    """The settings for rows x (n, d), chosen by held-out likelihood.

    What is not None is taken as it is.
    """
    splits = list(_splits(x, seed.child("splits")))
    most_steps = MAX_STEPS if n_steps is None else n_steps
    settings = GaussianizationSettings(most_steps, SMOOTHINGS[-1])
    settings = _choose_mixture(splits, settings, seed)
    smoothings = SMOOTHINGS if smoothing is None else (smoothing,)
    best = -math.inf
    chosen = settings
    for candidate in smoothings:
        tried = replace(settings, smoothing=candidate)
        curve = _held_out_curve(splits, tried, seed)
        if n_steps is not None:
            curve = curve[-1:]
        if curve.max() > best:
            best = float(curve.max())
            steps = int(curve.argmax()) if n_steps is None else n_steps
            chosen = replace(tried, n_steps=steps)
    return chosen


def _splits(x: Tensor, seed: Seed) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of rows to fit and rows that are held out."""
    order = seed.permutation(len(x)).to(x.device)[:MAX_CHOOSING]
    n = len(order)
    n_folds = max(2, min(N_FOLDS, n // 2))
    folds = range(n_folds) if n <= MAX_CROSS_VALIDATED else range(1)
    for fold in folds:
        is_held_out = torch.arange(n, device=x.device) % n_folds == fold
        yield x[order[~is_held_out]], x[order[is_held_out]]


def _choose_mixture(
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: GaussianizationSettings,
    seed: Seed,
) -> GaussianizationSettings:
    """The settings with the mixture that is likeliest on held-out rows."""
    best = -math.inf
    chosen = settings
    n_fitted = len(splits[0][0])
    for ridge in RIDGES:
        best_of_ridge = -math.inf
        n_worse = 0
        for n_components in MIXTURE_SIZES:
            if n_worse == 2 or n_components > n_fitted // 2:
                break
            tried = replace(settings, n_components=n_components, ridge=ridge)
            score = 0.0
            for fitted_rows, held_out in splits:
                begun = _start(fitted_rows, tried, seed)
                score += float(begun.log_density(held_out).mean())
            n_worse += 1
            if score > best_of_ridge:
                best_of_ridge = score
                n_worse = 0
            if score > best:
                best = score
                chosen = tried
    return chosen


def _held_out_curve(
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: GaussianizationSettings,
    seed: Seed,
) -> np.ndarray:
    """The mean log-density of held-out rows after 0, 1, … steps, over all splits.

    Flows that end early keep the value that they ended with.
    """
    curves = []
    for fitted_rows, held_out in splits:
        fitted = fit_gaussianization(fitted_rows, settings, seed, held_out=held_out)
        curve = [
            float(log_densities.mean())
            for log_densities in fitted.log_densities_by_step(held_out)
        ]
        curve += [curve[-1]] * (settings.n_steps + 1 - len(curve))
        curves.append(curve)
    mean: np.ndarray = np.mean(curves, axis=0)
    return mean
