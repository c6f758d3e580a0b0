"""Whether so many rows keep a rule that it cannot be an accident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import SMALLEST_POSITIVE, Floats, Ints
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import MAX_EXACT_FLOAT
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
    has_value,
)
from sliceflow.estimators.tables.rules.kinds import LinearRule, ProductRule

# A rule must hold in this share of the rows that have all its cells. With a smaller
# share, patterns that are merely frequent would count as rules, and searching takes
# longer.
MIN_SHARE_OF_RULE = 0.99
# A rule must hold in this share of the rows in which it would break if columns were
# shuffled: two columns that are mostly 0 are equal in most rows anyway.
MIN_GAIN_OF_RULE = 0.9
# The probability that shuffled columns keep a rule in as many rows is below this. There
# are millions of candidates, so that hardly any table has such a rule by accident.
MAX_PROBABILITY_IF_SHUFFLED = 1e-15
# Rows that must have all cells of a rule. Fewer are too weak as evidence.
MIN_ROWS_OF_RULE = 30


@dataclass(frozen=True, eq=False)
class NumberColumns:
    """The columns of a table among which rules are searched, as floats."""

    indices: Ints  # (p,), of the columns
    values: Floats  # (n, p); NaN where cells are missing

    @classmethod
    def read(
        cls, columns: Sequence[Column], level_positions: LevelPositions
    ) -> NumberColumns:
        """The columns of plain numbers: neither times nor durations."""
        indices = [
            c
            for c, column in enumerate(columns)
            if column.is_quantitative and column.quantity == "number"
        ]
        return cls.read_columns(columns, level_positions, indices)

    @classmethod
    def read_columns(
        cls,
        columns: Sequence[Column],
        level_positions: LevelPositions,
        indices: Sequence[int],
    ) -> NumberColumns:
        """The given columns, except those whose integers are too large for floats."""
        usable = [
            c
            for c in indices
            if np.abs(columns[c].level_grid_values).max(initial=0) < MAX_EXACT_FLOAT
        ]
        values = np.full((len(level_positions), len(usable)), np.nan)
        for i, c in enumerate(usable):
            is_observed = has_value(level_positions[:, c])
            values[is_observed, i] = columns[c].grid.floats_at(
                level_positions[is_observed, c]
            )
        return cls(np.array(usable, dtype=np.int64), values)


class RuleEvidence(NamedTuple):
    """How many rows keep a rule, and how many would by accident."""

    n_rows: int  # rows that have all cells of the rule
    share: float  # the share of these rows that keep it
    # The share that would keep it if the cells of its first column were shuffled.
    share_if_shuffled: float

    @property
    def is_sufficient(self) -> bool:
        """Whether the rule is no accident, by all of the limits above."""
        if self.n_rows < MIN_ROWS_OF_RULE or self.share < MIN_SHARE_OF_RULE:
            return False
        if 1 - self.share > (1 - MIN_GAIN_OF_RULE) * (1 - self.share_if_shuffled):
            return False
        # Chernoff's bound of the binomial distribution.
        divergence = _divergence(self.share, self.share_if_shuffled)
        return bool(self.n_rows * divergence > -np.log(MAX_PROBABILITY_IF_SHUFFLED))


def _divergence(p: float, q: float) -> float:
    """The Kullback–Leibler divergence of two probabilities, p from q; p ≥ q."""
    q = min(max(q, SMALLEST_POSITIVE), 1 - 1e-12)
    divergence = p * np.log(p / q)
    if p < 1:
        divergence += (1 - p) * np.log((1 - p) / (1 - q))
    return float(divergence)


def _share_of_equal_pairs(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The share of pairs of any cell of a (n,) and any of b (m,) that are equal."""
    if not len(a) or not len(b):
        return 0.0
    values_a, counts_a = np.unique(a, return_counts=True)
    values_b, counts_b = np.unique(b, return_counts=True)
    index = np.minimum(np.searchsorted(values_b, values_a), len(values_b) - 1)
    is_equal = values_b[index] == values_a
    n_equal = (counts_a * counts_b[index])[is_equal].sum()
    return float(n_equal / (len(a) * len(b)))


def evidence_of(
    rule: LinearRule | ProductRule,
    columns: Sequence[Column],
    level_positions: LevelPositions,
) -> RuleEvidence:
    """How many rows keep a rule that computes its first column."""
    complete_positions = level_positions[
        has_all_values(level_positions, rule.column_indices)
    ]
    if not len(complete_positions):
        return RuleEvidence(0, 0.0, 1.0)
    is_kept = ~rule.is_broken(columns, complete_positions)
    derived = rule.column_indices[0]
    computed = rule.solve(columns, complete_positions, derived)
    share_if_shuffled = _share_of_equal_pairs(
        complete_positions[:, derived], computed[has_value(computed)]
    )
    return RuleEvidence(
        len(complete_positions), float(is_kept.mean()), share_if_shuffled
    )
