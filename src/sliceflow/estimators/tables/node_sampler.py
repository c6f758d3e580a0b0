"""Draws of a column's cells from the nodes of its tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables.columns import Column
from sliceflow.estimators.tables.level_positions import LevelPositions
from sliceflow.estimators.tables.rare_numbers import LevelRange
from sliceflow.estimators.tables.ridge_regression import RidgeRegression
from sliceflow.estimators.tables.trees import DrawnValues, Tree


class DrawnCells(NamedTuple):
    """Cells that were drawn from nodes of a tree."""

    positions: LevelPositions  # (m,)
    # (m,), which cells are those of a row of the table, and so may disclose it. A
    # prediction of a regression is a number of the table only by accident, and if it
    # moved, a total would no longer be the sum of its parts.
    is_from_row: Mask


@dataclass(frozen=True, eq=False)
class NodeSampler:
    """Draws cells of one column from the nodes of its tree.

    Without a regression, the tree has positions: a cell gets the position of a random
    row of its node, or in a leaf a position between two rows. With a regression, the
    tree has residuals: a cell is what the regression predicts, plus a residual.
    """

    column: Column
    tree: Tree
    value_regression: RidgeRegression | None = None

    def draw(
        self,
        node: Ints,
        prediction: Floats | None,
        rng: np.random.Generator,
        refuses_outside: bool,
    ) -> DrawnCells:
        """Draw a cell from each of the nodes (m,).

        `prediction` (m,) is what the regression predicts, None without a regression.
        A sum of prediction and residual beyond the ends of the column becomes the
        nearest end, or `IMPOSSIBLE` with `refuses_outside`.
        """
        drawn = self.tree.draw(node, rng)
        is_leaf = self.tree.is_leaf(node)
        if self.value_regression is not None:
            assert prediction is not None, "the tree has residuals of a regression"
            positions = self._add_residual(
                self.value_regression,
                prediction,
                drawn,
                is_leaf,
                refuses_outside,
            )
            return DrawnCells(positions, is_from_row=np.full(len(node), False))
        if not self.column.new_value_policy.interpolable_levels.any():
            positions = LevelPositions(drawn.values)
            return DrawnCells(positions, is_from_row=np.full(len(node), True))
        positions = self._interpolate(drawn, is_leaf)
        is_from_row = positions == drawn.values
        is_from_row |= (positions == drawn.below) | (positions == drawn.above)
        return DrawnCells(positions, is_from_row)

    def _add_residual(
        self,
        regression: RidgeRegression,
        prediction: Floats,
        drawn: DrawnValues,
        is_leaf: Mask,
        refuses_outside: bool,
    ) -> LevelPositions:
        """Positions (m,) of predictions (m,) plus drawn residuals.

        In leaves, the residual is between the residuals of two rows.
        """
        between = drawn.below + drawn.fraction * (drawn.above - drawn.below)
        residual = np.where(is_leaf, between, drawn.values)
        return regression.to_positions(
            self.column, prediction + residual, refuses_outside
        )

    def _interpolate(self, drawn: DrawnValues, is_leaf: Mask) -> LevelPositions:
        """Positions (m,) between two rows of leaves, where new values may be."""
        between = self.column.new_value_policy.interpolate(
            low=LevelPositions(drawn.below),
            high=LevelPositions(drawn.above),
            fraction=drawn.fraction,
            fallback=LevelPositions(drawn.values),
        )
        return LevelPositions(np.where(is_leaf, between, drawn.values))

    def level_range(self, node: Ints) -> LevelRange:
        """The lowest and the highest level among the rows of each node (m,).

        Rows of a node above leaves are not sorted, so its range is the whole column.
        """
        lowest, highest = self.tree.leaf_range(node)
        whole = LevelRange.of_column(self.column, len(node))
        is_leaf = self.tree.is_leaf(node)
        return LevelRange(
            first=np.where(is_leaf, lowest, whole.first).astype(np.int64),
            last=np.where(is_leaf, highest, whole.last).astype(np.int64),
        )
