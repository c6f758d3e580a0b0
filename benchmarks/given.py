"""`sample(given=…)` beside plain samples that are filtered: which are more like rows?

    OMP_NUM_THREADS=1 python benchmarks/given.py FOLDER/*.csv --seeds 3

Half of a table's rows are fitted, and the held-out rows that have a condition are the
truth; the seed chooses the halves. Of each table there are up to four conditions: of a
category, the level whose share is nearest to a fifth; of a number, the upper quarter of
the column with most values, and the lowest tenth of the next; and the value of a number
of few values whose share is nearest to a fifth. Both kinds of samples are as many as
the held-out rows that have the condition; plain samples are drawn until enough of them
have it. Columns that only identify a row are left out. Conditions that fewer than
``--min-rows`` held-out rows have are skipped.

fitted, rows     how many fitted and held-out rows have the condition
given, filtered  AUC of boosted trees that tell samples from held-out rows by the other
                 columns: .5 is ideal
difference       given minus filtered, and its standard error over seeds: at most 0 is
                 the goal
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from blind_tables import identifies, mixed_columns
from report import (
    Row,
    command_line,
    machine_facts,
    script_parser,
    signature,
    table_of_rows,
)
from scores import detection

from sliceflow import TableFlow

__all__ = ["Condition", "conditions", "main"]

# A level or a value to condition on should have about this share of the rows.
SHARE = 0.2
# Numbers with at most this many values are conditioned on by one of them.
MAX_FEW_VALUES = 20
UPPER_QUANTILE = 0.75
LOWER_QUANTILE = 0.1
MAX_TRAINING_ROWS = 1_500
# Samples and held-out rows that are compared, at most; more would take longer.
MAX_COMPARED = 500
# Rounds in which plain samples are drawn until enough have the condition.
MAX_ROUNDS = 40
HEADER = (
    "table",
    "condition",
    "fitted",
    "rows",
    "given",
    "filtered",
    "difference",
    "±",
)


class Condition(NamedTuple):
    """What is given of one column: a value, or a range."""

    column: str
    given: Any  # as `sample(given=…)` takes it

    def holds(self, frame: pd.DataFrame) -> np.ndarray:
        """Which rows (n,) have it."""
        cells = frame[self.column]
        if not isinstance(self.given, tuple):
            return (cells == self.given).to_numpy()
        low, high = self.given
        is_above = np.full(len(cells), True) if low is None else cells >= low
        is_below = np.full(len(cells), True) if high is None else cells <= high
        return np.asarray(is_above & is_below)


def conditions(frame: pd.DataFrame) -> list[Condition]:
    """Up to four conditions of a table, as the module explains."""
    numbers = [name for name in frame if frame[name].dtype.kind in "iuf"]
    texts = [name for name in frame if frame[name].dtype.kind not in "iufM"]
    few = [name for name in numbers if frame[name].nunique() <= MAX_FEW_VALUES]
    found = []
    for names in (texts, few):
        nearest = _value_of_share(frame, names)
        if nearest is not None:
            found.append(nearest)
    numbers.sort(key=lambda name: -frame[name].nunique())
    many = [name for name in numbers if name not in few]
    if many:
        low = frame[many[0]].quantile(UPPER_QUANTILE, interpolation="nearest")
        found.append(Condition(many[0], (low.item(), None)))
    if len(many) > 1:
        high = frame[many[1]].quantile(LOWER_QUANTILE, interpolation="nearest")
        found.append(Condition(many[1], (None, high.item())))
    return found


def _value_of_share(frame: pd.DataFrame, names: Sequence[str]) -> Condition | None:
    """The value of some columns whose share is nearest to `SHARE`."""
    best = None
    smallest_error = np.inf
    for name in names:
        shares = frame[name].value_counts(normalize=True)
        if len(shares) < 2:
            continue
        errors = (shares - SHARE).abs()
        if errors.min() < smallest_error:
            smallest_error = errors.min()
            best = Condition(name, errors.idxmin())
    return best


def measure(frame: pd.DataFrame, condition: Condition, seed: int) -> Row:
    """The scores of one fit."""
    shuffled = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    n = min(len(frame) // 2, MAX_TRAINING_ROWS)
    train = shuffled[:n]
    others = shuffled[n:]
    truth = others[condition.holds(others)][:MAX_COMPARED]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = TableFlow(kinds=mixed_columns(frame), random_state=seed).fit(train)
        filtered = filter_samples(flow, condition, len(truth), n, seed)
        given = flow.sample(
            len(filtered),
            random_state=seed,
            given={condition.column: condition.given},
        )
    truth = truth[: len(filtered)].drop(columns=condition.column)
    return {
        "fitted": int(condition.holds(train).sum()),
        "rows": len(truth),
        "given": detection(truth, given, seed),
        "filtered": detection(truth, filtered, seed),
    }


def filter_samples(
    flow: TableFlow, condition: Condition, n: int, n_at_a_time: int, seed: int
) -> pd.DataFrame:
    """Up to n plain samples that have a condition.

    Every seed has random numbers of its own: with the same ones, the luck of one draw
    would be that of all seeds.
    """
    kept = []
    n_kept = 0
    for round_index in range(MAX_ROUNDS):
        samples = flow.sample(
            n_at_a_time, random_state=MAX_ROUNDS * (seed + 1) + round_index
        )
        kept.append(samples[condition.holds(samples)])
        n_kept += len(kept[-1])
        if n_kept >= n:
            break
    return pd.concat(kept, ignore_index=True)[:n]


def summarize(table: str, condition: Condition, cells: Sequence[Row]) -> Row:
    """The means over seeds, and the standard error of the difference."""
    differences = [cell["given"] - cell["filtered"] for cell in cells]
    return {
        "table": table,
        "condition": f"{condition.column}: {condition.given}",
        "fitted": int(np.mean([cell["fitted"] for cell in cells])),
        "rows": int(np.mean([cell["rows"] for cell in cells])),
        "given": float(np.mean([cell["given"] for cell in cells])),
        "filtered": float(np.mean([cell["filtered"] for cell in cells])),
        "difference": float(np.mean(differences)),
        "±": float(np.std(differences) / np.sqrt(max(1, len(cells) - 1))),
    }


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Print a table of all conditions of all files."""
    parser = script_parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="CSV files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--min-rows", type=int, default=60)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for path in options.files:
        frame = pd.read_csv(path)
        frame = frame.drop(columns=[name for name in frame if identifies(frame[name])])
        for condition in conditions(frame):
            if condition.holds(frame).sum() < 2 * options.min_rows:
                continue
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            cells = [measure(frame, condition, seed) for seed in seeds]
            rows.append(summarize(path.stem, condition, cells))
            print(table_of_rows(HEADER, rows[-1:]).splitlines()[-1], flush=True)
    print(table_of_rows(HEADER, rows))
    differences = [row["difference"] for row in rows]
    print(f"\nmean difference {np.mean(differences):.4f} of {len(rows)} conditions")
    facts = machine_facts(torch.device("cpu"))
    print("\n" + signature(facts, command_line("benchmarks/given.py", arguments)))
    return rows


if __name__ == "__main__":
    main()
