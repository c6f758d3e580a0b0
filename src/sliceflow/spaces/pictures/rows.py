"""The rows of a fit of pictures: the user's pictures and labels, checked, and as columns on a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.random import Seed
from sliceflow.fields import Array
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.models.rows import ArrayRows, Conditions, HasConditions
from sliceflow.spaces.pictures.clusters import centres, gradient_histograms, nearest
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace

_PIXELS = (torch.uint8, torch.int32, torch.float32, torch.float64)
_CLUSTER_SAMPLE = 20_000  # number of pictures that k-means uses
_CLUSTER_VALUES = 1 << 26  # values at a time
_COARSE_SIDE = 14  # longer side in pixels of the pictures that k-means uses


@dataclass(frozen=True)
class PictureRows(ArrayRows):
    """The user's pictures."""

    layout: Layout
    pixels: Annotated[np.ndarray, Array("n c h w", _PIXELS, packed="pictures")]
    given: Conditions | None = None
    shard: Shard | None = field(default=None, metadata={"saved": False})
    _names = ("pixels", "labels")

    def check(self) -> None:
        if self.pixels.shape[1:] != self.layout.shape:
            raise ValueError(
                f"pictures are {self.pixels.shape[1:]}, not {self.layout.shape}"
            )
        check_labels(self.given)
        if self.codes is not None and len(self.codes) != len(self.pixels):
            raise ValueError(
                f"there are {len(self.codes)} labels for {len(self.pixels)} pictures"
            )
        self.layout.read(self.pictures)

    @property
    def pictures(self) -> Any:
        """The pictures as the user passed them: (n, h, w) or (n, h, w, c)."""
        return self.layout.as_given(
            np.ascontiguousarray(self.pixels.transpose(0, 2, 3, 1))
        )

    def in_users_form(self, device: torch.device) -> tuple[Any, Any]:
        return self.pictures, self.y


def check_labels(given: Conditions | None) -> None:
    """Raise a ValueError for conditions that are no labels."""
    if given is not None and not isinstance(given.condition, conditions.LabelCondition):
        raise ValueError(f"pictures have labels, not {type(given.condition).__name__}")


@dataclass(frozen=True)
class PictureData(HasConditions):
    """This rank's pictures as columns on a device, and the labels of all ranks."""

    layout: Layout
    raw: Tensor  # (d, n) pixels
    shard: Shard  # position of this rank's pictures among those of all ranks, without mirror images
    given: Conditions | None = (
        None  # labels of all ranks; mirror images come after all pictures
    )
    own_codes: Tensor | None = (
        None  # class numbers of the columns of `raw`, on the device
    )
    mirrored: bool = False

    @classmethod
    def from_rows(cls, rows: PictureRows, device: torch.device, mirror: bool) -> Self:
        """The pictures of a fit on its device, with `mirror` followed by their mirror images."""
        layout = rows.layout
        here = rows.here
        given = rows.given
        raw = layout.columns(torch.from_numpy(rows.pixels).to(device))
        own = None if given is None else given.codes[here.slice].to(device)
        if mirror:
            raw = layout.mirrored(raw)
            own = None if own is None else own.repeat(2)
            given = given and given.take(torch.arange(2 * here.total) % here.total)
        return cls(layout, raw, here, given, own, mirror)

    @property
    def device(self) -> torch.device:
        return self.raw.device

    @property
    def n(self) -> int:
        """N: pictures of all ranks, including mirror images."""
        return self.shard.total * (2 if self.mirrored else 1)

    @property
    def class_slices(self) -> list[slice]:
        """The numbers of this rank's pictures among all N, as slices."""
        first = self.shard.slice
        total = self.shard.total
        if self.mirrored and self.shard.count == total:
            return [slice(0, 2 * total)]
        second = slice(total + first.start, total + first.stop)
        return [first, second] if self.mirrored else [first]

    @property
    def own_numbers(self) -> Tensor:
        """The numbers of this rank's pictures among all N."""
        return torch.cat(
            [
                torch.arange(v.start, v.stop, device=self.device)
                for v in self.class_slices
            ]
        )

    def clustered(self, k: int, seed: Seed, ranks: Ranks) -> Self:
        """The pictures with k clusters as hidden labels."""
        c, height, width = self.layout.shape
        side = max(height, width)
        h, w = (
            max(1, min(of, round(of * _COARSE_SIDE / side))) for of in (height, width)
        )
        coarse = Subspace(c, height, width, h, w)

        def features(raw: Tensor) -> Tensor:
            parts = torch.split(
                raw, max(1, _CLUSTER_VALUES // self.layout.dimension), dim=1
            )
            values = (self.layout.encode(part) for part in parts)
            if c == 1:
                return torch.cat([coarse.restrict(x) for x in values], dim=1)
            return torch.cat(
                [gradient_histograms(x, (c, height, width)) for x in values], dim=1
            )

        numbers = torch.arange(
            0, self.n, max(1, self.n // _CLUSTER_SAMPLE), device=self.device
        )
        means = centres(
            features(self.picked(numbers, ranks)), k, seed.child("clusters")
        )
        own = nearest(features(self.raw), means)
        halves = own.cpu().chunk(2 if self.mirrored else 1)
        codes = torch.cat(
            [torch.from_numpy(ranks.gather(half.numpy())) for half in halves]
        )
        given = Conditions(conditions.LabelCondition(np.arange(k), hidden=True), codes)
        return replace(self, given=given, own_codes=own)

    def picked(self, numbers: Tensor, ranks: Ranks) -> Tensor:
        """Columns with these numbers among all N."""
        if not self.mirrored or ranks.size == 1:
            return ranks.pick(self.raw, numbers)
        n = self.shard.total
        straight, flipped = (
            ranks.pick(half, numbers % n) for half in self.raw.chunk(2, dim=1)
        )
        return torch.where(numbers < n, straight, flipped)

    def cloud(self, seed: Seed, columns: Tensor | None = None) -> Cloud:
        """Values and codes of all or some columns; `seed` draws the dequantisation noise."""
        if columns is not None:  # of a single process, as if there were no others
            own = None if self.own_codes is None else self.own_codes[columns]
            return Cloud(self.layout.encode(self.raw[:, columns], seed), own)
        x = self.layout.encode(
            self.raw, seed, total=self.n, class_slices=self.class_slices
        )
        return Cloud(x, self.own_codes)
