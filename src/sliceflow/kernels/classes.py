"""Maps of classes: each slice of the columns moves by its own maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


def displace_by_class(
    displace: Callable[..., Tensor],
    z: Tensor,
    maps: Sequence[Tensor],
    starts: Sequence[int],
) -> Tensor:
    """T(z) − z for z (h, n), where each class has its own maps.

    Parameters
    ----------
    displace : the kernel to call for each class, with some columns of z and its maps:
        `displace_grid` or `displace_knots`
    z : projections (h, n), sorted by class
    maps : the tensors that describe the maps, such as lo, hi and values. Each has C·h
        rows: those of the h directions for the first class, then for the second, …
    starts : the columns of class c are starts[c] to starts[c + 1]

    Returns
    -------
    dz : (h, n)
    """
    h = len(z)
    dz = torch.empty_like(z)
    for c, (first, end) in enumerate(pairwise(starts)):
        if first < end:
            rows = slice(c * h, (c + 1) * h)
            class_maps = [tensor[rows] for tensor in maps]
            dz[:, first:end] = displace(z[:, first:end], *class_maps)
    return dz
