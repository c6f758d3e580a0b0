"""Events and their listeners: how to watch and stop a running flow.

A listener is any callable that takes an `Event`. If it returns True, the current stage ends. Its method
``close``, if any, is called when the run ends, even with an error.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import need

__all__ = [
    "Event", "HeldOut", "History", "Listener", "Listeners", "Progress", "closing", "joined",
    "listening", "now", "relayed", "tell",
]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """The state after a step.

    `distance` is the sliced distance before the step, √(mean over directions of W₂²), in the units of
    the flow (standardised data): a tensor, so that a GPU need not wait; ``float(event.distance)`` reads
    it. `moving` is the share of maps that move anything; None without shrinkage. `particles` (d, M)
    belong to the flow: do not write to them. `stage_steps` is the most steps that the stage may have.
    """

    stage: str
    stage_index: int
    step: int
    steps_done: int
    steps_total: int
    distance: Tensor
    seconds: float
    particles: Tensor
    moving: Tensor | None = None
    stage_steps: int = 0
    measure: str = "sliced distance"  # what `distance` is; of tables, "unexplained share"


Listener = Callable[[Event], bool | None]
Listeners = Listener | Iterable[Listener] | None


_COLUMNS = ("stage", "step", "distance", "moving", "seconds")  # of a history


@dataclass
class History:
    """Records the events. `moving` is the share of maps that move anything: 1 without shrinkage."""

    events: list[tuple[str, int, Tensor, Tensor | None, float]] = field(default_factory=list)
    before: dict[str, list[Any]] = field(default_factory=dict)  # of the run that is resumed

    def __call__(self, event: Event) -> None:
        self.events.append((event.stage, event.step, event.distance, event.moving, event.seconds))

    def as_columns(self) -> dict[str, list[Any]]:
        """Lists of equal length, for ``pandas.DataFrame(history)``."""
        columns: list[list[Any]] = [[e[i] for e in self.events] for i in range(len(_COLUMNS))]
        columns[2], columns[3] = _numbers(columns[2]), _numbers(columns[3])
        return {n: [*self.before.get(n, []), *c] for n, c in zip(_COLUMNS, columns, strict=True)}


def _numbers(values: Sequence[Tensor | None]) -> list[float]:
    """The numbers of tensors, read together; 1 for None."""
    known = [value.double() for value in values if value is not None]
    numbers = iter(torch.stack(known).tolist() if known else [])
    return [1.0 if value is None else next(numbers) for value in values]


def joined(histories: Sequence[dict[str, list[Any]]], names: Sequence[str]) -> dict[str, list[Any]]:
    """The histories of several fits, one behind the other; `names` go before those of their stages."""
    out: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
    for columns, name in zip(histories, names, strict=True):
        before = out["seconds"][-1] if out["seconds"] else 0.0
        stages = [f"{name}: {stage}" for stage in columns["stage"]]
        seconds = [before + s for s in columns["seconds"]]
        for column, values in (columns | {"stage": stages, "seconds": seconds}).items():
            out[column] += values
    return out


class Progress:
    """A progress bar on stderr: tqdm's if it is installed, else a line per tenth of the steps."""

    _bar: Any = None
    _said = 0

    def __call__(self, event: Event) -> None:
        done, total = event.steps_done, event.steps_total
        try:
            from tqdm.auto import tqdm
        except ImportError:
            if done * 10 // total > self._said:
                self._said = done * 10 // total
                line = f"{event.stage} {done}/{total}, {event.measure} {float(event.distance):.4g}"
                print(f"sliceflow: {line}", file=sys.stderr, flush=True)
            return
        if self._bar is None:
            self._bar = tqdm(total=total, unit="step", desc="sliceflow")
        self._bar.update(done - self._bar.n)
        if done % 10 == 0 or done == total:  # reading the distance waits for a GPU
            moving = "" if event.moving is None else f", {float(event.moving):.0%} of the maps move"
            text = f"{event.stage}, {event.measure} {float(event.distance):.4g}{moving}"
            self._bar.set_postfix_str(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class HeldOut:
    """Ends a stage when the particles no longer approach held-out rows.

    After every step it measures SW₂ between the particles and the held-out rows over fixed directions.
    `n_iter_no_change` steps without a relative improvement of `tol` end the stage. Rows of a class are
    compared with the particles of that class. Continuous conditions are compared together with x.
    `joint` gathers the projections (h, n) of the particles of all ranks.
    """

    def __init__(  # many: two clouds, the rule, and how ranks agree
        self, rows: Tensor, seed: Seed, codes: Tensor | None = None,
        particle_codes: Tensor | None = None, *, n_iter_no_change: int = 10, tol: float = 1e-4,
        n_directions: int = 100, joint: Callable[[Tensor], Tensor] = lambda z: z,
    ) -> None:  # fmt: skip
        theta = seed.normal(n_directions, rows.shape[0], dtype=rows.dtype)
        self.theta = (theta / theta.norm(dim=1, keepdim=True)).to(rows.device)
        target = self.theta @ rows
        self._offset: Tensor | None = None
        self._groups: list[tuple[Tensor | slice, Tensor | slice]] = [(slice(None), slice(None))]
        if codes is not None and particle_codes is not None:
            codes, particle_codes = codes.to(rows.device), particle_codes.to(rows.device)
            if codes.dim() == 1 and particle_codes.dim() == 1:
                self._groups = _same_class(codes, particle_codes)
            else:
                target, self._offset = _with_offsets(target, codes, particle_codes, seed.child("y"))
        self._target = [torch.sort(target[:, of], dim=1).values for of, _ in self._groups]
        self.n_iter_no_change, self.tol, self._joint = n_iter_no_change, tol, joint
        self.heard: list[tuple[int, float]] = []
        self._stage = -1

    def distance(self, particles: Tensor) -> float:
        """SW₂ between particles (d, M) and the held-out rows, by quantiles at the rows' own levels."""
        z = self._joint(self.theta @ particles)
        z = z if self._offset is None else z + self._offset
        pairs = zip(self._groups, self._target, strict=True)
        squares = [(_quantiles(z[:, own], t.shape[1]) - t).square() for (_, own), t in pairs]
        return float(torch.cat(squares, dim=1).mean().sqrt())

    def __call__(self, event: Event) -> bool:
        return self.judge(event.stage_index, self.distance(event.particles))

    def judge(self, stage: int, distance: float) -> bool:
        """Whether the stage should end at this distance."""
        if stage != self._stage:
            self._stage, self._best, self._stale = stage, float("inf"), 0
        self.heard.append((stage, distance))
        if distance < self._best * (1 - self.tol):
            self._best, self._stale = distance, 0
        else:
            self._stale += 1
        return self._stale >= self.n_iter_no_change


def _same_class(codes: Tensor, particle_codes: Tensor) -> list[tuple[Tensor | slice, Tensor | slice]]:
    """The rows and the particles of every class that both have."""
    both = sorted(set(codes.tolist()) & set(particle_codes.tolist()))
    pairs: list[tuple[Tensor | slice, Tensor | slice]] = [
        (torch.nonzero(codes == c)[:, 0], torch.nonzero(particle_codes == c)[:, 0]) for c in both
    ]
    if not pairs:
        fact = "early_stopping holds out no row of any class that the particles have"
        raise ValueError(f"{fact}; give more rows of those classes or set early_stopping=False")
    return pairs


def _with_offsets(
    z: Tensor, codes: Tensor, particle_codes: Tensor, seed: Seed
) -> tuple[Tensor, Tensor]:
    """Projected rows z (h, n) plus the part of their conditions, and that of the particles, (h, M)."""
    both, one_hot = (codes, particle_codes), torch.nn.functional.one_hot
    width = max(c.shape[1] for c in both if c.dim() == 2)
    theta = seed.normal(len(z), width).to(z.device) / math.sqrt(width)
    rows, particles = ((one_hot(c, width) if c.dim() == 1 else c).double() for c in both)
    return z + (theta @ rows.T).to(z.dtype), (theta @ particles.T).to(z.dtype)


def _quantiles(z: Tensor, n: int) -> Tensor:
    """Quantiles of z (h, m) at the levels of n sorted values: (h, n)."""
    z, m = torch.sort(z, dim=1).values, z.shape[1]
    position = ((torch.arange(n, device=z.device) + 0.5) * (m / n) - 0.5).clamp(0, m - 1)
    i = position.floor().long().clamp(max=max(m - 2, 0))
    f = (position - i).to(z.dtype)
    return z[:, i] + f * (z[:, (i + 1).clamp(max=m - 1)] - z[:, i])


def listening(listeners: Listeners) -> tuple[Listener, ...]:
    """The listeners of a user as a tuple: one, several or None."""
    what = "a callable, a tuple of several, or None"
    if listeners is None:
        return ()
    if callable(listeners):
        return (listeners,)
    need(isinstance(listeners, Iterable), "listeners", listeners, what)
    several = tuple(listeners)
    need(all(callable(listener) for listener in several), "listeners", several, what)
    return several


def tell(listeners: Sequence[Listener], event: Event) -> bool:
    """Call all listeners; whether any of them ends the stage."""
    return any([listener(event) for listener in listeners])  # noqa: C419, all of them must hear it


def relayed(
    listeners: Sequence[Listener], name: str, *, stages_before: int, steps_before: int,
    steps_after: int, seconds: float,
) -> Listener:  # fmt: skip
    """One listener that tells others of the steps of the fit `name` as steps of several fits."""

    def relay(event: Event) -> bool:
        overall = replace(
            event,
            stage=f"{name}: {event.stage}",
            stage_index=stages_before + event.stage_index,
            steps_done=steps_before + event.steps_done,
            steps_total=steps_before + event.steps_total + steps_after,
            seconds=seconds + event.seconds,
        )
        return tell(listeners, overall)

    return relay


@contextmanager
def closing(listeners: Sequence[Listener]) -> Iterator[None]:
    """Call ``close()`` on the listeners that have it, even after an error."""
    try:
        yield
    finally:
        for listener in listeners:
            getattr(listener, "close", lambda: None)()


def now() -> float:
    """The clock of `Event.seconds`."""
    return time.perf_counter()
