"""Tables as numbers, and what can be measured of them: shape, trend, utility, rules.

Columns become numbers (dates count days) or codes of categories; NaN is a missing cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from sliceflow.number_formats import infer_number_format

_MOST_CODES = 250  # categories that boosted trees take, and that have an axis; others count as one
# As strong as three times as many smaller steps with leaves twice as many, in a quarter of the time.
_BOOSTING: Any = dict(
    max_iter=50,
    learning_rate=0.2,
    max_leaf_nodes=15,
    early_stopping=False,
    random_state=0,
)
_NEARLY_UNIQUE = 0.9
_ENOUGH_TEXTS = 20  # share of distinct texts, and rows, of an identifier
_RULE_COLUMNS = 100  # every pair of them is checked
_CHANCE = 1e-9  # of a rule between columns that have nothing to do with each other
_ROWS_PER_LEVEL = 5  # fewer rows of a value, on average, do not show a rule


class Tables(NamedTuple):
    """Tables with the same columns as numbers; those that identify a row are left out."""

    names: list[str]
    categories: list[bool]  # which columns hold codes
    rows: list[np.ndarray]  # (n, c) of each table
    revealed: dict[
        str, float
    ]  # of columns left out, the share of real texts in the first table


def read_tables(*frames: Any) -> Tables:
    """Samples, training rows and others, all DataFrames, as numbers."""
    import pandas as pd

    names = list(frames[1].columns)
    for other in frames:
        if not isinstance(other, pd.DataFrame):
            raise TypeError(
                f"tables are DataFrames of pandas, not of {type(other).__module__}"
            )
        if odd := set(other.columns) ^ set(names):
            raise ValueError(
                f"the tables have different columns: {min(map(str, odd))!r} is not in all"
            )
    ends = np.cumsum([len(table) for table in frames])[:-1]
    found = []
    kept = []
    revealed = {}
    for name in names:
        own = [table[name] for table in frames]
        numbers, category = as_numbers(pd.concat(own, ignore_index=True))
        texts = own[1].dropna()
        if (
            category
            and len(texts) >= _ENOUGH_TEXTS
            and texts.nunique() > _NEARLY_UNIQUE * len(texts)
        ):
            revealed[str(name)] = (
                float(own[0].dropna().isin(set(texts)).mean()) if len(own[0]) else 0.0
            )
        else:
            kept.append(category)
            found.append(numbers)
    if not found:
        raise ValueError("every column identifies its row; there is nothing to compare")
    names = [str(name) for name in names if str(name) not in revealed]
    return Tables(names, kept, np.split(np.column_stack(found), ends), revealed)


def as_numbers(column: Any) -> tuple[np.ndarray, bool]:
    """A column of pandas as floats, and whether they are codes of categories; NaN is a missing cell."""
    import pandas as pd

    kind = pd.api.types
    if kind.is_numeric_dtype(column) and not kind.is_bool_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan), False
    there = column.notna().to_numpy()
    out = np.full(len(column), np.nan)
    if kind.is_datetime64_any_dtype(column) or kind.is_timedelta64_dtype(column):
        out[there] = _days(column[there])
        return out, False
    texts = column[there].astype(str)
    if len(texts) and not kind.is_bool_dtype(column):
        strategy = infer_number_format(texts.to_numpy())
        numbers = (
            np.array([np.nan]) if strategy is None else strategy.parse(texts.to_numpy())
        )
        if (
            strategy is None
            and texts.str.match(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}").all()
        ):
            dates = pd.to_datetime(texts, errors="coerce", format="mixed", utc=True)
            numbers = numbers if dates.isna().any() else _days(dates)
        if not np.isnan(numbers).any():
            out[there] = numbers
            return out, False
    out[there] = pd.factorize(texts, sort=True)[0]
    return out, True


def _days(dates: Any) -> np.ndarray:
    """Dates or durations as days."""
    unit = np.timedelta64(1, dates.dt.unit) / np.timedelta64(1, "D")
    return np.asarray(dates.astype("int64") * unit)


def points(
    rows: np.ndarray, categories: Sequence[bool], train: np.ndarray
) -> np.ndarray:
    """Rows as points, where another category and one standard deviation both are a distance of 1.

    All categories behind those of the training rows share an axis: they are as far from each of these.
    """
    out = []
    for column, category, known in zip(rows.T, categories, train.T, strict=True):
        gone = np.isnan(column)
        present = known[~np.isnan(known)]
        if category:
            last = min(int(present.max(initial=-1)) + 1, _MOST_CODES - 1)
            code = np.where(gone, 0, column).clip(max=last).astype(int)
            out.append(
                np.where(gone[:, None], 0.0, np.eye(last + 1)[code] / np.sqrt(2))
            )
        elif len(present):
            unit = present.std() or 1.0
            out.append(
                np.where(gone, 0.0, (column - np.median(present)) / unit)[:, None]
            )
        out.append(gone[:, None] / (np.sqrt(2) if category else 1.0))
    return np.hstack(out)


def shape(real: np.ndarray, made: np.ndarray, category: bool) -> float:
    """1 − Kolmogorov's distance of two columns; of categories, 1 − their total variation.

    A missing cell is one more category; of numbers, the difference of their shares counts if larger.
    """
    if category:
        a, b = (np.where(np.isnan(x), -1, x) for x in (real, made))
        at = np.union1d(a, b)
        share = [
            np.bincount(np.searchsorted(at, x), minlength=len(at)) / len(x)
            for x in (a, b)
        ]
        return 1 - 0.5 * float(np.abs(share[0] - share[1]).sum())
    from scipy.stats import ks_2samp

    gone = abs(float(np.isnan(real).mean()) - float(np.isnan(made).mean()))
    a, b = (x[~np.isnan(x)] for x in (real, made))
    apart = (
        float(ks_2samp(a, b, method="asymp").statistic) if len(a) and len(b) else gone
    )
    return 1 - max(gone, apart)


def association(rows: np.ndarray, categories: Sequence[bool]) -> np.ndarray:
    """(c, c): correlation of numbers, correlation ratio of a number and a category, Cramér's V."""
    out = np.eye(len(categories))
    for i, j in combinations(range(len(categories)), 2):
        ok = ~np.isnan(rows[:, i]) & ~np.isnan(rows[:, j])
        out[i, j] = out[j, i] = _associated(
            rows[ok, i], rows[ok, j], categories[i], categories[j]
        )
    return out


def _associated(a: np.ndarray, b: np.ndarray, first: bool, second: bool) -> float:
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    if not first and not second:
        return float(np.corrcoef(a, b)[0, 1])
    if first and second:
        from scipy.stats.contingency import association as contingency
        from scipy.stats.contingency import crosstab

        return float(contingency(crosstab(a, b).count, method="cramer"))
    codes, x = (a, b) if first else (b, a)
    _, i = np.unique(codes, return_inverse=True)
    means = np.bincount(i, x) / np.bincount(i)
    return float(
        np.sqrt(np.square(means[i] - x.mean()).sum() / np.square(x - x.mean()).sum())
    )


def boosted_trees(n: int, categories: Sequence[bool], regress: bool = False) -> Any:
    """Boosted trees for n rows: a classifier, or a regressor. Rare categories count as one."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    top = np.where(categories, _MOST_CODES, np.inf)
    leaf = min(20, max(2, n // 40))
    trees = kind(
        categorical_features=list(categories), min_samples_leaf=leaf, **_BOOSTING
    )
    return make_pipeline(FunctionTransformer(_binnable, kw_args={"top": top}), trees)


def _binnable(x: np.ndarray, top: np.ndarray) -> np.ndarray:
    """What boosted trees take: codes up to `top`, and 0 in columns without a value."""
    return np.where(np.isnan(x).all(0), 0.0, np.minimum(x, top))


def utility(
    learn: np.ndarray, test: np.ndarray, categories: Sequence[bool], target: int
) -> float:
    """R² or AUC of a column of test rows, learnt from other rows; NaN if it cannot be learnt."""
    from sklearn.metrics import r2_score, roc_auc_score

    learn, test = (x[~np.isnan(x[:, target])] for x in (learn, test))
    others = np.arange(len(categories)) != target
    if not others.any() or min(len(learn), len(test)) < 5:
        return float("nan")
    trees = boosted_trees(
        len(learn), np.asarray(categories)[others], not categories[target]
    )
    if not categories[target]:
        trees.fit(learn[:, others], learn[:, target])
        return float(r2_score(test[:, target], trees.predict(test[:, others])))
    known, n = np.unique(learn[:, target], return_counts=True)
    classes = np.intersect1d(known[n >= 2], test[:, target])
    if len(classes) < 2:
        return float("nan")
    learn, test = (x[np.isin(x[:, target], classes)] for x in (learn, test))
    p = trees.fit(learn[:, others], learn[:, target]).predict_proba(test[:, others])
    return float(
        roc_auc_score(
            test[:, target], p[:, 1] if len(classes) == 2 else p, multi_class="ovr"
        )
    )


def rules_kept(
    train: np.ndarray, made: np.ndarray, categories: Sequence[bool]
) -> float:
    """The share of rows that obey every rule that all training rows obey; 1 if there are none.

    Rules are: a column of whole numbers; one number at most another (a ≤ b); one column that follows
    from another, such as a country from its town. Missing cells break no rule.
    """
    train = train[:, :_RULE_COLUMNS]
    made = made[:, :_RULE_COLUMNS]
    number = ~np.asarray(categories[:_RULE_COLUMNS])
    here = ~np.isnan(train)
    good = np.ones(len(made), bool)
    for a in range(train.shape[1]):
        x = train[:, a, None]
        y = made[:, a, None]
        if number[a]:
            if (x == np.rint(x))[here[:, a]].all():
                good &= np.isnan(y[:, 0]) | (y[:, 0] == np.rint(y[:, 0]))
            ordered = number & ~(x > train).any(0) & (x < train).any(0)
            good &= ~(y > made)[:, ordered].any(1)
        values, group = np.unique(train[:, a], return_inverse=True)
        if not 1 < len(values) <= len(train) / _ROWS_PER_LEVEL:
            continue
        at = np.clip(np.searchsorted(values, made[:, a]), 0, len(values) - 1)
        for b in np.flatnonzero(here.any(0)):
            low = np.full(len(values), np.inf)
            high = np.full(len(values), -np.inf)
            np.minimum.at(low, group[here[:, b]], train[here[:, b], b])
            np.maximum.at(high, group[here[:, b]], train[here[:, b], b])
            common = (
                np.unique(train[here[:, b], b], return_counts=True)[1].max()
                / here[:, b].sum()
            )
            # n rows in k groups obey by chance with a probability of at most commonⁿ⁻ᵏ.
            chance = (here[:, b].sum() - len(values)) * np.log(common)
            if b != a and (low >= high).all() and chance < np.log(_CHANCE):
                known = (values[at] == made[:, a]) & np.isfinite(low[at])
                good &= ~known | np.isnan(made[:, b]) | (made[:, b] == low[at])
    return float(good.mean())
