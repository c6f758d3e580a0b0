"""Posteriors of simulators with known answers: can a classifier tell our samples from
true ones?

    python benchmarks/posteriors.py --sbibm sbibm-1.1.0-py2.py3-none-any.whl --samples 10000 --jobs 12
    python benchmarks/posteriors.py --tasks "two moons" SLCP --simulations 1000 --observations 3

The problems are those of sbibm (Lueckmann et al. 2021), restated in
`posterior_tasks.py`. `--sbibm` takes the ten observations that sbibm publishes, and its
draws of their posteriors, from its wheel (`pip download sbibm --no-deps`); else there
are others, our own. C2ST is the accuracy of sbibm's classifier (`two_samples.py`); ½ is
perfect. sbibm compares 10,000 samples of each, as they are. *z* is C2ST where the
classifier sees them in standard deviations of the true draws, which it finds easier.
With fewer samples it learns less, and both are lower. A GPU does it in seconds; without
one take fewer samples and epochs, and compare at fewer observations.

local       `sliceflow.inference.posterior`, with the prior's bounds, all defaults
rejection   ABC: draws from the 1 % of simulations (at least 100) nearest to the
            observation
adjusted    ABC with linear adjustment (Beaumont et al. 2002): 10 % of them (at least
            200), weighted
NPE         neural posterior estimation, as published with sbibm; blank where we know no
            number

Simulations, observations and classifiers have other seeds than those that chose the
settings. Writes posteriors.md and posteriors.json after every row; `--resume` goes on
with them, also with other settings for the other rows.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from posterior_tasks import TASKS, Task, published
from report import keep, table
from sklearn.neighbors import NearestNeighbors
from two_samples import EPOCHS, c2st, c2st_many

from sliceflow.inference import posterior

SIMULATIONS = (1_000, 10_000, 100_000)
# NPE: those of sbibm's paper, and of its rerun with sbi 0.23 in sbi-benchmark/results
PUBLISHED = {
    "two moons": (0.725, 0.606, 0.542),
    "Gaussian linear": (0.753, 0.563, 0.508),  # rerun
    "Gaussian mixture": (0.716, 0.615, None),
    "SLCP": (0.975, 0.901, 0.831),
    "Bernoulli GLM": (0.883, 0.689, 0.578),  # rerun
    "Bernoulli GLM, raw": (0.916, 0.801, 0.618),  # rerun
}
METHODS = ("local", "rejection", "adjusted")


def rejection(
    theta: np.ndarray, x: np.ndarray, x0: np.ndarray, n: int, linear: bool
) -> np.ndarray:
    """ABC: n draws (q, n, d) from the nearest simulations, adjusted by a weighted
    regression or not.
    """
    kept = max(200, len(x) // 10) if linear else max(100, len(x) // 100)
    scale = x.std(0) + 1e-12
    rng = np.random.default_rng(0)
    distances, rows = (
        NearestNeighbors(n_neighbors=kept).fit(x / scale).kneighbors(x0 / scale)
    )
    out = []
    for distance, near, at in zip(distances, rows, x0, strict=True):
        weight = np.full(kept, 1 / kept)
        made = theta[near]
        if linear:
            weight = 1 - (distance / (distance[-1] * (1 + 1e-9))) ** 2
            weight /= weight.sum()
            offset = np.concatenate((np.ones((kept, 1)), (x[near] - at) / scale), 1)
            root = np.sqrt(weight)[:, None]
            slopes = np.linalg.lstsq(root * offset, root * made, rcond=None)[0]
            made = made - offset[:, 1:] @ slopes[1:]
        out.append(made[rng.choice(kept, n, p=weight)])
    return np.stack(out)


def made(
    task: Task, n: int, x0: np.ndarray, true: np.ndarray
) -> tuple[dict[str, Any], np.ndarray]:
    """What n simulations give at the observations x0, and the samples of all methods:
    (3, q, m, d).
    """
    theta, x = task.draw(n, seed=1_000 + n)
    began = time.perf_counter()
    found = posterior(theta, x, bounds=task.bounds)
    fitted = time.perf_counter()
    drawn = found.sample_batched((true.shape[1],), x=x0, random_state=0)
    seconds = time.perf_counter() - fitted
    samples = np.stack(
        (
            drawn.transpose(0, 1).double().numpy(),
            rejection(theta, x, x0, true.shape[1], linear=False),
            rejection(theta, x, x0, true.shape[1], linear=True),
        )
    )
    row = {"task": task.name, "simulations": n, "fit s": fitted - began}
    return row | {"s per observation": seconds / len(x0)}, samples


def judged(
    samples: np.ndarray, true: np.ndarray, compared: int, device: str, epochs: int
) -> dict[str, list[float]]:
    """C2ST of our samples at all observations; of the others, and as *z*, at the first
    `compared`.
    """
    few = true[:compared]
    mean = few.mean(1, keepdims=True)
    unit = few.std(1, keepdims=True)
    pairs = {
        "local": (samples[0], true),
        "z": ((samples[0][:compared] - mean) / unit, (few - mean) / unit),
    }
    pairs |= {
        m: (made[:compared], few)
        for m, made in zip(METHODS[1:], samples[1:], strict=True)
    }
    if device != "cpu":
        ours, theirs = (
            torch.from_numpy(np.concatenate(a))
            for a in zip(*pairs.values(), strict=True)
        )
        found = c2st_many(ours, theirs, 1, epochs, device)
        parts = found.split([len(ours) for ours, _ in pairs.values()])
        return {name: part.tolist() for name, part in zip(pairs, parts, strict=True)}
    return {
        name: [c2st(a, b, epochs=epochs) for a, b in zip(*pair, strict=True)]
        for name, pair in pairs.items()
    }


def row_of(
    task: str,
    n: int,
    x0: np.ndarray,
    true: np.ndarray,
    compared: int,
    device: str,
    epochs: int,
) -> dict[str, Any]:
    """A row of the table."""
    torch.set_num_threads(1)
    row, samples = made(TASKS[task], n, x0, true)
    return row | judged(samples, true, compared, device, epochs)


def observations(
    name: str, sbibm: Path | None, q: int, m: int
) -> tuple[np.ndarray, np.ndarray]:
    """q observations of a task and m draws of the posterior of each."""
    task = TASKS[name]
    if sbibm is not None:
        x0, true = published(task, sbibm)
        return x0[:q], true[:q, :m]
    _, x0 = task.draw(q, seed=2_000)
    rng = np.random.default_rng(3_000)
    return x0, np.stack([task.posterior(at, m, rng) for at in x0])


def shown(rows: list[dict[str, Any]]) -> str:
    """The table of C2ST."""

    def mean(values: list[float]) -> str:
        return f"{np.mean(values):.3f} ± {np.std(values) / len(values) ** 0.5:.3f}"

    cells = []
    for row in rows:
        known = dict(
            zip(SIMULATIONS, PUBLISHED.get(row["task"], (None,) * 3), strict=True)
        )
        npe = known.get(row["simulations"])
        cells.append(
            [
                f"{row['task']}, {row['simulations']:,}",
                *(mean(row[m]) for m in METHODS),
                "" if npe is None else f"{npe:.3f}",
                f"{np.mean(row['z']):.3f}",
                f"{row['fit s']:.1f}",
                f"{row['s per observation']:.2f}",
                f"{len(row['local'])}, {len(row['z'])}",
                f"{row['samples']}, {row['epochs']}",
            ]
        )
    header = ["task, simulations", *METHODS, "NPE, published", "local, z", "fit s"]
    header += ["s an observation", "observations, of ABC and z", "samples, epochs"]
    return "C2ST, ½ is perfect: mean and its standard error.\n\n" + table(header, cells)


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--simulations", nargs="+", type=int, default=list(SIMULATIONS))
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument(
        "--compared", type=int, help="observations of ABC and z; all unless set"
    )
    parser.add_argument("--samples", type=int, default=1_000)
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="the most of the classifier"
    )
    parser.add_argument(
        "--sbibm", type=Path, help="sbibm's wheel, or the folder that has sbibm/"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that --out has already"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/posteriors"))
    chosen = parser.parse_args(argv)
    compared = min(chosen.compared or chosen.observations, chosen.observations)
    arguments = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "benchmarks/posteriors.py", *arguments])
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    if chosen.resume and (kept := chosen.out.with_suffix(".json")).exists():
        known_rows = json.loads(kept.read_text(encoding="utf-8"))["rows"]
        rows = {(row["task"], row["simulations"]): row for row in known_rows}
    cells = [
        (name, n)
        for n in chosen.simulations
        for name in chosen.tasks
        if (name, n) not in rows
    ]
    known = {
        name: observations(name, chosen.sbibm, chosen.observations, chosen.samples)
        for name in {name for name, _ in cells}
    }
    tasks = [
        (*cell, *known[cell[0]], compared, chosen.device, chosen.epochs)
        for cell in cells
    ]
    for row in _rows(tasks, chosen.jobs):
        row |= {"samples": chosen.samples, "epochs": chosen.epochs}
        rows[row["task"], row["simulations"]] = row
        order = [(name, n) for name in TASKS for n in sorted({n for _, n in rows})]
        in_order = [rows[cell] for cell in order if cell in rows]
        keep(chosen.out, shown(in_order), in_order, torch.device("cpu"), command)


def _rows(tasks: list[tuple[Any, ...]], jobs: int) -> Iterator[dict[str, Any]]:
    """The rows as they come; several jobs are processes."""
    if jobs == 1:
        yield from (row_of(*task) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(row_of, *task) for task in tasks]):
            yield done.result()


if __name__ == "__main__":
    main()
