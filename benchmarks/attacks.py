"""Attacks on `TableFlow` at its defaults: which rows do its samples give away?

    OMP_NUM_THREADS=1 python benchmarks/attacks.py FOLDER/*.csv --out attacks.json

Of each table, at most ``--rows`` rows are fitted, and as many others are held out; the
seed chooses them. Columns of free text, which `TableFlow` refuses, are left out. All
attacks of `sliceflow.metrics.attack` are made, with ``--shadows`` shadow models on 40
outliers. Every table is written to ``--out`` when it is measured, and not measured
again.

AUC      of the scores of members against those of others: .5 is chance
at 1 %   the share of members found where 1 % of the others are taken for members, too
fresh    the same attack with real rows in place of the samples; of shadow models, with
         memberships exchanged at random
4n       AUC with four times as many samples as rows
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from report import (
    Row,
    command_line,
    machine_facts,
    markdown_table,
    script_parser,
    signature,
)

from sliceflow import TableFlow, metrics
from sliceflow.cli.messy_tables import find_free_text

HEADER = (
    "table",
    "rows",
    "attack",
    "AUC",
    "95 %",
    "at 1 %",
    "95 %",
    "at .1 %",
    "fresh AUC",
    "fresh at 1 %",
    "4n",
)


def measure(path: Path, n_rows: int, n_shadows: int, seed: int) -> Row:
    """Attack a model of a part of the table."""
    table = pd.read_csv(path)
    table = table.drop(columns=find_free_text(table, {}))
    table = table.sample(frac=1, random_state=seed).reset_index(drop=True)
    n = min(n_rows, len(table) // 2)
    train = table[:n]
    held_out = table[n : 2 * n].reset_index(drop=True)
    started_at = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = TableFlow(random_state=seed).fit(train)
        fit_seconds = time.process_time() - started_at
        found = metrics.attack(
            flow,
            train,
            held_out,
            n_shadows=n_shadows,
            random_state=seed,
            device="cpu",
            notify=lambda text: print(f"  {text}", flush=True),
        )
    print(found, flush=True)
    return {
        "table": path.stem,
        "rows": n,
        "fit_seconds": fit_seconds,
        "seconds": time.process_time() - started_at,
        **found.to_dict(),
    }


def table_lines(row: Row) -> list[list[str]]:
    """The lines of a table in the Markdown table."""
    lines = []
    for attack in row["attacks"]:
        score = attack["score"]
        null_score = attack["null_score"]
        auc = score["auc"]
        found = score["tpr_at_fpr_1pct"]
        more_aucs = list(attack["auc_by_n_samples"].values())
        lines.append(
            [
                row["table"],
                str(row["rows"]),
                attack["name"],
                f"{auc['value']:.3f}",
                f"{auc['low']:.2f}–{auc['high']:.2f}",
                f"{100 * found['value']:.1f}",
                f"{100 * found['low']:.1f}–{100 * found['high']:.1f}",
                f"{100 * score['tpr_at_fpr_0_1pct']['value']:.1f}",
                f"{null_score['auc']['value']:.3f}",
                f"{100 * null_score['tpr_at_fpr_1pct']['value']:.1f}",
                f"{more_aucs[-1]:.3f}" if more_aucs else "",
            ]
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Attack every table, and print a Markdown table of all."""
    parser = script_parser(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files")
    parser.add_argument("--rows", type=int, default=700, help="fitted rows, at most")
    parser.add_argument(
        "--shadows", type=int, default=60, help="shadow models; 0: none"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file that keeps the rows")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    if args.out is not None and args.out.exists():
        rows = json.loads(args.out.read_text())
    measured = {row["table"] for row in rows}
    for path in args.tables:
        if path.stem in measured:
            continue
        print(path.stem, flush=True)
        rows.append(measure(path, args.rows, args.shadows, args.seed))
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
    lines = []
    for row in rows:
        lines.extend(table_lines(row))
    print(markdown_table(HEADER, lines))
    facts = machine_facts(torch.device("cpu"))
    print(signature(facts, command_line("benchmarks/attacks.py", arguments)))
    return rows


if __name__ == "__main__":
    main()
