"""Missing cells of columns that follow closely from each other, table by table.

    OMP_NUM_THREADS=1 python benchmarks/close_numbers.py --rows 300 --tables 40

Each table has three columns: one random number with a little noise of its own. 40 % of
its cells are hidden, fitted and filled by `TableFlow`. The error is the mean absolute
difference of the median of nine draws; the worst table shows whether a choice sits on
a cliff. With the true model it would be about .05.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from sliceflow import TableFlow

COLUMN_NOISE = 0.05  # standard deviations of the common number
HIDDEN_SHARE = 0.4
N_DRAWS = 9
FIRST_SEED = 1000  # tests use small seeds: these tables are others


def error_of_filled_cells(n_rows: int, seed: int) -> float:
    """The mean absolute error of the cells of one random table."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n_rows, 1))
    noise = rng.normal(size=(n_rows, 3))
    frame = pd.DataFrame(common + COLUMN_NOISE * noise, columns=["a", "b", "c"])
    is_hidden = rng.random((n_rows, 3)) < HIDDEN_SHARE
    is_hidden[is_hidden.all(axis=1)] = False
    incomplete = frame.mask(is_hidden)
    flow = TableFlow(random_state=0).fit(incomplete)
    filled = flow.impute(incomplete, n=N_DRAWS, random_state=0)
    median = np.median([table.to_numpy() for table in filled], axis=0)
    return float(np.abs(median - frame.to_numpy())[is_hidden].mean())


def main() -> None:
    """Print the distribution of the error over tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--tables", type=int, default=40)
    args = parser.parse_args()
    errors = []
    for k in range(args.tables):
        errors.append(error_of_filled_cells(args.rows, FIRST_SEED + k))
    median = np.median(errors)
    worst = np.max(errors)
    print(f"{args.tables} tables of {args.rows} rows: median {median:.4f}", end=", ")
    print(f"worst {worst:.4f}, worst / median {worst / median:.2f}")


if __name__ == "__main__":
    main()
