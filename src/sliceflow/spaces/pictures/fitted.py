"""A fitted flow of pictures, and how to draw samples and completions from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import need_memory
from sliceflow.engine import conditions
from sliceflow.engine.classes import sort_by_class
from sliceflow.engine.compact import Step
from sliceflow.engine.flow import Cloud, Noise
from sliceflow.engine.frames import releasing
from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.layout import Layout, as_array
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.sums import Sums, start_of

__all__ = ["FittedPictures"]

_CHUNK = 1 << 13  # offline samples per pass


@dataclass(frozen=True)
class FittedPictures:
    """The state of a fitted estimator.

    Parameters
    ----------
    levels : the flow through the levels of the pyramid
    model : the steps of each stage
    condition : classes or clusters; None without
    codes : the data's classes
    n_rows : number of pictures given to `fit`; None if a model file does not store it
    device : device that draws the samples
    mask : (d, 1) observed pixels, or None
    sums : of the pictures that particles start from; None is noise
    """

    levels: LevelFlow
    model: list[list[Step]]
    condition: conditions.Labels | None
    codes: Tensor | None
    n_rows: int | None
    device: torch.device
    mask: Tensor | None = None
    sums: Sums | None = None

    @property
    def layout(self) -> Layout:
        return self.levels.layout

    @property
    def observed(self) -> np.ndarray | None:
        """(h, w) booleans, True where a pixel is known, in all channels."""
        return None if self.mask is None else self.mask.view(*self.layout.shape)[0].numpy()

    @property
    def keeps_rows(self) -> bool:
        """Whether the model keeps the pictures."""
        return self.sums is not None

    @property
    def steps(self) -> list[Step]:
        """The steps of all stages."""
        return [step for steps in self.model for step in steps]

    @property
    def rows_of_a_map(self) -> int | None:
        """Number of pictures per map; with separate maps, that of the smallest class."""
        if self.codes is None or not self.levels.apart:
            return self.n_rows
        counts = torch.bincount(self.codes)
        return int(counts[counts > 0].min())

    def check_model(self) -> None:
        """Raise a ValueError if the model has no maps."""
        if not self.model[0]:
            raise ValueError(
                "the model was fitted with n_knots=0, which keeps no maps; fit again with n_knots > 0"
            )

    def codes_for(self, n: int, y: Any, seed: Seed) -> Tensor | None:
        """The encoded classes of n samples; None takes the data's proportions."""
        condition, codes = self.condition, self.codes
        if (condition is None or condition.hidden) and y is not None:
            raise ValueError("y was given but the model was fitted without labels; omit y")
        if condition is None or codes is None:
            return None
        if y is None:
            return codes[conditions.proportional(codes, n, seed.child("conditions"))]
        requested = condition.encode(conditions.repeated(condition, y, n))
        if len(requested) != n:
            raise ValueError(
                f"y has {len(requested)} labels but n_samples={n}; pass one label, or one per sample"
            )
        return requested

    def samples(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        """n pictures with these codes."""
        return self._drawn(n, codes, seed)[0]

    def evolution(self, n: int, codes: Tensor | None, seed: Seed, n_frames: int) -> Any:
        """n pictures on their way: (frames, n, h, w[, c])."""
        return _stacked(self._drawn(n, codes, seed, n_frames))

    def completions(self, pictures: Any, n_samples: int, seed: Seed, n_frames: int = 1) -> Any:
        """`n_samples` completions of each picture on their way: (frames, n, n_samples, h, w[, c])."""
        raw, where = self.layout.read(pictures, self.device), self.observed
        frames = self._drawn(raw.shape[1] * n_samples, None, seed, n_frames, raw)
        completed = np.asarray(_stacked(frames))
        # Encoding rounds the values; copy the exact ones.
        exact = as_array(pictures).astype(self.layout.dtype)[:, where].repeat(n_samples, 0)
        completed[:, :, where] = exact
        completed = completed.reshape(len(frames), raw.shape[1], n_samples, *completed.shape[2:])
        return torch.from_numpy(completed) if self.layout.tensor else completed

    def completed(self, pictures: Any, mask: Any, n_samples: int, y: Any, seed: Seed) -> Any:
        """Completions (n, n_samples, h, w[, c]) from any part, by the pictures that the model keeps."""
        from sliceflow.spaces.pictures.inpainting import complete_pictures

        sums, labels = self.sums, dict[str, Any]()
        assert sums is not None
        if y is not None:
            if self.condition is None or sums.codes is None:
                raise ValueError("y was given but the model was fitted without labels; omit y")
            n = len(as_array(pictures))
            codes = self.condition.encode(conditions.repeated(self.condition, y, n))
            labels = {"y": codes.numpy(), "like_y": sums.codes[: self.n_rows].cpu().numpy()}
        done = complete_pictures(
            pictures,
            mask,
            sums.pictures(self.n_rows, self.layout),
            n=n_samples,
            n_pixel_values=self.layout.n_pixel_values or 256,
            seed=seed,
            **labels,
        )
        return torch.from_numpy(done) if self.layout.tensor else done

    @releasing()
    def _drawn(
        self,
        n: int,
        codes: Tensor | None,
        seed: Seed,
        n_frames: int = 1,
        raw: Tensor | None = None,
    ) -> list[Any]:
        """The frames of n pictures, the last at the end; `raw` (d, N) are pictures to complete."""
        self.check_memory(n * n_frames)
        out, chunk = [], self._chunk()
        for part in (slice(first, min(first + chunk, n)) for first in range(0, n, chunk)):
            y = None if codes is None else codes[part].to(self.device)
            values = None if raw is None else self._observed_values(raw, n, part, seed)
            frames = self.moved(seed, part, y, values, n_frames)
            out.append([self.layout.write(x) for x in frames])
        return [_concatenated(list(parts)) for parts in zip(*out, strict=True)]

    def _observed_values(self, raw: Tensor, n: int, part: slice, seed: Seed) -> Tensor:
        """The pixels, in [−1, 1], of the pictures that samples `part` of n complete."""
        columns = torch.arange(part.start, part.stop, device=raw.device) // (n // raw.shape[1])
        return self.layout.encode(
            raw[:, columns],
            seed.child("observed", 0),
            dequantize=self.levels.dequantize,
            total=n,
            runs=[part],
        )

    def moved(
        self,
        seed: Seed,
        part: slice,
        y: Tensor | None = None,
        values: Tensor | None = None,
        n_frames: int = 1,
    ) -> list[Tensor]:
        """Particles `part` on their way, (d, n) each; the last are moved by all of the model.

        Parameters
        ----------
        y : their codes
        values : (d, n), the source of their observed pixels
        n_frames : with 1 only the end
        """
        cloud, place, noise = self._start(seed, part.start, part.stop - part.start, y, values)
        if n_frames == 1:
            self.levels.replay(cloud, self.model, noise)
            frames = [cloud.x]
        else:
            frames = self.levels.evolution(cloud, self.model, noise, n_frames)
        return frames if place is None else [x[:, place] for x in frames]

    def _start(
        self, seed: Seed, first: int, count: int, y: Tensor | None, values: Tensor | None = None
    ) -> tuple[Cloud, Tensor | None, Noise]:
        """The start of samples, how to put them back into their order, and their random numbers."""
        noise = Noise(seed.child("particles"), first)
        x = start_of(self.levels, self.sums, count, y, noise, self.device, values)
        if self.levels.apart and y is not None and y.dim() == 1:
            y, order, place, runs = sort_by_class(y, self.levels.apart)
            return Cloud(x[:, order], y, runs), place, noise
        return Cloud(x, y), None, noise

    def check_memory(self, n: int) -> None:
        """Check memory for n pictures, twice because chunks are concatenated, and their codes."""
        layout, moved = self.levels.layout, min(n, self._chunk())
        need_memory(
            n * (2 * layout.dimension * np.dtype(layout.dtype).itemsize + 64)
            + 4 * 4 * moved * layout.dimension,
            self.device,
            f"{n} pictures of {layout.dimension} values need",
            "draw fewer at a time",
        )

    def _chunk(self) -> int:
        """Samples per pass: more on a GPU, where a small step takes as long as a large one."""
        if self.device.type == "cpu":
            return _CHUNK
        return max(_CHUNK, min(1 << 16, (1 << 26) // self.levels.layout.dimension))


def _concatenated(chunks: list[Any]) -> Any:
    """Pictures of all chunks, as an array or tensor like the chunks."""
    if len(chunks) == 1:
        return chunks[0]
    return torch.cat(chunks) if isinstance(chunks[0], Tensor) else np.concatenate(chunks)


def _stacked(frames: list[Any]) -> Any:
    """Frames as one array or tensor."""
    return torch.stack(frames) if isinstance(frames[0], Tensor) else np.stack(frames)
