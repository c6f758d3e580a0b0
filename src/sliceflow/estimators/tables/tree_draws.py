"""Draws of new cells from a tree: each is drawn again until its row allows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables import rare_numbers
from sliceflow.estimators.tables.level_positions import (
    UNDRAWN,
    LevelPositions,
    is_impossible,
)
from sliceflow.estimators.tables.node_sampler import NodeSampler
from sliceflow.estimators.tables.partly_drawn_rows import PartlyDrawnRows

# The most draws of a cell until one is allowed by the constraints, and after how many
# of them draws are from the node above, which has more rows. Six nodes are tried: more
# draws would take longer where no draw is allowed, and fewer would give up more cells,
# whose whole rows are then drawn again. A new node after fewer draws would leave the
# leaf, which knows most about the row, too soon.
MAX_DRAWS = 24
DRAWS_PER_NODE = 4


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


@dataclass(frozen=True, eq=False)
class _Proposals:
    """A draw for each of k cells."""

    cells: _CellsInNodes
    positions: LevelPositions  # (k,)
    is_from_row: Mask  # (k,), which of them are cells of a row of the table

    @classmethod
    def draw(
        cls,
        sampler: NodeSampler,
        cells: _CellsInNodes,
        value_prediction: Floats | None,
        rng: np.random.Generator,
        refuses_outside: bool,
    ) -> _Proposals:
        """Draw each cell from its node; `value_prediction` (m,) is of all rows.

        `NodeSampler.draw` explains `refuses_outside`.
        """
        prediction = None
        if value_prediction is not None:
            prediction = value_prediction[cells.row_indices]
        drawn = sampler.draw(cells.node, prediction, rng, refuses_outside)
        return cls(cells, drawn.positions, drawn.is_from_row)

    def select(self, is_taken: Mask) -> _Proposals:
        """The proposals for which a mask (k,) is True."""
        return _Proposals(
            self.cells.select(is_taken),
            self.positions[is_taken],
            self.is_from_row[is_taken],
        )


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
    refuses_outside : whether cells with a prediction beyond the ends of the column
        are left undrawn; otherwise, they get the value at the nearest end
    """

    def __init__(
        self,
        partly_drawn: PartlyDrawnRows,
        column_index: int,
        sampler: NodeSampler,
        *,
        value_prediction: Floats | None,
        rng: np.random.Generator,
        refuses_outside: bool,
    ) -> None:
        # (m,), of the draws that were allowed so far
        self._positions = LevelPositions(np.full(len(partly_drawn), UNDRAWN))
        self._partly_drawn = partly_drawn
        self._column_index = column_index
        self._sampler = sampler
        self._value_prediction = value_prediction
        self._rng = rng
        self._refuses_outside = refuses_outside

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
        """Draw k cells once, and return those whose draws are not allowed."""
        proposals = self._draw_proposals(cells)
        row_indices = proposals.cells.row_indices
        allowed = self._take_allowed(row_indices, proposals.positions)
        self._move_rare_numbers(self._disclosing_cells(proposals.select(allowed)))
        return proposals.cells.select(~allowed)

    def _take_allowed(self, row_indices: Ints, proposed: LevelPositions) -> Mask:
        """Take proposed positions (k,) as the cells of rows (k,) that allow them.

        Returns which of the rows do.
        """
        allowed = self._partly_drawn.allows(self._column_index, row_indices, proposed)
        self._positions[row_indices[allowed]] = proposed[allowed]
        return allowed

    def _draw_proposals(self, cells: _CellsInNodes) -> _Proposals:
        """Draws of k cells, without those that have to stay undrawn.

        These are predictions beyond the ends of the column, if they are not moved to
        the ends: draws from other nodes would be no better.
        """
        drawn = _Proposals.draw(
            self._sampler,
            cells,
            self._value_prediction,
            self._rng,
            refuses_outside=self._refuses_outside,
        )
        return drawn.select(~is_impossible(drawn.positions))

    def _disclosing_cells(self, proposals: _Proposals) -> _CellsInNodes:
        """The cells with a rare number that comes from a row of the table."""
        is_rare = rare_numbers.is_rare(self._sampler.column, proposals.positions)
        return proposals.cells.select(is_rare & proposals.is_from_row)

    def _move_rare_numbers(self, cells: _CellsInNodes) -> None:
        """Move the rare numbers of cells. One stays if no move is allowed."""
        column = self._sampler.column
        for _ in range(rare_numbers.MAX_MOVES):
            if not len(cells):
                break
            leaf_range = self._sampler.level_range(cells.node)
            rare = self._positions[cells.row_indices]
            moved = rare_numbers.move(column, rare, leaf_range, self._rng)
            allowed = self._take_allowed(cells.row_indices, moved)
            cells = cells.select(~allowed)

    def _climb(self, cells: _CellsInNodes) -> _CellsInNodes:
        """The same cells, each to be drawn from the parent of its node."""
        return _CellsInNodes(cells.row_indices, self._sampler.tree.parent[cells.node])
