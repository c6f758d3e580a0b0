"""A fitted flow of vectors, and how to draw samples from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import need_memory
from sliceflow.engine import conditions
from sliceflow.engine.classes import sort_by_class
from sliceflow.engine.compact import Step
from sliceflow.engine.flow import Cloud, Flow, Noise, replay
from sliceflow.engine.frames import frame_bytes, releasing
from sliceflow.engine.random import Seed
from sliceflow.errors import need_finite
from sliceflow.spaces.vectors.data import FitInput
from sliceflow.spaces.vectors.local import LocalModel
from sliceflow.spaces.vectors.start import as_cloud
from sliceflow.spaces.vectors.units import Units

__all__ = ["FittedVectors", "Part"]

_CHUNK = 1 << 16  # offline samples per pass


@dataclass(frozen=True)
class Part:
    """One flow, its maps, and the units of its columns."""

    flow: Flow
    model: list[Step]
    units: Units


@dataclass(frozen=True)
class FittedVectors:
    """The state of a fitted estimator.

    Parameters
    ----------
    parts : one flow, or one per class if classes are fitted separately (ξ = ∞)
    condition : the kind of y; None without conditions
    codes : the data's conditions, encoded
    n_rows : number of rows of the data; None if a model file does not store it
    dtype : dtype of the samples
    device : device that draws the samples
    given_device : device of the user's tensors; None for arrays
    form : columns of the user's DataFrame; None for other types
    local : the rows, if conditions are local; the only part then has no maps
    given : the same rows as the user passed them
    """

    parts: tuple[Part, ...]
    condition: conditions.Condition | None
    codes: Tensor | None
    n_rows: int | None
    dtype: torch.dtype
    device: torch.device
    given_device: torch.device | None = None
    form: Form | None = None
    local: LocalModel | None = None
    given: FitInput | None = None

    @property
    def keeps_rows(self) -> bool:
        """Whether the rows of the data are part of the model."""
        return self.local is not None

    @property
    def n_columns(self) -> int:
        return len(self.parts[0].units.shift)

    @property
    def steps(self) -> list[Step]:
        """The steps of all parts."""
        return [step for part in self.parts for step in part.model]

    @property
    def rows_of_a_map(self) -> int | None:
        """Number of rows per map; with separate maps, that of the smallest class."""
        if self.codes is None or (len(self.parts) == 1 and not self.parts[0].flow.apart):
            return self.n_rows
        counts = torch.bincount(self.codes)
        return int(counts[counts > 0].min())

    def codes_for(self, n: int, y: Any, seed: Seed) -> Tensor | None:
        """The encoded conditions of n samples; None takes the data's proportions."""
        condition = self.condition
        if condition is None:
            if y is not None:
                raise ValueError("y was given but the model was fitted without conditions; omit y")
            return None
        if y is None and self.codes is not None:
            return self.codes[conditions.proportional(self.codes, n, seed)]
        codes = condition.encode(conditions.repeated(condition, y, n))
        if len(codes) != n:
            raise ValueError(
                f"y has {len(codes)} rows but n_samples={n}; pass one condition, or one per sample"
            )
        return codes

    def check_memory(self, n: int) -> None:
        """Check memory for n samples, twice because chunks are concatenated, and one chunk's work."""
        d, width = self.n_columns, self.parts[0].flow.n_conditions
        itemsize, stages = self.dtype.itemsize, self.parts[0].flow.schedule
        drawn = max((frame_bytes(stage.frame, d, width, itemsize) for stage in stages), default=0)
        chosen = 64 + 8 * width if width else 0  # bytes to choose one sample's condition
        work = 4 * min(_CHUNK, n) * d * itemsize + drawn
        need_memory(
            n * (2 * d * itemsize + chosen) + work,
            self.device,
            f"n_samples={n} of {d} columns need",
            "draw fewer at a time",
        )

    @releasing()
    def sample(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        """n fresh rows with these conditions, in the user's units."""
        if self.local is not None:
            assert codes is not None
            x = self.local.sample(codes, seed).to(self.dtype)
            return self.in_form(self.rows(self.parts[0].units, x.T))
        if len(self.parts) == 1:
            return self.in_form(self._concatenated(self._draw_chunks(self.parts[0], n, codes, seed)))
        if codes is None or codes.dim() != 1:
            raise ValueError(
                "each class was fitted separately (amplifier=inf): y must be class labels, not weights"
            )
        out = None
        for c, part in enumerate(self.parts):
            at = torch.nonzero(codes == c)[:, 0]
            if len(at):
                own = self._concatenated(self._draw_chunks(part, len(at), None, seed.child("class", c)))
                if out is None:
                    shape = (n, self.n_columns)
                    out = (
                        np.empty(shape, own.dtype)
                        if self.given_device is None
                        else own.new_empty(shape)
                    )
                out[at.numpy() if self.given_device is None else at.to(self.given_device)] = own
        return self.in_form(out)

    def _draw_chunks(self, part: Part, n: int, codes: Tensor | None, seed: Seed) -> list[Any]:
        out = []
        for first in range(0, n, _CHUNK):
            count = min(_CHUNK, n - first)
            x = torch.empty((count, self.n_columns), dtype=self.dtype)
            own = None if codes is None else codes[first : first + count]
            chunk = as_cloud(x, own, self.device)
            noise = Noise(seed.child("particles"), first)
            noise.child("start").fill(chunk.x)
            out.append(self.rows(part.units, _replayed(part, chunk, noise)))
        return out

    def rows(self, units: Units, x: Tensor) -> Any:
        """(d, n) in the engine's units -> (n, d) in the user's units, as an array or tensor."""
        rows = units.decode(x)
        need_finite(rows, "rescale X, drop outliers, or pass float64")
        if self.given_device is None:
            return np.ascontiguousarray(rows.cpu().numpy())
        return rows.contiguous().to(self.given_device)

    def in_form(self, rows: Any) -> Any:
        """Rows as a DataFrame, if X was one."""
        return rows if self.form is None else self.form.made(rows)

    def _concatenated(self, chunks: Sequence[Any]) -> Any:
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate(chunks) if self.given_device is None else torch.cat(list(chunks))


def _replayed(part: Part, particles: Cloud, noise: Noise) -> Tensor:
    """x (d, n) of particles moved by a model."""
    y, place = particles.y, None
    if part.flow.apart and y is not None and y.dim() == 1:
        y, order, place, runs = sort_by_class(y, part.flow.n_conditions)
        particles = Cloud(particles.x[:, order], y, runs)
    replay(part.flow, part.model, particles, noise)
    return particles.x if place is None else particles.x[:, place]
