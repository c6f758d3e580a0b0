"""Checks of the steps in a model file: their order, and how far they move particles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from sliceflow.engine.encoded_y import ContinuousY, EncodedY
from sliceflow.engine.flow import FlowSpec
from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.model_steps import CompressedMaps, ModelStep
from sliceflow.engine.smooth_maps import SmoothMaps

# Above all normal numbers of `Seed.normal`: 32 random bits give at most
# √(2·ln 2³³) = 6.8.
LARGEST_NORMAL = 8.0
# Above all components of a direction of the condition, which are Laplace numbers: 32
# random bits give at most 32·ln(2)/√2 = 15.7.
LARGEST_CONDITION_COMPONENT = 32.0


def check_steps(
    spec: FlowSpec,
    steps: Sequence[ModelStep],
    expected_n_maps: Callable[[ModelStep], int],
) -> None:
    """Raise a ValueError unless a model of the flow can have these steps.

    The steps must be the first steps of every stage, in order. Each step must have as
    many maps as `expected_n_maps` says.
    """
    _check_order(spec, steps)
    for step in steps:
        n_maps = _n_maps(step.maps)
        n_expected = expected_n_maps(step)
        if n_maps != n_expected:
            raise ValueError(
                f"step {step.step_index} of stage {step.stage_index} has {n_maps} "
                f"maps but needs {n_expected}"
            )


def largest_coordinate(
    spec: FlowSpec, steps: Sequence[ModelStep], d: int, start_std: float = 1.0
) -> float:
    """A bound on the magnitude of all coordinates of particles (d, n) after the steps.

    A step moves a particle along every direction by at most twice the largest number in
    its maps, times the step size; and by noise if the flow has an entropy. `start_std`
    is the standard deviation of the coordinates at the start.
    """
    largest = LARGEST_NORMAL * start_std
    for step in steps:
        step_size = spec.stages[step.stage_index].step_size
        noise = math.sqrt(2 * spec.entropy * step_size * d)
        largest += (
            2 * step_size * _largest_value(step.maps) * d + LARGEST_NORMAL * noise
        )
    return largest


def check_finite_samples(
    spec: FlowSpec, largest: float, d: int, dtype: torch.dtype, y: EncodedY | None
) -> None:
    """Raise a ValueError if particles or their projections could overflow `dtype`.

    Parameters
    ----------
    spec : the flow
    largest : the bound that `largest_coordinate` gives
    d : the number of coordinates of a particle
    dtype : the dtype of particles
    y : the encoded conditions, if there are any
    """
    offset = _largest_offset(spec, y)
    limit = torch.finfo(dtype).max / 4
    # A comparison with NaN is False, so this refuses NaN as well.
    if not (d * largest < limit and offset < limit):
        raise ValueError(
            "its samples may not stay finite: maps, steps and conditions reach "
            f"{largest + offset:.1e}, and {dtype} ends at {limit:.1e}"
        )


def _check_order(spec: FlowSpec, steps: Sequence[ModelStep]) -> None:
    """Raise a ValueError unless these are the first steps of every stage, in order."""
    steps_done = [0] * len(spec.stages)
    last_stage = 0
    for step in steps:
        i = step.stage_index
        k = step.step_index
        is_stage = last_stage <= i < len(spec.stages)
        if not is_stage or k != steps_done[i] or k >= spec.stages[i].n_steps:
            raise ValueError(
                f"step {k} of stage {i} is out of order, or beyond the schedule"
            )
        last_stage = i
        steps_done[i] += 1


def _n_maps(step_maps: TransportMaps | CompressedMaps) -> int:
    """The number of one-dimensional maps of a step."""
    if isinstance(step_maps, CompressedMaps):
        return step_maps.n_maps
    return len(step_maps.values)


def _largest_value(step_maps: TransportMaps | CompressedMaps) -> float:
    """An upper bound of the magnitude of all numbers in the maps of a step."""
    if isinstance(step_maps, KnotMaps | SmoothMaps):
        tensors = [step_maps.knots, step_maps.values]
        largest = 0.0
    elif isinstance(step_maps, GridMaps):
        tensors = [step_maps.lo, step_maps.hi, step_maps.values]
        largest = 0.0
    else:
        tensors = [step_maps.lo, step_maps.hi]
        # Displacements are integers of 16 bits, times 2^exponent.
        largest = math.ldexp(1.0, step_maps.exponent + 15)
    for tensor in tensors:
        if tensor.numel():
            largest = max(largest, float(tensor.abs().amax()))
    return largest


def _largest_offset(spec: FlowSpec, y: EncodedY | None) -> float:
    """How far the condition can offset projections: 0 unless conditions share maps."""
    if not spec.shared_condition_dim or y is None:
        return 0.0
    if isinstance(y, ContinuousY):
        largest_y = float(y.values.abs().sum(1).amax())
    else:
        largest_y = 1.0
    return spec.amplifier * LARGEST_CONDITION_COMPONENT * largest_y
