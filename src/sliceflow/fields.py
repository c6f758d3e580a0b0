"""Annotations of saved dataclasses: what a field may hold. `models.codec` writes and checks them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Array:
    """What an array or tensor must be: ``Annotated[Tensor, Array("h k", torch.float32)]``."""

    dims: str  # names or sizes of the dimensions; a name has one size within one object
    dtype: (
        torch.dtype | tuple[torch.dtype, ...]
    )  # that it has, or several that it may have
    ge: float | None = None  # the least value
    finite: bool = True  # whether NaN and infinities are errors
    packed: Literal["", "planes", "delta", "pictures"] = (
        ""  # see `packing.pack`; "" is as it is
    )


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included: ``Annotated[int, Between(1)]``. By default, it is finite."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max


class Label:
    """Annotates a label of a class: a str, int, float, bool, None, bytes, or a tuple of labels.

    ``Annotated[np.ndarray, Label]`` is an array of labels of any dtype.
    """


Count = Annotated[int, Between(0, 1 << 40)]
