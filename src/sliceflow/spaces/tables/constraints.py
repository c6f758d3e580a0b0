"""Constraints between columns. They hold in every new row, or sampling raises.

| expression | meaning |
|---|---|
| ``"start <= end"``, ``<``, ``>=``, ``>`` | one column against another, or against a number |
| ``"total = a + b - c"`` | the total is computed from its parts |
| ``"combinations(make, model)"`` | only combinations that occur in the table |

A comparison with a missing cell holds, and so does a sum with one. A column that follows from another in
every row, as a country from its town, is kept so without being asked for (`dependencies`). Names that
are not words stand in backquotes: ``"`unit price` >= 0"``.

The chain draws only what the rules allow given the columns before, computes totals, and draws a row
anew if one of its rules is broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from sliceflow.spaces.tables.columns import Column

__all__ = ["Rule", "Rules", "dependencies", "parse"]

_NAME = r"(`[^`]+`|[^\W\d]\w*)"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_ROWS_PER_LEVEL = 5  # at least, on average, of a column from which others follow
_CHANCE = 1e-9  # of a dependency between columns that have nothing to do with each other
_LOOKED_AT = 500  # rows that most pairs of columns are compared on
_MOST_PAIRS = 300  # columns among which dependencies are looked for


@dataclass(frozen=True)
class Rule:
    """One constraint.

    Parameters
    ----------
    text : the expression
    kind : "compare": Σ sign·x ≤ bound (< if strict); "sum": the first column is the signed sum of the
        others; "combine": only combinations that occur
    columns : numbers of its columns
    signs : of the columns of a comparison, or of the parts of a sum
    bound, strict : of a comparison
    implied : whether nobody asked for it
    """

    text: str
    kind: Literal["compare", "sum", "combine"]
    columns: tuple[int, ...]
    signs: tuple[int, ...] = ()
    bound: float = 0.0
    strict: bool = False
    implied: bool = False


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a table, checked on its rows.

    Parameters
    ----------
    rules : all of them
    columns : the columns of the table
    z : (n, d), positions of its rows, which tell the combinations that occur
    """

    rules: tuple[Rule, ...]
    columns: Sequence[Column]
    z: np.ndarray

    def check(self) -> None:
        """A ValueError names the first row that breaks a rule."""
        for rule in self.rules:
            if rule.kind == "sum" and rule.columns[0] in rule.columns[1:]:
                raise ValueError(f"constraint {rule.text!r} has {self._name(rule)!r} on both sides")
            bad = self.broken(rule, self.z)
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                cells = (
                    (self.columns[c].name, self._real(c, self.z[[row], c])[0]) for c in rule.columns
                )
                values = ", ".join(f"{name}={value:g}" for name, value in cells)
                raise ValueError(
                    f"constraint {rule.text!r} does not hold in {int(bad.sum())} rows, first in row {row} "
                    f"({values}); fix the rows, or leave the constraint out"
                )
        self.totals  # noqa: B018 - raises for a circle of sums

    def _name(self, rule: Rule) -> Any:
        return self.columns[rule.columns[0]].name

    @cached_property
    def totals(self) -> list[Rule]:
        """Sums in the order in which they can be computed: of sums of sums, the inner ones first."""
        sums, out = [rule for rule in self.rules if rule.kind == "sum"], list[Rule]()
        waiting = {rule.columns[0] for rule in sums}
        if len(waiting) < len(sums):
            raise ValueError("two constraints compute the same column; leave one of them out")
        while sums:
            ready = [rule for rule in sums if not waiting & set(rule.columns[1:])]
            if not ready:
                raise ValueError(
                    f"constraint {sums[0].text!r} is part of a circle of sums; leave one out"
                )
            out += ready
            waiting -= {rule.columns[0] for rule in ready}
            sums = [rule for rule in sums if rule not in ready]
        return out

    @cached_property
    def _occurring(self) -> dict[Rule, set[tuple[float, ...]]]:
        return {
            rule: set(map(tuple, np.unique(self.z[:, rule.columns], axis=0).tolist()))
            for rule in self.rules
            if rule.kind == "combine"
        }

    def order(self, wanted: Sequence[int]) -> list[int]:
        """The columns of the chain: totals behind their parts."""
        out = list(wanted)
        for rule in self.totals:
            total = rule.columns[0]
            if total in out:
                out.remove(total)
                last = max((out.index(c) for c in rule.columns[1:] if c in out), default=-1)
                out.insert(last + 1, total)
        return out

    def _real(self, c: int, positions: np.ndarray) -> np.ndarray:
        """Numbers as the user sees them; NaN where missing. Large ones are Python's own integers."""
        column = self.columns[c]
        numbers = column.numbers(positions)
        if column.base is None:
            return (
                np.where(np.isnan(numbers), np.nan, column.on_grid(numbers))
                if len(numbers)
                else numbers
            )
        if column.months:
            return numbers + column.base
        step, base = int(column.step), column.base
        if abs(base) + step * column.values[-1] < 2**53:
            return np.asarray(base + step * np.rint(numbers))
        out = np.full(len(numbers), np.nan, dtype=object)
        known = ~np.isnan(numbers)
        out[known] = [base + step * int(v) for v in np.rint(numbers[known]).tolist()]
        return out

    def broken(self, rule: Rule, z: np.ndarray) -> np.ndarray:
        """Which rows of positions (m, d) break a rule. Cells that are NaN are not drawn yet."""
        x = z[:, rule.columns]
        drawn = ~np.isnan(x).any(1)
        if rule.kind == "combine":
            known = self._occurring[rule]
            out = np.zeros(len(z), dtype=bool)
            out[drawn] = [tuple(row) not in known for row in x[drawn].tolist()]
            return out
        rows = np.flatnonzero(drawn & (x >= 0).all(1))
        values = [self._real(c, z[rows, c]) for c in rule.columns]
        out = np.zeros(len(z), dtype=bool)
        if rule.kind == "sum":
            total = sum(sign * v for sign, v in zip(rule.signs, values[1:], strict=True))
            size = np.maximum.reduce([np.abs(v.astype(np.float64)) for v in values])
            out[rows] = np.abs((values[0] - total).astype(np.float64)) > 1e-9 * size
        else:
            left = sum(sign * v for sign, v in zip(rule.signs, values, strict=True)) - _bound(rule)
            left = np.asarray(left)
            out[rows] = (left >= 0) if rule.strict else (left > 0)
        return out

    def allowed(self, c: int, z: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Whether a column may have these positions in rows z (m, d), as far as they are drawn."""
        touched = {c}
        for rule in self.totals:
            if touched & set(rule.columns[1:]):
                touched.add(rule.columns[0])
        own = [rule for rule in self.rules if rule.kind != "sum" and touched & set(rule.columns)]
        ok = np.ones(len(z), dtype=bool)
        if not own:
            return ok
        trial = z.copy()
        trial[:, c] = positions
        for rule in self.totals:
            if touched & set(rule.columns[1:]):
                self._compute(rule, 0, trial, np.ones(len(trial), dtype=bool))
        for rule in own:
            ok &= self._possible(rule, trial) if rule.kind == "combine" else ~self.broken(rule, trial)
        return np.asarray(ok & ~np.isinf(trial).any(1))

    def _possible(self, rule: Rule, z: np.ndarray) -> np.ndarray:
        """Whether what is drawn of a combination occurs."""
        x = z[:, rule.columns]
        out = np.ones(len(z), dtype=bool)
        for pattern in np.unique(np.isnan(x), axis=0):
            rows = np.flatnonzero((np.isnan(x) == pattern).all(1))
            if not pattern.all():
                known = self._parts_of(rule, tuple(np.flatnonzero(~pattern).tolist()))
                out[rows] = [tuple(row) in known for row in x[rows][:, ~pattern].tolist()]
        return out

    def _parts_of(self, rule: Rule, which: tuple[int, ...]) -> set[tuple[float, ...]]:
        """The combinations of some columns of a rule that occur."""
        if (rule, which) not in self._parts:
            self._parts[rule, which] = {tuple(row[k] for k in which) for row in self._occurring[rule]}
        return self._parts[rule, which]

    @cached_property
    def _parts(self) -> dict[tuple[Rule, tuple[int, ...]], set[tuple[float, ...]]]:
        return {}

    def _compute(self, rule: Rule, k: int, z: np.ndarray, free: np.ndarray) -> None:
        """Compute column k of a sum where all others are known; ∞ where it cannot be.

        `free` rows (m,) may change; a cell that was drawn as missing, −1, stays.
        """
        own, others = rule.columns[k], [c for i, c in enumerate(rule.columns) if i != k]
        rows = np.flatnonzero((z[:, others] >= 0).all(1) & ~(z[:, own] == -1) & free)
        if not len(rows):
            return
        signs = (-1, *rule.signs)
        both = zip(signs, rule.columns, strict=True)
        value = sum(sign * self._real(c, z[rows, c]) for sign, c in both if c != own)
        column = self.columns[own]
        numbers = np.array([column.number_from(-signs[k] * v) for v in np.asarray(value).tolist()])
        settled = column.on_grid(numbers)
        at = column.positions_of(settled)
        size = np.maximum.reduce(
            [np.abs(column.numbers(z[rows, c])) for c in (own,)] + [np.abs(numbers)]
        )
        near = np.abs(settled - numbers) <= 1e-7 * np.maximum(
            np.nan_to_num(size), column.step or 1e-300
        )
        z[rows, own] = np.where(near & ~np.isnan(at), at, np.inf)

    def complete(self, z: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """Compute totals in place, except `fixed` cells; returns which rows keep all rules."""
        for rule in self.totals:
            self._compute(rule, 0, z, ~fixed[:, rule.columns[0]])
        ok = ~(np.isnan(z) | np.isinf(z)).any(1)
        for rule in self.rules:
            ok[ok] = ~self.broken(rule, z[ok])
        return np.asarray(ok)

    def solve(self, z: np.ndarray, gone: np.ndarray) -> None:
        """Where a total is known, its last `gone` part makes up the rest, in place."""
        for rule in self.totals:
            open_total = ~gone[:, rule.columns[0]]
            for k in range(len(rule.columns) - 1, 0, -1):
                rows = open_total & gone[:, rule.columns[k]]
                trial = z.copy()
                trial[rows, rule.columns[k]] = np.nan
                self._compute(rule, k, trial, rows)
                done = rows & np.isfinite(trial[:, rule.columns[k]])
                z[done, rule.columns[k]] = trial[done, rule.columns[k]]
                open_total &= ~rows


def _bound(rule: Rule) -> Any:
    return int(rule.bound) if float(rule.bound).is_integer() else rule.bound


# Reading expressions


def parse(texts: Sequence[str], columns: Sequence[Column]) -> list[Rule]:
    """The rules of these expressions. A ValueError says what is wrong with one."""
    return [_rule(text, columns) for text in texts]


def _rule(text: Any, columns: Sequence[Column]) -> Rule:
    if not isinstance(text, str):
        raise ValueError(f"constraint {text!r} is not a text such as 'start <= end'")
    names = [str(column.name) for column in columns]

    def number_of(name: str, category: bool = False) -> int:
        name = name.strip("`")
        if name not in names:
            raise ValueError(f"constraint {text!r}: there is no column {name!r}")
        column = columns[names.index(name)]
        if column.kind in ("drop", "identifier"):
            raise ValueError(f"constraint {text!r}: column {name!r} is of kind {column.kind}")
        if not category and (column.is_category or not len(column.values)):
            raise ValueError(
                f"constraint {text!r}: column {name!r} is of kind {column.kind}, not numbers"
            )
        return names.index(name)

    if found := re.fullmatch(rf"\s*combinations\(({_NAME}(?:\s*,\s*{_NAME})+)\s*\)\s*", text):
        parts = [number_of(m.group(), True) for m in re.finditer(_NAME, found.group(1))]
        if len(set(parts)) < len(parts):
            raise ValueError(f"constraint {text!r} names a column twice")
        return Rule(text, "combine", tuple(parts))
    if found := re.fullmatch(rf"\s*{_NAME}\s*(<=|>=|<|>)\s*{_NAME}\s*", text):
        low, high = number_of(found[1]), number_of(found[3])
        if low == high:
            raise ValueError(f"constraint {text!r} compares a column with itself")
        a, b = columns[low], columns[high]
        if (a.kind == "datetime") != (b.kind == "datetime") or _clock(a) != _clock(b):
            raise ValueError(
                f"constraint {text!r} compares columns of different kinds; make them alike"
            )
        ends = (low, high) if found[2][0] == "<" else (high, low)
        return Rule(text, "compare", ends, (1, -1), strict=len(found[2]) == 1)
    if found := re.fullmatch(rf"\s*{_NAME}\s*(<=|>=|<|>)\s*({_NUMBER})\s*", text):
        sign = 1 if found[2][0] == "<" else -1
        bound, strict = sign * float(found[3]), len(found[2]) == 1
        return Rule(text, "compare", (number_of(found[1]),), (sign,), bound, strict)
    if found := re.fullmatch(
        rf"\s*{_NAME}\s*={{1,2}}\s*([+-]?\s*{_NAME}(?:\s*[+-]\s*{_NAME})*)\s*", text
    ):
        terms = [m.groups() for m in re.finditer(rf"([+-]?)\s*{_NAME}", found[2])]
        signs = tuple(-1 if sign == "-" else 1 for sign, _ in terms)
        return Rule(text, "sum", (number_of(found[1]), *(number_of(name) for _, name in terms)), signs)
    raise ValueError(
        f"constraint {text!r} cannot be read; write 'a <= b', 'x > 0', 'total = a + b' or "
        "'combinations(a, b)', with other names in `backquotes`"
    )


def _clock(column: Column) -> object:
    """What the numbers of a column count."""
    return (
        (column.cells.unit, column.months)
        if column.kind == "datetime" and column.written is None
        else None
    )


# Dependencies


def dependencies(columns: Sequence[Column], z: np.ndarray) -> list[Rule]:
    """Columns from which others follow: where one is the same, the other is.

    Such as a town and its country. The rule must be too good for chance: if the most frequent value of
    the other column has a share p, n rows in k groups keep it with a probability of at most pⁿ⁻ᵏ. Rows
    in which the first is missing do not count; a missing cell of the other is a value like others.
    """
    n, never = len(z), ("identifier", "constant")
    usable = [c for c, column in enumerate(columns) if column.modelled and column.kind not in never]
    levels, share = {}, {}
    for c in usable[:_MOST_PAIRS]:
        values, counts = np.unique(z[:, c], return_counts=True)
        if 1 < len(values) <= n / _ROWS_PER_LEVEL:
            levels[c], share[c] = len(values), float(counts.max() / n)
    out, taken = list[Rule](), set[int]()
    for a in sorted(levels, key=lambda c: (-levels[c], c)):
        present = np.flatnonzero(z[:, a] >= 0)
        others = [b for b in levels if b != a and b not in taken and levels[b] <= levels[a]]
        others = [b for b in others if (len(present) - levels[a]) * np.log(share[b]) < np.log(_CHANCE)]
        for rows in (present[:_LOOKED_AT], present):
            order = rows[np.argsort(z[rows, a], kind="stable")]
            same = np.diff(z[order, a]) == 0
            others = [b for b in others if not (_differs(z[order, b]) & same).any()]
        for b in others:
            if levels[b] == levels[a]:
                taken.add(a)
            text = f"combinations({columns[a].name}, {columns[b].name})"
            out.append(Rule(text, "combine", (a, b), implied=True))
    return out


def _differs(y: np.ndarray) -> np.ndarray:
    """Where neighbours are both there and different: a cell may be missing beside a known one."""
    return np.asarray((np.diff(y) != 0) & (y[1:] >= 0) & (y[:-1] >= 0))
