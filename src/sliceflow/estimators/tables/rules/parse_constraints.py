"""Constraints as users write them, and the rules that they become.

| expression | meaning |
|---|---|
| ``"start <= end"``, ``<``, ``>=``, ``>`` | a column and another, a number, or a sum |
| ``"total = a + b - c"`` | the total is computed from its parts |
| ``"combinations(make, model)"`` | only combinations that occur in the table |

A comparison or sum with a missing cell holds. Names that are not words stand in
backquotes: ``"`unit price` >= 0"``. Constraints hold in every new row, or sampling
raises. Other rules are discovered in the table, without a constraint (`search`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from sliceflow.errors import ParameterError
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.rules.kinds import (
    CombinationRule,
    LinearRule,
    Relation,
    Rule,
)
from sliceflow.validation import duplicates

_NAME = r"(`[^`]+`|[^\W\d]\w*)"
_NUMBER = r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_TERM = rf"(?:{_NAME}|{_NUMBER})"
_COMBINATIONS = re.compile(rf"\s*combinations\(({_NAME}(?:\s*,\s*{_NAME})+)\s*\)\s*")
_COMPARISON = re.compile(
    rf"\s*{_NAME}\s*([<>]=?|==?)\s*([+-]?\s*{_TERM}(\s*[+-]\s*{_TERM})*)\s*"
)

# ≥ and > become ≤ and < when both sides change their sign.
_RELATIONS: dict[str, Relation] = {
    "<=": "<=",
    ">=": "<=",
    "<": "<",
    ">": "<",
    "=": "=",
    "==": "=",
}


def parse_constraint(text: object, columns: Sequence[Column]) -> Rule:
    """The rule of a user's expression. A `ParameterError` says what is wrong."""
    if isinstance(text, str):
        combinations = _COMBINATIONS.fullmatch(text)
        if combinations:
            names = re.findall(_NAME, combinations[1])
            return CombinationRule(text, _find_columns(text, names, columns))
        comparison = _COMPARISON.fullmatch(text)
        if comparison:
            name, operator, right_side = comparison[1], comparison[2], comparison[3]
            return _parse_comparison(text, name, operator, right_side, columns)
    raise ParameterError(
        "constraints",
        text,
        "cannot be read",
        "write 'a <= b', 'x > 0', 'total = a + b' or 'combinations(a, b)', odd names "
        "in `backquotes`",
    )


class _Terms(NamedTuple):
    """The two sides of a comparison: Σ sign·column, and the number `bound`."""

    names: list[str]
    signs: list[int]  # 1 or −1
    bound: Fraction


def _parse_comparison(
    text: str, name: str, operator: str, right_side: str, columns: Sequence[Column]
) -> LinearRule:
    """The rule of "name operator right_side", as Σ sign·column ≤, < or = bound."""
    relation = _RELATIONS[operator]
    sign_of_left = 1
    if ">" in operator:  # a > b is −a < −b
        sign_of_left = -1
    terms = _move_to_left(name, sign_of_left, right_side)
    indices = _find_columns(text, terms.names, columns, must_be_quantitative=True)
    is_difference = len(terms.signs) == 2 and sum(terms.signs) == 0
    is_comparison_of_two = relation != "=" and is_difference
    _check_quantities(
        text, [columns[c] for c in indices], terms.bound, is_comparison_of_two
    )

    units = [columns[c].unit for c in indices]
    known_units = [unit for unit in units if unit is not None]
    if len(known_units) < len(units):  # some are floats
        weights = [
            sign * float(unit or 1)
            for sign, unit in zip(terms.signs, units, strict=True)
        ]
        bound = float(terms.bound)
        return LinearRule(text, indices, tuple(weights), relation, bound)
    finest = _common_unit(known_units, terms.bound)
    integers = [
        sign * int(unit / finest)
        for sign, unit in zip(terms.signs, known_units, strict=True)
    ]
    whole_bound = int(terms.bound / finest)
    return LinearRule(text, indices, tuple(integers), relation, whole_bound, finest)


def _common_unit(units: Sequence[Fraction], bound: Fraction) -> Fraction:
    """The unit of which the units of all columns and the bound are multiples."""
    finest = min(units)
    return finest / (bound / finest).denominator


def _move_to_left(name: str, sign: int, right_side: str) -> _Terms:
    """The terms of "sign·name relation sign·right_side", with all columns on the left.

    Numbers are moved to the right.
    """
    names = [name]
    signs = [sign]
    bound = Fraction(0)
    for minus, other_name, number in re.findall(rf"([+-]?)\s*{_TERM}", right_side):
        sign_on_the_left = -sign
        if minus == "-":
            sign_on_the_left = sign
        if other_name:
            names.append(other_name)
            signs.append(sign_on_the_left)
        else:
            bound -= sign_on_the_left * Fraction(number)
    return _Terms(names, signs, bound)


def _check_quantities(
    text: str, columns: Sequence[Column], bound: Fraction, is_comparison_of_two: bool
) -> None:
    """Raise a `ParameterError` for quantities that do not go together.

    Times can only be compared, not added, and only numbers have a bound.
    """
    quantities = {column.quantity for column in columns}
    mixed = len(quantities) > 1
    has_sum_of_times = quantities == {"time"} and not is_comparison_of_two
    is_compared_with_number = bound != 0 and quantities != {"number"}
    if mixed or has_sum_of_times or is_compared_with_number:
        raise ParameterError(
            "constraints", text, "takes columns of different kinds", "make them alike"
        )


def _find_columns(
    text: str,
    quoted: Sequence[str],
    columns: Sequence[Column],
    must_be_quantitative: bool = False,
) -> tuple[int, ...]:
    """The indices (k,) of the columns with these names, which may be in backquotes."""
    column_names = [str(column.name) for column in columns]
    names = [name.strip("`") for name in quoted]
    for name in names:
        if name not in column_names:
            raise ParameterError(
                "constraints", text, f"is wrong: there is no column {name!r}"
            )
        column = columns[column_names.index(name)]
        has_unit = column.unit is not None  # constants, too
        is_quantitative = column.is_quantitative or has_unit
        is_words = must_be_quantitative and not is_quantitative
        if column.kind in ("drop", "identifier") or is_words:
            fact = f"is wrong: column {name!r} is of kind {column.kind}"
            if must_be_quantitative:
                fact += ", not numbers"
            raise ParameterError("constraints", text, fact)
    repeated = duplicates(names)
    if repeated:
        raise ParameterError("constraints", text, f"names {repeated[0]!r} twice")
    return tuple(column_names.index(name) for name in names)
