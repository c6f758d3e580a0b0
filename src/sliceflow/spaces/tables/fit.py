"""The fit of a table: its plan, and the chain grown column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.random import Seed
from sliceflow.errors import DataWarning
from sliceflow.fields import Between, Count, Label
from sliceflow.models.estimator import FitResult
from sliceflow.models.plan import Plan
from sliceflow.spaces.tables.cells import TableRows, read_frame, shown
from sliceflow.spaces.tables.chain import LINES, MOST_ROWS, Strategy, TreeSettings
from sliceflow.spaces.tables.choosing import (
    choose_detail,
    choose_strategies,
    may_be_near,
)
from sliceflow.spaces.tables.files import as_frame
from sliceflow.spaces.tables.table import AnyLink, Table, draw_rows, grow_chain

_SECONDS = 1.5e-6  # for each row and column that a tree sees, on one thread


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """What a fit of a table does. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # the columns in the order in which they are drawn,
    strategies: tuple[Strategy, ...]  # and how
    leaf: Count  # rows of a leaf, at least,
    cost: Annotated[
        float, Between(0)
    ]  # and what a split must gain, relative to one of noise
    near: Count = 0  # rows from which smooth numbers are drawn
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up

    @property
    def method(self) -> str:
        return "near rows and a chain of trees" if self.near else "chain of trees"

    @property
    def detail(self) -> TreeSettings:
        return TreeSettings(self.leaf, self.cost, self.near)

    def detail_for(self, missing: bool) -> TreeSettings:
        """Near rows may have missing cells: without these, trees draw all columns."""
        return self.detail if missing else self.detail._replace(near=0)

    def lines(self) -> Sequence[tuple[str, object]]:
        pairs = [*zip(self.order, self.strategies, strict=True)]
        label = [
            f"each level of {name} has trees of its own"
            for name, strategy in pairs
            if strategy == "per_level"
        ]
        near = (
            f"smooth numbers from the {self.near} rows nearest to a random one"
            if self.near
            else ""
        )
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", shown(self.order)),
            ("near rows", near),
            (
                "trees",
                f"leaves of {self.leaf} rows or more; splits worth {self.cost:g} times noise",
            ),
            ("lines", shown([name for name, strategy in pairs if strategy in LINES])),
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
    grown: tuple[AnyLink, ...] | None = field(default=None, metadata={"saved": False})

    needs_rows = True

    @cached_property
    def links(self) -> tuple[AnyLink, ...]:
        return self.grown or tuple(self.grow())

    def grow(self, missing: bool = True) -> Iterator[AnyLink]:
        """The links of all columns."""
        plan = self.plan
        return grow_chain(
            self.table,
            self.table.z,
            (),
            self.seed,
            plan.detail_for(missing),
            plan.strategies,
        )

    def sample_bytes(self, n: int = 1) -> int:
        return 64 * (n + self.plan.n_rows) * max(1, self.plan.n_columns)

    def draw(self, n: int, seed: Seed, missing: bool = True) -> Any:
        links = (
            self.links if missing or not self.plan.near else tuple(self.grow(missing))
        )
        return self.table.frame(
            draw_rows(self.table, links, n, seed, {}, missing), seed
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
    detail: tuple[int, float] | tuple[int, float, int] | None = None  # None is chosen

    def read(self, X: Any, y: Any) -> TableRows:
        if y is not None:
            raise ValueError(
                "a table has no y; pass it as a column of X, and given= to sample"
            )
        rows = read_frame(as_frame(X))
        return rows if self.known is None else rows.like(self.known)

    def plan(self, rows: TableRows, seed: Seed) -> TableJob:
        table = Table.infer_schema(rows, self.kinds, self.constraints)
        d = len(table.order)
        strategies = choose_strategies(table)
        detail = (
            TreeSettings(*self.detail)
            if self.detail
            else choose_detail(table, strategies)
        )
        if detail.near and not may_be_near(table, strategies):  # asked for in vain
            detail = detail._replace(near=0)
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.names[c] for c in table.order),
            strategies=strategies,
            **detail.of_rows(rows.n)._asdict(),
            rules=tuple(rule.text for rule in table.rules.rules),
            identifiers=tuple(c.name for c in table.columns if c.kind == "identifier"),
        )
        seconds = _SECONDS * min(rows.n, MOST_ROWS) * d * (d + 1) + 1e-6 * rows.n * d
        what = f"{rows.n} rows of {len(table.columns)} columns need"
        plan = plan.taking(200 * rows.n * max(1, d), seconds, what, "fit fewer rows")
        return TableJob(plan, FittedTable(plan, seed, table))


@dataclass(frozen=True)
class TableJob:
    """A planned fit."""

    plan: TablePlan
    fitted: FittedTable  # without its links

    @property
    def n_steps(self) -> int:
        """Links of the chain: near rows draw several columns together."""
        plan = self.plan
        together = len(self.fitted.table.together(plan.strategies)) if plan.near else 1
        return len(plan.order) + 1 - together

    def run(self, listeners: Sequence[events.Listener]) -> FitResult:
        """Grow one link after the other."""
        started_at = events.now()
        history = events.History()
        links: list[AnyLink] = []
        n_steps = self.n_steps
        for k, link in enumerate(self.fitted.grow()):
            links.append(link)
            event = events.Event(
                stage="columns",
                stage_index=0,
                step=k,
                steps_done=k + 1,
                steps_total=n_steps,
                distance=torch.tensor(link.left, dtype=torch.float64),
                seconds=events.now() - started_at,
                particles=torch.zeros(1, 1),
                stage_steps=n_steps,
                measure="unexplained share",
            )
            events.notify([history, *listeners], event)
        fitted = replace(self.fitted, grown=tuple(links))
        return FitResult(fitted, history.as_columns(), self._warning())

    def _warning(self) -> DataWarning | None:
        """What to say of columns whose values mostly belong to one row; or nothing."""
        columns = self.fitted.table.columns
        names = [column.name for column in columns if column.reveals]
        if not names:
            return None
        fact = "samples contain real values, most of which belong to one row"
        if len(names) > 1:
            fact += f" (also those of {shown(names[1:])})"
        return DataWarning(
            fact, column=names[0], suggested_kinds=("identifier", "drop")
        )
