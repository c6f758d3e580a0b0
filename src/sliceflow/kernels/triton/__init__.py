"""The kernels for NVIDIA GPUs, in Triton.

Importing this needs Triton, and a GPU or Triton's interpreter.
"""

from sliceflow.kernels.triton.histograms import compose, count, histogram, shrink
from sliceflow.kernels.triton.random import philox
from sliceflow.kernels.triton.stored_maps import compress_map, expand_map
from sliceflow.kernels.triton.tiles import move_tiles, padded_size, project_tiles
from sliceflow.kernels.triton.values import (
    add_class_offsets,
    displace_grid,
    value_range,
)

__all__ = [
    "add_class_offsets",
    "compose",
    "compress_map",
    "count",
    "displace_grid",
    "expand_map",
    "histogram",
    "move_tiles",
    "padded_size",
    "philox",
    "project_tiles",
    "shrink",
    "value_range",
]
