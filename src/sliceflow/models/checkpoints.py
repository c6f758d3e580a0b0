"""Checkpoints: a fit that was killed resumes from the last one and ends with the same bits.

A random number depends only on its place in the seed tree (`engine.random`). So the state of a fit is
what a `_State` holds: the particles, the position in the schedule, the model so far, and the history.

Every rank writes a file of its particles. The first rank then writes the rest, which names those files.
Until that is complete, the previous checkpoint holds. Any number of ranks can read it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Run
from sliceflow.engine.random import Seed
from sliceflow.errors import AdvisedError, is_real, need
from sliceflow.models.codec import Array, Between
from sliceflow.models.file import ModelFileError, load, save
from sliceflow.models.ranks import LostRank, Ranks
from sliceflow.models.stored import FLOATS, Count, History

__all__ = ["Checkpoints", "OtherFitError"]

_NAME = "fit.checkpoint"


class OtherFitError(AdvisedError, ValueError):
    """A checkpoint belongs to another fit."""


@dataclass(frozen=True)
class _Particles:
    """Some of the particles, and their `coordinates` in the space of the stage."""

    x: Annotated[Tensor, Array("d n", FLOATS, finite=False)]
    coordinates: Annotated[Tensor, Array("c n", FLOATS, finite=False)] | None


@dataclass(frozen=True)
class _State:
    """A fit after a step. The particles are here, or in `files`: name, first particle and number."""

    identity: dict[str, str]
    seed: Seed
    stage: Count
    step: Count
    done: Count
    spared: Count
    seconds: Annotated[float, Between()]
    model: tuple[ModelStep, ...]
    history: History
    heard: tuple[tuple[int, float], ...] | None
    particles: _Particles | None
    files: tuple[tuple[str, Count, Count], ...]


class _Fit(NamedTuple):
    """What changes while a flow runs. `first` is the number of this rank's first particle."""

    run: Run
    particles: Cloud
    history: events.History
    rule: events.HeldOut | None
    first: int


@contextmanager
def _hearing_ctrl_c(*, once: bool) -> Iterator[threading.Event]:
    """Hear Ctrl-C instead of stopping at once. A second one stops, if this shall hear one `once`.

    It is not once with ranks: torchrun repeats the Ctrl-C that a rank received itself.
    """
    heard, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def hear(*_: Any) -> None:
        heard.set()
        if once:
            signal.signal(signal.SIGINT, before)

    # Only the main thread receives Ctrl-C, and only if it is not ignored.
    here = threading.current_thread() is threading.main_thread() and callable(before)
    if here:
        signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        if here:
            signal.signal(signal.SIGINT, before)


class Checkpoints:
    """Writes the checkpoints of one fit to a folder, which all ranks see, and reads the last one.

    The `identity` is that of the fit; a checkpoint of another fit is an error. The seed of a checkpoint
    replaces a random one (``random_state=None``). `part` names this flow where the fit has several. It
    has a folder of its own inside `folder`, and what is done stays there until `remove`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: float,
        identity: dict[str, str],
        seed: Seed,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
        *,
        part: str = "",
    ) -> None:
        need(is_real(every, 0), "checkpoint_every", every, "a number of seconds, at least 0")
        self._given, self._part, self._every = os.fspath(folder), part, every
        self._folder, self._identity, self._ranks = Path(folder, part), identity, ranks
        self._path = self._folder / _NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        for partial in self._folder.glob(f".{_NAME}.*.part"):  # of a fit that was killed while writing
            partial.unlink(missing_ok=True)
        self.resumes = self._path.exists()
        self.seed = self._read("cpu").seed if self.resumes else seed

    def _read(self, device: torch.device | str) -> _State:
        try:
            state: _State = load(self._path, (_State,), device, sys.maxsize)
        except ModelFileError as error:
            advice = "It is the checkpoint of a fit; delete it to start the fit again"
            raise ModelFileError(f"{error}. {advice}") from error
        was, own = state.identity, self._identity
        names = [name for name in sorted({*was, *own}) if was.get(name) != own.get(name)]
        if names:
            differs = "; ".join(f"{name} was {was.get(name)} and is {own.get(name)}" for name in names)
            raise OtherFitError(
                f"{self._path} is the checkpoint of another fit: {differs}",
                "repeat that fit to resume it, or use another checkpoint_dir",
            )
        return state

    @contextmanager
    def running(
        self,
        run: Run,
        particles: Cloud,
        history: events.History,
        rule: events.HeldOut | None = None,
        first: int = 0,
    ) -> Iterator[Callable[[], None]]:
        """Restore the last checkpoint, if there is one, and write new ones while the flow runs.

        Ctrl-C waits for the end of the step, writes a last checkpoint and says how to resume. A second
        Ctrl-C does not wait. After a successful fit the checkpoint is removed, unless the flow is one
        of several: call what this gives when it is done, to keep its state until `remove`. `first` is
        the number of this rank's first particle.
        """
        fit = _Fit(run, particles, history, rule, first)
        if self.resumes:
            self._restore(fit)
        written, ranks = events.now(), self._ranks
        try:
            with _hearing_ctrl_c(once=ranks.size == 1) as ctrl_c:

                def after() -> None:
                    nonlocal written
                    # The clocks of ranks differ: if one wants to stop or to write, all do.
                    due = events.now() - written >= self._every
                    wish = ranks.maximum(2 if ctrl_c.is_set() else int(due))
                    if wish == 2:
                        self._write(fit)
                        self._stop(run)
                    if wish == 1:
                        self._write_or_warn(fit)
                        written = events.now()

                run.after = after
                yield lambda: self._write_or_warn(fit) if self._part else None
        except LostRank as error:
            advice = "there is no checkpoint yet: start it again"
            if self._path.exists():
                advice = f"the last checkpoint is {self._path}: start the same fit again, on any ranks"
            raise LostRank(f"{error}. The fit ends after {run.done} steps; {advice}") from error
        if ranks.maximum(int(ctrl_c.is_set())):
            self._stop(run)
        if ranks.first and not self._part:
            self._path.unlink(missing_ok=True)
            self._clear()

    def remove(self) -> None:
        """Remove the checkpoint, and its folder if it is empty then."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _stop(self, run: Run) -> None:
        which = f" of {self._part}" if self._part else ""
        raise KeyboardInterrupt(
            f"the fit was stopped after {run.done} steps{which}; to resume it, fit again with the same "
            f"data, the same parameters and checkpoint_dir={self._given!r}"
        )

    def _write_or_warn(self, fit: _Fit) -> None:
        try:
            self._write(fit)
        except OSError as error:  # a full disk is no reason to lose the run
            warnings.warn(
                f"no checkpoint could be written to {self._path} ({error}); the fit continues, "
                "and the last checkpoint is kept",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write(self, fit: _Fit) -> None:
        own, count = _Particles(fit.particles.x, fit.run.coordinates), fit.particles.x.shape[1]
        if self._ranks.size == 1:
            save(self._path, self._state(fit, own))
            self._clear()
            return
        name, failed = f"{_NAME}.{fit.run.done}.{fit.first}", None
        try:
            save(self._folder / name, own)
        except OSError as error:
            failed = str(error)
        answers = self._ranks.all_gather((name, fit.first, count, failed))
        failures = [f"rank {r}: {a[3]}" for r, a in enumerate(answers) if a[3] is not None]
        if self._ranks.first and not failures:
            try:
                files = tuple(answer[:3] for answer in answers)
                save(self._path, self._state(fit, None, files))
                self._clear({file[0] for file in files})
            except OSError as error:
                failures = [str(error)]
        failures = self._ranks.broadcast(failures)
        if failures:
            (self._folder / name).unlink(missing_ok=True)
            raise OSError(failures[0])

    def _state(self, fit: _Fit, own: _Particles | None, files: Any = ()) -> _State:
        run, heard = fit.run, None if fit.rule is None else tuple(fit.rule.heard)
        position = (run.stage, run.step, run.done, run.spared, run.seconds)
        model, history = tuple(run.model), fit.history.as_columns()
        return _State(self._identity, self.seed, *position, model, history, heard, own, files)

    def _clear(self, kept: Container[str] = ()) -> None:
        """Remove the files of ranks, except those in `kept`."""
        for path in self._folder.glob(f"{_NAME}.*.*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _restore(self, fit: _Fit) -> None:
        run, x = fit.run, fit.particles.x
        state = self._read(x.device)
        try:
            filled = sum(_fill(fit, first, part) for first, part in self._parts(state, fit))
            if filled != x.shape[1]:
                raise ValueError(f"it holds {filled} of {x.shape[1]} particles")
            if (state.heard is None) != (fit.rule is None):
                raise ValueError("it does not say what the stopping rule heard")
        except ValueError as error:
            advice = "Delete it to start the fit again"
            raise ModelFileError(f"{self._path} is damaged: {error}. {advice}") from error
        run.stage, run.step, run.done, run.spared = state.stage, state.step, state.done, state.spared
        run.seconds, run.model = state.seconds, list(state.model)
        fit.history.before = state.history
        for stage, distance in state.heard or ():
            fit.rule.judge(stage, distance)  # type: ignore[union-attr]

    def _parts(self, state: _State, fit: _Fit) -> Iterator[tuple[int, _Particles]]:
        """The particles of every file that holds some of this rank's."""
        if state.particles is not None:
            yield 0, state.particles
        end = fit.first + fit.particles.x.shape[1]
        for name, first, count in state.files:
            if first < end and fit.first < first + count:
                path = self._folder / Path(name).name
                yield first, load(path, (_Particles,), fit.particles.x.device, sys.maxsize)


def _fill(fit: _Fit, start: int, part: _Particles) -> int:
    """Take this rank's particles from some that start at number `start`; how many there were."""
    run, x, first = fit.run, fit.particles.x, fit.first
    if part.x.dtype != x.dtype or len(part.x) != len(x):
        raise ValueError(f"it holds particles of shape {tuple(part.x.shape)} and type {part.x.dtype}")
    begin, end = max(start, first), min(start + part.x.shape[1], first + x.shape[1])
    here, there = slice(begin - first, end - first), slice(begin - start, end - start)
    x[:, here] = part.x[:, there]
    if part.coordinates is not None:
        if run.coordinates is None:
            run.coordinates = x.new_empty(len(part.coordinates), x.shape[1])
        run.coordinates[:, here] = part.coordinates[:, there]
    return end - begin
