"""Rare numbers that come back verbatim: an attacker who looks for them in samples.

    OMP_NUM_THREADS=1 python benchmarks/verbatim.py a.csv b.csv --targets x y

Half of the rows are fitted, a quarter are rows that were not, and the attacker holds
the last quarter as a reference. A row is suspected the more, the more of its numbers
are rare in the reference (fewer than five rows) and stand in the samples, of which
there are as many as fitted rows. The seed chooses the parts and the model. The same
samples are scored by `scores.table_scores`, as `tables.py` explains.

AUC          of that suspicion, fitted rows against others: ½ is ideal
found at 1 % share of fitted rows above the suspicion of 99 % of others: .01 is ideal
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from report import (
    Row,
    command_line,
    machine_facts,
    script_parser,
    signature,
    table_of_rows,
)
from scores import table_scores
from sklearn.metrics import roc_auc_score

from sliceflow import TableFlow

__all__ = ["main", "suspicion"]

# A number of fewer reference rows is rare to the attacker.
RARE_COUNT = 5
# The share of others that the attacker may wrongly call fitted rows.
FALSE_POSITIVES = 0.01
MAX_TRAINING_ROWS = 1_500
SCORES = ("detection", "utility", "utility_real", "copies", "nn_ratio")
HEADER = ("table", "min_count", "AUC", "±", "found at 1 %", *SCORES)


def suspicion(
    rows: pd.DataFrame, samples: pd.DataFrame, reference: pd.DataFrame
) -> np.ndarray:
    """How many numbers (n,) of each row are rare in the reference and in samples."""
    counted = np.zeros(len(rows))
    for name in rows.select_dtypes("number"):
        counts = reference[name].value_counts()
        is_rare = rows[name].map(counts).fillna(0) < RARE_COUNT
        is_verbatim = rows[name].isin(samples[name].dropna())
        counted += (is_rare & is_verbatim).to_numpy()
    return counted


def measure(frame: pd.DataFrame, target: str, min_count: int, seed: int) -> Row:
    """The attack and the scores of one fit."""
    order = np.random.default_rng(seed).permutation(len(frame))
    shuffled = frame.iloc[order].reset_index(drop=True)
    n = min(len(frame) // 2, MAX_TRAINING_ROWS)
    quarter = (len(frame) - n) // 2
    train = shuffled[:n]
    others = shuffled[n : n + quarter]
    reference = shuffled[n + quarter :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = TableFlow(min_count=min_count, random_state=seed).fit(train)
        samples = flow.sample(n, random_state=seed)
    of_train = suspicion(train, samples, reference)
    of_others = suspicion(others, samples, reference)
    is_member = np.repeat([1, 0], [len(of_train), len(of_others)])
    limit = np.quantile(of_others, 1 - FALSE_POSITIVES, method="higher")
    test = shuffled[n:]
    row: Row = dict(table_scores(train, test, samples, target, seed))
    row["AUC"] = roc_auc_score(is_member, np.concatenate((of_train, of_others)))
    row["found at 1 %"] = float((of_train > limit).mean())
    return row


def summarize(name: str, min_count: int, cells: Sequence[Row]) -> Row:
    """The mean over seeds, and the standard error of the AUC."""
    row: Row = {"table": name, "min_count": min_count}
    for score in ("AUC", "found at 1 %", *SCORES):
        row[score] = float(np.mean([cell[score] for cell in cells]))
    aucs = [cell["AUC"] for cell in cells]
    row["±"] = float(np.std(aucs) / np.sqrt(max(1, len(aucs) - 1)))
    return row


def _parser() -> argparse.ArgumentParser:
    parser = script_parser(__doc__)
    parser.add_argument("files", nargs="+", help="CSV files")
    parser.add_argument("--targets", nargs="+", required=True, help="one for each")
    parser.add_argument("--drop", nargs="*", default=[], help="columns to leave out")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--min-counts", type=int, nargs="+", default=[1, 5])
    return parser


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Print a table of all files."""
    options = _parser().parse_args(arguments)
    rows = []
    for path, target in zip(options.files, options.targets, strict=True):
        frame = pd.read_csv(path).drop(columns=options.drop, errors="ignore")
        for min_count in options.min_counts:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            cells = [measure(frame, target, min_count, seed) for seed in seeds]
            rows.append(summarize(Path(path).stem, min_count, cells))
    print(table_of_rows(HEADER, rows))
    facts = machine_facts(torch.device("cpu"))
    print("\n" + signature(facts, command_line("benchmarks/verbatim.py", arguments)))
    return rows


if __name__ == "__main__":
    main()
