"""The known part of pictures to complete: by name, or as an array of booleans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Mask
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.pictures.layout import Layout, as_picture_array
from sliceflow.validation import from_tensor, require, unmasked

KnownPart = Literal["top", "bottom", "left", "right", "border", "center"]


def _top(h: int, w: int) -> Mask:
    is_known = np.zeros((h, w), bool)
    is_known[: h // 2] = True
    return is_known


def _left(h: int, w: int) -> Mask:
    is_known = np.zeros((h, w), bool)
    is_known[:, : w // 2] = True
    return is_known


def _center(h: int, w: int) -> Mask:
    is_known = np.zeros((h, w), bool)
    is_known[h // 4 : h - h // 4, w // 4 : w - w // 4] = True
    return is_known


KNOWN_PARTS: dict[str, Callable[[int, int], Mask]] = {
    "top": _top,
    "bottom": lambda h, w: ~_top(h, w),
    "left": _left,
    "right": lambda h, w: ~_left(h, w),
    "border": lambda h, w: ~_center(h, w),  # the center is hidden
    "center": _center,  # the border is hidden
}


def as_known(known: Any, layout: Layout) -> Mask:
    """The parameter `known`, a name or an array, as booleans (h, w).

    They are True where a pixel is known. Raises an error for a wrong name or array.
    """
    h = layout.height
    w = layout.width
    if isinstance(known, str):
        if known not in KNOWN_PARTS:
            raise ParameterError(
                "known",
                known,
                f"is not one of {sorted(KNOWN_PARTS)}, nor an array of booleans",
            )
        return KNOWN_PARTS[known](h, w)
    requirement = f"one of {sorted(KNOWN_PARTS)}, or an (h, w) array of booleans"
    try:
        array: NDArray[Any] = np.asarray(unmasked(from_tensor(known), "known"))
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    require(array.ndim >= 2, "known", known, requirement)
    if array.shape != (h, w) or array.dtype != bool:
        raise DataError(
            f"known has shape {array.shape} and dtype {array.dtype}",
            f"pass an ({h}, {w}) array of booleans, True where a pixel is known",
        )
    return array


def with_hidden_as_zero(X: Any, is_known: Mask) -> NDArray[Any]:
    """A copy of the user's pictures whose hidden pixels are 0.

    Hidden pixels may be anything before: NaN, masked, out of range. `is_known` (h, w)
    is True where a pixel is not hidden. Pictures of another size are returned as they
    are, for `Layout.read` to say what is wrong.
    """
    has_same_size = np.shape(X)[1:3] == is_known.shape
    if has_same_size and isinstance(X, np.ma.MaskedArray):
        is_masked = np.ma.getmaskarray(X)
        if not is_masked[:, is_known].any():
            X = X.filled(0)
    pictures: NDArray[Any] = np.array(as_picture_array(X))
    if has_same_size:
        pictures[:, ~is_known] = 0
    return pictures
