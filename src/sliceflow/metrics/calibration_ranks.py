"""Ranks of true values among samples: do samples cover the truth as they should?

If the truth is one more draw, its *rank* among the samples is uniform in every column
(Talts et al., 2018). By *TARP* (Lemos et al., 2023) so is the rank of its distance to a
random point, in all columns together. (A rank is the place of a number in the order of
others here, as in both papers.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sliceflow.arrays import Floats, Ints
from sliceflow.errors import DataError
from sliceflow.metrics.rows import RowsLike
from sliceflow.validation import (
    from_tensor,
    is_real,
    require,
    require_choice,
    require_int,
)

# What the first axis of samples counts.
FirstAxis = Literal["conditions", "samples"]

# Samples whose p-value is below this do not pass, as is usual.
_MIN_P_VALUE = 0.01


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ranks of true values among samples. `calibration` makes it; `print` shows tests.

    Attributes
    ----------
    ranks : array (q, d)
        How many of the samples of a condition are smaller than the truth.
    tarp_ranks : array (q,)
        How many samples are nearer to a random point than the truth is.
    n_samples : int
        The number of samples of each of the q conditions.
    """

    ranks: Ints
    tarp_ranks: Ints
    n_samples: int

    @property
    def probabilities(self) -> Floats:
        """Shares (q, d) of samples below the truth, uniform if samples are calibrated.

        They are (rank + u)/(n + 1) with uniform u, so in (0, 1) and without ties.
        """
        u = np.random.default_rng(0).random(self.ranks.shape)
        return (self.ranks + u) / (self.n_samples + 1)

    @property
    def p_values(self) -> Floats:
        """p-values (d,) of Kolmogorov–Smirnov: are `probabilities` uniform?"""
        return np.array([_p_value(column) for column in self.probabilities.T])

    @property
    def tarp_p_value(self) -> float:
        """The p-value of a Kolmogorov–Smirnov test that the TARP ranks are uniform."""
        u = np.random.default_rng(1).random(len(self.tarp_ranks))
        return _p_value((self.tarp_ranks + u) / (self.n_samples + 1))

    def coverage(self, share: float) -> Floats:
        """How often the central interval of this share holds the truth, by column.

        Parameters
        ----------
        share : float
            The share of the samples in an interval, such as 0.9.

        Returns
        -------
        coverage : array (d,)
            The share of the conditions whose interval holds the truth; ideally `share`.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> samples, truth = rng.normal(size=(1000, 100, 1)), rng.normal(size=(1000, 1))
        >>> bool(abs(calibration(samples, truth).coverage(0.9)[0] - 0.9) < 0.05)
        True
        """
        require(is_real(share, 0, 1), "share", share, "a number from 0 to 1")
        is_inside = np.abs(2 * self.probabilities - 1) <= share
        return np.asarray(is_inside.mean(axis=0))

    @property
    def verdict(self) -> str:
        """One sentence: whether samples pass both tests; if not, what is wrong."""
        n_conditions = len(self.ranks)
        columns_pass = self._least_p_value >= _MIN_P_VALUE
        tarp_passes = self.tarp_p_value >= _MIN_P_VALUE
        if columns_pass and tarp_passes:
            return f"calibrated, as far as {n_conditions} conditions can tell"
        if columns_pass:
            return (
                "not calibrated: each column by itself is, but the dependence between "
                "columns is wrong (TARP)"
            )
        worst = int(self.p_values.argmin())
        covered = float(self.coverage(0.9)[worst])
        standard_error = np.sqrt(0.9 * 0.1 / n_conditions)
        if abs(covered - 0.9) <= 2 * standard_error:
            share_below = float(self.probabilities[:, worst].mean())
            return _bias_verdict(worst, share_below)
        if covered < 0.9:
            fault = "overconfident"
        else:
            fault = "underconfident"
        return (
            f"{fault}: the 90 % interval of column {worst} holds {covered:.0%} of the "
            "true values"
        )

    @property
    def _least_p_value(self) -> float:
        """The least p-value of d tests, corrected by Bonferroni."""
        return min(1.0, len(self.p_values) * float(self.p_values.min()))

    def __str__(self) -> str:
        rows = (
            ("p-value of ranks, worst column", self._least_p_value, "above 0.01"),
            ("p-value of TARP", self.tarp_p_value, "above 0.01"),
            ("true values in 50 % intervals", float(self.coverage(0.5).mean()), "0.5"),
            ("true values in 90 % intervals", float(self.coverage(0.9).mean()), "0.9"),
        )
        lines = [self.verdict]
        for name, value, ideal in rows:
            lines.append(f"{name:31} {value:7.3g}   ideal: {ideal}")
        return "\n".join(lines)

    __repr__ = __str__


def calibration(
    samples: RowsLike,
    truth: RowsLike,
    *,
    first_axis: FirstAxis | None = None,
    random_state: int = 0,
) -> Calibration:
    """Test whether conditional samples cover the truth as often as they should.

    For each of q conditions, the result has the rank of the truth among n samples.

    Parameters
    ----------
    samples : array or tensor (q, n, d), or (n, q, d) as `sample_batched` gives it
        Without the last axis if truth is (q,).
    truth : array or tensor (q, d) or (q,)
        Such as the parameters with which the conditions were simulated.
    first_axis : "conditions", "samples" or None, default None
        What the first axis of samples counts; needed only if n = q.
    random_state : int, default 0
        The seed of TARP's reference points.

    Returns
    -------
    calibration : Calibration

    Raises
    ------
    DataError
        If the shapes do not fit, or if `first_axis` is needed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(500, 1))
    >>> samples = rng.normal(size=(500, 100, 1))
    >>> print(calibration(0.5 * samples, truth).verdict)  # too narrow
    overconfident: the 90 % interval of column 0 holds 58% of the true values
    """
    samples = np.asarray(from_tensor(samples), np.float64)
    truth = np.asarray(from_tensor(truth), np.float64)
    require_int("random_state", random_state, 0)
    require_choice("first_axis", first_axis, (None, "conditions", "samples"))
    given_shapes = f"samples have shape {samples.shape} and truth {truth.shape}"
    if truth.ndim == 1 and samples.ndim == 2:
        samples = samples[..., None]
        truth = truth[:, None]
    if _resolve_first_axis(samples, truth, first_axis, given_shapes) == "samples":
        samples = samples.transpose(1, 0, 2)
    for name, values in (("samples", samples), ("truth", truth)):
        if not np.isfinite(values).all():
            raise DataError(f"{name} contain a NaN or an infinity")
    ranks = (samples < truth[:, None]).sum(axis=1)
    tarp_ranks = _tarp_ranks(samples, truth, random_state)
    return Calibration(ranks, tarp_ranks, n_samples=samples.shape[1])


def _resolve_first_axis(
    samples: Floats, truth: Floats, first_axis: FirstAxis | None, given_shapes: str
) -> FirstAxis:
    """What the first axis of samples counts: "conditions" or "samples".

    The user's `first_axis` decides, or the shape of truth (q, d). A `DataError` if no
    axis fits, or if both do and the user does not say.
    """
    possible: list[FirstAxis] = []
    same_columns = samples.ndim == 3 and samples.shape[2:] == truth.shape[1:]
    if same_columns and samples.size > 0:
        if samples.shape[0] == len(truth):
            possible.append("conditions")
        if samples.shape[1] == len(truth):
            possible.append("samples")
    if first_axis is None and len(possible) == 2:
        raise DataError(
            f"{given_shapes}: either axis may count the conditions",
            "pass first_axis='conditions', or 'samples' as sample_batched puts them",
        )
    if first_axis is None and possible:
        return possible[0]
    if first_axis is None or first_axis not in possible:
        raise DataError(given_shapes, "pass (q, n, d) or (n, q, d), and (q, d)")
    return first_axis


def _tarp_ranks(samples: Floats, truth: Floats, seed: int) -> Ints:
    """How many samples are nearer to a random point than the truth is, (q,).

    Points are uniform in the range of the truth, which is also the unit of distances.
    """
    low = truth.min(axis=0)
    high = truth.max(axis=0)
    unit = np.where(high > low, high - low, 1.0)
    points = np.random.default_rng(seed).uniform(low, high, truth.shape)
    sample_distances = np.linalg.norm((samples - points[:, None]) / unit, axis=2)
    truth_distances = np.linalg.norm((truth - points) / unit, axis=1)
    return np.asarray((sample_distances < truth_distances[:, None]).sum(axis=1))


def _bias_verdict(column: int, share_below: float) -> str:
    """What is wrong if intervals have the right width but not the right place.

    `share_below` is the mean share of samples below the true value, ideally one half.
    """
    if share_below > 0.5:
        direction = "low"
    else:
        direction = "high"
    return (
        f"biased: samples of column {column} are too {direction}: on average "
        f"{share_below:.0%} of them are below the true value, not 50 %"
    )


def _p_value(probabilities: Floats) -> float:
    """The p-value of a Kolmogorov–Smirnov test that probabilities (q,) are uniform."""
    from scipy.stats import kstest

    return float(kstest(probabilities, "uniform").pvalue)
