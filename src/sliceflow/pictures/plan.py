"""The plan of a fit of pictures: every parameter as it will be used, nothing left "auto"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sliceflow.devices import columns_looked_at, need_memory
from sliceflow.engine import transports
from sliceflow.engine.compact import map_bytes
from sliceflow.engine.conditions import Labels, default_particles
from sliceflow.engine.frames import rotation_bytes
from sliceflow.engine.planning import as_table, in_bytes
from sliceflow.engine.transports import Transport
from sliceflow.errors import ParameterError, is_bool, is_int, is_real, need
from sliceflow.pictures import schedules
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.levels import PATCH_BASES
from sliceflow.pictures.options import PictureOptions
from sliceflow.pictures.schedules import PictureStage
from sliceflow.pictures.tiles import Tiles
from sliceflow.ranks import Ranks

__all__ = [
    "QUALITY",
    "PicturePlan",
    "check_parameters",
    "choose_amplifier",
    "choose_clusters",
    "choose_knots",
    "choose_operands",
    "choose_particles",
    "choose_patch_basis",
    "choose_transport",
    "make_plan",
    "patch_basis_for",
    "pixels_between",
    "stages_of",
]

QUALITY = {"draft": 15, "standard": 50, "best": 200}
_ENOUGH = 1000  # pictures of a class that is held apart from all others
_CLUSTER_VALUES = 470_000  # of all pictures of a cluster, times √steps; fewer would be copied
_MOST_CLUSTERS = {"grey": 30, "colour": 10}  # more of colour photographs gain nothing
_MOST_COLUMNS = 1 << 20  # columns that a step looks at: batches of fewer are slower here, and worse
_FEW_KNOTS, _MANY_KNOTS = 16, 64  # kept of each map, at least and at most,
_PER_KNOT = 750  # and particles for each
_PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_TRANSPORTS = ("auto", "sorted", "histogram", "interpolated")
_BINS = 48  # bytes per bin: both counts, values, and what finding their bends takes


@dataclass(frozen=True)
class PicturePlan:
    """What a fit of pictures does. Printed, it is a table.

    Parameters
    ----------
    n_pictures : that are fitted, mirror images among them, of all ranks
    layout : of the pictures
    mirror : whether mirror images are fitted, too
    n_particles : that are kept
    n_moved : that the fit moves: more than are kept where a model needs more
    condition : "none", "labels", "clusters" or "observed"
    n_conditions : classes, or clusters
    amplifier : ξ; 0 where the flow sees no condition, ∞ where every class has maps of its own
    stages : resolutions and patches, with the steps of each
    patch_basis : of the directions
    n_directions : random patches of a step; None for tiles, whose directions are as many as pixels
    transport : of the steps
    n_looked_at : particles, and pictures, that a step looks at at most; None is all
    n_knots : kept of each map; 0 keeps no model
    precision : of the products on a GPU; None is the particles' own
    start_noise, clip, dequantize, dequantize_every, upsampling, taper : as the options of these names
    n_ranks : processes that fit together
    device : where
    nbytes : memory that the fit takes on each device

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sliceflow import ImageFlow
    >>> digits = load_digits()
    >>> flow = ImageFlow(n_pixel_values=17, quality="draft", device="cpu")
    >>> plan = flow.plan(digits.images.astype("uint8"), digits.target)
    >>> plan.method, plan.patch_basis, len(plan.stages)
    ('CSWF ξ=10', 'cosines', 12)
    >>> print(plan)  # doctest: +ELLIPSIS
    method       CSWF ξ=10
    data         1797 pictures of 8×8, 17 values a pixel
    condition    10 classes
    ...
    """

    n_pictures: int
    layout: Layout
    mirror: bool
    n_particles: int
    n_moved: int
    condition: str
    n_conditions: int
    amplifier: float
    stages: tuple[PictureStage, ...]
    patch_basis: str
    n_directions: int | None
    transport: Transport
    n_looked_at: int | None
    n_knots: int
    precision: torch.dtype | None
    start_noise: float
    clip: bool
    dequantize: bool
    dequantize_every: str
    upsampling: str
    taper: float
    n_ranks: int
    device: str
    nbytes: int

    @property
    def apart(self) -> int:
        """How many classes have maps of their own; 0 where all share them."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    @property
    def method(self) -> str:
        """The method's name: SWF, CSWF with its ξ, per class, clusters or completion."""
        if self.condition == "observed":
            return "completion"
        if self.condition == "clusters":
            return "clusters"
        if self.amplifier == 0:
            return "SWF"
        return "per class" if self.apart else f"CSWF ξ={self.amplifier:g}"

    @property
    def n_steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.n_steps for stage in self.stages)

    def directions_of(self, stage: PictureStage) -> int:
        """The most directions of a step of this stage."""
        return _most_directions(self.layout, stage, self.n_directions)

    def settings(self) -> dict[str, Any]:
        """All that the result depends on, by name: a checkpoint is of a fit with the same."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("nbytes", "n_ranks", "device"):
            del values[name]
        return values

    def __str__(self) -> str:
        more = f", {self.n_moved} moved for the model" if self.n_moved > self.n_particles else ""
        layout, what = self.layout, "pictures and mirror images" if self.mirror else "pictures"
        values = layout.n_pixel_values
        kind = "floats" if values is None else f"{values} values a pixel"
        colour = "" if layout.channels is None else f"×{layout.channels}"
        kinds = {
            "labels": f"{self.n_conditions} classes",
            "clusters": f"{self.n_conditions} clusters",
            "observed": "observed pixels",
        }
        directions = f"tiles of {self.patch_basis}"
        if self.n_directions is not None:
            directions = f"{self.n_directions} random patches"
        looked = "" if self.n_looked_at is None else f"at most {self.n_looked_at} at a time"
        return as_table(
            [
                ("method", self.method),
                ("data", f"{self.n_pictures} {what} of {layout.height}×{layout.width}{colour}, {kind}"),
                ("condition", kinds.get(self.condition, "")),
                ("particles", f"{self.n_particles}{more}"),
                ("stages", f"{len(self.stages)}: {' '.join(map(str, self.stages))}"),
                ("steps", self.n_steps),
                ("directions", directions),
                ("transport", repr(self.transport)),
                ("a step sees", looked),
                ("model", f"{self.n_knots} knots a map" if self.n_knots else "none is kept"),
                ("device", self.device if self.n_ranks == 1 else f"{self.n_ranks} × {self.device}"),
                ("memory", f"about {in_bytes(self.nbytes)}"),
            ]
        )


def make_plan(
    parameters: Mapping[str, Any],
    *,
    layout: Layout,
    n: int,
    n_moved: int | None,
    condition: Labels | None,
    patch_basis: str,
    device: torch.device,
    here: tuple[int, int] | None = None,
    ranks: Ranks | None = None,
    transport: Transport | None = None,
) -> PicturePlan:
    """The plan for n pictures of a layout; a `NotEnoughMemoryError` if it cannot fit into memory.

    Parameters
    ----------
    parameters : of the estimator, checked; `options` among them, never None
    n : of all ranks, mirror images among them
    n_moved : particles that are moved; None as many as are asked for
    condition : labels, or clusters that were found
    patch_basis : "pixels" or "cosines", chosen by what the pictures show
    here : pictures and particles of this rank; None is all of them
    ranks : that fit together; each step then looks at everything
    transport : in place of the parameter: data that are counted (`online`) cannot be sorted
    """
    options: PictureOptions = parameters["options"]
    m = choose_particles(parameters["n_particles"], n, condition)
    counted, kind = transport is not None, transport or parameters["transport"]
    amplifier, width = 0.0, 0 if condition is None else condition.width
    if condition is not None:
        xi = math.inf if condition.hidden else parameters["amplifier"]
        amplifier = choose_amplifier(xi, kind, m, n, width)
    chosen = choose_transport(kind, amplifier)
    apart = width if math.isinf(amplifier) else 0
    stages = stages_of(parameters, layout)
    moved = m if n_moved is None else n_moved
    n_random = options.n_directions if patch_basis == "random" else None
    directions = [_most_directions(layout, stage, n_random) for stage in stages]
    looked_at = None
    if ranks is None and not counted:
        looked_at = columns_looked_at(chosen.most, max(directions), device)
    n_maps = sum(h * v.n_steps for h, v in zip(directions, stages, strict=True))
    exact = chosen
    if isinstance(chosen, transports.Auto):
        exact = chosen.chosen((m if apart else moved) + n)
    n_knots = choose_knots(options.n_knots, m, amplifier, width)
    shared = 0 < amplifier < math.inf
    one = map_bytes(n_knots, getattr(exact, "n_bins", None), shared) * (apart or 1)
    n_here, m_here = here or (n, moved)
    bins = (apart or 1) * getattr(exact, "n_bins", 0)
    seen = min(m_here, looked_at or moved) + (0 if counted else min(n_here, looked_at or n))
    tiles = [layout.shape[0] * min(v.patch, v.h) * min(v.patch, v.w) for v in stages]
    work = max(directions) * (4 * seen + _BINS * bins) + rotation_bytes(max(tiles), 4)
    work += 0 if n_random is None else 16 * n_random * layout.dimension
    d, raw = layout.dimension, 1 if layout.n_pixel_values is not None else 4
    clouds = 4 * 4 * d * m_here + (0 if counted else (3 * 4 + raw) * d * n_here)
    nbytes = clouds + work + n_maps * one
    if counted:
        what = f"n_particles={m_here} of {d} values and {bins // (apart or 1)} bins need"
        advice = "lower n_particles"
    else:
        what = (
            f"n_particles={m_here}, {n_here} pictures of {d} values and a model of {n_maps} maps need"
        )
        advice = "lower n_particles, quality or n_knots (0 keeps no model)"
    need_memory(nbytes, device, what, advice)
    return PicturePlan(
        n_pictures=n,
        layout=layout,
        mirror=bool(parameters["mirror"]),
        n_particles=m,
        n_moved=moved,
        condition=_kind(condition, parameters["observed"]),
        n_conditions=width,
        amplifier=amplifier,
        stages=tuple(stages),
        patch_basis=patch_basis,
        n_directions=n_random,
        transport=exact,
        n_looked_at=looked_at,
        n_knots=n_knots,
        precision=choose_operands(options.precision, device),
        start_noise=float(options.start_noise),
        clip=bool(options.clip),
        dequantize=bool(options.dequantize),
        dequantize_every=options.dequantize_every,
        upsampling=options.upsampling,
        taper=float(options.taper),
        n_ranks=1 if ranks is None else ranks.size,
        device=str(device),
        nbytes=nbytes,
    )


def _most_directions(layout: Layout, stage: PictureStage, n_random: int | None) -> int:
    if n_random is not None:
        return n_random
    return Tiles(layout.shape[0], stage.h, stage.w, stage.patch).most_directions


def _kind(condition: Labels | None, observed: Any) -> str:
    if observed is not None:
        return "observed"
    if condition is None:
        return "none"
    return "clusters" if condition.hidden else "labels"


def stages_of(parameters: Mapping[str, Any], layout: Layout) -> list[PictureStage]:
    """The stages that pictures of this layout go through."""
    text, (_, height, width) = parameters["schedule"], layout.shape
    if text in ("auto", "paper"):
        text = (schedules.auto if text == "auto" else schedules.paper)(height, width)
    steps = _steps_per_stage(parameters["quality"])
    return schedules.from_string(schedules.PRESETS.get(text, text), height, width, steps)


def _steps_per_stage(quality: str | int) -> int:
    """Draft, standard and best as numbers of steps."""
    return QUALITY[quality] if isinstance(quality, str) else int(quality)


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
    amplifier: str | float, transport: str | Transport, m: int, n: int, n_classes: int
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


def choose_clusters(parameters: Mapping[str, Any], n: int, shape: tuple[int, int, int]) -> int:
    """How many clusters n pictures of shape (c, h, w) without labels are divided into; 1 is none."""
    m, wanted = choose_particles(parameters["n_particles"], n, None), parameters["n_clusters"]
    counts = _counts(parameters["transport"], m, n)
    if wanted == "auto":
        size = _CLUSTER_VALUES * math.sqrt(_steps_per_stage(parameters["quality"])) / math.prod(shape)
        enough = max(_ENOUGH, math.ceil(size))
        most = min(_MOST_CLUSTERS["grey" if shape[0] == 1 else "colour"], n // enough, m)
        return max(1, most) if counts else 1
    k, most = int(wanted), min(m, n)
    need(k <= most, "n_clusters", k, f"at most {most}: each needs a particle and a picture")
    if k > 1 and not counts:
        raise ParameterError(
            "n_clusters",
            k,
            f"are counted one by one, but {m} particles and {n} pictures are sorted, being so few",
            "use n_clusters=1, or transport='histogram'",
        )
    return k


def _counts(transport: str | Transport, m: int, n: int) -> bool:
    """Whether m particles and n pictures are counted, as classes with maps of their own must be."""
    if isinstance(transport, str):
        transport = choose_transport(transport, math.inf)
    if isinstance(transport, transports.Auto):
        transport = transport.chosen(m + n)
    return isinstance(transport, transports.Histogram)


def choose_transport(transport: str | Transport, amplifier: float) -> Transport:
    """The transport by its name; `amplifier` is that of the labels, 0 without any."""
    if not isinstance(transport, str):
        return transport
    n_bins = 1024 if 0 < amplifier < math.inf else 128  # classes that share a histogram want more
    kinds: dict[str, Transport] = {
        "auto": transports.Auto(n_bins=n_bins, most=_MOST_COLUMNS),
        "sorted": transports.Sorted(),
        "histogram": transports.Histogram(n_bins, most=_MOST_COLUMNS),
        "interpolated": transports.Interpolated(),
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


def choose_patch_basis(
    patch_basis: str, layout: Layout, raw: Tensor, here: Tensor, n: int, ranks: Ranks
) -> str:
    """What the directions are made of for pictures, those of a rank being numbers `here` out of n."""
    if patch_basis != "auto":
        return patch_basis
    some = raw[:, here % max(1, n // 10_000) == 0]
    between = pixels_between(layout, some)
    return patch_basis_for(*ranks.sum(torch.tensor([between, some.numel()])).tolist())


def pixels_between(layout: Layout, raw: Tensor) -> int:
    """How many pixels are neither dark nor bright."""
    value = raw.float() / (1 if layout.n_pixel_values is None else layout.n_pixel_values - 1)
    return int(((value > 0.1) & (value < 0.9)).sum())


def patch_basis_for(between: int, pixels: int) -> str:
    """The basis for pictures of so many pixels, some of which are neither dark nor bright."""
    return "pixels" if between / pixels < 0.2 else "cosines"


def choose_operands(precision: str, device: torch.device) -> torch.dtype | None:
    """The type of the products' operands; None on a CPU, which takes the particles' own."""
    if device.type == "cpu":
        return None
    return _PRECISIONS["float16" if precision == "auto" else precision]


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse what no pictures could be fitted with; an `errors.ParameterError` names it."""
    m, q, text, options = (
        parameters[name] for name in ("n_particles", "quality", "schedule", "options")
    )
    need(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
    ok = q in QUALITY if isinstance(q, str) else is_int(q, 1)
    need(ok, "quality", q, f"one of {list(QUALITY)} or a number of steps per stage")
    need(isinstance(text, str), "schedule", text, "a string: 'auto', a preset, …")
    values = parameters["n_pixel_values"]
    need(is_int(values, 2), "n_pixel_values", values, "an int of at least 2")
    mirror = parameters["mirror"]
    need(is_bool(mirror), "mirror", mirror, "True or False")
    ok = options is None or isinstance(options, PictureOptions)
    need(ok, "options", options, "None or a sliceflow.PictureOptions")
    (options or PictureOptions()).check()
    basis, ways = parameters["patch_basis"], ["auto", *PATCH_BASES]
    need(basis in ways, "patch_basis", basis, f"one of {ways}")
    xi = parameters["amplifier"]
    ok = xi == "auto" or is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    need(ok, "amplifier", xi, "'auto', or a number of at least 0; math.inf is one")
    k = parameters["n_clusters"]
    need(k == "auto" or is_int(k, 1), "n_clusters", k, "'auto' or an int of at least 1, which is none")
    transport = parameters["transport"]
    known = isinstance(transport, str) and transport in _TRANSPORTS
    need(
        known or (hasattr(transport, "fit") and hasattr(transport, "most")),
        "transport",
        transport,
        f"one of {list(_TRANSPORTS)} or a transport from sliceflow.transports",
    )
