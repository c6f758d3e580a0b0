"""What a saved model will cost, and how far it can move: a file that asks for too much is refused.

A few bytes of a file can stand for many in memory. Maps are packed, frames are not in the file at all,
and a step whose text is ten bytes is some objects. So all of it is counted before it is unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sliceflow.engine.compact import Step
from sliceflow.storage.file import Fields
from sliceflow.storage.tables import farthest

if TYPE_CHECKING:
    pass

__all__ = ["Allowance", "check_reach", "grid_bytes", "model_bytes", "offset_of", "rotation_bytes"]

_SMALL = 10_000_000  # bytes of a file that must not take long, whatever is in it
_UNPACKED = 100 << 20  # bytes of maps that a small file may have,
_RATIO = 16  # and how many times its size those of a larger one may; some 6 are usual
_SAMPLE = 1 << 30  # bytes for drawing a sample, of any file,
_SAMPLE_RATIO = 64  # and how many times its size more
_STEP = 4096  # bytes of a step's objects, and of a stage's
_FARTHEST = 8.0  # that a normal number of `rng` can be: they are made of 32 bits
_STEEPEST = 32.0  # that a direction of the condition can be


@dataclass(frozen=True)
class Allowance:
    """What the model of a file may take in memory.

    Parameters
    ----------
    size : of the file, in bytes
    most : bytes for the model and the drawing of one sample; None judges by the size
    """

    size: int
    most: int | None = None

    def check(self, model: int, sample: int = 0) -> None:
        """Refuse a model of so many bytes, which takes so many more to draw one sample."""
        own = _UNPACKED if self.size < _SMALL else _RATIO * self.size
        whole = _SAMPLE + _SAMPLE_RATIO * self.size
        if self.most is not None:
            own = whole = self.most
        if model <= own and model + sample <= whole:
            return
        what = (
            f"its maps take {_shown(model)} of memory"
            if model > own
            else (f"drawing a sample of it takes {_shown(model + sample)} of memory")
        )
        given = (
            f"max_memory is {_shown(self.most)}"
            if self.most is not None
            else (f"a file of {_shown(self.size)} may take {_shown(own if model > own else whole)}")
        )
        raise ValueError(
            f"{what}, and {given}; if you trust the file, load it with max_memory={model + sample} "
            "or more"
        )


def model_bytes(header: Fields, allowed: Allowance) -> int:
    """What the maps, steps and stages of the text will take; refused as soon as that is too much."""
    total = _STEP * len(header.rows("schedule"))
    allowed.check(total)
    for row in header.inners("schedule"):
        total += _STEP * len(row.rows("tables"))
        allowed.check(total)
        for group in row.inners("tables"):
            total += _STEP * len(group.rows("steps"))
            if group.text("kind") == "compact":
                total += 18 * sum(group.wholes("directions", 1)) + 6 * group.whole("knots", 0)
            allowed.check(total)
    return total


def check_reach(
    stages: Sequence[tuple[float, Sequence[Step]]],
    d: int,
    dtype: torch.dtype,
    *,
    start: float = 1.0,
    entropy: float = 0.0,
    offset: float = 0.0,
) -> float:
    """How far from 0 a particle can come at most; refused if numbers of type `dtype` end before that.

    A step moves it along every direction by no more than the largest number in its maps, twice. This is
    far more than particles do, and far less than there are numbers.

    Parameters
    ----------
    stages : step size and steps of each
    d : dimension of the particles
    start : which particles start at, times normal numbers
    entropy : λ
    offset : the largest that the condition adds to a projection
    """
    reach, most = _FARTHEST * start, torch.finfo(dtype).max / 4
    for size, steps in stages:
        noise = _FARTHEST * math.sqrt(2 * entropy * size * d)
        reach += len(steps) * (2 * size * farthest(steps) * d + noise)
    if not (d * reach < most and offset < most):
        raise ValueError(
            f"its samples may not stay finite: maps, steps and conditions reach {reach + offset:.1e}, "
            f"and {str(dtype).removeprefix('torch.')} has room for {most:.1e}"
        )
    return reach


def offset_of(amplifier: float, codes: Tensor | None) -> float:
    """The largest that a condition of these codes adds to a projection."""
    if codes is None or math.isinf(amplifier):
        return 0.0
    return amplifier * _STEEPEST * (float(codes.abs().sum(1).amax()) if codes.dim() == 2 else 1.0)


def rotation_bytes(d: int) -> int:
    """The pool of rotations, what it is made from, and a block of those made from it (`frames`)."""
    steps = max(1, min(32, (1 << 22) // (d * d)))
    return 8 * d * d * (24 + 4 * steps)


def grid_bytes(row: Fields) -> int:
    """The largest step of compact maps as a grid."""
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
