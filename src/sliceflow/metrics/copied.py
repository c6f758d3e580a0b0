"""Whether samples copy training rows: one rule, for fits and for the command line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from sliceflow.metrics.neighbours import IDEAL_COPIES, nearest, ratio_of_medians, share_of_copies

__all__ = ["copied", "copies_rows"]

_FEWEST = 100  # particles: fewer do not tell
_LOOKED_AT = 1_000  # particles, and rows that they are compared with
_MOST_ROWS = 20_000  # more are hardly copied, and the search would take long
_MANY_COPIES = 5  # times as many as new rows would have
_LEAST_RATIO = 0.7


def copies_rows(copies: float, ratio: float, floor: float) -> bool:
    """Whether these `copies` and this NN `ratio` show copying; `floor` is the copies of new real rows.

    The floor is 0.01, and higher with fewer than 99 real rows: so few know the share so badly that new
    ones may have several times 0.01. They have five times the floor once in 150.
    """
    return copies > _MANY_COPIES * floor or ratio < _LEAST_RATIO


def copied(pairs: Sequence[tuple[Tensor, Tensor]], device: str = "cpu") -> str:
    """What shows that particles copy rows; empty if nothing does, or if there are too few or many.

    Each distance is that to the nearest row, of particles and, leaving themselves out, of rows: as in
    `metrics.copies` and `metrics.nn_ratio`.

    Parameters
    ----------
    pairs : rows (n, d) and particles (d, m) of each flow
    device : that compares them

    Examples
    --------
    >>> import torch
    >>> rows, new = torch.randn(2, 100, 2, generator=torch.Generator().manual_seed(0))
    >>> copied([(rows, new.T)])
    ''
    >>> copied([(rows, rows.T)])
    'copies 1.00, NN ratio 0.00'
    """
    n, m = (sum(len(of) for of in side) for side in zip(*((r, p.T) for r, p in pairs), strict=True))
    if not 2 * _MANY_COPIES <= n <= _MOST_ROWS or m < _FEWEST:
        return ""
    made, real = [], []
    for rows, particles in pairs:
        if len(rows) > 1:
            x, each = rows.cpu().numpy(), -(-_LOOKED_AT // len(pairs))
            some, new = x[:: -(-len(x) // each)], particles.T.cpu().numpy()
            real.append(nearest(some, x, 2, device=device)[0][:, 1])
            made.append(nearest(new[:: -(-len(new) // each)], x, device=device)[0][:, 0])
    if not real or np.median(of_rows := np.concatenate(real)) == 0:
        return ""
    of_particles = np.concatenate(made)
    copies, ratio = share_of_copies(of_particles, of_rows), ratio_of_medians(of_particles, of_rows)
    if not copies_rows(copies, ratio, max(IDEAL_COPIES, 2 / (n + 1))):
        return ""
    return f"copies {copies:.2f}, NN ratio {ratio:.2f}"
