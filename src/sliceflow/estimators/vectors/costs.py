"""What a fit of vectors costs: estimates of memory and time, from its plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sliceflow.engine.compression import MAX_JUMPS
from sliceflow.engine.frames import FrameKind, frame_bytes
from sliceflow.engine.transports import HistogramTransport

if TYPE_CHECKING:
    from sliceflow.estimators.vectors.plan import VectorPlan

# Bytes that a step needs for each bin of its histograms: the counts of particles and of
# data, the values of the map, and the work of computing them.
BYTES_PER_BIN = 72
# Nanoseconds for each projected value of a step, on one thread of a CPU or on one GPU:
# rough, since they depend on the machine.
NANOSECONDS_PER_VALUE = {"cpu": 60.0, "cuda": 1.0}
# The paper's interpolation looks values up in both sorted samples, which took 2 to 2.5
# times as long on an x86-64 CPU.
NANOSECONDS_PER_VALUE_OF_PAPER = {"cpu": 140.0, "cuda": 2.0}
# In more columns, projecting costs more than sorting or counting.
COLUMNS_OF_CHEAP_PROJECTION = 100
# The time that a finished map takes to move a value, as a share of the time that a step
# takes for it, which also sorts or counts the value. Finished maps took 7 to 34 ns in 2
# to 200 columns, on one thread of an x86-64 CPU; .4 stands for 24 ns.
COST_OF_REPLAYED_VALUE = 0.4


def max_directions_of_fit(kind: FrameKind, d: int) -> int:
    """The most directions of a step in d columns: of this kind of frame, or d axes."""
    return max(kind.max_directions(d), d)


def fit_bytes(plan: VectorPlan, n: int, m: int) -> int:
    """Peak memory of a fit on a rank with n rows and m particles of the flow.

    It holds the points, the maps of the model, and the memory for the largest of three
    pieces of work: drawing smoothed data, one step, or placing the particles at the
    start.
    """
    d = plan.n_columns
    itemsize = plan.torch_dtype.itemsize
    n_data = n * plan.draws_per_row
    m_fresh = math.ceil(plan.n_fresh_particles / plan.n_ranks)
    point_bytes = itemsize * d * (m + m_fresh + n_data)
    smoothing_bytes = 0
    if plan.bandwidth != 0:
        draw_bytes = 4 * 8 * d * plan.n_rows * plan.draws_per_row
        smoothing_bytes = draw_bytes + 8 * plan.options.n_neighbors * plan.n_rows
    start_bytes = (16 + itemsize) * d * m
    work_bytes = max(step_bytes(plan, n_data, m, m_fresh), smoothing_bytes, start_bytes)
    return point_bytes + model_bytes(plan, m) + work_bytes


def step_bytes(plan: VectorPlan, n_data: int, m: int, m_fresh: int) -> int:
    """Memory that the largest step works with, a step of the flow or an axis step.

    A step that sorts projections needs their order, and knots, values and thinning of
    the maps. Any other step counts projections in bins.
    """
    d = plan.n_columns
    itemsize = plan.torch_dtype.itemsize
    bytes_per_sorted = 16 + 8 * itemsize
    bytes_per_counted = 3 * itemsize

    h = max_directions_of_fit(plan.frame_kind, d)
    n_projected = m + n_data
    if plan.batch_size is not None:
        n_projected = min(m, plan.batch_size) + min(n_data, plan.batch_size)
    flow_bytes = h * bytes_per_sorted * n_projected
    if isinstance(plan.transport, HistogramTransport):
        n_bins = plan.transport.n_bins * max(1, plan.n_separate_classes)
        flow_bytes = h * (bytes_per_counted * n_projected + BYTES_PER_BIN * n_bins)

    axis_bytes = 0
    if m_fresh:
        # In axis steps one process sorts the columns, but several ranks count in bins.
        bytes_per_value = bytes_per_sorted if plan.n_ranks == 1 else bytes_per_counted
        axis_bytes = bytes_per_value * d * (n_data + m_fresh)
    drawn_bytes = 0
    if plan.n_steps:
        drawn_bytes = frame_bytes(plan.frame_kind, d, plan.condition_dim, itemsize)
    return max(flow_bytes, axis_bytes) + drawn_bytes


def model_bytes(plan: VectorPlan, m: int) -> int:
    """Memory of the maps of a model that is fitted to m particles."""
    max_knots = m
    if isinstance(plan.transport, HistogramTransport):
        max_knots = min(m, plan.transport.n_bins)
    h = max_directions_of_fit(plan.frame_kind, plan.n_columns)
    n_flow_knots = min(plan.n_flow_knots, max_knots) * h * plan.n_steps
    axis_knots = min(plan.options.n_knots + 3 * MAX_JUMPS, m)
    n_axis_knots = axis_knots * plan.n_columns * plan.options.n_axis_steps
    n_knots = (n_flow_knots + n_axis_knots) * max(1, plan.n_separate_classes)
    return 2 * plan.torch_dtype.itemsize * n_knots  # knots and their values


def n_projected_values(plan: VectorPlan) -> int:
    """The number of projected values of all steps of all ranks.

    A value that costs less than a value in a step of the flow counts as a part of one.
    After the flow, its maps move fresh particles. Then the kept particles and the fresh
    particles each have axis steps.
    """
    n_data = plan.n_rows * plan.draws_per_row
    n_projected = plan.n_moved_particles + n_data
    if plan.batch_size is not None:
        n_projected = min(plan.n_moved_particles, plan.batch_size)
        n_projected += min(n_data, plan.batch_size)
    n_directions = max_directions_of_fit(plan.frame_kind, plan.n_columns)
    n_values = n_directions * plan.n_steps * n_projected
    if plan.n_fresh_particles:
        n_replayed = n_directions * plan.n_steps * plan.n_fresh_particles
        n_axis_points = plan.n_particles + plan.n_fresh_particles + 2 * n_data
        n_axis_values = plan.n_columns * plan.options.n_axis_steps * n_axis_points
        n_values += round(COST_OF_REPLAYED_VALUE * n_replayed) + n_axis_values
    return n_values * max(1, plan.n_columns // COLUMNS_OF_CHEAP_PROJECTION)
