"""How samples compare with training and held-out rows: vectors, and shared parts.

Every metric has two values: one of the samples, and its reference, which is the value
of training rows in their place. Metrics depend on the counts of rows, so equally many
of both are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.metrics import copying, distances
from sliceflow.metrics.rows import nearest, subsample
from sliceflow.neighbors.distance_ratios import median_distance_ratio

# This many nearest training rows say which class a sample looks like.
_N_VOTES = 5
# Trees of the forest that tells samples from held-out rows: fewer than usual, for
# speed.
N_TREES = 50
# Rows at a smaller distance are equal: points of tables are rounded.
_EQUAL_DISTANCE = 1e-9


class Score(NamedTuple):
    """A metric of samples, and the same metric of real rows in their place."""

    value: float
    reference: float


Scores = dict[str, Score]  # by the names of the metrics


class ClassLabels(NamedTuple):
    """The class of each row of three sets of rows."""

    samples: NDArray[Any]  # (n,)
    train: NDArray[Any]  # (N,)
    held_out: NDArray[Any]  # (m,)


@dataclass(frozen=True)
class ComparisonSettings:
    """How many rows are compared, on which device, and what shows the progress."""

    max_rows: int  # of samples, training rows and held-out rows each
    device: str
    notify: Callable[[str], None]


def compare_vectors(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    labels: ClassLabels | None,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of vectors, whose columns are divided by their standard deviations.

    All rows are (n, d).
    """
    deviation = train.std(axis=0, dtype=np.float64)
    unit = np.where(deviation > 0, deviation, 1)
    samples = samples / unit
    train = train / unit
    held_out = held_out / unit
    compared = subsample(held_out, settings.max_rows)

    def measure(x: NDArray[Any]) -> dict[str, float]:
        accuracy = distances.two_sample_score(x, compared, n_trees=N_TREES)
        return {
            "sliced distance": distances.sliced_wasserstein(x, compared),
            "coverage": distances.coverage(x, compared, device=settings.device),
            "two-sample accuracy": accuracy,
        }

    scores = with_references(measure, samples, train, settings)
    settings.notify("searching for copies")
    scores |= copy_scores(samples, [train], held_out, settings)
    if labels is not None:
        scores["recognized"] = recognized_score(
            samples, train, held_out, labels, settings
        )
    return scores


def with_references(
    measure: Callable[[NDArray[Any]], dict[str, float]],
    samples: NDArray[Any],
    train: NDArray[Any],
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of samples, and of equally many training rows as references."""
    n = min(settings.max_rows, len(samples), len(train))
    settings.notify(f"measuring {n} samples")
    values = measure(subsample(samples, n))
    settings.notify(f"measuring {n} training rows in their place, for comparison")
    references = measure(subsample(train, n, seed=1))
    return {name: Score(values[name], references[name]) for name in values}


def copy_scores(
    samples: NDArray[Any],
    train_blocks: Iterable[NDArray[Any]],
    held_out: NDArray[Any],
    settings: ComparisonSettings,
    mirror: bool = False,
) -> Scores:
    """Exact copies, NN ratio and copy rate, among the training rows of all blocks.

    If most held-out rows are equal to a training row, the result has exact copies only.
    """
    samples = subsample(samples, settings.max_rows)
    held_out = subsample(held_out, settings.max_rows)
    rows = np.concatenate((samples, held_out))
    block_distances = [
        copying.nearest_distances(rows, block, mirror=mirror, device=settings.device)
        for block in train_blocks
    ]
    row_distances = np.min(block_distances, axis=0)
    sample_distances = row_distances[: len(samples)]
    held_out_distances = row_distances[len(samples) :]
    scores = {
        "exact copies": Score(
            float((sample_distances < _EQUAL_DISTANCE).mean()),
            float((held_out_distances < _EQUAL_DISTANCE).mean()),
        )
    }
    if np.median(held_out_distances) == 0:
        return scores
    # The reference of the ratio is one half of the held-out rows against the other.
    other_half = max(float(np.median(held_out_distances[1::2])), np.finfo(float).tiny)
    scores["NN ratio"] = Score(
        median_distance_ratio(sample_distances, held_out_distances),
        float(np.median(held_out_distances[::2]) / other_half),
    )
    scores["copy rate"] = Score(
        copying.copy_rate_of_distances(sample_distances, held_out_distances),
        reference_copy_rate(len(held_out_distances)),
    )
    return scores


def reference_copy_rate(n: int) -> float:
    """The copy rate that new real rows have on average, for n held-out rows."""
    return max(copying.IDEAL_COPY_RATE, 1 / (n + 1))


def recognized_score(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    labels: ClassLabels,
    settings: ComparisonSettings,
) -> Score:
    """The share of rows that the nearest training rows take for their own class."""
    classes, train_codes = np.unique(labels.train, return_inverse=True)
    n_votes = min(_N_VOTES, len(train))

    def accuracy(rows: NDArray[Any], row_labels: NDArray[Any]) -> float:
        scored_rows = subsample(rows, settings.max_rows)
        scored_labels = subsample(row_labels, settings.max_rows)
        _, voters = nearest(scored_rows, train, n_votes, device=settings.device)
        votes = train_codes[voters][:, :, None] == np.arange(len(classes))
        # Of tied classes the first one wins.
        elected = classes[votes.sum(axis=1).argmax(axis=1)]
        return float(np.mean(elected == scored_labels))

    return Score(accuracy(samples, labels.samples), accuracy(held_out, labels.held_out))
