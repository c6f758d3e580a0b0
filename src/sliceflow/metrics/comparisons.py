"""The numbers of a report: samples of each kind against training and held-out rows.

Every number has two values: that of the samples, and the floor, that of training rows
in their place. Numbers depend on the counts of rows, so equally many of both are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np

from sliceflow.errors import DataError
from sliceflow.metrics import copying, distances, tables
from sliceflow.metrics.rows import as_rows, subsample
from sliceflow.neighbours.nearness import median_distance_ratio
from sliceflow.validation import from_tensor, require

# Principal components that stand for a picture, as in the name FD-PCA32.
_N_COMPONENTS = 32
# The side of a thumbnail, about.
_THUMBNAIL_SIDE = 8
# Training rows that say which class a sample looks like.
_N_VOTES = 5
# Trees of the forest that tells samples from held-out rows: fewer than usual, for
# speed.
_N_TREES = 50
# Training rows of a table that are points at a time: points are wide.
_MAX_POINT_ROWS = 50_000
# Rows at a smaller distance are equal: points of tables are rounded.
_EQUAL_DISTANCE = 1e-9


class Score(NamedTuple):
    """A number for the samples, and for real rows in their place."""

    value: float
    floor: float


Scores = dict[str, Score]  # by the names of the numbers


class TableDetails(TypedDict):
    """What a report on a table knows beside its numbers."""

    target: str  # the column that `utility` predicts
    columns: dict[str, float]  # the shape of each
    # (one column, another, association in held-out rows, in samples), the worst first
    pairs: list[tuple[str, str, float, float]]
    # of columns that identify a row, the share of real values among the samples
    revealed: dict[str, float]


@dataclass(frozen=True)
class Effort:
    """How much is compared, on which device, and who is told about it."""

    max_rows: int  # of samples, training rows and held-out rows each
    device: str
    notify: Callable[[str], object]


def compare_vectors(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: Any,
    effort: Effort,
) -> Scores:
    """The numbers on vectors, whose columns are divided by their standard deviations.

    `labels` are None, or the classes of samples, training rows and held-out rows.
    """
    deviation = train.std(axis=0, dtype=np.float64)
    unit = np.where(deviation > 0, deviation, 1)
    samples = samples / unit
    train = train / unit
    test = test / unit
    held_out = subsample(test, effort.max_rows)

    def measure(x: np.ndarray) -> dict[str, float]:
        accuracy = distances.two_sample_accuracy(x, held_out, n_trees=_N_TREES)
        return {
            "sliced distance": distances.sliced_wasserstein(x, held_out),
            "coverage": distances.coverage(x, held_out, device=effort.device),
            "two-sample accuracy": accuracy,
        }

    scores = _with_floors(measure, samples, train, effort)
    scores |= _copy_scores(samples, [train], test, effort)
    scores |= _recognised(samples, train, test, labels, effort)
    return scores


def compare_pictures(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: Any,
    effort: Effort,
) -> Scores:
    """The numbers on pictures; mirror images of training pictures count as copies.

    `labels` are None, or the classes of samples, training and held-out pictures.
    """
    # In units in which pixels are −1 to 1, as the flow sees them.
    half_range = max(float(np.ptp(train)), 1e-300) / 2
    some_train = as_rows(subsample(train, effort.max_rows))
    mean, axes = distances.principal_axes(some_train, _N_COMPONENTS)

    def components(images: np.ndarray) -> np.ndarray:
        return np.asarray((as_rows(images) - mean) @ axes.T / half_range)

    sample_components = components(samples)
    train_components = components(train)
    test_components = components(test)
    held_out = subsample(test_components, effort.max_rows)

    def measure(x: np.ndarray) -> dict[str, float]:
        return {
            "FD-PCA32": distances.frechet_distance(x, held_out),
            "coverage": distances.coverage(x, held_out, device=effort.device),
        }

    scores = _with_floors(measure, sample_components, train_components, effort)
    scores |= _recognised(
        sample_components, train_components, test_components, labels, effort
    )
    scores |= _copy_scores(samples, [train], test, effort, mirror=True)
    side = min(train.shape[1:3])
    if side >= 2 * _THUMBNAIL_SIDE:
        factor = side // _THUMBNAIL_SIDE
        small = _copy_scores(
            _thumbnails(samples, factor),
            [_thumbnails(train, factor)],
            _thumbnails(test, factor),
            effort,
            mirror=True,
        )
        if "copies" in small:
            scores["copies, thumbnails"] = small["copies"]
    some_test = subsample(test, effort.max_rows)
    memorized = copying.memorized_rate(
        subsample(samples, effort.max_rows),
        train,
        some_test,
        mirror=True,
        patch=max(1, side // 2),
        device=effort.device,
    )
    scores["memorized, halves"] = Score(memorized, _copies_floor(len(some_test)))
    return scores


def compare_tables(
    samples: Any, train: Any, test: Any, target: object, effort: Effort
) -> tuple[Scores, TableDetails]:
    """The numbers on tables, all DataFrames; None as the target takes the last column.

    More precisely, the last column that varies.
    """
    read = tables.read_tables(samples, train, test)
    names = read.names
    categories = read.categories
    all_train = read.rows[1]
    sample_rows = subsample(read.rows[0], effort.max_rows)
    train_rows = subsample(all_train, effort.max_rows)
    test_rows = subsample(read.rows[2], effort.max_rows)
    target_name = _target_name(target, names, train_rows)
    # Few rows of many categories look more associated: equally many are compared.
    n_common = min(len(sample_rows), len(train_rows), len(test_rows))
    pair_indices = np.triu_indices(len(names), 1)

    def shapes(rows: np.ndarray) -> list[float]:
        return [
            tables.shape(test_rows[:, c], rows[:, c], is_category)
            for c, is_category in enumerate(categories)
        ]

    def associations(rows: np.ndarray) -> np.ndarray:
        matrix = tables.association(subsample(rows, n_common), categories)
        return matrix[pair_indices]

    test_associations = associations(test_rows)

    def measure(rows: np.ndarray) -> dict[str, float]:
        differences = np.abs(test_associations - associations(rows))
        detection = distances.two_sample_accuracy(
            rows,
            test_rows,
            classifier=tables.boosted_trees(len(rows), categories),
            scoring="roc_auc",
        )
        column = names.index(target_name)
        return {
            "detection": detection,
            "shape": float(np.mean(shapes(rows))),
            "trend": float(differences.mean()) if len(differences) else 0.0,
            "utility": tables.utility(rows, test_rows, categories, column),
        }

    def points(rows: np.ndarray) -> np.ndarray:
        return tables.points(rows, categories, all_train)

    scores = _with_floors(measure, sample_rows, train_rows, effort)
    n_blocks = math.ceil(len(all_train) / _MAX_POINT_ROWS)
    train_blocks = (points(block) for block in np.array_split(all_train, n_blocks))
    scores |= _copy_scores(points(sample_rows), train_blocks, points(test_rows), effort)
    scores["rules kept"] = Score(
        tables.rules_kept(train_rows, sample_rows, categories),
        tables.rules_kept(train_rows, test_rows, categories),
    )
    pairs = _compared_pairs(names, test_associations, associations(sample_rows))
    details = TableDetails(
        target=target_name,
        columns=dict(zip(names, shapes(sample_rows), strict=True)),
        pairs=pairs,
        revealed=read.revealed,
    )
    return scores, details


def _target_name(target: object, names: Sequence[str], rows: np.ndarray) -> str:
    """The column that `utility` predicts: the user's, or the last that varies."""
    if target is not None:
        name = str(target)
        wanted = f"the name of a column: {', '.join(names)}"
        require(name in names, "y", name, wanted)
        return name
    for name, column in zip(reversed(names), rows.T[::-1], strict=True):
        if np.nanstd(column) > 0:
            return name
    return names[-1]


def _compared_pairs(
    names: Sequence[str], real: np.ndarray, made: np.ndarray
) -> list[tuple[str, str, float, float]]:
    """Pairs of columns with their association in real rows and samples, worst first."""
    first, second = np.triu_indices(len(names), 1)
    pairs = []
    for i, j, in_real, in_samples in zip(
        first.tolist(), second.tolist(), real.tolist(), made.tolist(), strict=True
    ):
        pairs.append((names[i], names[j], in_real, in_samples))
    return sorted(pairs, key=lambda pair: -abs(pair[2] - pair[3]))


def _with_floors(
    measure: Callable[[np.ndarray], dict[str, float]],
    samples: np.ndarray,
    train: np.ndarray,
    effort: Effort,
) -> Scores:
    """The numbers of samples, and of equally many training rows as floors."""
    n = min(effort.max_rows, len(samples), len(train))
    effort.notify(f"measuring {n} samples")
    values = measure(subsample(samples, n))
    effort.notify(f"measuring {n} training rows in their place, for the floor")
    floors = measure(subsample(train, n, seed=1))
    effort.notify("searching for copies")
    return {name: Score(values[name], floors[name]) for name in values}


def _copy_scores(
    samples: np.ndarray,
    train_blocks: Iterable[np.ndarray],
    test: np.ndarray,
    effort: Effort,
    mirror: bool = False,
) -> Scores:
    """Exact copies, NN ratio and copies, among the training rows of all blocks.

    Only exact copies if most held-out rows are equal to a training row.
    """
    samples = subsample(samples, effort.max_rows)
    test = subsample(test, effort.max_rows)
    rows = np.concatenate((samples, test))
    block_distances = [
        copying.nearest_distances(rows, block, mirror=mirror, device=effort.device)
        for block in train_blocks
    ]
    row_distances = np.min(block_distances, axis=0)
    sample_distances = row_distances[: len(samples)]
    test_distances = row_distances[len(samples) :]
    scores = {
        "exact copies": Score(
            float((sample_distances < _EQUAL_DISTANCE).mean()),
            float((test_distances < _EQUAL_DISTANCE).mean()),
        )
    }
    if np.median(test_distances) == 0:
        return scores
    # The floor of the ratio is one half of the held-out rows against the other.
    other_half = max(float(np.median(test_distances[1::2])), 1e-300)
    scores["NN ratio"] = Score(
        median_distance_ratio(sample_distances, test_distances),
        float(np.median(test_distances[::2]) / other_half),
    )
    scores["copies"] = Score(
        copying.share_of_copies(sample_distances, test_distances),
        _copies_floor(len(test_distances)),
    )
    return scores


def _copies_floor(n: int) -> float:
    """What new real rows score on average as copies, given n held-out rows."""
    return max(copying.IDEAL_COPIES, 1 / (n + 1))


def _recognised(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: Any,
    effort: Effort,
) -> Scores:
    """The share of rows that the nearest training rows take for their own class."""
    if labels is None:
        return {}
    from sklearn.neighbors import KNeighborsClassifier

    sample_labels, train_labels, test_labels = (
        np.asarray(from_tensor(part)) for part in labels
    )
    counts = [len(sample_labels), len(train_labels), len(test_labels)]
    if counts != [len(samples), len(train), len(test)]:
        raise DataError(
            "y must be (of samples, of train, of test), a class for each row"
        )
    classifier = KNeighborsClassifier(_N_VOTES).fit(train, train_labels)

    def accuracy(rows: np.ndarray, row_labels: np.ndarray) -> float:
        some_rows = subsample(rows, effort.max_rows)
        return float(
            classifier.score(some_rows, subsample(row_labels, effort.max_rows))
        )

    score = Score(accuracy(samples, sample_labels), accuracy(test, test_labels))
    return {"recognised": score}


def _thumbnails(images: np.ndarray, factor: int) -> np.ndarray:
    """Means of squares of pixels; what does not fill a square is left out."""
    n = images.shape[0]
    h = images.shape[1] // factor
    w = images.shape[2] // factor
    whole = images[:, : h * factor, : w * factor]
    squares = whole.reshape(n, h, factor, w, factor, -1)
    return np.asarray(squares.mean(axis=(2, 4)))
