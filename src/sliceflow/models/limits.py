"""Limits on the memory of a saved model and on how far it moves particles.

A few bytes of a file can stand for many in memory. So everything is counted before it is made.
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

_SMALL = 10_000_000  # bytes of a file that must load quickly, whatever is in it
_RATIO = (
    32  # bytes that a file may unpack to, as a multiple of its size; 6 to 18 are usual
)
_SAMPLE = 1 << 30  # bytes allowed for drawing a sample, for any file,
_SAMPLE_RATIO = 64  # and in addition this multiple of its size
_FARTHEST = 8.0  # the largest normal number that 32 random bits can give
_STEEPEST = 32.0  # the largest component of a direction of the condition


class Allowance:
    """The memory for the model of a file of `size` bytes and one sample: `most`, or None for a multiple."""

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size = size
        self.most = most
        self.taken = 0

    def take(self, count: int) -> None:
        """Count `count` bytes that are about to be allocated; a ValueError if they are too many."""
        self.taken += count
        usual = _RATIO * max(_SMALL, self.size)
        self._check(self.taken, usual, "its parts take")

    def for_sample(self, count: int) -> None:
        """Raise a ValueError if the model and `count` bytes for drawing a sample are too many."""
        usual = _SAMPLE + _SAMPLE_RATIO * self.size
        self._check(self.taken + count, usual, "drawing a sample of it takes")

    def _check(self, count: int, usual: int, what: str) -> None:
        if count <= (usual if self.most is None else self.most):
            return
        given = f"a file of {format_bytes(self.size)} may take {format_bytes(usual)}"
        given = (
            given if self.most is None else f"max_memory is {format_bytes(self.most)}"
        )
        advice = f"if you trust the file, load it with max_memory={count} or more"
        raise ValueError(
            f"{what} {format_bytes(count)} of memory, and {given}; {advice}"
        )


def check_steps(  # many: what a flow does with a model, and what moves
    flow: Flow,
    steps: Sequence[ModelStep],
    n_maps: Callable[[int, int], int],
    d: int,
    dtype: torch.dtype,
    codes: Tensor | None = None,
    start: float = 1.0,
) -> float:
    """The largest distance from 0 that a particle in d columns can reach by the steps of a model.

    Raises a ValueError unless these are the first steps of every stage, in order, with `n_maps` maps,
    and `dtype` can hold what they reach. A step moves a particle along every direction by at most twice
    the largest number in its maps. `start` is the deviation of the columns at the start.
    """
    done = [0] * len(flow.stages)
    last = 0
    reach = _FARTHEST * start
    most = torch.finfo(dtype).max / 4
    for step in steps:
        i = step.stage
        k = step.step
        if not last <= i < len(done) or k != done[i] or k >= flow.stages[i].n_steps:
            raise ValueError(
                f"step {k} of stage {i} is out of order, or beyond the schedule"
            )
        size = (
            step.map.n_maps
            if isinstance(step.map, CompactMap)
            else len(step.map.values)
        )
        if size != n_maps(i, k):
            raise ValueError(
                f"step {k} of stage {i} has {size} maps but needs {n_maps(i, k)}"
            )
        last = i
        done[i] = k + 1
        eta = flow.stages[i].step_size
        reach += 2 * eta * _farthest(step.map) * d + _FARTHEST * math.sqrt(
            2 * flow.entropy * eta * d
        )
    offset = 0.0
    if flow.n_shared and codes is not None:  # the condition shifts projections
        largest = float(codes.abs().sum(1).amax()) if codes.dim() == 2 else 1.0
        offset = flow.amplifier * _STEEPEST * largest
    if not (d * reach < most and offset < most):
        fact = f"maps, steps and conditions reach {reach + offset:.1e}, and {dtype} ends at {most:.1e}"
        raise ValueError(f"its samples may not stay finite: {fact}")
    return reach


def _farthest(table: KnotMap | GridMap | CompactMap) -> float:
    """An upper bound of the numbers in maps."""
    parts = [table.knots] if isinstance(table, KnotMap) else [table.lo, table.hi]
    most = 0.0
    if isinstance(table, CompactMap):
        most = math.ldexp(1.0, table.exponent + 15)
    else:
        parts.append(table.values)
    return max([most, *(float(part.abs().amax()) for part in parts if part.numel())])
