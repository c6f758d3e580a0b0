"""Filled cells drawn once more, column by column, given all others.

Local conditions (`sliceflow.spaces.tables.conditional`) see a category as a coordinate, along one order of its
levels. That blurs what hangs on single levels. So each filled cell is drawn again from the rows that
trees find alike: a tree is picked at random, and in its leaf at random one of the table's rows, which
gives its category or number (multiple imputation by trees: Doove, van Buuren and Dusseldorp 2014). The
trees also see a linear prediction p of the column by the others. Numbers with a smooth score are moved
along it: such a score is

    p + m + s·(r − m),   r the residual of the picked row, and m the mean residual of its leaf.

Trees choose leaves in which residuals are alike, so without s draws would spread too little in small
tables. The size of leaves and s are chosen on rows that trees did not see: s so that 90 % intervals
hold 90 % of them. The predictions and residuals of the table's own rows are those of a fit without the
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.tree import ExtraTreeRegressor

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.scores import Coordinate, Scores, Stream

__all__ = ["redrawn"]

_TREES, _LEAVES = 50, (3, 10, 30)  # trees of a column, and the fewest rows of a leaf,
_PARTS, _ENOUGH = 5, 400  # which parts of the rows choose, at least so many rows,
_TRIED = 25  # by so many trees grown on the others
_SPREADS = np.linspace(0.25, 2.5, 10)  # of draws around the mean of their leaf,
_EACH = 4  # which so many draws of each of these trees choose
_SWEEPS = 2  # over the columns
_LEVELS = 24  # categories with an axis each, the most frequent
_OTHERS = 40  # coordinates that a column is predicted by, those with the largest correlations
_FEWEST, _MOST_ROWS = 20, 4_000  # rows that trees are grown on
_RIDGE = 0.01  # of the linear prediction
_CHUNK = 1 << 15  # rows at a time


def redrawn(
    scores: Scores, z: np.ndarray, numbers: np.ndarray, full: np.ndarray, gone: np.ndarray, seed: Seed
) -> np.ndarray:
    """The rows `full` with other values in the cells `gone`.

    Parameters
    ----------
    scores, z, numbers : the model, its rows (n, d), and these as numbers (n, columns)
    full : (m, columns), rows without missing cells
    gone : (m, columns), the cells that may change
    """
    full, rows = full.copy(), np.flatnonzero(gone.any(1))
    if not len(rows):
        return full
    some = seed.child("rows").permutation(len(z))[:_MOST_ROWS].numpy()
    known = np.where(np.isnan(numbers[some]), scores.decode(z[some], missing=False), numbers[some])
    values = [k for k in scores.coordinates if not k.flag]
    wanted = [k for k in values if gone[:, k.column].any()]
    at = np.array([not k.flag for k in scores.coordinates], dtype=bool)
    related = _related(z[some][:, at])
    seen = [_axes(scores, k, known) for k in values]
    chains = []
    for i, k in enumerate(values):
        there = ~np.isnan(numbers[some, k.column])
        if k in wanted and there.sum() >= _FEWEST and related[i]:
            x = np.hstack([seen[o] for o in related[i]])[there]
            found = _Column.of(k, x, seen[i][there], known[there, k.column])
            chains.append((k, related[i], found))
    draw = Stream(seed.child("draws"))
    for first in range(0, len(rows), _CHUNK):
        part = rows[first : first + _CHUNK]
        block = full[part]
        seen = [_axes(scores, k, block) for k in values]
        for _ in range(_SWEEPS):
            for k, others, column in chains:
                free = np.flatnonzero(gone[part, k.column])
                if len(free):
                    x = np.hstack([seen[o][free] for o in others])
                    block[free, k.column] = column.drawn(scores, k, x, draw)
                    seen[values.index(k)][free] = _axes(scores, k, block[free])
        full[part] = block
    return full


def _related(z: np.ndarray) -> list[list[int]]:
    """For each coordinate the others, or of many those with which it has the largest correlations."""
    d = z.shape[1]
    if d <= _OTHERS + 1:
        return [[o for o in range(d) if o != j] for j in range(d)]
    r = np.abs(np.corrcoef(z.T))
    np.fill_diagonal(r, -1.0)
    return [np.sort(np.argpartition(-row, _OTHERS)[:_OTHERS]).tolist() for row in r]


def _axes(scores: Scores, k: Coordinate, numbers: np.ndarray) -> np.ndarray:
    """What trees see of a column: its score, or the middle of it, and an axis for each category."""
    x = numbers[:, k.column]
    if k.smooth:
        return k.smoothed(x)[:, None]
    score = ndtri(np.clip(sum(k.bounds(x)) / 2, 1e-4, 1 - 1e-4))
    if not scores.columns[k.column].is_category or len(k.levels) == 2:
        return np.asarray(score[:, None])
    often = k.levels[np.argsort(-np.diff(k.cum), kind="stable")[:_LEVELS]]
    return np.column_stack((score, x[:, None] == often))


_Part = tuple[np.ndarray, np.ndarray, list[Any]]  # rows, others held out, and trees grown on the rows


@dataclass(frozen=True, eq=False)
class _Column:
    """Draws of one column given others: linear predictions, and trees with the rows of their leaves.

    Numbers with a smooth score go `spread` times as far from the mean of their leaf as its rows do.
    """

    predicted: Callable[[np.ndarray], np.ndarray]
    trees: Sequence[_Tree]
    spread: float

    @classmethod
    def of(cls, k: Coordinate, x: np.ndarray, axes: np.ndarray, numbers: np.ndarray) -> _Column:
        """That of the numbers (n,) of a column with these axes, given x (n, f)."""
        predicted, without = _linear(x, axes)
        target = axes - without if k.smooth else axes
        x = np.hstack((x, without)).astype(np.float32)
        values = target[:, 0] if k.smooth else numbers
        held = _held_out(x, target)
        size = min(_LEAVES, key=lambda leaf: _missed(held, x, target, leaf))
        trees = [_Tree.of(_nodes(x, target, size, t), x, values, size) for t in range(_TREES)]
        return cls(predicted, trees, _spread(held, x, values, size) if k.smooth else 1.0)

    def drawn(self, scores: Scores, k: Coordinate, x: np.ndarray, draw: Stream) -> np.ndarray:
        """A number for each row of x."""
        prediction = self.predicted(x)
        x = np.hstack((x, prediction)).astype(np.float32)
        which = (draw.uniform(len(x)) * len(self.trees)).astype(int)
        u, found = draw.uniform(len(x)), np.empty(len(x))
        for t, tree in enumerate(self.trees):
            at = np.flatnonzero(which == t)
            if len(at):
                mean, value = tree.picked(x[at], u[at])
                found[at] = mean + self.spread * (value - mean) if k.smooth else value
        if not k.smooth:
            return found
        return scores.columns[k.column].on_grid(k.unsmoothed(prediction[:, 0] + found))


@dataclass(frozen=True, eq=False)
class _Tree:
    """A tree, and rows in its leaves.

    Parameters
    ----------
    nodes : the tree of scikit-learn
    values : (n,), of the rows, in the order of the leaves
    first, last, mean : (nodes,), which of them a node has, and their mean
    """

    nodes: Any
    values: np.ndarray
    first: np.ndarray
    last: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, nodes: Any, x: np.ndarray, values: np.ndarray, size: int) -> _Tree:
        """That of the rows x (n, f) with values (n,); nodes with fewer than `size` have those above."""
        leaf = nodes.apply(x)
        order = np.argsort(leaf, kind="stable")
        low = _climbed(nodes, size)
        high = low.copy()  # the last node below: nodes are counted depth first, left before right
        while (inner := nodes.children_right[high] >= 0).any():
            high[inner] = nodes.children_right[high[inner]]
        first, last = np.searchsorted(leaf[order], low), np.searchsorted(leaf[order], high, "right")
        sums = np.concatenate(([0.0], np.cumsum(values[order])))
        mean = (sums[last] - sums[first]) / (last - first)
        return cls(nodes, values[order], first, last, mean)

    def picked(self, x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each row of x the mean of its leaf, and the value at rank u in (0, 1) of its rows."""
        own = self.nodes.apply(x)
        first, last = self.first[own], self.last[own]
        return self.mean[own], self.values[first + (u * (last - first)).astype(int)]


def _climbed(nodes: Any, size: int) -> np.ndarray:
    """For each node itself, or the nearest one above it, with at least `size` rows."""
    above = np.zeros(nodes.node_count, dtype=np.int64)
    for side in (nodes.children_left, nodes.children_right):
        above[side[side >= 0]] = np.flatnonzero(side >= 0)
    at = np.arange(nodes.node_count)
    while (small := (nodes.n_node_samples[at] < size) & (at > 0)).any():
        at[small] = above[at[small]]
    return at


def _linear(x: np.ndarray, y: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """Ridge regression of y (n, p) on x (n, f), and the predictions of each row by the others."""
    mean, scale = x.mean(0), x.std(0) + 1e-9

    def design(rows: np.ndarray) -> np.ndarray:
        return np.hstack((np.ones((len(rows), 1)), (rows - mean) / scale))

    a = design(x)
    ridge = np.full(a.shape[1], _RIDGE * len(a))
    ridge[0] = 0.0
    pull = np.linalg.solve(a.T @ a + np.diag(ridge), a.T)
    slopes = pull @ y
    leverage = np.minimum(np.einsum("nf,fn->n", a, pull), 0.99)
    return lambda rows: design(rows) @ slopes, y - (y - a @ slopes) / (1 - leverage)[:, None]


def _nodes(x: np.ndarray, y: np.ndarray, leaf: int, seed: int) -> Any:
    """An extremely randomised tree that predicts y (n, p) by x (n, f)."""
    tree = ExtraTreeRegressor(min_samples_leaf=leaf, max_features=1.0, random_state=seed)
    return tree.fit(x, y, check_input=False).tree_


def _held_out(x: np.ndarray, y: np.ndarray) -> list[_Part]:
    """Fifths of the rows, as many as have `_ENOUGH` rows, and trees grown on the rows of the others."""
    part = np.arange(len(x)) % _PARTS  # the rows are in a random order
    enough = min(_PARTS, -(-_ENOUGH * _PARTS // len(x)))
    out = []
    for own, rows in ((np.flatnonzero(part != p), np.flatnonzero(part == p)) for p in range(enough)):
        out.append((own, rows, [_nodes(x[own], y[own], _LEAVES[0], t) for t in range(_TRIED)]))
    return out


def _missed(held: list[_Part], x: np.ndarray, y: np.ndarray, size: int) -> float:
    """Mean error of the rows held out, with leaves of this size: squares of categories."""
    off = []
    for _, rows, trees in held:
        means = [nodes.value[_climbed(nodes, size)[nodes.apply(x[rows])], :, 0] for nodes in trees]
        off.append(np.mean(means, axis=0) - y[rows])
    return float(np.mean(np.abs(np.concatenate(off)) ** (1 if y.shape[1] == 1 else 2)))


def _spread(held: list[_Part], x: np.ndarray, y: np.ndarray, size: int) -> float:
    """How far draws must go so that 90 % intervals of them hold 90 % of the rows held out."""
    ranks, covered = (np.arange(_EACH) + 0.5) / _EACH, []
    for own, rows, trees in held:
        again, u = np.repeat(x[rows], _EACH, axis=0), np.tile(ranks, len(rows))
        found = [_Tree.of(nodes, x[own], y[own], size).picked(again, u) for nodes in trees]
        mean, value = np.array(found).transpose(1, 0, 2).reshape(2, len(trees), len(rows), _EACH)
        for s in _SPREADS:
            low, high = np.quantile(mean + s * (value - mean), [0.05, 0.95], (0, 2), method="weibull")
            covered.append((low <= y[rows]).sum() - (high < y[rows]).sum())
    share = np.reshape(covered, (-1, len(_SPREADS))).sum(0) / sum(len(rows) for _, rows, _ in held)
    return float(np.interp(0.9, np.maximum.accumulate(share), _SPREADS))
