"""Smoothing: new rows along the nearest rows.

A flow that is fitted to the new rows learns the distribution, and copies no row. A draw
is a row plus the bandwidth times a Gaussian with the covariance of its k nearest
rows of the same class. Draws of a class are moved linearly to the mean and covariance
of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.arrays import SMALLEST_POSITIVE, chunks
from sliceflow.devices import one_thread
from sliceflow.engine.encoded_y import ClassIndices, FlowY
from sliceflow.engine.random import Seed
from sliceflow.neighbors.distance_ratios import choose_bandwidth
from sliceflow.neighbors.sampling import bures_wasserstein_map, local_noise
from sliceflow.neighbors.search import build_index, query_index

# About this many draws choose the bandwidth by their distances, whose mean logarithm is
# then known to a few per cent.
_N_TRIED_DRAWS = 2_000
# Values in memory at a time: 32 MiB of float64.
_MAX_VALUES = 1 << 22
# Draws of more columns keep the variances of the rows instead of their covariance,
# whose eigenvectors would take long.
_MAX_COVARIANCE_COLUMNS = 256


@dataclass(frozen=True, eq=False)
class ClassNeighbors:
    """The rows of one class, or of all, with their nearest rows."""

    indices: Tensor  # (n,), of the rows among all
    x: Tensor  # (n, d), float64
    neighbors: Tensor  # (n, k), the nearest rows of each, itself included

    def draw(
        self, bandwidth: float, draws_per_row: int, seed: Seed, stride: int = 1
    ) -> Tensor:
        """Draws of each row, or of one in `stride`: (n, draws_per_row, d).

        They have the mean and the covariance of these rows.
        """
        x = self.x[::stride]
        draws = self._along_neighbors(bandwidth, draws_per_row, seed, stride)
        deviations = (draws - draws.mean((0, 1))).flatten(0, 1)
        moved = _with_covariance_of(x, deviations).view(draws.shape) + x.mean(0)
        # A column of one value stays as it is, to the last bit.
        is_varying = (x != x[0]).any(0)
        return torch.where(is_varying, moved, x[0])

    def _along_neighbors(
        self, bandwidth: float, draws_per_row: int, seed: Seed, stride: int
    ) -> Tensor:
        """Rows plus `bandwidth` times Gaussians with the covariance of their neighbors.

        Returns (n, draws_per_row, d).
        """
        x = self.x[::stride]
        neighbors = self.neighbors[::stride]
        n, d = x.shape
        k = neighbors.shape[1]
        draws = torch.empty(n, draws_per_row, d, dtype=torch.float64)
        block_size = max(1, _MAX_VALUES // (k * (draws_per_row + d)))
        for block in chunks(n, block_size):
            n_rows = block.stop - block.start
            w = seed.normal(n_rows, draws_per_row * k, first_row=block.start)
            w_per_draw = w.view(-1, draws_per_row, k)
            noise = local_noise(self.x[neighbors[block]], w_per_draw)
            draws[block] = x[block, None] + bandwidth * noise
        return draws


def _with_covariance_of(x: Tensor, deviations: Tensor) -> Tensor:
    """Deviations (m, d) from a mean, mapped to the covariance of rows x (n, d).

    They are mapped linearly, and as little as possible. With many columns, they get the
    variances of the rows only.
    """
    row_deviations = x - x.mean(0)
    if x.shape[1] > _MAX_COVARIANCE_COLUMNS:
        variances = deviations.square().mean(0).clamp(min=SMALLEST_POSITIVE)
        row_variances = row_deviations.square().mean(0)
        return deviations * (row_variances / variances).sqrt()
    with one_thread():
        covariance = deviations.T @ deviations / len(deviations)
        row_covariance = row_deviations.T @ row_deviations / len(x)
    return deviations @ bures_wasserstein_map(covariance, row_covariance)


def find_class_neighbors(x: Tensor, y: FlowY | None, k: int) -> list[ClassNeighbors]:
    """The k nearest rows of each row of x (n, d), itself included, within each class.

    Class indices as `y` give one result for each class. Columns of a continuous `y`
    are further columns of the distances.
    """
    x = x.double()
    points = x
    rows_of_classes = [torch.arange(len(x))]
    if isinstance(y, ClassIndices):
        present_classes = torch.unique(y.values).tolist()
        rows_of_classes = [(y.values == c).nonzero()[:, 0] for c in present_classes]
    elif y is not None:
        points = torch.cat((x, y.values.double()), 1)
    class_neighbors = []
    for indices in rows_of_classes:
        class_points = points[indices]
        index = build_index(class_points)
        _, neighbors = query_index(index, class_points, min(k, len(indices)))
        class_neighbors.append(ClassNeighbors(indices, x[indices], neighbors))
    return class_neighbors


def choose_smoothing_bandwidth(classes: Sequence[ClassNeighbors]) -> float:
    """The least bandwidth whose draws are as far from rows as rows are apart."""
    n = sum(len(group.x) for group in classes)
    draws_per_row = math.ceil(_N_TRIED_DRAWS / n)
    stride = max(1, n // _N_TRIED_DRAWS)

    def draw(bandwidth: float) -> list[Tensor]:
        draws = []
        for i, group in enumerate(classes):
            group_draws = group.draw(bandwidth, draws_per_row, Seed(0).child(i), stride)
            draws.append(group_draws.flatten(0, 1))
        return draws

    return choose_bandwidth([group.x for group in classes], draw)
