"""Scores that attackers give to rows: high if a row was fitted.

Each function takes what the attacker knows, and rows (m, c), and returns scores (m,).
The documentation of `attacks.attack` says what the scores mean and where they are from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.metrics.rows import nearest
from sliceflow.metrics.table_encoding import as_points

# Neighbors by which densities are estimated: a usual number, as for outliers.
_N_DENSITY_NEIGHBORS = 5
# Added to distances, in standard deviations of columns, before their logarithm is
# taken: the distance of a copy is 0.
_LEAST_DISTANCE = 1e-3
# Added to counts of values, as by Jeffreys's prior: values that are not seen may exist.
_PRIOR_COUNT = 0.5
# Trees of a forest: fewer than usual, for speed.
_N_TREES = 50


class AttackerKnowledge(NamedTuple):
    """What an attacker has; rows are encoded by `encode_tables`."""

    samples: Floats  # (n, c) samples, or fresh rows in their place
    reference: Floats  # (r, c), real rows that were not fitted
    is_categorical: list[bool]  # which columns hold codes
    hidden_index: int  # of the column that the attacker wants to know
    seed: int
    device: str


# From what is known, and rows (m, c), scores (m,): high if a row was fitted.
ScoreFunction = Callable[[AttackerKnowledge, Floats], Floats]


def distance_difference(known: AttackerKnowledge, rows: Floats) -> Floats:
    """How much farther the nearest reference row is than the nearest sample, (m,).

    The difference of both distances over their sum: 1 for copies, about 0 for new rows.
    """
    to_samples, to_reference = _neighbor_distances(known, rows, 1)
    total = np.maximum(to_reference + to_samples, np.finfo(float).tiny)
    return np.asarray((to_reference - to_samples) / total)[:, 0]


def density_ratio(known: AttackerKnowledge, rows: Floats) -> Floats:
    """The log ratio (m,) of the densities of samples and of reference rows.

    Densities are estimated by the mean log distance to near rows.
    """
    to_samples, to_reference = _neighbor_distances(known, rows, _N_DENSITY_NEIGHBORS)
    log_samples = np.log(to_samples + _LEAST_DISTANCE).mean(axis=1)
    log_reference = np.log(to_reference + _LEAST_DISTANCE).mean(axis=1)
    return np.asarray(log_reference - log_samples)


def _neighbor_distances(
    known: AttackerKnowledge, rows: Floats, k: int
) -> tuple[Floats, Floats]:
    """Distances (m, k) of rows to the k nearest samples, and to reference rows."""
    points = _points(known, rows)
    distances = []
    for others in (known.samples, known.reference):
        other_points = _points(known, others)
        nearest_distances, _ = nearest(points, other_points, k, device=known.device)
        distances.append(nearest_distances)
    to_samples, to_reference = distances
    return to_samples, to_reference


def _points(known: AttackerKnowledge, rows: Floats) -> Floats:
    """Rows as points, in units of the reference rows."""
    return as_points(rows, known.is_categorical, known.reference)


def _forest_probability(known: AttackerKnowledge, rows: Floats) -> Floats:
    """The probability that a forest gives rows to be samples."""
    from sklearn.ensemble import RandomForestClassifier

    rows_to_learn = np.concatenate((known.samples, known.reference))
    is_sample = np.arange(len(rows_to_learn)) < len(known.samples)
    forest = RandomForestClassifier(
        _N_TREES, class_weight="balanced", random_state=known.seed
    )
    forest.fit(_points(known, rows_to_learn), is_sample)
    return np.asarray(forest.predict_proba(_points(known, rows))[:, 1])


def verbatim_values(known: AttackerKnowledge, rows: Floats) -> Floats:
    """How much more frequent the values of rows are in samples than in reference rows.

    The log ratios of both frequencies, summed over the columns: (m,).
    """
    score = np.zeros(len(rows))
    for c in range(rows.shape[1]):
        in_samples = _smoothed_shares(known.samples[:, c], rows[:, c])
        in_reference = _smoothed_shares(known.reference[:, c], rows[:, c])
        score += np.log(in_samples) - np.log(in_reference)
    return score


def _smoothed_shares(column: Floats, values: Floats) -> Floats:
    """The shares (m,) that values have in a column (n,), a little more than 0.

    Missing cells count as one value.
    """
    # NaN is never equal to itself; no real cell is infinite.
    cells = np.where(np.isnan(column), np.inf, column)
    wanted = np.where(np.isnan(values), np.inf, values)
    distinct, counts = np.unique(cells, return_counts=True)
    index = np.searchsorted(distinct, wanted).clip(max=len(distinct) - 1)
    is_found = distinct[index] == wanted
    count = np.where(is_found, counts[index], 0)
    return np.asarray((count + _PRIOR_COUNT) / (len(column) + 1))


def _attribute_disclosure(known: AttackerKnowledge, rows: Floats) -> Floats:
    """How well a forest that learns from samples guesses the hidden column."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    is_known = ~np.isnan(known.samples[:, known.hidden_index])
    samples = known.samples[is_known]
    truth = rows[:, known.hidden_index]
    if len(samples) == 0 or rows.shape[1] == 1:
        return np.zeros(len(rows))
    sample_points = _points_without_hidden(known, samples)
    row_points = _points_without_hidden(known, rows)
    if known.is_categorical[known.hidden_index]:
        classifier = RandomForestClassifier(_N_TREES, random_state=known.seed)
        classifier.fit(sample_points, samples[:, known.hidden_index])
        probabilities = classifier.predict_proba(row_points)
        is_true = classifier.classes_ == truth[:, None]
        return np.asarray((probabilities * is_true).sum(axis=1))
    regressor = RandomForestRegressor(_N_TREES, random_state=known.seed)
    regressor.fit(sample_points, samples[:, known.hidden_index])
    error = np.abs(regressor.predict(row_points) - truth)
    # A missing cell has no error; it is the worst guess, of members and others alike.
    return -np.where(np.isnan(error), np.inf, error)


def _points_without_hidden(known: AttackerKnowledge, rows: Floats) -> Floats:
    """Rows as points, without the hidden column."""
    is_seen = np.arange(rows.shape[1]) != known.hidden_index
    is_categorical = [bool(c) for c in np.asarray(known.is_categorical)[is_seen]]
    return as_points(rows[:, is_seen], is_categorical, known.reference[:, is_seen])


class ScoredAttack(NamedTuple):
    """An attack by scores of rows, and when it takes a row for a fitted one.

    In the text, {hidden} stands for the name of the hidden column.
    """

    score: ScoreFunction
    meaning: str


SCORED_ATTACKS = {
    "distance difference": ScoredAttack(
        distance_difference,
        "the nearest reference row is farther than the nearest sample",
    ),
    "density ratio": ScoredAttack(
        density_ratio,
        "samples are denser around a row than reference rows are",
    ),
    "forest": ScoredAttack(
        _forest_probability,
        "a forest of samples and reference rows takes it for a sample",
    ),
    "verbatim values": ScoredAttack(
        verbatim_values,
        "values of a row are more frequent in samples than in reference rows",
    ),
    "attribute disclosure": ScoredAttack(
        _attribute_disclosure,
        "a forest that learns from samples guesses {hidden} better",
    ),
}
