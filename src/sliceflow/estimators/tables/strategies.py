"""How a column is drawn: the strategies, of which `choose_strategies` takes one."""

from __future__ import annotations

from typing import Literal, TypeGuard

from sliceflow.estimators.tables.ridge_regression import Scale

# A column is drawn from the leaves of a tree; or as a label whose levels have trees of
# their own for all other columns; or by a ridge regression of grid values or of their
# logarithms, with a residual from the leaves of a tree.
Strategy = Literal["tree", "per_level", "ridge", "log_ridge"]
RidgeStrategy = Literal["ridge", "log_ridge"]

# The strategies with a regression, and the scale of each regression.
SCALE_OF_STRATEGY: dict[RidgeStrategy, Scale] = {
    "ridge": "grid_value",
    "log_ridge": "log",
}


def uses_ridge(strategy: Strategy) -> TypeGuard[RidgeStrategy]:
    """Whether a column of this strategy is drawn by a ridge regression."""
    return strategy in SCALE_OF_STRATEGY
