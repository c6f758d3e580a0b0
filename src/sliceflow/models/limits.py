"""Limits on the memory of a saved model and on how far it moves particles.

A few bytes of a file can stand for many in memory. So everything is counted before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sliceflow.engine.compact import CompactTable
from sliceflow.models.plan import in_bytes

_SMALL = 10_000_000  # bytes of a file that must load quickly, whatever is in it
_UNPACKED = 100 << 20  # bytes that a small file may unpack to,
_RATIO = 16  # and a larger one, as a multiple of its size; about 6 is usual
_SAMPLE = 1 << 30  # bytes allowed for drawing a sample, for any file,
_SAMPLE_RATIO = 64  # and in addition this multiple of its size
_FARTHEST = 8.0  # the largest normal number that 32 random bits can give
_STEEPEST = 32.0  # the largest component of a direction of the condition


class Allowance:
    """The memory for the model of a file of `size` bytes and one sample: `most`, or None for a multiple."""

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size, self.most, self.taken = size, most, 0

    def take(self, count: int) -> None:
        """Count `count` bytes that are about to be allocated; a ValueError if they are too many."""
        self.taken += count
        usual = _UNPACKED if self.size < _SMALL else _RATIO * self.size
        self._check(self.taken, usual, "its parts take")

    def for_sample(self, count: int) -> None:
        """Raise a ValueError if the model and `count` bytes for drawing a sample are too many."""
        usual = _SAMPLE + _SAMPLE_RATIO * self.size
        self._check(self.taken + count, usual, "drawing a sample of it takes")

    def _check(self, count: int, usual: int, what: str) -> None:
        if count <= (usual if self.most is None else self.most):
            return
        given = f"a file of {in_bytes(self.size)} may take {in_bytes(usual)}"
        given = given if self.most is None else f"max_memory is {in_bytes(self.most)}"
        advice = f"if you trust the file, load it with max_memory={count} or more"
        raise ValueError(f"{what} {in_bytes(count)} of memory, and {given}; {advice}")


def check_reach(
    stages: Sequence[tuple[float, Sequence[Any]]],
    d: int,
    dtype: torch.dtype,
    *,
    start: float = 1.0,
    entropy: float = 0.0,
    offset: float = 0.0,
) -> float:
    """The largest distance from 0 that a particle can reach; a ValueError if `dtype` cannot hold it.

    A step moves a particle along every direction by at most twice the largest number in its maps.
    `stages` has step sizes and steps, `start` is the deviation of the d columns at the start, `entropy`
    is λ.
    """
    reach, most = _FARTHEST * start, torch.finfo(dtype).max / 4
    for size, steps in stages:
        noise = _FARTHEST * math.sqrt(2 * entropy * size * d)
        reach += len(steps) * (2 * size * _farthest(steps) * d + noise)
    if not (d * reach < most and offset < most):
        fact = f"maps, steps and conditions reach {reach + offset:.1e}, and {dtype} ends at {most:.1e}"
        raise ValueError(f"its samples may not stay finite: {fact}")
    return reach


def by_stage(stages: Sequence[Any], steps: Sequence[Any]) -> list[tuple[float, list[Any]]]:
    """Step size and model steps of each stage, for `check_reach`."""
    return [(s.step_size, [step for step in steps if step.stage == i]) for i, s in enumerate(stages)]


def _farthest(steps: Iterable[Any]) -> float:
    """An upper bound of the numbers in the maps of some steps."""
    most = 0.0
    for table in (step.table for step in steps):
        parts = [table.lo, table.hi] if hasattr(table, "lo") else [table.knots]
        if isinstance(table, CompactTable):
            most = max(most, math.ldexp(1.0, table.exponent + 15))
        else:
            parts.append(table.values)
        most = max([most, *(float(part.abs().amax()) for part in parts if part.numel())])
    return most


def offset_of(amplifier: float, codes: Tensor | None) -> float:
    """The largest offset of a projection by a condition with these codes."""
    if codes is None or math.isinf(amplifier):
        return 0.0
    return amplifier * _STEEPEST * (float(codes.abs().sum(1).amax()) if codes.dim() == 2 else 1.0)


def grid_bytes(steps: Iterable[Any]) -> int:
    """Bytes of the grid of the largest step of compact maps."""
    compact = [step.table for step in steps if isinstance(step.table, CompactTable)]
    return max((24 * table.n_maps * (table.n_bins + 1) for table in compact), default=0)
