"""Missing cells filled by `TableFlow`, beside the mean and the most frequent value, and nearest rows.

    OMP_NUM_THREADS=1 python benchmarks/imputation.py

Tables and halves are those of benchmarks/tables.py (``--csv`` as there). A fifth of the cells of 400
held-out rows is hidden. TableFlow draws every cell 100 times; the guess is the median or the most
frequent draw.

error     mean |guess − truth| over the standard deviation of the column, mean over columns: 0 is ideal
accuracy  share of categories that are guessed, mean over columns: 1 is ideal
covered   share of numbers within the 5 % and 95 % quantiles (n + 1 intervals of n draws): .90 is ideal.
          Of draws equal to the truth, a random number counts as lower. An interval holds its ends, and
          so, where values are equal, more than 90 %:
closed    share of numbers within the interval or equal to an end
smooth    covered, of columns in which no value has a twentieth of the cells
"""

import argparse
import time

import numpy as np
import pandas as pd
import torch
from report import facts, signature, table
from sklearn.impute import KNNImputer

from sliceflow import TableFlow
from tables import SETS, loaded

HEADER = ("set", "method", "error", "accuracy", "covered", "smooth", "closed", "CPU s")
_ROWS, _DRAWS = 400, 100
_LOW, _HIGH = 0.05, 0.95


def by_flow(train: pd.DataFrame, gaps: pd.DataFrame, seed: int) -> list[pd.DataFrame]:
    """Draws of a `TableFlow`."""
    flow = TableFlow(random_state=seed, n_steps=0, device="cpu").fit(train)
    return list(flow.impute(gaps, n_samples=_DRAWS, random_state=seed))


def by_mean(train: pd.DataFrame, gaps: pd.DataFrame, seed: int) -> list[pd.DataFrame]:
    """Means, and the most frequent categories."""
    fills = {c: train[c].mean() if train[c].dtype.kind in "iuf" else train[c].mode()[0] for c in train}
    return [gaps.fillna(fills)]


def by_neighbours(train: pd.DataFrame, gaps: pd.DataFrame, seed: int) -> list[pd.DataFrame]:
    """The mean of the ten nearest rows, in standard deviations; categories as axes."""
    whole = pd.concat((train, gaps), ignore_index=True)
    parts, axes = [], {}
    for c in train:
        if train[c].dtype.kind in "iuf":
            axes[c] = (whole[[c]] - train[c].mean()) / train[c].std()
        else:
            axes[c] = pd.get_dummies(whole[c], dtype=float)
            axes[c].loc[whole[c].isna()] = np.nan
        parts.append(axes[c].to_numpy(float))
    n = len(train)
    points = np.hstack(parts)
    full = KNNImputer(n_neighbors=10).fit(points[:n]).transform(points[n:])
    out, at = {}, 0
    for c in train:
        own, at = full[:, at : at + axes[c].shape[1]], at + axes[c].shape[1]
        if train[c].dtype.kind in "iuf":
            out[c] = own[:, 0] * train[c].std() + train[c].mean()
        else:
            out[c] = axes[c].columns.to_numpy()[own.argmax(1)]
    return [pd.DataFrame(out)]


def measured(name: str, method: str, seed: int, csv: str | None) -> list[float]:
    """Error, accuracy, three kinds of coverage, and CPU seconds."""
    frame = loaded(name, csv)[0]
    order = np.random.default_rng(seed).permutation(len(frame))
    train, test = (frame.iloc[rows].reset_index(drop=True) for rows in np.array_split(order, 2))
    test = test.head(_ROWS)
    hidden = (np.random.default_rng(seed).random(test.shape) < 0.2) & test.notna().to_numpy()
    gaps = test.mask(hidden)
    begun = time.process_time()
    draws = METHODS[method](train, gaps, seed)
    seconds = time.process_time() - begun
    errors, right, covered, smooth, closed = [], [], [], [], []
    rng = np.random.default_rng(seed)
    for j, c in enumerate(test):
        rows = hidden[:, j]
        if not rows.any():
            continue
        guesses = [draw[c].to_numpy()[rows] for draw in draws]
        if test[c].dtype.kind in "iuf":
            x, truth = np.array(guesses, dtype=float), test[c].to_numpy(float)[rows]
            errors.append(np.abs(np.median(x, 0) - truth).mean() / train[c].std())
            low, high = np.quantile(x, [_LOW, _HIGH], axis=0, method="weibull")
            closed.append(np.mean((low <= truth) & (truth <= high)))
            equal = rng.uniform(size=len(truth)) * (1 + (x == truth).sum(0))
            rank = ((x < truth).sum(0) + equal) / (1 + len(x))
            covered.append(np.mean((rank >= _LOW) & (rank <= _HIGH)))
            if train[c].value_counts(normalize=True).max() < 0.05:
                smooth.append(covered[-1])
        else:
            most = pd.DataFrame(guesses).mode().iloc[0].to_numpy()
            right.append(np.mean(most == test[c].to_numpy()[rows]))
    spread = (covered, smooth, closed) if len(draws) > 1 else ([], [], [])
    return [*(np.mean(x) if x else np.nan for x in (errors, right, *spread)), seconds]


METHODS = {"TableFlow": by_flow, "nearest rows": by_neighbours, "mean, most frequent": by_mean}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["diamonds", "ofp", "penguins"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", help="a folder of tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in args.sets:
        for method in METHODS:
            found = [measured(name, method, seed, args.csv) for seed in range(args.seeds)]
            means = np.mean(found, axis=0)
            cells = ["–" if np.isnan(v) else f"{v:.3f}" for v in means[:-1]]
            rows.append([name, method, *cells, f"{means[-1]:.1f}"])
    command = f"OMP_NUM_THREADS=1 python benchmarks/imputation.py --seeds {args.seeds}"
    print(table(HEADER, rows), f"\n\n{signature(facts(torch.device('cpu')), command)}")


if __name__ == "__main__":
    main()
