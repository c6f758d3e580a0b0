"""What a fit of pictures costs: estimates of memory and time, from its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sliceflow.engine import frames
from sliceflow.engine.compression import Compression
from sliceflow.engine.transports import HistogramTransport
from sliceflow.estimators.pictures.choices import MAX_SINGLE_PIXEL_BINS
from sliceflow.estimators.pictures.tiles import Tiles

if TYPE_CHECKING:
    from sliceflow.estimators.pictures.plan import PicturePlan

# Bytes of a bin: the counts of particles and of pictures, the value of the map, and the
# search for bends of the map.
BYTES_PER_BIN = 48
# Nanoseconds for each value that a step projects and moves, and for each bin of its
# maps, on one thread of a CPU (that of `devices.cpu_slowness`, where MNIST was fitted
# by classes with quality "draft") or on one GPU: rough, since tiles differ in size.
# Sorting took seven times as long as counting on an x86-64 CPU.
NANOSECONDS_PER_VALUE = {"cpu": 12.0, "cuda": 0.02}
NANOSECONDS_PER_SORTED_VALUE = {"cpu": 80.0, "cuda": 0.2}
NANOSECONDS_PER_BIN = {"cpu": 75.0, "cuda": 0.0}


def fit_bytes(plan: PicturePlan) -> int:
    """Memory of a fit on each rank: its clouds, the work of a step, and the model."""
    return _cloud_bytes(plan) + _step_bytes(plan) + _model_bytes(plan)


def _cloud_bytes(plan: PicturePlan) -> int:
    """Memory of the pictures and particles of a rank.

    These are four copies of the particles and three of the pictures, in float32, and
    the pixels.
    """
    bytes_per_particle = 4 * 4 * plan.layout.dimension
    bytes_per_picture = (3 * 4 + _pixel_bytes(plan)) * plan.layout.dimension
    return (
        bytes_per_particle * plan.n_moved_per_rank
        + bytes_per_picture * plan.n_pictures_per_rank
    )


def _step_bytes(plan: PicturePlan) -> int:
    """Memory of the projections, the histograms and the frame of a step."""
    n_particles = _n_points_of_step(plan, plan.n_moved_per_rank)
    n_pictures = _n_points_of_step(plan, plan.n_pictures_per_rank)
    n_bins = 0
    if isinstance(plan.transport, HistogramTransport):
        n_bins = plan.transport.n_bins
        if plan.layout.n_pixel_values is not None:
            n_bins = max(n_bins, MAX_SINGLE_PIXEL_BINS)
    n_classes = max(1, plan.n_separate_classes)
    projection_bytes = 4 * (n_particles + n_pictures)
    histogram_bytes = BYTES_PER_BIN * n_bins * n_classes
    direction_bytes = projection_bytes + histogram_bytes
    return max(max_directions_per_stage(plan)) * direction_bytes + frame_bytes(plan)


def _model_bytes(plan: PicturePlan) -> int:
    """Memory of the maps that the model keeps, and of its pictures."""
    nbytes = 0
    if plan.n_knots:
        compression = Compression(
            plan.n_knots,
            max_displacement=1.0,  # it is known; how large it is changes no bytes
            shared_by_conditions=plan.map_sharing == "shared",
        )
        n_bins = None
        if isinstance(plan.transport, HistogramTransport):
            n_bins = plan.transport.n_bins
        n_maps = _n_maps(plan) * max(1, plan.n_separate_classes)
        nbytes = n_maps * compression.map_bytes(n_bins)
    if plan.mosaic_size:  # every rank has all pictures
        nbytes += _pixel_bytes(plan) * plan.layout.dimension * plan.n_pictures
    return nbytes


def _pixel_bytes(plan: PicturePlan) -> int:
    """Memory of one value of a picture as it is stored."""
    if plan.layout.n_pixel_values is None:
        return 4
    return 1


def fit_seconds(plan: PicturePlan) -> float:
    """About how long a fit takes on its device."""
    # All particles are moved; the particles of the batch are also projected before.
    n_points = (
        plan.n_moved_particles
        + _n_points_of_step(plan, plan.n_moved_particles)
        + _n_points_of_step(plan, plan.n_pictures)
    )
    n_values = _n_maps(plan) * n_points
    if not isinstance(plan.transport, HistogramTransport):
        return plan.seconds_for(n_values, NANOSECONDS_PER_SORTED_VALUE)
    n_maps = _n_maps(plan) * max(1, plan.n_separate_classes)
    seconds_of_values = plan.seconds_for(n_values, NANOSECONDS_PER_VALUE)
    n_bins = n_maps * plan.transport.n_bins
    return seconds_of_values + plan.seconds_for(n_bins, NANOSECONDS_PER_BIN)


def frame_bytes(plan: PicturePlan) -> int:
    """Memory to draw the directions of a step."""
    if plan.patch_basis == "random":
        return 16 * plan.n_directions * plan.layout.dimension
    largest_tile = max(
        min(stage.patch, stage.height) * min(stage.patch, stage.width)
        for stage in plan.picture_stages
    )
    n_tile_values = plan.layout.shape[0] * largest_tile
    return frames.frame_bytes(frames.Orthogonal(), n_tile_values, 0, 4)


def max_directions_per_stage(plan: PicturePlan) -> list[int]:
    """The most directions of a step, for each stage."""
    if plan.patch_basis == "random":
        return [plan.n_directions] * len(plan.picture_stages)
    c = plan.layout.shape[0]
    directions = []
    for stage in plan.picture_stages:
        tiles = Tiles(c, stage.height, stage.width, stage.patch)
        directions.append(tiles.max_directions(c * stage.height * stage.width))
    return directions


def _n_maps(plan: PicturePlan) -> int:
    """The most maps that all steps have together, for one class."""
    n_maps = 0
    for n_directions, stage in zip(
        max_directions_per_stage(plan), plan.picture_stages, strict=True
    ):
        n_maps += n_directions * stage.n_steps
    return n_maps


def _n_points_of_step(plan: PicturePlan, n: int) -> int:
    """How many of n particles or pictures a step uses to fit its maps."""
    if plan.batch_size is None:
        return n
    return min(n, plan.batch_size)
