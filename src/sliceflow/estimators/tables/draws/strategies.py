"""How a column is drawn: the strategies, of which a trial takes one.

`trials.choose_strategies` runs these trials.
"""

from __future__ import annotations

from typing import Literal, TypeGuard

from sliceflow.estimators.tables.draws.ridge_regression import Scale

# tree             from the leaves of a tree
# splitting_label  in the same way; but its levels split the rows, and each column that
#                  is drawn after it has a model of its own for each level
# ridge            by a ridge regression of grid values, with a residual from the leaves
#                  of a tree
# log_ridge        likewise, of the logarithms of grid values
Strategy = Literal["tree", "splitting_label", "ridge", "log_ridge"]
RidgeStrategy = Literal["ridge", "log_ridge"]

# The strategies with a regression, and the scale of each regression.
SCALE_OF_STRATEGY: dict[RidgeStrategy, Scale] = {
    "ridge": "grid_value",
    "log_ridge": "log",
}


def uses_ridge(strategy: Strategy) -> TypeGuard[RidgeStrategy]:
    """Whether a column of this strategy is drawn by a ridge regression."""
    return strategy in SCALE_OF_STRATEGY
