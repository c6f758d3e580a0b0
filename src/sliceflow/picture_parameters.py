"""The parameters of an `ImageFlow`: refused, or turned into what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow import transports
from sliceflow.checks import default_particles, is_int, is_real, need
from sliceflow.conditions import Labels
from sliceflow.distributed import Ranks
from sliceflow.pictures import Layout
from sliceflow.pyramid import UPSAMPLINGS
from sliceflow.walk import DIRECTIONS

if TYPE_CHECKING:
    from sliceflow.image_flow import ImageFlow

__all__ = [
    "QUALITY",
    "check_parameters",
    "choose_directions",
    "choose_operands",
    "choose_particles",
    "choose_transport",
]

QUALITY = {"draft": 30, "standard": 100, "best": 300}
_PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def check_parameters(flow: ImageFlow) -> None:
    """Refuse what no pictures could be fitted with; a `checks.ParameterError` names it."""
    m, q = flow.n_particles, flow.quality
    need(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
    ok = q in QUALITY if isinstance(q, str) else is_int(q, 1)
    need(ok, "quality", q, f"one of {list(QUALITY)} or a number of steps per stage")
    need(isinstance(flow.schedule, str), "schedule", flow.schedule, "a string: 'auto', a preset, …")
    need(is_int(flow.levels, 2), "levels", flow.levels, "an int of at least 2")
    need(is_int(flow.n_knots, 0), "n_knots", flow.n_knots, "an int of at least 0")
    choices = ["auto", *_PRECISIONS]
    need(flow.precision in choices, "precision", flow.precision, f"one of {choices}")
    need(
        flow.upsampling in UPSAMPLINGS,
        "upsampling",
        flow.upsampling,
        f"one of {sorted(UPSAMPLINGS)}",
    )
    ways = ["auto", *DIRECTIONS]
    need(flow.directions in ways, "directions", flow.directions, f"one of {ways}")
    for name in ("amplifier", "start_noise"):
        value = getattr(flow, name)
        need(is_real(value, 0), name, value, "a finite number of at least 0")
    need(is_real(flow.taper, 0, 1), "taper", flow.taper, "a number from 0 to 1")
    known = isinstance(flow.transport, str) and flow.transport in ("auto", "sorted", "histogram")
    need(
        known or (hasattr(flow.transport, "fit") and hasattr(flow.transport, "most")),
        "transport",
        flow.transport,
        "'auto', 'sorted', 'histogram' or a transport from sliceflow.transports",
    )


def choose_particles(n_particles: int | None, n: int, condition: Labels | None) -> int:
    """M for n pictures; every class needs a particle."""
    m = n_particles or default_particles(n)
    if condition is not None and m < condition.width:
        raise ValueError(
            f"n_particles={m} is fewer than the {condition.width} classes of the labels; "
            f"pass n_particles >= {condition.width}"
        )
    return m


def default_bins(labelled: bool) -> int:
    """Bins of the histograms; classes that are held apart want more."""
    return 1024 if labelled else 128


def choose_transport(transport: str | transports.Transport, labelled: bool) -> transports.Transport:
    """The transport by its name."""
    if not isinstance(transport, str):
        return transport
    n_bins = default_bins(labelled)
    kinds: dict[str, transports.Transport] = {
        "auto": transports.Auto(n_bins=n_bins),
        "sorted": transports.Sorted(),
        "histogram": transports.Histogram(n_bins),
    }
    return kinds[transport]


def choose_directions(
    directions: str,
    layout: Layout,
    raw: Tensor,
    here: Tensor | None = None,
    n: int = 0,
    ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
) -> str:
    """What directions the pictures are for; those of ranks are numbers `here` out of n."""
    if directions != "auto":
        return directions
    here = torch.arange(raw.shape[1], device=raw.device) if here is None else here
    some = raw[:, here % max(1, (n or len(here)) // 10_000) == 0].float()
    value = some / (1 if layout.levels is None else layout.levels - 1)
    between = ((value > 0.1) & (value < 0.9)).sum()
    few, all_of_them = ranks.sum(torch.tensor([int(between), some.numel()])).tolist()
    return "pixels" if few / all_of_them < 0.2 else "cosines"


def choose_operands(precision: str, device: torch.device) -> torch.dtype | None:
    """The type of the products' operands; None on a CPU, which takes the particles' own."""
    if device.type == "cpu":
        return None
    return _PRECISIONS["float16" if precision == "auto" else precision]
