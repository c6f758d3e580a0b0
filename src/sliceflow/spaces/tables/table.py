"""A table that is understood: its columns, rules and positions, and new rows drawn by a chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.cells import TableRows, make_frame, pandas, shown
from sliceflow.spaces.tables.chain import (
    LINES,
    Link,
    PerLevel,
    Strategy,
    TreeSettings,
    equal_columns,
    grow,
)
from sliceflow.spaces.tables.columns import Column, infer_schema
from sliceflow.spaces.tables.constraints import (
    Rule,
    Rules,
    find_dependencies,
    parse_constraint,
)
from sliceflow.spaces.tables.lines import Line
from sliceflow.spaces.tables.near import Near

_ROUNDS = 60  # in which rows that break a rule are drawn anew,
_NOT_COPIED = 5  # and in the first of which copies are, too, and rows whose lines leave their range
_EQUAL = 0.02  # share of rows in which a number equals another one, from which on that is no accident

AnyLink = Link | PerLevel | Near


def generator(seed: Seed) -> np.random.Generator:
    """The random numbers of a seed."""
    return np.random.default_rng(seed.key)


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a model, understood."""

    rows: TableRows  # as the user passed them
    columns: tuple[Column, ...]  # what they are
    rules: Rules  # what holds between them
    z: np.ndarray  # (n, d), the positions of all cells

    @classmethod
    def infer_schema(
        cls, rows: TableRows, kinds: Mapping[Any, str], constraints: Sequence[str]
    ) -> Table:
        """A ValueError says which column, row or constraint is wrong."""
        names = [of.name for of in rows.cells]
        if unknown := [name for name in kinds if name not in map(str, names)]:
            fact = f"columns names {unknown[0]!r}, which is not a column"
            raise ValueError(f"{fact}; there are {shown(names)}")
        codes = pandas().DataFrame({i: of.codes for i, of in enumerate(rows.cells)})
        distinct = np.flatnonzero(~codes.duplicated().to_numpy())
        columns = tuple(
            infer_schema(of, distinct, kinds.get(str(of.name))) for of in rows.cells
        )
        z = np.column_stack([column.positions for column in columns])
        rules = (
            *(parse_constraint(text, columns) for text in constraints),
            *find_dependencies(columns, z),
        )
        table = cls(rows, columns, Rules((), columns, z), z).with_rules(rules)
        table.rules.check()
        return table

    def with_rules(self, more: Sequence[Rule]) -> Table:
        """The table with more rules. Columns of which something must occur have no new values."""
        occurs = {
            c for rule in more if rule.needs_observed_values for c in rule.columns
        }
        columns = tuple(
            replace(of, observed_only=of.exact or c in occurs)
            for c, of in enumerate(self.columns)
        )
        rules = Rules((*self.rules.rules, *more), columns, self.z)
        return replace(self, columns=columns, rules=rules)

    @cached_property
    def names(self) -> list[Any]:
        return [column.name for column in self.columns]

    @cached_property
    def order(self) -> list[int]:
        """The columns of the chain: of two categories first, so that all others see what a label says."""
        columns = [(c, of) for c, of in enumerate(self.columns) if of.modelled]
        columns.sort(key=lambda pair: not pair[1].is_label)
        return self.rules.order([c for c, _ in columns])

    def together(
        self, strategies: Sequence[Strategy], fixed: Sequence[int] = ()
    ) -> list[int]:
        """Columns that near rows may draw: categories, and smooth numbers that follow from no others.

        None if there are no such numbers but the `fixed` ones.
        """
        if (key := (tuple(strategies), tuple(fixed))) in self._found:
            return [*self._found[key]]
        out = list[int]()
        order = np.array(self.order, dtype=np.int64)
        for k, (c, strategy) in enumerate(zip(self.order, strategies, strict=True)):
            own = self.columns[c]
            rows = self.z[self.z[:, c] >= 0]
            follows = (
                equal_columns(self.columns, self.z, c, np.array(out))[1] > 0
            ).mean() > _EQUAL
            if strategy in LINES and not follows:
                line = Line.fit(strategy, self.columns, rows, c, order[:k])
                follows = line is not None and line.is_exact(own, rows, c)
            if c not in fixed and (own.is_category or (own.is_smooth and not follows)):
                out.append(c)
        self._found[key] = out if any(self.columns[c].is_smooth for c in out) else []
        return [*self._found[key]]

    @cached_property
    def _found(self) -> dict[tuple[tuple[Strategy, ...], tuple[int, ...]], list[int]]:
        """What `together` found: every trial of a choice asks again."""
        return {}

    @cached_property
    def single_rows(self) -> set[bytes]:
        """Rows that occur once, if most do: a new row that equals one of them is a copy."""
        counts = Counter(row.tobytes() for row in self.z)
        single = {row for row, count in counts.items() if count == 1}
        return single if 2 * len(single) > len(self.z) else set()

    def positions_of(self, rows: TableRows) -> np.ndarray:
        """The positions (m, d) of other rows. A ValueError names a value that cannot be."""
        pairs = zip(self.columns, rows.like(self.rows).cells, strict=True)
        return np.column_stack([column.places_of(of) for column, of in pairs])

    def frame(
        self, z: np.ndarray, seed: Seed, given: Mapping[int, Any] | None = None
    ) -> Any:
        """A DataFrame of positions (m, d); `given` columns have one value, a Series of one."""
        out = []
        for c, column in enumerate(self.columns):
            if given and c in given:
                out.append(
                    (column.name, given[c].repeat(len(z)).reset_index(drop=True))
                )
            elif column.kind != "drop":
                rng = generator(seed.child("identifiers", c))
                out.append((column.name, column.series(z[:, c], rng)))
        return make_frame(self.rows, out)


def grow_chain(  # many: rows, their order, and how trees grow
    table: Table,
    z: np.ndarray,
    fixed: Sequence[int],
    seed: Seed,
    detail: TreeSettings,
    strategies: Sequence[Strategy],
) -> Iterator[AnyLink]:
    """The links of a chain of rows z (n, d), but of `fixed` columns; `strategies` has all columns."""
    pairs = [*zip(table.order, strategies, strict=True)]
    levels = dict[float, np.ndarray]()
    label = next(
        (c for c, strategy in pairs if strategy == "per_level" and c not in fixed), None
    )
    if label is not None:
        levels = {
            level: z[z[:, label] == level] for level in np.unique(z[:, label]).tolist()
        }
    detail = detail.of_rows(len(z))
    before = list[int]()
    if detail.near and (before := table.together(strategies, fixed)):
        yield Near.fit(table.columns, z, before, detail.near)
    done = {*fixed, *before}
    for c, strategy in pairs:
        if c not in done:
            known = np.array(before, dtype=np.int64)
            key = seed.child("tree", len(before)).key
            if label is not None and label in before:
                how = known, key, detail, strategy
                yield PerLevel(
                    label,
                    {k: grow(table.columns, of, c, *how) for k, of in levels.items()},
                )
            else:
                yield grow(table.columns, z, c, known, key, detail, strategy)
            before.append(c)


def draw_rows(  # many: what is drawn, from what, and what must hold
    table: Table,
    links: Sequence[AnyLink],
    n: int,
    seed: Seed,
    fixed: Mapping[int, float],
    missing: bool,
) -> np.ndarray:
    """Positions (n, d) of new rows that keep all rules, with the positions of `fixed` columns; or an error."""
    columns = table.columns
    rules = table.rules
    rng = generator(seed.child("rows"))
    start = np.array(
        [np.nan if of.modelled else min(len(of.order), 1) - 1.0 for of in columns]
    )
    start[list(fixed)] = list(fixed.values())
    free = np.isin(np.arange(len(columns)), list(fixed), invert=True)
    out = np.empty((n, len(columns)))
    rest = np.arange(n)
    for attempt in range(_ROUNDS):
        z = np.tile(start, (len(rest), 1))
        for link in links:
            how = (
                []
                if isinstance(link, Near)
                else [partial(rules.allowed, link.column, z, missing)]
            )
            z[:, link.column] = link.draw(z, rng, *how)
        ok = rules.complete(z, free)
        out[rest[ok]] = z[ok]
        if attempt < _NOT_COPIED:
            ok[ok] = [row.tobytes() not in table.single_rows for row in z[ok]]
            for c in (
                link.column
                for link in links
                if not isinstance(link, Near) and link.along
            ):
                ok &= (z[:, c] != 0) & (z[:, c] != len(columns[c].order) - 1)
        rest = rest[~ok]
        z = z[~ok]
        if not len(rest):
            return out
    z = np.where(np.isinf(z), np.nan, z)
    broken = (
        f"the constraint {rule.text!r}"
        for rule in rules.rules
        if rules.broken(rule, z).any()
    )
    fact = f"{len(rest)} of {n} rows could not keep {next(broken, 'all constraints')}"
    raise ValueError(
        f"{fact}; it may contradict given or another constraint: leave one out"
    )
