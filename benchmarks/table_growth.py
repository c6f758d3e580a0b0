"""Seconds and memory of a `TableFlow` as tables grow: rows of 20 mixed columns, and columns.

    OMP_NUM_THREADS=1 python benchmarks/table_growth.py
    python benchmarks/table_growth.py --rows 10000 100000 --columns 200

Every table is made up: half of the columns are numbers, the others counts with zeros, categories of 3
to 27 levels, flags and dates; a tenth of the cells of every tenth column is missing. All depend on six
hidden numbers. Each size runs in a process of its own, which fits the table and draws as many rows.
Memory is the most that the process had, Python and libraries (about .3 GB) among it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import torch
from report import facts, signature, table

from sliceflow import TableFlow

HEADER = ("rows", "columns", "fit, s", "sample, s", "CPU s", "µs per cell", "GB")


def mixed(n: int, d: int) -> pd.DataFrame:
    """A table of n rows and d columns."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(n, 6))
    columns = {}
    for c in range(d):
        score = hidden @ rng.normal(size=6) / np.sqrt(6) + rng.normal(size=n)
        kind = c % 10
        if kind < 5:
            columns[f"number {c}"] = np.round(10 * score, 2)
        elif kind == 5:
            columns[f"count {c}"] = rng.poisson(np.exp(score / 2))
        elif kind == 6:
            columns[f"amount {c}"] = np.where(score < 0, 0, np.round(np.exp(score + 3), 2))
        elif kind == 7:
            levels = 3 + c % 25
            cells = np.clip((score + 4) / 8, 0, 0.999) * levels
            columns[f"category {c}"] = np.array([f"level {k}" for k in range(levels)])[
                cells.astype(int)
            ]
        elif kind == 8:
            columns[f"flag {c}"] = score > 0
        else:
            days = np.rint(100 * score).astype("timedelta64[D]")
            columns[f"day {c}"] = np.datetime64("2020-01-01", "s") + days
    frame = pd.DataFrame(columns)
    for name in frame.columns[::10]:
        frame.loc[rng.random(n) < 0.1, name] = np.nan
    return frame


def measured(n: int, d: int, threads: int) -> dict[str, float]:
    """One size, in this process."""
    torch.set_num_threads(threads)
    frame = mixed(n, d)
    begun, cpu = time.perf_counter(), time.process_time()
    flow = TableFlow(random_state=0, device="cpu").fit(frame)
    fitted = time.perf_counter()
    flow.sample(n, random_state=0)
    return {
        "fit": fitted - begun,
        "sample": time.perf_counter() - fitted,
        "cpu": time.process_time() - cpu,
        "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> None:
    """Print a table of all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--columns", type=int, nargs="*", default=[200, 2_000], help="of 1,000 rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return print(json.dumps(measured(*args.one, args.threads)))
    rows = []
    for n, d in [*((n, 20) for n in args.rows), *((1_000, d) for d in args.columns)]:
        words = [sys.executable, __file__, "--one", str(n), str(d), "--threads", str(args.threads)]
        found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        each = 1e6 * found["cpu"] / (n * d)
        cells = [f"{found[k]:.1f}" for k in ("fit", "sample", "cpu")]
        rows.append([f"{n:,}", f"{d:,}", *cells, f"{each:.1f}", f"{found['gb']:.2f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    command = " ".join(["OMP_NUM_THREADS=1 python benchmarks/table_growth.py", *sys.argv[1:]])
    print(table(HEADER, rows), f"\n\n{signature(facts(torch.device('cpu')), command)}")


if __name__ == "__main__":
    main()
