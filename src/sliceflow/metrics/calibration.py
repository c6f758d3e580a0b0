"""Calibration: do conditional samples cover the truth as often as they should?

If the truth is one more draw, its *rank* among the samples is uniform in every column (Talts et al.,
2018), and so is, by *TARP* (Lemos et al., 2023), that of its distance to a random point, in all columns
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sliceflow.errors import from_tensor, require

_FIRST = ("conditions", "samples")  # what the first axis counts
_UNLIKELY = 0.01  # p-value below which samples do not pass


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among samples. Made by `calibration`; `print` shows a verdict."""

    ranks: np.ndarray  # (q, d), how many of the samples are smaller than the truth
    tarp_ranks: (
        np.ndarray
    )  # (q,), how many are nearer to a random point than the truth is
    n_samples: int  # of each of the q conditions

    @property
    def levels(self) -> np.ndarray:
        """(q, d) numbers in (0, 1), uniform if samples are calibrated: (rank + u)/(n + 1)."""
        u = np.random.default_rng(0).random(self.ranks.shape)
        return (self.ranks + u) / (self.n_samples + 1)

    @property
    def p_values(self) -> np.ndarray:
        """(d,), of Kolmogorov's and Smirnov's test that the ranks of a column are uniform."""
        return np.array([_p_value(column) for column in self.levels.T])

    @property
    def tarp_p_value(self) -> float:
        """Of the same test for the ranks of TARP."""
        u = np.random.default_rng(1).random(len(self.tarp_ranks))
        return _p_value((self.tarp_ranks + u) / (self.n_samples + 1))

    def coverage(self, share: float) -> np.ndarray:
        """(d,), how often the central interval with this share of the samples holds the truth."""
        require(0 <= share <= 1, "share", share, "from 0 to 1")
        return np.asarray((np.abs(2 * self.levels - 1) <= share).mean(axis=0))

    @property
    def verdict(self) -> str:
        """One sentence: whether samples pass both tests, and if not, what is wrong with them."""
        q = len(self.ranks)
        least = self._least_p_value
        if min(least, self.tarp_p_value) >= _UNLIKELY:
            return f"calibrated, as far as {q} conditions can tell"
        worst = int(self.p_values.argmin())
        held = float(self.coverage(0.9)[worst])
        if least >= _UNLIKELY:
            return (
                "not calibrated: each column by itself is, all together are not (TARP)"
            )
        if abs(held - 0.9) > 2 * np.sqrt(0.09 / q):  # two standard errors
            kind = "overconfident" if held < 0.9 else "underconfident"
            return f"{kind}: the 90 % interval of column {worst} holds {held:.0%} of the truths"
        return f"biased: truths of column {worst} are {self.levels[:, worst].mean():.0%} up, not 50 %"

    @property
    def _least_p_value(self) -> float:
        return min(
            1.0, len(self.p_values) * float(self.p_values.min())
        )  # Bonferroni: d tests

    def __str__(self) -> str:
        rows = (
            ("p-value of ranks, worst column", self._least_p_value, "above 0.01"),
            ("p-value of TARP", self.tarp_p_value, "above 0.01"),
            ("truths in 50 % intervals", float(self.coverage(0.5).mean()), "0.5"),
            ("truths in 90 % intervals", float(self.coverage(0.9).mean()), "0.9"),
        )
        lines = [
            f"{name:31} {value:7.3g}   ideal: {ideal}" for name, value, ideal in rows
        ]
        return "\n".join((self.verdict, *lines))

    __repr__ = __str__


def calibration(
    samples: Any, truth: Any, *, first: str | None = None, seed: int = 0
) -> Calibration:
    """Ranks of the truth of each of q conditions among the n samples for it.

    Parameters
    ----------
    samples : (q, n, d), or (n, q, d) as `sample_batched` gives them; without d if truth is (q,)
    truth : (q, d) or (q,), such as the parameters with which the conditions were simulated
    first : "conditions" or "samples", what the first axis of samples counts; needed only if n = q
    seed : of TARP's reference points

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth, samples = rng.normal(size=(500, 1)), rng.normal(size=(500, 100, 1))
    >>> print(calibration(0.5 * samples, truth).verdict)  # too narrow
    overconfident: the 90 % interval of column 0 holds 58% of the truths
    """
    samples, truth = (np.asarray(from_tensor(a), np.float64) for a in (samples, truth))
    require(first in (None, *_FIRST), "first", first, "'conditions' or 'samples'")
    shapes = f"samples have shape {samples.shape} and truth {truth.shape}"
    fits = []
    if truth.ndim == 1 and samples.ndim == 2:
        samples = samples[..., None]
        truth = truth[:, None]
    if samples.ndim == 3 and samples.shape[2:] == truth.shape[1:] and samples.size:
        fits = [name for i, name in enumerate(_FIRST) if samples.shape[i] == len(truth)]
    if first is None and len(fits) == 2:
        advice = (
            "pass first='conditions', or first='samples' as sample_batched puts them"
        )
        raise ValueError(f"{shapes}: either axis may count the conditions; {advice}")
    if not fits or (first or fits[0]) not in fits:
        raise ValueError(f"{shapes}; pass (q, n, d) or (n, q, d), and (q, d)")
    if (first or fits[0]) == "samples":
        samples = samples.transpose(1, 0, 2)
    for name, a in (("samples", samples), ("truth", truth)):
        if not np.isfinite(a).all():
            raise ValueError(f"{name} contain a NaN or an infinity")
    low = truth.min(axis=0)
    high = truth.max(axis=0)
    unit = np.where(high > low, high - low, 1.0)
    point = np.random.default_rng(seed).uniform(low, high, truth.shape)
    apart = np.linalg.norm((samples - point[:, None]) / unit, axis=2)
    of_truth = np.linalg.norm((truth - point) / unit, axis=1)
    ranks = (samples < truth[:, None]).sum(axis=1)
    return Calibration(ranks, (apart < of_truth[:, None]).sum(axis=1), samples.shape[1])


def _p_value(levels: np.ndarray) -> float:
    from scipy.stats import kstest

    return float(kstest(levels, "uniform").pvalue)
