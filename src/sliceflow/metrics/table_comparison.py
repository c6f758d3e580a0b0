"""How sampled rows of a table compare with training and held-out rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.metrics import distances, tables
from sliceflow.metrics.comparisons import (
    ComparisonSettings,
    Score,
    Scores,
    copy_scores,
    with_references,
)
from sliceflow.metrics.copying import N_COMPARED_NEIGHBORS
from sliceflow.metrics.rows import nearest, subsample
from sliceflow.metrics.rules import (
    KeptRule,
    find_rules,
    measure_rules,
    share_keeping_all,
)
from sliceflow.metrics.table_encoding import (
    EncodedTables,
    as_points,
    choose_target,
    encode_tables,
)

if TYPE_CHECKING:
    import pandas as pd

# Training rows of a table that are turned into points at a time, because points have
# many coordinates.
_MAX_POINT_ROWS = 50_000
# A report shows this many samples beside their nearest training rows.
_N_RISKIEST = 3
# A report lists this many pairs of columns whose association falls most.
_N_LOST_PAIRS = 10


class ColumnPair(NamedTuple):
    """Two columns of a table, and how they are associated in rows and in samples."""

    first: str
    second: str
    real_association: float
    sample_association: float


class RiskySample(NamedTuple):
    """A sample that resembles one training row far more than all others."""

    sample: dict[str, str]  # cells as texts, by column
    nearest: dict[str, str]  # cells of the training row
    ratio: float  # its distance to that row, over that to the tenth


class Details(TypedDict, total=False):
    """What a report on a table says beside its metrics; empty for other data."""

    target: str  # the column that `utility` predicts
    columns: dict[str, float]  # the shape of each column
    # All pairs, in held-out rows and in samples, the most different ones first
    pairs: list[ColumnPair]
    # The pairs whose association falls most from training rows to samples: there are
    # more training rows than held-out ones, so less of the fall is chance
    lost_pairs: list[ColumnPair]
    rules: list[KeptRule]  # what all training rows keep, the least kept rules first
    riskiest: list[RiskySample]
    # The share of real values among the samples, by columns that identify a row
    revealed: dict[str, float]


@dataclass(frozen=True)
class _HeldOutTable:
    """The held-out rows of a table, with which other rows are compared."""

    rows: Floats  # (n, c)
    is_categorical: list[bool]  # which columns hold codes
    target: int  # the column that `utility` predicts
    # Few rows of many categories look more associated, so this many are compared.
    n_associated: int
    associations: Floats  # of all pairs of columns


def compare_tables(
    samples: pd.DataFrame,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    target: Hashable | None,
    settings: ComparisonSettings,
) -> tuple[Scores, Details]:
    """The metrics of tables.

    `target` is the column that `utility` predicts; None takes the last one that varies.
    """
    encoded = encode_tables(samples, train, held_out)
    names = encoded.names
    is_categorical = encoded.is_categorical
    all_train = encoded.rows[1]
    sample_rows, train_rows, held_out_rows = [
        subsample(rows, settings.max_rows) for rows in encoded.rows
    ]
    target_name = choose_target(target, names, train_rows)
    n_associated = min(len(sample_rows), len(train_rows), len(held_out_rows))
    held_out_table = _HeldOutTable(
        rows=held_out_rows,
        is_categorical=is_categorical,
        target=names.index(target_name),
        n_associated=n_associated,
        associations=_associations(held_out_rows, is_categorical, n_associated),
    )

    def measure(rows: Floats) -> dict[str, float]:
        return _measure_table(rows, held_out_table)

    scores = with_references(measure, sample_rows, train_rows, settings)
    settings.notify("searching for copies")
    scores |= _table_copy_scores(
        sample_rows, all_train, held_out_rows, is_categorical, settings
    )
    rules = find_rules(train_rows, names, is_categorical)
    scores["rules kept"] = Score(
        share_keeping_all(rules, sample_rows), share_keeping_all(rules, held_out_rows)
    )
    rare_values = _rare_value_score(
        sample_rows, all_train, held_out_rows, is_categorical
    )
    if rare_values is not None:
        scores["rare values"] = rare_values
    sample_associations = _associations(sample_rows, is_categorical, n_associated)
    details = Details(
        target=target_name,
        columns=dict(zip(names, _shapes(sample_rows, held_out_table), strict=True)),
        pairs=_compare_pairs(names, held_out_table.associations, sample_associations),
        lost_pairs=_lost_pairs(names, train_rows, sample_rows, is_categorical),
        rules=measure_rules(rules, len(train_rows), held_out_rows, sample_rows),
        revealed=encoded.revealed,
        riskiest=_riskiest_samples(samples, train, encoded, settings),
    )
    return scores, details


def _rare_value_score(
    samples: Floats, train: Floats, held_out: Floats, is_categorical: Sequence[bool]
) -> Score | None:
    """The share of rare values in samples; None if no column holds numbers.

    Its reference is that of held-out rows.
    """
    share = tables.rare_value_share(samples, train, is_categorical)
    if math.isnan(share):
        return None
    return Score(share, tables.rare_value_share(held_out, train, is_categorical))


def _lost_pairs(
    names: Sequence[str], train: Floats, samples: Floats, is_categorical: Sequence[bool]
) -> list[ColumnPair]:
    """The pairs whose association falls most from training rows to samples."""
    n = min(len(train), len(samples))
    in_train = np.abs(_associations(train, is_categorical, n))
    in_samples = np.abs(_associations(samples, is_categorical, n))
    pairs = _compare_pairs(names, in_train, in_samples)
    pairs.sort(key=lambda pair: pair.sample_association - pair.real_association)
    return pairs[:_N_LOST_PAIRS]


def _riskiest_samples(
    samples: pd.DataFrame,
    train: pd.DataFrame,
    encoded: EncodedTables,
    settings: ComparisonSettings,
) -> list[RiskySample]:
    """The samples that resemble one training row most, and no other.

    Samples come first whose nearest row is much nearer than the tenth; among copies,
    those that are farthest from others.
    """
    all_samples, all_train = encoded.rows[:2]
    sample_indices = subsample(np.arange(len(all_samples)), settings.max_rows)
    train_indices = subsample(np.arange(len(all_train)), _MAX_POINT_ROWS)
    known = all_train[train_indices]
    k = min(N_COMPARED_NEIGHBORS, len(known))
    distances, indices = nearest(
        as_points(all_samples[sample_indices], encoded.is_categorical, known),
        as_points(known, encoded.is_categorical, known),
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
    is_categorical = held_out.is_categorical
    detection = distances.two_sample_score(
        rows,
        held_out.rows,
        classifier=tables.detector(len(rows), is_categorical),
        scoring="roc_auc",
    )
    associations = _associations(rows, is_categorical, held_out.n_associated)
    trend_error = 0.0
    if len(associations) > 0:
        trend_error = float(np.abs(held_out.associations - associations).mean())
    return {
        "detection": detection,
        "shape": float(np.mean(_shapes(rows, held_out))),
        "trend error": trend_error,
        "utility": tables.utility(rows, held_out.rows, is_categorical, held_out.target),
    }


def _shapes(rows: Floats, held_out: _HeldOutTable) -> list[float]:
    """How well the distribution of each column agrees with that of held-out rows."""
    return [
        tables.column_shape(held_out.rows[:, c], rows[:, c], is_category)
        for c, is_category in enumerate(held_out.is_categorical)
    ]


def _associations(rows: Floats, is_categorical: Sequence[bool], n: int) -> Floats:
    """The associations of all c(c − 1)/2 pairs of columns, in n of the rows."""
    matrix = tables.association_matrix(subsample(rows, n), is_categorical)
    return matrix[np.triu_indices(len(is_categorical), 1)]


def _table_copy_scores(
    samples: Floats,
    train: Floats,
    held_out: Floats,
    is_categorical: Sequence[bool],
    settings: ComparisonSettings,
) -> Scores:
    """Copies among all training rows of a table, by distances of `as_points`."""

    def points(rows: Floats) -> Floats:
        return as_points(rows, is_categorical, train)

    n_blocks = math.ceil(len(train) / _MAX_POINT_ROWS)
    train_blocks = (points(block) for block in np.array_split(train, n_blocks))
    return copy_scores(points(samples), train_blocks, points(held_out), settings)


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
