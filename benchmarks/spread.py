"""How much filled cells depend on the seed, and on small changes of the table.

    OMP_NUM_THREADS=1 python benchmarks/spread.py --jobs 2

`TableFlow` fits a table of which a fifth of the cells are missing, and fills them. The
table and its missing cells stay the same; what changes from run to run is one of

seeds       the seed of the fit and of the draws
perturbed   every number, by a millionth of a deviation, with one seed
resampled   a tenth of the rows, which other rows replace, with one seed

Printed is the mean error of the numbers, in deviations of their columns: its median and
its worst over runs, and their ratio. A choice that sits on a cliff makes it large.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
from imputing import HIDDEN_SHARE, MAX_ROWS, draw_filled, score_draws
from report import markdown_table, script_parser
from table_sets import SETS, halves, load_table

HEADER = ("set", "what changes", "runs", "median", "worst", "worst / median")
CHANGES = ("seeds", "perturbed", "resampled")
DEFAULT_SETS = ("penguins", "caschool", "mpg", "economics")
PERTURBATION = 1e-6  # in standard deviations of a column
RESAMPLED_SHARE = 0.1


def perturb(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The table with every float moved a little."""
    perturbed = frame.copy()
    for name in frame:
        if frame[name].dtype.kind == "f":
            noise = PERTURBATION * frame[name].std() * rng.normal(size=len(frame))
            perturbed[name] = frame[name] + noise
    return perturbed


def resample(frame: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
    """The indices of rows of which a tenth is replaced by other rows."""
    indices = np.arange(len(frame))
    is_replaced = rng.random(len(frame)) < RESAMPLED_SHARE
    indices[is_replaced] = rng.integers(len(frame), size=is_replaced.sum())
    return indices


def error_of_run(name: str, change: str, run: int, folder: str | None) -> float:
    """The error of the cells that one run fills."""
    frame, _ = load_table(name, folder)
    test = halves(frame, 0)[1].head(MAX_ROWS)
    rng = np.random.default_rng(0)
    hidden = (rng.random(test.shape) < HIDDEN_SHARE) & test.notna().to_numpy()
    run_rng = np.random.default_rng(run + 1)
    seed = 0
    if change == "seeds":
        seed = run
    elif change == "perturbed":
        test = perturb(test, run_rng)
    else:
        indices = resample(test, run_rng)
        test = test.iloc[indices].reset_index(drop=True)
        hidden = hidden[indices]
    incomplete = test.mask(hidden)
    draws = draw_filled("TableFlow", incomplete, incomplete, test, seed)
    return score_draws(draws, test, test, hidden, rng).error


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Print one table; the errors of all runs."""
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=DEFAULT_SETS)
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--csv", help="a folder of tables, written by tables.py")
    args = parser.parse_args(arguments)
    cases = list(product(args.sets, args.changes, range(args.runs)))
    with ProcessPoolExecutor(args.jobs) as pool:
        errors = pool.map(
            error_of_run, *zip(*cases, strict=True), [args.csv] * len(cases)
        )
        measured = pd.DataFrame(cases, columns=["set", "change", "run"])
        measured["error"] = list(errors)
    cells = []
    for (name, change), group in measured.groupby(["set", "change"], sort=False):
        median = group["error"].median()
        worst = group["error"].max()
        numbers = [f"{median:.4f}", f"{worst:.4f}", f"{worst / median:.2f}"]
        cells.append([name, change, str(len(group)), *numbers])
    print(markdown_table(HEADER, cells))
    return measured


if __name__ == "__main__":
    main()
