"""Synthetic tables: `TableFlow` beside other methods, on real tables of packages.

    OMP_NUM_THREADS=1 python benchmarks/tables.py
    python benchmarks/tables.py --sets penguins mpg --seeds 1 --arf ~/arf/bin/python

The tables come from pydataset, palmerpenguins, statsmodels and scikit-learn; one whose
package is not installed is left out, and said to be. ``--write-csv FOLDER`` writes
them, and ``--csv FOLDER`` reads them where the packages are not. Half of the rows are
fitted, the other half held out; the seed chooses the halves and the model. Numbers are
means over seeds. Every cell is kept in ``--out`` when it is measured, and not measured
again.

A peer runs in an environment of its own: pass its Python interpreter (--arf: arfpy;
--utrees: UnmaskingTrees, with scikit-learn 1.6; --forest: ForestDiffusion; --copula:
SDV's Gaussian copula; --cart and --gaussian: scikit-learn). One that is not passed is
said to be missing. They are treated as a kind user would: their numbers are rounded to
the decimals of the column and kept within its bounds, dates are given as days, or as
months where all are the first of one, and those that do not generate missing cells get
one more column per column with gaps, which says where these are. The two boosted ones
have less effort than by default: UnmaskingTrees repeats each row 5 to 50 times, about
10,000 rows in all (by default 50 times); ForestDiffusion 5 to 10 times (100), with 10
noise levels (50).

detection  AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
shape      agreement of the columns' own distributions: 1 is ideal
trend      mean difference of the associations of two columns: 0 is ideal
utility    R² or AUC on held-out rows of boosted trees trained on synthetic rows, beside
           real ones
copies     share of samples nearer to a fitted row than the nearest 1 % of held-out
           rows: .01 is ideal
NN ratio   median distance to the nearest fitted row, over that of held-out rows: 1 is
           ideal
CPU s      seconds of the fit and of the samples, without imports
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from report import Row, machine_facts, markdown_table, script_parser, signature
from scores import table_scores
from table_peers import PEERS
from table_sets import SETS, halves, load_table, write_csv

SCORES = ("detection", "shape", "trend", "utility", "copies", "nn_ratio")
HEADER = (
    "method",
    "seeds",
    "detection",
    "shape",
    "trend",
    "utility",
    "copies",
    "NN ratio",
    "CPU s",
)
METHODS = ("TableFlow", *PEERS, "independent columns")
SLOW_METHODS = ("forest", "utrees", "arf")  # the slowest first
PEER_SCRIPT = Path(__file__).with_name("table_peers.py")
MAX_DECIMALS = 6  # that a column of numbers is looked at for

CellKey = tuple[str, str, int]  # a set, a method and a seed
Samples = tuple[pd.DataFrame, float]  # synthetic rows, and CPU seconds


# --- samples of each method -----------------------------------------------------------


def draw_flow(
    train: pd.DataFrame, seed: int, kinds: dict[str, str] | None = None
) -> Samples:
    """Samples of a `TableFlow` with columns of these kinds, and CPU seconds."""
    from sliceflow import TableFlow

    started_at = time.process_time()
    flow = TableFlow(kinds=kinds, random_state=seed).fit(train)
    synthetic = flow.sample(len(train), random_state=seed)
    return synthetic, time.process_time() - started_at


def draw_independent(train: pd.DataFrame, seed: int) -> Samples:
    """Every column drawn by itself, in no time."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name in train:
        columns[name] = train[name].to_numpy()[rng.permutation(len(train))]
    return pd.DataFrame(columns), 0.0


def draw_peer(
    peer: str, python: str, train: pd.DataFrame, seed: int, limit: int
) -> Samples:
    """Samples of a peer, run by its own Python interpreter, and its CPU seconds."""
    date_units = choose_date_units(train)
    plain = train.copy()
    for name, unit in date_units.items():
        plain[name] = train[name].to_numpy().astype(f"datetime64[{unit}]").astype(int)
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        plain.to_csv(f"{folder}/train.csv", index=False)
        shutil.copy(PEER_SCRIPT, f"{folder}/peer.py")
        process = subprocess.run(
            [python, "peer.py", peer, str(seed)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        if process.returncode != 0:
            raise RuntimeError(process.stderr.strip().splitlines()[-1])
        synthetic = pd.read_csv(f"{folder}/synthetic.csv")
    synthetic = round_like(synthetic[list(plain)], plain)
    for name, unit in date_units.items():
        dates = synthetic[name].to_numpy().astype(int).astype(f"datetime64[{unit}]")
        synthetic[name] = dates.astype("datetime64[s]")
    for name in synthetic:
        if train[name].dtype.kind not in "iuf":
            synthetic[name] = synthetic[name].astype(train[name].dtype)
    return synthetic, float(process.stdout.rpartition("seconds ")[2])


def choose_date_units(train: pd.DataFrame) -> dict[str, str]:
    """By column of dates: days, or months where all are the first of one."""
    units = {}
    for name in train:
        if not str(train[name].dtype).startswith("datetime"):
            continue
        units[name] = "D"
        if (train[name].dt.day == 1).all():
            units[name] = "M"
    return units


def round_like(synthetic: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """Numbers with the decimals and within the bounds of the fitted ones."""
    synthetic = synthetic.copy()
    for name in synthetic:
        if train[name].dtype.kind not in "iuf":
            continue
        known = train[name].dropna()
        numbers = synthetic[name].astype(float).clip(known.min(), known.max())
        decimals = count_decimals(known)
        if decimals is not None:
            numbers = numbers.round(decimals)
        synthetic[name] = numbers
    return synthetic


def count_decimals(numbers: pd.Series) -> int | None:
    """The decimals that all numbers are rounded to, None if they are not."""
    for decimals in range(MAX_DECIMALS + 1):
        if np.allclose(numbers, numbers.round(decimals), rtol=0, atol=1e-9):
            return decimals
    return None


# --- measuring ------------------------------------------------------------------------


def measure(
    name: str, method: str, seed: int, python: str | None, csv: str | None, limit: int
) -> Row:
    """One cell: the scores of a method on a table with a seed, or why there are none.

    Parameters
    ----------
    name, method, seed : of the cell
    python : the interpreter of a peer; None for the others
    csv : a folder of tables; None takes those of packages
    limit : seconds that a peer may take
    """
    torch.set_num_threads(1)
    frame, target = load_table(name, csv)
    train, test = halves(frame, seed)
    cell: Row = {
        "set": name,
        "method": method,
        "seed": seed,
        "shape": list(train.shape),
    }
    try:
        if method == "TableFlow":
            synthetic, seconds = draw_flow(train, seed)
        elif method == "independent columns":
            synthetic, seconds = draw_independent(train, seed)
        else:
            synthetic, seconds = draw_peer(method, str(python), train, seed, limit)
        scores = table_scores(train, test, synthetic, target, seed)
        cell["scores"] = [scores[score] for score in SCORES]
        cell["seconds"] = seconds
        if method == "TableFlow":  # once for each table and seed
            half = len(test) // 2
            floors = table_scores(train, test[half:], test[:half], target, seed)
            cell["floors"] = [floors[score] for score in SCORES]
    except subprocess.TimeoutExpired:
        return failed_cell(cell, f"took more than {limit} s")
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        return failed_cell(cell, f"{type(error).__name__}: {error}"[:200])
    return cell


def failed_cell(cell: Row, error: str) -> Row:
    """The same cell with an error instead of scores."""
    names = ("set", "method", "seed", "shape")
    return {name: cell[name] for name in names} | {"error": error}


# --- tables of cells ------------------------------------------------------------------


def table_of_set(name: str, cells: Sequence[Row]) -> str:
    """The table of one set: a line for each method, and for each failure."""
    cells = [cell for cell in cells if cell["set"] == name]
    lines = []
    for method in METHODS:
        method_cells = [cell for cell in cells if cell["method"] == method]
        scored = [cell for cell in method_cells if "scores" in cell]
        if scored:
            means = np.nanmean([cell["scores"] for cell in scored], axis=0)
            seconds = np.mean([cell["seconds"] for cell in scored])
            shown = [f"{mean:.3f}" for mean in means]
            lines.append([method, str(len(scored)), *shown, f"{seconds:.1f}"])
        for cell in method_cells:
            if "error" in cell:
                failure = f"{method}, seed {cell['seed']}: {cell['error'][:60]}"
                lines.append([failure] + ["–"] * (len(HEADER) - 1))
    floors = [cell["floors"] for cell in cells if "floors" in cell]
    shown = ["nan"] * len(SCORES)
    if floors:
        shown = [f"{mean:.3f}" for mean in np.mean(floors, axis=0)]
    lines.append(["fresh real rows", "", *shown, ""])
    n, d = cells[0]["shape"]
    table = markdown_table(HEADER, lines)
    return f"### {name}: {n} rows fitted, {d} columns\n\n{table}\n"


def table_of_detection(cells: Sequence[Row]) -> str:
    """Detection of every method that has all seeds; how often it is the lowest."""
    methods = [m for m in METHODS if any(cell["method"] == m for cell in cells)]
    lines = []
    n_lowest = dict.fromkeys(methods, 0)
    for name in distinct_sets(cells):
        scored = [cell for cell in cells if cell["set"] == name and "scores" in cell]
        detection: dict[str, list[float]] = {method: [] for method in methods}
        for cell in scored:
            detection[cell["method"]].append(cell["scores"][0])
        n_seeds = max(len(values) for values in detection.values())
        means = {}
        for method, values in detection.items():
            if len(values) == n_seeds > 0:
                means[method] = np.mean(values)
        if means:
            n_lowest[min(means, key=lambda method: means[method])] += 1
        shown = ["–"] * len(methods)
        for i, method in enumerate(methods):
            if method in means:
                shown[i] = f"{means[method]:.3f}"
        lines.append([name, str(n_seeds), *shown])
    lines.append(["lowest on", "", *map(str, n_lowest.values())])
    table = markdown_table(("set", "seeds", *methods), lines)
    return f"### Detection\n\n{table}\n"


def distinct_sets(cells: Sequence[Row]) -> list[str]:
    """The names of the sets, in the order of their first cells."""
    return list(dict.fromkeys(cell["set"] for cell in cells))


# --- the command line -----------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """The command line; every peer has an option for its interpreter."""
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--limit", type=int, default=900, help="seconds a peer may take"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/tables"), help="a folder for cells"
    )
    parser.add_argument("--csv", help="a folder of tables")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument(
        "--only-show", action="store_true", help="the cells that are there"
    )
    parser.add_argument(
        "--write-csv", type=Path, help="write the tables there, and stop"
    )
    for name in PEERS:
        parser.add_argument(
            f"--{name}", help="the Python interpreter of its environment"
        )
    return parser.parse_args()


def available_sets(args: argparse.Namespace) -> list[str]:
    """The sets whose packages or files are there; others are said to be missing."""
    names = []
    for name in args.sets:
        try:
            load_table(name, args.csv)
            names.append(name)
        except ImportError as error:
            print(f"### {name}\n\nmissing: {error}\n")
    return names


def available_methods(args: argparse.Namespace) -> list[str]:
    """The methods that were asked for and can run; peers may be missing."""
    methods = []
    for method in args.methods:
        if method not in PEERS or getattr(args, method) is not None:
            methods.append(method)
    for peer in PEERS:
        if peer not in methods:
            print(f"{peer} is missing: pass --{peer} PYTHON\n")
    return methods


def cell_paths(
    names: Sequence[str], methods: Sequence[str], args: argparse.Namespace
) -> dict[CellKey, Path]:
    """The file of every cell, in the order of measuring.

    Every method on every set with one seed first; slow methods and large sets before
    others, so that no process waits for them in the end.
    """
    slow_first = sorted(methods, key=[*SLOW_METHODS, *METHODS].index)
    large_first = sorted(names, key=lambda name: -load_table(name, args.csv)[0].size)
    paths = {}
    for seed, method, name in product(range(args.seeds), slow_first, large_first):
        file_name = f"{name}-{method.replace(' ', '_')}-{seed}.json"
        paths[name, method, seed] = args.out / file_name
    return paths


def measure_cells(paths: dict[CellKey, Path], args: argparse.Namespace) -> None:
    """Measure the cells that have no file yet, and write each at once."""
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        futures = []
        for (name, method, seed), path in paths.items():
            if not path.exists():
                python = getattr(args, method, None)
                future = pool.submit(
                    measure, name, method, seed, python, args.csv, args.limit
                )
                futures.append(future)
        for future in as_completed(futures):
            cell = future.result()
            path = paths[cell["set"], cell["method"], cell["seed"]]
            path.write_text(json.dumps(cell) + "\n")
            print(json.dumps(cell), file=sys.stderr, flush=True)


def main() -> None:
    """Measure all cells, and print a table for every set."""
    args = parse_arguments()
    if args.write_csv:
        write_csv(args.sets, args.write_csv)
        return
    names = available_sets(args)
    methods = available_methods(args)
    args.out.mkdir(parents=True, exist_ok=True)
    paths = cell_paths(names, methods, args)
    if not args.only_show:
        measure_cells(paths, args)
    cells = [json.loads(path.read_text()) for path in paths.values() if path.exists()]
    print(table_of_detection(cells))
    for name in distinct_sets(cells):
        print(table_of_set(name, cells))
    command = "OMP_NUM_THREADS=1 python benchmarks/tables.py"
    for peer in PEERS:
        if peer in methods:
            command += f" --{peer} PYTHON"
    facts = machine_facts(torch.device("cpu"))
    facts["pandas"] = version("pandas")
    facts["scikit-learn"] = version("scikit-learn")
    print(signature(facts, f"{command} --seeds {args.seeds}"))


if __name__ == "__main__":
    main()
