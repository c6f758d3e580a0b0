"""The walk of the particles through the levels of a pyramid: the engine, stage by stage.

Each stage runs `flow` with local frames (`local`) in its level's subspace (`pyramid`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sliceflow import events, schedule, transports
from sliceflow.flow import Cloud, Flow, Noise, Step, replay, simulate
from sliceflow.frames import AnyFrame
from sliceflow.local import TileFrame, Tiles
from sliceflow.pictures import Layout
from sliceflow.pyramid import Subspace
from sliceflow.rng import Seed

__all__ = ["Painted", "Walk"]


@dataclass(frozen=True)
class Walk:
    """The way of the particles through the levels of a pyramid, shared by fitting and sampling.

    A level runs on its coefficients alone and is painted back once, when its stage is done. Where
    pixels are observed that cannot be: every step is painted, and the observed pixels masked.
    """

    layout: Layout
    stages: list[schedule.PictureStage]
    seed: Seed
    n_conditions: int
    amplifier: float
    known: Tensor | None
    upsampling: str
    clip: bool
    taper: float

    def _engine(self, i: int) -> tuple[Flow, Subspace]:
        """The flow of stage i, and the subspace it runs in."""
        level, (c, h, w) = self.stages[i], self.layout.shape
        subspace = Subspace(c, h, w, level.h, level.w, self.upsampling)
        tiles = Tiles(c, level.h, level.w, level.patch)
        last = i == len(self.stages) - 1
        stage = schedule.Stage(
            f"{level.h}×{level.w}[{level.patch}]",
            tiles if self.known is None else Painted(subspace, tiles),
            level.n_steps,
            taper=self.taper if last else 0.0,
        )
        mask = None if self.known is None else (~self.known).float()
        flow = Flow([stage], self.seed.child("level", i), self.n_conditions, self.amplifier, mask=mask)
        return flow, subspace

    def _levels(self, particles: Cloud) -> Iterator[tuple[int, Flow, Subspace, Cloud]]:
        """Each stage with the cloud that it moves; painted back, and clipped, when it is done."""
        for i in range(len(self.stages)):
            flow, subspace = self._engine(i)
            if self.known is not None or subspace.whole:
                yield i, flow, subspace, particles
            else:
                before = subspace.down(particles.x)
                cloud = Cloud(before.clone(), particles.y)
                yield i, flow, subspace, cloud
                particles.x += subspace.up(cloud.x - before)
            if self.clip and subspace.whole:
                particles.x.clamp_(-1, 1)

    def simulate(
        self,
        particles: Cloud,
        data: Callable[[int], Cloud],
        transport: transports.Transport,
        noise: Noise,
        n_knots: int,
        listeners: list[events.Listener],
    ) -> list[list[Step]]:
        """Move particles onto the data, `data(i)` being its cloud at stage i; the model per stage."""
        total = sum(level.n_steps for level in self.stages)
        done, began = 0, events.now()
        model = []
        for i, flow, subspace, cloud in self._levels(particles):
            target = data(i)
            if self.known is None:
                target = Cloud(subspace.down(target.x), target.y)

            last = 0

            def relay(event: events.Event, i: int = i, before: int = done, total: int = total) -> bool:
                nonlocal last
                last = event.step + 1
                whole = replace(
                    event,
                    stage_index=i,
                    steps_done=before + last,
                    steps_total=total,
                    seconds=events.now() - began,
                )
                return events.tell(listeners, whole)

            model.append(
                simulate(flow, cloud, target, transport, noise, n_knots=n_knots, listeners=[relay])
            )
            done += last
            total -= self.stages[i].n_steps - last  # a listener may have ended the stage early
        return model

    def replay(self, particles: Cloud, model: list[list[Step]], noise: Noise) -> None:
        """Move fresh particles by a model."""
        for i, flow, _, cloud in self._levels(particles):
            replay(flow, model[i], cloud, noise)


@dataclass(frozen=True)
class Painted:
    """Tiles of a pyramid level, seen from the pixels: project through `down`, lift through `up`."""

    subspace: Subspace
    tiles: Tiles

    def draw(
        self, seed: Seed, step: int, d: int, n_conditions: int, device: torch.device | str = "cpu"
    ) -> PaintedFrame:
        inner = self.tiles.draw(seed, step, self.subspace.dimension, n_conditions, device)
        return PaintedFrame(self.subspace, inner)


@dataclass(frozen=True)
class PaintedFrame:
    """One step's frame of `Painted`."""

    subspace: Subspace
    inner: TileFrame

    @property
    def theta_y(self) -> Tensor | None:
        return self.inner.theta_y

    def project(self, x: Tensor) -> Tensor:
        return self.inner.project(self.subspace.down(x))

    def lift(self, dz: Tensor) -> Tensor:
        return self.subspace.up(self.inner.lift(dz))

    def to(self, device: torch.device, dtype: torch.dtype) -> AnyFrame:
        return PaintedFrame(self.subspace, self.inner.to(device, dtype))
