"""Which strategy draws each column: a tree, a ridge regression, or trees per level.

The training rows choose, by cross-validation: a trial for each column that may have a
regression, and for a label whose levels may have trees of their own. `plan_strategies`
says which these are, and `choose_strategies` runs the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.columns.column_data import ColumnData, limit_predictors
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_value,
    split_in_halves,
)
from sliceflow.estimators.tables.draws.column_model import (
    MIN_LEVELS_FOR_RIDGE,
    fit_column_model,
)
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.ridge_regression import RidgeRegression
from sliceflow.estimators.tables.draws.strategies import (
    SCALE_OF_STRATEGY,
    RidgeStrategy,
    Strategy,
)
from sliceflow.estimators.tables.draws.trees import MAX_ROWS_PER_TREE, TreeSettings
from sliceflow.estimators.tables.table import Table

# The most rows that judge strategies, and the most that these are fitted to. It limits
# the time of large tables.
MAX_ROWS_PER_TRIAL = 4_000

# A regression is a candidate if its predictions are wrong by at most this on average,
# where u(y), the distribution function of the column, is compared instead of y. Columns
# that follow closely from others have such a regression. With a larger limit, more
# columns are tried, which takes time.
MAX_CDF_ERROR = 0.05

# The trees of a trial have half of the rows, and so somewhat smaller leaves than usual.
TRIAL_TREE_SETTINGS = TreeSettings(min_samples_leaf=5, ccp_factor=2)

# To draw new rows, the error of a regression must be below this share of the error of
# leaves. Where the two are close, a detector tells draws of regressions from rows more
# easily than draws from leaves (with a share of .9, its AUC is .589 instead of .562 on
# the table economics, and .611 instead of .588 on mpg).
RIDGE_MARGIN = 0.8

# A regression predicts numbers near a frequent value, such as 0, but hardly ever that
# value itself. If one value has more than this share of the rows, leaves draw new rows:
# samples of the table CreditCard, of whose expenditures a quarter are 0, are told from
# held-out rows with an AUC of .60 instead of .71. With a smaller share, columns that
# are rounded would lose their regressions.
MAX_SHARE_OF_ONE_VALUE = 0.05

# If a rule computes a column in all but fewer rows than this, a tree draws the others,
# because a choice would only take time.
MIN_ROWS_BESIDE_RULES = 20

# A label has trees of its own for each level if a tree of the numbers predicts it with
# at least this area under the ROC curve, and each level has this many rows. It does on
# the table Magic, whose utility (benchmarks/RESULTS.md) is then .942 instead of .932.
# With fewer rows, trees of one level would have few leaves. With a lower AUC, the label
# would hardly help the trees, and they would lose half of their rows.
MIN_LABEL_AUC = 0.8
MIN_ROWS_PER_LEVEL = 500

# About how many rows the tree is fitted to that predicts the label, and the least rows
# of its leaves. More rows and smaller leaves would take longer, and the AUC only has to
# be above or below a limit.
N_ROWS_FOR_LABEL = 10_000
MIN_SAMPLES_LEAF_FOR_LABEL = 50


def plan_strategies(table: Table) -> tuple[Strategy | None, ...]:
    """The strategies that need no trial, in the order of the chain; None for others."""
    label = _find_label(table)
    strategies = list[Strategy | None]()
    for k, c in enumerate(table.drawing_order):
        if c == label or _allows_regression_of(table, k):
            strategies.append(None)
        else:
            strategies.append("tree")
    return tuple(strategies)


def choose_strategies(
    table: Table,
    planned: Sequence[Strategy | None],
    on_trial: Callable[[str], None],
) -> tuple[Strategy, ...]:
    """The strategy of each column of the chain, in the order of the chain.

    Parameters
    ----------
    table : the table
    planned : what `plan_strategies` gives; the rest is chosen by trial
    on_trial : called after each trial, with what was tried
    """
    # "ways" is a part of the seed: another word could change what is chosen.
    seed = Seed(0).child("ways")
    strategies = list[Strategy]()
    for k, strategy in enumerate(planned):
        if strategy is not None:
            strategies.append(strategy)
            continue
        strategies.append(_choose_by_trial(table, k, seed.child(k)))
        on_trial(f"how to draw {table.names[table.drawing_order[k]]}")
    return tuple(strategies)


def _choose_by_trial(table: Table, k: int, seed: Seed) -> Strategy:
    """The strategy of the k-th column of the chain."""
    c = table.drawing_order[k]
    if table.columns[c].is_quantitative:
        data = table.column_data(c, predictor_indices=table.drawing_order[:k])
        return choose_tree_or_ridge(data, seed=seed, margin=RIDGE_MARGIN)
    if _label_auc(table, c) < MIN_LABEL_AUC:
        return "tree"
    return "splitting_label"


def _allows_regression_of(table: Table, k: int) -> bool:
    """Whether a regression may draw the k-th column of the chain."""
    c = table.drawing_order[k]
    before = table.drawing_order[:k]
    if not _allows_regression(table.column_data(c, before)):
        return False
    if table.needs_draw(c, before).sum() < MIN_ROWS_BESIDE_RULES:
        return False
    return _largest_share(table.level_positions[:, c]) <= MAX_SHARE_OF_ONE_VALUE


def _allows_regression(data: ColumnData) -> bool:
    """Whether a column may have the predictions of a regression as its values."""
    if len(data.predictor_indices) == 0 or data.column.n_levels < MIN_LEVELS_FOR_RIDGE:
        return False
    return data.column.new_value_policy.allows_new_values


def _largest_share(positions: LevelPositions) -> float:
    """The share of the most frequent value of a column, without missing cells."""
    observed = positions[has_value(positions)]
    if len(observed) == 0:
        return 0.0
    counts = np.unique(observed, return_counts=True)[1]
    return float(counts.max() / len(observed))


def choose_tree_or_ridge(
    data: ColumnData, *, seed: Seed, margin: float = 1.0
) -> Strategy:
    """The strategy that draws a column best given its predictors.

    It is a regression if the error (CRPS) of that is below `margin` times the error of
    a tree. Each half of the rows judges what was fitted to the other half. If only one
    half judged, the choice would be luck where the two are close: on one table in six,
    the error of filled cells doubled.
    """
    if not _allows_regression(data):
        return "tree"
    data = limit_predictors(data)
    rng = np.random.default_rng(seed.key)
    observed = np.flatnonzero(has_value(data.positions))
    sample = observed[rng.permutation(len(observed))[: 2 * MAX_ROWS_PER_TRIAL]]
    first, second = split_in_halves(data.level_positions[sample])
    trials = [
        _Trial(data.with_rows(first), held_out_positions=second),
        _Trial(data.with_rows(second), held_out_positions=first),
    ]
    regression = _best_regression(trials)
    if regression is None:
        return "tree"
    ridge_crps = sum(trial.crps(regression, seed, rng) for trial in trials)
    tree_crps = sum(trial.crps("tree", seed, rng) for trial in trials)
    if ridge_crps < margin * tree_crps:
        return regression
    return "tree"


def _best_regression(trials: Sequence[_Trial]) -> RidgeStrategy | None:
    """The regression with the smallest error in trials; None if that is too large."""
    errors = dict[RidgeStrategy, float]()
    for strategy in SCALE_OF_STRATEGY:
        error = sum(trial.cdf_error(strategy) for trial in trials) / len(trials)
        if error <= MAX_CDF_ERROR:
            errors[strategy] = error
    if not errors:
        return None
    return min(errors, key=lambda strategy: errors[strategy])


@dataclass(frozen=True, eq=False)
class _Trial:
    """A trial of strategies of a column on two halves of the rows.

    Strategies are fitted to one half, and judged by the other.
    """

    train: ColumnData  # the rows to fit
    held_out_positions: LevelPositions  # (m, d), the rows that judge

    def cdf_error(self, strategy: RidgeStrategy) -> float:
        """The mean of |u(ŷ) − u(y)| for predictions ŷ of a regression; u is `_cdf`.

        Infinite if there are too few rows for a regression.
        """
        regression = RidgeRegression.from_data(SCALE_OF_STRATEGY[strategy], self.train)
        if regression is None:
            return np.inf
        predicted = regression.to_positions(
            self.train.column, regression.predict(self.held_out_positions)
        )
        return float(np.abs(self._cdf(predicted) - self._true_cdf).mean())

    def crps(self, strategy: Strategy, seed: Seed, rng: np.random.Generator) -> float:
        """The continuous ranked probability score of a strategy; lower is better.

        E|u(Y) − u(y)| − ½ E|u(Y) − u(Y′)|, where u is `_cdf`; Y and Y′ are two draws
        for each held-out cell y.
        """
        model = fit_column_model(
            self.train,
            seed=seed,
            settings=TRIAL_TREE_SETTINGS.for_n_rows(len(self.train)),
            strategy=strategy,
        )
        rows = PartlyDrawnRows(self.held_out_positions)
        first = self._cdf(model.draw(rows, rng)[:, 0])
        second = self._cdf(model.draw(rows, rng)[:, 0])
        error = np.mean(
            [np.abs(first - self._true_cdf), np.abs(second - self._true_cdf)]
        )
        difference_of_draws = np.abs(first - second).mean()
        return float(error - difference_of_draws / 2)

    @cached_property
    def _true_cdf(self) -> Floats:
        return self._cdf(self.held_out_positions[:, self.train.column_index])

    def _cdf(self, positions: LevelPositions) -> Floats:
        """The empirical distribution function of training rows at positions (m,)."""
        train_positions = np.sort(self.train.positions)
        n_below = np.searchsorted(train_positions, positions, "left")
        n_up_to = np.searchsorted(train_positions, positions, "right")
        return (n_below + n_up_to) / (2 * len(train_positions))


def _find_label(table: Table) -> int | None:
    """The label whose levels may have trees of their own; None if there is none.

    It is the only category of a table of numbers, and has two frequent levels.
    """
    quantitative = [c for c in table.drawing_order if table.columns[c].is_quantitative]
    others = [c for c in table.drawing_order if not table.columns[c].is_quantitative]
    if len(others) != 1 or not quantitative:
        return None
    label = others[0]
    if (
        not table.columns[label].is_binary
        or len(table.level_positions) > 2 * MAX_ROWS_PER_TREE
    ):
        return None
    counts = np.unique(table.level_positions[:, label], return_counts=True)[1]
    if len(counts) != 2 or counts.min() < MIN_ROWS_PER_LEVEL:
        return None
    return label


def _label_auc(table: Table, label: int) -> float:
    """The area under the ROC curve of a tree that predicts a label from the numbers."""
    quantitative = [c for c in table.drawing_order if c != label]
    sample = table.level_positions[
        :: max(1, len(table.level_positions) // N_ROWS_FOR_LABEL)
    ]
    # These take long to import, and new rows of a fitted table do not need them.
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.tree import DecisionTreeClassifier

    scores = cross_val_score(
        DecisionTreeClassifier(
            min_samples_leaf=MIN_SAMPLES_LEAF_FOR_LABEL, random_state=0
        ),
        sample[:, quantitative],
        sample[:, label],
        cv=StratifiedKFold(2),
        scoring="roc_auc",
    )
    return float(scores.mean())
