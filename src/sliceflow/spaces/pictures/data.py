"""The data of a fit of pictures, checked, and the cloud that each stage uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import resolve_device
from sliceflow.engine import conditions
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.random import Seed
from sliceflow.models.old_checkpoints import digest
from sliceflow.models.ranks import Place, Ranks
from sliceflow.spaces.pictures.clusters import centres, gradient_histograms, nearest
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace

__all__ = ["PictureData"]

_CLUSTER_SAMPLE = 20_000  # number of pictures that k-means uses
_CLUSTER_VALUES = 1 << 26  # values at a time
_COARSE_SIDE = 14  # longer side in pixels of the pictures that k-means uses


@dataclass(frozen=True)
class PictureData:
    """This rank's pictures, and the labels of all ranks.

    Parameters
    ----------
    layout : the pictures' layout
    raw : (d, n) raw values, on the device
    device : device of the fit
    place : position of this rank's pictures among those of all ranks, without mirror images
    condition : the classes; None without labels
    codes : encoded labels, on the CPU; mirror images come after all pictures
    names : the labels
    own_codes : codes of the columns of `raw`, on the device
    mirrored : whether mirror images are included
    order : order of the columns in `cloud`; None keeps that of `raw`
    """

    layout: Layout
    raw: Tensor
    device: torch.device
    place: Place
    condition: conditions.Labels | None = None
    codes: Tensor | None = None
    names: np.ndarray | None = None
    own_codes: Tensor | None = None
    mirrored: bool = False
    order: Tensor | None = None

    @classmethod
    def of(
        cls,
        images: Any,
        labels: Any,
        *,
        n_pixel_values: int,
        observed: Any,
        device: str | torch.device,
        ranks: Ranks,
    ) -> Self:
        """The user's pictures and labels; raises a ValueError if they are not valid."""
        layout = Layout.of(images, n_pixel_values)
        device = resolve_device(device)
        raw = layout.read(images, device)
        place = ranks.place(raw.shape[1], f"{layout}{'' if labels is None else ' and labels'}")
        data = cls(layout, raw, device, place)
        if labels is None:
            return data
        if observed is not None:
            raise ValueError("a flow can use labels or observed pixels, not both; choose one")
        names = np.atleast_1d(conditions.as_array(labels, "labels"))
        if len(names) != place.count:
            raise ValueError(
                f"there are {place.count} pictures but {len(names)} labels; pass one label per picture"
            )
        if names.ndim != 1:
            raise ValueError(f"labels have shape {names.shape}; pass one class label per picture")
        names = ranks.gather(names)
        condition = cast(conditions.Labels, conditions.infer(names, place.total, "labels"))
        codes = condition.encode(names)
        own = codes[place.slice].to(device)
        return replace(data, condition=condition, codes=codes, names=names, own_codes=own)

    @property
    def n(self) -> int:
        """N: pictures of all ranks, including mirror images."""
        return self.place.total * (2 if self.mirrored else 1)

    @property
    def runs(self) -> list[slice]:
        """The numbers of this rank's pictures among all N, as slices."""
        first, total = self.place.slice, self.place.total
        second = slice(total + first.start, total + first.stop)
        return [first, second] if self.mirrored else [first]

    @property
    def own_numbers(self) -> Tensor:
        """The numbers of this rank's pictures among all N."""
        runs = [torch.arange(run.start, run.stop, device=self.device) for run in self.runs]
        return torch.cat(runs)

    def digests(self, ranks: Ranks) -> dict[str, str]:
        """Digests of the input, for `checkpoints.identity`."""
        images = digest(self.raw.T.cpu().numpy(), ranks, self.place)
        return {"X": images, "y": digest(self.names)}

    def with_mirror_images(self) -> Self:
        """The pictures followed by their mirror images, with the same labels."""
        return replace(
            self,
            raw=self.layout.mirrored(self.raw),
            codes=None if self.codes is None else self.codes.repeat(2),
            names=None if self.names is None else np.concatenate((self.names, self.names)),
            own_codes=None if self.own_codes is None else self.own_codes.repeat(2),
            mirrored=True,
        )

    def clustered(self, k: int, seed: Seed, upsampling: str, ranks: Ranks) -> Self:
        """The pictures with k clusters as hidden labels."""
        c, height, width = self.layout.shape
        side = max(height, width)
        h, w = (max(1, min(of, round(of * _COARSE_SIDE / side))) for of in (height, width))
        coarse = Subspace(c, height, width, h, w, upsampling)

        def features(raw: Tensor) -> Tensor:
            values = self.layout.encode(raw, seed, dequantize=False)
            return coarse.down(values) if c == 1 else gradient_histograms(values, (c, height, width))

        numbers = torch.arange(0, self.n, max(1, self.n // _CLUSTER_SAMPLE), device=self.device)
        chunk = max(1, _CLUSTER_VALUES // self.layout.dimension)

        def all_features(raw: Tensor) -> Tensor:
            return torch.cat([features(part) for part in torch.split(raw, chunk, dim=1)], dim=1)

        means = centres(all_features(self.picked(numbers, ranks)), k, seed.child("clusters"))
        own = nearest(all_features(self.raw), means)
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
