"""Local conditions: the posterior of two moons, two regressions, and whether samples are calibrated.

    python examples/local_conditions.py --out examples-out

writes `posterior_moons.png` (true draws, ours, and rejection ABC), `conditional_quantiles.png`
(quantiles of samples given y against the true ones) and `calibration.png` (ranks and coverage on two
moons).
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from sliceflow import SlicedWassersteinFlow
from sliceflow.inference import posterior

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BLUE = "#0072B2"
ORANGE = "#D55E00"
INK = "#333333"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def crescent(n, rng):
    """The noise of the simulator."""
    a = rng.uniform(-np.pi / 2, np.pi / 2, n)
    r = rng.normal(0.1, 0.01, n)
    return np.c_[r * np.cos(a) + 0.25, r * np.sin(a)]


def simulate(theta, rng):
    """Two moons of sbibm: |θ₁ + θ₂| and θ₂ − θ₁, plus a crescent."""
    turned = np.c_[-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]] / np.sqrt(2)
    return crescent(len(theta), rng) + turned


def true_posterior(x0, n, rng):
    """Exact draws of θ given x = x0."""
    q = x0 - crescent(4 * n, rng)
    plus = q[:, 0] * rng.choice([-1, 1], len(q))
    theta = np.c_[plus - q[:, 1], plus + q[:, 1]] / np.sqrt(2)
    return theta[(np.abs(theta) < 1).all(1) & (q[:, 0] <= 0)][:n]


def moons(path):
    """Three panels: the truth, ours, ABC."""
    rng = np.random.default_rng(0)
    x0 = np.array([0.0, 0.0])
    theta = rng.uniform(-1, 1, (10_000, 2))
    x = simulate(theta, rng)
    ours = (
        posterior(theta, x, bounds=(-1, 1))
        .sample((1_000,), x=x0, random_state=0)
        .numpy()
    )
    nearest = np.argsort(((x - x0) ** 2).sum(1))[:100]
    panels = {
        "true posterior": true_posterior(x0, 1_000, rng),
        "sliceflow, 10,000 simulations": ours,
        "rejection ABC, the nearest 1 %": theta[nearest],
    }
    figure, axes = plt.subplots(
        1, 3, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True
    )
    for axis, (title, draws), colour in zip(
        axes, panels.items(), (INK, BLUE, ORANGE), strict=True
    ):
        axis.scatter(*draws.T, s=2, color=colour, alpha=0.6, linewidths=0)
        axis.set(
            title=title, xlabel="θ₁", xlim=(-0.6, 0.6), ylim=(-0.6, 0.6), aspect="equal"
        )
    axes[0].set_ylabel("θ₂")
    figure.savefig(path, dpi=90)


def regressions(path):
    """Quantiles of x given y, of samples and true."""
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, 2_000)
    grid = np.linspace(-1, 1, 41)
    wide = np.sin(2 * y) + (0.1 + 0.4 * np.abs(y)) * rng.normal(size=2_000)
    split = rng.choice([-1, 1], 2_000) * (1.5 + y) + 0.2 * rng.normal(size=2_000)
    quantile = norm.ppf(LEVELS)
    true_wide = [np.sin(2 * g) + (0.1 + 0.4 * abs(g)) * quantile for g in grid]
    true_split = [
        [
            brentq(lambda x, g=g, q=q: mixture_cdf(x, g) - q, -4, 4)
            for q in LEVELS
            if q != 0.5
        ]
        for g in grid
    ]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    problems = (
        ("noise that grows", wide, true_wide),
        ("two branches", split, true_split),
    )
    for axis, (title, x, true) in zip(axes, problems, strict=True):
        flow = SlicedWassersteinFlow(random_state=0).fit(x[:, None], y[:, None])
        made = flow.sample(y=np.repeat(grid, 1_000)[:, None], random_state=0).reshape(
            len(grid), -1
        )
        levels = (
            LEVELS if title == "noise that grows" else [q for q in LEVELS if q != 0.5]
        )
        axis.scatter(y, x, s=1, color="0.75")
        for j, level in enumerate(levels):
            ours = np.quantile(made, level, axis=1)
            truth = np.array(true)[:, j]
            axis.plot(
                grid, truth, color=INK, lw=1, ls="--", label="true" if j == 0 else None
            )
            axis.plot(
                grid, ours, color=BLUE, lw=1.2, label="samples" if j == 0 else None
            )
        axis.set_title(
            f"{title}: quantiles {', '.join(f'{q:g}' for q in levels)}", fontsize=10
        )
        axis.set_xlabel("y")
    axes[0].set_ylabel("x")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=90)


def mixture_cdf(x, y):
    """Of the two branches."""
    return (norm.cdf((x - 1.5 - y) / 0.2) + norm.cdf((x + 1.5 + y) / 0.2)) / 2


def ranks(path):
    """Simulation-based calibration of two moons."""
    rng = np.random.default_rng(1)
    theta = rng.uniform(-1, 1, (5_000, 2))
    truth = rng.uniform(-1, 1, (300, 2))
    found = posterior(theta, simulate(theta, rng), bounds=(-1, 1)).calibrate(
        truth, simulate(truth, rng)
    )
    print(found)
    share = np.linspace(0, 1, 51)
    edges = np.linspace(0, 1, 21)
    covered = np.array([found.coverage(s) for s in share])
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    left.axhspan(*binom.ppf([0.005, 0.995], 300, 1 / 20), color="0.85", label="99 %")
    right.fill_between(
        share,
        *binom.ppf([[0.005], [0.995]], 300, share) / 300,
        color="0.85",
        label="99 %",
    )
    for j, name in enumerate(("θ₁", "θ₂")):
        left.stairs(np.histogram(found.levels[:, j], edges)[0], edges, label=name)
        right.plot(share, covered[:, j], label=name)
    left.set(
        xlabel="rank of the truth / number of samples",
        ylabel="conditions",
        ylim=(0, None),
    )
    right.set(
        xlabel="share of the samples in the interval",
        ylabel="share of the truths in it",
    )
    right.legend(frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Draw all three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("examples-out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("posterior_moons", moons),
        ("conditional_quantiles", regressions),
        ("calibration", ranks),
    ):
        draw(out / f"{name}.png")
        print("wrote", out / f"{name}.png")


if __name__ == "__main__":
    main()
