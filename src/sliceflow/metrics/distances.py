"""Sliced 2-Wasserstein and energy distance between two samples."""

from __future__ import annotations

import numpy as np

from sliceflow.metrics.pairs import mean_distance

__all__ = ["energy_distance", "sliced_wasserstein"]


def sliced_wasserstein(
    a: np.ndarray,
    b: np.ndarray,
    *,
    n_directions: int = 1000,
    seed: int = 0,
    directions: np.ndarray | None = None,
) -> float:
    """Sliced 2-Wasserstein distance between two samples of any sizes, exact on each direction.

    SW₂(a, b)² = 1/H · Σ_h ∫₀¹ |F⁻¹_{a,h}(t) − F⁻¹_{b,h}(t)|² dt

    Parameters
    ----------
    a, b : array
        (n, d) and (m, d).
    n_directions : int
        H random unit directions.
    seed : int
        Of the directions.
    directions : array
        (H, d) unit vectors to use instead.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.normal(size=(400, 3))
    >>> round(sliced_wasserstein(a, a + np.array([3.0, 0, 0])), 1)  # |shift| / sqrt(d)
    1.7
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if directions is None:
        directions = np.random.default_rng(seed).standard_normal((n_directions, a.shape[1]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    n, m = len(a), len(b)
    # The two quantile functions are constant between the levels i/n and j/m: integrate piecewise.
    levels = np.union1d(np.arange(1, n + 1) / n, np.arange(1, m + 1) / m)
    width = np.diff(levels, prepend=0.0)
    middle = levels - width / 2
    i = np.minimum((middle * n).astype(int), n - 1)
    j = np.minimum((middle * m).astype(int), m - 1)
    total = 0.0
    for block in np.array_split(directions, max(1, len(directions) // 64)):
        za, zb = np.sort(block @ a.T, axis=1), np.sort(block @ b.T, axis=1)
        total += float((np.square(za[:, i] - zb[:, j]) @ width).sum())
    return float(np.sqrt(total / len(directions)))


def energy_distance(a: np.ndarray, b: np.ndarray, *, device: str = "auto") -> float:
    """Energy distance between two samples, over all pairs of rows (Székely and Rizzo, 2013).

    D(a, b)² = 2·E|X − Y| − E|X − X′| − E|Y − Y′|,  X, X′ from a, Y, Y′ from b

    Pairs of a row with itself count. It is 0 only between equal samples. In one dimension it is
    `scipy.stats.energy_distance`. Time grows with the square of the rows, memory does not.

    Parameters
    ----------
    a, b : (n, d) and (m, d)
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> a = np.zeros((5, 2))
    >>> energy_distance(a, a + np.array([3.0, 4.0]), device="cpu") ** 2  # two points: 2 * 5
    10.000000000000002
    """
    between = mean_distance(a, b, device)
    within = mean_distance(a, a, device) + mean_distance(b, b, device)
    return float(np.sqrt(max(0.0, 2 * between - within)))
