"""The kernels for NVIDIA GPUs, in Triton.

Importing this needs Triton, and a GPU or Triton's interpreter.
"""

from sliceflow.kernels.triton.bends import at_bends, through_knots
from sliceflow.kernels.triton.histograms import compose, count, histogram, shrink
from sliceflow.kernels.triton.random import philox
from sliceflow.kernels.triton.tiles import lanes, move_tiles, project_tiles
from sliceflow.kernels.triton.values import (
    add_class_offsets,
    displace_classes,
    displace_grid,
    value_range,
)

__all__ = [
    "add_class_offsets",
    "at_bends",
    "compose",
    "count",
    "displace_classes",
    "displace_grid",
    "histogram",
    "lanes",
    "move_tiles",
    "philox",
    "project_tiles",
    "shrink",
    "through_knots",
    "value_range",
]
