"""The run folder: the files of a run by name. Nothing is fitted or drawn here."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from sliceflow.base.atomic import write_atomically
from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.table_files import Dialect

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import ImageFlow, SlicedWassersteinFlow, TableFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.engine.events import HistoryColumns

    Model = SlicedWassersteinFlow | ImageFlow | TableFlow

LOCK = ".lock"
# Seconds to wait for the lock. A fit holds it to its end, so waiting longer is no use.
_LOCK_TIMEOUT = 0.2


class RunFolder:
    """The files of a run.

    A run is finished when config.json says when, and there is a report.
    """

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
    def files(self) -> list[str]:
        """The names of the run's files that exist."""
        return [name for name in self.FILES if (self / name).exists()]

    @property
    def is_fitted(self) -> bool:
        """Whether the fit has ended and is written, measured or not."""
        files = self.files
        if "model.sliceflow" not in files or "config.json" not in files:
            return False
        return "finished" in self.read_json("config.json")

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.is_dir() and any(self.checkpoint.iterdir())

    @contextmanager
    def locked(self, *, force: bool, resume: bool) -> Iterator[None]:
        """Make the folder, and keep other fits out of it.

        If nothing is written to it, the folder is removed again.
        """
        if self.path.is_file():
            raise UsageError(f"{self.path} is a file", "name a folder with --out")
        new_folders = [
            path for path in (self.path, *self.path.parents) if not path.exists()
        ]
        lock = self._acquire_lock()
        try:
            if resume:
                self._check_resumable()
            elif not force:
                self._check_empty()
            yield
        finally:
            with suppress(OSError):  # Windows does not remove a file that is in use
                (self / LOCK).unlink()
            lock.release()
            with suppress(OSError):  # stops at the first folder that is not empty
                for path in new_folders:
                    path.rmdir()

    def _acquire_lock(self) -> FileLock:
        """Make the folder, and lock it with a file that holds our process id."""
        file = self / LOCK
        # The operating system releases it if the process is killed; a soft lock stays.
        lock = FileLock(file, timeout=_LOCK_TIMEOUT, fallback_to_soft=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            file.write_text(f"{os.getpid()}\n")
        except Timeout as error:
            process = file.read_text().strip()
            fact = f"another fit is writing to {self.path}: process {process}"
            hint = "wait until it has ended, or pass another --out"
            raise CommandError(fact, hint) from error
        except OSError as error:
            reason = error.strerror or str(error)
            fact = f"{self.path} cannot be written to: {reason}"
            raise CommandError(fact, "pass another --out") from error
        return lock

    def _check_resumable(self) -> None:
        """Refuse to resume a run that is finished."""
        if self.is_fitted and self._has_report:
            quoted = shlex.quote(str(self.path))
            hint = f"sliceflow evaluate {quoted} measures it again"
            fact = f"the run in {self.path} has ended"
            raise UsageError(fact, f"{hint}; --force replaces it")

    def _check_empty(self) -> None:
        """Refuse a folder with files, and say how to resume its run if it can be."""
        names = sorted(path.name for path in self.path.iterdir() if path.name != LOCK)
        if not names:
            return
        hint = "pass another --out, or --force to replace the run"
        is_unmeasured = self.is_fitted and not self._has_report
        if is_unmeasured or self.has_checkpoint:
            command = self.read_json("config.json").get("command")
            hint = f"to continue the interrupted run: {command} --resume; or {hint}"
        fact = f"{self.path} is not empty; it holds {names[0]}"
        raise UsageError(fact, hint)

    @property
    def _has_report(self) -> bool:
        return "report.html" in self.files

    def remove_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def begin(self, config: JsonObject, *, replace: bool) -> None:
        """Write what is being fitted.

        With `replace` first remove the files of an earlier run, and nothing else.
        """
        if replace:
            self.remove_checkpoint()
            for name in self.FILES:
                (self / name).unlink(missing_ok=True)
        self.write_json("config.json", config)

    def remove_failed(self) -> None:
        """Leave nothing of a fit that failed before its first checkpoint."""
        if self.has_checkpoint:
            return
        self.remove_checkpoint()
        if "model.sliceflow" not in self.files:
            (self / "config.json").unlink(missing_ok=True)

    def write_json(self, name: str, value: JsonObject) -> None:
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        write_atomically(self / name, lambda file: file.write(text.encode()))

    def write_history(self, history: HistoryColumns) -> None:
        """Write the steps of a fit as a table."""
        import pandas as pd

        from sliceflow.estimators.tables.files import write_table

        write_table(pd.DataFrame(history), self / "history.csv")

    def read_json(self, name: str) -> JsonObject:
        """The object in a JSON file of the run."""
        try:
            value = json.loads((self / name).read_text(encoding="utf-8"))
            if not isinstance(value, dict):
                raise ValueError("it is not an object")
        except FileNotFoundError as error:
            fact = f"{self.path} has no {name}: it is not a finished run"
            raise UsageError(fact, "make one with sliceflow fit") from error
        except ValueError as error:
            fact = f"{self / name} is damaged: {error}"
            raise CommandError(fact, "fit the run again") from error
        return value

    def check_fitted(self) -> None:
        """Refuse what is not a run folder, and a run whose fit has not ended."""
        if not self.path.is_dir():
            fact = f"{self.path} is not a run folder"
            raise UsageError(fact, "name the folder sliceflow fit made")
        if not self.is_fitted:
            command = self.read_json("config.json").get("command")
            fact = f"the run in {self.path} has not ended"
            raise UsageError(fact, f"to resume it: {command} --resume")


class Description(NamedTuple):
    """What a run folder says of its data, without a look at the model."""

    kind: str = ""  # "pictures" or "table"; empty if nothing is known
    columns: tuple[str, ...] = ()  # the names of a table's columns
    dialect: Dialect | None = None  # how the text file of a table is written


def read_description(run: Path) -> Description:
    """What the folder of a run says; nothing if it is a model file."""
    if not (run / "config.json").exists():
        return Description()
    data = RunFolder(run).read_json("config.json").get("data", {})
    dialect = None
    if data.get("dialect"):
        dialect = Dialect(**data["dialect"])
    return Description(data.get("kind", ""), tuple(data.get("columns", ())), dialect)


def model_file(run: Path) -> Path:
    """The model of a run folder, or the .sliceflow file itself, which must exist."""
    path = run / "model.sliceflow" if run.is_dir() else run
    if not path.is_file():
        if (run / "config.json").exists():
            RunFolder(run).check_fitted()
        hint = "name a run folder or a .sliceflow file"
        raise UsageError(f"{path} does not exist", hint)
    return path


def load_model(run: Path, device: str = "auto") -> Model:
    """The model of a run folder, or of a .sliceflow file."""
    path = model_file(run)
    import sliceflow

    try:
        model = sliceflow.load(path, device=device)
    except sliceflow.ModelFileError as error:
        hint = "name a file that sliceflow wrote, or fit it again"
        raise CommandError(str(error), hint) from error
    if isinstance(model, sliceflow.TableFlow):
        return model
    # The class of densities imports torch, which a table does not need.
    if isinstance(model, sliceflow.SlicedDensity):
        fact = f"{path} is a density, for which there are no commands"
        raise CommandError(fact, "open it in Python with sliceflow.load")
    return model


def is_stdout(path: Path) -> bool:
    """Whether a path is the "-" that stands for stdout."""
    return str(path) == "-"


def write_or_print(df: pd.DataFrame, path: Path, dialect: Dialect | None) -> None:
    """Write a table to a file, or to stdout, as the text file that was read is."""
    from sliceflow.estimators.tables.files import as_csv, write_table

    if not is_stdout(path):
        write_table(df, path, dialect)
        return
    if dialect is None:
        dialect = Dialect()
    text = as_csv(df, dialect).decode(dialect.encoding)
    sys.stdout.write(text)
    sys.stdout.flush()


def check_new(path: Path, *, force: bool) -> None:
    """Refuse to replace a file, or a folder with files, without `force`.

    Makes the folder above it.
    """
    if is_stdout(path):
        return
    is_taken = path.exists()
    if path.is_dir():
        is_taken = any(path.iterdir())
    if is_taken and not force:
        hint = "pass another --out, or --force to replace it"
        raise UsageError(f"{path} already exists", hint)
    path.parent.mkdir(parents=True, exist_ok=True)
