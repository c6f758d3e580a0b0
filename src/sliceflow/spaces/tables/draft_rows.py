"""Rows that are being drawn, column by column, and which cells they may have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sliceflow.arrays import Ints, Mask
from sliceflow.spaces.tables.coords import Coords, is_missing
from sliceflow.spaces.tables.rule_set import RuleSet


class DraftRows:
    """Rows that are being drawn: models read them, and ask which cells are allowed.

    Parameters
    ----------
    cell_coords : (m, d), the cells that models read; `set_columns` changes it in
        place
    rule_set : the rules that the rows must keep; None if there are none
    allow_missing : whether cells may be missing
    rule_coords : (m, d), the cells that rules read. None for `cell_coords` itself.
        Both differ while holes are filled: models read the last filling of a hole, and
        rules wait for the next one
    """

    def __init__(
        self,
        cell_coords: Coords,
        rule_set: RuleSet | None = None,
        allow_missing: bool = True,
        rule_coords: Coords | None = None,
    ) -> None:
        if rule_coords is None:
            rule_coords = cell_coords
        self.cell_coords = cell_coords
        self._rule_set = rule_set
        self._allow_missing = allow_missing
        self._rule_coords = rule_coords

    def __len__(self) -> int:
        return len(self.cell_coords)

    def allows(self, c: int, row_indices: Ints, coords: Coords) -> Mask:
        """Which coordinates (k,) column c may have in these rows (k,).

        Rules see the columns that are drawn by now; others are `UNDRAWN`. No row
        changes.
        """
        allowed = np.full(len(row_indices), True)
        if not self._allow_missing:
            allowed = ~is_missing(coords)
        if self._rule_set is None:
            return allowed
        return allowed & self._rule_set.allows(
            self._rule_coords, c, row_indices, coords
        )

    def set_columns(self, column_indices: Sequence[int], coords: Coords) -> None:
        """Give k columns their coordinates (m, k), in all rows."""
        self.cell_coords[:, column_indices] = coords

    def take(self, row_indices: Ints) -> DraftRows:
        """A copy of some of the rows, with the same rules."""
        return DraftRows(
            self.cell_coords[row_indices],
            self._rule_set,
            self._allow_missing,
            self._rule_coords[row_indices],
        )
