"""How sampled rows of a table compare with training and held-out rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    compared = _ComparedTables.from_encoded(encoded, target, settings.max_rows)
    rules = find_rules(compared.train, compared.names, compared.is_categorical)

    scores = with_references(
        compared.measure, compared.samples, compared.train, settings
    )
    settings.notify("searching for copies")
    scores |= _table_copy_scores(compared, encoded.train, settings)
    scores["rules kept"] = Score(
        share_keeping_all(rules, compared.samples),
        share_keeping_all(rules, compared.held_out),
    )
    rare_values = _rare_value_score(compared, encoded.train)
    if rare_values is not None:
        scores["rare values"] = rare_values

    shapes = compared.shapes(compared.samples)
    details = Details(
        target=compared.target,
        columns=dict(zip(compared.names, shapes, strict=True)),
        pairs=_compare_pairs(
            compared.names,
            compared.associations_of_held_out,
            compared.associations(compared.samples),
        ),
        lost_pairs=_lost_pairs(compared),
        rules=measure_rules(
            rules, len(compared.train), compared.held_out, compared.samples
        ),
        revealed=encoded.revealed,
        riskiest=_riskiest_samples(samples, train, encoded, settings),
    )
    return scores, details


@dataclass(frozen=True, eq=False)
class _ComparedTables:
    """The rows of tables that are compared: all of small tables, some of large ones."""

    names: list[str]  # of the c columns
    is_categorical: list[bool]  # which columns hold codes
    samples: Floats  # (n, c)
    train: Floats  # (N, c)
    held_out: Floats  # (m, c)
    target: str  # the column that `utility` predicts

    @classmethod
    def from_encoded(
        cls, encoded: EncodedTables, target: Hashable | None, max_rows: int
    ) -> _ComparedTables:
        """At most `max_rows` of the samples, the training and the held-out rows."""
        train = subsample(encoded.train, max_rows)
        return cls(
            names=encoded.names,
            is_categorical=encoded.is_categorical,
            samples=subsample(encoded.samples, max_rows),
            train=train,
            held_out=subsample(encoded.others[0], max_rows),
            target=choose_target(target, encoded.names, train),
        )

    def measure(self, rows: Floats) -> dict[str, float]:
        """The metrics of rows (k, c) that depend on how many rows there are."""
        detection = distances.two_sample_score(
            rows,
            self.held_out,
            classifier=tables.detector(len(rows), self.is_categorical),
            scoring="roc_auc",
        )
        trend_error = 0.0
        if len(self.associations_of_held_out) > 0:
            differences = self.associations_of_held_out - self.associations(rows)
            trend_error = float(np.abs(differences).mean())
        target_index = self.names.index(self.target)
        return {
            "detection": detection,
            "shape": float(np.mean(self.shapes(rows))),
            "trend error": trend_error,
            "utility": tables.utility(
                rows, self.held_out, self.is_categorical, target_index
            ),
        }

    def shapes(self, rows: Floats) -> list[float]:
        """How well the distribution of each column agrees with held-out rows."""
        return [
            tables.column_shape(self.held_out[:, c], rows[:, c], is_category)
            for c, is_category in enumerate(self.is_categorical)
        ]

    def associations(self, rows: Floats) -> Floats:
        """The associations of all pairs of columns, in as many rows of each table.

        Few rows of many categories look more associated than many rows do.
        """
        n = min(len(self.samples), len(self.train), len(self.held_out))
        return _associations(rows, self.is_categorical, n)

    @cached_property
    def associations_of_held_out(self) -> Floats:
        """The associations of all pairs of columns in held-out rows."""
        return self.associations(self.held_out)


def _rare_value_score(compared: _ComparedTables, all_train: Floats) -> Score | None:
    """The share of rare values in samples; None if no column holds numbers.

    Its reference is that of held-out rows. `all_train` are all training rows (N, c).
    """
    is_categorical = compared.is_categorical
    share = tables.rare_value_share(compared.samples, all_train, is_categorical)
    if math.isnan(share):
        return None
    reference = tables.rare_value_share(compared.held_out, all_train, is_categorical)
    return Score(share, reference)


def _lost_pairs(compared: _ComparedTables) -> list[ColumnPair]:
    """The pairs whose association falls most from training rows to samples."""
    n = min(len(compared.train), len(compared.samples))
    in_train = np.abs(_associations(compared.train, compared.is_categorical, n))
    in_samples = np.abs(_associations(compared.samples, compared.is_categorical, n))
    pairs = _compare_pairs(compared.names, in_train, in_samples)
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
    sample_indices = subsample(np.arange(len(samples)), settings.max_rows)
    train_indices = subsample(np.arange(len(train)), _MAX_POINT_ROWS)
    known = encoded.train[train_indices]
    k = min(N_COMPARED_NEIGHBORS, len(known))
    distances, indices = nearest(
        as_points(encoded.samples[sample_indices], encoded.is_categorical, known),
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


def _associations(rows: Floats, is_categorical: Sequence[bool], n: int) -> Floats:
    """The associations of all c(c − 1)/2 pairs of columns, in n of the rows."""
    matrix = tables.association_matrix(subsample(rows, n), is_categorical)
    return matrix[np.triu_indices(len(is_categorical), 1)]


def _table_copy_scores(
    compared: _ComparedTables, all_train: Floats, settings: ComparisonSettings
) -> Scores:
    """Copies among all training rows (N, c) of a table, by distances of `as_points`."""

    def points(rows: Floats) -> Floats:
        return as_points(rows, compared.is_categorical, all_train)

    n_blocks = math.ceil(len(all_train) / _MAX_POINT_ROWS)
    train_blocks = (points(block) for block in np.array_split(all_train, n_blocks))
    return copy_scores(
        points(compared.samples), train_blocks, points(compared.held_out), settings
    )


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
