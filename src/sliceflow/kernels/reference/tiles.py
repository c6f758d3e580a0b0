"""Pictures in tiles, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sliceflow.kernels.geometry import TileGeometry
from sliceflow.kernels.reference.distances import add_class_offsets
from sliceflow.kernels.reference.histograms import displace_grid

# The types of the kernels that functions `name_with_kernels` take; see `histograms`.
AddClassOffsets = Callable[[Tensor, Tensor, Tensor], Tensor]
DisplaceGrid = Callable[[Tensor, Tensor, Tensor, Tensor, Sequence[int] | None], Tensor]
ProjectTiles = Callable[
    [Tensor, Tensor, TileGeometry, Tensor | None, Tensor | None, Tensor | None], Tensor
]


def padded_size(k: int) -> int:
    """Rows and columns to which a rotation of k directions is padded on this device."""
    return k


def project_tiles(
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
) -> Tensor:
    """z = Θx for pictures whose tiles are all rotated by the same theta.

    Parameters
    ----------
    x : pictures (d, n), where d = channels · height · width
    theta : the rotation (k, k) of a tile's k values, which may be padded with zeros to
        the size `padded_size`
    geometry : how the pictures are cut into tiles
    indices : the indices of the pictures to project; None is all of them
    offsets : what each class adds to z (tiles·k, classes); None adds nothing
    class_indices : the class (n,) of each picture

    Returns
    -------
    z : (tiles·k, n)
    """
    return project_tiles_with_kernels(
        add_class_offsets, x, theta, geometry, indices, offsets, class_indices
    )


def project_tiles_with_kernels(
    add_class_offsets: AddClassOffsets,
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    indices: Tensor | None,
    offsets: Tensor | None,
    class_indices: Tensor | None,
) -> Tensor:
    """The kernel `project_tiles`, made of the kernel `add_class_offsets`."""
    if indices is not None:
        x = x[:, indices]
        if class_indices is not None:
            class_indices = class_indices[indices]
    z = _rotate_tiles(x, theta, geometry)
    if offsets is None or class_indices is None:
        return z
    return add_class_offsets(z, offsets, class_indices)


def _rotate_tiles(x: Tensor, theta: Tensor, geometry: TileGeometry) -> Tensor:
    """z = Θx (tiles·k, n) of all pictures x (d, n), without offsets."""
    n = x.shape[1]
    k = geometry.values_per_tile
    theta = theta[:k, :k]
    tiles = x
    if geometry.grid != (1, 1):  # one tile is the picture itself
        tiles = x.new_empty(geometry.n_directions, n)
        tiles.index_copy_(0, geometry.scatter_index.to(x.device), x)
        tiles.index_fill_(0, geometry.beyond_indices.to(x.device), 0.0)
    return torch.matmul(theta.to(x.dtype), tiles.reshape(-1, k, n)).view(-1, n)


def lift_tiles(dz: Tensor, theta: Tensor, geometry: TileGeometry) -> Tensor:
    """dx = Θᵀdz, from projections (tiles·k, n) to pictures (d, n)."""
    n = dz.shape[1]
    k = geometry.values_per_tile
    theta = theta[:k, :k]
    tiles = torch.matmul(theta.T.to(dz.dtype), dz.view(-1, k, n)).view(-1, n)
    if geometry.grid == (1, 1):  # one tile is the picture itself
        return tiles
    return tiles.index_select(0, geometry.scatter_index.to(dz.device))


def move_tiles(  # noqa: PLR0913, tiles, a map and classes, as bare tensors
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    step_size: float,
    offsets: Tensor | None = None,
    class_indices: Tensor | None = None,
    starts: Sequence[int] | None = None,
) -> None:
    """x += step_size·Θᵀ(T(z) − z) in place, with z of `project_tiles`.

    T are the maps `values` on [lo, hi], as for `displace_grid`. With `starts`, each
    class has its own maps, as for `displace_by_class`.
    """
    move_tiles_with_kernels(
        project_tiles,
        displace_grid,
        x,
        theta,
        geometry,
        lo,
        hi,
        values,
        step_size,
        offsets,
        class_indices,
        starts,
    )


def move_tiles_with_kernels(  # noqa: PLR0913, two kernels, and the arguments of `move_tiles`
    project_tiles: ProjectTiles,
    displace_grid: DisplaceGrid,
    x: Tensor,
    theta: Tensor,
    geometry: TileGeometry,
    lo: Tensor,
    hi: Tensor,
    values: Tensor,
    step_size: float,
    offsets: Tensor | None,
    class_indices: Tensor | None,
    starts: Sequence[int] | None,
) -> None:
    """The kernel `move_tiles`, made of `project_tiles` and `displace_grid`."""
    z = project_tiles(x, theta, geometry, None, offsets, class_indices)
    dz = displace_grid(z, lo, hi, values, starts)
    x.add_(lift_tiles(dz, theta, geometry), alpha=step_size)
