"""Several columns drawn together, from a random row and its neighbors.

This is for small tables in which numbers vary smoothly together. A draw at a random row
x, in normal scores, with the mean m of its k neighbors, the rows nearest to it, is

    m + √(1 − h²)·(x − m) + h·Σⱼ wⱼ·(xⱼ − m),   wⱼ ~ N(0, 1/(k − 1)),   h² = k/(k + 4),

so that draws at all of the k neighbors would have their mean and covariance. Then each
number is moved to the distribution of its column, by the one-dimensional transport from
the distribution of such draws. Categories and missing cells are those of the random
row. Columns count for distances by how much the other columns explain of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from sklearn.neighbors import NearestNeighbors

from sliceflow.arrays import Floats, Ints
from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    has_value,
    is_missing,
)
from sliceflow.estimators.tables.draws import rare_numbers
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows

# The weight of the random row itself, in neighbors: the 4 in h² = k/(k + 4). With a
# larger weight, draws are nearer to rows; with a smaller one, they blur details that
# are smaller than a neighborhood.
ROW_WEIGHT = 4

# Added to the variances, of which normal scores have about 1, so that the covariance
# can be inverted even if columns determine each other. A larger one would make columns
# look less explained than they are.
LOCAL_RIDGE_PENALTY = 0.01

# Every column counts for distances as if the others explained at least this share of
# it, so that none is ignored. With 1, all columns would count alike.
MIN_EXPLAINED = 0.25

# Cells of neighbors that are drawn from at a time: 8 MiB of float64. It limits memory.
MAX_CELLS_PER_BLOCK = 1 << 20

# Added to a variance that is divided by: that of constant columns is 0.
MIN_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False)
class NeighborsModel:
    """The first step of a chain: it draws several columns together."""

    columns: Sequence[Column]  # all columns of the table
    drawn_indices: list[int]  # the indices of the p columns that are drawn
    drawn_positions: LevelPositions  # (n, p), of these columns
    scores: Floats  # (n, q), normal scores of the dense numbers among these columns
    neighbors: Ints  # (n, k), the rows nearest to each row, itself among them
    # The share of the variance of the scores that is within neighborhoods.
    unexplained_share: float

    @classmethod
    def from_data(
        cls,
        columns: Sequence[Column],
        level_positions: LevelPositions,
        drawn_indices: list[int],
        k: int,
    ) -> NeighborsModel:
        """Find the k rows nearest to each row of (n, d), by the drawn columns."""
        axes = [columns[c].features(level_positions[:, c]) for c in drawn_indices]
        points = _weighted_by_r2(np.hstack(axes))
        search = NearestNeighbors(n_neighbors=min(k, len(points))).fit(points)
        neighbors = search.kneighbors(points, return_distance=False)
        dense_axes = []
        for c, axis in zip(drawn_indices, axes, strict=True):
            if columns[c].is_dense_number:
                dense_axes.append(
                    np.where(is_missing(level_positions[:, [c]]), np.nan, axis)
                )
        scores = _complete_scores(np.hstack(dense_axes), neighbors)
        return cls(
            columns,
            list(drawn_indices),
            level_positions[:, drawn_indices],
            scores,
            neighbors,
            _share_within(scores, neighbors),
        )

    def draw(
        self,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
        clip_predictions: bool = True,
    ) -> LevelPositions:
        """Positions (m, p) of the drawn columns, for m partly drawn rows.

        This is the first step of a chain, so it reads no cell. Only where rare numbers
        move, it asks what is allowed: whole rows are checked once they are drawn.
        Numbers are moved by their order among the draws. So at least as many rows are
        drawn as the table has, and then only the first m are taken.
        """
        n_draws = len(partly_drawn)
        row_indices = self._random_rows(max(n_draws, len(self.drawn_positions)), rng)
        new_positions = self.drawn_positions[row_indices]
        scores = self._draw_scores(row_indices, rng)
        for i, number_scores in zip(self._dense_places, scores.T, strict=True):
            drawn = self._move_to_distribution(
                i, new_positions[:, i], number_scores, rng
            )
            c = self.drawn_indices[i]
            new_positions[:, i] = self._move_rare_numbers(c, drawn, partly_drawn, rng)
        return new_positions[:n_draws]

    @property
    def _dense_places(self) -> list[int]:
        """The places of the dense numbers among the p drawn columns."""
        return [
            i
            for i, c in enumerate(self.drawn_indices)
            if self.columns[c].is_dense_number
        ]

    def _random_rows(self, m: int, rng: np.random.Generator) -> Ints:
        """Indices of m random rows; all rows come up once before one does again."""
        n_rows = len(self.drawn_positions)
        n_rounds = math.ceil(m / n_rows)
        orders = [rng.permutation(n_rows) for _ in range(n_rounds)]
        return np.concatenate(orders)[:m]

    def _draw_scores(self, row_indices: Ints, rng: np.random.Generator) -> Floats:
        """Normal scores (m, q), drawn from the Gaussians around rows (m,)."""
        k = self.neighbors.shape[1]
        n_scores = self.scores.shape[1]
        n_blocks = 1 + len(row_indices) * k * n_scores // MAX_CELLS_PER_BLOCK
        row_share = math.sqrt(ROW_WEIGHT / (k + ROW_WEIGHT))  # √(1 − h²)
        h = math.sqrt(k / (k + ROW_WEIGHT))
        drawn = []
        for block in np.array_split(row_indices, n_blocks):
            neighbor_scores = self.scores[self.neighbors[block]]  # (b, k, q)
            mean = neighbor_scores.mean(1)
            towards_row = row_share * (self.scores[block] - mean)
            w = rng.standard_normal((len(block), 1, k)) / math.sqrt(max(1, k - 1))
            noise = (w @ (neighbor_scores - mean[:, None]))[:, 0]
            drawn.append(mean + towards_row + h * noise)
        return np.concatenate(drawn)

    def _move_to_distribution(
        self,
        i: int,
        positions: LevelPositions,
        scores: Floats,
        rng: np.random.Generator,
    ) -> LevelPositions:
        """Positions (m,) in the order of `scores`, distributed as drawn column i.

        Cells that are missing in `positions` stay so.
        """
        moved = positions.copy()
        is_observed = has_value(positions)
        own_positions = self.drawn_positions[:, i]
        sorted_positions = LevelPositions(
            np.sort(own_positions[has_value(own_positions)])
        )
        order = rankdata(scores[is_observed], method="ordinal")
        probabilities = (order - rng.random(len(order))) / max(1, len(order))
        column = self.columns[self.drawn_indices[i]]
        moved[is_observed] = column.new_value_policy.quantile_positions(
            sorted_positions, probabilities * len(sorted_positions)
        )
        return moved

    def _move_rare_numbers(
        self,
        c: int,
        positions: LevelPositions,
        partly_drawn: PartlyDrawnRows,
        rng: np.random.Generator,
    ) -> LevelPositions:
        """Positions (m,) of column c with others for rare numbers.

        A rare number stays if no move is allowed. Only the first rows are in
        `partly_drawn`. The others will be left out, so nothing is asked for them.
        """
        column = self.columns[c]
        moved = positions.copy()
        to_move = np.flatnonzero(rare_numbers.is_rare(column, positions))
        for _ in range(rare_numbers.MAX_MOVES):
            whole_column = rare_numbers.LevelRange.of_column(column, len(to_move))
            proposed = rare_numbers.move(column, positions[to_move], whole_column, rng)
            is_allowed = np.full(len(to_move), True)
            is_kept = to_move < len(partly_drawn)
            is_allowed[is_kept] = partly_drawn.allows(
                c, to_move[is_kept], proposed[is_kept]
            )
            moved[to_move[is_allowed]] = proposed[is_allowed]
            to_move = to_move[~is_allowed]
            if not len(to_move):
                break
        return moved


def _complete_scores(scores: Floats, neighbors: Ints) -> Floats:
    """Scores (n, q) in which missing ones (NaN) are the means of the neighbors' scores.

    If the scores of all neighbors are missing, it is 0, the mean of all rows.
    """
    neighbor_scores = scores[neighbors]
    n_observed = (~np.isnan(neighbor_scores)).sum(1)
    neighbor_means = np.nansum(neighbor_scores, 1) / np.maximum(1, n_observed)
    return np.where(np.isnan(scores), neighbor_means, scores)


def _share_within(scores: Floats, neighbors: Ints) -> float:
    """The share of the variance of scores (n, q) that is within neighborhoods."""
    within = scores[neighbors].var(1).mean(0)
    overall = scores.var(0)
    return float(within.sum() / (overall.sum() + MIN_VARIANCE))


def _weighted_by_r2(points: Floats) -> Floats:
    """Points (n, a), each axis scaled by √R², where other axes explain R² of it."""
    n_axes = points.shape[1]
    covariance = np.atleast_2d(np.cov(points.T, ddof=0))
    covariance = covariance + LOCAL_RIDGE_PENALTY * np.eye(n_axes)
    precision = np.linalg.inv(covariance)
    explained = 1 - 1 / (np.diag(covariance) * np.diag(precision))
    return points * np.sqrt(np.clip(explained, MIN_EXPLAINED, 1))
