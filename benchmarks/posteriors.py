"""Posteriors with known answers: can a classifier tell our samples from true ones?

    python benchmarks/posteriors.py --sbibm WHEEL --samples 10000 --jobs 12
    python benchmarks/posteriors.py --tasks SLCP --simulations 1000 --observations 3

The problems are those of sbibm (Lueckmann et al. 2021), restated in
`posterior_tasks.py`. `--sbibm` takes the ten observations that sbibm publishes, and its
draws of their posteriors, from its wheel (`pip download sbibm==1.1.0 --no-deps`); else
there are others, our own. C2ST is the accuracy of sbibm's classifier
(`two_samples.py`); ½ is perfect. sbibm compares 10,000 samples of each, as they are.
*z* is C2ST where the classifier sees them in standard deviations of the true draws,
which it finds easier. With fewer samples it learns less, and both are lower. A GPU
does it in seconds; without one take fewer samples and epochs, and compare at fewer
observations.

local       `sliceflow.inference.posterior`, with the prior's bounds, all defaults: by
            neighbors
likelihood  the same with method="likelihood"
auto        which of both method="auto" takes, with `--auto`
rejection   ABC: draws from the 1 % of simulations (at least 100) nearest to the
            observation
adjusted    ABC with linear adjustment (Beaumont et al. 2002): 10 % of them (at least
            200), weighted
sbibm       the best mean of all algorithms in sbibm's paper (main_paper.csv); blank
            where we know no number

Simulations, observations and classifiers have other seeds than those that chose the
settings. Writes posteriors.md and posteriors.json after every row; `--resume` goes on
with them, also with other settings for the other rows.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from posterior_tasks import TASKS, Task, published
from report import Row, command_line, markdown_table, script_parser, write_report
from sklearn.neighbors import NearestNeighbors
from two_samples import EPOCHS, c2st, c2st_many

from sliceflow.inference import posterior

SIMULATIONS = (1_000, 10_000, 100_000)
# The best means of main_paper.csv, of sbibm's paper, at these simulations.
PUBLISHED = {
    "two moons": (0.643, 0.554, 0.530),
    "Gaussian linear": (0.628, 0.536, 0.506),
    "SLCP": (0.921, 0.713, 0.578),
    "Bernoulli GLM": (0.634, 0.553, 0.522),
    "Lotka–Volterra": (0.909, 0.738, 0.695),
}
# Ours, and what `posterior` calls them.
OUR_METHODS = {"local": "neighbors", "likelihood": "likelihood"}
ABC_METHODS = ("rejection", "adjusted")
RowKey = tuple[str, int]  # a task, and its number of simulations


@dataclass(frozen=True, eq=False)
class Job:
    """A row to measure."""

    task: str
    n_simulations: int
    x0: np.ndarray  # (q, l) observations
    true: np.ndarray  # (q, m, d) draws of their posteriors
    n_compared: int  # observations at which other methods and z are compared
    device: str  # of the classifier
    epochs: int
    methods: tuple[str, ...]  # of ours and of ABC
    auto: bool  # whether to ask which method "auto" takes


# --- samples --------------------------------------------------------------------------


def abc_rejection(
    theta: np.ndarray, x: np.ndarray, x0: np.ndarray, n: int
) -> np.ndarray:
    """ABC: n draws (q, n, d) from the simulations nearest to each of q observations."""
    n_nearest = max(100, len(x) // 100)
    _, nearest = nearest_simulations(x, x0, n_nearest)
    rng = np.random.default_rng(0)
    weights = np.full(n_nearest, 1 / n_nearest)
    draws = []
    for rows in nearest:
        draws.append(theta[rows][rng.choice(n_nearest, n, p=weights)])
    return np.stack(draws)


def abc_regression(
    theta: np.ndarray, x: np.ndarray, x0: np.ndarray, n: int
) -> np.ndarray:
    """ABC: the same with more simulations, adjusted by a weighted linear regression."""
    n_nearest = max(200, len(x) // 10)
    distances, nearest = nearest_simulations(x, x0, n_nearest)
    rng = np.random.default_rng(0)
    scale = simulation_scale(x)
    draws = []
    for distance, rows, observation in zip(distances, nearest, x0, strict=True):
        # Epanechnikov's kernel, with a little weight for the farthest too.
        weights = 1 - (distance / (distance[-1] * (1 + 1e-9))) ** 2
        weights /= weights.sum()
        offset = (x[rows] - observation) / scale
        design = np.concatenate((np.ones((n_nearest, 1)), offset), 1)
        root = np.sqrt(weights)[:, None]
        slopes = np.linalg.lstsq(root * design, root * theta[rows], rcond=None)[0]
        adjusted = theta[rows] - offset @ slopes[1:]
        draws.append(adjusted[rng.choice(n_nearest, n, p=weights)])
    return np.stack(draws)


def nearest_simulations(
    x: np.ndarray, x0: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Distances (q, k) and rows (q, k) of the simulations nearest to observations."""
    scale = simulation_scale(x)
    return NearestNeighbors(n_neighbors=k).fit(x / scale).kneighbors(x0 / scale)


def simulation_scale(x: np.ndarray) -> np.ndarray:
    """Standard deviations (l,), never 0."""
    return x.std(0) + 1e-12


def sample_methods(task: Task, job: Job) -> tuple[Row, dict[str, np.ndarray]]:
    """The beginning of a row, and draws (q, n, d) of each method at observations."""
    theta, x = task.draw(job.n_simulations, seed=1_000 + job.n_simulations)
    n = job.true.shape[1]
    samples = {}
    row: Row = {"task": task.name, "simulations": job.n_simulations, "auto": ""}
    for method, name in OUR_METHODS.items():
        if method not in job.methods:
            continue
        started_at = time.process_time()
        fitted = posterior(theta, x, bounds=task.bounds, method=name)
        fitted_at = time.process_time()
        draws = fitted.sample_batched((n,), x=job.x0, random_state=0)
        drawn_at = time.process_time()
        samples[method] = draws.transpose(0, 1).double().numpy()
        row[f"{method}: fit"] = fitted_at - started_at
        row[f"{method}: an observation"] = (drawn_at - fitted_at) / len(job.x0)
    if job.auto:
        row["auto"] = posterior(theta, x, bounds=task.bounds, method="auto").method
    if "rejection" in job.methods:
        samples["rejection"] = abc_rejection(theta, x, job.x0, n)
    if "adjusted" in job.methods:
        samples["adjusted"] = abc_regression(theta, x, job.x0, n)
    return row, samples


# --- C2ST -----------------------------------------------------------------------------


def compare(samples: dict[str, np.ndarray], job: Job) -> dict[str, list[float]]:
    """C2ST of every method at each observation.

    Ours are compared at all observations; the others, and *z*, at the first
    `n_compared`.
    """
    n = job.n_compared
    compared_true = job.true[:n]
    mean = compared_true.mean(1, keepdims=True)
    spread = compared_true.std(1, keepdims=True)
    pairs = {}
    for method, draws in samples.items():
        if method in OUR_METHODS:
            pairs[method] = (draws, job.true)
            pairs[f"{method}, z"] = (
                (draws[:n] - mean) / spread,
                (compared_true - mean) / spread,
            )
        else:
            pairs[method] = (draws[:n], compared_true)
    if job.device == "cpu":
        return compare_on_cpu(pairs, job.epochs)
    return compare_on_gpu(pairs, job.epochs, job.device)


def compare_on_cpu(
    pairs: dict[str, tuple[np.ndarray, np.ndarray]], epochs: int
) -> dict[str, list[float]]:
    """C2ST of one pair after the other."""
    accuracies = {}
    for name, (samples, true) in pairs.items():
        accuracies[name] = [
            c2st(ours, theirs, epochs=epochs)
            for ours, theirs in zip(samples, true, strict=True)
        ]
    return accuracies


def compare_on_gpu(
    pairs: dict[str, tuple[np.ndarray, np.ndarray]], epochs: int, device: str
) -> dict[str, list[float]]:
    """C2ST of all pairs at once."""
    samples = np.concatenate([samples for samples, _ in pairs.values()])
    true = np.concatenate([true for _, true in pairs.values()])
    accuracies = c2st_many(
        torch.from_numpy(samples),
        torch.from_numpy(true),
        seed=1,
        epochs=epochs,
        device=device,
    )
    sizes = [len(samples) for samples, _ in pairs.values()]
    parts = accuracies.split(sizes)
    return {name: part.tolist() for name, part in zip(pairs, parts, strict=True)}


def measure(job: Job) -> Row:
    """A row of the table."""
    torch.set_num_threads(1)
    row, samples = sample_methods(TASKS[job.task], job)
    return row | compare(samples, job)


# --- the table ------------------------------------------------------------------------


def observations(
    task: Task, sbibm: Path | None, q: int, m: int
) -> tuple[np.ndarray, np.ndarray]:
    """q observations (q, l) of a task, and m draws (q, m, d) of their posteriors."""
    if sbibm is not None:
        x0, true = published(task, sbibm)
        return x0[:q], true[:q, :m]
    _, x0 = task.draw(q, seed=2_000)
    rng = np.random.default_rng(3_000)
    true = np.stack([task.posterior(observation, m, rng) for observation in x0])
    return x0, true


def published_c2st(task: str, n_simulations: int) -> str:
    """The best published C2ST, blank if we know none."""
    if task not in PUBLISHED or n_simulations not in SIMULATIONS:
        return ""
    return f"{PUBLISHED[task][SIMULATIONS.index(n_simulations)]:.3f}"


def format_mean(row: Row, name: str) -> str:
    """The mean of a row's values ± its standard error; blank without values."""
    if name not in row:
        return ""
    values = row[name]
    return f"{np.mean(values):.3f} ± {np.std(values) / len(values) ** 0.5:.3f}"


def format_seconds(row: Row, method: str) -> str:
    """CPU seconds to fit, and for each observation; blank without the method."""
    if f"{method}: fit" not in row:
        return ""
    return f"{row[f'{method}: fit']:.1f}, {row[f'{method}: an observation']:.2f}"


def format_report(rows: Sequence[Row]) -> str:
    """The table of C2ST."""
    names = ("local", "local, z", "likelihood", "likelihood, z", *ABC_METHODS)
    cells = []
    for row in rows:
        cells.append(
            [
                f"{row['task']}, {row['simulations']:,}",
                *(format_mean(row, name) for name in names),
                published_c2st(row["task"], row["simulations"]),
                row["auto"],
                *(format_seconds(row, method) for method in OUR_METHODS),
                f"{row['observations']}, {row['compared']}",
                f"{row['samples']}, {row['epochs']}",
            ]
        )
    header = [
        "task, simulations",
        *names,
        "sbibm, published",
        "auto",
        *(f"{method}: CPU s to fit, an observation" for method in OUR_METHODS),
        "observations, of ABC and z",
        "samples, epochs",
    ]
    title = "C2ST, ½ is perfect: mean and its standard error."
    return f"{title}\n\n{markdown_table(header, cells)}"


def saved_rows(path: Path) -> dict[RowKey, Row]:
    """The rows of an earlier run, if there are any."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["task"], row["simulations"]): row for row in rows}


def sorted_rows(rows: dict[RowKey, Row]) -> list[Row]:
    """By task, and then by the number of simulations."""
    order = list(TASKS)
    keys = sorted(rows, key=lambda key: (order.index(key[0]), key[1]))
    return [rows[key] for key in keys]


def plan_jobs(args: argparse.Namespace, done: dict[RowKey, Row]) -> list[Job]:
    """The rows that are asked for and not done, the quick ones first."""
    jobs = []
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for n_simulations in args.simulations:
        for name in args.tasks:
            if (name, n_simulations) in done:
                continue
            if name not in known:
                known[name] = observations(
                    TASKS[name], args.sbibm, args.observations, args.samples
                )
            x0, true = known[name]
            job = Job(
                task=name,
                n_simulations=n_simulations,
                x0=x0,
                true=true,
                n_compared=args.compared,
                device=args.device,
                epochs=args.epochs,
                methods=tuple(args.methods),
                auto=args.auto,
            )
            jobs.append(job)
    return jobs


def run_jobs(jobs: Sequence[Job], n_processes: int) -> Iterator[Row]:
    """The rows, as soon as each is measured."""
    if n_processes == 1:
        yield from map(measure, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, spawn) as pool:
        futures = [pool.submit(measure, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the tables."""
    default_device = "cpu"
    if torch.cuda.is_available():
        default_device = "cuda"
    parser = script_parser(__doc__)
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
    methods = (*OUR_METHODS, *ABC_METHODS)
    parser.add_argument("--methods", nargs="+", default=methods, choices=methods)
    parser.add_argument(
        "--auto", action="store_true", help="also ask which method 'auto' takes"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default=default_device)
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that --out has already"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/posteriors"))
    args = parser.parse_args(arguments)
    if args.compared is None:
        args.compared = args.observations
    args.compared = min(args.compared, args.observations)
    command = command_line("benchmarks/posteriors.py", arguments)
    rows: dict[RowKey, Row] = {}
    if args.resume:
        rows = saved_rows(args.out.with_suffix(".json"))
    for row in run_jobs(plan_jobs(args, rows), args.jobs):
        row |= {"samples": args.samples, "epochs": args.epochs}
        row |= {"observations": args.observations, "compared": args.compared}
        rows[row["task"], row["simulations"]] = row
        report_rows = sorted_rows(rows)
        text = format_report(report_rows)
        write_report(args.out, text, report_rows, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
