"""Two moons with smoothing and without: new rows, or copies of the old ones.

    python examples/smoothing.py --out examples-out

writes `smoothing.png`: 300 rows, then batched samples of a flow that fits the rows
themselves, and of one that fits the distribution around them, at all other defaults.
"""

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.metrics import nn_ratio

N_ROWS = 300  # few: many rows are hardly copied
N_SHOWN = 3000  # samples


def samples(train: np.ndarray, smoothing: str | float) -> np.ndarray:
    """Batched samples of a flow with this smoothing."""
    options = VectorOptions(smoothing=smoothing)
    flow = SlicedWassersteinFlow(random_state=0, options=options)
    with warnings.catch_warnings():
        # It warns of the copies that the figure shows.
        warnings.simplefilter("ignore")
        flow.fit(train)
    return flow.particles_[:N_SHOWN]


def main() -> None:
    """Fit both, draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    # Half of the points are training rows. The others say how near new rows should be.
    X, _ = make_moons(2 * N_ROWS, noise=0.1, random_state=0)
    train = X[::2]
    held_out = X[1::2]

    panels = [(f"{N_ROWS} rows", train)]
    for name, smoothing in (
        ("without smoothing", 0),
        ("with smoothing, the default", "auto"),
    ):
        points = samples(train, smoothing)
        ratio = nn_ratio(points, train, held_out)
        title = f"{name}: NN ratio {ratio:.2f}"
        print(title)
        panels.append((title, points))

    fig, axes = plt.subplots(
        1, 3, figsize=(14, 3.9), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, points) in zip(axes, panels, strict=True):
        ax.scatter(points[:, 0], points[:, 1], s=4, c="#0072B2", linewidths=0)
        ax.set(aspect="equal", xlabel="$x_1$")
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("$x_2$")
    fig.savefig(out / "smoothing.png", dpi=100)
    print("wrote", out / "smoothing.png")


if __name__ == "__main__":
    main()
