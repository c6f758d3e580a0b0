"""Checkpoints: a fit that was killed resumes from the last one, with the same result.

Random numbers depend on the seed and on names alone, not on what was drawn before. So a
fit can go on from the particles after a step: a `SavedCheckpoint`. The main rank writes
the particles of all ranks; any number of ranks can read them.

A fit calls these, in this order:

read_checkpoint                before the fit is planned: without a seed of its own, it
                               takes the seed of the checkpoint
Checkpoints                    refuses the checkpoint of another fit
Checkpoints.deferring_ctrl_c   around all that follows, except `discard`
Checkpoints.resume             before the first step of the flow
Checkpoints.save_if_due        after every step
Checkpoints.discard            when all is done
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base import interrupts
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
class SavedCheckpoint:
    """A flow after a step, with the particles of all ranks.

    Attributes
    ----------
    fingerprint : the fingerprint of the fit; see `base.fingerprint`
    seed : the seed of the fit
    steps : the steps that the model stores
    history : the history of all steps so far
    x : the particles (d, n) of all ranks, in the whole space
    coordinates : the particles (c, n) of all ranks in the subspace of the stage; None
        if the stage moves particles in the whole space
    stage_index, step_index, stage_is_over, steps_done, steps_skipped, seconds : as in
        `FlowState`
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
class RunningFlow:
    """A flow of particles on this rank, while it runs and when it has ended.

    Attributes
    ----------
    particles : the particles of this rank, which move
    first_particle : the index of this rank's first particle among those of all ranks
    state : the state after the last step
    history : the history of all steps so far, to which later steps are added
    listeners : the history, and the listeners of the fit
    """

    particles: Cloud
    first_particle: int
    state: FlowState
    history: History
    listeners: Sequence[FlowListener]


def read_checkpoint(folder: Path, device: torch.device) -> SavedCheckpoint | None:
    """The last checkpoint in the folder of a fit, its tensors on a device.

    None if there is none. Raises a `ModelFileError` if it is damaged.
    """
    path = folder / _FILE_NAME
    if not path.exists():
        return None
    try:
        return load(path, (SavedCheckpoint,), device, sys.maxsize)
    except ModelFileError as error:
        hint = "It is the checkpoint of a fit; delete it to start the fit again"
        raise ModelFileError(f"{error}. {hint}") from error


class Checkpoints:
    """Writes the checkpoints of a fit to a folder, which all ranks see.

    Parameters
    ----------
    folder : the folder, which is made if it is not there
    every : seconds between checkpoints
    fingerprint : what the result of the fit depends on
    seed : the seed of the fit
    ranks : the ranks of the fit
    keep : whether the last checkpoint stays in its folder when the fit ends well
    last : the checkpoint that `read_checkpoint` gave, from which the fit resumes; None
        if there is none. If it has another fingerprint, the constructor raises a
        `CheckpointMismatchError`
    """

    def __init__(
        self,
        folder: Path,
        every: float,
        fingerprint: dict[str, str],
        seed: Seed,
        ranks: Communicator,
        keep: bool,
        last: SavedCheckpoint | None,
    ) -> None:
        self._folder = folder
        self._path = folder / _FILE_NAME
        self._every = every
        self._fingerprint = fingerprint
        self._seed = seed
        self._ranks = ranks
        self._keep = keep
        if last is not None:
            _require_same_fit(self._path, last.fingerprint, fingerprint)
        self._last = last  # until the fit has resumed from it
        self._ctrl_c_pressed = threading.Event()
        self._flow: RunningFlow | None = None  # set by `resume`
        self._written_at = 0.0  # the time of the last checkpoint, or of `resume`
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f".{_FILE_NAME}.*.part"):  # of a killed fit
            unfinished.unlink(missing_ok=True)

    @contextmanager
    def deferring_ctrl_c(self) -> Iterator[None]:
        """Let Ctrl-C wait, in a `with` block, until the fit can be resumed.

        During the flow it waits for the end of a step and a last checkpoint, and after
        the flow for the end of the block. The errors say how to resume the fit.
        """
        ranks = self._ranks
        # torchrun repeats the signal that a rank received, so that several ranks may
        # receive Ctrl-C twice.
        only_first = ranks.size == 1
        try:
            with interrupts.deferring_ctrl_c(
                self._ctrl_c_pressed, only_first=only_first
            ):
                yield
        except LostRankError as error:
            raise self._lost_rank_error(error) from error
        if ranks.max_int(int(self._ctrl_c_pressed.is_set())):
            raise self._interrupted_error()

    def resume(self, flow: RunningFlow) -> None:
        """Put a flow where the last checkpoint ended, if there is one."""
        if self._last is not None:
            _restore(self._last, flow)
            self._last = None  # it takes as much memory as the particles
        self._flow = flow
        self._written_at = events.now()

    def discard(self) -> None:
        """Remove the checkpoint of a fit that has ended well, unless `keep` is true."""
        if self._ranks.is_main and not self._keep:
            self._path.unlink(missing_ok=True)

    def save_if_due(self, moving: Cloud) -> None:
        """Write a checkpoint if it is time, or if Ctrl-C was pressed: then raise.

        The flow calls this after every step. `moving` has the particles in the subspace
        of the stage; in the whole space, it is the cloud of the flow itself.
        """
        wanted = _CONTINUE
        if events.now() - self._written_at >= self._every:
            wanted = _WRITE
        if self._ctrl_c_pressed.is_set():
            wanted = _STOP
        action = self._ranks.max_int(wanted)  # the clocks of ranks differ
        if action == _STOP:
            self._write(moving)
            raise self._interrupted_error()
        if action == _WRITE:
            self._write_or_warn(moving)
            self._written_at = events.now()

    def _interrupted_error(self) -> FitInterrupted:
        """The error after Ctrl-C, which says how to resume the fit."""
        fact = f"the fit was stopped after {self._steps_done} steps"
        same = "the same data, the same parameters"
        folder = f"checkpoint_dir={str(self._folder)!r}"
        return FitInterrupted(fact, f"to resume it, fit again with {same} and {folder}")

    def _lost_rank_error(self, error: LostRankError) -> LostRankError:
        """The error after the loss of a rank, which says how to resume the fit."""
        hint = "there is no checkpoint yet: start it again"
        if self._path.exists():
            last = f"the last checkpoint is {self._path}"
            hint = f"{last}: start the same fit again, on any ranks"
        fact = f"{error}. The fit ends after {self._steps_done} steps"
        return LostRankError(fact, hint)

    @property
    def _steps_done(self) -> int:
        """The steps of the flow so far, for errors."""
        if self._flow is None:
            return 0
        return self._flow.state.steps_done

    def _write_or_warn(self, moving: Cloud) -> None:
        """Write a checkpoint, or warn that it could not be written."""
        try:
            self._write(moving)
        except OSError as error:  # a full disk is no reason to lose the fit
            fact = f"no checkpoint could be written to {self._path} ({error})"
            message = f"{fact}; the fit continues with the last one"
            warn_user(message, RuntimeWarning)

    def _write(self, moving: Cloud) -> None:
        """Write a checkpoint. If the main rank cannot, all ranks raise its OSError."""
        flow = self._flow
        assert flow is not None, "a flow has begun"
        state = flow.state
        x = self._gather(flow.particles.x)
        coordinates = None
        if moving is not flow.particles:
            coordinates = self._gather(moving.x)
        failure = ""
        if self._ranks.is_main:
            saved = SavedCheckpoint(
                fingerprint=self._fingerprint,
                seed=self._seed,
                steps=tuple(state.model_steps),
                history=SavedHistory.from_columns(flow.history.as_columns()),
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
        """The particles (d, M) of all ranks on the main rank; (d, 0) on other ranks."""
        parts = []
        for _, part in self._ranks.iter_points(x):
            needed = part
            if not self._ranks.is_main:
                needed = part[:, :0]
            parts.append(needed.cpu())
        return torch.cat(parts, 1).numpy()


def _require_same_fit(
    path: Path, saved: Mapping[str, str], own: Mapping[str, str]
) -> None:
    """Raise a `CheckpointMismatchError` unless two fingerprints are equal.

    `saved` is the fingerprint of the checkpoint at `path`, `own` that of the fit.
    """
    differences = []
    for name in sorted({*saved, *own}):
        before = saved.get(name)
        now = own.get(name)
        if before != now:
            differences.append(f"{name} was {before} and is {now}")
    if differences:
        listed = "; ".join(differences)
        fact = f"{path} is the checkpoint of another fit: {listed}"
        hint = "repeat that fit to resume it, or use another checkpoint_dir"
        raise CheckpointMismatchError(fact, hint)


def _restore(saved: SavedCheckpoint, flow: RunningFlow) -> None:
    """Take the particles, the state and the history from a checkpoint."""
    x = flow.particles.x
    state = flow.state
    # Where this rank's particles are among the particles of all ranks.
    own = slice(flow.first_particle, flow.first_particle + x.shape[1])
    x.copy_(torch.from_numpy(saved.x)[:, own])
    if saved.coordinates is not None:
        coordinates = torch.from_numpy(saved.coordinates)[:, own]
        state.coordinates_to_restore = coordinates.contiguous().to(x.device)
    state.stage_index = saved.stage_index
    state.step_index = saved.step_index
    state.stage_is_over = saved.stage_is_over
    state.steps_done = saved.steps_done
    state.steps_skipped = saved.steps_skipped
    state.seconds = saved.seconds
    state.model_steps = list(saved.steps)
    flow.history.before = saved.history.as_columns()
