"""The way of some particles from noise to pictures: a listener that takes snapshots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.events import Event
from sliceflow.engine.random import Seed
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.pyramid import Subspace

__all__ = ["Evolution"]

_COUNT, _FRAMES = 64, 48


class Evolution:
    """Snapshots of some particles, as whole pictures.

    A stage moves the coefficients of its level. What is orthogonal to the level stays as it was: noise
    at first, of which the listener draws its own.

    Parameters
    ----------
    layout : of the pictures
    levels : (h, w) of every stage
    keep : a file that keeps the snapshots when a run is stopped; one that is there is gone on with
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
        self._ended = False
        self._stage = 0
        if keep.exists():
            with np.load(keep) as kept:
                self._taken = [
                    (int(k), torch.from_numpy(x))
                    for k, x in zip(kept["steps"], kept["pictures"], strict=True)
                ]
            self._x = self._taken[-1][1].clone()

    def __call__(self, event: Event) -> None:
        done, total = event.steps_done, event.steps_total
        last = done == total
        every = max(1, total // _FRAMES)
        new_stage, self._stage = event.stage_index != self._stage, event.stage_index
        if done % every and not last and not new_stage:
            return
        while len(self._taken) > 1 and self._taken[-1][0] >= done:  # by a run that got further
            self._taken.pop()
        n = event.particles.shape[1]
        some = torch.arange(min(n, _COUNT), device=event.particles.device) * n // min(n, _COUNT)
        self._x = self._painted(event.particles[:, some].float().cpu(), event.stage_index)
        self._taken.append((done, self._x))
        self._ended = last

    def close(self) -> None:
        """Keep the snapshots of a run that was stopped."""
        if self._ended:
            self._keep.unlink(missing_ok=True)
        elif self._keep.parent.is_dir():
            pictures = torch.stack([x for _, x in self._taken]).numpy()
            np.savez(self._keep, steps=[k for k, _ in self._taken], pictures=pictures)

    def pictures(self) -> list[np.ndarray]:
        """(n, h, w[, c]) of every snapshot, in the user's own kind of pixels."""
        return [np.asarray(self._layout.write(x)) for _, x in self._taken]

    def _painted(self, x: Tensor, stage: int) -> Tensor:
        space = self._spaces[stage]
        if x.shape[0] == self._layout.dimension:
            return x.clone()
        before = self._x[:, : x.shape[1]]
        return before + space.up(x - space.down(before))
