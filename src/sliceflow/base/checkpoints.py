"""Checkpoints: a fit that was killed resumes from the last one, with the same result.

Random numbers depend on the seed and on names alone, not on what was drawn before. So a
fit can go on from the particles after a step: a `_SavedCheckpoint`. The main rank
writes the particles of all ranks; any number of ranks can read them.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.file import ModelFileError, load, save
from sliceflow.base.ranks import Communicator, LostRankError
from sliceflow.base.saving import SavedHistory
from sliceflow.engine import events
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.flow import FlowState
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.errors import HintedError, warn_user
from sliceflow.saved_types import FLOAT_DTYPES, ArraySpec, Between, Count

_FILE_NAME = "fit.checkpoint"
# What a rank wants to do after a step. All ranks do the most urgent, which is the
# largest number.
_CONTINUE = 0
_WRITE = 1
_STOP = 2


class CheckpointMismatchError(HintedError, ValueError):
    """A checkpoint cannot be resumed, because it belongs to another fit."""


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped a fit; the message says what was done, and how to resume it."""

    def __init__(self, fact: str, hint: str) -> None:
        super().__init__(f"{fact}; {hint}")
        self.fact = fact
        self.hint = hint


@dataclass(frozen=True, eq=False)
class _SavedCheckpoint:
    """A flow after a step, with the particles of all ranks.

    `coordinates` are those of the particles in the space of the stage; None if it
    moves the particles themselves.
    """

    fingerprint: dict[str, str]
    seed: Seed
    steps: tuple[ModelStep, ...]
    history: SavedHistory
    x: Annotated[NDArray[Any], ArraySpec("d n", FLOAT_DTYPES, finite=False)]
    coordinates: (
        Annotated[NDArray[Any], ArraySpec("c n", FLOAT_DTYPES, finite=False)] | None
    )
    stage_index: Count
    step_index: Count
    stage_is_over: bool
    steps_done: Count
    steps_skipped: Count
    seconds: Annotated[float, Between()]


@dataclass(frozen=True, eq=False)
class FlowRun:
    """A flow of particles on this rank, while it runs and when it has ended.

    Attributes
    ----------
    particles : those of this rank, which move
    first_particle : the index of the first of them among those of all ranks
    state : after the last step
    history : of all steps, and of those that may follow
    listeners : the history, and those of the fit
    """

    particles: Cloud
    first_particle: int
    state: FlowState
    history: History
    listeners: Sequence[FlowListener]


class Checkpoints:
    """Writes the checkpoints of a fit to a folder, which all ranks see.

    Parameters
    ----------
    folder : the folder, which is made if it is not there
    every : seconds between checkpoints
    fingerprint : what the result of the fit depends on; a checkpoint with another one
    raises a `CheckpointMismatchError`
    seed : the seed of the fit
    ranks : the ranks of the fit
    device : the device of the fit
    keep : whether the last checkpoint stays in its folder when the fit ends well

    Attributes
    ----------
    seed : the checkpoint's seed if there is one, which replaces a random seed
    """

    def __init__(
        self,
        folder: Path,
        every: float,
        fingerprint: dict[str, str],
        seed: Seed,
        ranks: Communicator,
        device: torch.device,
        keep: bool,
    ) -> None:
        self._folder = folder
        self._every = every
        self._fingerprint = fingerprint
        self._ranks = ranks
        self._keep = keep
        self._path = folder / _FILE_NAME
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f".{_FILE_NAME}.*.part"):  # of a killed fit
            unfinished.unlink(missing_ok=True)
        self.seed = seed
        # The checkpoint that the fit resumes from, until it does; None without one.
        self._last: _SavedCheckpoint | None = None
        if self._path.exists():
            self._last = self._read(device)
            self.seed = self._last.seed
        self._written_at = 0.0  # the time of the last checkpoint of this run
        self._state = FlowState()  # of the flow that runs
        # Set once Ctrl-C is pressed in a block of `deferring_ctrl_c`.
        self._ctrl_c = threading.Event()

    @contextmanager
    def deferring_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C wait, in a `with` block, until the fit can be resumed.

        During the flow it waits for the end of a step and a last checkpoint, and after
        the flow for the end of the block. The errors say how to resume the fit.
        """
        ranks = self._ranks
        try:
            with _delayed_ctrl_c(only_first=ranks.size == 1) as ctrl_c:
                self._ctrl_c = ctrl_c
                yield
        except LostRankError as error:
            raise self._lost_rank_error(error) from error
        if ranks.max_int(int(ctrl_c.is_set())):
            raise self._interrupted_error()

    def resume(self, run: FlowRun) -> None:
        """Put a flow where the last checkpoint ended, if there is one."""
        if self._last is not None:
            _restore(self._last, run)
            self._last = None
        self._state = run.state
        self._written_at = events.now()

    def discard(self) -> None:
        """Remove the checkpoint of a fit that has ended well, unless `keep` is true."""
        if self._ranks.is_main and not self._keep:
            self._path.unlink(missing_ok=True)

    def save_if_due(self, run: FlowRun, moving: Cloud) -> None:
        """Write a checkpoint if it is time, or if Ctrl-C was pressed: then raise.

        A flow calls this after every step. `moving` are the particles in the subspace
        of its stage, or those of the run themselves in the whole space.
        """
        wanted = _CONTINUE
        if events.now() - self._written_at >= self._every:
            wanted = _WRITE
        if self._ctrl_c.is_set():
            wanted = _STOP
        action = self._ranks.max_int(wanted)  # the clocks of ranks differ
        if action == _STOP:
            self._write(run, moving)
            raise self._interrupted_error()
        if action == _WRITE:
            self._write_or_warn(run, moving)
            self._written_at = events.now()

    def _interrupted_error(self) -> FitInterrupted:
        """The error after Ctrl-C, which says how to resume the fit."""
        fact = f"the fit was stopped after {self._state.steps_done} steps"
        same = "the same data, the same parameters"
        folder = f"checkpoint_dir={str(self._folder)!r}"
        return FitInterrupted(fact, f"to resume it, fit again with {same} and {folder}")

    def _lost_rank_error(self, error: LostRankError) -> LostRankError:
        """The error after the loss of a rank, which says how to resume the fit."""
        hint = "there is no checkpoint yet: start it again"
        if self._path.exists():
            last = f"the last checkpoint is {self._path}"
            hint = f"{last}: start the same fit again, on any ranks"
        fact = f"{error}. The fit ends after {self._state.steps_done} steps"
        return LostRankError(fact, hint)

    def _read(self, device: torch.device) -> _SavedCheckpoint:
        """The last checkpoint; an error if it is damaged or of another fit."""
        try:
            saved = load(self._path, (_SavedCheckpoint,), device, sys.maxsize)
        except ModelFileError as error:
            hint = "It is the checkpoint of a fit; delete it to start the fit again"
            raise ModelFileError(f"{error}. {hint}") from error
        differences = []
        for name in sorted({*saved.fingerprint, *self._fingerprint}):
            before = saved.fingerprint.get(name)
            now = self._fingerprint.get(name)
            if before != now:
                differences.append(f"{name} was {before} and is {now}")
        if differences:
            listed = "; ".join(differences)
            fact = f"{self._path} is the checkpoint of another fit: {listed}"
            hint = "repeat that fit to resume it, or use another checkpoint_dir"
            raise CheckpointMismatchError(fact, hint)
        return saved

    def _write_or_warn(self, run: FlowRun, moving: Cloud) -> None:
        try:
            self._write(run, moving)
        except OSError as error:  # a full disk is no reason to lose the fit
            fact = f"no checkpoint could be written to {self._path} ({error})"
            message = f"{fact}; the fit continues with the last one"
            warn_user(message, RuntimeWarning)

    def _write(self, run: FlowRun, moving: Cloud) -> None:
        """Write a checkpoint. If the main rank cannot, all ranks raise its OSError."""
        failure = ""
        state = run.state
        x = self._gather(run.particles.x)
        coordinates = None
        if moving is not run.particles:
            coordinates = self._gather(moving.x)
        if self._ranks.is_main:
            saved = _SavedCheckpoint(
                fingerprint=self._fingerprint,
                seed=self.seed,
                steps=tuple(state.model_steps),
                history=SavedHistory.from_columns(run.history.as_columns()),
                x=x,
                coordinates=coordinates,
                stage_index=state.stage_index,
                step_index=state.step_index,
                stage_is_over=state.stage_is_over,
                steps_done=state.steps_done,
                steps_skipped=state.steps_skipped,
                seconds=state.seconds,
            )
            try:
                save(self._path, saved)
            except OSError as error:
                failure = str(error)
        failure = self._ranks.broadcast(failure)
        if failure:
            raise OSError(failure)

    def _gather(self, x: Tensor) -> NDArray[Any]:
        """The particles x (d, n) of all ranks on the main rank; none on the others."""
        parts = []
        for _, part in self._ranks.iter_points(x):
            needed = part
            if not self._ranks.is_main:
                needed = part[:, :0]
            parts.append(needed.cpu())
        return torch.cat(parts, 1).numpy()


def _restore(saved: _SavedCheckpoint, run: FlowRun) -> None:
    """Take the particles, the state and the history from a checkpoint."""
    x = run.particles.x
    state = run.state
    # Where this rank's particles are among those of all ranks.
    own = slice(run.first_particle, run.first_particle + x.shape[1])
    x.copy_(torch.from_numpy(saved.x)[:, own])
    if saved.coordinates is not None:
        coordinates = torch.from_numpy(saved.coordinates)[:, own]
        state.resumed_coordinates = coordinates.contiguous().to(x.device)
    state.stage_index = saved.stage_index
    state.step_index = saved.step_index
    state.stage_is_over = saved.stage_is_over
    state.steps_done = saved.steps_done
    state.steps_skipped = saved.steps_skipped
    state.seconds = saved.seconds
    state.model_steps = list(saved.steps)
    run.history.before = saved.history.as_columns()


@contextmanager
def _delayed_ctrl_c(*, only_first: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, instead of an interrupt in the middle of a step.

    If `only_first`, a second Ctrl-C interrupts at once. With several ranks it does not:
    torchrun repeats the signal that a rank received.
    """
    pressed = threading.Event()
    usual_handler = signal.getsignal(signal.SIGINT)

    def handle(*_: Any) -> None:
        pressed.set()
        if only_first:
            signal.signal(signal.SIGINT, usual_handler)

    # Only the main thread receives Ctrl-C, and only if it is not ignored.
    in_main_thread = threading.current_thread() is threading.main_thread()
    replaces_handler = in_main_thread and callable(usual_handler)
    if replaces_handler:
        signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        if replaces_handler:
            signal.signal(signal.SIGINT, usual_handler)
