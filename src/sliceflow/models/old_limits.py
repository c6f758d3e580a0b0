"""Limits on the memory of a saved model and on how far it moves particles.

A few bytes of a file can stand for many in memory: maps are packed, frames are not in the file at all,
and a step with a text of ten bytes becomes several objects. So everything is counted before it is
unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.compact import ModelStep
from sliceflow.models.old_file import Fields
from sliceflow.models.tables import farthest

__all__ = ["Allowance", "check_reach", "grid_bytes", "model_bytes", "offset_of", "rotation_bytes"]

_SMALL = 10_000_000  # bytes of a file that must load quickly, whatever is in it
_UNPACKED = 100 << 20  # bytes of maps allowed in a small file,
_RATIO = 16  # and in a larger one, as a multiple of its size; about 6 is usual
_SAMPLE = 1 << 30  # bytes allowed for drawing a sample, for any file,
_SAMPLE_RATIO = 64  # and in addition this multiple of its size
_STEP = 4096  # bytes of the objects of a step, and of a stage
_FARTHEST = 8.0  # the largest normal number that 32 random bits can give
_STEEPEST = 32.0  # the largest component of a direction of the condition


@dataclass(frozen=True)
class Allowance:
    """The memory that the model of a file may take.

    Parameters
    ----------
    size : of the file, in bytes
    most : bytes for the model and for drawing one sample; None derives it from the size
    """

    size: int
    most: int | None = None

    def check(self, model: int, sample: int = 0) -> None:
        """Raise a ValueError for a model of `model` bytes that needs `sample` more to draw a sample."""
        own = _UNPACKED if self.size < _SMALL else _RATIO * self.size
        whole = _SAMPLE + _SAMPLE_RATIO * self.size
        if self.most is not None:
            own = whole = self.most
        if model <= own and model + sample <= whole:
            return
        what, limit = f"drawing a sample of it takes {_shown(model + sample)} of memory", whole
        if model > own:
            what, limit = f"its maps take {_shown(model)} of memory", own
        given = f"a file of {_shown(self.size)} may take {_shown(limit)}"
        if self.most is not None:
            given = f"max_memory is {_shown(self.most)}"
        raise ValueError(
            f"{what}, and {given}; if you trust the file, load it with max_memory={model + sample} "
            "or more"
        )


def model_bytes(header: Fields, allowed: Allowance) -> int:
    """Bytes of the maps, steps and stages of the text; a ValueError as soon as they are too many."""
    total = _STEP * len(header.rows("schedule"))
    allowed.check(total)
    for row in header.inners("schedule"):
        total += _STEP * len(row.rows("tables"))
        allowed.check(total)
        for group in row.inners("tables"):
            total += _STEP * len(group.rows("steps"))
            if group.text("kind") == "compact":
                total += _compact_bytes(group)
            allowed.check(total)
    return total


def _compact_bytes(group: Fields) -> int:
    """Bytes of compact maps: those that move nothing take one each."""
    n_maps, knots = sum(group.wholes("directions", 1)), group.whole("knots", 0)
    moving = min(n_maps, group.whole("moving", 0)) if "moving" in group.value else n_maps
    return n_maps + (26 + 6 * (knots // max(1, n_maps))) * moving


def check_reach(
    stages: Sequence[tuple[float, Sequence[ModelStep]]],
    d: int,
    dtype: torch.dtype,
    *,
    start: float = 1.0,
    entropy: float = 0.0,
    offset: float = 0.0,
) -> float:
    """The largest distance from 0 that a particle can reach; a ValueError if `dtype` cannot hold it.

    A step moves a particle along every direction by at most twice the largest number in its maps. The
    bound is far above what particles do, and far below the largest number.

    Parameters
    ----------
    stages : step size and steps of each
    d : dimension of the particles
    start : standard deviation of the particles at the start
    entropy : λ
    offset : the largest offset of a projection by the condition
    """
    reach, most = _FARTHEST * start, torch.finfo(dtype).max / 4
    for size, steps in stages:
        noise = _FARTHEST * math.sqrt(2 * entropy * size * d)
        reach += len(steps) * (2 * size * farthest(steps) * d + noise)
    if not (d * reach < most and offset < most):
        raise ValueError(
            f"its samples may not stay finite: maps, steps and conditions reach {reach + offset:.1e}, "
            f"and {str(dtype).removeprefix('torch.')} ends at {most:.1e}"
        )
    return reach


def offset_of(amplifier: float, codes: Tensor | None) -> float:
    """The largest offset of a projection by a condition with these codes."""
    if codes is None or math.isinf(amplifier):
        return 0.0
    return amplifier * _STEEPEST * (float(codes.abs().sum(1).amax()) if codes.dim() == 2 else 1.0)


def rotation_bytes(d: int) -> int:
    """Bytes of the pool of rotations, of making it, and of a block of rotations (`frames`)."""
    steps = max(1, min(32, (1 << 22) // (d * d)))
    return 8 * d * d * (24 + 4 * steps)


def grid_bytes(row: Fields) -> int:
    """Bytes of the grid of the largest step of compact maps."""
    return max(
        (
            24 * max(group.wholes("directions", 1), default=0) * (group.whole("bins", 1) + 1)
            for group in row.inners("tables")
            if group.text("kind") == "compact"
        ),
        default=0,
    )


def _shown(count: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
