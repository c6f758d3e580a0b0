"""Products, quotients and multiples of columns that most rows keep, rounded.

All pairs of columns are tried, in a few rows with different values. A rule that nearly
all of these keep is a candidate, and all rows judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import LevelPositions
from sliceflow.estimators.tables.rules.evidence import NumberColumns, evidence_of
from sliceflow.estimators.tables.rules.kinds import FLOAT_TOLERANCE, ProductRule

# Candidates are tried in this many rows, of which so many may break them. More rows
# would take longer; with fewer, many false candidates would be checked in all rows.
N_SCREENING_ROWS = 24
MAX_BROKEN_SCREENING_ROWS = 1
MIN_SCREENING_ROWS = 8
# The factor of a multiple comes from this many of these rows, with the largest numbers.
N_LARGEST_ROWS = 5
# A column with fewer values is no product or quotient: it may be one by accident.
MIN_LEVELS_OF_PRODUCT = 8
# Factors of products and quotients of two columns: percentages and thousands.
PAIR_FACTORS = (
    Fraction(1),
    Fraction(100),
    Fraction(1, 100),
    Fraction(1000),
    Fraction(1, 1000),
)
# Denominators of the factor of a multiple, the simplest first.
DENOMINATORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 25, 40, 50, 100, 1000, 10_000)


def find_products(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    numbers: NumberColumns,
    derived: set[int],
) -> list[ProductRule]:
    """Products, quotients and multiples that are rules; exact ones come first.

    Columns that are `derived` already are not computed again. a = b·c and b = a/c are
    the same rule. It gets the form whose first column has the most levels, because a
    product has more levels than its factors.
    """
    rules = list[ProductRule]()
    for i, c in enumerate(numbers.indices.tolist()):
        if c in derived or columns[c].n_levels < MIN_LEVELS_OF_PRODUCT:
            continue
        for rule in _find_candidates(columns, numbers, i):
            evidence = evidence_of(rule, columns, level_positions)
            if evidence.is_sufficient:
                rules.append(replace(rule, share=evidence.share))

    def sort_key(rule: ProductRule) -> tuple[bool, int, int, float, int]:
        n_levels = columns[rule.column_indices[0]].n_levels
        return (
            rule.share < 1,
            len(rule.column_indices),
            -n_levels,
            -rule.share,
            sum(exponent < 0 for exponent in rule.exponents),
        )

    different = list[ProductRule]()
    seen = set[frozenset[int]]()
    for rule in sorted(rules, key=sort_key):
        if frozenset(rule.column_indices) not in seen:
            seen.add(frozenset(rule.column_indices))
            different.append(rule)
    return different


@dataclass(frozen=True, eq=False)
class _ScreeningRows:
    """A few rows in which one number, the target, has different values."""

    target: int  # the place of the target among the p numbers
    y: Floats  # (m,), its values
    x: Floats  # (m, p), the values of all numbers; NaN where cells are missing
    tolerance: Floats  # (m,), how much a product may differ from y

    @classmethod
    def from_numbers(
        cls, numbers: NumberColumns, target: int, unit: Fraction | None
    ) -> _ScreeningRows:
        """The screening rows of a target that counts a `unit`; None for floats."""
        values = numbers.values[:, target]
        row_indices = _screening_row_indices(values)
        y = values[row_indices]
        tolerance = FLOAT_TOLERANCE * np.abs(y)
        if unit is not None:
            tolerance = tolerance + float(unit) / 2  # products are rounded
        return cls(target, y, numbers.values[row_indices], tolerance)

    def is_equal(self, candidates: Floats, tolerance: Floats | None = None) -> Mask:
        """Which of many candidates (m, …) equal y in nearly all rows that have both.

        The result has the shape of one row of candidates.
        """
        if tolerance is None:
            tolerance = self.tolerance
        shape = (-1,) + (1,) * (candidates.ndim - 1)
        error = np.abs(candidates - self.y.reshape(shape))
        n_observed = np.isfinite(error).sum(axis=0)
        n_kept = (error <= tolerance.reshape(shape)).sum(axis=0)
        has_enough = n_observed >= MIN_SCREENING_ROWS
        return np.asarray(
            has_enough & (n_observed - n_kept <= MAX_BROKEN_SCREENING_ROWS)
        )


def _screening_row_indices(values: Floats) -> Ints:
    """Indices of rows with different values (n,), neither missing nor 0."""
    usable = np.flatnonzero(~np.isnan(values) & (values != 0))
    order = np.random.default_rng(0).permutation(usable)
    _, first = np.unique(values[order], return_index=True)
    return order[np.sort(first)[:N_SCREENING_ROWS]]


def _find_candidates(
    columns: Sequence[Column], numbers: NumberColumns, target: int
) -> list[ProductRule]:
    """Rules of one of the numbers that nearly all screening rows keep."""
    unit = columns[int(numbers.indices[target])].unit
    screening = _ScreeningRows.from_numbers(numbers, target, unit)
    if len(screening.y) < MIN_SCREENING_ROWS:
        return []
    candidates = _find_multiples(columns, numbers, screening)
    candidates.extend(_find_pairs(columns, numbers, screening))
    return candidates


def _find_multiples(
    columns: Sequence[Column], numbers: NumberColumns, screening: _ScreeningRows
) -> list[ProductRule]:
    """Rules y = factor·x that screening rows keep."""
    # Rows of large numbers determine the factor best; their median is robust.
    sizes = np.nan_to_num(np.abs(screening.x))
    largest = np.argsort(-sizes, axis=0, kind="stable")[:N_LARGEST_ROWS]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = screening.y[:, None] / np.where(sizes > 0, screening.x, np.nan)
        margins = screening.tolerance[:, None] / sizes
    median_ratio = np.median(np.take_along_axis(ratios, largest, axis=0), axis=0)
    margin = np.min(np.take_along_axis(margins, largest, axis=0), axis=0)
    is_near = screening.is_equal(median_ratio * screening.x, 2 * screening.tolerance)
    is_near[screening.target] = False
    derived = int(numbers.indices[screening.target])
    rules = []
    for a in np.flatnonzero(is_near).tolist():
        factor = _simplest_fraction(float(median_ratio[a]), float(margin[a]))
        if factor is not None:
            other = (int(numbers.indices[a]),)
            rules.append(_product_rule(columns, derived, other, (1,), factor))
    return rules


def _find_pairs(
    columns: Sequence[Column], numbers: NumberColumns, screening: _ScreeningRows
) -> list[ProductRule]:
    """Rules y = factor·xₐ·x_b and y = factor·xₐ/x_b that screening rows keep."""
    x = screening.x
    with np.errstate(divide="ignore", invalid="ignore"):
        products = x[:, :, None] * x[:, None, :]
        quotients = x[:, :, None] / x[:, None, :]
    n_numbers = x.shape[1]
    is_without_target = np.ones((n_numbers, n_numbers), dtype=bool)
    is_without_target[screening.target] = False
    is_without_target[:, screening.target] = False
    derived = int(numbers.indices[screening.target])
    rules = []
    for exponent, values in ((1, products), (-1, quotients)):
        for factor in PAIR_FACTORS:
            is_kept = screening.is_equal(float(factor) * values) & is_without_target
            if exponent > 0:
                is_kept = np.triu(is_kept)  # a·b is b·a
            else:
                np.fill_diagonal(is_kept, False)  # a/a is 1
            for a, b in np.argwhere(is_kept).tolist():
                others = (int(numbers.indices[a]), int(numbers.indices[b]))
                rules.append(
                    _product_rule(columns, derived, others, (1, exponent), factor)
                )
    return rules


def _simplest_fraction(value: float, margin: float) -> Fraction | None:
    """The fraction within a margin of a value that has the simplest denominator."""
    for denominator in DENOMINATORS:
        numerator = round(value * denominator)
        if numerator and abs(numerator / denominator - value) <= margin:
            return Fraction(numerator, denominator)
    return None


def _product_rule(
    columns: Sequence[Column],
    derived: int,
    others: tuple[int, ...],
    exponents: tuple[int, ...],
    factor: Fraction,
) -> ProductRule:
    """The rule, with its text, such as "tax = 0.19 · net, rounded"."""
    parts = []
    if factor != 1:
        parts.append(f"{float(factor):g}")
    parts.append(str(columns[others[0]].name))
    right = " · ".join(parts)
    if len(others) > 1:
        operator = {1: "·", -1: "/"}[exponents[1]]
        right = f"{right} {operator} {columns[others[1]].name}"
    text = f"{columns[derived].name} = {right}, rounded"
    return ProductRule(text, (derived, *others), exponents, factor)
