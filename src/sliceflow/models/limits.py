"""Limits on the memory of a saved model and on how far it moves particles.

A few bytes of a file can stand for many in memory. So everything is counted before it
is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sliceflow.engine.compact import CompactMap, ModelStep
from sliceflow.engine.flow import Flow
from sliceflow.engine.transports import GridMap, KnotMap
from sliceflow.wording import format_bytes

# Memory that any file may take, however small: it must load on every machine.
BASE_MEMORY = 320_000_000
# The same for drawing one sample.
BASE_SAMPLE_MEMORY = 1 << 30
# Memory allowed in addition, in bytes for every byte of a file. Models of usual fits
# take 6 to 20, more if columns or pictures hardly vary; a file made to exhaust memory
# can claim ten thousands.
MEMORY_PER_FILE_BYTE = 64

# The largest normal number that 32 random bits can give is less.
LARGEST_NORMAL = 8.0
# The largest component of a direction of the condition.
LARGEST_CONDITION_COMPONENT = 32.0


class Allowance:
    """Counts the memory for the model of a file and for drawing one sample from it.

    Parameters
    ----------
    file_size : bytes of the file
    max_memory : bytes that are allowed; None follows from the size of the file
    """

    def __init__(self, file_size: int, max_memory: int | None = None) -> None:
        self.file_size = file_size
        self.max_memory = max_memory
        self.taken = 0

    def take(self, n_bytes: int) -> None:
        """Count bytes about to be allocated; a ValueError if they are too many."""
        self.taken += n_bytes
        self._check(self.taken, BASE_MEMORY, "its parts take")

    def check_sample(self, n_bytes: int) -> None:
        """Raise a ValueError if the model and `n_bytes` for a sample are too many."""
        wanted = self.taken + n_bytes
        self._check(wanted, BASE_SAMPLE_MEMORY, "drawing a sample of it takes")

    def _check(self, n_bytes: int, base: int, what: str) -> None:
        if self.max_memory is None:
            limit = base + MEMORY_PER_FILE_BYTE * self.file_size
            rule = f"a file of {format_bytes(self.file_size)} may take {format_bytes(limit)}"
        else:
            limit = self.max_memory
            rule = f"max_memory is {format_bytes(limit)}"
        if n_bytes > limit:
            hint = f"if you trust the file, load it with max_memory={n_bytes} or more"
            raise ValueError(
                f"{what} {format_bytes(n_bytes)} of memory, and {rule}; {hint}"
            )


def check_steps(
    flow: Flow,
    steps: Sequence[ModelStep],
    n_maps: Callable[[int, int], int],
    d: int,
    dtype: torch.dtype,
    codes: Tensor | None = None,
    start: float = 1.0,
) -> float:
    """The largest distance from 0 that a particle in d columns can reach by a model.

    A step moves a particle along every direction by at most twice the largest number in
    its maps, times the step size; and by noise if the flow has an entropy.

    Parameters
    ----------
    flow : the flow that the steps belong to
    steps : the steps of the model
    n_maps : the number of maps that the step k of the stage i must have, of (i, k)
    d : the number of columns
    dtype : the dtype of particles
    codes : the codes of conditions, (n, l) or (n,), if there are any
    start : the standard deviation of the columns at the start

    Raises
    ------
    ValueError
        Unless these are the first steps of every stage, in order, each with `n_maps`
        maps, and `dtype` can hold what they reach.
    """
    _check_order(flow, steps)
    reach = LARGEST_NORMAL * start
    for step in steps:
        step_maps = _n_maps(step.map)
        expected_maps = n_maps(step.stage, step.step)
        if step_maps != expected_maps:
            raise ValueError(
                f"step {step.step} of stage {step.stage} has {step_maps} maps "
                f"but needs {expected_maps}"
            )
        step_size = flow.stages[step.stage].step_size
        noise = math.sqrt(2 * flow.entropy * step_size * d)
        reach += 2 * step_size * _largest_value(step.map) * d + LARGEST_NORMAL * noise

    shift = _condition_shift(flow, codes)
    limit = torch.finfo(dtype).max / 4
    # Written so that NaN is refused, too.
    if not (d * reach < limit and shift < limit):
        raise ValueError(
            "its samples may not stay finite: maps, steps and conditions reach "
            f"{reach + shift:.1e}, and {dtype} ends at {limit:.1e}"
        )
    return reach


def _check_order(flow: Flow, steps: Sequence[ModelStep]) -> None:
    """Raise a ValueError unless these are the first steps of every stage, in order."""
    steps_done = [0] * len(flow.stages)
    last_stage = 0
    for step in steps:
        i = step.stage
        k = step.step
        is_known_stage = last_stage <= i < len(flow.stages)
        if not is_known_stage or k != steps_done[i] or k >= flow.stages[i].n_steps:
            raise ValueError(
                f"step {k} of stage {i} is out of order, or beyond the schedule"
            )
        last_stage = i
        steps_done[i] += 1


def _n_maps(table: KnotMap | GridMap | CompactMap) -> int:
    """The number of maps in a table."""
    if isinstance(table, CompactMap):
        return table.n_maps
    return len(table.values)


def _largest_value(table: KnotMap | GridMap | CompactMap) -> float:
    """An upper bound of the magnitude of all numbers in maps."""
    if isinstance(table, KnotMap):
        numbers = [table.knots, table.values]
        largest = 0.0
    elif isinstance(table, GridMap):
        numbers = [table.lo, table.hi, table.values]
        largest = 0.0
    else:
        numbers = [table.lo, table.hi]
        largest = math.ldexp(1.0, table.exponent + 15)  # levels have 16 bits
    for tensor in numbers:
        if tensor.numel():
            largest = max(largest, float(tensor.abs().amax()))
    return largest


def _condition_shift(flow: Flow, codes: Tensor | None) -> float:
    """How far the condition can shift projections, if conditions share steps."""
    if not flow.n_shared or codes is None:
        return 0.0
    if codes.dim() == 2:
        largest_code = float(codes.abs().sum(1).amax())
    else:
        largest_code = 1.0
    return flow.amplifier * LARGEST_CONDITION_COMPONENT * largest_code
