"""Shadow models: fits with and without outliers say how much samples tell of them.

An attacker who knows the method, and rows like the fitted ones, fits models of his own,
some with a row and some without, and sees how samples differ (Carlini et al., 2022).
Rows that are far from all others tell most (Meeus et al., 2023).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.metrics.membership import (
    AttackScore,
    Estimate,
    area_under_curve,
    central_interval,
    true_positive_rate,
)
from sliceflow.metrics.rows import RowsLike, nearest
from sliceflow.metrics.table_encoding import as_points, encode_tables
from sliceflow.wording import format_duration

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

# How far a row is from others is its mean distance to this many nearest rows, as in
# Meeus et al.
_N_OUTLIER_NEIGHBORS = 5
# How often memberships are exchanged, to see what the attack finds by chance. The least
# p-value, of two tests, is then 2/400.
_N_PERMUTATIONS = 399
# Bootstrap draws of outliers, for intervals.
_N_BOOTSTRAPS = 200
# This share of the mean variance is added to every variance: statistics that never vary
# for some rows would decide everything.
_VARIANCE_FLOOR = 0.01


@runtime_checkable
class GenerativeModel(Protocol):
    """A model that shadow models can attack: it is cloned, fitted and sampled."""

    def fit(self, X: Any, /) -> object:
        """Fit rows, of the type that this model takes."""

    def sample(self, n: int, /, *, random_state: int) -> pd.DataFrame | RowsLike:
        """n rows of the kind that was fitted."""


# From samples, real rows and the indices of some of these, statistics (t, q) of these t
# rows: large if samples tell of a row.
Statistics: TypeAlias = Callable[
    ["pd.DataFrame | RowsLike", "pd.DataFrame", Ints], Floats
]

# Turns real rows into what the `fit` of a model takes.
AsInput: TypeAlias = Callable[["pd.DataFrame"], "pd.DataFrame | NDArray[Any]"]


class ShadowScores(NamedTuple):
    """How well an attack by shadow models does, and what it would do by chance."""

    score: AttackScore
    null_score: AttackScore


@dataclass(frozen=True)
class ShadowAttack:
    """An attack by shadow models on the rows that are farthest from others."""

    n_shadows: int  # models that are fitted
    n_outliers: int  # rows that are attacked
    seed: int
    device: str
    notify: Callable[[str], None]  # is called with texts on the progress

    def run(
        self,
        model: GenerativeModel,
        pool: pd.DataFrame,
        statistics: Statistics,
        as_input: AsInput,
    ) -> ShadowScores:
        """How well the attack does, and what it would do by chance.

        Each shadow model is fitted to a random half of the pool. Each takes its turn as
        the victim, and all others tell its members from other rows.

        Parameters
        ----------
        model : the model of which shadow models are unfitted copies
        pool : real rows, fitted ones and others
        statistics : computes what the attacker takes from samples and rows
        as_input : turns a DataFrame into what the model's `fit` takes
        """
        rng = np.random.default_rng(self.seed)
        outliers = self._find_outliers(pool)
        is_member = rng.random((self.n_shadows, len(pool))) < 0.5
        found_statistics = np.stack(
            [
                statistics(samples, pool, outliers)
                for samples in self._draw_samples(model, pool, is_member, as_input)
            ]
        )
        return _score_statistics(found_statistics, is_member[:, outliers], rng)

    def _find_outliers(self, pool: pd.DataFrame) -> Ints:
        """The indices of the rows that are farthest from their nearest others."""
        encoded = encode_tables(pool, pool)
        points = as_points(encoded.train, encoded.is_categorical, encoded.train)
        distances, _ = nearest(
            points,
            points,
            _N_OUTLIER_NEIGHBORS,
            device=self.device,
            exclude_self=True,
        )
        return np.argsort(-distances.mean(axis=1), kind="stable")[: self.n_outliers]

    def _draw_samples(
        self,
        model: GenerativeModel,
        pool: pd.DataFrame,
        is_member: Mask,
        as_input: AsInput,
    ) -> list[pd.DataFrame | RowsLike]:
        """Samples of each shadow model, as many as it has rows."""
        drawn = []
        started_at = time.monotonic()
        for i, members in enumerate(is_member):
            shadow = _unfitted(model, self.seed + i)
            rows = pool[members].reset_index(drop=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first fit gave them already
                shadow.fit(as_input(rows))
                drawn.append(shadow.sample(len(rows), random_state=self.seed + i))
            self._notify_progress(i + 1, time.monotonic() - started_at)
        return drawn

    def _notify_progress(self, n_done: int, seconds: float) -> None:
        """Say how long shadow models take: after the first, and at each tenth."""
        is_tenth = 10 * n_done // self.n_shadows > 10 * (n_done - 1) // self.n_shadows
        if n_done == self.n_shadows or not (n_done == 1 or is_tenth):
            return
        left = format_duration(seconds / n_done * (self.n_shadows - n_done))
        self.notify(f"shadow model {n_done} of {self.n_shadows}, about {left} left")


def _unfitted(model: GenerativeModel, seed: int) -> GenerativeModel:
    """An unfitted copy of a model, with another seed if it has one."""
    from sklearn.base import clone

    # `clone` makes a deep copy of an object that is no estimator of scikit-learn.
    copied: Any = clone(model, safe=False)
    if hasattr(copied, "get_params") and "random_state" in copied.get_params():
        copied.set_params(random_state=seed)
    unfitted: GenerativeModel = copied
    return unfitted


def _score_statistics(
    statistics: Floats, is_member: Mask, rng: np.random.Generator
) -> ShadowScores:
    """The scores of statistics (s, t, q) of s shadow models and t rows.

    The score by chance is the mean over memberships (s, t) that are exchanged between
    models.
    """
    scores = _likelihood_ratios(statistics, is_member)
    observed = _measure_scores(scores, is_member)
    by_chance = np.empty((_N_PERMUTATIONS, len(observed)))
    for i in range(_N_PERMUTATIONS):
        exchanged = rng.permutation(is_member)
        by_chance[i] = _measure_scores(
            _likelihood_ratios(statistics, exchanged), exchanged
        )
    n_as_high = (by_chance[:, :2] >= observed[:2]).sum(axis=0)
    p_value = float(2 * (1 + n_as_high.min()) / (1 + _N_PERMUTATIONS))

    n_outliers = scores.shape[1]
    bootstrap = np.empty((_N_BOOTSTRAPS, len(observed)))
    for i in range(_N_BOOTSTRAPS):
        drawn = rng.integers(0, n_outliers, n_outliers)
        bootstrap[i] = _measure_scores(scores[:, drawn], is_member[:, drawn])
    return ShadowScores(
        score=_as_attack_score(observed, bootstrap, min(1.0, p_value)),
        null_score=_as_attack_score(by_chance.mean(axis=0), by_chance, 1.0),
    )


def _as_attack_score(values: Floats, draws: Floats, p_value: float) -> AttackScore:
    """The numbers of `_measure_scores` (3,), with intervals of draws (n, 3) of them."""
    estimates: list[Estimate] = []
    for value, column in zip(values.tolist(), draws.T, strict=True):
        estimates.append(central_interval(value, column))
    auc, tpr_at_fpr_1pct, tpr_at_fpr_0_1pct = estimates
    return AttackScore(auc, tpr_at_fpr_1pct, tpr_at_fpr_0_1pct, p_value)


def _measure_scores(scores: Floats, is_member: Mask) -> Floats:
    """The AUC, and the shares found at 1 % and .1 % false positives."""
    members = scores[is_member]
    others = scores[~is_member]
    return np.array(
        [
            area_under_curve(members, others),
            true_positive_rate(members, others, 0.01),
            true_positive_rate(members, others, 0.001),
        ]
    )


def _likelihood_ratios(statistics: Floats, is_member: Mask) -> Floats:
    """Log likelihood ratios (s, t) that rows were fitted, as all other models see them.

    The statistics of a row are normal with one mean in models that were fitted to it,
    and with another mean in all others.
    """
    weights = is_member[..., None].astype(float)  # (s, t, 1)
    mean_in = _mean_of_others(statistics, weights)
    mean_out = _mean_of_others(statistics, 1 - weights)
    mean = np.where(is_member[..., None], mean_in, mean_out)
    variance = np.square(statistics - mean).mean(axis=0)  # (t, q)
    variance = variance + _VARIANCE_FLOOR * variance.mean(axis=0)
    variance = np.where(variance > 0, variance, 1.0)
    far_from_out = np.square(statistics - mean_out)
    far_from_in = np.square(statistics - mean_in)
    return np.asarray(((far_from_out - far_from_in) / (2 * variance)).sum(axis=2))


def _mean_of_others(statistics: Floats, weights: Floats) -> Floats:
    """For each model, the mean over all other models that have a weight of 1."""
    total = (weights * statistics).sum(axis=0) - weights * statistics
    count = weights.sum(axis=0) - weights
    return np.asarray(total / np.maximum(count, 1))
