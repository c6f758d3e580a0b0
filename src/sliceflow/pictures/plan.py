"""The parameters of an `ImageFlow`: refused, or turned into what they stand for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.engine import transports
from sliceflow.engine.compact import map_bytes
from sliceflow.engine.conditions import Labels, default_particles
from sliceflow.errors import ParameterError, is_int, is_real, need
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.levels import PATCH_BASES
from sliceflow.pictures.options import PictureOptions
from sliceflow.ranks import Ranks

if TYPE_CHECKING:
    from sliceflow.pictures.estimator import ImageFlow

__all__ = [
    "QUALITY",
    "check_parameters",
    "choose_amplifier",
    "choose_clusters",
    "choose_knots",
    "choose_operands",
    "choose_particles",
    "choose_patch_basis",
    "choose_transport",
    "direction_bytes",
    "patch_basis_for",
    "pixels_between",
    "steps_per_stage",
]

QUALITY = {"draft": 15, "standard": 50, "best": 200}
_ENOUGH = 1000  # pictures of a class that is held apart from all others
_CLUSTER_VALUES = 470_000  # of all pictures of a cluster, times √steps; fewer would be copied
_MOST_CLUSTERS = {"grey": 30, "colour": 10}  # more of colour photographs gain nothing
_MOST_COLUMNS = 1 << 20  # columns that a step looks at: batches of fewer are slower here, and worse
_FEW_KNOTS, _MANY_KNOTS = 16, 64  # kept of each map, at least and at most,
_PER_KNOT = 750  # and particles for each
_PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def check_parameters(flow: ImageFlow) -> None:
    """Refuse what no pictures could be fitted with; a `errors.ParameterError` names it."""
    m, q = flow.n_particles, flow.quality
    need(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
    ok = q in QUALITY if isinstance(q, str) else is_int(q, 1)
    need(ok, "quality", q, f"one of {list(QUALITY)} or a number of steps per stage")
    need(isinstance(flow.schedule, str), "schedule", flow.schedule, "a string: 'auto', a preset, …")
    need(is_int(flow.n_pixel_values, 2), "n_pixel_values", flow.n_pixel_values, "an int of at least 2")
    options = flow.options
    ok = options is None or isinstance(options, PictureOptions)
    need(ok, "options", options, "None or a sliceflow.PictureOptions")
    (options or PictureOptions()).check()
    ways = ["auto", *PATCH_BASES]
    need(flow.patch_basis in ways, "patch_basis", flow.patch_basis, f"one of {ways}")
    xi = flow.amplifier
    ok = xi == "auto" or is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    need(ok, "amplifier", xi, "'auto', or a number of at least 0; math.inf is one")
    k = flow.n_clusters
    need(k == "auto" or is_int(k, 1), "n_clusters", k, "'auto' or an int of at least 1, which is none")
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


def choose_amplifier(
    amplifier: str | float, transport: str | transports.Transport, m: int, n: int, n_classes: int
) -> float:
    """ξ for m particles and n pictures of so many classes.

    "auto" is ∞ where they are counted and a class has a thousand pictures or more; fewer would be
    copied, if they had nothing to do with the other classes.
    """
    counts = _counts(transport, m, n)
    if amplifier == "auto":
        return math.inf if counts and n >= _ENOUGH * n_classes else 10.0
    if math.isinf(float(amplifier)) and not counts:
        raise ParameterError(
            "amplifier",
            math.inf,
            f"counts classes one by one, but {m} particles and {n} pictures are sorted, being so few",
            "use a finite amplifier such as 10, or transport='histogram'",
        )
    return float(amplifier)


def steps_per_stage(quality: str | int) -> int:
    """What a word of quality means."""
    return QUALITY[quality] if isinstance(quality, str) else int(quality)


def choose_clusters(flow: ImageFlow, m: int, n: int, shape: tuple[int, int, int]) -> int:
    """How many clusters n pictures of shape (c, h, w) without labels are divided into; 1 is none."""
    counts = _counts(flow.transport, m, n)
    if flow.n_clusters == "auto":
        size = _CLUSTER_VALUES * math.sqrt(steps_per_stage(flow.quality)) / math.prod(shape)
        enough = max(_ENOUGH, math.ceil(size))
        most = min(_MOST_CLUSTERS["grey" if shape[0] == 1 else "colour"], n // enough, m)
        return max(1, most) if counts else 1
    k, most = int(flow.n_clusters), min(m, n)
    need(k <= most, "n_clusters", k, f"at most {most}: each needs a particle and a picture")
    if k > 1 and not counts:
        raise ParameterError(
            "n_clusters",
            k,
            f"are counted one by one, but {m} particles and {n} pictures are sorted, being so few",
            "use n_clusters=1, or transport='histogram'",
        )
    return k


def _counts(transport: str | transports.Transport, m: int, n: int) -> bool:
    """Whether m particles and n pictures are counted, as classes with maps of their own must be."""
    if isinstance(transport, str):
        transport = choose_transport(transport, math.inf)
    if isinstance(transport, transports.Auto):
        transport = transport.chosen(m + n)
    return isinstance(transport, transports.Histogram)


def choose_transport(transport: str | transports.Transport, amplifier: float) -> transports.Transport:
    """The transport by its name; `amplifier` is that of the labels, 0 without any."""
    if not isinstance(transport, str):
        return transport
    n_bins = 1024 if 0 < amplifier < math.inf else 128  # classes that share a histogram want more
    kinds: dict[str, transports.Transport] = {
        "auto": transports.Auto(n_bins=n_bins, most=_MOST_COLUMNS),
        "sorted": transports.Sorted(),
        "histogram": transports.Histogram(n_bins, most=_MOST_COLUMNS),
    }
    return kinds[transport]


def choose_knots(n_knots: str | int, m: int, amplifier: float, n_classes: int) -> int:
    """How many knots are kept of each map of m particles.

    More knots follow the map more closely, and its noise, which is the smaller the more particles there
    are: benchmarks/RESULTS.md. Maps that classes share keep eight times as many anyway.
    """
    if n_knots != "auto":
        return int(n_knots)
    if 0 < amplifier < math.inf:
        return _FEW_KNOTS
    each = m / n_classes if amplifier == math.inf else m
    return min(_MANY_KNOTS, max(_FEW_KNOTS, round(each / _PER_KNOT)))


def direction_bytes(flow: ImageFlow, m: int, n: int, amplifier: float, n_classes: int) -> int:
    """What a model keeps of one direction of a step, for m particles and n pictures."""
    transport = choose_transport(flow.transport, amplifier)
    if isinstance(transport, transports.Auto):
        transport = transport.chosen(m + n)
    apart, n_bins = amplifier == math.inf, getattr(transport, "n_bins", None)
    n_knots = choose_knots(flow._options.n_knots, m, amplifier, n_classes)
    one = map_bytes(n_knots, n_bins, shared=0 < amplifier < math.inf)
    return n_classes * one if apart else one


def choose_patch_basis(
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
    some = raw[:, here % max(1, (n or len(here)) // 10_000) == 0]
    between = pixels_between(layout, some)
    return patch_basis_for(*ranks.sum(torch.tensor([between, some.numel()])).tolist())


def pixels_between(layout: Layout, raw: Tensor) -> int:
    """How many pixels are neither dark nor bright."""
    value = raw.float() / (1 if layout.n_pixel_values is None else layout.n_pixel_values - 1)
    return int(((value > 0.1) & (value < 0.9)).sum())


def patch_basis_for(between: int, pixels: int) -> str:
    """The directions for pictures of so many pixels, some of which are neither dark nor bright."""
    return "pixels" if between / pixels < 0.2 else "cosines"


def choose_operands(precision: str, device: torch.device) -> torch.dtype | None:
    """The type of the products' operands; None on a CPU, which takes the particles' own."""
    if device.type == "cpu":
        return None
    return _PRECISIONS["float16" if precision == "auto" else precision]
