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
from sliceflow.pictures.layout import Layout, as_array
from sliceflow.pictures.levels import LevelFlow
from sliceflow.pictures.sums import Sums, start_of

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

    @releasing()
    def samples(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        """n pictures with these codes."""
        self.check_memory(n)
        out, chunk, write = [], self._chunk(), self.levels.layout.write
        for first in range(0, n, chunk):
            count = min(chunk, n - first)
            y = None if codes is None else codes[first : first + count].to(self.device)
            out.append(write(self.moved(seed, first, count, y)))
        return _concatenated(out)

    @releasing()
    def completions(self, pictures: Any, where: np.ndarray, n_samples: int, seed: Seed) -> Any:
        """`n_samples` completions per picture; keeps the pixels `where` (h, w)."""
        layout = self.levels.layout
        raw = layout.read(pictures, self.device)
        n, out, chunk = raw.shape[1] * n_samples, [], self._chunk()
        self.check_memory(n)
        for part in (slice(first, min(first + chunk, n)) for first in range(0, n, chunk)):
            first, columns = part.start, torch.arange(part.start, part.stop, device=raw.device)
            columns //= n_samples
            values = layout.encode(
                raw[:, columns],
                seed.child("observed", 0),
                dequantize=self.levels.dequantize,
                total=n,
                runs=[part],
            )
            out.append(layout.write(self.moved(seed, first, len(columns), None, values)))
        completed = np.asarray(_concatenated(out))
        # Encoding rounds the values; copy the exact ones.
        completed[:, where] = as_array(pictures).astype(layout.dtype)[:, where].repeat(n_samples, 0)
        completed = completed.reshape(raw.shape[1], n_samples, *completed.shape[1:])
        return torch.from_numpy(completed) if layout.tensor else completed

    def moved(
        self, seed: Seed, first: int, count: int, y: Tensor | None = None, values: Tensor | None = None
    ) -> Tensor:
        """Particles `first` to first + count, moved by the model: (d, count).

        Parameters
        ----------
        y : their codes
        values : (d, count), the source of their observed pixels
        """
        cloud, place, noise = self._start(seed, first, count, y, values)
        self.levels.replay(cloud, self.model, noise)
        return cloud.x if place is None else cloud.x[:, place]

    @releasing()
    def evolution(self, n: int, codes: Tensor | None, seed: Seed, n_frames: int) -> Any:
        """n pictures on their way: (frames, n, h, w[, c])."""
        self.check_memory(n * n_frames)
        out, chunk = [], self._chunk()
        for first in range(0, n, chunk):
            count = min(chunk, n - first)
            y = None if codes is None else codes[first : first + count].to(self.device)
            cloud, place, noise = self._start(seed, first, count, y)
            frames = self.levels.evolution(cloud, self.model, noise, n_frames)
            out.append([self.layout.write(x if place is None else x[:, place]) for x in frames])
        whole = [_concatenated(list(parts)) for parts in zip(*out, strict=True)]
        return torch.stack(whole) if isinstance(whole[0], Tensor) else np.stack(whole)

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
