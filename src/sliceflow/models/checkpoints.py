"""Checkpoints: a fit that was killed resumes from the last one and ends with the same bits.

A random number depends only on its place in the seed tree. So a `_State` is all that a fit has become.
The first rank writes the particles of all ranks; any number of ranks can read them.
"""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import events
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import FlowState
from sliceflow.engine.random import Seed
from sliceflow.errors import HintedError, is_real, require
from sliceflow.fields import FLOATS, Array, Between, Count
from sliceflow.models.file import ModelFileError, load, save
from sliceflow.models.ranks import LostRankError, Ranks
from sliceflow.models.saving import SavedHistory

_NAME = "fit.checkpoint"
_POSITION = (
    "stage",
    "step",
    "done",
    "spared",
    "seconds",
)  # of a `FlowState`, in a `_State`


class OtherFitError(HintedError, ValueError):
    """A checkpoint belongs to another fit."""


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C during a fit: what was done, and how to resume it."""

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(f"{fact}; {hint}")
        self.fact = fact
        self.hint = hint


@dataclass(frozen=True)
class _State:
    """A flow after a step, with the particles of all ranks and their `coordinates` in the stage's space."""

    identity: dict[str, str]
    seed: Seed
    model: tuple[ModelStep, ...]
    history: SavedHistory
    x: Annotated[np.ndarray, Array("d n", FLOATS, finite=False)]
    coordinates: Annotated[np.ndarray, Array("c n", FLOATS, finite=False)] | None
    stage: Count
    step: Count
    done: Count
    spared: Count
    seconds: Annotated[float, Between()]


@contextmanager
def _hearing_ctrl_c(*, once: bool) -> Iterator[threading.Event]:
    """Hear Ctrl-C; a second one stops if `once`. Not with ranks: torchrun repeats what a rank received."""
    heard = threading.Event()
    before = signal.getsignal(signal.SIGINT)

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
    """Writes the checkpoints of one flow to a folder, which all ranks see, and reads the last one.

    A checkpoint with another `identity` is an error; its seed replaces a random one. `part` names this
    flow where the fit has several: what is done stays in a folder of its own until `remove`.
    """

    def __init__(
        self,
        folder: Path,
        every: float,
        identity: dict[str, str],
        seed: Seed,
        ranks: Ranks,
        part: str,
    ) -> None:
        require(
            is_real(every, 0),
            "checkpoint_every",
            every,
            "a number of seconds, at least 0",
        )
        self._given = str(folder)
        self._part = part
        self._every = every
        self._identity = identity
        self._ranks = ranks
        self._path = Path(folder, part, _NAME)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for partial in self._path.parent.glob(
            f".{_NAME}.*.part"
        ):  # of a fit killed while writing
            partial.unlink(missing_ok=True)
        self.resumes = self._path.exists()
        self.seed = self._read().seed if self.resumes else seed

    def _read(self, device: torch.device | str = "cpu") -> _State:
        try:
            state: _State = load(self._path, (_State,), device, sys.maxsize)
        except ModelFileError as error:
            advice = "It is the checkpoint of a fit; delete it to start the fit again"
            raise ModelFileError(f"{error}. {advice}") from error
        was = state.identity
        own = self._identity
        names = [
            name for name in sorted({*was, *own}) if was.get(name) != own.get(name)
        ]
        if names:
            differs = "; ".join(
                f"{name} was {was.get(name)} and is {own.get(name)}" for name in names
            )
            fact = f"{self._path} is the checkpoint of another fit: {differs}"
            raise OtherFitError(
                fact, "repeat that fit to resume it, or use another checkpoint_dir"
            )
        return state

    @contextmanager
    def running(
        self, run: FlowState, moving: Any, history: events.History
    ) -> Iterator[Callable[[], None]]:
        """Restore the last checkpoint, if there is one, and write new ones while the flow runs.

        `moving` has its particles and the number of the first one here, as a part's `begin` gives them.
        Ctrl-C waits for the end of the step and a last checkpoint. A fit that ends removes its
        checkpoint, but for one of several flows: calling what this gives keeps its state until
        `remove`.
        """
        if self.resumes:
            self._restore(run, moving, history)
        written = events.now()
        ranks = self._ranks
        try:
            with _hearing_ctrl_c(once=ranks.size == 1) as ctrl_c:

                def after() -> None:
                    nonlocal written
                    # The clocks of ranks differ: if one wants to stop or to write, all do.
                    due = events.now() - written >= self._every
                    wish = ranks.maximum(2 if ctrl_c.is_set() else int(due))
                    if wish == 2:
                        self._write(run, moving, history)
                        self._stop(run)
                    if wish == 1:
                        self._write_or_warn(run, moving, history)
                        written = events.now()

                run.after = after
                yield (
                    lambda: (
                        self._write_or_warn(run, moving, history)
                        if self._part
                        else None
                    )
                )
        except LostRankError as error:
            last = f"the last checkpoint is {self._path}: start the same fit again, on any ranks"
            advice = (
                last
                if self._path.exists()
                else "there is no checkpoint yet: start it again"
            )
            raise LostRankError(
                f"{error}. The fit ends after {run.done} steps; {advice}"
            ) from error
        if ranks.maximum(int(ctrl_c.is_set())):
            self._stop(run)
        if ranks.first and not self._part:
            self._path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the checkpoint, and its folder if it is empty then."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._path.parent.rmdir()

    def _stop(self, run: FlowState) -> None:
        which = f" of {self._part}" if self._part else ""
        hint = (
            "to resume it, fit again with the same data, the same parameters and "
            f"checkpoint_dir={self._given!r}"
        )
        fact = f"the fit was stopped after {run.done} steps{which}"
        raise FitInterrupted(fact, hint)

    def _write_or_warn(
        self, run: FlowState, moving: Any, history: events.History
    ) -> None:
        try:
            self._write(run, moving, history)
        except OSError as error:  # a full disk is no reason to lose the run
            fact = f"no checkpoint could be written to {self._path} ({error})"
            warnings.warn(
                f"{fact}; the fit continues with the last one",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write(self, run: FlowState, moving: Any, history: events.History) -> None:
        failure = ""
        clouds: Any = (
            self._gathered(moving.particles.x),
            self._gathered(run.coordinates),
        )
        if self._ranks.first:
            saved = SavedHistory(**history.as_columns())
            position = (getattr(run, name) for name in _POSITION)
            state = _State(
                self._identity, self.seed, tuple(run.model), saved, *clouds, *position
            )
            try:
                save(self._path, state)
            except OSError as error:
                failure = str(error)
        if failure := self._ranks.broadcast(failure):
            raise OSError(failure)

    def _gathered(self, t: Tensor | None) -> np.ndarray | None:
        """The columns of all ranks, for the first one; the others hold one part at a time."""
        if t is None:
            return None
        first = self._ranks.first
        parts = [
            part.cpu() if first else part[:, :0].cpu()
            for _, part in self._ranks.columns(t)
        ]
        return torch.cat(parts, 1).numpy()

    def _restore(self, run: FlowState, moving: Any, history: events.History) -> None:
        x = moving.particles.x
        state = self._read(moving.particles.x.device)
        own = slice(moving.first, moving.first + x.shape[1])
        x.copy_(torch.from_numpy(state.x)[:, own])
        if state.coordinates is not None:
            run.coordinates = (
                torch.from_numpy(state.coordinates)[:, own].contiguous().to(x.device)
            )
        for name in _POSITION:
            setattr(run, name, getattr(state, name))
        run.model = list(state.model)
        history.before = state.history.columns()
