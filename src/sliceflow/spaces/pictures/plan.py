"""The plan of a fit of pictures: all parameters, with every "auto" resolved."""

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
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import PATCH_BASES, SINGLE_PIXEL_BINS
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import Tiles

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
    "choose_shrinkage",
    "choose_start",
    "choose_transport",
    "make_plan",
    "patch_basis_for",
    "pixels_between",
    "stages_of",
]

QUALITY = {"draft": 3, "standard": 8, "best": 25}  # steps per stage,
_JOINT = 6  # and times as many if all pictures share maps and particles start as noise
_MIN_PER_CLASS = 100  # pictures that a class with separate maps needs, on average
_MIN_PER_CLUSTER = {"grey": 1000, "colour": 2000}  # different pictures of a cluster
_CLUSTER_VALUES = 470_000  # times √steps: values that a cluster of grey pictures needs
_MAX_CLUSTERS = {"grey": 30, "colour": 25}
_MAX_COLUMNS = 1 << 20  # columns per step: smaller batches are slower here, and worse
_MIN_KNOTS, _MAX_KNOTS = 16, 64  # knots per map
_PARTICLES_PER_KNOT = 750
_PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_TRANSPORTS = ("auto", "sorted", "histogram", "interpolated")
_SHRINKAGE, _MAX_SHRINKAGE = 2.5, 2.0  # κ over √(steps per stage/pictures per map), and at most
_SUMMED = 4  # pictures that a particle starts as the sum of
_SHRINKAGE_OF_SUMS = 8.0  # κ if particles start as sums of pictures
_BIN_BYTES = 48  # bytes per bin: both counts, values, and the search for bends


@dataclass(frozen=True)
class PicturePlan:
    """What a fit of pictures does. It prints as a table.

    Parameters
    ----------
    n_pictures : pictures fitted, including mirror images, of all ranks
    layout : the pictures' layout
    mirror : whether mirror images are included
    n_particles : particles kept
    n_moved : particles moved; may be more than are kept, to improve the model
    condition : "none", "labels", "clusters" or "observed"
    n_conditions : number of classes or clusters
    amplifier : ξ; 0 if the flow ignores conditions, ∞ if each class has its own maps
    stages : resolution, patch size and number of steps of each stage
    patch_basis : basis of the directions
    n_directions : random patches per step; None for tiles, which have one direction per value
    transport : how to solve the directions
    n_looked_at : maximum number of particles, and of pictures, per step; None uses all
    n_knots : knots kept per map; 0 keeps no model
    precision : operands of matrix products on a GPU; None takes the particles' dtype
    n_summed : particles start as sums of this many pictures; 0 starts them as noise
    locality : β of these sums
    start_noise, clip, dequantize, dequantize_every, upsampling, taper : the options of these names
    shrinkage : κ of the maps; 0 is off
    n_ranks : number of processes
    device : device of the fit
    nbytes : memory of the fit on each device

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sliceflow import ImageFlow
    >>> digits = load_digits()
    >>> flow = ImageFlow(n_pixel_values=17, quality="draft", device="cpu")
    >>> plan = flow.plan(digits.images.astype("uint8"), digits.target)
    >>> plan.method, plan.patch_basis, len(plan.stages)
    ('per class', 'cosines', 12)
    >>> print(plan)  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    method       per class
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
    n_summed: int
    locality: float
    start_noise: float
    clip: bool
    dequantize: bool
    dequantize_every: str
    upsampling: str
    taper: float
    shrinkage: float
    n_ranks: int
    device: str
    nbytes: int

    @property
    def apart(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, clusters or completion."""
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
        """The maximum number of directions in a step of this stage."""
        return _most_directions(self.layout, stage, self.n_directions)

    def settings(self) -> dict[str, Any]:
        """All settings that determine the result. A checkpoint belongs to a fit with equal settings."""
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
        looked = (
            "" if self.n_looked_at is None else f"at most {self.n_looked_at} particles and pictures"
        )
        start = "noise"
        if self.n_summed:
            start = f"sums of {self.n_summed} pictures, locality {self.locality:g}"
        return as_table(
            [
                ("method", self.method),
                ("data", f"{self.n_pictures} {what} of {layout.height}×{layout.width}{colour}, {kind}"),
                ("condition", kinds.get(self.condition, "")),
                ("particles", f"{self.n_particles}{more}"),
                ("start", start),
                ("stages", f"{len(self.stages)}: {' '.join(map(str, self.stages))}"),
                ("steps", self.n_steps),
                ("directions", directions),
                ("transport", repr(self.transport)),
                ("a step uses", looked),
                ("shrinkage", f"κ = {self.shrinkage:.2g}" if self.shrinkage else "off"),
                ("model", f"{self.n_knots} knots per map" if self.n_knots else "none kept"),
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
    local_counts: tuple[int, int] | None = None,
    ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
) -> PicturePlan:
    """The plan for n pictures of a layout; raises a `NotEnoughMemoryError` if memory cannot hold it.

    Parameters
    ----------
    parameters : the estimator's checked parameters, including `options`, which is not None
    n : pictures of all ranks, including mirror images
    n_moved : particles moved; None moves only those kept
    condition : labels or clusters
    patch_basis : "pixels", "cosines" or "random"; not "auto"
    local_counts : pictures and particles of this rank; None means all
    ranks : with several, each step uses all particles and pictures
    """
    options: PictureOptions = parameters["options"]
    m = choose_particles(parameters, n, condition)
    kind = parameters["transport"]
    amplifier, width = 0.0, 0 if condition is None else condition.width
    if condition is not None:
        xi = math.inf if condition.hidden else parameters["amplifier"]
        amplifier = choose_amplifier(xi, kind, m, n, width)
    chosen = choose_transport(kind, amplifier)
    apart = width if math.isinf(amplifier) else 0
    n_summed = choose_start(
        options.start, layout, 0 < amplifier < math.inf, parameters["observed"] is not None
    )
    joint = not apart and not n_summed
    stages = stages_of(parameters, layout, joint)
    moved = m if n_moved is None else n_moved
    n_random = options.n_directions if patch_basis == "random" else None
    directions = [_most_directions(layout, stage, n_random) for stage in stages]
    looked_at = None
    if ranks.size == 1:
        looked_at = columns_looked_at(chosen.most, max(directions), device)
        if looked_at is not None and looked_at >= max(moved, n):
            looked_at = None
    n_maps = sum(h * v.n_steps for h, v in zip(directions, stages, strict=True))
    resolved = chosen
    if isinstance(chosen, transports.Auto):
        resolved = chosen.chosen((m if apart else moved) + n)
    n_knots = choose_knots(options.n_knots, m, amplifier, width)
    shared = 0 < amplifier < math.inf
    bytes_per_map = map_bytes(n_knots, getattr(resolved, "n_bins", None), shared) * (apart or 1)
    n_here, m_here = local_counts or (n, moved)
    bins = getattr(resolved, "n_bins", 0)
    if bins and layout.n_pixel_values is not None:
        bins = max(bins, SINGLE_PIXEL_BINS)  # of single pixels
    bins *= apart or 1
    n_columns = min(m_here, looked_at or moved) + min(n_here, looked_at or n)
    tiles = [layout.shape[0] * min(v.patch, v.h) * min(v.patch, v.w) for v in stages]
    work = max(directions) * (4 * n_columns + _BIN_BYTES * bins) + rotation_bytes(max(tiles), 4)
    work += 0 if n_random is None else 16 * n_random * layout.dimension
    d, raw = layout.dimension, 1 if layout.n_pixel_values is not None else 4
    clouds = 4 * 4 * d * m_here + (3 * 4 + raw) * d * n_here
    kept = raw * d * n if n_summed else 0  # all pictures, on every rank
    nbytes = clouds + work + n_maps * bytes_per_map + kept
    what = f"n_particles={m_here}, {n_here} pictures of {d} values and a model of {n_maps} maps need"
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
        transport=resolved,
        n_looked_at=looked_at,
        n_knots=n_knots,
        precision=choose_operands(options.precision, device),
        n_summed=n_summed,
        locality=float(options.locality) if n_summed else 0.0,
        start_noise=float(options.start_noise),
        clip=bool(options.clip),
        dequantize=bool(options.dequantize),
        dequantize_every=options.dequantize_every,
        upsampling=options.upsampling,
        taper=float(options.taper),
        shrinkage=choose_shrinkage(
            options.shrinkage,
            n / ((2 if parameters["mirror"] else 1) * (apart or 1)),
            _steps_per_stage(parameters["quality"], joint),
            n_summed > 0,
        ),
        n_ranks=ranks.size,
        device=str(device),
        nbytes=nbytes,
    )


def choose_shrinkage(
    shrinkage: str | float, n_per_map: float, n_steps: int, summed: bool = False
) -> float:
    """κ for `n_per_map` different pictures that a map is fitted to, and `n_steps` steps per stage.

    "auto" is 8 if particles start as sums of pictures (`summed`): these need only small corrections.
    CIFAR-10 is as good with 8 as with 4, and real pictures are hardly changed: by class, 200 steps per
    stage of the last level bring them to FID-768 .016, with 4 to .048. From noise it is
    2.5·√(steps/pictures), at most 2: every step adds noise, and few pictures have more of it. On
    CIFAR-10 this is 0.5 for 200 steps, where 0.25 to 0.7 measure alike; digits would be copied with
    less than 1 (benchmarks/RESULTS.md).

    Examples
    --------
    >>> choose_shrinkage("auto", 5_000, 200)
    0.5
    >>> round(choose_shrinkage("auto", 130, 50), 2)
    1.55
    """
    if shrinkage != "auto":
        return float(shrinkage)
    if summed:
        return _SHRINKAGE_OF_SUMS
    return min(_MAX_SHRINKAGE, _SHRINKAGE * math.sqrt(n_steps / max(1.0, n_per_map)))


def choose_start(start: str | int, layout: Layout, shared: bool, observed: bool) -> int:
    """The number of pictures that a particle starts as the sum of; 0 is noise.

    Sums need classes with maps of their own: a map shared by
    all classes would not know which of them a particle started from.
    """
    reasons = {
        "does not work with observed pixels": observed,
        "does not work if classes share maps": shared,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if start == "auto":
        return _SUMMED if layout.shape[0] > 1 and why is None else 0
    if start == "noise":
        return 0
    if why is not None:
        more = ", or amplifier=inf" if shared else ""
        raise ParameterError("start", start, why, f"use start='noise'{more}")
    return int(start)


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


def stages_of(parameters: Mapping[str, Any], layout: Layout, joint: bool) -> list[PictureStage]:
    """The stages for pictures of this layout; `joint` if all share maps and start as noise."""
    text, (channels, height, width) = parameters["schedule"], layout.shape
    if text == "auto":
        text = schedules.auto(height, width, channels)
    elif text == "paper":
        text = schedules.paper(height, width)
    steps = _steps_per_stage(parameters["quality"], joint)
    return schedules.from_string(schedules.PRESETS.get(text, text), height, width, steps)


def _steps_per_stage(quality: str | int, joint: bool) -> int:
    """The number of steps for draft, standard and best."""
    if not isinstance(quality, str):
        return int(quality)
    return QUALITY[quality] * (_JOINT if joint else 1)


def choose_particles(parameters: Mapping[str, Any], n: int, condition: Labels | None) -> int:
    """M for n pictures; each class needs a particle.

    The default is twice the number of different pictures, and at least 10,000. With half as many,
    offline samples of MNIST have FD .14, and .09 so.
    """
    m: int = parameters["n_particles"] or default_particles(n if parameters["mirror"] else 2 * n)
    if condition is not None and m < condition.width:
        raise ValueError(
            f"n_particles={m} is fewer than the {condition.width} classes of the labels; "
            f"pass n_particles >= {condition.width}"
        )
    return m


def choose_amplifier(
    amplifier: str | float, transport: str | Transport, m: int, n: int, n_classes: int
) -> float:
    """ξ for m particles and n pictures of `n_classes` classes.

    "auto" is ∞ if the transport uses histograms and classes have at least 100 pictures on average:
    digits by class have FD-PCA32 .22 and NN ratio .97 so, .24 and .98 with ξ = 10.
    """
    histograms = _uses_histograms(transport, m, n)
    if amplifier == "auto":
        return math.inf if histograms and n >= _MIN_PER_CLASS * n_classes else 10.0
    if math.isinf(float(amplifier)) and not histograms:
        raise ParameterError(
            "amplifier",
            math.inf,
            f"needs histograms, but this transport sorts {m} particles and {n} pictures",
            "use a finite amplifier such as 10, or transport='histogram'",
        )
    return float(amplifier)


def choose_clusters(parameters: Mapping[str, Any], n: int, shape: tuple[int, int, int]) -> int:
    """The number of clusters for n unlabelled pictures of shape (c, h, w); 1 means no clustering."""
    m, requested = choose_particles(parameters, n, None), parameters["n_clusters"]
    histograms = _uses_histograms(parameters["transport"], m, n)
    if requested == "auto":
        kind = "grey" if shape[0] == 1 else "colour"
        enough, different = _MIN_PER_CLUSTER[kind], n // 2 if parameters["mirror"] else n
        if kind == "grey":
            steps = _steps_per_stage(parameters["quality"], joint=False)
            enough = max(enough, math.ceil(_CLUSTER_VALUES * math.sqrt(steps) / math.prod(shape)))
        most = min(_MAX_CLUSTERS[kind], different // enough, m)
        return max(1, most) if histograms else 1
    k, most = int(requested), min(m, n)
    need(k <= most, "n_clusters", k, f"at most {most}: each cluster needs a particle and a picture")
    if k > 1 and not histograms:
        raise ParameterError(
            "n_clusters",
            k,
            f"needs histograms, but this transport sorts {m} particles and {n} pictures",
            "use n_clusters=1, or transport='histogram'",
        )
    return k


def _uses_histograms(transport: str | Transport, m: int, n: int) -> bool:
    """Whether the transport uses histograms, which classes with separate maps need."""
    if isinstance(transport, str):
        transport = choose_transport(transport, math.inf)
    if isinstance(transport, transports.Auto):
        transport = transport.chosen(m + n)
    return isinstance(transport, transports.Histogram)


def choose_transport(transport: str | Transport, amplifier: float) -> Transport:
    """The transport of that name. `amplifier` is 0 without labels."""
    if not isinstance(transport, str):
        return transport
    n_bins = 1024 if 0 < amplifier < math.inf else 128  # classes that share a histogram need more
    kinds: dict[str, Transport] = {
        "auto": transports.Auto(n_bins=n_bins, most=_MAX_COLUMNS),
        "sorted": transports.Sorted(),
        "histogram": transports.Histogram(n_bins, most=_MAX_COLUMNS),
        "interpolated": transports.Interpolated(),
    }
    return kinds[transport]


def choose_knots(n_knots: str | int, m: int, amplifier: float, n_classes: int) -> int:
    """Knots to keep per map for m particles.

    More knots follow the map more closely, and also its noise. The noise falls with the number of
    particles: see benchmarks/RESULTS.md. Maps shared by classes keep eight times as many in any case.
    """
    if n_knots != "auto":
        return int(n_knots)
    if 0 < amplifier < math.inf:
        return _MIN_KNOTS
    each = m / n_classes if amplifier == math.inf else m
    return min(_MAX_KNOTS, max(_MIN_KNOTS, round(each / _PARTICLES_PER_KNOT)))


def choose_patch_basis(
    patch_basis: str, layout: Layout, raw: Tensor, own_numbers: Tensor, n: int, ranks: Ranks
) -> str:
    """The basis for pictures `raw`, which are this rank's: numbers `own_numbers` out of n."""
    if patch_basis != "auto":
        return patch_basis
    subset = raw[:, own_numbers % max(1, n // 10_000) == 0]
    between = pixels_between(layout, subset)
    return patch_basis_for(*ranks.sum(torch.tensor([between, subset.numel()])).tolist())


def pixels_between(layout: Layout, raw: Tensor) -> int:
    """The number of pixels that are neither dark nor bright."""
    value = raw.float() / (1 if layout.n_pixel_values is None else layout.n_pixel_values - 1)
    return int(((value > 0.1) & (value < 0.9)).sum())


def patch_basis_for(between: int, pixels: int) -> str:
    """The basis for pictures where `between` of the pixels are neither dark nor bright."""
    return "pixels" if between / pixels < 0.2 else "cosines"


def choose_operands(precision: str, device: torch.device) -> torch.dtype | None:
    """The dtype of operands of matrix products; None on a CPU: the particles' dtype."""
    if device.type == "cpu":
        return None
    return _PRECISIONS["float16" if precision == "auto" else precision]


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise an `errors.ParameterError` for the first invalid parameter."""
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
    need(ok, "amplifier", xi, "'auto', or a number of at least 0, which may be math.inf")
    k = parameters["n_clusters"]
    need(
        k == "auto" or is_int(k, 1),
        "n_clusters",
        k,
        "'auto' or an int of at least 1; 1 turns clustering off",
    )
    transport = parameters["transport"]
    known = isinstance(transport, str) and transport in _TRANSPORTS
    need(
        known or (hasattr(transport, "fit") and hasattr(transport, "most")),
        "transport",
        transport,
        f"one of {list(_TRANSPORTS)} or a transport from sliceflow.transports",
    )
