"""How good a synthetic table is: detection, shape, trend, utility, copies, validity.

Every number comes with its floor: what fresh real rows reach, half of the held-out rows against the
other half. Columns are numbers (dates are counts of their unit) or codes of categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors

from sliceflow.cells import Cells, read_cells

__all__ = ["TableReport", "association", "embedded", "table_report"]

_ONE_HOT = 24  # categories with their own axis; those of larger columns share as many
_MOST_CODES = 255  # categories that a boosted tree takes
_MOST_ROWS = 10_000  # rows that are compared
_FEW = 1_000  # rows, below which detection is repeated


def embedded(numbers: np.ndarray, categories: Sequence[bool], reference: np.ndarray) -> np.ndarray:
    """Rows as points, where another category and one standard deviation both are a distance of 1.

    Parameters
    ----------
    numbers : (n, c), NaN where missing; of categories, codes
    categories : which columns are categories
    reference : (m, c), rows whose medians and standard deviations count

    Examples
    --------
    >>> rows = np.array([[0.0, 0.0], [2.0, 1.0]])
    >>> points = embedded(rows, [False, True], rows)
    >>> float(np.linalg.norm(points[1] - points[0]).round(2))  # √(2² + 1²)
    2.24
    """
    out = []
    for column, category, known in zip(numbers.T, categories, reference.T, strict=True):
        gone, present = np.isnan(column), known[~np.isnan(known)]
        if category:
            n = int(max(np.nanmax(column, initial=0), present.max(initial=0))) + 1
            axes = np.eye(n)
            if n > _ONE_HOT:  # directions at random are nearly orthogonal
                axes = np.random.default_rng(0).normal(size=(n, _ONE_HOT)) / np.sqrt(_ONE_HOT)
            out.append(np.where(gone[:, None], 0.0, axes[np.where(gone, 0, column).astype(int)]) / np.sqrt(2))
        elif len(present):
            scale = present.std() or 1.0
            out.append(np.where(gone, 0.0, (column - np.median(present)) / scale)[:, None])
        if len(present) < len(known):
            out.append(gone[:, None] / (np.sqrt(2) if category else 1.0))
    return np.hstack(out) if out else np.zeros((len(numbers), 1))
