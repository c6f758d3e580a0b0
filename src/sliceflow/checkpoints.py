"""Checkpoints: a fit that was killed goes on from its last one, and ends with the same bits.

All random numbers are drawn by their place (`rng`), so the state of a fit is what this room writes: the
particles, where the run stands, the tables so far, and what was heard. The file is `container`'s.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sliceflow
from sliceflow.checks import is_real, need
from sliceflow.container import Fields, ModelFileError, read, write
from sliceflow.events import HeldOut, History, now
from sliceflow.flow import Cloud, Run
from sliceflow.packing import check_tensor, pack_history, restore_seed, unpack_history
from sliceflow.rng import Seed
from sliceflow.table_packing import pack_tables, unpack_tables

__all__ = ["Keeper", "OtherFitError", "digest", "identity"]

_NAME = "fit.checkpoint"


class OtherFitError(ValueError):
    """A checkpoint is of another fit; `fact` is the message without its advice."""

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}. {advice}" if advice else fact)
        self.fact = fact


class Keeper:
    """Keeps the checkpoint of one fit in a folder.

    Parameters
    ----------
    folder : made where it is not there
    every : seconds between checkpoints
    of : what the fit is of, by `identity`; a checkpoint of anything else is refused
    seed : of the fit; replaced by the checkpoint's where it was drawn at random (``random_state=None``)
    """

    def __init__(
        self, folder: str | os.PathLike[str], every: float, of: dict[str, str], seed: Seed
    ) -> None:
        need(is_real(every, 0), "checkpoint_every", every, "a number of seconds, at least 0")
        self._folder, self._every, self._of = Path(folder), every, of
        self._path = self._folder / _NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f".{_NAME}.*.part"):  # by a fit that was killed while writing
            left.unlink(missing_ok=True)
        self._found = self._read() if self._path.exists() else None
        self.seed = seed if self._found is None else restore_seed(self._found[0])

    def _read(self) -> tuple[Fields, dict[str, Tensor]]:
        try:
            text, tensors = read(self._path)
            header = Fields(text)
            header.whole("checkpoint", 1, 1)
            was = header.inner("of").value
        except ValueError as error:
            raise ModelFileError(
                f"{error}. It is the checkpoint of a fit; delete it to start that fit anew"
            ) from error
        differs = [
            f"{name} was {was.get(name)} and is {self._of.get(name)}"
            for name in sorted({*was, *self._of})
            if was.get(name) != self._of.get(name)
        ]
        if differs:
            raise OtherFitError(
                f"{self._path} is the checkpoint of another fit: {'; '.join(differs)}",
                "Fit the same to go on with it, or give another checkpoint_dir",
            )
        return header, tensors

    @contextmanager
    def running(
        self, run: Run, particles: Cloud, history: History, rule: HeldOut | None = None
    ) -> Iterator[None]:
        """Bring everything to where the checkpoint stands, and write new ones while the flow runs.

        Ctrl-C waits for the end of the step, writes a last checkpoint and says how to go on; a second
        one does not wait. When the flow has ended well the checkpoint is removed.
        """
        if self._found is not None:
            self._restore(*self._found, run, particles, history, rule)
            self._found = None
        written, asked = now(), False

        def ask(*_: Any) -> None:
            nonlocal asked
            asked = True
            signal.signal(signal.SIGINT, before)

        def after() -> None:
            nonlocal written
            if asked:
                self._write(run, particles, history, rule)
                self._stop(run)
            if now() - written >= self._every:
                try:
                    self._write(run, particles, history, rule)
                except OSError as error:  # a full disk is no reason to lose the run
                    warnings.warn(
                        f"no checkpoint could be written to {self._path} ({error}); the fit goes on, "
                        "and the last checkpoint stays",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                written = now()

        run.after = after
        before: Any = signal.getsignal(signal.SIGINT)
        # Only the main thread hears Ctrl-C, and only if nobody has turned it off.
        hears = threading.current_thread() is threading.main_thread() and callable(before)
        if hears:
            signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            if hears:
                signal.signal(signal.SIGINT, before)
        if asked:
            self._stop(run)
        self._path.unlink(missing_ok=True)

    def _stop(self, run: Run) -> None:
        raise KeyboardInterrupt(
            f"the fit was stopped after {run.done} steps; to go on, fit again with the same data, the "
            f"same parameters and checkpoint_dir={str(self._folder)!r}"
        )

    def _write(self, run: Run, particles: Cloud, history: History, rule: HeldOut | None) -> None:
        tensors = {"particles": particles.x}
        if run.level is not None:
            tensors["level"] = run.level
        text = {
            "checkpoint": 1,
            "of": self._of,
            "seed": asdict(self.seed),
            "stage": run.stage,
            "step": run.step,
            "done": run.done,
            "spared": run.spared,
            "seconds": run.seconds,
            "numbers": [steps[0].stage if steps else 0 for steps in run.model],
            "stages": [{"tables": tables} for tables in pack_tables(run.model, tensors, weights=True)],
            "history": pack_history(history.as_columns()),
            "held_out": None
            if rule is None
            else {"stage": [s for s, _ in rule.heard]} | pack_history({"distance": rule.distances}),
        }
        write(self._path, text, tensors)

    def _restore(
        self,
        header: Fields,
        tensors: dict[str, Tensor],
        run: Run,
        particles: Cloud,
        history: History,
        rule: HeldOut | None,
    ) -> None:
        x = particles.x
        try:
            x.copy_(check_tensor(tensors, "particles", x.dtype, tuple(x.shape)))
            if "level" in tensors:
                run.level = check_tensor(tensors, "level", x.dtype, (None, x.shape[1])).to(x.device)
            run.stage, run.step = header.whole("stage", 0), header.whole("step", 0)
            run.done, run.spared = header.whole("done", 0), header.whole("spared", 0)
            run.seconds = header.number("seconds")
            numbers = header.wholes("numbers", 0)
            for i, row in enumerate(header.inners("stages")):
                run.model.append(unpack_tables(row, i, numbers[i], tensors, None, None, x.device))
            history.before = unpack_history(header)
            if rule is not None:
                held = header.inner("held_out")
                for stage, distance in zip(held.rows("stage"), held.rows("distance"), strict=True):
                    rule.judge(stage, math.nan if distance is None else distance)
        except (ValueError, TypeError, IndexError) as error:
            raise ModelFileError(
                f"{self._path} is damaged: {error}. Delete it to start the fit anew"
            ) from error


def identity(estimator: Any, device: torch.device, seed: Seed, **data: str) -> dict[str, str]:
    """What a fit is of: whatever its result depends on, by name.

    Parameters
    ----------
    device : which it runs on
    seed : of its random_state
    data : the `digest` of everything it is given
    """
    out = {
        "library": sliceflow.__version__,
        "estimator": type(estimator).__name__,
        "device": device.type,
    }
    for name, value in estimator.get_params(deep=False).items():
        if name == "random_state" and value is not None:
            value = seed
        if isinstance(value, np.ndarray):
            value = digest(value)
        elif isinstance(value, np.generic):
            value = value.item()
        if name not in ("device", "verbose"):
            out[name] = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return out | data


def digest(array: np.ndarray | None) -> str:
    """A short text that is another one for any other array."""
    if array is None:
        return "None"
    total = hashlib.blake2b(f"{array.dtype} {array.shape}".encode(), digest_size=8)
    if array.dtype.kind == "O":
        total.update(repr(array.tolist()).encode("utf-8", "surrogatepass"))
    else:
        total.update(np.ascontiguousarray(array).tobytes())
    return f"{array.dtype} {array.shape} #{total.hexdigest()}"
