"""Missing cells filled by `TableFlow`, beside means, nearest rows and forests.

    OMP_NUM_THREADS=1 python benchmarks/imputing.py

A fifth of the cells of one half of a table is hidden, of 2,000 rows at most. *Others*:
the model is fitted to the other half. *Own*: it is fitted to the rows with the holes.
Means over seeds. TableFlow's guess is the median, or the most frequent, of 19 draws.

error     mean |guess − truth| of numbers in standard deviations, mean over columns: 0
          is ideal
accuracy  share of categories that are guessed, mean over columns
covered   share of numbers between the lowest and the highest of 19 draws; equal ones by
          chance. .90 is ideal
CPU s     seconds of the fit and the filling
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from report import table
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.impute import KNNImputer
from table_sets import SETS, halves, load_table

from sliceflow import TableFlow

HEADER = ("set", "fitted to", "method", "error", "accuracy", "covered", "CPU s")
_DRAWS = 19
_MOST_ROWS = 2_000
_HIDDEN = 0.2
_TREES = 50
_SWEEPS = 4  # of forests


def is_number(column: pd.Series) -> bool:
    """Times count as numbers."""
    return column.dtype.kind in "iufM"


def coded(frame: pd.DataFrame, like: pd.DataFrame) -> np.ndarray:
    """Numbers in standard deviations, and levels of categories as 0, 1, …; NaN where
    cells are missing.
    """
    out = []
    for c in like:
        if is_number(like[c]):
            values = pd.to_numeric(frame[c]).astype(float).where(frame[c].notna())
            scale = pd.to_numeric(like[c]).astype(float)
            out.append((values - scale.mean()) / scale.std())
        else:
            codes = pd.Categorical(
                frame[c], categories=sorted(like[c].dropna().unique())
            ).codes
            out.append(np.where(codes < 0, np.nan, codes))
    return np.column_stack(out)


def by_mean(train: np.ndarray, holes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Means, and the most frequent categories."""
    modes = pd.DataFrame(train).mode().iloc[0].to_numpy()
    return np.where(
        np.isnan(holes), np.where(numbers, np.nanmean(train, axis=0), modes), holes
    )


def by_neighbours(
    train: np.ndarray, holes: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """The mean of the ten nearest rows; categories have an axis for each level."""

    def axes(x: np.ndarray, c: int) -> np.ndarray:
        one_hot = x[:, [c]] == np.arange(np.nanmax(train[:, c]) + 1)
        return (
            x[:, [c]] if numbers[c] else np.where(np.isnan(x[:, [c]]), np.nan, one_hot)
        )

    parts = [axes(holes, c) for c in range(len(numbers))]
    x = np.hstack([axes(train, c) for c in range(len(numbers))])
    full = (
        KNNImputer(n_neighbors=10, keep_empty_features=True)
        .fit(x)
        .transform(np.hstack(parts))
    )
    own = np.split(full, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
    guesses = [
        own[c][:, 0] if number else own[c].argmax(1) for c, number in enumerate(numbers)
    ]
    return np.where(np.isnan(holes), np.column_stack(guesses), holes)


def by_forests(train: np.ndarray, holes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Forests of each column given all others, in a few sweeps (missForest)."""
    whole = holes if train is holes else np.concatenate((train, holes))
    full = by_mean(train, whole, numbers)
    gone = np.isnan(whole)
    for _ in range(_SWEEPS):
        for c in np.flatnonzero(gone.any(0)):
            kind = ExtraTreesRegressor if numbers[c] else ExtraTreesClassifier
            x = np.delete(full, c, axis=1)
            there = ~gone[:, c]
            forest = kind(_TREES, min_samples_leaf=2, random_state=0).fit(
                x[there], whole[there, c]
            )
            full[~there, c] = forest.predict(x[~there])
    return full[-len(holes) :]


BASELINES = {
    "mean, mode": by_mean,
    "nearest rows": by_neighbours,
    "forests": by_forests,
}
METHODS = ("TableFlow", *BASELINES)


def filled(
    method: str,
    train: pd.DataFrame,
    holes: pd.DataFrame,
    truth: pd.DataFrame,
    seed: int,
) -> list[np.ndarray]:
    """Coded draws, or one guess."""
    if method == "TableFlow":
        with warnings.catch_warnings(action="ignore"):
            flow = TableFlow(random_state=seed).fit(train)
            return [
                coded(draw, truth)
                for draw in flow.impute(holes, n=_DRAWS, random_state=seed)
            ]
    gaps = coded(holes, truth)
    numbers = np.array([is_number(truth[c]) for c in truth])
    return [
        BASELINES[method](
            gaps if train is holes else coded(train, truth), gaps, numbers
        )
    ]


def measured(
    name: str, own: bool, method: str, seed: int, folder: str | None
) -> dict[str, Any]:
    """What one method scores on one table."""
    train, test = halves(load_table(name, folder)[0], seed)
    test = test.head(_MOST_ROWS)
    for c in test if not own else ():
        if not is_number(test[c]):  # a level that only the test has cannot be known
            test[c] = test[c].where(test[c].isin(train[c]))
    rng = np.random.default_rng(seed)
    hidden = (rng.random(test.shape) < _HIDDEN) & test.notna().to_numpy()
    holes = test.mask(hidden)
    begun = time.process_time()
    draws = np.array(
        filled(method, holes if own else train, holes, pd.concat((train, test)), seed)
    )
    seconds = time.process_time() - begun
    truth = coded(test, pd.concat((train, test)))
    error = []
    accuracy = []
    covered = []
    for c, column in enumerate(test):
        x = draws[:, hidden[:, c], c]
        y = truth[hidden[:, c], c]
        if not len(y):
            continue
        if not is_number(test[column]):
            accuracy.append(np.mean(pd.DataFrame(x).mode().iloc[0].to_numpy() == y))
            continue
        error.append(np.abs(np.median(x, 0) - y).mean())
        below = (x < y).sum(0) + rng.integers((x == y).sum(0) + 1)
        covered.append(np.mean((below > 0) & (below < len(x))))
    scores = {
        "error": error,
        "accuracy": accuracy,
        "covered": covered if len(draws) > 1 else [],
    }
    keys = {"set": name, "own": own, "method": method, "seed": seed}
    return (
        keys
        | {k: np.mean(of) if of else np.nan for k, of in scores.items()}
        | {"seconds": seconds}
    )


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", help="a folder of tables, written by tables.py")
    args = parser.parse_args(arguments)
    tasks = product(args.sets, (False, True), args.methods, range(args.seeds))
    cells = pd.DataFrame([measured(*task, args.csv) for task in tasks]).drop(
        columns="seed"
    )
    means = cells.groupby(["set", "own", "method"], sort=False).mean()
    rows = []
    for (name, own, method), scores in means.iterrows():
        shown = ["–" if np.isnan(value) else f"{value:.3f}" for value in scores]
        rows.append([name, "own rows" if own else "others", method, *shown])
    print(table(HEADER, rows))
    return means


if __name__ == "__main__":
    main()
