"""Posteriors of simulators with known answers: can a classifier tell our samples from true ones?

    python benchmarks/posteriors.py --sbibm sbibm-1.1.0-py2.py3-none-any.whl --samples 10000 --jobs 12
    python benchmarks/posteriors.py --tasks "two moons" SLCP --simulations 1000 --observations 3

The problems are those of sbibm (Lueckmann et al. 2021), restated in `posterior_tasks.py`. `--sbibm`
takes the ten observations that sbibm publishes, and its draws of their posteriors, from its wheel
(`pip download sbibm --no-deps`); else there are others, our own. C2ST is the accuracy of sbibm's
classifier (`two_samples.py`); ½ is perfect. sbibm compares 10,000 samples of each, as they are. *z*
is C2ST where the classifier sees them in standard deviations of the true draws, which it finds easier.
With fewer samples it learns less, and both are lower. With a GPU it is fast, without one take fewer.

local       `sliceflow.inference.posterior`, with the prior's bounds, all defaults
rejection   ABC: draws from the 1 % of simulations (at least 100) nearest to the observation
adjusted    ABC with linear adjustment (Beaumont et al. 2002): 10 % of them (at least 200), weighted
NPE         neural posterior estimation, as published with sbibm; blank where we know no number

*NN* compares distances to the adjusted neighbours of an observation: of samples, over those of true
draws; near 0 is copying. Simulations, observations and classifiers have other seeds than those that
chose the settings. Writes posteriors.md and posteriors.json after every row.
"""

import argparse
import multiprocessing
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from posterior_tasks import TASKS, Task, published
from report import keep, table
from sklearn.neighbors import NearestNeighbors
from two_samples import EPOCHS, c2st, c2st_many

from sliceflow.inference import Posterior, posterior

SIMULATIONS = (1_000, 10_000, 100_000)
PUBLISHED = {  # NPE: those of sbibm's paper, and of its rerun with sbi 0.23 in sbi-benchmark/results
    "two moons": (0.725, 0.606, 0.542),
    "Gaussian linear": (0.753, 0.563, 0.508),  # rerun
    "Gaussian mixture": (0.716, 0.615, None),
    "SLCP": (0.975, 0.901, 0.831),
    "Bernoulli GLM": (0.883, 0.689, 0.578),  # rerun
    "Bernoulli GLM, raw": (0.916, 0.801, 0.618),  # rerun
}
METHODS = ("local", "rejection", "adjusted")


def rejection(theta: np.ndarray, x: np.ndarray, x0: np.ndarray, n: int, linear: bool) -> np.ndarray:
    """ABC: n draws (q, n, d) from the nearest simulations, adjusted by a weighted regression or not."""
    kept = max(200, len(x) // 10) if linear else max(100, len(x) // 100)
    scale, rng = x.std(0) + 1e-12, np.random.default_rng(0)
    distances, rows = NearestNeighbors(n_neighbors=kept).fit(x / scale).kneighbors(x0 / scale)
    out = []
    for distance, near, at in zip(distances, rows, x0, strict=True):
        weight, made = np.full(kept, 1 / kept), theta[near]
        if linear:
            weight = 1 - (distance / (distance[-1] * (1 + 1e-9))) ** 2
            weight /= weight.sum()
            offset = np.concatenate((np.ones((kept, 1)), (x[near] - at) / scale), 1)
            root = np.sqrt(weight)[:, None]
            slopes = np.linalg.lstsq(root * offset, root * made, rcond=None)[0]
            made = made - offset[:, 1:] @ slopes[1:]
        out.append(made[rng.choice(kept, n, p=weight)])
    return np.stack(out)


def nn_ratio(found: Posterior, x0: np.ndarray, made: np.ndarray, true: np.ndarray) -> float:
    """Median distance of samples to adjusted rows over that of true draws; median over observations."""
    adjusted, ratios = found.near.adjusted(x0).x.numpy(), []
    for rows, mine, real in zip(adjusted, made, true, strict=True):
        scale = rows.std(0) + 1e-12
        search = NearestNeighbors(n_neighbors=1).fit(rows / scale)
        ours, theirs = (np.median(search.kneighbors(a / scale)[0]) for a in (mine, real))
        ratios.append(ours / theirs)
    return float(np.median(ratios))


def made(task: Task, n: int, x0: np.ndarray, true: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """What n simulations give at the observations x0, and the samples of all methods: (3, q, m, d)."""
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
    row: dict[str, Any] = {"task": task.name, "simulations": n, "k": found.near.k}
    row |= {"h": found.near.spread, "NN": nn_ratio(found, x0, samples[0], true)}
    row |= {"fit s": fitted - began, "s per observation": seconds / len(x0)}
    return row, samples


def judged(samples: np.ndarray, true: np.ndarray, device: str, epochs: int) -> dict[str, list[float]]:
    """C2ST of each method and observation, of the samples as they are and in standard deviations."""
    unit = true.mean(1, keepdims=True), true.std(1, keepdims=True)
    pairs = [(a, true) for a in samples] + [
        ((a - unit[0]) / unit[1], (true - unit[0]) / unit[1]) for a in samples
    ]
    ours, theirs = (np.concatenate(part) for part in zip(*pairs, strict=True))
    if device == "cpu":
        found = np.array([c2st(a, b, epochs=epochs) for a, b in zip(ours, theirs, strict=True)])
    else:
        found = c2st_many(torch.from_numpy(ours), torch.from_numpy(theirs), 1, epochs, device).numpy()
    names = [*METHODS, *(f"{m}, z" for m in METHODS)]
    return dict(zip(names, found.reshape(len(names), -1).tolist(), strict=True))


def row_of(
    task: str, n: int, x0: np.ndarray, true: np.ndarray, device: str, epochs: int
) -> dict[str, Any]:
    """A row of the table, in a process of its own."""
    torch.set_num_threads(1)
    row, samples = made(TASKS[task], n, x0, true)
    return row | judged(samples, true, device, epochs)


def observations(name: str, sbibm: Path | None, q: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """q observations of a task and m draws of the posterior of each."""
    task = TASKS[name]
    if sbibm is not None:
        x0, true = published(task, sbibm)
        return x0[:q], true[:q, :m]
    _, x0 = task.draw(q, seed=2_000)
    rng = np.random.default_rng(3_000)
    return x0, np.stack([task.posterior(at, m, rng) for at in x0])


def shown(rows: list[dict[str, Any]], n_samples: int, n_observations: int) -> str:
    """The table of C2ST."""
    cells = []
    for row in rows:
        known = dict(zip(SIMULATIONS, PUBLISHED.get(row["task"], (None,) * 3), strict=True))
        npe = known.get(row["simulations"])
        cells.append(
            [
                f"{row['task']}, {row['simulations']:,}",
                *(
                    f"{np.mean(row[m]):.3f} ± {np.std(row[m]) / len(row[m]) ** 0.5:.3f}"
                    for m in METHODS
                ),
                "" if npe is None else f"{npe:.3f}",
                *(f"{np.mean(row[f'{m}, z']):.3f}" for m in METHODS),
                f"{row['NN']:.2f}",
                f"{row['k']}",
                f"{row['fit s']:.1f}",
                f"{row['s per observation']:.2f}",
            ]
        )
    header = ["task, simulations", *METHODS, "NPE, published", *(f"{m}, z" for m in METHODS)]
    header += ["NN", "k", "fit s", "s an observation"]
    intro = (
        f"C2ST, ½ is perfect: mean of {n_observations} observations and its standard error, "
        f"{n_samples} samples each.\n\n"
    )
    return intro + table(header, cells) + "\n\n"


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--simulations", nargs="+", type=int, default=list(SIMULATIONS))
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="the most of the classifier")
    parser.add_argument("--sbibm", type=Path, help="sbibm's wheel, or the folder that has sbibm/")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("posteriors"))
    chosen = parser.parse_args(argv)
    arguments = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "benchmarks/posteriors.py", *arguments])
    known = {
        name: observations(name, chosen.sbibm, chosen.observations, chosen.samples)
        for name in chosen.tasks
    }
    cells = [(name, n) for n in chosen.simulations for name in chosen.tasks]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(row_of, *cell, *known[cell[0]], chosen.device, chosen.epochs): cell
            for cell in cells
        }
        for done in as_completed(waiting):
            (name, n), row = waiting[done], done.result()
            rows[name, n] = row
            print(
                f"{name}, {n}: " + ", ".join(f"{m} {np.mean(row[m]):.3f}" for m in METHODS), flush=True
            )
            in_order = [
                rows[name, n] for name in chosen.tasks for n in chosen.simulations if (name, n) in rows
            ]
            text = shown(in_order, chosen.samples, chosen.observations)
            keep(chosen.out, text, in_order, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
