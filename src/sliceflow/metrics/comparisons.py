"""The metrics of a report: samples of each kind against training and held-out rows.

Every metric has two values: that of the samples, and its reference, which is that of
training rows in their place. Metrics depend on the counts of rows, so equally many of
both are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.devices import resolve_device
from sliceflow.metrics import copying, distances, tables
from sliceflow.metrics.rows import as_rows, nearest, subsample
from sliceflow.metrics.rules import KeptRule, find_rules, measure_rules, rules_kept
from sliceflow.neighbours.distance_ratios import median_distance_ratio

if TYPE_CHECKING:
    import pandas as pd

# Principal components that stand for a picture, as in the name FD-PCA32.
_N_COMPONENTS = 32
# The side of a thumbnail, about.
_THUMBNAIL_SIDE = 8
# Training rows that say which class a sample looks like.
_N_VOTES = 5
# Trees of the forest that tells samples from held-out rows: fewer than usual, for
# speed.
_N_TREES = 50
# On a CPU, copies are searched among all training pictures for this many samples and
# held-out pictures each, and half-size patches of this many. The share of copies of new
# pictures, .01, then has an error of .003. With more, measuring MNIST would take longer
# than fitting it.
_MAX_PICTURES_SEARCHED_ON_CPU = 1_000
_MAX_PICTURES_OF_PATCHES_ON_CPU = 500
# Training rows of a table that are points at a time: points are wide.
_MAX_POINT_ROWS = 50_000
# Samples that are shown beside their nearest training rows, and the row with which that
# one is compared, as in `copying.memorized_rate`.
_N_RISKIEST = 3
_N_COMPARED_NEIGHBOURS = 10
# Pairs of columns whose association falls most that are kept.
_N_LOST_PAIRS = 10
# Rows at a smaller distance are equal: points of tables are rounded.
_EQUAL_DISTANCE = 1e-9


class Score(NamedTuple):
    """A metric of the samples, and of real rows in their place."""

    value: float
    reference: float


Scores = dict[str, Score]  # by the names of the metrics


class ClassLabels(NamedTuple):
    """The class of each row of three sets of rows."""

    samples: np.ndarray  # (n,)
    train: np.ndarray  # (N,)
    test: np.ndarray  # (m,)


class ColumnPair(NamedTuple):
    """Two columns of a table, and how they are associated in rows and in samples."""

    first: str
    second: str
    real_association: float
    sample_association: float


class RiskySample(NamedTuple):
    """A sample that resembles one training row far more than all others."""

    sample: dict[str, str]  # cells as texts, by column
    nearest: dict[str, str]  # of the training row
    ratio: float  # its distance to that row, over that to the tenth


class Details(TypedDict, total=False):
    """What a report on a table says beside its metrics; empty for other kinds."""

    target: str  # the column that `utility` predicts
    columns: dict[str, float]  # the shape of each
    pairs: list[ColumnPair]  # those whose associations differ most come first
    # Pairs whose association falls most from training rows to samples; these are more
    # than held-out rows, so that less of it is chance
    lost_pairs: list[ColumnPair]
    rules: list[KeptRule]  # that all training rows keep; the least kept come first
    riskiest: list[RiskySample]
    # of columns that identify a row, the share of real values among the samples
    revealed: dict[str, float]


@dataclass(frozen=True)
class ComparisonSettings:
    """How many rows are compared, on which device, and who is told about it."""

    max_rows: int  # of samples, training rows and held-out rows each
    device: str
    notify: Callable[[str], object]


def compare_vectors(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
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
    test = test / unit
    held_out = subsample(test, settings.max_rows)

    def measure(x: np.ndarray) -> dict[str, float]:
        accuracy = distances.two_sample_accuracy(x, held_out, n_trees=_N_TREES)
        return {
            "sliced distance": distances.sliced_wasserstein(x, held_out),
            "coverage": distances.coverage(x, held_out, device=settings.device),
            "two-sample accuracy": accuracy,
        }

    scores = _with_references(measure, samples, train, settings)
    scores |= _copy_scores(samples, [train], test, settings)
    if labels is not None:
        scores["recognised"] = _recognised(samples, train, test, labels, settings)
    return scores


def compare_pictures(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: ClassLabels | None,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of pictures (n, h, w[, c]).

    Mirror images of training pictures count as copies.
    """
    scores = _component_scores(samples, train, test, labels, settings)
    search_settings = _limited_on_cpu(settings, _MAX_PICTURES_SEARCHED_ON_CPU)
    scores |= _copy_scores(samples, [train], test, search_settings, mirror=True)
    scores |= _thumbnail_scores(samples, train, test, search_settings)
    patch_settings = _limited_on_cpu(settings, _MAX_PICTURES_OF_PATCHES_ON_CPU)
    memorized = _memorized_halves(samples, train, test, patch_settings)
    scores["memorized, halves"] = memorized
    return scores


def _limited_on_cpu(settings: ComparisonSettings, max_rows: int) -> ComparisonSettings:
    """The settings with at most so many rows on a CPU, where searches take long."""
    if resolve_device(settings.device).type != "cpu":
        return settings
    return replace(settings, max_rows=min(settings.max_rows, max_rows))


def _component_scores(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: ClassLabels | None,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of principal components, which stand for pictures."""
    # In units in which pixels are −1 to 1, as the flow sees them.
    half_range = max(float(np.ptp(train)), np.finfo(float).tiny) / 2
    fitted_rows = as_rows(subsample(train, settings.max_rows))
    mean, axes = distances.principal_axes(fitted_rows, _N_COMPONENTS)

    def components(images: np.ndarray) -> np.ndarray:
        return np.asarray((as_rows(images) - mean) @ axes.T / half_range)

    sample_components = components(samples)
    train_components = components(train)
    test_components = components(test)
    held_out = subsample(test_components, settings.max_rows)

    def measure(x: np.ndarray) -> dict[str, float]:
        return {
            "FD-PCA32": distances.frechet_distance(x, held_out),
            "coverage": distances.coverage(x, held_out, device=settings.device),
            "two-sample accuracy": distances.two_sample_accuracy(
                x, held_out, n_trees=_N_TREES
            ),
        }

    scores = _with_references(measure, sample_components, train_components, settings)
    if labels is not None:
        scores["recognised"] = _recognised(
            sample_components, train_components, test_components, labels, settings
        )
    return scores


def _thumbnail_scores(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    settings: ComparisonSettings,
) -> Scores:
    """Copies among thumbnails, which noise does not hide; none of small pictures."""
    side = min(train.shape[1:3])
    if side < 2 * _THUMBNAIL_SIDE:
        return {}
    factor = side // _THUMBNAIL_SIDE
    settings.notify("searching for copies among thumbnails")
    scores = _copy_scores(
        _thumbnails(samples, factor),
        [_thumbnails(train, factor)],
        _thumbnails(test, factor),
        settings,
        mirror=True,
    )
    if "copies" not in scores:
        return {}
    return {"copies, thumbnails": scores["copies"]}


def _memorized_halves(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    settings: ComparisonSettings,
) -> Score:
    """The share of patches, of half a side, that match one training picture."""
    settings.notify("searching for patches that are copies")
    side = min(train.shape[1:3])
    held_out = subsample(test, settings.max_rows)
    memorized = copying.memorized_rate(
        subsample(samples, settings.max_rows),
        train,
        held_out,
        mirror=True,
        patch=max(1, side // 2),
        device=settings.device,
    )
    return Score(memorized, _copies_reference(len(held_out)))


@dataclass(frozen=True)
class _HeldOutTable:
    """The held-out rows of a table, with which other rows are compared."""

    rows: Floats  # (n, c)
    categories: list[bool]  # which columns hold codes
    target: int  # the column that `utility` predicts
    # Few rows of many categories look more associated, so this many are compared.
    n_associated: int
    associations: Floats  # of all pairs of columns


def compare_tables(
    samples: Any, train: Any, test: Any, target: object, settings: ComparisonSettings
) -> tuple[Scores, Details]:
    """The metrics of tables, all DataFrames.

    `target` is the column that `utility` predicts; None takes the last one that varies.
    """
    read = tables.read_tables(samples, train, test)
    names = read.names
    categories = read.categories
    all_samples, all_train, all_test = read.rows
    sample_rows = subsample(all_samples, settings.max_rows)
    train_rows = subsample(all_train, settings.max_rows)
    test_rows = subsample(all_test, settings.max_rows)
    target_name = tables.choose_target(target, names, train_rows)
    n_associated = min(len(sample_rows), len(train_rows), len(test_rows))
    held_out = _HeldOutTable(
        rows=test_rows,
        categories=categories,
        target=names.index(target_name),
        n_associated=n_associated,
        associations=_associations(test_rows, categories, n_associated),
    )

    def measure(rows: Floats) -> dict[str, float]:
        return _measure_table(rows, held_out)

    scores = _with_references(measure, sample_rows, train_rows, settings)
    scores |= _table_copy_scores(
        sample_rows, all_train, test_rows, categories, settings
    )
    rules = find_rules(train_rows, names, categories)
    scores["rules kept"] = Score(
        rules_kept(rules, sample_rows), rules_kept(rules, test_rows)
    )
    rare = tables.rare_values(sample_rows, all_train, categories)
    if not math.isnan(rare):
        real_rare = tables.rare_values(test_rows, all_train, categories)
        scores["rare values"] = Score(rare, real_rare)
    sample_associations = _associations(sample_rows, categories, n_associated)
    details = Details(
        target=target_name,
        columns=dict(zip(names, _shapes(sample_rows, held_out), strict=True)),
        pairs=_compare_pairs(names, held_out.associations, sample_associations),
        lost_pairs=_lost_pairs(names, train_rows, sample_rows, categories),
        rules=measure_rules(rules, len(train_rows), test_rows, sample_rows),
        revealed=read.revealed,
        riskiest=_riskiest_samples(samples, train, read, settings),
    )
    return scores, details


def _lost_pairs(
    names: Sequence[str], train: Floats, samples: Floats, categories: Sequence[bool]
) -> list[ColumnPair]:
    """The pairs whose association falls most from training rows to samples."""
    n = min(len(train), len(samples))
    in_train = np.abs(_associations(train, categories, n))
    in_samples = np.abs(_associations(samples, categories, n))
    pairs = _compare_pairs(names, in_train, in_samples)
    pairs.sort(key=lambda pair: pair.sample_association - pair.real_association)
    return pairs[:_N_LOST_PAIRS]


def _riskiest_samples(
    samples: Any, train: Any, read: tables.Tables, settings: ComparisonSettings
) -> list[RiskySample]:
    """The samples that resemble one training row most, and no other.

    Those are first that are nearest to it, relative to the tenth row; of copies, those
    which are farthest from others.
    """
    all_samples, all_train = read.rows[:2]
    sample_indices = subsample(np.arange(len(all_samples)), settings.max_rows)
    train_indices = subsample(np.arange(len(all_train)), _MAX_POINT_ROWS)
    known = all_train[train_indices]
    k = min(_N_COMPARED_NEIGHBOURS, len(known))
    distances, indices = nearest(
        tables.points(all_samples[sample_indices], read.categories, known),
        tables.points(known, read.categories, known),
        k,
        device=settings.device,
    )
    farthest = distances[:, -1]
    ratios = np.ones(len(distances))
    np.divide(distances[:, 0], farthest, out=ratios, where=farthest > 0)
    riskiest = []
    for i in np.lexsort((-farthest, ratios))[:_N_RISKIEST].tolist():
        sample = samples.iloc[int(sample_indices[i])]
        row = train.iloc[int(train_indices[indices[i, 0]])]
        texts = _texts(sample[train.columns])
        riskiest.append(RiskySample(texts, _texts(row), float(ratios[i])))
    return riskiest


def _texts(row: pd.Series) -> dict[str, str]:
    """The cells of a row as texts, by column; missing ones are empty."""
    texts = {}
    for name, value, is_missing in zip(row.index, row, row.isna(), strict=True):
        text = str(value)
        if isinstance(value, float):
            text = f"{value:.10g}"  # binary numbers have digits that nobody wrote
        texts[str(name)] = "" if is_missing else text
    return texts


def _measure_table(rows: Floats, held_out: _HeldOutTable) -> dict[str, float]:
    """The metrics of rows (n, c) of a table that depend on how many rows there are."""
    categories = held_out.categories
    detection = distances.two_sample_accuracy(
        rows,
        held_out.rows,
        classifier=tables.detector(len(rows), categories),
        scoring="roc_auc",
    )
    associations = _associations(rows, categories, held_out.n_associated)
    trend_error = 0.0
    if len(associations) > 0:
        trend_error = float(np.abs(held_out.associations - associations).mean())
    return {
        "detection": detection,
        "shape": float(np.mean(_shapes(rows, held_out))),
        "trend error": trend_error,
        "utility": tables.utility(rows, held_out.rows, categories, held_out.target),
    }


def _shapes(rows: Floats, held_out: _HeldOutTable) -> list[float]:
    """How well the distribution of each column agrees with that of held-out rows."""
    return [
        tables.shape(held_out.rows[:, c], rows[:, c], is_category)
        for c, is_category in enumerate(held_out.categories)
    ]


def _associations(rows: Floats, categories: Sequence[bool], n: int) -> Floats:
    """The associations of all c(c − 1)/2 pairs of columns, in n of the rows."""
    matrix = tables.association(subsample(rows, n), categories)
    return matrix[np.triu_indices(len(categories), 1)]


def _table_copy_scores(
    samples: Floats,
    train: Floats,
    test: Floats,
    categories: Sequence[bool],
    settings: ComparisonSettings,
) -> Scores:
    """Copies among all training rows of a table, by distances of `tables.points`."""

    def points(rows: Floats) -> Floats:
        return tables.points(rows, categories, train)

    n_blocks = math.ceil(len(train) / _MAX_POINT_ROWS)
    train_blocks = (points(block) for block in np.array_split(train, n_blocks))
    return _copy_scores(points(samples), train_blocks, points(test), settings)


def _compare_pairs(
    names: Sequence[str], real: Floats, sampled: Floats
) -> list[ColumnPair]:
    """Pairs of columns with their associations, those that differ most first."""
    pairs = []
    for p, (i, j) in enumerate(combinations(range(len(names)), 2)):
        pair = ColumnPair(names[i], names[j], float(real[p]), float(sampled[p]))
        pairs.append(pair)
    return sorted(pairs, key=_association_difference, reverse=True)


def _association_difference(pair: ColumnPair) -> float:
    return abs(pair.real_association - pair.sample_association)


def _with_references(
    measure: Callable[[np.ndarray], dict[str, float]],
    samples: np.ndarray,
    train: np.ndarray,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of samples, and of equally many training rows as references."""
    n = min(settings.max_rows, len(samples), len(train))
    settings.notify(f"measuring {n} samples")
    values = measure(subsample(samples, n))
    settings.notify(f"measuring {n} training rows in their place, for comparison")
    references = measure(subsample(train, n, seed=1))
    settings.notify("searching for copies")
    return {name: Score(values[name], references[name]) for name in values}


def _copy_scores(
    samples: np.ndarray,
    train_blocks: Iterable[np.ndarray],
    test: np.ndarray,
    settings: ComparisonSettings,
    mirror: bool = False,
) -> Scores:
    """Exact copies, NN ratio and copies, among the training rows of all blocks.

    Only exact copies if most held-out rows are equal to a training row.
    """
    samples = subsample(samples, settings.max_rows)
    test = subsample(test, settings.max_rows)
    rows = np.concatenate((samples, test))
    block_distances = [
        copying.nearest_distances(rows, block, mirror=mirror, device=settings.device)
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
    # The reference of the ratio is one half of the held-out rows against the other.
    other_half = max(float(np.median(test_distances[1::2])), np.finfo(float).tiny)
    scores["NN ratio"] = Score(
        median_distance_ratio(sample_distances, test_distances),
        float(np.median(test_distances[::2]) / other_half),
    )
    scores["copies"] = Score(
        copying.share_of_copies(sample_distances, test_distances),
        _copies_reference(len(test_distances)),
    )
    return scores


def _copies_reference(n: int) -> float:
    """What new real rows score on average as copies, given n held-out rows."""
    return max(copying.IDEAL_COPIES, 1 / (n + 1))


def _recognised(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    labels: ClassLabels,
    settings: ComparisonSettings,
) -> Score:
    """The share of rows that the nearest training rows take for their own class."""
    from sklearn.neighbors import KNeighborsClassifier

    classifier = KNeighborsClassifier(_N_VOTES).fit(train, labels.train)

    def accuracy(rows: np.ndarray, row_labels: np.ndarray) -> float:
        scored_rows = subsample(rows, settings.max_rows)
        scored_labels = subsample(row_labels, settings.max_rows)
        return float(classifier.score(scored_rows, scored_labels))

    return Score(accuracy(samples, labels.samples), accuracy(test, labels.test))


def _thumbnails(images: np.ndarray, factor: int) -> np.ndarray:
    """Means of squares of pixels; what does not fill a square is left out."""
    n = images.shape[0]
    h = images.shape[1] // factor
    w = images.shape[2] // factor
    whole = images[:, : h * factor, : w * factor]
    squares = whole.reshape(n, h, factor, w, factor, -1)
    return np.asarray(squares.mean(axis=(2, 4)))
