"""Conversion between the user's pictures and the engine's columns.

The user has (n, H, W) or (n, H, W, C), integers or floats, as an array or a tensor. The
engine has columns (C·H·W, n), channel by channel, with values in [-1, 1]. Integer
pixels v of 0..n_pixel_values-1 are *dequantized*, (v + u)·2/n_pixel_values − 1 with u
uniform in (0, 1); floats in [0, 1] become 2v − 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from sliceflow.arrays import Mask
from sliceflow.base.prepared_fit import check_not_prepared
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.estimators.pictures.schedules import MAX_SIDE
from sliceflow.saved_types import Between
from sliceflow.validation import check_finite, from_tensor, unmasked

DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)

# Pictures as the user has them: (n, h, w) or (n, h, w, c), and with more axes before
# these where there are several of each.
PictureArray = NDArray[Any] | Tensor

# Limits on the numbers of a saved model, so that a damaged file is refused early.
MAX_CHANNELS = 1 << 10
# Points have 24 significant bits. Of these, 20 are the pixel value, and the others keep
# its random fraction apart from the next value.
MAX_PIXEL_VALUES = 1 << 20

# Pictures have at most red, green, blue and alpha. A longer last axis is taken for a
# side of the picture.
MAX_USUAL_CHANNELS = 4


@dataclass(frozen=True)
class Layout:
    """Shape and type of the user's pictures, to read others and to decode samples."""

    height: Annotated[int, Between(1, MAX_SIDE)]
    width: Annotated[int, Between(1, MAX_SIDE)]
    # None if pictures are (n, h, w), without an axis of channels
    channels: Annotated[int, Between(1, MAX_CHANNELS)] | None
    dtype: str
    # None if pixels are floats in [0, 1]
    n_pixel_values: Annotated[int, Between(2, MAX_PIXEL_VALUES)] | None
    # The user's pictures are a torch tensor, so samples are tensors too, on the CPU.
    # False: numpy arrays.
    is_tensor: bool = False

    def check_saved(self) -> None:
        """Raise a ValueError if a saved layout contradicts itself."""
        is_float = self.dtype.startswith("float")
        if self.dtype not in DTYPES or is_float != (self.n_pixel_values is None):
            raise ValueError(
                f"pictures of {self.n_pixel_values} pixel values cannot be "
                f"{self.dtype!r}"
            )

    @classmethod
    def infer(cls, X: Any, n_pixel_values: int) -> Layout:
        """The layout of the user's pictures; a `DataError` if they are no pictures."""
        array = as_picture_array(X)
        _check_shape(array)
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"pictures have dtype {array.dtype}", "pass integers or floats"
            )
        channels = None
        if array.ndim == 4:
            channels = array.shape[3]
        n_values = None
        if array.dtype.kind != "f":
            # A value above the type's maximum would wrap around.
            n_values = min(n_pixel_values, _n_values_of(array.dtype))
        return cls(
            height=array.shape[1],
            width=array.shape[2],
            channels=channels,
            dtype=str(array.dtype),
            n_pixel_values=n_values,
            is_tensor=isinstance(X, Tensor),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels or 1, self.height, self.width

    @property
    def dimension(self) -> int:
        """d = C·H·W, the number of values of a picture."""
        return math.prod(self.shape)

    @property
    def max_pixel_value(self) -> int:
        """The value of the brightest pixel; 1 for floats."""
        if self.n_pixel_values is None:
            return 1
        return self.n_pixel_values - 1

    def read(self, X: Any) -> NDArray[Any]:
        """The user's pictures, checked, as pixels (n, C, H, W).

        Integers become bytes or int32. Floats stay as they are, but float16 becomes
        float32.
        """
        array = as_picture_array(X)
        self._check_kind(array)
        self._check_range(array)
        channels_last = array.reshape(len(array), self.height, self.width, -1)
        pixels = channels_last.transpose(0, 3, 1, 2)
        pixels = pixels.astype(self._pixel_dtype(array.dtype), copy=False)
        # torch wants arrays in row-major order that can be written to.
        return np.require(pixels, requirements=["C", "W"])

    def _check_kind(self, array: NDArray[Any]) -> None:
        """Raise a `DataError` for pictures of another size or type than this layout."""
        expected: tuple[int, ...] = (self.height, self.width)
        if self.channels is not None:
            expected = (self.height, self.width, self.channels)
        if array.shape[1:] != expected:
            raise DataError(
                f"pictures are {array.shape[1:]} but the model was fitted on {expected}"
            )
        if len(array) == 0:
            raise DataError("there are no pictures", "pass at least one")
        is_float = array.dtype.kind == "f"
        if is_float and self.n_pixel_values is not None:
            raise DataError(
                f"pictures are {array.dtype} but the model was fitted on integers "
                f"0..{self.max_pixel_value}"
            )
        if not is_float and self.n_pixel_values is None:
            raise DataError(
                f"pictures are {array.dtype} but the model was fitted on floats in "
                "[0, 1]"
            )

    def _check_range(self, array: NDArray[Any]) -> None:
        """Raise a `DataError` for pixels out of range, or NaN."""
        low = array.min()
        high = array.max()
        if self.n_pixel_values is None:
            if not 0 <= low <= high <= 1:
                raise DataError(
                    f"float pictures must be in [0, 1] but range from {low:.6g} to "
                    f"{high:.6g}",
                    "divide by the largest value, or pass integers",
                )
        elif low < 0 or high >= self.n_pixel_values:
            raise DataError(
                f"integer pictures must be in 0..{self.max_pixel_value} but range "
                f"from {low} to {high}",
                "set n_pixel_values= to one more than the largest possible value",
            )

    def _pixel_dtype(self, dtype: np.dtype) -> DTypeLike:
        """The type of the pixels that `read` returns for pictures of a type."""
        if self.n_pixel_values is None:
            return np.promote_types(dtype, np.float32)
        if self.n_pixel_values <= 256:
            return np.uint8
        return np.int32

    def to_points(self, pixels: Tensor) -> Tensor:
        """Pixels (n, C, H, W) as columns (C·H·W, n)."""
        return pixels.permute(1, 2, 3, 0).reshape(self.dimension, len(pixels))

    def encode(
        self,
        pixel_points: Tensor,
        seed: Seed | None = None,
        *,
        n_total: int | None = None,
        index_slices: Sequence[slice] | None = None,
    ) -> Tensor:
        """Encode pixels as columns (d, n) of values in [-1, 1].

        Parameters
        ----------
        pixel_points : pixels as columns (d, n), as `to_points` returns them
        seed : draws the fractions u of integer pixels; None takes u = ½
        n_total : the number of all pictures, if these are only some of them
        index_slices : the indices of these pictures among all, as consecutive slices. A
            picture's fractions depend only on its index
        """
        x = pixel_points.to(torch.float32)
        if self.n_pixel_values is None:
            return 2 * x - 1
        if seed is None:
            x += 0.5
            return x.mul_(2 / self.n_pixel_values).sub_(1)
        if n_total is None:
            n_total = x.shape[1]
        if index_slices is None:
            index_slices = [slice(0, n_total)]
        u = self._fractions(seed, n_total, index_slices, x.device)
        # Without the limit, v + u could round up to v + 1.
        x += u.clamp_(max=1 - self.n_pixel_values * 2.0**-22)
        return x.mul_(2 / self.n_pixel_values).sub_(1)

    def _fractions(
        self,
        seed: Seed,
        n_total: int,
        index_slices: Sequence[slice],
        device: torch.device,
    ) -> Tensor:
        """The fractions u (d, n) of pictures with these indices among `n_total`."""
        # One row of random numbers per pixel, as the pictures are stored: so nothing
        # has to be transposed.
        parts = []
        for part in index_slices:
            parts.append(
                seed.uniform(
                    self.dimension,
                    n_total,
                    dtype=torch.float32,
                    device=device,
                    part=part,
                )
            )
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, 1)

    def decode(self, x: Tensor) -> PictureArray:
        """Decode columns (d, n) as pictures in the user's type and shape.

        This is the inverse of `encode`. Values beyond [-1, 1] become its ends. Raises a
        `DataError` for values that are infinite or NaN.
        """
        check_finite(x, "use an amplifier and start_noise closer to the defaults")
        pixels = self._decoded_pixels(x).view(*self.shape, x.shape[1])
        channels_last = pixels.permute(3, 1, 2, 0)
        return self.in_user_form(channels_last.contiguous().cpu().numpy())

    def _decoded_pixels(self, x: Tensor) -> Tensor:
        """The pixels of values x (d, n): floats in [0, 1], or integers."""
        n_values = self.n_pixel_values
        if n_values is None:
            return ((x + 1) / 2).clamp(0, 1)
        pixels = ((x + 1) * (n_values / 2)).floor_().clamp_(0, n_values - 1)
        # Small types, because there is less to transpose and to copy.
        if n_values <= 256:
            return pixels.to(torch.uint8)
        return pixels.to(torch.int32)

    def in_user_form(self, array: NDArray[Any]) -> PictureArray:
        """Pictures (n, H, W, C) in the user's type and shape."""
        array = array.astype(self.dtype, copy=False)
        if self.channels is None:
            array = array[..., 0]
        if self.is_tensor:
            return torch.from_numpy(array)
        return array

    def with_mirror_images(self, pixel_points: Tensor) -> Tensor:
        """Columns (d, n) followed by their mirror images, left to right: (d, 2n)."""
        mirrored = pixel_points.view(*self.shape, -1).flip(2)
        return torch.cat((pixel_points, mirrored.view_as(pixel_points)), dim=1)

    def is_known_value(
        self, is_known: Mask | None, device: torch.device
    ) -> Tensor | None:
        """Which values of a column belong to a known pixel: (C·H·W, 1).

        `is_known` (H, W) is True where a pixel is known. The result is None if
        `is_known` is None, or if no pixel is known.
        """
        if is_known is None or not is_known.any():
            return None
        is_known_in_channel = torch.tensor(is_known, device=device).view(1, -1)
        return is_known_in_channel.repeat(self.shape[0], 1).view(-1, 1)


def as_picture_array(X: Any) -> NDArray[Any]:
    """The user's pictures of any type as an array, in native byte order."""
    check_not_prepared(X)
    X = unmasked(from_tensor(X), "the pictures")
    try:
        array: NDArray[Any] = np.asarray(X)
        dtype: DTypeLike = array.dtype.newbyteorder("=")
        if array.dtype == np.longdouble:
            dtype = np.float64
        return array.astype(dtype, copy=False)
    except ValueError as error:
        raise DataError(
            "pictures have different sizes", "resize them to one size first"
        ) from error


def _check_shape(array: NDArray[Any]) -> None:
    """Raise a `DataError` for an array that does not have the shape of pictures."""
    fact = f"pictures have shape {array.shape}"
    if array.ndim not in (3, 4):
        raise DataError(fact, "pass (n, h, w) or (n, h, w, c), all of one size")
    if 0 in array.shape:
        raise DataError(f"{fact}, which is empty", "pass at least one picture")
    if array.ndim == 4:
        _, second, _, last = array.shape
        if second <= MAX_USUAL_CHANNELS < last:
            raise DataError(
                f"{fact}, which looks like (n, c, h, w)",
                "pass (n, h, w, c): X.transpose(0, 2, 3, 1)",
            )


def _n_values_of(dtype: np.dtype) -> int:
    """The number of values from 0 to the largest one of a type of integers."""
    if dtype.kind == "b":
        return 2
    return int(np.iinfo(dtype).max) + 1
