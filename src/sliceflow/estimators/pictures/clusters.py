"""Clusters of pictures without labels, by k-means.

A fit treats clusters as hidden classes with separate maps. That makes far better
pictures than one set of maps for all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.random import Seed

# Iterations of Lloyd's algorithm. It is not run to convergence: clusters need only be
# about right, and a fixed number gives the same bits everywhere.
KMEANS_ITERATIONS = 30

# Histograms of oriented gradients: cells along each side, and orientations in a cell.
# Dalal and Triggs use small cells and 9 orientations; 4×4 cells of 8 give 128 numbers
# for a picture of any size.
CELLS_PER_SIDE = 4
N_ORIENTATIONS = 8

# Added to the squared norm of a cell before dividing by it, so that cells with hardly
# any gradient do not become pure noise. Pixels are in [-1, 1].
CELL_NORM_FLOOR = 0.02


def kmeans_centers(x: Tensor, k: int, seed: Seed) -> Tensor:
    """The centers (f, k) of k clusters of the columns of x (f, n).

    Lloyd's algorithm from k random columns. A cluster that loses all its columns keeps
    its center. It uses float64 and matrix products only, so that the same seed gives
    the same bits.
    """
    x = x.double()
    first_columns = seed.permutation(x.shape[1])[:k]
    centers = x[:, first_columns.to(x.device)]
    for _ in range(KMEANS_ITERATIONS):
        membership = torch.nn.functional.one_hot(nearest_center(x, centers), k).double()
        sizes = membership.sum(0)
        means = x @ membership / sizes.clamp(min=1)
        centers = torch.where(sizes > 0, means, centers)
    return centers


def nearest_center(x: Tensor, centers: Tensor) -> Tensor:
    """For each column of x (f, n), the index of the nearest center (f, k): (n,).

    ‖x − c‖² = ‖x‖² + ‖c‖² − 2cᵀx, and ‖x‖² is the same for all centers.
    """
    squared_norms = centers.square().sum(0)[:, None]
    return (squared_norms - 2 * centers.T @ x.double()).argmin(0)


def gradient_histograms(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Histograms of oriented gradients (Dalal and Triggs 2005) of pictures.

    In each of 4×4 cells, the lengths of the gradients of brightness are added up in 8
    orientations; the 8 sums of a cell are divided by their norm. Pictures with similar
    histograms often show the same kind of thing.

    Parameters
    ----------
    x : pictures as columns (C·H·W, n)
    shape : (C, H, W)

    Returns
    -------
    (128, n)
    """
    channels, height, width = shape
    brightness = x.view(channels, height, width, -1).mean(0)
    dy = _central_difference(brightness, axis=0)
    dx = _central_difference(brightness, axis=1)
    length = (dy**2 + dx**2).sqrt()
    # A gradient and its opposite have one orientation; orientation 8 is 0 again.
    orientation = torch.atan2(dy, dx) / math.pi * N_ORIENTATIONS
    row_means = _cell_means(height, x.device, x.dtype)
    column_means = _cell_means(width, x.device, x.dtype)
    sums = []
    for k in range(N_ORIENTATIONS):
        # A gradient between two orientations counts for both, linearly.
        weight = (1 - _distance_on_circle(orientation, k).abs()).clamp_(min=0)
        sums.append(
            torch.einsum("ih,jw,hwn->ijn", row_means, column_means, weight * length)
        )
    histograms = torch.stack(sums, 2)  # (4, 4, 8, n)
    squared_norms = histograms.square().sum(2, keepdim=True)
    return (histograms / (squared_norms + CELL_NORM_FLOOR).sqrt()).flatten(0, 2)


def _central_difference(x: Tensor, axis: int) -> Tensor:
    """The next value minus the previous one along an axis; the ends are repeated."""
    n = x.shape[axis]
    index = torch.arange(n, device=x.device)
    following = (index + 1).clamp(max=n - 1)
    previous = (index - 1).clamp(min=0)
    return x.index_select(axis, following) - x.index_select(axis, previous)


def _distance_on_circle(orientation: Tensor, k: int) -> Tensor:
    """orientation − k, modulo the number of orientations, between −4 and 4."""
    half = N_ORIENTATIONS / 2
    return (orientation - k + half) % N_ORIENTATIONS - half


def _cell_means(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The matrix (4, side) that takes the mean over each of 4 equal parts of a side."""
    cell = torch.arange(side, device=device) * CELLS_PER_SIDE // side
    membership = torch.arange(CELLS_PER_SIDE, device=device)[:, None] == cell
    weights = membership.to(dtype)
    return weights / weights.sum(1, keepdim=True).clamp(min=1)
