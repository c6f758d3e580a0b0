"""How long local conditions take with many rows, and what part of it is the exact search.

    python benchmarks/neighbour_search.py
    python benchmarks/neighbour_search.py --rows 10000000 --tasks "two moons"

CPU seconds of one process. *search* is of one condition's k neighbours, by a tree or all distances,
whichever the library takes; *other* is the way not taken. *condition* is all of one condition with one
sample. *first* is what only the first call pays: how far rows are apart, to warn of far conditions.
Writes neighbours.md and neighbours.json.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from posterior_tasks import TASKS
from report import keep, table
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.neighbourhoods import Neighbourhoods
from sliceflow.engine.random import Seed

ASKED = 50  # conditions


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measured(name: str, n: int) -> dict[str, Any]:
    """A row of the table."""
    theta, x = TASKS[name].draw(n, seed=0)
    _, x0 = TASKS[name].draw(ASKED, seed=1)
    found: list[Neighbourhoods] = []
    fit = seconds(lambda: found.append(Neighbourhoods.of(theta, x)))
    (near,) = found
    seen, at = near._seen(near.y).numpy(), near._seen(torch.as_tensor(x0)).numpy()
    ways = {}
    for way in ("kd_tree", "brute"):
        search = NearestNeighbors(algorithm=way).fit(seen)
        ways[way] = seconds(lambda search=search: search.kneighbors(at, near.k)) / ASKED  # type: ignore[misc]
    first = seconds(lambda: near.distances(x0).max() > near.reach)
    condition = seconds(lambda: near.sample(x0, 1, Seed(0))) / ASKED
    taken = near.search._fit_method
    search_s = ways.pop(taken)
    (other,) = ways.values()
    row = {"task": name, "rows": n, "columns": seen.shape[1], "k": near.k, "way": taken, "fit s": fit}
    return row | {
        "search ms": 1e3 * search_s,
        "other ms": 1e3 * other,
        "condition ms": 1e3 * condition,
        "first s": first,
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--tasks", nargs="+", default=["two moons", "SLCP"], choices=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path("neighbours"))
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    command = shlex.join(
        ["python", "benchmarks/neighbour_search.py", *(sys.argv[1:] if argv is None else argv)]
    )
    rows = []
    for n in chosen.rows:
        for name in chosen.tasks:
            rows.append(measured(name, n))
            cells = [
                [f"{r['rows']:,} of {r['task']}, {r['columns']} columns", str(r["k"]), r["way"]]
                + [
                    f"{r[key]:.1f}"
                    for key in ("search ms", "other ms", "condition ms", "fit s", "first s")
                ]
                for r in rows
            ]
            header = ["rows", "k", "way", "search ms", "other ms", "condition ms", "fit s", "first s"]
            keep(chosen.out, table(header, cells) + "\n\n", rows, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
