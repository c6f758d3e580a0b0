"""Random or orthogonal directions? The distance to held-out digits over time.

    python examples/random_vs_orthogonal.py --out examples-out

writes `random_vs_orthogonal.png`, in about half a minute on two cores. With H = d,
random directions leave some of the space out and overshoot elsewhere, often for a
hundred steps; a random rotation treats it evenly. H = 250 or 1000 do a little better in
a step, which costs 3 or 11 times as much.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.events import FlowEvent
from sliceflow.engine.frames import FrameKind, Orthogonal, Random
from sliceflow.metrics import sliced_wasserstein


class Run(NamedTuple):
    """A kind of frame to try, and how it is drawn."""

    name: str
    frame: FrameKind
    n_steps: int
    color: str
    marker: str


RUNS = [
    Run("orthogonal, H = d = 64", Orthogonal(), 200, "#0072B2", "o"),
    Run("random, H = 64", Random(n_directions=64), 200, "#E69F00", "s"),
    Run("random, H = 250", Random(n_directions=250), 200, "#009E73", "^"),
    # Fewer steps, because each takes so long.
    Run("random, H = 1000", Random(n_directions=1000), 60, "#CC79A7", "D"),
]
# Steps after which particles are measured: evenly spread on a logarithmic axis.
MEASURED_STEPS = {*np.geomspace(1, 200, 18).round().astype(int).tolist(), 60}
Y_TICKS = (0.04, 0.06, 0.1, 0.2, 0.4, 0.8)


def distance_to(rows: np.ndarray, particles: np.ndarray) -> float:
    """The sliced distance of particles to rows."""
    return sliced_wasserstein(particles, rows, n_directions=200)


class Watch:
    """A listener that clocks steps, and measures particles against held-out rows."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.steps = []
        self.distances = []
        self.step_seconds = []
        self.step_began = time.perf_counter()

    def __call__(self, event: FlowEvent) -> None:
        """Called by `fit` after every step."""
        self.step_seconds.append(time.perf_counter() - self.step_began)
        if event.steps_done in MEASURED_STEPS:
            self.steps.append(event.steps_done)
            self.distances.append(distance_to(self.rows, event.particles.T.numpy()))
        self.step_began = time.perf_counter()  # measuring is not part of the flow

    @property
    def seconds(self) -> np.ndarray:
        """Steps times the time of an undisturbed step: one in ten is faster."""
        return np.array(self.steps) * np.quantile(self.step_seconds, 0.1)


def main() -> None:
    """Run every kind of frame, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    X, y = load_digits(return_X_y=True)
    train, test = train_test_split(X / 8 - 1, test_size=500, stratify=y, random_state=0)
    reference = distance_to(test, train)

    # In units of pixels, with steps of full size and no axis steps: nothing but the
    # frames differs.
    settings = {
        "standardize": False,
        "options": VectorOptions(taper=0.0, n_axis_steps=0, smoothing=0),
        "transport": "sorted",
        "n_particles": 2000,
        "random_state": 0,
        "device": "cpu",
    }
    # Compile before the clock runs.
    SlicedWassersteinFlow(n_steps=1, **settings).fit(train)

    fig, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    by_steps, by_seconds = axes
    for run in RUNS:
        watch = Watch(test)
        flow = SlicedWassersteinFlow(n_steps=run.n_steps, frame=run.frame, **settings)
        flow.fit(train, listeners=watch)
        style = {"c": run.color, "marker": run.marker, "ms": 4, "label": run.name}
        by_steps.loglog(watch.steps, watch.distances, **style)
        by_seconds.loglog(watch.seconds, watch.distances, **style)
        print(
            f"{run.name:22}  {run.n_steps} steps, {watch.seconds[-1]:.1f} s, "
            f"distance {watch.distances[-1]:.4f}"
        )
    print(f"real training rows      distance {reference:.4f}")

    for ax, unit in ((by_steps, "steps"), (by_seconds, "seconds")):
        ax.axhline(reference, c="black", ls="--", lw=1, label="real training rows")
        ax.set_xlabel(unit)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.grid(alpha=0.3)
    by_steps.set_yticks(Y_TICKS, labels=[f"{tick:g}" for tick in Y_TICKS])
    by_steps.minorticks_off()
    by_steps.set_ylabel("sliced distance to 500 held-out digits")
    handles, labels = by_steps.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=5)
    fig.suptitle("8×8 digits as vectors (d = 64), 2000 particles, sorted transport")
    fig.savefig(out / "random_vs_orthogonal.png", dpi=110)
    print("wrote", out / "random_vs_orthogonal.png")


if __name__ == "__main__":
    main()
