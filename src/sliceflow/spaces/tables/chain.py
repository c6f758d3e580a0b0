"""A chain of trees: new rows, one column after the other, each given those before it.

This is a Knothe–Rosenblatt map: one-dimensional transports, each conditional on what is there already;
the triangular sibling of the sliced flow. A tree splits the rows by the columns before. A new cell is
the value of a random row in the leaf, or between two neighbours. Numbers that follow from the columns
before more closely, as a total from its parts, are drawn along a regression, and the tree is of what it
leaves over (`choose_strategy`).

Trees compare distributions, not means: the target of a number is its normal score and the cosines
cos(kπu) of its rank u, so that differences in spread and shape count as well. Cost-complexity pruning
removes splits that gain less than a few times what one of pure noise would (`TreeSettings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.lines import Line, measured

_PER_LEAF = 15  # leaves of a table, at least: few rows have smaller leaves
_COSINES = 16
_TAIL = 1.5  # functions of the rank, and the weight of the normal score beside them
_CLASSES = 30  # more levels than this are one-hot, the most frequent
MOST_ROWS = 50_000  # that a tree is grown on; all rows are in its leaves
_MOST_COLUMNS = 40  # that a tree sees; of more, those with the largest correlations
_EQUAL = 0.001  # share of rows in which a number equals one before it, from which on that is modelled
_LINEAR = 12  # levels of a number from which on it is predicted
_JUDGED = 4_000  # rows that are predicted to choose a way, and as many to learn from
_CLOSE = 0.05  # error of a line's predictions in ranks, at most
_TRIES = 24
_CLIMB = 4  # draws until one is allowed, and draws per node on the way up

# How a column is drawn: from leaves; as a label whose levels have trees of their own; or along a line.
Strategy = Literal["leaves", "per_level", "numbers", "logs"]
LINES: tuple[Strategy, ...] = ("numbers", "logs")
Allowed = Callable[
    [np.ndarray, np.ndarray], np.ndarray
]  # (rows, positions) -> which are allowed


class TreeSettings(NamedTuple):
    """How fine trees are: the rows of a leaf, at least, and what a split must gain, relative to noise.

    Also from how many near rows smooth numbers are drawn; with 0, trees draw them, too.
    """

    leaf: int
    cost: float
    near: int = 0

    @classmethod
    def at(cls, t: float) -> TreeSettings:
        """From the finest trees, t = 0, to the coarsest, t = 1."""
        return cls(round(5 * 4**t), round(2 + 0.75 * t, 2))

    def of_rows(self, n: int) -> TreeSettings:
        """The same for n rows: fewer have smaller leaves."""
        return self._replace(leaf=min(self.leaf, max(3, n // _PER_LEAF)))


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree whose leaves hold rows. The rows of every node are a range of `rows`."""

    nodes: Any  # the tree of scikit-learn
    rows: (
        np.ndarray
    )  # (n,), numbers of rows in the order of leaves, and of positions within a leaf
    first: np.ndarray  # (nodes,), where the range of each node begins,
    count: np.ndarray  # its length,
    parent: np.ndarray  # and the node above
    left: float = 1.0  # share of the impurity that the tree leaves

    @classmethod
    def grow(
        cls,
        x: np.ndarray,
        target: np.ndarray,
        y: np.ndarray,
        detail: TreeSettings,
        rng: np.random.Generator,
    ) -> Tree:
        """The tree that tells the distributions of y (n,) apart by x (n, p); y has this `target`."""
        some = np.sort(rng.permutation(len(y))[:MOST_ROWS])
        kind = DecisionTreeRegressor if target.ndim == 2 else DecisionTreeClassifier
        alpha = detail.cost / len(some) * _impurity(target[some])
        # Half the gain saves time, and hardly a split that the pruning would have kept.
        how = {
            "min_samples_leaf": detail.leaf,
            "ccp_alpha": alpha,
            "min_impurity_decrease": alpha / 2,
        }
        nodes = kind(random_state=0, **how).fit(x[some], target[some]).tree_
        at = nodes.apply(x)
        order = np.lexsort((y, at))
        # Nodes are numbered depth first: those below a node end where its sibling begins.
        k = nodes.node_count
        parent = np.zeros(nodes.node_count, dtype=np.int64)
        end = np.full(k, k)
        inner = np.flatnonzero(nodes.children_left >= 0)
        below = nodes.children_left[inner], nodes.children_right[inner]
        for v, low, high in zip(inner, *below, strict=True):
            parent[[low, high]], end[low], end[high] = v, high, end[v]
        first, last = (np.searchsorted(at[order], ends) for ends in (np.arange(k), end))
        spread = nodes.impurity * nodes.n_node_samples
        rest = float(spread[nodes.children_left < 0].sum() / max(spread[0], 1e-12))
        return cls(nodes, order, first, last - first, parent, rest)


def _impurity(target: np.ndarray) -> float:
    if target.ndim == 2:
        return float(target.var(0).mean())
    share = np.unique(target, return_counts=True)[1] / len(target)
    return float(1 - (share**2).sum())


def targets(column: Column, y: np.ndarray) -> np.ndarray:
    """What a tree shall tell apart: classes (n,), or functions of the positions (n, k)."""
    if column.is_number:
        u = (rankdata(y) - 0.5) / len(y)
        cosines = np.cos(np.pi * np.arange(1, _COSINES + 1) * u[:, None])
        return np.column_stack((cosines, _TAIL * ndtri(u)))
    levels, counts = np.unique(y, return_counts=True)
    if len(levels) <= _CLASSES:
        return y.astype(np.int64)
    often = levels[np.argsort(-counts, kind="stable")[:_CLASSES]]
    return np.asarray(y[:, None] == often, dtype=np.float64)


def _any(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.full(len(rows), True)


@dataclass(frozen=True, eq=False)
class Link:
    """One column of the chain."""

    columns: Sequence[Column]  # of the table
    column: int  # the number of this one
    before: np.ndarray  # and of those that its trees see
    lines: tuple[Line, ...]  # whose predictions trees see as columns, too
    tree: Tree  # with the rows that do not equal an earlier column
    y: np.ndarray  # (n,), their positions; or what the last line leaves over
    along: bool  # which of the two
    equal: tuple[int, ...] = ()  # columns that it equals in some rows
    which: Tree | None = (
        None  # says which of them, 0 for none, and one more for a missing cell,
    )
    choice: Any = None  # (n,), by what all rows have

    @property
    def left(self) -> float:
        """Share of the impurity that the tree leaves."""
        return self.tree.left

    def draw(
        self, z: np.ndarray, rng: np.random.Generator, allowed: Allowed = _any
    ) -> np.ndarray:
        """Positions (m,) given those of earlier columns in z (m, d); NaN where none was allowed."""
        own = self.columns[self.column]
        out = np.full(len(z), np.nan)
        x, ahead = _features(z, self.before, self.lines)
        if self.which is not None:
            node = self.which.nodes.apply(x)
            at = self.which.first[node] + (
                _spread(node, rng) * self.which.count[node]
            ).astype(np.int64)
            chosen = self.choice[self.which.rows[at]]
            for k, other in enumerate(self.equal, 1):
                rows = np.flatnonzero(chosen == k)
                same = own.positions_of(
                    _numbers_in(own, self.columns[other], z[rows, other])
                )
                ok = (same >= 0) & allowed(rows, same)
                out[rows[ok]] = same[ok]
            gone = np.flatnonzero(chosen > len(self.equal))
            out[gone[allowed(gone, np.full(len(gone), -1.0))]] = -1
        rest = np.flatnonzero(np.isnan(out))
        node = self.tree.nodes.apply(x[rest])
        for attempt in range(_TRIES):
            if not len(rest):
                break
            drawn = self._values(node, rng, ahead[rest])
            ok = allowed(rest, drawn)
            out[rest[ok]] = drawn[ok]
            rest = rest[~ok]
            node = node[~ok]
            if attempt % _CLIMB == _CLIMB - 1:
                node = self.tree.parent[node]
        return out

    def _values(
        self, node: np.ndarray, rng: np.random.Generator, ahead: np.ndarray
    ) -> np.ndarray:
        """Values of random rows of nodes, or between two of them; `ahead` is the last line's prediction."""
        column = self.columns[self.column]
        tree = self.tree
        count = tree.count[node]
        first = tree.first[node]
        at = _spread(node, rng) * count
        drawn = self.y[tree.rows[first + at.astype(np.int64)]]
        if not self.along and not column.free.any():
            return np.asarray(drawn)
        # Between neighbours of the leaf. Rows of inner nodes are not sorted: there draws are rows' own.
        at = np.clip(at - 0.5, 0, count - 1)
        low = at.astype(np.int64)
        ends = [
            self.y[tree.rows[first + np.minimum(low + k, count - 1)]] for k in (0, 1)
        ]
        sound = tree.nodes.children_left[node] < 0
        if self.along:
            between = ends[0] + (at - low) * (ends[1] - ends[0])
            return self.lines[-1].position(
                column, ahead + np.where(sound, between, drawn)
            )
        return np.where(sound, column.between(ends, at - low, drawn), drawn)


@dataclass(frozen=True, eq=False)
class PerLevel:
    """The links of one column for each level of a label: no tree mixes these."""

    label: int
    links: Mapping[float, Link]  # by the label's positions

    @property
    def column(self) -> int:
        return next(iter(self.links.values())).column

    @property
    def along(self) -> bool:
        return any(link.along for link in self.links.values())

    @property
    def left(self) -> float:
        """Share of the impurity that trees leave, on average."""
        return float(np.mean([link.left for link in self.links.values()]))

    def draw(
        self, z: np.ndarray, rng: np.random.Generator, allowed: Allowed = _any
    ) -> np.ndarray:
        """As `Link.draw`."""
        out = np.full(len(z), np.nan)
        for level, link in self.links.items():
            own = np.flatnonzero(z[:, self.label] == level)
            out[own] = link.draw(z[own], rng, partial(_of_rows, allowed, own))
        return out


def _of_rows(
    allowed: Allowed, own: np.ndarray, rows: np.ndarray, at: np.ndarray
) -> np.ndarray:
    return allowed(own[rows], at)


def _spread(node: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers in [0, 1), evenly spread among those of the same node: no row is drawn more than its share."""
    order = np.lexsort((rng.random(len(node)), node))
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    size = np.diff(first, append=len(node))
    rank = np.arange(len(node)) - np.repeat(first, size)
    out = np.empty(len(node))
    out[order] = np.minimum(
        (rank + rng.random(len(node))) / np.repeat(size, size), 1 - 1e-12
    )
    return out


def grow(  # many: rows, what of them, and how
    columns: Sequence[Column],
    z: np.ndarray,
    column: int,
    before: np.ndarray,
    seed: tuple[int, ...],
    detail: TreeSettings,
    strategy: Strategy = "leaves",
) -> Link:
    """The link of a column, given the columns `before`, from positions z (n, d) of the rows."""
    rng = np.random.default_rng(seed)
    y = z[:, column]
    own = columns[column]
    before = _related(z, column, before)
    lines = list[Line]()
    line = None
    if own.is_number and len(own.order) >= _LINEAR and len(before) > 1:
        some = z[np.sort(rng.permutation(len(z))[:MOST_ROWS])]
        lines += filter(None, [Line.fit("scores", columns, some, column, before)])
    equal, choice = equal_columns(columns, z, column, before)
    if strategy in LINES:
        some = np.flatnonzero((choice == 0) & (y >= 0))
        some = np.sort(some[rng.permutation(len(some))[:MOST_ROWS]])
        line = Line.fit(strategy, columns, z[some], column, before)
    if line is not None:
        lines.append(line)
        choice[y < 0] = len(equal) + 1
    x, ahead = _features(z, before, lines)
    which = (
        Tree.grow(x, choice, choice.astype(np.float64), detail, rng)
        if choice.any()
        else None
    )
    free = (choice == 0) | choice.all()  # draws may have to differ even if no row does
    y = y[free]
    if line is not None:
        y = measured(strategy, columns, z[free], [column])[:, 0] - ahead[free]
    tree = Tree.grow(x[free], targets(own, y), y, detail, rng)
    return Link(
        columns,
        column,
        before,
        tuple(lines),
        tree,
        y,
        line is not None,
        equal,
        which,
        choice,
    )


def choose_strategy(
    columns: Sequence[Column],
    z: np.ndarray,
    column: int,
    before: np.ndarray,
    seed: tuple[int, ...],
    margin: float = 1.0,
) -> Strategy:
    """How a column is drawn best: along a line if its score is below `margin` times that of leaves.

    Each half of the rows judges what was fitted to the other. One half alone would choose by luck where
    the two are close: the error of filled cells doubled on one table in six.
    """
    own = columns[column]
    before = _related(z, column, before)
    if not own.has_room or len(own.order) < _LINEAR or not len(before):
        return "leaves"
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(z[:, column] >= 0)
    judged = rows[rng.permutation(len(rows))[: 2 * _JUDGED]]
    first, second = np.array_split(z[judged], 2)
    trials = [
        _Trial(columns, column, before, first, second),
        _Trial(columns, column, before, second, first),
    ]
    errors = {
        strategy: sum(trial.error(strategy) for trial in trials) / 2
        for strategy in LINES
    }
    best = min(LINES, key=lambda strategy: errors[strategy])
    if errors[best] > _CLOSE:
        return "leaves"
    along_line = sum(trial.score(best, seed, rng) for trial in trials)
    from_leaves = sum(trial.score("leaves", seed, rng) for trial in trials)
    return best if along_line < margin * from_leaves else "leaves"


@dataclass(frozen=True, eq=False)
class _Trial:
    """Judges ways to draw a column, fitted to some rows, by other rows."""

    columns: Sequence[Column]  # of the table
    column: int  # the number of the one that is drawn,
    before: np.ndarray  # and of those that it is drawn from
    fitted: np.ndarray  # (n, d), positions of the rows to fit
    judges: np.ndarray  # (m, d), and of those that judge

    def error(self, strategy: Strategy) -> float:
        """The mean error in ranks of a line's predictions; infinite if there are too few rows for a line."""
        line = Line.fit(strategy, self.columns, self.fitted, self.column, self.before)
        if line is None:
            return np.inf
        predicted = line.position(self.columns[self.column], line.at(self.judges))
        return float(np.abs(self._ranks(predicted) - self._truth).mean())

    def score(
        self, strategy: Strategy, seed: tuple[int, ...], rng: np.random.Generator
    ) -> float:
        """The continuous ranked probability score, E|u(Y) − u(y)| − ½ E|u(Y) − u(Y′)| with ranks u.

        Y and Y′ are two draws for each y.
        """
        detail = TreeSettings.at(0).of_rows(len(self.fitted))
        link = grow(
            self.columns, self.fitted, self.column, self.before, seed, detail, strategy
        )
        one = self._ranks(link.draw(self.judges, rng))
        other = self._ranks(link.draw(self.judges, rng))
        error = np.mean([np.abs(one - self._truth), np.abs(other - self._truth)])
        return float(error - np.abs(one - other).mean() / 2)

    @cached_property
    def _truth(self) -> np.ndarray:
        return self._ranks(self.judges[:, self.column])

    def _ranks(self, positions: np.ndarray) -> np.ndarray:
        """The ranks, from 0 to 1, of positions among those of the fitted rows."""
        known = np.sort(self.fitted[:, self.column])
        below = np.searchsorted(known, positions, "left")
        up_to = np.searchsorted(known, positions, "right")
        return (below + up_to) / (2 * len(known))


def _features(
    z: np.ndarray, before: np.ndarray, lines: Sequence[Line]
) -> tuple[np.ndarray, np.ndarray]:
    """What trees see of rows: positions, and predictions. Also the last of these, in full precision."""
    found = [line.at(z) for line in lines]
    x = z[:, before] if len(before) else np.zeros((len(z), 1))  # all alike
    x = np.column_stack((x, *found)).astype(np.float32)
    return x, found[-1] if found else np.zeros(len(z))


def _related(z: np.ndarray, column: int, before: np.ndarray) -> np.ndarray:
    """Of many columns those with the largest rank correlations."""
    if len(before) <= _MOST_COLUMNS:
        return before
    some = z[:: max(1, len(z) // 2000)]
    x = some[:, before]
    y = some[:, column]
    r = np.abs((x - x.mean(0)).T @ (y - y.mean())) / (x.std(0) * len(x) + 1e-12)
    return np.sort(before[np.argsort(-r, kind="stable")[:_MOST_COLUMNS]])


def equal_columns(
    columns: Sequence[Column], z: np.ndarray, column: int, before: np.ndarray
) -> tuple[tuple[int, ...], np.ndarray]:
    """Earlier columns that a smooth number equals in some rows, and which of them each row equals."""
    own = columns[column]
    y = z[:, column]
    choice = np.zeros(len(z), dtype=np.int64)
    free = own.is_free(y)
    mine = own.numbers(y)
    same = dict[int, np.ndarray]()
    for other in before.tolist() if free.any() else []:
        if columns[other].kind == own.kind and (columns[other].unit is None) == (
            own.unit is None
        ):
            same[other] = free & (mine == _numbers_in(own, columns[other], z[:, other]))
    equal: list[int] = []
    for other in sorted(same, key=lambda other: -same[other].mean()):
        if (rows := same[other] & (choice == 0)).mean() >= _EQUAL:
            equal.append(other)
            choice[rows] = len(equal)
    return tuple(equal), choice


def _numbers_in(column: Column, other: Column, positions: np.ndarray) -> np.ndarray:
    """Numbers of another column in the units of this one."""
    numbers = other.numbers(positions)
    if column.unit is None or other.unit is None:
        return numbers
    scale = other.unit / column.unit
    return (
        numbers * float(other.step * scale) + float(other.base * scale - column.base)
    ) / column.step
