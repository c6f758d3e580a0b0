"""Rules that the rows of a table keep, found without being asked for.

| rule              | example                                       | found by       |
|-------------------|-----------------------------------------------|----------------|
| sum, difference   | total = net + shipping + tax                  | null spaces    |
| product, quotient | net = price · quantity; average = hits / bats | all pairs      |
| multiple, percent | tax = 0.19 · net, rounded                     | all pairs      |
| part of a date    | month is the month of day                     | all parts      |
| dependency        | country follows from town                     | `dependencies` |
| order             | start <= end                                  | all pairs      |

Candidates come from a few rows and from floats. Then all rows check them, in exact
arithmetic (`rules`). A rule must be far beyond chance, and may be broken by a few rows:
its `share` says how many keep it. Orders and dependencies are only found if all do.

No column is derived twice, and none from itself: rules are tried from the simplest to
the most complex, and one that would close a circle is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.dependencies import find_dependencies
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.formats import MAX_EXACT_FLOAT
from sliceflow.spaces.tables.positions import has_value, is_missing
from sliceflow.spaces.tables.rules import (
    DatePart,
    LinearRule,
    LookupRule,
    ProductRule,
    Rule,
    is_computing,
    lookup_keys,
)

# The first columns, among which rules are searched: pairs are compared.
MAX_COLUMNS = 300

# A rule must hold in this share of the rows in which all its cells are known. With a
# smaller one, what is only frequent would count as a rule, and searching takes longer.
MIN_SHARE = 0.99
# It must avoid this share of the rows in which shuffled columns would break it: two
# columns that are mostly 0 are equal in most rows anyway.
MIN_GAIN = 0.9
# The probability that shuffled columns keep a rule in as many rows is below this. There
# are millions of candidates, so that hardly any table has a rule by chance.
MAX_CHANCE = 1e-15
# Rows that must have all cells of a rule. Fewer say little.
MIN_ROWS = 30

# --- sums -----------------------------------------------------------------------------

# Columns of a sum, its total among them, and the largest coefficient. More columns, or
# larger numbers, are seldom meant.
MAX_TERMS = 6
MAX_COEFFICIENT = 12
# A total with fewer values is no sum: indicators of levels have such relations, which
# follow from the level.
MIN_LEVELS_OF_SUM = 5
# Null spaces of this many sets of rows are looked at. One suffices if all rows keep a
# sum. If 1 of 100 breaks it, a set of 100 rows is clean once in three times.
N_ROW_SETS = 6
# Rows of such a set, for each column, and besides. With fewer, columns that are mostly
# 0 would seem to depend on others; with more, fewer sets would be clean.
ROWS_PER_COLUMN = 3
MORE_ROWS = 40
# Singular values below this share of the largest are 0, and so are coefficients below
# the second, for columns of variance 1. Rounding errors are below 1e-12.
MAX_NULL_VALUE = 1e-9
MAX_NULL_COEFFICIENT = 1e-6

# --- products -------------------------------------------------------------------------

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

# --- lookups -------------------------------------------------------------------------

# A number determines others only if at most this share of its rows have rare numbers.
# With a larger share, samples would hold numbers of single rows: on the table Wage,
# whose wages follow from their logarithms, an attacker had an AUC of .65.
MAX_RARE_SHARE = 0.1

# --- orders ---------------------------------------------------------------------------

# Columns with fewer values are not compared: a 0 or 1 is at most what others are.
MIN_LEVELS_OF_ORDER = 8
# An order a ≤ b must be felt: of this many least differences b − a, in rows that could
# break it, this share is in the lower half of their range. It would be a quarter if
# their density grew from 0 like a straight line, and less in the tail of a
# distribution, which has no end there.
N_LEAST_DIFFERENCES = 100
MIN_SHARE_NEAR_EQUAL = 0.2


def find_rules(
    columns: Sequence[Column], row_positions: Floats, asked: Sequence[Rule] = ()
) -> list[Rule]:
    """The rules in rows with positions (n, d), beside those that a user asked for.

    A rule about the same columns as one that was asked for is left out.
    """
    columns = columns[:MAX_COLUMNS]
    numbers = _Numbers.read(columns, row_positions)
    selection = _Selection(columns, list(asked))
    sums = _find_sums(columns, row_positions, numbers)
    selection.add_sums([ways for ways in sums if ways[0].share == 1])
    products = _find_products(columns, row_positions, numbers, selection.derived)
    selection.add_all([rule for rule in products if rule.share == 1])
    selection.add_all(_find_date_parts(columns, row_positions, selection.derived))
    selection.add_all(_find_lookups(columns, row_positions, selection.derived))
    # What some rows break comes last: a part of it may be an exact rule.
    selection.add_all([ways[0] for ways in sums if ways[0].share < 1])
    selection.add_all([rule for rule in products if rule.share < 1])
    selection.add_all(_find_orders(columns, row_positions, numbers))
    return selection.found


@dataclass
class _Selection:
    """Rules that go together: no column is derived twice, and none from itself."""

    columns: Sequence[Column]
    asked: list[Rule]
    found: list[Rule] = field(default_factory=list)
    sources: dict[int, set[int]] = field(default_factory=dict)  # of derived columns

    def __post_init__(self) -> None:
        for rule in self.asked:
            if is_computing(rule):
                derived, *others = rule.column_indices
                self.sources.setdefault(derived, set()).update(others)

    @property
    def derived(self) -> set[int]:
        """The columns that rules compute."""
        return set(self.sources)

    def add_sums(self, sums: Iterable[Sequence[Rule]]) -> None:
        """Add each sum in the first of its ways that is possible, if there is one."""
        for ways in sums:
            any(self.add(way) for way in ways)

    def add_all(self, rules: Iterable[Rule]) -> None:
        """Add all rules that are possible."""
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> bool:
        """Add a rule if that is possible; whether it was."""
        if not self._is_new(rule):
            return False
        if is_computing(rule):
            derived, *others = rule.column_indices
            if derived in self.sources and not isinstance(rule, LookupRule):
                return False
            if derived in self._ancestors(others):
                return False
            self.sources.setdefault(derived, set()).update(others)
        self.found.append(rule)
        return True

    def _is_new(self, rule: Rule) -> bool:
        """Whether no rule that was asked for is about the same columns.

        An order is new if no rule computes one of its columns from the other.
        """
        indices = set(rule.column_indices)
        for other in self.asked:
            if indices <= set(other.column_indices):
                return False
        if is_computing(rule):
            return True
        for other in self.found:
            if is_computing(other) and indices <= set(other.column_indices):
                return False
        return True

    def _ancestors(self, column_indices: Sequence[int]) -> set[int]:
        """Columns from which some columns are computed, and these themselves."""
        ancestors = set[int]()
        to_visit = list(column_indices)
        while to_visit:
            c = to_visit.pop()
            if c not in ancestors:
                ancestors.add(c)
                to_visit.extend(self.sources.get(c, ()))
        return ancestors


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The numeric columns of a table as floats, to find candidates."""

    indices: Ints  # (p,), of the columns
    values: Floats  # (n, p); NaN where cells are missing

    @classmethod
    def read(cls, columns: Sequence[Column], row_positions: Floats) -> _Numbers:
        """The columns of plain numbers: neither times nor durations."""
        indices = [
            c
            for c, column in enumerate(columns)
            if column.is_number and column.quantity == "number"
        ]
        return cls.read_columns(columns, row_positions, indices)

    @classmethod
    def read_columns(
        cls, columns: Sequence[Column], row_positions: Floats, indices: Sequence[int]
    ) -> _Numbers:
        """Some columns, but for those whose integers are too large for floats."""
        usable = [
            c
            for c in indices
            if np.abs(columns[c].level_grid_values).max(initial=0) < MAX_EXACT_FLOAT
        ]
        values = np.full((len(row_positions), len(usable)), np.nan)
        for i, c in enumerate(usable):
            grid = columns[c].grid
            known = has_value(row_positions[:, c])
            scaled_values = grid.positions_to_scaled_values(row_positions[known, c])
            values[known, i] = scaled_values.astype(np.float64) * float(grid.unit or 1)
        return cls(np.array(usable, dtype=np.int64), values)


# --- whether a rule is beyond chance --------------------------------------------------


class _Evidence(NamedTuple):
    """How many rows keep a rule."""

    n_rows: int  # that have all its cells
    share: float  # of these that keep it
    share_by_chance: float  # that would keep it if its first column were shuffled

    @property
    def suffices(self) -> bool:
        """Whether it is a rule beyond chance."""
        if self.n_rows < MIN_ROWS or self.share < MIN_SHARE:
            return False
        if 1 - self.share > (1 - MIN_GAIN) * (1 - self.share_by_chance):
            return False
        # Chernoff's bound of the binomial distribution.
        divergence = _divergence(self.share, self.share_by_chance)
        return bool(self.n_rows * divergence > -np.log(MAX_CHANCE))


def _divergence(p: float, q: float) -> float:
    """Kullback and Leibler's divergence of two probabilities, p from q; p ≥ q."""
    q = min(max(q, 1e-300), 1 - 1e-12)
    divergence = p * np.log(p / q)
    if p < 1:
        divergence += (1 - p) * np.log((1 - p) / (1 - q))
    return float(divergence)


def _share_of_equal_pairs(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The share of pairs of any cell of a (n,) and any of b (m,) that are equal."""
    if not len(a) or not len(b):
        return 0.0
    values_a, counts_a = np.unique(a, return_counts=True)
    values_b, counts_b = np.unique(b, return_counts=True)
    place = np.minimum(np.searchsorted(values_b, values_a), len(values_b) - 1)
    is_equal = values_b[place] == values_a
    n_equal = (counts_a * counts_b[place])[is_equal].sum()
    return float(n_equal / (len(a) * len(b)))


def _computing_evidence(
    rule: LinearRule | ProductRule, columns: Sequence[Column], row_positions: Floats
) -> _Evidence:
    """How many rows keep a rule that computes its first column."""
    known_positions = row_positions[
        has_value(row_positions[:, rule.column_indices]).all(axis=1)
    ]
    if not len(known_positions):
        return _Evidence(0, 0.0, 1.0)
    kept = ~rule.is_broken(columns, known_positions)
    derived = rule.column_indices[0]
    computed = rule.solve(columns, known_positions, derived)
    by_chance = _share_of_equal_pairs(
        known_positions[:, derived], computed[has_value(computed)]
    )
    return _Evidence(len(known_positions), float(kept.mean()), by_chance)


# --- sums -----------------------------------------------------------------------------


class _Relation(NamedTuple):
    """Σ coefficient·column is the same in most rows; coefficients are whole."""

    column_indices: tuple[int, ...]
    coefficients: tuple[int, ...]


def _find_sums(
    columns: Sequence[Column], row_positions: Floats, numbers: _Numbers
) -> list[list[LinearRule]]:
    """Sums that are rules, each in the ways in which it can be written.

    Those that all rows keep come first, and then the simplest. None follows from others
    before it.
    """
    vectors = list[Floats]()
    candidates = list[list[LinearRule]]()
    for relation in _candidate_relations(numbers):
        totals = _possible_totals(columns, relation)
        if columns[totals[0]].n_levels < MIN_LEVELS_OF_SUM:
            continue
        ways = [
            _linear_rule(columns, row_positions, relation, total) for total in totals
        ]
        evidence = _computing_evidence(ways[0], columns, row_positions)
        if evidence.suffices:
            candidates.append([replace(way, share=evidence.share) for way in ways])
            vector = np.zeros(len(columns))
            vector[list(relation.column_indices)] = relation.coefficients
            vectors.append(vector)

    def rank(k: int) -> tuple[bool, int, float]:
        size = float(np.abs(vectors[k]).sum())
        return (candidates[k][0].share < 1, len(candidates[k]), size)

    sums = list[list[LinearRule]]()
    independent = np.empty((0, len(columns)))
    for k in sorted(range(len(candidates)), key=rank):
        extended = np.vstack((independent, vectors[k]))
        if np.linalg.matrix_rank(extended) == len(extended):
            sums.append(candidates[k])
            independent = extended
    return sums


def _candidate_relations(numbers: _Numbers) -> list[_Relation]:
    """Whole relations between columns in some of the rows."""
    rng = np.random.default_rng(0)
    relations = set[_Relation]()
    for column_set in _columns_known_together(numbers.values):
        values = numbers.values[:, column_set]
        values = values[~np.isnan(values).any(axis=1)]
        unusual = [np.flatnonzero(cells != np.median(cells)) for cells in values.T]
        for _ in range(N_ROW_SETS):
            rows = values[_diverse_rows(unusual, len(values), rng)]
            for vector in _null_vectors(rows):
                relation = _whole_relation(vector, numbers.indices[column_set])
                if relation is not None:
                    relations.add(relation)
    return sorted(relations)


def _columns_known_together(values: Floats) -> list[Ints]:
    """Sets of columns of values (n, p) that many rows know all of.

    The first is of the columns with the fewest missing cells. Each other set has one
    more column, which is missing in most of those rows.
    """
    missing = np.isnan(values)
    order = np.argsort(missing.sum(axis=0), kind="stable")
    together = list[int]()
    known = np.full(len(values), True)
    sets = list[Ints]()
    sparse = list[int]()
    for i in order.tolist():
        still_known = known & ~missing[:, i]
        n_wanted = ROWS_PER_COLUMN * (len(together) + 1) + MORE_ROWS
        if still_known.sum() >= max(n_wanted, known.sum() / 2):
            together.append(i)
            known = still_known
        else:
            sparse.append(i)
    if len(together) > 1:
        sets.append(np.array(sorted(together)))
    for i in sparse:
        columns = np.array([*sorted(together), i])
        if (known & ~missing[:, i]).sum() >= MIN_ROWS:
            sets.append(columns)
    return sets


def _diverse_rows(unusual: Sequence[Ints], n: int, rng: np.random.Generator) -> Ints:
    """Indices of random ones of n rows, and of some where each column is unusual.

    `unusual` has the indices of such rows, for each of p columns.
    """
    n_rows = min(n, ROWS_PER_COLUMN * len(unusual) + MORE_ROWS)
    chosen = list[int]()
    for row_indices in unusual:
        if len(row_indices):
            chosen.extend(rng.choice(row_indices, 2).tolist())
    n_more = max(0, n_rows - len(chosen))
    more = rng.choice(n, n_more, replace=False).tolist()
    return np.unique(np.array(chosen + more, dtype=np.int64))


def _null_vectors(rows: Floats) -> list[Floats]:
    """Vectors (p,) whose product with rows (m, p) is constant, few of them not 0.

    The null space is reduced to one pivot per vector, in several orders of the columns:
    those that vary most first, as totals do, and as the table has them.
    """
    deviations = rows.std(axis=0)
    varies = np.flatnonzero(deviations > 0)
    if len(varies) < 2 or len(rows) <= len(varies) + 1:
        return []
    scaled = (rows[:, varies] - rows[:, varies].mean(axis=0)) / deviations[varies]
    _, singular_values, right = np.linalg.svd(scaled, full_matrices=False)
    null_space = right[singular_values < MAX_NULL_VALUE * singular_values[0]]
    if not len(null_space):
        return []
    by_deviation = np.argsort(-deviations[varies], kind="stable")
    vectors = []
    in_table = np.arange(len(varies))
    for order in (by_deviation, in_table, in_table[::-1]):
        for reduced in _reduce(null_space, order):
            vector = np.zeros(rows.shape[1])
            vector[varies] = reduced / deviations[varies]
            vectors.append(vector)
    return vectors


def _reduce(vectors: Floats, order: Ints) -> Floats:
    """Vectors (r, p) by Gauss and Jordan's elimination, with pivots in this order."""
    reduced = vectors.copy()
    n_done = 0
    for c in order.tolist():
        if n_done == len(reduced):
            break
        pivot = n_done + int(np.argmax(np.abs(reduced[n_done:, c])))
        if abs(reduced[pivot, c]) < MAX_NULL_COEFFICIENT:
            continue
        reduced[[n_done, pivot]] = reduced[[pivot, n_done]]
        reduced[n_done] /= reduced[n_done, c]
        others = np.arange(len(reduced)) != n_done
        reduced[others] -= np.outer(reduced[others, c], reduced[n_done])
        n_done += 1
    reduced[np.abs(reduced) < MAX_NULL_COEFFICIENT] = 0
    return reduced


def _whole_relation(vector: Floats, indices: Ints) -> _Relation | None:
    """A vector (p,) with small whole numbers, of columns (p,); None if it has none."""
    used = np.flatnonzero(vector)
    if not 2 <= len(used) <= MAX_TERMS:
        return None
    coefficients = vector[used] / np.abs(vector[used]).min()
    fractions = [
        Fraction(float(value)).limit_denominator(MAX_COEFFICIENT)
        for value in coefficients
    ]
    whole = np.array([float(fraction) for fraction in fractions])
    if np.abs(whole - coefficients).max() > MAX_NULL_COEFFICIENT:
        return None
    common = lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * common) for fraction in fractions]
    divisor = gcd(*integers) * int(np.sign(integers[0]))
    integers = [integer // divisor for integer in integers]
    if max(map(abs, integers)) > MAX_COEFFICIENT:
        return None
    return _Relation(tuple(indices[used].tolist()), tuple(integers))


def _possible_totals(columns: Sequence[Column], relation: _Relation) -> list[int]:
    """The columns of a relation that may be its total, the most natural first.

    It has the finest grid of all: a sum of cents would seldom be on one of whole euros.
    Among these it is the only one on its side of the equation, if there is one. Others
    follow by how many cells are missing, as what is computed is needed least, and by
    how many values they have: a sum has more than its parts.
    """
    signs = [np.sign(k) for k in relation.coefficients]
    pairs = list(zip(relation.column_indices, relation.coefficients, strict=True))

    def rank(pair: tuple[int, int]) -> tuple[bool, Fraction, bool, int, int, int]:
        c, coefficient = pair
        is_alone = signs.count(np.sign(coefficient)) == 1 and len(pairs) > 2
        column = columns[c]
        step = column.grid.step * (column.unit or Fraction(0))
        n_missing = int(column.encoded.missing.sum())
        return (
            abs(coefficient) != 1,
            step,
            not is_alone,
            -n_missing,
            -column.n_levels,
            -c,
        )

    return [c for c, _ in sorted(pairs, key=rank)]


def _linear_rule(
    columns: Sequence[Column], row_positions: Floats, relation: _Relation, total: int
) -> LinearRule:
    """The rule of a relation that computes one of its columns.

    Its bound is the sum of the columns, in most rows.
    """
    pairs = dict(zip(relation.column_indices, relation.coefficients, strict=True))
    sign = int(np.sign(pairs[total]))
    pairs = {c: sign * coefficient for c, coefficient in pairs.items()}
    indices = (total, *(c for c in relation.column_indices if c != total))
    units = [columns[c].unit for c in indices]
    known_units = [unit for unit in units if unit is not None]
    unit = None
    weights: list[float] = [pairs[c] * float(columns[c].unit or 1) for c in indices]
    if len(known_units) == len(units):
        unit = min(known_units)
        weights = [
            pairs[c] * int(known / unit)
            for c, known in zip(indices, known_units, strict=True)
        ]
    rule = LinearRule("", indices, tuple(weights), "=", 0, unit, is_discovered=True)
    known_positions = row_positions[has_value(row_positions[:, indices]).all(axis=1)]
    bound = _usual(rule.difference(columns, known_positions), unit is not None)
    text = _sum_text(columns, indices, pairs, bound * float(unit or 1))
    return replace(rule, bound=bound, text=text)


def _usual(values: NDArray[Any], is_exact: bool) -> float:
    """The most frequent of some values (n,), or for floats the median."""
    if not len(values):
        return 0
    if is_exact:
        different, counts = np.unique(values, return_counts=True)
        return int(different[np.argmax(counts)])
    median = float(np.median(values))
    is_near = np.abs(values - median) < abs(median)
    if is_near.mean() < MIN_SHARE or abs(median) < MAX_NULL_VALUE:
        return 0.0
    return median


def _sum_text(
    columns: Sequence[Column],
    indices: Sequence[int],
    coefficients: dict[int, int],
    bound: float,
) -> str:
    """A sum in words, such as "total = net + 2·tax"."""
    total, *parts = indices
    parts.sort(key=lambda c: coefficients[c] > 0)  # what is added comes first
    terms = [(-coefficients[c], str(columns[c].name)) for c in parts]
    right = ""
    for coefficient, name in terms:
        right += _signed(coefficient, _multiple(abs(coefficient), name))
    if bound:
        right += _signed(bound, f"{abs(bound):g}")
    right = right.removeprefix(" + ").replace(" − ", "−", int(terms[0][0] < 0))
    return f"{_multiple(coefficients[total], str(columns[total].name))} = {right}"


def _signed(value: float, text: str) -> str:
    """A term of a sum with its sign before it."""
    if value < 0:
        return f" − {text}"
    return f" + {text}"


def _multiple(factor: int, name: str) -> str:
    """A column with its factor, such as "2·tax"."""
    if factor == 1:
        return name
    return f"{factor}·{name}"


# --- products and quotients -----------------------------------------------------------


def _find_products(
    columns: Sequence[Column],
    row_positions: Floats,
    numbers: _Numbers,
    derived: set[int],
) -> list[ProductRule]:
    """Products, quotients and multiples that are rules, the surest first.

    Of the ways to write one, that counts whose first column has the most values: a
    product has more than its factors.
    """
    rules = list[ProductRule]()
    for i, c in enumerate(numbers.indices.tolist()):
        if c in derived or columns[c].n_levels < MIN_LEVELS_OF_PRODUCT:
            continue
        for rule in _candidate_products(columns, numbers, i):
            evidence = _computing_evidence(rule, columns, row_positions)
            if evidence.suffices:
                rules.append(replace(rule, share=evidence.share))

    def rank(rule: ProductRule) -> tuple[bool, int, int, float, int]:
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
    for rule in sorted(rules, key=rank):
        if frozenset(rule.column_indices) not in seen:
            seen.add(frozenset(rule.column_indices))
            different.append(rule)
    return different


def _candidate_products(
    columns: Sequence[Column], numbers: _Numbers, i: int
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
    candidates = _candidate_multiples(columns, numbers, i, x, y, tolerance)
    with np.errstate(divide="ignore", invalid="ignore"):
        products = x[:, :, None] * x[:, None, :]
        quotients = x[:, :, None] / x[:, None, :]
    n_numbers = x.shape[1]
    is_used = np.ones((n_numbers, n_numbers), dtype=bool)
    is_used[i] = False
    is_used[:, i] = False
    for exponent, values in ((1, products), (-1, quotients)):
        for factor in PAIR_FACTORS:
            agrees = _agrees(float(factor) * values, y, tolerance) & is_used
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


def _agrees(values: Floats, y: Floats, tolerance: Floats) -> Mask:
    """Which of many columns of values (m, …) equal y (m,) in nearly all known rows."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    error = np.abs(values - y.reshape(shape))
    known = np.isfinite(error).sum(axis=0)
    kept = (error <= tolerance.reshape(shape)).sum(axis=0)
    is_known = known >= MIN_TRIAL_ROWS
    return np.asarray(is_known & (known - kept <= MAX_BROKEN_TRIAL_ROWS))


def _candidate_multiples(
    columns: Sequence[Column],
    numbers: _Numbers,
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
    is_near = _agrees(middle * x, y, 2 * tolerance)
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


# --- lookups --------------------------------------------------------------------------


def _find_lookups(
    columns: Sequence[Column], row_positions: Floats, derived: set[int]
) -> list[LookupRule]:
    """The rules of functional dependencies, but for columns that are derived."""
    usable = [
        c for c, column in enumerate(columns) if column.is_category or column.is_number
    ]
    cells = np.where(is_missing(row_positions), np.nan, row_positions)[:, usable]
    rules = []
    for dependency in find_dependencies(cells):
        determinant = usable[dependency.determinant]
        dependent = usable[dependency.dependent]
        if dependent not in derived and not _discloses(columns[determinant]):
            rule = _lookup_rule(columns, row_positions, dependent, determinant, None)
            rules.append(replace(rule, one_to_one=dependency.one_to_one))
    return rules


def _discloses(column: Column) -> bool:
    """Whether looking these numbers up would draw many that only few rows have.

    A determinant is drawn as it stands in the table, and does not move.
    """
    if not column.is_number or column.quantity != "number":
        return False
    counts = column.level_counts
    n_rare = counts[counts < column.min_count].sum()
    return bool(n_rare > MAX_RARE_SHARE * counts.sum())


def _find_date_parts(
    columns: Sequence[Column], row_positions: Floats, derived: set[int]
) -> list[LookupRule]:
    """Columns that follow from a part of a time, as a month from a date."""
    rules = []
    times = [
        c
        for c, column in enumerate(columns)
        if column.quantity == "time" and column.is_number
    ]
    for time in times:
        known = has_value(row_positions[:, time])
        keys = dict[DatePart, Floats]()
        for part in get_args(DatePart):
            keys[part] = np.full(len(row_positions), np.nan)
            keys[part][known] = lookup_keys(
                columns[time], row_positions[known, time], part
            )
        for c, column in enumerate(columns):
            if c in times or c in derived:
                continue
            if column.is_category or column.is_number:
                part = _best_date_part(row_positions[:, c], keys)
                if part is not None:
                    rules.append(_lookup_rule(columns, row_positions, c, time, part))
    return rules


def _best_date_part(positions: Floats, keys: dict[DatePart, Floats]) -> DatePart | None:
    """The part with the fewest values from which positions (n,) follow, or None."""
    cells = np.where(is_missing(positions), np.nan, positions)
    fewest = np.inf
    best = None
    for part, key in keys.items():
        n_keys = len(np.unique(key[~np.isnan(key)]))
        if n_keys < fewest and _follows(cells, key):
            fewest = n_keys
            best = part
    return best


def _follows(dependent: Floats, determinant: Floats) -> bool:
    """Whether a column (n,) follows from another one (n,); NaN is a missing cell."""
    for found in find_dependencies(np.column_stack((determinant, dependent))):
        if found.determinant == 0 or found.one_to_one:
            return True
    return False


def _lookup_rule(
    columns: Sequence[Column],
    row_positions: Floats,
    dependent: int,
    determinant: int,
    part: DatePart | None,
) -> LookupRule:
    """The rule with the position of the dependent for each known key."""
    known = has_value(row_positions[:, [dependent, determinant]]).all(axis=1)
    keys = lookup_keys(columns[determinant], row_positions[known, determinant], part)
    different, first = np.unique(keys, return_index=True)
    text = f"{columns[dependent].name} follows from {columns[determinant].name}"
    if part is not None:
        text = f"{columns[dependent].name} is the {part} of {columns[determinant].name}"
    positions = row_positions[known, dependent][first]
    return LookupRule(text, (dependent, determinant), different, positions, part)


# --- orders ---------------------------------------------------------------------------


def _find_orders(
    columns: Sequence[Column], row_positions: Floats, numbers: _Numbers
) -> list[LinearRule]:
    """Orders a ≤ b that all rows keep, without those that follow from others.

    Two orders in both directions are an equality, which computes the second column.
    Numbers are compared with numbers, and times with times.
    """
    times = [
        c
        for c, column in enumerate(columns)
        if column.quantity == "time" and column.is_number
    ]
    greater = dict[int, set[int]]()
    for some in (numbers, _Numbers.read_columns(columns, row_positions, times)):
        greater.update(_greater_columns(columns, row_positions, some))
    rules = []
    for a, larger in greater.items():
        follows = set[int]()
        for b in larger:
            follows |= greater[b]
        for b in sorted(larger - follows):
            rules.append(_order_rule(columns, a, b))
        for b in sorted(larger):
            if a in greater[b] and a < b:
                equal = _order_rule(columns, b, a)
                text = f"{columns[b].name} = {columns[a].name}"
                rules.insert(0, replace(equal, relation="=", text=text))
    return rules


def _greater_columns(
    columns: Sequence[Column], row_positions: Floats, numbers: _Numbers
) -> dict[int, set[int]]:
    """For each column the others that are at least as large, by a rule."""
    has_levels = [
        columns[c].n_levels >= MIN_LEVELS_OF_ORDER for c in numbers.indices.tolist()
    ]
    indices = numbers.indices[has_levels]
    values = numbers.values[:, has_levels]
    greater = dict[int, set[int]]()
    for i, a in enumerate(indices.tolist()):
        is_never_less = np.asarray(~(values[:, [i]] > values).any(axis=0))
        is_never_less[i] = False
        greater[a] = set()
        for j in np.flatnonzero(is_never_less).tolist():
            b = int(indices[j])
            is_order = _is_order_beyond_chance(values[:, i], values[:, j])
            known_positions = row_positions[
                has_value(row_positions[:, [a, b]]).all(axis=1)
            ]
            rule = _order_rule(columns, a, b)
            if is_order and not rule.is_broken(columns, known_positions).any():
                greater[a].add(b)
    return greater


def _is_order_beyond_chance(low: Floats, high: Floats) -> bool:
    """Whether an order low ≤ high of all cells (n,) is a rule.

    Shuffled columns would break it, and many rows that could break it nearly do.
    """
    known = ~np.isnan(low) & ~np.isnan(high)
    low = low[known]
    high = high[known]
    if len(low) < MIN_ROWS:
        return False
    n_not_above = np.searchsorted(np.sort(low), high, "right")
    share_by_chance = float(n_not_above.mean() / len(low))
    if not _Evidence(len(low), 1.0, share_by_chance).suffices:
        return False
    could_break = (low > high.min()) & (high < low.max())
    gaps = np.sort((high - low)[could_break])[:N_LEAST_DIFFERENCES]
    if len(gaps) < N_LEAST_DIFFERENCES:
        return False
    return bool((gaps <= gaps[-1] / 2).mean() >= MIN_SHARE_NEAR_EQUAL)


def _order_rule(columns: Sequence[Column], a: int, b: int) -> LinearRule:
    """The rule a ≤ b."""
    text = f"{columns[a].name} <= {columns[b].name}"
    unit_a = columns[a].unit
    unit_b = columns[b].unit
    if unit_a is None or unit_b is None:
        weights = (float(unit_a or 1), -float(unit_b or 1))
        return LinearRule(text, (a, b), weights, "<=", is_discovered=True)
    unit = min(unit_a, unit_b)
    whole = (int(unit_a / unit), -int(unit_b / unit))
    return LinearRule(text, (a, b), whole, "<=", 0, unit, is_discovered=True)
