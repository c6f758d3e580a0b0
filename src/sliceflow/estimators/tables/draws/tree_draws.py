"""Draws of new cells of a column from its tree.

`NodeSampler` draws a cell from a node of the tree. `TreeDraws` does so for rows that
are partly drawn: again and again, until the row of each cell allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    UNDRAWN,
    LevelPositions,
    is_impossible,
)
from sliceflow.estimators.tables.draws import rare_numbers
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.rare_numbers import LevelRange
from sliceflow.estimators.tables.draws.ridge_regression import RidgeRegression
from sliceflow.estimators.tables.draws.trees import DrawnValues, Tree

# The most draws of a cell until one is allowed by the constraints, and after how many
# of them draws are from the node above, which has more rows. Six nodes are tried: more
# draws would take longer where no draw is allowed, and fewer would give up more cells,
# whose whole rows are then drawn again. A new node after fewer draws would leave the
# leaf, which knows most about the row, too soon.
MAX_DRAWS = 24
DRAWS_PER_NODE = 4


class DrawnCells(NamedTuple):
    """Cells that were drawn from nodes of a tree."""

    positions: LevelPositions  # (m,)
    # (m,), which cells have the value of a row of the table, and so may disclose the
    # row. A prediction of a regression is a number of the table only by accident, and
    # if it moved, a total would no longer be the sum of its parts.
    is_from_row: Mask

    def select(self, is_taken: Mask) -> DrawnCells:
        """The cells for which a mask (m,) is True."""
        return DrawnCells(self.positions[is_taken], self.is_from_row[is_taken])


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
        clip_predictions: bool,
    ) -> DrawnCells:
        """Draw a cell from each of the nodes (m,).

        `prediction` (m,) is what the regression predicts, None without a regression.
        A sum of prediction and residual beyond the ends of the column becomes the
        nearest end, or `IMPOSSIBLE` without `clip_predictions`.
        """
        drawn = self.tree.draw(node, rng)
        is_leaf = self.tree.is_leaf(node)
        if self.value_regression is not None:
            assert prediction is not None, "the tree has residuals of a regression"
            positions = self.value_regression.to_positions(
                self.column,
                prediction + _residuals(drawn, is_leaf),
                clip=clip_predictions,
            )
            return DrawnCells(positions, is_from_row=np.full(len(node), False))
        if not self.column.new_value_policy.is_interpolable_level.any():
            positions = LevelPositions(drawn.values)
            return DrawnCells(positions, is_from_row=np.full(len(node), True))
        positions = self._interpolate(drawn, is_leaf)
        is_from_row = positions == drawn.values
        is_from_row |= (positions == drawn.below) | (positions == drawn.above)
        return DrawnCells(positions, is_from_row)

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


def _residuals(drawn: DrawnValues, is_leaf: Mask) -> Floats:
    """The drawn residuals (m,): in leaves, each between the residuals of two rows."""
    between = drawn.below + drawn.fraction * (drawn.above - drawn.below)
    return np.where(is_leaf, between, drawn.values)


@dataclass(frozen=True, eq=False)
class _CellsInNodes:
    """Cells of the column, and the nodes of the tree from which they are drawn."""

    row_indices: Ints  # (k,), their rows
    node: Ints  # (k,), nodes of the tree

    def __len__(self) -> int:
        return len(self.row_indices)

    def select(self, is_taken: Mask) -> _CellsInNodes:
        """The cells for which a mask (k,) is True."""
        return _CellsInNodes(self.row_indices[is_taken], self.node[is_taken])


class TreeDraws:
    """Draws of new cells of one column from its tree, for rows that are partly drawn.

    Each draw is a proposal. Where its row does not allow it, the cell is drawn again:
    first from the same leaf, then from the nodes above it.

    Parameters
    ----------
    partly_drawn : the m rows, which do not change
    column_index : the column that is drawn
    sampler : draws cells from the nodes of the column's tree
    value_prediction : (m,), what the sampler's regression predicts; None if it has
        none
    rng : the random numbers of all draws
    clip_predictions : whether a prediction beyond the ends of the column becomes the
        value at the nearest end; otherwise, its cell is left undrawn
    """

    def __init__(
        self,
        partly_drawn: PartlyDrawnRows,
        column_index: int,
        sampler: NodeSampler,
        *,
        value_prediction: Floats | None,
        rng: np.random.Generator,
        clip_predictions: bool,
    ) -> None:
        # (m,), of the draws that were allowed so far
        self._positions = LevelPositions(np.full(len(partly_drawn), UNDRAWN))
        self._partly_drawn = partly_drawn
        self._column_index = column_index
        self._sampler = sampler
        self._value_prediction = value_prediction
        self._rng = rng
        self._clip_predictions = clip_predictions

    def draw_from_leaves(self, row_indices: Ints, leaf: Ints) -> LevelPositions:
        """New cells (k,) of rows (k,), drawn from their leaves (k,) until allowed.

        A cell is `UNDRAWN` if none of `MAX_DRAWS` draws is allowed.
        """
        refused = _CellsInNodes(row_indices, leaf)
        for attempt in range(1, MAX_DRAWS + 1):
            if not len(refused):
                break
            refused = self._draw_once(refused)
            if attempt % DRAWS_PER_NODE == 0:
                refused = self._climb(refused)
        return self._positions[row_indices]

    def _draw_once(self, cells: _CellsInNodes) -> _CellsInNodes:
        """Draw k cells once, and return the cells whose draws are not allowed."""
        prediction = None
        if self._value_prediction is not None:
            prediction = self._value_prediction[cells.row_indices]
        drawn = self._sampler.draw(
            cells.node, prediction, self._rng, self._clip_predictions
        )
        # A prediction beyond the ends of the column stays undrawn: draws from other
        # nodes would be no better.
        is_proposal = ~is_impossible(drawn.positions)
        cells = cells.select(is_proposal)
        drawn = drawn.select(is_proposal)

        is_allowed = self._take_allowed(cells.row_indices, drawn.positions)
        is_rare = rare_numbers.is_rare(self._sampler.column, drawn.positions)
        self._move_rare_numbers(cells.select(is_allowed & is_rare & drawn.is_from_row))
        return cells.select(~is_allowed)

    def _take_allowed(self, row_indices: Ints, proposed: LevelPositions) -> Mask:
        """Take proposed positions (k,) as the cells of rows (k,) that allow them.

        Returns which of the rows do.
        """
        is_allowed = self._partly_drawn.allows(
            self._column_index, row_indices, proposed
        )
        self._positions[row_indices[is_allowed]] = proposed[is_allowed]
        return is_allowed

    def _move_rare_numbers(self, cells: _CellsInNodes) -> None:
        """Move the rare numbers of cells. One stays if no move is allowed."""
        column = self._sampler.column
        for _ in range(rare_numbers.MAX_MOVES):
            if not len(cells):
                break
            leaf_range = self._sampler.level_range(cells.node)
            rare = self._positions[cells.row_indices]
            moved = rare_numbers.move(column, rare, leaf_range, self._rng)
            is_allowed = self._take_allowed(cells.row_indices, moved)
            cells = cells.select(~is_allowed)

    def _climb(self, cells: _CellsInNodes) -> _CellsInNodes:
        """The same cells, each to be drawn from the parent of its node."""
        return _CellsInNodes(cells.row_indices, self._sampler.tree.parent[cells.node])
