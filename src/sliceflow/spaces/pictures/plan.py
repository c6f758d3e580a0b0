"""The plan of a fit of pictures: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from sliceflow.engine import transports
from sliceflow.engine.compact import map_bytes
from sliceflow.engine.conditions import default_particles
from sliceflow.engine.frames import rotation_bytes
from sliceflow.engine.transports import Auto, Histogram, SavedTransport, Transport
from sliceflow.errors import ParameterError, is_int, is_real, require
from sliceflow.fields import Between, Count
from sliceflow.models.plan import Plan, check_shared
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.rows import PictureData
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.tiles import Tiles

QUALITY = {"draft": 3, "standard": 8, "best": 25}  # steps per stage,
_JOINT = 6  # and times as many if all pictures share maps and particles start as noise
_MIN_PER_CLASS = 100  # pictures that a class with separate maps needs, on average
_MIN_PER_CLUSTER = {"grey": 1000, "colour": 2000}  # different pictures of a cluster
_CLUSTER_VALUES = 470_000  # times √steps: values that a cluster of grey pictures needs
_MAX_CLUSTERS = {"grey": 30, "colour": 25}
_MAX_COLUMNS = (
    1 << 20
)  # columns per step: smaller batches are slower on a GPU, and worse
_MIN_KNOTS = 16
_MAX_KNOTS = 64  # knots per map
_PARTICLES_PER_KNOT = 750
SINGLE_PIXEL_BINS = 512  # of single pixels
_BASES = (
    "auto",
    "pixels",
    "cosines",
    "random",
)  # "random": the paper's random patches, not tiles
_BIN_BYTES = 48  # bytes per bin: both counts, values, and the search for bends
_NANOSECONDS = {
    "cpu": 8.0,
    "cuda": 0.02,
}  # for each value that a step projects and moves
_CPU_PARTICLES = {
    "draft": 10_000,
    "standard": 20_000,
}  # most, unless the user says how many; else
_MOST_CPU_PARTICLES = 40_000  # of "best" and of numbers of steps
_CPU_DRAFT = 2  # steps per stage of "draft" there


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
    transport: SavedTransport
    batch_size: int | None = (
        None  # most particles, and most pictures, per step; None uses all
    )
    n_knots: Annotated[int, Between(0, 1 << 16)]  # knots kept per map; 0 keeps no model
    n_summed: Annotated[
        int, Between(0, 1 << 10)
    ]  # pictures of a mosaic; 0 starts as noise
    shrinkage: Annotated[float, Between(0)]  # κ of the maps; 0 is off
    options: PictureOptions  # as given; those above are resolved

    def check(self) -> None:
        if any(
            v.h > self.layout.height or v.w > self.layout.width for v in self.stages
        ):
            raise ValueError(f"a stage is larger than pictures of {self.layout.shape}")

    @property
    def per_class(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        return self.n_conditions if math.isinf(self.amplifier) else 0

    @property
    def shared(self) -> bool:
        return 0 < self.amplifier < math.inf

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, clusters or completion."""
        if self.condition in ("observed", "clusters"):
            return "completion" if self.condition == "observed" else "clusters"
        shared = f"CSWF ξ={self.amplifier:g}" if self.amplifier else "SWF"
        return "per class" if self.per_class else shared

    @property
    def n_steps(self) -> int:
        return sum(stage.n_steps for stage in self.stages)

    @property
    def start(self) -> str:
        """Where particles start, in words."""
        if not self.n_summed:
            return "noise"
        whose = f"their {'class' if self.condition == 'labels' else 'cluster'}"
        whose = whose if self.per_class else "the data"
        return f"mosaics of {self.n_summed} training pictures of {whose}, which the model keeps"

    @property
    def directions(self) -> list[int]:
        """The most directions of a step, for each stage."""
        if self.patch_basis == "random":
            return [self.options.n_directions] * len(self.stages)
        c = self.layout.shape[0]
        return [
            Tiles(c, stage.h, stage.w, stage.patch).most_directions
            for stage in self.stages
        ]

    @property
    def n_maps(self) -> int:
        """The most maps of all steps, of one class."""
        return sum(
            h * v.n_steps for h, v in zip(self.directions, self.stages, strict=True)
        )

    @property
    def frame_bytes(self) -> int:
        """Memory to draw the directions of a step."""
        if self.patch_basis == "random":
            return 16 * self.options.n_directions * self.layout.dimension
        c = self.layout.shape[0]
        tile = max(c * min(v.patch, v.h) * min(v.patch, v.w) for v in self.stages)
        return rotation_bytes(tile, 4)

    def lines(self) -> Sequence[tuple[str, object]]:
        more = (
            f", {self.n_moved} moved for the model"
            if self.n_moved > self.n_particles
            else ""
        )
        layout = self.layout
        what = "pictures and mirror images" if self.mirror else "pictures"
        values = layout.n_pixel_values
        kind = "floats" if values is None else f"{values} values a pixel"
        colour = "" if layout.channels is None else f"×{layout.channels}"
        k = self.n_conditions
        kinds = dict(
            labels=f"{k} classes", clusters=f"{k} clusters", observed="observed pixels"
        )
        directions = f"tiles of {self.patch_basis}"
        if self.patch_basis == "random":
            directions = f"{self.options.n_directions} random patches"
        looked = (
            f"at most {self.batch_size} particles and pictures"
            if self.batch_size
            else ""
        )
        return [
            (
                "data",
                f"{self.n_pictures} {what} of {layout.height}×{layout.width}{colour}, {kind}",
            ),
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

    def fit_bytes(self, n_here: int, m_here: int) -> int:
        """Memory of n pictures and m particles on a rank: clouds, a step, the model, kept pictures."""
        layout = self.layout
        looked_at = self.batch_size
        per_class = self.per_class or 1
        n_bins = getattr(self.transport, "n_bins", None)
        each = map_bytes(self.n_knots, n_bins, self.shared) * per_class
        bins = n_bins or 0
        if bins and layout.n_pixel_values is not None:
            bins = max(bins, SINGLE_PIXEL_BINS)
        columns = min(m_here, looked_at or m_here) + min(n_here, looked_at or n_here)
        work = (
            max(self.directions) * (4 * columns + _BIN_BYTES * bins * per_class)
            + self.frame_bytes
        )
        d = layout.dimension
        raw = 1 if layout.n_pixel_values is not None else 4
        clouds = 4 * 4 * d * m_here + (3 * 4 + raw) * d * n_here
        kept = (
            raw * d * self.n_pictures if self.n_summed else 0
        )  # all pictures, on every rank
        return clouds + work + self.n_maps * each + kept

    def fit_seconds(self) -> float:
        """About how long a fit takes on its device."""
        max_samples = self.batch_size or max(self.n_moved, self.n_pictures)
        columns = (
            self.n_moved
            + min(self.n_moved, max_samples)
            + min(self.n_pictures, max_samples)
        )
        return self.estimate(self.n_maps * columns, _NANOSECONDS)


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


def steps_per_stage(quality: str | int, joint: bool, device: torch.device) -> int:
    """The number of steps; `joint` if all pictures share maps and start as noise."""
    if not isinstance(quality, str):
        return int(quality)
    steps = (
        _CPU_DRAFT if (quality, device.type) == ("draft", "cpu") else QUALITY[quality]
    )
    return steps * (_JOINT if joint else 1)


def choose_particles(
    parameters: Mapping[str, Any], n: int, device: torch.device
) -> int:
    """M for n pictures. On a CPU, where they take long, there are fewer."""
    m: int = parameters["n_particles"] or default_particles(
        n if parameters["mirror"] else 2 * n
    )
    if (
        parameters["n_particles"] is None
        and device.type == "cpu"
        and parameters["preset"] is None
    ):
        m = min(m, _CPU_PARTICLES.get(parameters["quality"], _MOST_CPU_PARTICLES))
    return m


def choose_amplifier(
    amplifier: str | float, transport: str | Transport, m: int, n: int, n_classes: int
) -> float:
    """ξ for m particles and n pictures of `n_classes` classes; 0 without classes."""
    if n_classes == 0:
        return 0.0
    histograms = isinstance(choose_transport(transport, math.inf, m + n), Histogram)
    if amplifier == "auto":
        return math.inf if histograms and n >= _MIN_PER_CLASS * n_classes else 10.0
    if math.isinf(float(amplifier)) and not histograms:
        raise _sorting("amplifier", math.inf, m, n, "a finite amplifier such as 10")
    return float(amplifier)


def choose_clusters(
    parameters: Mapping[str, Any],
    m: int,
    n: int,
    shape: tuple[int, int, int],
    device: torch.device,
) -> int:
    """The number of clusters for n unlabelled pictures of shape (c, h, w); 1 means no clustering."""
    requested = parameters["n_clusters"]
    histograms = isinstance(
        choose_transport(parameters["transport"], math.inf, m + n), Histogram
    )
    if requested == "auto":
        kind = "grey" if shape[0] == 1 else "colour"
        enough = _MIN_PER_CLUSTER[kind]
        different = n // 2 if parameters["mirror"] else n
        if kind == "grey":
            steps = steps_per_stage(parameters["quality"], False, device)
            enough = max(
                enough, math.ceil(_CLUSTER_VALUES * math.sqrt(steps) / math.prod(shape))
            )
        max_samples = min(_MAX_CLUSTERS[kind], different // enough, m)
        return max(1, max_samples) if histograms else 1
    k = int(requested)
    max_samples = min(m, n)
    require(
        k <= max_samples,
        "n_clusters",
        k,
        f"at most {max_samples}: each cluster needs a particle and a picture",
    )
    if k > 1 and not histograms:
        raise _sorting("n_clusters", k, m, n, "n_clusters=1")
    return k


def _sorting(name: str, value: float, m: int, n: int, instead: str) -> ParameterError:
    fact = f"needs histograms, but this transport sorts {m} particles and {n} pictures"
    return ParameterError(name, value, fact, f"use {instead}, or transport='histogram'")


def choose_transport(
    transport: str | Transport, amplifier: float, n: int, n_ranks: int = 1
) -> Transport:
    """The transport for n particles and pictures. `amplifier` is 0 without labels."""
    n_bins = (
        1024 if 0 < amplifier < math.inf else 128
    )  # classes that share a histogram need more
    counting = (
        Histogram(n_bins, _MAX_COLUMNS),
        Auto(n_bins=n_bins, max_samples=_MAX_COLUMNS),
    )
    return transports.choose_transport(transport, n, n_ranks, *counting)


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


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter."""
    check_shared(parameters, ("mirror", "keep_rows"), PictureOptions)
    quality = parameters["quality"]
    xi = parameters["amplifier"]
    k = parameters["n_clusters"]
    named = quality in QUALITY if isinstance(quality, str) else is_int(quality, 1)
    known = xi == "auto" or is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    counted = k == "auto" or is_int(k, 1)
    how = "an int of at least 1; 1 turns clustering off"
    for name, ok, what in (
        ("quality", named, f"one of {list(QUALITY)} or a number of steps per stage"),
        (
            "schedule",
            isinstance(parameters["schedule"], str),
            "a string: 'auto', 'paper' or stages",
        ),
        (
            "n_pixel_values",
            is_int(parameters["n_pixel_values"], 2),
            "an int of at least 2",
        ),
        ("patch_basis", parameters["patch_basis"] in _BASES, f"one of {list(_BASES)}"),
        (
            "amplifier",
            known,
            "'auto', or a number of at least 0, which may be math.inf",
        ),
        ("n_clusters", counted, f"'auto' or {how}"),
    ):
        require(ok, name, parameters[name], what)
