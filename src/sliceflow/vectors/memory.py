"""The memory of fits and samples of vectors: what cannot fit is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.devices import need_memory
from sliceflow.engine.frames import FrameKind, frame_bytes
from sliceflow.engine.transports import Auto, Histogram, Transport
from sliceflow.vectors.parameters import frame_of

if TYPE_CHECKING:
    from sliceflow.vectors.estimator import SlicedWassersteinFlow

__all__ = ["check_memory", "check_online_memory", "check_sample_memory", "count_fresh", "fit_bytes"]

_DRAWN = 24  # bytes per number while normal numbers are drawn, some millions at a time
_BINS = 72  # bytes per bin: both counts, values, and what steadying them takes
_JUDGED = 3 * 100  # numbers per particle when held-out rows are compared with it


def fit_bytes(
    estimator: SlicedWassersteinFlow,
    n: int,
    d: int,
    itemsize: int,
    m: int,
    gathered: int,
    transport: Transport,
    width: int = 0,
    n_knots: int | None = None,
) -> int:
    """What a fit takes beside the data as it is given, at its largest moment.

    The clouds, of fresh particles too, and the model stay. Besides there are, one after the other: the
    random numbers that the particles start from; the steps, with a frame, projections and what is
    fitted to them; and the particles in the user's units.

    Parameters
    ----------
    n, m : rows and particles that are here, of d columns and `itemsize` bytes a number
    gathered : particles and data of all ranks, which an axis step sorts; 0 where none does
    width : of the condition
    n_knots : that are kept of each map, if not as many as the estimator says
    """
    kind = frame_of(estimator.frame)
    h = max(getattr(kind, "n_directions", d), d)
    one = 16 + 8 * itemsize  # a projection that is sorted: order, knots, values, and thinning
    if isinstance(transport, Auto):
        transport = transport.chosen(m + n)
    n_bins = transport.n_bins if isinstance(transport, Histogram) else 0
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    projected = h * (3 * looked_at * itemsize + _BINS * n_bins if n_bins else one * looked_at)
    fresh = 0
    if (
        estimator._options.n_axis_steps and gathered
    ):  # they sort everything, also that of fresh particles
        fresh = count_fresh(m, h)
        projected = max(projected, one * d * (gathered + fresh - m))
    if estimator.early_stopping:
        projected = max(projected, _JUDGED * m * itemsize)
    knots = min(n_knots or estimator._options.n_knots, n_bins or m)
    kept = (
        2
        * itemsize
        * (
            knots * h * estimator.n_steps
            + min(estimator._options.n_knots, m) * d * estimator._options.n_axis_steps
        )
    )
    drawn = itemsize * min(d * m, 1 << 26) + _DRAWN * min(d * m, 1 << 22)
    stepped = projected + frame_bytes(kind, d, width, itemsize) * (estimator.n_steps > 0)
    given_back = (8 + 8 + itemsize) * d * m
    return itemsize * d * (m + n + fresh) + kept + max(drawn, stepped, given_back)


def count_fresh(m: int, widest: int) -> int:
    """How many fresh particles the axis steps of a model are fitted to, where m particles were fitted.

    At least as many, and 65,536 if they have few directions: then quantiles at 1 % are right to some
    per cent.
    """
    return max(m, min(1 << 16, (1 << 18) // widest))


def check_memory(
    estimator: SlicedWassersteinFlow,
    x: Tensor,
    m: int,
    gathered: int,
    transport: Transport,
    device: torch.device,
    width: int = 0,
    n_knots: int | None = None,
) -> None:
    """Refuse a fit that cannot fit; x (n, d) are the rows that are here, the rest as of `fit_bytes`."""
    n, d = x.shape
    h = max(getattr(frame_of(estimator.frame), "n_directions", d), d)
    need_memory(
        fit_bytes(estimator, n, d, x.itemsize, m, gathered, transport, width, n_knots),
        device,
        f"n_particles={m} with {n} rows of {d} columns and {h} directions needs",
        "lower n_particles, the number of columns, directions or bins, or n_knots",
    )


def check_online_memory(
    estimator: SlicedWassersteinFlow, d: int, itemsize: int, m: int, n_bins: int, device: torch.device
) -> None:
    """Refuse a refresh whose particles cannot fit; the data are counted already."""
    need_memory(
        fit_bytes(estimator, 0, d, itemsize, m, 0, Histogram(n_bins, most=None)),
        device,
        f"n_particles={m} of {d} columns and {n_bins} bins need",
        "lower n_particles or n_knots",
    )


def check_sample_memory(
    kinds: Sequence[FrameKind],
    n: int,
    d: int,
    itemsize: int,
    width: int,
    chunk: int,
    device: torch.device,
) -> None:
    """Refuse more samples than can be had: n of them twice, for they are joined, and a chunk's work.

    Parameters
    ----------
    kinds : the frames' kinds
    width : of the condition; each sample's takes as much as eight numbers while it is chosen
    chunk : samples that are moved at a time
    """
    drawn = max((frame_bytes(kind, d, width, itemsize) for kind in kinds), default=0)
    need_memory(
        n * (2 * d * itemsize + (64 + 8 * width if width else 0)) + 4 * chunk * d * itemsize + drawn,
        device,
        f"n_samples={n} of {d} columns need",
        "draw fewer at a time",
    )
