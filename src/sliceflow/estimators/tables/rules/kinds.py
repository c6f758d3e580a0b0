"""Kinds of rules between columns: when a row breaks one, and what cells follow from it.

| rule              | example                         | computes                      |
|-------------------|---------------------------------|-------------------------------|
| `LinearRule`      | total = net + tax; start <= end | any column of a sum           |
| `ProductRule`     | net = price · quantity, rounded | any of its columns            |
| `LookupRule`      | country follows from town       | the dependent                 |
| `CombinationRule` | combinations(make, model)       | nothing                       |
| `MembershipRule`  | one of some values              | nothing                       |

Rules are about the positions (n, d) of rows (`columns` explains positions). A rule
with a missing cell holds. Arithmetic is exact wherever columns count a unit: integers
of 64 bits, or Python's own if these are too few.

Of a rule that computes, the first column is the *derived* one, as the total of a sum:
it is computed from the others, and the model draws only these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.formats import (
    ExactValues,
    times_of_exact_values,
)
from sliceflow.estimators.tables.columns.level_positions import (
    IMPOSSIBLE,
    UNDRAWN,
    LevelPositions,
    has_value,
    is_undrawn,
)

Relation = Literal["<=", "<", "="]
# The parts of a time from which other columns may follow.
DatePart = Literal["year", "quarter", "month", "day", "weekday", "hour", "minute"]

# Integers below this are added in 64 bits: up to 32 of them cannot overflow. Python's
# own integers add larger ones.
_MAX_FAST_INTEGER = 2**58
# A sum or product of floats holds if it is off by no more than this share of its
# largest term. The rounding errors of a few operations are far smaller.
FLOAT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class LinearRule:
    """Σ weight·column ≤, < or = bound.

    Weights and bound are exact integers that count one `unit`, or floats if it is None:
    `difference` and `solve` compute with integers of any size.
    A rule with "=" computes its first column, the total, from the others, its parts.
    """

    text: str  # as the user wrote it, or would write it
    column_indices: tuple[int, ...]  # k columns, the total first
    weights: tuple[int, ...] | tuple[float, ...]  # k numbers
    relation: Relation
    bound: int | float = 0
    unit: Fraction | None = None
    is_discovered: bool = False  # found in the table; False for a user's constraint
    share: float = 1.0  # the share of the table's rows that keep it

    allows_only_levels: ClassVar[bool] = False
    is_rounded: ClassVar[bool] = False

    @property
    def solvable_indices(self) -> tuple[int, ...]:
        """Columns that can be computed: the total, then its parts from the last."""
        if self.relation != "=":
            return ()
        total, *parts = self.column_indices
        return (total, *reversed(parts))

    def is_broken(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> Mask:
        """Which rows (m,) of (m, d), without missing cells, break the rule."""
        difference = self.difference(columns, level_positions)
        if self.relation == "<":
            return np.asarray(difference >= 0, dtype=bool)
        if self.relation == "<=":
            return np.asarray(difference > 0, dtype=bool)
        if self.unit is not None:
            return np.asarray(difference != 0, dtype=bool)
        sizes = [
            np.abs(self._term(columns, c, level_positions)) for c in self.column_indices
        ]
        return np.asarray(np.abs(difference) > FLOAT_TOLERANCE * np.max(sizes, axis=0))

    def solve(
        self, columns: Sequence[Column], level_positions: LevelPositions, c: int
    ) -> LevelPositions:
        """The positions (m,) of a column that follow from the others.

        They are `IMPOSSIBLE` where the column cannot have the value.
        """
        column = columns[c]
        weight = self.weights[self.column_indices.index(c)]
        difference = -self.difference(columns, level_positions, without=c)
        if self.unit is None:
            values = difference * float(column.unit or 1) / weight
            return column.grid.positions_of_exact(values, None)
        # The column is difference/weight, in its own units.
        unit = (column.unit or Fraction(1)) / abs(int(weight))
        return column.grid.positions_of_exact(int(np.sign(weight)) * difference, unit)

    def _term(
        self, columns: Sequence[Column], c: int, level_positions: LevelPositions
    ) -> ExactValues:
        """weight·column, in units of the rule, for rows (m, d): (m,)."""
        column = columns[c]
        weight = self.weights[self.column_indices.index(c)]
        exact_values = column.grid.exact_values_at(level_positions[:, c])
        if self.unit is None:
            exact_values = exact_values.astype(np.float64)
        else:
            lowest = int(column.grid.exact_values[0])
            highest = int(column.grid.exact_values[-1])
            if abs(weight) * max(-lowest, highest) >= _MAX_FAST_INTEGER:
                exact_values = exact_values.astype(object)
        return weight * exact_values

    def difference(
        self,
        columns: Sequence[Column],
        level_positions: LevelPositions,
        without: int | None = None,
    ) -> ExactValues:
        """Σ weight·column − bound (m,) for rows (m, d), `without` one column."""
        difference = np.full(len(level_positions), -self.bound)
        for c in self.column_indices:
            if c != without:
                difference = difference + self._term(columns, c, level_positions)
        return difference


@dataclass(frozen=True)
class ProductRule:
    """column₀ = factor · Π columnᵢ^exponentᵢ, rounded to the decimals of column₀.

    Exponents are 1 and −1. With a unit u of column₀, the rule holds if the two sides
    differ by at most u/2; so a tie may be rounded either way. Without a unit, they may
    differ by a rounding error of floats.
    """

    text: str
    column_indices: tuple[int, ...]
    exponents: tuple[int, ...]  # of all columns but the first
    factor: Fraction
    share: float = 1.0

    is_discovered: ClassVar[bool] = True
    allows_only_levels: ClassVar[bool] = False
    # Several factors may have the same product, as it is rounded.
    is_rounded: ClassVar[bool] = True

    @property
    def solvable_indices(self) -> tuple[int, ...]:
        """Columns that can be computed: the product, then its factors from the last.

        A factor that stands in the product twice cannot be computed.
        """
        product, *factors = self.column_indices
        once = [c for c in reversed(factors) if factors.count(c) == 1]
        return (product, *once)

    def is_broken(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> Mask:
        """Which rows (m,) of (m, d), without missing cells, break the rule.

        A division by 0 breaks no rule.
        """
        column = columns[self.column_indices[0]]
        if not self._is_exact(columns):
            values = column.grid.floats_at(level_positions[:, self.column_indices[0]])
            expected = self._float_product(columns, level_positions)
            tolerance = FLOAT_TOLERANCE * np.abs(values)
            if column.unit is not None:
                tolerance = tolerance + float(column.unit) / 2
            return np.asarray(np.abs(values - expected) > tolerance)
        exact_values = column.grid.exact_values_at(
            level_positions[:, self.column_indices[0]]
        )
        numerator, denominator = self._fractions(columns, level_positions)
        error = 2 * np.abs(exact_values.astype(object) * denominator - numerator)
        is_off = np.asarray(error > denominator, dtype=bool)
        return np.asarray(is_off & (denominator != 0), dtype=bool)

    def solve(
        self, columns: Sequence[Column], level_positions: LevelPositions, c: int
    ) -> LevelPositions:
        """The positions (m,) of a column that follow from the others.

        They are `IMPOSSIBLE` where the column cannot have the value, and `UNDRAWN`
        where it does not follow, as after a division by 0.
        """
        if c == self.column_indices[0]:
            return self._solve_product(columns, level_positions)
        return self._solve_factor(columns, level_positions, c)

    def _solve_product(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> LevelPositions:
        """The product, rounded to the decimals of its column: (m,)."""
        if self._is_exact(columns):
            return self._solve_exact_product(columns, level_positions)
        column = columns[self.column_indices[0]]
        values = self._float_product(columns, level_positions)
        if column.unit is not None:
            values = np.rint(values / float(column.unit)) * float(column.unit)
        positions = column.grid.positions_of_exact(values, None)
        return LevelPositions(np.where(np.isfinite(values), positions, UNDRAWN))

    def _solve_exact_product(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> LevelPositions:
        """The product (m,) of columns that all count a unit."""
        column = columns[self.column_indices[0]]
        numerator, denominator = self._fractions(columns, level_positions)
        is_defined = denominator != 0
        safe_denominator = np.where(is_defined, denominator, 1)
        units = _round_half_to_even(numerator, safe_denominator)
        positions = column.grid.positions_of_exact(units, column.unit)
        return LevelPositions(np.where(is_defined, positions, UNDRAWN))

    def _solve_factor(
        self, columns: Sequence[Column], level_positions: LevelPositions, c: int
    ) -> LevelPositions:
        """A factor from the product; the nearest value that the column can have."""
        exponent = self.exponents[self.column_indices[1:].index(c)]
        product_index = self.column_indices[0]
        product = columns[product_index].grid.floats_at(
            level_positions[:, product_index]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            others = self._float_product(columns, level_positions, without=c)
            values = (product / others) ** exponent
        grid = columns[c].grid
        safe_values = np.where(np.isfinite(values), values, 0.0)
        positions = grid.rounded_positions(grid.grid_values_of(safe_values, None))
        # The rounded value may not give the product that the row has.
        solved = level_positions.copy()
        solved[:, c] = positions
        with_value = np.flatnonzero(has_value(positions))
        is_broken = self.is_broken(columns, solved[with_value])
        positions[with_value[is_broken]] = IMPOSSIBLE
        return LevelPositions(np.where(np.isfinite(values), positions, UNDRAWN))

    def _is_exact(self, columns: Sequence[Column]) -> bool:
        """Whether all columns count a unit."""
        return all(columns[c].unit is not None for c in self.column_indices)

    def _float_product(
        self,
        columns: Sequence[Column],
        level_positions: LevelPositions,
        without: int | None = None,
    ) -> Floats:
        """The product (m,), as floats, of all columns but one; NaN or ∞ after 1/0."""
        product = np.full(len(level_positions), float(self.factor))
        with np.errstate(divide="ignore", invalid="ignore"):
            for c, exponent in self._factors():
                if c != without:
                    values = columns[c].grid.floats_at(level_positions[:, c])
                    product = product * values**exponent
        return product

    def _fractions(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Numerators and denominators ≥ 0 (m,) of the product, in units of column₀."""
        unit_of_product = columns[self.column_indices[0]].unit
        assert unit_of_product is not None, "the product counts a unit"
        ratio = self.factor / unit_of_product
        numerator = np.full(len(level_positions), 1, dtype=object)
        denominator = np.full(len(level_positions), 1, dtype=object)
        for c, exponent in self._factors():
            column = columns[c]
            assert column.unit is not None, "all factors count a unit"
            ratio = ratio * column.unit**exponent
            exact_values = column.grid.exact_values_at(level_positions[:, c])
            if exponent > 0:
                numerator = numerator * exact_values.astype(object)
            else:
                denominator = denominator * exact_values.astype(object)
        sign = np.where(denominator < 0, -1, 1)
        numerator = numerator * ratio.numerator * sign
        return numerator, denominator * ratio.denominator * sign

    def _factors(self) -> list[tuple[int, int]]:
        """The columns on the right side, with their exponents."""
        return list(zip(self.column_indices[1:], self.exponents, strict=True))


def _round_half_to_even(
    numerator: NDArray[Any], denominator: NDArray[Any]
) -> NDArray[Any]:
    """The whole numbers (m,) nearest to fractions of Python's integers (m,).

    Denominators are positive. Of two whole numbers that are equally near, the even one
    is taken.

    Examples
    --------
    >>> halves = np.array([1, 2, 3, 4, 5], dtype=object)
    >>> _round_half_to_even(halves, np.full(5, 2, dtype=object))
    array([0, 1, 2, 2, 2], dtype=object)
    """
    # Add one half, and round down.
    doubled = 2 * numerator + denominator
    rounded = doubled // (2 * denominator)
    is_tie = doubled % (2 * denominator) == 0
    is_odd = rounded % 2 == 1
    return np.asarray(rounded - (is_tie & is_odd))


@dataclass(frozen=True, eq=False)
class LookupRule:
    """A column that follows from another, or from a part of a time.

    Each key has one position of the dependent, which comes first. Keys are the
    positions of the determinant, or parts of its times.
    """

    text: str
    column_indices: tuple[int, int]  # the dependent and its determinant
    keys: Floats  # (k,), ascending
    positions: LevelPositions  # (k,), of the dependent
    date_part: DatePart | None = None
    one_to_one: bool = False
    share: float = 1.0

    is_discovered: ClassVar[bool] = True
    is_rounded: ClassVar[bool] = False

    @property
    def allows_only_levels(self) -> bool:
        """Whether only levels have a key. Parts of dates are keys of new dates, too."""
        return self.date_part is None

    @property
    def solvable_indices(self) -> tuple[int, ...]:
        """The column that can be computed: the dependent."""
        return self.column_indices[:1]

    def is_broken(
        self, columns: Sequence[Column], level_positions: LevelPositions
    ) -> Mask:
        """Which rows (m,) of (m, d) have another value than their key says."""
        dependent = self.column_indices[0]
        expected = self.solve(columns, level_positions, dependent)
        is_different = expected != level_positions[:, dependent]
        return np.asarray(~is_undrawn(expected) & is_different)

    def solve(
        self, columns: Sequence[Column], level_positions: LevelPositions, c: int
    ) -> LevelPositions:
        """The positions (m,) of the dependent; `UNDRAWN` for an unknown key."""
        determinant = self.column_indices[1]
        keys = lookup_keys(
            columns[determinant], level_positions[:, determinant], self.date_part
        )
        index = np.searchsorted(self.keys, keys)
        index = np.minimum(index, len(self.keys) - 1)
        has_position = self.keys[index] == keys
        return LevelPositions(np.where(has_position, self.positions[index], UNDRAWN))


@dataclass(frozen=True)
class CombinationRule:
    """A rule that only combinations of values occur that are in the table."""

    text: str
    column_indices: tuple[int, ...]

    is_discovered: ClassVar[bool] = False
    share: ClassVar[float] = 1.0
    allows_only_levels: ClassVar[bool] = True
    solvable_indices: ClassVar[tuple[int, ...]] = ()


@dataclass(frozen=True)
class MembershipRule:
    """A rule that a column has a listed position, which may be `MISSING`."""

    text: str
    column_indices: tuple[int]
    positions: tuple[float, ...]

    is_discovered: ClassVar[bool] = False
    share: ClassVar[float] = 1.0
    allows_only_levels: ClassVar[bool] = True
    solvable_indices: ClassVar[tuple[int, ...]] = ()


# In columns of rules that allow only levels, no values between levels are drawn.
SolvableRule = LinearRule | ProductRule | LookupRule
Rule = SolvableRule | CombinationRule | MembershipRule


def is_solvable(rule: Rule) -> TypeGuard[SolvableRule]:
    """Whether a rule can be solved for one of its columns, given the others."""
    return len(rule.solvable_indices) > 0


def lookup_keys(
    column: Column, positions: LevelPositions, part: DatePart | None
) -> Floats:
    """What dependents of a column follow from: its positions, or a part of its times.

    Parts are on the clock of the column's own zone.
    """
    if part is None:
        return positions
    distinct, index = np.unique(positions, return_inverse=True)
    return _date_parts(column, LevelPositions(distinct), part)[index]


def _date_parts(column: Column, positions: LevelPositions, part: DatePart) -> Floats:
    """The parts (m,) of the times at positions (m,), as floats."""
    import pandas as pd

    if column.encoded.value_type == "datetime":
        times = column.decode(positions)
    else:
        exact_values = column.grid.exact_values_at(positions)
        times = pd.Series(times_of_exact_values(exact_values, column.unit))
    name: str = part
    if part == "weekday":
        name = "day_of_week"  # pandas deprecates the shorter name
    return np.asarray(getattr(times.dt, name), dtype=np.float64)
