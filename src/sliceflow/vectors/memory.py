"""The memory of a fit of vectors: what cannot fit is refused before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.checks import need_memory
from sliceflow.transports import Transport
from sliceflow.vectors.parameters import frame_of

if TYPE_CHECKING:
    from sliceflow.estimator import SlicedWassersteinFlow

__all__ = ["check_memory"]


def check_memory(
    estimator: SlicedWassersteinFlow,
    x: Tensor,
    m: int,
    gathered: int,
    transport: Transport,
    device: torch.device,
) -> None:
    """Refuse what cannot fit: both clouds, projections and what fitting makes of them, the model.

    Parameters
    ----------
    x : (n, d), the rows that are here
    m : particles that are here
    gathered : particles and data of all ranks, which an axis step sorts
    """
    n, d = x.shape
    h = max(getattr(frame_of(estimator.frame), "n_directions", d), d)
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    arrays = 7 if transport.most is None else 3  # sorting keeps order, knots and values besides z
    projected = arrays * h * looked_at
    if estimator.n_axis_steps:
        projected = max(projected, 7 * d * gathered)  # axis steps sort everything
    kept = 2 * estimator.n_knots * (h * estimator.n_steps + d * estimator.n_axis_steps)
    need_memory(
        x.itemsize * (2 * d * (m + n) + projected + kept),
        device,
        f"n_particles={m} with {n} rows of {d} columns and {h} directions needs",
        "lower n_particles, the number of directions or n_knots",
    )
