"""Sums of columns that most rows keep, such as total = net + shipping + tax.

If a sum holds in some rows, a vector of its coefficients is in the null space of their
numbers, after these are centered. So null spaces of small sets of rows are reduced to
vectors with few coefficients, and those whose coefficients are small whole numbers are
candidates. All rows then judge them.

The rule of a sum computes one of its columns, the total. Which one that is, is the
*orientation* of the sum: a = b + c, b = a − c and c = a − b are the same sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats, Ints
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_all_values,
)
from sliceflow.estimators.tables.rules.evidence import (
    MIN_ROWS_OF_RULE,
    MIN_SHARE_OF_RULE,
    NumberColumns,
    evidence_of,
)
from sliceflow.estimators.tables.rules.kinds import LinearRule

# The most columns of a sum, its total among them, and the largest coefficient. Sums
# with more columns or larger coefficients are seldom intended.
MAX_TERMS = 6
MAX_COEFFICIENT = 12
# A total with fewer values is no sum: indicators of levels have such relations, which
# follow from the level.
MIN_LEVELS_OF_SUM = 5
# The null spaces of this many sets of rows are searched. One set suffices if all rows
# keep a sum. If 1 of 100 rows breaks it, about one of three sets of 100 rows has no
# such row.
N_ROW_SETS = 6
# A set has the first number of rows for each column, and the second number more. With
# fewer, columns that are mostly 0 would seem to depend on others; with more, fewer sets
# would be without a row that breaks the sum.
ROWS_PER_COLUMN = 3
EXTRA_ROWS = 40
# Singular values below the first share of the largest count as 0, and coefficients
# below the second do, for columns of variance 1. Rounding errors are below 1e-12.
MAX_NULL_VALUE = 1e-9
MAX_NULL_COEFFICIENT = 1e-6


class IntegerRelation(NamedTuple):
    """Columns of which Σ coefficient·column is the same in many rows."""

    column_indices: tuple[int, ...]  # k columns
    coefficients: tuple[int, ...]  # k whole numbers

    def coefficients_with_positive(self, c: int) -> dict[int, int]:
        """The coefficients by column, with signs that make the one of c positive."""
        coefficient_of = dict(zip(self.column_indices, self.coefficients, strict=True))
        if coefficient_of[c] > 0:
            return coefficient_of
        return {other: -value for other, value in coefficient_of.items()}

    def is_alone_on_its_side(self, c: int) -> bool:
        """Whether a column is alone on its side of an equation of three or more."""
        coefficients = self.coefficients_with_positive(c).values()
        n_on_its_side = sum(coefficient > 0 for coefficient in coefficients)
        return n_on_its_side == 1 and len(self.coefficients) > 2


class _TotalKey(NamedTuple):
    """A key by which the columns of a sum are sorted, the likeliest total first."""

    has_factor: bool  # whether its coefficient is neither 1 nor −1
    step: Fraction  # of its grid, in ones or seconds
    is_not_alone: bool  # whether other columns are on its side of the equation
    n_observed: int  # its cells that are not missing
    minus_n_levels: int
    minus_index: int  # of columns that are alike so far, the last one is first

    @classmethod
    def from_column(
        cls, columns: Sequence[Column], relation: IntegerRelation, c: int
    ) -> _TotalKey:
        """The key of column c of a relation."""
        column = columns[c]
        return cls(
            has_factor=relation.coefficients_with_positive(c)[c] != 1,
            step=column.grid.spacing * (column.unit or Fraction(0)),
            is_not_alone=not relation.is_alone_on_its_side(c),
            n_observed=len(column.encoded.observed_codes),
            minus_n_levels=-column.n_levels,
            minus_index=-c,
        )


class _CandidateSum(NamedTuple):
    """A sum that is a rule."""

    orientations: list[LinearRule]  # the most natural one first
    coefficients: Floats  # (d,), of all columns of the table

    @property
    def sort_key(self) -> tuple[bool, int, float]:
        """Sums that all rows keep come first, then sums of few and small terms."""
        size = float(np.abs(self.coefficients).sum())
        return (self.orientations[0].share < 1, len(self.orientations), size)


def find_sums(
    columns: Sequence[Column], level_positions: LevelPositions, numbers: NumberColumns
) -> list[list[LinearRule]]:
    """Sums that are rules, each in all its orientations, the most natural first.

    Sums that all rows keep come first, and then the simplest. Sums that are linear
    combinations of others before them are left out.
    """
    candidates = list[_CandidateSum]()
    for relation in _find_candidate_relations(numbers):
        candidate = _judge_relation(columns, level_positions, relation)
        if candidate is not None:
            candidates.append(candidate)

    sums = list[list[LinearRule]]()
    independent = np.empty((0, len(columns)))  # coefficients of the sums so far
    for candidate in sorted(candidates, key=lambda candidate: candidate.sort_key):
        extended = np.vstack((independent, candidate.coefficients))
        if np.linalg.matrix_rank(extended) == len(extended):
            sums.append(candidate.orientations)
            independent = extended
    return sums


def _judge_relation(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    relation: IntegerRelation,
) -> _CandidateSum | None:
    """The sum of a relation, if enough rows keep it; else None."""
    totals = _possible_totals(columns, relation)
    if columns[totals[0]].n_levels < MIN_LEVELS_OF_SUM:
        return None
    orientations = [
        _linear_rule(columns, level_positions, relation, total) for total in totals
    ]
    evidence = evidence_of(orientations[0], columns, level_positions)
    if not evidence.is_sufficient:
        return None
    coefficients = np.zeros(len(columns))
    coefficients[list(relation.column_indices)] = relation.coefficients
    return _CandidateSum(
        [replace(rule, share=evidence.share) for rule in orientations], coefficients
    )


def _find_candidate_relations(numbers: NumberColumns) -> list[IntegerRelation]:
    """Relations with small whole coefficients that hold in some of the rows."""
    rng = np.random.default_rng(0)
    relations = set[IntegerRelation]()
    for column_set in _columns_observed_together(numbers.values):
        values = numbers.values[:, column_set]
        values = values[~np.isnan(values).any(axis=1)]
        # Of each column, the rows in which it has not its usual value.
        unusual = [np.flatnonzero(cells != np.median(cells)) for cells in values.T]
        for _ in range(N_ROW_SETS):
            row_set = values[_diverse_rows(unusual, len(values), rng)]
            for vector in _null_vectors(row_set):
                relation = _integer_relation(vector, numbers.indices[column_set])
                if relation is not None:
                    relations.add(relation)
    return sorted(relations)


def _columns_observed_together(values: Floats) -> list[Ints]:
    """Sets of columns, as indices, that have all their cells in many rows (n, p).

    The first is of the columns with the fewest missing cells. Each other set has one
    more column, which is missing in most of those rows.
    """
    is_observed = ~np.isnan(values)
    together = list[int]()
    is_complete = np.full(len(values), True)  # rows with all cells of these columns
    others = list[int]()
    most_observed_first = np.argsort(-is_observed.sum(axis=0), kind="stable")
    for i in most_observed_first.tolist():
        is_still_complete = is_complete & is_observed[:, i]
        n_wanted = ROWS_PER_COLUMN * (len(together) + 1) + EXTRA_ROWS
        if is_still_complete.sum() >= max(n_wanted, is_complete.sum() / 2):
            together.append(i)
            is_complete = is_still_complete
        else:
            others.append(i)
    together.sort()
    column_sets = list[Ints]()
    if len(together) > 1:
        column_sets.append(np.array(together))
    for i in others:
        n_complete = (is_complete & is_observed[:, i]).sum()
        if n_complete >= MIN_ROWS_OF_RULE:
            column_sets.append(np.array([*together, i]))
    return column_sets


def _diverse_rows(unusual: Sequence[Ints], n: int, rng: np.random.Generator) -> Ints:
    """Indices of some of n rows: random ones, and two in which each column is unusual.

    `unusual` has, for each of p columns, the indices of the rows in which it is
    unusual.
    """
    n_rows = min(n, ROWS_PER_COLUMN * len(unusual) + EXTRA_ROWS)
    chosen = list[int]()
    for row_indices in unusual:
        if len(row_indices):
            chosen.extend(rng.choice(row_indices, 2).tolist())
    n_more = max(0, n_rows - len(chosen))
    more = rng.choice(n, n_more, replace=False).tolist()
    return np.unique(np.array(chosen + more, dtype=np.int64))


def _null_vectors(rows: Floats) -> list[Floats]:
    """Vectors (p,) with few coefficients whose product with rows (m, p) is constant.

    The null space is reduced to one pivot per vector, in several orders of the columns:
    by falling variance, because totals vary most, and as the table has them.
    """
    deviations = rows.std(axis=0)
    varying_indices = np.flatnonzero(deviations > 0)
    if len(varying_indices) < 2 or len(rows) <= len(varying_indices) + 1:
        return []
    varying = rows[:, varying_indices]
    varying_deviations = deviations[varying_indices]
    scaled = (varying - varying.mean(axis=0)) / varying_deviations
    _, singular_values, right = np.linalg.svd(scaled, full_matrices=False)
    null_space = right[singular_values < MAX_NULL_VALUE * singular_values[0]]
    if not len(null_space):
        return []
    by_deviation = np.argsort(-varying_deviations, kind="stable")
    in_table = np.arange(len(varying_indices))
    vectors = []
    for order in (by_deviation, in_table, in_table[::-1]):
        for reduced in _row_reduce(null_space, order):
            vector = np.zeros(rows.shape[1])
            vector[varying_indices] = reduced / varying_deviations
            vectors.append(vector)
    return vectors


def _row_reduce(vectors: Floats, order: Ints) -> Floats:
    """Vectors (r, p) after Gauss–Jordan elimination, with pivots in this order (p,)."""
    reduced = vectors.copy()
    n_done = 0
    for c in order.tolist():
        if n_done == len(reduced):
            break
        pivot = n_done + int(np.argmax(np.abs(reduced[n_done:, c])))
        if abs(reduced[pivot, c]) < MAX_NULL_COEFFICIENT:
            continue
        reduced[[n_done, pivot]] = reduced[[pivot, n_done]]
        reduced[n_done] /= reduced[n_done, c]
        others = np.arange(len(reduced)) != n_done
        reduced[others] -= np.outer(reduced[others, c], reduced[n_done])
        n_done += 1
    reduced[np.abs(reduced) < MAX_NULL_COEFFICIENT] = 0
    return reduced


def _integer_relation(vector: Floats, indices: Ints) -> IntegerRelation | None:
    """The relation of a vector (p,) of columns (p,), as small whole numbers.

    None if they would be large or not whole.
    """
    used = np.flatnonzero(vector)
    if not 2 <= len(used) <= MAX_TERMS:
        return None
    coefficients = vector[used] / np.abs(vector[used]).min()
    fractions = [
        Fraction(float(value)).limit_denominator(MAX_COEFFICIENT)
        for value in coefficients
    ]
    whole = np.array([float(fraction) for fraction in fractions])
    if np.abs(whole - coefficients).max() > MAX_NULL_COEFFICIENT:
        return None
    common = lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * common) for fraction in fractions]
    divisor = gcd(*integers) * int(np.sign(integers[0]))
    integers = [integer // divisor for integer in integers]
    if max(map(abs, integers)) > MAX_COEFFICIENT:
        return None
    return IntegerRelation(tuple(indices[used].tolist()), tuple(integers))


def _possible_totals(columns: Sequence[Column], relation: IntegerRelation) -> list[int]:
    """The columns of a relation that may be its total, the most natural first.

    A total has the finest grid of all: a sum of cents would seldom be on a grid of
    whole euros. Among these columns, the first is one that stands alone on its side of
    the equation, if there is one. The others follow by how many cells are missing,
    because a computed column is needed least, and by how many values they have: a sum
    has more than its parts.
    """
    return sorted(
        relation.column_indices,
        key=lambda c: _TotalKey.from_column(columns, relation, c),
    )


def _linear_rule(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    relation: IntegerRelation,
    total: int,
) -> LinearRule:
    """The rule of a relation that computes one of its columns.

    The same relation computes any of its columns: `total` says which. The bound is what
    Σ coefficient·column is in most rows.
    """
    coefficient_of = relation.coefficients_with_positive(total)
    indices = (total, *(c for c in relation.column_indices if c != total))
    coefficients = [coefficient_of[c] for c in indices]
    weights, unit = _weights_and_unit(coefficients, [columns[c].unit for c in indices])
    rule = LinearRule("", indices, weights, "=", 0, unit, is_discovered=True)
    complete_positions = level_positions[has_all_values(level_positions, indices)]
    bound = _mode_or_median(
        rule.difference(columns, complete_positions), unit is not None
    )
    text = _sum_text(columns, indices, coefficient_of, bound * float(unit or 1))
    return replace(rule, bound=bound, text=text)


def _weights_and_unit(
    coefficients: Sequence[int], units: Sequence[Fraction | None]
) -> tuple[tuple[float, ...], Fraction | None]:
    """The weights (k,) of columns in a sum, and the unit that all of them count.

    The unit is the finest of all columns, so that weights are whole numbers. It is None
    if some column has none, and then weights are in ones.
    """
    known_units = [unit for unit in units if unit is not None]
    weights = list[float]()
    if len(known_units) < len(units):
        for coefficient, unit in zip(coefficients, units, strict=True):
            weights.append(coefficient * float(unit or 1))
        return tuple(weights), None
    finest = min(known_units)
    for coefficient, unit in zip(coefficients, known_units, strict=True):
        weights.append(coefficient * int(unit / finest))
    return tuple(weights), finest


def _mode_or_median(values: NDArray[Any], is_exact: bool) -> int | float:
    """The most frequent of exact values (n,), or the median of floats (n,)."""
    if not len(values):
        return 0
    if is_exact:
        different, counts = np.unique(values, return_counts=True)
        return int(different[np.argmax(counts)])
    median = float(np.median(values))
    is_near = np.abs(values - median) < abs(median)
    if is_near.mean() < MIN_SHARE_OF_RULE or abs(median) < MAX_NULL_VALUE:
        return 0.0
    return median


def _sum_text(
    columns: Sequence[Column],
    indices: Sequence[int],
    coefficients: dict[int, int],
    bound: float,
) -> str:
    """A sum in words, such as "total = net + 2·tax"."""
    total, *parts = indices
    parts.sort(key=lambda c: coefficients[c] > 0)  # terms that are added come first
    right = ""
    for c in parts:
        coefficient = -coefficients[c]  # on the right side of the equation
        term = _multiple(abs(coefficient), str(columns[c].name))
        right = _append_term(right, coefficient, term)
    if bound:
        right = _append_term(right, bound, f"{abs(bound):g}")
    return f"{_multiple(coefficients[total], str(columns[total].name))} = {right}"


def _append_term(terms: str, value: float, term: str) -> str:
    """The terms of a sum with one more, which is added or, if negative, subtracted."""
    if not terms:
        return f"−{term}" if value < 0 else term
    if value < 0:
        return f"{terms} − {term}"
    return f"{terms} + {term}"


def _multiple(factor: int, name: str) -> str:
    """A column with its factor, such as "2·tax"."""
    if factor == 1:
        return name
    return f"{factor}·{name}"
