"""The initial map of a density: columns, whitening and a mixture, before the steps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.noise_transport import GaussianizingTransport
from sliceflow.engine.random import Seed
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.estimators.density.invertible_maps import (
    ColumnwiseMap,
    Composition,
    Whitening,
    log_prob,
)
from sliceflow.estimators.density.mixture import MixtureMap
from sliceflow.estimators.density.mixture_growth import grow_mixture
from sliceflow.estimators.density.settings import (
    MAX_UNGROWN_COMPONENTS,
    REG_COVARS,
    InitialMapSettings,
    n_knots_for,
)

# The penalty of rough maps of single columns, and the iterations of their fit. They are
# fitted once, and to the end: a step of the flow fits its maps more roughly.
_COLUMN_PENALTY = 30.0
_COLUMN_ITERATIONS = 15
# The least shrinkage of correlations to 0, so that they can be inverted; and the
# shrinkage for a class of few rows, whose correlations are noisy.
_SMALL_SHRINKAGE = 1e-6
_LARGE_SHRINKAGE = 1e-2
# The fit of a mixture ends with these tolerances. The steps of the flow correct its
# errors, and finer tolerances cost several times as much.
_MIXTURE_TOL = 5e-3
_MIXTURE_ITERATIONS = 40
# Starts of the fit of a mixture, of which the likeliest counts: of 16 single ones, one
# ended 1.2 nats too low (600 rows of six components in six dimensions). The search of
# sizes takes one, and averages over splits.
MIXTURE_STARTS = 3
# With more rows there is one start: three take longer than all else, and the more rows
# there are, the less the starts differ.
_MAX_ROWS_OF_MANY_STARTS = 20_000
# A mixture that will grow is first fitted to at most this many rows, later to all.
_MAX_ROWS_BEFORE_GROWTH = 20_000


@dataclass(frozen=True, eq=False)
class InitialMap:
    """The map of rows (n, d) to rows (n, d) at which the sliced steps start.

    Each column may be mapped to N(0, 1) by itself. Then rows are whitened. Last, a
    Gaussian mixture of white rows is mapped to N(0, I).
    """

    column_map: ColumnwiseMap | None  # None leaves columns as they are
    whitening: Whitening
    mixture: MixtureMap

    def has_columns(self, d: int) -> bool:
        """Whether all parts of the map are of d columns."""
        has_d_columns = len(self.whitening.shift) == d and self.mixture.n_columns == d
        if self.column_map is not None:
            has_d_columns = has_d_columns and len(self.column_map.maps.knots) == d
        return has_d_columns

    @property
    def before_mixture(self) -> Composition:
        """The part before the mixture: a map of rows to white rows."""
        if self.column_map is None:
            return Composition([self.whitening])
        return Composition([self.column_map, self.whitening])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, d) as rows z (n, d) near N(0, I), and log|det ∂z/∂x| (n,)."""
        return Composition([self.before_mixture, self.mixture]).call_and_ladj(x)

    def inverse(self, z: Tensor) -> Tensor:
        """The rows x (n, d) that `call_and_ladj` sends to z (n, d)."""
        return Composition([self.before_mixture, self.mixture]).inverse(z)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) (n,) of rows x (n, d), if no steps follow.

        The base is the mixture, whose density is known without its map to noise.
        """
        return log_prob(x, self.before_mixture, base=self.mixture.log_prob)


def fit_initial_map(
    x: Tensor,
    settings: InitialMapSettings,
    seed: Seed,
    n_mixture_starts: int | None = None,
) -> InitialMap:
    """Fit the initial map to rows x (n, d).

    If `n_mixture_starts` is None, the number of rows decides. A mixture of more than
    `MAX_UNGROWN_COMPONENTS` grows from one of that many.
    """
    if settings.n_components > MAX_UNGROWN_COMPONENTS:
        return _fit_grown(x, settings, seed)
    if n_mixture_starts is None:
        n_mixture_starts = MIXTURE_STARTS
        if len(x) > _MAX_ROWS_OF_MANY_STARTS:
            n_mixture_starts = 1
    column_map = None
    rows_to_whiten = x
    if settings.columns_first:
        column_map = fit_columns(x)
        rows_to_whiten, _ = column_map.call_and_ladj(x)
    whitening, white = fit_whitening(rows_to_whiten, settings.reg_covar)
    mixture = fit_mixture(white, settings, seed, n_mixture_starts)
    return InitialMap(column_map, whitening, mixture)


def fit_whitening(x: Tensor, reg_covar: float) -> tuple[Whitening, Tensor]:
    """Whiten rows x (n, d): the map, and the white rows (n, d)."""
    shift = x.mean(0)
    scale = x.std(0)
    standardized = (x - shift) / scale
    shrinkage = _SMALL_SHRINKAGE
    if reg_covar >= REG_COVARS[-1]:
        shrinkage = max(shrinkage, ledoit_wolf_shrinkage(standardized.cpu().numpy()))
    factor = _correlation_factor(standardized, shrinkage)
    white = torch.linalg.solve_triangular(factor, standardized.T, upper=False)
    return Whitening(shift, scale[:, None] * factor), white.T


def fit_ungrown_map(x: Tensor, settings: InitialMapSettings, seed: Seed) -> InitialMap:
    """Fit a map whose mixture has not grown yet to a random sample of rows x (n, d)."""
    order = seed.child("before growth").permutation(len(x)).to(x.device)
    sample = x[order[:_MAX_ROWS_BEFORE_GROWTH]]
    ungrown = replace(settings, n_components=MAX_UNGROWN_COMPONENTS)
    return fit_initial_map(sample, ungrown, seed, n_mixture_starts=1)


def grow_initial_map(
    initial_map: InitialMap, n_components: int, x: Tensor, reg_covar: float
) -> InitialMap:
    """Grow the mixture of a map, at most to twice its size, by rows x (n, d)."""
    white, _ = initial_map.before_mixture.call_and_ladj(x)
    mixture = grow_mixture(
        initial_map.mixture, n_components, white.contiguous(), reg_covar
    )
    return replace(initial_map, mixture=mixture)


def _fit_grown(x: Tensor, settings: InitialMapSettings, seed: Seed) -> InitialMap:
    """Fit a map whose mixture doubles until it has as many components as it should."""
    initial_map = fit_ungrown_map(x, settings, seed)
    n_components = MAX_UNGROWN_COMPONENTS
    while n_components < settings.n_components:
        n_components = min(2 * n_components, settings.n_components)
        initial_map = grow_initial_map(initial_map, n_components, x, settings.reg_covar)
    return initial_map


def fit_normal_initial_map(x: Tensor, rows_by_class: Sequence[Tensor]) -> InitialMap:
    """Fit a normal distribution around rows x (n, d), for a class of few rows.

    Its covariance is the one within all classes, whose rows are `rows_by_class`. If the
    classes have one row each, it is the covariance of all rows.
    """
    deviations = torch.cat([rows - rows.mean(0) for rows in rows_by_class])
    if bool((deviations.std(0) == 0).any()):
        all_rows = torch.cat(list(rows_by_class))
        deviations = all_rows - all_rows.mean(0)
    scale = deviations.std(0)
    factor = _correlation_factor(deviations / scale, _LARGE_SHRINKAGE)
    d = x.shape[1]
    identity = torch.eye(d, dtype=x.dtype, device=x.device)
    one_component = MixtureMap(x.new_zeros(1), x.new_zeros(1, d), identity[None])
    whitening = Whitening(x.mean(0), scale[:, None] * factor)
    return InitialMap(None, whitening, one_component)


def _correlation_factor(standardized: Tensor, shrinkage: float) -> Tensor:
    """The Cholesky factor (d, d) of the correlations of rows (n, d), shrunk to 0."""
    correlation = standardized.T @ standardized / len(standardized)
    identity = torch.eye(
        len(correlation), dtype=correlation.dtype, device=correlation.device
    )
    factor: Tensor = torch.linalg.cholesky(torch.lerp(correlation, identity, shrinkage))
    return factor


def fit_columns(x: Tensor) -> ColumnwiseMap:
    """Fit the map of each column of rows x (n, d) to N(0, 1)."""
    transport = GaussianizingTransport(
        _COLUMN_PENALTY, n_knots_for(len(x)), n_iterations=_COLUMN_ITERATIONS
    )
    columns = x.T.contiguous()
    no_data = columns[:, :0]  # the target is N(0, 1), which the transport knows
    transport_map = transport.solve(columns, no_data).maps
    assert isinstance(transport_map, SmoothMaps), "this transport makes smooth maps"
    return ColumnwiseMap(transport_map)


def fit_mixture(
    white: Tensor, settings: InitialMapSettings, seed: Seed, n_starts: int
) -> MixtureMap:
    """Fit a mixture to white rows (n, d) `n_starts` times; return the likeliest."""
    if settings.n_components == 1:
        n_starts = 1  # all fits are equal
    key = seed.child("mixture").key[0]
    mixture = GaussianMixture(
        settings.n_components,
        reg_covar=settings.reg_covar,
        tol=_MIXTURE_TOL,
        max_iter=_MIXTURE_ITERATIONS,
        n_init=n_starts,
        random_state=np.random.RandomState(key),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(white.cpu().numpy())
    factors = np.linalg.cholesky(mixture.covariances_)

    def as_tensor(values: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(white)

    return MixtureMap(
        log_weights=as_tensor(np.log(mixture.weights_)),
        means=as_tensor(mixture.means_),
        cholesky_factors=as_tensor(factors),
    )
