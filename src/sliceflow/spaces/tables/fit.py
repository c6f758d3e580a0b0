"""The fit of a table: its plan, and the chain grown column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Run
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.codec import Between, Label
from sliceflow.models.plan import Plan
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.tables.cells import TableRows, read_frame, shown
from sliceflow.spaces.tables.chain import COST, Link, leaf_size
from sliceflow.spaces.tables.files import read_frame_or_file
from sliceflow.spaces.tables.table import Table, draw_rows, grow_chain, grow_link

__all__ = ["FittedTable", "TablePlan", "TableSpace"]

_SECONDS = 1.5e-6  # for each row and column that a tree sees, on one thread

Count = Annotated[int, Between(0, 1 << 40)]


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """What a fit of a table does. It prints as a table.

    Parameters
    ----------
    n_rows, n_columns : size of the table
    order : the columns in the order in which they are drawn
    leaf : rows of a leaf, at least
    cost : what a split must gain, relative to one of noise
    rules : constraints, and dependencies that were found
    identifiers : columns whose values are made up
    """

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]
    leaf: Count
    cost: Annotated[float, Between(0)]
    rules: tuple[str, ...] = ()
    identifiers: tuple[Label, ...] = ()

    @property
    def method(self) -> str:
        return "chain of trees"

    def lines(self) -> Sequence[tuple[str, object]]:
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", shown(self.order)),
            (
                "trees",
                f"leaves of {self.leaf} rows or more; splits worth {self.cost:g} times noise",
            ),
            ("rules", shown(self.rules)),
            ("identifiers", shown(self.identifiers)),
            ("model", "keeps all rows"),
        ]


@dataclass(frozen=True)
class FittedTable:
    """The state of a fitted table: its trees are grown again from the rows that the model keeps.

    Parameters
    ----------
    plan : what the fit did
    seed : of the fit
    table : the rows, understood
    grown : the chain, if it is grown already
    """

    plan: TablePlan
    seed: Seed
    table: Table | None = field(default=None, metadata={"saved": False})
    grown: tuple[Link, ...] | None = field(default=None, metadata={"saved": False})

    needs_rows = True
    condition = None
    codes = None
    device = torch.device("cpu")

    @property
    def rows(self) -> Table:
        assert self.table is not None
        return self.table

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The chain."""
        return self.grown or tuple(grow_chain(self.rows, self.rows.z, (), self.seed))

    def sample_bytes(self, n: int = 1) -> int:
        return 64 * (n + self.plan.n_rows) * max(1, self.plan.n_columns)

    def draw(self, n: int, codes: Tensor | None, seed: Seed, missing: bool = True) -> Any:
        z = draw_rows(self.rows, self.links, n, seed, {}, missing)
        return self.rows.frame(z, seed)

    def columns(self, X: Any) -> Tensor:
        scores = self.rows.scores(self.rows.positions_of(read_frame(X)))
        return torch.from_numpy(np.ascontiguousarray(scores))


@dataclass(frozen=True)
class TableSpace:
    """Tables, for one estimator: kinds of columns that the user gave, constraints, and known rows."""

    kinds: Mapping[str, str]
    constraints: Sequence[str]
    known: TableRows | None = None

    def read(self, X: Any, y: Any, ranks: Ranks) -> TableRows:
        if y is not None:
            raise ValueError("a table has no y; pass it as a column of X, and given= to sample")
        if ranks.size > 1:
            raise ParameterError("ranks", ranks.size, "do not share tables", "fit in one process")
        rows = read_frame_or_file(X)
        return rows if self.known is None else rows.like(self.known)

    def prepare(self, rows: TableRows, seed: Seed, ranks: Ranks) -> TableJob:
        table = Table.understand(rows, self.kinds, self.constraints)
        d = len(table.order)
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.names[c] for c in table.order),
            leaf=leaf_size(rows.n),
            cost=COST,
            rules=tuple(rule.text for rule in table.rules.rules),
            identifiers=tuple(c.name for c in table.columns if c.kind == "identifier"),
        )
        seconds = _SECONDS * min(rows.n, 50_000) * d * (d + 1) + 1e-6 * rows.n * d
        what = f"{rows.n} rows of {len(table.columns)} columns need"
        plan = plan.taking(200 * rows.n * max(1, d), seconds, what, "fit fewer rows")
        return TableJob(plan, FittedTable(plan, seed, table))


@dataclass(frozen=True)
class TableJob:
    """A planned fit, of one part."""

    plan: TablePlan
    fitted: FittedTable

    @property
    def parts(self) -> tuple[TablePart, ...]:
        return (TablePart(self.fitted),)

    def finish(self, results: Sequence[Any]) -> tuple[FittedTable, None, None]:
        self.fitted.rows.warn_of_personal()
        return replace(self.fitted, grown=results[0]), None, None

    def copies(self, results: Sequence[Any]) -> str:
        return ""


@dataclass(frozen=True)
class TablePart:
    """The growth of a chain. It has no particles; a step is a column."""

    fitted: FittedTable
    name = ""
    n_stages = 1
    first = 0
    rule = None

    @property
    def n_steps(self) -> int:
        return len(self.fitted.rows.order)

    @cached_property
    def particles(self) -> Cloud:
        return Cloud(torch.zeros(1, 1), None)

    @cached_property
    def links(self) -> list[Link]:
        return []

    def begin(self) -> TablePart:
        return self

    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None:
        """Grow one link after the other. A resumed fit grows the first ones again, silently."""
        table, began = self.fitted.rows, events.now() - run.seconds
        for k in range(self.n_steps):
            link = grow_link(table, table.z, table.order, k, self.fitted.seed)
            self.links.append(link)
            if k < run.done:
                continue
            run.step, run.done, run.seconds = k + 1, k + 1, events.now() - began
            left = torch.tensor(link.left, dtype=torch.float64)
            event = events.Event(
                "columns",
                0,
                k,
                k + 1,
                self.n_steps,
                left,
                run.seconds,
                self.particles.x,
                None,
                self.n_steps,
            )
            events.tell(listeners, event)
            run.after()

    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> tuple[Link, ...]:
        return tuple(self.links)
