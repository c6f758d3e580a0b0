"""Density and coverage: do samples lie where real rows lie, and everywhere they lie?"""

from __future__ import annotations

from typing import Any, NamedTuple

from sliceflow.metrics.pairs import as_rows, balls, nearest, same_width

__all__ = ["DensityCoverage", "density_coverage"]


class DensityCoverage(NamedTuple):
    """Density: the number of real balls around a sample; coverage: real balls that hold a sample."""

    density: float
    coverage: float


def density_coverage(samples: Any, real: Any, *, k: int = 5, device: str = "auto") -> DensityCoverage:
    """Density and coverage (Naeem et al., ICML 2020).

    density = 1/(k·n) · Σ_j Σ_i [y_j ∈ B_i], coverage = 1/m · Σ_i [some y_j ∈ B_i], with samples y, real
    rows x and balls B_i = B(x_i, r_k(x_i)), r_k the distance to the k-th nearest other real row. For
    samples from the real distribution the expected density is 1, and the expected coverage
    1 − (m−1)…(m−k) / ((n+m−1)…(n+m−k)), about .97 for k = 5 and n = m. Density may exceed 1.

    Parameters
    ----------
    samples, real : (n, d) and (m, d) rows or features
    k : the radius is the distance to the k-th neighbour
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000, 2))
    >>> density, coverage = density_coverage(a, b, device="cpu")
    >>> round(density, 1), round(coverage, 2)
    (1.0, 0.97)
    """
    samples, real = as_rows(samples, "samples"), as_rows(real, "real")
    same_width(samples, real, "samples and real")
    radii = nearest(real, real, k, device=device, leave_out_itself=True)[0][:, -1]
    within, holds = balls(samples, real, radii, device)
    return DensityCoverage(float(within.mean() / k), float(holds.mean()))
