"""A flow in ten frames: noise becomes two moons, and every particle keeps its class.

    python examples/moons_frames.py --out examples-out

writes `moons_frames.png`. A *listener* is any callable that `fit` calls after every
step; this one keeps copies of the particles, which the engine holds as (d, M) in
standardized units.
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
from sliceflow.engine.events import FlowEvent

COLORS = ("#0072B2", "#E69F00")  # of the classes
SETTINGS = {"n_particles": 2000, "random_state": 0}
SHOWN_STEPS = (1, 2, 3, 5, 8, 12, 18, 30, 50)  # most happens early


def fit_and_watch(
    X: np.ndarray, y: np.ndarray
) -> tuple[SlicedWassersteinFlow, dict[int, np.ndarray]]:
    """A fitted flow, and its particles (M, 2) after each of SHOWN_STEPS."""
    scaler = StandardScaler().fit(X)
    frames = {}

    def keep(event: FlowEvent) -> None:
        if event.steps_done in SHOWN_STEPS:
            particles = event.particles.T.cpu().numpy()
            frames[event.steps_done] = scaler.inverse_transform(particles)

    flow = SlicedWassersteinFlow(n_steps=max(SHOWN_STEPS), **SETTINGS)
    flow.fit(X, y, listeners=keep)
    return flow, frames


def starting_noise(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The particles before the first step, of which no listener hears.

    A fit without steps leaves them where they start.
    """
    options = VectorOptions(n_axis_steps=0)
    flow = SlicedWassersteinFlow(n_steps=0, options=options, **SETTINGS)
    return flow.fit(X, y).particles_


def title_of(step: int) -> str:
    """What stands over a frame."""
    if step == 0:
        return "noise"
    if step == 1:
        return "after 1 step"
    return f"after {step} steps"


def main() -> None:
    """Fit, keep ten moments, draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X, y = make_moons(2000, noise=0.06, random_state=0)
    flow, later_frames = fit_and_watch(X, y)
    frames = {0: starting_noise(X, y)} | later_frames

    fig, axes = plt.subplots(
        2, 5, figsize=(14, 5.2), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (step, points) in zip(axes.flat, frames.items(), strict=True):
        for label, color in enumerate(COLORS):
            members = points[flow.particle_conditions_ == label]
            ax.scatter(
                members[:, 0],
                members[:, 1],
                s=3,
                c=color,
                linewidths=0,
                label=f"class {label}",
            )
        ax.set(aspect="equal", xlim=(-2.0, 3.0), ylim=(-1.6, 2.1))
        ax.set_title(title_of(step))
    for ax in axes[-1]:
        ax.set_xlabel("$x_1$")
    for ax in axes[:, 0]:
        ax.set_ylabel("$x_2$")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, markerscale=5, ncols=2, loc="upper right")
    title = "Two moons by class: 2000 particles, two orthogonal directions a step"
    fig.suptitle(title, x=0.01, ha="left", fontsize=14)
    fig.savefig(out / "moons_frames.png", dpi=100)

    distances = np.round(flow.history_["distance"], 3)
    print(
        "sliced distance before step 1, 2, 3, 5, 10, 50:",
        *distances[[0, 1, 2, 4, 9, 49]],
    )
    print("wrote", out / "moons_frames.png")


if __name__ == "__main__":
    main()
