"""All kernels in plain torch: slow, short, for any device.

They define and document what the fast kernels of `cpu` and `triton` must return.
Projections are tensors (h, n): one row per direction, one column per point. Positions
and masses are computed in float64. Results for float32 are the results for float64,
rounded once.

Some kernels take `starts`: the points are sorted by class, and class c has the points
from starts[c] to starts[c + 1] − 1. Each class then has its own row for each direction:
the results have C·h rows, and row c·h + j belongs to class c and direction j.
"""

from sliceflow.kernels.reference.compressed_maps import (
    compress_grid,
    expand_grid,
    flatten_tails,
)
from sliceflow.kernels.reference.distances import (
    add_class_offsets,
    keep_smallest,
    nearest_distance,
)
from sliceflow.kernels.reference.histograms import (
    bin_counts,
    compose_histograms,
    displace_grid,
    histogram,
    shrink,
    shrink_factors,
    value_range,
)
from sliceflow.kernels.reference.points import take_points
from sliceflow.kernels.reference.random import normal, philox, uniform
from sliceflow.kernels.reference.sorting import (
    argsort_rows,
    displace_knots,
    match_sorted,
    sort_rows,
)
from sliceflow.kernels.reference.tiles import (
    lift_tiles,
    move_tiles,
    padded_size,
    project_tiles,
)

__all__ = [  # every kernel
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
