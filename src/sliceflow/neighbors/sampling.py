"""New points along neighbors: a row plus noise with the covariance of near rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sliceflow.arrays import SMALLEST_POSITIVE
from sliceflow.engine.random import Seed
from sliceflow.neighbors.regressions import Neighborhoods
from sliceflow.neighbors.weights import choose_by_weight

# The noise of a draw has the covariance of this many adjusted rows: few, so that it is
# local, but enough for the covariance of some columns. It is the default `n_neighbors`
# of `VectorOptions`, too.
N_NOISE_ROWS = 20
# The covariance of the noise is measured on at least this many draws of a condition,
# even if fewer are asked for. Chosen by hand: a covariance of few draws is noisy.
MIN_COVARIANCE_DRAWS = 48
# Added to the distances of rows of other components, so that these rows come last.
# Distances are in standard deviations, and far smaller.
_OTHER_COMPONENT = 1e6
# Eigenvalues below this share of the largest one count as 0: they are rounding errors.
_MIN_EIGENVALUE_RATIO = 1e-10


def local_noise(neighbors: Tensor, w: Tensor) -> Tensor:
    """Gaussian noise (…, t, d) with the covariance of neighbors (…, k, d).

    It is Σⱼ wⱼ·(xⱼ − mean)/√(k − 1), with standard normal numbers w (…, t, k).
    """
    k = neighbors.shape[-2]
    centered = neighbors - neighbors.mean(-2, keepdim=True)
    return w @ centered / math.sqrt(max(1, k - 1))


def bures_wasserstein_map(source: Tensor, target: Tensor) -> Tensor:
    """The optimal transport map (…, d, d) between Gaussians around 0.

    E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ² for the covariances E of the source and C of the target.
    Directions in which the source does not vary stay as they are.
    """
    variances, axes = torch.linalg.eigh(source)
    is_varying = variances > _MIN_EIGENVALUE_RATIO * variances[..., -1:]
    root = torch.where(is_varying, variances, 0).clamp(min=0).sqrt()
    inverse_root = torch.where(is_varying, 1 / torch.where(is_varying, root, 1), 0)
    half = axes * root[..., None, :]
    middle_values, middle_vectors = torch.linalg.eigh(half.mT @ target @ half)
    middle_root = middle_values.clamp(min=0).sqrt()
    back = (axes * inverse_root[..., None, :]) @ middle_vectors
    constant_axes = axes * (~is_varying)[..., None, :]
    transport: Tensor = (back * middle_root[..., None, :]) @ back.mT
    identity: Tensor = constant_axes @ axes.mT  # along the constant axes
    return transport + identity


class NeighborhoodDraws(NamedTuple):
    """New points at q conditions, and around which neighbors they are drawn."""

    x: Tensor  # (q, n, d)
    neighbors: Tensor  # (q, n), indices among the neighbors of the condition


def sample_neighborhoods(
    neighborhoods: Neighborhoods,
    n: int,
    bandwidth: float,
    seed: Seed,
    first_condition: int = 0,
) -> NeighborhoodDraws:
    """n new points at each condition.

    A point is an adjusted row, drawn by weight, plus the bandwidth times a Gaussian
    with the covariance of the rows nearest to it. Points are scaled to the covariance
    that rows have within components. This covariance is measured on more draws if n is
    small. `first_condition` is the index of the first condition, so that draws do not
    depend on how conditions are divided into batches.
    """
    q, k, d = neighborhoods.x.shape
    n_measured = max(n, MIN_COVARIANCE_DRAWS)
    u = seed.child("row").uniform(q, n_measured, first_row=first_condition)
    measured = choose_by_weight(neighborhoods.weights, u)  # (q, n_measured)
    chosen = measured[:, :n]
    if k == 1:
        x = neighborhoods.x.expand(q, n, d).clone()
        return NeighborhoodDraws(x, chosen)
    centered = center_components(neighborhoods)
    scaled = centered.x * centered.inverse_scale
    nearest = _noise_row_indices(measured, scaled, neighborhoods.components)
    noise_rows = _take_rows(centered.x, nearest.flatten(1)).view(*nearest.shape, d)

    noise = _draw_noise(noise_rows[:, :n], seed.child("noise"), first_condition)
    scaling = _covariance_scaling(neighborhoods, centered.x, noise_rows, bandwidth)
    deviation = (_take_rows(centered.x, chosen) + bandwidth * noise) @ scaling
    return NeighborhoodDraws(_take_rows(centered.means, chosen) + deviation, chosen)


def _draw_noise(noise_rows: Tensor, seed: Seed, first_condition: int) -> Tensor:
    """Gaussian noise (q, n, d), each with the covariance of its rows (q, n, r, d)."""
    q, n, n_rows, _ = noise_rows.shape
    w = seed.normal(q, n * N_NOISE_ROWS, first_row=first_condition)
    w = w.view(q, n, 1, N_NOISE_ROWS)[..., :n_rows]
    return local_noise(noise_rows, w)[:, :, 0]


def _covariance_scaling(
    neighborhoods: Neighborhoods,
    centered: Tensor,
    noise_rows: Tensor,
    bandwidth: float,
) -> Tensor:
    """The linear map (q, d, d) that gives draws the covariance of the centered rows.

    Draws are centered rows (q, k, d) plus the bandwidth times noise, with the
    covariance of `noise_rows` (q, m, r, d). Regressions explain more of the rows they
    are fitted to than of others: `Neighborhoods.noise_inflation` makes up for that.
    """
    n_draws = noise_rows.shape[1]
    n_rows = noise_rows.shape[2]
    deviations = noise_rows - noise_rows.mean(2, keepdim=True)
    deviations = deviations.flatten(1, 2)
    noise_covariance = deviations.mT @ deviations / (n_draws * (n_rows - 1))
    covariance = (neighborhoods.weights[..., None] * centered).mT @ centered
    transport = bures_wasserstein_map(
        covariance + bandwidth**2 * noise_covariance, covariance
    )
    return neighborhoods.noise_inflation[:, None, None] * transport


def _noise_row_indices(chosen: Tensor, x: Tensor, components: Tensor) -> Tensor:
    """Indices (q, m, N_NOISE_ROWS) of the rows nearest to the rows `chosen` (q, m).

    x (q, k, d) is centered within components, so a component of few rows borrows rows
    of other components as if these had its mean.
    """
    q, k, _ = x.shape
    if chosen.shape[1] < k:
        return _nearest_within(chosen, x, components)
    # With more draws than rows, find the neighbors of every row once.
    all_indices = torch.arange(k).expand(q, k)
    return _take_rows(_nearest_within(all_indices, x, components), chosen)


def _nearest_within(indices: Tensor, x: Tensor, components: Tensor) -> Tensor:
    """Indices (q, m, r) of the rows of x (q, k, d) nearest to given rows of x.

    The given rows have the `indices` (q, m). Rows of the same component come first.
    """
    is_other = components.gather(1, indices)[..., None] != components[:, None]
    distances = torch.cdist(_take_rows(x, indices), x) + _OTHER_COMPONENT * is_other
    n_nearest = min(N_NOISE_ROWS, x.shape[1])
    return torch.topk(distances, n_nearest, dim=2, largest=False).indices


class CenteredRows(NamedTuple):
    """Adjusted rows of neighborhoods, without the means of their components."""

    x: Tensor  # (q, k, d)
    means: Tensor  # (q, k, d), what was subtracted from each row
    inverse_scale: Tensor  # (q, 1, d), 1 over the standard deviations of x


def center_components(neighborhoods: Neighborhoods) -> CenteredRows:
    """Subtract from each adjusted row the mean of its component."""
    weights = neighborhoods.weights[..., None]
    n_components = int(neighborhoods.components.max()) + 1
    membership = torch.nn.functional.one_hot(neighborhoods.components, n_components)
    membership = membership.to(neighborhoods.x.dtype)
    mass = membership * weights
    component_mass = mass.sum(1)[..., None] + SMALLEST_POSITIVE
    component_means = mass.mT @ neighborhoods.x / component_mass
    means = membership @ component_means
    centered = neighborhoods.x - means
    scale = (weights * centered.square()).sum(1, keepdim=True).sqrt()
    return CenteredRows(centered, means, 1 / torch.where(scale > 0, scale, 1))


def _take_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows (q, m, d) of x (q, k, d) at the indices (q, m)."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[2]))
