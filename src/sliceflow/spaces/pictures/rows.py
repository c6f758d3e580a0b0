"""The rows of a fit of pictures: the user's pictures and labels, checked, and as columns on a device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.random import Seed
from sliceflow.models.codec import Array
from sliceflow.models.ranks import Place, Ranks
from sliceflow.models.rows import Conditions, GivenRows, join_labels
from sliceflow.spaces.pictures.clusters import centres, gradient_histograms, nearest
from sliceflow.spaces.pictures.layout import Layout, as_array
from sliceflow.spaces.pictures.pyramid import Subspace

__all__ = ["PictureData", "PictureRows", "read_pictures"]

_NUMBERS = (torch.int32, torch.float32, torch.float64)
_CLUSTER_SAMPLE = 20_000  # number of pictures that k-means uses
_CLUSTER_VALUES = 1 << 26  # values at a time
_COARSE_SIDE = 14  # longer side in pixels of the pictures that k-means uses


@dataclass(frozen=True)
class PictureRows(GivenRows):
    """The user's pictures."""

    layout: Layout
    # (n, c, h, w): pixels of at most 256 values are bytes, others numbers
    bytes: Annotated[np.ndarray, Array("n c h w", torch.uint8, packed="pictures")] | None = None
    numbers: Annotated[np.ndarray, Array("n c h w", _NUMBERS)] | None = None
    given: Conditions | None = None
    place: Place | None = field(default=None, metadata={"saved": False})

    def check(self) -> None:
        """Raise a ValueError unless the pixels fit the layout and the labels."""
        if (self.bytes is None) == (self.numbers is None):
            raise ValueError("pictures have bytes or numbers, not both")
        if self.pixels.shape[1:] != self.layout.shape:
            raise ValueError(f"pictures are {self.pixels.shape[1:]}, not {self.layout.shape}")
        if self.given is not None and len(self.given.codes) != len(self.pixels):
            raise ValueError(
                f"there are {len(self.given.codes)} labels for {len(self.pixels)} pictures"
            )
        self.layout.check_pictures(self.pictures)

    @property
    def pixels(self) -> np.ndarray:
        """(n, c, h, w)."""
        pixels = self.numbers if self.bytes is None else self.bytes
        assert pixels is not None
        return pixels

    @property
    def pictures(self) -> np.ndarray:
        """The pictures as the user passed them: (n, h, w) or (n, h, w, c)."""
        array = self.pixels.transpose(0, 2, 3, 1).astype(self.layout.dtype, copy=False)
        return array if self.layout.channels else array[..., 0]

    @property
    def values(self) -> np.ndarray:
        return self.pixels

    def _with(self, pixels: np.ndarray, y: np.ndarray | None) -> Self:
        given, pixels = Conditions.infer(y, len(pixels), "labels"), np.ascontiguousarray(pixels)
        if self.bytes is None:
            return replace(self, given=given, numbers=pixels)
        return replace(self, given=given, bytes=pixels)

    def append(self, others: PictureRows) -> Self:
        if others.layout != self.layout:
            raise ValueError(f"the new pictures have {others.layout}, the earlier ones {self.layout}")
        pixels = np.concatenate((self.pixels, others.pixels))
        return self._with(pixels, join_labels(self.y, others.y))

    def take(self, numbers: np.ndarray) -> Self:
        return self._with(self.pixels[numbers], None if self.y is None else self.y[numbers])

    def in_users_form(self, device: torch.device) -> tuple[Any, Any]:
        pictures = np.ascontiguousarray(self.pictures)
        return torch.from_numpy(pictures) if self.layout.tensor else pictures, self.y


def read_pictures(
    X: Any, y: Any, n_pixel_values: int, layout: Layout | None, ranks: Ranks
) -> PictureRows:
    """The user's pictures and labels, checked; like those of `layout`, if this is not None."""
    array = as_array(X)
    if layout is None:
        layout = Layout.infer(X, n_pixel_values)
        values, brightest = layout.n_pixel_values, int(array.max())
        if values is not None and 0 < brightest < values // 4:
            fact = f"the brightest pixel is {brightest}, but pixels may have {values} values"
            advice = f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}"
            warnings.warn(f"{fact}; {advice}", UserWarning, stacklevel=5)
    layout.check_pictures(array)
    pixels = array.reshape(len(array), layout.height, layout.width, -1).transpose(0, 3, 1, 2)
    place = ranks.place(len(array), f"{layout}{'' if y is None else ' and labels'}")
    given = None
    if y is not None:
        names = np.atleast_1d(conditions.as_array(y, "labels"))
        if len(names) != place.count:
            fact = f"there are {place.count} pictures but {len(names)} labels"
            raise ValueError(f"{fact}; pass one label per picture")
        if names.ndim != 1:
            raise ValueError(f"labels have shape {names.shape}; pass one class label per picture")
        given = Conditions.infer(ranks.gather(names), place.total, "labels")
    raw = layout.raw_dtype
    kept: Any = np.dtype(layout.dtype) if raw is None else np.uint8 if raw == torch.uint8 else np.int32
    kept = np.float32 if kept == np.float16 else kept
    pixels = np.ascontiguousarray(pixels.astype(kept, copy=False))
    kind: Any = {"bytes" if kept == np.uint8 else "numbers": pixels}
    return PictureRows(layout, given=given, place=None if ranks.size == 1 else place, **kind)


@dataclass(frozen=True)
class PictureData:
    """This rank's pictures as columns on a device, and the labels of all ranks."""

    layout: Layout
    raw: Tensor  # (d, n) raw values, on the device
    device: torch.device
    place: Place  # position of this rank's pictures among those of all ranks, without mirror images
    condition: conditions.Labels | None = None
    codes: Tensor | None = None  # encoded labels, on the CPU; mirror images come after all pictures
    names: np.ndarray | None = None  # the labels
    own_codes: Tensor | None = None  # codes of the columns of `raw`, on the device
    mirrored: bool = False
    order: Tensor | None = None  # order of the columns in `cloud`; None keeps that of `raw`

    @classmethod
    def from_rows(cls, rows: PictureRows, device: torch.device) -> Self:
        """The pictures of a fit, on its device."""
        pixels = torch.from_numpy(rows.pixels).to(device)
        raw = pixels.permute(1, 2, 3, 0).reshape(rows.layout.dimension, len(rows))
        data = cls(rows.layout, raw, device, rows.here)
        if rows.given is None:
            return data
        codes, condition = rows.given.codes, rows.given.condition
        assert isinstance(condition, conditions.Labels)
        own = codes[rows.here.slice].to(device)
        return replace(data, condition=condition, codes=codes, names=rows.given.y, own_codes=own)

    @property
    def n(self) -> int:
        """N: pictures of all ranks, including mirror images."""
        return self.place.total * (2 if self.mirrored else 1)

    @property
    def runs(self) -> list[slice]:
        """The numbers of this rank's pictures among all N, as slices."""
        first, total = self.place.slice, self.place.total
        if self.mirrored and self.place.count == total:
            return [slice(0, 2 * total)]
        second = slice(total + first.start, total + first.stop)
        return [first, second] if self.mirrored else [first]

    @property
    def own_numbers(self) -> Tensor:
        """The numbers of this rank's pictures among all N."""
        return torch.cat([torch.arange(v.start, v.stop, device=self.device) for v in self.runs])

    def part(self, columns: Tensor | slice) -> Self:
        """Some of the pictures of a single process, as if there were no others."""
        raw, own = self.raw[:, columns], self.own_codes
        own, place = None if own is None else own[columns], Place(0, raw.shape[1], raw.shape[1])
        return replace(self, raw=raw, own_codes=own, place=place, mirrored=False)

    def with_mirror_images(self) -> Self:
        """The pictures followed by their mirror images, with the same labels."""
        codes, own = (None if t is None else t.repeat(2) for t in (self.codes, self.own_codes))
        names = None if self.names is None else np.concatenate((self.names, self.names))
        raw = self.layout.mirrored(self.raw)
        return replace(self, raw=raw, names=names, codes=codes, own_codes=own, mirrored=True)

    def clustered(self, k: int, seed: Seed, upsampling: str, ranks: Ranks) -> Self:
        """The pictures with k clusters as hidden labels."""
        c, height, width = self.layout.shape
        side = max(height, width)
        h, w = (max(1, min(of, round(of * _COARSE_SIDE / side))) for of in (height, width))
        coarse = Subspace(c, height, width, h, w, upsampling)

        def features(raw: Tensor) -> Tensor:
            parts = torch.split(raw, max(1, _CLUSTER_VALUES // self.layout.dimension), dim=1)
            values = (self.layout.encode(part, seed, dequantize=False) for part in parts)
            if c == 1:
                return torch.cat([coarse.down(x) for x in values], dim=1)
            return torch.cat([gradient_histograms(x, (c, height, width)) for x in values], dim=1)

        numbers = torch.arange(0, self.n, max(1, self.n // _CLUSTER_SAMPLE), device=self.device)
        means = centres(features(self.picked(numbers, ranks)), k, seed.child("clusters"))
        own = nearest(features(self.raw), means)
        halves = own.cpu().chunk(2 if self.mirrored else 1)
        codes = torch.cat([torch.from_numpy(ranks.gather(half.numpy())) for half in halves])
        condition = conditions.Labels(np.arange(k), hidden=True)
        return replace(self, condition=condition, codes=codes, own_codes=own)

    def picked(self, numbers: Tensor, ranks: Ranks) -> Tensor:
        """Columns with these numbers among all N."""
        if not self.mirrored or ranks.size == 1:
            return ranks.pick(self.raw, numbers)
        n = self.place.total
        straight, flipped = (ranks.pick(half, numbers % n) for half in self.raw.chunk(2, dim=1))
        return torch.where(numbers < n, straight, flipped)

    def cloud(self, seed: Seed, dequantize: bool) -> Cloud:
        """Values and codes, in `order`; `seed` draws the dequantisation noise."""
        x = self.layout.encode(self.raw, seed, dequantize=dequantize, total=self.n, runs=self.runs)
        return Cloud(x, self.own_codes).part(self.order)
