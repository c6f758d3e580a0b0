"""What "auto" stands for: the settings that a plan of pictures chooses."""

from __future__ import annotations

import math
from typing import Literal

import torch

from sliceflow.base.flow_estimator import resolve_n_particles
from sliceflow.base.presets import N_DIRECTIONS
from sliceflow.base.ranks import Communicator
from sliceflow.engine.flow import MapSharing, resolve_map_sharing
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    Transport,
    TransportName,
    resolve_transport,
)
from sliceflow.errors import ParameterError
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.options import Start
from sliceflow.estimators.pictures.parameters import (
    PatchBasis,
    PictureParameters,
    Quality,
)
from sliceflow.estimators.pictures.rows import DevicePictures
from sliceflow.validation import require

# Steps per stage. 25 instead of 8 bring FID-768 of MNIST from .016 to .007, but
# samples that look like a training picture from 1.0 to 3.9 % and the file from 59 to
# 140 MB (benchmarks/RESULTS.md).
STEPS_OF_QUALITY: dict[Quality, int] = {"draft": 3, "standard": 8, "best": 25}
# Steps are multiplied by this if particles start as noise, and no class has maps of its
# own: such maps have more to do.
NOISE_TO_ALL_CLASSES_FACTOR = 6
# Steps per stage of "draft" on a CPU, where a fit takes minutes.
CPU_DRAFT_STEPS = 2
# Particles for each picture, unless the user says how many: mirror images do not count.
PARTICLES_PER_PICTURE = 2
# The most particles on a CPU, unless the user says how many: time is proportional to
# them.
CPU_MAX_PARTICLES: dict[Quality, int] = {
    "draft": 10_000,
    "standard": 20_000,
    "best": 40_000,
}
# The same if the user says `steps_per_stage`, which replaces the quality.
CPU_MAX_PARTICLES_OF_GIVEN_STEPS = 40_000
# Pictures that a class with separate maps needs, on average over classes. With fewer,
# classes share maps: their noise would be large, and pictures would be copied.
MIN_PICTURES_PER_CLASS = 100
# ξ of classes that share maps. Of the paper's values 0, 2, 5 and 10 it separates the
# classes of MNIST and CIFAR-10 best: 98.5 and 72 % of samples are recognized as theirs
# (benchmarks/RESULTS.md).
SHARED_AMPLIFIER = 10.0
# Different pictures that a cluster needs. Smaller clusters are copied: 200 clusters of
# MNIST (300 digits each) had an NN ratio of .66, 30 clusters one of .92.
MIN_GRAY_PICTURES_PER_CLUSTER = 1000
MIN_COLOR_PICTURES_PER_CLUSTER = 2000
# More clusters gain little: 30 and 50 clusters of Fashion-MNIST had FD 2.9 and 2.6.
MAX_GRAY_CLUSTERS = 30
MAX_COLOR_CLUSTERS = 25
# Pixel values that a cluster of gray pictures needs, for each √(steps per stage). Steps
# copy: many of them copied the digits of 30 clusters of 2,000 each (MNIST).
CLUSTER_VALUES_PER_ROOT_STEP = 470_000
# The most particles of a step, and the most pictures. Smaller batches are slower on a
# GPU, and worse: 16,384 of each took MNIST's FD from .20 to .70 with labels.
MAX_POINTS_PER_STEP = 1 << 20
# Bins of histograms. Classes that share a histogram need more, because ξ spreads them
# over a wide range.
N_BINS = 128
N_BINS_OF_SHARED_MAPS = 1024
# The most bins of single pixels: two for each of 256 pixel values.
MAX_SINGLE_PIXEL_BINS = 512
# Knots kept of a map: one for this many particles, between the two limits. More knots
# follow the map better, but also its noise.
PARTICLES_PER_KNOT = 750
MIN_PICTURE_MAP_KNOTS = 16
MAX_PICTURE_MAP_KNOTS = 64
# Pictures of a mosaic. With fewer, parts of samples resemble training pictures more.
MOSAIC_SIZE = 4
# κ of mosaics, which need only small corrections. With 8, real pictures nearly stay
# where they are (FID-768 .016); with 4 they drift (.048). See "Fixed point" in
# benchmarks/RESULTS.md.
MOSAIC_SHRINKAGE = 8.0
# If particles start as noise, κ is this factor times √(steps per stage/pictures per
# map), and at most MAX_SHRINKAGE. Every step adds noise, and maps of few pictures have
# more of it: with a factor below 1, digits would be copied.
SHRINKAGE_FACTOR = 2.5
MAX_SHRINKAGE = 2.0
# Pixels between these two shares of the full brightness are gray. Pictures in which
# fewer than a fifth of all pixels are gray count as drawings.
GRAY_RANGE = (0.1, 0.9)
MAX_GRAY_SHARE_OF_DRAWINGS = 0.2
# About this many pictures decide whether they are drawings: more would only take
# longer.
MAX_PICTURES_FOR_BASIS = 10_000
# Random patches of a step for each value of a picture: the paper's 10,000 for the 784
# values of MNIST. With 10,000 for any size, 8×8 digits would need 32 GiB for a model.
RANDOM_DIRECTIONS_PER_VALUE = 13


def resolve_shrinkage(
    shrinkage: Literal["auto"] | float,
    n_pictures_per_map: float,
    n_steps: int,
    has_mosaic_start: bool,
) -> float:
    """Choose κ for maps that are fitted to `n_pictures_per_map` different pictures.

    `n_steps` is the number of steps per stage, and `has_mosaic_start` whether
    particles start as mosaics.
    """
    if shrinkage != "auto":
        return float(shrinkage)
    if has_mosaic_start:
        return MOSAIC_SHRINKAGE
    noise = math.sqrt(n_steps / max(1.0, n_pictures_per_map))
    return min(MAX_SHRINKAGE, SHRINKAGE_FACTOR * noise)


def resolve_n_directions(n_directions: Literal["auto"] | int, layout: Layout) -> int:
    """Choose the number of directions of a step of random patches."""
    if n_directions != "auto":
        return int(n_directions)
    return min(N_DIRECTIONS, RANDOM_DIRECTIONS_PER_VALUE * layout.dimension)


def resolve_mosaic_size(
    start: Start | int, *, has_colors: bool, sharing: MapSharing, has_known: bool
) -> int:
    """Choose the number of pictures of the mosaics that particles start as.

    0 is noise. `has_colors` is whether any picture is not gray, `has_known` whether
    pixels are known. `sharing` says which classes share maps.
    """
    if start == "noise":
        return 0
    if start != "auto":
        return int(start)
    if _reason_against_mosaics(sharing, has_known):
        return 0
    if not has_colors:  # gray mosaics are no better than noise
        return 0
    return MOSAIC_SIZE


def require_possible_start(
    start: Start | int, sharing: MapSharing, has_known: bool
) -> None:
    """Raise a `ParameterError` if the user wants mosaics that are impossible.

    `sharing` says which classes share maps, `has_known` whether pixels are known.
    """
    if start in ("auto", "noise"):
        return
    reason = _reason_against_mosaics(sharing, has_known)
    if not reason:
        return
    hint = "use start='noise'"
    if sharing == "shared":
        hint += ", or amplifier=inf"
    raise ParameterError("start", start, reason, hint)


def _reason_against_mosaics(sharing: MapSharing, has_known: bool) -> str:
    """Why particles cannot start as mosaics; empty if they can."""
    if has_known:
        return "does not work with known pixels"
    if sharing == "shared":
        # A map of all classes would not know from which of them a particle started.
        return "does not work if classes share maps"
    return ""


def resolve_steps_per_stage(
    parameters: PictureParameters,
    sharing: MapSharing,
    mosaic_size: int,
    device: torch.device,
) -> int:
    """Choose the number of steps of each stage.

    `sharing` says which classes share maps. Particles start as mosaics of `mosaic_size`
    pictures; 0 is noise.
    """
    if parameters.steps_per_stage is not None:
        return int(parameters.steps_per_stage)
    n_steps = STEPS_OF_QUALITY[parameters.quality]
    if parameters.quality == "draft" and device.type == "cpu":
        n_steps = CPU_DRAFT_STEPS
    if sharing != "separate" and mosaic_size == 0:
        n_steps *= NOISE_TO_ALL_CLASSES_FACTOR
    return n_steps


def resolve_n_picture_particles(
    parameters: PictureParameters,
    n_pictures: int,
    n_classes: int,
    n_ranks: int,
    device: torch.device,
) -> int:
    """Choose M, the number of particles, for `n_pictures` with their mirror images.

    By default there are fewer on a CPU, where particles take long.
    """
    n_particles = resolve_n_particles(
        parameters.n_particles,
        PARTICLES_PER_PICTURE * _n_distinct(parameters, n_pictures),
        n_classes,
        n_ranks,
    )
    is_default = parameters.n_particles is None and parameters.preset is None
    if device.type != "cpu" or not is_default:
        return n_particles
    limit = CPU_MAX_PARTICLES[parameters.quality]
    if parameters.steps_per_stage is not None:
        limit = CPU_MAX_PARTICLES_OF_GIVEN_STEPS
    return min(n_particles, max(n_classes, limit))


def _n_distinct(parameters: PictureParameters, n_pictures: int) -> int:
    """How many of the pictures of a fit are no mirror images."""
    if parameters.mirror:
        return n_pictures // 2
    return n_pictures


def resolve_amplifier(
    amplifier: Literal["auto"] | float,
    transport: TransportName | Transport,
    n_particles: int,
    n_pictures: int,
    n_classes: int,
) -> float:
    """Choose ξ for particles and pictures of `n_classes` classes; 0 without classes.

    Raises a `ParameterError` for ∞ without histograms, which it needs.
    """
    if n_classes == 0:
        return 0.0
    has_histograms = _has_histograms(transport, n_particles + n_pictures)
    if amplifier == "auto":
        if has_histograms and n_pictures >= MIN_PICTURES_PER_CLASS * n_classes:
            return math.inf
        return SHARED_AMPLIFIER
    xi = float(amplifier)
    if resolve_map_sharing(xi, n_classes) == "separate" and not has_histograms:
        raise _no_histograms_error(
            "amplifier", xi, n_particles, n_pictures, "a finite amplifier such as 10"
        )
    return xi


def resolve_n_clusters(
    parameters: PictureParameters,
    n_particles: int,
    n_pictures: int,
    shape: tuple[int, int, int],
    device: torch.device,
) -> int:
    """Choose the number of clusters of unlabeled pictures; 1 means no clustering.

    Raises a `ParameterError` for more clusters than are possible.

    Parameters
    ----------
    parameters : the parameters of the estimator
    n_particles : the number of particles that the user gets
    n_pictures : the number of pictures, including mirror images
    shape : (c, h, w) of a picture
    device : the device of the fit
    """
    has_histograms = _has_histograms(parameters.transport, n_particles + n_pictures)
    if parameters.n_clusters == "auto":
        if not has_histograms:
            return 1
        wanted = _auto_n_clusters(parameters, n_pictures, shape, device)
        return max(1, min(wanted, n_particles))
    n_clusters = int(parameters.n_clusters)
    possible = min(n_particles, n_pictures)
    require(
        n_clusters <= possible,
        "n_clusters",
        n_clusters,
        f"at most {possible}: each cluster needs a particle and a picture",
    )
    if n_clusters > 1 and not has_histograms:
        raise _no_histograms_error(
            "n_clusters", n_clusters, n_particles, n_pictures, "n_clusters=1"
        )
    return n_clusters


def _auto_n_clusters(
    parameters: PictureParameters,
    n_pictures: int,
    shape: tuple[int, int, int],
    device: torch.device,
) -> int:
    """The most clusters of pictures (c, h, w) that are not copied; may be 0."""
    n_distinct = _n_distinct(parameters, n_pictures)
    channels = shape[0]
    if channels > 1:
        return min(MAX_COLOR_CLUSTERS, n_distinct // MIN_COLOR_PICTURES_PER_CLUSTER)
    # Clusters have separate maps: where their particles start makes no difference.
    n_steps = resolve_steps_per_stage(
        parameters, "separate", mosaic_size=0, device=device
    )
    return _max_gray_clusters(n_distinct, shape, n_steps)


def _max_gray_clusters(
    n_pictures: int, shape: tuple[int, int, int], n_steps: int
) -> int:
    """The most clusters of different gray pictures that are not copied; may be 0."""
    values_per_cluster = CLUSTER_VALUES_PER_ROOT_STEP * math.sqrt(n_steps)
    pictures_per_cluster = max(
        MIN_GRAY_PICTURES_PER_CLUSTER, math.ceil(values_per_cluster / math.prod(shape))
    )
    return min(MAX_GRAY_CLUSTERS, n_pictures // pictures_per_cluster)


def _no_histograms_error(
    parameter: str, value: float, n_particles: int, n_pictures: int, alternative: str
) -> ParameterError:
    """The error of a value that needs histograms, where particles would be sorted."""
    return ParameterError(
        parameter,
        value,
        f"needs histograms, but this transport sorts {n_particles} particles and "
        f"{n_pictures} pictures",
        f"use {alternative}, or transport='histogram'",
    )


def resolve_picture_transport(
    transport: TransportName | Transport,
    sharing: MapSharing,
    n_points: int,
    n_ranks: int = 1,
) -> Transport:
    """Choose the transport of a fit of `n_points` particles and pictures together.

    It is what the user gives, or `engine.transports.resolve_transport` with the bins of
    pictures. `sharing` says which classes share maps.
    """
    n_bins = N_BINS
    if sharing == "shared":
        n_bins = N_BINS_OF_SHARED_MAPS
    return resolve_transport(
        transport,
        n_points,
        n_ranks,
        HistogramTransport(n_bins, MAX_POINTS_PER_STEP),
        AutoTransport(n_bins=n_bins, batch_size=MAX_POINTS_PER_STEP),
    )


def _has_histograms(transport: TransportName | Transport, n_points: int) -> bool:
    """Whether the transport of `n_points` particles and pictures has histograms."""
    chosen = resolve_picture_transport(transport, "separate", n_points)
    return isinstance(chosen, HistogramTransport)


def resolve_n_picture_knots(
    n_knots: Literal["auto"] | int,
    n_particles: int,
    sharing: MapSharing,
    n_classes: int,
) -> int:
    """Choose how many knots a model keeps of a map.

    The flow has particles of `n_classes` classes, and `sharing` says which of these
    share maps.
    """
    if n_knots != "auto":
        return int(n_knots)
    if sharing == "shared":
        return MIN_PICTURE_MAP_KNOTS
    particles_per_map = float(n_particles)
    if sharing == "separate":
        particles_per_map = n_particles / n_classes
    wanted = round(particles_per_map / PARTICLES_PER_KNOT)
    return min(MAX_PICTURE_MAP_KNOTS, max(MIN_PICTURE_MAP_KNOTS, wanted))


def resolve_patch_basis(
    patch_basis: Literal["auto"] | PatchBasis,
    pictures: DevicePictures,
    ranks: Communicator,
) -> PatchBasis:
    """Choose the basis of the directions of tiles.

    "auto" takes pixels for drawings, which have few gray pixels, else cosines.
    """
    if patch_basis != "auto":
        return patch_basis
    stride = max(1, pictures.n_pictures // MAX_PICTURES_FOR_BASIS)
    subset = pictures.pixel_points[:, pictures.indices % stride == 0].float()
    brightness = subset / pictures.layout.max_pixel_value
    darkest_gray, lightest_gray = GRAY_RANGE
    is_gray = (brightness > darkest_gray) & (brightness < lightest_gray)
    counts = torch.tensor([int(is_gray.sum()), subset.numel()])
    n_gray, n_pixels = ranks.sum_(counts).tolist()
    if n_gray / n_pixels < MAX_GRAY_SHARE_OF_DRAWINGS:
        return "pixels"
    return "cosines"
