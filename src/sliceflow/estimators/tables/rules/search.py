"""Rules that the rows of a table keep, discovered without a constraint of the user.

| rule              | example                                       | found in         |
|-------------------|-----------------------------------------------|------------------|
| sum, difference   | total = net + shipping + tax                  | `find_sums`      |
| product, quotient | net = price · quantity; average = hits / bats | `find_products`  |
| multiple, percent | tax = 0.19 · net, rounded                     | `find_products`  |
| part of a date    | month is the month of day                     | `find_lookups`   |
| dependency        | country follows from town                     | `find_lookups`   |
| order             | start <= end                                  | `find_orders`    |

Candidates come from a few rows and from floats. Then all rows check them, in exact
arithmetic (`kinds`). `evidence` says whether enough rows keep a rule: shuffled
columns would practically never keep it in as many. A few rows may break a sum, product
or multiple: its `share` says how many keep it. Orders and dependencies must hold in all
rows.

No column is derived twice, and none from itself: rules are tried from the simplest to
the most complex, and one that would close a circle is left out.

`metrics.rules` searches rules as well, to judge samples of any model. It is a search of
its own, with floats, other kinds of rules and other tolerances, on purpose: a judge
that shared this code would share its mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import LevelPositions
from sliceflow.estimators.tables.rules.evidence import NumberColumns
from sliceflow.estimators.tables.rules.find_lookups import find_date_parts, find_lookups
from sliceflow.estimators.tables.rules.find_orders import find_orders
from sliceflow.estimators.tables.rules.find_products import find_products
from sliceflow.estimators.tables.rules.find_sums import find_sums
from sliceflow.estimators.tables.rules.kinds import LookupRule, Rule, is_solvable

# Rules are searched among this many first columns. Pairs of columns are compared, so
# with more columns the time would grow with their square.
MAX_COLUMNS_SEARCHED = 300


def find_rules(
    columns: Sequence[Column],
    level_positions: LevelPositions,
    constraints: Sequence[Rule] = (),
) -> list[Rule]:
    """The rules in rows with positions (n, d), beside the constraints of the user.

    A rule about the same columns as a constraint is left out.
    """
    columns = columns[:MAX_COLUMNS_SEARCHED]
    numbers = NumberColumns.read(columns, level_positions)
    selection = _RuleSelection(list(constraints))
    sums = find_sums(columns, level_positions, numbers)
    exact_sums = [rules for rules in sums if rules[0].share == 1]
    approximate_sums = [rules[0] for rules in sums if rules[0].share < 1]
    selection.add_sums(exact_sums)
    products = find_products(columns, level_positions, numbers, selection.derived)
    exact_products = [rule for rule in products if rule.share == 1]
    approximate_products = [rule for rule in products if rule.share < 1]
    selection.add_all(exact_products)
    selection.add_all(find_date_parts(columns, level_positions, selection.derived))
    selection.add_all(find_lookups(columns, level_positions, selection.derived))
    # Sums that some rows break come last: a part of such a sum may be an exact rule.
    selection.add_all(approximate_sums)
    selection.add_all(approximate_products)
    selection.add_all(find_orders(columns, level_positions, numbers))
    return selection.found


@dataclass(eq=False)
class _RuleSelection:
    """Rules in which no column is derived twice, and none from itself."""

    constraints: list[Rule]
    found: list[Rule] = field(default_factory=list)
    # By derived column, the columns that it is computed from.
    computed_from: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.constraints:
            if is_solvable(rule):
                derived, *others = rule.column_indices
                self.computed_from.setdefault(derived, set()).update(others)

    @property
    def derived(self) -> set[int]:
        """The columns that rules compute."""
        return set(self.computed_from)

    def add_sums(self, sums: Iterable[Sequence[Rule]]) -> None:
        """Add each sum in the first of its orientations that is possible, if any."""
        for orientations in sums:
            for rule in orientations:
                if self.add(rule):
                    break

    def add_all(self, rules: Iterable[Rule]) -> None:
        """Add all rules that are possible."""
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> bool:
        """Add a rule if that is possible; returns whether it was."""
        if not self._is_new(rule):
            return False
        if is_solvable(rule):
            derived, *others = rule.column_indices
            if derived in self.computed_from and not isinstance(rule, LookupRule):
                return False
            if derived in self._ancestors(others):
                return False
            self.computed_from.setdefault(derived, set()).update(others)
        self.found.append(rule)
        return True

    def _is_new(self, rule: Rule) -> bool:
        """Whether no constraint is about the same columns.

        An order is new if no rule computes one of its columns from the other.
        """
        indices = set(rule.column_indices)
        for other in self.constraints:
            if indices <= set(other.column_indices):
                return False
        if is_solvable(rule):
            return True
        for other in self.found:
            if is_solvable(other) and indices <= set(other.column_indices):
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
                to_visit.extend(self.computed_from.get(c, ()))
        return ancestors
