"""The fit of a table: its plan, and the chain grown column by column."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import FlowState
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.fields import Between, Count, Label
from sliceflow.models.plan import Plan
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.tables.cells import TableRows, read_frame, shown
from sliceflow.spaces.tables.chain import RIDGE_SCALES, Strategy
from sliceflow.spaces.tables.choosing import choose_tree_settings, may_use_neighbours
from sliceflow.spaces.tables.files import as_frame
from sliceflow.spaces.tables.strategies import choose_strategies
from sliceflow.spaces.tables.table import ChainStep, Table, draw_rows, fit_chain
from sliceflow.spaces.tables.trees import MAX_ROWS_PER_TREE, TreeSettings

_SECONDS = 1.5e-6  # for each row and column that a tree sees, on one thread


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """What a fit of a table does. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # the columns in the order in which they are drawn,
    strategies: tuple[Strategy, ...]  # and how
    min_samples_leaf: Count  # see `TreeSettings`
    ccp_factor: Annotated[float, Between(0)]
    n_neighbors: Count = 0
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up

    @property
    def method(self) -> str:
        return (
            "near rows and a chain of trees" if self.n_neighbors else "chain of trees"
        )

    @property
    def tree_settings(self) -> TreeSettings:
        return TreeSettings(self.min_samples_leaf, self.ccp_factor, self.n_neighbors)

    def tree_settings_for(self, missing: bool) -> TreeSettings:
        """Near rows may have missing cells: without these, trees draw all columns."""
        if missing:
            return self.tree_settings
        return self.tree_settings._replace(n_neighbors=0)

    def lines(self) -> Sequence[tuple[str, object]]:
        pairs = [*zip(self.order, self.strategies, strict=True)]
        label = [
            f"each level of {name} has trees of its own"
            for name, strategy in pairs
            if strategy == "per_level"
        ]
        near = (
            f"smooth numbers from the {self.n_neighbors} rows nearest to a random one"
            if self.n_neighbors
            else ""
        )
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", shown(self.order)),
            ("near rows", near),
            (
                "trees",
                f"leaves of {self.min_samples_leaf} rows or more; splits worth {self.ccp_factor:g} times noise",
            ),
            (
                "lines",
                shown([name for name, strategy in pairs if strategy in RIDGE_SCALES]),
            ),
            ("per_level", "".join(label)),
            ("rules", shown(self.rules)),
            ("identifiers", shown(self.identifiers)),
            ("model", "keeps all rows"),
        ]


@dataclass(frozen=True)
class FittedTable:
    """The state of a fitted table. A loaded one grows its chain again from the rows that the model keeps."""

    plan: TablePlan
    seed: Seed
    table: Any = field(default=None, metadata={"saved": False})  # a `Table`
    grown: tuple[ChainStep, ...] | None = field(default=None, metadata={"saved": False})

    needs_rows = True
    condition = None
    codes = None
    device = torch.device("cpu")

    @cached_property
    def chain(self) -> tuple[ChainStep, ...]:
        return self.grown or tuple(self.grow())

    def grow(self, missing: bool = True) -> Iterator[ChainStep]:
        """The links of all columns."""
        plan = self.plan
        return fit_chain(
            self.table,
            self.table.z,
            (),
            seed=self.seed,
            settings=plan.tree_settings_for(missing),
            strategies=plan.strategies,
        )

    def sample_bytes(self, n: int = 1) -> int:
        return 64 * (n + self.plan.n_rows) * max(1, self.plan.n_columns)

    def draw(
        self, n: int, codes: Tensor | None, seed: Seed, missing: bool = True
    ) -> Any:
        links = (
            self.chain
            if missing or not self.plan.n_neighbors
            else tuple(self.grow(missing))
        )
        return self.table.frame(
            draw_rows(self.table, links, n, seed=seed, fixed={}, missing=missing), seed
        )

    def columns(self, X: Any) -> Tensor:
        z = self.table.positions_of(read_frame(X))
        axes = [self.table.columns[c].axes(z[:, c]) for c in self.table.order]
        return torch.from_numpy(
            np.vstack([of.T for of in axes] or [np.zeros((1, len(z)))])
        )


@dataclass(frozen=True)
class TableAdapter:
    """Tables, for one estimator: kinds of columns, constraints, known rows, and how fine trees are."""

    kinds: Mapping[str, str]
    constraints: Sequence[str]
    known: TableRows | None = None
    tree_settings: tuple[int, float] | tuple[int, float, int] | None = None

    def read(self, X: Any, y: Any, ranks: Ranks) -> TableRows:
        if y is not None:
            raise ValueError(
                "a table has no y; pass it as a column of X, and given= to sample"
            )
        if ranks.size > 1:
            raise ParameterError(
                "ranks", ranks.size, "do not share tables", "fit in one process"
            )
        rows = read_frame(as_frame(X))
        return rows if self.known is None else rows.like(self.known)

    def prepare(self, rows: TableRows, seed: Seed, ranks: Ranks) -> TableJob:
        table = Table.infer_schema(rows, self.kinds, self.constraints)
        d = len(table.order)
        strategies = choose_strategies(table)
        detail = (
            TreeSettings(*self.tree_settings)
            if self.tree_settings
            else choose_tree_settings(table, strategies)
        )
        if detail.n_neighbors and not may_use_neighbours(table, strategies):
            detail = detail._replace(n_neighbors=0)  # asked for in vain
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.names[c] for c in table.order),
            strategies=strategies,
            **detail.for_n_rows(rows.n)._asdict(),
            rules=tuple(rule.text for rule in table.rules.rules),
            identifiers=tuple(c.name for c in table.columns if c.kind == "identifier"),
        )
        seconds = (
            _SECONDS * min(rows.n, MAX_ROWS_PER_TREE) * d * (d + 1) + 1e-6 * rows.n * d
        )
        what = f"{rows.n} rows of {len(table.columns)} columns need"
        plan = plan.taking(200 * rows.n * max(1, d), seconds, what, "fit fewer rows")
        return TableJob(plan, (TablePart(FittedTable(plan, seed, table)),))


@dataclass(frozen=True)
class TableJob:
    """A planned fit, of one part."""

    plan: TablePlan
    parts: tuple[TablePart]

    def finish(self, results: Sequence[FittedTable]) -> tuple[FittedTable, None, None]:
        return results[0], None, None

    def copies(self, results: Sequence[FittedTable]) -> tuple[str, str]:
        return "", ""


@dataclass(frozen=True)
class TablePart:
    """The growth of a chain. It has no particles; a step is a column."""

    fitted: FittedTable
    links: list[ChainStep] = field(default_factory=list)
    particles: Cloud = field(default_factory=lambda: Cloud(torch.zeros(1, 1), None))

    name = ""
    stages = ()
    first = 0

    @property
    def n_steps(self) -> int:
        plan = self.fitted.plan
        together = (
            len(self.fitted.table.columns_for_neighbours(plan.strategies))
            if plan.n_neighbors
            else 1
        )
        return len(plan.order) + 1 - together

    def begin(self) -> TablePart:
        return TablePart(self.fitted)

    def move(self, run: FlowState, listeners: Sequence[events.Listener]) -> None:
        """Grow one link after the other. A resumed fit grows the first ones again, silently."""
        began = events.now() - run.seconds
        n = self.n_steps
        x = self.particles.x
        for k, link in enumerate(self.fitted.grow()):
            self.links.append(link)
            if k >= run.done:
                run.step = k + 1
                run.done = k + 1
                run.seconds = events.now() - began
                left = torch.tensor(link.unexplained, dtype=torch.float64)
                at = "columns", 0, k, k + 1, n, left, run.seconds, x, None, n
                events.notify(listeners, events.Event(*at, measure="unexplained share"))
                run.after()

    def finish(
        self, run: FlowState, listeners: Sequence[events.Listener]
    ) -> FittedTable:
        if found := [
            column.name for column in self.fitted.table.columns if column.reveals
        ]:
            which = f"the column{'s'[: len(found) > 1]} {shown(found)}, most of which belong to one row"
            cure = (
                f"pass columns={{{found[0]!r}: 'identifier'}} for new ones, or 'drop'"
            )
            warnings.warn(
                f"samples contain real values of {which}; {cure}",
                UserWarning,
                stacklevel=2,
            )
        return replace(self.fitted, grown=tuple(self.links))
