"""Densities: held-out log-likelihood and anomalies, beside KDE, mixtures and a network.

    python benchmarks/densities.py likelihood --seeds 10 11 12
    python benchmarks/densities.py likelihood --nsf  # needs zuko
    python benchmarks/densities.py rows --plot docs/images/density_rows.png
    python benchmarks/densities.py large --sets warped8 --sizes 10000 --nsf
    python benchmarks/densities.py large --sets mnist32 --data-root FOLDER --nsf
    python benchmarks/densities.py anomalies

`likelihood` prints nats per held-out row on six sets, `rows` the same by the number of
rows, `large` the same on sets of 10,000 rows and more, beside the truth where that is
known, and `anomalies` the AUC of minus the log-density on three public sets.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_wine,
    make_moons,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KernelDensity

from sliceflow import SlicedDensity, datasets

Floats = NDArray[np.float64]
Scorer = Callable[[Floats, Floats], Floats]

SETS = ("moons", "mixture", "t3", "diabetes", "cancer", "wine")
# Of the data that are made up, the number says how many dimensions they have.
LARGE_SETS = ("warped8", "warped20", "mnist32")
N_LARGE_TEST = 5000
# With more rows the network is trained in larger batches, or it would take hours.
MAX_SMALL_BATCHES = 5000
TRAIN_SIZES = {"diabetes": 295, "cancer": 379, "wine": 118}


def mixture(rng: np.random.Generator, n: int) -> Floats:
    """Rows of six normal components in six dimensions, always the same ones."""
    fixed = np.random.default_rng(123)
    means = 3 * fixed.normal(size=(6, 6))
    factors = 0.5 * fixed.normal(size=(6, 6, 6))
    component = rng.integers(0, 6, n)
    noise = rng.normal(size=(n, 6))
    return means[component] + np.einsum("nij,nj->ni", factors[component], noise)


def student(rng: np.random.Generator, n: int) -> Floats:
    """Rows of a Student distribution with 3 degrees of freedom in four dimensions."""
    mixing = np.eye(4) + np.diag([0.5, 0.3, 0.2], 1)
    scale = np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)
    return rng.normal(size=(n, 4)) @ mixing / scale


def warped_mixture(rng: np.random.Generator, n: int, d: int) -> tuple[Floats, Floats]:
    """Rows of a bent mixture of eight normal components, and their log-densities.

    Every second coordinate is moved by half the square of the one before it: this bends
    the components, and keeps the density as it is.
    """
    fixed = np.random.default_rng(d)
    n_components = 8
    means = 2 * fixed.normal(size=(n_components, d))
    factors = np.eye(d) + 0.3 * fixed.normal(size=(n_components, d, d))
    component = rng.integers(0, n_components, n)
    noise = rng.normal(size=(n, d))
    straight = means[component] + np.einsum("nij,nj->ni", factors[component], noise)
    log_densities = np.zeros((n_components, n))
    for k in range(n_components):
        covariance = factors[k] @ factors[k].T
        normal = multivariate_normal(means[k], covariance)
        log_densities[k] = normal.logpdf(straight)
    bent = straight.copy()
    bent[:, 1::2] += 0.5 * straight[:, 0 : d - 1 : 2] ** 2
    return bent, logsumexp(log_densities, axis=0) - np.log(n_components)


def load_large_set(
    name: str, size: int, seed: int, data_root: Path | None
) -> tuple[Floats, Floats, float | None]:
    """Rows to fit, held-out rows, and the true mean log-density of these, if known.

    Columns are standardized: the network needs that.
    """
    rng = np.random.default_rng(seed)
    if name == "mnist32":
        train = datasets.load("mnist", "train", data_root).images
        test = datasets.load("mnist", "test", data_root).images
        pixels = train.reshape(len(train), -1).astype(float)
        components = PCA(32, random_state=0).fit(pixels)
        rows = components.transform(pixels)
        held_out = components.transform(test.reshape(len(test), -1).astype(float))
        rows = rows[rng.permutation(len(rows))[:size]]
        held_out = held_out[:N_LARGE_TEST]
        mean = rows.mean(0)
        deviation = rows.std(0)
        return (rows - mean) / deviation, (held_out - mean) / deviation, None
    d = int(name.removeprefix("warped"))
    rows, _ = warped_mixture(rng, size, d)
    held_out, log_densities = warped_mixture(rng, N_LARGE_TEST, d)
    mean = rows.mean(0)
    deviation = rows.std(0)
    truth = float(log_densities.mean() + np.log(deviation).sum())
    return (rows - mean) / deviation, (held_out - mean) / deviation, truth


def load_set(name: str, seed: int) -> tuple[Floats, Floats]:
    """Rows to fit and held-out rows; those of real sets are standardized."""
    rng = np.random.default_rng(seed)
    if name == "moons":
        train = make_moons(2000, noise=0.1, random_state=seed)[0]
        return train, make_moons(2000, noise=0.1, random_state=seed + 1000)[0]
    if name == "mixture":
        return mixture(rng, 3000), mixture(rng, 2000)
    if name == "t3":
        return student(rng, 4000), student(rng, 2000)
    if name == "diabetes":
        X = np.delete(load_diabetes(scaled=False).data, 1, axis=1)  # sex is binary
    elif name == "cancer":
        X = np.log(load_breast_cancer().data[:, :10] + 0.01)
    else:
        X = load_wine().data
    size = TRAIN_SIZES[name]
    train, test = train_test_split(X, train_size=size, random_state=seed)
    mean = train.mean(0)
    deviation = train.std(0)
    return (train - mean) / deviation, (test - mean) / deviation


def score_flow(train: Floats, test: Floats) -> Floats:
    """Log-densities of `SlicedDensity`."""
    density = SlicedDensity(random_state=0, device="cpu").fit(train)
    return density.score_samples(test)


def score_kde(train: Floats, test: Floats) -> Floats:
    """Log-densities of a kernel density estimate, its bandwidth by cross-validation."""
    bandwidths = {"bandwidth": np.geomspace(0.05, 1.5, 15)}
    return (
        GridSearchCV(KernelDensity(), bandwidths, cv=5).fit(train).score_samples(test)
    )


def score_mixture(train: Floats, test: Floats) -> Floats:
    """Log-densities of a Gaussian mixture, its components by cross-validation."""
    grid = {
        "n_components": [1, 2, 3, 4, 6, 8, 12, 16],
        "covariance_type": ["full", "tied", "diag"],
    }
    estimator = GaussianMixture(reg_covar=1e-4, random_state=0)
    return GridSearchCV(estimator, grid, cv=5).fit(train).score_samples(test)


def score_nsf(train: Floats, test: Floats) -> Floats:
    """Log-densities of zuko's neural spline flow: 4 transforms, early stopping."""
    import torch
    import zuko

    torch.manual_seed(0)
    batch_size = 128 if len(train) <= MAX_SMALL_BATCHES else 512
    x = torch.tensor(train, dtype=torch.float32)
    order = torch.randperm(len(x))
    n_held_out = max(len(x) // 10, 10)
    held_out = x[order[:n_held_out]]
    x = x[order[n_held_out:]]
    flow = zuko.flows.NSF(x.shape[1], transforms=4, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    best = np.inf
    state = {}
    n_worse = 0
    for _ in range(400):
        for batch in x[torch.randperm(len(x))].split(batch_size):
            loss = -flow().log_prob(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            loss_held_out = -float(flow().log_prob(held_out).mean())
        n_worse += 1
        if loss_held_out < best:
            best = loss_held_out
            state = {name: value.clone() for name, value in flow.state_dict().items()}
            n_worse = 0
        if n_worse == 10:
            break
    flow.load_state_dict(state)
    with torch.no_grad():
        return flow().log_prob(torch.tensor(test, dtype=torch.float32)).numpy()


METHODS: dict[str, Scorer] = {
    "KDE": score_kde,
    "mixture": score_mixture,
    "SlicedDensity": score_flow,
}
ALL_METHODS: dict[str, Scorer] = {**METHODS, "NSF": score_nsf}


def choose_methods(
    options: argparse.Namespace, default: list[str]
) -> dict[str, Scorer]:
    """The methods that the command line names, else these and perhaps the network."""
    names = default
    if options.nsf:
        names = [*default, "NSF"]
    if options.methods is not None:
        names = options.methods
    return {name: ALL_METHODS[name] for name in names}


def run_likelihood(options: argparse.Namespace) -> None:
    """Print the mean held-out log-density over seeds, its standard error, seconds."""
    methods = choose_methods(options, list(METHODS))
    for name in options.sets:
        for method, score in methods.items():
            means = []
            seconds = 0.0
            for seed in options.seeds:
                train, test = load_set(name, seed)
                started_at = time.process_time()
                log_densities = score(train, test)
                seconds += time.process_time() - started_at
                means.append(log_densities.mean())
            error = np.std(means, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else 0
            mean_seconds = seconds / len(options.seeds)
            text = f"{np.mean(means):8.3f} ± {error:.3f}, {mean_seconds:.1f} s"
            print(f"{name:9} {method:14} {text}", flush=True)


def run_large(options: argparse.Namespace) -> None:
    """Print the mean held-out log-density on large sets, and CPU seconds."""
    methods = choose_methods(options, ["SlicedDensity"])
    for name in options.sets:
        for size in options.sizes:
            train, test, truth = load_large_set(
                name, size, options.seeds[0], options.data_root
            )
            if truth is not None:
                print(f"{name:9} {size:7} truth          {truth:8.3f}", flush=True)
            for method, score in methods.items():
                started_at = time.process_time()
                mean = score(train, test).mean()
                seconds = time.process_time() - started_at
                text = f"{mean:8.3f}, {seconds:.1f} CPU s"
                print(f"{name:9} {size:7} {method:14} {text}", flush=True)


def run_rows(plot: Path | None) -> None:
    """The held-out log-density of the mixture, by the number of rows."""
    sizes = [100, 300, 1000, 3000]
    rng = np.random.default_rng(10)
    rows = mixture(rng, max(sizes))
    test = mixture(rng, 2000)
    curves: dict[str, list[float]] = {}
    for method, score in METHODS.items():
        curves[method] = []
        for n in sizes:
            curves[method].append(float(score(rows[:n], test).mean()))
            print(f"{n:5} {method:14} {curves[method][-1]:.3f}", flush=True)
    if plot is None:
        return
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for method, curve in curves.items():
        axes.semilogx(sizes, curve, marker="o", label=method)
    axes.set(xlabel="rows", ylabel="held-out nats per row")
    axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
    axes.legend()
    figure.savefig(plot, dpi=110)


def anomaly_sets() -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
    """Rows and which of them are anomalies, a few percent of each set."""
    rng = np.random.default_rng(0)
    cancer = load_breast_cancer()
    digits = load_digits()
    wine = load_wine()
    sources = {
        "cancer (malignant)": (np.log(cancer.data[:, :10] + 0.01), cancer.target == 0),
        "digits (zero)": (PCA(16).fit_transform(digits.data), digits.target == 0),
        "wine (class 1)": (wine.data, wine.target == 0),
    }
    sets = {}
    for name, (X, is_anomaly) in sources.items():
        kept = rng.permutation(np.flatnonzero(is_anomaly))[:20]
        rows = np.concatenate((np.flatnonzero(~is_anomaly), kept))
        sets[name] = ((X[rows] - X[rows].mean(0)) / X[rows].std(0), is_anomaly[rows])
    return sets


def run_anomalies() -> None:
    """The AUC of anomaly scores, fitted to all rows without labels."""
    for name, (X, is_anomaly) in anomaly_sets().items():
        forest = IsolationForest(random_state=0).fit(X)
        scores = {"IsolationForest": forest.score_samples(X)}
        for method, score in METHODS.items():
            scores[method] = score(X, X)
        for method, values in scores.items():
            auc = roc_auc_score(is_anomaly, -values)
            print(f"{name:20} {method:16} {auc:.3f}", flush=True)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["likelihood", "rows", "large", "anomalies"])
    parser.add_argument("--sets", nargs="+", choices=SETS + LARGE_SETS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--methods", nargs="+", choices=list(ALL_METHODS))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--nsf", action="store_true")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.sets is None:
        arguments.sets = LARGE_SETS if arguments.what == "large" else SETS
    if arguments.what == "likelihood":
        run_likelihood(arguments)
    elif arguments.what == "rows":
        run_rows(arguments.plot)
    elif arguments.what == "large":
        run_large(arguments)
    else:
        run_anomalies()


if __name__ == "__main__":
    main()
