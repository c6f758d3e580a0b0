"""Which rows are left if some are forgotten."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from sliceflow.base.protocols import RowsT
from sliceflow.errors import DataError


def remove_rows(rows: RowsT, removed: RowsT) -> RowsT:
    """The rows without the removed ones; of equal rows, the last are removed first.

    Raises a `DataError` if one of the `removed` is not among the rows.
    """
    indices_of_key: dict[Hashable, list[int]] = {}
    for index, key in enumerate(rows.keys()):
        indices_of_key.setdefault(key, []).append(index)
    is_kept = np.ones(len(rows), dtype=bool)
    for index, key in enumerate(removed.keys()):
        if not indices_of_key.get(key):
            fact = "it is not in the model, or X has it more often"
            hint = "nothing was forgotten. Pass rows with their y, as they were fitted"
            raise DataError(fact, hint, row=index)
        is_kept[indices_of_key[key].pop()] = False
    if not is_kept.any():
        fact = f"this would forget all {len(rows)} rows"
        raise DataError(fact, "delete the model instead")
    return rows.take(np.flatnonzero(is_kept))
