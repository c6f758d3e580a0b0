"""Posteriors of simulators with known answers: can a classifier tell our samples from true ones?

    python benchmarks/posteriors.py
    python benchmarks/posteriors.py --tasks "two moons" SLCP --simulations 1000 --observations 3

The problems are those of sbibm (Lueckmann et al. 2021): `posterior_tasks.py`. C2ST is the accuracy of
a perceptron with two hidden layers of 10·d units that tells samples from as many draws of the true
posterior, in five folds, as sbibm's; ½ is perfect. sbibm compares 10,000 samples, here there are
`--samples`: with fewer the classifier learns less, and C2ST is lower. It learns for at most 200 epochs,
sbibm's for 10,000.

local       `sliceflow.inference.posterior`, with the prior's bounds, all defaults
rejection   ABC: draws from the 1 % of simulations (at least 100) nearest to the observation
adjusted    ABC with linear adjustment (Beaumont et al. 2002): 10 % of them (at least 200), weighted
NPE         neural posterior estimation, as published with sbibm; blank where we know no number

*NN* compares distances to the adjusted neighbours of an observation: of samples, over those of true
draws; near 0 is copying. Simulations, observations and classifiers have other seeds than those that
chose the settings. Writes posteriors.md and posteriors.json after every task.
"""

import argparse
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from posterior_tasks import TASKS, Task
from report import keep, table
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier

from sliceflow.inference import Posterior, posterior

SIMULATIONS = (1_000, 10_000, 100_000)
PUBLISHED = {  # NPE
    "two moons": (0.725, 0.606, 0.542),
    "Gaussian mixture": (0.716, 0.615, None),
    "SLCP": (0.975, 0.901, 0.831),
}
EPOCHS = 200  # of the classifier; more only teach it the training folds by heart
METHODS = ("local", "rejection", "adjusted")


def c2st(samples: np.ndarray, true: np.ndarray, seed: int = 1) -> float:
    """Accuracy of sbibm's classifier on as many samples as true draws."""
    mean, scale, d = true.mean(0), true.std(0), true.shape[1]
    x = (np.concatenate((samples, true)) - mean) / scale
    network = MLPClassifier((10 * d, 10 * d), max_iter=EPOCHS, random_state=seed)
    folds = KFold(5, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = np.repeat([0, 1], [len(samples), len(true)])
        return float(cross_val_score(network, x, labels, cv=folds).mean())


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


def measured(task: Task, n: int, x0: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """All methods with n simulations, at the observations x0."""
    theta, x = task.draw(n, seed=1_000 + n)
    began = time.perf_counter()
    found = posterior(theta, x, bounds=task.bounds)
    fitted = time.perf_counter()
    drawn = found.sample_batched((true.shape[1],), x=x0, random_state=0)
    seconds = time.perf_counter() - fitted
    made = {
        "local": drawn.transpose(0, 1).double().numpy(),
        "rejection": rejection(theta, x, x0, true.shape[1], linear=False),
        "adjusted": rejection(theta, x, x0, true.shape[1], linear=True),
    }
    row: dict[str, Any] = {"task": task.name, "simulations": n, "k": found.near.k}
    row["h"] = found.near.spread
    row |= {name: [c2st(a, b) for a, b in zip(made[name], true, strict=True)] for name in METHODS}
    row["NN"] = nn_ratio(found, x0, made["local"], true)
    row |= {"fit s": fitted - began, "s per observation": seconds / len(x0)}
    print(f"{task.name}, {n}: " + ", ".join(f"{m} {np.mean(row[m]):.3f}" for m in METHODS), flush=True)
    return row


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
                f"{row['NN']:.2f}",
                f"{row['k']}",
                f"{row['fit s']:.1f}",
                f"{row['s per observation']:.2f}",
            ]
        )
    header = ["task, simulations", *METHODS, "NPE, published", "NN", "k", "fit s", "s an observation"]
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
    parser.add_argument("--out", type=Path, default=Path("posteriors"))
    chosen = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    arguments = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "benchmarks/posteriors.py", *arguments])
    for name in chosen.tasks:
        task = TASKS[name]
        _, x0 = task.draw(chosen.observations, seed=2_000)
        rng = np.random.default_rng(3_000)
        true = np.stack([task.posterior(at, chosen.samples, rng) for at in x0])
        for n in chosen.simulations:
            rows.append(measured(task, n, x0, true))
            text = shown(rows, chosen.samples, chosen.observations)
            keep(chosen.out, text, rows, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
