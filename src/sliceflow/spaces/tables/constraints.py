"""Constraints between columns. They hold in every new row, or sampling raises.

| expression | meaning |
|---|---|
| ``"start <= end"``, ``<``, ``>=``, ``>`` | a column and another, a number, or a sum |
| ``"total = a + b - c"`` | the total is computed from its parts |
| ``"combinations(make, model)"`` | only combinations that occur in the table |

A comparison or sum with a missing cell holds. Functional dependencies, as of a country
on its town, are found in the table and hold without being asked for
(`find_dependencies`). Names that are not words stand in backquotes:
``"`unit price` >= 0"``.

Rules are about the positions z (n, d) of rows (`columns` explains positions). While
rows are drawn column by column, NaN is a cell that is not drawn yet, and ∞ a cell of a
sum that cannot be computed. The model draws only what the rules allow given the columns
before (`Rules.allowed`), computes totals, and draws a row anew if it breaks a rule
(`Rules.complete`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np

from sliceflow.errors import DataError, ParameterError
from sliceflow.spaces.tables.cells import import_pandas
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.formats import MAX_EXACT_FLOAT

_NAME = r"(`[^`]+`|[^\W\d]\w*)"
_NUMBER = r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_TERM = rf"(?:{_NAME}|{_NUMBER})"
_COMBINATIONS = re.compile(rf"\s*combinations\(({_NAME}(?:\s*,\s*{_NAME})+)\s*\)\s*")
_COMPARISON = re.compile(
    rf"\s*{_NAME}\s*([<>]=?|==?)\s*([+-]?\s*{_TERM}(\s*[+-]\s*{_TERM})*)\s*"
)

# ≥ and > become ≤ and < when both sides change their sign.
Relation = Literal["<=", "<", "="]
_RELATIONS: dict[str, Relation] = {
    "<=": "<=",
    ">=": "<=",
    "<": "<",
    ">": "<",
    "=": "=",
    "==": "=",
}

# Terms of a sum below this are added in 64 bits: up to 32 of them cannot overflow.
# Python's own integers add larger ones.
_MAX_FAST_INTEGER = 2**58
# A sum of floats holds if it is off by no more than this share of its largest term.
# The rounding errors of a few additions are far smaller.
_FLOAT_TOLERANCE = 1e-9
# If some columns of a sum are floats, rounding errors move what is computed for one
# with a unit off its grid. It is rounded if it is off by no more steps than this.
_STEP_TOLERANCE = 1e-6
# Rows per level that a determinant must have on average. With fewer it would be hard
# to tell a dependency from chance. A round number.
_MIN_ROWS_PER_LEVEL = 5
# A dependency must be less probable than this in columns that are independent. There
# are at most 300² pairs of columns, so that hardly any table has one by chance.
_MAX_CHANCE = 1e-9
# These first rows refute most pairs of columns, before all rows are compared.
_ROWS_COMPARED_FIRST = 500
# The first columns, among which dependencies are searched: every pair is compared.
_MAX_COLUMNS_COMPARED = 300


@dataclass(frozen=True)
class LinearRule:
    """Σ weight·column ≤, < or = bound.

    Weights and bound are exact integers that count one `unit`, or floats if it is None.
    A rule with "=" computes its first column, the total, from the others, its parts.
    """

    text: str  # as the user wrote it
    columns: tuple[int, ...]
    weights: tuple[float, ...]
    relation: Relation
    bound: float = 0
    unit: Fraction | None = None

    implied: ClassVar[bool] = False
    needs_observed_values: ClassVar[bool] = False


@dataclass(frozen=True)
class CombinationRule:
    """Only combinations of values that occur in the table."""

    text: str
    columns: tuple[int, ...]
    implied: bool = False  # whether it was found in the table, and nobody asked for it

    needs_observed_values: ClassVar[bool] = True


@dataclass(frozen=True)
class MembershipRule:
    """A column has one of the listed positions, −1 for a missing cell."""

    text: str
    columns: tuple[int]
    positions: tuple[float, ...]

    implied: ClassVar[bool] = False
    needs_observed_values: ClassVar[bool] = True


# Columns of rules that need observed values have no new ones between them.
Rule = LinearRule | CombinationRule | MembershipRule


def _is_sum(rule: Rule) -> TypeGuard[LinearRule]:
    """Whether a rule computes a total."""
    return isinstance(rule, LinearRule) and rule.relation == "="


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a table, its columns, and the positions of its rows."""

    rules: tuple[Rule, ...]
    columns: Sequence[Column]
    z: np.ndarray  # (n, d), which keep the rules
    # Combinations that occur, by their columns; each is looked up many times.
    _combinations: dict[tuple[int, ...], np.ndarray] = field(
        default_factory=dict, init=False
    )

    def check(self) -> None:
        """Raise a `DataError` if a row breaks a rule, or a sum cannot be computed."""
        for sum_rule in self.sums:
            total = self.columns[sum_rule.columns[0]]
            largest = np.abs(total.level_numbers).max(initial=0)
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
        for c in rule.columns:
            column = self.columns[c]
            value = column.levels.iloc[int(self.z[row, c])]
            cells.append(f"{column.name}={value}")
        return ", ".join(cells)

    @cached_property
    def sums(self) -> list[LinearRule]:
        """Rules with "=" in the order in which they can be computed.

        A total that is a part of another sum comes first.
        """
        by_total = dict[int, LinearRule]()
        for rule in self.rules:
            if _is_sum(rule):
                total = rule.columns[0]
                if total in by_total:
                    raise ParameterError(
                        "constraints",
                        [by_total[total].text, rule.text],
                        "compute the same column",
                        "leave one of them out",
                    )
                by_total[total] = rule
        parts = {total: rule.columns[1:] for total, rule in by_total.items()}
        try:
            order = list(TopologicalSorter(parts).static_order())
        except CycleError as error:
            columns_in_circle = error.args[1]
            raise ParameterError(
                "constraints",
                by_total[columns_in_circle[0]].text,
                "is in a circle of sums",
                "leave one out",
            ) from error
        return [by_total[c] for c in order if c in by_total]

    def order(self, columns: Sequence[int]) -> list[int]:
        """The columns in the order of drawing: totals behind their parts."""
        order = list(columns)
        for rule in self.sums:
            total, *parts = rule.columns
            if total in order:
                order.remove(total)
                places = [order.index(part) for part in parts if part in order]
                order.insert(1 + max(places, default=-1), total)
        return order

    # Which rows keep the rules

    def complete(self, z: np.ndarray, computable: np.ndarray) -> np.ndarray:
        """Compute cells of sums in z (m, d), in place; which rows keep all rules (m,).

        Only the cells in `computable` change: (m, d) for each cell, or (d,) for whole
        columns. A row with a cell that is still not drawn, or cannot be computed, does
        not count as one that keeps the rules.
        """
        keeps_rules = self._keep(self.rules, z, computable)
        return np.asarray(keeps_rules & np.isfinite(z).all(1))

    def allowed(
        self,
        c: int,
        z: np.ndarray,
        missing: bool,
        rows: np.ndarray,
        positions: np.ndarray,
    ) -> np.ndarray:
        """Whether a column may have certain positions, given what is drawn so far.

        Parameters
        ----------
        c : the index of the column
        z : (m, d), all rows that are being drawn, with NaN for what is not drawn yet
        missing : whether cells may be missing
        rows : (k,), the indices of the rows in question
        positions : (k,), what the column may have there
        """
        allowed = missing | (positions >= 0)
        changing = {c}  # columns that may be computed from this one
        for rule in self.sums:
            if changing & set(rule.columns):
                changing |= set(rule.columns)
        rules = [
            rule
            for rule in self.rules
            if not _is_sum(rule) and changing & set(rule.columns)
        ]
        if not rules and len(changing) == 1:
            return allowed
        trial = z[rows]
        trial[:, c] = positions
        computable = np.isnan(trial)
        computable[:, c] = any(c == rule.columns[0] for rule in self.sums)
        return np.asarray(allowed & self._keep(rules, trial, computable))

    def _keep(
        self, rules: Sequence[Rule], z: np.ndarray, computable: np.ndarray
    ) -> np.ndarray:
        """Compute sums in place; which rows (m,) have all sums and keep the rules.

        z is (m, d), and `computable` (m, d) or (d,).
        """
        self._compute_sums(z, computable)
        keeps_rules = ~np.isinf(z).any(1)
        for rule in rules:
            keeps_rules[keeps_rules] = ~self.broken(rule, z[keeps_rules])
        return np.asarray(keeps_rules)

    def broken(self, rule: Rule, z: np.ndarray) -> np.ndarray:
        """Which rows (m,) of z (m, d) break a rule, as far as they are drawn."""
        if isinstance(rule, MembershipRule):
            positions = z[:, rule.columns[0]]
            is_listed = np.isin(positions, rule.positions)
            return np.asarray(~np.isnan(positions) & ~is_listed)
        if isinstance(rule, CombinationRule):
            return self._broken_combinations(rule, z)
        return self._broken_sums(rule, z)

    def _broken_combinations(self, rule: CombinationRule, z: np.ndarray) -> np.ndarray:
        """Which rows have a combination that does not occur, of what is drawn."""
        positions = z[:, rule.columns]
        drawn = ~np.isnan(positions)
        broken = np.zeros(len(z), dtype=bool)
        for pattern in np.unique(drawn[drawn.any(1)], axis=0):
            rows = (drawn == pattern).all(1)
            columns = tuple(compress(rule.columns, pattern))
            broken[rows] = ~self._occurs(positions[rows][:, pattern], columns)
        return broken

    def _occurs(self, positions: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
        """Which combinations of positions (m, k) of some columns are in the table."""
        pd = import_pandas()
        if columns not in self._combinations:
            all_rows = pd.DataFrame(self.z[:, columns])
            self._combinations[columns] = all_rows.drop_duplicates().to_numpy()
        known = self._combinations[columns]
        frame = pd.DataFrame(np.concatenate((known, positions)))
        # Groups are numbered as they appear, so those of known combinations come first.
        group = frame.groupby([*frame], sort=False).ngroup().to_numpy()
        return np.asarray(group[len(known) :] < len(known))

    def _broken_sums(self, rule: LinearRule, z: np.ndarray) -> np.ndarray:
        """Which rows break a comparison or sum; those with a cell missing do not."""
        positions = z[:, rule.columns]
        known = (positions >= 0) & np.isfinite(positions)
        rows = np.flatnonzero(known.all(1))
        difference = self._difference(rule, z[rows])
        if rule.relation == "<":
            breaks = difference >= 0
        elif rule.relation == "<=":
            breaks = difference > 0
        elif rule.unit is not None:
            breaks = difference != 0
        else:
            sizes = [np.abs(self._term(rule, c, z[rows])) for c in rule.columns]
            breaks = np.abs(difference) > _FLOAT_TOLERANCE * np.max(sizes, axis=0)
        broken = np.zeros(len(z), dtype=bool)
        broken[rows] = breaks
        return broken

    # Sums

    def _term(self, rule: LinearRule, c: int, z: np.ndarray) -> np.ndarray:
        """weight·column of rows (m,)."""
        column = self.columns[c]
        weight = rule.weights[rule.columns.index(c)]
        values = column.grid.positions_to_scaled_values(z[:, c])
        if rule.unit is None:
            values = values.astype(np.float64)
        else:
            lowest = int(column.grid.scaled_values[0])
            highest = int(column.grid.scaled_values[-1])
            if abs(weight) * max(-lowest, highest) >= _MAX_FAST_INTEGER:
                values = values.astype(object)
        return np.asarray(weight * values)

    def _difference(
        self, rule: LinearRule, z: np.ndarray, without: int | None = None
    ) -> np.ndarray:
        """Σ weight·column − bound of rows (m,), of all columns but one."""
        difference = np.full(len(z), -rule.bound)
        for c in rule.columns:
            if c != without:
                difference = difference + self._term(rule, c, z)
        return difference

    def _compute_sums(self, z: np.ndarray, computable: np.ndarray) -> None:
        """Compute cells of sums in z (m, d), in place, ∞ for those that cannot be.

        First come cells that are determined: no other cell of their sum may change.
        Where several may, the total is computed, or else the last part, and the others
        stay as drawn. That may determine cells of other sums.

        Take ab = a + b and abc = ab + c, with abc = 10 and c = 4 given, and with a = 1
        and b = 2 drawn. Of abc = ab + c only ab may change, so it is 6. Now a and b may
        change in ab = a + b. It is b that does, and is 5.
        """
        computable = computable & (z != -1)  # a cell that was drawn as missing stays
        self._compute_determined_cells(z, computable)
        for rule in [*self.sums, *reversed(self.sums)]:
            self._compute_sum(rule, z, computable, only_determined=False)
        self._compute_determined_cells(z, computable)

    def _compute_determined_cells(self, z: np.ndarray, computable: np.ndarray) -> None:
        """Compute cells of sums of which no other cell may change, in place.

        Each computed cell may determine one of another sum, so this goes on until
        there is none. It ends, because each round makes cells uncomputable.
        """
        is_changed = True
        while is_changed:
            is_changed = False
            for rule in [*self.sums, *reversed(self.sums)]:
                if self._compute_sum(rule, z, computable, only_determined=True):
                    is_changed = True

    def _compute_sum(
        self,
        rule: LinearRule,
        z: np.ndarray,
        computable: np.ndarray,
        only_determined: bool,
    ) -> bool:
        """Compute a cell of one sum in each row where all others are known, in place.

        With `only_determined`, not in rows where others may change, too. All cells of
        a sum with a computed cell become uncomputable in `computable` (m, d), in place.

        Returns
        -------
        whether a cell was computed
        """
        is_changed = False
        total, *parts = rule.columns
        for c in (total, *reversed(parts)):
            others = [other for other in rule.columns if other != c]
            known = (z[:, others] >= 0) & np.isfinite(z[:, others])
            may_compute = computable[:, c] & known.all(1)
            if only_determined:
                may_compute &= ~computable[:, others].any(1)
            if may_compute.any():
                rows = np.flatnonzero(may_compute)
                z[rows, c] = self._position_in_sum(rule, c, z[rows])
                computable[np.ix_(may_compute, rule.columns)] = False
                is_changed = True
        return is_changed

    def _position_in_sum(self, rule: LinearRule, c: int, z: np.ndarray) -> np.ndarray:
        """The positions (m,) of a column that follow from the other columns of a sum.

        They are ∞ where the column cannot have the value.
        """
        column = self.columns[c]
        sign = int(np.sign(rule.weights[rule.columns.index(c)]))
        value = -sign * self._difference(rule, z, without=c)
        grid_values = column.grid.scaled_values_to_grid_values(value, rule.unit)
        on_grid = column.grid.round(grid_values)
        tolerance = 0.0
        if rule.unit is None:
            tolerance = _STEP_TOLERANCE
        positions = column.grid.grid_values_to_positions(on_grid)
        is_possible = (np.abs(on_grid - grid_values) <= tolerance) & ~np.isnan(
            positions
        )
        return np.where(is_possible, positions, np.inf)


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


def find_dependencies(columns: Sequence[Column], z: np.ndarray) -> list[Rule]:
    """Functional dependencies of one column on another, as of a country on its town.

    The town is the *determinant*: all rows with the same town have the same country,
    the *dependent*. Missing cells break no dependency. It must be too good for chance:
    if the most frequent value of the dependent has a share p, n rows in k groups with
    one value each have a probability of at most pⁿ⁻ᵏ in independent columns.

    z (n, d) are the positions of the rows. The rules allow only pairs of values that
    occur.
    """
    n_levels = dict[int, int]()
    largest_share = dict[int, float]()
    usable = [
        c for c, column in enumerate(columns) if column.is_category or column.is_number
    ]
    for c in usable[:_MAX_COLUMNS_COMPARED]:
        levels, counts = np.unique(z[:, c], return_counts=True)
        if 1 < len(levels) <= len(z) / _MIN_ROWS_PER_LEVEL:
            n_levels[c] = len(levels)
            largest_share[c] = float(counts.max() / len(z))

    rules = list[Rule]()
    # Columns that determine one with as many levels, which then determines them, too.
    # One of the two rules is enough.
    one_to_one = set[int]()
    for determinant in sorted(n_levels, key=lambda c: (-n_levels[c], c)):
        rows = np.flatnonzero(z[:, determinant] >= 0)
        n_repeated = len(rows) - n_levels[determinant]
        candidates = []
        for c in n_levels:
            could_depend = n_levels[c] <= n_levels[determinant] and c != determinant
            log_chance = n_repeated * np.log(largest_share[c])
            beyond_chance = log_chance < np.log(_MAX_CHANCE)
            if could_depend and beyond_chance and c not in one_to_one:
                candidates.append(c)
        first_rows = rows[:_ROWS_COMPARED_FIRST]
        candidates = _dependents(z, determinant, candidates, first_rows)
        for dependent in _dependents(z, determinant, candidates, rows):
            if n_levels[dependent] == n_levels[determinant]:
                one_to_one.add(determinant)
            names = f"{columns[determinant].name}, {columns[dependent].name}"
            rules.append(
                CombinationRule(
                    f"combinations({names})", (determinant, dependent), implied=True
                )
            )
    return rules


def _dependents(
    z: np.ndarray, determinant: int, candidates: Sequence[int], rows: np.ndarray
) -> list[int]:
    """The candidates with one value for each value of the determinant, in these rows.

    z (n, d) are positions, and `rows` indices of rows with a known determinant.
    """
    sorted_rows = rows[np.argsort(z[rows, determinant], kind="stable")]
    same_group = np.diff(z[sorted_rows, determinant]) == 0
    dependents = []
    for c in candidates:
        positions = z[sorted_rows, c]
        positions = np.where(positions < 0, np.nan, positions)
        differs = np.abs(np.diff(positions)) > 0  # not next to a missing cell
        if not (same_group & differs).any():
            dependents.append(c)
    return dependents
