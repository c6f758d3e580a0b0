"""Products, quotients and multiples of columns that most rows keep, rounded.

All pairs of columns are tried, in a few rows with different values. What nearly all of
these keep is a candidate, and all rows judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.rule_evidence import NumberColumns, evidence_of
from sliceflow.spaces.tables.rules import ProductRule

# Rows that candidates must keep at first, of which this many may break them. More
# would take longer; with fewer, many false candidates would be checked in all rows.
N_TRIAL_ROWS = 24
MAX_BROKEN_TRIAL_ROWS = 1
MIN_TRIAL_ROWS = 8
# Of these rows, those with the largest numbers say what the factor of a multiple is.
N_LARGEST_ROWS = 5
# A column with fewer values is no product or quotient: it may follow by chance.
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
    row_positions: Floats,
    numbers: NumberColumns,
    derived: set[int],
) -> list[ProductRule]:
    """Products, quotients and multiples that are rules, those of all rows first.

    Columns that are `derived` already are not computed again. a = b·c and b = a/c are
    the same rule: the one counts whose first column has the most levels, because a
    product has more than its factors.
    """
    rules = list[ProductRule]()
    for i, c in enumerate(numbers.indices.tolist()):
        if c in derived or columns[c].n_levels < MIN_LEVELS_OF_PRODUCT:
            continue
        for rule in _find_candidate_products(columns, numbers, i):
            evidence = evidence_of(rule, columns, row_positions)
            if evidence.suffices:
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


def _find_candidate_products(
    columns: Sequence[Column], numbers: NumberColumns, i: int
) -> list[ProductRule]:
    """Rules of the i-th number that nearly all of a few rows keep."""
    c = int(numbers.indices[i])
    target = numbers.values[:, i]
    rows = _trial_rows(target)
    if len(rows) < MIN_TRIAL_ROWS:
        return []
    y = target[rows]
    x = numbers.values[rows]
    tolerance = 1e-9 * np.abs(y)
    unit = columns[c].unit
    if unit is not None:
        tolerance = tolerance + float(unit) / 2
    candidates = _find_candidate_multiples(columns, numbers, i, x, y, tolerance)
    with np.errstate(divide="ignore", invalid="ignore"):
        products = x[:, :, None] * x[:, None, :]
        quotients = x[:, :, None] / x[:, None, :]
    n_numbers = x.shape[1]
    is_used = np.ones((n_numbers, n_numbers), dtype=bool)
    is_used[i] = False
    is_used[:, i] = False
    for exponent, values in ((1, products), (-1, quotients)):
        for factor in PAIR_FACTORS:
            agrees = (
                _agrees_in_trial_rows(float(factor) * values, y, tolerance) & is_used
            )
            if exponent > 0:
                agrees = np.triu(agrees)
            else:
                np.fill_diagonal(agrees, False)
            for a, b in np.argwhere(agrees).tolist():
                others = (int(numbers.indices[a]), int(numbers.indices[b]))
                candidates.append(
                    _product_rule(columns, c, others, (1, exponent), factor)
                )
    return candidates


def _trial_rows(values: Floats) -> Ints:
    """Indices of rows with different values (n,), neither missing nor 0."""
    usable = np.flatnonzero(~np.isnan(values) & (values != 0))
    order = np.random.default_rng(0).permutation(usable)
    _, first = np.unique(values[order], return_index=True)
    return order[np.sort(first)[:N_TRIAL_ROWS]]


def _agrees_in_trial_rows(values: Floats, y: Floats, tolerance: Floats) -> Mask:
    """Which of many columns of values (m, …) equal y (m,) in nearly all known rows."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    error = np.abs(values - y.reshape(shape))
    known = np.isfinite(error).sum(axis=0)
    kept = (error <= tolerance.reshape(shape)).sum(axis=0)
    is_known = known >= MIN_TRIAL_ROWS
    return np.asarray(is_known & (known - kept <= MAX_BROKEN_TRIAL_ROWS))


def _find_candidate_multiples(
    columns: Sequence[Column],
    numbers: NumberColumns,
    i: int,
    x: Floats,
    y: Floats,
    tolerance: Floats,
) -> list[ProductRule]:
    """Rules y = factor·x of the i-th number, for trial rows x (m, p) and y (m,)."""
    c = int(numbers.indices[i])
    # Rows of large numbers say most about the factor; their median is robust.
    sizes = np.nan_to_num(np.abs(x))
    largest = np.argsort(-sizes, axis=0, kind="stable")[:N_LARGEST_ROWS]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = y[:, None] / np.where(sizes > 0, x, np.nan)
        margins = tolerance[:, None] / sizes
    middle = np.median(np.take_along_axis(ratios, largest, axis=0), axis=0)
    margin = np.min(np.take_along_axis(margins, largest, axis=0), axis=0)
    is_near = _agrees_in_trial_rows(middle * x, y, 2 * tolerance)
    is_near[i] = False
    candidates = []
    for a in np.flatnonzero(is_near).tolist():
        factor = _simplest_fraction(float(middle[a]), float(margin[a]))
        if factor is not None:
            other = (int(numbers.indices[a]),)
            candidates.append(_product_rule(columns, c, other, (1,), factor))
    return candidates


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
