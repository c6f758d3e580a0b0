"""Simulation-based calibration: do conditional samples cover the truth as often as they should?

Talts et al. (2018), "Validating Bayesian inference algorithms with simulation-based calibration": if
the truth is one more draw from the distribution of the samples, its rank among them is uniform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sliceflow.errors import from_tensor

__all__ = ["Calibration", "calibration"]


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among samples.

    Parameters
    ----------
    ranks : (q, d), how many of the samples are smaller, from 0 to `n_samples`
    n_samples : of each of the q conditions
    """

    ranks: np.ndarray
    n_samples: int

    @property
    def levels(self) -> np.ndarray:
        """(q, d) numbers in (0, 1), uniform if samples are calibrated: (rank + u)/(n + 1)."""
        u = np.random.default_rng(0).random(self.ranks.shape)
        return (self.ranks + u) / (self.n_samples + 1)

    @property
    def p_values(self) -> np.ndarray:
        """(d,), of Kolmogorov's and Smirnov's test that ranks are uniform."""
        from scipy.stats import kstest

        return np.array([kstest(column, "uniform").pvalue for column in self.levels.T])

    def coverage(self, share: float) -> np.ndarray:
        """(d,), how often the central interval with this share of the samples holds the truth."""
        if not 0 <= share <= 1:
            raise ValueError(f"share={share!r} must be from 0 to 1")
        return np.asarray((np.abs(2 * self.levels - 1) <= share).mean(axis=0))

    def plot(self, names: Any = None) -> Any:
        """A figure of matplotlib: histograms of the ranks, and the coverage of central intervals.

        Grey bands hold 99 % of what calibrated samples would show.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("a plot needs matplotlib: pip install 'sliceflow[demo]'") from error
        from scipy.stats import binom

        q, d = self.ranks.shape
        names = [f"column {j}" for j in range(d)] if names is None else list(names)
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        n_bins = int(np.clip(q // 15, 4, 20))
        low, high = binom.ppf([0.005, 0.995], q, 1 / n_bins)
        left.axhspan(low, high, color="0.85", label="99 %")
        edges = np.linspace(0, 1, n_bins + 1)
        share = np.linspace(0, 1, 51)
        ends = binom.ppf([[0.005], [0.995]], q, share) / q
        right.fill_between(share, *ends, color="0.85", label="99 %")
        for j, column in enumerate(self.levels.T):
            left.stairs(np.histogram(column, edges)[0], edges, label=names[j])
            right.plot(share, [self.coverage(float(s))[j] for s in share], label=names[j])
        left.set(xlabel="rank of the truth / number of samples", ylabel="conditions", ylim=(0, None))
        right.set(xlabel="share of the samples in the interval", ylabel="share of the truths in it")
        if d <= 6:
            right.legend(frameon=False)
        return figure


def calibration(samples: Any, truth: Any) -> Calibration:
    """Ranks of the truth of each condition among the samples for it.

    Parameters
    ----------
    samples : (q, n, d), n samples for each of q conditions
    truth : (q, d), such as the parameters with which the conditions were simulated

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth, samples = rng.normal(size=(500, 1)), rng.normal(size=(500, 100, 1))
    >>> found = calibration(samples, truth)
    >>> found.p_values.round(2), found.coverage(0.9)
    (array([0.66]), array([0.922]))
    >>> calibration(0.5 * samples, truth).coverage(0.9)  # too narrow
    array([0.578])
    """
    samples, truth = np.asarray(from_tensor(samples)), np.asarray(from_tensor(truth))
    if samples.ndim != 3 or truth.shape != (samples.shape[0], samples.shape[2]) or 0 in samples.shape:
        raise ValueError(
            f"samples have shape {samples.shape} and truth {truth.shape}; pass (q, n, d) and (q, d)"
        )
    return Calibration((samples < truth[:, None]).sum(axis=1), samples.shape[1])
