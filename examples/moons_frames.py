"""A flow in ten frames: noise becomes two moons, and every particle keeps its class.

    python examples/moons_frames.py --out examples-out

writes `moons_frames.png`. A *listener* is any callable that `fit` calls after every step; this one
keeps copies of the particles, which the engine holds as (d, M) in standardised units.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.preprocessing import StandardScaler

from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.events import Event

COLOURS = ("#0072B2", "#E69F00")
SETTINGS = {"n_particles": 2000, "random_state": 0}
STEPS = (1, 2, 3, 5, 8, 12, 18, 30, 50)


def main() -> None:
    """Fit, keep ten moments, draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X, y = make_moons(2000, noise=0.06, random_state=0)
    kept = {}

    def keep(event: Event) -> None:
        if event.steps_done in STEPS:
            kept[event.steps_done] = event.particles.T.cpu().numpy().copy()

    flow = SlicedWassersteinFlow(n_steps=max(STEPS), **SETTINGS).fit(
        X, y, listeners=(keep,)
    )
    # The listener hears of a step when it is done. No steps at all leave the noise of the start.
    noise = (
        SlicedWassersteinFlow(
            n_steps=0, options=VectorOptions(n_axis_steps=0), **SETTINGS
        )
        .fit(X, y)
        .particles_
    )
    scaler = StandardScaler().fit(X)
    frames = {0: noise} | {
        step: scaler.inverse_transform(z) for step, z in kept.items()
    }

    fig, axes = plt.subplots(
        2, 5, figsize=(14, 5.2), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (step, points) in zip(axes.flat, frames.items(), strict=True):
        for label, colour in enumerate(COLOURS):
            chosen = points[flow.particle_conditions_ == label]
            ax.scatter(*chosen.T, s=3, c=colour, linewidths=0, label=f"class {label}")
        ax.set(aspect="equal", xlim=(-2.0, 3.0), ylim=(-1.6, 2.1))
        ax.set_title(
            "noise" if step == 0 else f"after {step} step{'s' if step > 1 else ''}"
        )
    for ax in axes[-1]:
        ax.set_xlabel("$x_1$")
    for ax in axes[:, 0]:
        ax.set_ylabel("$x_2$")
    fig.legend(
        *axes[0, 0].get_legend_handles_labels(),
        markerscale=5,
        ncols=2,
        loc="upper right",
    )
    title = "Two moons by class: 2000 particles, two orthogonal directions a step"
    fig.suptitle(title, x=0.01, ha="left", fontsize=14)
    fig.savefig(out / "moons_frames.png", dpi=100)
    distance = np.round(flow.history_["distance"], 3)
    print(
        "sliced distance before step 1, 2, 3, 5, 10, 50:",
        *distance[[0, 1, 2, 4, 9, 49]],
    )
    print("wrote", out / "moons_frames.png")


if __name__ == "__main__":
    main()
