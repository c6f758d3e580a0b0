"""The run folder: the files of a run by name. Nothing is fitted or drawn here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.models.atomic import write_atomically

LOCK = ".lock"


class RunFolder:
    """The files of a run. It has ended when config.json says when and there is a report."""

    FILES = (
        "config.json",
        "model.sliceflow",
        "samples.png",
        "samples.npz",
        "samples.csv",
        "evolution.gif",
        "history.csv",
        "evaluation.json",
        "report.html",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def written(self) -> list[str]:
        return [name for name in self.FILES if (self / name).exists()]

    @property
    def fitted(self) -> bool:
        """Whether the fit has ended and is written, measured or not."""
        there = {"model.sliceflow", "config.json"} <= set(self.written)
        return there and "finished" in self.read_json("config.json")

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.is_dir() and any(self.checkpoint.iterdir())

    @contextmanager
    def locked(self, *, force: bool, resume: bool) -> Iterator[None]:
        """Make the folder, and keep other fits out of it. One that is still empty is removed again."""
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        file = self / LOCK
        lock = FileLock(
            file, timeout=0.2, fallback_to_soft=False
        )  # the system releases it
        if self.path.is_file():
            raise WrongUsage(f"{self.path} is a file", "name a folder with --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            file.write_text(f"{os.getpid()}\n")
        except Timeout as error:
            fact = f"another fit is writing to {self.path}: process {file.read_text().strip()}"
            raise Failed(
                fact, "wait until it has ended, or pass another --out"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise Failed(
                f"{self.path} cannot be written to: {reason}", "pass another --out"
            ) from error
        try:
            self._check_usable(force, resume)
            yield
        finally:
            with suppress(OSError):  # on Windows it is in use
                file.unlink()
            lock.release()
            with suppress(OSError):  # from the first one that is not empty
                for path in made:
                    path.rmdir()

    def _check_usable(self, force: bool, resume: bool) -> None:
        """Refuse a folder that is not empty, unless its run may be replaced or resumed."""
        unmeasured = self.fitted and "report.html" not in self.written
        if resume:
            if self.fitted and not unmeasured:
                hint = f"sliceflow evaluate {shlex.quote(str(self.path))} measures it again"
                raise WrongUsage(
                    f"the run in {self.path} has ended", f"{hint}; --force replaces it"
                )
            return
        files = sorted(path for path in self.path.iterdir() if path.name != LOCK)
        if files and not force:
            hint = "pass another --out, or --force to replace the run"
            if unmeasured or self.has_checkpoint:
                command = self.read_json("config.json").get("command")
                hint = f"to continue the interrupted run: {command} --resume; or {hint}"
            raise WrongUsage(
                f"{self.path} is not empty; it holds {files[0].name}", hint
            )

    def remove_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def begin(self, config: dict[str, Any], *, replace: bool) -> None:
        """Write what runs; `replace` first removes the files of an earlier run, and nothing else."""
        if replace:
            self.remove_checkpoint()
            for name in self.FILES:
                (self / name).unlink(missing_ok=True)
        self.write_json("config.json", config)

    def remove_failed(self) -> None:
        """Leave nothing of a fit that failed before its first checkpoint."""
        if not self.has_checkpoint:
            self.remove_checkpoint()
            if "model.sliceflow" not in self.written:
                (self / "config.json").unlink(missing_ok=True)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        write_atomically(self / name, lambda file: file.write(text.encode()))

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self / name).read_text(encoding="utf-8"))
            if not isinstance(value, dict):
                raise ValueError("it is not an object")
        except FileNotFoundError as error:
            fact = f"{self.path} has no {name}: it is not a finished run"
            raise WrongUsage(fact, "make one with sliceflow fit") from error
        except ValueError as error:
            raise Failed(
                f"{self / name} is damaged: {error}", "fit the run again"
            ) from error
        return value

    def check_fitted(self) -> None:
        """Refuse what is not a run folder, and a run whose fit has not ended."""
        if not self.path.is_dir():
            raise WrongUsage(
                f"{self.path} is not a run folder", "name the folder sliceflow fit made"
            )
        if not self.fitted:
            hint = (
                f"to resume it: {self.read_json('config.json').get('command')} --resume"
            )
            raise WrongUsage(f"the run in {self.path} has not ended", hint)


def model_file(run: Path) -> Path:
    """The model of a run folder, or the .sliceflow file itself, which must be there."""
    path = run / "model.sliceflow" if run.is_dir() else run
    if not path.is_file():
        if (run / "config.json").exists():
            RunFolder(run).check_fitted()
        raise WrongUsage(
            f"{path} does not exist", "name a run folder or a .sliceflow file"
        )
    return path


def load_model(run: Path, device: str = "auto") -> Any:
    """The model of a run folder, or of a .sliceflow file."""
    path = model_file(run)
    import sliceflow

    try:
        return sliceflow.load(path, device=device)
    except sliceflow.ModelFileError as error:
        raise Failed(
            str(error), "name a file that sliceflow wrote, or fit it again"
        ) from error


def check_new(path: Path, *, force: bool) -> None:
    """Refuse to replace a file or a folder that is not empty without `force`; make its parent."""
    taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if taken and not force:
        raise WrongUsage(
            f"{path} already exists", "pass another --out, or --force to replace it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
