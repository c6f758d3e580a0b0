"""The density of two moons: the rows, p(x), and the rows as noise.

    python examples/density.py --out examples-out

writes `density.png`.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from sliceflow import SlicedDensity

N_ROWS = 800
N_CELLS = 160  # of the picture, along each side
COLORS = ("#0072B2", "#D55E00")  # color-blind safe


def density(out: Path) -> Path:
    """Fit two moons; draw the rows, their density, and the rows as noise."""
    X, y = make_moons(N_ROWS, noise=0.1, random_state=0)
    # "auto" would choose about these, in some seconds.
    model = SlicedDensity(
        n_steps=10, penalty=100.0, n_components=8, random_state=0, device="cpu"
    )
    model.fit(X)
    horizontal = np.linspace(-1.6, 2.6, N_CELLS)
    vertical = np.linspace(-1.1, 1.6, N_CELLS)
    a, b = np.meshgrid(horizontal, vertical)
    p = np.exp(model.score_samples(np.column_stack((a.ravel(), b.ravel()))))
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    shown = axes[1].pcolormesh(horizontal, vertical, p.reshape(a.shape), cmap="viridis")
    fig.colorbar(shown, ax=axes[1], label="p(x)")
    z = model.transform(X)
    for label, color in enumerate(COLORS):
        for ax, points in ((axes[0], X), (axes[2], z)):
            members = points[y == label]
            ax.scatter(*members.T, s=5, linewidths=0, c=color, label=f"moon {label}")
    axes[0].set(title=f"{N_ROWS} rows", xlabel="$x_1$", ylabel="$x_2$")
    axes[1].set(title="density", xlabel="$x_1$")
    axes[2].set(title="the rows as noise", xlabel="$z_1$", ylabel="$z_2$")
    axes[0].legend(markerscale=3)
    for ax in axes:
        ax.set_aspect("equal")
    path = out / "density.png"
    fig.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(fig)
    return path


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("examples-out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    print("wrote", density(out))


if __name__ == "__main__":
    main()
