"""Two moons with smoothing and without: new rows, or copies of the old ones.

    python examples/smoothing.py --out examples-out

writes `smoothing.png`: 300 rows, then batched samples of a flow that fits the rows themselves, and of
one that fits the distribution around them, at all other defaults.
"""

import argparse
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import make_moons

from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.metrics import nn_ratio

N = 300


def main() -> None:
    """Fit both, draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X = make_moons(2 * N, noise=0.1, random_state=0)[0]
    train = X[::2]
    held = X[1::2]
    clouds = {f"{N} rows": train}
    for name, smoothing in (
        ("without smoothing", 0),
        ("with smoothing, the default", "auto"),
    ):
        flow = SlicedWassersteinFlow(
            random_state=0, options=VectorOptions(smoothing=smoothing)
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it warns of the copies that the figure shows
            points = flow.fit(train).particles_[:3000]
        title = f"{name}: NN ratio {nn_ratio(points, train, held):.2f}"
        clouds[title] = points
        print(title)

    fig, axes = plt.subplots(
        1, 3, figsize=(14, 3.9), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, points) in zip(axes, clouds.items(), strict=True):
        ax.scatter(*points.T, s=4, c="#0072B2", linewidths=0)
        ax.set(aspect="equal", xlabel="$x_1$")
        ax.set_title(title, fontsize=11)
    axes[0].set_ylabel("$x_2$")
    fig.savefig(out / "smoothing.png", dpi=100)
    print("wrote", out / "smoothing.png")


if __name__ == "__main__":
    main()
