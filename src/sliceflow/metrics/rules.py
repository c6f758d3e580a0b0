"""Rules that all training rows of a table obey, and how many other rows obey them.

Rules are: a column of whole numbers; one number at most another (a ≤ b); a number that
is the sum of others, with small whole coefficients; a column that follows from another,
such as a country from its town. Missing cells break no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Mask
from sliceflow.functional_dependencies import find_dependencies

# Rules are searched among at most this many columns, because every pair is checked.
_MAX_RULE_COLUMNS = 100
# An order a ≤ b must be broken by so many rows if a is that of another row. If e are
# expected, none are with a probability of exp(−e).
_MIN_BROKEN_BY_CHANCE = 10
# The most summands of a sum, and the largest coefficient. Larger ones are hardly rules
# that somebody made.
_MAX_SUMMANDS = 5
_MAX_COEFFICIENT = 9
# Rows by which sums are sought; all others must keep them, too.
_MAX_SUM_ROWS = 1_000
# A sum of k columns must hold in this many times as many rows: with as many rows as
# columns every number is a sum of others.
_ROWS_PER_SUMMAND = 10
# Sums are equal if they differ by less than this, relative to the largest number of a
# column: numbers have decimals that binary ones do not have.
_SUM_TOLERANCE = 1e-9
# The tolerance of coefficients, which least squares find less exactly.
_COEFFICIENT_TOLERANCE = 1e-6


class Rule(NamedTuple):
    """What holds in all training rows."""

    text: str  # such as "start <= end"
    is_kept_by: Callable[[Floats], Mask]  # which rows (n, c) obey it
    # Training rows say what follows from what, so only other rows are evidence for such
    # a rule.
    is_lookup: bool = False


class KeptRule(NamedTuple):
    """A rule, and the shares of real rows and of samples that obey it."""

    text: str
    real_share: float  # of held-out rows; if a model found the rule, of fitted ones
    sample_share: float
    n_rows: int  # how many real rows are evidence for the rule


def find_rules(
    train: Floats, names: Sequence[str], is_categorical: Sequence[bool]
) -> list[Rule]:
    """The rules that all training rows (n, c) obey, by which samples are judged.

    `is_categorical` says which columns hold codes of categories. This is not the search
    by which models of tables find the rules that they keep: a judge that shared it
    would not see the rules that it misses. Only the dependencies of columns, whose
    definition leaves no choice, are found by the same function.
    """
    columns = train[:, :_MAX_RULE_COLUMNS]
    is_number = ~np.asarray(is_categorical[:_MAX_RULE_COLUMNS], bool)
    number_columns: list[int] = np.flatnonzero(is_number).tolist()
    return [
        *_find_dependencies(columns, names),
        *_find_sums(columns, names, number_columns),
        *_find_orders(columns, names, number_columns),
        *_find_whole_numbers(columns, names, number_columns),
    ]


def share_keeping_all(rules: Sequence[Rule], rows: Floats) -> float:
    """The share of rows that obey all rules; 1 if there are none."""
    is_kept = np.ones(len(rows), bool)
    for rule in rules:
        is_kept &= rule.is_kept_by(rows)
    return float(is_kept.mean())


def measure_rules(
    rules: Sequence[Rule], n_train: int, held_out: Floats, samples: Floats
) -> list[KeptRule]:
    """How many held-out rows and samples obey each rule, the least kept first."""
    kept = []
    for rule in rules:
        n_rows = len(held_out)
        if not rule.is_lookup:
            n_rows += n_train
        real_share = float(rule.is_kept_by(held_out).mean())
        sample_share = float(rule.is_kept_by(samples).mean())
        kept.append(KeptRule(rule.text, real_share, sample_share, n_rows))
    return sorted(kept, key=lambda rule: rule.sample_share)


def _find_whole_numbers(
    train: Floats, names: Sequence[str], number_columns: Sequence[int]
) -> Iterator[Rule]:
    """Columns of whole numbers."""
    for c in number_columns:
        known = train[~np.isnan(train[:, c]), c]
        if len(known) > 0 and (known == np.rint(known)).all():
            yield Rule(f"{names[c]} is a whole number", _whole_number_check(c))


def _whole_number_check(c: int) -> Callable[[Floats], Mask]:
    """Whether rows have a whole number in column c."""

    def is_kept_by(rows: Floats) -> Mask:
        values = rows[:, c]
        return np.asarray(np.isnan(values) | (values == np.rint(values)))

    return is_kept_by


def _find_orders(
    train: Floats, names: Sequence[str], number_columns: Sequence[int]
) -> Iterator[Rule]:
    """Pairs of columns of which one is never above the other, with overlapping ranges.

    Columns that are always equal do not count here: one follows from the other.
    """
    for a in number_columns:
        x = train[:, [a]]
        is_never_above = ~(x > train).any(axis=0)
        is_sometimes_below = (x < train).any(axis=0)
        # Another row's number would often be above.
        n_above = (np.roll(x, len(x) // 2, axis=0) > train).sum(axis=0)
        is_overlapping = n_above >= _MIN_BROKEN_BY_CHANCE
        is_order = is_never_above & is_sometimes_below & is_overlapping
        for b in number_columns:
            if is_order[b]:
                yield Rule(f"{names[a]} <= {names[b]}", _order_check(a, b))


def _order_check(a: int, b: int) -> Callable[[Floats], Mask]:
    """Whether rows have at most as much in column a as in column b."""

    def is_kept_by(rows: Floats) -> Mask:
        return np.asarray(~(rows[:, a] > rows[:, b]))

    return is_kept_by


def _find_sums(
    train: Floats, names: Sequence[str], number_columns: Sequence[int]
) -> Iterator[Rule]:
    """Columns that are sums of columns before them, with small whole coefficients.

    Columns are taken from left to right. One that is no linear combination of those
    before is independent; another one has coefficients by least squares.
    """
    independent = list[int]()
    for c in number_columns:
        chosen = [*independent, c]
        complete = train[~np.isnan(train[:, chosen]).any(axis=1)]
        if (
            len(complete) < _ROWS_PER_SUMMAND * len(chosen)
            or np.ptp(complete[:, c]) == 0
        ):
            continue  # too few rows, or a constant: neither a sum nor a summand
        first_rows = complete[:_MAX_SUM_ROWS]
        coefficients = _whole_coefficients(first_rows[:, independent], first_rows[:, c])
        if coefficients is None:
            independent.append(c)
            continue
        summands = [i for i, k in zip(independent, coefficients, strict=True) if k]
        factors = [k for k in coefficients if k]
        if not 2 <= len(summands) <= _MAX_SUMMANDS:
            continue
        keeps = _sum_check(c, summands, factors, train)
        if keeps(train).all():
            text = _format_sum([names[i] for i in summands], factors)
            yield Rule(f"{names[c]} = {text}", keeps)


def _whole_coefficients(columns: Floats, target: Floats) -> list[int] | None:
    """The whole coefficients of columns (n, k) whose sum is the target (n,).

    They are 0 if the target is a combination with other coefficients. None if it is no
    linear combination at all.
    """
    if columns.shape[1] == 0:
        return None
    scale = np.abs(columns).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    unit = float(np.abs(target).max())
    solution, *_ = np.linalg.lstsq(columns / scale, target / unit, rcond=None)
    residual = columns / scale @ solution - target / unit
    if np.abs(residual).max() > _COEFFICIENT_TOLERANCE:
        return None
    coefficients = solution * unit / scale
    whole = np.rint(coefficients)
    is_fraction = np.abs(coefficients - whole) > _COEFFICIENT_TOLERANCE
    if is_fraction.any() or np.abs(whole).max() > _MAX_COEFFICIENT:
        return [0] * columns.shape[1]
    return [int(k) for k in whole]


def _sum_check(
    c: int, summands: Sequence[int], factors: Sequence[int], train: Floats
) -> Callable[[Floats], Mask]:
    """Whether column c of rows is the sum of other columns times these factors.

    Numbers of training rows (n, c) say how far rounding may be off.
    """
    largest = float(np.nanmax(np.abs(train[:, [c, *summands]])))
    tolerance = _SUM_TOLERANCE * largest * (1 + len(summands))

    def is_kept_by(rows: Floats) -> Mask:
        total = rows[:, list(summands)] @ np.array(factors, float)
        # The difference to a missing cell is NaN, which is not above the tolerance.
        return np.asarray(~(np.abs(rows[:, c] - total) > tolerance))

    return is_kept_by


def _format_sum(names: Sequence[str], factors: Sequence[int]) -> str:
    """A sum in words, such as "a + 2·b − c", as models of tables write it."""
    text = ""
    for name, factor in zip(names, factors, strict=True):
        size = "" if abs(factor) == 1 else f"{abs(factor)}·"
        sign = "−" if factor < 0 else "+"
        text += f" {sign} {size}{name}"
    text = text.removeprefix(" + ")
    if text.startswith(" − "):
        return f"−{text.removeprefix(' − ')}"
    return text


def _find_dependencies(train: Floats, names: Sequence[str]) -> Iterator[Rule]:
    """Columns that follow from another one."""
    for determinant, dependent, one_to_one in find_dependencies(train):
        yield _lookup_rule(train, names, determinant, dependent)
        if one_to_one:
            yield _lookup_rule(train, names, dependent, determinant)


def _lookup_rule(
    train: Floats, names: Sequence[str], determinant: int, dependent: int
) -> Rule:
    """The rule that a column follows from another, by what training rows have."""
    is_known = ~np.isnan(train[:, [determinant, dependent]]).any(axis=1)
    known = train[is_known]
    values, first_rows = np.unique(known[:, determinant], return_index=True)
    implied = known[first_rows, dependent]

    def is_kept_by(rows: Floats) -> Mask:
        # All rows with a missing cell, or with a determinant that no training row has.
        if len(values) == 0:
            return np.ones(len(rows), bool)
        index = np.searchsorted(values, rows[:, determinant]).clip(max=len(values) - 1)
        is_applicable = values[index] == rows[:, determinant]
        is_applicable &= ~np.isnan(rows[:, dependent])
        return np.asarray(~is_applicable | (rows[:, dependent] == implied[index]))

    text = f"{names[dependent]} follows from {names[determinant]}"
    return Rule(text, is_kept_by, is_lookup=True)
