"""The kernels for NVIDIA GPUs, in Triton.

Importing this needs Triton, and a GPU or Triton's interpreter.
"""

from sliceflow.kernels.triton.compressed_maps import compress_grid, expand_grid
from sliceflow.kernels.triton.histograms import (
    bin_counts,
    compose_histograms,
    histogram,
    shrink,
)
from sliceflow.kernels.triton.random import philox
from sliceflow.kernels.triton.tiles import move_tiles, padded_size, project_tiles
from sliceflow.kernels.triton.values import (
    add_class_offsets,
    displace_grid,
    value_range,
)

__all__ = [
    "add_class_offsets",
    "bin_counts",
    "compose_histograms",
    "compress_grid",
    "displace_grid",
    "expand_grid",
    "histogram",
    "move_tiles",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "value_range",
]
