"""Local conditions: the posterior of two moons, two regressions, and calibration.

    python examples/local_conditions.py --out examples-out

writes `posterior_moons.png` (true draws, ours, and rejection ABC),
`conditional_quantiles.png` (quantiles of samples given y against the true ones) and
`calibration.png` (ranks and coverage on two moons).
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
N_ROWS = 2_000  # of a regression
# Quantiles that are drawn. The median of two branches lies in the gap between them,
# where there are no rows to tell: it is left out.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
LEVELS_OF_BRANCHES = (0.05, 0.25, 0.75, 0.95)
N_CONDITIONS = 300  # whose ranks are counted
N_RANK_BINS = 20
# Of the binomial distribution: 99 % of what calibrated samples show lies between.
LOW_LEVEL = 0.005
HIGH_LEVEL = 0.995


# Two moons of sbibm: x = (−|θ₁ + θ₂|, θ₂ − θ₁)/√2 + crescent.


def crescent(n: int, rng: np.random.Generator) -> np.ndarray:
    """The noise of the simulator: points (n, 2) on a thick half circle."""
    angle = rng.uniform(-np.pi / 2, np.pi / 2, n)
    radius = rng.normal(0.1, 0.01, n)
    return np.c_[radius * np.cos(angle) + 0.25, radius * np.sin(angle)]


def simulate(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Data x (n, 2) of parameters θ (n, 2)."""
    rotated = np.c_[-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]] / np.sqrt(2)
    return crescent(len(theta), rng) + rotated


def true_posterior(x0: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Exact draws (n, 2) of θ given x = x0."""
    q = x0 - crescent(4 * n, rng)
    # Both signs of θ₁ + θ₂ are as likely.
    total = q[:, 0] * rng.choice([-1, 1], len(q))
    theta = np.c_[total - q[:, 1], total + q[:, 1]] / np.sqrt(2)
    in_bounds = (np.abs(theta) < 1).all(1)
    is_possible = q[:, 0] <= 0
    return theta[in_bounds & is_possible][:n]


def draw_posterior(path: Path) -> None:
    """Three panels: the truth, ours, ABC."""
    rng = np.random.default_rng(0)
    x0 = np.array([0.0, 0.0])
    theta = rng.uniform(-1, 1, (10_000, 2))
    x = simulate(theta, rng)
    model = posterior(theta, x, bounds=(-1, 1))
    samples = model.sample((1_000,), x=x0, random_state=0).numpy()
    nearest = np.argsort(((x - x0) ** 2).sum(1))[:100]
    panels = [
        ("true posterior", true_posterior(x0, 1_000, rng), INK),
        ("sliceflow, 10,000 simulations", samples, BLUE),
        ("rejection ABC, the nearest 1 %", theta[nearest], ORANGE),
    ]
    figure, axes = plt.subplots(
        1, 3, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True
    )
    for axis, (title, draws, color) in zip(axes, panels, strict=True):
        axis.scatter(
            draws[:, 0], draws[:, 1], s=2, color=color, alpha=0.6, linewidths=0
        )
        axis.set(
            title=title, xlabel="θ₁", xlim=(-0.6, 0.6), ylim=(-0.6, 0.6), aspect="equal"
        )
    axes[0].set_ylabel("θ₂")
    figure.savefig(path, dpi=90)
    plt.close(figure)


# Two regressions of x on one y.


def branches_cdf(x: float, y: float) -> float:
    """The distribution function of x given y, for two branches at ±(1.5 + y)."""
    upper = norm.cdf((x - 1.5 - y) / 0.2)
    lower = norm.cdf((x + 1.5 + y) / 0.2)
    return (upper + lower) / 2


def branches_quantile(level: float, y: float) -> float:
    """Its inverse."""
    return brentq(lambda x: branches_cdf(x, y) - level, -4, 4)


def draw_quantiles(
    axis: plt.Axes,
    title: str,
    x: np.ndarray,
    y: np.ndarray,
    grid: np.ndarray,
    true_quantiles: dict[float, np.ndarray],
) -> None:
    """Rows (x, y), and quantiles of x given y on a grid: true ones and of samples."""
    flow = SlicedWassersteinFlow(random_state=0).fit(x[:, None], y[:, None])
    conditions = np.repeat(grid, 1_000)[:, None]
    samples = flow.sample(y=conditions, random_state=0).reshape(len(grid), -1)
    axis.scatter(y, x, s=1, color="0.75")
    for i, (level, truth) in enumerate(true_quantiles.items()):
        true_label = None
        samples_label = None
        if i == 0:  # once in the legend
            true_label = "true"
            samples_label = "samples"
        quantile = np.quantile(samples, level, axis=1)
        axis.plot(grid, truth, color=INK, lw=1, ls="--", label=true_label)
        axis.plot(grid, quantile, color=BLUE, lw=1.2, label=samples_label)
    levels = ", ".join(f"{level:g}" for level in true_quantiles)
    axis.set_title(f"{title}: quantiles {levels}", fontsize=10)
    axis.set_xlabel("y")


def draw_regressions(path: Path) -> None:
    """Quantiles of x given y, of samples and true."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-1, 1, 41)
    y = rng.uniform(-1, 1, N_ROWS)
    growing = np.sin(2 * y) + (0.1 + 0.4 * np.abs(y)) * rng.normal(size=N_ROWS)
    signs = rng.choice([-1, 1], N_ROWS)
    branches = signs * (1.5 + y) + 0.2 * rng.normal(size=N_ROWS)

    true_growing = {}
    for level in LEVELS:
        spread = 0.1 + 0.4 * np.abs(grid)
        true_growing[level] = np.sin(2 * grid) + spread * norm.ppf(level)
    true_branches = {}
    for level in LEVELS_OF_BRANCHES:
        quantiles = [branches_quantile(level, point) for point in grid]
        true_branches[level] = np.array(quantiles)

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left, right = axes
    draw_quantiles(left, "noise that grows", growing, y, grid, true_growing)
    draw_quantiles(right, "two branches", branches, y, grid, true_branches)
    left.set_ylabel("x")
    left.legend(frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_calibration(path: Path) -> None:
    """Simulation-based calibration of two moons: ranks, and coverage of intervals."""
    rng = np.random.default_rng(1)
    theta = rng.uniform(-1, 1, (5_000, 2))
    truth = rng.uniform(-1, 1, (N_CONDITIONS, 2))
    model = posterior(theta, simulate(theta, rng), bounds=(-1, 1))
    calibration = model.calibrate(truth, simulate(truth, rng))
    print(calibration)

    shares = np.linspace(0, 1, 51)
    edges = np.linspace(0, 1, N_RANK_BINS + 1)
    coverage = np.array([calibration.coverage(share) for share in shares])
    fewest, most = binom.ppf([LOW_LEVEL, HIGH_LEVEL], N_CONDITIONS, 1 / N_RANK_BINS)
    lowest = binom.ppf(LOW_LEVEL, N_CONDITIONS, shares) / N_CONDITIONS
    highest = binom.ppf(HIGH_LEVEL, N_CONDITIONS, shares) / N_CONDITIONS

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    left.axhspan(fewest, most, color="0.85", label="99 %")
    right.fill_between(shares, lowest, highest, color="0.85", label="99 %")
    for j, name in enumerate(("θ₁", "θ₂")):
        counts, _ = np.histogram(calibration.probabilities[:, j], edges)
        left.stairs(counts, edges, label=name)
        right.plot(shares, coverage[:, j], label=name)
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
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("posterior_moons", draw_posterior),
        ("conditional_quantiles", draw_regressions),
        ("calibration", draw_calibration),
    ):
        path = out / f"{name}.png"
        draw(path)
        print("wrote", path)


if __name__ == "__main__":
    main()
