"""How good a synthetic table is: detection, shape, trend, utility, copies, validity.

Every number comes with its floor, what fresh real rows reach: one half of the held-out rows in the
place of synthetic ones, against the other half. Columns are numbers (dates are counts of their unit) or
codes of categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sliceflow.cells import Cells, read_cells
from sliceflow.written import written_as

__all__ = [
    "COLUMN_MEANING",
    "TableReport",
    "aligned",
    "association",
    "dependencies",
    "embedded",
    "table_report",
]

_ONE_HOT = 24  # categories with an axis each; more share as many
_MOST_CODES = 250  # categories that a boosted tree takes; the rest of them count as one
_MOST_ROWS = 10_000  # rows that are compared
_FEW = 1_000  # rows, below which detection is repeated
_IDEAL_COPIES = 0.01
_FEWEST_IDENTIFIERS = 20
_ROWS_PER_LEVEL = 5  # at least, on average, of a column from which others follow
_CHANCE = 1e-9  # of a rule between columns that have nothing to do with each other
_SCREENED = 500  # rows that most pairs of columns are compared on

COLUMN_MEANING = {
    "detection": "AUC of boosted trees that tell synthetic from held-out rows; 0.5 is ideal",
    "shape": "mean over columns of 1 − the largest difference of distribution functions, of categories "
    "1 − total variation; 1 is ideal",
    "trend": "mean difference of the association of two columns; 0 is ideal",
    "utility": "R² or AUC, on held-out rows, of boosted trees trained on synthetic rows",
    "copies": "share of rows nearer to a training row than the nearest 1 % of held-out rows are; 0.01 "
    "is ideal",
    "nn_ratio": "median distance to the nearest training row, over that of held-out rows; 1 is ideal",
    "exact": "share of rows that are equal to a training row",
    "valid": "share of cells with a known category, within the bounds, and whole where all are",
    "rules": "share of rows that obey every rule by which one column follows from another; 1 is ideal",
    "missing": "largest difference of the share of missing cells of a column; 0 is ideal",
}


def embedded(numbers: np.ndarray, levels: Sequence[int], reference: np.ndarray) -> np.ndarray:
    """Rows as points, where another category and one standard deviation both are a distance of 1.

    Parameters
    ----------
    numbers : (n, c), NaN where missing; of categories, codes
    levels : the number of categories of each column; 0 for numbers
    reference : (m, c), rows whose medians and standard deviations count

    Examples
    --------
    >>> rows = np.array([[0.0, 0.0], [2.0, 1.0]])
    >>> points = embedded(rows, [0, 2], rows)
    >>> float(np.linalg.norm(points[1] - points[0]).round(2))  # two standard deviations, one category
    2.24
    """
    out = []
    for column, n, known in zip(numbers.T, levels, reference.T, strict=True):
        gone, present = np.isnan(column), known[~np.isnan(known)]
        if n:
            axes = np.eye(n)
            if n > _ONE_HOT:  # directions at random are nearly orthogonal
                axes = np.random.default_rng(0).normal(size=(n, _ONE_HOT)) / np.sqrt(_ONE_HOT)
            points = axes[np.where(gone, 0, column).astype(int)] / np.sqrt(2)
            out.append(np.where(gone[:, None], 0.0, points))
        elif len(present):
            scale = present.std() or 1.0
            out.append(np.where(gone, 0.0, (column - np.median(present)) / scale)[:, None])
        if len(present) < len(known):
            out.append(gone[:, None] / (np.sqrt(2) if n else 1.0))
    return np.hstack(out) if out else np.zeros((len(numbers), 1))


@dataclass(frozen=True)
class TableReport:
    """The scores of a synthetic table, each with its floor.

    Parameters
    ----------
    scores, floors : by name; `COLUMN_MEANING` says what they mean. A floor is NaN where it has none
    columns : for each column, its shape
    pairs : (first, second, association in held-out rows, in synthetic rows), the worst first
    target : the column of `utility`
    """

    scores: dict[str, float]
    floors: dict[str, float]
    columns: dict[str, float]
    pairs: list[tuple[str, str, float, float]]
    target: str

    def __str__(self) -> str:
        lines = [f"{'':10} {'score':>8} {'floor':>8}"]
        for name, score in self.scores.items():
            lines.append(f"{name:10} {score:8.3f} {self.floors[name]:8.3f}")
        return "\n".join(lines)


def table_report(
    train: Any,
    test: Any,
    synthetic: Any,
    target: str | None = None,
    seed: int = 0,
    floors: bool = True,
) -> TableReport:
    """Compare synthetic rows with held-out ones, as the field does.

    Identifiers, texts that differ in every row, are left out.

    Parameters
    ----------
    train, test, synthetic : DataFrames with the same columns: fitted, held-out and synthetic rows
    target : the column that `utility` predicts; None takes the last that varies
    seed : of subsets and folds
    floors : False leaves them out, as NaN, which halves the time

    Examples
    --------
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> def rows(n):
    ...     a = rng.normal(size=n)
    ...     return pd.DataFrame({"a": a, "b": a > rng.normal(size=n)})
    >>> train, test = rows(300), rows(300)
    >>> good, bad = rows(300), rows(300).assign(a=rng.normal(size=300))
    >>> reports = [table_report(train, test, made) for made in (good, bad)]
    >>> [report.scores["detection"] > 0.6 for report in reports]
    [False, True]
    """
    names, categories, (tr, te, sy) = aligned(train, test, synthetic)
    if min(len(tr), len(te), len(sy)) < 10:
        raise ValueError(
            f"there are {len(tr)} training, {len(te)} held-out and {len(sy)} synthetic rows; "
            "pass 10 or more"
        )
    varied = [name for c, name in enumerate(names) if len(np.unique(tr[~np.isnan(tr[:, c]), c])) > 1]
    target = (varied or names)[-1] if target is None else target
    if target not in names:
        raise ValueError(f"target={target!r} is not a column; there are {', '.join(names)}")
    rng = np.random.default_rng(seed)
    tr, te, sy = (x[rng.permutation(len(x))[:_MOST_ROWS]] for x in (tr, te, sy))
    at = names.index(target)
    half = te[: len(te) // 2], te[len(te) // 2 :]
    scores = _scores(tr, te, sy, categories, at, seed)
    real_scores = dict.fromkeys(scores, float("nan"))
    if floors:
        real_scores = _scores(tr, half[1], half[0], categories, at, seed)
        real_scores["utility"] = _utility(tr, te, categories, at, seed)
    n = min(len(te), len(sy))
    real, made = association(te[:n], categories), association(sy[:n], categories)
    pairs = [
        (names[i], names[j], float(real[i, j]), float(made[i, j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]
    pairs.sort(key=lambda pair: -abs(pair[2] - pair[3]))
    shapes = {name: _shape(te[:, c], sy[:, c], categories[c]) for c, name in enumerate(names)}
    return TableReport(scores, real_scores, shapes, pairs, target)


def aligned(*frames: Any) -> tuple[list[str], list[bool], list[np.ndarray]]:
    """Names, which columns are categories, and numbers, with the same codes in every frame."""
    cells = [{of.kept.name: of for of in read_cells(frame)[0]} for frame in frames]
    names = list(cells[0])
    for found in cells[1:]:
        if set(found) != set(names):
            other = sorted(set(found) ^ set(names))[0]
            raise ValueError(f"the tables have different columns: {other!r} is not in all of them")
    for name in names:
        for found, of in zip(cells, _read_numbers([found[name] for found in cells]), strict=True):
            found[name] = of
    names = [name for name in names if not _identifies(cells[0][name])]
    categories, columns = [], []
    for name in names:
        own = [found[name] for found in cells]
        category = any(of.kept.form in ("text", "boolean") for of in own)
        categories.append(category)
        columns.append(_codes(own) if category else [_plain(of) for of in own])
    stacked = [np.column_stack([column[i] for column in columns]) for i in range(len(frames))]
    return names, categories, stacked


def _read_numbers(own: list[Cells]) -> list[Cells]:
    """The same column of some tables, as numbers where its texts are numbers such as $1,234."""
    if any(of.kept.form != "text" or of.kept.categories is not None for of in own):
        return own
    known = own[0].values[~own[0].missing]
    way = written_as(known) if len(known) else None
    if way is None:
        return own
    out = []
    for of in own:
        values = np.full(len(of.values), np.nan)
        values[~of.missing] = way.parse(of.values[~of.missing])
        missing = np.isnan(values)
        out.append(Cells(replace(of.kept, form="number"), np.where(missing, 0.0, values), missing))
    return out


def _identifies(of: Cells) -> bool:
    n = len(of.values)
    return of.kept.form == "text" and n >= _FEWEST_IDENTIFIERS and len(set(of.values.tolist())) == n


def _plain(of: Cells) -> np.ndarray:
    return np.where(of.missing, np.nan, of.values.astype(np.float64))


def _codes(own: list[Cells]) -> list[np.ndarray]:
    texts = [
        [None if gone else str(v) for v, gone in zip(of.values.tolist(), of.missing, strict=True)]
        for of in own
    ]
    levels = sorted({text for column in texts for text in column if text is not None})
    codes = {text: float(i) for i, text in enumerate(levels)}
    return [np.array([np.nan if t is None else codes[t] for t in column]) for column in texts]


def _scores(
    train: np.ndarray,
    test: np.ndarray,
    made: np.ndarray,
    categories: list[bool],
    target: int,
    seed: int,
) -> dict[str, float]:
    n = range(len(categories))
    n_alike = min(len(test), len(made))  # few rows of many categories look more associated
    real, synthetic = (association(x[:n_alike], categories) for x in (test, made))
    upper = np.triu_indices(len(categories), 1)
    trend = np.abs(real - synthetic)[upper]
    out = {
        "detection": _detection(test, made, categories, seed),
        "shape": float(np.mean([_shape(test[:, c], made[:, c], categories[c]) for c in n])),
        "trend": float(trend.mean()) if len(trend) else 0.0,
        "utility": _utility(made, test, categories, target, seed),
    }
    out |= _copies(train, test, made, categories)
    out["valid"] = float(np.mean([_valid(train[:, c], made[:, c], categories[c]) for c in n]))
    out["rules"] = _obeyed(train, made)
    out["missing"] = float(np.abs(np.isnan(made).mean(0) - np.isnan(test).mean(0)).max())
    return out


def _trees(
    regress: bool,
    n: int,
    categories: Sequence[bool],
    seed: int,
    x: np.ndarray,
    y: np.ndarray,
    **more: Any,
) -> Any:
    """Boosted trees, fitted. Columns without a value are 0: scikit-learn finds no bins for them."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    leaf = min(20, max(2, n // 40))
    trees = kind(
        categorical_features=list(categories),
        random_state=seed,
        max_iter=150,
        min_samples_leaf=leaf,
        **more,
    )
    return trees.fit(np.where(np.isnan(x).all(0), 0.0, x), y)


def _few_codes(x: np.ndarray, categories: Sequence[bool]) -> np.ndarray:
    x = x.copy()
    for c in np.flatnonzero(categories):
        x[:, c] = np.minimum(x[:, c], _MOST_CODES)
    return x


def _detection(test: np.ndarray, made: np.ndarray, categories: list[bool], seed: int) -> float:
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    n = min(len(test), len(made))
    x = _few_codes(np.vstack((test[:n], made[:n])), categories)
    y, found = np.repeat([0, 1], n), []
    for repeat in range(3 if n < _FEW else 1):
        folds = StratifiedKFold(5, shuffle=True, random_state=seed + repeat)
        for a, b in folds.split(x, y):
            trees = _trees(False, n, categories, seed, x[a], y[a], early_stopping=False)
            found.append(roc_auc_score(y[b], trees.predict_proba(x[b])[:, 1]))
    return float(np.mean(found))


def dependencies(numbers: np.ndarray, usable: Sequence[bool] | None = None) -> list[tuple[int, ...]]:
    """Columns from which others follow: (one, the others that are the same wherever it is the same).

    Such as a town and its country. The rule must be too good for chance: if the most frequent value of
    the other column has a share p, n rows in k groups have it with a probability of at most pⁿ⁻ᵏ.
    Columns with missing cells have no part in it, nor has one with fewer than five rows a value, on
    average, as the first.

    Examples
    --------
    >>> town = np.arange(60) % 6
    >>> dependencies(np.column_stack((town, town // 2, np.arange(60) % 7)).astype(float))
    [(0, 1)]
    """
    n = len(numbers)
    usable = [True] * numbers.shape[1] if usable is None else usable
    codes, levels, share = {}, {}, {}
    for c in np.flatnonzero(usable).tolist():
        if np.isnan(numbers[:, c]).any():
            continue
        values, found, counts = np.unique(numbers[:, c], return_inverse=True, return_counts=True)
        if 1 < len(values) <= n / _ROWS_PER_LEVEL:
            codes[c], levels[c], share[c] = found, len(values), counts.max() / n
    out, taken = [], set[int]()
    for a in sorted(codes, key=lambda c: (-levels[c], c)):
        if a in taken:
            continue
        others = [b for b in codes if b != a and b not in taken]
        others = [b for b in others if (n - levels[a]) * np.log(share[b]) < np.log(_CHANCE)]
        for rows in (slice(_SCREENED), slice(None)):
            order = np.argsort(codes[a][rows], kind="stable")
            same = np.diff(codes[a][rows][order]) == 0
            others = [b for b in others if not (np.diff(codes[b][rows][order])[same] != 0).any()]
        if others:
            out.append((a, *others))
            taken.update((a, *others))
    return out


def _obeyed(train: np.ndarray, made: np.ndarray) -> float:
    """The share of rows that obey the `dependencies` of the training rows; 1 if there are none."""
    good = np.ones(len(made), dtype=bool)
    for a, *others in dependencies(train):
        values, first = np.unique(train[:, a], return_index=True)
        at = np.clip(np.searchsorted(values, made[:, a]), 0, len(values) - 1)
        known = values[at] == made[:, a]
        for b in others:
            good &= ~known | (train[first[at], b] == made[:, b])
    return float(good.mean())


def _shape(real: np.ndarray, made: np.ndarray, category: bool) -> float:
    a, b = real[~np.isnan(real)], made[~np.isnan(made)]
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    if category:
        size = int(max(a.max(), b.max())) + 1
        share = [np.bincount(x.astype(int), minlength=size) / len(x) for x in (a, b)]
        return 1 - 0.5 * float(np.abs(share[0] - share[1]).sum())
    at = np.concatenate((a, b))
    below = [np.searchsorted(np.sort(x), at, "right") / len(x) for x in (a, b)]
    return 1 - float(np.abs(below[0] - below[1]).max())


def association(numbers: np.ndarray, categories: Sequence[bool]) -> np.ndarray:
    """(c, c): |correlation| of numbers, correlation ratio of a number and a category, Cramér's V.

    Examples
    --------
    >>> x = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])
    >>> association(x, [False, False]).round(3).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    c = len(categories)
    out = np.eye(c)
    for i in range(c):
        for j in range(i + 1, c):
            ok = ~np.isnan(numbers[:, i]) & ~np.isnan(numbers[:, j])
            out[i, j] = out[j, i] = _associated(
                numbers[ok, i], numbers[ok, j], categories[i], categories[j]
            )
    return out


def _associated(a: np.ndarray, b: np.ndarray, first: bool, second: bool) -> float:
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    if not first and not second:
        return float(np.corrcoef(a, b)[0, 1])
    if first and second:
        _, i = np.unique(a, return_inverse=True)
        _, j = np.unique(b, return_inverse=True)
        counts = np.zeros((i.max() + 1, j.max() + 1))
        np.add.at(counts, (i, j), 1)
        expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
        square = ((counts - expected) ** 2 / expected).sum() / counts.sum()
        return float(np.sqrt(square / (min(counts.shape) - 1)))
    codes, x = (a, b) if first else (b, a)
    _, i = np.unique(codes, return_inverse=True)
    means = np.bincount(i, x) / np.bincount(i)
    return float(np.sqrt(((means[i] - x.mean()) ** 2).sum() / ((x - x.mean()) ** 2).sum()))


def _utility(
    fit: np.ndarray, test: np.ndarray, categories: list[bool], target: int, seed: int
) -> float:
    """R² or AUC of `target`, learnt from `fit`, on `test`; NaN where it cannot be learnt."""
    from sklearn.metrics import r2_score, roc_auc_score

    if len(categories) < 2:
        return float("nan")
    fit, test = (_few_codes(x[~np.isnan(x[:, target])], categories) for x in (fit, test))
    others = [c for c in range(len(categories)) if c != target]
    kinds = [categories[c] for c in others]
    if len(fit) < 5 or len(test) < 5:
        return float("nan")
    if not categories[target]:
        trees = _trees(True, len(fit), kinds, seed, fit[:, others], fit[:, target])
        return float(r2_score(test[:, target], trees.predict(test[:, others])))
    known, n = np.unique(fit[:, target], return_counts=True)
    classes = np.intersect1d(known[n >= 2], np.unique(test[:, target]))
    fit, test = (x[np.isin(x[:, target], classes)] for x in (fit, test))
    if len(classes) < 2:
        return float("nan")
    x, y = fit[:, others], fit[:, target]
    trees = _trees(False, len(fit), kinds, seed, x, y, early_stopping=False)
    p = trees.predict_proba(test[:, others])
    return float(roc_auc_score(test[:, target], p[:, 1] if len(classes) == 2 else p, multi_class="ovr"))


def _copies(
    train: np.ndarray, test: np.ndarray, made: np.ndarray, categories: list[bool]
) -> dict[str, float]:
    from sklearn.neighbors import NearestNeighbors

    top = np.nan_to_num(np.vstack((train, test, made))).max(0).astype(int) + 1
    levels = [int(n) if category else 0 for n, category in zip(top, categories, strict=True)]
    search = NearestNeighbors(n_neighbors=1).fit(embedded(train, levels, train))
    of_test, of_made = (search.kneighbors(embedded(x, levels, train))[0][:, 0] for x in (test, made))
    close = np.quantile(of_test, _IDEAL_COPIES) + 1e-9
    ratio = np.median(of_made) / max(float(np.median(of_test)), 1e-12)
    return {
        "copies": float(np.mean(of_made <= close)),
        "nn_ratio": float(ratio),
        "exact": float(np.mean(of_made < 1e-9)),
    }


def _valid(train: np.ndarray, made: np.ndarray, category: bool) -> float:
    a, b = train[~np.isnan(train)], made[~np.isnan(made)]
    if not len(b):
        return 1.0
    if category or not len(a):
        return float(np.isin(b, a).mean())
    ok = (b >= a.min() - 1e-9) & (b <= a.max() + 1e-9)
    if np.array_equal(a, np.rint(a)):
        ok &= b == np.rint(b)
    return float(ok.mean())
