"""The data of a command, pictures or a table, and the model for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow import datasets
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.settings import NAMES, PICTURES, TABLE, Settings, kinds_of

_LEAST_TO_HOLD_OUT = 100  # rows; with fewer, all are fitted
_HINTS = {
    datasets.BrokenPictureError: "fix or remove that file, or pass --skip-broken",
    datasets.MixedSizesError: "pass --size 32, or any other: it crops the middle square and resizes it",
    datasets.MissingSetError: "name the folder above the set with --data-root, or set SLICEFLOW_DATA",
    datasets.DatasetError: "pass a folder of pictures, an .npy or .npz file, or a table",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures (n, h, w[, c]), or a DataFrame; `notes` say what was left out.

    `whole` is the table of which these rows are a part: it is fitted, and measured by a second fit.
    """

    name: str
    kind: str
    x: Any
    labels: np.ndarray | None = None
    n_pixel_values: int = 256
    notes: tuple[str, ...] = ()
    whole: Any = None

    @property
    def all_rows(self) -> Any:
        """What the model is fitted to."""
        return self.x if self.whole is None else self.whole

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.x.columns] if self.kind == TABLE else []

    @property
    def what(self) -> str:
        """Such as "1297 pictures of 8×8 in 10 classes"."""
        if self.kind == TABLE:
            return f"{len(self.all_rows)} rows of {len(self.columns)} columns"
        classes = (
            "" if self.labels is None else f" in {len(np.unique(self.labels))} classes"
        )
        colour = "" if self.x.ndim == 3 else " in colour"
        return f"{len(self.x)} pictures of {self.x.shape[1]}×{self.x.shape[2]}{colour}{classes}"

    def about(self, test: Data | None) -> dict[str, Any]:
        """What config.json and the report say of the data."""
        out = {
            name: getattr(self, name) for name in ("name", "kind", "what", "columns")
        }
        return out | {
            "held_out": 0 if test is None else len(test.x),
            "notes": list(self.notes),
        }

    def rows(self, chosen: np.ndarray) -> Data:
        if self.kind == TABLE:
            return replace(
                self, x=self.x.iloc[chosen].reset_index(drop=True), whole=self.x
            )
        labels = None if self.labels is None else self.labels[chosen]
        return replace(self, x=self.x[chosen], labels=labels)


def read(settings: Settings, root: str | None = None) -> tuple[Data, Data | None]:
    """The data to fit, and those to measure with: the test split of a set, else a held-out share."""
    settings.check()
    if settings.kind == PICTURES:
        whole = _pictures(settings, "train", root)
        if settings.source in NAMES:
            try:
                return whole, _pictures(settings, "test", root)
            except Failed:  # CelebA without its list of splits, a missing file
                pass
        return split(whole, settings.holdout)
    from sliceflow.spaces.tables.files import read_table

    path = Path(settings.source).expanduser()
    frame = read_table(path)
    for name in (
        *(settings.drop or ()),
        *([settings.target] if settings.target else ()),
    ):
        if name not in frame:
            names = ", ".join(map(str, frame.columns))
            raise WrongUsage(
                f"{settings.source} has no column {name!r}", f"it has {names}"
            )
    return split(Data(path.stem, TABLE, frame), settings.holdout)


def _pictures(settings: Settings, split: str, root: str | None) -> Data:
    """Pictures by name or path, with a note on skipped ones; an error comes with the flag for it."""
    how: dict[str, Any] = {"size": settings.size, "skip_broken": settings.skip_broken}
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = datasets.load(
                settings.source, split, root or settings.data_root, **how
            )
    except (datasets.DatasetError, datasets.MissingSetError) as error:
        hint = next(hint for kind, hint in _HINTS.items() if isinstance(error, kind))
        raise Failed(error.fact, hint) from error
    if found.images.ndim == 4 and found.images.shape[3] > 4:
        fact = f"{settings.source} has {found.images.shape[3]} channels, but files show at most 4"
        raise WrongUsage(fact, "fit them in Python, with sliceflow.ImageFlow")
    if settings.conditional and found.labels is None:
        hint = (
            "put the pictures into one subfolder per class, or leave --conditional out"
        )
        raise WrongUsage(f"--conditional needs labels, but {found.name} has none", hint)
    notes = tuple(str(warning.message) for warning in heard)
    return Data(
        found.name, PICTURES, found.images, found.labels, found.n_pixel_values, notes
    )


def split(data: Data, share: float) -> tuple[Data, Data | None]:
    """The rows to fit, and those held out, or None if there are too few."""
    n = len(data.x)
    count = round(share * len(data.x))
    if count == 0 or n < _LEAST_TO_HOLD_OUT:
        return data, None
    order = np.random.default_rng(0).permutation(n)
    return data.rows(np.sort(order[count:])), data.rows(np.sort(order[:count]))


def estimator(settings: Settings, data: Data) -> Any:
    """The estimator for these data, with the parameters that the flags set."""
    import sliceflow
    from sliceflow.devices import resolve_device

    resolve_device(settings.device)
    common: dict[str, Any] = {"device": settings.device, "random_state": settings.seed}
    if data.kind == TABLE:
        kinds = kinds_of(settings.column, settings.drop)
        rules = tuple(settings.constraint or ())
        return sliceflow.TableFlow(columns=kinds, constraints=rules, **common)
    quality: str | int = settings.quality
    if settings.quality.isascii() and settings.quality.isdigit():
        quality = int(settings.quality)
    mask = settings.mask
    observed: Any = (
        read_mask(mask, data.x.shape[1:3]) if mask is not None else settings.observed
    )
    common |= {
        "n_particles": settings.particles,
        "keep_rows": settings.keep_rows,
        "observed": observed,
    }
    common |= {"n_pixel_values": data.n_pixel_values, "mirror": settings.mirror}
    return sliceflow.ImageFlow(quality=quality, **common)


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
        raise WrongUsage(
            f"--mask {file} is {known.shape[1]}x{known.shape[0]}, another size", hint
        )
    if known.all() or not known.any():
        raise WrongUsage(
            f"--mask {file} is all {'white' if known.all() else 'black'}", hint
        )
    return known
