"""New points along neighbours: a row plus a Gaussian of the rows nearest to it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.regressions import Neighbourhoods
from sliceflow.neighbours.weights import choose_by_weight

# Adjusted rows whose covariance the noise of a draw has: enough for a direction, few
# enough to stay local.
N_NOISE_ROWS = 20
# The covariance of the noise is measured on at least so many draws of a condition, even
# if fewer are asked for.
MIN_COVARIANCE_DRAWS = 48
# Added to the distance of rows of other components, so that they come last.
_OTHER_COMPONENT = 1e6
# Eigenvalues below this share of the largest one count as 0.
_MIN_EIGENVALUE = 1e-10


def local_noise(neighbours: Tensor, w: Tensor) -> Tensor:
    """Noise (…, t, d) with the covariance of neighbours (…, k, d).

    It is Σⱼ wⱼ·(xⱼ − mean)/√(k − 1), by standard normal numbers w (…, t, k).
    """
    k = neighbours.shape[-2]
    centred = neighbours - neighbours.mean(-2, keepdim=True)
    return w @ centred / math.sqrt(max(1, k - 1))


def gaussian_transport(source: Tensor, target: Tensor) -> Tensor:
    """The optimal transport map (…, d, d) between Gaussians around 0.

    E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ² for the covariances E of the source and C of the target.
    Directions in which the source has no spread stay as they are.
    """
    values, vectors = torch.linalg.eigh(source)
    spread = values > _MIN_EIGENVALUE * values[..., -1:]
    root = torch.where(spread, values, 0).clamp(min=0).sqrt()
    inverse_root = torch.where(spread, 1 / torch.where(spread, root, 1), 0)
    half = vectors * root[..., None, :]
    middle_values, middle_vectors = torch.linalg.eigh(half.mT @ target @ half)
    middle_root = middle_values.clamp(min=0).sqrt()
    back = (vectors * inverse_root[..., None, :]) @ middle_vectors
    without_spread = vectors * (~spread)[..., None, :]
    moved: Tensor = (back * middle_root[..., None, :]) @ back.mT
    kept: Tensor = without_spread @ vectors.mT
    return moved + kept


def sample_neighbourhoods(
    neighbourhoods: Neighbourhoods, n: int, h: float, seed: Seed, first: int = 0
) -> tuple[Tensor, Tensor]:
    """n new points (q, n, d), and the neighbour (q, n) around which each is drawn.

    A point is an adjusted row, drawn by weight, plus h times a Gaussian of the rows
    nearest to it. Points are scaled to the covariance that rows have within components.
    `first` is the index of the first condition, so that draws do not depend on how
    conditions are divided into batches.
    """
    q, k, d = neighbourhoods.x.shape
    m = max(n, MIN_COVARIANCE_DRAWS)
    u = seed.child("row").uniform(q, m, start=first)
    chosen = choose_by_weight(neighbourhoods.weights, u)
    if k == 1:
        return neighbourhoods.x.expand(q, n, d).clone(), chosen[:, :n]
    centred, means, inverse_scale = centre_components(neighbourhoods)
    nearest = _noise_rows(chosen, centred * inverse_scale, neighbourhoods.components)
    noise_rows = _take_rows(centred, nearest.flatten(1)).view(*nearest.shape, d)
    n_noise_rows = noise_rows.shape[2]

    w = seed.child("noise").normal(q, n * N_NOISE_ROWS, start=first)
    w = w.view(q, n, 1, N_NOISE_ROWS)[..., :n_noise_rows]
    noise = local_noise(noise_rows[:, :n], w)[:, :, 0]

    deviations = noise_rows - noise_rows.mean(2, keepdim=True)
    deviations = deviations.flatten(1, 2)
    noise_covariance = deviations.mT @ deviations / (m * (n_noise_rows - 1))
    covariance = (neighbourhoods.weights[..., None] * centred).mT @ centred
    transport = gaussian_transport(covariance + h**2 * noise_covariance, covariance)
    scaling = neighbourhoods.inflation[:, None, None] * transport

    chosen = chosen[:, :n]
    deviation = (_take_rows(centred, chosen) + h * noise) @ scaling
    return _take_rows(means, chosen) + deviation, chosen


def _noise_rows(chosen: Tensor, x: Tensor, components: Tensor) -> Tensor:
    """Indices (q, m, N_NOISE_ROWS) of the rows of x nearest to the rows `chosen` (q, m).

    x (q, k, d) is centred within components, so a component of few rows borrows rows of
    the others as if they had its mean.
    """
    q, k, _ = x.shape
    if chosen.shape[1] < k:
        return _nearest_within(chosen, x, components)
    # With more draws than rows, find the neighbours of every row once.
    all_rows = torch.arange(k).expand(q, k)
    return _take_rows(_nearest_within(all_rows, x, components), chosen)


def _nearest_within(rows: Tensor, x: Tensor, components: Tensor) -> Tensor:
    """The rows of x (q, k, d) nearest to `rows` (q, m), the same component first."""
    other = components.gather(1, rows)[..., None] != components[:, None]
    distances = torch.cdist(_take_rows(x, rows), x) + _OTHER_COMPONENT * other
    n_nearest = min(N_NOISE_ROWS, x.shape[1])
    return torch.topk(distances, n_nearest, dim=2, largest=False).indices


def centre_components(neighbourhoods: Neighbourhoods) -> tuple[Tensor, Tensor, Tensor]:
    """Adjusted rows (q, k, d) minus the mean of their component, and these means.

    The third result is 1 over the standard deviations (q, 1, d) of what is left.
    """
    weights = neighbourhoods.weights[..., None]
    n_components = int(neighbourhoods.components.max()) + 1
    membership = torch.nn.functional.one_hot(neighbourhoods.components, n_components)
    membership = membership.to(neighbourhoods.x.dtype)
    mass = membership * weights
    component_means = mass.mT @ neighbourhoods.x / (mass.sum(1)[..., None] + 1e-300)
    means = membership @ component_means
    centred = neighbourhoods.x - means
    scale = (weights * centred.square()).sum(1, keepdim=True).sqrt()
    return centred, means, 1 / torch.where(scale > 0, scale, 1)


def _take_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Rows (q, m, d) of x (q, k, d) at the indices (q, m)."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[2]))
