"""Constraints between columns. They hold in every new row, or sampling raises.

| expression | meaning |
|---|---|
| ``"start <= end"``, ``<``, ``>=``, ``>`` | a column and another, a number, or a sum |
| ``"total = a + b - c"`` | the total is computed from its parts |
| ``"combinations(make, model)"`` | only combinations that occur in the table |

A comparison or sum with a missing cell holds. Names that are not words stand in
backquotes: ``"`unit price` >= 0"``. Other rules are found in the table and hold without
being asked for (`rule_search`).

`rules` has the kinds of rules. While rows are drawn column by column, some cells are
`UNDRAWN`, and cells of a sum that cannot be computed are `IMPOSSIBLE` (`positions`).
The model draws only what the rules allow given the columns before (`Rules.allowed`),
computes totals, and draws a row anew if it breaks a rule (`Rules.complete`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from typing import Any

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.errors import DataError, ParameterError
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.formats import MAX_EXACT_FLOAT
from sliceflow.spaces.tables.positions import (
    has_value,
    is_impossible,
    is_missing,
    is_undrawn,
)
from sliceflow.spaces.tables.rules import (
    CombinationRule,
    ComputingRule,
    LinearRule,
    MembershipRule,
    Relation,
    Rule,
    computes,
)

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


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a table, its columns, and the positions of its rows."""

    rules: tuple[Rule, ...]
    columns: Sequence[Column]
    z: Floats  # (n, d), which keep the rules
    # Combinations that occur, by their columns; each is looked up many times.
    _combinations: dict[tuple[int, ...], Floats] = field(
        default_factory=dict, init=False
    )

    def check_rows(self) -> None:
        """Raise a `DataError` if a row breaks a rule, or a sum cannot be computed."""
        for sum_rule in self.rules:
            if sum_rule.implied or not computes(sum_rule):
                continue
            total = self.columns[sum_rule.column_indices[0]]
            largest = np.abs(total.level_grid_values).max(initial=0)
            if total.unit is not None and largest >= MAX_EXACT_FLOAT:
                raise DataError(
                    "it spans more than 2^53 steps, too many for the constraint "
                    f"{sum_rule.text!r} to be exact",
                    "divide the columns, or leave it out",
                    column=total.name,
                )
        for rule in self.rules:
            broken = self.broken(rule, self.z)
            if broken.any():
                row = int(np.flatnonzero(broken)[0])
                raise DataError(
                    f"the constraint {rule.text!r} does not hold in "
                    f"{int(broken.sum())} rows, here with {self._cells(rule, row)}",
                    "fix the rows, or leave it out",
                    row,
                )

    def _cells(self, rule: Rule, row: int) -> str:
        """The cells of a row of the table that a rule is about, as text."""
        cells = []
        for c in rule.column_indices:
            column = self.columns[c]
            value = column.levels.iloc[int(self.z[row, c])]
            cells.append(f"{column.name}={value}")
        return ", ".join(cells)

    @cached_property
    def computing(self) -> list[ComputingRule]:
        """Rules that compute a column, in the order in which they can be computed.

        A total that is a part of another sum comes first.
        """
        by_derived = dict[int, list[ComputingRule]]()
        for rule in self.rules:
            if computes(rule):
                by_derived.setdefault(rule.column_indices[0], []).append(rule)
        sources = dict[int, set[int]]()
        for derived, rules in by_derived.items():
            asked = [rule.text for rule in rules if not rule.implied]
            if len(asked) > 1:
                raise ParameterError(
                    "constraints",
                    asked,
                    "compute the same column",
                    "leave one of them out",
                )
            sources[derived] = set[int]()
            for rule in rules:
                sources[derived].update(rule.column_indices[1:])
        try:
            order = list(TopologicalSorter(sources).static_order())
        except CycleError as error:
            columns_in_circle = error.args[1]
            raise ParameterError(
                "constraints",
                by_derived[columns_in_circle[0]][0].text,
                "is in a circle of sums",
                "leave one out",
            ) from error
        in_order = list[ComputingRule]()
        for c in order:
            in_order.extend(by_derived.get(c, []))
        return in_order

    def order(self, columns: Sequence[int]) -> list[int]:
        """The columns in the order of drawing: derived ones behind what they need."""
        order = list(columns)
        for rule in self.computing:
            derived, *others = rule.column_indices
            if derived in order:
                places = [order.index(other) for other in others if other in order]
                behind = 1 + max(places, default=-1)
                if order.index(derived) < behind:
                    order.insert(behind, derived)
                    order.remove(derived)
        return order

    def computing_column(self, c: int, known: set[int]) -> list[ComputingRule]:
        """The rules from which column c follows if the `known` columns are drawn."""
        rules = []
        for rule in self.computing:
            others = {other for other in rule.column_indices if other != c}
            if c in rule.computable_indices and others <= known:
                rules.append(rule)
        return rules

    # Which rows keep the rules

    def complete(self, z: Floats, computable: Mask) -> Mask:
        """Compute cells of sums in z (m, d), in place; which rows keep all rules (m,).

        Only the cells in `computable` change: (m, d) for each cell, or (d,) for whole
        columns. A row with a cell that is still not drawn, or cannot be computed, does
        not count as one that keeps the rules.
        """
        keeps_rules = self._keep(self.rules, z, computable)
        return keeps_rules & ~is_undrawn(z).any(axis=1)

    def allowed(
        self,
        c: int,
        z: Floats,
        missing: bool,
        row_indices: Ints,
        positions: Floats,
    ) -> Mask:
        """Whether a column may have certain positions, given what is drawn so far.

        Parameters
        ----------
        c : the index of the column
        z : (m, d), all rows that are being drawn, with cells that are `UNDRAWN`
        missing : whether cells may be missing
        row_indices : (k,), the rows in question
        positions : (k,), what the column would have in these rows
        """
        allowed = missing | ~is_missing(positions)
        changing = {c}  # columns that may be computed from this one
        for rule in self.computing:
            if changing & set(rule.column_indices):
                changing |= set(rule.column_indices)
        rules = [rule for rule in self.rules if changing & set(rule.column_indices)]
        if not rules:
            return allowed
        trial = z[row_indices]
        trial[:, c] = positions
        computable = is_undrawn(trial)
        computable[:, c] = any(c == rule.column_indices[0] for rule in self.computing)
        return allowed & self._keep(rules, trial, computable)

    def _keep(self, rules: Sequence[Rule], z: Floats, computable: Mask) -> Mask:
        """Compute cells in place; which rows (m,) have all of them and keep the rules.

        z is (m, d), and `computable` (m, d) or (d,).
        """
        computing = [rule for rule in self.computing if rule in rules]
        self._compute(computing, z, computable)
        keeps_rules = np.asarray(~is_impossible(z).any(axis=1))
        for rule in rules:
            keeps_rules[keeps_rules] = ~self.broken(rule, z[keeps_rules])
        return keeps_rules

    def broken(self, rule: Rule, z: Floats) -> Mask:
        """Which rows (m,) of z (m, d) break a rule, as far as they are drawn."""
        if isinstance(rule, MembershipRule):
            positions = z[:, rule.column_indices[0]]
            is_listed = np.isin(positions, rule.positions)
            return ~is_undrawn(positions) & ~is_listed
        if isinstance(rule, CombinationRule):
            return self._broken_combinations(rule, z)
        # A rule with a missing cell holds.
        row_indices = np.flatnonzero(has_value(z[:, rule.column_indices]).all(axis=1))
        broken = np.zeros(len(z), dtype=bool)
        broken[row_indices] = rule.is_broken(self.columns, z[row_indices])
        return broken

    def _broken_combinations(self, rule: CombinationRule, z: Floats) -> Mask:
        """Which rows have a combination that does not occur, of what is drawn."""
        combinations = z[:, rule.column_indices]
        is_drawn = ~is_undrawn(combinations)
        broken = np.zeros(len(z), dtype=bool)
        for pattern in np.unique(is_drawn[is_drawn.any(axis=1)], axis=0):
            has_pattern = np.asarray((is_drawn == pattern).all(axis=1))
            drawn_indices = tuple(compress(rule.column_indices, pattern))
            drawn = combinations[has_pattern][:, pattern]
            broken[has_pattern] = ~self._occurs(drawn, drawn_indices)
        return broken

    def _occurs(self, combinations: Floats, column_indices: tuple[int, ...]) -> Mask:
        """Which combinations of positions (m, k) of some columns are in the table."""
        import pandas as pd

        if column_indices not in self._combinations:
            in_table = pd.DataFrame(self.z[:, column_indices])
            self._combinations[column_indices] = in_table.drop_duplicates().to_numpy()
        known = self._combinations[column_indices]
        df = pd.DataFrame(np.concatenate((known, combinations)))
        # Groups are numbered as they appear, so those of known combinations come first.
        group = df.groupby([*df], sort=False).ngroup().to_numpy()
        return np.asarray(group[len(known) :] < len(known))

    # Cells that follow from others

    def _compute(
        self, rules: Sequence[ComputingRule], z: Floats, computable: Mask
    ) -> None:
        """Compute cells in z (m, d), in place; `IMPOSSIBLE` if they cannot be.

        First come cells that are determined: no other cell of their rule may change.
        Where several may, the total is computed, or else the last part, and the others
        stay as drawn. That may determine cells of other sums.

        Take ab = a + b and abc = ab + c, with abc = 10 and c = 4 given, and with a = 1
        and b = 2 drawn. Of abc = ab + c only ab may change, so it is 6. Now a and b may
        change in ab = a + b. It is b that does, and is 5.
        """
        computable = computable & ~is_missing(z)  # what was drawn as missing stays so
        in_both_orders = [*rules, *reversed(rules)]
        self._compute_determined_cells(in_both_orders, z, computable)
        for rule in in_both_orders:
            self._compute_cells(rule, z, computable, only_determined=False)
        self._compute_determined_cells(in_both_orders, z, computable)

    def _compute_determined_cells(
        self, rules: Sequence[ComputingRule], z: Floats, computable: Mask
    ) -> None:
        """Compute cells of rules of which no other cell may change, in place.

        Each computed cell may determine one of another rule, so this goes on until
        there is none. It ends, because each round makes cells uncomputable.
        """
        is_changed = True
        while is_changed:
            is_changed = False
            for rule in rules:
                if self._compute_cells(rule, z, computable, only_determined=True):
                    is_changed = True

    def _compute_cells(
        self,
        rule: ComputingRule,
        z: Floats,
        computable: Mask,
        only_determined: bool,
    ) -> bool:
        """Compute a cell of one rule in each row where all others are known, in place.

        With `only_determined`, not in rows where others may change, too. All cells of
        a rule with a computed cell become uncomputable in `computable` (m, d), in
        place.

        Returns
        -------
        whether a cell was computed
        """
        is_changed = False
        for c in rule.computable_indices:
            others = [other for other in rule.column_indices if other != c]
            may_compute = computable[:, c] & has_value(z[:, others]).all(axis=1)
            if only_determined:
                may_compute &= ~computable[:, others].any(axis=1)
            if may_compute.any():
                positions = rule.solve(self.columns, z[may_compute], c)
                before = z[may_compute, c]
                z[may_compute, c] = np.where(is_undrawn(positions), before, positions)
                computable[np.ix_(may_compute, np.array(rule.column_indices))] = False
                is_changed = True
        return is_changed


def parse_constraint(text: Any, columns: Sequence[Column]) -> Rule:
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


def _parse_comparison(
    text: str, name: str, operator: str, right_side: str, columns: Sequence[Column]
) -> LinearRule:
    """The rule of "name operator right_side", as Σ sign·column ≤, < or = bound."""
    sign = 1
    if ">" in operator:  # a > b is −a < −b
        sign = -1
    relation = _RELATIONS[operator]
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
    indices = _find_columns(text, names, columns, numeric=True)
    compares_two = relation != "=" and len(signs) == 2 and sum(signs) == 0
    _check_quantities(text, [columns[c] for c in indices], bound, compares_two)

    units = [columns[c].unit for c in indices]
    known_units = [unit for unit in units if unit is not None]
    if len(known_units) < len(units):  # some are floats
        weights = [
            sign * float(unit or 1) for sign, unit in zip(signs, units, strict=True)
        ]
        return LinearRule(text, indices, tuple(weights), relation, float(bound))
    # The finest unit of which all columns and the bound are integers.
    finest = min(known_units)
    finest /= (bound / finest).denominator
    integers = [
        sign * int(unit / finest) for sign, unit in zip(signs, known_units, strict=True)
    ]
    return LinearRule(
        text, indices, tuple(integers), relation, int(bound / finest), finest
    )


def _check_quantities(
    text: str, columns: Sequence[Column], bound: Fraction, compares_two: bool
) -> None:
    """Raise a `ParameterError` for quantities that do not go together.

    Times can only be compared, not added, and only numbers have a bound.
    """
    quantities = {column.quantity for column in columns}
    mixed = len(quantities) > 1
    adds_times = quantities == {"time"} and not compares_two
    compares_with_number = bound != 0 and quantities != {"number"}
    if mixed or adds_times or compares_with_number:
        raise ParameterError(
            "constraints", text, "takes columns of different kinds", "make them alike"
        )


def _find_columns(
    text: str, quoted: Sequence[str], columns: Sequence[Column], numeric: bool = False
) -> tuple[int, ...]:
    """The indices of the columns with these names, of numbers or times if `numeric`."""
    known = [str(column.name) for column in columns]
    names = [name.strip("`") for name in quoted]
    for name in names:
        if name not in known:
            raise ParameterError(
                "constraints", text, f"is wrong: there is no column {name!r}"
            )
        column = columns[known.index(name)]
        is_number = column.is_number or column.unit is not None  # a constant has a unit
        if column.kind in ("drop", "identifier") or (numeric and not is_number):
            fact = f"is wrong: column {name!r} is of kind {column.kind}"
            if numeric:
                fact += ", not numbers"
            raise ParameterError("constraints", text, fact)
    if len(set(names)) < len(names):
        raise ParameterError("constraints", text, f"names {names[0]!r} twice")
    return tuple(known.index(name) for name in names)
