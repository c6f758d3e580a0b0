"""A fitted flow of pictures, and how to draw samples and completions from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions
from sliceflow.engine.clouds import Cloud, sort_by_class
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Noise
from sliceflow.engine.frames import releasing
from sliceflow.engine.random import Seed
from sliceflow.models.codec import Array
from sliceflow.models.limits import check_steps, grid_bytes, rotation_bytes
from sliceflow.spaces.pictures.inpainting import without_hidden
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import evolution
from sliceflow.spaces.pictures.mosaics import Mosaics, start
from sliceflow.spaces.pictures.plan import PicturePlan

__all__ = ["FittedPictures"]

_CHUNK = 1 << 13  # offline samples per pass


@dataclass(frozen=True)
class FittedPictures:
    """The state of a fitted estimator."""

    plan: PicturePlan
    seed: Seed  # of the fit: its frames are drawn again
    steps: tuple[ModelStep, ...]
    condition: conditions.Labels | None = None  # classes or clusters
    codes: Annotated[Tensor, Array("n", torch.int64, ge=0, packed="planes")] | None = None
    mask: Annotated[Tensor, Array("d 1", torch.bool)] | None = None  # observed pixels
    mosaics: Mosaics | None = None  # the pictures that particles start from; None is noise
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})

    def check(self) -> None:
        """Raise a ValueError if the parts do not fit together, or samples may not be finite."""
        plan, layout = self.plan, self.plan.layout
        width = 0 if self.condition is None else self.condition.width
        if width != plan.n_conditions or (self.codes is None) != (self.condition is None):
            raise ValueError(f"the condition has width {width}, the plan {plan.n_conditions}")
        if self.codes is not None and len(self.codes) and int(self.codes.max()) >= width:
            raise ValueError(f"a class number is not below {width}")
        if (self.mask is not None) != (plan.condition == "observed"):
            raise ValueError("mask and condition do not fit")
        if self.mask is not None and len(self.mask) != layout.dimension:
            raise ValueError(f"the mask has {len(self.mask)} of {layout.dimension} values")
        if (self.mosaics is not None) != (plan.n_summed > 0):
            raise ValueError("the kept pictures and the start of the plan do not fit")
        if self.mosaics is not None and self.mosaics.layout.shape != layout.shape:
            raise ValueError("the kept pictures have another layout than the model")
        levels, each = plan.levels(self.seed, torch.device("cpu")), plan.apart or 1
        about = layout.dimension, torch.float32, self.codes, max(1.0, plan.options.start_noise)
        check_steps(
            levels.flow(), self.steps, lambda i, k: levels.count_directions(i, k) * each, *about
        )
        if any(step.theta is not None for step in self.steps):
            raise ValueError("a step has directions of its own, which those of pictures never have")

    @property
    def needs_rows(self) -> bool:
        return False  # mosaics keep their own pictures

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    @property
    def observed(self) -> np.ndarray | None:
        """(h, w) booleans, True where a pixel is known, in all channels."""
        return None if self.mask is None else self.mask.view(*self.layout.shape)[0].numpy()

    def sample_bytes(self, n: int = 1) -> int:
        """Twice n pictures, because chunks are concatenated, their codes, and the work of a chunk."""
        layout, plan = self.layout, self.plan
        widest, random = max(plan.directions), plan.patch_basis == "random"
        frame = 32 * widest * layout.dimension if random else rotation_bytes(plan.tile)
        pixels = 2 * layout.dimension * np.dtype(layout.dtype).itemsize + 64
        work = 4 * min(n, self._chunk()) * (3 * layout.dimension + widest)
        return n * pixels + work + frame + grid_bytes(self.steps)

    def _chunk(self) -> int:
        """Samples per pass: more on a GPU, where a small step takes as long as a large one."""
        if self.device.type == "cpu":
            return _CHUNK
        return max(_CHUNK, min(1 << 16, (1 << 26) // self.layout.dimension))

    def columns(self, X: Any) -> Tensor:
        return self.layout.encode(self.layout.read(X), Seed(0), dequantize=False)

    def need_maps(self) -> None:
        """Raise a ValueError if the model has no maps."""
        if not self.steps:
            raise ValueError("it was fitted with n_knots=0, which keeps no maps; fit with n_knots > 0")

    def draw(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        return self.frames(n, codes, seed)[0]

    @releasing()
    def frames(
        self, n: int, codes: Tensor | None, seed: Seed, n_frames: int = 1,
        raw: Tensor | None = None,
    ) -> list[Any]:  # fmt: skip
        """n pictures on their way, the last frame at the end; `raw` (d, N) are pictures to complete."""
        self.need_maps()
        any_known = self.mask is not None and bool(self.mask.any())
        known = self.mask.to(self.device) if self.mask is not None and any_known else None
        flow = self.plan.levels(self.seed, self.device, known).flow()
        out, chunk = [], self._chunk()
        for part in (slice(first, min(first + chunk, n)) for first in range(0, n, chunk)):
            y = None if codes is None else codes[part].to(self.device)
            noise, count = Noise(seed.child("particles"), part.start), part.stop - part.start
            x = start(self.plan, self.mosaics, count, y, noise, self.device)
            if known is not None and raw is not None:
                x = torch.where(known, self._observed_values(raw, n, part, seed), x)
            cloud, order = Cloud(x, y), None
            if self.plan.apart and y is not None and y.dim() == 1:
                y, sorting, order, runs = sort_by_class(y, self.plan.apart)
                cloud = Cloud(x[:, sorting], y, runs)
            frames = evolution(flow, self.steps, cloud, noise, n_frames)
            frames = frames if order is None else [x[:, order] for x in frames]
            out.append([self.layout.write(x) for x in frames])
        join: Any = torch.cat if self.layout.tensor else np.concatenate
        return [parts[0] if len(parts) == 1 else join(parts) for parts in zip(*out, strict=True)]

    def _observed_values(self, raw: Tensor, n: int, part: slice, seed: Seed) -> Tensor:
        """The pixels, in [−1, 1], of the pictures that samples `part` of n complete."""
        columns = torch.arange(part.start, part.stop, device=raw.device) // (n // raw.shape[1])
        how: Any = dict(dequantize=self.plan.options.dequantize, total=n, runs=[part])
        return self.layout.encode(raw[:, columns], seed.child("observed", 0), **how)

    def completions(self, pictures: Any, n: int, seed: Seed, n_frames: int = 1) -> Any:
        """n completions of each picture on their way: (frames, k, n, h, w[, c])."""
        known: Any = self.observed
        array = without_hidden(pictures, known)
        raw = self.layout.read(array, self.device)
        frames = self.frames(raw.shape[1] * n, None, seed, n_frames, raw)
        completed = np.stack([np.asarray(frame) for frame in frames])
        # Encoding rounds the values; copy the exact ones.
        completed[:, :, known] = array.astype(self.layout.dtype)[:, known].repeat(n, 0)
        completed = completed.reshape(len(completed), raw.shape[1], n, *completed.shape[2:])
        return torch.from_numpy(completed) if self.layout.tensor else completed
