"""What a fit is asked for: the values of flags, and the estimator they describe. Nothing runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.cli.data import Data
from sliceflow.cli.failures import Failed, WrongUsage, in_flags
from sliceflow.cli.run_folder import RunFolder, command_of

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow

__all__ = ["Settings"]

_TABLE_STEPS = {"draft": 50, "standard": 200, "best": 400}
_PICTURES_ONLY = ("size", "observed", "schedule", "clusters", "mirror", "conditional")


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on but the data themselves; the fields are the flags."""

    source: str
    out: str | None = None
    data_root: str | None = None
    size: int | None = None
    target: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    conditional: bool = False
    observed: str | None = None
    quality: str = "standard"
    particles: int | None = None
    schedule: str = "auto"
    amplifier: float | None = None
    clusters: int | None = None
    mirror: bool = False
    device: str = "auto"
    seed: int = 0
    holdout: float = 0.1
    skip_broken: bool = False
    checkpoint_every: float = 60.0

    @classmethod
    def of(cls, folder: RunFolder) -> Settings:
        """Those of the run in a folder."""
        try:
            values = folder.read_json("config.json")["settings"]
            if values.get("amplifier") == "inf":
                values["amplifier"] = math.inf
            lists = {k: tuple(values[k]) for k in ("drop", "keep") if k in values}
            return cls(**values | lists)
        except (KeyError, TypeError) as error:
            raise Failed(
                f"{folder / 'config.json'} has no settings of this version: {error}", "fit the run anew"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """The fields; JSON has no infinity."""
        return asdict(self) | ({"amplifier": "inf"} if self.amplifier == math.inf else {})

    def check_same(self, folder: RunFolder) -> None:
        """Refuse to go on with a run that other settings began."""
        if not (folder / "config.json").exists():
            return
        was = Settings.of(folder)
        for field in fields(self):
            old, new = getattr(was, field.name), getattr(self, field.name)
            if old != new and field.name not in ("out", "data_root", "checkpoint_every"):
                flag = "--" + field.name.replace("_", "-")
                raise WrongUsage(
                    f"{flag} is {new}, and was {old} when the run in {folder.path} began",
                    f"to go on: {was.command} --resume",
                )

    def check(self, data: Data) -> None:
        """Refuse flags that do not go with the data or with each other."""
        if not data.pictures:
            standard = {f.name: f.default for f in fields(self)}
            for name in _PICTURES_ONLY:
                if getattr(self, name) != standard[name]:
                    cure = "name the column of labels with --target" if name == "conditional" else ""
                    raise WrongUsage(
                        f"--{name} is for pictures; {self.source} is a table", cure or "leave it out"
                    )
        elif data.x.ndim == 4 and data.x.shape[3] > 4:
            raise WrongUsage(
                f"{self.source} has pictures of {data.x.shape[3]} channels, and files show at most 4",
                "fit them in Python, with sliceflow.ImageFlow",
            )
        self.n_steps(data)
        if self.conditional and self.observed:
            raise WrongUsage("--conditional and --observed exclude each other", "choose one")
        if self.clusters is not None and (self.conditional or self.observed):
            other = "--conditional" if self.conditional else "--observed"
            raise WrongUsage(f"--clusters and {other} exclude each other", "choose one")
        if self.conditional and data.labels is None:
            raise WrongUsage(
                f"--conditional needs labels and {data.name} has none",
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
        """The estimator for these data, with a device and a schedule that it can use."""
        from sliceflow.devices import resolve_device
        from sliceflow.errors import ParameterError

        try:
            resolve_device(self.device)
        except ParameterError as error:
            raise in_flags(error) from error
        flow: Any = self._estimator(data)
        if data.pictures:
            from sliceflow.pictures.layout import Layout

            try:
                Layout.of(data.x, data.n_pixel_values)
            except ValueError as error:
                cure = (
                    "pass pictures (n, h, w) or (n, h, w, c), whole numbers 0 to 255 or floats 0 to 1"
                )
                raise Failed(f"{self.source}: {error}", cure) from error
            try:
                flow.stages(*data.x.shape[1:3])
            except ValueError as error:
                cure = "pass --schedule auto, mnist, cifar10 or celeba"
                raise WrongUsage(f"--schedule {self.schedule!r}: {error}", cure) from error
        return flow  # type: ignore[no-any-return]

    def _estimator(self, data: Data) -> ImageFlow | SlicedWassersteinFlow:
        from sliceflow import ImageFlow, SlicedWassersteinFlow
        from sliceflow.pictures.plan import QUALITY

        if not data.pictures:
            return SlicedWassersteinFlow(
                n_particles=self.particles,
                n_steps=self.n_steps(data),
                amplifier=10.0 if self.amplifier is None else self.amplifier,
                device=self.device,
                random_state=self.seed,
            )
        return ImageFlow(
            schedule=self.schedule,
            n_particles=self.particles,
            quality=self.quality if self.quality in QUALITY else self.n_steps(data),
            amplifier="auto" if self.amplifier is None else self.amplifier,
            n_clusters="auto" if self.clusters is None else self.clusters,
            n_pixel_values=data.n_pixel_values,
            mirror=self.mirror,
            device=self.device,
            random_state=self.seed,
            observed=self.observed,
        )

    def n_steps(self, data: Data) -> int:
        """The number of steps that --quality means: per stage for pictures, in all for a table."""
        from sliceflow.pictures.plan import QUALITY  # torch, which --help does without

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

    @property
    def command(self) -> str:
        """The command that repeats the fit."""
        values = asdict(self)
        source = values.pop("source")
        return command_of("fit", source, values, {f.name: f.default for f in fields(self)})

    @property
    def folder(self) -> Path:
        """The run folder: --out, else runs/ and the name of the data."""
        return Path(self.out or Path("runs", Path(self.source).expanduser().resolve().stem))
