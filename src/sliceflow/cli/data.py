"""The data that a command fits or measures with: pictures, or the numbers of a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.table import read_csv
from sliceflow.datasets import (
    BrokenPictureError,
    DatasetError,
    MissingSetError,
    MixedSizesError,
    load,
    sets,
)

__all__ = ["NAMES", "Data", "check_source", "held_out", "read"]

NAMES = ("digits", *sets.SETS)

_LEAST_TO_HOLD_OUT = 100  # rows; with fewer, all are fitted
_TABLES = (".csv", ".tsv")
_HINTS = {
    BrokenPictureError: "fix or remove that file, or pass --skip-broken",
    MixedSizesError: "pass --size 32, or any other: it crops the middle square and resizes it",
    MissingSetError: "name the folder that holds the set with --data-root, or set SLICEFLOW_DATA",
    DatasetError: "pass a folder of pictures, or a .npy, .npz or .csv file",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures (n, h, w[, c]) or rows (n, d), with labels if there are any.

    `columns` are the names of a table's columns, and None for pictures. `notes` say what was left out.
    """

    name: str
    x: np.ndarray
    labels: np.ndarray | None = None
    n_pixel_values: int = 256
    columns: list[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def pictures(self) -> bool:
        return self.columns is None

    @property
    def what(self) -> str:
        """Such as "1297 pictures of 8×8 in 10 classes"."""
        classes = "" if self.labels is None else f" in {len(np.unique(self.labels))} classes"
        if self.columns is not None:
            return f"{len(self.x)} rows of {len(self.columns)} columns{classes}"
        colour = "" if self.x.ndim == 3 else " in colour"
        return f"{len(self.x)} pictures of {self.x.shape[1]}×{self.x.shape[2]}{colour}{classes}"

    @property
    def white(self) -> float:
        """The value of a white pixel: 1 for real numbers, else the highest pixel value."""
        return 1.0 if self.x.dtype.kind == "f" else self.n_pixel_values - 1.0

    def rows(self, x: np.ndarray | None = None) -> np.ndarray:
        """These data, or `x` like them, as rows of numbers near 1 for the metrics.

        Pixels are in [-1, 1], in float32, and columns in units of the data's standard deviation.
        """
        x = self.x if x is None else x
        if self.pictures:
            scaled = np.multiply(x.reshape(len(x), -1), 2 / self.white, dtype=np.float32)
            return np.asarray(np.subtract(scaled, 1, out=scaled))
        spread = self.x.std(axis=0)
        return np.asarray((x - self.x.mean(axis=0)) / np.where(spread > 0, spread, 1))

    def like(self, other: Data) -> Data:
        """The same pictures with the other's kind of pixels: as many values, or real numbers."""
        if not self.pictures or (self.white, self.x.dtype) == (other.white, other.x.dtype):
            return self
        x = self.x * (other.white / self.white)
        x = x if other.x.dtype.kind == "f" else x.round()
        return replace(self, x=x.astype(other.x.dtype), n_pixel_values=other.n_pixel_values)

    def part(self, rows: np.ndarray) -> Data:
        """Some of the rows."""
        return replace(self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows])


def check_source(source: str) -> None:
    """Refuse what is neither a named set nor a path."""
    if not source.strip() or not (source in NAMES or Path(source).expanduser().exists()):
        raise WrongUsage(
            f"{source!r} is neither a known set nor an existing path",
            f"pass one of {', '.join(NAMES)}, a folder, or a .npy, .npz or .csv file",
        )


def read(
    source: str,
    *,
    root: Path | None = None,
    size: int | None = None,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    skip_broken: bool = False,
    holdout: float = 0.1,
) -> tuple[Data, Data | None]:
    """The data to fit, and those to measure with: the test split of a set, else a held-out share.

    Which rows are held out depends only on their number. From a table all numeric columns are read
    except those to `drop`, or exactly `columns`; see `read_csv` for `keep`.
    """
    check_source(source)
    path, named = Path(source).expanduser(), source in NAMES
    if path.suffix.lower() in _TABLES and not named:
        if size is not None:
            raise WrongUsage(f"--size is for pictures; {source} is a table", "leave it out")
        x, labels, names, notes = read_csv(path, target, columns, drop=drop, keep=keep)
        return _hold_out(Data(path.stem, x, labels, columns=names, notes=tuple(notes)), holdout)
    if target is not None:
        raise WrongUsage("--target is for tables", "use --conditional for pictures with labels")
    if drop or keep:
        raise WrongUsage(f"--{'drop' if drop else 'keep'} is for columns of tables", "leave it out")
    if size is not None and (source != "celeba" if named else path.is_file()):
        raise WrongUsage(f"--size is for folders and celeba, not for {source}", "leave it out")
    train = _read_pictures(source, "train", root, size, skip_broken)
    if not named:
        return _hold_out(train, holdout)
    try:
        return train, _read_pictures(source, "test", root, size, skip_broken)
    except Failed:  # CelebA without its list of splits, a missing file
        return _hold_out(train, holdout)


def _read_pictures(
    source: str, split: str, root: Path | None, size: int | None, skip_broken: bool
) -> Data:
    """Pictures by name or path, with a note on skipped ones; an error comes with the flag for it."""
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = load(source, split, root, size=size, skip_broken=skip_broken)
    except (DatasetError, MissingSetError) as error:
        hint = next(hint for kind, hint in _HINTS.items() if isinstance(error, kind))
        raise Failed(error.fact, hint) from error
    notes = tuple(str(warning.message) for warning in heard)
    return Data(found.name, found.images, found.labels, found.n_pixel_values, notes=notes)


def held_out(n: int, share: float) -> tuple[np.ndarray, np.ndarray] | None:
    """The rows to fit and those to measure with, of n; None if none are held out."""
    count = round(share * n)
    if count == 0 or n < _LEAST_TO_HOLD_OUT:
        return None
    if count >= n:
        raise Failed(f"--holdout {share:g} leaves none of {n} rows to fit", "pass less than 1")
    order = np.random.default_rng(0).permutation(n)
    return np.sort(order[count:]), np.sort(order[:count])


def _hold_out(data: Data, share: float) -> tuple[Data, Data | None]:
    rows = held_out(len(data.x), share)
    return (data, None) if rows is None else (data.part(rows[0]), data.part(rows[1]))
