"""Metrics of tables: shapes, associations, utility, rare values.

Rows are numbers or codes of categories, as `table_encoding.py` makes them; NaN is a
missing cell. `is_categorical` says which of the c columns hold codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.metrics.table_encoding import MAX_CATEGORIES

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# Boosted trees that detect samples and measure utility. Three times as many iterations,
# with a lower learning rate and twice as many leaves, detect as much, but take four
# times as long.
_BOOSTING_ITERATIONS = 50
_LEARNING_RATE = 0.2
_MAX_LEAVES = 15
# Leaves have this many rows, scikit-learn's own number, or fewer in small tables.
_MIN_SAMPLES_LEAF = 20
# A value that fewer rows have is rare: it may be that of a person. Five is a usual
# limit of statistical offices.
MIN_COMMON_COUNT = 5
# With fewer rows that have a target, there is too little to learn from, or to test.
_MIN_UTILITY_ROWS = 5


def column_shape(held_out: Floats, samples: Floats, is_category: bool) -> float:
    """The agreement of the distributions of two columns, from 0 to 1.

    For numbers it is 1 − the Kolmogorov–Smirnov distance, for categories 1 − the total
    variation distance. A missing cell is one more category. For numbers, the difference
    of the shares of missing cells counts if it is larger.
    """
    if is_category:
        return 1 - _total_variation(held_out, samples)
    from scipy.stats import ks_2samp

    is_missing_in_held_out = np.isnan(held_out)
    is_missing_in_samples = np.isnan(samples)
    difference = abs(
        float(is_missing_in_held_out.mean()) - float(is_missing_in_samples.mean())
    )
    if is_missing_in_held_out.all() or is_missing_in_samples.all():
        return 1 - difference
    comparison = ks_2samp(
        held_out[~is_missing_in_held_out],
        samples[~is_missing_in_samples],
        method="asymp",
    )
    return 1 - max(difference, float(comparison.statistic))


def _total_variation(held_out: Floats, samples: Floats) -> float:
    """Half the sum of the differences of the shares of all codes, NaN among them."""
    held_out_codes = np.where(np.isnan(held_out), -1, held_out)
    sample_codes = np.where(np.isnan(samples), -1, samples)
    codes = np.union1d(held_out_codes, sample_codes)
    held_out_shares = _shares_of_codes(held_out_codes, codes)
    differences = held_out_shares - _shares_of_codes(sample_codes, codes)
    return 0.5 * float(np.abs(differences).sum())


def _shares_of_codes(column: Floats, codes: Floats) -> Floats:
    """The share (k,) of a column (n,) that each of the ascending codes (k,) has."""
    counts = np.bincount(np.searchsorted(codes, column), minlength=len(codes))
    return np.asarray(counts / len(column))


def association_matrix(rows: Floats, is_categorical: Sequence[bool]) -> Floats:
    """How strongly two columns are associated, for all pairs: (c, c).

    The correlation of two numbers, the correlation ratio of a number and a category,
    and Cramér's V of two categories, in the rows without missing cells in both.
    """
    n_columns = len(is_categorical)
    matrix = np.eye(n_columns)
    for i, j in combinations(range(n_columns), 2):
        is_observed = ~np.isnan(rows[:, i]) & ~np.isnan(rows[:, j])
        a = rows[is_observed, i]
        b = rows[is_observed, j]
        strength = _pair_association(a, b, is_categorical[i], is_categorical[j])
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


def _boosting_settings(n: int) -> BoostingSettings:
    """The settings of boosted trees for n rows: small tables have small leaves."""
    return BoostingSettings(
        max_iter=_BOOSTING_ITERATIONS,
        max_leaf_nodes=_MAX_LEAVES,
        min_samples_leaf=min(_MIN_SAMPLES_LEAF, max(2, n // 40)),
    )


def boosted_trees(
    is_categorical: Sequence[bool], settings: BoostingSettings, regress: bool = False
) -> Pipeline:
    """Boosted trees: a classifier, or a regressor.

    `is_categorical` says which columns hold codes of categories. All categories beyond
    the limit of the trees count as one.
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
        categorical_features=list(is_categorical),
        early_stopping=False,
        random_state=0,
    )
    max_values = np.where(is_categorical, MAX_CATEGORIES, np.inf)
    clip = FunctionTransformer(_binnable, kw_args={"max_values": max_values})
    return make_pipeline(clip, trees)


def detector(n: int, is_categorical: Sequence[bool]) -> Pipeline:
    """The classifier that tells n samples from as many rows of a table."""
    return boosted_trees(is_categorical, _boosting_settings(n))


def _binnable(x: Floats, max_values: Floats) -> Floats:
    """Codes clipped to the limit of boosted trees; 0 in columns without a value."""
    is_empty = np.isnan(x).all(axis=0)
    return np.where(is_empty, 0.0, np.minimum(x, max_values))


def utility(
    rows_to_learn: Floats, held_out: Floats, is_categorical: Sequence[bool], target: int
) -> float:
    """How well a column of held-out rows is predicted after learning from other rows.

    It is the R² of numbers or the AUC of categories, both by boosted trees; NaN if the
    column cannot be learnt.

    Parameters
    ----------
    rows_to_learn, held_out : rows to learn from (n, c), and rows to predict (m, c)
    is_categorical : which of the c columns hold codes
    target : the index of the column that is predicted
    """
    train = _PredictionTask.from_rows(rows_to_learn, target)
    test = _PredictionTask.from_rows(held_out, target)
    has_predictors = train.X.shape[1] > 0
    if not has_predictors or min(len(train.y), len(test.y)) < _MIN_UTILITY_ROWS:
        return float("nan")
    is_category = is_categorical[target]
    others_are_categorical = np.delete(is_categorical, target).tolist()
    settings = _boosting_settings(len(train.y))
    trees = boosted_trees(others_are_categorical, settings, regress=not is_category)
    if is_category:
        return _auc_of_classifier(trees, train, test)
    return _r2_of_regressor(trees, train, test)


class _PredictionTask(NamedTuple):
    """A column of a table to predict, from all others."""

    X: Floats  # (n, c − 1)
    y: Floats  # (n,)

    @classmethod
    def from_rows(cls, rows: Floats, target: int) -> _PredictionTask:
        """The column with the index `target`, in the rows (n, c) that have it."""
        known = rows[~np.isnan(rows[:, target])]
        return cls(np.delete(known, target, axis=1), known[:, target])

    def take_classes(self, classes: Floats) -> _PredictionTask:
        """Only the rows whose y is one of these classes."""
        is_taken = np.isin(self.y, classes)
        return _PredictionTask(self.X[is_taken], self.y[is_taken])


def _r2_of_regressor(
    regressor: Pipeline, train: _PredictionTask, test: _PredictionTask
) -> float:
    """The R² of a regressor in test rows after it has learnt from train rows."""
    from sklearn.metrics import r2_score

    regressor.fit(train.X, train.y)
    return float(r2_score(test.y, regressor.predict(test.X)))


def _auc_of_classifier(
    classifier: Pipeline, train: _PredictionTask, test: _PredictionTask
) -> float:
    """The AUC of a classifier in test rows after it has learnt from train rows.

    It is NaN if there are fewer than two classes to learn and to test. Classes of one
    row cannot be learnt.
    """
    from sklearn.metrics import roc_auc_score

    train_classes, counts = np.unique(train.y, return_counts=True)
    classes = np.intersect1d(train_classes[counts >= 2], test.y)
    if len(classes) < 2:
        return float("nan")
    learnt = train.take_classes(classes)
    tested = test.take_classes(classes)
    classifier.fit(learnt.X, learnt.y)
    probabilities = classifier.predict_proba(tested.X)
    if len(classes) == 2:
        probabilities = probabilities[:, 1]
    return float(roc_auc_score(tested.y, probabilities, multi_class="ovr"))


def rare_value_share(
    rows: Floats, train: Floats, is_categorical: Sequence[bool]
) -> float:
    """The share of numbers in rows (n, c) that few training rows (N, c) have.

    Few are fewer than `MIN_COMMON_COUNT`. NaN if no column holds numbers.
    """
    is_rare = []
    for c, is_category in enumerate(is_categorical):
        if is_category:
            continue
        values, counts = np.unique(train[:, c], return_counts=True)
        rare = values[counts < MIN_COMMON_COUNT]
        numbers = rows[~np.isnan(rows[:, c]), c]
        is_rare.append(np.isin(numbers, rare))
    if not is_rare or sum(map(len, is_rare)) == 0:
        return float("nan")
    return float(np.concatenate(is_rare).mean())
