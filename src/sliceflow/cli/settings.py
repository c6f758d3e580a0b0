"""The settings of a fit: the values of its flags, and the estimator they describe."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.cli.data import Data
from sliceflow.cli.failures import Failed, WrongUsage, as_flags
from sliceflow.cli.run_folder import RunFolder

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow

__all__ = ["PICTURES_ONLY", "Settings", "read_mask"]

_TABLE_STEPS = {"draft": 50, "standard": 200, "best": 400}
_LISTS = ("drop", "keep", "column", "constraint")
PICTURES_ONLY = ("size", "observed", "mask", "schedule", "clusters", "mirror", "start", "conditional")


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on except the data themselves. The fields are the flags."""

    source: str
    out: str | None = None
    data_root: str | None = None
    size: int | None = None
    target: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    conditional: bool = False
    observed: str | None = None
    mask: str | None = None
    quality: str = "standard"
    particles: int | None = None
    schedule: str = "auto"
    amplifier: float | None = None
    clusters: int | None = None
    mirror: bool = False
    start: str = "auto"
    device: str = "auto"
    seed: int = 0
    holdout: float = 0.1
    skip_broken: bool = False
    checkpoint_every: float = 60.0
    vectors: bool = False
    column: tuple[str, ...] = ()
    constraint: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: RunFolder) -> Settings:
        """The settings of the run in a folder."""
        try:
            values = folder.read_json("config.json")["settings"]
            lists = {name: tuple(values[name]) for name in _LISTS if name in values}
            amplifier = {"amplifier": math.inf} if values.get("amplifier") == "inf" else {}
            return cls(**values | lists | amplifier)
        except (KeyError, TypeError) as error:
            raise Failed(
                f"{folder / 'config.json'} has no settings of this version: {error}",
                "fit the run again",
            ) from error

    def as_json(self) -> dict[str, Any]:
        """The fields; JSON has no infinity."""
        return asdict(self) | ({"amplifier": "inf"} if self.amplifier == math.inf else {})

    def changed(self) -> dict[str, Any]:
        """The flags that differ from their defaults."""
        flags = fields(self)[1:]
        return {f.name: value for f in flags if (value := getattr(self, f.name)) != f.default}

    @property
    def command(self) -> str:
        """The command that repeats the fit."""
        words = ["sliceflow", "fit", self.source]
        for name, value in self.changed().items():
            flag = f"--{name.replace('_', '-')}"
            for one in value if isinstance(value, tuple) else (value,):
                words += [flag] if one is True else [flag, str(one)]
        return shlex.join(words)

    @property
    def folder(self) -> Path:
        """The run folder: --out, else runs/ and the name of the data."""
        return Path(self.out or Path("runs", Path(self.source).expanduser().resolve().stem))

    def reading(self, root: Path | None = None) -> dict[str, Any]:
        """What `read` takes; `root` replaces --data-root."""
        own = None if self.data_root is None else Path(self.data_root).expanduser()
        names = ("size", "target", "drop", "keep", "skip_broken", "holdout")
        return {"root": root or own} | {name: getattr(self, name) for name in names}

    def check_same(self, folder: RunFolder) -> None:
        """Refuse to resume a run that was started with other settings."""
        if not (folder / "config.json").exists():
            return
        started = Settings.of(folder)
        for name, old in asdict(started).items():
            new = getattr(self, name)
            if old != new and name not in ("out", "data_root", "checkpoint_every"):
                raise WrongUsage(
                    f"--{name.replace('_', '-')} is {new}, but the run in {folder.path} was started "
                    f"with {old}",
                    f"to resume it: {started.command} --resume",
                )

    def check(self, data: Data) -> None:
        """Refuse flags that do not go with the data or with each other."""
        if not data.pictures:
            for name in self.changed():
                if name in PICTURES_ONLY:
                    hint = "name the column of labels with --target"
                    raise WrongUsage(
                        f"--{name} is for pictures; {self.source} is a table",
                        hint if name == "conditional" else "leave it out",
                    )
        elif data.x.ndim == 4 and data.x.shape[3] > 4:
            raise WrongUsage(
                f"{self.source} has pictures of {data.x.shape[3]} channels, but files show at most 4",
                "fit them in Python, with sliceflow.ImageFlow",
            )
        self.n_steps(data)
        given = {"--conditional": self.conditional, "--observed": self.observed, "--mask": self.mask}
        given["--clusters"] = self.clusters is not None
        exclusive = [flag for flag, value in given.items() if value]
        if len(exclusive) > 1:
            raise WrongUsage(f"{exclusive[0]} and {exclusive[1]} exclude each other", "choose one")
        if self.conditional and data.labels is None:
            raise WrongUsage(
                f"--conditional needs labels, but {data.name} has none",
                "put the pictures into one subfolder per class, or leave --conditional out",
            )
        labels = self.labels(data)
        classes = 0 if labels is None else len(np.unique(labels))
        if self.particles is not None and self.particles < classes:
            raise WrongUsage(
                f"--particles {self.particles} is fewer than the {classes} classes",
                f"pass {classes} or more",
            )

    def estimator(self, data: Data) -> ImageFlow | SlicedWassersteinFlow:
        """The estimator for these data, with its device and schedule checked."""
        from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow
        from sliceflow.devices import resolve_device
        from sliceflow.spaces.pictures.layout import Layout
        from sliceflow.spaces.pictures.plan import QUALITY

        with as_flags():
            resolve_device(self.device)
        if not data.pictures:
            return SlicedWassersteinFlow(
                n_particles=self.particles,
                n_steps=self.n_steps(data),
                amplifier=10.0 if self.amplifier is None else self.amplifier,
                device=self.device,
                random_state=self.seed,
            )
        flow = ImageFlow(
            schedule=self.schedule,
            n_particles=self.particles,
            quality=self.quality if self.quality in QUALITY else self.n_steps(data),
            amplifier="auto" if self.amplifier is None else self.amplifier,
            n_clusters="auto" if self.clusters is None else self.clusters,
            n_pixel_values=data.n_pixel_values,
            mirror=self.mirror,
            device=self.device,
            random_state=self.seed,
            observed=self.observed if self.mask is None else read_mask(self.mask, data.x.shape[1:3]),
            options=PictureOptions(start=int(self.start) if self.start.isdecimal() else self.start),
        )
        try:
            Layout.of(data.x, data.n_pixel_values)
        except ValueError as error:
            hint = "pass pictures (n, h, w) or (n, h, w, c), whole numbers 0 to 255 or floats 0 to 1"
            raise Failed(f"{self.source}: {error}", hint) from error
        try:
            flow.stages(*data.x.shape[1:])
        except ValueError as error:
            hint = "pass --schedule auto, mnist, cifar10 or celeba"
            raise WrongUsage(f"--schedule {self.schedule!r}: {error}", hint) from error
        return flow

    def n_steps(self, data: Data) -> int:
        """The number of steps of --quality: per stage for pictures, in all for a table."""
        from sliceflow.spaces.pictures.plan import QUALITY  # imports torch, which --help does not need

        names = QUALITY if data.pictures else _TABLE_STEPS
        if self.quality in names:
            return names[self.quality]
        if self.quality.isascii() and self.quality.isdigit() and int(self.quality) > 0:
            return int(self.quality)
        raise WrongUsage(
            f"--quality {self.quality!r} is not one of {', '.join(names)}",
            "or pass the number of steps",
        )

    def labels(self, data: Data) -> Any:
        """The labels that condition the flow: those of --target, or of --conditional."""
        return data.labels if self.conditional or self.target is not None else None


def read_mask(file: str, shape: tuple[int, ...]) -> np.ndarray:
    """(h, w) booleans, True where the picture in a file is white."""
    from PIL import Image, UnidentifiedImageError

    height, width = shape
    hint = f"pass a picture of {width}x{height}, white where pixels are known and black elsewhere"
    try:
        with Image.open(Path(file).expanduser()) as stored:
            known = np.asarray(stored.convert("L")) >= 128
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise WrongUsage(f"--mask {file} cannot be read: {error}", hint) from error
    if known.shape != (height, width):
        own = f"{known.shape[1]}x{known.shape[0]}"
        raise WrongUsage(f"--mask {file} is {own}, the pictures are {width}x{height}", hint)
    if known.all() or not known.any():
        raise WrongUsage(f"--mask {file} is all {'white' if known.all() else 'black'}", hint)
    return known
