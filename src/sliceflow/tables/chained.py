"""Filled cells drawn once more, column by column, given all others.

Local conditions (`sliceflow.tables.conditional`) see a category as a coordinate, along one order of its
levels. That blurs what hangs on single levels. So each filled cell is drawn again from the rows that
trees find alike: a tree is picked at random, and in its leaf at random one of the table's rows, which
gives its category or number (multiple imputation by trees: Doove, van Buuren and Dusseldorp 2014). The
trees also see a linear prediction of the column by the others. Numbers with a smooth score are moved
along it: they are the prediction plus the picked row's residual.

The predictions and residuals of the table's own rows are those of a fit without the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from sklearn.ensemble import ExtraTreesRegressor

from sliceflow.engine.random import Seed
from sliceflow.tables.scores import Coordinate, Scores, Stream

__all__ = ["redrawn"]

_TREES, _LEAVES = 50, (3, 10, 30)  # trees of a column, and the fewest rows of a leaf,
_TRIED = 25  # which so many trees choose
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
            found = _Column.of(scores, k, x, seen[i][there], known[there, k.column])
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


@dataclass(frozen=True, eq=False)
class _Column:
    """Draws of one column given others: linear predictions, trees, and the rows of their leaves."""

    predicted: Callable[[np.ndarray], np.ndarray]
    forest: ExtraTreesRegressor
    leaves: Sequence[tuple[np.ndarray, np.ndarray]]
    values: np.ndarray

    @classmethod
    def of(
        cls, scores: Scores, k: Coordinate, x: np.ndarray, axes: np.ndarray, numbers: np.ndarray
    ) -> _Column:
        """That of the numbers (n,) of a column with these axes, given x (n, f)."""
        predicted, without = _linear(x, axes)
        target = axes - without if k.smooth else axes
        x = np.hstack((x, without))
        forest = _grown(x, target)
        leaves = []
        for leaf in forest.apply(x).T:
            order = np.argsort(leaf, kind="stable")
            leaves.append((order, leaf[order]))
        return cls(predicted, forest, leaves, target[:, 0] if k.smooth else numbers)

    def drawn(self, scores: Scores, k: Coordinate, x: np.ndarray, draw: Stream) -> np.ndarray:
        """A number for each row of x."""
        prediction = self.predicted(x)
        x = np.hstack((x, prediction)).astype(np.float32)
        tree = (draw.uniform(len(x)) * _TREES).astype(int)
        u, found = draw.uniform(len(x)), np.empty(len(x))
        for t, (order, leaf) in enumerate(self.leaves):
            at = np.flatnonzero(tree == t)
            if len(at):
                own = self.forest.estimators_[t].tree_.apply(x[at])
                low, high = np.searchsorted(leaf, own), np.searchsorted(leaf, own, "right")
                found[at] = self.values[order[low + (u[at] * (high - low)).astype(int)]]
        if not k.smooth:
            return found
        return scores.columns[k.column].on_grid(k.unsmoothed(prediction[:, 0] + found))


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


def _grown(x: np.ndarray, y: np.ndarray) -> ExtraTreesRegressor:
    """Trees that predict y (n, p) by x (n, f), with leaves of the size that predicts best.

    The size is that with which trees grown on one half of the rows predict the other half best.
    """
    y = y if y.shape[1] > 1 else y[:, 0]

    def trees(count: int, leaf: int, rows: slice) -> ExtraTreesRegressor:
        forest = ExtraTreesRegressor(count, min_samples_leaf=leaf, random_state=0)
        return forest.fit(x[rows], y[rows])

    def missed(leaf: int) -> float:
        off = [trees(_TRIED, leaf, own).predict(x[other]) - y[other] for own, other in halves]
        return float(np.mean([np.mean(np.abs(e) ** y.ndim) for e in off]))  # squares of categories

    a, b = slice(0, None, 2), slice(1, None, 2)  # the rows are in a random order
    halves = ((a, b), (b, a))
    sizes = [leaf for leaf in _LEAVES if leaf <= max(_LEAVES[0], len(x) // 20)]
    return trees(_TREES, min(sizes, key=missed) if len(sizes) > 1 else sizes[0], slice(None))
