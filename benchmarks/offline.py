"""How good offline samples of vectors are beside batched ones: python benchmarks/offline.py.

Half of the rows are fitted, the other half held out. Prints the sliced distance to the held-out rows,
the NN ratio (1 is ideal, near 0 is copying), how well a random forest tells samples from held-out rows
(½ is perfect), then quantiles of heavy-tailed columns and shares of rare classes.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_moons
from sklearn.model_selection import train_test_split

from sliceflow import SlicedWassersteinFlow
from sliceflow.metrics import nn_ratio, sliced_wasserstein, two_sample_accuracy

SETS = {
    "two moons, noise .1": lambda: make_moons(1000, noise=0.1, random_state=0)[0],
    "wine": lambda: load_wine().data,
    "diabetes": lambda: load_diabetes().data,
    "breast cancer": lambda: load_breast_cancer().data,
    "digits": lambda: load_digits().data,
}
HEAVY = {
    "normal": lambda rng: rng.normal(size=2000),
    "lognormal, σ = 1": lambda rng: np.exp(rng.normal(size=2000)),
    "lognormal, σ = 2": lambda rng: np.exp(2 * rng.normal(size=2000)),
    "Student t₂": lambda rng: rng.standard_t(2, 2000),
    "Cauchy": lambda rng: rng.standard_cauchy(2000),
}


def sets() -> None:
    """Real sets: batched and offline samples against held-out rows."""
    print("| set | CPU s | samples | sliced distance | NN ratio | forest |\n|---|---|---|---|---|---|")
    for name, rows in SETS.items():
        train, held = train_test_split(rows(), test_size=0.5, random_state=0)
        spread = train.std(axis=0)
        train, held = (
            (t - train.mean(axis=0)) / np.where(spread > 0, spread, 1) for t in (train, held)
        )
        began = time.process_time()
        flow = SlicedWassersteinFlow(random_state=0).fit(train)
        seconds = time.process_time() - began
        for kind, x in (
            ("batched", flow.particles_[:5000]),
            ("offline", flow.sample(5000, random_state=1)),
        ):
            told = two_sample_accuracy(x[: len(held)], held)
            print(
                f"| {name} | {seconds:.1f} | {kind} | {sliced_wasserstein(x, held):.4f} | "
                f"{nn_ratio(x, train, held):.2f} | {told:.3f} |"
            )


def heavy() -> None:
    """Columns with heavy tails, five fits: the worst errors of quartiles and of outer quantiles."""
    print("\n| column | quartiles, in quartile ranges | 1 % and 99 % quantiles |\n|---|---|---|")
    worst = np.zeros((len(HEAVY), 2))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data = np.stack([draw(rng) for draw in HEAVY.values()], axis=1)
        samples = SlicedWassersteinFlow(random_state=seed).fit(data).sample(200_000, random_state=1)
        levels = [0.01, 0.25, 0.5, 0.75, 0.99]
        theirs, ours = (np.quantile(t, levels, axis=0) for t in (data, samples))
        inner = np.abs(ours - theirs)[1:4].max(axis=0) / (theirs[3] - theirs[1])
        outer = np.abs(ours / theirs - 1)[[0, 4]].max(axis=0)
        worst = np.maximum(worst, np.stack((inner, outer), axis=1))
    for name, (inner, outer) in zip(HEAVY, worst, strict=True):
        print(f"| {name} | {inner:.3f} | {100 * outer:.0f} % |")


def rare() -> None:
    """A few rows at 30 beside 10,000 at 0: the share of samples of that class that are there."""
    print("\n| rows of the rare class | offline samples in their place |\n|---|---|")
    for n in (1, 5, 10, 20, 50):
        rng = np.random.default_rng(n)
        data = np.r_[rng.normal(30, 1, (n, 2)), rng.normal(0, 1, (10_000, 2))]
        labels = np.repeat([0, 1], [n, 10_000])
        samples = SlicedWassersteinFlow(random_state=0).fit(data, labels).sample(1000, y=0)
        print(f"| {n} | {(samples.mean(axis=1) > 15).mean():.3f} |")


if __name__ == "__main__":
    sets()
    heavy()
    rare()
