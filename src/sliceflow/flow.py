"""The algorithm: move particles onto data, step by step, and replay the steps on other particles.

This is Algorithm 1 of Du et al. (ICML 2023) with its pieces handed in: frames (inside the schedule), a
transport, the schedule, and the condition. `simulate` is the whole method; read it first.

Particles and data are stored as columns, (d, n), throughout the engine: projections (h, n) then have
each direction's values side by side in memory, which is what sorting and counting want.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.conditions import add_offset, row_weights
from sliceflow.events import Event, Listener, now, tell
from sliceflow.frames import AnyFrame, Axis
from sliceflow.rng import Seed
from sliceflow.schedule import Stage
from sliceflow.transports import Table, Transport

__all__ = ["Cloud", "Flow", "Noise", "Step", "replay", "simulate"]


@dataclass
class Cloud:
    """Points with their conditions: x (d, n) moves, y (codes of n rows, or None) never does."""

    x: Tensor
    y: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One step of a model: T is kept, the frame is drawn again from its place in the schedule."""

    stage: int
    step: int
    table: Table


@dataclass(frozen=True)
class Noise:
    """Where the particles' own random numbers come from: particle j draws row `first + j`.

    So a particle's numbers do not depend on how many others there are, nor on the chunk it is in.
    """

    seed: Seed
    first: int = 0

    def child(self, *names: str | int) -> Noise:
        return Noise(self.seed.child(*names), self.first)

    def normal(self, like: Tensor) -> Tensor:
        """N(0, I) of the shape (d, n), type and device of `like`."""
        d, n = like.shape
        rows = self.seed.normal(n, d, start=self.first, dtype=like.dtype, device=like.device)
        return rows.T.contiguous()


@dataclass(frozen=True)
class Flow:
    """What simulating and replaying have in common.

    Parameters
    ----------
    schedule : the stages
    seed : root of the frames' seeds
    n_conditions : l, the width of the condition; 0 for none
    amplifier : ξ. At 0 the condition cannot be seen: the unconditional flow, bit for bit
    entropy : λ of the entropy-regularised flow (Liutkus et al. 2019)
    mask : (d, 1), 1 where x moves and 0 where it is observed and never does; None moves all of it
    """

    schedule: Sequence[Stage]
    seed: Seed
    n_conditions: int = 0
    amplifier: float = 10.0
    entropy: float = 0.0
    mask: Tensor | None = None

    @property
    def conditional(self) -> bool:
        return self.n_conditions > 0 and self.amplifier > 0

    def frame(self, i: int, k: int, x: Tensor) -> AnyFrame:
        """The frame of step k of stage i, on x's device and in its precision."""
        width = self.n_conditions if self.conditional else 0
        seed = self.seed.child("frame", i)
        frame = self.schedule[i].frame.draw(seed, k, x.shape[0], width, x.device)
        return frame.to(x.device, x.dtype)

    def project(self, frame: AnyFrame, cloud: Cloud) -> Tensor:
        """z = Θx + ξ·θ_yᵀy, (h, n)."""
        z = frame.project(cloud.x)
        if cloud.y is None or frame.theta_y is None:
            return z
        return add_offset(z, frame.theta_y, cloud.y, self.amplifier)

    def move(self, x: Tensor, frame: AnyFrame, dz: Tensor, i: int, k: int, noise: Noise) -> None:
        """x += s·Θᵀdz/c + √(2λη)·ε in place, η = s·d being the step in the paper's units."""
        stage, d = self.schedule[i], x.shape[0]
        size = stage.size_of(k)
        dx = frame.lift(dz)
        x.add_(dx if self.mask is None else dx * self.mask, alpha=size)
        if self.entropy > 0 and not isinstance(stage.frame, Axis):  # axis steps are exact: no noise
            epsilon = noise.child("entropy", i, k).normal(x)
            x.add_(epsilon, alpha=math.sqrt(2 * self.entropy * size * d))


def simulate(
    flow: Flow,
    particles: Cloud,
    data: Cloud,
    transport: Transport,
    noise: Noise,
    *,
    n_knots: int = 512,
    listeners: Sequence[Listener] = (),
) -> list[Step]:
    """Move the particles onto the data, in place, and return the model: the steps that did it.

    Only ``particles.x`` is ever written; the velocity of y is masked by construction. A listener that
    returns True ends the stage. At most `n_knots` knots are kept of each map; 0 keeps no model.
    """
    data, weights = weigh(flow, data, particles)
    model: list[Step] = []
    done, total, began = 0, sum(stage.n_steps for stage in flow.schedule), now()
    for i, stage in enumerate(flow.schedule):
        fit = (stage.transport or transport).fit
        for k in range(stage.n_steps):
            frame = flow.frame(i, k, particles.x)
            z_p, z_q = flow.project(frame, particles), flow.project(frame, data)
            table, dz = fit(z_p, z_q, weights, flow.seed.child("transport", i, k))
            flow.move(particles.x, frame, dz, i, k, noise)

            if n_knots > 0:
                model.append(Step(i, k, table.thin(n_knots)))
            done += 1
            distance = torch.linalg.vector_norm(dz) / math.sqrt(dz.numel())
            event = Event(stage.name, i, k, done, total, distance, now() - began, particles.x)
            if tell(listeners, event):
                total -= stage.n_steps - (k + 1)
                break
    return model


def replay(flow: Flow, model: Sequence[Step], particles: Cloud, noise: Noise) -> None:
    """Move fresh particles, in place, by the steps of a model: no data, no fitting."""
    for step in model:
        frame = flow.frame(step.stage, step.step, particles.x)
        dz = step.table.displace(flow.project(frame, particles))
        flow.move(particles.x, frame, dz, step.stage, step.step, noise)


def weigh(flow: Flow, data: Cloud, particles: Cloud) -> tuple[Cloud, Tensor | None]:
    """The data and the weights of its rows under the particles' conditions; unused rows left out."""
    if not flow.conditional or data.y is None or particles.y is None:
        return data, None
    weights = row_weights(data.y, particles.y)
    if weights is None or bool(weights.all()):
        return data, weights
    used = weights > 0
    return Cloud(data.x[:, used], data.y[used]), weights[used]
