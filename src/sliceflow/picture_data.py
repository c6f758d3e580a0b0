"""The data of a fit of pictures: what was given, read and checked, and what a stage sees of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow import conditions
from sliceflow.checkpoints import digest
from sliceflow.checks import resolve_device
from sliceflow.distributed import Place, Ranks
from sliceflow.flow import Cloud
from sliceflow.pictures import Layout
from sliceflow.rng import Seed

__all__ = ["PictureData"]


@dataclass(frozen=True)
class PictureData:
    """Pictures and their labels. The pictures are this rank's own, the labels those of all ranks.

    Parameters
    ----------
    layout : of the pictures
    raw : (d, n) raw values, on the device
    device : of the fit
    place : of the pictures that were given, among those of all ranks
    condition : what the labels are; None without
    codes : of the labels, on the CPU; those of mirror images come after all others
    names : the labels themselves
    own_codes : codes of the columns of `raw`, on the device
    mirrored : whether the mirror images are there
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

    @classmethod
    def of(
        cls,
        images: Any,
        labels: Any,
        *,
        levels: int,
        observed: Any,
        device: str | torch.device,
        ranks: Ranks,
    ) -> Self:
        """What a user gave; a ValueError names what is wrong with it."""
        layout = Layout.of(images, levels)
        device = resolve_device(device)
        raw = layout.read(images, device)
        place = ranks.place(raw.shape[1], f"{layout}{'' if labels is None else ' and labels'}")
        data = cls(layout, raw, device, place)
        if labels is None:
            return data
        if observed is not None:
            raise ValueError("labels and observed pixels cannot both condition a flow; choose one")
        names = conditions.as_array(labels)
        if len(names) != place.count:
            raise ValueError(
                f"there are {place.count} pictures but {len(names)} labels; pass one for each"
            )
        names = ranks.gather(names)
        condition = conditions.infer(names, place.total)
        if not isinstance(condition, conditions.Labels):
            raise ValueError(f"labels have shape {names.shape}; pass one class label per picture")
        codes = condition.encode(names)
        own = codes[place.slice].to(device)
        return replace(data, condition=condition, codes=codes, names=names, own_codes=own)

    @property
    def n(self) -> int:
        """N, of all ranks and with mirror images."""
        return self.place.total * (2 if self.mirrored else 1)

    @property
    def runs(self) -> list[slice]:
        """The numbers among all N of the pictures that are here, as runs of neighbours."""
        first, total = self.place.slice, self.place.total
        second = slice(total + first.start, total + first.stop)
        return [first, second] if self.mirrored else [first]

    @property
    def here(self) -> Tensor:
        """The numbers of `runs`."""
        runs = [torch.arange(run.start, run.stop, device=self.device) for run in self.runs]
        return torch.cat(runs)

    def digests(self, ranks: Ranks) -> dict[str, str]:
        """What was given, for `checkpoints.identity`."""
        images = digest(self.raw.T.cpu().numpy(), ranks, self.place)
        return dict(layout=repr(self.layout), images=images, labels=digest(self.names))

    def with_mirror_images(self) -> Self:
        """The pictures followed by their mirror images, which have the same labels."""
        return replace(
            self,
            raw=self.layout.mirrored(self.raw),
            codes=None if self.codes is None else self.codes.repeat(2),
            names=None if self.names is None else np.concatenate((self.names, self.names)),
            own_codes=None if self.own_codes is None else self.own_codes.repeat(2),
            mirrored=True,
        )

    def in_order(self, order: Tensor | None) -> Self:
        """The columns as `minibatch.divide` wants them; None leaves them as they are."""
        if order is None:
            return self
        own = None if self.own_codes is None else self.own_codes[order]
        return replace(self, raw=self.raw[:, order], own_codes=own)

    def picked(self, numbers: Tensor, ranks: Ranks) -> Tensor:
        """Columns by their numbers among those of all ranks."""
        if not self.mirrored or ranks.size == 1:
            return ranks.pick(self.raw, numbers)
        n = self.place.total
        straight, flipped = (ranks.pick(half, numbers % n) for half in self.raw.chunk(2, dim=1))
        return torch.where(numbers < n, straight, flipped)

    def cloud(self, seed: Seed, dequantize: bool) -> Cloud:
        """Values and codes; `seed` draws the dequantisation noise."""
        x = self.layout.encode(self.raw, seed, dequantize=dequantize, total=self.n, runs=self.runs)
        return Cloud(x, self.own_codes)
