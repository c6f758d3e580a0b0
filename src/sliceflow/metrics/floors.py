"""A metric with its floor: the score of real rows in place of the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Score", "subsample", "with_floor"]


@dataclass(frozen=True)
class Score:
    """The score of samples, and that of equally many real rows."""

    name: str
    value: float
    floor: float
    n_samples: int

    def __str__(self) -> str:
        return f"{self.name} {self.value:.3g} (floor {self.floor:.3g}, {self.n_samples} samples)"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def subsample(x: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """n random rows without repetition, in their order; all rows if there are no more."""
    if len(x) <= n:
        return x
    return x[np.sort(np.random.default_rng(seed).permutation(len(x))[:n])]


def with_floor(
    metric: Callable[[np.ndarray, np.ndarray], float],
    samples: np.ndarray,
    real: np.ndarray,
    unseen: np.ndarray,
    *,
    name: str | None = None,
    seed: int = 0,
) -> Score:
    """`metric(samples, unseen)`, and its floor: the same for equally many rows of `real`.

    Metrics depend on the counts, so both get the smaller number of rows.

    Parameters
    ----------
    metric : takes two arrays of rows
    samples, real, unseen : the samples, rows that were fitted, and held-out rows
    name : for printing; None uses the name of the function
    seed : of the random choice of rows

    Examples
    --------
    >>> from sliceflow.metrics import sliced_wasserstein
    >>> real, unseen = np.random.default_rng(0).normal(size=(2, 500, 3))
    >>> score = with_floor(sliced_wasserstein, 2 * real[:400], real, unseen)
    >>> print(score)
    sliced_wasserstein 0.97 (floor 0.108, 400 samples)
    """
    n = min(len(samples), len(real))
    value, floor = (float(metric(subsample(x, n, seed), unseen)) for x in (samples, real))
    return Score(name or str(getattr(metric, "__name__", "metric")), value, floor, n)
