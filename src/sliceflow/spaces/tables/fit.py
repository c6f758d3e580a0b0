"""The fit of a table: its plan, and the chain grown column by column."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Run
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.fields import Between, Count, Label
from sliceflow.models.plan import Plan
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.tables.cells import TableRows, read_frame, shown
from sliceflow.spaces.tables.chain import MOST_ROWS, Detail, Link, Way
from sliceflow.spaces.tables.files import as_frame
from sliceflow.spaces.tables.near import Near
from sliceflow.spaces.tables.table import Table, choose_ways, draw_rows, generator, grow_chain

_SECONDS = 1.5e-6  # for each row and column that a tree sees, on one thread
_NEARER = 0.545  # share of draws nearer to rows that trees grew on than to others, at most
_APART, _SAME = 0.97, 0.01  # their distance over that of rows, at least; that of equal rows
_TRIED_ROWS, _TRIED_COLUMNS = 3_000, 60  # that choose how fine trees are; of rows, twice as many
_FEWEST = 40  # fewer rows than these do not choose
_NEAR = (8, 12, 18, 27, 40, 60, 90, 135)  # neighbours that are tried
_COMPARED = 600  # rows that compare neighbours with trees: few are halved often
_CHOICE = Seed(0).child("detail")  # random numbers of all that is chosen

Points = tuple[Tensor, Tensor]  # numbers of rows, and positions of their other columns


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """What a fit of a table does. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # the columns in the order in which they are drawn,
    ways: tuple[Way, ...]  # and how: from leaves, or along a regression of numbers or of logarithms
    leaf: Count  # rows of a leaf, at least,
    cost: Annotated[float, Between(0)]  # and what a split must gain, relative to one of noise
    near: Count = 0  # rows from which smooth numbers are drawn
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up

    @property
    def method(self) -> str:
        return "near rows and a chain of trees" if self.near else "chain of trees"

    @property
    def detail(self) -> Detail:
        return Detail(self.leaf, self.cost, self.near)

    def lines(self) -> Sequence[tuple[str, object]]:
        along = [name for name, way in zip(self.order, self.ways, strict=True) if way != "leaves"]
        near = f"smooth numbers from the {self.near} rows nearest to a random one" if self.near else ""
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", shown(self.order)),
            ("near rows", near),
            ("trees", f"leaves of {self.leaf} rows or more; splits worth {self.cost:g} times noise"),
            ("lines", shown(along)),
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
    grown: tuple[Link | Near, ...] | None = field(default=None, metadata={"saved": False})

    needs_rows, condition, codes = True, None, None
    device = torch.device("cpu")

    @cached_property
    def links(self) -> tuple[Link | Near, ...]:
        return self.grown or tuple(self.grow())

    def grow(self, missing: bool = True) -> Iterator[Link | Near]:
        """The links of all columns. Near rows may have missing cells: without these, trees draw all."""
        detail = self.plan.detail if missing else self.plan.detail._replace(near=0)
        return grow_chain(self.table, self.table.z, (), self.seed, detail, self.plan.ways)

    def sample_bytes(self, n: int = 1) -> int:
        return 64 * (n + self.plan.n_rows) * max(1, self.plan.n_columns)

    def draw(self, n: int, codes: Tensor | None, seed: Seed, missing: bool = True) -> Any:
        as_grown = missing or not self.plan.near
        links = self.links if as_grown else tuple(self.grow(missing))
        return self.table.frame(draw_rows(self.table, links, n, seed, {}, missing), seed)

    def columns(self, X: Any) -> Tensor:
        z = self.table.positions_of(read_frame(X))
        axes = [self.table.columns[c].axes(z[:, c]) for c in self.table.order]
        return torch.from_numpy(np.vstack([of.T for of in axes] or [np.zeros((1, len(z)))]))


@dataclass(frozen=True)
class TableSpace:
    """Tables, for one estimator: kinds of columns, constraints, known rows, and how fine trees are."""

    kinds: Mapping[str, str]
    constraints: Sequence[str]
    known: TableRows | None = None
    detail: tuple[int, float] | tuple[int, float, int] | None = None  # None is chosen

    def read(self, X: Any, y: Any, ranks: Ranks) -> TableRows:
        if y is not None:
            raise ValueError("a table has no y; pass it as a column of X, and given= to sample")
        if ranks.size > 1:
            raise ParameterError("ranks", ranks.size, "do not share tables", "fit in one process")
        rows = read_frame(as_frame(X))
        return rows if self.known is None else rows.like(self.known)

    def prepare(self, rows: TableRows, seed: Seed, ranks: Ranks) -> TableJob:
        table = Table.understand(rows, self.kinds, self.constraints)
        d, ways = len(table.order), choose_ways(table)
        detail = Detail(*self.detail) if self.detail else choose_detail(table, ways)
        if not may_be_near(table, ways):
            detail = detail._replace(near=0)
        plan = TablePlan(
            device="cpu",
            n_rows=rows.n,
            n_columns=len(table.columns),
            order=tuple(table.names[c] for c in table.order),
            ways=ways,
            **detail.of_rows(rows.n)._asdict(),
            rules=tuple(rule.text for rule in table.rules.rules),
            identifiers=tuple(c.name for c in table.columns if c.kind == "identifier"),
        )
        seconds = _SECONDS * min(rows.n, MOST_ROWS) * d * (d + 1) + 1e-6 * rows.n * d
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
    links: list[Link | Near] = field(default_factory=list)
    particles: Cloud = field(default_factory=lambda: Cloud(torch.zeros(1, 1), None))

    name, n_stages, first = "", 1, 0

    @property
    def n_steps(self) -> int:
        plan = self.fitted.plan
        together = len(self.fitted.table.together(plan.ways)) if plan.near else 1
        return len(plan.order) + 1 - together

    def begin(self) -> TablePart:
        return TablePart(self.fitted)

    def move(self, run: Run, listeners: Sequence[events.Listener]) -> None:
        """Grow one link after the other. A resumed fit grows the first ones again, silently."""
        began, n, x = events.now() - run.seconds, self.n_steps, self.particles.x
        for k, link in enumerate(self.fitted.grow()):
            self.links.append(link)
            if k >= run.done:
                run.step, run.done, run.seconds = k + 1, k + 1, events.now() - began
                left = torch.tensor(link.left, dtype=torch.float64)
                at = "columns", 0, k, k + 1, n, left, run.seconds, x, None, n
                events.tell(listeners, events.Event(*at, measure="unexplained share"))
                run.after()

    def finish(self, run: Run, listeners: Sequence[events.Listener]) -> FittedTable:
        if found := [column.name for column in self.fitted.table.columns if column.reveals]:
            which = f"the column{'s'[: len(found) > 1]} {shown(found)}, most of which belong to one row"
            cure = f"pass columns={{{found[0]!r}: 'identifier'}} for new ones, or 'drop'"
            warnings.warn(f"samples contain real values of {which}; {cure}", UserWarning, stacklevel=2)
        return replace(self.fitted, grown=tuple(self.links))


def choose_trees(table: Table, ways: Sequence[Way]) -> Detail:
    """The finest trees whose draws copy no rows.

    Of many rows, chains are grown on two parts: hardly more than half of their draws may be nearer to
    their own. Of few, a chain is grown on all: its draws must be about as far from rows as these are.
    A straight line from trees in the middle to the finest, or to the coarsest, says which these are.
    """
    n = len(table.z)
    if n < _FEWEST or not table.order:
        return Detail.at(1).of_rows(n)
    size = _TRIED_ROWS if n >= 2 * _TRIED_ROWS else n
    mixed = table.z[generator(_CHOICE).permutation(n)[: 2 * size]]
    parts = [part for part in (mixed[:size], mixed[size:]) if len(part)]
    known = [_points(table, part) for part in parts]
    apart = _nearest(known[0], known[0], 2) if len(parts) == 1 else None

    def excess(t: float) -> float:
        """How much nearer to rows draws are than they may be."""
        new = [_points(table, _drawn(table, rows, Detail.at(t), ways)) for rows in parts]
        if apart is not None:
            return _excess(new[0], known[0], apart)
        to = [[_nearest(z, rows) for rows in known] for z in new]
        gaps = torch.cat((to[0][1] - to[0][0], to[1][0] - to[1][1]))
        return 0.5 + float(gaps.sign().mean()) / 2 - _NEARER

    middle = excess(0.5)
    there = excess(end := 0.0 if middle <= 0 else 1.0)
    if (middle <= 0) != (there <= 0):
        end = 0.5 + (end - 0.5) * middle / (middle - there)
    return Detail.at(end).of_rows(n)


def may_be_near(table: Table, ways: Sequence[Way]) -> bool:
    """Whether smooth numbers may be drawn from near rows: if these are few, and keep no rules."""
    few = len(table.z) < _TRIED_ROWS and len(table.order) <= _TRIED_COLUMNS
    return few and not table.rules.rules and bool(table.together(ways))


def choose_detail(table: Table, ways: Sequence[Way]) -> Detail:
    """The finest trees whose draws copy no rows, and the least near rows; or none, if trees are better.

    Half of the rows say that: a detector tells them from draws of the other half.
    """
    trees, gains, some = choose_trees(table, ways), list[float](), table.order
    enough = len(table.z) >= _FEWEST and may_be_near(table, ways)
    near = _least_near(table, trees, ways) if enough else 0
    for seed in range(max(1, _COMPARED // len(table.z)) if near else 0):
        a, b = np.array_split(generator(_CHOICE.child("near", seed)).permutation(table.z), 2)
        for rows, others in ((a, b), (b, a)):
            both = [_drawn(table, rows, trees._replace(near=k), ways) for k in (0, near // 2)]
            seen = [_seen(others[:, some], draws[: len(others), some]) for draws in both]
            gains.append(seen[0] - seen[1])
    return trees._replace(near=near if sum(gains) > 0 else 0)


def _least_near(table: Table, trees: Detail, ways: Sequence[Way]) -> int:
    z, known = table.z, _points(table, table.z)
    apart = _nearest(known, known, 2)
    for k in (k for k in _NEAR if 2 * k <= len(z)):
        draws = _drawn(table, z, trees._replace(near=k), ways)
        if _excess(_points(table, draws), known, apart) <= 0:
            return k
    return 0


def _drawn(table: Table, rows: np.ndarray, detail: Detail, ways: Sequence[Way]) -> np.ndarray:
    """Twice as many draws as rows, of the first columns."""
    z, rng = np.zeros((2 * len(rows), rows.shape[1])), generator(_CHOICE.child("draws"))
    for link in grow_chain(table, rows, table.order[_TRIED_COLUMNS:], _CHOICE, detail, ways):
        z[:, link.column] = link.draw(z, rng)
    return z


def _excess(new: Points, known: Points, apart: Tensor) -> float:
    """How much nearer draws are to rows than rows are to each other, and may be."""
    logs = [(d + _SAME).log().mean() for d in (_nearest(new, known), apart)]
    return float(logs[1] - logs[0]) + math.log(_APART)


def _seen(rows: np.ndarray, draws: np.ndarray) -> float:
    """The area under the ROC curve of boosted trees that tell draws from rows; ½ if they cannot."""
    x, y = np.concatenate((rows, draws)), np.repeat((0, 1), (len(rows), len(draws)))
    size = {"max_iter": 20, "max_leaf_nodes": 8, "min_samples_leaf": 10}
    judge = HistGradientBoostingClassifier(learning_rate=0.2, early_stopping=False, **size)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    return float(cross_val_score(judge, x, y, cv=folds, scoring="roc_auc").mean())


def _points(table: Table, z: np.ndarray) -> Points:
    """The numbers of rows by their range, and the positions of other columns."""
    some = table.order[:_TRIED_COLUMNS]
    numbers = [c for c in some if table.columns[c].is_number]
    x = np.full((len(z), len(numbers)), -0.5)  # missing
    for i, column, at in ((i, table.columns[c], z[:, c]) for i, c in enumerate(numbers)):
        scaled = (column.numbers(at) - column.values[0]) / (np.ptp(column.values) or 1)
        x[at >= 0, i] = scaled[at >= 0]
    others = [c for c in some if c not in numbers]
    return torch.from_numpy(x).float(), torch.from_numpy(z[:, others]).float()


def _nearest(points: Points, rows: Points, k: int = 1) -> Tensor:
    """Distances to the k-th closest record: Σ|xᵢ − yᵢ| of numbers, and 2 for each other level."""
    blocks = zip(*(torch.split(part, 1_000) for part in points), strict=True)
    away = (torch.cdist(x, rows[0], p=1) + 2 * torch.cdist(a, rows[1], p=0) for x, a in blocks)
    return torch.cat([each.topk(k, largest=False).values[:, -1] for each in away])
