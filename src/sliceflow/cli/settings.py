"""What a fit is asked for: the values of flags, and the estimator they describe. Nothing runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceflow.cli.data import Data
from sliceflow.cli.failures import WrongUsage
from sliceflow.cli.run_folder import command_of

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow

__all__ = ["Settings"]

_STEPS = {"draft": 30, "standard": 100, "best": 300}  # per stage, as in ImageFlow
_TABLE_STEPS = {"draft": 50, "standard": 200, "best": 400}
_PICTURES_ONLY = ("size", "observed", "schedule", "mirror", "conditional")


@dataclass(frozen=True)
class Settings:
    """Everything that a fit depends on but the data themselves; the fields are the flags."""

    source: str
    out: str | None = None
    data_root: str | None = None
    size: int | None = None
    target: str | None = None
    conditional: bool = False
    observed: str | None = None
    quality: str = "standard"
    particles: int | None = None
    schedule: str = "auto"
    amplifier: float = 10.0
    mirror: bool = False
    device: str = "auto"
    seed: int = 0
    holdout: float = 0.1
    skip_broken: bool = False
    checkpoint_every: float = 60.0

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
        self.n_steps(data)
        if self.conditional and self.observed:
            raise WrongUsage("--conditional and --observed exclude each other", "choose one")
        if self.conditional and data.labels is None:
            raise WrongUsage(
                f"--conditional needs labels and {data.name} has none",
                "put the pictures into one subfolder per class, or leave --conditional out",
            )

    def estimator(self, data: Data) -> ImageFlow | SlicedWassersteinFlow:
        """The estimator for these data."""
        from sliceflow import ImageFlow, SlicedWassersteinFlow

        if not data.pictures:
            return SlicedWassersteinFlow(
                n_particles=self.particles,
                n_steps=self.n_steps(data),
                amplifier=self.amplifier,
                device=self.device,
                random_state=self.seed,
            )
        return ImageFlow(
            schedule=self.schedule,
            n_particles=self.particles,
            quality=self.quality if self.quality in _STEPS else self.n_steps(data),
            amplifier=self.amplifier,
            levels=data.levels,
            mirror=self.mirror,
            device=self.device,
            random_state=self.seed,
            observed=self.observed,
        )

    def n_steps(self, data: Data) -> int:
        """The number of steps that --quality means: per stage for pictures, in all for a table."""
        names = _STEPS if data.pictures else _TABLE_STEPS
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
