"""New rows between near ones, for small tables in which numbers vary smoothly together.

A draw at a random row x, in normal scores, with the mean m of the k rows nearest to it, is

    m + √(1 − h²)·(x − m) + h·Σⱼ wⱼ·(xⱼ − m),   wⱼ ~ N(0, 1/(k − 1)),   h² = k/(k + 4),

so that draws at all of the k rows would have their mean and covariance. Then each number moves to the
distribution of its column: the one-dimensional transport from what such draws have. Categories and
missing cells are those of the random row. Columns count for distances by how much the others say of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata

from sliceflow.neighbours.sampling import local_noise
from sliceflow.neighbours.search import build_index, query_index
from sliceflow.spaces.tables.columns import Column

_OWN = 4  # neighbours that the random row itself is worth
_RIDGE = 0.01
_LEAST = 0.25  # of the covariance; R² that every column counts for
_NUMBERS = 1 << 20  # of neighbours at a time


@dataclass(frozen=True, eq=False)
class Near:
    """The first link of a chain: several columns together."""

    columns: Sequence[Column]  # of the table
    column: list[int]  # the numbers of those that are drawn,
    z: np.ndarray  # (n, p), their positions
    x: torch.Tensor  # (n, q), normal scores of those that are smooth
    around: torch.Tensor  # (n, k), the nearest rows
    left: float  # share of the variance within neighbourhoods

    @classmethod
    def fit(
        cls, columns: Sequence[Column], z: np.ndarray, which: list[int], k: int
    ) -> Near:
        """The k nearest of rows z (n, d), by the columns `which`."""
        axes = [columns[c].axes(z[:, c]) for c in which]
        points = np.hstack(axes)
        covariance = np.atleast_2d(np.cov(points.T, ddof=0)) + _RIDGE * np.eye(
            points.shape[1]
        )
        explained = 1 - 1 / (np.diag(covariance) * np.diag(np.linalg.inv(covariance)))
        seen = torch.from_numpy(points * np.sqrt(np.clip(explained, _LEAST, 1)))
        around = query_index(build_index(seen), seen, min(k, len(z)))[1]
        pairs = [
            (z[:, [c]], of)
            for of, c in zip(axes, which, strict=True)
            if columns[c].is_smooth
        ]
        x = torch.from_numpy(
            np.hstack([np.where(cells < 0, np.nan, of) for cells, of in pairs])
        )
        x = torch.where(x.isnan(), x[around].nanmean(1), x).nan_to_num()
        inside = x[around].var(1, correction=0).mean(0)
        whole = x.var(0, correction=0)
        left = float(inside.sum() / (whole.sum() + 1e-12))
        return cls(columns, [*which], z[:, which], x, around, left)

    def draw(self, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Positions (m, p) of as many new rows as z (m, d) has; rules are left to the caller.

        Ranks are those among the draws, of which there are at least as many as rows.
        """
        n = len(self.z)
        m = max(len(z), len(self.z))
        at = 0
        rows = np.concatenate([rng.permutation(n) for _ in range(-(-m // n))])[:m]
        out = self.z[rows]
        scores = self._scores(rows, rng)
        for i, column in ((i, self.columns[c]) for i, c in enumerate(self.column)):
            if column.is_smooth:
                there = out[:, i] >= 0
                known = np.sort(self.z[self.z[:, i] >= 0, i])
                ranks = rankdata(scores[there, at], method="ordinal")
                u = (ranks - rng.random(len(ranks))) / max(1, len(ranks))
                out[there, i] = column.quantiles(known, u * len(known))
                at += 1
        return np.asarray(out[: len(z)])

    def _scores(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A draw (m, q) of the Gaussian around each row."""
        out = []
        k = self.around.shape[1]
        for some in np.array_split(
            rows, 1 + len(rows) * k * self.x.shape[1] // _NUMBERS
        ):
            points = self.x[self.around[some]]
            w = torch.from_numpy(rng.standard_normal((len(some), 1, k)))
            mean = points.mean(1)
            own = math.sqrt(_OWN / (k + _OWN)) * (self.x[some] - mean)
            out.append(
                (
                    mean
                    + own
                    + math.sqrt(k / (k + _OWN)) * local_noise(points, w)[:, 0]
                ).numpy()
            )
        return np.concatenate(out)
