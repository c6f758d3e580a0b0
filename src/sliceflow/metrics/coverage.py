"""Precision, recall, density and coverage, by balls around nearest neighbours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sliceflow.metrics.neighbours import nearest
from sliceflow.metrics.pairs import as_rows, blocks, on_device, same_width, squared_distances

__all__ = ["DensityCoverage", "PrecisionRecall", "density_coverage", "precision_recall"]


class PrecisionRecall(NamedTuple):
    """Precision: the share of samples near real rows; recall: of real rows near samples."""

    precision: float
    recall: float


class DensityCoverage(NamedTuple):
    """Density: the number of real balls around a sample; coverage: real balls that hold a sample."""

    density: float
    coverage: float


def precision_recall(
    samples: np.ndarray, real: np.ndarray, *, k: int = 3, device: str = "auto"
) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al., NeurIPS 2019).

    precision = share of samples in some ball B(x_i, r_k(x_i)) around a real row x_i, r_k its distance
    to its k-th nearest other real row; recall = share of real rows in some such ball around a sample.

    Both are 1 for equal sets, and near .6 to .8 for two halves of real data: compare with the floor.
    They depend on the counts. A single outlier makes a large ball; `density_coverage` avoids that.

    Parameters
    ----------
    samples, real : (n, d) and (m, d) features
    k : the radius is the distance to the k-th neighbour
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 300, 2))
    >>> precision, recall = precision_recall(a, b, device="cpu")
    >>> precision > 0.9 and recall > 0.9
    True
    >>> precision_recall(a + 99, b, device="cpu")
    PrecisionRecall(precision=0.0, recall=0.0)
    """
    in_real, _ = _balls(samples, real, _radii(real, k, device), device)
    in_samples, _ = _balls(real, samples, _radii(samples, k, device), device)
    return PrecisionRecall(float(np.mean(in_real > 0)), float(np.mean(in_samples > 0)))


def density_coverage(
    samples: np.ndarray, real: np.ndarray, *, k: int = 5, device: str = "auto"
) -> DensityCoverage:
    """Density and coverage (Naeem et al., ICML 2020).

    density = 1/(k·n) · Σ_j Σ_i [y_j ∈ B_i], coverage = 1/m · Σ_i [some y_j ∈ B_i], with samples y, real
    rows x and balls B_i = B(x_i, r_k(x_i)). For samples from the real distribution the expected density
    is 1, and the expected coverage 1 − (m−1)…(m−k) / ((n+m−1)…(n+m−k)), about .97 for k = 5 and n = m.
    Density may exceed 1: samples crowd where real rows do.

    Parameters
    ----------
    samples, real : (n, d) and (m, d) features
    k : the radius is the distance to the k-th neighbour
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000, 2))
    >>> density, coverage = density_coverage(a, b, device="cpu")
    >>> round(density, 1), round(coverage, 2)
    (1.0, 0.97)
    """
    within, holds = _balls(samples, real, _radii(real, k, device), device)
    return DensityCoverage(float(within.mean() / k), float(holds.mean()))


def _radii(rows: np.ndarray, k: int, device: str) -> np.ndarray:
    """The distance of each row to its k-th nearest other row."""
    return nearest(rows, rows, k, device=device, leave_out_itself=True)[0][:, -1]


def _balls(
    points: np.ndarray, centres: np.ndarray, radii: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """The number of balls around each point, and whether each ball holds one; balls are closed."""
    import torch

    from sliceflow.devices import resolve_device

    points, centres = as_rows(points, "samples"), as_rows(centres, "real")
    same_width(points, centres, "samples and real")
    where, centre = resolve_device(device), centres.mean(axis=0, dtype=np.float64)
    within, holds = np.zeros(len(points), np.int64), np.zeros(len(centres), bool)
    for j in blocks(centres):
        theirs = on_device(centres[j], centre, where, torch.float64)
        # Slack for rounding: a point at exactly the radius is inside.
        slack = 1e-12 * theirs.square().sum(1)
        reach = torch.from_numpy(radii[j]).to(where).square() * (1 + 1e-9) + slack
        for i in blocks(points):
            ours = on_device(points[i], centre, where, torch.float64)
            inside = squared_distances(ours, theirs) <= reach
            within[i] += inside.sum(1).cpu().numpy()
            holds[j] |= inside.any(0).cpu().numpy()
    return within, holds
