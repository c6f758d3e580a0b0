"""The data of a command: pictures, the numbers of a table, or a table; and the model for them."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow import datasets
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.settings import PICTURES, TABLE, VECTORS, Settings
from sliceflow.errors import rows_of_the_file

NAMES = ("digits", *datasets.sets.SETS)
_LEAST_TO_HOLD_OUT = 100  # rows; with fewer, all are fitted
_MOST_CLASSES = 200
_VECTOR_STEPS = {"draft": 50, "standard": 200, "best": 400}
_HINTS = {
    datasets.BrokenPictureError: "fix or remove that file, or pass --skip-broken",
    datasets.MixedSizesError: "pass --size 32, or any other: it crops the middle square and resizes it",
    datasets.MissingSetError: "name the folder above the set with --data-root, or set SLICEFLOW_DATA",
    datasets.DatasetError: "pass a folder of pictures, an .npy or .npz file, or a table",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures (n, h, w[, c]), rows of numbers (n, d), or a DataFrame; `notes` say what was left out.

    `whole` is the table of which these rows are a part: it is fitted, and measured by a second fit.
    """

    name: str
    kind: str
    x: Any
    labels: np.ndarray | None = None
    n_pixel_values: int = 256
    columns: list[str] | None = None
    notes: tuple[str, ...] = ()
    whole: Any = None

    @property
    def all_rows(self) -> Any:
        """What the model is fitted to."""
        return self.x if self.whole is None else self.whole

    @property
    def what(self) -> str:
        """Such as "1297 pictures of 8×8 in 10 classes"."""
        classes = "" if self.labels is None else f" in {len(np.unique(self.labels))} classes"
        if self.columns is not None:
            return f"{len(self.all_rows)} rows of {len(self.columns)} columns{classes}"
        colour = "" if self.x.ndim == 3 else " in colour"
        return f"{len(self.x)} pictures of {self.x.shape[1]}×{self.x.shape[2]}{colour}{classes}"

    def about(self, test: Data | None) -> dict[str, Any]:
        """What config.json and the report say of the data."""
        out = {name: getattr(self, name) for name in ("name", "kind", "what", "columns")}
        return out | {"held_out": 0 if test is None else len(test.x), "notes": list(self.notes)}

    def rows(self, chosen: np.ndarray) -> Data:
        """Some of the rows."""
        if self.kind == TABLE:
            return replace(self, x=self.x.iloc[chosen].reset_index(drop=True), whole=self.x)
        return replace(
            self, x=self.x[chosen], labels=None if self.labels is None else self.labels[chosen]
        )


def check_source(source: str) -> None:
    """Refuse what is neither a named set nor a path."""
    if not source.strip() or not (source in NAMES or Path(source).expanduser().exists()):
        hint = f"pass one of {', '.join(NAMES)}, a folder of pictures, an .npy or .npz file, or a table"
        raise WrongUsage(f"{source!r} is neither a known set nor an existing path", hint)


def read(settings: Settings, root: Path | None = None) -> tuple[Data, Data | None]:
    """The data to fit, and those to measure with: the test split of a set, else a held-out share."""
    source = settings.source
    check_source(source)
    if settings.kind == PICTURES:
        own = None if settings.data_root is None else Path(settings.data_root).expanduser()
        named = source in NAMES
        if settings.size is not None and (source != "celeba" if named else Path(source).is_file()):
            raise WrongUsage(f"--size is for folders and celeba, not for {source}", "leave it out")
        whole = _pictures(settings, "train", root or own)
        if named:
            try:
                return whole, _pictures(settings, "test", root or own)
            except Failed:  # CelebA without its list of splits, a missing file
                pass
        return split(whole, settings.holdout)
    from sliceflow.spaces.tables.files import read_table

    path = Path(source).expanduser()
    frame = read_table(path)
    for name in (*settings.drop, *([settings.target] if settings.target else ())):
        if name not in frame:
            names = ", ".join(map(str, frame.columns))
            raise WrongUsage(f"{source} has no column {name!r}", f"it has {names}")
    if settings.kind == VECTORS:
        return split(_vectors(settings, frame), settings.holdout)
    return split(table(path.stem, frame, settings), settings.holdout)


def table(name: str, frame: Any, settings: Settings) -> Data:
    """A DataFrame; what is wrong with it is said by the rows of its file, before some are held out."""
    whole = Data(name, TABLE, frame, columns=[str(column) for column in frame.columns])
    with rows_of_the_file():
        estimator(settings, whole).check(frame)
    return whole


def _pictures(settings: Settings, split: str, root: Path | None) -> Data:
    """Pictures by name or path, with a note on skipped ones; an error comes with the flag for it."""
    how: dict[str, Any] = {"size": settings.size, "skip_broken": settings.skip_broken}
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = datasets.load(settings.source, split, root, **how)
    except (datasets.DatasetError, datasets.MissingSetError) as error:
        hint = next(hint for kind, hint in _HINTS.items() if isinstance(error, kind))
        raise Failed(error.fact, hint) from error
    if found.images.ndim == 4 and found.images.shape[3] > 4:
        fact = f"{settings.source} has {found.images.shape[3]} channels, but files show at most 4"
        raise WrongUsage(fact, "fit them in Python, with sliceflow.ImageFlow")
    if settings.conditional and found.labels is None:
        hint = "put the pictures into one subfolder per class, or leave --conditional out"
        raise WrongUsage(f"--conditional needs labels, but {found.name} has none", hint)
    notes = tuple(str(warning.message) for warning in heard)
    return Data(found.name, PICTURES, found.images, found.labels, found.n_pixel_values, notes=notes)


def _vectors(settings: Settings, frame: Any) -> Data:
    """The columns of which half or more are numbers, and labels from --target; of complete rows."""
    import pandas as pd

    path, target = settings.source, settings.target
    numbers: dict[str, np.ndarray] = {}
    notes = [f"left out the column {name!r}, as --drop says" for name in settings.drop]
    for name in frame.columns:
        if name == target or name in settings.drop:
            continue
        cells = frame[name]
        values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        found, there = int(np.isfinite(values).sum()), int(cells.notna().sum())
        if found and 2 * found >= there and not pd.api.types.is_datetime64_any_dtype(cells):
            numbers[str(name)] = values
        else:
            example = f" (such as {cells.dropna().iloc[0]!r})" if there else ""
            notes.append(f"left out the column {name!r}, which is not numeric{example}")
    if not numbers:
        raise Failed(f"{path} has no numeric column", "leave --vectors out, which takes all columns")
    x = np.stack(list(numbers.values()), axis=1)
    bad = {name: ~np.isfinite(column) for name, column in numbers.items()}
    if target is not None:
        bad[target] = frame[target].isna().to_numpy()
    complete = _complete_rows(path, bad, target, notes)
    labels = None
    if target is not None:
        cells = frame[target][complete]
        labels = (
            cells.to_numpy(np.int64) if cells.dtype.kind in "iu" else cells.astype(str).to_numpy(str)
        )
        if (classes := len(np.unique(labels))) > _MOST_CLASSES:
            fact = f"the column {target!r} has {classes} different values, more than {_MOST_CLASSES}"
            raise Failed(fact, "leave --target out to fit it as a numeric column")
    names = list(numbers)
    return Data(Path(path).stem, VECTORS, x[complete], labels, columns=names, notes=tuple(notes))


def _complete_rows(path: str, bad: dict[str, Any], target: str | None, notes: list[str]) -> np.ndarray:
    """Which rows have all cells, with a note on the others; an error if those are the most."""
    incomplete: np.ndarray = np.any(list(bad.values()), axis=0)
    gone, n = int(incomplete.sum()), len(incomplete)
    if gone:
        worst = sorted((name for name in bad if bad[name].any()), key=lambda name: -bad[name].sum())
        counts = ", ".join(f"{name!r} {bad[name].sum()}" for name in worst[:5])
        what = f"{gone} of {n} rows, with missing or non-numeric cells: {counts}"
        if 2 * gone > n:
            hint = f"--drop {shlex.quote(worst[0])} leaves that column out"
            hint = "fill in the labels, or leave --target out" if worst[0] == target else hint
            raise Failed(f"{path}: no number in {what}", hint)
        notes.append(f"left out {what}")
    return ~incomplete


def split(data: Data, share: float) -> tuple[Data, Data | None]:
    """The rows to fit, and those held out, or None if there are too few."""
    n, count = len(data.x), round(share * len(data.x))
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
        kinds = settings.kinds or None
        return sliceflow.TableFlow(columns=kinds, constraints=settings.constraint, **common)
    common |= {"n_particles": settings.particles, "keep_rows": settings.keep_rows}
    labels = labels_of(settings, data)
    classes = 0 if labels is None else len(np.unique(labels))
    if settings.particles is not None and settings.particles < classes:
        fact = f"--particles {settings.particles} is fewer than the {classes} classes"
        raise WrongUsage(fact, f"pass {classes} or more")
    steps = settings.steps(tuple(_VECTOR_STEPS))
    if data.kind == VECTORS:
        n_steps: Any = _VECTOR_STEPS.get(str(steps), steps)
        return sliceflow.SlicedWassersteinFlow(n_steps=n_steps, **common)
    mask = settings.mask
    observed: Any = read_mask(mask, data.x.shape[1:3]) if mask is not None else settings.observed
    common |= {"n_pixel_values": data.n_pixel_values, "mirror": settings.mirror, "observed": observed}
    return sliceflow.ImageFlow(quality=steps, **common)


def labels_of(settings: Settings, data: Data) -> np.ndarray | None:
    """The labels that condition the flow: those of --target, or of --conditional."""
    return data.labels if settings.conditional or data.kind == VECTORS else None


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
        raise WrongUsage(f"--mask {file} is {known.shape[1]}x{known.shape[0]}, another size", hint)
    if known.all() or not known.any():
        raise WrongUsage(f"--mask {file} is all {'white' if known.all() else 'black'}", hint)
    return known
