"""Annotations of saved dataclasses: what a field may hold.

A model file is read by these annotations alone. `base.codec` turns them into types
of msgspec, and checks arrays by `ArraySpec` itself.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import msgspec

# The dtypes of arrays in files, by the names that numpy and torch share.
DTypeName = Literal[
    "bool",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
FLOAT_DTYPES: tuple[DTypeName, ...] = ("float32", "float64")


@dataclass(frozen=True)
class ArraySpec:
    """The dimensions, the dtype and the values that a saved array must have.

    For example, ``Annotated[Tensor, ArraySpec("h k", "float32")]`` is a matrix.

    Parameters
    ----------
    dims : the names or sizes of the dimensions, separated by spaces. Dimensions of one
        name have the same size in all arrays of one object
    dtype : the name of the dtype, or several that are allowed
    ge : the least value that is allowed; None allows any value
    finite : whether NaN and infinities are errors
    n_difference_axes : the number of last axes along which a file holds differences,
        which compress better: 1 for numbers that ascend, 3 for pictures (channels,
        height, width). With 0 it holds the values themselves
    """

    dims: str
    dtype: DTypeName | tuple[DTypeName, ...]
    ge: float | None = None
    finite: bool = True
    n_difference_axes: int = 0

    @property
    def dtypes(self) -> tuple[DTypeName, ...]:
        """All dtypes that are allowed."""
        if isinstance(self.dtype, tuple):
            return self.dtype
        return (self.dtype,)


@runtime_checkable
class SelfChecking(Protocol):
    """A saved dataclass whose fields can contradict each other."""

    def check_saved(self) -> None:
        """Raise a ValueError if the fields contradict each other."""


def Between(
    low: float = -sys.float_info.max, high: float = sys.float_info.max
) -> msgspec.Meta:
    """Bounds of a number, both included: ``Annotated[int, Between(1, 9)]``.

    Without bounds, a float must be finite. An infinite bound allows infinity.
    """
    least = low if math.isfinite(low) else None
    largest = high if math.isfinite(high) else None
    return msgspec.Meta(ge=least, le=largest)


# A label, such as a class or the name of a column. The items of a tuple are labels.
# In a saved dataclass, ``tuple[Label, ...]`` is several labels, and
# ``Annotated[NDArray[Any], Label]`` an array of labels of any dtype.
Label = str | int | float | bool | bytes | None | tuple[Any, ...]

# A number of things; the limit only keeps files from claiming absurd ones.
Count = Annotated[int, Between(0, 1 << 40)]
