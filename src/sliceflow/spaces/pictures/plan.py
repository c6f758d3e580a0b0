"""The plan of a fit of pictures: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import transports
from sliceflow.engine.compact import map_bytes
from sliceflow.engine.conditions import Labels, default_particles
from sliceflow.engine.frames import rotation_bytes
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Transport
from sliceflow.errors import ParameterError, is_int, is_real, need
from sliceflow.models.codec import Between
from sliceflow.models.plan import Plan, check_shared
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import PATCH_BASES, SINGLE_PIXEL_BINS, LevelFlow
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.rows import PictureData
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import Tiles

__all__ = ["QUALITY", "PicturePlan", "check_parameters"]

QUALITY = {"draft": 3, "standard": 8, "best": 25}  # steps per stage,
_JOINT = 6  # and times as many if all pictures share maps and particles start as noise
_MIN_PER_CLASS = 100  # pictures that a class with separate maps needs, on average
_MIN_PER_CLUSTER = {"grey": 1000, "colour": 2000}  # different pictures of a cluster
_CLUSTER_VALUES = 470_000  # times √steps: values that a cluster of grey pictures needs
_MAX_CLUSTERS = {"grey": 30, "colour": 25}
_OR = ", or transport='histogram'"  # advice
_MAX_COLUMNS = 1 << 20  # columns per step: smaller batches are slower on a GPU, and worse
_MIN_KNOTS, _MAX_KNOTS = 16, 64  # knots per map
_PARTICLES_PER_KNOT = 750
FEWEST_LOOKED_AT = 10_000  # pictures of a step on a CPU
_TRANSPORTS = ("auto", "sorted", "histogram", "interpolated")
_BIN_BYTES = 48  # bytes per bin: both counts, values, and the search for bends
_NANOSECONDS = {"cpu": 8.0, "cuda": 0.02}  # for each value that a step projects and moves
_CPU_PARTICLES = {"draft": 10_000, "standard": 20_000}  # most, unless the user says how many; else
_CPU_DRAFT = 2  # steps per stage of "draft" there
_MOST_CPU_PARTICLES = 40_000  # of "best" and of numbers of steps

Count = Annotated[int, Between(0, 1 << 40)]
Real = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class PicturePlan(Plan):
    """What a fit of pictures does. It prints as a table."""

    n_pictures: Count  # of all ranks, including mirror images
    layout: Layout
    mirror: bool
    n_particles: Count  # particles kept
    n_moved: Count  # particles moved; may be more than are kept, to improve the model
    condition: Literal["none", "labels", "clusters", "observed"]
    n_conditions: Count  # number of classes or clusters
    amplifier: Annotated[float, Between(0, math.inf)]  # ξ; 0 without conditions
    stages: tuple[PictureStage, ...]
    patch_basis: Literal["pixels", "cosines", "random"]
    transport: Transport
    n_looked_at: int | None  # maximum number of particles, and of pictures, per step; None uses all
    n_knots: Annotated[int, Between(0, 1 << 16)]  # knots kept per map; 0 keeps no model
    precision: torch.dtype | None  # of matrix products on a GPU; None takes the particles'
    n_summed: Annotated[int, Between(0, 1 << 10)]  # pictures of a mosaic; 0 starts as noise
    locality: Real  # β of these mosaics
    shrinkage: Real  # κ of the maps; 0 is off
    options: PictureOptions  # as given; those above are resolved

    @property
    def apart(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, clusters or completion."""
        if self.condition in ("observed", "clusters"):
            return "completion" if self.condition == "observed" else "clusters"
        shared = f"CSWF ξ={self.amplifier:g}" if self.amplifier else "SWF"
        return "per class" if self.apart else shared

    @property
    def n_steps(self) -> int:
        return sum(stage.n_steps for stage in self.stages)

    @property
    def start(self) -> str:
        """Where particles start, in words."""
        if not self.n_summed:
            return "noise"
        whose = f"their {'class' if self.condition == 'labels' else 'cluster'}"
        whose = whose if self.apart else "the data"
        return f"mosaics of {self.n_summed} training pictures of {whose}, which the model keeps"

    def levels(self, seed: Seed, device: torch.device, known: Tensor | None = None) -> LevelFlow:
        """The flow through the levels of the pyramid; `known` (d, 1) marks the observed pixels."""
        options, stages = self.options, list(self.stages)
        y: Any = dict(n_conditions=self.n_conditions, amplifier=self.amplifier, known=known)
        steps: Any = dict(clip=options.clip, taper=options.taper, budget=projection_budget(device))
        basis: Any = dict(patch_basis=self.patch_basis, n_directions=options.n_directions)
        precision = self.precision if device.type != "cpu" else None
        basis |= dict(precision=precision, upsampling=options.upsampling)
        return LevelFlow(self.layout, stages, seed.child("flow"), **y, **steps, **basis)

    @property
    def directions(self) -> list[int]:
        """The most directions of a step, for each stage."""
        if self.patch_basis == "random":
            return [self.options.n_directions] * len(self.stages)
        c = self.layout.shape[0]
        return [Tiles(c, stage.h, stage.w, stage.patch).most_directions for stage in self.stages]

    @property
    def tile(self) -> int:
        """The most values of a tile."""
        return max(self.layout.shape[0] * min(v.patch, v.h) * min(v.patch, v.w) for v in self.stages)

    def lines(self) -> Sequence[tuple[str, object]]:
        more = f", {self.n_moved} moved for the model" if self.n_moved > self.n_particles else ""
        layout, what = self.layout, "pictures and mirror images" if self.mirror else "pictures"
        values = layout.n_pixel_values
        kind = "floats" if values is None else f"{values} values a pixel"
        colour = "" if layout.channels is None else f"×{layout.channels}"
        k = self.n_conditions
        kinds = dict(labels=f"{k} classes", clusters=f"{k} clusters", observed="observed pixels")
        directions = f"tiles of {self.patch_basis}"
        if self.patch_basis == "random":
            directions = f"{self.options.n_directions} random patches"
        looked = f"at most {self.n_looked_at} particles and pictures" if self.n_looked_at else ""
        return [
            ("data", f"{self.n_pictures} {what} of {layout.height}×{layout.width}{colour}, {kind}"),
            ("condition", kinds.get(self.condition, "")),
            ("particles", f"{self.n_particles}{more}"),
            ("start", self.start),
            ("stages", f"{len(self.stages)}: {' '.join(map(str, self.stages))}"),
            ("steps", self.n_steps),
            ("directions", directions),
            ("transport", repr(self.transport)),
            ("a step uses", looked),
            ("shrinkage", f"κ = {self.shrinkage:.2g}" if self.shrinkage else "off"),
            ("model", f"{self.n_knots} knots per map" if self.n_knots else "none kept"),
        ]


def fit_bytes(plan: PicturePlan, n_here: int, m_here: int) -> int:
    """Memory of a fit of n pictures and m particles on this rank: clouds, a step, and the model."""
    layout, looked_at, apart = plan.layout, plan.n_looked_at, plan.apart or 1
    directions = plan.directions
    n_maps = sum(h * v.n_steps for h, v in zip(directions, plan.stages, strict=True))
    shared = 0 < plan.amplifier < math.inf
    each = map_bytes(plan.n_knots, getattr(plan.transport, "n_bins", None), shared) * apart
    bins = getattr(plan.transport, "n_bins", 0)
    if bins and layout.n_pixel_values is not None:
        bins = max(bins, SINGLE_PIXEL_BINS)
    columns = min(m_here, looked_at or m_here) + min(n_here, looked_at or n_here)
    work = max(directions) * (4 * columns + _BIN_BYTES * bins * apart) + rotation_bytes(plan.tile, 4)
    work += 16 * directions[0] * layout.dimension if plan.patch_basis == "random" else 0
    d, raw = layout.dimension, 1 if layout.n_pixel_values is not None else 4
    clouds = 4 * 4 * d * m_here + (3 * 4 + raw) * d * n_here
    kept = raw * d * plan.n_pictures if plan.n_summed else 0  # all pictures, on every rank
    return clouds + work + n_maps * each + kept


def fit_seconds(plan: PicturePlan) -> float:
    """About how long a fit takes on its device."""
    most = plan.n_looked_at or max(plan.n_moved, plan.n_pictures)
    columns = plan.n_moved + min(plan.n_moved, most) + min(plan.n_pictures, most)
    n_maps = sum(h * v.n_steps for h, v in zip(plan.directions, plan.stages, strict=True))
    return plan.estimate(n_maps * columns, _NANOSECONDS)


def choose_shrinkage(
    shrinkage: str | float, n_per_map: float, n_steps: int, mosaics: bool = False
) -> float:
    """κ for `n_per_map` different pictures that a map is fitted to, and `n_steps` steps per stage."""
    if shrinkage != "auto":
        return float(shrinkage)
    if mosaics:  # they need only small corrections
        return 8.0
    # Every step adds noise, and few pictures have more of it: digits would be copied with less than 1.
    return min(2.0, 2.5 * math.sqrt(n_steps / max(1.0, n_per_map)))


def choose_start(start: str | int, layout: Layout, shared: bool, observed: bool) -> int:
    """The number of pictures that a particle starts as the mosaic of; 0 is noise."""
    # A map shared by all classes would not know from which of them a particle started.
    why = "does not work if classes share maps" if shared else None
    why = "does not work with observed pixels" if observed else why
    if start == "auto":
        return 4 if layout.shape[0] > 1 and why is None else 0
    if start != "noise" and why is not None:
        more = ", or amplifier=inf" if shared else ""
        raise ParameterError("start", start, why, f"use start='noise'{more}")
    return 0 if start == "noise" else int(start)


def choose_stages(text: str, layout: Layout, steps: int) -> list[PictureStage]:
    """The stages of a schedule for pictures of this layout."""
    channels, height, width = layout.shape
    if text == "auto":
        text = schedules.auto(height, width, channels)
    elif text == "paper":
        text = schedules.paper(height, width)
    return schedules.from_string(schedules.PRESETS.get(text, text), height, width, steps)


def steps_per_stage(quality: str | int, joint: bool, device: torch.device) -> int:
    """The number of steps; `joint` if all pictures share maps and start as noise."""
    if not isinstance(quality, str):
        return int(quality)
    steps = _CPU_DRAFT if (quality, device.type) == ("draft", "cpu") else QUALITY[quality]
    return steps * (_JOINT if joint else 1)


def choose_particles(
    parameters: Mapping[str, Any], n: int, condition: Labels | None, device: torch.device
) -> int:
    """M for n pictures; each class needs a particle. On a CPU, where they take long, there are fewer."""
    m: int = parameters["n_particles"] or default_particles(n if parameters["mirror"] else 2 * n)
    if parameters["n_particles"] is None and device.type == "cpu" and parameters["preset"] is None:
        m = min(m, _CPU_PARTICLES.get(parameters["quality"], _MOST_CPU_PARTICLES))
    if condition is not None and m < condition.width:
        fact = f"n_particles={m} is fewer than the {condition.width} classes of the labels"
        raise ValueError(f"{fact}; pass n_particles >= {condition.width}")
    return m


def choose_amplifier(
    amplifier: str | float, transport: str | Transport, m: int, n: int, n_classes: int
) -> float:
    """ξ for m particles and n pictures of `n_classes` classes."""
    histograms = uses_histograms(transport, m, n)
    if amplifier == "auto":
        return math.inf if histograms and n >= _MIN_PER_CLASS * n_classes else 10.0
    if math.isinf(float(amplifier)) and not histograms:
        advice = f"use a finite amplifier such as 10{_OR}"
        raise ParameterError("amplifier", math.inf, _sorts(m, n), advice)
    return float(amplifier)


def choose_clusters(
    parameters: Mapping[str, Any], m: int, n: int, shape: tuple[int, int, int], device: torch.device
) -> int:
    """The number of clusters for n unlabelled pictures of shape (c, h, w); 1 means no clustering."""
    requested = parameters["n_clusters"]
    histograms = uses_histograms(parameters["transport"], m, n)
    if requested == "auto":
        kind = "grey" if shape[0] == 1 else "colour"
        enough, different = _MIN_PER_CLUSTER[kind], n // 2 if parameters["mirror"] else n
        if kind == "grey":
            steps = steps_per_stage(parameters["quality"], False, device)
            enough = max(enough, math.ceil(_CLUSTER_VALUES * math.sqrt(steps) / math.prod(shape)))
        most = min(_MAX_CLUSTERS[kind], different // enough, m)
        return max(1, most) if histograms else 1
    k, most = int(requested), min(m, n)
    need(k <= most, "n_clusters", k, f"at most {most}: each cluster needs a particle and a picture")
    if k > 1 and not histograms:
        raise ParameterError("n_clusters", k, _sorts(m, n), f"use n_clusters=1{_OR}")
    return k


def _sorts(m: int, n: int) -> str:
    return f"needs histograms, but this transport sorts {m} particles and {n} pictures"


def uses_histograms(transport: str | Transport, m: int, n: int) -> bool:
    """Whether the transport uses histograms, which classes with separate maps need."""
    chosen = choose_transport(transport, math.inf)
    if isinstance(chosen, transports.Auto):
        chosen = chosen.choose(m + n)
    return isinstance(chosen, transports.Histogram)


def choose_transport(transport: str | Transport, amplifier: float) -> Transport:
    """The transport of that name. `amplifier` is 0 without labels."""
    if not isinstance(transport, str):
        return transport
    if transport in ("sorted", "interpolated"):
        return transports.Sorted() if transport == "sorted" else transports.Interpolated()
    n_bins = 1024 if 0 < amplifier < math.inf else 128  # classes that share a histogram need more
    kind = transports.Auto if transport == "auto" else transports.Histogram
    return kind(n_bins=n_bins, most=_MAX_COLUMNS)


def choose_knots(n_knots: str | int, m: int, amplifier: float, n_classes: int) -> int:
    """Knots to keep per map for m particles: more of them follow the map, and also its noise."""
    if n_knots != "auto":
        return int(n_knots)
    if 0 < amplifier < math.inf:
        return _MIN_KNOTS
    each = m / n_classes if amplifier == math.inf else m
    return min(_MAX_KNOTS, max(_MIN_KNOTS, round(each / _PARTICLES_PER_KNOT)))


def choose_patch_basis(patch_basis: Any, data: PictureData, ranks: Ranks) -> Any:
    """The basis of directions; "auto" takes pixels for drawings, which have few grey pixels."""
    if patch_basis != "auto":
        return patch_basis
    subset = data.raw[:, data.own_numbers % max(1, data.n // 10_000) == 0].float()
    value = subset / ((data.layout.n_pixel_values or 2) - 1)
    between = int(((value > 0.1) & (value < 0.9)).sum())
    between, pixels = ranks.sum(torch.tensor([between, subset.numel()])).tolist()
    return "pixels" if between / pixels < 0.2 else "cosines"


def choose_operands(precision: str, device: torch.device) -> torch.dtype | None:
    """The dtype of operands of matrix products; None on a CPU: the particles' dtype."""
    name = "float16" if precision == "auto" else precision
    return None if device.type == "cpu" else getattr(torch, name)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter."""

    def check(ok: bool, name: str, what: str) -> None:
        need(ok, name, parameters[name], what)

    check_shared(parameters, ("mirror", "keep_rows"), PictureOptions, _TRANSPORTS)
    quality, xi, k = parameters["quality"], parameters["amplifier"], parameters["n_clusters"]
    ok = quality in QUALITY if isinstance(quality, str) else is_int(quality, 1)
    check(ok, "quality", f"one of {list(QUALITY)} or a number of steps per stage")
    check(isinstance(parameters["schedule"], str), "schedule", "a string: 'auto', a preset, …")
    check(is_int(parameters["n_pixel_values"], 2), "n_pixel_values", "an int of at least 2")
    bases = ["auto", *PATCH_BASES]
    check(parameters["patch_basis"] in bases, "patch_basis", f"one of {bases}")
    ok = xi == "auto" or is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    check(ok, "amplifier", "'auto', or a number of at least 0, which may be math.inf")
    ok = k == "auto" or is_int(k, 1)
    check(ok, "n_clusters", "'auto' or an int of at least 1; 1 turns clustering off")
