"""The settings of a fit: the values of its flags, and which data each flag is for."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder
from sliceflow.datasets.sets import SETS
from sliceflow.number_formats import TABLES

NAMES = ("digits", *SETS)
PICTURES = "pictures"
TABLE = "table"
Part = Literal["top", "bottom", "left", "right", "border", "center"]
ONLY = {  # flags that only some data have
    "pictures": "quality particles conditional observed mask mirror keep_rows",
    "folders and celeba": "size skip_broken",
    "named sets": "data_root",
    "tables": "target drop column constraint",
    "your own data": "holdout",
}
_INSTEAD = {
    "conditional": "sliceflow sample --given column=value draws rows of one class",
    "target": "use --conditional for pictures with labels",
    "holdout": "it has test pictures of its own",
}
_MAY_CHANGE = (
    "out",
    "data_root",
    "checkpoint_every",
)  # between a run and its resumption


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on except the data themselves. The fields are the flags."""

    source: str
    out: str | None = None
    device: str = "auto"
    seed: int = 0
    holdout: float = 0.1
    checkpoint_every: float = 60.0
    quality: str = "standard"
    particles: int | None = None
    conditional: bool = False
    observed: Part | None = None
    mask: str | None = None
    mirror: bool = False
    keep_rows: bool = False
    size: int | None = None
    skip_broken: bool = False
    data_root: str | None = None
    target: str | None = None
    drop: list[str] | None = None
    column: list[str] | None = None
    constraint: list[str] | None = None

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Settings:
        try:
            return cls(**folder.read_json("config.json")["settings"])
        except (KeyError, TypeError) as error:
            fact = f"{folder / 'config.json'} has no settings of this version: {error}"
            raise Failed(fact, "fit the run again") from error

    @property
    def kind(self) -> str:
        """What is fitted: "pictures" or a "table"."""
        return TABLE if Path(self.source).suffix.lower() in TABLES else PICTURES

    @property
    def folder(self) -> Path:
        """The run folder: --out, or runs/ and the name of the data."""
        return Path(
            self.out or Path("runs", Path(self.source).expanduser().resolve().stem)
        )

    @property
    def command(self) -> str:
        """The command that repeats the fit."""
        words = ["sliceflow", "fit", self.source]
        for name, value in self.changed().items():
            for one in value if isinstance(value, list) else (value,):
                words += [_flag(name)] if one is True else [_flag(name), str(one)]
        return shlex.join(words)

    def changed(self) -> dict[str, Any]:
        flags = fields(self)[1:]
        return {
            f.name: value
            for f in flags
            if (value := getattr(self, f.name)) != f.default
        }

    def check(self) -> None:
        """Refuse what is no data, flags that do nothing for them, and flags that exclude each other."""
        source = self.source
        path = Path(self.source).expanduser()
        if not source.strip() or not (source in NAMES or path.exists()):
            hint = f"pass one of {', '.join(NAMES)}, a folder of pictures, an .npy or .npz file, or a table"
            raise WrongUsage(
                f"{source!r} is neither a known set nor an existing path", hint
            )
        here = {
            "pictures": self.kind == PICTURES,
            "folders and celeba": source == "celeba"
            or (source not in NAMES and path.is_dir()),
            "named sets": source in NAMES,
            "tables": self.kind == TABLE,
            "your own data": source == "celeba" or source not in NAMES,
        }
        for what, names in ONLY.items():
            useless = [name for name in names.split() if name in self.changed()]
            if useless and not here[what]:
                fact = f"{_flag(useless[0])} is for {what}, not for {source}"
                raise WrongUsage(fact, _INSTEAD.get(useless[0], "leave it out"))
        exclusive = [
            _flag(n) for n in ("conditional", "observed", "mask") if getattr(self, n)
        ]
        if self.target is not None and self.target in (self.drop or ()):
            exclusive = [f"--target {self.target}", f"--drop {self.target}"]
        if len(exclusive) > 1:
            raise WrongUsage(
                f"{exclusive[0]} and {exclusive[1]} exclude each other", "choose one"
            )

    def check_resumes(self, folder: RunFolder) -> None:
        """Refuse to resume a run that was started with other settings."""
        if not (folder / "config.json").exists():
            return
        started = Settings.from_folder(folder)
        for name, old in asdict(started).items():
            new = getattr(self, name)
            if old != new and name not in _MAY_CHANGE:
                fact = f"{_flag(name)} is {new}, but the run in {folder.path} was started with {old}"
                raise WrongUsage(fact, f"to resume it: {started.command} --resume")


def kinds_of(
    columns: list[str] | None, drop: list[str] | None
) -> dict[str, str] | None:
    """Kinds of columns by name: those of --column, and "drop" for those of --drop."""
    kinds = dict.fromkeys(drop or (), "drop")
    for text in columns or ():
        name, equals, kind = text.rpartition("=")
        if not equals:
            raise WrongUsage(
                f"--column {text} is not name=kind", "pass --column zip=category, say"
            )
        if name in kinds:
            raise WrongUsage(
                f"--column {text}: {name} already is {kinds[name]}", "choose one"
            )
        kinds[name] = kind
    return kinds or None
