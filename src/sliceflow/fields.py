"""Annotations of saved dataclasses: what a field may hold.

A model file is read by these annotations alone. `models.codec` turns them into types
of msgspec, and checks arrays by `Array` itself.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import torch

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Array:
    """What an array or a tensor must be.

    For example, ``Annotated[Tensor, Array("h k", torch.float32)]`` is a matrix.

    Parameters
    ----------
    dims : the names or sizes of the dimensions, separated by spaces. Dimensions of one
        name have the same size in all arrays of one object
    dtype : the dtype, or several that are allowed
    ge : the least value that is allowed, or None
    finite : whether NaN and infinities are errors
    packed : what makes the array small in a file. "delta" stores differences along the
        last axis, for numbers that ascend; "pictures" stores differences along the last
        three, (channels, height, width). "planes" is the same as "": values themselves
    """

    dims: str
    dtype: torch.dtype | tuple[torch.dtype, ...]
    ge: float | None = None
    finite: bool = True
    packed: Literal["", "planes", "delta", "pictures"] = ""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """All dtypes that are allowed."""
        if isinstance(self.dtype, tuple):
            return self.dtype
        return (self.dtype,)

    @property
    def n_difference_axes(self) -> int:
        """The number of last axes along which a file holds differences."""
        axes = {"delta": 1, "pictures": 3}
        return axes.get(self.packed, 0)


def Between(
    low: float = -sys.float_info.max, high: float = sys.float_info.max
) -> msgspec.Meta:
    """Bounds of a number, both included: ``Annotated[int, Between(1, 9)]``.

    Without bounds, a float must be finite. An infinite bound allows infinity.
    """
    least = low if math.isfinite(low) else None
    largest = high if math.isfinite(high) else None
    return msgspec.Meta(ge=least, le=largest)


class Label:
    """Annotates a label: a str, int, float, bool, None, bytes, or a tuple of labels.

    ``tuple[Label, ...]`` is several labels. ``Annotated[np.ndarray, Label]`` is an
    array of labels of any dtype.
    """


Count = Annotated[int, Between(0, 1 << 40)]
