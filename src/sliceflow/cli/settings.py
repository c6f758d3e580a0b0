"""The settings of a fit: the values of its flags, and which data each flag is for."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.cli.run_folder import RunFolder
from sliceflow.datasets.sets import SETS
from sliceflow.table_files import TABLE_ENDINGS

DATASET_NAMES = ("digits", *SETS)
DataKind = Literal["pictures", "table"]
PICTURES: DataKind = "pictures"
TABLE: DataKind = "table"
# As in `estimators.pictures.parameters`, which would import torch.
Quality = Literal["draft", "standard", "best"]

# Flags that do nothing for other data, by the data that they are for.
FLAGS_FOR = {
    "pictures": (
        "quality",
        "steps_per_stage",
        "particles",
        "conditional",
        "known",
        "mirror",
        "save_rows",
        "checkpoint_every",
    ),
    "folders and celeba": ("size", "skip_broken"),
    "named sets": ("data_root",),
    "tables": ("target", "drop", "column", "missing", "constraint"),
    "your own data": ("holdout",),
}
# Advice on what to do in place of a flag that is for other data.
_HINTS = {
    "conditional": "sliceflow sample --given column=value draws rows of one class",
    "target": "use --conditional for pictures with labels",
    "holdout": "it has test pictures of its own",
    "checkpoint_every": "leave it out: a table has no checkpoints, its fit is short",
}
# Flags that may change between a run and its resumption.
_MAY_CHANGE = ("out", "data_root", "checkpoint_every", "no_measure")


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on but the data. The fields are the flags.

    A `conditional` of None fits by class if the pictures have classes.
    """

    source: str
    out: str | None = None
    device: str = "auto"
    seed: int = 0
    holdout: float = 0.1
    checkpoint_every: float = 60.0
    no_measure: bool = False
    quality: Quality = "standard"
    steps_per_stage: int | None = None
    particles: int | None = None
    conditional: bool | None = None
    known: str | None = None
    mirror: bool = False
    save_rows: bool = False
    size: int | None = None
    skip_broken: bool = False
    data_root: str | None = None
    target: str | None = None
    drop: list[str] | None = None
    column: list[str] | None = None
    missing: list[str] | None = None
    constraint: list[str] | None = None

    @classmethod
    def from_folder(cls, folder: RunFolder) -> Settings:
        """The settings of the run in a folder."""
        try:
            return cls(**folder.read_json("config.json")["settings"])
        except (KeyError, TypeError) as error:
            fact = f"{folder / 'config.json'} has no settings of this version: {error}"
            raise CommandError(fact, "fit the run again") from error

    @property
    def kind(self) -> DataKind:
        """What is fitted: "pictures" or a "table"."""
        if Path(self.source).suffix.lower() in TABLE_ENDINGS:
            return TABLE
        return PICTURES

    @property
    def folder(self) -> Path:
        """The run folder: --out, or runs/ and the name of the data."""
        if self.out:
            return Path(self.out)
        return Path("runs", Path(self.source).expanduser().resolve().stem)

    @property
    def command(self) -> str:
        """The command that repeats the fit."""
        words = ["sliceflow", "fit", self.source]
        for name, value in self.changed().items():
            if value is True:
                words.append(_flag(name))
                continue
            if value is False:
                words.append(_flag(f"no_{name}"))
                continue
            for item in value if isinstance(value, list) else [value]:
                words += [_flag(name), str(item)]
        return shlex.join(words)

    def changed(self) -> dict[str, object]:
        """The flags that differ from their defaults, by name."""
        values: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "source" and value != field.default:
                values[field.name] = value
        return values

    def check(self) -> None:
        """Refuse data that do not exist, and flags that do not fit the data."""
        path = Path(self.source).expanduser()
        is_known = self.source in DATASET_NAMES or path.exists()
        if not self.source.strip() or not is_known:
            fact = f"{self.source!r} is neither a known set nor an existing path"
            hint = (
                f"pass one of {', '.join(DATASET_NAMES)}, a folder of pictures, "
                "an .npy or .npz file, or a table"
            )
            raise UsageError(fact, hint)
        self._check_flags_have_an_effect(path)
        self._check_flags_are_compatible()

    def _check_flags_have_an_effect(self, path: Path) -> None:
        """Refuse flags that are for other data than these."""
        is_named = self.source in DATASET_NAMES
        is_folder = not is_named and path.is_dir()
        applies = {
            "pictures": self.kind == PICTURES,
            "folders and celeba": self.source == "celeba" or is_folder,
            "named sets": is_named,
            "tables": self.kind == TABLE,
            "your own data": self.source == "celeba" or not is_named,
        }
        changed = self.changed()
        for data, names in FLAGS_FOR.items():
            without_effect = [name for name in names if name in changed]
            if without_effect and not applies[data]:
                name = without_effect[0]
                fact = f"{_flag(name)} is for {data}, not for {self.source}"
                raise UsageError(fact, _HINTS.get(name, "leave it out"))

    def _check_flags_are_compatible(self) -> None:
        """Refuse two flags that exclude each other."""
        exclusive = []
        for name in ("conditional", "known"):
            if getattr(self, name):
                exclusive.append(_flag(name))
        if self.target is not None and self.drop and self.target in self.drop:
            exclusive = [f"--target {self.target}", f"--drop {self.target}"]
        if len(exclusive) > 1:
            fact = f"{exclusive[0]} and {exclusive[1]} exclude each other"
            raise UsageError(fact, "choose one")

    def check_resumes(self, folder: RunFolder) -> None:
        """Refuse to resume a run that was started with other settings."""
        if not (folder / "config.json").exists():
            return
        started = Settings.from_folder(folder)
        for name, old in asdict(started).items():
            new = getattr(self, name)
            if old != new and name not in _MAY_CHANGE:
                fact = (
                    f"{_flag(name)} is {new}, "
                    f"but the run in {folder.path} was started with {old}"
                )
                raise UsageError(fact, f"to resume it: {started.command} --resume")


def _flag(name: str) -> str:
    """The flag that sets a field."""
    return f"--{name.replace('_', '-')}"


def parse_kinds(
    columns: list[str] | None, drop: list[str] | None
) -> dict[str, str] | None:
    """Kinds of columns by name, for the parameter `kinds` of `TableFlow`.

    Parameters
    ----------
    columns : values of --column, such as "zip=category"
    drop : values of --drop, names of columns; their kind is "drop"
    """
    kinds = dict.fromkeys(drop or [], "drop")
    for text in columns or []:
        name, equals, kind = text.rpartition("=")
        if not equals:
            fact = f"--column {text} is not name=kind"
            raise UsageError(fact, "pass --column zip=category, say")
        if name in kinds:
            fact = f"--column {text}: {name} already is {kinds[name]}"
            raise UsageError(fact, "choose one")
        kinds[name] = kind
    return kinds or None
