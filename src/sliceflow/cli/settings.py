"""The settings of a fit: the values of its flags, and which kinds of data each flag is for."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder

PICTURES, VECTORS, TABLE = "pictures", "vectors", "table"
_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx", ".xls")
_WORDS = {
    (PICTURES,): "pictures",
    (PICTURES, VECTORS): "pictures and tables with --vectors",
    (VECTORS, TABLE): "tables",
    (TABLE,): "tables without --vectors",
}
_ONLY = {  # flags that only some kinds of data have
    (PICTURES,): "conditional size observed mask mirror skip_broken data_root",
    (PICTURES, VECTORS): "quality particles keep_rows",
    (VECTORS, TABLE): "drop target vectors",
    (TABLE,): "column constraint",
}
_FOR = {name: kinds for kinds, names in _ONLY.items() for name in names.split()}
_INSTEAD = {
    "conditional": "sliceflow sample --given column=value draws rows of one class",
    "target": "use --conditional for pictures with labels",
    "column": "leave it out, or leave --vectors out",
}
_MAY_CHANGE = ("out", "data_root", "checkpoint_every")  # between a run and its resumption


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on except the data themselves. The fields are the flags."""

    source: str
    out: str | None = None
    quality: str = "standard"
    particles: int | None = None
    conditional: bool = False
    target: str | None = None
    drop: tuple[str, ...] = ()
    column: tuple[str, ...] = ()
    constraint: tuple[str, ...] = ()
    vectors: bool = False
    size: int | None = None
    observed: str | None = None
    mask: str | None = None
    mirror: bool = False
    keep_rows: bool = False
    data_root: str | None = None
    holdout: float = 0.1
    skip_broken: bool = False
    device: str = "auto"
    seed: int = 0
    checkpoint_every: float = 60.0

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Settings:
        """The settings of the run in a folder."""
        try:
            values = folder.read_json("config.json")["settings"]
            lists = {name: tuple(values[name]) for name in ("drop", "column", "constraint")}
            return cls(**values | lists)
        except (KeyError, TypeError) as error:
            fact = f"{folder / 'config.json'} has no settings of this version: {error}"
            raise Failed(fact, "fit the run again") from error

    @property
    def kind(self) -> str:
        """What is fitted: "pictures", "vectors" or a "table"."""
        if Path(self.source).suffix.lower() not in _TABLES:
            return PICTURES
        return VECTORS if self.vectors else TABLE

    @property
    def folder(self) -> Path:
        """The run folder: --out, or runs/ and the name of the data."""
        return Path(self.out or Path("runs", Path(self.source).expanduser().resolve().stem))

    @property
    def command(self) -> str:
        """The command that repeats the fit."""
        words = ["sliceflow", "fit", self.source]
        for name, value in self.changed().items():
            for one in value if isinstance(value, tuple) else (value,):
                words += [_flag(name)] if one is True else [_flag(name), str(one)]
        return shlex.join(words)

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of columns by name: those of --column, and "drop" for those of --drop."""
        kinds = dict.fromkeys(self.drop, "drop")
        for text in self.column:
            name, equals, kind = text.rpartition("=")
            if not equals:
                raise WrongUsage(f"--column {text} is not name=kind", "pass --column zip=category, say")
            kinds[name] = kind
        return kinds

    def changed(self) -> dict[str, Any]:
        """The flags that differ from their defaults."""
        flags = fields(self)[1:]
        return {f.name: value for f in flags if (value := getattr(self, f.name)) != f.default}

    def steps(self, names: tuple[str, ...]) -> str | int:
        """--quality: one of the names, or a number of steps."""
        if self.quality in names:
            return self.quality
        if self.quality.isascii() and self.quality.isdigit() and int(self.quality) > 0:
            return int(self.quality)
        fact = f"--quality {self.quality!r} is not one of {', '.join(names)}"
        raise WrongUsage(fact, "or pass the number of steps")

    def check(self) -> None:
        """Refuse flags that do nothing for these data, and flags that contradict each other."""
        for name in self.changed():
            if self.kind not in _FOR.get(name, (self.kind,)):
                fact = f"{_flag(name)} is for {_WORDS[_FOR[name]]}, not for {self.source}"
                raise WrongUsage(fact, _INSTEAD.get(name, "leave it out"))
        exclusive = [_flag(n) for n in ("conditional", "observed", "mask") if getattr(self, n)]
        if len(exclusive) > 1:
            raise WrongUsage(f"{exclusive[0]} and {exclusive[1]} exclude each other", "choose one")

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
