"""Checkpoints: a fit that was killed resumes from the last one and ends with the same bits.

A random number depends only on its place in the seed tree (`engine.random`). So the state of a fit is
what is written here: the particles, the position in the schedule, the tables so far, and the history.

Every rank writes a file of its particles. The first rank then writes the rest, which names those files.
Until that is complete, the previous checkpoint holds. Any number of ranks can read it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import warnings
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import HeldOut, History, now
from sliceflow.engine.flow import Run
from sliceflow.engine.random import Seed
from sliceflow.errors import is_real, need
from sliceflow.models.checkpoints import OtherFitError
from sliceflow.models.identity import digest, identity, same_on_all
from sliceflow.models.old_file import Fields, ModelFileError, read, write
from sliceflow.models.ranks import LostRank, Ranks
from sliceflow.models.schema import check_tensor, pack_history, restore_seed, unpack_history
from sliceflow.models.tables import by_stage, pack_tables, unpack_tables

__all__ = ["CheckpointWriter", "OtherFitError", "digest", "identity", "same_on_all"]

_NAME = "fit.checkpoint"


class CheckpointWriter:
    """Writes the checkpoints of one fit to a folder, and reads the last one.

    Parameters
    ----------
    folder : created if it does not exist
    every : seconds between checkpoints
    of : the `identity` of the fit; a checkpoint of another fit is an error
    seed : of the fit; that of the checkpoint replaces a random one (``random_state=None``)
    ranks : the ranks of the fit, which must all see the folder
    part : a name for this flow where the fit has several. It has a folder of its own inside `folder`,
        and what is done stays there until `remove`
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: float,
        of: dict[str, str],
        seed: Seed,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
        *,
        part: str = "",
    ) -> None:
        need(is_real(every, 0), "checkpoint_every", every, "a number of seconds, at least 0")
        self._given, self._part = os.fspath(folder), part
        self._folder, self._every, self._of, self._ranks = Path(folder, part), every, of, ranks
        self._path = self._folder / _NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        for partial in self._folder.glob(f".{_NAME}.*.part"):  # of a fit that was killed while writing
            partial.unlink(missing_ok=True)
        self._found = self._read() if self._path.exists() else None
        self.resumes = self._found is not None
        self.seed = seed if self._found is None else restore_seed(self._found[0].inner("seed"))

    def _read(self) -> tuple[Fields, dict[str, Tensor]]:
        try:
            text, tensors = read(self._path)
            header = Fields(text)
            header.whole("checkpoint", 1, 1)
            was = header.inner("of").value
        except ValueError as error:
            raise ModelFileError(
                f"{error}. It is the checkpoint of a fit; delete it to start the fit again"
            ) from error
        differs = [
            f"{name} was {was.get(name)} and is {self._of.get(name)}"
            for name in sorted({*was, *self._of})
            if was.get(name) != self._of.get(name)
        ]
        if differs:
            raise OtherFitError(
                f"{self._path} is the checkpoint of another fit: {'; '.join(differs)}",
                "repeat that fit to resume it, or use another checkpoint_dir",
            )
        return header, tensors

    @contextmanager
    def running(
        self,
        run: Run,
        particles: Cloud,
        history: History,
        rule: HeldOut | None = None,
        first: int = 0,
    ) -> Iterator[None]:
        """Restore the last checkpoint, if there is one, and write new ones while the flow runs.

        Ctrl-C waits for the end of the step, writes a last checkpoint and says how to resume. A second
        Ctrl-C does not wait. After a successful fit the checkpoint is removed, unless the flow is one
        of several. `first` is the index of this rank's first particle.
        """
        if self._found is not None:
            self._restore(*self._found, run, particles, history, rule, first)
            self._found = None
        written, asked, ranks = now(), False, self._ranks

        def ask(*_: Any) -> None:
            nonlocal asked
            asked = True
            if ranks.size == 1:  # torchrun repeats the Ctrl-C that the rank received itself
                signal.signal(signal.SIGINT, before)

        def after() -> None:
            nonlocal written
            # The clocks of ranks differ: if one wants to stop or to write, all do.
            wish = ranks.maximum(2 if asked else int(now() - written >= self._every))
            if wish == 2:
                self._write(run, particles, history, rule, first)
                self._stop(run)
            if wish == 1:
                self._write_or_warn(run, particles, history, rule, first)
                written = now()

        run.after = after
        before: Any = signal.getsignal(signal.SIGINT)
        # Only the main thread receives Ctrl-C, and only if it is not ignored.
        in_main = threading.current_thread() is threading.main_thread() and callable(before)
        if in_main:
            signal.signal(signal.SIGINT, ask)
        try:
            yield
        except LostRank as error:
            advice = "there is no checkpoint yet: start it again"
            if self._path.exists():
                advice = f"the last checkpoint is {self._path}: start the same fit again, on any ranks"
            raise LostRank(f"{error}. The fit ends after {run.done} steps; {advice}") from error
        finally:
            if in_main:
                signal.signal(signal.SIGINT, before)
        if ranks.maximum(int(asked)):
            self._stop(run)
        if ranks.first and not self._part:
            self._path.unlink(missing_ok=True)
            self._clear()

    def before_last_steps(
        self, run: Run, particles: Cloud, history: History, rule: HeldOut | None, first: int
    ) -> None:
        """Keep the state of one of several flows before its axis steps: it is not moved again."""
        if self._part:
            self._write_or_warn(run, particles, history, rule, first)

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

    def _write_or_warn(
        self, run: Run, particles: Cloud, history: History, rule: HeldOut | None, first: int
    ) -> None:
        try:
            self._write(run, particles, history, rule, first)
        except OSError as error:  # a full disk is no reason to lose the run
            warnings.warn(
                f"no checkpoint could be written to {self._path} ({error}); the fit continues, "
                "and the last checkpoint is kept",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write(
        self, run: Run, particles: Cloud, history: History, rule: HeldOut | None, first: int
    ) -> None:
        tensors = {"particles": particles.x}
        if run.coordinates is not None:
            tensors["level"] = run.coordinates
        if self._ranks.size == 1:
            self._write_head(run, history, rule, tensors, {})
            self._clear()
            return
        name, failed = f"{_NAME}.{run.done}.{first}", None
        try:
            write(self._folder / name, {"part": 1}, tensors)
        except OSError as error:
            failed = str(error)
        answers = self._ranks.all_gather((name, first, particles.x.shape[1], failed))
        parts = [list(answer[:3]) for answer in answers]
        failures = [f"rank {r}: {a[3]}" for r, a in enumerate(answers) if a[3] is not None]
        if self._ranks.first and not failures:
            try:
                self._write_head(run, history, rule, {}, {"parts": parts})
                self._clear({part[0] for part in parts})
            except OSError as error:
                failures = [str(error)]
        failures = self._ranks.broadcast(failures)
        if failures:
            (self._folder / name).unlink(missing_ok=True)
            raise OSError(failures[0])

    def _clear(self, kept: Container[str] = ()) -> None:
        """Remove the files of ranks, except those in `kept`."""
        for path in self._folder.glob(f"{_NAME}.*.*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _write_head(
        self,
        run: Run,
        history: History,
        rule: HeldOut | None,
        tensors: dict[str, Tensor],
        more: dict[str, Any],
    ) -> None:
        text = {
            "checkpoint": 1,
            "of": self._of,
            "seed": asdict(self.seed),
            "stage": run.stage,
            "step": run.step,
            "done": run.done,
            "spared": run.spared,
            "seconds": run.seconds,
            "stages": [{"tables": tables} for tables in pack_tables(by_stage(run.model), tensors)],
            "history": pack_history(history.as_columns()),
            "held_out": None
            if rule is None
            else {"stage": [s for s, _ in rule.heard]} | pack_history({"distance": rule.distances}),
            **more,
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
        first: int,
    ) -> None:
        x, filled = particles.x, 0
        try:
            for start, part in self._parts(header, tensors, first, x.shape[1]):
                own = check_tensor(part, "particles", x.dtype, (x.shape[0], None))
                end = start + own.shape[1]
                here = slice(max(start, first) - first, min(end, first + x.shape[1]) - first)
                there = slice(here.start + first - start, here.stop + first - start)
                x[:, here] = own[:, there].to(x.device)
                if "level" in part:
                    level = check_tensor(part, "level", x.dtype, (None, end - start))
                    if run.coordinates is None:
                        run.coordinates = x.new_empty(level.shape[0], x.shape[1])
                    run.coordinates[:, here] = level[:, there].to(x.device)
                filled += here.stop - here.start
            if filled != x.shape[1]:
                raise ValueError(f"it holds {filled} of {x.shape[1]} particles")
            run.stage, run.step = header.whole("stage", 0), header.whole("step", 0)
            run.done, run.spared = header.whole("done", 0), header.whole("spared", 0)
            run.seconds = header.number("seconds")
            for i, row in enumerate(header.inners("stages")):
                run.model += unpack_tables(row, i, i, tensors, None, None, x.device)
            history.before = unpack_history(header)
            if rule is not None:
                held = header.inner("held_out")
                for stage, distance in zip(held.rows("stage"), held.rows("distance"), strict=True):
                    rule.judge(stage, math.nan if distance is None else distance)
        except (ValueError, TypeError, IndexError) as error:
            raise ModelFileError(
                f"{self._path} is damaged: {error}. Delete it to start the fit again"
            ) from error

    def _parts(
        self, header: Fields, tensors: dict[str, Tensor], first: int, count: int
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The tensors of every file that holds some of the `count` particles starting at `first`."""
        if "parts" not in header.value:
            yield 0, tensors
            return
        for name, start, size in header.rows("parts"):
            if start < first + count and first < start + size:
                yield start, read(self._folder / Path(name).name)[1]
