"""Conversion between the user's pictures and the engine's: layout, values, mirror images, masks.

Engine layout: columns (C·H·W, n) with values in [-1, 1]. Integer pixels v of 0..n_pixel_values-1 are
*dequantised*, (v + u)·2/n_pixel_values − 1 with u uniform in (0, 1); floats in [0, 1] become 2v − 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError, from_tensor, require_finite, unmasked
from sliceflow.fields import Between

_DTYPES = (
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


@dataclass(frozen=True)
class Layout:
    """Shape and dtype of the user's pictures: enough to read others and to write samples."""

    height: Annotated[int, Between(1, 1 << 14)]
    width: Annotated[int, Between(1, 1 << 14)]
    channels: (
        Annotated[int, Between(1, 1 << 10)] | None
    )  # None: (n, h, w) without a channel axis
    dtype: str
    n_pixel_values: Annotated[int, Between(2, 1 << 31)] | None  # None: floats in [0, 1]
    tensor: bool = False

    def check(self) -> None:
        if self.dtype not in _DTYPES or self.dtype.startswith("float") != (
            self.n_pixel_values is None
        ):
            raise ValueError(
                f"pictures of {self.n_pixel_values} pixel values cannot be {self.dtype!r}"
            )

    @classmethod
    def infer(cls, images: Any, n_pixel_values: int) -> Layout:
        """The layout of `images`; a ValueError if they are no pictures."""
        array = as_array(images)
        fact = f"pictures have shape {array.shape}"
        if array.ndim not in (3, 4):
            raise ValueError(f"{fact}; pass (n, h, w) or (n, h, w, c), all of one size")
        if 0 in array.shape:
            raise ValueError(f"{fact}, which is empty; pass at least one picture")
        if array.ndim == 4 and array.shape[3] > 4 and array.shape[1] <= 4:
            advice = "pass (n, h, w, c): images.transpose(0, 2, 3, 1)"
            raise ValueError(f"{fact}, which looks like (n, c, h, w); {advice}")
        channels = array.shape[3] if array.ndim == 4 else None
        if array.dtype.kind not in "fiub":
            raise ValueError(
                f"pictures have dtype {array.dtype}; pass integers or floats"
            )
        kind = None
        if (
            array.dtype.kind != "f"
        ):  # a value above the type's maximum would wrap around
            kind = min(
                n_pixel_values,
                2 if array.dtype == bool else int(np.iinfo(array.dtype).max) + 1,
            )
        _, h, w = array.shape[:3]
        tensor = isinstance(images, Tensor)
        return cls(h, w, channels, str(array.dtype), kind, tensor)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels or 1, self.height, self.width

    @property
    def dimension(self) -> int:
        return math.prod(self.shape)

    def read(self, images: Any) -> np.ndarray:
        """The pictures, checked, as (n, C, H, W): integers as bytes or int32, floats as they are."""
        array = as_array(images)
        expected = (self.height, self.width) + (
            (self.channels,) if self.channels else ()
        )
        if array.shape[1:] != expected:
            raise ValueError(
                f"pictures are {array.shape[1:]} but the model was fitted on {expected}"
            )
        if len(array) == 0:
            raise ValueError("there are no pictures; pass at least one")
        values = self.n_pixel_values
        if (array.dtype.kind == "f") != (values is None):
            known = (
                "floats in [0, 1]" if values is None else f"integers 0..{values - 1}"
            )
            raise ValueError(
                f"pictures are {array.dtype} but the model was fitted on {known}"
            )
        low = array.min()
        high = array.max()
        if values is None and not 0 <= low <= high <= 1:  # nor NaN
            fact = f"float pictures must be in [0, 1] but range from {low:.6g} to {high:.6g}"
            raise ValueError(f"{fact}; divide by the largest value, or pass integers")
        if values is not None and (low < 0 or high >= values):
            fact = f"integer pictures must be in 0..{values - 1} but range from {low} to {high}"
            raise ValueError(
                f"{fact}; set n_pixel_values= to one more than the largest possible value"
            )
        pixels = array.reshape(len(array), self.height, self.width, -1).transpose(
            0, 3, 1, 2
        )
        kind: Any = np.uint8 if (values or 0) <= 256 else np.int32
        if values is None:
            kind = np.promote_types(array.dtype, np.float32)  # no float16
        return np.require(
            pixels.astype(kind, copy=False), requirements=["C", "W"]
        )  # for torch

    def columns(self, pixels: Tensor) -> Tensor:
        """Pixels (n, C, H, W) as columns (C·H·W, n)."""
        return pixels.permute(1, 2, 3, 0).reshape(self.dimension, len(pixels))

    def encode(
        self,
        raw: Tensor,
        seed: Seed | None = None,
        *,
        total: int | None = None,
        class_slices: Sequence[slice] = (),
    ) -> Tensor:
        """Columns of pixels to values in [-1, 1]; without `seed`, integers are at the middle of their step.

        A picture's noise depends on its number. The columns may be the slices `class_slices` of `total`.
        """
        x = raw.to(torch.float32)
        if self.n_pixel_values is None:
            return 2 * x - 1
        if seed is None:
            x += 0.5
        else:
            # One row of numbers per pixel, as the pictures are stored: no transposition.
            d = len(raw)
            n = raw.shape[1] if total is None else total
            kind: Any = dict(dtype=torch.float32, device=raw.device)
            parts = [
                seed.uniform_part(d, n, run, **kind)
                for run in class_slices or [slice(0, n)]
            ]
            u = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            x += u.clamp_(
                max=1 - self.n_pixel_values * 2.0**-22
            )  # else v + u could round up to v + 1
        return x.mul_(2 / self.n_pixel_values).sub_(1)

    def write(self, x: Tensor) -> Any:
        """Columns of values to pictures in the user's dtype and layout."""
        values = self.n_pixel_values
        shape = (*self.shape, x.shape[1])
        require_finite(x, "use an amplifier and start_noise closer to the defaults")
        if values is None:
            x = ((x + 1) / 2).clamp(0, 1)
        else:
            x = ((x + 1) * (values / 2)).floor_().clamp_(0, values - 1)
            x = x.to(
                torch.uint8 if values <= 256 else torch.int32
            )  # less to transpose and copy
        return self.as_given(
            x.view(shape).permute(3, 1, 2, 0).contiguous().cpu().numpy()
        )

    def as_given(self, array: np.ndarray) -> Any:
        """Pictures (n, H, W, C) in the user's dtype and layout."""
        array = array.astype(self.dtype, copy=False)
        array = array if self.channels else array[..., 0]
        return torch.from_numpy(array) if self.tensor else array

    def mirrored(self, raw: Tensor) -> Tensor:
        """The pictures followed by their mirror images, flipped left to right."""
        return torch.cat(
            (raw, raw.view(*self.shape, -1).flip(2).reshape(raw.shape)), dim=1
        )

    def known(self, mask: np.ndarray | None, device: torch.device) -> Tensor | None:
        """Which values of a picture a mask (H, W) knows, (C·H·W, 1); None if it knows none."""
        if mask is None or not mask.any():
            return None
        return (
            torch.tensor(mask, device=device)
            .view(1, -1)
            .repeat(self.shape[0], 1)
            .view(-1, 1)
        )


def as_array(images: Any) -> np.ndarray:
    """Pictures of any type as an array, in native byte order."""
    images = unmasked(from_tensor(images), "the pictures")
    try:
        array: np.ndarray = np.asarray(images)
        native = (
            np.float64
            if array.dtype == np.longdouble
            else array.dtype.newbyteorder("=")
        )
        return array.astype(native, copy=False)
    except ValueError as error:
        raise ValueError(
            "pictures have different sizes; resize them to one size first"
        ) from error


def _middle(h: int, w: int) -> np.ndarray:
    mask = np.zeros((h, w), bool)
    mask[h // 4 : h - h // 4, w // 4 : w - w // 4] = True
    return mask


MASKS: dict[str, Callable[[int, int], np.ndarray]] = {
    "top": lambda h, w: np.arange(h)[:, None].repeat(w, 1) < h // 2,
    "bottom": lambda h, w: np.arange(h)[:, None].repeat(w, 1) >= h // 2,
    "left": lambda h, w: np.arange(w)[None].repeat(h, 0) < w // 2,
    "right": lambda h, w: np.arange(w)[None].repeat(h, 0) >= w // 2,
    "border": lambda h, w: ~_middle(h, w),  # the centre is missing
    "center": _middle,  # the border is missing
}


def part_of(observed: Any, layout: Layout, name: str = "observed") -> np.ndarray:
    """(h, w) booleans, True where a pixel is observed, from a name or mask; `name` is for errors."""
    h = layout.height
    w = layout.width
    if isinstance(observed, str):
        if observed not in MASKS:
            raise ParameterError(
                name, observed, f"is not one of {sorted(MASKS)}, nor a mask"
            )
        return MASKS[observed](h, w)
    mask: np.ndarray = np.asarray(unmasked(observed, name))
    if mask.shape != (h, w) or mask.dtype != bool:
        fact = f"{name} has shape {mask.shape} and dtype {mask.dtype}"
        raise ValueError(
            f"{fact}; pass an ({h}, {w}) mask of booleans, True where a pixel is known"
        )
    return mask
