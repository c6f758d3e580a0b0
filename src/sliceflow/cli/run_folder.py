"""The run folder: what a run is kept in, file by file. Nothing is fitted or drawn here."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage, in_flags
from sliceflow.cli.lock import Lock
from sliceflow.storage.atomic import write_atomically

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow

__all__ = ["RunFolder", "command_of", "new_file"]


class RunFolder:
    """The files of a run by name, in a folder of its own."""

    FILES = (
        "config.json",
        "model.sliceflow",
        "samples.png",
        "samples.npz",
        "samples.csv",
        "evolution.gif",
        "neighbours.png",
        "history.csv",
        "evaluation.json",
        "report.html",
    )
    # Of a fit that is running, and its last checkpoint until all else is written.
    STATE = ("checkpoint/evolution.npz", "checkpoint/fit.checkpoint", "checkpoint/last.checkpoint")

    def __init__(self, path: Path) -> None:
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def checkpoint(self) -> Path:
        """The folder for the state of a fit that is running."""
        return self.path / "checkpoint"

    def check(self, *, force: bool, resume: bool) -> None:
        """Refuse a folder that holds anything, unless it may be replaced or gone on with."""
        if self.path.exists() and not self.path.is_dir():
            raise WrongUsage(f"{self.path} is a file", "name a folder with --out")
        there = sorted(self.path.iterdir()) if self.path.exists() else []
        there = [path for path in there if path.name != Lock.NAME]
        if resume:
            if self.fitted and (self / "report.html").exists():
                again = shlex.join(("sliceflow", "evaluate", str(self.path)))
                raise WrongUsage(
                    f"the run in {self.path} has ended",
                    f"{again} measures it again; --force fits it anew",
                )
        elif there and not force:
            cure = "pass another --out, or --force to replace the run"
            going = any((self / name).exists() for name in self.STATE[1:])
            going = going or (self.fitted and not (self / "report.html").exists())
            raise WrongUsage(
                f"{self.path} is not empty; it holds {there[0].name}",
                f"--resume goes on with the run that was stopped; or {cure}" if going else cure,
            )

    def make(self) -> None:
        """Make the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self / ".probe"  # fail now, and not when all has been fitted
            probe.touch()
            probe.unlink()
        except OSError as error:
            reason = error.strerror or str(error)
            raise Failed(f"{self.path} cannot be written to: {reason}", "pass another --out") from error

    def forget_checkpoint(self) -> None:
        """Remove the checkpoint of a run that was stopped."""
        for name in self.STATE:
            (self / name).unlink(missing_ok=True)

    def begin(self, config: dict[str, Any], *, force: bool) -> None:
        """Say what runs; with `force` remove the files of an earlier run, and nothing else."""
        for name in self.FILES if force else ():
            (self / name).unlink(missing_ok=True)
        self.write_json("config.json", config)

    @property
    def fitted(self) -> bool:
        """Whether the fit has ended and is written, measured or not."""
        names = ("model.sliceflow", "samples.npz", "history.csv", "config.json")
        return all((self / name).exists() for name in names) and (
            "finished" in self.read_json("config.json")
        )

    def keep_checkpoint(self) -> None:
        """The fit is about to remove its checkpoint; keep it until everything is written."""
        last, kept = self / self.STATE[1], self / self.STATE[2]
        kept.unlink(missing_ok=True)
        if last.exists():
            try:
                os.link(last, kept)
            except OSError:  # a file system without links
                shutil.copyfile(last, kept)

    def go_on(self) -> bool:
        """Whether there is a checkpoint to go on from: the last one of a fit that was killed later."""
        last, kept = self / self.STATE[1], self / self.STATE[2]
        if kept.exists() and not last.exists():
            os.replace(kept, last)
        return last.exists()

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint that was kept, and its folder, if nothing else is there."""
        (self / self.STATE[2]).unlink(missing_ok=True)
        if self.checkpoint.is_dir() and not any(self.checkpoint.iterdir()):
            self.checkpoint.rmdir()

    def clear_failed(self) -> None:
        """Leave nothing of a fit that failed before its first checkpoint."""
        if self.go_on():
            return
        (self / "checkpoint/evolution.npz").unlink(missing_ok=True)
        self.drop_checkpoint()
        if (self / "model.sliceflow").exists():
            return
        (self / "config.json").unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """One JSON file, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """One file of text, whole or not at all."""
        write_atomically(self / name, lambda file: file.write(text.encode()))

    def read_json(self, name: str) -> dict[str, Any]:
        """What `write_json` wrote."""
        try:
            value = json.loads((self / name).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise WrongUsage(
                f"{self.path} has no {name}: it is no finished run", "make one with sliceflow fit"
            ) from error
        except ValueError as error:
            raise Failed(f"{self / name} is damaged: {error}", "fit the run anew") from error
        if not isinstance(value, dict):
            raise Failed(f"{self / name} is not an object", "fit the run anew")
        return value

    def samples(self) -> dict[str, np.ndarray]:
        """The arrays of samples.npz."""
        try:
            with np.load(self / "samples.npz") as kept:
                return {name: kept[name] for name in kept.files}
        except (OSError, EOFError, ValueError, BadZipFile, zlib.error) as error:
            raise Failed(f"{self / 'samples.npz'} is damaged: {error}", "fit the run anew") from error

    def history(self) -> list[dict[str, Any]]:
        """The rows of history.csv."""
        with (self / "history.csv").open(newline="", encoding="utf-8") as stream:
            return [
                {"stage": row["stage"], "distance": float(row["distance"])}
                for row in csv.DictReader(stream)
            ]

    def check_finished(self) -> None:
        """Refuse what is no run folder, and a run that has not ended."""
        if not self.path.is_dir():
            raise WrongUsage(f"{self.path} is not a run folder", "name the folder sliceflow fit made")
        command = self.read_json("config.json").get("command")
        for name in ("model.sliceflow", "samples.npz", "history.csv"):
            if not (self / name).exists():
                raise WrongUsage(
                    f"{self.path} has no {name}: the run has not ended", f"to go on: {command} --resume"
                )

    @staticmethod
    def model(run: Path, device: str = "auto") -> ImageFlow | SlicedWassersteinFlow:
        """The model in a run folder, or in a .sliceflow file itself."""
        path = run / "model.sliceflow" if run.is_dir() else run
        if not path.exists():
            if (run / "config.json").exists():
                RunFolder(run).check_finished()
            raise WrongUsage(f"{path} does not exist", "name a run folder or a .sliceflow file")
        import sliceflow
        from sliceflow.errors import ParameterError

        try:
            return sliceflow.load(path, device=device)
        except ParameterError as error:
            raise in_flags(error) from error
        except sliceflow.ModelFileError as error:
            raise Failed(str(error), "name a file that sliceflow wrote, or fit it anew") from error


def new_file(path: Path, *, force: bool) -> Path:
    """A path that may be written to; its folder is made."""
    taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if taken and not force:
        raise WrongUsage(f"{path} is there already", "pass another --out, or --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{path.parent} cannot be made: {error.strerror}", "pass another --out") from error
    return path


def command_of(verb: str, source: str, settings: dict[str, Any], defaults: dict[str, Any]) -> str:
    """The command with these settings, those that are their default left out."""
    words = ["sliceflow", verb, source]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value == defaults.get(name) or value is None:
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join(words)
