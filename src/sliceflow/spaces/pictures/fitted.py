"""A fitted flow of pictures, and how to draw samples and completions from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.clouds import Cloud, sort_by_class
from sliceflow.engine.compact import CompactMap, ModelStep
from sliceflow.engine.flow import Noise
from sliceflow.engine.frames import freeing_rotation_pools
from sliceflow.engine.random import Seed
from sliceflow.fields import Array
from sliceflow.models.limits import check_steps
from sliceflow.models.rows import Conditions, HasConditions
from sliceflow.spaces.pictures.inpainting import without_hidden
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import LevelFlow, evolution
from sliceflow.spaces.pictures.mosaics import Mosaics, kept_layout, mosaics_of, start
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import check_labels

_CHUNK = 1 << 13  # offline samples per pass


@dataclass(frozen=True)
class FittedPictures(HasConditions):
    """The state of a fitted estimator."""

    plan: PicturePlan
    seed: Seed  # of the fit: its frames are drawn again
    steps: tuple[ModelStep, ...]
    given: Conditions | None = None  # classes or clusters, also of mirror images
    observed: Annotated[np.ndarray, Array("h w", torch.bool)] | None = (
        None  # pixels that are known
    )
    # the pictures that particles start from; None is noise
    pixels: (
        Annotated[Tensor, Array("n c h w", torch.uint8, packed="pictures")] | None
    ) = None
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})
    needs_rows = False  # mosaics keep their own pictures

    def check(self) -> None:
        plan = self.plan
        layout = self.plan.layout
        codes = self.codes
        check_labels(self.given)
        if (width := self.n_conditions) != plan.n_conditions:
            raise ValueError(
                f"the condition has width {width}, the plan {plan.n_conditions}"
            )
        if (self.observed is not None) != (plan.condition == "observed"):
            raise ValueError("observed pixels and condition do not fit")
        if self.observed is not None and self.observed.shape != layout.shape[1:]:
            shape = self.observed.shape
            raise ValueError(
                f"observed pixels have shape {shape}, not {layout.shape[1:]}"
            )
        if (self.pixels is not None) != (plan.n_summed > 0):
            raise ValueError("the kept pictures and the start of the plan do not fit")
        if self.pixels is not None:
            n = len(self.pixels)
            values = kept_layout(layout).n_pixel_values or 0
            if (
                n == 0
                or self.pixels.shape[1:] != layout.shape
                or int(self.pixels.max()) >= values
            ):
                raise ValueError(
                    f"the kept pictures are not at least one of {layout.shape}"
                )
            if plan.per_class and (
                codes is None or len(codes) != n * (1 + plan.mirror)
            ):
                raise ValueError(f"there are not codes for {n} kept pictures")
        levels = LevelFlow(plan, self.seed, torch.device("cpu"))
        each = plan.per_class or 1
        about = (
            layout.dimension,
            torch.float32,
            codes,
            max(1.0, plan.options.start_noise),
        )
        check_steps(
            levels.flow(),
            self.steps,
            lambda i, k: levels.count_directions(i, k) * each,
            *about,
        )
        if any(step.theta is not None for step in self.steps):
            raise ValueError(
                "a step has directions of its own, which those of pictures never have"
            )

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    @cached_property
    def mosaics(self) -> Mosaics | None:
        """The start of particles; None is noise."""
        return mosaics_of(self.plan, self.pixels, self.codes, self.device)

    def sample_bytes(self, n: int = 1) -> int:
        """Twice n pictures, because chunks are joined, their codes, a chunk's work, the largest grid."""
        d = self.layout.dimension
        pixels = 2 * d * np.dtype(self.layout.dtype).itemsize + 64
        work = 4 * min(n, self._chunk()) * (3 * d + max(self.plan.directions))
        compact = [step.map for step in self.steps if isinstance(step.map, CompactMap)]
        grids = max(
            (24 * table.n_maps * (table.n_bins + 1) for table in compact), default=0
        )
        return n * pixels + work + self.plan.frame_bytes + grids

    def _chunk(self) -> int:
        """Samples per pass: more on a GPU, where a small step takes as long as a large one."""
        if self.device.type == "cpu":
            return _CHUNK
        return max(_CHUNK, min(1 << 16, (1 << 26) // self.layout.dimension))

    def columns(self, X: Any) -> Tensor:
        return self.layout.encode(self._raw(X))

    def _raw(self, X: Any) -> Tensor:
        """Pixels of the user's pictures as columns (d, n)."""
        return self.layout.columns(torch.from_numpy(self.layout.read(X)))

    def draw(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        return self.frames(n, codes, seed)[0]

    @freeing_rotation_pools()
    def frames(
        self,
        n: int,
        codes: Tensor | None,
        seed: Seed,
        n_frames: int = 1,
        raw: Tensor | None = None,
    ) -> list[Any]:
        """n pictures on their way, the last frame at the end; `raw` (d, N) are pictures to complete."""
        if not self.steps:
            raise ValueError(
                "it was fitted with n_knots=0, which keeps no maps; fit with n_knots > 0"
            )
        if self.observed is not None and raw is None:
            raise ValueError(
                "this model completes pictures (observed=…); call inpaint(X)"
            )
        known = self.layout.known(self.observed, self.device)
        flow = LevelFlow(self.plan, self.seed, self.device, known).flow()
        out = []
        chunk = self._chunk()
        for part in (
            slice(first, min(first + chunk, n)) for first in range(0, n, chunk)
        ):
            y = None if codes is None else codes[part].to(self.device)
            noise = Noise(seed.child("particles"), part.start)
            count = part.stop - part.start
            x = start(self.plan, self.mosaics, count, y, noise, self.device)
            if known is not None and raw is not None:
                columns = torch.arange(part.start, part.stop, device=raw.device) // (
                    n // raw.shape[1]
                )
                fractions = seed.child("observed", 0)
                given = self.layout.encode(
                    raw[:, columns], fractions, total=n, class_slices=[part]
                )
                x = torch.where(known, given, x)
            cloud = Cloud(x, y)
            order = None
            if self.plan.per_class and y is not None:
                y, sorting, order, class_slices = sort_by_class(y, self.plan.per_class)
                cloud = Cloud(x[:, sorting], y, class_slices)
            frames = evolution(flow, self.steps, cloud, noise, n_frames)
            frames = frames if order is None else [x[:, order] for x in frames]
            out.append([self.layout.write(x) for x in frames])
        join: Any = torch.cat if self.layout.tensor else np.concatenate
        return [
            parts[0] if len(parts) == 1 else join(parts)
            for parts in zip(*out, strict=True)
        ]

    def completions(self, pictures: Any, n: int, seed: Seed, n_frames: int = 1) -> Any:
        """n completions of each picture on their way: (frames, k, n, h, w[, c])."""
        known: Any = self.observed
        array = without_hidden(pictures, known)
        raw = self._raw(array).to(self.device)
        frames = self.frames(raw.shape[1] * n, None, seed, n_frames, raw)
        completed = np.stack([np.asarray(frame) for frame in frames])
        # Encoding rounds the values; copy the exact ones.
        completed[:, :, known] = array.astype(self.layout.dtype)[:, known].repeat(n, 0)
        completed = completed.reshape(
            len(completed), raw.shape[1], n, *completed.shape[2:]
        )
        return torch.from_numpy(completed) if self.layout.tensor else completed
