"""Maps of classes: the points of each class move by the maps of that class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


def rows_of_class_maps(c: int, h: int) -> slice:
    """The rows of class c among the C·h rows of maps of h directions."""
    return slice(c * h, (c + 1) * h)


def displace_by_class(
    z: Tensor,
    starts: Sequence[int] | None,
    displace: Callable[[Tensor, slice], Tensor],
) -> Tensor:
    """T(z) − z for z (h, n), where each class has its own maps.

    The maps of C classes have C·h rows: row c·h + j is the map of class c along
    direction j.

    Parameters
    ----------
    z : projections (h, n), sorted by class
    starts : class c has the points from starts[c] to starts[c + 1] − 1; None if all
        points move by the same h maps
    displace : ``displace(z_c, rows)`` is T(z_c) − z_c for the projections z_c (h, n_c)
        of one class, whose maps are in these `rows`

    Returns
    -------
    dz : (h, n)
    """
    if starts is None:
        return displace(z, slice(None))
    h = len(z)
    dz = torch.empty_like(z)
    for c, (first, end) in enumerate(pairwise(starts)):
        if first < end:
            dz[:, first:end] = displace(z[:, first:end], rows_of_class_maps(c, h))
    return dz
