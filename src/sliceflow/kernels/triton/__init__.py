"""The kernels for NVIDIA GPUs, in Triton.

Importing this needs Triton, and a GPU or Triton's interpreter.
"""

from sliceflow.kernels.reference import (
    argsort_rows,
    displace_knots,
    flatten_tails,
    keep_smallest,
    lift_tiles,
    match_sorted,
    nearest_distance,
    shrink_factors,
    sort_rows,
    take_points,
)
from sliceflow.kernels.triton.compressed_maps import compress_grid, expand_grid
from sliceflow.kernels.triton.histograms import (
    bin_counts,
    compose_histograms,
    histogram,
    shrink,
)
from sliceflow.kernels.triton.random import normal, philox, uniform
from sliceflow.kernels.triton.tiles import move_tiles, padded_size, project_tiles
from sliceflow.kernels.triton.values import (
    add_class_offsets,
    displace_grid,
    value_range,
)

__all__ = [  # every kernel; some are those of the reference
    "add_class_offsets",
    "argsort_rows",
    "bin_counts",
    "compose_histograms",
    "compress_grid",
    "displace_grid",
    "displace_knots",
    "expand_grid",
    "flatten_tails",
    "histogram",
    "keep_smallest",
    "lift_tiles",
    "match_sorted",
    "move_tiles",
    "nearest_distance",
    "normal",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "shrink_factors",
    "sort_rows",
    "take_points",
    "uniform",
    "value_range",
]
