"""The flow of data to noise, and back: fitted, chosen by held-out likelihood, replayed.

This knows tensors only: rows x (n, d) in float64, in any units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from sliceflow.engine import normal
from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.events import Event, Listener
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleStreams, simulate
from sliceflow.engine.normalizing import LeastNormal, ToNormal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.smooth_maps import SmoothMap
from sliceflow.saved_types import ArraySpec
from sliceflow.spaces.density.mixture_start import MixtureStart

# Smoothings that are tried. Weaker ones follow noise on all sets that were measured.
SMOOTHINGS = (30.0, 100.0, 300.0)
# Components of the mixture that the flow may start from, in the order in which they
# are tried; the search ends when two in a row are no better.
MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
# What is added to the variances of components, as shares of those of all rows. With
# the larger one, correlations are shrunk as well (Ledoit and Wolf 2004): this is for
# few rows, and hurts columns that are nearly sums of others.
RIDGES = (1e-3, 3e-2)
# The smoothing of the maps of single columns.
COLUMN_SMOOTHING = 30.0
# The least shrinkage of correlations to 0, so that they can be inverted; and that of a
# class of few rows, whose correlations are noisy.
_SMALL_RIDGE = 1e-6
_LARGE_RIDGE = 1e-2
# When the fit of a mixture ends: the steps of the flow mend what is left, and finer
# ends cost several times as much.
_MIXTURE_TOL = 5e-3
_MIXTURE_ITERATIONS = 40
# Up to so many rows, all folds choose the mixture; with more, two of them are enough.
_MAX_ROWS_FOR_ALL_FOLDS = 400
_N_FOLDS_OF_MIXTURES = 2
# Rows of a fit that choose its settings by cross-validation; with more, one part of
# the rows is held out, which is as good and five times faster.
MAX_CROSS_VALIDATED = 1_000
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
    columns_first: bool = False  # map every column to N(0, 1) before anything else
    n_candidates: int = 8
    step_size: float = 0.7


@dataclass(frozen=True)
class Gaussianization:
    """A fitted map of rows to N(0, I), its inverse and its Jacobian.

    Each column may be mapped to N(0, 1) by itself. Then rows are whitened, x = shift +
    factor·w; a Gaussian mixture is mapped to N(0, I); the sliced steps do the rest.
    """

    columns: SmoothMap | None  # of each column; None leaves them as they are

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
        rows = self.factor @ white + self.shift[:, None]
        if self.columns is not None:
            rows = self.columns.invert(rows)
        return rows.T

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) of rows x (n, d): (n,)."""
        z, log_det = self.to_noise(x)
        return normal.log_density(z.T) + log_det

    def log_densities_by_step(self, x: Tensor) -> Iterator[Tensor]:
        """log p(x) (n,) without any step, after one step, after two, …"""
        z, log_det = self._start_points(x)
        yield normal.log_density(z) + log_det
        for step in self.steps:
            z, log_slopes = _push(step, z)
            log_det = log_det + log_slopes
            yield normal.log_density(z) + log_det

    def start_log_density(self, x: Tensor) -> Tensor:
        """log p(x) (n,) without any step. The mixture need not be mapped for that."""
        white, log_det = self._whitened(x)
        return self.start.log_density(white) + log_det

    def _start_points(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as points (d, n) before the steps, and log|det| (n,)."""
        white, whitening_log_det = self._whitened(x)
        z, log_det = self.start.to_noise(white)
        return z, log_det + whitening_log_det

    def _whitened(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as points (d, n) before the mixture, and log|det| (n,)."""
        points = x.T
        log_det = -torch.diagonal(self.factor).log().sum().expand(len(x))
        if self.columns is not None:
            points, log_slopes = self.columns.apply(points)
            log_det = log_det + log_slopes.sum(0)
        deviations = points - self.shift[:, None]
        white = torch.linalg.solve_triangular(self.factor, deviations, upper=False)
        return white, log_det

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
    assert isinstance(step.maps, SmoothMap), "the maps of densities are smooth"
    return step.maps


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
        FlowSpec([stage], seed.child("flow")),
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
        self.curve.append(float((normal.log_density(self._z) + self._log_det).mean()))

    def __call__(self, event: Event) -> bool:
        self._z, log_slopes = _push(self.state.steps[-1], self._z)
        self._log_det = self._log_det + log_slopes
        self._record()
        best = int(np.argmax(self.curve))
        return len(self.curve) - 1 - best >= PATIENCE


def _start(x: Tensor, settings: GaussianizationSettings, seed: Seed) -> Gaussianization:
    """The maps of columns, the whitening and the mixture, without steps."""
    columns = None
    if settings.columns_first:
        columns = _fit_columns(x)
        x = columns.apply(x.T)[0].T
    shift = x.mean(0)
    scale = x.std(0)
    standardised = (x - shift) / scale
    correlation = standardised.T @ standardised / len(x)
    shrinkage = _SMALL_RIDGE
    if settings.ridge > RIDGES[0]:
        shrinkage = max(shrinkage, ledoit_wolf_shrinkage(standardised.cpu().numpy()))
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    factor = torch.linalg.cholesky(torch.lerp(correlation, identity, shrinkage))
    white = torch.linalg.solve_triangular(factor, standardised.T, upper=False)
    start = _fit_mixture(white.T, settings, seed)
    return Gaussianization(columns, shift, scale[:, None] * factor, start, ())


def _fit_columns(x: Tensor) -> SmoothMap:
    """The maps of each column of rows x (n, d) to N(0, 1)."""
    transport = ToNormal(COLUMN_SMOOTHING, count_knots(len(x)), n_iterations=15)
    points = x.T.contiguous()
    transport_map = transport.fit(points, points[:, :0]).maps
    assert isinstance(transport_map, SmoothMap), "this transport makes smooth maps"
    return transport_map


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
    factor = torch.linalg.cholesky(torch.lerp(correlation, identity, _LARGE_RIDGE))
    start = MixtureStart(x.new_zeros(1), x.new_zeros(1, d), identity[None])
    return Gaussianization(None, x.mean(0), scale[:, None] * factor, start, ())


def _fit_mixture(
    white: Tensor, settings: GaussianizationSettings, seed: Seed
) -> MixtureStart:
    """The mixture of white rows (n, d)."""
    key = seed.child("mixture").key[0]
    mixture = GaussianMixture(
        settings.n_components,
        reg_covar=settings.ridge,
        tol=_MIXTURE_TOL,
        max_iter=_MIXTURE_ITERATIONS,
        random_state=np.random.RandomState(key),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
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
    n_components: int | None = None,
) -> GaussianizationSettings:
    """The settings for rows x (n, d), chosen by held-out likelihood.

    What is not None is taken as it is.
    """
    splits = list(_splits(x, seed.child("splits")))
    most_steps = MAX_STEPS if n_steps is None else n_steps
    settings = GaussianizationSettings(most_steps, SMOOTHINGS[-1])
    start_splits = splits
    if len(x) > _MAX_ROWS_FOR_ALL_FOLDS:
        start_splits = splits[:_N_FOLDS_OF_MIXTURES]
    settings = _choose_start(start_splits, settings, seed, n_components)
    if n_steps is not None and smoothing is not None:
        return replace(settings, smoothing=smoothing)
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


def _choose_start(
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: GaussianizationSettings,
    seed: Seed,
    n_components: int | None,
) -> GaussianizationSettings:
    """The settings with the start that is likeliest on held-out rows.

    `n_components` is chosen if it is None.
    """
    sizes = MIXTURE_SIZES if n_components is None else (n_components,)
    best = -math.inf
    chosen = settings
    for columns_first in (False, True):
        for ridge in RIDGES:
            tried = replace(settings, columns_first=columns_first, ridge=ridge)
            score, tried = _choose_mixture_size(splits, tried, seed, sizes)
            if score > best:
                best = score
                chosen = tried
    return chosen


def _choose_mixture_size(
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: GaussianizationSettings,
    seed: Seed,
    sizes: Sequence[int],
) -> tuple[float, GaussianizationSettings]:
    """The best held-out log-density, and the settings with that many components."""
    best = -math.inf
    chosen = settings
    n_worse = 0
    for n_components in sizes:
        too_many = n_components > max(1, len(splits[0][0]) // 2)
        if n_worse == 2 or too_many:
            break
        tried = replace(settings, n_components=n_components)
        score = _score_start(splits, tried, seed)
        n_worse += 1
        if score > best:
            best = score
            chosen = tried
            n_worse = 0
    return best, chosen


def _score_start(
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: GaussianizationSettings,
    seed: Seed,
) -> float:
    """The log-density of held-out rows without steps, summed over the splits."""
    score = 0.0
    for fitted_rows, held_out in splits:
        begun = _start(fitted_rows, settings, seed)
        score += float(begun.start_log_density(held_out).mean())
    return score


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
