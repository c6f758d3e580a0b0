"""What a command fits or measures with: pictures, or the numbers of a table. Only reading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.table import read_csv
from sliceflow.datasets import load, sets

__all__ = ["Data", "read"]

_LEAST_TO_HOLD_OUT = 100  # rows; of fewer, all are fitted
_TABLES = (".csv", ".tsv")


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures (n, h, w[, c]) or rows (n, d), with labels where there are any.

    `columns` are the names of a table's columns, and None for pictures. `notes` say what was left out.
    """

    name: str
    x: np.ndarray
    labels: np.ndarray | None = None
    levels: int = 256
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

    def rows(self, x: np.ndarray | None = None) -> np.ndarray:
        """Rows as the metrics want them: pixels in [-1, 1], columns in units of the data's spread."""
        x = self.x if x is None else x
        if self.pictures:
            top = 1.0 if x.dtype.kind == "f" else self.levels - 1.0
            return np.asarray(x.reshape(len(x), -1) / (top / 2) - 1)
        spread = self.x.std(axis=0)
        return np.asarray((x - self.x.mean(axis=0)) / np.where(spread > 0, spread, 1))

    def part(self, rows: np.ndarray) -> Data:
        """Some of the rows."""
        return replace(self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows])


def read(
    source: str,
    *,
    root: Path | None = None,
    size: int | None = None,
    target: str | None = None,
    skip_broken: bool = False,
    holdout: float = 0.1,
) -> tuple[Data, Data | None]:
    """The data to fit, and those to measure with: a set's test split, else a held-out share.

    Which rows are held out depends on nothing but their number.
    """
    path, named = Path(source).expanduser(), source in ("digits", *sets.SETS)
    if not named and not path.exists():
        raise WrongUsage(
            f"{source!r} is neither a known set nor an existing path",
            f"pass one of {', '.join(('digits', *sets.SETS))}, a folder, or a .npy, .npz or .csv file",
        )
    if path.suffix.lower() in _TABLES and not named:
        if size is not None:
            raise WrongUsage(f"--size is for pictures; {source} is a table", "leave it out")
        x, labels, columns, notes = read_csv(path, target)
        return _held_out(Data(path.stem, x, labels, columns=columns, notes=tuple(notes)), holdout)
    if target is not None:
        raise WrongUsage("--target is for tables", "use --conditional for pictures with labels")
    found = load(source, root=root, size=size, skip_broken=skip_broken)
    train = Data(found.name, found.images, found.labels, found.levels)
    if not named:
        return _held_out(train, holdout)
    try:
        test = load(source, "test", root, size=size, skip_broken=skip_broken)
    except (ValueError, FileNotFoundError):  # CelebA without its list of splits, a missing file
        return _held_out(train, holdout)
    return train, Data(test.name, test.images, test.labels, test.levels)


def _held_out(data: Data, share: float) -> tuple[Data, Data | None]:
    n = len(data.x)
    count = round(share * n)
    if count == 0 or n < _LEAST_TO_HOLD_OUT:
        return data, None
    if count >= n:
        raise Failed(f"--holdout {share:g} leaves none of {n} rows to fit", "pass less than 1")
    order = np.random.default_rng(0).permutation(n)
    return data.part(np.sort(order[count:])), data.part(np.sort(order[:count]))
