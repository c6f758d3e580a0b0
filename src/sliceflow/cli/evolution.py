"""evolution.gif: some particles on their way from noise to pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.cli.data import Data
from sliceflow.cli.grid import animation, as_bytes, by_class, grid
from sliceflow.engine.events import Event
from sliceflow.engine.random import Seed
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.options import PictureOptions
from sliceflow.pictures.plan import choose_start
from sliceflow.pictures.pyramid import Subspace

__all__ = ["Evolution", "write_evolution"]

_COUNT, _SNAPSHOTS, _FRAMES = 64, 48, 40


class Evolution:
    """A listener that takes snapshots of some particles, as whole pictures.

    A stage moves the coefficients of its resolution. What is orthogonal to it stays as it was: noise
    at first, which the listener draws itself.

    Parameters
    ----------
    layout : of the pictures
    levels : (h, w) of every stage
    keep : the file that keeps the snapshots of an interrupted run; an existing one is continued
    """

    def __init__(
        self,
        layout: Layout,
        levels: list[tuple[int, int]],
        *,
        start_noise: float,
        upsampling: str,
        keep: Path,
    ) -> None:
        self._layout, self._keep = layout, keep
        self._spaces = [Subspace(*layout.shape, h, w, upsampling) for h, w in levels]
        self._x = start_noise * Seed(0).normal(layout.dimension, _COUNT, dtype=torch.float32)
        self._taken: list[tuple[int, Tensor]] = [(0, self._x.clone())]
        self._ended, self._stage = False, 0
        if keep.exists():
            with np.load(keep) as kept:
                pictures = map(torch.from_numpy, kept["pictures"])
                self._taken = list(zip(kept["steps"].tolist(), pictures, strict=True))
            self._x = self._taken[-1][1].clone()

    @classmethod
    def of(cls, flow: Any, data: Data, keep: Path) -> Evolution:
        """The listener for fitting `flow` to the data."""
        layout, options = Layout.of(data.x, flow.n_pixel_values), flow.options or PictureOptions()
        levels = [(stage.h, stage.w) for stage in flow.stages(*layout.shape[1:], layout.shape[0])]
        # A film of sums of pictures begins grey: this listener does not see where they start.
        summed = choose_start(options.start, layout, False, False, flow.observed is not None)
        noise, upsampling = 0.0 if summed else options.start_noise, options.upsampling
        return cls(layout, levels, start_noise=noise, upsampling=upsampling, keep=keep)

    def __call__(self, event: Event) -> None:
        done, total = event.steps_done, event.steps_total
        last, new_stage = done == total, event.stage_index != self._stage
        self._stage = event.stage_index
        if done % max(1, total // _SNAPSHOTS) and not last and not new_stage:
            return
        while len(self._taken) > 1 and self._taken[-1][0] >= done:  # from a run that got further
            self._taken.pop()
        n = event.particles.shape[1]
        some = torch.arange(min(n, _COUNT), device=event.particles.device) * n // min(n, _COUNT)
        self._x = self._whole_pictures(event.particles[:, some].float().cpu(), event.stage_index)
        self._taken.append((done, self._x))
        self._ended = last

    def close(self) -> None:
        """Keep the snapshots of an interrupted run."""
        if self._ended:
            self._keep.unlink(missing_ok=True)
        elif self._keep.parent.is_dir():
            pictures = torch.stack([x for _, x in self._taken]).numpy()
            np.savez(self._keep, steps=[k for k, _ in self._taken], pictures=pictures)

    def pictures(self) -> list[np.ndarray]:
        """(n, h, w[, c]) of every snapshot, with the user's own kind of pixels."""
        return [np.asarray(self._layout.write(x)) for _, x in self._taken]

    def _whole_pictures(self, x: Tensor, stage: int) -> Tensor:
        space = self._spaces[stage]
        if x.shape[0] == self._layout.dimension:
            return x.clone()
        before = self._x[:, : x.shape[1]]
        return before + space.up(x - space.down(before))


def write_evolution(evolution: Evolution, train: Data, path: Path) -> None:
    """Write the snapshots as an animation."""
    taken = evolution.pictures()
    # Colours make a .gif large: fewer frames, and fewer pictures.
    taken = [taken[i] for i in np.unique(np.linspace(0, len(taken) - 1, _FRAMES).round().astype(int))]
    side, n = 8 if train.x.ndim == 3 else 6, len(taken[-1])
    some = np.arange(min(n, side**2)) * n // min(n, side**2)  # spread: they may come class by class
    shown = (by_class(as_bytes(p[some], train.n_pixel_values), None, side)[0] for p in taken)
    animation(path, [grid(p, 32, ground=128) for p in shown])  # a .gif cannot fit the page: grey
