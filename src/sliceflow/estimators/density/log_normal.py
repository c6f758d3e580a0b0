"""Columns that are normal, or log-normal: which fits better, and their logarithms."""

from __future__ import annotations

import numpy as np

from sliceflow.arrays import SMALLEST_POSITIVE, Floats, Mask
from sliceflow.engine.normal import LOG_TWO_PI

__all__ = ["log_normal_score", "normal_score", "take_logs"]


def normal_score(column: Floats) -> float:
    """The mean log-density of values (n,) under the normal with their moments."""
    return -0.5 * (1 + LOG_TWO_PI) - float(np.log(column.std() + SMALLEST_POSITIVE))


def log_normal_score(column: Floats) -> float:
    """The mean log-density of values (n,) under the log-normal with their moments.

    It is −∞ if some are not positive.
    """
    if column.min() <= 0:
        return -np.inf
    logs = np.log(column)
    return normal_score(logs) - float(logs.mean())


def take_logs(rows: Floats, is_logged: Mask) -> Floats:
    """Rows (n, d) with logarithms in some columns, `is_logged` (d,).

    0 and less become a very low logarithm.
    """
    logs = rows.copy()
    logs[:, is_logged] = np.log(np.maximum(rows[:, is_logged], SMALLEST_POSITIVE))
    return logs
