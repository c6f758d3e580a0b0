"""Constraints between columns, satisfied exactly because other columns are modelled in their place.

| expression | what is modelled |
|---|---|
| ``"start <= end"`` (or ``>=``) | start, and end − start ≥ 0 |
| ``"total = a + b - c"`` | a, b and c; the total is computed |
| ``"x >= 0"``, ``"x <= 100"`` | x; numbers stay within those of the table, which must satisfy it |
| ``"combinations(make, model)"`` | one category: the pairs that occur |

A column that follows from another in every row, as a country from its town, is kept so without being
asked for (`dependencies`).

Names that are not words stand in backquotes: ``"`unit price` >= 0"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sliceflow.spaces.tables.columns import Column, grid_of

__all__ = ["Rule", "implied", "parsed"]

_NAME = r"(`[^`]+`|[^\W\d]\w*)"
_NUMBER = r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Rule:
    """One constraint.

    Parameters
    ----------
    text : the expression
    kind : "order", "sum", "bound", "combination", or "follows" for one that nobody asked for
    columns : numbers of its columns: (smaller, larger), (total, parts…), (one,), or the combined
    signs : of the parts of a sum; of a bound, (1,) for at least and (−1,) for at most
    bound : of a bound
    """

    text: str
    kind: str
    columns: tuple[int, ...]
    signs: tuple[int, ...] = ()
    bound: float = 0.0

    @property
    def combines(self) -> bool:
        return self.kind in ("combination", "follows")

    @property
    def _gone(self) -> float:
        """What stands for a missing cell in combinations: categories are counted from 0."""
        return -1.0 if self.kind == "combination" else np.inf

    def broken(self, numbers: np.ndarray, kinds: np.ndarray | None = None) -> np.ndarray:
        """Which rows break the rule; `kinds` are the combinations that occur, if they are known."""
        x = numbers[:, self.columns]
        if self.combines:
            if kinds is None:
                return np.zeros(len(x), dtype=bool)
            return np.asarray(np.isnan(self.encoded(numbers, kinds)[:, self.columns[0]]), dtype=bool)
        if self.kind == "order":
            return np.asarray(x[:, 0] > x[:, 1], dtype=bool)
        if self.kind == "bound":
            return np.asarray(self.signs[0] * (x[:, 0] - self.bound) < 0)
        total = x[:, 1:] @ np.array(self.signs, dtype=float)
        return np.asarray(np.abs(x[:, 0] - total) > 1e-6 * (1 + np.abs(x).max(1, initial=0.0)))

    def check(self, numbers: np.ndarray, names: Sequence[str]) -> None:
        """A ValueError names the first row that breaks the rule."""
        bad = self.broken(numbers)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            shown = ", ".join(f"{names[c]}={numbers[row, c]:g}" for c in self.columns)
            raise ValueError(
                f"constraint {self.text!r} does not hold in {int(bad.sum())} rows, first in row {row} "
                f"({shown}); fix the rows, or leave the constraint out"
            )

    def modelled(
        self, columns: list[Column], numbers: np.ndarray
    ) -> tuple[list[Column], np.ndarray, np.ndarray]:
        """Columns and numbers to model instead, and the combinations that occur (else empty)."""
        columns, numbers, kinds = list(columns), numbers.copy(), np.empty((0, len(self.columns)))
        if self.kind == "order":
            low, high = self.columns
            numbers[:, high] = rounded(numbers[:, high] - numbers[:, low])
            step, offset = grid_of(numbers[~np.isnan(numbers[:, high]), high])
            columns[high] = replace(columns[high], step=step, offset=offset, months=False)
        elif self.kind == "sum":
            columns[self.columns[0]] = replace(columns[self.columns[0]], kind="derived")
        elif self.combines:
            x = np.where(np.isnan(numbers[:, self.columns]), self._gone, numbers[:, self.columns])
            kinds, codes = np.unique(x, axis=0, return_inverse=True)
            first = self.columns[0]
            numbers[:, first] = codes.reshape(-1)
            kind = "category" if columns[first].is_category else "ordered"
            columns[first] = replace(columns[first], kind=kind, labels=tuple(range(len(kinds))))
            for c in self.columns[1:]:
                columns[c] = replace(columns[c], kind="derived")
        return columns, numbers, kinds

    def encoded(self, numbers: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Numbers of other rows in the columns of `modelled`; NaN where they cannot be known."""
        numbers = numbers.copy()
        if self.kind == "order":
            low, high = self.columns
            numbers[:, high] = rounded(numbers[:, high] - numbers[:, low])
        elif self.combines:
            x = numbers[:, self.columns]
            both = np.concatenate((kinds, np.where(np.isnan(x), self._gone, x)))
            distinct, which = np.unique(both, axis=0, return_inverse=True)
            which = which.reshape(-1)
            codes = np.full(len(distinct), np.nan)
            codes[which[: len(kinds)]] = np.arange(len(kinds))
            numbers[:, self.columns[0]] = codes[which[len(kinds) :]]
        return numbers

    def restored(self, numbers: np.ndarray, kinds: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Modelled numbers as those of the table; `known` are rows of it, for the bounds."""
        numbers = numbers.copy()
        if self.kind == "order":
            low, high = self.columns
            top, bottom = np.nanmax(known[:, high]), np.nanmin(known[:, high])
            numbers[:, high] = np.clip(rounded(numbers[:, low] + numbers[:, high]), bottom, top)
        elif self.kind == "sum":
            total = numbers[:, self.columns[1:]] @ np.array(self.signs, dtype=float)
            numbers[:, self.columns[0]] = rounded(total)
        elif self.combines:
            codes = numbers[:, self.columns[0]].astype(int)
            numbers[:, self.columns] = np.where(kinds[codes] == self._gone, np.nan, kinds[codes])
        return numbers

    def mended(self, numbers: np.ndarray, given: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Rows of which the cells `given` are kept: the others give way to the rule."""
        numbers = numbers.copy()
        if self.combines:  # the nearest one that occurs with what is given
            x, scale = numbers[:, self.columns], kinds.std(0) + 1e-12
            for i in np.flatnonzero(self.broken(numbers, kinds) & ~np.isnan(x).any(1)):
                fits = ((kinds == x[i]) | ~given[i, self.columns]).all(1)
                if fits.any():
                    apart = ((kinds != x[i]) + 0.01 * np.abs(kinds - x[i]) / scale).sum(1)
                    numbers[i, self.columns] = kinds[np.where(fits, apart, np.inf).argmin()]
        if self.kind == "order":
            low, high = self.columns
            broken = numbers[:, low] > numbers[:, high]
            yields = broken & ~given[:, low]
            numbers[yields, low] = numbers[yields, high]
            numbers[broken & ~yields, high] = numbers[broken & ~yields, low]
        elif self.kind == "sum":
            total, parts, signs = self.columns[0], self.columns[1:], self.signs
            fixed = given[:, total].copy()
            numbers[:, parts] = self._scaled(numbers, given & fixed[:, None], fixed)
            for part, sign in zip(parts, signs, strict=True):  # the first free part makes up the rest
                free = fixed & ~given[:, part]
                rest = numbers[:, parts] @ np.array(signs, dtype=float) - sign * numbers[:, part]
                numbers[free, part] = rounded(sign * (numbers[:, total] - rest))[free]
                fixed &= ~free
            compute = ~given[:, total]
            sums = rounded(numbers[:, parts] @ np.array(signs, dtype=float))
            numbers[compute, total] = sums[compute]
        return numbers

    def _scaled(self, numbers: np.ndarray, given: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """The parts of `fixed` sums, nearly: free parts that are not negative are scaled alike."""
        parts = list(self.columns[1:])
        x, free = numbers[:, parts], fixed[:, None] & ~given[:, parts]
        have = np.where(free, x, 0.0).sum(1)
        rest = numbers[:, self.columns[0]] - np.where(free, 0.0, x).sum(1)
        good = (np.array(self.signs) > 0).all() & (have > 0) & (rest >= 0) & ~(free & (x < 0)).any(1)
        steps = np.array([grid_of(np.nan_to_num(column))[0] or 1e-9 for column in x.T])
        scaled = x * (rest / np.where(have > 0, have, 1.0))[:, None]
        return np.asarray(np.where(free & good[:, None], np.rint(scaled / steps) * steps, x))


def rounded(x: np.ndarray) -> np.ndarray:
    """Differences and sums of decimals, without the noise in their last bits."""
    return np.round(x, 9)


def implied(columns: Sequence[Column], numbers: np.ndarray, rules: Sequence[Rule]) -> list[Rule]:
    """Rules that the table keeps by itself: columns that follow from another."""
    tied = {c for rule in rules for c in rule.columns}
    usable = [
        column.modelled and column.written is None and c not in tied for c, column in enumerate(columns)
    ]
    return [
        Rule(f"combinations({', '.join(columns[c].name for c in found)})", "follows", found)
        for found in dependencies(numbers, usable)
    ]


def parsed(texts: Sequence[str], columns: Sequence[Column]) -> list[Rule]:
    """The rules of these expressions; a ValueError says what is wrong with one."""
    return [_rule(text, columns) for text in texts]


def _rule(text: str, columns: Sequence[Column]) -> Rule:
    if not isinstance(text, str):
        raise ValueError(f"constraint {text!r} is not a text such as 'start <= end'")
    names = [column.name for column in columns]

    def number_of(name: str, *, numeric: bool = True) -> int:
        name = name.strip("`")
        if name not in names:
            raise ValueError(f"constraint {text!r}: there is no column {name!r}")
        column = columns[names.index(name)]
        if numeric and (column.is_category or not column.modelled):
            raise ValueError(
                f"constraint {text!r}: column {name!r} is of kind {column.kind}, not numbers"
            )
        if numeric and column.written is not None:
            raise ValueError(f"constraint {text!r}: column {name!r} is text; convert it to numbers")
        return names.index(name)

    if found := re.fullmatch(rf"\s*combinations\(({_NAME}(?:\s*,\s*{_NAME})+)\s*\)\s*", text):
        parts = [m.group() for m in re.finditer(_NAME, found.group(1))]
        numbers = tuple(number_of(name, numeric=False) for name in parts)
        for c in numbers:
            if not columns[c].is_category:
                raise ValueError(f"constraint {text!r}: column {names[c]!r} is not a category")
        return Rule(text, "combination", numbers)
    if found := re.fullmatch(rf"\s*{_NAME}\s*(<=|>=)\s*{_NAME}\s*", text):
        low, high = number_of(found[1]), number_of(found[3])
        if columns[low].kept.form != columns[high].kept.form and "datetime" in (
            columns[low].kind, columns[high].kind,
        ):  # fmt: skip
            raise ValueError(
                f"constraint {text!r} compares a {columns[low].kind} with a {columns[high].kind}"
            )
        if (
            columns[low].months
            or columns[high].months
            or columns[low].kept.unit != columns[high].kept.unit
        ):
            raise ValueError(f"constraint {text!r}: the dates have different units; make them alike")
        return Rule(text, "order", (low, high) if found[2] == "<=" else (high, low))
    if found := re.fullmatch(rf"\s*{_NAME}\s*(<=|>=)\s*({_NUMBER})\s*", text):
        return Rule(
            text, "bound", (number_of(found[1]),), (1 if found[2] == ">=" else -1,), float(found[3])
        )
    if found := re.fullmatch(
        rf"\s*{_NAME}\s*={{1,2}}\s*([+-]?\s*{_NAME}(?:\s*[+-]\s*{_NAME})+)\s*", text
    ):
        total = number_of(found[1])
        terms = [m.groups() for m in re.finditer(rf"([+-]?)\s*{_NAME}", found[2])]
        signs = tuple(-1 if sign == "-" else 1 for sign, _ in terms)
        return Rule(text, "sum", (total, *(number_of(name) for _, name in terms)), signs)
    raise ValueError(
        f"constraint {text!r} cannot be read; write 'a <= b', 'x >= 0', 'total = a + b' or "
        "'combinations(a, b)', with other names in `backquotes`"
    )


_ROWS_PER_LEVEL = 5  # at least, on average, of a column from which others follow
_CHANCE = 1e-9  # of a rule between columns that have nothing to do with each other
_SCREENED = 500  # rows that most pairs of columns are compared on


def dependencies(numbers: np.ndarray, usable: Sequence[bool] | None = None) -> list[tuple[int, ...]]:
    """Columns from which others follow: (one, the others that are the same wherever it is the same).

    Such as a town and its country. The rule must be too good for chance: if the most frequent value of
    the other column has a share p, n rows in k groups have it with a probability of at most pⁿ⁻ᵏ.
    Columns with missing cells have no part in it, nor has one with fewer than five rows a value, on
    average, as the first.

    Examples
    --------
    >>> town = np.arange(60) % 6
    >>> dependencies(np.column_stack((town, town // 2, np.arange(60) % 7)).astype(float))
    [(0, 1)]
    """
    n = len(numbers)
    usable = [True] * numbers.shape[1] if usable is None else usable
    codes, levels, share = {}, {}, {}
    for c in np.flatnonzero(usable).tolist():
        if np.isnan(numbers[:, c]).any():
            continue
        values, found, counts = np.unique(numbers[:, c], return_inverse=True, return_counts=True)
        if 1 < len(values) <= n / _ROWS_PER_LEVEL:
            codes[c], levels[c], share[c] = found, len(values), counts.max() / n
    out, taken = [], set[int]()
    for a in sorted(codes, key=lambda c: (-levels[c], c)):
        if a in taken:
            continue
        others = [b for b in codes if b != a and b not in taken]
        others = [b for b in others if (n - levels[a]) * np.log(share[b]) < np.log(_CHANCE)]
        for rows in (slice(_SCREENED), slice(None)):
            order = np.argsort(codes[a][rows], kind="stable")
            same = np.diff(codes[a][rows][order]) == 0
            others = [b for b in others if not (np.diff(codes[b][rows][order])[same] != 0).any()]
        if others:
            out.append((a, *others))
            taken.update((a, *others))
    return out
