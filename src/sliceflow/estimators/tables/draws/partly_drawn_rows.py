"""Rows that are being drawn, column by column, and which cells they may have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.estimators.tables.columns.level_positions import (
    UNDRAWN,
    LevelPositions,
    is_impossible,
    is_missing,
    is_undrawn,
)
from sliceflow.estimators.tables.rules.rule_set import RuleSet


class PartlyDrawnRows:
    """Rows that are being drawn: models read them, and ask which cells are allowed.

    Parameters
    ----------
    level_positions : (m, d), the cells that models read; `set_columns` writes into it
    rule_set : the rules that the rows must keep; None if there are none
    allow_missing : whether cells may be missing
    rule_positions : (m, d), the cells that rules read. None for `level_positions`
        itself. Both differ while missing cells are filled: models read the last draw
        of such a cell, and rules wait for the next one
    """

    def __init__(
        self,
        level_positions: LevelPositions,
        rule_set: RuleSet | None = None,
        allow_missing: bool = True,
        rule_positions: LevelPositions | None = None,
    ) -> None:
        self.level_positions = level_positions
        self._rule_set = rule_set
        self._allow_missing = allow_missing
        self._rule_positions = rule_positions

    def __len__(self) -> int:
        return len(self.level_positions)

    def allows(self, c: int, row_indices: Ints, positions: LevelPositions) -> Mask:
        """Which positions (k,) column c may have in these rows (k,).

        Rules see the columns that are drawn by now; others are `UNDRAWN`. No row
        changes.
        """
        is_allowed = np.full(len(row_indices), True)
        if not self._allow_missing:
            is_allowed = ~is_missing(positions)
        if self._rule_set is None:
            return is_allowed
        rule_positions = self._rule_positions
        if rule_positions is None:
            rule_positions = self.level_positions
        return is_allowed & self._rule_set.allows(
            rule_positions, c, row_indices, positions
        )

    def keep_allowed(self, c: int, proposed: LevelPositions) -> LevelPositions:
        """The positions (m,) proposed for column c, where the rows allow them.

        Others are `UNDRAWN`. Where the proposal is `UNDRAWN` or `IMPOSSIBLE`, there is
        none.
        """
        is_proposal = ~is_undrawn(proposed) & ~is_impossible(proposed)
        row_indices = np.flatnonzero(is_proposal)
        is_allowed = self.allows(c, row_indices, proposed[row_indices])
        positions = LevelPositions(np.full(len(self), UNDRAWN))
        positions[row_indices[is_allowed]] = proposed[row_indices[is_allowed]]
        return positions

    def set_columns(
        self, column_indices: Sequence[int], positions: LevelPositions
    ) -> None:
        """Give k columns their positions (m, k), in all rows."""
        self.level_positions[:, column_indices] = positions

    def take(self, row_indices: Ints) -> PartlyDrawnRows:
        """A copy of the rows with these indices (k,), with the same rules."""
        rule_positions = self._rule_positions
        if rule_positions is not None:
            rule_positions = rule_positions[row_indices]
        return PartlyDrawnRows(
            self.level_positions[row_indices],
            self._rule_set,
            self._allow_missing,
            rule_positions,
        )
