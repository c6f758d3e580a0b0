"""How columns are drawn, how fine the trees of a table are, and whether smooth numbers come from near rows.

The training rows choose all: the finest whose draws are hardly nearer to rows than others are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.kernels import for_device
from sliceflow.spaces.tables.chain import (
    MOST_ROWS,
    Strategy,
    TreeSettings,
    choose_strategy,
)
from sliceflow.spaces.tables.table import Table, generator, grow_chain

_NEARER = 0.0355  # share of draws, above ½, nearer to rows that trees grew on than to others, at most
_AS_FAR = 0.97
_SAME = 0.01  # their distance over that of rows, at least; that of equal rows
_TRIED_ROWS = 6_000
_TRIED_COLUMNS = 60  # that choose how fine trees are; of rows, twice as many
_MANY = 3_000
_DRAWS = 3  # rows of a part, at least, and draws of each
_LEVELS = 12  # values of a number, at most, that count as levels
_FEWEST = 40  # fewer rows than these do not choose
# rows of which near ones are tried, and how many
_FEW = 1_000
_NEAR = (8, 12, 18, 27, 40, 60, 90, 135)
_COMPARED = 600  # rows that compare neighbours with trees: few are halved often
_TOLD = 0.8
_LEVEL = 500  # AUC of a tree that tells a label, and rows of each level, at least
_LOOKED_AT = 10_000  # rows that say so, about
# A line must score this much better than leaves to draw new rows. Where the two are close, a detector
# tells rows along lines more easily (economics .589 for .562, mpg .611 for .588 with a margin of .9).
_MARGIN = 0.8
_CHOICE = Seed(0).child("detail")  # random numbers of all that is chosen


def choose_strategies(table: Table) -> tuple[Strategy, ...]:
    """How each column of the chain is drawn."""
    before = np.array(table.order, dtype=np.int64)
    seed = Seed(0).child("ways")
    label = _label(table)
    strategies = list[Strategy]()
    for k, c in enumerate(table.order):
        found = choose_strategy(
            table.columns, table.z, c, before[:k], seed.child(k).key, _MARGIN
        )
        strategies.append("per_level" if c == label else found)
    return tuple(strategies)


def _label(table: Table) -> int | None:
    """The only category of a table of numbers, if it has two frequent levels, and numbers tell it well."""
    labels, numbers = (
        [c for c in table.order if table.columns[c].is_number == is_number]
        for is_number in (False, True)
    )
    if (
        len(labels) != 1
        or not table.columns[labels[0]].is_label
        or len(table.z) > 2 * MOST_ROWS
    ):
        return None
    counts = np.unique(table.z[:, labels[0]], return_counts=True)[1]
    if len(counts) != 2 or counts.min() < _LEVEL or not numbers:
        return None
    some = table.z[:: max(1, len(table.z) // _LOOKED_AT)]
    how = {"cv": StratifiedKFold(2), "scoring": "roc_auc"}
    tree = DecisionTreeClassifier(min_samples_leaf=50, random_state=0)
    x = some[:, numbers]
    return (
        labels[0]
        if cross_val_score(tree, x, some[:, labels[0]], **how).mean() >= _TOLD
        else None
    )


def choose_detail(table: Table, strategies: Sequence[Strategy]) -> TreeSettings:
    """The finest trees whose draws copy no rows, and the least near rows; or none, if trees are better.

    Half of the rows say that: a detector tells them from draws of the other half.
    """
    n = len(table.z)
    gains = list[float]()
    some = table.order
    if n < _FEWEST or not some:
        return TreeSettings.at(1).of_rows(n)
    if n >= 2 * _MANY:
        return TreeSettings.at(_fineness(table, strategies)).of_rows(n)
    between = _closest(table, table.z, table.z, others=True)
    trees = _choose_trees(table, strategies, between)
    near = (
        _least_near(table, trees, strategies, between)
        if may_be_near(table, strategies)
        else 0
    )
    for seed in range(max(1, _COMPARED // n) if near else 0):
        a, b = np.array_split(
            generator(_CHOICE.child("near", seed)).permutation(table.z), 2
        )
        for rows, others in ((a, b), (b, a)):
            both = (trees._replace(near=k) for k in (0, near // 2))
            draws = (
                _drawn(table, rows, len(others), detail, strategies) for detail in both
            )
            seen = [_seen(others[:, some], new[:, some]) for new in draws]
            gains.append(seen[0] - seen[1])
    return trees._replace(near=near if sum(gains) > 0 else 0)


def may_be_near(table: Table, strategies: Sequence[Strategy]) -> bool:
    """Whether smooth numbers may be drawn from near rows: if these are few, and keep no rules."""
    few = len(table.z) < _FEW and len(table.order) <= _TRIED_COLUMNS
    return few and not table.rules.rules and bool(table.together(strategies))


def _choose_trees(
    table: Table, strategies: Sequence[Strategy], between: Tensor
) -> TreeSettings:
    """The finest trees of few rows whose draws are about as far from rows as these are from each other.

    A straight line from trees in the middle to the finest, or to the coarsest, says which these are.
    """

    def excess(t: float) -> float:
        return _excess(table, TreeSettings.at(t), strategies, between)

    middle = excess(0.5)
    there = excess(end := 0.0 if middle <= 0 else 1.0)
    if (middle <= 0) != (there <= 0):
        end = 0.5 + (end - 0.5) * middle / (middle - there)
    return TreeSettings.at(end).of_rows(len(table.z))


def _fineness(table: Table, strategies: Sequence[Strategy]) -> float:
    """The t of `TreeSettings.at` with which hardly more than half of draws are nearer to their rows than to others.

    Chains of two parts of the rows say how many are with t = ½. What exceeds a half falls like exp(−0.8·t),
    and with the number of rows like n^−0.1 (measured on five tables).
    """
    n = len(table.z)
    nearer = list[Tensor]()
    size = min(_TRIED_ROWS, n // 2)
    parts = np.split(table.z[generator(_CHOICE).permutation(n)[: 2 * size]], 2)
    for own, others in (parts, parts[::-1]):
        z = _drawn(table, own, _DRAWS * size, TreeSettings.at(0.5), strategies)
        nearer.append((_closest(table, z, others) - _closest(table, z, own)).sign())
    found = float(torch.cat(nearer).mean()) / 2 * (size / n) ** 0.1
    return min(1.0, max(0.0, 0.5 + math.log(max(found, 1e-6) / _NEARER) / 0.8))


def _least_near(
    table: Table, trees: TreeSettings, strategies: Sequence[Strategy], between: Tensor
) -> int:
    tried = [k for k in _NEAR if 2 * k <= len(table.z)]
    details = [trees._replace(near=k) for k in tried]
    at = bisect_left(
        details,
        True,
        key=lambda detail: _excess(table, detail, strategies, between) <= 0,
    )
    return (*tried, 0)[at]


def _drawn(
    table: Table,
    rows: np.ndarray,
    n: int,
    detail: TreeSettings,
    strategies: Sequence[Strategy],
) -> np.ndarray:
    """Positions (n, d) of draws, of the first columns."""
    z = np.zeros((n, rows.shape[1]))
    rng = generator(_CHOICE.child("draws"))
    for link in grow_chain(
        table, rows, table.order[_TRIED_COLUMNS:], _CHOICE, detail, strategies
    ):
        z[:, link.column] = link.draw(z, rng)
    return z


def _excess(
    table: Table, detail: TreeSettings, strategies: Sequence[Strategy], between: Tensor
) -> float:
    """How much nearer to all rows draws are than these are to each other (`between`), and may be."""
    new = _drawn(table, table.z, 2 * len(table.z), detail, strategies)
    logs = [(d + _SAME).log().mean() for d in (_closest(table, new, table.z), between)]
    return float(logs[1] - logs[0]) + math.log(_AS_FAR)


def _seen(rows: np.ndarray, draws: np.ndarray) -> float:
    """The area under the ROC curve of boosted trees that tell draws from rows; ½ if they cannot."""
    x = np.concatenate((rows, draws))
    y = np.repeat((0, 1), (len(rows), len(draws)))
    size = {"max_iter": 20, "max_leaf_nodes": 8, "min_samples_leaf": 10}
    judge = HistGradientBoostingClassifier(
        learning_rate=0.2, early_stopping=False, **size
    )
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    return float(cross_val_score(judge, x, y, cv=folds, scoring="roc_auc").mean())


def _closest(
    table: Table, z: np.ndarray, rows: np.ndarray, others: bool = False
) -> Tensor:
    """Distances (m,) to the closest row, or other row: Σ|xᵢ − yᵢ| of numbers, and 2 for each other level."""
    some = table.order[:_TRIED_COLUMNS]
    scaled = [
        table.columns[c].is_number and len(table.columns[c].order) > _LEVELS
        for c in some
    ]
    points = []
    for at in (z[:, some], rows[:, some]):
        x = 2 * at.astype(np.float32)
        for i in np.flatnonzero(scaled):
            column = table.columns[some[i]]
            share = (column.numbers(at[:, i]) - column.values[0]) / np.ptp(
                column.values
            )
            x[:, i] = np.where(at[:, i] >= 0, share, -0.5)  # missing
        points.append(torch.from_numpy(x))
    most = torch.tensor([math.inf if by_range else 2.0 for by_range in scaled])
    found: Tensor = for_device("cpu").closest(*points, most, others)
    return found
