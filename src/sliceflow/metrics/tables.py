"""Tables as numbers, and metrics of them: shape, associations, utility.

Columns become numbers (dates count days) or codes of categories; NaN is a missing cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.dataframes import DATE_PATTERN, column_kind
from sliceflow.errors import DataError
from sliceflow.number_formats import infer_number_format
from sliceflow.validation import require

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.pipeline import Pipeline

# Categories that boosted trees take (scikit-learn's limit is 255), and that have an
# axis of their own among points; all others count as one.
_MAX_CATEGORIES = 250
# Boosted trees that detect samples and measure utility. Three times as many iterations,
# with a lower learning rate and twice as many leaves, detect as much, but take four
# times as long.
_BOOSTING_ITERATIONS = 50
_LEARNING_RATE = 0.2
_MAX_LEAVES = 15
# Leaves have this many rows, scikit-learn's own number, or fewer in small tables.
_MIN_SAMPLES_LEAF = 20
# Texts identify their row if more than this share of them is different.
_IDENTIFIER_SHARE = 0.9
# Fewer texts may all be different by chance.
_MIN_IDENTIFIERS = 20
# A value that fewer rows have is rare: it may be that of a person. Five is a usual
# limit of statistical offices.
MIN_COMMON_COUNT = 5
# Fewer rows with a target teach nothing, or test nothing.
_MIN_UTILITY_ROWS = 5


class Tables(NamedTuple):
    """Tables with the same columns as numbers, without columns that identify a row."""

    names: list[str]
    categories: list[bool]  # which columns hold codes
    rows: list[Floats]  # (n, c) of each table
    # Of the columns left out: the share of the first table's texts that are real.
    revealed: dict[str, float]


def read_tables(*dfs: Any) -> Tables:
    """Samples, training rows and others, all DataFrames, as numbers."""
    import pandas as pd

    _require_same_columns(dfs)
    samples, train = dfs[:2]
    names = []
    categories = []
    columns = []
    revealed = {}
    for name in train.columns:
        joined = pd.concat([df[name] for df in dfs], ignore_index=True)
        numbers, is_category = as_numbers(joined)
        if is_category and _identifies_rows(train[name]):
            revealed[str(name)] = _share_of_real_values(samples[name], train[name])
        else:
            names.append(str(name))
            categories.append(is_category)
            columns.append(numbers)
    if not columns:
        raise DataError("every column identifies its row; there is nothing to compare")
    ends = np.cumsum([len(df) for df in dfs])[:-1]
    rows = np.split(np.column_stack(columns), ends)
    return Tables(names, categories, rows, revealed)


def _require_same_columns(dfs: Sequence[Any]) -> None:
    """Raise an error unless all are DataFrames of pandas with the same columns."""
    import pandas as pd

    names = set(dfs[1].columns)
    for df in dfs:
        if not isinstance(df, pd.DataFrame):
            library = type(df).__module__
            raise TypeError(f"tables are DataFrames of pandas, not of {library}")
        not_in_all = names ^ set(df.columns)
        if not_in_all:
            first = min(map(str, not_in_all))
            raise DataError(
                f"the tables have different columns: {first!r} is not in all"
            )


def _identifies_rows(column: pd.Series) -> bool:
    """Whether nearly every text of a column is different, as addresses are."""
    texts = column.dropna()
    if len(texts) < _MIN_IDENTIFIERS:
        return False
    return bool(texts.nunique() > _IDENTIFIER_SHARE * len(texts))


def _share_of_real_values(samples: pd.Series, train: pd.Series) -> float:
    """The share of the samples' values that are in the training rows."""
    if len(samples) == 0:
        return 0.0
    real = set(train.dropna())
    return float(samples.dropna().isin(real).mean())


def as_numbers(column: pd.Series) -> tuple[Floats, bool]:
    """A column as floats (n,), and whether these are codes of categories.

    NaN is a missing cell. Dates and durations are days. Texts are numbers or dates if
    all of them are.
    """
    import pandas as pd

    kind = column_kind(column)
    if kind in ("integer", "float"):
        return column.to_numpy(np.float64, na_value=np.nan), False
    present = column.notna().to_numpy()
    numbers = np.full(len(column), np.nan)
    if kind in ("datetime", "timedelta"):
        numbers[present] = _days(column[present])
        return numbers, False
    texts = column[present].astype(str)
    parsed = None
    if len(texts) > 0 and kind != "boolean":
        parsed = _parse_texts(texts)
    if parsed is not None:
        numbers[present] = parsed
        return numbers, False
    codes, _ = pd.factorize(texts, sort=True)
    numbers[present] = codes
    return numbers, True


def _parse_texts(texts: pd.Series) -> Floats | None:
    """Texts as numbers, or dates as days; None unless all are numbers, or all dates."""
    import pandas as pd

    number_format = infer_number_format(texts.to_numpy())
    if number_format is not None:
        numbers = number_format.parse(texts.to_numpy())
    elif texts.str.match(DATE_PATTERN).all():
        dates = pd.to_datetime(
            texts,
            errors="coerce",
            format="mixed",
            dayfirst=_is_day_first(texts),
            utc=True,
        )
        if dates.isna().any():
            return None
        numbers = _days(dates)
    else:
        return None
    if np.isnan(numbers).any():
        return None
    return numbers


def _is_day_first(texts: pd.Series) -> bool:
    """Whether the day stands before the month in dates that do not begin with a year.

    So it does in 17.05.2024 and 17-05-2024. In 05/17/2024 the month is first, unless a
    first number is none.
    """
    first_numbers = texts.str.extract(r"^(\d+)", expand=False)
    if (first_numbers.str.len() > 2).any():
        return False
    if texts.str.contains("/").any():
        return bool((first_numbers.astype(int) > 12).any())
    return True


def _days(times: pd.Series) -> Floats:
    """Dates or durations as days."""
    unit = np.timedelta64(1, times.dt.unit) / np.timedelta64(1, "D")
    return np.asarray(times.astype("int64") * unit)


def points(rows: Floats, categories: Sequence[bool], train: Floats) -> Floats:
    """Rows (n, c) as points (n, a), between which distances are measured.

    Another category and one standard deviation of a number both are a distance of 1. A
    missing cell has an axis of its own. All categories behind those of the training
    rows share an axis: they are as far from each of these.
    """
    axes = []
    for c, is_category in enumerate(categories):
        column = rows[:, c]
        missing = np.isnan(column)[:, None]
        known = train[~np.isnan(train[:, c]), c]
        if is_category:
            axes.append(_category_axes(column, known))
            axes.append(missing / np.sqrt(2))
        else:
            if len(known):
                unit = known.std() or 1.0
                scaled = (column - np.median(known)) / unit
                axes.append(np.where(missing, 0.0, scaled[:, None]))
            axes.append(missing / 1.0)
    return np.hstack(axes)


def _category_axes(codes: Floats, known: Floats) -> Floats:
    """Codes (n,) one-hot, over √2: two categories are at a distance of 1; NaN is 0."""
    missing = np.isnan(codes)
    last = min(int(known.max(initial=-1)) + 1, _MAX_CATEGORIES - 1)
    codes = np.where(missing, 0, codes).clip(max=last).astype(int)
    one_hot = np.eye(last + 1)[codes] / np.sqrt(2)
    return np.where(missing[:, None], 0.0, one_hot)


def shape(real: Floats, samples: Floats, is_category: bool) -> float:
    """The agreement of the distributions of two columns, from 0 to 1.

    It is 1 − Kolmogorov's distance of numbers; of categories, 1 − their total
    variation. A missing cell is one more category; of numbers, the difference of the
    shares of missing cells counts if it is larger.
    """
    if is_category:
        return 1 - _total_variation(real, samples)
    from scipy.stats import ks_2samp

    missing_real = np.isnan(real)
    missing_samples = np.isnan(samples)
    difference = abs(float(missing_real.mean()) - float(missing_samples.mean()))
    if missing_real.all() or missing_samples.all():
        return 1 - difference
    test = ks_2samp(real[~missing_real], samples[~missing_samples], method="asymp")
    return 1 - max(difference, float(test.statistic))


def _total_variation(real: Floats, samples: Floats) -> float:
    """Half the sum of the differences of the shares of all codes, NaN among them."""
    real = np.where(np.isnan(real), -1, real)
    samples = np.where(np.isnan(samples), -1, samples)
    codes = np.union1d(real, samples)
    real_counts = np.bincount(np.searchsorted(codes, real), minlength=len(codes))
    sample_counts = np.bincount(np.searchsorted(codes, samples), minlength=len(codes))
    differences = real_counts / len(real) - sample_counts / len(samples)
    return 0.5 * float(np.abs(differences).sum())


def association(rows: Floats, categories: Sequence[bool]) -> Floats:
    """How two columns go together, for all pairs: (c, c).

    The correlation of two numbers, the correlation ratio of a number and a category,
    and Cramér's V of two categories, in the rows without missing cells in both.
    """
    n_columns = len(categories)
    matrix = np.eye(n_columns)
    for i, j in combinations(range(n_columns), 2):
        present = ~np.isnan(rows[:, i]) & ~np.isnan(rows[:, j])
        a = rows[present, i]
        b = rows[present, j]
        strength = _pair_association(a, b, categories[i], categories[j])
        matrix[i, j] = strength
        matrix[j, i] = strength
    return matrix


def _pair_association(
    a: Floats, b: Floats, a_is_category: bool, b_is_category: bool
) -> float:
    """The association of two columns (n,) without missing cells; 0 of constant ones."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    if a_is_category and b_is_category:
        from scipy.stats.contingency import association as contingency_association
        from scipy.stats.contingency import crosstab

        counts = crosstab(a, b).count
        return float(contingency_association(counts, method="cramer"))
    if a_is_category:
        return _correlation_ratio(a, b)
    if b_is_category:
        return _correlation_ratio(b, a)
    return float(np.corrcoef(a, b)[0, 1])


def _correlation_ratio(codes: Floats, x: Floats) -> float:
    """√ of the share of the variance of x that is between categories."""
    _, group = np.unique(codes, return_inverse=True)
    means = np.bincount(group, x) / np.bincount(group)
    between = np.square(means[group] - x.mean()).sum()
    total = np.square(x - x.mean()).sum()
    return float(np.sqrt(between / total))


class BoostingSettings(NamedTuple):
    """How many boosted trees there are, and how large they are."""

    max_iter: int
    max_leaf_nodes: int
    min_samples_leaf: int


def _settings_for(n: int) -> BoostingSettings:
    """The settings of metrics for n rows: small tables have small leaves."""
    return BoostingSettings(
        max_iter=_BOOSTING_ITERATIONS,
        max_leaf_nodes=_MAX_LEAVES,
        min_samples_leaf=min(_MIN_SAMPLES_LEAF, max(2, n // 40)),
    )


def boosted_trees(
    categories: Sequence[bool], settings: BoostingSettings, regress: bool = False
) -> Pipeline:
    """Boosted trees: a classifier, or a regressor.

    `categories` says which columns hold codes of categories. Those beyond the most
    that trees take count as one.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    boosting = HistGradientBoostingClassifier
    if regress:
        boosting = HistGradientBoostingRegressor
    trees = boosting(
        max_iter=settings.max_iter,
        learning_rate=_LEARNING_RATE,
        max_leaf_nodes=settings.max_leaf_nodes,
        min_samples_leaf=settings.min_samples_leaf,
        categorical_features=list(categories),
        early_stopping=False,
        random_state=0,
    )
    max_values = np.where(categories, _MAX_CATEGORIES, np.inf)
    clip = FunctionTransformer(_binnable, kw_args={"max_values": max_values})
    return make_pipeline(clip, trees)


def detector(n: int, categories: Sequence[bool]) -> Pipeline:
    """The classifier that tells n samples from as many rows of a table."""
    return boosted_trees(categories, _settings_for(n))


def _binnable(x: Floats, max_values: Floats) -> Floats:
    """What boosted trees take: codes up to a limit, 0 in columns without a value."""
    empty = np.isnan(x).all(axis=0)
    return np.where(empty, 0.0, np.minimum(x, max_values))


def choose_target(target: object, names: Sequence[str], rows: Floats) -> str:
    """The column that is predicted: the user's, or the last of rows (n, c) to vary."""
    if target is not None:
        name = str(target)
        wanted = f"the name of a column: {', '.join(names)}"
        require(name in names, "y", name, wanted)
        return name
    for name, column in zip(reversed(names), rows.T[::-1], strict=True):
        if np.nanstd(column) > 0:
            return name
    return names[-1]


def utility(
    learn: Floats, test: Floats, categories: Sequence[bool], target: int
) -> float:
    """How well a column of test rows is predicted after learning from other rows.

    R² of numbers, AUC of categories, both by boosted trees; NaN if it cannot be learnt.
    """
    from sklearn.metrics import r2_score, roc_auc_score

    learn = learn[~np.isnan(learn[:, target])]
    test = test[~np.isnan(test[:, target])]
    others = np.arange(len(categories)) != target
    if not others.any() or min(len(learn), len(test)) < _MIN_UTILITY_ROWS:
        return float("nan")
    is_category = categories[target]
    other_categories = [bool(c) for c in np.asarray(categories)[others]]
    settings = _settings_for(len(learn))
    trees = boosted_trees(other_categories, settings, regress=not is_category)
    if not is_category:
        trees.fit(learn[:, others], learn[:, target])
        return float(r2_score(test[:, target], trees.predict(test[:, others])))
    # Classes of one row cannot be learnt, and those that are not tested have no AUC.
    classes, counts = np.unique(learn[:, target], return_counts=True)
    classes = np.intersect1d(classes[counts >= 2], test[:, target])
    if len(classes) < 2:
        return float("nan")
    learn = learn[np.isin(learn[:, target], classes)]
    test = test[np.isin(test[:, target], classes)]
    trees.fit(learn[:, others], learn[:, target])
    probabilities = trees.predict_proba(test[:, others])
    if len(classes) == 2:
        probabilities = probabilities[:, 1]
    return float(roc_auc_score(test[:, target], probabilities, multi_class="ovr"))


def rare_values(rows: Floats, train: Floats, categories: Sequence[bool]) -> float:
    """The share of numbers in rows (n, c) that few training rows have: fewer than 5.

    NaN if no column holds numbers.
    """
    is_rare = []
    for c, is_category in enumerate(categories):
        if is_category:
            continue
        values, counts = np.unique(train[:, c], return_counts=True)
        rare = values[counts < MIN_COMMON_COUNT]
        numbers = rows[~np.isnan(rows[:, c]), c]
        is_rare.append(np.isin(numbers, rare))
    if not is_rare or sum(map(len, is_rare)) == 0:
        return float("nan")
    return float(np.concatenate(is_rare).mean())
