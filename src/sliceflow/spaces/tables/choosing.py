"""How fine the trees of a table are, and whether smooth numbers come from near rows.

The training rows choose both: the finest whose draws are hardly nearer to rows than others are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import Detail, Way
from sliceflow.spaces.tables.table import Table, generator, grow_chain

_NEARER = 0.545  # share of draws nearer to rows that trees grew on than to others, at most
_APART, _SAME = 0.97, 0.01  # their distance over that of rows, at least; that of equal rows
_TRIED_ROWS, _TRIED_COLUMNS = 3_000, 60  # that choose how fine trees are; of rows, twice as many
_FEWEST = 40  # fewer rows than these do not choose
_FEW, _NEAR = 1_000, (8, 12, 18, 27, 40, 60, 90, 135)  # rows of which near ones are tried, and how many
_COMPARED = 600  # rows that compare neighbours with trees: few are halved often
_CHOICE = Seed(0).child("detail")  # random numbers of all that is chosen

Points = tuple[Tensor, Tensor]  # numbers of rows, and positions of their other columns


def choose_detail(table: Table, ways: Sequence[Way]) -> Detail:
    """The finest trees whose draws copy no rows, and the least near rows; or none, if trees are better.

    Half of the rows say that: a detector tells them from draws of the other half.
    """
    trees, gains, some = _choose_trees(table, ways), list[float](), table.order
    enough = len(table.z) >= _FEWEST and may_be_near(table, ways)
    near = _least_near(table, trees, ways) if enough else 0
    for seed in range(max(1, _COMPARED // len(table.z)) if near else 0):
        a, b = np.array_split(generator(_CHOICE.child("near", seed)).permutation(table.z), 2)
        for rows, others in ((a, b), (b, a)):
            both = (trees._replace(near=k) for k in (0, near // 2))
            draws = (_drawn(table, rows, len(others), detail, ways) for detail in both)
            seen = [_seen(others[:, some], new[:, some]) for new in draws]
            gains.append(seen[0] - seen[1])
    return trees._replace(near=near if sum(gains) > 0 else 0)


def may_be_near(table: Table, ways: Sequence[Way]) -> bool:
    """Whether smooth numbers may be drawn from near rows: if these are few, and keep no rules."""
    few = len(table.z) < _FEW and len(table.order) <= _TRIED_COLUMNS
    return few and not table.rules.rules and bool(table.together(ways))


def _choose_trees(table: Table, ways: Sequence[Way]) -> Detail:
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
        new = [_points(table, _drawn(table, rows, 2 * len(rows), Detail.at(t), ways)) for rows in parts]
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


def _least_near(table: Table, trees: Detail, ways: Sequence[Way]) -> int:
    z, known = table.z, _points(table, table.z)
    apart = _nearest(known, known, 2)

    def is_apart(k: int) -> bool:
        draws = _drawn(table, z, 2 * len(z), trees._replace(near=k), ways)
        return _excess(_points(table, draws), known, apart) <= 0

    tried = [k for k in _NEAR if 2 * k <= len(z)]
    return (*tried, 0)[bisect_left(tried, True, key=is_apart)]


def _drawn(table: Table, rows: np.ndarray, n: int, detail: Detail, ways: Sequence[Way]) -> np.ndarray:
    """Positions (n, d) of draws, of the first columns."""
    z, rng = np.zeros((n, rows.shape[1])), generator(_CHOICE.child("draws"))
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
