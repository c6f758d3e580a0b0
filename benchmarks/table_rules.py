"""Tables with rules: samples of `TableFlow` beside trees one column after the other.

    OMP_NUM_THREADS=1 python benchmarks/table_rules.py --csv FOLDER --seeds 0 1

Two made-up tables of orders (the total is a sum, the net price a product, the tax a
percentage), one of them with missing cells, and every CSV file of a folder. One half of
the rows is fitted, at most 1,500; boosted trees tell samples from the other half.

detection  their AUC: ½ is ideal
rules      how many were found
CPU s      of the fit and as many samples

*Trees* are sequential trees with leaves of 5 rows, whose cells are those of a random
row in the leaf, as synthpop draws them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from report import Row, script_parser, table_of_rows
from scores import _as_numbers, _detection, _is_category
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from sliceflow import TableFlow

HEADER = ("table", "method", "rules", "detection", "CPU s")
MAX_ROWS = 1_500  # fitted, to save time
N_ORDERS = 3_000
MISSING_SHARE = 0.08  # of some cells of orders
MIN_SAMPLES_LEAF = 5  # of sequential trees, as synthpop has it


def make_orders(seed: int, missing_share: float = 0.0) -> pd.DataFrame:
    """Orders whose net price, tax and total are computed."""
    rng = np.random.default_rng(seed)
    n = N_ORDERS
    prices = (rng.gamma(3, 12, 60) + 3).round(2)
    frame = pd.DataFrame({"country": rng.choice(["DE", "FR", "AT"], n)})
    frame["price"] = rng.choice(prices, n)
    frame["quantity"] = 1 + rng.poisson(1.5, n)
    frame["net"] = (frame["price"] * frame["quantity"]).round(2)
    frame["rate"] = rng.choice([7, 19], n, p=[0.3, 0.7])
    is_free = frame["net"] > 80
    frame["shipping"] = np.where(is_free, 0, rng.choice([4.9, 6.5, 9.9], n))
    frame["tax"] = (frame["net"] * frame["rate"] / 100).round(2)
    frame["total"] = (frame["net"] + frame["shipping"] + frame["tax"]).round(2)
    days = pd.to_timedelta(rng.integers(0, 360, n), "D")
    frame["ordered"] = pd.Timestamp("2024-01-01") + days
    waiting = pd.to_timedelta(rng.integers(0, 9, n), "D")
    frame["delivered"] = frame["ordered"] + waiting
    for name in ("shipping", "tax", "total", "delivered"):
        frame[name] = frame[name].mask(rng.random(n) < missing_share)
    return frame


def halves(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and as many held-out ones."""
    order = np.random.default_rng(seed).permutation(len(frame))
    n = min(MAX_ROWS, len(frame) // 2)
    train = frame.iloc[order[:n]].reset_index(drop=True)
    test = frame.iloc[order[n : 2 * n]].reset_index(drop=True)
    return train, test


def detection(test: pd.DataFrame, samples: pd.DataFrame) -> float:
    """AUC of boosted trees that tell samples from held-out rows."""
    frames = [test, samples[list(test)]]
    is_category = {name: _is_category(name, frames) for name in test}
    numbers = _as_numbers(frames, is_category)
    return _detection(numbers[0], numbers[1], list(is_category.values()), seed=0)


def sequential_trees(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows, each cell that of a random row in the leaf of the columns before.

    Missing cells are a number below all others, or a category.
    """
    rng = np.random.default_rng(seed)
    n = len(train)
    fitted = np.zeros((n, 1))
    drawn = np.zeros((n, 1))
    samples = {}
    for name in train:
        codes, is_category = _codes(train[name])
        make = DecisionTreeClassifier if is_category else DecisionTreeRegressor
        tree = make(min_samples_leaf=MIN_SAMPLES_LEAF, random_state=0)
        tree.fit(fitted, codes)
        leaf_of_rows = tree.apply(fitted)
        leaf_of_draws = tree.apply(drawn)
        donors = np.empty(n, dtype=np.int64)
        for leaf in np.unique(leaf_of_draws):
            in_leaf = np.flatnonzero(leaf_of_draws == leaf)
            donors[in_leaf] = rng.choice(
                np.flatnonzero(leaf_of_rows == leaf), len(in_leaf)
            )
        samples[name] = train[name].iloc[donors].reset_index(drop=True)
        fitted = np.column_stack((fitted, codes))
        drawn = np.column_stack((drawn, codes[donors]))
    return pd.DataFrame(samples)


def _codes(column: pd.Series) -> tuple[np.ndarray, bool]:
    """A column as numbers without gaps, and whether they stand for categories."""
    is_time = str(column.dtype).startswith("datetime")
    is_number = pd.api.types.is_numeric_dtype(column) and column.dtype != bool
    if not is_time and not is_number:
        return pd.factorize(column)[0].astype(float), True
    numbers = column.astype("int64" if is_time else "float64").to_numpy(float)
    numbers = np.where(column.isna(), np.nan, numbers)
    below = np.nanmin(numbers, initial=0) - np.nanstd(numbers) - 1
    return np.where(np.isnan(numbers), below, numbers), False


def measure(name: str, frame: pd.DataFrame, seed: int) -> list[Row]:
    """What both methods score on one table."""
    train, test = halves(frame, seed)
    started_at = time.process_time()
    flow = TableFlow(random_state=seed).fit(train)
    samples = flow.sample(len(train), random_state=seed)
    seconds = time.process_time() - started_at
    # Identifiers are made up, so that every one of them would tell.
    kept = [column for column, kind in flow.kinds_.items() if kind != "identifier"]
    test = test[kept]
    auc = detection(test, samples)
    rows: list[Row] = [
        {
            "table": name,
            "method": "TableFlow",
            "rules": len(flow.rules_),
            "detection": auc,
            "CPU s": seconds,
        }
    ]
    started_at = time.process_time()
    peers = sequential_trees(train[kept], seed)
    seconds = time.process_time() - started_at
    rows.append(
        {
            "table": name,
            "method": "trees",
            "detection": detection(test, peers),
            "CPU s": seconds,
        }
    )
    return rows


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Print the table of all measures, means over seeds."""
    parser = script_parser(__doc__)
    parser.add_argument("--csv", type=Path, help="a folder of CSV files")
    parser.add_argument("--only", nargs="*", help="names of tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args(arguments)
    frames = {
        "orders": make_orders(0),
        "orders with gaps": make_orders(1, MISSING_SHARE),
    }
    if args.csv is not None:
        for path in sorted(args.csv.glob("*.csv")):
            frames[path.stem] = pd.read_csv(path)
    rows: list[Row] = []
    for name, frame in frames.items():
        if args.only is not None and name not in args.only:
            continue
        for seed in args.seeds:
            try:
                with warnings.catch_warnings(action="ignore"):
                    rows.extend(measure(name, frame, seed))
            except ValueError as error:
                print(f"{name} is left out: {error}")
    measured = pd.DataFrame(rows).groupby(["table", "method"], sort=False).mean()
    print(table_of_rows(HEADER, measured.reset_index().to_dict("records")))
    return measured


if __name__ == "__main__":
    main()
