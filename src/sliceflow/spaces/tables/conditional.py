"""Rows of scores given some of their coordinates: `sample(given=…)` and `impute`.

Both draw the unknown coordinates from adjusted neighbourhoods (`sliceflow.neighbours.local`) of
the known ones, so no sample is rejected. What `impute` fills is then drawn once more, column by column
(`sliceflow.spaces.tables.chained`).
"""

from __future__ import annotations

import numpy as np
import torch

from sliceflow.engine.random import Seed
from sliceflow.neighbours.draws import draw_near
from sliceflow.neighbours.local import LocalRows, LocalSettings
from sliceflow.spaces.tables.scores import Scores, Stream

__all__ = ["completed", "conditions_for"]

_K = 100  # neighbours of a condition
_MOST_ROWS = 20_000  # among which they are searched
_ENOUGH = 50  # rows that agree with the known cells
_CHUNK = 256  # conditions at a time


def conditions_for(
    scores: Scores, z: np.ndarray, numbers: np.ndarray, given: np.ndarray, n: int, draw: Stream
) -> np.ndarray:
    """Scores (n, d) of what is given for each column: a number, NaN for missing, −∞ for nothing.

    Coordinates of which nothing is given are NaN. A category is an interval of the score, and where in
    it a row lies depends on its other columns. So the position is that of a row that agrees with all
    that is given, or of one of the nearest.
    """
    out = np.full((n, len(scores.coordinates)), np.nan)
    distance, targets = np.zeros(len(z)), dict[int, tuple[float, float]]()
    levels = np.linspace(0, 1, scores.ends.shape[1])
    for j, k in enumerate(scores.coordinates):
        value = given[k.column : k.column + 1]
        if np.isneginf(value[0]) or (np.isnan(value[0]) and not k.flag):
            continue
        if k.smooth:
            low = high = float(k.smoothed(value)[0])
            same = np.zeros(len(z), dtype=bool)
        else:
            low, high = (float(np.interp(e[0], levels, scores.ends[j])) for e in k.bounds(value))
            column = numbers[:, k.column]
            same = np.isnan(column) == np.isnan(value[0]) if k.flag else column == value[0]
        outside = np.maximum(np.maximum(low - z[:, j], z[:, j] - high), 0)
        distance += np.where(same, 0.0, 0.01 + outside**2)
        targets[j] = low, high
    count = min(len(z), max(_ENOUGH, int((distance == 0).sum())))
    nearest = np.argsort(distance, kind="stable")[:count]
    rows = nearest[(draw.uniform(n) * count).astype(int)]
    for j, (low, high) in targets.items():
        out[:, j] = np.clip(z[rows, j], low, high)
    return out


def completed(
    scores: Scores, z: np.ndarray, numbers: np.ndarray, at: np.ndarray, seed: Seed, times: int
) -> np.ndarray:
    """Scores (q, d) with NaN, filled `times` each: (times, q, d).

    Coordinates that are ∞ do not matter, and are neither used nor filled. Rows with the same
    coordinates missing share their search.
    """
    out = np.repeat(at[None], times, axis=0)
    free = np.isnan(at)
    patterns, which = np.unique(free, axis=0, return_inverse=True)
    flags = np.array([k.flag for k in scores.coordinates], dtype=bool)
    some = seed.child("rows").permutation(len(z))[:_MOST_ROWS].numpy()
    for p, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.reshape(-1) == p)
        if not pattern.any():
            continue
        wanted = np.flatnonzero(pattern)
        known = np.flatnonzero(~pattern & np.isfinite(at[rows[0]]))
        # rows whose wanted cells are there, if there are enough
        columns = [scores.coordinates[j].column for j in wanted if not flags[j]]
        whole = some[~np.isnan(numbers[some][:, columns]).any(1)] if columns else some
        pool = whole if len(whole) >= max(_ENOUGH, len(some) // 10) else some
        own = seed.child("pattern", p)
        if len(known) == 0:
            picks = (own.uniform(times * len(rows), 1)[:, 0].numpy() * len(pool)).astype(int)
            out[:, rows] = z[pool[picks]].reshape(times, len(rows), -1)
            continue
        x, y = torch.from_numpy(z[np.ix_(pool, wanted)]), torch.from_numpy(z[np.ix_(pool, known)])
        k = min(max(_K, 3 * len(known)), len(pool))
        projection = torch.diag(weights(scores.precision, wanted, known))
        near = LocalRows(x, y, LocalSettings(k, 0.8, projection))
        for first in range(0, len(rows), _CHUNK):
            part = rows[first : first + _CHUNK]
            adjusted = near.adjusted(at[np.ix_(part, known)], most=1)
            made = draw_near(adjusted, times, near.settings.spread, own, first)[
                0
            ].numpy()  # (q, times, wanted)
            for t in range(times):
                out[t][np.ix_(part, wanted)] = made[:, t]
    return out


def weights(precision: np.ndarray, wanted: np.ndarray, known: np.ndarray) -> torch.Tensor:
    """What a unit of each known coordinate counts: how much it moves the wanted ones, linearly."""
    slopes = np.linalg.solve(precision[np.ix_(wanted, wanted)], precision[np.ix_(wanted, known)])
    residual = np.sqrt(np.diagonal(np.linalg.inv(precision[np.ix_(wanted, wanted)])))
    size = np.sqrt(((slopes / residual[:, None]) ** 2).sum(0))
    return torch.from_numpy(size / size.max() + 0.02 if size.max() > 0 else np.ones(len(known)))
