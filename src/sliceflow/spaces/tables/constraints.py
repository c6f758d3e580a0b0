"""Constraints between columns. They hold in every new row, or sampling raises.

| expression | meaning |
|---|---|
| ``"start <= end"``, ``<``, ``>=``, ``>`` | one column against another, a number, or a sum |
| ``"total = a + b - c"`` | the total is computed from its parts |
| ``"combinations(make, model)"`` | only combinations that occur in the table |

A comparison or sum with a missing cell holds. A column that follows from another in every row is kept so
without being asked for (`dependencies`). Names that are not words stand in backquotes:
``"`unit price` >= 0"``. The chain draws only what the rules allow given the columns before, computes
totals, and draws a row anew if one of its rules is broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from typing import Any, Literal

import numpy as np

from sliceflow.spaces.tables.cells import pandas
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.formats import MAX_EXACT_FLOAT

_NAME = r"(`[^`]+`|[^\W\d]\w*)"
_TERM = rf"(?:{_NAME}|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))"
_LARGE = 2**58  # whole numbers from which on Python's own are added
_EQUAL = 1e-9  # relative error of sums of floats
_ROWS_PER_LEVEL = 5  # at least, on average, of a column from which others follow
_CHANCE = (
    1e-9  # of a dependency between columns that have nothing to do with each other
)
_LOOKED_AT = 500  # rows that most pairs of columns are compared on
_MOST_PAIRS = 300  # columns among which dependencies are looked for


@dataclass(frozen=True)
class Rule:
    """One constraint: Σ weight·column ≤, < or = bound, a combination that occurs, or a list of positions.

    Weights and bound are exact whole numbers of one `unit`; floats if it is None. A sum begins with its total.
    """

    text: str
    relation: Literal["<=", "<", "=", "occurs", "in"]
    columns: tuple[int, ...]
    weights: tuple[Any, ...] = ()
    bound: Any = 0
    unit: Fraction | None = None
    implied: bool = False  # nobody asked for it


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a table, its columns, and the positions z (n, d) of its rows, which keep them."""

    rules: tuple[Rule, ...]
    columns: Sequence[Column]
    z: np.ndarray
    _known: dict[tuple[int, ...], np.ndarray] = field(
        default_factory=dict, init=False
    )  # what occurs

    def check(self) -> None:
        """A ValueError names the first row that breaks a rule, or sums that cannot be computed."""
        for rule in self.totals:
            total = self.columns[rule.columns[0]]
            if (
                total.unit is not None
                and np.abs(total.values).max(initial=0) >= MAX_EXACT_FLOAT
            ):
                fact = f"constraint {rule.text!r}: {total.name!r} spans more than 2^53 steps, too many to add"
                raise ValueError(f"{fact} exactly; divide the columns, or leave it out")
        for rule in self.rules:
            bad = self.broken(rule, self.z)
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                own = [(c, self.columns[c]) for c in rule.columns]
                cells = ", ".join(
                    f"{of.name}={of.levels.iloc[int(self.z[row, c])]}" for c, of in own
                )
                fact = f"does not hold in {int(bad.sum())} rows, first in row {row} ({cells})"
                raise ValueError(
                    f"constraint {rule.text!r} {fact}; fix the rows, or leave it out"
                )

    @cached_property
    def totals(self) -> list[Rule]:
        """Sums in the order in which they can be computed: of sums of sums, the inner ones first."""
        sums = {rule.columns[0]: rule for rule in self.rules if rule.relation == "="}
        if len(sums) < sum(rule.relation == "=" for rule in self.rules):
            raise ValueError(
                "two constraints compute the same column; leave one of them out"
            )
        try:
            order = TopologicalSorter(
                {c: rule.columns[1:] for c, rule in sums.items()}
            ).static_order()
            return [sums[c] for c in order if c in sums]
        except CycleError as error:
            text = sums[error.args[1][0]].text
            raise ValueError(
                f"constraint {text!r} is in a circle of sums; leave one out"
            ) from error

    def order(self, wanted: Sequence[int]) -> list[int]:
        """The columns of the chain: totals behind their parts."""
        out = list(wanted)
        for rule in self.totals:
            total, *parts = rule.columns
            if total in out:
                out.remove(total)
                out.insert(
                    1 + max((out.index(c) for c in parts if c in out), default=-1),
                    total,
                )
        return out

    def _term(self, rule: Rule, c: int, z: np.ndarray) -> np.ndarray:
        """weight·column of rows."""
        column = self.columns[c]
        weight = rule.weights[rule.columns.index(c)]
        integer_values = column.integer_values_at(z[:, c])
        if rule.unit is None:
            integer_values = integer_values.astype(np.float64)
        elif (
            abs(weight)
            * max(-int(column.integer_values[0]), int(column.integer_values[-1]))
            >= _LARGE
        ):
            integer_values = integer_values.astype(object)
        return np.asarray(weight * integer_values)

    def _left(self, rule: Rule, z: np.ndarray, without: int = -1) -> np.ndarray:
        """Σ weight·column − bound of all columns but one."""
        terms = (self._term(rule, c, z) for c in rule.columns if c != without)
        return np.asarray(sum(terms, np.full(len(z), -rule.bound)))

    def broken(self, rule: Rule, z: np.ndarray) -> np.ndarray:
        """Which rows of positions (m, d) break a rule. Cells that are NaN are not drawn yet."""
        x = z[:, rule.columns]
        out = np.zeros(len(z), dtype=bool)
        if rule.relation == "in":
            return np.asarray(~np.isnan(x) & ~np.isin(x, rule.bound))[:, 0]
        if rule.relation == "occurs":
            drawn = ~np.isnan(x)
            for pattern in np.unique(drawn[drawn.any(1)], axis=0):
                rows = (drawn == pattern).all(1)
                out[rows] = ~self._occurs(
                    x[rows][:, pattern], tuple(compress(rule.columns, pattern))
                )
            return out
        rows = np.flatnonzero((x >= 0).all(1) & np.isfinite(x).all(1))
        left = self._left(rule, z[rows])
        if rule.relation == "=" and rule.unit is None:
            sizes = [np.abs(self._term(rule, c, z[rows])) for c in rule.columns]
            left = np.abs(left) > _EQUAL * np.max(sizes, axis=0)
        out[rows] = {"=": left != 0, "<": left >= 0, "<=": left > 0}[rule.relation]
        return out

    def _compute(self, rule: Rule, c: int, z: np.ndarray, rows: np.ndarray) -> None:
        """Compute a column of a sum from the others, in place; ∞ where it cannot be."""
        column = self.columns[c]
        sign = np.sign(rule.weights[rule.columns.index(c)])
        numbers = column.numbers_of_integers(
            -int(sign) * self._left(rule, z[rows], without=c), rule.unit
        )
        settled = column.on_grid(numbers)
        at = column.positions_of(settled)
        near = np.abs(settled - numbers) <= (_EQUAL * 1e3 if rule.unit is None else 0)
        z[rows, c] = np.where(near & ~np.isnan(at), at, np.inf)

    def _settle(self, z: np.ndarray, free: np.ndarray) -> None:
        """Compute `free` cells of sums, in place: the only free one, else the total, else the last part."""
        free = free & (z != -1)  # a cell that was drawn as missing stays
        for alone in (True, False, True):
            for rule in [*self.totals, *self.totals[::-1]]:
                total, *parts = rule.columns
                for c in (total, *parts[::-1]):
                    others = [b for b in rule.columns if b != c]
                    rows = free[:, c] & (
                        (z[:, others] >= 0) & np.isfinite(z[:, others])
                    ).all(1)
                    rows &= ~(alone & free[:, others].any(1))
                    if rows.any():
                        self._compute(rule, c, z, np.flatnonzero(rows))
                        free[np.ix_(rows, rule.columns)] = False

    def complete(self, z: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Compute `free` cells of sums in place; returns which rows are whole and keep all rules."""
        return np.asarray(self._keep(self.rules, z, free) & np.isfinite(z).all(1))

    def allowed(
        self,
        c: int,
        z: np.ndarray,
        missing: bool,
        rows: np.ndarray,
        positions: np.ndarray,
    ) -> np.ndarray:
        """Whether a column may have these positions in some rows of z (m, d), as far as they are drawn."""
        touched = {c}
        ok = missing | (positions >= 0)
        for rule in self.totals:
            touched |= set(rule.columns) if touched & set(rule.columns) else set()
        own = [
            rule
            for rule in self.rules
            if rule.relation != "=" and touched & set(rule.columns)
        ]
        if not own and len(touched) == 1:
            return ok
        trial = z[rows]
        trial[:, c] = positions
        free = np.isnan(trial)
        free[:, c] = any(c == rule.columns[0] for rule in self.totals)
        return np.asarray(ok & self._keep(own, trial, free))

    def _keep(
        self, rules: Sequence[Rule], z: np.ndarray, free: np.ndarray
    ) -> np.ndarray:
        """Which rows keep rules, after `free` cells of sums are computed in place."""
        self._settle(z, free)
        ok = ~np.isinf(z).any(1)
        for rule in rules:
            ok[ok] = ~self.broken(rule, z[ok])
        return np.asarray(ok)

    def _occurs(self, x: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
        """Whether combinations x (m, k) of these columns are in the table."""
        if columns not in self._known:
            self._known[columns] = (
                pandas().DataFrame(self.z[:, columns]).drop_duplicates().to_numpy()
            )
        known = self._known[columns]
        both = pandas().DataFrame(np.concatenate((known, x)))
        number = (
            both.groupby([*both], sort=False).ngroup().to_numpy()
        )  # known ones come first
        return np.asarray(number[len(known) :] < len(known))


def parse(text: Any, columns: Sequence[Column]) -> Rule:
    """The rule of an expression. A ValueError says what is wrong with it."""
    said = text if isinstance(text, str) else ""
    if found := re.fullmatch(
        rf"\s*combinations\(({_NAME}(?:\s*,\s*{_NAME})+)\s*\)\s*", said
    ):
        return Rule(
            text,
            "occurs",
            _find(text, re.findall(_NAME, found[1]), columns, numeric=False),
        )
    found = re.fullmatch(
        rf"\s*{_NAME}\s*([<>]=?|==?)\s*([+-]?\s*{_TERM}(\s*[+-]\s*{_TERM})*)\s*", said
    )
    if not found:
        cure = "write 'a <= b', 'x > 0', 'total = a + b' or 'combinations(a, b)', odd names in `backquotes`"
        raise ValueError(f"constraint {text!r} cannot be read; {cure}")
    sign = -1 if ">" in found[2] else 1
    names = [found[1]]
    signs = [sign]
    bound = Fraction(0)
    for minus, name, number in re.findall(rf"([+-]?)\s*{_TERM}", found[3]):
        own = sign if minus == "-" else -sign
        if name:
            names = [*names, name]
            signs = [*signs, own]
        else:
            bound -= own * Fraction(number)
    relation: Any = found[2].replace(">", "<").replace("==", "=")
    numbers = _find(text, names, columns)
    clocks: set[str] = {columns[c].quantity for c in numbers}
    units: list[Any] = [columns[c].unit for c in numbers]
    compared = relation != "=" and len(signs) == 2 and sum(signs) == 0
    if (
        len(clocks) > 1
        or (bound and clocks != {"number"})
        or (clocks == {"time"} and not compared)
    ):
        raise ValueError(
            f"constraint {text!r} takes columns of different kinds; make them alike"
        )
    fine = None if None in units else min(units) / (bound / min(units)).denominator
    kind: Any = float if fine is None else int
    weights = (
        sign * kind((unit or 1) / (fine or 1))
        for sign, unit in zip(signs, units, strict=True)
    )
    return Rule(
        text, relation, numbers, tuple(weights), kind(bound / (fine or 1)), fine
    )


def _find(
    text: str, quoted: Sequence[str], columns: Sequence[Column], numeric: bool = True
) -> tuple[int, ...]:
    """The numbers of the columns with these names."""
    known = [str(column.name) for column in columns]
    names = [name.strip("`") for name in quoted]
    for name in names:
        if name not in known:
            raise ValueError(f"constraint {text!r}: there is no column {name!r}")
        of = columns[known.index(name)]
        if of.kind in ("drop", "identifier") or (
            numeric and not of.is_number and of.unit is None
        ):
            said = ", not numbers" if numeric else ""
            raise ValueError(
                f"constraint {text!r}: column {name!r} is of kind {of.kind}{said}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"constraint {text!r} names {names[0]!r} twice")
    return tuple(known.index(name) for name in names)


def dependencies(columns: Sequence[Column], z: np.ndarray) -> list[Rule]:
    """Columns from which others follow, such as a country from its town.

    The rule must be too good for chance: if the most frequent value of the other column has a share p,
    n rows in k groups keep it with a probability of at most pⁿ⁻ᵏ. Missing cells break no rule.
    """
    n = len(z)
    known = np.where(z < 0, np.nan, z)
    usable = [
        c for c, column in enumerate(columns) if column.is_category or column.is_number
    ]
    levels = {}
    share = {}
    for c in usable[:_MOST_PAIRS]:
        values, counts = np.unique(z[:, c], return_counts=True)
        if 1 < len(values) <= n / _ROWS_PER_LEVEL:
            levels[c] = len(values)
            share[c] = float(counts.max() / n)
    out = list[Rule]()
    taken = set[int]()
    for a in sorted(levels, key=lambda c: (-levels[c], c)):
        present = np.flatnonzero(z[:, a] >= 0)
        others = [
            b for b in levels if b != a and b not in taken and levels[b] <= levels[a]
        ]
        others = [
            b
            for b in others
            if (len(present) - levels[a]) * np.log(share[b]) < np.log(_CHANCE)
        ]
        for rows in (present[:_LOOKED_AT], present):
            order = rows[np.argsort(z[rows, a], kind="stable")]
            same = np.diff(z[order, a]) == 0
            others = [
                b
                for b in others
                if not (same & (np.abs(np.diff(known[order, b])) > 0)).any()
            ]
        for b in others:
            if levels[b] == levels[a]:
                taken.add(a)
            text = f"combinations({columns[a].name}, {columns[b].name})"
            out.append(Rule(text, "occurs", (a, b), implied=True))
    return out
